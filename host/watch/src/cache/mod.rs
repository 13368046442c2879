//! The cache: the objects of each source that exist now, with one writer and many readers.
//!
//! A cluster can have hundreds of thousands of objects, and every Job that is held costs memory for its whole
//! life. So each object is one immutable [`CacheRecord`] in a slot instead of a tree of allocations. The
//! indexes hold hashes and slot numbers, eight bytes for each entry, and compare what they find with the
//! object itself. A signature of 64 bytes rules most objects out of a search. Documents stay packed, except
//! those of objects that changed lately ([`recent`]).
//!
//! A reader takes a page of records under the lock and reads them outside of it, so no reader delays the
//! writer. The cache never shows a state that is not durable; its writer calls it only after the commit. It
//! knows nothing about the API server.

mod changes;
mod fill;
mod keys;
pub(crate) mod known;
mod multimap;
mod orders;
mod recent;
mod record;
mod select;
mod statuses;
#[cfg(test)]
mod tests;

use std::hash::BuildHasher;
use std::sync::Arc;

use hashbrown::{DefaultHashBuilder, HashTable};
use kubewitness_core::Version;
use kubewitness_core::document::unpack_document;
use kubewitness_core::index::IndexSet;
use kubewitness_core::ports::{CurrentObject, created_ms};
use kubewitness_core::search_filter::SearchSignature;
use kubewitness_core::state::{ObjectRef, Status};

use crate::cache::known::KnownObjects;
pub(crate) use fill::CacheFill;
pub(crate) use keys::{KeyMaker, ObjectKeys};
use multimap::ChunkedMultimap;
use orders::SortedOrders;
use recent::RecentOrder;
pub(crate) use recent::{RECENT_DOCUMENT, RecentObject, ToPack};
use record::{CacheRecord, PackedUid, RecordView, SourceKind};
pub(crate) use select::{SelectPlan, SelectSearch};
pub(crate) use statuses::StatusTable;

type CacheSlot = u32;

struct SlotContent {
    kept: StoredObject,
    status: Arc<Status>,
}

/// Everything of an object except its status.
#[derive(Clone)]
enum StoredObject {
    Packed(CacheRecord),
    /// The object changed lately.
    Plain(Arc<RecentObject>),
}

impl StoredObject {
    fn read(&self) -> RecordView<'_> {
        match self {
            Self::Packed(record) => record::read(record),
            Self::Plain(recent) => RecordView::of(recent),
        }
    }

    fn is_of(&self, uid: &str, as_kept: PackedUid<'_>) -> bool {
        match self {
            Self::Packed(record) => record::read(record).uid == as_kept,
            Self::Plain(recent) => *recent.object.uid == *uid,
        }
    }

    fn is_named(&self, namespace: &str, name: &str) -> bool {
        let (held_namespace, held_name) = match self {
            Self::Packed(record) => {
                let read = record::read(record);
                (read.namespace, read.name)
            }
            Self::Plain(recent) => (&*recent.object.namespace, &*recent.object.name),
        };
        held_name == name && held_namespace == namespace
    }

    /// The hashes of its keys, ascending.
    fn key_hashes(&self) -> Arc<[u32]> {
        match self {
            Self::Packed(record) => record::read(record).key_hashes().collect(),
            Self::Plain(recent) => Arc::clone(&recent.keys.hashes),
        }
    }
}

/// An object without its document, for callers that do not need a copy of it.
pub(crate) struct BriefObject {
    pub object: Arc<ObjectRef>,
    pub owner: Option<Arc<ObjectRef>>,
    pub resource_version: Version,
}

pub(crate) struct ObjectCache {
    slots: Vec<Option<SlotContent>>,
    /// By slot.
    signatures: Vec<SearchSignature>,
    free: Vec<CacheSlot>,
    by_uid: HashTable<CacheSlot>,
    by_name: HashTable<CacheSlot>,
    by_key: ChunkedMultimap,
    orders: SortedOrders,
    keyer: Arc<KeyMaker>,
    order: RecentOrder,
    /// The kind of the first object. Records of objects of this kind omit it.
    kind: Option<Arc<SourceKind>>,
    hasher: DefaultHashBuilder,
}

impl ObjectCache {
    pub fn new(indexes: IndexSet) -> Self {
        Self::with_keyer(Arc::new(KeyMaker::new(indexes)))
    }

    fn with_keyer(keyer: Arc<KeyMaker>) -> Self {
        Self {
            slots: Vec::new(),
            signatures: Vec::new(),
            free: Vec::new(),
            by_uid: HashTable::new(),
            by_name: HashTable::new(),
            by_key: ChunkedMultimap::default(),
            orders: SortedOrders::default(),
            keyer,
            order: RecentOrder::default(),
            kind: None,
            hasher: DefaultHashBuilder::default(),
        }
    }

