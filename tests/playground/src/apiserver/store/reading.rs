//! Reads the store: pages of objects at any remaining version, single objects, and the changes since a
//! version.

use std::sync::Arc;

use super::{ObjectStore, StoreChange, TableId, TooOld};
use crate::apiserver::store::record::VersionRecord;
use crate::apiserver::values::lock::locked;

/// The version that a read sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AsOf {
    Newest,
    /// A version of the history, which may be compacted.
    Exact(u64),
    /// A version in a server's cache, even if it was compacted. It is pinned, see [`ObjectStore::pin`].
    Cached(u64),
}

/// The changes that one server's watch cache holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheWindow {
    /// Changes up to and including this version were forgotten.
    pub since: u64,
    /// Changes after this version have not arrived yet.
    pub upto: u64,
}

#[cfg(test)]
impl CacheWindow {
    pub const ALL: CacheWindow = CacheWindow { since: 0, upto: u64::MAX };
}

/// A page of objects.
#[derive(Debug)]
pub struct ObjectPage {
    pub version: u64,
    pub items: Vec<Arc<VersionRecord>>,
    /// The key of the last item, if more follow.
    pub last: Option<String>,
    pub remaining: u64,
}

/// The objects that a page should hold.
pub struct PageRequest<'a> {
    /// `namespace/`, or empty for all.
    pub prefix: &'a str,
    /// Keys up to and including this one were on earlier pages.
    pub after: Option<&'a str>,
    /// Only objects with this name, in any namespace.
    pub name: Option<&'a str>,
    pub at: AsOf,
    pub limit: Option<usize>,
    pub matches: &'a dyn Fn(&VersionRecord) -> bool,
}

impl PageRequest<'static> {
    /// Everything that exists now.
    pub fn everything() -> Self {
        PageRequest { prefix: "", after: None, name: None, at: AsOf::Newest, limit: None, matches: &|_| true }
    }
}

/// Changes for a watch, and the version up to which no others exist.
#[derive(Debug)]
pub struct ChangeBatch {
    pub changes: Vec<StoreChange>,
    pub upto: u64,
    /// The number of changes after this batch.
    pub behind: usize,
}

impl ObjectStore {
    pub fn get(&self, table: TableId, key: &str) -> Option<Arc<VersionRecord>> {
        locked(&self.inner).tables[table.0].live(key).cloned()
    }

    /// Objects as they are, or as they were at a remaining version.
    pub fn page(&self, table: TableId, request: &PageRequest<'_>) -> Result<ObjectPage, TooOld> {
        let inner = locked(&self.inner);
        let version = inner.resolve(request.at)?;
        let objects = &inner.tables[table.0].objects;
        let from = match request.after {
            Some(after) => std::ops::Bound::Excluded(after),
            None => std::ops::Bound::Included(request.prefix),
        };
        let mut page = ObjectPage { version, items: Vec::new(), last: None, remaining: 0 };
        for (key, chain) in objects.range::<str, _>((from, std::ops::Bound::Unbounded)) {
            if !key.starts_with(request.prefix) {
                break;
            }
            if request.name.is_some_and(|name| !is_named(key, name)) {
                continue;
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

    /// One object as it was at a remaining version.
    pub fn get_at(
        &self,
        table: TableId,
        key: &str,
        at: AsOf,
    ) -> Result<(u64, Option<Arc<VersionRecord>>), TooOld> {
        let inner = locked(&self.inner);
        let version = inner.resolve(at)?;
        let chain = inner.tables[table.0].objects.get(key);
        let record = chain.and_then(|chain| chain.iter().rev().find(|r| r.version <= version));
        Ok((version, record.filter(|r| !r.deleted).cloned()))
    }

    /// Whether every change after a version still exists. An open watch that has everything up to it
    /// continues, even if changes of other objects are forgotten.
    pub fn has_all_since(&self, table: TableId, version: u64) -> bool {
        locked(&self.inner).tables[table.0].dropped <= version
    }

    /// The changes after a version, oldest first. Returns at least `max` changes if they exist; changes of
    /// one version are never split.
    pub fn changes_after(
        &self,
        table: TableId,
        after: u64,
        max: usize,
        window: CacheWindow,
    ) -> Result<ChangeBatch, TooOld> {
        let inner = locked(&self.inner);
        let table = &inner.tables[table.0];
        let oldest = window.since.max(table.window_floor);
        if after < oldest {
            return Err(TooOld { oldest });
        }
        let start = table.log.partition_point(|c| c.record.version <= after);
        let arrived = table.log.partition_point(|c| c.record.version <= window.upto).max(start);
        let mut end = (start + max).min(arrived);
        while end > start
            && end < arrived
            && table.log[end].record.version == table.log[end - 1].record.version
        {
            end += 1;
        }
        let changes: Vec<StoreChange> = table.log.range(start..end).cloned().collect();
        let behind = arrived - end;
        let upto = match changes.last() {
            Some(last) if behind > 0 => last.record.version,
            _ => inner.version.min(window.upto),
        };
        Ok(ChangeBatch { changes, upto, behind })
    }
}

fn is_named(key: &str, name: &str) -> bool {
    key.strip_suffix(name).is_some_and(|before| before.is_empty() || before.ends_with('/'))
}
