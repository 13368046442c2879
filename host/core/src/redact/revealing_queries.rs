//! Finds queries whose answer would reveal a secret. Listing the objects that have a given value reveals the
//! value to anybody who guesses it.

use super::RedactionRules;
use super::rules::PathToken;
use super::text::addresses::in_addresses;
use super::walk::{ParentKey, meaning_under_key};

impl RedactionRules {
    /// Whether the value at this path is hidden, or may be. `kind` is `None` if the object may be of any
    /// kind.
    pub fn hides_value_at(&self, kind: Option<&str>, path: &[&str]) -> bool {
        let mut matches = self.field_matches(kind);
        let (mut above, mut depth) = (ParentKey::Other, 0);
        for token in path {
            matches = matches.step_into(PathToken::Key(token));
            if matches.is_met() || (above != ParentKey::Other && self.is_secret_name(token)) {
                return true;
            }
            // In a list of variables or arguments, any index may have the secret.
            if above != ParentKey::Other && (token.parse::<usize>().is_ok() || *token == "*") {
                return true;
            }
            above = meaning_under_key(kind, token, depth);
            depth += 1;
        }
        // An index has each element of a list.
        above == ParentKey::Command || matches.step_into(PathToken::Element).is_met()
    }

    /// Whether a field's rule hides the object at this path, or may hide a value inside of it.
    pub fn hides_any(&self, path: &[&str]) -> bool {
        let mut matches = self.field_matches(None);
        let is_hidden = path.iter().any(|token| {
            matches = matches.step_into(PathToken::Key(token));
            matches.is_met()
        });
        is_hidden || matches.step_into(PathToken::AnyKey).is_met()
    }
}

/// Whether a search for this text is a search for an address with a password.
pub(crate) fn names_an_address(text: &str) -> bool {
    !in_addresses(text).is_empty()
}

/// Whether a label or an annotation may hold a secret, whatever the rules' names and fields are.
pub(crate) fn may_hold_secret(key: &str, value: &str) -> bool {
    meaning_under_key(None, key, 2) != ParentKey::Other || names_an_address(value)
}

#[cfg(test)]
mod tests {
    use crate::redact::hiding;

    #[test]
    fn a_rule_that_may_hide_a_label_is_told_from_one_that_hides_something_else() {
        let may_hide = |pointers: &[&str]| hiding(pointers).hides_any(&["metadata", "labels"]);
        for pointer in ["/metadata", "/metadata/labels", "/metadata/labels/code", "/*/labels/*", "/**/code"] {
            assert!(may_hide(&[pointer]), "{pointer}");
        }
        for pointer in
            ["/spec/code", "/metadata/annotations/*", "/**/annotations/code", "/metadata/labels/a/b"]
        {
            assert!(!may_hide(&[pointer]), "{pointer}");
        }
    }
}
