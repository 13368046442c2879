//! Every version of every object, under one counter.
//!
//! A table per resource holds a chain of versions per object (for lists at any version that is not
//! compacted) and a log of changes (the watch window, which can be shorter). Knows nothing of requests,
//! kinds or rights; objects are opaque tails of text.

mod inner;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::watch;

use inner::{Inner, Table};

use super::locked;
use super::record::{Draft, Record};

/// How much history is kept. What exceeds any of these is compacted.
#[derive(Debug, Clone)]
pub struct HistoryLimits {
    pub versions: usize,
    pub bytes: usize,
    /// None keeps versions of any age.
    pub age: Option<Duration>,
    /// Changes of one resource that a watch can still start from.
    pub watch_window: usize,
}

impl Default for HistoryLimits {
    fn default() -> Self {
        HistoryLimits {
            versions: 500_000,
            bytes: 512 << 20,
            // What a real cluster keeps.
            age: Some(Duration::from_secs(300)),
            watch_window: 102_400,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    Added,
    Modified,
    Deleted,
}

impl Event {
    pub fn as_str(self) -> &'static str {
        match self {
            Event::Added => "ADDED",
            Event::Modified => "MODIFIED",
            Event::Deleted => "DELETED",
        }
    }
}

/// A version together with what it replaced.
#[derive(Debug, Clone)]
pub struct Change {
    pub record: Arc<Record>,
    pub previous: Option<Arc<Record>>,
}

/// What happened, kept apart from the history so that compaction does not change it.
#[derive(Debug, Clone)]
pub struct Truth {
    pub event: Event,
    pub version: u64,
    pub table: TableId,
    pub namespace: Arc<str>,
    pub name: Arc<str>,
    pub uid: Arc<str>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TableId(usize);

/// Another write came first: read again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Raced;

/// The version asked for is below what is kept; `oldest` can still be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooOld {
    pub oldest: u64,
}

/// A page of objects.
#[derive(Debug)]
pub struct Page {
    pub version: u64,
    pub items: Vec<Arc<Record>>,
    /// The key of the last item, if more follow.
    pub last: Option<String>,
    pub remaining: u64,
}

/// What a page is to hold.
pub struct PageRequest<'a> {
    /// `namespace/`, or nothing for all.
    pub prefix: &'a str,
    /// Keys up to and with this one were on earlier pages.
    pub after: Option<&'a str>,
    /// None is the newest version.
    pub at: Option<u64>,
    pub limit: Option<usize>,
    pub matches: &'a dyn Fn(&Record) -> bool,
}

/// Changes for a watch, and the version up to which there are no others.
#[derive(Debug)]
pub struct Batch {
    pub changes: Vec<Change>,
    pub upto: u64,
    /// Changes that wait behind this batch.
    pub behind: usize,
}

pub struct Store {
    inner: Mutex<Inner>,
    limits: HistoryLimits,
    version: watch::Sender<u64>,
}

impl Store {
    pub fn new(limits: HistoryLimits, keep_truth: bool) -> Self {
        Store {
            inner: Mutex::new(Inner { truth: keep_truth.then(VecDeque::new), ..Inner::default() }),
            limits,
            version: watch::Sender::new(0),
        }
    }

    /// The table of a resource, made when it is first asked for.
    pub fn table(&self, name: &str) -> TableId {
        let mut inner = locked(&self.inner);
        if let Some(id) = inner.by_name.get(name) {
            return *id;
        }
        let id = TableId(inner.tables.len());
        inner.by_name.insert(name.to_owned(), id);
        let floor = inner.floor;
        inner.tables.push(Table {
            name: name.to_owned(),
            objects: BTreeMap::new(),
            log: VecDeque::new(),
            window_floor: floor,
            last_change: 0,
            changed: watch::Sender::new(0),
        });
        id
    }

    pub fn version(&self) -> u64 {
        locked(&self.inner).version
    }

