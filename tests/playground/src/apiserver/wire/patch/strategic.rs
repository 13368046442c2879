//! Strategic merge patches: they merge lists of objects by a key, with directives to delete, replace and
//! order. The keys of the lists are in a table, because types are missing here.

use serde_json::{Map, Value};

const DIRECTIVE: &str = "$patch";
const RETAIN: &str = "$retainKeys";
const ORDER: &str = "$setElementOrder/";
const DELETE_PRIMITIVES: &str = "$deleteFromPrimitiveList/";

/// Lists whose elements are identified by a member. Any other list is replaced as a whole.
const MERGE_KEYS: &[(&str, &str)] = &[
    ("addresses", "type"),
    ("conditions", "type"),
    ("containers", "name"),
    ("env", "name"),
    ("ephemeralContainers", "name"),
    ("hostAliases", "ip"),
    ("imagePullSecrets", "name"),
    ("initContainers", "name"),
    ("ownerReferences", "uid"),
    ("podIPs", "ip"),
    ("resourceClaims", "name"),
    ("schedulingGates", "name"),
    ("secrets", "name"),
    ("sources", "name"),
    ("topologySpreadConstraints", "topologyKey"),
    ("volumeDevices", "devicePath"),
    ("volumeMounts", "mountPath"),
    ("volumes", "name"),
    ("webhooks", "name"),
];

/// Lists of plain values that are merged as sets.
const SETS: &[&str] = &["finalizers"];

/// Merges `patch` into `target`, an object of `kind`.
pub fn strategic(kind: &str, target: &Value, patch: &Value) -> Result<Value, String> {
    let mut merged = target.clone();
    merge_value(kind, "", &mut merged, patch)?;
    Ok(merged)
}

fn merge_key(kind: &str, field: &str, elements: &[Value]) -> Option<&'static str> {
    if field == "ports" {
        // A Service identifies its ports by `port`, a container by `containerPort`.
        let container = elements.iter().any(|e| e.get("containerPort").is_some());
        return Some(if kind == "Service" || !container { "port" } else { "containerPort" });
    }
    MERGE_KEYS.iter().find(|(name, _)| *name == field).map(|(_, key)| *key)
}

fn merge_value(kind: &str, field: &str, target: &mut Value, patch: &Value) -> Result<(), String> {
    match patch {
        Value::Object(patch) => merge_object(kind, target, patch),
        Value::Array(patch) => merge_list(kind, field, target, patch),
        other => {
            *target = other.clone();
            Ok(())
        }
    }
}

fn merge_object(kind: &str, target: &mut Value, patch: &Map<String, Value>) -> Result<(), String> {
    match patch.get(DIRECTIVE).and_then(Value::as_str) {
        Some("replace") => {
            *target = Value::Object(without_directives(patch));
            return Ok(());
        }
        Some("delete") => {
            *target = Value::Object(Map::new());
            return Ok(());
        }
        Some("merge") | None => {}
        Some(other) => return Err(format!("unrecognized type of $patch: {other}")),
    }
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Some(map) = target.as_object_mut() else { return Ok(()) };
    for (key, value) in patch.iter().filter(|(key, _)| !key.starts_with('$')) {
        if value.is_null() {
            map.remove(key);
            continue;
        }
        let deletes = value.get(DIRECTIVE).and_then(Value::as_str) == Some("delete");
        if deletes {
            map.remove(key);
        } else {
            merge_value(kind, key, map.entry(key.clone()).or_insert(Value::Null), value)?;
        }
    }
    for (key, value) in patch {
        let values = value.as_array().map_or(&[][..], Vec::as_slice);
        if key == RETAIN {
            map.retain(|name, _| values.iter().any(|v| v == name));
        } else if let Some(field) = key.strip_prefix(DELETE_PRIMITIVES) {
            if let Some(list) = map.get_mut(field).and_then(Value::as_array_mut) {
                list.retain(|v| !values.contains(v));
            }
        } else if let Some(field) = key.strip_prefix(ORDER)
            && let Some(list) = map.get_mut(field).and_then(Value::as_array_mut)
        {
            order(list, values, merge_key(kind, field, values));
        }
    }
    Ok(())
}

fn without_directives(patch: &Map<String, Value>) -> Map<String, Value> {
    patch.iter().filter(|(key, _)| !key.starts_with('$')).map(|(k, v)| (k.clone(), v.clone())).collect()
}

