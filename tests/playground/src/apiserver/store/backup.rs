//! Backups: named copies of everything, and how one is restored, as by `etcdctl snapshot restore`.
//!
//! A restore sets back the counter, the objects and the history. That starts a new epoch: later writes reuse
//! versions of earlier ones but are unrelated to them.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use super::forgetting::WindowPolicy;
use super::inner::{StoreInner, WrittenVersion};
use super::truth::EpochStart;
use super::{ObjectStore, TableId};
use crate::apiserver::store::record::VersionRecord;
use crate::apiserver::values::lock::locked;

/// A copy of everything in a store. It shares the versions with the store.
#[derive(Clone)]
pub(super) struct StoreBackup {
    epoch: u32,
    version: u64,
    floor: u64,
    kept: u64,
    tables: Vec<BTreeMap<Arc<str>, Vec<Arc<VersionRecord>>>>,
    owned: HashMap<Arc<str>, BTreeSet<(TableId, Arc<str>)>>,
    written: VecDeque<WrittenVersion>,
    written_bytes: usize,
}

impl ObjectStore {
    /// Copies everything under a name and replaces an older copy of that name. Returns its version.
    pub fn back_up(&self, name: &str) -> u64 {
        let mut inner = locked(&self.inner);
        inner.back_up(name);
        inner.log_backup(name);
        inner.version
    }

    /// Restores a copy. `bump` raises the counter above it and compacts everything before, as
    /// `--bump-revision --mark-compacted` does. Returns the version from which the new epoch continues;
    /// `None` if the copy does not exist.
    pub fn restore(&self, name: &str, bump: u64) -> Option<u64> {
        let mut inner = locked(&self.inner);
        let version = inner.restore(name, bump)?;
        inner.log_restore(name, bump);
        for table in &inner.tables {
            table.changed.send_replace(version);
        }
        self.version.send_replace(version);
        Some(version)
    }

    /// How often the history was replaced.
    pub fn epoch(&self) -> u32 {
        locked(&self.inner).epoch
    }
}

impl StoreInner {
    pub(super) fn back_up(&mut self, name: &str) {
        let backup = StoreBackup {
            epoch: self.epoch,
            version: self.version,
            floor: self.floor,
            kept: self.kept,
            tables: self.tables.iter().map(|table| table.objects.clone()).collect(),
            owned: self.owned.clone(),
            written: self.written.clone(),
            written_bytes: self.written_bytes,
        };
        self.backups.insert(name.to_owned(), backup);
    }

    pub(super) fn restore(&mut self, name: &str, bump: u64) -> Option<u64> {
        let backup = self.backups.get(name)?.clone();
        let version = backup.version + bump;
        self.epoch += 1;
        self.version = version;
        (self.floor, self.kept) = (backup.floor, backup.kept);
        self.pins.clear();
        let mut tables = backup.tables.into_iter();
        for table in &mut self.tables {
            // A table that was created after the copy becomes empty.
            table.objects = tables.next().unwrap_or_default();
            table.log.clear();
            table.window_floor = version;
            table.last_change = version;
        }
        self.owned = backup.owned;
        (self.written, self.written_bytes) = (backup.written, backup.written_bytes);
        self.moments = VecDeque::from([(Instant::now(), version)]);
        let start = EpochStart {
            number: self.epoch,
            at: self.now(),
            parent: Some((backup.epoch, backup.version)),
            version,
        };
        self.note_epoch(start);
        self.note_floor();
        if bump > 0 {
            self.compact(version, WindowPolicy::Forget);
        }
        Some(version)
    }
}
