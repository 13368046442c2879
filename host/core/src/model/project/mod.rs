//! Reads the envelope of an object (kind, metadata, status) without decoding the rest. The document stays the
//! exact bytes of the server.
//!
//! Decoding every document into a tree would dominate the cost of a state. So [`split_frame`] and [`list_page`]
//! check the grammar of their input once and cut out the objects as slices. [`read_envelope`] then reads the
//! metadata of such an object and stops as soon as it can. Keys may come in any order. If a key occurs twice,
//! the first value that is not empty counts.

mod list_guard;
mod outline;
mod page;
mod pointer;
mod scan;
#[cfg(test)]
mod tests;
mod text;

use std::borrow::Cow;

use thiserror::Error;

use crate::limits::VERSION_BYTES;

pub use list_guard::{EndlessList, ListGuard};
pub use outline::ObjectOutline;
pub use page::{ListPage, list_page};
pub use pointer::JsonPointer;
pub(crate) use scan::{JsonScanner, NESTING, ScanFlow};
pub(crate) use text::RawString;

/// Most maps of an object are no larger. This much room is reserved at once.
pub(crate) const MEMBERS: usize = 8;

/// Why bytes are not valid. Every error means: keep the bytes as a poison message.
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
    #[error("`metadata.resourceVersion` has more than {VERSION_BYTES} bytes: no journal takes it")]
    LongVersion,
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

/// One event of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchFrame<'a> {
    pub kind: EventType,
    /// The exact bytes of the object.
    pub object: &'a [u8],
}

/// The parts that are read of every object. `api_version` and `kind` are empty if the server omits them, as
/// it does in the lists of built-in kinds. `namespace` is empty for cluster-scoped objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectEnvelope<'a> {
    pub api_version: Cow<'a, str>,
    pub kind: Cow<'a, str>,
    pub namespace: Cow<'a, str>,
    pub name: Cow<'a, str>,
    pub uid: Cow<'a, str>,
    pub resource_version: Cow<'a, str>,
    pub labels: Vec<(Cow<'a, str>, Cow<'a, str>)>,
    pub owners: Vec<OwnerRef<'a>>,
    /// Whether deletion was requested. Finalizers or a grace period still keep the object.
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

/// The server's `Status`: from an ERROR frame, or the body of a refusal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ErrorStatus {
    /// The HTTP status code; 0 if the body was not a `Status`.
    pub code: u16,
    pub reason: String,
    pub message: String,
    pub retry_after_seconds: Option<u32>,
    /// With an expired list: a token to continue without consistency.
    pub continue_token: Option<String>,
}

/// Splits one line of a watch. The whole line is checked, so the object is one well-formed JSON object in
/// UTF-8.
pub fn split_frame(line: &[u8]) -> Result<WatchFrame<'_>, ProjectError> {
    let (mut kind, mut object) = (None, None);
    let mut scanner = JsonScanner::of_text(check_utf8(line)?);
    scanner.for_each_member(|key, value| {
        if kind.is_none() && key.equals_bytes(b"type") {
            kind = Some(value.text()?);
        } else if object.is_none() && key.equals_bytes(b"object") {
            if value.peek_byte() != b'{' {
                return Err(value.error_here("an object"));
            }
            object = Some(value.take_value_bytes()?);
        } else {
            value.skip_any_value()?;
        }
        Ok(ScanFlow::Next)
    })?;
    scanner.expect_end()?;
    let kind = event_type(kind.ok_or(ProjectError::Missing("type"))?)?;
    Ok(WatchFrame { kind, object: object.ok_or(ProjectError::Missing("object"))? })
}

fn event_type(text: RawString<'_>) -> Result<EventType, ProjectError> {
    Ok(match &*text.decode()? {
        "ADDED" => EventType::Added,
        "MODIFIED" => EventType::Modified,
        "DELETED" => EventType::Deleted,
        "BOOKMARK" => EventType::Bookmark,
        "ERROR" => EventType::Error,
        other => return Err(ProjectError::UnknownEvent(other.chars().take(64).collect())),
    })
}

fn check_utf8(bytes: &[u8]) -> Result<&str, ProjectError> {
    std::str::from_utf8(bytes).map_err(|error| ProjectError::Utf8 { at: error.valid_up_to() })
}

