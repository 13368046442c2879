//! Finds objects by a part of their name, uid, submitter, or a label's value.

use std::sync::Arc;

use memchr::memmem;

pub use crate::find::about::DocumentFacts;
use crate::find::index::IndexKey;
pub use crate::find::index::SUBMITTER;
use crate::find::search_filter::{SearchGrams, SearchSignature};
use crate::redact::{RedactionRules, may_hold_secret};

/// The longest text that is searched for: the maximum length of names, uids and label values.
pub const TEXT_BYTES: usize = 253;

/// The searched text, in lower-case letters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SearchText {
    text: String,
    /// The rules whose hidden values the search skips.
    rules: Option<Arc<RedactionRules>>,
}

impl SearchSignature {
    /// Adds a searchable text of the document. If the text may hold a secret, its object is always read, so
    /// that the speed of a search reveals nothing. Texts that occur in the name or uid, as labels of Jobs do,
    /// need no entry.
    pub fn add_key(&mut self, key: IndexKey<'_>, name: &str, uid: &str) {
        let (place, text) = match key {
            IndexKey::Label(label, value) => (label, value),
            IndexKey::Submitter(submitter) => (SUBMITTER, submitter),
            _ => return,
        };
        if may_hold_secret(place, text) {
            self.open();
            return;
        }
        let lower = text.to_lowercase();
        if !is_part(name, &lower) && !is_part(uid, &lower) {
            self.add(text);
        }
    }
}

impl SearchText {
    /// `None` for an empty text, which matches everything.
    pub fn new(text: &str) -> Option<Self> {
        let text = text.trim().to_lowercase();
        (!text.is_empty()).then_some(Self { text, rules: None })
    }

    /// Ignores values that the rules hide, in whole or in part: otherwise somebody could guess them letter by
    /// letter from the results.
    pub fn hiding_secrets(self, rules: Arc<RedactionRules>) -> Self {
        Self { rules: Some(rules), ..self }
    }

    /// The pairs and triples with which signatures rule out objects. `None` if the rules may hide a text of a
    /// signature: the length of a page would then reveal it.
    pub fn signature_grams(&self) -> Option<SearchGrams> {
        let may_hide = |rules: &Arc<RedactionRules>| {
            rules.hides_any(&["metadata", "labels"])
                || rules.hides_value_at(None, &["metadata", "annotations", SUBMITTER])
        };
        let grams = SearchGrams::of(&self.text);
        (!grams.is_empty() && !self.rules.as_ref().is_some_and(may_hide)).then_some(grams)
    }

    fn is_in(&self, text: &str) -> bool {
        is_part(text, &self.text)
    }

    /// Whether a value of the document may match. A text that JSON writes in one way only is in no value if
    /// it is not in the bytes. This check costs a tenth of parsing the document.
    fn may_be_in(&self, document: &[u8]) -> bool {
        let is_plain = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\' | b'/');
        let has_one_form = self.text.bytes().all(is_plain) && document.is_ascii();
        !has_one_form || is_within(document, self.text.as_bytes()) || memmem::find(document, br"\u").is_some()
    }

    /// Matches against name and uid, without the document.
    pub fn fits_name(&self, name: &str, uid: &str) -> bool {
        self.is_in(name) || self.is_in(uid)
    }

    /// Matches against values in the document.
    pub fn fits_document(&self, document: &[u8]) -> bool {
        if !self.may_be_in(document) {
            return false;
        }
        let Some(cut) = DocumentFacts::cut_to_facts(document) else { return false };
        let about = self.retain_matching_facts(DocumentFacts::read(&cut));
        if about == DocumentFacts::default() {
            return false;
        }
        let Some(rules) = &self.rules else { return true };
        match rules.redact_document(&cut, |_| String::new()) {
            Ok(None) => true,
            Ok(Some(shown)) => {
                let shown = DocumentFacts::read(&shown);
                (about.submitter.is_some() && about.submitter == shown.submitter)
                    || about.labels.iter().any(|(label, value)| shown.labels.get(label) == Some(value))
            }
            // An unreadable document matches nothing.
            Err(_) => false,
        }
    }

    fn retain_matching_facts(&self, mut about: DocumentFacts) -> DocumentFacts {
        about.labels.retain(|_, value| self.is_in(value));
        about.submitter = about.submitter.filter(|name| self.is_in(name));
        about.created = None;
        about
    }
}

/// Whether `part`, which is in lower case, occurs in a text of any case.
fn is_part(text: &str, part: &str) -> bool {
    match part.is_ascii() && text.is_ascii() {
        true => is_within(text.as_bytes(), part.as_bytes()),
        false => text.to_lowercase().contains(part),
    }
}

