//! Reads the parts of an object's document that lists show and searches match.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::Deserialize;

use super::index::SUBMITTER;
use crate::project::{JsonScanner, ProjectError, RawString, ScanFlow};

/// The facts of a document about its object, besides its name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DocumentFacts {
    pub labels: BTreeMap<String, String>,
    pub submitter: Option<String>,
    /// As written in the document.
    pub created: Option<String>,
}

#[derive(Deserialize)]
struct DocumentHead<'a> {
    #[serde(borrow)]
    metadata: DocumentMetadata<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct DocumentMetadata<'a> {
    #[serde(borrow, default)]
    labels: Option<BTreeMap<Cow<'a, str>, Cow<'a, str>>>,
    #[serde(borrow, default)]
    annotations: Option<BTreeMap<Cow<'a, str>, Cow<'a, str>>>,
    #[serde(borrow, default)]
    creation_timestamp: Option<Cow<'a, str>>,
}

impl DocumentFacts {
    /// A document that is not an object, such as a gap's, yields no values.
    pub fn read(document: &[u8]) -> Self {
        let Ok(DocumentHead { metadata }) = serde_json::from_slice(document) else { return Self::default() };
        let owned = |(key, value): (Cow<'_, str>, Cow<'_, str>)| (key.into_owned(), value.into_owned());
        let submitter = metadata.annotations.and_then(|mut annotations| annotations.remove(SUBMITTER));
        Self {
            labels: metadata.labels.unwrap_or_default().into_iter().map(owned).collect(),
            submitter: submitter.map(Cow::into_owned).filter(|name| !name.is_empty()),
            created: metadata.creation_timestamp.map(Cow::into_owned),
        }
    }

    /// Reduces the document to the parts that [`Self::read`] uses, each at its original path, so that
    /// redaction hides the same values. The rest may be long and untrusted, so lists don't redact it. `None`
    /// if the document is not an object.
    pub fn cut_to_facts(document: &[u8]) -> Option<Vec<u8>> {
        let text = std::str::from_utf8(document).ok()?;
        let (mut scanner, mut cut) = (JsonScanner::of_text(text), CutMember { text, out: Vec::new() });
        cut.cut_object(&mut scanner, ScanLevel::Document).and_then(|()| scanner.expect_end()).ok()?;
        Some(cut.out)
    }
}

#[derive(Clone, Copy)]
enum ScanLevel {
    Document,
    Metadata,
    Annotations,
}

/// Which parts of a member are kept.
enum MemberFilter {
    Nothing,
    All,
    Members(ScanLevel),
}

impl ScanLevel {
    /// `first` is the first byte of the value. A value of an unexpected type is kept, so that the reduced
    /// document stays unreadable.
    fn member_filter(self, key: &RawString<'_>, first: u8) -> MemberFilter {
        let is = |names: &[&str]| names.iter().any(|name| key.equals_bytes(name.as_bytes()));
        match self {
            Self::Document if is(&["metadata"]) && first == b'{' => MemberFilter::Members(Self::Metadata),
            Self::Metadata if is(&["annotations"]) && first == b'{' => {
                MemberFilter::Members(Self::Annotations)
            }
            // Some rules apply to one kind only.
            Self::Document if is(&["kind", "metadata"]) => MemberFilter::All,
            Self::Metadata if is(&["labels", "annotations", "creationTimestamp"]) => MemberFilter::All,
            Self::Annotations if is(&[SUBMITTER]) || first != b'"' => MemberFilter::All,
            _ => MemberFilter::Nothing,
        }
    }
}

struct CutMember<'t> {
    text: &'t str,
    out: Vec<u8>,
}

