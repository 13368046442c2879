//! The newest states, in memory, so that a dispatcher at the end of the journal never reads the disk.

use std::collections::VecDeque;
use std::sync::Arc;

use kubewitness_core::{ObjectRef, Seq, State, Status};

/// The size of a state in memory without its texts, in bytes.
const STATE_BYTES: usize = 300;

/// The newest states, contiguous, and limited in number and in bytes.
pub(crate) struct RecentStates {
    states: VecDeque<Arc<State>>,
    bytes: usize,
    most: usize,
    most_bytes: usize,
}

/// The size of a state, as if it shared no values with others: an object may have a message of any length.
fn state_weight(state: &State) -> usize {
    let of = |object: &ObjectRef| {
        let ObjectRef { group, version, kind, namespace, name, uid } = object;
        [group, version, kind, namespace, name, uid].into_iter().map(String::len).sum::<usize>()
    };
    let text_bytes = |status: &Status| status.phase.len() + status.reason.len() + status.message.len();
    let names = of(&state.object) + state.owner.as_deref().map_or(0, of);
    let statuses = text_bytes(&state.status) + state.previous.as_deref().map_or(0, text_bytes);
    STATE_BYTES + state.id.as_str().len() + state.resource_version.as_str().len() + names + statuses
}

impl RecentStates {
    pub fn new(most: usize, most_bytes: usize) -> Self {
        Self { states: VecDeque::new(), bytes: 0, most, most_bytes }
    }

    /// Adds what was committed after the present content; `newest` is the end of the journal.
    pub fn extend_committed(&mut self, states: Vec<Arc<State>>, newest: Seq) {
        for state in states {
            // After a lost batch (committed, but its caller was gone) the new states begin at a later
            // position.
            if self.states.back().is_some_and(|last| last.seq + 1 != state.seq) {
                self.states.clear();
                self.bytes = 0;
            }
            self.bytes += state_weight(&state);
            self.states.push_back(state);
            while self.states.len() > self.most || self.bytes > self.most_bytes {
                self.drop_oldest();
            }
        }
        // States of a lost batch that were found again by a retry are not in memory. A reader would take
        // their positions for positions without a state.
        if self.states.back().is_some_and(|last| last.seq != newest) {
            self.states.clear();
            self.bytes = 0;
        }
    }

    fn drop_oldest(&mut self) {
        if let Some(state) = self.states.pop_front() {
            self.bytes -= state_weight(&state);
        }
    }

    /// Forgets everything up to these removed positions.
    pub fn forget_through(&mut self, through: Seq) {
        while self.states.front().is_some_and(|state| state.seq <= through) {
            self.drop_oldest();
        }
        if self.states.is_empty() {
            self.states.shrink_to_fit();
        }
    }

    /// States after a position; `None` if some of them are not in memory.
    pub fn states_after(&self, after: Seq, limit: usize) -> Option<Vec<Arc<State>>> {
        let start = self.index_after(after)?;
        Some(self.states.iter().skip(start).take(limit).cloned().collect())
    }

    /// Counts the states of these sources in `(after, through]`; `None` if some of them are not in memory.
    pub fn count(&self, sources: &[Arc<str>], after: Seq, through: Seq) -> Option<u64> {
        let start = self.index_after(after)?;
        let range = self.states.iter().skip(start).take_while(|state| state.seq <= through);
        Some(range.filter(|state| sources.contains(&state.source)).count() as u64)
    }

    fn index_after(&self, after: Seq) -> Option<usize> {
        let first = self.states.front()?.seq;
        usize::try_from(after.checked_add(1)?.checked_sub(first)?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kubewitness_core::{Change, StateId, Version};

    fn state(seq: Seq) -> Arc<State> {
        Arc::new(State {
            id: StateId::parse("id"),
            seq,
            source: Arc::from(if seq.is_multiple_of(2) { "even" } else { "odd" }),
            epoch: 0,
            change: Change::Present,
            object: Arc::default(),
            owner: None,
            resource_version: Version::new("1"),
            status: Arc::default(),
            previous: None,
            observed_ms: 0,
            late: false,
            quotes_none_under: None,
        })
    }

    fn seqs(states: Option<Vec<Arc<State>>>) -> Option<Vec<Seq>> {
        states.map(|states| states.iter().map(|state| state.seq).collect())
    }

    #[test]
    fn it_answers_for_what_it_holds_and_admits_what_it_lost() {
        let mut recent = RecentStates::new(3, usize::MAX);
        assert_eq!(seqs(recent.states_after(0, 10)), None);
        recent.extend_committed((1..=5).map(state).collect(), 5);
        assert_eq!(seqs(recent.states_after(1, 10)), None);
        assert_eq!(seqs(recent.states_after(2, 10)), Some(vec![3, 4, 5]));
        assert_eq!(seqs(recent.states_after(3, 1)), Some(vec![4]));
        assert_eq!(seqs(recent.states_after(5, 10)), Some(vec![]));
        assert_eq!(recent.count(&["odd".into()], 2, 5), Some(2));
        assert_eq!(recent.count(&["odd".into()], 1, 5), None);
    }

    #[test]
    fn states_with_long_texts_are_fewer() {
        let mut recent = RecentStates::new(100, 20_000);
        recent.extend_committed((1..=50).map(state).collect(), 50);
        assert_eq!(recent.states_after(0, 100).map(|states| states.len()), Some(50));
        let long = |seq| {
            let status = Arc::new(Status { message: "x".repeat(5_000), ..Status::default() });
            Arc::new(State { status, ..State::clone(&state(seq)) })
        };
        recent.extend_committed((51..=60).map(long).collect(), 60);
        assert_eq!(seqs(recent.states_after(57, 100)), Some(vec![58, 59, 60]));
        assert_eq!(recent.states_after(56, 100), None);
        recent.forget_through(60);
        assert_eq!((recent.bytes, recent.states.len()), (0, 0));
        // A state larger than the limit is read from the disk.
        let status = Arc::new(Status { message: "x".repeat(50_000), ..Status::default() });
        recent.extend_committed(vec![Arc::new(State { status, ..State::clone(&state(61)) })], 61);
        assert_eq!(seqs(recent.states_after(60, 100)), None);
    }

    #[test]
    fn a_hole_starts_it_over() {
        let mut recent = RecentStates::new(10, usize::MAX);
        recent.extend_committed(vec![state(1), state(2)], 2);
        recent.extend_committed(vec![state(5)], 5);
        assert_eq!(seqs(recent.states_after(1, 10)), None);
        assert_eq!(seqs(recent.states_after(4, 10)), Some(vec![5]));
    }

    #[test]
    fn what_is_there_and_was_not_given_is_read_from_the_disk() {
        let mut recent = RecentStates::new(10, usize::MAX);
        recent.extend_committed(vec![state(1), state(2)], 2);
        recent.extend_committed(Vec::new(), 2);
        assert_eq!(seqs(recent.states_after(2, 10)), Some(vec![]));
        recent.extend_committed(Vec::new(), 4);
        assert_eq!(seqs(recent.states_after(2, 10)), None);
        assert_eq!(recent.count(&["odd".into()], 2, 4), None);
    }
}
