//! The orders of a source's objects: a page of any of them is read without a look at the other objects.
//!
//! A name, a namespace, a creation and an attempt are entries of eight bytes in chunks. An entry has a number and a slot;
//! where numbers are equal, the objects themselves are compared. Changes are kept by phase, of all objects and of those of
//! each namespace: most people ask for one.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use kubewitness_core::order::{By, Order, Place, Placed};
use kubewitness_core::state::Status;
use kubewitness_core::views::{Counts, NAMESPACES};

use super::changes::{Changes, with};
use super::multimap::{At, Chunks};
use super::record::{Read, Uid};
use super::{Held, Slot};

type Slots = [Option<Held>];

#[derive(Default)]
pub(super) struct Orders {
    by_name: Sorted,
    by_namespace: Sorted,
    by_created: Sorted,
    by_restarts: Sorted,
    changes: Changes,
    namespaces: BTreeMap<String, Changes>,
}

impl Read<'_> {
    pub(super) fn place(&self, order: Order, status: &Status) -> Place {
        let Self { seq, created_s, namespace, name, .. } = *self;
        let placed = Placed { seq, created_s, namespace, name, status };
        order.place(&placed, || self.uid.text())
    }
}

/// What an entry is compared by.
struct Probe<'a> {
    number: u32,
    slot: Slot,
    names: [&'a str; 2],
    uid: Uid<'a>,
}

impl<'a> Probe<'a> {
    fn of(by: By, slot: Slot, read: &Read<'a>, status: &Status) -> Self {
        let number = match by {
            By::Created => read.created_s,
            By::Restarts => status.attempt,
            _ => 0,
        };
        Self { number, slot, names: names(by, read), uid: read.uid }
    }

    fn word(&self) -> u64 {
        u64::from(self.number) << 32 | u64::from(self.slot)
    }
}

/// Of an order of names: the namespace, if it is one of namespaces, and the name.
fn names<'a>(by: By, read: &Read<'a>) -> [&'a str; 2] {
    match by {
        By::Name => ["", read.name],
        By::Namespace => [read.namespace, read.name],
        By::Changed | By::Created | By::Phase | By::Restarts => ["", ""],
    }
}

/// Entries by number, and then by the names, if it is an order of names, and the uid.
#[derive(Default)]
struct Sorted(Chunks);

impl Sorted {
    fn of<'a>(by: By, slots: &'a Slots) -> Self {
        let entry = |(slot, held): (usize, &'a Option<Held>)| {
            let held = held.as_ref()?;
            let (slot, read) = (slot as Slot, held.kept.read());
            let probe = Probe::of(by, slot, &read, &held.status);
            Some((probe.number, probe.names, probe.uid, probe.word()))
        };
        let mut entries: Vec<_> = slots.iter().enumerate().filter_map(entry).collect();
        entries.sort_unstable();
        Self(Chunks::of(&entries.into_iter().map(|(.., word)| word).collect::<Vec<_>>()))
    }

    fn place(&self, by: By, slots: &Slots, probe: &Probe<'_>) -> Result<At, At> {
        self.0.place(|word| {
            let (number, slot) = ((word >> 32) as u32, word as Slot);
            number.cmp(&probe.number).then_with(|| {
                let held = slots.get(slot as usize).and_then(Option::as_ref);
                match held.filter(|_| slot != probe.slot) {
                    None => Ordering::Equal,
                    Some(held) => {
                        let read = held.kept.read();
                        names(by, &read).cmp(&probe.names).then_with(|| read.uid.cmp(&probe.uid))
                    }
                }
            })
        })
    }

    fn insert(&mut self, by: By, slots: &Slots, probe: &Probe<'_>) {
        if let Err(at) = self.place(by, slots, probe) {
            self.0.insert(at, probe.word());
        }
    }

    fn remove(&mut self, by: By, slots: &Slots, probe: &Probe<'_>) {
        if let Ok(at) = self.place(by, slots, probe) {
            self.0.remove(at);
        }
    }

    /// The slots behind a place, at most so many.
    fn beyond(&self, order: Order, slots: &Slots, place: Option<&Place>, most: usize) -> Vec<Slot> {
        let at = place.map(|place| {
            let (namespace, name) = match order.by {
                By::Namespace => place.text.split_once(' ').unwrap_or_default(),
                _ => ("", &*place.text),
            };
            let probe = Probe {
                number: u32::try_from(place.number).unwrap_or(u32::MAX),
                slot: Slot::MAX,
                names: [namespace, name],
                uid: Uid::of(&place.uid),
            };
            self.place(order.by, slots, &probe)
        });
        let slot = |word: u64| word as Slot;
        match order.descends() {
            false => {
                let from = match at {
                    None => (0, 0),
                    Some(Ok((chunk, place))) => (chunk, place + 1),
                    Some(Err(at)) => at,
                };
                self.0.from(from).take(most).map(slot).collect()
            }
            true => {
                let (Ok(to) | Err(to)) = at.unwrap_or_else(|| Err(self.0.end()));
                self.0.before(to).take(most).map(slot).collect()
            }
        }
    }
}

impl Orders {
    /// Of all objects at once.
    pub fn of(slots: &Slots) -> Self {
        let mut orders = Self {
            by_name: Sorted::of(By::Name, slots),
            by_namespace: Sorted::of(By::Namespace, slots),
            by_created: Sorted::of(By::Created, slots),
            by_restarts: Sorted::of(By::Restarts, slots),
            ..Self::default()
        };
        for (slot, held) in slots.iter().enumerate() {
            if let Some(held) = held {
                orders.count(slot as Slot, held);
            }
        }
        orders
    }