/// Reads a string; null counts as empty. Anything else is an error.
#[inline]
fn optional_text<'a>(value: &mut JsonScanner<'a>) -> Result<Cow<'a, str>, ProjectError> {
    match value.peek_byte() {
        b'n' => value.skip_any_value().map(|()| Cow::Borrowed("")),
        _ => value.text()?.decode(),
    }
}

/// Like [`optional_text`], for a field that an earlier key may have set.
#[inline]
fn take_text<'a>(field: &mut Cow<'a, str>, value: &mut JsonScanner<'a>) -> Result<(), ProjectError> {
    let text = optional_text(value)?;
    if field.is_empty() {
        *field = text;
    }
    Ok(())
}

fn is_null(value: &mut JsonScanner<'_>) -> Result<bool, ProjectError> {
    let null = value.peek_byte() == b'n';
    if null {
        value.skip_any_value()?;
    }
    Ok(null)
}

/// Does [`split_frame`] and [`read_envelope`] in one pass. Bookmarks and errors have no envelope.
pub fn project_frame(line: &[u8]) -> Result<(WatchFrame<'_>, Option<ObjectEnvelope<'_>>), ProjectError> {
    project_into(line, &mut ObjectOutline::default())
}

/// The hot path of [`project_frame`]. It records in `outline` where the object's members are, so that no byte is
/// scanned twice. The outline stays empty if the object's type comes after the object.
pub fn project_into<'a>(
    line: &'a [u8],
    outline: &mut ObjectOutline,
) -> Result<(WatchFrame<'a>, Option<ObjectEnvelope<'a>>), ProjectError> {
    outline.clear();
    let (mut kind, mut object, mut read) = (None, None, None);
    let mut scanner = JsonScanner::of_text(check_utf8(line)?);
    scanner.for_each_member(|key, value| {
        if kind.is_none() && key.equals_bytes(b"type") {
            kind = Some(event_type(value.text()?)?);
        } else if object.is_none() && key.equals_bytes(b"object") {
            if value.peek_byte() != b'{' {
                return Err(value.error_here("an object"));
            }
            if kind.is_some_and(EventType::has_envelope) {
                let (bytes, envelope) = value.take_value(|value| outlined_envelope(value, outline))?;
                (object, read) = (Some(bytes), Some(envelope));
            } else {
                object = Some(value.take_value_bytes()?);
            }
        } else {
            value.skip_any_value()?;
        }
        Ok(ScanFlow::Next)
    })?;
    scanner.expect_end()?;
    let kind = kind.ok_or(ProjectError::Missing("type"))?;
    let object = object.ok_or(ProjectError::Missing("object"))?;
    if read.is_none() && kind.has_envelope() {
        read = Some(read_envelope(object)?);
    }
    Ok((WatchFrame { kind, object }, read))
}

impl EventType {
    fn has_envelope(self) -> bool {
        matches!(self, Self::Added | Self::Modified | Self::Deleted)
    }
}

/// Reads the envelope of an object from [`split_frame`] or [`list_page`]. The bytes after the metadata are not
/// scanned again.
pub fn read_envelope(object: &[u8]) -> Result<ObjectEnvelope<'_>, ProjectError> {
    let mut read = EnvelopeReader::default();
    JsonScanner::new(object).for_each_member(|key, value| {
        match read.read_member(key, value)? {
            Some(MemberPlace::Metadata) => {
                members_or_null(value, |key, value| read.read_metadata(key, value))?;
            }
            Some(MemberPlace::Elsewhere) => value.skip_any_value()?,
            None => {}
        }
        Ok(if read.is_complete() { ScanFlow::Enough } else { ScanFlow::Next })
    })?;
    read.finish_envelope()
}

