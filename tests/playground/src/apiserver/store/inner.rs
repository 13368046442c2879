//! The inside of the store: chains of versions, logs of changes, and compaction. One lock guards all of it.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::Value;
use tokio::sync::watch;

use super::backup::StoreBackup;
use super::durable::DurableFile;
use super::forgetting::WindowPolicy;
use super::truth::KeptTruth;
use super::{AsOf, HistoryLimits, StoreChange, StoreEvent, TableId, TooOld};
use crate::apiserver::store::record::VersionRecord;

/// Compaction starts when a limit is exceeded by a quarter, so that it works in batches.
const SLACK: usize = 4;

/// The time between two recorded moments. The age of a version is known to this precision.
const AGE_STEP: Duration = Duration::from_millis(250);

#[derive(Default)]
pub(super) struct StoreInner {
    /// How often the history was replaced.
    pub(super) epoch: u32,
    pub(super) version: u64,
    /// The oldest version that can be read.
    pub(super) floor: u64,
    /// The oldest version that is still stored. It is older than the floor if a server's cache has it pinned.
    pub(super) kept: u64,
    pub(super) pins: BTreeMap<usize, u64>,
    pub(super) tables: Vec<StoreTable>,
    pub(super) by_name: HashMap<String, TableId>,
    /// The owned objects of each owner's uid.
    pub(super) owned: HashMap<Arc<str>, BTreeSet<(TableId, Arc<str>)>>,
    pub(super) written: VecDeque<WrittenVersion>,
    pub(super) written_bytes: usize,
    pub(super) moments: VecDeque<(Instant, u64)>,
    pub(super) truth: Option<KeptTruth>,
    pub(super) backups: HashMap<String, StoreBackup>,
    pub(super) durable: Option<DurableFile>,
    /// Notes of other modules in the store's file.
    pub(super) notes: Vec<Value>,
    /// During a replay of the file: when the present event happened.
    pub(super) replayed_at: Option<u64>,
    pub(super) clock: StoreClock,
}

/// Milliseconds since 1970. They never decrease while the process lives.
pub(super) struct StoreClock {
    started: Instant,
    unix: Duration,
}

impl Default for StoreClock {
    fn default() -> Self {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        StoreClock { started: Instant::now(), unix }
    }
}

#[derive(Clone)]
pub(super) struct WrittenVersion {
    pub(super) version: u64,
    pub(super) table: TableId,
    pub(super) key: Arc<str>,
    pub(super) bytes: usize,
}

pub(super) struct StoreTable {
    pub(super) name: String,
    pub(super) objects: BTreeMap<Arc<str>, Vec<Arc<VersionRecord>>>,
    pub(super) log: VecDeque<StoreChange>,
    pub(super) window_floor: u64,
    /// The newest change that is no longer in the log.
    pub(super) dropped: u64,
    pub(super) last_change: u64,
    pub(super) changed: watch::Sender<u64>,
}

impl StoreTable {
    pub(super) fn live(&self, key: &str) -> Option<&Arc<VersionRecord>> {
        self.objects.get(key).and_then(|chain| chain.last()).filter(|r| !r.deleted)
    }
}

impl StoreInner {
    pub(super) fn now(&self) -> u64 {
        let now = || u64::try_from((self.clock.unix + self.clock.started.elapsed()).as_millis());
        self.replayed_at.unwrap_or_else(|| now().unwrap_or(u64::MAX))
    }

    /// The table of a resource. It is created at the first call.
    pub(super) fn table(&mut self, name: &str) -> TableId {
        if let Some(id) = self.by_name.get(name) {
            return *id;
        }
        let id = TableId(self.tables.len());
        self.by_name.insert(name.to_owned(), id);
        self.tables.push(StoreTable {
            name: name.to_owned(),
            objects: BTreeMap::new(),
            log: VecDeque::new(),
            window_floor: self.floor,
            dropped: 0,
            last_change: 0,
            changed: watch::Sender::new(0),
        });
        id
    }

    pub(super) fn append(&mut self, id: TableId, key: Arc<str>, record: &Arc<VersionRecord>) {
        let table = &mut self.tables[id.0];
        let previous = table.live(&key).cloned();
        let event = match (&previous, record.deleted) {
            (_, true) => StoreEvent::Deleted,
            (None, false) => StoreEvent::Added,
            (Some(_), false) => StoreEvent::Modified,
        };
        table.objects.entry(Arc::clone(&key)).or_default().push(Arc::clone(record));
        table.last_change = record.version;
        self.note_owners(id, &key, previous.as_deref(), record);
        self.tables[id.0].log.push_back(StoreChange { record: Arc::clone(record), previous });
        // A deletion shares its text with the previous version.
        let bytes = if record.deleted { 0 } else { record.tail.len() };
        self.written_bytes += bytes;
        self.written.push_back(WrittenVersion { version: record.version, table: id, key, bytes });
        if self.moments.back().is_none_or(|(at, _)| at.elapsed() >= AGE_STEP) {
            self.moments.push_back((Instant::now(), record.version));
        }
        self.note_truth(event, id, record);
    }

