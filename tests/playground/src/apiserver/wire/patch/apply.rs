//! Server-side apply: merges the fields that a manager applies, and removes those that it no longer applies.
//!
//! It records only the fields of managers, so no conflicts exist to force.

use serde_json::{Map, Value, json};

use super::strategic::strategic;
use crate::apiserver::values::ident;

/// Members that identify an object and belong to no manager.
const IDENTITY: &[&str] = &["apiVersion", "kind"];
const IDENTITY_METADATA: &[&str] =
    &["name", "namespace", "uid", "resourceVersion", "creationTimestamp", "generation", "managedFields"];

/// The object after `manager` applied `applied`, a whole configuration. `status` says which part is applied.
pub fn apply(
    old: &Value,
    applied: &Value,
    manager: &str,
    custom: bool,
    status: bool,
) -> Result<Value, String> {
    let kind = applied["kind"].as_str().unwrap_or_default();
    let fields = owned_fields(applied);
    let mut new = old.clone();
    let entries = old["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
    let subresource = if status { json!("status") } else { Value::Null };
    let ours =
        |e: &Value| e["manager"] == manager && e["operation"] == "Apply" && e["subresource"] == subresource;
    let before = entries.iter().find(|e| ours(e));
    if let Some(before) = before {
        remove_dropped(&mut new, &before["fieldsV1"], &fields);
    }
    if custom {
        super::merge(&mut new, applied);
    } else {
        new = strategic(kind, &new, applied)?;
    }
    let mut entry = json!({
        "manager": manager, "operation": "Apply", "apiVersion": applied["apiVersion"],
        "time": ident::now(), "fieldsType": "FieldsV1", "fieldsV1": fields,
    });
    if status {
        entry["subresource"] = subresource.clone();
    }
    if let Some(before) = before.filter(|b| b["fieldsV1"] == entry["fieldsV1"])
        && without_entries(&new) == without_entries(old)
    {
        // Nothing changed, so the time of the entry stays, and with it the version.
        entry["time"] = before["time"].clone();
    }
    let mut entries: Vec<Value> = entries.iter().filter(|e| !ours(e)).cloned().collect();
    entries.insert(0, entry);
    new["metadata"]["managedFields"] = entries.into();
    Ok(new)
}

fn without_entries(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.remove("managedFields");
    }
    object
}

/// The fields of a configuration in the form of `fieldsV1`.
fn owned_fields(applied: &Value) -> Value {
    let Some(object) = applied.as_object() else { return json!({}) };
    let mut fields = Map::new();
    for (key, value) in object.iter().filter(|(key, _)| !IDENTITY.contains(&key.as_str())) {
        if key == "metadata" {
            let metadata = value.as_object().cloned().unwrap_or_default();
            let rest: Map<String, Value> =
                metadata.into_iter().filter(|(k, _)| !IDENTITY_METADATA.contains(&k.as_str())).collect();
            if !rest.is_empty() {
                fields.insert("f:metadata".into(), set_of(&Value::Object(rest)));
            }
        } else {
            fields.insert(format!("f:{key}"), set_of(value));
        }
    }
    Value::Object(fields)
}

fn set_of(value: &Value) -> Value {
    match value {
        Value::Object(map) => map.iter().map(|(k, v)| (format!("f:{k}"), set_of(v))).collect(),
        Value::Array(list) if !list.is_empty() && list.iter().all(|e| e.get("name").is_some()) => {
            list.iter().map(|e| (format!("k:{}", json!({"name": e["name"]})), set_of(e))).collect()
        }
        _ => json!({}),
    }
}

/// Removes the leaves that were applied before and are not applied any more.
fn remove_dropped(target: &mut Value, before: &Value, now: &Value) {
    let Some(before) = before.as_object() else { return };
    for (field, inner) in before {
        let kept = now.get(field);
        if let Some(name) = field.strip_prefix("f:") {
            match (kept, target.as_object_mut()) {
                (None, Some(map)) => drop(map.remove(name)),
                (Some(kept), Some(map)) => {
                    if let Some(value) = map.get_mut(name) {
                        remove_dropped(value, inner, kept);
                    }
                }
                _ => {}
            }
        } else if let Some(key) = field.strip_prefix("k:") {
            let Ok(key) = serde_json::from_str::<Value>(key) else { continue };
            let Some(list) = target.as_array_mut() else { continue };
            let Some(at) = list.iter().position(|e| e["name"] == key["name"]) else { continue };
            match kept {
                None => drop(list.remove(at)),
                Some(kept) => remove_dropped(&mut list[at], inner, kept),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(data: &Value) -> Value {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": data})
    }

    #[test]
    fn what_is_no_longer_applied_is_removed_and_what_others_wrote_stays() {
        let first =
            apply(&config(&json!({"theirs": "1"})), &config(&json!({"a": "1", "b": "1"})), "m", false, false);
        let second = apply(&first.unwrap(), &config(&json!({"a": "2"})), "m", false, false).unwrap();
        assert_eq!(second["data"], json!({"theirs": "1", "a": "2"}));
        let entries = second["metadata"]["managedFields"].as_array().unwrap();
        assert_eq!(entries.len(), 1);
        assert_eq!(entries[0]["fieldsV1"], json!({"f:data": {"f:a": {}}}));
    }

    #[test]
    fn applying_the_same_again_changes_nothing() {
        let first = apply(&config(&json!({})), &config(&json!({"a": "1"})), "m", false, false).unwrap();
        let mut aged = first.clone();
        aged["metadata"]["managedFields"][0]["time"] = "2020-01-01T00:00:00Z".into();
        assert_eq!(apply(&aged, &config(&json!({"a": "1"})), "m", false, false).unwrap(), aged);
    }

    #[test]
    fn a_removed_container_goes() {
        let pod = |names: &[&str]| {
            let containers: Vec<Value> = names.iter().map(|n| json!({"name": n, "image": "x"})).collect();
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": containers}})
        };
        let first = apply(&pod(&[]), &pod(&["a", "b"]), "m", false, false).unwrap();
        let second = apply(&first, &pod(&["b"]), "m", false, false).unwrap();
        assert_eq!(second["spec"]["containers"], json!([{"name": "b", "image": "x"}]));
    }
}
