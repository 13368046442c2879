//! Takes secrets out of documents before a person or a plugin is given them.
//!
//! A [`Redactor`] finds the values that its rules name and puts `"redacted:DIGEST"` in the place of each. The
//! digest is keyed by the caller, so equal values are still seen to be equal, and nobody can look a value up. All
//! other bytes stay as they are. It changes nothing in the journal and does no I/O.

mod rules;
#[cfg(test)]
mod tests;

use std::ops::Range;

use thiserror::Error;

use crate::project::{Flow, NESTING, ProjectError, Scanner};

pub use rules::{Field, Redactor};
use rules::{Matches, Named};

/// A document that can't be read can't be redacted either. It is withheld.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("the document can't be searched for secrets ({0}), so it is withheld")]
pub struct Withheld(String);

impl From<ProjectError> for Withheld {
    fn from(error: ProjectError) -> Self {
        Self(error.to_string())
    }
}

impl Redactor {
    /// The document without secrets; none where it holds none. `digest` makes a short text of a value's bytes.
    pub fn redact(
        &self,
        document: &[u8],
        digest: impl Fn(&[u8]) -> String,
    ) -> Result<Option<Vec<u8>>, Withheld> {
        let found = self.find(document)?;
        if found.is_empty() {
            return Ok(None);
        }
        let mut out = Vec::with_capacity(document.len());
        let mut taken = 0;
        for Range { start, end } in found {
            out.extend_from_slice(&document[taken..start]);
            out.extend_from_slice(b"\"redacted:");
            out.extend_from_slice(digest(&document[start..end]).as_bytes());
            out.push(b'"');
            taken = end;
        }
        out.extend_from_slice(&document[taken..]);
        Ok(Some(out))
    }

    /// Where the secrets lie, in order, none within another.
    fn find(&self, document: &[u8]) -> Result<Vec<Range<usize>>, Withheld> {
        let mut scanner = match std::str::from_utf8(document) {
            Ok(text) => Scanner::of_text(text),
            Err(error) => return Err(Withheld(error.to_string())),
        };
        let kind = kind_of(scanner.clone())?;
        let mut search = Search { redactor: self, found: Vec::new() };
        search.value(&mut scanner, &self.matches(kind.as_deref()), false, 0)?;
        scanner.end()?;
        search.found.sort_by_key(|range| range.start);
        Ok(search.found)
    }
}

/// Rules of one kind apply to every document that does not say its kind.
fn kind_of(mut scanner: Scanner<'_>) -> Result<Option<String>, ProjectError> {
    let mut kind = None;
    if scanner.peek() == b'{' {
        scanner.members(|key, scanner| {
            if key.is(b"kind") && scanner.peek() == b'"' {
                kind = Some(scanner.text()?.decode()?.into_owned());
            } else {
                scanner.skip()?;
            }
            Ok(Flow::Next)
        })?;
    }
    Ok(kind)
}

struct Search<'r> {
    redactor: &'r Redactor,
    found: Vec<Range<usize>>,
}

impl Search<'_> {
    /// Looks through one value. `is_environment`: it is what stands under a key `env`.
    fn value(
        &mut self,
        scanner: &mut Scanner<'_>,
        here: &Matches<'_>,
        is_environment: bool,
        depth: u32,
    ) -> Result<(), ProjectError> {
        if depth > NESTING {
            return Err(ProjectError::TooDeep { at: scanner.position() });
        }
        match scanner.peek() {
            b'{' => self.object(scanner, here, depth),
            b'[' => {
                let mut place = 0;
                scanner.elements(|scanner| {
                    let within = here.step(Named::Index(place));
                    place += 1;
                    if within.is_met() {
                        return self.take(scanner);
                    }
                    match is_environment && scanner.peek() == b'{' {
                        true => self.variable(scanner, &within, depth + 1),
                        false => self.value(scanner, &within, false, depth + 1),
                    }
                })
            }
            _ => scanner.skip(),
        }
    }

    fn object(
        &mut self,
        scanner: &mut Scanner<'_>,
        here: &Matches<'_>,
        depth: u32,
    ) -> Result<(), ProjectError> {
        scanner.members(|key, scanner| {
            let name = key.decode()?;
            let within = here.step(Named::Key(&name));
            match within.is_met() {
                true => self.take(scanner)?,
                false => self.value(scanner, &within, name == "env", depth + 1)?,
            }
            Ok(Flow::Next)
        })
    }

    /// One variable of an environment: `{"name": …, "value": …}`, in any order. A name that occurs twice is
    /// a secret's where either is.
    fn variable(
        &mut self,
        scanner: &mut Scanner<'_>,
        here: &Matches<'_>,
        depth: u32,
    ) -> Result<(), ProjectError> {
        let (begun, mut is_secret, mut values) = (self.found.len(), false, Vec::new());
        scanner.members(|key, scanner| {
            let name = key.decode()?;
            let within = here.step(Named::Key(&name));
            match &*name {
                _ if within.is_met() => self.take(scanner)?,
                "name" if scanner.peek() == b'"' => {
                    is_secret |= self.redactor.is_secret_name(&scanner.text()?.decode()?);
                }
                "value" => {
                    let start = scanner.start();
                    self.value(scanner, &within, false, depth + 1)?;
                    values.push(start..scanner.position());
                }
                _ => self.value(scanner, &within, name == "env", depth + 1)?,
            }
            Ok(Flow::Next)
        })?;
        if is_secret {
            let within = self.found.split_off(begun);
            // They are in order, as they came.
            let is_outside = |found: &Range<usize>| {
                let next = values.partition_point(|value| value.end <= found.start);
                values.get(next).is_none_or(|value| found.start < value.start)
            };
            self.found.extend(within.into_iter().filter(is_outside));
            self.found.append(&mut values);
        }
        Ok(())
    }

    fn take(&mut self, scanner: &mut Scanner<'_>) -> Result<(), ProjectError> {
        let range = range(scanner)?;
        self.found.push(range);
        Ok(())
    }
}

fn range(scanner: &mut Scanner<'_>) -> Result<Range<usize>, ProjectError> {
    let start = scanner.start();
    scanner.skip()?;
    Ok(start..scanner.position())
}
