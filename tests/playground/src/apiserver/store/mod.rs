//! Stores every version of every object, under one counter.
//!
//! Each resource has a table. It holds a chain of versions for each object (for lists at any version that is
//! not compacted), and a log of changes (the watch window, which can be shorter). It knows nothing of
//! requests, kinds or rights; objects are opaque text.

mod backup;
mod durable;
mod forgetting;
mod inner;
mod reading;
pub(crate) mod record;
#[cfg(test)]
mod tests;
mod truth;

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use tokio::sync::watch;

pub use forgetting::WindowPolicy;
use inner::StoreInner;
pub use reading::{AsOf, CacheWindow, ObjectPage, PageRequest};
pub use truth::{EpochStart, ReadableFloor, VersionTruth};

use crate::apiserver::store::record::{ObjectDraft, VersionRecord};
use crate::apiserver::values::lock::locked;

/// How much history is kept. Anything beyond one of these limits is compacted.
#[derive(Debug, Clone)]
pub struct HistoryLimits {
    pub versions: usize,
    pub bytes: usize,
    /// `None` keeps versions of any age.
    pub age: Option<Duration>,
    /// The changes of one resource from which a watch can start.
    pub watch_window: usize,
}

impl Default for HistoryLimits {
    fn default() -> Self {
        HistoryLimits {
            versions: 500_000,
            bytes: 512 << 20,
            // A real cluster keeps versions for this long.
            age: Some(Duration::from_secs(300)),
            watch_window: 102_400,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreEvent {
    Added,
    Modified,
    Deleted,
}

impl StoreEvent {
    pub fn as_str(self) -> &'static str {
        match self {
            StoreEvent::Added => "ADDED",
            StoreEvent::Modified => "MODIFIED",
            StoreEvent::Deleted => "DELETED",
        }
    }
}

/// A version and the one that it replaced.
#[derive(Debug, Clone)]
pub struct StoreChange {
    pub record: Arc<VersionRecord>,
    pub previous: Option<Arc<VersionRecord>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TableId(usize);

/// Another write came first: read again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteRaced;

/// The requested version was compacted; `oldest` can still be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooOld {
    pub oldest: u64,
}

pub struct ObjectStore {
    inner: Mutex<StoreInner>,
    limits: HistoryLimits,
    version: watch::Sender<u64>,
    began: u64,
}

impl ObjectStore {
    #[cfg(test)]
    pub fn new(limits: HistoryLimits, keep_truth: bool) -> Self {
        ObjectStore::open(limits, keep_truth, None).unwrap()
    }

    /// Opens an empty store, or the store of a file.
    pub fn open(limits: HistoryLimits, keep_truth: bool, file: Option<&Path>) -> io::Result<Self> {
        let mut inner = StoreInner { truth: keep_truth.then(Default::default), ..StoreInner::default() };
        inner.note_epoch(EpochStart { number: 0, at: 0, parent: None, version: 0 });
        if let Some(file) = file {
            let (durable, lines) = durable::DurableFile::open(file)?;
            lines.iter().try_for_each(|line| inner.replay(line))?;
            inner.durable = Some(durable);
        }
        let began = inner.version;
        Ok(ObjectStore { inner: Mutex::new(inner), limits, version: watch::Sender::new(began), began })
    }

    /// The table of a resource. It is created at the first call.
    pub fn table(&self, name: &str) -> TableId {
        locked(&self.inner).table(name)
    }

    /// The version at which it was opened; 0 if it was empty.
    pub fn opening_version(&self) -> u64 {
        self.began
    }

    pub fn version(&self) -> u64 {
        locked(&self.inner).version
    }

    /// Reports every new version of the store.
    pub fn versions(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    /// Reports every change of one table.
    pub fn changes(&self, table: TableId) -> watch::Receiver<u64> {
        locked(&self.inner).tables[table.0].changed.subscribe()
    }

    /// The version of the table's last change.
    pub fn last_change(&self, table: TableId) -> u64 {
        locked(&self.inner).tables[table.0].last_change
    }

    /// Writes a version if the object is still at `expected` (`None`: does not exist).
    pub fn put(
        &self,
        table: TableId,
        draft: ObjectDraft,
        expected: Option<u64>,
    ) -> Result<Arc<VersionRecord>, WriteRaced> {
        let mut inner = locked(&self.inner);
        let key = draft.key();
        if inner.tables[table.0].live(&key).map(|r| r.version) != expected {
            return Err(WriteRaced);
        }
        inner.version += 1;
        let record = Arc::new(VersionRecord { version: inner.version, deleted: false, draft });
        inner.append(table, key.into(), &record);
        let name = inner.tables[table.0].name.clone();
        inner.log_put(&name, &record);
        self.settle(&mut inner, &[table]);
        Ok(record)
    }

    /// Deletes the object if it is still at `expected`. The deletion has a version of its own.
    pub fn remove(&self, table: TableId, key: &str, expected: u64) -> Result<Arc<VersionRecord>, WriteRaced> {
        let mut inner = locked(&self.inner);
        let draft = match inner.tables[table.0].live(key) {
            Some(live) if live.version == expected => live.draft.clone(),
            _ => return Err(WriteRaced),
        };
        inner.version += 1;
        let record = Arc::new(VersionRecord { version: inner.version, deleted: true, draft });
        inner.append(table, key.into(), &record);
        let name = inner.tables[table.0].name.clone();
        inner.log_gone(&name, &[key.into()]);
        self.settle(&mut inner, &[table]);
        Ok(record)
    }

    /// Deletes several objects at one version, as an expired lease does. Returns their number.
    pub fn remove_together(&self, table: TableId, keys: &[String]) -> usize {
        let mut inner = locked(&self.inner);
        let drafts: Vec<(Arc<str>, ObjectDraft)> = BTreeSet::from_iter(keys)
            .into_iter()
            .filter_map(|key| Some((key.as_str().into(), inner.tables[table.0].live(key)?.draft.clone())))
            .collect();
        if drafts.is_empty() {
            return 0;
        }
        inner.version += 1;
        let (version, count) = (inner.version, drafts.len());
        let name = inner.tables[table.0].name.clone();
        let keys: Vec<Arc<str>> = drafts.iter().map(|(key, _)| Arc::clone(key)).collect();
        for (key, draft) in drafts {
            let record = Arc::new(VersionRecord { version, deleted: true, draft });
            inner.append(table, key, &record);
        }
        inner.log_gone(&name, &keys);
        self.settle(&mut inner, &[table]);
        count
    }

    /// Applies the limits and wakes the waiting tasks.
    fn settle(&self, inner: &mut StoreInner, tables: &[TableId]) {
        let version = inner.version;
        inner.keep_limits(&self.limits);
        for table in tables {
            inner.tables[table.0].changed.send_replace(version);
        }
        self.version.send_replace(version);
    }

    /// The objects that an owner owns.
    pub fn owned_by(&self, uid: &str) -> Vec<(TableId, Arc<str>)> {
        locked(&self.inner).owned.get(uid).map(|owned| owned.iter().cloned().collect()).unwrap_or_default()
    }

    /// Wakes the watches of a table although nothing changed in it.
    pub fn poke(&self, table: TableId) {
        locked(&self.inner).tables[table.0].changed.send_modify(|_| {});
    }

    pub fn table_name(&self, table: TableId) -> String {
        locked(&self.inner).tables[table.0].name.clone()
    }

    /// The tables that hold objects of the namespace.
    pub fn in_namespace(&self, namespace: &str) -> Vec<(TableId, Vec<Arc<VersionRecord>>)> {
        let prefix = format!("{namespace}/");
        let inner = locked(&self.inner);
        let mut found = Vec::new();
        for (at, table) in inner.tables.iter().enumerate() {
            let live: Vec<Arc<VersionRecord>> = table
                .objects
                .range::<str, _>((std::ops::Bound::Included(prefix.as_str()), std::ops::Bound::Unbounded))
                .take_while(|(key, _)| key.starts_with(&prefix))
                .filter_map(|(_, chain)| chain.last().filter(|r| !r.deleted).cloned())
                .collect();
            if !live.is_empty() {
                found.push((TableId(at), live));
            }
        }
        found
    }

    /// Stores another module's note in the store's file, if the file exists.
    pub fn note(&self, note: &Value) {
        locked(&self.inner).log_note(note);
    }

    /// The notes in the file when it was opened.
    pub fn take_notes(&self) -> Vec<Value> {
        std::mem::take(&mut locked(&self.inner).notes)
    }

    /// Why the store's file can no longer be written.
    pub fn failure(&self) -> Option<String> {
        locked(&self.inner).failure()
    }
}
