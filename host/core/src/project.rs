//! The envelope of an object, read without decoding the rest.
//!
//! [`frame`] and [`list_page`] check the grammar of everything that they are given, once, and
//! cut the objects out as the exact bytes that came from the server. [`envelope`] then reads
//! the metadata of such an object and goes no further than it must. Keys may come in any
//! order; of a key that is there twice, the first counts that is not empty.

mod scan;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

use thiserror::Error;

pub(crate) use scan::{Flow, Scanner, Text};

/// Why bytes were not what they should be. All of them mean: keep the bytes as poison.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ProjectError {
    #[error("malformed JSON at byte {at}: expected {expected}")]
    Malformed { at: usize, expected: &'static str },
    #[error("not UTF-8 at byte {at}")]
    Utf8 { at: usize },
    #[error("nested more than {} levels deep at byte {at}", scan::NESTING)]
    TooDeep { at: usize },
    #[error("`{0}` is missing")]
    Missing(&'static str),
    #[error("`{0}` is no kind of watch event")]
    UnknownEvent(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventType {
    Added,
    Modified,
    Deleted,
    Bookmark,
    Error,
}

/// One event of a watch stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    pub kind: EventType,
    /// The exact bytes of the object.
    pub object: &'a [u8],
}

/// What is read of every object. `api_version` and `kind` are empty where the server leaves
/// them out, as it does for the items of a built-in kind's list; `namespace` is empty for
/// cluster-scoped objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Envelope<'a> {
    pub api_version: Cow<'a, str>,
    pub kind: Cow<'a, str>,
    pub namespace: Cow<'a, str>,
    pub name: Cow<'a, str>,
    pub uid: Cow<'a, str>,
    pub resource_version: Cow<'a, str>,
    pub labels: Vec<(Cow<'a, str>, Cow<'a, str>)>,
    pub owners: Vec<OwnerRef<'a>>,
    /// A deletion was asked for; finalizers or a grace period keep the object for now.
    pub deleting: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnerRef<'a> {
    pub api_version: Cow<'a, str>,
    pub kind: Cow<'a, str>,
    pub name: Cow<'a, str>,
    pub uid: Cow<'a, str>,
    pub controller: bool,
}

/// What the server says in a `Status`: in an ERROR frame, or as the body of a refusal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ErrorStatus {
    /// The HTTP status code; 0 where the body was no `Status`.
    pub code: u16,
    pub reason: String,
    pub message: String,
    pub retry_after_seconds: Option<u32>,
    /// With an expired list: a token to go on without consistency.
    pub continue_token: Option<String>,
}

/// One page of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListPage<'a> {
    pub resource_version: Cow<'a, str>,
    /// Empty on the last page.
    pub continue_token: Cow<'a, str>,
    /// How many objects come after this page, where the server says so.
    pub remaining: Option<u64>,
    pub api_version: Cow<'a, str>,
    /// Of the list, such as `JobList`.
    pub kind: Cow<'a, str>,
    /// The exact bytes of each object.
    pub items: Vec<&'a [u8]>,
}

/// Splits one line of a watch stream. The whole line is checked, so the object is one
/// well-formed JSON object in UTF-8.
pub fn frame(line: &[u8]) -> Result<Frame<'_>, ProjectError> {
    utf8(line)?;
    let (mut kind, mut object) = (None, None);
    let mut scanner = Scanner::new(line);
    scanner.members(|key, value| {
        if kind.is_none() && key.is(b"type") {
            kind = Some(value.text()?);
        } else if object.is_none() && key.is(b"object") {
            if value.peek() != b'{' {
                return Err(value.wrong("an object"));
            }
            object = Some(value.value()?);
        } else {
            value.skip()?;
        }
        Ok(Flow::Next)
    })?;
    scanner.end()?;
    let kind = event_type(kind.ok_or(ProjectError::Missing("type"))?)?;
    Ok(Frame { kind, object: object.ok_or(ProjectError::Missing("object"))? })
}

