//! The sort orders of a source's objects. A page of any order is read without reading other objects.
//!
//! Orders by name, namespace, creation and attempt are entries of eight bytes in chunks. An entry has a
//! number and a slot; if numbers are equal, the objects themselves are compared. The order of changes is kept
//! by phase, for all objects and for each namespace, because most people ask for one of these.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use kubewitness_core::order::{ObjectOrder, OrderFields, OrderKey, OrderPosition};
use kubewitness_core::state::Status;
use kubewitness_core::views::{NAMESPACES, ObjectCounts};

use super::changes::{ChangePositions, change_value_of};
use super::multimap::{ChunkPosition, WordChunks};
use super::record::{PackedUid, RecordView};
use super::{CacheSlot, SlotContent};

type SlotList = [Option<SlotContent>];

#[derive(Default)]
pub(super) struct SortedOrders {
    by_name: SortedEntry,
    by_namespace: SortedEntry,
    by_created: SortedEntry,
    by_restarts: SortedEntry,
    changes: ChangePositions,
    namespaces: BTreeMap<String, ChangePositions>,
}

impl RecordView<'_> {
    pub(super) fn position_in(&self, order: ObjectOrder, status: &Status) -> OrderPosition {
        let Self { seq, created_s, namespace, name, .. } = *self;
        let placed = OrderFields { seq, created_s, namespace, name, status };
        order.position_of(&placed, || self.uid.text())
    }
}

/// The values with which an entry is compared.
struct OrderProbe<'a> {
    number: u32,
    slot: CacheSlot,
    names: [&'a str; 2],
    uid: PackedUid<'a>,
}

impl<'a> OrderProbe<'a> {
    fn of(by: OrderKey, slot: CacheSlot, read: &RecordView<'a>, status: &Status) -> Self {
        let number = match by {
            OrderKey::Created => read.created_s,
            OrderKey::Restarts => status.attempt,
            _ => 0,
        };
        Self { number, slot, names: order_names(by, read), uid: read.uid }
    }

    fn as_word(&self) -> u64 {
        u64::from(self.number) << 32 | u64::from(self.slot)
    }
}

/// The namespace, for an order of namespaces, and the name, for an order of names.
fn order_names<'a>(by: OrderKey, read: &RecordView<'a>) -> [&'a str; 2] {
    match by {
        OrderKey::Name => ["", read.name],
        OrderKey::Namespace => [read.namespace, read.name],
        OrderKey::Changed | OrderKey::Created | OrderKey::Phase | OrderKey::Restarts => ["", ""],
    }
}

/// Entries by number, then by the names (for an order of names) and the uid.
#[derive(Default)]
struct SortedEntry(WordChunks);

