//! What others may see of a running source, and the lister over all of them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use kubewitness_core::ports::{Current, Lister};
use kubewitness_core::state::ObjectRef;
use kubewitness_core::views::SourceCounts;

use crate::cache::Cache;

/// Owners above this many levels are not looked for; real chains have three.
const OWNER_DEPTH: usize = 8;

/// A source as it is at this moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceSnapshot {
    pub name: String,
    pub objects: usize,
    /// The version from which a watch would be resumed; empty before the first list.
    pub checkpoint: String,
    pub epoch: u32,
    /// The cache shows what the server has, but for what is on its way.
    pub synced: bool,
    pub last_event_ms: Option<u64>,
    /// What keeps the source from watching, for people; `None` while all is well.
    pub condition: Option<String>,
    /// Why nothing is taken in although the server would send: the journal can't be written now.
    pub stalled: Option<String>,
    pub counts: SourceCounts,
    /// What this server can't do, for people; `None` where it can do all.
    pub limitation: Option<String>,
    /// Objects whose missed versions are being read back now.
    pub walking: usize,
    pub last_audit_ms: Option<u64>,
}

macro_rules! counters {
    ($($field:ident),*) => {
        #[derive(Default)]
        pub(crate) struct Counters { $(pub $field: AtomicU64),* }
        impl Counters {
            fn read(&self) -> SourceCounts {
                SourceCounts { $($field: self.$field.load(Ordering::Relaxed)),* }
            }
        }
    };
}
counters!(
    frames,
    bytes,
    present,
    gone,
    left,
    bookmarks,
    poison,
    duplicates,
    stale,
    gaps,
    watches,
    lists_first,
    lists_expired,
    lists_replaced,
    lists_audit,
    lists_streamed,
    expired,
    epochs,
    discrepancies,
    walk_back_requests,
    walked_back,
    discarded_bytes,
    decode_ns
);

pub(crate) fn count(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}

#[derive(Default)]
pub(crate) struct Live {
    pub checkpoint: String,
    pub epoch: u32,
    pub synced: bool,
    pub last_event_ms: Option<u64>,
    pub condition: Option<String>,
    pub stalled: Option<String>,
    pub limitation: Option<String>,
    pub walking: usize,
    pub last_audit_ms: Option<u64>,
}

/// Shared by the source that writes it and the handles that read it. A panicking reader can't
/// leave it half-written, so a poisoned lock is taken as it is.
pub(crate) struct Shared {
    pub name: Arc<str>,
    cache: RwLock<Cache>,
    live: Mutex<Live>,
    pub counters: Counters,
}

impl Shared {
    pub fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            cache: RwLock::default(),
            live: Mutex::default(),
            counters: Counters::default(),
        }
    }

    pub fn read(&self) -> RwLockReadGuard<'_, Cache> {
        self.cache.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn write(&self) -> RwLockWriteGuard<'_, Cache> {
        self.cache.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn live(&self) -> MutexGuard<'_, Live> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says it once: the same condition again is no news.
    pub fn set_condition(&self, condition: Option<String>) {
        let mut live = self.live();
        if live.condition == condition {
            return;
        }
        match &condition {
            Some(condition) => tracing::warn!(source = %self.name, "{condition}"),
            None => tracing::info!(source = %self.name, "watching again"),
        }
        live.condition = condition;
    }
}

/// A view of one source; cheap to clone.
#[derive(Clone)]
pub struct SourceHandle {
    pub(crate) shared: Arc<Shared>,
}

impl SourceHandle {
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    pub fn view(&self) -> SourceSnapshot {
        let objects = self.shared.read().len();
        let live = self.shared.live();
        SourceSnapshot {
            name: self.shared.name.to_string(),
            objects,
            checkpoint: live.checkpoint.clone(),
            epoch: live.epoch,
            synced: live.synced,
            last_event_ms: live.last_event_ms,
            condition: live.condition.clone(),
            stalled: live.stalled.clone(),
            limitation: live.limitation.clone(),
            walking: live.walking,
            last_audit_ms: live.last_audit_ms,
            counts: self.shared.counters.read(),
        }
    }
}

/// Reads over the caches of all sources.
#[derive(Clone, Default)]
pub struct Listers {
    sources: Arc<RwLock<Vec<SourceHandle>>>,
}

