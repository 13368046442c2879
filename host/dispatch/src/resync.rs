//! Resyncs: what is there of a source now, part by part from the journal into the lanes.
//!
//! The journal is asked, not the cache: only it can say that a state is the newest of its object
//! among all that are durable, which is what keeps the order of a lane. A part is one question,
//! and only one question is under way at a time, so nothing newer was read in between.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use kubewitness_core::lanes::{LaneStats, Lanes};
use kubewitness_core::ports::Present;

use crate::ResyncStats;
use crate::reader::{CHUNK, Fetch};

/// The resyncs that are under way: the first of these sources, then the others.
#[derive(Debug, Default)]
pub(crate) struct Resync {
    sources: VecDeque<Arc<str>>,
    from: u64,
    rounds: u64,
    /// The last answer was a part: it is the turn of what is owed.
    had_its_turn: bool,
}

impl Resync {
    pub fn ask(&mut self, source: Arc<str>) {
        if !self.sources.contains(&source) {
            self.sources.push_back(source);
        }
    }

    /// The next part, once the lanes have room for all of it. By turns with `owed`, the reading of
    /// what is owed, so that neither a busy source nor a long resync waits for the other.
    pub fn next(&self, lanes: &Lanes, owed: Option<Fetch>) -> Option<Fetch> {
        let waits = self.had_its_turn && owed.is_some();
        match self.sources.front() {
            Some(source) if !waits && lanes.resync_room() >= CHUNK => {
                Some(Fetch::Present { source: Arc::clone(source), from: self.from })
            }
            _ => owed,
        }
    }

    pub fn yielded(&mut self) {
        self.had_its_turn = false;
    }

    pub fn answered(&mut self, present: Present, lanes: &mut Lanes, now: Duration) {
        self.had_its_turn = true;
        for state in present.states {
            lanes.resync(state, now);
        }
        match present.next {
            Some(next) => self.from = next,
            None => {
                self.sources.pop_front();
                self.from = 0;
                self.rounds += 1;
            }
        }
    }

    pub fn stats(&self, lanes: &LaneStats) -> ResyncStats {
        ResyncStats {
            rounds: self.rounds,
            delivered: lanes.resynced,
            skipped: lanes.resync_skipped,
            failed: lanes.resync_failed,
        }
    }
}