    pub fn len(&self) -> usize {
        self.by_uid.len()
    }

    pub fn key_maker(&self) -> Arc<KeyMaker> {
        Arc::clone(&self.keyer)
    }

    pub fn by_uid(&self, uid: &str) -> Option<CurrentObject> {
        self.slot_of_uid(uid).and_then(|slot| self.current_object(slot))
    }

    pub fn by_name(&self, namespace: &str, name: &str) -> Option<CurrentObject> {
        self.slot_of_name(namespace, name).and_then(|slot| self.current_object(slot))
    }

    /// [`Self::by_uid`] without the document.
    pub fn brief_by_uid(&self, uid: &str) -> Option<BriefObject> {
        self.content_at(self.slot_of_uid(uid)?).map(|held| self.brief_of(held))
    }

    /// [`Self::by_name`] without the document.
    pub fn brief_of_name(&self, namespace: &str, name: &str) -> Option<BriefObject> {
        self.content_at(self.slot_of_name(namespace, name)?).map(|held| self.brief_of(held))
    }

    /// The known version of an object, for comparison with the next one.
    pub fn known_object(&self, uid: &str) -> Option<KnownObjects> {
        let slot = self.slot_of_uid(uid)?;
        match self.content_at(slot)? {
            SlotContent { kept: StoredObject::Plain(recent), status } => {
                Some(KnownObjects::from_recent(recent, status))
            }
            _ => self.current_object(slot).map(KnownObjects::from_cached),
        }
    }

    pub fn seq_of_uid(&self, uid: &str) -> Option<u64> {
        self.content_at(self.slot_of_uid(uid)?).map(|held| held.kept.read().seq)
    }

    pub fn all_briefs(&self) -> impl Iterator<Item = BriefObject> {
        self.slots.iter().flatten().map(|held| self.brief_of(held))
    }

    /// Stores the object's newest state, in place of another uid with the same name. `document` is the
    /// uncompressed document, if available.
    pub fn put_object(&mut self, current: &CurrentObject, document: Option<&[u8]>) {
        let kind = self.kind_of(&current.object);
        let unpacked;
        let document = match document {
            Some(document) => document,
            None => {
                unpacked = unpack_document(&current.packed).unwrap_or_default();
                &unpacked
            }
        };
        let keys = self.object_keys(current, document);
        let created_s = self.created_s(&current.object.uid, document);
        let kept = StoredObject::Packed(record::write(&kind, current, created_s, &keys.hashes));
        self.place_in_slot(&current.object, SlotContent { kept, status: Arc::clone(&current.status) }, &keys);
    }

    fn kind_of(&mut self, object: &ObjectRef) -> Arc<SourceKind> {
        Arc::clone(self.kind.get_or_insert_with(|| Arc::new(SourceKind::of(object))))
    }

    fn place_in_slot(&mut self, object: &ObjectRef, held: SlotContent, keys: &ObjectKeys) {
        match self.slot_of_uid(&object.uid) {
            Some(slot) => self.replace_in_slot(slot, held, keys),
            None => {
                if let Some(rival) = self.slot_of_name(&object.namespace, &object.name) {
                    self.free_slot(rival);
                }
                self.insert(held, keys);
            }
        }
    }

    pub fn remove(&mut self, uid: &str) -> bool {
        let slot = self.slot_of_uid(uid);
        slot.is_some_and(|slot| self.free_slot(slot))
    }

    fn insert(&mut self, held: SlotContent, keys: &ObjectKeys) {
        let slot = self.take_slot(held, keys.signature);
        keys.hashes.iter().for_each(|key| self.by_key.insert(*key, slot));
        self.orders.add_object(&self.slots, slot);
    }

    /// Takes a slot for a new object, and adds its uid and its name.
    fn take_slot(&mut self, held: SlotContent, signature: SearchSignature) -> CacheSlot {
        let slot = self.free.pop().unwrap_or_else(|| {
            if self.slots.len() == self.slots.capacity() {
                // Grows by an eighth. A vector would grow by a half and leave it unused.
                let growth = self.slots.len() / 8 + 64;
                self.slots.reserve_exact(growth);
                self.signatures.reserve_exact(growth);
            }
            self.slots.push(None);
            self.signatures.push(signature);
            // Four thousand million objects would not fit into memory.
            (self.slots.len() - 1) as CacheSlot
        });
        let read = held.kept.read();
        let (by_uid, by_name) = (self.hasher.hash_one(read.uid), self.name_hash(read.namespace, read.name));
        if let StoredObject::Plain(recent) = &held.kept {
            self.order.note_entered(slot, recent);
        }
        self.slots[slot as usize] = Some(held);
        self.signatures[slot as usize] = signature;
        let Self { slots, hasher, .. } = self;
        let held = |slot: &CacheSlot| slots[*slot as usize].as_ref().map(|held| held.kept.read());
        self.by_uid
            .insert_unique(by_uid, slot, |slot| held(slot).map_or(0, |read| hasher.hash_one(read.uid)));
        self.by_name.insert_unique(by_name, slot, |slot| {
            held(slot).map_or(0, |read| hasher.hash_one((read.namespace, read.name)))
        });
        slot
    }