impl SortedEntry {
    fn of<'a>(by: OrderKey, slots: &'a SlotList) -> Self {
        let entry = |(slot, held): (usize, &'a Option<SlotContent>)| {
            let held = held.as_ref()?;
            let (slot, read) = (slot as CacheSlot, held.kept.read());
            let probe = OrderProbe::of(by, slot, &read, &held.status);
            Some((probe.number, probe.names, probe.uid, probe.as_word()))
        };
        let mut entries: Vec<_> = slots.iter().enumerate().filter_map(entry).collect();
        entries.sort_unstable();
        Self(WordChunks::of(&entries.into_iter().map(|(.., word)| word).collect::<Vec<_>>()))
    }

    fn position_of(
        &self,
        by: OrderKey,
        slots: &SlotList,
        probe: &OrderProbe<'_>,
    ) -> Result<ChunkPosition, ChunkPosition> {
        self.0.position_of(|word| {
            let (number, slot) = ((word >> 32) as u32, word as CacheSlot);
            number.cmp(&probe.number).then_with(|| {
                let held = slots.get(slot as usize).and_then(Option::as_ref);
                match held.filter(|_| slot != probe.slot) {
                    None => Ordering::Equal,
                    Some(held) => {
                        let read = held.kept.read();
                        order_names(by, &read).cmp(&probe.names).then_with(|| read.uid.cmp(&probe.uid))
                    }
                }
            })
        })
    }

    fn insert(&mut self, by: OrderKey, slots: &SlotList, probe: &OrderProbe<'_>) {
        if let Err(at) = self.position_of(by, slots, probe) {
            self.0.insert(at, probe.as_word());
        }
    }

    fn remove(&mut self, by: OrderKey, slots: &SlotList, probe: &OrderProbe<'_>) {
        if let Ok(at) = self.position_of(by, slots, probe) {
            self.0.remove(at);
        }
    }

    /// At most so many slots after a position.
    fn slots_beyond(
        &self,
        order: ObjectOrder,
        slots: &SlotList,
        place: Option<&OrderPosition>,
        most: usize,
    ) -> Vec<CacheSlot> {
        let at = place.map(|place| {
            let (namespace, name) = match order.by {
                OrderKey::Namespace => place.text.split_once(' ').unwrap_or_default(),
                _ => ("", &*place.text),
            };
            let probe = OrderProbe {
                number: u32::try_from(place.number).unwrap_or(u32::MAX),
                slot: CacheSlot::MAX,
                names: [namespace, name],
                uid: PackedUid::of(&place.uid),
            };
            self.position_of(order.by, slots, &probe)
        });
        let slot = |word: u64| word as CacheSlot;
        match order.is_descending() {
            false => {
                let from = match at {
                    None => (0, 0),
                    Some(Ok((chunk, place))) => (chunk, place + 1),
                    Some(Err(at)) => at,
                };
                self.0.from(from).take(most).map(slot).collect()
            }
            true => {
                let (Ok(to) | Err(to)) = at.unwrap_or_else(|| Err(self.0.end_position()));
                self.0.words_before(to).take(most).map(slot).collect()
            }
        }
    }
}

impl SortedOrders {
    /// Builds the orders of all objects at once.
    pub fn of(slots: &SlotList) -> Self {
        let mut orders = Self {
            by_name: SortedEntry::of(OrderKey::Name, slots),
            by_namespace: SortedEntry::of(OrderKey::Namespace, slots),
            by_created: SortedEntry::of(OrderKey::Created, slots),
            by_restarts: SortedEntry::of(OrderKey::Restarts, slots),
            ..Self::default()
        };
        for (slot, held) in slots.iter().enumerate() {
            if let Some(held) = held {
                orders.count(slot as CacheSlot, held);
            }
        }
        orders
    }

    /// Adds an object that has just been put into its slot.
    pub fn add_object(&mut self, slots: &SlotList, slot: CacheSlot) {
        let Some(held) = &slots[slot as usize] else { return };
        let read = held.kept.read();
        for (by, sorted) in self.all_sorted() {
            sorted.insert(by, slots, &OrderProbe::of(by, slot, &read, &held.status));
        }
        self.count(slot, held);
    }

    /// Removes an object that has just left its slot.
    pub fn remove_object(&mut self, slots: &SlotList, slot: CacheSlot, held: &SlotContent) {
        let read = held.kept.read();
        for (by, sorted) in self.all_sorted() {
            sorted.remove(by, slots, &OrderProbe::of(by, slot, &read, &held.status));
        }
        self.subtract_counts(slot, held);
    }

    /// Replaces the version of an object in its slot. Its name and creation time are unchanged.
    pub fn replace_version(&mut self, slots: &SlotList, slot: CacheSlot, before: &SlotContent) {
        let Some(held) = &slots[slot as usize] else { return };
        if held.status.attempt != before.status.attempt {
            let probe = |held: &'_ SlotContent| held.status.attempt;
            let read = held.kept.read();
            let was = OrderProbe {
                number: probe(before),
                ..OrderProbe::of(OrderKey::Restarts, slot, &read, &held.status)
            };
            self.by_restarts.remove(OrderKey::Restarts, slots, &was);
            self.by_restarts.insert(OrderKey::Restarts, slots, &OrderProbe { number: probe(held), ..was });
        }
        let is_same =
            before.kept.read().seq == held.kept.read().seq && before.status.phase == held.status.phase;
        if !is_same {
            // In this order, the phase of a namespace's only object is not removed and added again.
            self.count(slot, held);
            self.subtract_counts(slot, before);
        }
    }