/// Reads the envelope of an unchecked object. It scans the whole object and records its outline.
fn outlined_envelope<'a>(
    object: &mut JsonScanner<'a>,
    outline: &mut ObjectOutline,
) -> Result<ObjectEnvelope<'a>, ProjectError> {
    let (mut read, base) = (EnvelopeReader::default(), object.start());
    outline.of_object(object, base, |key, value, inner| {
        match read.read_member(key, value)? {
            Some(MemberPlace::Metadata) => {
                members_or_null(value, |key, value| {
                    inner.record_member(key, value, |value| read.read_metadata(key, value))
                })?;
            }
            Some(MemberPlace::Elsewhere) => inner.skip_recording(value)?,
            None => {}
        }
        Ok(())
    })?;
    read.finish_envelope()
}

/// The state of reading an envelope.
#[derive(Default)]
struct EnvelopeReader<'a> {
    envelope: ObjectEnvelope<'a>,
    has_version: bool,
    has_kind: bool,
    has_metadata: bool,
}

/// A value that [`EnvelopeReader::read_member`] did not take.
enum MemberPlace {
    Metadata,
    Elsewhere,
}

impl<'a> EnvelopeReader<'a> {
    /// Reads kind, version or metadata of the object. For the metadata and for any other member it returns
    /// the place and leaves the value to the caller.
    fn read_member(
        &mut self,
        key: RawString<'a>,
        value: &mut JsonScanner<'a>,
    ) -> Result<Option<MemberPlace>, ProjectError> {
        if !self.has_metadata && key.equals_bytes(b"metadata") {
            self.has_metadata = true;
            return Ok(Some(MemberPlace::Metadata));
        } else if !self.has_kind && key.equals_bytes(b"kind") {
            self.has_kind = true;
            self.envelope.kind = optional_text(value)?;
        } else if !self.has_version && key.equals_bytes(b"apiVersion") {
            self.has_version = true;
            self.envelope.api_version = optional_text(value)?;
        } else {
            return Ok(Some(MemberPlace::Elsewhere));
        }
        Ok(None)
    }

    fn read_metadata(&mut self, key: RawString<'a>, value: &mut JsonScanner<'a>) -> Result<(), ProjectError> {
        let envelope = &mut self.envelope;
        let field = match () {
            () if key.equals_bytes(b"name") => &mut envelope.name,
            () if key.equals_bytes(b"namespace") => &mut envelope.namespace,
            () if key.equals_bytes(b"uid") => &mut envelope.uid,
            () if key.equals_bytes(b"resourceVersion") => &mut envelope.resource_version,
            () if envelope.labels.is_empty() && key.equals_bytes(b"labels") => {
                return read_labels(value, &mut envelope.labels);
            }
            () if envelope.owners.is_empty() && key.equals_bytes(b"ownerReferences") => {
                return read_owners(value, &mut envelope.owners);
            }
            () if key.equals_bytes(b"deletionTimestamp") => {
                envelope.deleting |= !optional_text(value)?.is_empty();
                return Ok(());
            }
            () => return value.skip_any_value(),
        };
        take_text(field, value)
    }

    fn is_complete(&self) -> bool {
        self.has_version && self.has_kind && self.has_metadata
    }

    fn finish_envelope(self) -> Result<ObjectEnvelope<'a>, ProjectError> {
        let envelope = self.envelope;
        let required = [
            (self.has_metadata, "metadata"),
            (!envelope.name.is_empty(), "metadata.name"),
            (!envelope.uid.is_empty(), "metadata.uid"),
            (!envelope.resource_version.is_empty(), "metadata.resourceVersion"),
        ];
        match required.iter().find(|(is_present, _)| !is_present) {
            Some((_, field)) => Err(ProjectError::Missing(field)),
            None if envelope.resource_version.len() > VERSION_BYTES => Err(ProjectError::LongVersion),
            None => Ok(envelope),
        }
    }
}

/// Reads the members of an object; a null has none.
fn members_or_null<'a>(
    value: &mut JsonScanner<'a>,
    mut member: impl FnMut(RawString<'a>, &mut JsonScanner<'a>) -> Result<(), ProjectError>,
) -> Result<(), ProjectError> {
    match is_null(value)? {
        true => Ok(()),
        false => value.for_each_member(|key, value| member(key, value).map(|()| ScanFlow::Next)),
    }
}

