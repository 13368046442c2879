//! Keeps the documents of recently changed objects uncompressed. The next version is compared with such a
//! document, and its delta is built on it, so packing each version would be wasted work. Objects are packed
//! when they have been quiet, or when there are too many.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use kubewitness_core::Version;
use kubewitness_core::document::pack;
use kubewitness_core::ports::{Current, Witnessed};
use kubewitness_core::state::{ObjectRef, Status};

use super::keys::Keys;
use super::record::{self, Kind, Record};
use super::{Cache, Held, Kept, Slot};

/// The bytes of uncompressed documents that a source keeps: some thousand objects of the usual size.
const HOT_BYTES: usize = 16 * 1024 * 1024;
/// A larger document is packed at once. A few of them would leave no room for the others.
pub(crate) const HOT_DOCUMENT: usize = 64 * 1024;
/// Outdated entries are removed once there are more of them than of current entries plus this many.
const OLD_PLACES: usize = 1024;

/// What a state says of its object, without the status.
#[derive(Debug)]
pub(crate) struct Hot {
    pub object: Arc<ObjectRef>,
    pub owner: Option<Arc<ObjectRef>>,
    pub version: Version,
    pub seq: u64,
    pub observed_ms: u64,
    pub keys: Keys,
    /// A copy of its own. A slice would keep everything in memory that came over the network with it.
    pub document: Bytes,
    /// Its number in the order of the source's changes.
    turn: u64,
}

/// The order of the last changes. An entry is outdated once its object has changed again.
#[derive(Default)]
pub(super) struct Heat {
    turn: u64,
    places: VecDeque<(Slot, u64)>,
    /// The number of hot objects, and the bytes of their documents.
    objects: usize,
    bytes: usize,
}

/// A hot object that may be packed now.
pub(crate) struct Cooling {
    slot: Slot,
    hot: Arc<Hot>,
    status: Arc<Status>,
    kind: Arc<Kind>,
}

impl Cooling {
    /// Packs the document. This takes a while and needs no lock.
    pub fn packed(self) -> Cooled {
        let Self { slot, hot, status, kind } = self;
        let current = hot.current(Arc::clone(&status), pack(&hot.document));
        Cooled { record: record::write(&kind, &current, &hot.keys.hashes), slot, hot, status }
    }
}

/// An object whose document has been packed.
pub(crate) struct Cooled {
    slot: Slot,
    hot: Arc<Hot>,
    record: Record,
    status: Arc<Status>,
}

impl Hot {
    /// Makes it from a state that has its position; `keys` are the state's own.
    pub fn of(state: Witnessed, seq: u64, keys: Keys) -> (Self, Arc<Status>) {
        let hot = Self {
            object: state.object,
            owner: state.owner,
            version: state.resource_version,
            seq,
            observed_ms: state.observed_ms,
            keys,
            document: Bytes::copy_from_slice(&state.document),
            turn: 0,
        };
        (hot, state.status)
    }

    pub fn current(&self, status: Arc<Status>, packed: Arc<[u8]>) -> Current {
        Current {
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

impl Heat {
    pub(super) fn entered(&mut self, slot: Slot, hot: &Hot) {
        self.objects += 1;
        self.bytes += hot.document.len();
        self.places.push_back((slot, hot.turn));
    }

    pub(super) fn left(&mut self, hot: &Hot) {
        self.objects -= 1;
        self.bytes -= hot.document.len();
    }
}

impl Cache {
    /// Stores the object's newest state as it is. It replaces another uid of the same name.
    pub fn put_hot(&mut self, mut hot: Hot, status: Arc<Status>) {
        self.kind_of(&hot.object);
        self.heat.turn += 1;
        hot.turn = self.heat.turn;
        let hot = Arc::new(hot);
        let held = Held { kept: Kept::Plain(Arc::clone(&hot)), status };
        self.place(&hot.object, held, &hot.keys.hashes);
        let Self { heat, slots, .. } = self;
        if heat.places.len() > 2 * heat.objects + OLD_PLACES {
            heat.places.retain(|(slot, turn)| hot_at(slots, *slot, *turn).is_some());
        }
    }

    #[cfg(test)]
    pub fn heat_places(&self) -> usize {
        self.heat.places.len()
    }

    pub fn is_hot(&self) -> bool {
        self.heat.objects > 0
    }

    /// Whether more is kept uncompressed than allowed.
    pub fn is_overheated(&self) -> bool {
        self.heat.bytes > HOT_BYTES
    }

    /// The objects that changed the longest ago, at most `most`.
    pub fn coolest(&mut self, most: usize) -> Vec<Cooling> {
        let Some(kind) = self.kind.clone() else { return Vec::new() };
        let mut found = Vec::new();
        while found.len() < most
            && let Some((slot, turn)) = self.heat.places.pop_front()
        {
            if let Some((hot, status)) = hot_at(&self.slots, slot, turn) {
                let (hot, status, kind) = (Arc::clone(hot), Arc::clone(status), Arc::clone(&kind));
                found.push(Cooling { slot, hot, status, kind });
            }
        }
        found
    }

    /// Stores the packed document, unless the object has changed since.
    pub fn cool(&mut self, cooled: Cooled) {
        let Cooled { slot, hot, record, status } = cooled;
        if hot_at(&self.slots, slot, hot.turn).is_some() {
            self.slots[slot as usize] = Some(Held { kept: Kept::Packed(record), status });
            self.heat.left(&hot);
        }
    }
}

/// The object of an entry, if the entry is not outdated.
fn hot_at(slots: &[Option<Held>], slot: Slot, turn: u64) -> Option<(&Arc<Hot>, &Arc<Status>)> {
    match slots.get(slot as usize)?.as_ref()? {
        Held { kept: Kept::Plain(hot), status } if hot.turn == turn => Some((hot, status)),
        _ => None,
    }
}
