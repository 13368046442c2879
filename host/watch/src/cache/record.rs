//! Encodes one object in one allocation: a [`CurrentObject`] without its status, and the hashes of its keys.
//! A `CurrentObject` takes eight allocations, which costs 30 MB more for 50,000 Jobs.
//!
//! ```text
//! flags, varint seq, varint observed_ms, varint created_s, varint n, n hashes of four bytes,
//! [group, version, kind] unless they are the source's, namespace, name, uid, resource version,
//! [owner: group, version, kind, namespace unless it is the object's, name, uid],
//! the packed document
//! ```
//!
//! A text is a varint length and its bytes. A uid in the server's form takes 16 bytes. Records are never
//! stored on disk.

use std::cmp::Ordering;
use std::sync::Arc;

use kubewitness_core::Version;
use kubewitness_core::document::{DocumentError, as_is, unpack_document};
use kubewitness_core::ports::CurrentObject;
use kubewitness_core::state::{ObjectRef, Status};
use uuid::Uuid;
use uuid::fmt::Hyphenated;

use super::recent::RecentObject;

const OWN_KIND: u8 = 1;
const UID_AS_TEXT: u8 = 2;
const HAS_OWNER: u8 = 4;
const OWNER_ELSEWHERE: u8 = 8;
const OWNER_UID_AS_TEXT: u8 = 16;

/// Readers keep a record as long as they like, so the writer replaces the whole record.
pub(crate) type CacheRecord = Arc<[u8]>;

/// The group, version and kind of a source's objects. Their records omit them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SourceKind {
    group: String,
    version: String,
    kind: String,
}

impl SourceKind {
    pub fn of(object: &ObjectRef) -> Self {
        Self { group: object.group.clone(), version: object.version.clone(), kind: object.kind.clone() }
    }

    fn is_of(&self, object: &ObjectRef) -> bool {
        (&self.group, &self.version, &self.kind) == (&object.group, &object.version, &object.kind)
    }
}

/// A uid of 32 lower-case digits and dashes takes 16 bytes. Any other uid stays text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum PackedUid<'a> {
    Raw([u8; 16]),
    Text(&'a str),
}

impl<'a> PackedUid<'a> {
    pub fn of(text: &'a str) -> Self {
        raw_uid(text).map_or(Self::Text(text), Self::Raw)
    }

    pub fn text(self) -> String {
        let raw = match self {
            Self::Raw(raw) => raw,
            Self::Text(text) => return text.to_owned(),
        };
        let mut text = Uuid::encode_buffer();
        Uuid::from_bytes(raw).hyphenated().encode_lower(&mut text).to_owned()
    }
}

/// In the order of the texts.
impl Ord for PackedUid<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Raw(a), Self::Raw(b)) => a.cmp(b),
            (a, b) => a.text().cmp(&b.text()),
        }
    }
}

impl PartialOrd for PackedUid<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// `uuid` also accepts other notations, which could not be restored.
fn raw_uid(text: &str) -> Option<[u8; 16]> {
    let is_written_so =
        text.len() == Hyphenated::LENGTH && !text.bytes().any(|byte| byte.is_ascii_uppercase());
    is_written_so.then(|| Uuid::try_parse(text).ok()).flatten().map(Uuid::into_bytes)
}

// ---- writing -----------------------------------------------------------------------------