/// The same for bytes. The number of steps grows with the sum of their lengths.
fn is_within(text: &[u8], part: &[u8]) -> bool {
    memmem::find(&text.to_ascii_lowercase(), part).is_some()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_text_is_found_in_a_value_however_json_writes_it(
            value in "[abkABK\u{212a}é/\"\\\\ .-]{0,8}",
            part in "[abkABK\u{212a}é/\"\\\\.-]{1,3}",
            is_escaped in any::<bool>(),
        ) {
            let mut document = serde_json::json!({"metadata": {"labels": {"x": value}}}).to_string();
            if is_escaped {
                document = document.replace('a', "\\u0061").replace("l\\u0061bels", "labels");
                document = document.replace("met\\u0061d\\u0061t\\u0061", "metadata");
            }
            let search = SearchText::new(&part).unwrap();
            let expected = value.to_lowercase().contains(&search.text);
            prop_assert_eq!(search.fits_document(document.as_bytes()), expected);
            prop_assert_eq!(search.fits_name(&value, ""), expected);
        }
    }

    #[test]
    fn a_part_of_name_uid_submitter_or_label_value_is_found_whatever_the_case() {
        let document = br#"{"metadata":{"name":"a","labels":{"team":"Vision"},
            "annotations":{"kubewitness.dev/submitter":"ana@example.com","note":"secret"}}}"#;
        let fits = |text: &str| {
            let search = SearchText::new(text).unwrap();
            search.fits_name("LLM-train-7", "0a1b") || search.fits_document(document)
        };
        for text in ["llm", "TRAIN-7", " 0A1 ", "vision", "ana@"] {
            assert!(fits(text), "{text}");
        }
        for text in ["team", "secret", "llm-train-77", "bob"] {
            assert!(!fits(text), "{text}");
        }
        assert_eq!((SearchText::new(""), SearchText::new("  ")), (None, None));
    }

    #[test]
    fn what_json_writes_in_several_ways_is_no_match_by_itself() {
        let document =
            br#"{"metadata":{"creationTimestamp":"2026-11-20T13:45:11Z","labels":{"team":"vision"},
            "annotations":{"note":"\u0061"}}}"#;
        let rules = Arc::new(crate::config::RedactionSpec::default().compile_redaction_rules().unwrap());
        for text in ["zz qq", "no/such", "zz\"", "zzé", "zzqq"] {
            let search = SearchText::new(text).unwrap();
            assert!(!search.fits_document(document), "{text}");
            assert!(!search.hiding_secrets(rules.clone()).fits_document(document), "{text}");
        }
    }

    #[test]
    fn a_long_document_is_searched_once_whatever_it_repeats() {
        let document = format!(r#"{{"metadata":{{"labels":{{"a":"b"}}}},"x":"{}"}}"#, "a".repeat(4 << 20));
        let search = SearchText::new(&format!("{}b", "a".repeat(TEXT_BYTES - 1))).unwrap();
        let begun = std::time::Instant::now();
        assert!((0..4).all(|_| !search.fits_document(document.as_bytes())));
        // A search that starts over at each position would take four thousand million steps.
        assert!(begun.elapsed() < std::time::Duration::from_secs(20), "{:?}", begun.elapsed());
    }

    #[test]
    fn a_value_that_is_shown_without_a_part_of_it_is_not_looked_at() {
        use crate::config::{RedactedField, RedactionSpec};

        let mut rules = RedactionSpec::default();
        rules.fields.push(RedactedField { kind: None, pointer: "/metadata/labels/code".into() });
        let rules = Arc::new(rules.compile_redaction_rules().unwrap());
        let fits = |text: &str, submitter: &str| {
            let document = format!(
                r#"{{"kind":"Job","metadata":{{"labels":{{"team":"vision","code":"redacts"}},
                "annotations":{{"kubewitness.dev/submitter":"{submitter}"}}}}}}"#
            );
            SearchText::new(text).unwrap().hiding_secrets(rules.clone()).fits_document(document.as_bytes())
        };
        let hidden = "https://u:rsecret@x";
        for text in ["https://u:rse", "https://u", "https://r", "rsecret", "@x", "redact"] {
            assert!(!fits(text, hidden), "{text}");
        }
        assert!(fits("vision", hidden) && fits("ana@", "ana@example.com"));
        assert!(
            !SearchText::new("a")
                .unwrap()
                .hiding_secrets(rules.clone())
                .fits_document(br#"{"metadata":{"labels":{"a":"a"}},"#)
        );
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn of_a_document_only_what_is_looked_at_is_redacted() {
        use crate::redact::computed;

        let rules = Arc::new(crate::config::RedactionSpec::default().compile_redaction_rules().unwrap());
        let arguments = "KEY=a ".repeat(10_000);
        let document = format!(r#"{{"metadata":{{"labels":{{"a":"b"}}}},"args":["-c","{arguments}"]}}"#);
        let search = SearchText::new("b").unwrap().hiding_secrets(rules.clone());
        let took = |work: &dyn Fn()| {
            let begun = computed();
            work();
            computed() - begun
        };
        let whole = took(&|| drop(rules.redact_document(document.as_bytes(), |_| String::new()).unwrap()));
        let looked = took(&|| assert!(search.fits_document(document.as_bytes())));
        assert!(looked * 4 < whole, "{looked:?}, {whole:?}");
    }
}
