//! Finds questions whose answer would reveal a secret. An answer to "which objects have this value here" reveals it to
//! somebody who guesses.

use super::Redactor;
use super::addresses::in_addresses;
use super::rules::Named;
use super::walk::{Under, under};
use crate::find::index::{IndexError, Indexes, Key, SUBMITTER};

impl Redactor {
    /// Whether the value at this place of an object is hidden, or may be. `kind`: none where it may be any.
    pub fn hides(&self, kind: Option<&str>, path: &[&str]) -> bool {
        let mut here = self.matches(kind);
        let (mut above, mut depth) = (Under::Other, 0);
        for token in path {
            here = here.step(Named::Key(token));
            if here.is_met() || (above != Under::Other && self.is_secret_name(token)) {
                return true;
            }
            // Of a list of variables or arguments, nobody knows which place has the secret.
            if above != Under::Other && (token.parse::<usize>().is_ok() || *token == "*") {
                return true;
            }
            above = under(kind, token, depth);
            depth += 1;
        }
        // An index has each element of a list.
        above == Under::Command || here.step(Named::Element).is_met()
    }

    /// Whether a field's rule hides the object at this place of a document, or may hide a value of it.
    pub fn hides_any(&self, path: &[&str]) -> bool {
        let mut here = self.matches(None);
        let is_hidden = path.iter().any(|token| {
            here = here.step(Named::Key(token));
            here.is_met()
        });
        is_hidden || here.step(Named::AnyKey).is_met()
    }

    /// Refuses a question to an index whose answer would tell what is hidden.
    pub fn allow(&self, indexes: &Indexes, name: &str, key: &Key<'_>) -> Result<(), IndexError> {
        let is_hidden = match key {
            Key::Namespace(_) => false,
            Key::Owner(_) => self.hides(None, &["metadata", "ownerReferences", "0", "uid"]),
            Key::Node(_) => self.hides(None, &["spec", "nodeName"]),
            Key::Label(label, _) => self.hides(None, &["metadata", "labels", label]),
            Key::Submitter(_) => self.hides(None, &["metadata", "annotations", SUBMITTER]),
            Key::Named(number, key) => {
                let path: Vec<_> = indexes.path(*number).iter().map(String::as_str).collect();
                self.hides(None, &path) || !in_addresses(key).is_empty()
            }
        };
        if is_hidden { Err(IndexError::Hidden { index: name.into() }) } else { Ok(()) }
    }
}

/// Whether a label or an annotation may hold a secret, whatever the names and the fields of the rules are.
pub(crate) fn may_hold_secret(key: &str, value: &str) -> bool {
    under(None, key, 2) != Under::Other || !in_addresses(value).is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{HostSpec, RedactedField, RedactionSpec};
    use crate::find::index::IndexSpec;

    fn rules(pointers: &[&str]) -> Redactor {
        let mut redaction = RedactionSpec::default();
        redaction.fields.extend(
            pointers.iter().map(|pointer| RedactedField { kind: None, pointer: (*pointer).to_owned() }),
        );
        HostSpec { redaction, ..HostSpec::default() }.redactor().unwrap()
    }

    #[test]
    fn a_rule_that_may_hide_a_label_is_told_from_one_that_hides_something_else() {
        let may_hide = |pointers: &[&str]| rules(pointers).hides_any(&["metadata", "labels"]);
        for pointer in ["/metadata", "/metadata/labels", "/metadata/labels/code", "/*/labels/*", "/**/code"] {
            assert!(may_hide(&[pointer]), "{pointer}");
        }
        for pointer in
            ["/spec/code", "/metadata/annotations/*", "/**/annotations/code", "/metadata/labels/a/b"]
        {
            assert!(!may_hide(&[pointer]), "{pointer}");
        }
    }

    #[test]
    fn an_index_over_a_hidden_place_is_refused_by_name_and_others_answer() {
        let rules = rules(&["/spec/code", "/spec/keys/*", "/metadata/labels/code", "/spec/tree"]);
        let asked = |pointer: &str, key: &str| {
            let indexes = Indexes::new(&[IndexSpec { name: "it".into(), pointer: pointer.into() }]);
            rules.allow(&indexes, "it", &indexes.key("it", key).unwrap())
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
            let told = asked(pointer, "x").unwrap_err().to_string();
            assert!(told.contains("the index `it` is of a place that redaction hides"), "{told}");
        }
        assert!(asked("/spec/url", "redis://u:hush@h").is_err(), "the key itself has a password");
        for pointer in ["/spec/schedulerName", "/spec/codes", "/spec/env/EPOCHS"] {
            assert_eq!(asked(pointer, "x"), Ok(()));
        }
        let builtin = Indexes::new(&[]);
        let builtin = |name: &str, key: &str| rules.allow(&builtin, name, &builtin.key(name, key).unwrap());
        assert!(builtin("label", "code=a").is_err());
        for (name, key) in [("label", "team=a"), ("owner", "u"), ("node", "n"), ("namespace", "n")] {
            assert_eq!(builtin(name, key), Ok(()));
        }
    }
}
