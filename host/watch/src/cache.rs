//! What is there now, by source: one writer, many readers.
//!
//! Objects lie in slots, each as one immutable [`Record`]; every index holds hashes and slot
//! numbers, eight bytes an entry, and what it finds is compared with the object itself. A reader
//! takes a page of records under the lock, which costs a count each, and reads them outside of it.
//! Documents stay packed. Knows nothing about the API server.

mod multimap;
mod record;
mod select;
mod statuses;
#[cfg(test)]
mod tests;

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use hashbrown::HashTable;
use kubewitness_core::Version;
use kubewitness_core::document::unpack;
use kubewitness_core::index::{Indexes, Key};
use kubewitness_core::ports::Current;
use kubewitness_core::state::{ObjectRef, Status};

use multimap::Multimap;
use record::{Kind, Record, Uid};
pub(crate) use select::Search;
pub(crate) use statuses::Statuses;

type Slot = u32;

struct Held {
    record: Record,
    status: Arc<Status>,
}

/// An object without its document, where that would be copied for nothing.
pub(crate) struct Brief {
    pub object: Arc<ObjectRef>,
    pub owner: Option<Arc<ObjectRef>>,
    pub resource_version: Version,
}

pub(crate) struct Cache {
    slots: Vec<Option<Held>>,
    free: Vec<Slot>,
    by_uid: HashTable<Slot>,
    by_name: HashTable<Slot>,
    by_key: Multimap,
    indexes: Arc<Indexes>,
    /// Of the first object; the others' records leave it out.
    kind: Option<Arc<Kind>>,
    hasher: RandomState,
}