impl Listers {
    /// Takes the place of a source with the same name.
    pub fn add(&self, handle: SourceHandle) {
        let mut sources = self.sources.write().unwrap_or_else(PoisonError::into_inner);
        sources.retain(|held| held.name() != handle.name());
        sources.push(handle);
    }

    pub fn remove(&self, name: &str) {
        self.sources.write().unwrap_or_else(PoisonError::into_inner).retain(|held| held.name() != name);
    }

    pub fn handles(&self) -> Vec<SourceHandle> {
        self.read().clone()
    }

    /// The object with this uid, in whichever source it is.
    pub fn by_uid(&self, uid: &str) -> Option<Current> {
        self.read().iter().find_map(|handle| handle.shared.read().by_uid(uid).cloned())
    }

    /// From a controlling owner upward to the outermost one that is known.
    pub(crate) fn outermost(&self, direct: ObjectRef) -> Arc<ObjectRef> {
        let mut owner = Arc::new(direct);
        for _ in 0..OWNER_DEPTH {
            let Some(held) = self.by_uid(&owner.uid) else { break };
            // The cached reference is complete, and sharing it costs nothing.
            owner = held.object;
            match held.owner {
                Some(above) if above.uid != owner.uid => owner = above,
                _ => break,
            }
        }
        owner
    }

    fn read(&self) -> RwLockReadGuard<'_, Vec<SourceHandle>> {
        self.sources.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T: Default>(&self, source: &str, read: impl FnOnce(&Cache) -> T) -> T {
        let handle = self.read().iter().find(|handle| handle.name() == source).cloned();
        handle.map(|handle| read(&handle.shared.read())).unwrap_or_default()
    }
}

impl Lister for Listers {
    fn get(&self, source: &str, namespace: &str, name: &str) -> Option<Current> {
        self.with(source, |cache| cache.by_name(namespace, name).cloned())
    }

    fn list(&self, source: &str, index: &str, key: &str, limit: usize) -> Vec<Current> {
        self.with(source, |cache| cache.list(index, key, limit))
    }

    fn count(&self, source: &str) -> usize {
        self.with(source, Cache::len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kubewitness_core::Version;

    fn object(kind: &str, uid: &str) -> ObjectRef {
        ObjectRef { kind: kind.into(), name: uid.into(), uid: uid.into(), ..ObjectRef::default() }
    }

    fn source(name: &str, held: &[(&str, &str, Option<&str>)]) -> SourceHandle {
        let shared = Arc::new(Shared::new(name));
        for (kind, uid, owner) in held {
            shared.write().put(Current {
                object: Arc::new(object(kind, uid)),
                owner: owner.map(|owner| Arc::new(object("", owner))),
                resource_version: Version::new("1"),
                status: Arc::default(),
                seq: 1,
                observed_ms: 0,
                packed: Arc::from(&b""[..]),
            });
        }
        SourceHandle { shared }
    }

    #[test]
    fn the_outermost_owner_is_found_across_sources() {
        let listers = Listers::default();
        listers.add(source("jobs", &[("Job", "j1", Some("s1"))]));
        listers.add(source("jobsets", &[("JobSet", "s1", None)]));
        assert_eq!(listers.outermost(object("Job", "j1")).kind, "JobSet");
        assert_eq!(listers.outermost(object("Job", "unknown")).uid, "unknown");
    }

    #[test]
    fn owners_in_a_circle_end() {
        let listers = Listers::default();
        listers
            .add(source("a", &[("A", "a1", Some("b1")), ("B", "b1", Some("a1")), ("C", "c1", Some("c1"))]));
        assert!(["a1", "b1"].contains(&listers.outermost(object("A", "a1")).uid.as_str()));
        assert_eq!(listers.outermost(object("C", "c1")).uid, "c1");
    }

    #[test]
    fn a_source_added_again_takes_the_place_of_the_old_one() {
        let listers = Listers::default();
        listers.add(source("jobs", &[("Job", "j1", None)]));
        listers.add(source("jobs", &[]));
        assert_eq!((listers.handles().len(), listers.count("jobs")), (1, 0));
        listers.remove("jobs");
        assert!(listers.handles().is_empty());
    }
}
