//! Keeps the documents of recently changed objects uncompressed. The next version is compared with such a
//! document, and its delta is based on it, so packing each version would be wasted work. Objects are packed
//! once they are quiet, or if too many are uncompressed.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use kubewitness_core::Version;
use kubewitness_core::document::pack_document;
use kubewitness_core::ports::{CurrentObject, WitnessedState};
use kubewitness_core::state::{ObjectRef, RulesPrint, Status};

use super::keys::ObjectKeys;
use super::record::{self, CacheRecord, SourceKind};
use super::{CacheSlot, ObjectCache, SlotContent, StoredObject};

/// How many bytes of uncompressed documents a source keeps: some thousand objects of the usual size.
const RECENT_BYTES: usize = 16 * 1024 * 1024;
/// A larger document is packed at once. A few of them would leave no room for the others.
pub(crate) const RECENT_DOCUMENT: usize = 64 * 1024;
/// Outdated entries are removed once they outnumber the current entries by this many.
const OLD_PLACES: usize = 1024;

/// The facts of a state about its object, without the status.
#[derive(Debug)]
pub(crate) struct RecentObject {
    pub object: Arc<ObjectRef>,
    pub owner: Option<Arc<ObjectRef>>,
    pub version: Version,
    pub seq: u64,
    pub observed_ms: u64,
    pub keys: ObjectKeys,
    /// The rules under which the document has no secret, if it was searched.
    pub secretless_under: Option<RulesPrint>,
    /// When it was created, in seconds. It is set when the object enters the cache.
    pub created_s: u32,
    /// A separate copy. A slice would keep everything in memory that came over the network with it.
    pub document: Bytes,
    /// Its number in the order of the source's changes.
    turn: u64,
}

/// The order of the last changes. An entry is outdated once its object has changed again.
#[derive(Default)]
pub(super) struct RecentOrder {
    turn: u64,
    places: VecDeque<(CacheSlot, u64)>,
    /// The number of recent objects, and the bytes of their documents.
    objects: usize,
    bytes: usize,
}

/// A recent object that may be packed now.
pub(crate) struct ToPack {
    slot: CacheSlot,
    recent: Arc<RecentObject>,
    status: Arc<Status>,
    kind: Arc<SourceKind>,
}

impl ToPack {
    /// Packs the document. This takes a while and needs no lock.
    pub fn pack_object(self) -> PackedObject {
        let Self { slot, recent, status, kind } = self;
        let current = recent.make_current(Arc::clone(&status), pack_document(&recent.document));
        PackedObject {
            record: record::write(&kind, &current, recent.created_s, &recent.keys.hashes),
            slot,
            recent,
            status,
        }
    }
}

/// An object whose document has been packed.
pub(crate) struct PackedObject {
    slot: CacheSlot,
    recent: Arc<RecentObject>,
    record: CacheRecord,
    status: Arc<Status>,
}

impl RecentObject {
    /// Makes it from a state that has its position; `keys` are the state's own.
    pub fn of(
        state: WitnessedState,
        seq: u64,
        keys: ObjectKeys,
        secretless_under: Option<RulesPrint>,
    ) -> (Self, Arc<Status>) {
        let recent = Self {
            object: state.object,
            owner: state.owner,
            version: state.resource_version,
            seq,
            observed_ms: state.observed_ms,
            keys,
            secretless_under,
            created_s: 0,
            document: Bytes::copy_from_slice(&state.document),
            turn: 0,
        };
        (recent, state.status)
    }

    pub fn make_current(&self, status: Arc<Status>, packed: Arc<[u8]>) -> CurrentObject {
        CurrentObject {
            object: Arc::clone(&self.object),
            owner: self.owner.clone(),
            resource_version: self.version.clone(),
            status,
            seq: self.seq,
            observed_ms: self.observed_ms,
            packed,
        }
    }
}

impl RecentOrder {
    pub(super) fn note_entered(&mut self, slot: CacheSlot, recent: &RecentObject) {
        self.objects += 1;
        self.bytes += recent.document.len();
        self.places.push_back((slot, recent.turn));
    }

    pub(super) fn remove_object(&mut self, recent: &RecentObject) {
        self.objects -= 1;
        self.bytes -= recent.document.len();
    }
}

impl ObjectCache {
    /// Stores the object's newest state uncompressed, in place of another uid with the same name.
    pub fn put_recent(&mut self, mut recent: RecentObject, status: Arc<Status>) {
        self.kind_of(&recent.object);
        self.order.turn += 1;
        recent.turn = self.order.turn;
        recent.created_s = self.created_s(&recent.object.uid, &recent.document);
        let recent = Arc::new(recent);
        let held = SlotContent { kept: StoredObject::Plain(Arc::clone(&recent)), status };
        self.place_in_slot(&recent.object, held, &recent.keys);
        let Self { order, slots, .. } = self;
        if order.places.len() > 2 * order.objects + OLD_PLACES {
            order.places.retain(|(slot, turn)| recent_at(slots, *slot, *turn).is_some());
        }
    }

    #[cfg(test)]
    pub fn heat_places(&self) -> usize {
        self.order.places.len()
    }

    pub fn has_recent(&self) -> bool {
        self.order.objects > 0
    }

    /// Whether more is uncompressed than allowed.
    pub fn is_overheated(&self) -> bool {
        self.order.bytes > RECENT_BYTES
    }

    /// The objects whose last change is longest ago, at most `most`.
    pub fn longest_quiet(&mut self, most: usize) -> Vec<ToPack> {
        let Some(kind) = self.kind.clone() else { return Vec::new() };
        let mut found = Vec::new();
        while found.len() < most
            && let Some((slot, turn)) = self.order.places.pop_front()
        {
            if let Some((recent, status)) = recent_at(&self.slots, slot, turn) {
                let (recent, status, kind) = (Arc::clone(recent), Arc::clone(status), Arc::clone(&kind));
                found.push(ToPack { slot, recent, status, kind });
            }
        }
        found
    }

    /// Stores the packed document, unless the object has changed since.
    pub fn store_packed(&mut self, packed: PackedObject) {
        let PackedObject { slot, recent, record, status } = packed;
        if recent_at(&self.slots, slot, recent.turn).is_some() {
            self.slots[slot as usize] = Some(SlotContent { kept: StoredObject::Packed(record), status });
            self.order.remove_object(&recent);
        }
    }
}

/// The object of an entry, if the entry is not outdated.
fn recent_at(
    slots: &[Option<SlotContent>],
    slot: CacheSlot,
    turn: u64,
) -> Option<(&Arc<RecentObject>, &Arc<Status>)> {
    match slots.get(slot as usize)?.as_ref()? {
        SlotContent { kept: StoredObject::Plain(recent), status } if recent.turn == turn => {
            Some((recent, status))
        }
        _ => None,
    }
}