fn merge_list(kind: &str, field: &str, target: &mut Value, patch: &[Value]) -> Result<(), String> {
    let replaces = patch.iter().any(|e| e.get(DIRECTIVE).and_then(Value::as_str) == Some("replace"));
    let key = merge_key(kind, field, patch);
    let objects = patch.iter().all(Value::is_object);
    if replaces || !(objects && key.is_some() || SETS.contains(&field)) {
        *target = patch.iter().filter(|e| e.get(DIRECTIVE).is_none()).cloned().collect();
        return Ok(());
    }
    if !target.is_array() {
        *target = Value::Array(Vec::new());
    }
    let Some(list) = target.as_array_mut() else { return Ok(()) };
    let Some(key) = key else {
        for value in patch.iter().filter(|v| !v.is_null()) {
            if !list.contains(value) {
                list.push(value.clone());
            }
        }
        return Ok(());
    };
    for element in patch {
        let id = element
            .get(key)
            .ok_or_else(|| format!("map: {element} does not contain declared merge key: {key}"))?;
        let at = list.iter().position(|e| e.get(key) == Some(id));
        let deletes = element.get(DIRECTIVE).and_then(Value::as_str) == Some("delete");
        match at {
            Some(at) if deletes => drop(list.remove(at)),
            Some(at) => merge_value(kind, "", &mut list[at], element)?,
            None if deletes => {}
            None => {
                let mut fresh = Value::Null;
                merge_value(kind, "", &mut fresh, element)?;
                list.push(fresh);
            }
        }
    }
    Ok(())
}

/// Sorts the elements that the order names. The others come last and keep their order.
fn order(list: &mut [Value], wanted: &[Value], key: Option<&str>) {
    let id = |value: &Value| match key {
        Some(key) => value.get(key).cloned(),
        None => Some(value.clone()),
    };
    let wanted: Vec<Option<Value>> = wanted.iter().map(id).collect();
    list.sort_by_key(|element| {
        let id = id(element);
        wanted.iter().position(|w| *w == id).unwrap_or(usize::MAX)
    });
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn lists_are_merged_by_their_key() {
        let target = json!({"spec": {"containers": [
            {"name": "a", "image": "a:1", "env": [{"name": "X", "value": "1"}, {"name": "Y", "value": "1"}]},
            {"name": "b", "image": "b:1"},
        ]}});
        let patch = json!({"spec": {
            "$setElementOrder/containers": [{"name": "c"}, {"name": "a"}],
            "containers": [
                {"name": "a", "image": "a:2", "env": [{"name": "X", "$patch": "delete"}]},
                {"name": "b", "$patch": "delete"},
                {"name": "c", "image": "c:1"},
            ],
        }});
        assert_eq!(
            strategic("Pod", &target, &patch).unwrap(),
            json!({"spec": {"containers": [
                {"name": "c", "image": "c:1"},
                {"name": "a", "image": "a:2", "env": [{"name": "Y", "value": "1"}]},
            ]}})
        );
    }

    #[test]
    fn other_lists_and_replaced_maps_are_taken_as_they_are() {
        let target =
            json!({"args": [1, 2], "strategy": {"type": "RollingUpdate", "rollingUpdate": {}}, "gone": 1});
        let patch = json!({
            "args": [3],
            "gone": null,
            "strategy": {"$retainKeys": ["type"], "type": "Recreate"},
            "map": {"$patch": "replace", "a": 1},
        });
        assert_eq!(
            strategic("Deployment", &target, &patch).unwrap(),
            json!({"args": [3], "strategy": {"type": "Recreate"}, "map": {"a": 1}})
        );
    }

    #[test]
    fn finalizers_are_a_set() {
        let target = json!({"metadata": {"finalizers": ["a", "b"]}});
        let patch = json!({"metadata": {
            "finalizers": ["c", "b"], "$deleteFromPrimitiveList/finalizers": ["a"],
        }});
        let merged = strategic("Pod", &target, &patch).unwrap();
        assert_eq!(merged, json!({"metadata": {"finalizers": ["b", "c"]}}));
    }

    #[test]
    fn an_element_without_its_key_is_refused() {
        let error = strategic("Pod", &json!({}), &json!({"containers": [{"image": "x"}]})).unwrap_err();
        assert!(error.contains("does not contain declared merge key: name"));
    }
}
