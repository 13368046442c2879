//! Receipts: which states a plugin has already applied, so that a repeat changes nothing.
//!
//! A receipt is a position and a fingerprint of the state's id. The position alone is not enough: a new journal
//! counts from 1 again, and a database that outlived the old journal must not take new states for old ones.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use kubewitness_core::{Seq, State};

/// Receipts that one plugin may hold above its cursor: about 32 MB. A plugin gets there when one
/// lane holds its cursor while a million other states are finished; it then waits for that lane.
pub const MAX_RECEIPTS: usize = 1_000_000;

/// Bytes of one receipt in a database: the position and the fingerprint, little endian.
const ENCODED: usize = 12;

/// One state, as receipts name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    pub seq: Seq,
    pub print: u32,
}

impl Mark {
    pub fn of(state: &State) -> Self {
        Self { seq: state.seq, print: fingerprint(state.id.as_str()) }
    }
}

/// Of a state's id, as receipts have it: FNV-1a, folded to 32 bits. It is stored, so it may never change.
pub fn fingerprint(id: &str) -> u32 {
    let hash = id.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    (hash >> 32) as u32 ^ hash as u32
}

pub fn encode(marks: &[Mark]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(marks.len() * ENCODED);
    for mark in marks {
        bytes.extend_from_slice(&mark.seq.to_le_bytes());
        bytes.extend_from_slice(&mark.print.to_le_bytes());
    }
    bytes
}

/// `None` where the bytes were not written by [`encode`].
pub fn decode(bytes: &[u8]) -> Option<Vec<Mark>> {
    let (entries, rest) = bytes.as_chunks::<ENCODED>();
    if !rest.is_empty() {
        return None;
    }
    let mark = |entry: &[u8; ENCODED]| {
        let (seq, print) = entry.split_at(8);
        Some(Mark {
            seq: Seq::from_le_bytes(seq.try_into().ok()?),
            print: u32::from_le_bytes(print.try_into().ok()?),
        })
    };
    entries.iter().map(mark).collect()
}

/// The receipts of one plugin above its cursor.
#[derive(Debug)]
pub struct Applied {
    marks: Mutex<BTreeMap<Seq, u32>>,
    most: usize,
}

impl Default for Applied {
    fn default() -> Self {
        Self::of_at_most(MAX_RECEIPTS)
    }
}

impl Applied {
    pub fn of_at_most(most: usize) -> Self {
        Self { marks: Mutex::default(), most }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Seq, u32>> {
        // A map of plain numbers is whole after any panic.
        self.marks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn add(&self, marks: &[Mark]) {
        self.lock().extend(marks.iter().map(|mark| (mark.seq, mark.print)));
    }

    pub fn contains(&self, mark: Mark) -> bool {
        self.lock().get(&mark.seq) == Some(&mark.print)
    }

    pub fn prune(&self, cursor: Seq) {
        let mut marks = self.lock();
        *marks = marks.split_off(&cursor.saturating_add(1));
    }

    pub fn is_full(&self) -> bool {
        self.lock().len() >= self.most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receipt_is_read_back_as_it_was_written() {
        let marks = [Mark { seq: 1, print: 7 }, Mark { seq: u64::MAX, print: u32::MAX }];
        assert_eq!(decode(&encode(&marks)).unwrap(), marks);
        assert_eq!(decode(&[1, 2, 3]), None);
    }

    #[test]
    fn fingerprints_never_change_because_they_are_stored() {
        assert_eq!(fingerprint("jobs/0/batch/Job/u1/7"), fingerprint("jobs/0/batch/Job/u1/7"));
        assert_eq!(fingerprint(""), 0xcbf2_9ce4 ^ 0x8422_2325);
        assert_ne!(fingerprint("jobs/0/batch/Job/u1/7"), fingerprint("jobs/0/batch/Job/u1/8"));
    }

    #[test]
    fn the_same_position_in_another_journal_is_not_applied() {
        let applied = Applied::default();
        applied.add(&[Mark { seq: 5, print: fingerprint("old") }]);
        assert!(applied.contains(Mark { seq: 5, print: fingerprint("old") }));
        assert!(!applied.contains(Mark { seq: 5, print: fingerprint("new") }));
    }

    #[test]
    fn pruning_keeps_what_lies_above_the_cursor() {
        let applied = Applied::default();
        applied.add(&[Mark { seq: 5, print: 1 }, Mark { seq: 6, print: 1 }]);
        applied.prune(5);
        assert!(!applied.contains(Mark { seq: 5, print: 1 }));
        assert!(applied.contains(Mark { seq: 6, print: 1 }));
    }

    #[test]
    fn receipts_are_full_at_their_bound_until_the_cursor_moves_on() {
        assert_eq!(Applied::default().most, MAX_RECEIPTS);
        let applied = Applied::of_at_most(2);
        applied.add(&[Mark { seq: 5, print: 1 }]);
        assert!(!applied.is_full());
        applied.add(&[Mark { seq: 6, print: 1 }]);
        assert!(applied.is_full());
        applied.prune(5);
        assert!(!applied.is_full());
    }
}
