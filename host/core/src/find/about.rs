//! What a list shows of an object's document, and what its search looks at.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::Deserialize;

use super::index::SUBMITTER;
use crate::project::{Flow, ProjectError, Scanner, Text};

/// What a document says of its object besides its name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct About {
    pub labels: BTreeMap<String, String>,
    pub submitter: Option<String>,
    /// As the document says it.
    pub created: Option<String>,
}

#[derive(Deserialize)]
struct Document<'a> {
    #[serde(borrow)]
    metadata: Metadata<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata<'a> {
    #[serde(borrow, default)]
    labels: Option<BTreeMap<Cow<'a, str>, Cow<'a, str>>>,
    #[serde(borrow, default)]
    annotations: Option<BTreeMap<Cow<'a, str>, Cow<'a, str>>>,
    #[serde(borrow, default)]
    creation_timestamp: Option<Cow<'a, str>>,
}

impl About {
    /// A document that is no object, such as that of a gap, says nothing.
    pub fn read(document: &[u8]) -> Self {
        let Ok(Document { metadata }) = serde_json::from_slice(document) else { return Self::default() };
        let owned = |(key, value): (Cow<'_, str>, Cow<'_, str>)| (key.into_owned(), value.into_owned());
        let submitter = metadata.annotations.and_then(|mut all| all.remove(SUBMITTER));
        Self {
            labels: metadata.labels.unwrap_or_default().into_iter().map(owned).collect(),
            submitter: submitter.map(Cow::into_owned).filter(|name| !name.is_empty()),
            created: metadata.creation_timestamp.map(Cow::into_owned),
        }
    }

    /// The document with nothing but what [`Self::read`] looks at. All of it stands where it stood, so redaction hides
    /// the same of it. The rest may be long and a stranger's: a list does not redact it. None for what is no object.
    pub fn cut(document: &[u8]) -> Option<Vec<u8>> {
        let text = std::str::from_utf8(document).ok()?;
        let (mut scanner, mut cut) = (Scanner::of_text(text), Cut { text, out: Vec::new() });
        cut.object(&mut scanner, Within::Document).and_then(|()| scanner.end()).ok()?;
        Some(cut.out)
    }
}

#[derive(Clone, Copy)]
enum Within {
    Document,
    Metadata,
    Annotations,
}

/// What is kept of a member.
enum Kept {
    Nothing,
    All,
    Members(Within),
}

impl Within {
    /// `first`: the byte that the value begins with. A value of an unexpected type is kept: it makes the whole unreadable.
    fn kept(self, key: &Text<'_>, first: u8) -> Kept {
        let is = |names: &[&str]| names.iter().any(|name| key.is(name.as_bytes()));
        match self {
            Self::Document if is(&["metadata"]) && first == b'{' => Kept::Members(Self::Metadata),
            Self::Metadata if is(&["annotations"]) && first == b'{' => Kept::Members(Self::Annotations),
            // Some rules are of one kind only.
            Self::Document if is(&["kind", "metadata"]) => Kept::All,
            Self::Metadata if is(&["labels", "annotations", "creationTimestamp"]) => Kept::All,
            Self::Annotations if is(&[SUBMITTER]) || first != b'"' => Kept::All,
            _ => Kept::Nothing,
        }
    }
}

struct Cut<'t> {
    text: &'t str,
    out: Vec<u8>,
}

impl Cut<'_> {
    fn object(&mut self, scanner: &mut Scanner<'_>, within: Within) -> Result<(), ProjectError> {
        self.out.push(b'{');
        let mut before: &[u8] = b"\"";
        scanner.members(|key, scanner| {
            let kept = within.kept(&key, scanner.peek());
            if let Kept::Nothing = kept {
                scanner.skip()?;
                return Ok(Flow::Next);
            }
            let (at, length, _) = key.place();
            for part in [before, &self.text.as_bytes()[at..at + length], b"\":"] {
                self.out.extend_from_slice(part);
            }
            before = b",\"";
            match kept {
                Kept::Members(within) => self.object(scanner, within)?,
                Kept::All | Kept::Nothing => self.out.extend_from_slice(scanner.value()?),
            }
            Ok(Flow::Next)
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
    use crate::redact::Redactor;

    #[test]
    fn a_document_that_is_no_object_says_nothing() {
        for document in [&b""[..], b"{}", b"[1]", br#"{"metadata":{"labels":{"a":1}}}"#] {
            assert_eq!(About::read(document), About::default());
        }
        let empty = br#"{"metadata":{"labels":null,"annotations":{"kubewitness.dev/submitter":""}}}"#;
        assert_eq!(About::read(empty), About::default());
        for document in [&b""[..], b"[1]", b"{", b"{} x", b"\xff"] {
            assert_eq!(About::cut(document), None);
        }
    }

    fn rules(pointers: &[&str]) -> Redactor {
        let mut redaction = RedactionSpec::default();
        redaction.fields.extend(pointers.iter().map(|pointer| RedactedField {
            kind: Some("Job".into()).filter(|_| pointer.contains("team")),
            pointer: (*pointer).to_owned(),
        }));
        HostSpec { redaction, ..HostSpec::default() }.redactor().unwrap()
    }

    fn redacted(rules: &Redactor, document: &[u8]) -> About {
        match rules.redact(document, |value| format!("{:016x}", value.len())) {
            Ok(shown) => About::read(shown.as_deref().unwrap_or(document)),
            Err(_) => About::default(),
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
            let (rules, cut) = (rules(&pointers), About::cut(text.as_bytes()));
            let told = cut.map_or_else(About::default, |cut| redacted(&rules, &cut));
            prop_assert_eq!(told, redacted(&rules, text.as_bytes()), "{}", text);
        }
    }

    #[test]
    fn nothing_is_cut_out_but_what_a_list_shows() {
        let document =
            br#"{ "kind" : "Job", "spec": {"args": ["a"]}, "metadata": {"name": "x", "labels": {"a" : "b"},
            "annotations": {"note": "c", "kubewitness.dev/submitter": "ana"}, "managedFields": []}}"#;
        let cut = String::from_utf8(About::cut(document).unwrap()).unwrap();
        assert_eq!(
            cut,
            r#"{"kind":"Job","metadata":{"labels":{"a" : "b"},"annotations":{"kubewitness.dev/submitter":"ana"}}}"#
        );
    }
}
