//! A cache of documents with a bound in bytes: what was not added lately is dropped.
//!
//! An order of use would cost each look-up a write. Here entries are young or old, and once the young ones have half of
//! the bytes, they become the old ones, and those are dropped. It has no lock and no clock.

use std::collections::HashMap;
use std::hash::Hash;

/// A larger part of a half would displace too many others.
const LARGEST: usize = 16;
/// The bytes of an entry beside those that its owner counts.
const ENTRY_BYTES: usize = 96;

#[derive(Debug)]
pub struct GenerationCache<K, V> {
    young: HashMap<K, V>,
    old: HashMap<K, V>,
    young_bytes: usize,
    /// The bytes of one generation.
    most_bytes: usize,
}

impl<K: Eq + Hash, V> GenerationCache<K, V> {
    /// A cache of at most so many bytes.
    pub fn with_bytes(bytes: usize) -> Self {
        Self { young: HashMap::new(), old: HashMap::new(), young_bytes: 0, most_bytes: bytes / 2 }
    }

    pub fn get(&self, key: &K) -> Option<&V> {
        self.young.get(key).or_else(|| self.old.get(key))
    }

    /// Adds an entry of so many bytes, unless it is too large.
    pub fn insert(&mut self, key: K, value: V, bytes: usize) {
        let bytes = bytes.saturating_add(ENTRY_BYTES);
        if bytes > self.most_bytes / LARGEST {
            return;
        }
        if self.young_bytes + bytes > self.most_bytes {
            self.old = std::mem::take(&mut self.young);
            self.young_bytes = 0;
        }
        self.young_bytes += bytes;
        self.young.insert(key, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_entries_are_found_within_the_bound_in_bytes() {
        let mut cache = GenerationCache::with_bytes(64 << 10);
        for number in 0..1000 {
            cache.insert(number, number, 928);
            assert_eq!(cache.get(&number), Some(&number));
        }
        let found = (0..1000).filter(|number| cache.get(number).is_some()).count();
        assert!((32..=64).contains(&found), "{found} entries of 1 KiB");
        cache.insert(1000, 7, 4 << 10);
        assert_eq!((cache.get(&1000), cache.get(&999)), (None, Some(&999)), "it would displace too many");
    }
}
