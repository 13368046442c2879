//! Caches the secrets that were found in states and objects. Concurrent queries share one search.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::OwnedMutexGuard;

/// How many entries of each sort are cached. A status that quotes no secret takes some tens of bytes.
const KEPT: usize = 8192;
/// The secrets of objects may be long.
const KEPT_BYTES: usize = 32 << 20;

/// A cache of what is shown of states. A state never changes, so neither does the result.
pub(super) struct CachedDocument<K, T>(Arc<Mutex<RedactionCache<K, T>>>);

struct RedactionCache<K, T> {
    found: HashMap<K, T>,
    /// The size of the results.
    bytes: usize,
    /// Searches in progress.
    asked: HashMap<K, Weak<tokio::sync::Mutex<()>>>,
}

/// Its holder runs the search; the others wait for the result.
pub(super) type LookupLock = OwnedMutexGuard<()>;

impl<K, T> Default for CachedDocument<K, T> {
    fn default() -> Self {
        let table = RedactionCache { found: HashMap::new(), bytes: 0, asked: HashMap::new() };
        Self(Arc::new(Mutex::new(table)))
    }
}

impl<K, T> Clone for CachedDocument<K, T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<K: Clone + Eq + Hash, T: Clone> CachedDocument<K, T> {
    pub(super) fn get(&self, key: &K) -> Option<T> {
        self.lock_cache().found.get(key).cloned()
    }

    /// Waits while another caller searches. The result is cached afterwards.
    pub(super) async fn look_up(&self, key: &K) -> LookupLock {
        let slot = {
            let asked = &mut self.lock_cache().asked;
            let known = asked.get(key).and_then(Weak::upgrade);
            known.unwrap_or_else(|| {
                asked.retain(|_, slot| slot.strong_count() > 0);
                let slot = Arc::default();
                asked.insert(key.clone(), Arc::downgrade(&slot));
                slot
            })
        };
        slot.lock_owned().await
    }

    pub(super) fn keep_found(&self, key: K, found: T, bytes: usize) {
        let mut table = self.lock_cache();
        if table.found.len() >= KEPT || table.bytes.saturating_add(bytes) > KEPT_BYTES {
            table.found.clear();
            table.bytes = 0;
        }
        if bytes <= KEPT_BYTES {
            table.bytes += bytes;
            table.found.insert(key, found);
        }
    }

    fn lock_cache(&self) -> MutexGuard<'_, RedactionCache<K, T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_many_ask_for_is_found_out_once_and_what_is_kept_has_a_bound() {
        let kept: CachedDocument<u64, u64> = CachedDocument::default();
        let mut asked = 0;
        for _ in 0..3 {
            let _asking = kept.look_up(&1).await;
            if kept.get(&1).is_none() {
                asked += 1;
                kept.keep_found(1, 7, 8);
            }
        }
        assert_eq!((asked, kept.get(&1)), (1, Some(7)));
        let first = kept.look_up(&2).await;
        assert!(futures::FutureExt::now_or_never(kept.look_up(&2)).is_none(), "somebody asks already");
        assert!(futures::FutureExt::now_or_never(kept.look_up(&3)).is_some());
        drop(first);
        kept.keep_found(4, 0, KEPT_BYTES + 1);
        assert_eq!(kept.get(&4), None);
        kept.keep_found(5, 5, KEPT_BYTES);
        assert_eq!((kept.get(&1), kept.get(&5)), (None, Some(5)));
        kept.look_up(&6).await;
        kept.look_up(&7).await;
        assert!(kept.lock_cache().asked.len() <= 1, "what nobody asks for is forgotten");
    }
}