    fn all_sorted(&mut self) -> [(OrderKey, &mut SortedEntry); 4] {
        let Self { by_name, by_namespace, by_created, by_restarts, .. } = self;
        [
            (OrderKey::Name, by_name),
            (OrderKey::Namespace, by_namespace),
            (OrderKey::Created, by_created),
            (OrderKey::Restarts, by_restarts),
        ]
    }

    fn count(&mut self, slot: CacheSlot, held: &SlotContent) {
        let (read, phase) = (held.kept.read(), &held.status.phase);
        self.changes.insert(phase, read.seq, slot);
        change_value_of(&mut self.namespaces, read.namespace, |changes| {
            changes.insert(phase, read.seq, slot);
        });
    }

    fn subtract_counts(&mut self, slot: CacheSlot, held: &SlotContent) {
        let (read, phase) = (held.kept.read(), &held.status.phase);
        self.changes.remove(phase, read.seq, slot);
        let Some(changes) = self.namespaces.get_mut(read.namespace) else { return };
        changes.remove(phase, read.seq, slot);
        if changes.is_empty() {
            self.namespaces.remove(read.namespace);
        }
    }

    /// At most so many slots after a position, in order. For orders by changes and by phases, the slots of a
    /// given namespace and phase are stored separately.
    pub fn page_of_slots(
        &self,
        slots: &SlotList,
        order: ObjectOrder,
        (namespace, phase): (Option<&str>, Option<&str>),
        beyond: Option<&OrderPosition>,
        most: usize,
    ) -> Vec<CacheSlot> {
        let changes = match namespace {
            None => Some(&self.changes),
            Some(namespace) => self.namespaces.get(namespace),
        };
        match order.by {
            OrderKey::Name => self.by_name.slots_beyond(order, slots, beyond, most),
            OrderKey::Namespace => self.by_namespace.slots_beyond(order, slots, beyond, most),
            OrderKey::Created => self.by_created.slots_beyond(order, slots, beyond, most),
            OrderKey::Restarts => self.by_restarts.slots_beyond(order, slots, beyond, most),
            OrderKey::Changed => {
                changes.map_or_else(Vec::new, |changes| changes.first_changed(order, phase, beyond, most))
            }
            OrderKey::Phase => {
                changes.map_or_else(Vec::new, |changes| changes.by_phase(order, phase, beyond, most))
            }
        }
    }

    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        let Self { by_name, by_namespace, by_created, by_restarts, changes, namespaces } = self;
        let sorted = [by_name, by_namespace, by_created, by_restarts]
            .map(|sorted_entries| sorted_entries.0.end_position() == (0, 0));
        sorted == [true; 4] && changes.is_empty() && namespaces.is_empty()
    }

    /// The number of objects in a phase.
    pub fn in_phase(&self, phase: &str) -> usize {
        self.changes.of_phase(Some(phase)).map(|(_, changes)| changes.len()).sum()
    }

    pub fn in_namespace(&self, namespace: &str) -> usize {
        self.namespaces.get(namespace).map_or(0, ChangePositions::len)
    }

    pub fn slots_in_phase(&self, phase: &str) -> Vec<CacheSlot> {
        let mut slots: Vec<CacheSlot> = self.changes.slots_of_phase(phase).collect();
        slots.sort_unstable();
        slots
    }

    /// Counts the objects of a namespace, or of all, and of a phase, or of all.
    pub fn tally_objects(&self, namespace: Option<&str>, phase: Option<&str>, counts: &mut ObjectCounts) {
        let is_asked = |name: &str| namespace.is_none_or(|asked| asked == name);
        for (name, changes) in self.namespaces.iter().filter(|(name, _)| is_asked(name)) {
            let mut any = false;
            for (of, changes) in changes.of_phase(phase) {
                change_value_of(&mut counts.phases, of, |total| *total += changes.len() as u64);
                any = true;
            }
            if any && counts.namespaces.len() < NAMESPACES {
                counts.namespaces.insert(name.clone());
            }
        }
    }
}