impl CutMember<'_> {
    fn cut_object(&mut self, scanner: &mut JsonScanner<'_>, within: ScanLevel) -> Result<(), ProjectError> {
        self.out.push(b'{');
        let mut before: &[u8] = b"\"";
        scanner.for_each_member(|key, scanner| {
            let kept = within.member_filter(&key, scanner.peek_byte());
            if let MemberFilter::Nothing = kept {
                scanner.skip_any_value()?;
                return Ok(ScanFlow::Next);
            }
            let (at, length, _) = key.place_in_text();
            for part in [before, &self.text.as_bytes()[at..at + length], b"\":"] {
                self.out.extend_from_slice(part);
            }
            before = b",\"";
            match kept {
                MemberFilter::Members(within) => self.cut_object(scanner, within)?,
                MemberFilter::All | MemberFilter::Nothing => {
                    self.out.extend_from_slice(scanner.take_value_bytes()?);
                }
            }
            Ok(ScanFlow::Next)
        })?;
        self.out.push(b'}');
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::config::{HostSpec, RedactedField, RedactionSpec};
    use crate::redact::RedactionRules;

    #[test]
    fn a_document_that_is_no_object_says_nothing() {
        for document in [&b""[..], b"{}", b"[1]", br#"{"metadata":{"labels":{"a":1}}}"#] {
            assert_eq!(DocumentFacts::read(document), DocumentFacts::default());
        }
        let empty = br#"{"metadata":{"labels":null,"annotations":{"kubewitness.dev/submitter":""}}}"#;
        assert_eq!(DocumentFacts::read(empty), DocumentFacts::default());
        for document in [&b""[..], b"[1]", b"{", b"{} x", b"\xff"] {
            assert_eq!(DocumentFacts::cut_to_facts(document), None);
        }
    }

    fn rules(pointers: &[&str]) -> RedactionRules {
        let mut redaction = RedactionSpec::default();
        redaction.fields.extend(pointers.iter().map(|pointer| RedactedField {
            kind: Some("Job".into()).filter(|_| pointer.contains("team")),
            pointer: (*pointer).to_owned(),
        }));
        HostSpec { redaction, ..HostSpec::default() }.compile_redaction_rules().unwrap()
    }

    fn redacted(rules: &RedactionRules, document: &[u8]) -> DocumentFacts {
        match rules.redact_document(document, |value| format!("{:016x}", value.len())) {
            Ok(shown) => DocumentFacts::read(shown.as_deref().unwrap_or(document)),
            Err(_) => DocumentFacts::default(),
        }
    }

    fn texts() -> impl Strategy<Value = Value> {
        let text = r#"[a-z"\\é]{0,6}|https?://u:[a-z]{1,4}@h|--token [a-z]{1,3}|2026-11-20T13:45:11Z"#;
        prop_oneof![8 => text.prop_map(Value::from), 1 => Just(Value::Null), 1 => Just(json!({"a": 1}))]
    }

    proptest! {
        #[test]
        fn what_is_cut_says_the_same_as_the_whole_document_whatever_is_hidden(
            members in prop::collection::vec(
                (prop_oneof![
                    "/metadata/labels/(team|token|options)", "/metadata/annotations/(kubewitness.dev~1submitter|note)",
                    "/metadata/creationTimestamp", "/metadata/(labels|annotations|env|name)", "/(kind|env|status|metadata)",
                ], texts()),
                0..10,
            ),
            pointers in prop::collection::vec(
                prop::sample::select(vec![
                    "/metadata", "/metadata/*", "/metadata/labels/team", "/**/labels/*", "/*/annotations/*",
                    "/**/kubewitness.dev~1submitter", "/metadata/creationTimestamp", "/spec",
                ]),
                0..3,
            ),
            is_escaped in any::<bool>(),
            is_broken in prop::bool::weighted(0.1),
        ) {
            let mut document = json!({"kind": "Job", "metadata": {"labels": {}, "annotations": {}},
                "spec": {"args": ["--token", "hush"]}, "status": {"message": "hush-hush"}});
            for (place, value) in members {
                let (object, name) = place.rsplit_once('/').unwrap();
                if let Some(Value::Object(object)) = document.pointer_mut(object) {
                    object.insert(name.replace("~1", "/"), value);
                }
            }
            let mut text = document.to_string();
            if is_escaped {
                text = text.replace('t', "\\u0074").replace("\\\\u0074", "\\\\t");
            }
            if is_broken {
                text.pop();
            }
            let (rules, cut) = (rules(&pointers), DocumentFacts::cut_to_facts(text.as_bytes()));
            let facts = cut.map_or_else(DocumentFacts::default, |cut| redacted(&rules, &cut));
            prop_assert_eq!(facts, redacted(&rules, text.as_bytes()), "{}", text);
        }
    }

    #[test]
    fn nothing_is_cut_out_but_what_a_list_shows() {
        let document =
            br#"{ "kind" : "Job", "spec": {"args": ["a"]}, "metadata": {"name": "x", "labels": {"a" : "b"},
            "annotations": {"note": "c", "kubewitness.dev/submitter": "ana"}, "managedFields": []}}"#;
        let cut = String::from_utf8(DocumentFacts::cut_to_facts(document).unwrap()).unwrap();
        assert_eq!(
            cut,
            r#"{"kind":"Job","metadata":{"labels":{"a" : "b"},"annotations":{"kubewitness.dev/submitter":"ana"}}}"#
        );
    }
}
