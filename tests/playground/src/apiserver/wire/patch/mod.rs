//! The four kinds of patches, as pure functions of documents.
//!
//! `kubectl` and client libraries use all of them, so a server without one would refuse ordinary commands. A
//! real server derives merge keys and defaults from the types of Go; there are no types here, so a table has
//! the keys of the lists that matter.
//!
//! They know no store and no kind.

mod apply;
mod json_patch;
mod strategic;

use serde_json::{Map, Value};

pub use apply::apply;
pub use json_patch::json_patch;
pub use strategic::strategic;

/// The kind of a patch, by its content type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PatchType {
    Json,
    Merge,
    Strategic,
    Apply,
}

impl PatchType {
    pub fn of(content_type: &str) -> Option<Self> {
        match content_type.split(';').next().unwrap_or_default().trim() {
            "application/json-patch+json" => Some(PatchType::Json),
            "application/merge-patch+json" => Some(PatchType::Merge),
            "application/strategic-merge-patch+json" => Some(PatchType::Strategic),
            "application/apply-patch+yaml" => Some(PatchType::Apply),
            _ => None,
        }
    }
}

/// A merge patch (RFC 7386).
pub fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Some(target) = target.as_object_mut() else { return };
    for (key, value) in patch {
        if value.is_null() {
            target.remove(key);
        } else {
            merge(target.entry(key.clone()).or_insert(Value::Null), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_merge_patch_replaces_lists_and_removes_nulls() {
        let mut target = json!({"a": {"b": 1, "c": [1, 2]}, "d": 1});
        merge(&mut target, &json!({"a": {"b": null, "c": [3], "e": {"f": null, "g": 1}}}));
        assert_eq!(target, json!({"a": {"c": [3], "e": {"g": 1}}, "d": 1}));
    }
}
