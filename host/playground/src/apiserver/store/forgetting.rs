//! Forgetting: compaction of the history, watch windows that empty, and versions that are held nevertheless.

use super::Store;
use crate::apiserver::values::lock::locked;

/// Whether the watch windows forget what is compacted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Windows {
    Forget,
    /// A watch can still start from versions that no list can show any more.
    Keep,
}

impl Store {
    /// Forgets what was before a version; None is now. Returns the new floor.
    pub fn compact(&self, version: Option<u64>, windows: Windows) -> u64 {
        let mut inner = locked(&self.inner);
        let target = version.unwrap_or(inner.version).min(inner.version);
        inner.compact(target, windows);
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
            inner.compact(target, Windows::Forget);
        }
    }

    /// Keeps the objects as they were at a version for a server's cache, however much is compacted; None lets
    /// go. What was given up before cannot be held any more: returns the version that is.
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
