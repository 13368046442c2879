//! What is there now, by source: one writer, many readers.
//!
//! Objects lie in slots and every index holds slot numbers of four bytes, so that a new version of
//! an object touches its slot alone. Documents stay packed. Knows nothing about the API server.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use hashbrown::HashTable;
use kubewitness_core::ports::Current;
use kubewitness_core::state::Status;

type Slot = u32;
type Index = HashMap<Box<str>, HashSet<Slot>>;

/// Statuses that are shared between objects: most of a cluster's objects have one of few.
const SHARED_STATUSES: usize = 256;

#[derive(Default)]
pub(crate) struct Cache {
    slots: Vec<Option<Current>>,
    free: Vec<Slot>,
    by_uid: HashTable<Slot>,
    by_name: HashTable<Slot>,
    by_namespace: Index,
    by_owner: Index,
    hasher: RandomState,
}

impl Cache {
    pub fn len(&self) -> usize {
        self.by_uid.len()
    }

    pub fn by_uid(&self, uid: &str) -> Option<&Current> {
        self.slot_of_uid(uid).and_then(|slot| self.at(slot))
    }

    pub fn by_name(&self, namespace: &str, name: &str) -> Option<&Current> {
        let slot = self.by_name.find(self.name_hash(namespace, name), |slot| {
            self.at(*slot).is_some_and(|held| held.object.namespace == namespace && held.object.name == name)
        })?;
        self.at(*slot)
    }

    pub fn all(&self) -> impl Iterator<Item = &Current> {
        self.slots.iter().flatten()
    }

    /// `index` is `namespace` or `owner`; an empty one lists all, an unknown one nothing.
    pub fn list(&self, index: &str, key: &str, limit: usize) -> Vec<Current> {
        let of = |index: &Index| -> Vec<Current> {
            index
                .get(key)
                .into_iter()
                .flatten()
                .filter_map(|slot| self.at(*slot))
                .take(limit)
                .cloned()
                .collect()
        };
        match index {
            "" => self.all().take(limit).cloned().collect(),
            "namespace" => of(&self.by_namespace),
            "owner" => of(&self.by_owner),
            _ => Vec::new(),
        }
    }

    /// Takes the object's newest state; another uid under the same name makes way.
    pub fn put(&mut self, current: Current) {
        let object = Arc::clone(&current.object);
        let rival = self.by_name(&object.namespace, &object.name).map(|held| Arc::clone(&held.object));
        if let Some(rival) = rival.filter(|rival| rival.uid != object.uid) {
            self.remove(&rival.uid);
        }
        match self.slot_of_uid(&object.uid) {
            Some(slot) => self.replace(slot, current),
            None => self.insert(current),
        }
    }

    pub fn remove(&mut self, uid: &str) -> Option<Current> {
        let slot = self.slot_of_uid(uid)?;
        let (uid_hash, name_hash) = {
            let object = &self.at(slot)?.object;
            (self.hasher.hash_one(&*object.uid), self.name_hash(&object.namespace, &object.name))
        };
        if let Ok(entry) = self.by_uid.find_entry(uid_hash, |held| *held == slot) {
            entry.remove();
        }
        if let Ok(entry) = self.by_name.find_entry(name_hash, |held| *held == slot) {
            entry.remove();
        }
        let removed = self.slots[slot as usize].take()?;
        forget(&mut self.by_namespace, &removed.object.namespace, slot);
        if let Some(owner) = &removed.owner {
            forget(&mut self.by_owner, &owner.uid, slot);
        }
        self.free.push(slot);
        Some(removed)
    }

    fn insert(&mut self, current: Current) {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            // Four thousand million objects would not fit into memory.
            (self.slots.len() - 1) as Slot
        });
        let object = Arc::clone(&current.object);
        remember(&mut self.by_namespace, &object.namespace, slot);
        if let Some(owner) = &current.owner {
            remember(&mut self.by_owner, &owner.uid, slot);
        }
        self.slots[slot as usize] = Some(current);
        let (uid_hash, name_hash) =
            (self.hasher.hash_one(&*object.uid), self.name_hash(&object.namespace, &object.name));
        let Self { slots, by_uid, by_name, hasher, .. } = self;
        let held = |slot: &Slot| slots[*slot as usize].as_ref().map(|current| &current.object);
        by_uid.insert_unique(uid_hash, slot, |slot| {
            held(slot).map_or(0, |object| hasher.hash_one(&*object.uid))
        });
        by_name.insert_unique(name_hash, slot, |slot| {
            held(slot).map_or(0, |object| hasher.hash_one((&*object.namespace, &*object.name)))
        });
    }

    /// A uid never changes its name or namespace; its owner may become known later.
    fn replace(&mut self, slot: Slot, current: Current) {
        let owner =
            |held: Option<&Current>| held.and_then(|held| held.owner.as_ref()).map(|owner| owner.uid.clone());
        let (before, after) = (owner(self.at(slot)), owner(Some(&current)));
        if before != after {
            if let Some(before) = before {
                forget(&mut self.by_owner, &before, slot);
            }
            if let Some(after) = after {
                remember(&mut self.by_owner, &after, slot);
            }
        }
        self.slots[slot as usize] = Some(current);
    }

    fn at(&self, slot: Slot) -> Option<&Current> {
        self.slots.get(slot as usize).and_then(Option::as_ref)
    }

    fn slot_of_uid(&self, uid: &str) -> Option<Slot> {
        let hash = self.hasher.hash_one(uid);
        self.by_uid.find(hash, |slot| self.at(*slot).is_some_and(|held| held.object.uid == uid)).copied()
    }

    fn name_hash(&self, namespace: &str, name: &str) -> u64 {
        self.hasher.hash_one((namespace, name))
    }
}

