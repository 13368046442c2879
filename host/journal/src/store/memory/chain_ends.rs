//! The ends of the objects' chains in the writer's memory: an object's next state continues there. The writer
//! keeps one for each live object, so each is small.

use std::cmp::Ordering;
use std::hash::{BuildHasher, Hash, RandomState};
use std::mem;

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use kubewitness_core::{ObjectRef, Seq, Version};

/// Identifies an object by 96 bits of keyed hashes. The full name would take 400 bytes for each live object.
/// Among a million objects, a collision is expected once in more than a thousand million years.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct ObjectMark([u32; 3]);

impl ObjectMark {
    /// Random enough for a hash table.
    fn hash_bits(self) -> u64 {
        u64::from(self.0[0]) << 32 | u64::from(self.0[1])
    }
}

/// The keys of [`ObjectMark`]s. They are random, so that nobody can make two objects collide.
#[derive(Debug, Default)]
pub(crate) struct MarkKeys(RandomState, RandomState);

impl MarkKeys {
    pub fn mark_of(&self, source: &str, object: &ObjectRef) -> ObjectMark {
        self.hash_parts((source, &object.group, &object.kind, &object.uid))
    }

    /// The mark of the present holder of a name.
    pub fn of_name(&self, source: &str, object: &ObjectRef) -> ObjectMark {
        self.hash_parts((source, &object.group, &object.kind, &object.namespace, &object.name))
    }

    fn hash_parts(&self, parts: impl Hash + Copy) -> ObjectMark {
        let (first, second) = (self.0.hash_one(parts), self.1.hash_one(parts));
        ObjectMark([(first >> 32) as u32, first as u32, second as u32])
    }
}

/// The end of an object's chain.
#[derive(Debug, Default)]
pub(crate) struct ChainEnd {
    mark: ObjectMark,
    /// Its number in the current epoch.
    pub object: i64,
    /// The owner with which it was first seen; 0 if it had none.
    pub owner: i64,
    pub stream: u32,
    pub checksum: u32,
    /// The position of the last journaled state; 0 before the first.
    pub seq: Seq,
    /// The greatest journaled version, if it is numeric; 0 if it is not or none exists.
    number: u64,
    pub newest_seq: Seq,
    pub depth: u8,
    pub has_document: bool,
    /// Whether it is stored as a current object.
    pub live: bool,
    /// Values that few objects have.
    rare: Option<Box<RareEnds>>,
}

#[derive(Debug, Default)]
struct RareEnds {
    /// The greatest version, unless it is numeric.
    version: Option<Version>,
    /// The current object of a previous epoch. The first certain state replaces it.
    older: Option<OlderEnds>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct OlderEnds {
    pub object: i64,
    pub newest: Seq,
    pub end: Seq,
}

impl ChainEnd {
    /// The end of a chain without states.
    pub fn of(object: i64, stream: u32, owner: i64) -> Self {
        Self { object, stream, owner, ..Self::default() }
    }

    /// Compares a version with the greatest journaled one; `None` also if none exists.
    pub fn compare_version(&self, version: &Version) -> Option<Ordering> {
        match version.as_number() {
            Some(number) if self.number != 0 => Some(number.cmp(&self.number)),
            _ => version.compare_to(&self.newest_version()?),
        }
    }

    /// Whether no state can exist with this version.
    pub fn is_older_than(&self, version: &Version) -> bool {
        match self.compare_version(version) {
            Some(order) => order == Ordering::Greater,
            None => !self.has_version(),
        }
    }

    fn has_version(&self) -> bool {
        self.number != 0 || self.rare.as_ref().is_some_and(|rare| rare.version.is_some())
    }

    fn newest_version(&self) -> Option<Version> {
        match self.number {
            0 => self.rare.as_ref()?.version.clone(),
            number => Some(Version::new(&number.to_string())),
        }
    }

    pub fn set_newest(&mut self, version: Option<&Version>, seq: Seq) {
        self.newest_seq = seq;
        self.number = version.and_then(Version::as_number).unwrap_or_default();
        let other = version.filter(|_| self.number == 0).cloned();
        if other.is_some() || self.rare.is_some() {
            self.rare.get_or_insert_default().version = other;
            self.drop_empty_rare();
        }
    }

    pub fn older_ends(&self) -> Option<OlderEnds> {
        self.rare.as_ref()?.older
    }

    pub fn set_older(&mut self, older: Option<OlderEnds>) {
        if older.is_some() || self.rare.is_some() {
            self.rare.get_or_insert_default().older = older;
            self.drop_empty_rare();
        }
    }

    fn drop_empty_rare(&mut self) {
        self.rare.take_if(|rare| rare.version.is_none() && rare.older.is_none());
    }

    /// The values that an object of the next epoch replaces.
    pub fn as_older(&self) -> Option<OlderEnds> {
        match self.live {
            true => Some(OlderEnds { object: self.object, newest: self.newest_seq, end: self.seq }),
            false => self.older_ends(),
        }
    }
}

/// All chain ends in memory. They are contiguous, and the hash table has their indexes.
#[derive(Debug, Default)]
pub(crate) struct ChainEnds {
    places: HashTable<u32>,
    ends: Vec<ChainEnd>,
}

impl ChainEnds {
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    pub fn clear(&mut self) {
        *self = Self::default();
    }