fn read_labels<'a>(
    value: &mut JsonScanner<'a>,
    labels: &mut Vec<(Cow<'a, str>, Cow<'a, str>)>,
) -> Result<(), ProjectError> {
    if is_null(value)? {
        return Ok(());
    }
    value.for_each_member(|key, value| {
        if labels.is_empty() {
            labels.reserve(MEMBERS);
        }
        labels.push((key.decode()?, optional_text(value)?));
        Ok(ScanFlow::Next)
    })
}

fn read_owners<'a>(value: &mut JsonScanner<'a>, owners: &mut Vec<OwnerRef<'a>>) -> Result<(), ProjectError> {
    if is_null(value)? {
        return Ok(());
    }
    value.for_each_element(|value| {
        let mut owner = OwnerRef::default();
        value.for_each_member(|key, value| {
            match () {
                () if key.equals_bytes(b"apiVersion") => take_text(&mut owner.api_version, value)?,
                () if key.equals_bytes(b"kind") => take_text(&mut owner.kind, value)?,
                () if key.equals_bytes(b"name") => take_text(&mut owner.name, value)?,
                () if key.equals_bytes(b"uid") => take_text(&mut owner.uid, value)?,
                () if key.equals_bytes(b"controller") => {
                    owner.controller |= value.take_value_bytes()? == b"true";
                }
                () => value.skip_any_value()?,
            }
            Ok(ScanFlow::Next)
        })?;
        owners.push(owner);
        Ok(())
    })
}

/// The version of a BOOKMARK, which has no name and no uid.
pub fn bookmark_version(object: &[u8]) -> Result<Cow<'_, str>, ProjectError> {
    let mut version = Cow::Borrowed("");
    in_metadata(object, |key, value| {
        match key.equals_bytes(b"resourceVersion") {
            true => take_text(&mut version, value)?,
            false => value.skip_any_value()?,
        }
        Ok(())
    })?;
    match version.is_empty() {
        true => Err(ProjectError::Missing("metadata.resourceVersion")),
        false => Ok(version),
    }
}

/// The creation time in an object's document; `None` if it is missing or the document is not an object.
pub fn creation_time(object: &[u8]) -> Option<Cow<'_, str>> {
    let mut created = Cow::Borrowed("");
    let read = JsonScanner::new(object).for_each_member(|key, value| {
        if !key.equals_bytes(b"metadata") {
            value.skip_any_value()?;
            return Ok(ScanFlow::Next);
        }
        if is_null(value)? {
            return Ok(ScanFlow::Enough);
        }
        value.for_each_member(|key, value| {
            if !key.equals_bytes(b"creationTimestamp") {
                value.skip_any_value()?;
                return Ok(ScanFlow::Next);
            }
            created = optional_text(value)?;
            Ok(ScanFlow::Enough)
        })?;
        // The rest is irrelevant and may be long.
        Ok(ScanFlow::Enough)
    });
    read.ok().map(|_| created).filter(|created| !created.is_empty())
}

/// Whether a BOOKMARK marks the end of the initial events of a streaming list.
pub fn ends_initial_events(object: &[u8]) -> Result<bool, ProjectError> {
    let mut ends = false;
    in_metadata(object, |key, value| {
        if !key.equals_bytes(b"annotations") {
            return value.skip_any_value();
        }
        if is_null(value)? {
            return Ok(());
        }
        value.for_each_member(|key, value| {
            match key.equals_bytes(b"k8s.io/initial-events-end") {
                true => ends |= optional_text(value)? == "true",
                false => value.skip_any_value()?,
            }
            Ok(ScanFlow::Next)
        })
    })?;
    Ok(ends)
}

fn in_metadata<'a>(
    object: &'a [u8],
    mut member: impl FnMut(RawString<'a>, &mut JsonScanner<'a>) -> Result<(), ProjectError>,
) -> Result<(), ProjectError> {
    JsonScanner::new(object).for_each_member(|key, value| {
        if !key.equals_bytes(b"metadata") {
            value.skip_any_value()?;
        } else if !is_null(value)? {
            value.for_each_member(|key, value| member(key, value).map(|()| ScanFlow::Next))?;
        }
        Ok(ScanFlow::Next)
    })
}

/// Reads a `Status`. It never fails: any other body becomes the message, so a proxy's HTML page is shown
/// instead of being lost.
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
