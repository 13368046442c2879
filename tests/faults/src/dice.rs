//! Choices from one seed, and a record of the rare ones that were made.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

/// Choices, all from one seed.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn throw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Below a limit that is not 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.throw() % limit
    }

    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    pub fn one_in(&mut self, many: u64) -> bool {
        self.below(many) == 0
    }

    pub fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }

    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        (!from.is_empty()).then(|| &from[self.below(from.len() as u64) as usize])
    }
}

/// What happened at least once over the seeds of a row, so that a rare path that is never taken
/// doesn't pass for one that works.
#[derive(Clone, Debug, Default)]
pub struct Marks(Arc<Mutex<BTreeSet<String>>>);

impl Marks {
    pub fn when(&self, happened: bool, what: &str) {
        let mut marks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if happened && !marks.contains(what) {
            marks.insert(what.to_owned());
        }
    }

    /// Of these, what never happened.
    pub fn missing<'a>(&self, of: &[&'a str]) -> Vec<&'a str> {
        let marks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        of.iter().filter(|what| !marks.contains(**what)).copied().collect()
    }
}
