//! Merge patches of RFC 7386. They can't say that a value is null; objects of Kubernetes have no nulls that mean
//! anything, so the writer leaves nulls out.

use serde_json::{Map, Value};

/// Changes `target` as the patch says.
pub fn apply(target: &mut Value, patch: &Value) {
    let Value::Object(fields) = patch else {
        target.clone_from(patch);
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Value::Object(target) = target else { return };
    for (name, value) in fields {
        if value.is_null() {
            target.remove(name);
        } else {
            apply(target.entry(name.clone()).or_insert(Value::Null), value);
        }
    }
}

/// The patch that makes `after` of `before`. Neither may contain nulls.
pub(crate) fn between(before: &Value, after: &Value) -> Value {
    let (Value::Object(old), Value::Object(new)) = (before, after) else { return after.clone() };
    let mut patch = Map::new();
    for name in old.keys().filter(|name| !new.contains_key(*name)) {
        patch.insert(name.clone(), Value::Null);
    }
    for (name, value) in new {
        match old.get(name) {
            Some(was) if was == value => {}
            // Where one of the two is no object, the value replaces the other.
            Some(was) => {
                patch.insert(name.clone(), between(was, value));
            }
            None => {
                patch.insert(name.clone(), value.clone());
            }
        }
    }
    Value::Object(patch)
}

pub(crate) fn without_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, value| !value.is_null());
            fields.values_mut().for_each(without_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(without_nulls),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_patch_between_two_versions_makes_the_second_of_the_first() {
        let versions = [
            json!({"a": 1, "b": {"c": [1, {"d": 2}], "e": "x"}}),
            json!({"a": {"f": 1}, "b": {"c": [1, {"d": 3}]}}),
            json!({"b": "text"}),
            json!({}),
            json!({"b": {"c": {"d": {}}}, "g": []}),
        ];
        for before in &versions {
            for after in &versions {
                let mut patched = before.clone();
                apply(&mut patched, &between(before, after));
                assert_eq!(&patched, after, "from {before}");
            }
        }
    }

    #[test]
    fn nulls_are_left_out_at_every_depth() {
        let mut value = json!({"a": null, "b": {"c": null, "d": [{"e": null}]}});
        without_nulls(&mut value);
        assert_eq!(value, json!({"b": {"d": [{}]}}));
    }
}
