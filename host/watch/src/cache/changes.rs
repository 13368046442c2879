//! Orders objects by phase and last change, so that the objects of one phase are found and counted without a
//! search.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use kubewitness_core::order::{ObjectOrder, OrderPosition};

use super::CacheSlot;

/// Positions of last changes.
#[derive(Default)]
pub(super) struct ChangePositions(BTreeMap<String, BTreeSet<(u64, CacheSlot)>>);

impl ChangePositions {
    pub fn insert(&mut self, phase: &str, seq: u64, slot: CacheSlot) {
        change_value_of(&mut self.0, phase, |changes| {
            changes.insert((seq, slot));
        });
    }

    pub fn remove(&mut self, phase: &str, seq: u64, slot: CacheSlot) {
        let Some(changes) = self.0.get_mut(phase) else { return };
        changes.remove(&(seq, slot));
        if changes.is_empty() {
            self.0.remove(phase);
        }
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn len(&self) -> usize {
        self.0.values().map(BTreeSet::len).sum()
    }

    pub fn slots_of_phase(&self, phase: &str) -> impl Iterator<Item = CacheSlot> {
        self.of_phase(Some(phase)).flat_map(|(_, changes)| changes).map(|(_, slot)| *slot)
    }

    pub fn of_phase(
        &self,
        phase: Option<&str>,
    ) -> impl DoubleEndedIterator<Item = (&str, &BTreeSet<(u64, CacheSlot)>)> {
        let is_asked = move |name: &str| phase.is_none_or(|phase| phase.eq_ignore_ascii_case(name));
        self.0.iter().filter(move |(name, _)| is_asked(name)).map(|(name, changes)| (&**name, changes))
    }

    /// Reads as many objects of each phase as are wanted, and returns the first of all of them.
    pub fn first_changed(
        &self,
        order: ObjectOrder,
        phase: Option<&str>,
        beyond: Option<&OrderPosition>,
        most: usize,
    ) -> Vec<CacheSlot> {
        let mut found: Vec<(u64, CacheSlot)> = Vec::new();
        for (_, changes) in self.of_phase(phase) {
            match order.is_descending() {
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
        match order.is_descending() {
            true => found.sort_unstable_by(|a, b| b.cmp(a)),
            false => found.sort_unstable(),
        }
        found.truncate(most);
        found.into_iter().map(|(_, slot)| slot).collect()
    }

    /// Reads phase by phase. The number of a position counts down from the greatest one, so the newest comes
    /// first.
    pub fn by_phase(
        &self,
        order: ObjectOrder,
        phase: Option<&str>,
        beyond: Option<&OrderPosition>,
        most: usize,
    ) -> Vec<CacheSlot> {
        let mut found = Vec::new();
        let phases: Vec<_> = match order.is_descending() {
            false => self.of_phase(phase).collect(),
            true => self.of_phase(phase).rev().collect(),
        };
        for (name, changes) in phases {
            let of_place = beyond.map(|place| (name.cmp(&place.text), u64::MAX - place.number));
            let slot = |(_, slot): &(u64, CacheSlot)| *slot;
            let wanted = most - found.len();
            match (order.is_descending(), of_place) {
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
}

/// Applies `change` to the value of a name. The name is copied only if it is new.
pub(super) fn change_value_of<T: Default>(
    map: &mut BTreeMap<String, T>,
    name: &str,
    change: impl FnOnce(&mut T),
) {
    match map.get_mut(name) {
        Some(found) => change(found),
        None => change(map.entry(name.to_owned()).or_default()),
    }
}
