//! Records what really happened, apart from the history, so that neither compaction nor a restore changes it.
//! Tests compare a client's claims with it.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::inner::StoreInner;
use super::{ObjectStore, StoreEvent, TableId};
use crate::apiserver::store::record::VersionRecord;
use crate::apiserver::values::lock::locked;

/// The most entries, at about 120 bytes each.
const MAX_ENTRIES: usize = 4_000_000;

/// The most recorded compactions.
const MAX_FLOORS: usize = 1_000_000;

/// One version of one object.
#[derive(Debug, Clone)]
pub struct VersionTruth {
    pub event: StoreEvent,
    pub epoch: u32,
    pub version: u64,
    pub table: TableId,
    pub namespace: Arc<str>,
    pub name: Arc<str>,
    pub uid: Arc<str>,
    /// Milliseconds since 1970.
    pub at: u64,
    /// The time since which no exact list can show it; `None` while one can. No list ever shows a deletion.
    pub unreadable_since: Option<u64>,
}

/// The beginning of a history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EpochStart {
    pub number: u32,
    /// Milliseconds since 1970.
    pub at: u64,
    /// The epoch that was restored, and up to which version; `None` for the first.
    pub parent: Option<(u32, u64)>,
    /// The version from which it continues.
    pub version: u64,
}

/// The time from which versions before `floor` could no longer be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadableFloor {
    pub at: u64,
    pub epoch: u32,
    pub floor: u64,
}

/// The record at one moment.
#[derive(Debug, Clone, Default)]
pub struct TruthAccount {
    pub entries: Vec<VersionTruth>,
    pub epochs: Vec<EpochStart>,
    pub floors: Vec<ReadableFloor>,
    /// The number of older entries that were dropped.
    pub dropped: u64,
    pub epoch: u32,
    pub version: u64,
    pub floor: u64,
    pub now: u64,
}

/// The part of it that the store holds.
#[derive(Default)]
pub(super) struct KeptTruth {
    entries: VecDeque<VersionTruth>,
    epochs: Vec<EpochStart>,
    floors: VecDeque<ReadableFloor>,
    dropped: u64,
}

impl StoreInner {
    pub(super) fn note_truth(&mut self, event: StoreEvent, table: TableId, record: &VersionRecord) {
        let at = self.now();
        let epoch = self.epoch;
        let Some(kept) = &mut self.truth else { return };
        if kept.entries.len() >= MAX_ENTRIES {
            kept.entries.pop_front();
            kept.dropped += 1;
        }
        kept.entries.push_back(VersionTruth {
            event,
            epoch,
            version: record.version,
            table,
            namespace: Arc::clone(&record.namespace),
            name: Arc::clone(&record.name),
            uid: Arc::clone(&record.uid),
            at,
            unreadable_since: None,
        });
    }

    pub(super) fn note_epoch(&mut self, start: EpochStart) {
        if let Some(kept) = &mut self.truth {
            kept.epochs.push(start);
        }
    }

    /// Must be called when the floor has changed.
    pub(super) fn note_floor(&mut self) {
        let floor = ReadableFloor { at: self.now(), epoch: self.epoch, floor: self.floor };
        let Some(kept) = &mut self.truth else { return };
        if kept.floors.len() >= MAX_FLOORS {
            kept.floors.pop_front();
        }
        kept.floors.push_back(floor);
    }
}

impl ObjectStore {
    /// The record of a resource, or of all.
    pub fn account(&self, table: Option<TableId>) -> TruthAccount {
        let inner = locked(&self.inner);
        let mut account = TruthAccount {
            epoch: inner.epoch,
            version: inner.version,
            floor: inner.floor,
            now: inner.now(),
            ..TruthAccount::default()
        };
        if let Some(kept) = &inner.truth {
            let wanted = kept.entries.iter().filter(|entry| table.is_none_or(|id| id == entry.table));
            account.entries = wanted.cloned().collect();
            account.epochs.clone_from(&kept.epochs);
            account.floors = kept.floors.iter().copied().collect();
            account.dropped = kept.dropped;
        }
        drop(inner);
        account.judge();
        account
    }
}

type TruthKey<'a> = (TableId, &'a str, &'a str);

impl TruthAccount {
    /// Computes for each entry since when it can't be read.
    fn judge(&mut self) {
        let mut verdicts: Vec<Option<u64>> = self.entries.iter().map(|entry| Some(entry.at)).collect();
        // An epoch's own entries, and those of its ancestors, from the newest version down.
        for (at, start) in self.epochs.iter().enumerate() {
            let end = self.epochs.get(at + 1).map(|next| next.at);
            let floors: Vec<ReadableFloor> =
                self.floors.iter().filter(|floor| floor.epoch == start.number).copied().collect();
            let mut next: HashMap<TruthKey<'_>, u64> = HashMap::new();
            for index in self.lineage(start).into_iter().rev() {
                let entry = &self.entries[index];
                let replaced = next.insert((entry.table, &entry.namespace, &entry.name), entry.version);
                if entry.event == StoreEvent::Deleted {
                    continue;
                }
                // A version becomes unreadable once the floor reaches the version that replaced it.
                let lost = replaced.and_then(|replaced| {
                    let reached = floors.partition_point(|floor| floor.floor < replaced);
                    floors.get(reached).map(|floor| floor.at)
                });
                let before = verdicts[index].filter(|_| entry.epoch != start.number);
                verdicts[index] = match lost {
                    // It was unreadable in the previous epoch already.
                    Some(at) if at <= start.at => before.or(lost),
                    _ => lost.or(end),
                };
            }
        }
        for (entry, verdict) in self.entries.iter_mut().zip(verdicts) {
            entry.unreadable_since = verdict;
        }
    }

    /// The entries of an epoch's history, oldest first.
    fn lineage(&self, start: &EpochStart) -> Vec<usize> {
        let mut bounds = vec![(start.number, u64::MAX)];
        let mut parent = start.parent;
        while let Some((epoch, upto)) = parent {
            // A second restore takes over what was already cut off.
            let upto = bounds.last().map_or(upto, |(_, bound)| upto.min(*bound));
            bounds.push((epoch, upto));
            parent = self.epochs.iter().find(|start| start.number == epoch).and_then(|start| start.parent);
        }
        let bounds: HashMap<u32, u64> = bounds.into_iter().collect();
        let taken =
            |entry: &VersionTruth| bounds.get(&entry.epoch).is_some_and(|upto| entry.version <= *upto);
        (0..self.entries.len()).filter(|index| taken(&self.entries[*index])).collect()
    }
}
