//! Rows as a store returns them.

use std::cmp::Ordering;
use std::sync::Arc;

use kubewitness_core::ports::JournalError;
use kubewitness_core::views::LetterQuery;
use kubewitness_core::{Change, ObjectRef, Seq, Version};

use super::batch::SnapshotRow;
use super::bounded_i64;
use super::checksum;
use super::damage::StoreResult;
use super::envelope::{DocumentEncoding, RowFlags, StateEnvelope};
use super::key::StateKey;

/// An object as it was first seen.
#[derive(Clone, Debug)]
pub(crate) struct NamedObject {
    pub object: Arc<ObjectRef>,
    pub stream: i64,
    /// 0 if it has none.
    pub owner: i64,
}

/// Selects objects. Several can share the index entry of a uid or a name.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ObjectChoice<'a> {
    Numbers(&'a [i64]),
    /// The [`uid::key`](crate::store::rows::uid::key) of a uid.
    Uid(u32),
    Name(u32),
}

/// An epoch of a source.
#[derive(Clone, Debug)]
pub(crate) struct SourceEpoch {
    pub id: i64,
    pub source: String,
    pub epoch: u32,
    pub checkpoint: Option<String>,
    pub states: u64,
    pub last_event_ms: Option<i64>,
    /// As written with the row.
    pub sum: i64,
}

impl SourceEpoch {
    /// A watch must not resume from a forged checkpoint.
    pub fn check(&self) -> StoreResult<()> {
        let Self { id, source, epoch, checkpoint, last_event_ms, sum, .. } = self;
        let written =
            checksum::sum_of_stream(*id, source, i64::from(*epoch), checkpoint.as_deref(), *last_event_ms);
        match written == *sum {
            true => Ok(()),
            false => Err(JournalError::Fatal(format!("{source}: its row differs from what was written"))),
        }
    }
}

/// An object that is stored as current, with the content of its newest state.
#[derive(Debug)]
pub(crate) struct LiveRow {
    pub object: i64,
    pub tail: Seq,
    pub newest: Seq,
    /// The key of the state that `newest` points to.
    pub version: Option<StateKey>,
    pub newest_object: Option<i64>,
}

/// An object of a source, and its end if it has ended.
#[derive(Debug)]
pub(crate) struct EndRow {
    pub object: i64,
    pub tail: Option<i64>,
    pub newest: Option<i64>,
    /// The object of the state that `newest` points to.
    pub newest_object: Option<i64>,
    pub version: Option<Version>,
}

impl EndRow {
    /// Computes the version from the columns of the state.
    pub fn version_of(flags: Option<i64>, key: Option<StateKey>, at: Option<StateKey>) -> Option<Version> {
        match RowFlags::unpack_bits(flags?)?.change {
            Change::Present | Change::Left => key?.version(),
            Change::Gone | Change::Gap => at?.version(),
        }
    }
}

/// A snapshot, with the content of its state.
#[derive(Debug)]
pub(crate) struct KeptSnapshot {
    pub snapshot: SnapshotRow,
    pub state_object: Option<i64>,
    pub checksum: Option<u32>,
    pub is_current: bool,
}

/// A live object as it is read at startup.
#[derive(Debug)]
pub(crate) struct CurrentRow {
    pub object: i64,
    pub newest: StateEnvelope,
    /// The stored form of the newest state's document.
    pub stored: Vec<u8>,
    pub snapshot: Option<(Seq, Vec<u8>)>,
}

/// The stored form of one state's document, and the position of the previous state.
#[derive(Debug)]
pub(crate) struct StoredDocument {
    pub kept: DocumentStorage,
    pub before: Seq,
    pub stored: Vec<u8>,
}

/// A state with the stored form of its document.
pub(crate) type DocumentRow = (StateEnvelope, Vec<u8>);

/// A stored row of states; its envelope may turn out to be damaged.
pub(crate) type StoredRow = (i64, StoreResult<StateEnvelope>, Vec<u8>);

/// An object and the positions of its states: enough to select it without reading a state.
#[derive(Clone, Debug)]
pub(crate) struct PlacedObject {
    pub object: i64,
    pub stream: i64,
    /// The end of its chain.
    pub tail: Seq,
    pub namespace: String,
    pub name: String,
}

/// The ends of objects between two positions, both excluded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ObjectEnds {
    pub stream: i64,
    pub after: i64,
    pub before: i64,
    /// Whether the newest come first.
    pub newest_first: bool,
    pub limit: i64,
}

/// A state on a walk back along chains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChainStep {
    /// The position where the walk began.
    pub head: Seq,
    pub seq: Seq,
    pub back: u64,
    pub flags: i64,
}

impl ChainStep {
    /// Whether it is a version in order, or an end: neither late nor a gap.
    pub fn is_in_turn(&self) -> bool {
        self.flags & 0b111 <= 2
    }
}

/// How a document is stored, and its checksum.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DocumentStorage {
    pub seq: Seq,
    pub encoding: DocumentEncoding,
    pub anchor: Option<i64>,
    pub checksum: u32,
}

impl From<&StateEnvelope> for DocumentStorage {
    fn from(envelope: &StateEnvelope) -> Self {
        let StateEnvelope { seq, flags, anchor, checksum, .. } = envelope;
        Self { seq: *seq, encoding: flags.encoding, anchor: *anchor, checksum: *checksum }
    }
}

/// A range of letters that is contiguous in an index. After a given letter come two ranges: the later letters
/// of its plugin, and those of later plugins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LetterRange<'a> {
    /// The letters of a plugin after a position.
    Of(&'a str, i64),
    /// The letters of all plugins after a name.
    Behind(&'a str),
}

impl LetterRange<'_> {
    pub fn all_ranges(query: &LetterQuery) -> Vec<LetterRange<'_>> {
        let plugin = query.plugin.as_deref();
        match (plugin, &query.cursor) {
            (None, None) => vec![LetterRange::Behind("")],
            (Some(plugin), None) => vec![LetterRange::Of(plugin, 0)],
            (None, Some(behind)) => {
                vec![
                    LetterRange::Of(&behind.plugin, bounded_i64(behind.seq)),
                    LetterRange::Behind(&behind.plugin),
                ]
            }
            (Some(plugin), Some(behind)) => match plugin.cmp(&behind.plugin) {
                Ordering::Less => Vec::new(),
                Ordering::Equal => vec![LetterRange::Of(plugin, bounded_i64(behind.seq))],
                Ordering::Greater => vec![LetterRange::Of(plugin, 0)],
            },
        }
    }
}
