//! Caches the secrets that were found in states and objects. Concurrent queries share one search. Also caches documents
//! without their secrets.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bytes::Bytes;
use kubewitness_core::document::GenerationCache;
use tokio::sync::OwnedMutexGuard;

/// How many entries of each sort are cached. A status that quotes no secret takes some tens of bytes.
const KEPT: usize = 8192;
/// The secrets of objects may be long.
const KEPT_BYTES: usize = 32 << 20;

/// A longer document is not kept, and so not looked for.
const LONGEST_REDACTED: usize = 256 << 10;
/// The bytes of [`KnownRedactions`].
const REDACTED_BYTES: usize = 16 << 20;

/// Documents that were redacted lately, by their bytes. A plugin that reads changes reads each version twice: by itself,
/// and as the version before the next one. Rules and key are those of the owner, so equal bytes are shown alike.
pub(super) struct KnownRedactions {
    hashing: RandomState,
    /// The raw document, and what is shown of it.
    kept: Mutex<GenerationCache<u64, (Bytes, Bytes)>>,
}

impl Default for KnownRedactions {
    fn default() -> Self {
        let kept = Mutex::new(GenerationCache::with_bytes(REDACTED_BYTES));
        Self { hashing: RandomState::new(), kept }
    }
}

impl KnownRedactions {
    fn lock_cache(&self) -> MutexGuard<'_, GenerationCache<u64, (Bytes, Bytes)>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The whole document is compared: two with the same hash have different secrets.
    pub(super) fn find(&self, document: &Bytes) -> Option<Bytes> {
        if document.len() > LONGEST_REDACTED {
            return None;
        }
        let hash = self.hashing.hash_one(&document[..]);
        let found = self.lock_cache().get(&hash).cloned();
        found.filter(|(raw, _)| raw == document).map(|(_, shown)| shown)
    }

    pub(super) fn keep(&self, document: Bytes, shown: Bytes) {
        if document.len() > LONGEST_REDACTED {
            return;
        }
        let hash = self.hashing.hash_one(&document[..]);
        let bytes = document.len() + shown.len();
        self.lock_cache().insert(hash, (document, shown), bytes);
    }
}

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

    #[test]
    fn a_redacted_document_is_found_by_its_exact_bytes_alone() {
        let known = KnownRedactions::default();
        let [raw, shown, other] = [&b"{\"a\":1}"[..], b"{}", b"{\"a\":2}"].map(Bytes::from_static);
        known.keep(raw.clone(), shown.clone());
        assert_eq!((known.find(&raw), known.find(&other)), (Some(shown.clone()), None));
        // As if both had one hash.
        let hash = known.hashing.hash_one(&other[..]);
        known.lock_cache().insert(hash, (raw, shown), 8);
        assert_eq!(known.find(&other), None);
    }

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