    /// Replaces an object's record. The uid, name and namespace stay the same; everything else may change.
    fn replace_in_slot(&mut self, slot: CacheSlot, held: SlotContent, keys: &ObjectKeys) {
        if let StoredObject::Plain(recent) = &held.kept {
            self.order.note_entered(slot, recent);
        }
        let Some(before) = self.slots[slot as usize].replace(held) else { return };
        self.signatures[slot as usize] = keys.signature;
        self.orders.replace_version(&self.slots, slot, &before);
        if let StoredObject::Plain(recent) = &before.kept {
            self.order.remove_object(recent);
        }
        let (before, keys) = (before.kept.key_hashes(), &keys.hashes);
        if before == *keys {
            return;
        }
        for gone in before.iter().filter(|key| keys.binary_search(key).is_err()) {
            self.by_key.remove(*gone, slot);
        }
        for new in keys.iter().filter(|key| before.binary_search(key).is_err()) {
            self.by_key.insert(*new, slot);
        }
    }

    fn free_slot(&mut self, slot: CacheSlot) -> bool {
        let Some(held) = self.slots.get_mut(slot as usize).and_then(Option::take) else { return false };
        let read = held.kept.read();
        let (by_uid, by_name) = (self.hasher.hash_one(read.uid), self.name_hash(read.namespace, read.name));
        if let Ok(entry) = self.by_uid.find_entry(by_uid, |held| *held == slot) {
            entry.remove();
        }
        if let Ok(entry) = self.by_name.find_entry(by_name, |held| *held == slot) {
            entry.remove();
        }
        self.orders.remove_object(&self.slots, slot, &held);
        if let StoredObject::Plain(recent) = &held.kept {
            self.order.remove_object(recent);
        }
        held.kept.key_hashes().iter().for_each(|key| self.by_key.remove(*key, slot));
        self.signatures[slot as usize] = SearchSignature::default();
        self.free.push(slot);
        true
    }

    fn object_keys(&self, current: &CurrentObject, document: &[u8]) -> ObjectKeys {
        self.keyer.object_keys(&current.object, current.owner.as_deref(), document, None)
    }

    /// The creation time of an object, in seconds. It never changes, so it is read once.
    fn created_s(&self, uid: &str, document: &[u8]) -> u32 {
        match self.slot_of_uid(uid).and_then(|slot| self.content_at(slot)) {
            Some(held) => held.kept.read().created_s,
            None => created_s(document),
        }
    }

    fn content_at(&self, slot: CacheSlot) -> Option<&SlotContent> {
        self.slots.get(slot as usize).and_then(Option::as_ref)
    }

    fn current_object(&self, slot: CacheSlot) -> Option<CurrentObject> {
        let held = self.content_at(slot)?;
        Some(held.kept.read().make_current(self.kind.as_ref()?, Arc::clone(&held.status)))
    }

    fn brief_of(&self, held: &SlotContent) -> BriefObject {
        if let StoredObject::Plain(recent) = &held.kept {
            let (object, owner) = (Arc::clone(&recent.object), recent.owner.clone());
            return BriefObject { object, owner, resource_version: recent.version.clone() };
        }
        let read = held.kept.read();
        BriefObject {
            object: Arc::new(read.object_ref(self.kind.as_deref().unwrap_or(&SourceKind::default()))),
            owner: read.owner_ref().map(Arc::new),
            resource_version: Version::new(read.version),
        }
    }

    fn slot_of_uid(&self, uid: &str) -> Option<CacheSlot> {
        let as_kept = PackedUid::of(uid);
        let is = |slot: &CacheSlot| self.content_at(*slot).is_some_and(|held| held.kept.is_of(uid, as_kept));
        self.by_uid.find(self.hasher.hash_one(as_kept), is).copied()
    }

    fn slot_of_name(&self, namespace: &str, name: &str) -> Option<CacheSlot> {
        let is =
            |slot: &CacheSlot| self.content_at(*slot).is_some_and(|held| held.kept.is_named(namespace, name));
        self.by_name.find(self.name_hash(namespace, name), is).copied()
    }

    fn name_hash(&self, namespace: &str, name: &str) -> u64 {
        self.hasher.hash_one((namespace, name))
    }
}

/// 0 if the document has no creation time.
fn created_s(document: &[u8]) -> u32 {
    created_ms(document).and_then(|ms| u32::try_from(ms / 1_000).ok()).unwrap_or_default()
}