    fn note_owners(
        &mut self,
        id: TableId,
        key: &Arc<str>,
        previous: Option<&VersionRecord>,
        record: &VersionRecord,
    ) {
        let now: &[Arc<str>] = if record.deleted { &[] } else { &record.owners };
        let before: &[Arc<str>] = previous.map_or(&[], |p| &p.owners);
        if now == before {
            return;
        }
        for owner in before {
            if let Some(owned) = self.owned.get_mut(owner) {
                owned.remove(&(id, Arc::clone(key)));
                if owned.is_empty() {
                    self.owned.remove(owner);
                }
            }
        }
        for owner in now {
            self.owned.entry(Arc::clone(owner)).or_default().insert((id, Arc::clone(key)));
        }
    }

    pub(super) fn keep_limits(&mut self, limits: &HistoryLimits) {
        for table in &mut self.tables {
            if table.log.len() > limits.watch_window + limits.watch_window / SLACK {
                let excess = table.log.len() - limits.watch_window;
                if let Some(last) = table.log.drain(..excess).next_back() {
                    table.window_floor = last.record.version;
                    table.dropped = last.record.version;
                }
            }
        }
        let mut target = None;
        if self.written.len() > limits.versions + limits.versions / SLACK {
            target = self.written.get(self.written.len() - limits.versions).map(|w| w.version);
        }
        if self.written_bytes > limits.bytes + limits.bytes / SLACK {
            let mut excess = self.written_bytes - limits.bytes;
            let at = self.written.iter().find(|w| {
                let reached = w.bytes >= excess;
                excess = excess.saturating_sub(w.bytes);
                reached
            });
            target = target.max(at.map(|w| w.version));
        }
        if let Some(target) = target {
            self.compact(target, WindowPolicy::Forget);
        }
    }

    pub(super) fn resolve(&self, at: AsOf) -> Result<u64, TooOld> {
        match at {
            AsOf::Newest => Ok(self.version),
            AsOf::Cached(version) => Ok(version.max(self.kept)),
            AsOf::Exact(version) if version < self.floor => Err(TooOld { oldest: self.floor }),
            AsOf::Exact(version) => Ok(version),
        }
    }

    /// Makes versions below `target` unreadable. Each object keeps the version that it had at `target`.
    pub(super) fn compact(&mut self, target: u64, windows: WindowPolicy) {
        if target <= self.floor {
            return;
        }
        self.floor = target;
        self.note_floor();
        self.log_compact(target, windows);
        if windows == WindowPolicy::Forget {
            for table in &mut self.tables {
                let gone = table.log.partition_point(|c| c.record.version <= target);
                if let Some(last) = table.log.drain(..gone).next_back() {
                    table.dropped = last.record.version;
                }
                table.window_floor = table.window_floor.max(target);
            }
        }
        self.reclaim();
    }

    /// Frees what neither the history nor a server's cache needs.
    pub(super) fn reclaim(&mut self) {
        let target = self.pins.values().copied().min().unwrap_or(self.floor).min(self.floor);
        if target <= self.kept {
            return;
        }
        self.kept = target;
        let mut touched: BTreeSet<(TableId, Arc<str>)> = BTreeSet::new();
        while self.written.front().is_some_and(|w| w.version <= target) {
            if let Some(written) = self.written.pop_front() {
                self.written_bytes -= written.bytes;
                touched.insert((written.table, written.key));
            }
        }
        for (id, key) in touched {
            self.tables[id.0].trim(&key, target);
        }
    }
}

impl StoreTable {
    fn trim(&mut self, key: &str, floor: u64) {
        let Some(chain) = self.objects.get_mut(key) else { return };
        let held = chain.partition_point(|r| r.version <= floor);
        let keep_from = match held.checked_sub(1) {
            Some(at) if chain[at].deleted => held,
            Some(at) => at,
            None => 0,
        };
        chain.drain(..keep_from);
        chain.shrink_to(4);
        if chain.is_empty() {
            self.objects.remove(key);
        }
    }
}
