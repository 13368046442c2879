//! The calls under way. Receipts are removed up to a position, and a call may have states far below that: dead letters and
//! owed states. The newest commits are left there anyway, and they are more than may be finished and not yet saved
//! ([`KEPT`](super::commits::KEPT)). But while one call takes long, others may commit any number of states. So what was
//! committed since it began is left, too. Up to the next removal that holds after its end: the dispatcher may not have known
//! the end when it was asked.

use std::collections::BTreeMap;

use kubewitness_core::Seq;

/// A place in the order of a plugin's commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CommitPlace {
    /// The moment of the newest commit before it.
    pub newest_ms: u64,
    /// The states of all commits before it.
    pub states: u64,
}

#[derive(Debug, Default)]
pub struct OpenCalls {
    /// The first state of each call under way, and the place at which the call began.
    calls: BTreeMap<u64, (Seq, CommitPlace)>,
    last: u64,
    /// The first place of the calls that have ended since receipts were last removed.
    ended: Option<CommitPlace>,
}

impl OpenCalls {
    pub fn begin(&mut self, first: Seq, place: CommitPlace) -> u64 {
        self.last += 1;
        self.calls.insert(self.last, (first, place));
        self.last
    }

    pub fn end(&mut self, number: u64) {
        let ended = self.calls.remove(&number).map(|(_, place)| place);
        self.ended = self.ended.into_iter().chain(ended).min();
    }

    /// The first state of all calls under way.
    pub fn first_state(&self) -> Seq {
        self.calls.values().map(|(first, _)| *first).min().unwrap_or(Seq::MAX)
    }

    /// The first place of the calls that are under way, or were since the last look.
    pub fn take_first_place(&mut self) -> Option<CommitPlace> {
        let places = self.calls.values().map(|(_, place)| *place);
        places.chain(self.ended.take()).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_keeps_what_was_committed_since_it_began_up_to_the_next_look_after_its_end() {
        let place = |states| CommitPlace { newest_ms: 10 * states, states };
        let mut calls = OpenCalls::default();
        assert_eq!((calls.take_first_place(), calls.first_state()), (None, Seq::MAX));
        let (one, two) = (calls.begin(5, place(1)), calls.begin(3, place(2)));
        assert_eq!((calls.take_first_place(), calls.first_state()), (Some(place(1)), 3));
        calls.end(one);
        assert_eq!(calls.take_first_place(), Some(place(1)), "its end may not be known");
        assert_eq!(calls.take_first_place(), Some(place(2)));
        calls.end(two);
        assert_eq!((calls.take_first_place(), calls.first_state()), (Some(place(2)), Seq::MAX));
        assert_eq!(calls.take_first_place(), None);
    }
}
