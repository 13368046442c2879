//! Indexes over the cache. They find objects by namespace, owner, node, label, and by values at paths that an
//! operator named. One scan of a document yields the keys of all indexes. The cache stores the indexes; this
//! module only computes keys.
//!
//! | index | key |
//! |---|---|
//! | `namespace` | the object's namespace; empty for cluster-scoped objects |
//! | `owner` | the uid of any owner in its `ownerReferences`, and of the outermost owner that was known when it was witnessed |
//! | `node` | `spec.nodeName`, so a pod's node |
//! | `label` | `key=value`, for each of its labels |
//! | a named one | the scalar at its pointer as text, or each scalar of the array there |
//!
//! The same scan reads the submitter. A search matches it, but no index has it.

mod hidden;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::convert::Infallible;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::project::{JsonPointer, JsonScanner, ObjectOutline, ProjectError, ScanFlow};

/// An index of the cache: objects by the value at one place of their document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct IndexSpec {
    /// The name that `kubewitness get --index NAME=KEY` and the `lister` capability use.
    #[cfg_attr(test, schemars(extend("x-bounds" = "up to 63 letters, digits and dashes, a letter first; not the name of a built-in index")))]
    pub name: String,
    /// Where the value stands: a JSON pointer (RFC 6901), such as `/spec/schedulerName`.
    pub pointer: String,
}

/// The annotation with which a platform records who submitted an object.
pub const SUBMITTER: &str = "kubewitness.dev/submitter";

/// The indexes that every source has.
pub const BUILTIN: [&str; 4] = ["namespace", "owner", "node", "label"];

/// The most named indexes of one source. Each costs a word for each object, and one bit in a set of 64.
pub const NAMED: usize = 32;

const LABELS: usize = 0;
const OWNERS: usize = 1;
const NODE: usize = 2;
const SUBMITTERS: usize = 3;
/// The number of built-in paths. The paths of named indexes follow them.
const PLACES: usize = 4;

/// The indexes of one source.
#[derive(Clone, Debug)]
pub struct IndexSet {
    named: Vec<String>,
    places: Vec<JsonPointer>,
}

