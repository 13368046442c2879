//! The ends of the chains of objects that the writer remembers: an object's next state continues there.
//! The writer keeps one for each live object, so each is small.

use std::cmp::Ordering;
use std::hash::{BuildHasher, Hash, RandomState};
use std::mem;

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use kubewitness_core::{ObjectRef, Seq, Version};

/// An object by 96 bits of keyed hashes. The whole name would be 400 bytes for each live object,
/// and two of a million that meet here are not to be expected in a thousand million years.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Mark([u32; 3]);

impl Mark {
    /// Random enough to find it by.
    fn hash(self) -> u64 {
        u64::from(self.0[0]) << 32 | u64::from(self.0[1])
    }
}

/// The keys of [`Mark`]s: random, so that nobody can make two objects meet.
#[derive(Debug, Default)]
pub(crate) struct Marks(RandomState, RandomState);

impl Marks {
    pub fn of(&self, source: &str, object: &ObjectRef) -> Mark {
        self.hashed((source, &object.group, &object.kind, &object.uid))
    }

    /// Of whoever has the object's name.
    pub fn of_name(&self, source: &str, object: &ObjectRef) -> Mark {
        self.hashed((source, &object.group, &object.kind, &object.namespace, &object.name))
    }

    fn hashed(&self, parts: impl Hash + Copy) -> Mark {
        let (one, other) = (self.0.hash_one(parts), self.1.hash_one(parts));
        Mark([(one >> 32) as u32, one as u32, other as u32])
    }
}

/// The end of an object's chain.
#[derive(Debug, Default)]
pub(crate) struct Tail {
    mark: Mark,
    /// Its number in the current epoch.
    pub object: i64,
    /// The owner that it was first seen with; 0 for none.
    pub owner: i64,
    pub stream: u32,
    pub checksum: u32,
    /// The state that was journaled last, 0 before the first.
    pub seq: Seq,
    /// The greatest version that was journaled, where it is a number; 0 where it is none or rare.
    number: u64,
    pub newest_seq: Seq,
    pub depth: u8,
    pub has_document: bool,
    /// Whether it is kept as a current object.
    pub live: bool,
    /// What few objects have.
    rare: Option<Box<Rare>>,
}

#[derive(Debug, Default)]
struct Rare {
    /// The greatest version, where it is no number.
    version: Option<Version>,
    /// The current object of an epoch before this one, which the first certain state replaces.
    older: Option<Older>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Older {
    pub object: i64,
    pub newest: Seq,
    pub tail: Seq,
}

impl Tail {
    /// Of an object of which nothing was journaled yet.
    pub fn of(object: i64, stream: u32, owner: i64) -> Self {
        Self { object, stream, owner, ..Self::default() }
    }

    /// How a version stands to the greatest that was journaled; `None` also where there is none.
    pub fn compare(&self, version: &Version) -> Option<Ordering> {
        match version.number() {
            Some(number) if self.number != 0 => Some(number.cmp(&self.number)),
            _ => version.compare(&self.newest()?),
        }
    }

    /// Whether no state with this version can be there.
    pub fn is_older_than(&self, version: &Version) -> bool {
        match self.compare(version) {
            Some(order) => order == Ordering::Greater,
            None => !self.has_version(),
        }
    }

    fn has_version(&self) -> bool {
        self.number != 0 || self.rare.as_ref().is_some_and(|rare| rare.version.is_some())
    }

    fn newest(&self) -> Option<Version> {
        match self.number {
            0 => self.rare.as_ref()?.version.clone(),
            number => Some(Version::new(&number.to_string())),
        }
    }

    pub fn set_newest(&mut self, version: Option<&Version>, seq: Seq) {
        self.newest_seq = seq;
        self.number = version.and_then(Version::number).unwrap_or_default();
        let other = version.filter(|_| self.number == 0).cloned();
        if other.is_some() || self.rare.is_some() {
            self.rare.get_or_insert_default().version = other;
            self.tidy();
        }
    }

    pub fn older(&self) -> Option<Older> {
        self.rare.as_ref()?.older
    }

    pub fn set_older(&mut self, older: Option<Older>) {
        if older.is_some() || self.rare.is_some() {
            self.rare.get_or_insert_default().older = older;
            self.tidy();
        }
    }

    fn tidy(&mut self) {
        self.rare.take_if(|rare| rare.version.is_none() && rare.older.is_none());
    }

