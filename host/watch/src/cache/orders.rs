//! The orders of a source's objects: a page of any of them is read without a look at the other objects.
//!
//! A name, a namespace, a creation and an attempt are entries of eight bytes in chunks. An entry has a number and a slot; where
//! numbers are equal, the objects themselves are compared. Changes are kept by phase, so that the objects of one phase
//! are found and counted, too.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use kubewitness_core::order::{By, Order, Place, Placed};
use kubewitness_core::state::Status;
use kubewitness_core::views::{Counts, NAMESPACES};

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
    /// Positions of last changes.
    phases: BTreeMap<String, BTreeSet<(u64, Slot)>>,
    /// By namespace and phase.
    counts: BTreeMap<String, BTreeMap<String, u64>>,
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
        if held.status.phase == before.status.phase {
            if let Some(changes) = self.phases.get_mut(&held.status.phase) {
                changes.remove(&(before.kept.read().seq, slot));
                changes.insert((held.kept.read().seq, slot));
            }
            return;
        }
        self.discount(slot, before);
        self.count(slot, held);
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
        with(&mut self.phases, phase, |changes| {
            changes.insert((read.seq, slot));
        });
        with(&mut self.counts, read.namespace, |phases| with(phases, phase, |count| *count += 1));
    }

    fn discount(&mut self, slot: Slot, held: &Held) {
        let (read, phase) = (held.kept.read(), &held.status.phase);
        if let Some(changes) = self.phases.get_mut(phase) {
            changes.remove(&(read.seq, slot));
            if changes.is_empty() {
                self.phases.remove(phase);
            }
        }
        let Some(of_namespace) = self.counts.get_mut(read.namespace) else { return };
        if let Some(count) = of_namespace.get_mut(phase) {
            *count -= 1;
            if *count == 0 {
                of_namespace.remove(phase);
            }
        }
        if of_namespace.is_empty() {
            self.counts.remove(read.namespace);
        }
    }

    /// The slots behind a place, in order, at most so many; of one phase where one is named.
    pub fn page(
        &self,
        slots: &Slots,
        (order, phase): (Order, Option<&str>),
        beyond: Option<&Place>,
        most: usize,
    ) -> Vec<Slot> {
        match order.by {
            By::Name => self.by_name.beyond(order, slots, beyond, most),
            By::Namespace => self.by_namespace.beyond(order, slots, beyond, most),
            By::Created => self.by_created.beyond(order, slots, beyond, most),
            By::Restarts => self.by_restarts.beyond(order, slots, beyond, most),
            By::Changed => self.changed(order, phase, beyond, most),
            By::Phase => self.by_phase(order, phase, beyond, most),
        }
    }

    fn of_phase(
        &self,
        phase: Option<&str>,
    ) -> impl DoubleEndedIterator<Item = (&str, &BTreeSet<(u64, Slot)>)> {
        let is_asked = move |name: &str| phase.is_none_or(|phase| phase.eq_ignore_ascii_case(name));
        self.phases.iter().filter(move |(name, _)| is_asked(name)).map(|(name, changes)| (&**name, changes))
    }

    /// Of each phase as many as are wanted, and the first of all of these.
    fn changed(&self, order: Order, phase: Option<&str>, beyond: Option<&Place>, most: usize) -> Vec<Slot> {
        let mut found: Vec<(u64, Slot)> = Vec::new();
        for (_, changes) in self.of_phase(phase) {
            match order.descends() {
                true => {
                    let below = (beyond.map_or(u64::MAX, |place| place.number), 0);
                    found.extend(changes.range(..below).rev().take(most));
                }
                false => {
                    let from = beyond.map_or((0, 0), |place| (place.number.saturating_add(1), 0));
                    found.extend(changes.range(from..).take(most));
                }
            }
        }
        match order.descends() {
            true => found.sort_unstable_by(|a, b| b.cmp(a)),
            false => found.sort_unstable(),
        }
        found.truncate(most);
        found.into_iter().map(|(_, slot)| slot).collect()
    }

    /// Phase by phase. A number of a place counts down from the greatest position, so the newest comes first.
    fn by_phase(&self, order: Order, phase: Option<&str>, beyond: Option<&Place>, most: usize) -> Vec<Slot> {
        let mut found = Vec::new();
        let phases: Vec<_> = match order.descends() {
            false => self.of_phase(phase).collect(),
            true => self.of_phase(phase).rev().collect(),
        };
        for (name, changes) in phases {
            let of_place = beyond.map(|place| (name.cmp(&place.text), u64::MAX - place.number));
            let slot = |(_, slot): &(u64, Slot)| *slot;
            let wanted = most - found.len();
            match (order.descends(), of_place) {
                (false, Some((Ordering::Less, _))) | (true, Some((Ordering::Greater, _))) => {}
                (false, Some((Ordering::Equal, seq))) => {
                    found.extend(changes.range(..(seq, 0)).rev().take(wanted).map(slot));
                }
                (true, Some((Ordering::Equal, seq))) => {
                    let from = (seq.saturating_add(1), 0);
                    found.extend(changes.range(from..).take(wanted).map(slot));
                }
                (false, _) => found.extend(changes.iter().rev().take(wanted).map(slot)),
                (true, _) => found.extend(changes.iter().take(wanted).map(slot)),
            }
        }
        found
    }

    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        let Self { by_name, by_namespace, by_created, by_restarts, phases, counts } = self;
        let sorted = [by_name, by_namespace, by_created, by_restarts].map(|it| it.0.end() == (0, 0));
        sorted == [true; 4] && phases.is_empty() && counts.is_empty()
    }

    /// How many objects are in a phase.
    pub fn in_phase(&self, phase: &str) -> usize {
        self.of_phase(Some(phase)).map(|(_, changes)| changes.len()).sum()
    }

    pub fn slots_in_phase(&self, phase: &str) -> Vec<Slot> {
        let mut slots: Vec<Slot> =
            self.of_phase(Some(phase)).flat_map(|(_, changes)| changes).map(|(_, slot)| *slot).collect();
        slots.sort_unstable();
        slots
    }

    /// Adds the objects of a namespace, or of all, and of a phase, or of all.
    pub fn tally(&self, namespace: Option<&str>, phase: Option<&str>, counts: &mut Counts) {
        let is_asked = |name: &str| namespace.is_none_or(|asked| asked == name);
        for (name, phases) in self.counts.iter().filter(|(name, _)| is_asked(name)) {
            let mut any = false;
            for (of, count) in phases {
                if phase.is_none_or(|phase| phase.eq_ignore_ascii_case(of)) {
                    with(&mut counts.phases, of, |all| *all += count);
                    any = true;
                }
            }
            if any && counts.namespaces.len() < NAMESPACES {
                counts.namespaces.insert(name.clone());
            }
        }
    }
}

/// Changes the value of a name, which is copied only if it is new.
fn with<T: Default>(map: &mut BTreeMap<String, T>, name: &str, change: impl FnOnce(&mut T)) {
    match map.get_mut(name) {
        Some(found) => change(found),
        None => change(map.entry(name.to_owned()).or_default()),
    }
}
