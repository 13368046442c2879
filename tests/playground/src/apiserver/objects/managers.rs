//! Records in `metadata.managedFields` who last wrote which part of an object by an update. It has only the
//! names of outer fields, which suffices to name the author of a change. An apply records its own entry.

use serde_json::{Map, Value, json};

use crate::apiserver::values::ident;

/// The server sets them, so they belong to no writer.
const NOBODYS: [&str; 3] = ["apiVersion", "kind", "status"];
const NOBODYS_METADATA: [&str; 10] = [
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "generation",
    "managedFields",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "selfLink",
];
/// Cut to this many characters, as in the real server.
const MANAGER_CHARS: usize = 128;

/// The name in the request, otherwise in the client's user agent.
pub fn manager(named: &str, user_agent: Option<&str>) -> String {
    let program = user_agent.and_then(|agent| agent.split('/').next()).unwrap_or_default();
    let name = [named, program].into_iter().find(|name| !name.is_empty()).unwrap_or("unknown");
    name.chars().take(MANAGER_CHARS).collect()
}

/// The object as this manager wrote it. If the written part did not change, nothing is recorded.
pub fn noted(
    old: &Map<String, Value>,
    mut new: Map<String, Value>,
    manager: &str,
    is_status: bool,
) -> Map<String, Value> {
    let fields =
        if is_status { differing(old, &new, &["status"]) } else { differing(old, &new, &outer(old, &new)) };
    if fields.is_empty() {
        return new;
    }
    let subresource = if is_status { json!("status") } else { Value::Null };
    let is_ours = |entry: &Value| {
        entry["manager"] == manager && entry["operation"] == "Update" && entry["subresource"] == subresource
    };
    let mut entries = new["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
    let before = entries.iter().find(|entry| is_ours(entry)).map(|entry| entry["fieldsV1"].clone());
    let mut all = before.unwrap_or_else(|| json!({}));
    crate::apiserver::wire::patch::merge(&mut all, &Value::Object(fields));
    entries.retain(|entry| !is_ours(entry));
    let mut entry = json!({
        "manager": manager, "operation": "Update", "apiVersion": new["apiVersion"],
        "time": ident::now(), "fieldsType": "FieldsV1", "fieldsV1": all,
    });
    if is_status {
        entry["subresource"] = subresource;
    }
    entries.push(entry);
    new["metadata"]["managedFields"] = entries.into();
    new
}

fn outer<'o>(old: &'o Map<String, Value>, new: &'o Map<String, Value>) -> Vec<&'o str> {
    old.keys().chain(new.keys()).map(String::as_str).filter(|key| !NOBODYS.contains(key)).collect()
}

fn differing(old: &Map<String, Value>, new: &Map<String, Value>, keys: &[&str]) -> Map<String, Value> {
    let mut fields = Map::new();
    for key in keys.iter().filter(|key| old.get(**key) != new.get(**key)) {
        let inner = match (*key, new.get(*key).and_then(Value::as_object)) {
            ("metadata", Some(metadata)) => {
                let none = Map::new();
                let before = old.get("metadata").and_then(Value::as_object).unwrap_or(&none);
                let keys = metadata.keys().chain(before.keys()).map(String::as_str);
                let keys: Vec<_> = keys.filter(|key| !NOBODYS_METADATA.contains(key)).collect();
                let inner = differing(before, metadata, &keys);
                if inner.is_empty() {
                    continue;
                }
                inner
            }
            _ => Map::new(),
        };
        fields.insert(format!("f:{key}"), Value::Object(inner));
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(value: Value) -> Map<String, Value> {
        let Value::Object(object) = value else { panic!("{value}") };
        object
    }

    #[test]
    fn each_writer_has_one_entry_with_the_fields_that_it_has_changed() {
        let made = json!({"apiVersion": "v1", "metadata": {"uid": "1", "labels": {"a": "b"}}, "spec": {}, "status": {"n": 0}});
        let made = noted(&Map::new(), object(made), "kubectl", false);
        let entries = made["metadata"]["managedFields"].as_array().unwrap();
        assert_eq!(entries[0]["manager"], "kubectl");
        assert_eq!(entries[0]["fieldsV1"], json!({"f:metadata": {"f:labels": {}}, "f:spec": {}}));
        let mut running = made.clone();
        running.insert("status".into(), json!({"n": 1}));
        let running = noted(&made, running, "kubelet", true);
        let entries = running["metadata"]["managedFields"].as_array().unwrap();
        assert_eq!((entries.len(), &entries[1]["subresource"]), (2, &json!("status")));
        let mut changed = running.clone();
        changed.insert("data".into(), json!(1));
        let changed = noted(&running, changed, "kubectl", false);
        let entries = changed["metadata"]["managedFields"].as_array().unwrap();
        assert_eq!(entries.len(), 2);
        assert_eq!(
            entries[1]["fieldsV1"],
            json!({"f:data": {}, "f:metadata": {"f:labels": {}}, "f:spec": {}})
        );
        assert_eq!(noted(&changed, changed.clone(), "other", false), changed, "nothing was changed");
    }

    #[test]
    fn a_manager_is_what_the_request_says_or_the_program_that_asks() {
        assert_eq!(manager("ci", Some("kubectl/v1.32 (linux)")), "ci");
        assert_eq!(manager("", Some("kubectl/v1.32 (linux)")), "kubectl");
        assert_eq!(manager("", None), "unknown");
        assert_eq!(manager(&"é".repeat(200), None).chars().count(), MANAGER_CHARS);
    }
}