fn event_type(text: Text<'_>) -> Result<EventType, ProjectError> {
    Ok(match &*text.decode()? {
        "ADDED" => EventType::Added,
        "MODIFIED" => EventType::Modified,
        "DELETED" => EventType::Deleted,
        "BOOKMARK" => EventType::Bookmark,
        "ERROR" => EventType::Error,
        other => return Err(ProjectError::UnknownEvent(other.chars().take(64).collect())),
    })
}

fn utf8(bytes: &[u8]) -> Result<(), ProjectError> {
    match std::str::from_utf8(bytes) {
        Ok(_) => Ok(()),
        Err(error) => Err(ProjectError::Utf8 { at: error.valid_up_to() }),
    }
}

/// A string, or nothing where it is null. Anything else is an error.
fn optional_text<'a>(value: &mut Scanner<'a>) -> Result<Cow<'a, str>, ProjectError> {
    match value.peek() {
        b'n' => value.skip().map(|()| Cow::Borrowed("")),
        _ => value.text()?.decode(),
    }
}

/// As [`optional_text`], for a field that an earlier key may have given already.
fn take_text<'a>(field: &mut Cow<'a, str>, value: &mut Scanner<'a>) -> Result<(), ProjectError> {
    let text = optional_text(value)?;
    if field.is_empty() {
        *field = text;
    }
    Ok(())
}

fn is_null(value: &mut Scanner<'_>) -> Result<bool, ProjectError> {
    let null = value.peek() == b'n';
    if null {
        value.skip()?;
    }
    Ok(null)
}

/// [`frame`] and [`envelope`] in one pass, for the hot path: no byte of the metadata is looked
/// at twice. Bookmarks and errors have no envelope.
pub fn project(line: &[u8]) -> Result<(Frame<'_>, Option<Envelope<'_>>), ProjectError> {
    utf8(line)?;
    let (mut kind, mut object, mut read) = (None, None, None);
    let mut scanner = Scanner::new(line);
    scanner.members(|key, value| {
        if kind.is_none() && key.is(b"type") {
            kind = Some(event_type(value.text()?)?);
        } else if object.is_none() && key.is(b"object") {
            if value.peek() != b'{' {
                return Err(value.wrong("an object"));
            }
            if kind.is_some_and(EventType::has_envelope) {
                let (bytes, envelope) = value.taken(|value| read_envelope(value, Flow::Next))?;
                (object, read) = (Some(bytes), Some(envelope));
            } else {
                object = Some(value.value()?);
            }
        } else {
            value.skip()?;
        }
        Ok(Flow::Next)
    })?;
    scanner.end()?;
    let kind = kind.ok_or(ProjectError::Missing("type"))?;
    let object = object.ok_or(ProjectError::Missing("object"))?;
    if read.is_none() && kind.has_envelope() {
        read = Some(envelope(object)?);
    }
    Ok((Frame { kind, object }, read))
}

impl EventType {
    fn has_envelope(self) -> bool {
        matches!(self, Self::Added | Self::Modified | Self::Deleted)
    }
}

/// Reads the envelope of an object that [`frame`] or [`list_page`] cut out: what comes after
/// the metadata is not looked at again.
pub fn envelope(object: &[u8]) -> Result<Envelope<'_>, ProjectError> {
    read_envelope(&mut Scanner::new(object), Flow::Enough)
}

