//! The objects of states of which only the newest is wanted.

use std::hash::{DefaultHasher, Hash, Hasher};

use crate::state::{Change, State};

/// Names the object of a state under `latest`, where only the newest state of an object is wanted. A gap is
/// no state of its object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::lanes) struct LatestKey {
    /// A hash of the uid. An object that is made again under the same name is another object.
    object: u64,
    /// A newer state may replace this one. A state that tells of an end is never replaced.
    gives_way: bool,
}

impl LatestKey {
    pub fn of(state: &State) -> Option<Self> {
        let mut hasher = DefaultHasher::new();
        state.object.uid.hash(&mut hasher);
        let gives_way = state.change == Change::Present;
        (state.change != Change::Gap).then(|| Self { object: hasher.finish(), gives_way })
    }

    pub fn is_superseded_by(self, newer: Self) -> bool {
        self.gives_way && self.object == newer.object
    }
}
