//! The writer's memory between batches: the next free numbers and, for each live object, the end of its
//! chain.
//!
//! Without it, each state would cost a lookup on disk. Since it only repeats what is on disk, it can never be
//! the truth: the writer looks up what it forgot, and reads everything again after a failed transaction. The
//! number of objects in it is limited. This module touches no disk itself.

pub(crate) mod anchors;
pub(crate) mod chain_ends;

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use hashbrown::HashMap;
use kubewitness_core::ports::AppendBatch;
use kubewitness_core::{ObjectRef, Seq, Status, Version};

use crate::store::memory::anchors::AnchorSearch;
use crate::store::memory::chain_ends::{ChainEnd, ChainEnds, MarkKeys, ObjectMark};
use crate::store::rows::{SourceEpoch, StoreResult, checksum, damaged_state, parse_status};

/// The most objects whose chain ends are kept, at about 90 bytes each. At this number all are forgotten, and
/// those that still change are looked up again, with one query for each batch.
const OBJECTS: usize = 256 * 1024;

/// The most owners that are known by number.
const OWNERS: usize = 64 * 1024;

/// The most statuses that are known by number. Most states share one of a few dozen; further ones are stored
/// again.
const STATUSES: usize = 8 * 1024;

/// Identifies an object within one source, in any epoch. Owners have no source.
#[derive(Clone, Debug)]
pub(crate) struct ObjectIdentity {
    pub source: Arc<str>,
    pub object: Arc<ObjectRef>,
}

impl ObjectIdentity {
    pub fn owner(object: &Arc<ObjectRef>) -> Self {
        Self { source: Arc::from(""), object: object.clone() }
    }
}

impl PartialEq for ObjectIdentity {
    fn eq(&self, other: &Self) -> bool {
        let (a, b) = (&*self.object, &*other.object);
        // Owner references are not verified. An object that names another object's uid as its owner must not
        // be able to rename that object.
        let named = !self.source.is_empty()
            || (&a.namespace, &a.name, &a.version) == (&b.namespace, &b.name, &b.version);
        a.uid == b.uid && a.kind == b.kind && a.group == b.group && named && self.source == other.source
    }
}

impl Eq for ObjectIdentity {}

impl Hash for ObjectIdentity {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.object.uid.hash(state);
        // Thousands of owners may have the same uid.
        if self.source.is_empty() {
            self.object.name.hash(state);
        }
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct SourceMemory {
    /// Epochs and the numbers of their streams, ascending.
    pub streams: Vec<(u32, u32)>,
    /// The checkpoint of the newest epoch, as in its row.
    pub checkpoint: Option<String>,
    pub last_event_ms: Option<i64>,
    pub anchors: AnchorSearch,
    /// Its newest epoch begins with the current batch.
    pub is_new: bool,
}

impl SourceMemory {
    /// Loads the row of a newer epoch. A forged row must not be continued: the next append would give it a
    /// valid checksum.
    pub fn resume_epoch(&mut self, stream: SourceEpoch) -> StoreResult<()> {
        stream.check()?;
        self.streams.push((stream.epoch, stream.id as u32));
        (self.checkpoint, self.last_event_ms) = (stream.checkpoint, stream.last_event_ms);
        Ok(())
    }

    /// Whether an append moves the checkpoint to this version. A witness that lags behind another must not
    /// move it back.
    pub fn may_move_checkpoint(&self, version: &Version, append: &AppendBatch) -> bool {
        let held = self.checkpoint.as_deref().map(Version::new);
        append.rewinds || held.is_none_or(|held| !held.is_newer_than(version))
    }

    pub fn newest_epoch(&self) -> Option<u32> {
        self.streams.last().map(|(epoch, _)| *epoch)
    }
}

/// The next unused number of each kind.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NextNumbers {
    pub seq: Seq,
    pub object: i64,
    pub status: i64,
    pub stream: u32,
    pub kind: i64,
    pub anchor: i64,
}

#[derive(Debug, Default)]
pub(crate) struct StoreMemory {
    pub next: NextNumbers,
    pub sources: HashMap<Arc<str>, SourceMemory>,
    pub kinds: HashMap<(String, String, String), i64>,
    pub objects: ChainEnds,
    pub marks: MarkKeys,
    pub owners: HashMap<ObjectIdentity, i64>,
    pub statuses: HashMap<Arc<Status>, i64>,
}

/// The row of an object that was looked up, with the end of its chain.
#[derive(Debug)]
pub(crate) struct FoundObject {
    pub identity: ObjectIdentity,
    pub epoch: u32,
    pub tail: ChainEnd,
}

impl StoreMemory {
    /// Called between batches only: within a batch, what was planned must stay.
    pub fn shrink_to_bounds(&mut self) {
        if self.objects.len() > OBJECTS {
            self.objects.clear();
        }
        if self.owners.len() > OWNERS {
            self.owners.clear();
        }
        if self.statuses.len() > STATUSES {
            self.statuses.clear();
        }
    }

    /// Loads the row of a status. A damaged one must not be referred to, so a new one is made.
    pub fn learn_status(&mut self, id: i64, body: &str, sum: i64) {
        if let Some(status) = parse_status(body).ok().filter(|_| checksum::sum_of_status(id, body) == sum) {
            self.statuses.insert(Arc::new(status), id);
        }
    }

    /// The source and epoch of each stream, by its number.
    pub fn stream_sources(&self) -> HashMap<i64, (Arc<str>, u32)> {
        let of = |(name, source): (&Arc<str>, &SourceMemory)| {
            let name = name.clone();
            source.streams.clone().into_iter().map(move |(epoch, id)| (i64::from(id), (name.clone(), epoch)))
        };
        self.sources.iter().flat_map(of).collect()
    }

    /// Loads what was looked up. The newest epoch of an object becomes the object; an older one that is still
    /// current is remembered with it. A chain may not end after the journal's end.
    pub fn learn_objects(&mut self, mut found: Vec<FoundObject>) -> StoreResult<()> {
        if let Some(beyond) = found.iter().map(|found| found.tail.seq).find(|seq| *seq >= self.next.seq) {
            let text =
                format!("an object's newest state lies behind the journal's end, {}", self.next.seq - 1);
            return Err(damaged_state(beyond, text));
        }
        found.sort_by_key(|found| found.epoch);
        for FoundObject { identity, mut tail, .. } in found {
            if identity.source.is_empty() {
                self.owners.insert(identity, tail.object);
                continue;
            }
            let mark = self.marks.mark_of(&identity.source, &identity.object);
            if let Some(before) = self.objects.take(mark) {
                tail.set_older(before.as_older());
            }
            self.objects.insert(mark, tail);
        }
        Ok(())
    }

    /// Ended objects are looked up if they change again.
    pub fn forget_ended(&mut self, ended: &[ObjectMark]) {
        for mark in ended {
            if self.objects.get(*mark).is_some_and(|tail| !tail.live && tail.older_ends().is_none()) {
                self.objects.remove(*mark);
            }
        }
    }
}