fn remember(index: &mut Index, key: &str, slot: Slot) {
    match index.get_mut(key) {
        Some(slots) => {
            slots.insert(slot);
        }
        None => {
            index.insert(key.into(), HashSet::from([slot]));
        }
    }
}

fn forget(index: &mut Index, key: &str, slot: Slot) {
    if let Some(slots) = index.get_mut(key) {
        slots.remove(&slot);
        if slots.is_empty() {
            index.remove(key);
        }
    }
}

/// Equal statuses become one. A table of the recent ones, each in its one place: a miss costs a
/// share, never a search.
pub(crate) struct Statuses {
    recent: Vec<Option<Arc<Status>>>,
    hasher: RandomState,
}

impl Default for Statuses {
    fn default() -> Self {
        Self { recent: vec![None; SHARED_STATUSES], hasher: RandomState::new() }
    }
}

impl Statuses {
    pub fn share(&mut self, status: Status, previous: Option<&Arc<Status>>) -> Arc<Status> {
        if let Some(previous) = previous.filter(|previous| ***previous == status) {
            return Arc::clone(previous);
        }
        let place = self.hasher.hash_one((&status.phase, &status.reason, status.attempt, status.ready));
        let place = &mut self.recent[place as usize % SHARED_STATUSES];
        match place {
            Some(shared) if **shared == status => Arc::clone(shared),
            _ => Arc::clone(place.insert(Arc::new(status))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kubewitness_core::Version;
    use kubewitness_core::state::ObjectRef;
    use proptest::prelude::*;

    fn current(uid: &str, namespace: &str, name: &str, owner: Option<&str>, version: &str) -> Current {
        let object = |uid: &str, name: &str| {
            Arc::new(ObjectRef {
                namespace: namespace.into(),
                name: name.into(),
                uid: uid.into(),
                ..ObjectRef::default()
            })
        };
        Current {
            object: object(uid, name),
            owner: owner.map(|owner| object(owner, "owner")),
            resource_version: Version::new(version),
            status: Arc::default(),
            seq: 1,
            observed_ms: 0,
            packed: Arc::from(&b""[..]),
        }
    }

    #[test]
    fn another_uid_under_a_name_makes_the_old_one_leave_every_index() {
        let mut cache = Cache::default();
        cache.put(current("u1", "a", "x", Some("o1"), "1"));
        cache.put(current("u2", "a", "x", Some("o2"), "2"));
        assert_eq!(cache.len(), 1);
        assert!(cache.by_uid("u1").is_none());
        assert_eq!(cache.by_name("a", "x").unwrap().object.uid, "u2");
        assert!(cache.list("owner", "o1", 9).is_empty());
        assert_eq!(cache.list("owner", "o2", 9).len(), 1);
    }

    #[test]
    fn an_owner_that_becomes_known_later_is_indexed() {
        let mut cache = Cache::default();
        cache.put(current("u1", "a", "x", None, "1"));
        cache.put(current("u1", "a", "x", Some("o1"), "2"));
        assert_eq!(cache.list("owner", "o1", 9)[0].resource_version, Version::new("2"));
    }

    #[test]
    fn equal_statuses_are_one() {
        let mut statuses = Statuses::default();
        let running = || Status { phase: "Running".into(), ..Status::default() };
        let first = statuses.share(running(), None);
        assert!(Arc::ptr_eq(&first, &statuses.share(running(), None)));
        let other = Arc::new(running());
        assert!(Arc::ptr_eq(&other, &statuses.share(running(), Some(&other))));
    }

    proptest! {
        #[test]
        fn the_indexes_agree_with_a_plain_map(
            steps in prop::collection::vec((any::<bool>(), 0u8..12, 0u8..3, 0u8..3), 0..200),
        ) {
            let mut cache = Cache::default();
            let mut model: HashMap<String, (String, Option<String>)> = HashMap::new();
            for (put, id, namespace, owner) in steps {
                // A uid keeps its namespace, as in a cluster.
                let uid = format!("u{id}-{namespace}");
                if put {
                    let owner = (owner > 0).then(|| format!("o{owner}"));
                    let namespace = format!("n{namespace}");
                    cache.put(current(&uid, &namespace, &format!("x{id}"), owner.as_deref(), "1"));
                    model.insert(uid, (namespace, owner));
                } else {
                    prop_assert_eq!(cache.remove(&uid).is_some(), model.remove(&uid).is_some());
                }
            }
            prop_assert_eq!(cache.len(), model.len());
            prop_assert_eq!(cache.list("", "", 1_000).len(), model.len());
            for (uid, (namespace, _)) in &model {
                prop_assert_eq!(&cache.by_uid(uid).unwrap().object.namespace, namespace);
            }
            for key in ["n0", "n1", "n2"] {
                let expected = model.values().filter(|(namespace, _)| namespace == key).count();
                prop_assert_eq!(cache.list("namespace", key, 1_000).len(), expected);
            }
            for key in ["o1", "o2"] {
                let expected = model.values().filter(|(_, owner)| owner.as_deref() == Some(key)).count();
                prop_assert_eq!(cache.list("owner", key, 1_000).len(), expected);
            }
        }
    }
}
