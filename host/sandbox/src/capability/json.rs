//! Documents as values: JSON Pointers into them, and merge patches between them.
//!
//! The merge patch is computed here: the crate `json-patch`, which kube brings, only applies such patches.

use serde_json::{Map, Value};

use crate::bindings::types::Error;

pub fn parse(bytes: &[u8]) -> Result<Value, Error> {
    serde_json::from_slice(bytes)
        .map_err(|error| Error::Invalid(format!("the document is not JSON: {error}")))
}

pub fn is_pointer(text: &str) -> bool {
    text.is_empty() || text.starts_with('/')
}

/// The patch that turns `before` into `after`, as RFC 7386 defines it: the differences, with null for removed
/// members. (A new null can't be distinguished from a removal; the API server stores none.)
pub fn merge_patch(before: &Value, after: &Value) -> Value {
    let (Value::Object(before), Value::Object(after)) = (before, after) else { return after.clone() };
    let mut patch = Map::new();
    for key in before.keys().filter(|key| !after.contains_key(*key)) {
        patch.insert(key.clone(), Value::Null);
    }
    for (key, value) in after {
        match before.get(key) {
            Some(old) if old == value => {}
            Some(old) => {
                patch.insert(key.clone(), merge_patch(old, value));
            }
            None => {
                patch.insert(key.clone(), value.clone());
            }
        }
    }
    Value::Object(patch)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn apply(target: Value, patch: &Value) -> Value {
        let Value::Object(patch) = patch else { return patch.clone() };
        let mut target = if let Value::Object(target) = target { target } else { Map::new() };
        for (key, value) in patch {
            let old = target.remove(key);
            if !value.is_null() {
                target.insert(key.clone(), apply(old.unwrap_or(Value::Null), value));
            }
        }
        Value::Object(target)
    }

    #[test]
    fn a_patch_holds_what_changed_and_nothing_else() {
        let before = json!({"spec": {"a": 1, "b": [1, 2]}, "status": {"phase": "Pending"}, "old": true});
        let after = json!({"spec": {"a": 1, "b": [1]}, "status": {"phase": "Running"}});
        let patch = merge_patch(&before, &after);
        assert_eq!(patch, json!({"spec": {"b": [1]}, "status": {"phase": "Running"}, "old": null}));
        assert_eq!(apply(before, &patch), after);
        assert_eq!(merge_patch(&after, &after), json!({}));
    }

    #[test]
    fn an_object_in_the_place_of_a_value_is_taken_whole() {
        let (before, after) = (json!({"a": 1}), json!({"a": {"b": {"c": 2}}}));
        assert_eq!(apply(before.clone(), &merge_patch(&before, &after)), after);
    }
}
