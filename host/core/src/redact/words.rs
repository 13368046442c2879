//! Lists the forms in which a message may quote a secret.

use serde_json::Value;

use super::quoted::SECRETS;
use super::text::addresses::in_addresses;
use super::walk::TEXTS_WITHIN;
use super::{FoundSecret, RedactionRules};
use crate::project::JsonScanner;

/// Shorter secrets are not searched for, because ordinary words would contain them.
pub(super) const SECRET_CHARS: usize = 6;
/// How many nested copies are read as documents. `kubectl` makes one.
const COPIES_WITHIN: u32 = 2;

impl RedactionRules {
    /// The whole secret, and the parts that a program uses on their own: the password of an address, the
    /// credentials after `Bearer` and the like, and each line. Very short parts are not searched for. For a
    /// copy of the document, the parts are what the rules would hide in it.
    pub(super) fn quotable_words(&self, one: &FoundSecret, document: &[u8]) -> Vec<String> {
        let mut words = SecretWords::default();
        self.add_words(one, document, COPIES_WITHIN, &mut words);
        words.0
    }

    fn add_words(&self, one: &FoundSecret, document: &[u8], copies: u32, words: &mut SecretWords) {
        let secret = one.unquoted_secret(document);
        if one.is_container(document) {
            // The document was read before, so this can't fail.
            serde_json::from_slice(secret).into_iter().for_each(|value| words.add_leaves(value, 0));
        } else if let Some(text) = decode_quoted(secret) {
            let copy = (one.is_copy && copies > 0).then(|| self.found_in(&text)).flatten();
            match copy {
                Some(found) => {
                    words.add(text.trim());
                    found
                        .iter()
                        .for_each(|secret| self.add_words(secret, text.as_bytes(), copies - 1, words));
                }
                None => words.add_decoded(&text, 0),
            }
        }
    }

    /// `None` if the copy is not a document. Quotes in its status are left out, because the document has its
    /// own.
    fn found_in(&self, copy: &str) -> Option<Vec<FoundSecret>> {
        copy.trim_start()
            .starts_with('{')
            .then(|| self.search_secrets(copy).ok())
            .flatten()
            .map(|(found, _)| found)
    }
}

/// The text between its quotes.
fn decode_quoted(raw: &[u8]) -> Option<String> {
    let quoted = [b"\"", raw, b"\""].concat();
    let text = JsonScanner::new(&quoted).text().ok()?;
    text.decode().ok().map(|text| text.into_owned())
}

/// The words to search for, without duplicates, the whole secret first.
#[derive(Default)]
struct SecretWords(Vec<String>);

impl SecretWords {
    fn add(&mut self, word: &str) {
        let is_long = word.chars().count() >= SECRET_CHARS;
        if is_long && self.0.len() <= SECRETS && !self.0.iter().any(|known| known == word) {
            self.0.push(word.to_owned());
        }
    }

    /// `within` counts the texts around this one. A text that is too deep is searched for as a whole.
    fn add_decoded(&mut self, text: &str, within: u32) {
        let whole = text.trim();
        self.add(whole);
        if within == TEXTS_WITHIN {
            return;
        }
        for range in in_addresses(whole) {
            self.add(&whole[range]);
        }
        if let [kind, value] = whole.split_whitespace().collect::<Vec<_>>()[..]
            && kind.bytes().all(|byte| byte.is_ascii_alphabetic())
        {
            self.add(value);
        }
        // A shell and JSON remove the quotes.
        if whole.contains(['"', '\'']) {
            whole.split(['"', '\'', '\\']).map(str::trim).for_each(|part| self.add(part));
        }
        // The first and the last line of a key only mark it as a key.
        whole
            .lines()
            .map(str::trim)
            .filter(|line| !line.starts_with("-----"))
            .for_each(|line| self.add(line));
        if whole.starts_with(['{', '['])
            && let Ok(value) = serde_json::from_str(whole)
        {
            self.add_leaves(value, within + 1);
        }
    }

    fn add_leaves(&mut self, value: Value, within: u32) {
        let mut rest = vec![value];
        while let Some(value) = rest.pop() {
            match value {
                Value::String(text) => self.add_decoded(&text, within),
                Value::Number(number) => self.add(&number.to_string()),
                Value::Array(items) => rest.extend(items.into_iter().rev()),
                Value::Object(members) => rest.extend(members.into_iter().map(|(_, value)| value)),
                Value::Null | Value::Bool(_) => {}
            }
        }
    }
}
