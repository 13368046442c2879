//! `kv`: small durable state of one plugin. A call writes into an overlay. A commit applies the overlay and returns
//! the writes, and the dispatcher stores them with the plugin's progress.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kubewitness_core::limits::KV_BYTES;
use kubewitness_core::ports::{GrantError, KvWrite};

/// Keys are looked up and listed; longer ones are values in the wrong place.
const KEY_BYTES: usize = 512;
/// Keys that one listing may return.
const LIST_KEYS: usize = 10_000;

type Entries = BTreeMap<String, Vec<u8>>;

/// What one plugin has stored, shared by its calls.
#[derive(Clone, Debug, Default)]
pub struct Kv(Arc<Mutex<Entries>>);

impl Kv {
    pub fn new(entries: Vec<(String, Vec<u8>)>) -> Self {
        Self(Arc::new(Mutex::new(entries.into_iter().collect())))
    }

    pub fn open(&self) -> Overlay {
        Overlay { base: self.clone(), writes: BTreeMap::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        // Every change under this lock is one insert or remove: whole after any panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The view of one call: what is stored, and over it what this call wrote.
#[derive(Debug)]
pub struct Overlay {
    base: Kv,
    writes: BTreeMap<String, Option<Vec<u8>>>,
}

impl Overlay {
    pub fn get(&self, key: &str) -> Option<Vec<u8>> {
        match self.writes.get(key) {
            Some(written) => written.clone(),
            None => self.base.lock().get(key).cloned(),
        }
    }

    pub fn set(&mut self, key: &str, value: Vec<u8>) -> Result<(), GrantError> {
        if key.is_empty() || key.len() > KEY_BYTES || key.contains('\0') {
            return Err(GrantError::Invalid(format!("a key has 1 to {KEY_BYTES} bytes and no NUL")));
        }
        let before = self.writes.insert(key.to_owned(), Some(value));
        let fits = self.fits();
        if fits.is_err() {
            match before {
                Some(before) => self.writes.insert(key.to_owned(), before),
                None => self.writes.remove(key),
            };
        }
        fits
    }

    pub fn delete(&mut self, key: &str) {
        self.writes.insert(key.to_owned(), None);
    }

    /// Keys with this prefix, in order.
    pub fn keys(&self, prefix: &str, limit: usize) -> Vec<String> {
        let mut keys: BTreeMap<String, bool> = BTreeMap::new();
        let starts = |key: &&String| key.starts_with(prefix);
        keys.extend(self.base.lock().keys().filter(starts).map(|key| (key.clone(), true)));
        let written = self.writes.iter().filter(|(key, _)| key.starts_with(prefix));
        keys.extend(written.map(|(key, value)| (key.clone(), value.is_some())));
        keys.into_iter().filter(|(_, there)| *there).map(|(key, _)| key).take(limit.min(LIST_KEYS)).collect()
    }

    /// Whether what is stored stays within its bound with these writes.
    pub fn fits(&self) -> Result<(), GrantError> {
        let base = self.base.lock();
        let stored = base.iter().filter(|(key, _)| !self.writes.contains_key(*key));
        let written = self.writes.iter().filter_map(|(key, value)| Some((key, value.as_ref()?)));
        let bytes: usize = stored.chain(written).map(|(key, value)| key.len() + value.len()).sum();
        if bytes > KV_BYTES {
            return Err(GrantError::TooLarge(format!("kv would hold {bytes} bytes, the most is {KV_BYTES}")));
        }
        Ok(())
    }

    /// Applies the writes for the calls that follow.
    pub fn commit(self) -> Vec<KvWrite> {
        let mut base = self.base.lock();
        let apply = |(key, value): (String, Option<Vec<u8>>)| {
            match &value {
                Some(value) => base.insert(key.clone(), value.clone()),
                None => base.remove(&key),
            };
            KvWrite { key, value }
        };
        self.writes.into_iter().map(apply).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_sees_its_own_writes_and_others_see_them_after_the_commit() {
        let kv = Kv::new(vec![("a".into(), b"1".to_vec()), ("b".into(), b"2".to_vec())]);
        let mut call = kv.open();
        call.set("c", b"3".to_vec()).unwrap();
        call.delete("a");
        assert_eq!(call.get("a"), None);
        assert_eq!(call.keys("", 10), ["b", "c"]);
        assert_eq!(kv.open().keys("", 10), ["a", "b"]);
        let writes = call.commit();
        assert_eq!(writes.len(), 2);
        assert_eq!(kv.open().keys("", 10), ["b", "c"]);
    }

    #[test]
    fn a_call_that_is_thrown_away_leaves_nothing() {
        let kv = Kv::default();
        kv.open().set("a", b"1".to_vec()).unwrap();
        assert_eq!(kv.open().get("a"), None);
    }

    #[test]
    fn the_bound_counts_keys_and_values_of_both_layers() {
        let kv = Kv::new(vec![("a".into(), vec![0; KV_BYTES - 11])]);
        let mut call = kv.open();
        call.set("b", vec![0; 9]).unwrap();
        assert!(matches!(call.set("c", vec![]), Err(GrantError::TooLarge(_))));
        assert_eq!(call.keys("", 10), ["a", "b"]);
        call.delete("a");
        call.set("c", vec![0; 100]).unwrap();
    }

    #[test]
    fn keys_are_bounded() {
        let mut call = Kv::default().open();
        for key in ["", "a\0b", &"k".repeat(KEY_BYTES + 1)] {
            assert!(matches!(call.set(key, vec![]), Err(GrantError::Invalid(_))));
        }
        for n in 0..5 {
            call.set(&format!("k{n}"), vec![]).unwrap();
        }
        assert_eq!(call.keys("k", 2), ["k0", "k1"]);
    }
}