    fn place_of(&self, mark: ObjectMark) -> Option<usize> {
        let is_it = |place: &u32| self.ends[*place as usize].mark == mark;
        self.places.find(mark.hash_bits(), is_it).map(|place| *place as usize)
    }

    pub fn get(&self, mark: ObjectMark) -> Option<&ChainEnd> {
        self.place_of(mark).map(|place| &self.ends[place])
    }

    /// Takes the content out of its slot, which [`insert`](Self::insert) fills again.
    pub fn take(&mut self, mark: ObjectMark) -> Option<ChainEnd> {
        let place = self.place_of(mark)?;
        let empty = ChainEnd { mark, ..ChainEnd::default() };
        Some(mem::replace(&mut self.ends[place], empty))
    }

    pub fn insert(&mut self, mark: ObjectMark, end: ChainEnd) {
        let end = ChainEnd { mark, ..end };
        let Self { places, ends } = self;
        let is_it = |place: &u32| ends[*place as usize].mark == mark;
        match places.entry(mark.hash_bits(), is_it, |place| ends[*place as usize].mark.hash_bits()) {
            Entry::Occupied(place) => ends[*place.get() as usize] = end,
            Entry::Vacant(vacant) => {
                vacant.insert(ends.len() as u32);
                // Doubling would reserve as much again as the content takes.
                if ends.len() == ends.capacity() {
                    ends.reserve_exact((ends.len() / 8).max(64));
                }
                ends.push(end);
            }
        }
    }

    pub fn remove(&mut self, mark: ObjectMark) -> Option<ChainEnd> {
        let Self { places, ends } = self;
        let is_it = |place: &u32| ends[*place as usize].mark == mark;
        let place = places.find_entry(mark.hash_bits(), is_it).ok()?.remove().0;
        let last = ends.len() as u32 - 1;
        if place != last {
            // The last end moves into the freed slot.
            let hash = ends[last as usize].mark.hash_bits();
            if let Some(moved) = places.find_mut(hash, |other| *other == last) {
                *moved = place;
            }
        }
        Some(ends.swap_remove(place as usize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::collections::HashMap;

    use proptest::prelude::*;

    fn mark(number: u32) -> ObjectMark {
        // Two marks with the same hash, so that they collide in the table.
        ObjectMark([0, number / 2, number])
    }

    proptest! {
        #[test]
        fn they_are_found_as_in_a_map(steps in proptest::collection::vec((0..12_u32, 0..3_u8), 0..200)) {
            let (mut ends, mut model) = (ChainEnds::default(), HashMap::new());
            for (seq, (number, action)) in (1..).zip(steps) {
                match action {
                    0 => {
                        ends.insert(mark(number), ChainEnd { seq, ..ChainEnd::default() });
                        model.insert(number, seq);
                    }
                    1 => prop_assert_eq!(
                        ends.remove(mark(number)).map(|end| end.seq),
                        model.remove(&number)
                    ),
                    _ => {
                        if let Some(end) = ends.take(mark(number)) {
                            ends.insert(mark(number), end);
                        }
                    }
                }
                prop_assert_eq!(ends.len(), model.len());
                for number in 0..12 {
                    let found = ends.get(mark(number)).map(|end| end.seq);
                    prop_assert_eq!(found, model.get(&number).copied());
                }
            }
        }
    }

    #[test]
    fn a_version_compares_with_the_newest_whether_it_is_a_number_or_not() {
        let long = "340282366920938463463374607431768211456";
        for (newest, version, order) in [
            ("5", "7", Some(Ordering::Greater)),
            ("7", "7", Some(Ordering::Equal)),
            (long, "7", Some(Ordering::Less)),
            ("7", long, Some(Ordering::Greater)),
            (long, long, Some(Ordering::Equal)),
            ("abc", "7", None),
            ("7", "007", None),
            ("abc", "abc", Some(Ordering::Equal)),
        ] {
            let mut end = ChainEnd::default();
            assert_eq!(end.compare_version(&Version::new(version)), None);
            assert!(end.is_older_than(&Version::new(version)));
            end.set_newest(Some(&Version::new(newest)), 3);
            assert_eq!(end.compare_version(&Version::new(version)), order, "{version} and {newest}");
            assert_eq!(end.is_older_than(&Version::new(version)), order == Some(Ordering::Greater));
            let older = OlderEnds { object: 1, newest: 2, end: 3 };
            end.set_older(Some(older));
            assert_eq!(end.compare_version(&Version::new(version)), order);
            end.set_older(None);
            end.set_newest(None, 0);
            assert!(end.rare.is_none() && !end.has_version());
        }
    }

    #[test]
    fn one_takes_less_than_100_bytes() {
        assert!(size_of::<ChainEnd>() <= 72, "{} bytes", size_of::<ChainEnd>());
    }
}
