//! Finds objects by a part of what people know them by: name, uid, submitter, or the value of a label.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;

use crate::find::redact::Redactor;

/// The annotation in which a platform says who submitted an object.
pub const SUBMITTER: &str = "kubewitness.dev/submitter";

/// What is looked for, in lower-case letters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Search {
    text: String,
    /// What they hide is not looked at.
    rules: Option<Arc<Redactor>>,
}

/// What a document says of its object besides its name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct About {
    pub labels: BTreeMap<String, String>,
    pub submitter: Option<String>,
}

#[derive(Deserialize)]
struct Document<'a> {
    #[serde(borrow)]
    metadata: Metadata<'a>,
}

#[derive(Deserialize)]
struct Metadata<'a> {
    #[serde(borrow, default)]
    labels: Option<BTreeMap<Cow<'a, str>, Cow<'a, str>>>,
    #[serde(borrow, default)]
    annotations: Option<BTreeMap<Cow<'a, str>, Cow<'a, str>>>,
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
        }
    }
}

impl Search {
    /// `None` for an empty text, which everything fits.
    pub fn new(text: &str) -> Option<Self> {
        let text = text.trim().to_lowercase();
        (!text.is_empty()).then_some(Self { text, rules: None })
    }

    /// Looks at no value that the rules hide, whole or in part: by its answers, somebody could guess it letter by letter.
    pub fn beside(self, rules: Arc<Redactor>) -> Self {
        Self { rules: Some(rules), ..self }
    }

    fn is_in(&self, text: &str) -> bool {
        text.len() >= self.text.len() && text.to_lowercase().contains(&self.text)
    }

    /// By what is known without the document.
    pub fn fits_name(&self, name: &str, uid: &str) -> bool {
        self.is_in(name) || self.is_in(uid)
    }

    /// By what the document says.
    pub fn fits_document(&self, document: &[u8]) -> bool {
        let about = self.fitting(About::read(document));
        if about == About::default() {
            return false;
        }
        let Some(rules) = &self.rules else { return true };
        match rules.redact(document, |_| String::new()) {
            Ok(None) => true,
            Ok(Some(shown)) => {
                let shown = About::read(&shown);
                (about.submitter.is_some() && about.submitter == shown.submitter)
                    || about.labels.iter().any(|(label, it)| shown.labels.get(label) == Some(it))
            }
            // It is shown to nobody.
            Err(_) => false,
        }
    }

    fn fitting(&self, mut about: About) -> About {
        about.labels.retain(|_, it| self.is_in(it));
        about.submitter = about.submitter.filter(|name| self.is_in(name));
        about
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_name_uid_submitter_or_label_value_is_found_whatever_the_case() {
        let document = br#"{"metadata":{"name":"a","labels":{"team":"Vision"},
            "annotations":{"kubewitness.dev/submitter":"ana@example.com","note":"secret"}}}"#;
        let fits = |text: &str| {
            let search = Search::new(text).unwrap();
            search.fits_name("LLM-train-7", "0a1b") || search.fits_document(document)
        };
        for text in ["llm", "TRAIN-7", " 0A1 ", "vision", "ana@"] {
            assert!(fits(text), "{text}");
        }
        for text in ["team", "secret", "llm-train-77", "bob"] {
            assert!(!fits(text), "{text}");
        }
        assert_eq!((Search::new(""), Search::new("  ")), (None, None));
    }

    #[test]
    fn a_value_that_is_shown_without_a_part_of_it_is_not_looked_at() {
        use crate::config::{RedactedField, RedactionSpec};

        let mut rules = RedactionSpec::default();
        rules.fields.push(RedactedField { kind: None, pointer: "/metadata/labels/code".into() });
        let rules = Arc::new(rules.redactor().unwrap());
        let fits = |text: &str, submitter: &str| {
            let document = format!(
                r#"{{"kind":"Job","metadata":{{"labels":{{"team":"vision","code":"redacts"}},
                "annotations":{{"kubewitness.dev/submitter":"{submitter}"}}}}}}"#
            );
            Search::new(text).unwrap().beside(rules.clone()).fits_document(document.as_bytes())
        };
        let hidden = "https://u:rsecret@x";
        for text in ["https://u:rse", "https://u", "https://r", "rsecret", "@x", "redact"] {
            assert!(!fits(text, hidden), "{text}");
        }
        assert!(fits("vision", hidden) && fits("ana@", "ana@example.com"));
        assert!(
            !Search::new("a")
                .unwrap()
                .beside(rules.clone())
                .fits_document(br#"{"metadata":{"labels":{"a":"a"}},"#)
        );
    }

    #[test]
    fn a_document_that_is_no_object_says_nothing() {
        for document in [&b""[..], b"{}", b"[1]", br#"{"metadata":{"labels":{"a":1}}}"#] {
            assert_eq!(About::read(document), About::default());
        }
        let empty = br#"{"metadata":{"labels":null,"annotations":{"kubewitness.dev/submitter":""}}}"#;
        assert_eq!(About::read(empty), About::default());
    }
}