/// `then` says what to do once everything is there: leave, or check the rest too.
fn read_envelope<'a>(object: &mut Scanner<'a>, then: Flow) -> Result<Envelope<'a>, ProjectError> {
    let mut envelope = Envelope::default();
    let (mut has_version, mut has_kind, mut has_metadata) = (false, false, false);
    object.members(|key, value| {
        if !has_metadata && key.is(b"metadata") {
            has_metadata = true;
            metadata(value, &mut envelope)?;
        } else if !has_kind && key.is(b"kind") {
            has_kind = true;
            envelope.kind = optional_text(value)?;
        } else if !has_version && key.is(b"apiVersion") {
            has_version = true;
            envelope.api_version = optional_text(value)?;
        } else {
            value.skip()?;
        }
        Ok(if has_version && has_kind && has_metadata { then } else { Flow::Next })
    })?;
    let required = [
        (has_metadata, "metadata"),
        (!envelope.name.is_empty(), "metadata.name"),
        (!envelope.uid.is_empty(), "metadata.uid"),
        (!envelope.resource_version.is_empty(), "metadata.resourceVersion"),
    ];
    match required.iter().find(|(there, _)| !there) {
        Some((_, field)) => Err(ProjectError::Missing(field)),
        None => Ok(envelope),
    }
}

fn metadata<'a>(value: &mut Scanner<'a>, envelope: &mut Envelope<'a>) -> Result<(), ProjectError> {
    if is_null(value)? {
        return Ok(());
    }
    value.members(|key, value| {
        let field = match () {
            () if key.is(b"name") => &mut envelope.name,
            () if key.is(b"namespace") => &mut envelope.namespace,
            () if key.is(b"uid") => &mut envelope.uid,
            () if key.is(b"resourceVersion") => &mut envelope.resource_version,
            () if envelope.labels.is_empty() && key.is(b"labels") => {
                labels(value, &mut envelope.labels)?;
                return Ok(Flow::Next);
            }
            () if envelope.owners.is_empty() && key.is(b"ownerReferences") => {
                owners(value, &mut envelope.owners)?;
                return Ok(Flow::Next);
            }
            () if key.is(b"deletionTimestamp") => {
                envelope.deleting |= !optional_text(value)?.is_empty();
                return Ok(Flow::Next);
            }
            () => return value.skip().map(|()| Flow::Next),
        };
        take_text(field, value)?;
        Ok(Flow::Next)
    })
}

fn labels<'a>(
    value: &mut Scanner<'a>,
    labels: &mut Vec<(Cow<'a, str>, Cow<'a, str>)>,
) -> Result<(), ProjectError> {
    if is_null(value)? {
        return Ok(());
    }
    value.members(|key, value| {
        labels.push((key.decode()?, optional_text(value)?));
        Ok(Flow::Next)
    })
}

fn owners<'a>(value: &mut Scanner<'a>, owners: &mut Vec<OwnerRef<'a>>) -> Result<(), ProjectError> {
    if is_null(value)? {
        return Ok(());
    }
    value.elements(|value| {
        let mut owner = OwnerRef::default();
        value.members(|key, value| {
            match () {
                () if key.is(b"apiVersion") => take_text(&mut owner.api_version, value)?,
                () if key.is(b"kind") => take_text(&mut owner.kind, value)?,
                () if key.is(b"name") => take_text(&mut owner.name, value)?,
                () if key.is(b"uid") => take_text(&mut owner.uid, value)?,
                () if key.is(b"controller") => owner.controller |= value.value()? == b"true",
                () => value.skip()?,
            }
            Ok(Flow::Next)
        })?;
        owners.push(owner);
        Ok(())
    })
}

/// The version that a BOOKMARK carries; it has no name and no uid.
pub fn bookmark_version(object: &[u8]) -> Result<Cow<'_, str>, ProjectError> {
    let mut version = Cow::Borrowed("");
    in_metadata(object, |key, value| {
        match key.is(b"resourceVersion") {
            true => take_text(&mut version, value)?,
            false => value.skip()?,
        }
        Ok(())
    })?;
    match version.is_empty() {
        true => Err(ProjectError::Missing("metadata.resourceVersion")),
        false => Ok(version),
    }
}

