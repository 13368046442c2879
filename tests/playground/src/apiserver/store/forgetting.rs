//! Forgets versions: compaction of the history, emptied watch windows, and pinned versions.

use super::ObjectStore;
use crate::apiserver::values::lock::locked;

/// Whether the watch windows also forget compacted versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WindowPolicy {
    Forget,
    /// A watch can still start from versions that no list shows any more.
    Keep,
}

impl ObjectStore {
    /// Compacts the history before a version (`None`: now). Returns the new floor.
    pub fn compact(&self, version: Option<u64>, windows: WindowPolicy) -> u64 {
        let mut inner = locked(&self.inner);
        let target = version.unwrap_or(inner.version).min(inner.version);
        inner.compact(target, windows);
        inner.floor
    }

    /// Compacts old versions. Called periodically.
    pub fn compact_by_age(&self) {
        let Some(age) = self.limits.age else { return };
        let mut inner = locked(&self.inner);
        let mut target = None;
        while inner.moments.front().is_some_and(|(at, _)| at.elapsed() > age) {
            target = inner.moments.pop_front().map(|(_, version)| version);
        }
        if let Some(target) = target {
            inner.compact(target, WindowPolicy::Forget);
        }
    }

    /// Pins the objects at a version for a server's cache, so that compaction keeps them; `None` releases
    /// them. A compacted version can't be pinned. Returns the pinned version.
    pub fn pin(&self, server: usize, version: Option<u64>) -> Option<u64> {
        let mut inner = locked(&self.inner);
        match version {
            None => drop(inner.pins.remove(&server)),
            Some(version) => {
                let version = version.clamp(inner.kept, inner.version);
                inner.pins.insert(server, version);
            }
        }
        inner.reclaim();
        inner.pins.get(&server).copied()
    }
}
