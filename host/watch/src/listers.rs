//! The lister: reads over the caches of all sources.

use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use kubewitness_core::ports::{Current, Lister};
use kubewitness_core::state::ObjectRef;

use crate::cache::Cache;
use crate::handle::SourceHandle;

/// Owners above this many levels are not looked for; real chains have three.
const OWNER_DEPTH: usize = 8;

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
    use crate::handle::Shared;
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
