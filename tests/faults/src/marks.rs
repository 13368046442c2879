//! A record of rare things that happened.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

/// Events that happened at least once over the seeds of a row, so that a rare path that is never taken
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

    /// Returns those of these that never happened.
    pub fn missing<'a>(&self, of: &[&'a str]) -> Vec<&'a str> {
        let marks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        of.iter().filter(|what| !marks.contains(**what)).copied().collect()
    }
}
