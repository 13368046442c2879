//! Finds the places where a document repeats a hidden value: its status, which may quote it, and for a long
//! secret any text.
//!
//! A weak secret, such as the password `postgres`, may also be the name of an image. Hiding that name would
//! reveal the secret and make the object unreadable. So a word that the document shows elsewhere is not
//! hidden, and fields that identify the object stay as they are.

use std::collections::BTreeSet;
use std::ops::Range;

use memchr::memmem;

use super::quoted::{SECRETS, SoughtWord, add_places, merge};
use super::{DocumentTop, FoundSecret, RedactionRules};
use crate::project::{JsonScanner, ProjectError};

/// A shorter secret may occur elsewhere by chance, with another meaning.
const LONG_CHARS: usize = 16;
/// The most bytes that the searches for all words of a document read: 64 MiB take some hundredths of a
/// second. Beyond it, only the status is searched.
pub(super) const SEARCHED_BYTES: usize = 64 << 20;

/// Whether the value under a key identifies the object, refers to another object, or selects one.
fn is_structural(key: &str) -> bool {
    matches!(
        key,
        "apiVersion"
            | "kind"
            | "name"
            | "namespace"
            | "generateName"
            | "uid"
            | "resourceVersion"
            | "creationTimestamp"
            | "image"
            | "imageID"
            | "containerID"
            | "nodeName"
            | "serviceAccountName"
            | "secretName"
            | "claimName"
            | "key"
            | "path"
            | "subPath"
            | "mountPath"
            | "type"
            | "phase"
            | "labels"
            | "matchLabels"
            | "nodeSelector"
    )
}

/// Whether a secret is unlike a word, a name, a path or an address. Only such secrets are searched for
/// everywhere.
fn is_long(word: &str) -> bool {
    let has = |is: fn(&u8) -> bool| word.bytes().any(|byte| is(&byte));
    word.len() >= LONG_CHARS
        && !word.starts_with(['/', '.', '~'])
        && !word.contains("://")
        && !has(u8::is_ascii_whitespace)
        && has(u8::is_ascii_digit)
        && has(u8::is_ascii_alphabetic)
}

impl RedactionRules {
    /// Adds the places where a document repeats the values that were found.
    pub(super) fn add_repeats(
        &self,
        document: &str,
        status: Option<Range<usize>>,
        found: &mut Vec<FoundSecret>,
    ) {
        let words = found.iter().flat_map(|secret| self.quotable_words(secret, document.as_bytes()));
        let mut words: BTreeSet<String> = words.collect();
        let is_searched = words.len() <= SECRETS && words.len() * document.len() <= SEARCHED_BYTES;
        if is_searched {
            let shown = VisibleText { document, status: status.clone(), hidden: secret_ranges(found) };
            let long: Vec<&str> = words
                .iter()
                .map(String::as_str)
                .filter(|word| is_long(word) && shown.has_part(word))
                .collect();
            if !long.is_empty() {
                let long = SoughtWord::of(long.into_iter());
                let status = status.clone().unwrap_or(document.len()..document.len());
                for part in [0..status.start, status.end..document.len()] {
                    add_places(document, part, is_structural, |text| long.quoted_ranges(text), found);
                }
                merge(found);
            }
        }
        let Some(status) = status else { return };
        if is_searched {
            let shown = VisibleText { document, status: Some(status.clone()), hidden: secret_ranges(found) };
            let is_quoted =
                |word: &str| memmem::find(document[status.clone()].as_bytes(), word.as_bytes()).is_some();
            words.retain(|word| !(is_quoted(word) && shown.has_word(word)));
        }
        let words = SoughtWord::of(words.iter().map(String::as_str));
        add_places(document, status, is_structural, |text| words.quoted_ranges(text), found);
        merge(found);
    }
}

fn secret_ranges(found: &[FoundSecret]) -> Vec<Range<usize>> {
    found.iter().map(|secret| secret.range.clone()).collect()
}

/// The part of a document that everybody sees: everything except hidden values and the status, which may
/// quote them.
pub(super) struct VisibleText<'d> {
    document: &'d str,
    status: Option<Range<usize>>,
    /// In order; none contains another.
    hidden: Vec<Range<usize>>,
}

impl<'d> VisibleText<'d> {
    pub fn of(document: &'d str, found: &[FoundSecret]) -> Result<Self, ProjectError> {
        let status =
            if found.is_empty() { None } else { DocumentTop::of(JsonScanner::of_text(document))?.status };
        Ok(Self { document, status, hidden: secret_ranges(found) })
    }

    /// Whether the word occurs by itself, as `postgres` does in `postgres:16`.
    pub fn has_word(&self, word: &str) -> bool {
        self.word_places(word).any(|place| {
            let (before, after) = (&self.document[..place.start], &self.document[place.end..]);
            !before.ends_with(|c: char| c.is_alphanumeric())
                && !after.starts_with(|c: char| c.is_alphanumeric())
        })
    }

    /// Whether the word occurs at all, by itself or inside another word.
    fn has_part(&self, word: &str) -> bool {
        self.word_places(word).next().is_some()
    }

    fn word_places(&self, word: &str) -> impl Iterator<Item = Range<usize>> {
        let length = word.len();
        let places: Vec<usize> = memmem::find_iter(self.document.as_bytes(), word.as_bytes()).collect();
        let places = places.into_iter().map(move |start| start..start + length);
        places.filter(|place| !self.is_hidden(place))
    }

    fn is_hidden(&self, place: &Range<usize>) -> bool {
        let overlaps = |hidden: &Range<usize>| hidden.start < place.end && place.start < hidden.end;
        let next = self.hidden.partition_point(|hidden| hidden.end <= place.start);
        self.hidden.get(next).is_some_and(overlaps) || self.status.as_ref().is_some_and(overlaps)
    }
}
