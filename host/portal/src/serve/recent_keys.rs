//! Remembers the Job that each key made lately. The journal has a Job a moment after the API server, so two
//! concurrent requests with one key would both find none. Therefore requests with the same key run one after
//! the other.
//!
//! Replicas do not share keys: if two of them get the same key at once, only the name of the Job prevents a
//! second one.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{Mutex as TurnMutex, OwnedMutexGuard};

/// At some 300 bytes each. The Job of a forgotten key is searched for in the journal.
const KEYS: usize = 4096;

type KeyDigest = [u8; 32];

/// The Job that a key has made, or may have made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JobPlace {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

type KeySlot = Arc<TurnMutex<Option<JobPlace>>>;

#[derive(Clone, Default)]
pub(crate) struct RecentKeys(Arc<Mutex<RecentKeyTable>>);

#[derive(Default)]
struct RecentKeyTable {
    slots: HashMap<KeyDigest, KeySlot>,
    /// The oldest first.
    order: VecDeque<KeyDigest>,
}

impl RecentKeys {
    /// Waits until no other request with this key is in progress. The result is the Job that the key has
    /// made.
    pub(crate) async fn await_turn(&self, key: KeyDigest) -> OwnedMutexGuard<Option<JobPlace>> {
        let slot = self.0.lock().unwrap_or_else(PoisonError::into_inner).slot_of(key);
        slot.lock_owned().await
    }
}

impl RecentKeyTable {
    fn slot_of(&mut self, key: KeyDigest) -> KeySlot {
        if let Some(slot) = self.slots.get(&key) {
            return slot.clone();
        }
        if self.slots.len() >= KEYS
            && let Some(oldest) = self.order.pop_front()
        {
            match self.slots.get(&oldest).is_some_and(|slot| Arc::strong_count(slot) > 1) {
                // A request with this key is in progress.
                true => self.order.push_back(oldest),
                false => drop(self.slots.remove(&oldest)),
            }
        }
        let slot = KeySlot::default();
        self.slots.insert(key, slot.clone());
        self.order.push_back(key);
        slot
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn key(number: usize) -> KeyDigest {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&number.to_be_bytes());
        key
    }

    #[tokio::test]
    async fn requests_of_one_key_follow_each_other_and_old_keys_are_forgotten() {
        let keys = RecentKeys::default();
        let place = JobPlace { namespace: "ml".into(), name: "train".into() };
        let mut first = keys.await_turn(key(0)).await;
        *first = Some(place.clone());
        assert!(keys.await_turn(key(0)).now_or_never().is_none(), "one is under way");
        for number in 1..2 * KEYS {
            assert!(keys.await_turn(key(number)).await.is_none());
        }
        assert!(keys.0.lock().unwrap().slots.len() <= KEYS + 1);
        drop(first);
        assert_eq!(*keys.await_turn(key(0)).await, Some(place));
        for number in 2 * KEYS..5 * KEYS {
            assert!(keys.await_turn(key(number)).await.is_none());
        }
        assert!(keys.await_turn(key(0)).await.is_none());
        assert!(keys.0.lock().unwrap().slots.len() <= KEYS + 1);
    }
}