impl Cache {
    pub fn new(indexes: Indexes) -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            by_uid: HashTable::new(),
            by_name: HashTable::new(),
            by_key: Multimap::default(),
            indexes: Arc::new(indexes),
            kind: None,
            hasher: RandomState::new(),
        }
    }

    pub fn len(&self) -> usize {
        self.by_uid.len()
    }

    pub fn by_uid(&self, uid: &str) -> Option<Current> {
        self.slot_of_uid(Uid::of(uid)).and_then(|slot| self.current(slot))
    }

    pub fn by_name(&self, namespace: &str, name: &str) -> Option<Current> {
        self.slot_of_name(namespace, name).and_then(|slot| self.current(slot))
    }

    /// [`Self::by_uid`] without the document.
    pub fn brief(&self, uid: &str) -> Option<Brief> {
        self.at(self.slot_of_uid(Uid::of(uid))?).map(|held| self.brief_of(held))
    }

    pub fn all(&self) -> impl Iterator<Item = Brief> {
        self.slots.iter().flatten().map(|held| self.brief_of(held))
    }

    /// Takes the object's newest state; another uid under the same name makes way. `document` is
    /// the plain one, where it is at hand.
    pub fn put(&mut self, current: &Current, document: Option<&[u8]>) {
        let object = &current.object;
        let uid = Uid::of(&object.uid);
        let slot = self.slot_of_uid(uid);
        if slot.is_none()
            && let Some(rival) = self.slot_of_name(&object.namespace, &object.name)
        {
            self.free(rival);
        }
        let kind = self.kind.get_or_insert_with(|| Arc::new(Kind::of(object)));
        let kind = Arc::clone(kind);
        let keys = self.keys(current, document);
        let held = Held { record: record::write(&kind, current, &keys), status: Arc::clone(&current.status) };
        match slot {
            Some(slot) => self.replace(slot, held, &keys),
            None => self.insert(held, &keys),
        }
    }

    /// At a start: all that the journal has, indexed at once.
    pub fn fill(&mut self, objects: Vec<Current>) {
        let mut entries = Vec::new();
        let mut again = Vec::new();
        for current in objects {
            let object = &current.object;
            let known = self.slot_of_uid(Uid::of(&object.uid)).is_some();
            if known || self.slot_of_name(&object.namespace, &object.name).is_some() {
                again.push(current);
                continue;
            }
            let kind = Arc::clone(self.kind.get_or_insert_with(|| Arc::new(Kind::of(object))));
            let keys = self.keys(&current, None);
            let held = Held { record: record::write(&kind, &current, &keys), status: current.status };
            let slot = self.take_slot(held);
            entries.extend(keys.into_iter().map(|key| (key, slot)));
        }
        self.by_key = Multimap::of(entries.into_iter());
        again.iter().for_each(|current| self.put(current, None));
    }

    pub fn remove(&mut self, uid: &str) -> bool {
        let slot = self.slot_of_uid(Uid::of(uid));
        slot.is_some_and(|slot| self.free(slot))
    }

    fn insert(&mut self, held: Held, keys: &[u32]) {
        let slot = self.take_slot(held);
        keys.iter().for_each(|key| self.by_key.insert(*key, slot));
    }

    /// A slot for an object that has none, found by its uid and its name.
    fn take_slot(&mut self, held: Held) -> Slot {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            // Four thousand million objects would not fit into memory.
            (self.slots.len() - 1) as Slot
        });
        let read = record::read(&held.record);
        let (by_uid, by_name) = (self.hasher.hash_one(read.uid), self.name_hash(read.namespace, read.name));
        self.slots[slot as usize] = Some(held);
        let Self { slots, hasher, .. } = self;
        let held = |slot: &Slot| slots[*slot as usize].as_ref().map(|held| record::read(&held.record));
        self.by_uid
            .insert_unique(by_uid, slot, |slot| held(slot).map_or(0, |read| hasher.hash_one(read.uid)));
        self.by_name.insert_unique(by_name, slot, |slot| {
            held(slot).map_or(0, |read| hasher.hash_one((read.namespace, read.name)))
        });
        slot
    }

    /// A uid never changes its name or namespace; everything else may change.
    fn replace(&mut self, slot: Slot, held: Held, keys: &[u32]) {
        let Some(before) = self.slots[slot as usize].replace(held) else { return };
        let before: Vec<u32> = record::read(&before.record).keys().collect();
        if before == keys {
            return;
        }
        for gone in before.iter().filter(|key| keys.binary_search(key).is_err()) {
            self.by_key.remove(*gone, slot);
        }
        for new in keys.iter().filter(|key| before.binary_search(key).is_err()) {
            self.by_key.insert(*new, slot);
        }
    }

    fn free(&mut self, slot: Slot) -> bool {
        let Some(held) = self.slots.get(slot as usize).and_then(Option::as_ref) else { return false };
        let record = Arc::clone(&held.record);
        let read = record::read(&record);
        let (by_uid, by_name) = (self.hasher.hash_one(read.uid), self.name_hash(read.namespace, read.name));
        if let Ok(entry) = self.by_uid.find_entry(by_uid, |held| *held == slot) {
            entry.remove();
        }
        if let Ok(entry) = self.by_name.find_entry(by_name, |held| *held == slot) {
            entry.remove();
        }
        read.keys().for_each(|key| self.by_key.remove(key, slot));
        self.slots[slot as usize] = None;
        self.free.push(slot);
        true
    }

    /// The hashes of all keys of an object, ascending and each once.
    fn keys(&self, current: &Current, document: Option<&[u8]>) -> Vec<u32> {
        let mut keys = Vec::with_capacity(12);
        keys.push(self.key_hash(Key::Namespace(&current.object.namespace)));
        keys.extend(current.owner.as_ref().map(|owner| self.key_hash(Key::Owner(&owner.uid))));
        let unpacked;
        let document = match document {
            Some(document) => document,
            None => {
                unpacked = unpack(&current.packed).unwrap_or_default();
                &unpacked
            }
        };
        // An object that can't be read has no keys but these; that its bytes are damaged is found,
        // and told, by whoever asks for them.
        if self.indexes.keys(document, |key| keys.push(self.key_hash(key))).is_err() {
            tracing::warn!(
                namespace = current.object.namespace,
                name = current.object.name,
                "a cached document can't be read: the object is not found by its labels, owners or node"
            );
        }
        keys.sort_unstable();
        keys.dedup();
        keys
    }

    fn key_hash(&self, key: Key<'_>) -> u32 {
        let hash = match key {
            Key::Namespace(namespace) => self.hasher.hash_one((0u8, namespace)),
            Key::Owner(uid) => self.hasher.hash_one((1u8, uid)),
            Key::Node(node) => self.hasher.hash_one((2u8, node)),
            Key::Label(key, value) => self.hasher.hash_one((3u8, key, value)),
            Key::Named(number, text) => self.hasher.hash_one((4u8, number, text)),
        };
        // The low half: the keys are random, so that nobody can make all objects collide.
        hash as u32
    }

    fn at(&self, slot: Slot) -> Option<&Held> {
        self.slots.get(slot as usize).and_then(Option::as_ref)
    }

    fn current(&self, slot: Slot) -> Option<Current> {
        let held = self.at(slot)?;
        Some(record::read(&held.record).current(self.kind.as_ref()?, Arc::clone(&held.status)))
    }

    fn brief_of(&self, held: &Held) -> Brief {
        let read = record::read(&held.record);
        Brief {
            object: Arc::new(read.object(self.kind.as_deref().unwrap_or(&Kind::default()))),
            owner: read.owner().map(Arc::new),
            resource_version: Version::new(read.version),
        }
    }

    fn slot_of_uid(&self, uid: Uid<'_>) -> Option<Slot> {
        let is = |slot: &Slot| self.at(*slot).is_some_and(|held| record::read(&held.record).uid == uid);
        self.by_uid.find(self.hasher.hash_one(uid), is).copied()
    }

    fn slot_of_name(&self, namespace: &str, name: &str) -> Option<Slot> {
        let is = |slot: &Slot| {
            self.at(*slot).is_some_and(|held| {
                let read = record::read(&held.record);
                read.namespace == namespace && read.name == name
            })
        };
        self.by_name.find(self.name_hash(namespace, name), is).copied()
    }

    fn name_hash(&self, namespace: &str, name: &str) -> u64 {
        self.hasher.hash_one((namespace, name))
    }
}