    /// What an object of the next epoch has to replace.
    pub fn as_older(&self) -> Option<Older> {
        match self.live {
            true => Some(Older { object: self.object, newest: self.newest_seq, tail: self.seq }),
            false => self.older(),
        }
    }
}

/// All that are remembered. They lie side by side, and the table that finds them holds places.
#[derive(Debug, Default)]
pub(crate) struct Tails {
    places: HashTable<u32>,
    tails: Vec<Tail>,
}

impl Tails {
    pub fn len(&self) -> usize {
        self.tails.len()
    }

    pub fn clear(&mut self) {
        *self = Self::default();
    }

    fn place(&self, mark: Mark) -> Option<usize> {
        let is_it = |place: &u32| self.tails[*place as usize].mark == mark;
        self.places.find(mark.hash(), is_it).map(|place| *place as usize)
    }

    pub fn get(&self, mark: Mark) -> Option<&Tail> {
        self.place(mark).map(|place| &self.tails[place])
    }

    /// Takes the content out of its place, which [`insert`](Self::insert) fills again.
    pub fn take(&mut self, mark: Mark) -> Option<Tail> {
        let place = self.place(mark)?;
        let empty = Tail { mark, ..Tail::default() };
        Some(mem::replace(&mut self.tails[place], empty))
    }

    pub fn insert(&mut self, mark: Mark, tail: Tail) {
        let tail = Tail { mark, ..tail };
        let Self { places, tails } = self;
        let is_it = |place: &u32| tails[*place as usize].mark == mark;
        match places.entry(mark.hash(), is_it, |place| tails[*place as usize].mark.hash()) {
            Entry::Occupied(place) => tails[*place.get() as usize] = tail,
            Entry::Vacant(vacant) => {
                vacant.insert(tails.len() as u32);
                // Doubling would hold as much room as there is content.
                if tails.len() == tails.capacity() {
                    tails.reserve_exact((tails.len() / 8).max(64));
                }
                tails.push(tail);
            }
        }
    }

    pub fn remove(&mut self, mark: Mark) -> Option<Tail> {
        let Self { places, tails } = self;
        let is_it = |place: &u32| tails[*place as usize].mark == mark;
        let place = places.find_entry(mark.hash(), is_it).ok()?.remove().0;
        let last = tails.len() as u32 - 1;
        if place != last {
            // The last moves into the hole.
            let hash = tails[last as usize].mark.hash();
            if let Some(moved) = places.find_mut(hash, |other| *other == last) {
                *moved = place;
            }
        }
        Some(tails.swap_remove(place as usize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::collections::HashMap;

    use proptest::prelude::*;

    fn mark(number: u32) -> Mark {
        // Two marks of one hash, so that they meet in the table.
        Mark([0, number / 2, number])
    }

    proptest! {
        #[test]
        fn they_are_found_as_in_a_map(steps in proptest::collection::vec((0..12_u32, 0..3_u8), 0..200)) {
            let (mut tails, mut model) = (Tails::default(), HashMap::new());
            for (seq, (number, action)) in (1..).zip(steps) {
                match action {
                    0 => {
                        tails.insert(mark(number), Tail { seq, ..Tail::default() });
                        model.insert(number, seq);
                    }
                    1 => prop_assert_eq!(
                        tails.remove(mark(number)).map(|tail| tail.seq),
                        model.remove(&number)
                    ),
                    _ => {
                        if let Some(tail) = tails.take(mark(number)) {
                            tails.insert(mark(number), tail);
                        }
                    }
                }
                prop_assert_eq!(tails.len(), model.len());
                for number in 0..12 {
                    let found = tails.get(mark(number)).map(|tail| tail.seq);
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
            let mut tail = Tail::default();
            assert_eq!(tail.compare(&Version::new(version)), None);
            assert!(tail.is_older_than(&Version::new(version)));
            tail.set_newest(Some(&Version::new(newest)), 3);
            assert_eq!(tail.compare(&Version::new(version)), order, "{version} and {newest}");
            assert_eq!(tail.is_older_than(&Version::new(version)), order == Some(Ordering::Greater));
            let older = Older { object: 1, newest: 2, tail: 3 };
            tail.set_older(Some(older));
            assert_eq!(tail.compare(&Version::new(version)), order);
            tail.set_older(None);
            tail.set_newest(None, 0);
            assert!(tail.rare.is_none() && !tail.has_version());
        }
    }

    #[test]
    fn one_takes_less_than_100_bytes() {
        assert!(size_of::<Tail>() <= 72, "{} bytes", size_of::<Tail>());
    }
}