fn push_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn text(out: &mut Vec<u8>, text: &str) {
    push_number(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

fn push_uid(out: &mut Vec<u8>, uid: PackedUid<'_>) {
    match uid {
        PackedUid::Raw(raw) => out.extend_from_slice(&raw),
        PackedUid::Text(uid) => text(out, uid),
    }
}

pub(super) fn write(kind: &SourceKind, current: &CurrentObject, created_s: u32, keys: &[u32]) -> CacheRecord {
    let (object, owner) = (&*current.object, current.owner.as_deref());
    let object_uid = PackedUid::of(&object.uid);
    let mut flags = 0;
    let mut set = |flag, is: bool| flags |= if is { flag } else { 0 };
    set(OWN_KIND, !kind.is_of(object));
    set(UID_AS_TEXT, matches!(object_uid, PackedUid::Text(_)));
    set(HAS_OWNER, owner.is_some());
    set(OWNER_ELSEWHERE, owner.is_some_and(|owner| owner.namespace != object.namespace));
    set(
        OWNER_UID_AS_TEXT,
        owner.is_some_and(|owner| matches!(PackedUid::of(&owner.uid), PackedUid::Text(_))),
    );
    let mut out = Vec::with_capacity(256 + current.packed.len());
    out.push(flags);
    push_number(&mut out, current.seq);
    push_number(&mut out, current.observed_ms);
    push_number(&mut out, created_s.into());
    push_number(&mut out, keys.len() as u64);
    keys.iter().for_each(|key| out.extend_from_slice(&key.to_le_bytes()));
    if flags & OWN_KIND != 0 {
        [&object.group, &object.version, &object.kind].into_iter().for_each(|part| text(&mut out, part));
    }
    text(&mut out, &object.namespace);
    text(&mut out, &object.name);
    push_uid(&mut out, object_uid);
    text(&mut out, current.resource_version.as_str());
    if let Some(owner) = owner {
        [&owner.group, &owner.version, &owner.kind].into_iter().for_each(|part| text(&mut out, part));
        if flags & OWNER_ELSEWHERE != 0 {
            text(&mut out, &owner.namespace);
        }
        text(&mut out, &owner.name);
        push_uid(&mut out, PackedUid::of(&owner.uid));
    }
    out.extend_from_slice(&current.packed);
    out.into()
}

// ---- reading -----------------------------------------------------------------------------

/// A record, borrowed for reading.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecordView<'a> {
    pub seq: u64,
    pub observed_ms: u64,
    /// The creation time in seconds; 0 if the document has none.
    pub created_s: u32,
    /// The keys of a record, four bytes each.
    keys: &'a [u8],
    /// Group, version and kind, if they differ from the source's.
    kind: Option<[&'a str; 3]>,
    pub namespace: &'a str,
    pub name: &'a str,
    pub uid: PackedUid<'a>,
    pub version: &'a str,
    owner: Option<RecordOwner<'a>>,
    pub document: RecordDocument<'a>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum RecordDocument<'a> {
    Packed(&'a [u8]),
    Plain(&'a bytes::Bytes),
}

impl RecordDocument<'_> {
    pub fn read(self) -> Result<bytes::Bytes, DocumentError> {
        match self {
            Self::Packed(packed) => unpack_document(packed),
            Self::Plain(document) => Ok(document.clone()),
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct RecordOwner<'a> {
    kind: [&'a str; 3],
    namespace: &'a str,
    name: &'a str,
    uid: PackedUid<'a>,
}

/// Reads only the output of [`write`]. Anything else reads as empty.
struct ByteReader<'a>(&'a [u8]);

impl<'a> ByteReader<'a> {
    fn take(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }

    fn take_byte(&mut self) -> u8 {
        self.take(1).first().copied().unwrap_or_default()
    }

    fn take_number(&mut self) -> u64 {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.take_byte();
            number |= u64::from(byte & 0x7F) << shift;
            if byte < 0x80 {
                break;
            }
        }
        number
    }

    fn text(&mut self) -> &'a str {
        let count = self.take_number() as usize;
        std::str::from_utf8(self.take(count)).unwrap_or_default()
    }

    fn take_three_texts(&mut self) -> [&'a str; 3] {
        [self.text(), self.text(), self.text()]
    }

    fn take_uid(&mut self, as_text: bool) -> PackedUid<'a> {
        match as_text {
            true => PackedUid::Text(self.text()),
            false => PackedUid::Raw(self.take(16).try_into().unwrap_or_default()),
        }
    }
}

pub(super) fn read(record: &[u8]) -> RecordView<'_> {
    let mut bytes = ByteReader(record);
    let flags = bytes.take_byte();
    let has = |flag| flags & flag != 0;
    let (seq, observed_ms, created_s) =
        (bytes.take_number(), bytes.take_number(), bytes.take_number() as u32);
    let count = bytes.take_number();
    let keys = bytes.take(4 * count as usize);
    let kind = has(OWN_KIND).then(|| bytes.take_three_texts());
    let (namespace, name) = (bytes.text(), bytes.text());
    let uid = bytes.take_uid(has(UID_AS_TEXT));
    let version = bytes.text();
    let owner = has(HAS_OWNER).then(|| RecordOwner {
        kind: bytes.take_three_texts(),
        namespace: if has(OWNER_ELSEWHERE) { bytes.text() } else { namespace },
        name: bytes.text(),
        uid: bytes.take_uid(has(OWNER_UID_AS_TEXT)),
    });
    let document = RecordDocument::Packed(bytes.0);
    RecordView { seq, observed_ms, created_s, keys, kind, namespace, name, uid, version, owner, document }
}

fn kind_of(object: &ObjectRef) -> [&str; 3] {
    [&object.group, &object.version, &object.kind]
}

impl<'a> RecordView<'a> {
    /// Reads a recent object, which has no record.
    pub fn of(recent: &'a RecentObject) -> Self {
        let owner = recent.owner.as_deref().map(|owner| RecordOwner {
            kind: kind_of(owner),
            namespace: &owner.namespace,
            name: &owner.name,
            uid: PackedUid::of(&owner.uid),
        });
        Self {
            seq: recent.seq,
            observed_ms: recent.observed_ms,
            created_s: recent.created_s,
            keys: &[],
            kind: Some(kind_of(&recent.object)),
            namespace: &recent.object.namespace,
            name: &recent.object.name,
            uid: PackedUid::of(&recent.object.uid),
            version: recent.version.as_str(),
            owner,
            document: RecordDocument::Plain(&recent.document),
        }
    }
}

impl RecordView<'_> {
    /// The hashes of a record's keys, ascending.
    pub fn key_hashes(&self) -> impl Iterator<Item = u32> {
        self.keys.chunks_exact(4).map(|key| u32::from_le_bytes([key[0], key[1], key[2], key[3]]))
    }

    /// False if the creation time is unknown.
    pub fn is_created_since(&self, since_ms: u64) -> bool {
        self.created_s > 0 && u64::from(self.created_s) * 1_000 >= since_ms
    }

    pub fn owner_is(&self, uid: &str) -> bool {
        self.owner.is_some_and(|owner| owner.uid == PackedUid::of(uid))
    }

    pub fn object_ref(&self, kind: &SourceKind) -> ObjectRef {
        let [group, version, kind] = self.kind.unwrap_or([&kind.group, &kind.version, &kind.kind]);
        object_reference([group, version, kind], self.namespace, self.name, self.uid)
    }

    pub fn owner_ref(&self) -> Option<ObjectRef> {
        let RecordOwner { kind, namespace, name, uid } = self.owner?;
        Some(object_reference(kind, namespace, name, uid))
    }

    pub fn make_current(&self, kind: &SourceKind, status: Arc<Status>) -> CurrentObject {
        CurrentObject {
            object: Arc::new(self.object_ref(kind)),
            owner: self.owner_ref().map(Arc::new),
            resource_version: Version::new(self.version),
            status,
            seq: self.seq,
            observed_ms: self.observed_ms,
            packed: match self.document {
                RecordDocument::Packed(packed) => packed.into(),
                RecordDocument::Plain(document) => as_is(document),
            },
        }
    }
}

fn object_reference(
    [group, version, kind]: [&str; 3],
    namespace: &str,
    name: &str,
    uid: PackedUid<'_>,
) -> ObjectRef {
    ObjectRef {
        group: group.to_owned(),
        version: version.to_owned(),
        kind: kind.to_owned(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        uid: uid.text(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn uid() -> impl Strategy<Value = String> {
        prop_oneof![
            "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
            // This is almost a uid.
            "[0-9a-fA-F]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
            "[0-9a-f-]{36}",
            "\\PC{0,40}",
        ]
    }

    fn object() -> impl Strategy<Value = ObjectRef> {
        ("[ab]?", "v[12]", "[A-C]", "[ab]?", "\\PC{0,200}", uid()).prop_map(
            |(group, version, kind, namespace, name, uid)| ObjectRef {
                group,
                version,
                kind,
                namespace,
                name,
                uid,
            },
        )
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(
            (own, object, owner) in (object(), object(), prop::option::of(object())),
            (seq, observed_ms, version) in (any::<u64>(), any::<u64>(), "\\PC{0,30}"),
            (created_s, keys) in (any::<u32>(), prop::collection::vec(any::<u32>(), 0..200)),
            packed in prop::collection::vec(any::<u8>(), 0..300),
        ) {
            let current = CurrentObject {
                object: Arc::new(object),
                owner: owner.map(Arc::new),
                resource_version: Version::new(&version),
                status: Arc::default(),
                seq,
                observed_ms,
                packed: packed.into(),
            };
            let kind = SourceKind::of(&own);
            let record = write(&kind, &current, created_s, &keys);
            let read = read(&record);
            prop_assert_eq!((read.key_hashes().collect::<Vec<_>>(), read.created_s), (keys, created_s));
            let back = read.make_current(&kind, Arc::default());
            prop_assert_eq!(format!("{back:?}"), format!("{current:?}"));
            prop_assert_eq!(read.uid, PackedUid::of(&current.object.uid));
            if let Some(owner) = &current.owner {
                prop_assert!(read.owner_is(&owner.uid));
            }
        }
    }
}
