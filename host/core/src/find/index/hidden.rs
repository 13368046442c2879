//! Refuses index queries whose answer would reveal what redaction hides.

use super::{IndexError, IndexKey, IndexSet, SUBMITTER};
use crate::redact::{RedactionRules, names_an_address};

impl IndexSet {
    /// Whether the index `name` may be queried for `key`.
    pub fn check_query_allowed(
        &self,
        rules: &RedactionRules,
        name: &str,
        key: &IndexKey<'_>,
    ) -> Result<(), IndexError> {
        let is_hidden = match key {
            IndexKey::Namespace(_) => false,
            IndexKey::Owner(_) => rules.hides_value_at(None, &["metadata", "ownerReferences", "0", "uid"]),
            IndexKey::Node(_) => rules.hides_value_at(None, &["spec", "nodeName"]),
            IndexKey::Label(label, _) => rules.hides_value_at(None, &["metadata", "labels", label]),
            IndexKey::Submitter(_) => rules.hides_value_at(None, &["metadata", "annotations", SUBMITTER]),
            IndexKey::Named(number, key) => {
                let path: Vec<_> = self.path(*number).iter().map(String::as_str).collect();
                rules.hides_value_at(None, &path) || names_an_address(key)
            }
        };
        if is_hidden { Err(IndexError::Hidden { index: name.into() }) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::find::index::IndexSpec;
    use crate::redact::hiding;

    #[test]
    fn an_index_over_a_hidden_place_is_refused_by_name_and_others_answer() {
        let rules = hiding(&["/spec/code", "/spec/keys/*", "/metadata/labels/code", "/spec/tree"]);
        let asked = |pointer: &str, key: &str| {
            let indexes = IndexSet::new(&[IndexSpec { name: "it".into(), pointer: pointer.into() }]);
            indexes.check_query_allowed(&rules, "it", &indexes.key("it", key).unwrap())
        };
        for pointer in [
            "/spec/code",
            "/spec/keys",
            "/spec/keys/a",
            "/spec/tree/a/b",
            "/spec/containers/0/env/0/value",
            "/spec/containers/0/args",
            "/spec/containers/0/command/1",
            "/spec/env/API_KEY",
            "/spec/env/API_KEY/value",
            "/spec/args/token",
            "/data/api-key",
        ] {
            let error = asked(pointer, "x").unwrap_err().to_string();
            assert!(error.contains("the index `it` is of a place that redaction hides"), "{error}");
        }
        assert!(asked("/spec/url", "redis://u:hush@h").is_err(), "the key itself has a password");
        for pointer in ["/spec/schedulerName", "/spec/codes", "/spec/env/EPOCHS"] {
            assert_eq!(asked(pointer, "x"), Ok(()));
        }
        let builtin = IndexSet::new(&[]);
        let builtin = |name: &str, key: &str| {
            builtin.check_query_allowed(&rules, name, &builtin.key(name, key).unwrap())
        };
        assert!(builtin("label", "code=a").is_err());
        for (name, key) in [("label", "team=a"), ("owner", "u"), ("node", "n"), ("namespace", "n")] {
            assert_eq!(builtin(name, key), Ok(()));
        }
    }
}
