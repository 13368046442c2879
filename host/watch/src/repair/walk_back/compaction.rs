//! Tracks how far compaction has come. Compaction removes the oldest versions first, so one answer covers
//! everything below it.
//!
//! One answer alone is not believed. A gateway, an expired token or one server of several may report a
//! version as compacted although it can still be read. So two requests must agree, and they count only for
//! versions at or below theirs. Pure; [`OldVersions`](crate::repair::walk_back::OldVersions) asks.

use std::sync::{Mutex, PoisonError};

use kubewitness_core::Version;

use crate::version::version_number;

/// The compaction as far as one round knows it.
pub(crate) struct CompactionBounds {
    /// Everything up to here is compacted.
    gone: Mutex<u128>,
    /// The newest version that this round requests. The server has it, unless compaction has passed it.
    newest: u128,
    /// Held during a search for it, so that concurrent callers search once.
    pub looking: tokio::sync::Mutex<()>,
}

impl CompactionBounds {
    pub fn new(newest: Option<u128>) -> Self {
        Self {
            gone: Mutex::default(),
            newest: newest.unwrap_or_default(),
            looking: tokio::sync::Mutex::default(),
        }
    }

    /// Everything up to here is compacted; 0 if nothing is known to be.
    pub fn compacted_through(&self) -> u128 {
        *self.gone.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn is_compacted(&self, at: &Version) -> bool {
        version_number(at).is_some_and(|at| at <= self.compacted_through())
    }

    /// Records that two requests agreed on this answer.
    pub fn note_compacted(&self, at: u128) {
        let mut gone = self.gone.lock().unwrap_or_else(PoisonError::into_inner);
        *gone = at.max(*gone);
    }

    /// A search for the oldest version that can still be read.
    pub fn begin_search(&self) -> DistanceHalving {
        DistanceHalving { gone: self.compacted_through(), readable: self.newest.saturating_add(1) }
    }
}

/// Halves the distance between a compacted version and one that exists, or is newer than every requested
/// version.
#[derive(Debug)]
pub(crate) struct DistanceHalving {
    gone: u128,
    readable: u128,
}

impl DistanceHalving {
    /// The next version to request; `None` once the two are neighbours.
    pub fn next(&self) -> Option<u128> {
        let between = self.readable.saturating_sub(self.gone);
        (between > 1).then(|| self.gone + between / 2)
    }

    pub fn narrow_to(&mut self, at: u128, is_gone: bool) {
        if is_gone {
            self.gone = at;
        } else {
            self.readable = at;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_confirmed_hides_itself_and_everything_below_and_is_never_taken_back() {
        let compaction = CompactionBounds::new(Some(20));
        assert!(!compaction.is_compacted(&Version::new("1")));
        compaction.note_compacted(9);
        compaction.note_compacted(7);
        assert_eq!(compaction.compacted_through(), 9);
        assert!(compaction.is_compacted(&Version::new("9")) && compaction.is_compacted(&Version::new("3")));
        assert!(
            !compaction.is_compacted(&Version::new("10")) && !compaction.is_compacted(&Version::new("b"))
        );
    }

    #[test]
    fn where_nothing_newer_is_asked_for_nothing_is_looked_for() {
        let compaction = CompactionBounds::new(Some(9));
        compaction.note_compacted(9);
        assert_eq!(compaction.begin_search().next(), None);
        let compaction = CompactionBounds::new(None);
        compaction.note_compacted(9);
        assert_eq!(compaction.begin_search().next(), None);
    }

    proptest! {
        /// The search needs about as many questions as the distance has binary digits, and asks for nothing
        /// newer than its bound.
        #[test]
        fn halving_comes_to_the_oldest_version_that_is_there(
            gone in 0u128..1_000_000, more in 0u128..1_000_000, known in 0u128..1_000_000,
        ) {
            let compaction = CompactionBounds::new(Some(gone + more));
            compaction.note_compacted(known.min(gone));
            let (mut halving, mut asked) = (compaction.begin_search(), 0);
            while let Some(at) = halving.next() {
                prop_assert!(at <= gone + more);
                halving.narrow_to(at, at <= gone);
                asked += 1;
            }
            prop_assert_eq!(halving.gone, gone);
            prop_assert!(asked <= 21);
        }
    }
}