/// Whether a BOOKMARK says that the initial events of a streaming list are complete.
pub fn ends_initial_events(object: &[u8]) -> Result<bool, ProjectError> {
    let mut ends = false;
    in_metadata(object, |key, value| {
        if !key.is(b"annotations") {
            return value.skip();
        }
        if is_null(value)? {
            return Ok(());
        }
        value.members(|key, value| {
            match key.is(b"k8s.io/initial-events-end") {
                true => ends |= optional_text(value)? == "true",
                false => value.skip()?,
            }
            Ok(Flow::Next)
        })
    })?;
    Ok(ends)
}

fn in_metadata<'a>(
    object: &'a [u8],
    mut member: impl FnMut(Text<'a>, &mut Scanner<'a>) -> Result<(), ProjectError>,
) -> Result<(), ProjectError> {
    Scanner::new(object).members(|key, value| {
        if !key.is(b"metadata") {
            value.skip()?;
        } else if !is_null(value)? {
            value.members(|key, value| member(key, value).map(|()| Flow::Next))?;
        }
        Ok(Flow::Next)
    })
}

/// Reads a `Status`. It never fails: what is no `Status` is given back as the message, so that
/// a proxy's page of HTML is shown and not swallowed.
pub fn error_status(object: &[u8]) -> ErrorStatus {
    let value: serde_json::Value = serde_json::from_slice(object).unwrap_or_default();
    let text =
        |pointer: &str| value.pointer(pointer).and_then(|found| found.as_str()).unwrap_or("").to_owned();
    let number = |pointer: &str| value.pointer(pointer).and_then(serde_json::Value::as_u64);
    if value.get("kind").and_then(|kind| kind.as_str()) != Some("Status") {
        let cut = &object[..object.len().min(crate::limits::ERROR_TEXT)];
        return ErrorStatus {
            message: String::from_utf8_lossy(cut).trim().to_owned(),
            ..ErrorStatus::default()
        };
    }
    ErrorStatus {
        code: number("/code").and_then(|code| u16::try_from(code).ok()).unwrap_or(0),
        reason: text("/reason"),
        message: text("/message"),
        retry_after_seconds: number("/details/retryAfterSeconds").and_then(|n| u32::try_from(n).ok()),
        continue_token: Some(text("/metadata/continue")).filter(|token| !token.is_empty()),
    }
}

/// Splits one page of a list. The whole page is checked, as [`frame`] does with a line.
pub fn list_page(bytes: &[u8]) -> Result<ListPage<'_>, ProjectError> {
    utf8(bytes)?;
    let mut page = ListPage::default();
    let mut has_items = false;
    let mut scanner = Scanner::new(bytes);
    scanner.members(|key, value| {
        match () {
            () if key.is(b"kind") => take_text(&mut page.kind, value)?,
            () if key.is(b"apiVersion") => take_text(&mut page.api_version, value)?,
            () if key.is(b"metadata") => list_metadata(value, &mut page)?,
            () if key.is(b"items") && !has_items => {
                has_items = true;
                if !is_null(value)? {
                    value.elements(|value| {
                        page.items.push(value.value()?);
                        Ok(())
                    })?;
                }
            }
            () => value.skip()?,
        }
        Ok(Flow::Next)
    })?;
    scanner.end()?;
    match (page.resource_version.is_empty(), has_items) {
        (true, _) => Err(ProjectError::Missing("metadata.resourceVersion")),
        (_, false) => Err(ProjectError::Missing("items")),
        _ => Ok(page),
    }
}

fn list_metadata<'a>(value: &mut Scanner<'a>, page: &mut ListPage<'a>) -> Result<(), ProjectError> {
    if is_null(value)? {
        return Ok(());
    }
    value.members(|key, value| {
        match () {
            () if key.is(b"resourceVersion") => take_text(&mut page.resource_version, value)?,
            () if key.is(b"continue") => take_text(&mut page.continue_token, value)?,
            () if key.is(b"remainingItemCount") => {
                page.remaining = std::str::from_utf8(value.value()?).ok().and_then(|text| text.parse().ok());
            }
            () => value.skip()?,
        }
        Ok(Flow::Next)
    })
}