/// A key of one object in one index, borrowed from the document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexKey<'a> {
    Namespace(&'a str),
    Owner(&'a str),
    Node(&'a str),
    Label(&'a str, &'a str),
    /// The submitter, which is in no index.
    Submitter(&'a str),
    /// The number of the named index, and the key.
    Named(usize, &'a str),
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum IndexError {
    #[error("there is no index `{index}`; this source has {}", known.join(", "))]
    Unknown { index: String, known: Vec<String> },
    #[error(
        "the index `{index}` is of a place that redaction hides: look the objects up by another index, or ask the \
         operator who keeps `spec.redaction`"
    )]
    Hidden { index: String },
    #[error("`{key}` can't be looked up in the index `label`: write `key=value`")]
    NotALabel { key: String },
}

impl IndexSet {
    /// Leaves out specs that [`check`](crate::config::HostSpec::check) refuses.
    pub fn new(specs: &[IndexSpec]) -> Self {
        let mut indexes = Self {
            named: Vec::new(),
            places: vec![
                JsonPointer::of(&["metadata", "labels"]),
                JsonPointer::of(&["metadata", "ownerReferences"]),
                JsonPointer::of(&["spec", "nodeName"]),
                JsonPointer::of(&["metadata", "annotations", SUBMITTER]),
            ],
        };
        for spec in specs.iter().take(NAMED) {
            if let Ok(pointer) = JsonPointer::parse(&spec.pointer) {
                indexes.named.push(spec.name.clone());
                indexes.places.push(pointer);
            }
        }
        indexes
    }

    pub fn index_names(&self) -> impl Iterator<Item = &str> {
        BUILTIN.into_iter().chain(self.named.iter().map(String::as_str))
    }

    /// The key `key` of the index `name`.
    pub fn key<'k>(&self, name: &str, key: &'k str) -> Result<IndexKey<'k>, IndexError> {
        Ok(match name {
            "namespace" => IndexKey::Namespace(key),
            "owner" => IndexKey::Owner(key),
            "node" => IndexKey::Node(key),
            "label" => match key.split_once('=') {
                Some((label, value)) => IndexKey::Label(label, value),
                None => return Err(IndexError::NotALabel { key: key.into() }),
            },
            _ => match self.named.iter().position(|named| named == name) {
                Some(number) => IndexKey::Named(number, key),
                None => {
                    let known = self.index_names().map(str::to_owned).collect();
                    return Err(IndexError::Unknown { index: name.into(), known });
                }
            },
        })
    }

    /// The path of an index that has exactly one.
    pub(crate) fn path(&self, number: usize) -> &[String] {
        self.places[PLACES + number].tokens()
    }

    /// Calls `found` with each key in the document. The namespace is not among them.
    pub fn for_each_key(&self, document: &[u8], found: impl FnMut(IndexKey<'_>)) -> Result<(), ProjectError> {
        self.outlined_keys(document, &ObjectOutline::of(document)?, found)
    }

    /// [`Self::for_each_key`] with an outline that the caller already has.
    pub fn outlined_keys(
        &self,
        document: &[u8],
        outline: &ObjectOutline,
        mut found: impl FnMut(IndexKey<'_>),
    ) -> Result<(), ProjectError> {
        self.for_each_member(document, outline, |places, depth, part| {
            self.index_value_at(&mut JsonScanner::new(part), places, depth, &mut found)
        })
    }

    /// Calls `part` with all bytes that determine the keys. Two documents with equal parts have equal keys.
    pub fn each_key_part(&self, document: &[u8], outline: &ObjectOutline, mut part: impl FnMut(&[u8])) {
        let Ok(()) = self.for_each_member(document, outline, |places, depth, bytes| {
            // The paths are included, because a value may move from one path to another.
            part(&places.to_le_bytes());
            part(&depth.to_le_bytes());
            part(bytes);
            Ok::<(), Infallible>(())
        });
    }

    /// The first- and second-level members on these paths, with the number of tokens that lead to each.
    fn for_each_member<E>(
        &self,
        document: &[u8],
        outline: &ObjectOutline,
        mut part: impl FnMut(u64, usize, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let all_places = (1u64 << self.places.len()) - 1;
        let mut of_top = 0;
        for member in outline.outlined_members(document) {
            if member.is_inner {
                let below = self.paths_below(of_top, 1, |token| member.key.equals_bytes(token.as_bytes()));
                if below != 0 {
                    part(below, 2, member.value)?;
                }
                continue;
            }
            of_top = self.paths_below(all_places, 0, |token| member.key.equals_bytes(token.as_bytes()));
            // The members of an object follow it.
            if of_top != 0 && !member.value.starts_with(b"{") {
                part(of_top, 1, member.value)?;
            }
        }
        Ok(())
    }

    /// The paths among `places` whose next token satisfies `is`.
    fn paths_below(&self, places: u64, depth: usize, is: impl Fn(&str) -> bool) -> u64 {
        let mut left = places;
        let mut below = 0;
        while left != 0 {
            let place = left.trailing_zeros() as usize;
            left &= left - 1;
            if self.places[place].tokens().get(depth).is_some_and(|token| is(token)) {
                below |= 1 << place;
            }
        }
        below
    }

    /// Reads the value at which these paths arrive after `depth` tokens.
    fn index_value_at(
        &self,
        value: &mut JsonScanner<'_>,
        places: u64,
        depth: usize,
        found: &mut dyn FnMut(IndexKey<'_>),
    ) -> Result<(), ProjectError> {
        let deeper = self.paths_below(places, depth, |_| true);
        let mut ending = places & !deeper;
        if ending == 0 {
            return self.index_members_within(value, deeper, depth, found);
        }
        let bytes = value.take_value_bytes()?;
        while ending != 0 {
            let place = ending.trailing_zeros() as usize;
            ending &= ending - 1;
            let value = &mut JsonScanner::new(bytes);
            match place {
                LABELS => index_labels(value, found)?,
                OWNERS => index_owners(value, found)?,
                NODE => for_each_scalar(value, &mut |text| found(IndexKey::Node(text)))?,
                SUBMITTERS => for_each_scalar(value, &mut |text| found(IndexKey::Submitter(text)))?,
                _ => for_each_scalar(value, &mut |text| found(IndexKey::Named(place - PLACES, text)))?,
            }
        }
        if deeper != 0 {
            self.index_members_within(&mut JsonScanner::new(bytes), deeper, depth, found)?;
        }
        Ok(())
    }

    fn index_members_within(
        &self,
        value: &mut JsonScanner<'_>,
        places: u64,
        depth: usize,
        found: &mut dyn FnMut(IndexKey<'_>),
    ) -> Result<(), ProjectError> {
        match value.peek_byte() {
            b'{' => value.for_each_member(|key, value| {
                match self.paths_below(places, depth, |token| key.equals_bytes(token.as_bytes())) {
                    0 => value.skip_any_value()?,
                    below => self.index_value_at(value, below, depth + 1, found)?,
                }
                Ok(ScanFlow::Next)
            }),
            b'[' => {
                let mut place = 0usize;
                value.for_each_element(|value| {
                    let number = place.to_string();
                    place += 1;
                    match self.paths_below(places, depth, |token| token == number) {
                        0 => value.skip_any_value(),
                        below => self.index_value_at(value, below, depth + 1, found),
                    }
                })
            }
            _ => value.skip_any_value(),
        }
    }
}

fn index_labels(
    value: &mut JsonScanner<'_>,
    found: &mut dyn FnMut(IndexKey<'_>),
) -> Result<(), ProjectError> {
    if value.peek_byte() != b'{' {
        return Ok(());
    }
    value.for_each_member(|key, value| {
        let text = scalar_text(value)?;
        if let Some(text) = text {
            found(IndexKey::Label(&key.decode()?, &text));
        }
        Ok(ScanFlow::Next)
    })
}

fn index_owners(
    value: &mut JsonScanner<'_>,
    found: &mut dyn FnMut(IndexKey<'_>),
) -> Result<(), ProjectError> {
    if value.peek_byte() != b'[' {
        return Ok(());
    }
    value.for_each_element(|value| {
        if value.peek_byte() != b'{' {
            return value.skip_any_value();
        }
        value.for_each_member(|key, value| {
            match key.equals_bytes(b"uid") {
                true => for_each_scalar(value, &mut |uid| found(IndexKey::Owner(uid)))?,
                false => value.skip_any_value()?,
            }
            Ok(ScanFlow::Next)
        })
    })
}

/// Reads one scalar, or each scalar of an array.
fn for_each_scalar(value: &mut JsonScanner<'_>, found: &mut dyn FnMut(&str)) -> Result<(), ProjectError> {
    let mut read_scalar = |value: &mut JsonScanner<'_>| {
        if let Some(text) = scalar_text(value)? {
            found(&text);
        }
        Ok(())
    };
    match value.peek_byte() {
        b'[' => value.for_each_element(read_scalar),
        _ => read_scalar(value),
    }
}

/// The scalar as text; `None` for null, arrays and objects.
fn scalar_text<'a>(value: &mut JsonScanner<'a>) -> Result<Option<Cow<'a, str>>, ProjectError> {
    match value.peek_byte() {
        b'"' => value.text()?.decode().map(Some),
        b'n' | b'{' | b'[' => value.skip_any_value().map(|()| None),
        _ => Ok(Some(String::from_utf8_lossy(value.take_value_bytes()?))),
    }
}