    /// An object that has just come into its slot.
    pub fn enter(&mut self, slots: &Slots, slot: Slot) {
        let Some(held) = &slots[slot as usize] else { return };
        let read = held.kept.read();
        for (by, sorted) in self.sorted() {
            sorted.insert(by, slots, &Probe::of(by, slot, &read, &held.status));
        }
        self.count(slot, held);
    }

    /// An object that has just left its slot.
    pub fn leave(&mut self, slots: &Slots, slot: Slot, held: &Held) {
        let read = held.kept.read();
        for (by, sorted) in self.sorted() {
            sorted.remove(by, slots, &Probe::of(by, slot, &read, &held.status));
        }
        self.discount(slot, held);
    }

    /// An object in its slot that was another version before. Its name and its creation are what they were.
    pub fn change(&mut self, slots: &Slots, slot: Slot, before: &Held) {
        let Some(held) = &slots[slot as usize] else { return };
        if held.status.attempt != before.status.attempt {
            let probe = |held: &'_ Held| held.status.attempt;
            let read = held.kept.read();
            let was = Probe { number: probe(before), ..Probe::of(By::Restarts, slot, &read, &held.status) };
            self.by_restarts.remove(By::Restarts, slots, &was);
            self.by_restarts.insert(By::Restarts, slots, &Probe { number: probe(held), ..was });
        }
        let is_same =
            before.kept.read().seq == held.kept.read().seq && before.status.phase == held.status.phase;
        if !is_same {
            // In this order, the phase of the only object of a namespace is not taken away and made anew.
            self.count(slot, held);
            self.discount(slot, before);
        }
    }

    fn sorted(&mut self) -> [(By, &mut Sorted); 4] {
        let Self { by_name, by_namespace, by_created, by_restarts, .. } = self;
        [
            (By::Name, by_name),
            (By::Namespace, by_namespace),
            (By::Created, by_created),
            (By::Restarts, by_restarts),
        ]
    }

    fn count(&mut self, slot: Slot, held: &Held) {
        let (read, phase) = (held.kept.read(), &held.status.phase);
        self.changes.insert(phase, read.seq, slot);
        with(&mut self.namespaces, read.namespace, |changes| changes.insert(phase, read.seq, slot));
    }

    fn discount(&mut self, slot: Slot, held: &Held) {
        let (read, phase) = (held.kept.read(), &held.status.phase);
        self.changes.remove(phase, read.seq, slot);
        let Some(changes) = self.namespaces.get_mut(read.namespace) else { return };
        changes.remove(phase, read.seq, slot);
        if changes.is_empty() {
            self.namespaces.remove(read.namespace);
        }
    }

    /// The slots behind a place, in order, at most so many. Orders by changes and by phases have those of one namespace
    /// and of one phase apart, where they are named.
    pub fn page(
        &self,
        slots: &Slots,
        order: Order,
        (namespace, phase): (Option<&str>, Option<&str>),
        beyond: Option<&Place>,
        most: usize,
    ) -> Vec<Slot> {
        let changes = match namespace {
            None => Some(&self.changes),
            Some(namespace) => self.namespaces.get(namespace),
        };
        match order.by {
            By::Name => self.by_name.beyond(order, slots, beyond, most),
            By::Namespace => self.by_namespace.beyond(order, slots, beyond, most),
            By::Created => self.by_created.beyond(order, slots, beyond, most),
            By::Restarts => self.by_restarts.beyond(order, slots, beyond, most),
            By::Changed => {
                changes.map_or_else(Vec::new, |changes| changes.changed(order, phase, beyond, most))
            }
            By::Phase => {
                changes.map_or_else(Vec::new, |changes| changes.by_phase(order, phase, beyond, most))
            }
        }
    }

    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        let Self { by_name, by_namespace, by_created, by_restarts, changes, namespaces } = self;
        let sorted = [by_name, by_namespace, by_created, by_restarts].map(|it| it.0.end() == (0, 0));
        sorted == [true; 4] && changes.is_empty() && namespaces.is_empty()
    }

    /// How many objects are in a phase.
    pub fn in_phase(&self, phase: &str) -> usize {
        self.changes.of_phase(Some(phase)).map(|(_, changes)| changes.len()).sum()
    }

    pub fn in_namespace(&self, namespace: &str) -> usize {
        self.namespaces.get(namespace).map_or(0, Changes::len)
    }

    pub fn slots_in_phase(&self, phase: &str) -> Vec<Slot> {
        let mut slots: Vec<Slot> = self.changes.slots(phase).collect();
        slots.sort_unstable();
        slots
    }

    /// Adds the objects of a namespace, or of all, and of a phase, or of all.
    pub fn tally(&self, namespace: Option<&str>, phase: Option<&str>, counts: &mut Counts) {
        let is_asked = |name: &str| namespace.is_none_or(|asked| asked == name);
        for (name, changes) in self.namespaces.iter().filter(|(name, _)| is_asked(name)) {
            let mut any = false;
            for (of, changes) in changes.of_phase(phase) {
                with(&mut counts.phases, of, |all| *all += changes.len() as u64);
                any = true;
            }
            if any && counts.namespaces.len() < NAMESPACES {
                counts.namespaces.insert(name.clone());
            }
        }
    }
}