    /// Tells of every new version of the store.
    pub fn versions(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    /// Tells of every change of one table.
    pub fn changes(&self, table: TableId) -> watch::Receiver<u64> {
        locked(&self.inner).tables[table.0].changed.subscribe()
    }

    /// The version of the last change of the table.
    pub fn last_change(&self, table: TableId) -> u64 {
        locked(&self.inner).tables[table.0].last_change
    }

    pub fn get(&self, table: TableId, key: &str) -> Option<Arc<Record>> {
        locked(&self.inner).tables[table.0].live(key).cloned()
    }

    /// Writes a version if the object is still at `expected` (None: does not exist).
    pub fn put(&self, table: TableId, draft: Draft, expected: Option<u64>) -> Result<Arc<Record>, Raced> {
        let mut inner = locked(&self.inner);
        let key = draft.key();
        if inner.tables[table.0].live(&key).map(|r| r.version) != expected {
            return Err(Raced);
        }
        inner.version += 1;
        let record = Arc::new(Record { version: inner.version, deleted: false, draft });
        inner.append(table, key.into(), &record);
        self.settle(&mut inner, &[table]);
        Ok(record)
    }

    /// Deletes the object if it is still at `expected`; the deletion has a version of its own.
    pub fn remove(&self, table: TableId, key: &str, expected: u64) -> Result<Arc<Record>, Raced> {
        let mut inner = locked(&self.inner);
        let draft = match inner.tables[table.0].live(key) {
            Some(live) if live.version == expected => live.draft.clone(),
            _ => return Err(Raced),
        };
        inner.version += 1;
        let record = Arc::new(Record { version: inner.version, deleted: true, draft });
        inner.append(table, key.into(), &record);
        self.settle(&mut inner, &[table]);
        Ok(record)
    }

    /// Deletes several objects at one version, as an expired lease does. Returns how many there were.
    pub fn remove_together(&self, table: TableId, keys: &[String]) -> usize {
        let mut inner = locked(&self.inner);
        let drafts: Vec<(Arc<str>, Draft)> = keys
            .iter()
            .filter_map(|key| Some((key.as_str().into(), inner.tables[table.0].live(key)?.draft.clone())))
            .collect();
        if drafts.is_empty() {
            return 0;
        }
        inner.version += 1;
        let (version, count) = (inner.version, drafts.len());
        for (key, draft) in drafts {
            let record = Arc::new(Record { version, deleted: true, draft });
            inner.append(table, key, &record);
        }
        self.settle(&mut inner, &[table]);
        count
    }

    /// Keeps the limits and wakes those who wait.
    fn settle(&self, inner: &mut Inner, tables: &[TableId]) {
        let version = inner.version;
        inner.keep_limits(&self.limits);
        for table in tables {
            inner.tables[table.0].changed.send_replace(version);
        }
        self.version.send_replace(version);
    }

    /// Objects as they are, or were at a version that is still kept.
    pub fn page(&self, table: TableId, request: &PageRequest<'_>) -> Result<Page, TooOld> {
        let inner = locked(&self.inner);
        let version = request.at.unwrap_or(inner.version);
        if version < inner.floor {
            return Err(TooOld { oldest: inner.floor });
        }
        let objects = &inner.tables[table.0].objects;
        let from = match request.after {
            Some(after) => std::ops::Bound::Excluded(after),
            None => std::ops::Bound::Included(request.prefix),
        };
        let mut page = Page { version, items: Vec::new(), last: None, remaining: 0 };
        for (key, chain) in objects.range::<str, _>((from, std::ops::Bound::Unbounded)) {
            if !key.starts_with(request.prefix) {
                break;
            }
            let at = chain.iter().rev().find(|r| r.version <= version);
            let Some(record) = at.filter(|r| !r.deleted && (request.matches)(r)) else { continue };
            if request.limit.is_some_and(|limit| page.items.len() >= limit) {
                page.remaining += 1;
                continue;
            }
            page.items.push(Arc::clone(record));
        }
        if page.remaining > 0 {
            page.last = page.items.last().map(|r| r.key());
        }
        Ok(page)
    }

    /// One object as it was at a version that is still kept.
    pub fn get_at(&self, table: TableId, key: &str, at: u64) -> Result<Option<Arc<Record>>, TooOld> {
        let inner = locked(&self.inner);
        if at < inner.floor {
            return Err(TooOld { oldest: inner.floor });
        }
        let chain = inner.tables[table.0].objects.get(key);
        let record = chain.and_then(|chain| chain.iter().rev().find(|r| r.version <= at));
        Ok(record.filter(|r| !r.deleted).cloned())
    }

    /// What changed after a version, oldest first, at least `max` changes if there are as many; changes of
    /// one version are never split.
    pub fn changes_after(&self, table: TableId, after: u64, max: usize) -> Result<Batch, TooOld> {
        let inner = locked(&self.inner);
        let table = &inner.tables[table.0];
        let oldest = inner.floor.max(table.window_floor);
        if after < oldest {
            return Err(TooOld { oldest });
        }
        let start = table.log.partition_point(|c| c.record.version <= after);
        let mut end = (start + max).min(table.log.len());
        while end > start
            && table.log.get(end).is_some_and(|c| c.record.version == table.log[end - 1].record.version)
        {
            end += 1;
        }
        let changes: Vec<Change> = table.log.range(start..end).cloned().collect();
        let behind = table.log.len() - end;
        let upto = match changes.last() {
            Some(last) if behind > 0 => last.record.version,
            _ => inner.version,
        };
        Ok(Batch { changes, upto, behind })
    }

    /// What an object owns.
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

    /// The tables that hold something of the namespace.
    pub fn in_namespace(&self, namespace: &str) -> Vec<(TableId, Vec<Arc<Record>>)> {
        let prefix = format!("{namespace}/");
        let inner = locked(&self.inner);
        let mut found = Vec::new();
        for (at, table) in inner.tables.iter().enumerate() {
            let live: Vec<Arc<Record>> = table
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

    /// Forgets what was before a version; None is now. Returns the new floor.
    pub fn compact(&self, version: Option<u64>) -> u64 {
        let mut inner = locked(&self.inner);
        let target = version.unwrap_or(inner.version).min(inner.version);
        inner.compact(target);
        inner.floor
    }

    /// Compacts what is too old. To be called now and then.
    pub fn compact_by_age(&self) {
        let Some(age) = self.limits.age else { return };
        let mut inner = locked(&self.inner);
        let mut target = None;
        while inner.moments.front().is_some_and(|(at, _)| at.elapsed() > age) {
            target = inner.moments.pop_front().map(|(_, version)| version);
        }
        if let Some(target) = target {
            inner.compact(target);
        }
    }

    /// Empties the watch windows, as a restart of a server does; lists at old versions still work.
    pub fn forget_watch_window(&self) {
        let mut inner = locked(&self.inner);
        let version = inner.version;
        for table in &mut inner.tables {
            table.log.clear();
            table.window_floor = version;
        }
    }

    /// What happened to a resource (or to all), and how many older entries were dropped.
    pub fn truth(&self, table: Option<TableId>) -> (Vec<Truth>, u64) {
        let inner = locked(&self.inner);
        let entries = inner.truth.iter().flatten().filter(|t| table.is_none_or(|id| id == t.table));
        (entries.cloned().collect(), inner.truth_dropped)
    }
}
