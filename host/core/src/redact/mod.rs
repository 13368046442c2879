//! Removes secrets from documents before a person or a plugin gets them.
//!
//! [`RedactionRules`] finds the values that its rules name and replaces each by `"redacted:DIGEST"`. If only
//! a part of a text is a secret, such as the password of an address, only that part is replaced. A fixed
//! placeholder would hide whether a secret changed; a plain hash could be looked up in a table. So the caller
//! keys the digest: equal values stay equal, and no value can be looked up. All other bytes stay unchanged.
//!
//! If a document can't be searched, it is withheld: an error never shows more than the rules allow. The
//! journal keeps the originals; this module does no I/O.

mod events;
mod fixed_texts;
mod quoted;
mod repeats;
mod revealing_queries;
mod rules;
#[cfg(test)]
mod tests;
mod text;
mod walk;
mod words;

use std::ops::Range;

use thiserror::Error;

use crate::project::{JsonScanner, ProjectError, ScanFlow};

pub use events::event_subject;
pub use quoted::SecretDigests;
pub(crate) use revealing_queries::{may_hold_secret, names_an_address};
pub use rules::{RedactionRules, RulesInForce, SecretField};
#[cfg(all(test, target_os = "linux"))]
pub(crate) use tests::{computed, hiding};
pub use text::digest::DIGEST_CHARS;
use text::digest::MARK;
use walk::SecretSearch;

/// Annotations in which tools keep a full copy of their input, variables included.
pub(crate) const COPIES: [&str; 5] = [
    "kubectl.kubernetes.io/last-applied-configuration",
    "kapp.k14s.io/original",
    "objectset.rio.cattle.io/applied",
    "kopf.zalando.org/last-handled-configuration",
    "banzaicloud.com/last-applied",
];

/// A document that can't be parsed can't be redacted, so it is withheld.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("the document can't be searched for secrets ({0}), so it is withheld")]
pub struct WithheldDocument(String);

impl WithheldDocument {
    pub fn from_error(error: impl std::fmt::Display) -> Self {
        Self(error.to_string())
    }
}

impl From<ProjectError> for WithheldDocument {
    fn from(error: ProjectError) -> Self {
        Self::from_error(error)
    }
}

/// One secret.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FoundSecret {
    range: Range<usize>,
    /// Whether it is part of a text and not a whole value.
    is_part: bool,
    /// Whether it is a text in which a tool keeps a copy of the document.
    is_copy: bool,
}

impl FoundSecret {
    fn part_of_value(range: Range<usize>) -> Self {
        Self { range, is_part: true, is_copy: false }
    }

    /// The secret without its JSON quotes, so that it has the same digest everywhere.
    fn unquoted_secret<'d>(&self, document: &'d [u8]) -> &'d [u8] {
        &document[self.unquoted_range(document)]
    }

    /// The range of the secret without its JSON quotes.
    fn unquoted_range(&self, document: &[u8]) -> Range<usize> {
        let Range { start, end } = self.range;
        let is_quoted = end - start > 1 && document[start] == b'"' && document[end - 1] == b'"';
        if is_quoted && !self.is_part { start + 1..end - 1 } else { start..end }
    }

    /// Whether it is an object or a list, which is hidden whole.
    fn is_container(&self, document: &[u8]) -> bool {
        !self.is_part && matches!(document[self.range.start], b'{' | b'[')
    }
}

impl RedactionRules {
    /// The document without secrets; `None` if it contains none. `digest` makes a short text from a value's
    /// bytes.
    pub fn redact_document(
        &self,
        document: &[u8],
        digest: impl Fn(&[u8]) -> String,
    ) -> Result<Option<Vec<u8>>, WithheldDocument> {
        Ok(replace_secrets(document, self.find(document)?, digest))
    }

    /// [`Self::redact_document`] for settings, in which the name of a secret counts at any depth.
    pub fn redact_settings(
        &self,
        settings: &[u8],
        digest: impl Fn(&[u8]) -> String,
    ) -> Result<Option<Vec<u8>>, WithheldDocument> {
        let text = std::str::from_utf8(settings).map_err(WithheldDocument::from_error)?;
        let found = SecretSearch::of_settings(self, settings).find_all(&mut JsonScanner::of_text(text))?;
        Ok(replace_secrets(settings, found, digest))
    }

    /// The ranges of the secrets, in order; none contains another.
    fn find(&self, document: &[u8]) -> Result<Vec<FoundSecret>, WithheldDocument> {
        let text = std::str::from_utf8(document).map_err(WithheldDocument::from_error)?;
        let (mut found, status) = self.search_secrets(text)?;
        if !found.is_empty() {
            self.add_repeats(text, status, &mut found);
        }
        Ok(found)
    }

    /// Finds the values that the rules hide, and the status, which may quote them.
    fn search_secrets(
        &self,
        document: &str,
    ) -> Result<(Vec<FoundSecret>, Option<Range<usize>>), WithheldDocument> {
        let mut scanner = JsonScanner::of_text(document);
        let top = DocumentTop::of(scanner.clone())?;
        let found =
            SecretSearch::new(self, document.as_bytes(), top.kind.as_deref()).find_all(&mut scanner)?;
        scanner.expect_end()?;
        Ok((found, top.status))
    }
}

/// The document with each secret replaced by its digest; `None` if it contains none.
fn replace_secrets(
    document: &[u8],
    found: Vec<FoundSecret>,
    digest: impl Fn(&[u8]) -> String,
) -> Option<Vec<u8>> {
    if found.is_empty() {
        return None;
    }
    let mut out = Vec::with_capacity(document.len());
    let mut taken = 0;
    for secret in found {
        let quote: &[u8] = if secret.is_part { b"" } else { b"\"" };
        out.extend_from_slice(&document[taken..secret.range.start]);
        out.extend_from_slice(quote);
        out.extend_from_slice(MARK.as_bytes());
        out.extend_from_slice(digest(secret.unquoted_secret(document)).as_bytes());
        out.extend_from_slice(quote);
        taken = secret.range.end;
    }
    out.extend_from_slice(&document[taken..]);
    Some(out)
}

/// The parts of a document that are read before it is searched.
#[derive(Default)]
struct DocumentTop {
    /// Rules for one kind apply to every document without a kind.
    kind: Option<String>,
    status: Option<Range<usize>>,
}

impl DocumentTop {
    fn of(mut scanner: JsonScanner<'_>) -> Result<Self, ProjectError> {
        let mut top = Self::default();
        if scanner.peek_byte() != b'{' {
            return Ok(top);
        }
        scanner.for_each_member(|key, scanner| {
            if key.equals_bytes(b"kind") && scanner.peek_byte() == b'"' {
                top.kind = Some(scanner.text()?.decode()?.into_owned());
                return Ok(ScanFlow::Next);
            }
            let start = scanner.start();
            scanner.skip_any_value()?;
            if key.equals_bytes(b"status") {
                top.status = Some(start..scanner.position());
            }
            Ok(ScanFlow::Next)
        })?;
        Ok(top)
    }
}
