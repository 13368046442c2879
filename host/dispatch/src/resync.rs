//! Resyncs a plugin: reads a source's present objects from the journal, in parts, into the lanes.
//!
//! Reading the cache was rejected: only the journal knows that a state is the newest durable one of its
//! object, and the order of a lane depends on that. One query reads a part, and only one query is in flight,
//! so nothing newer is read in between.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use kubewitness_core::lanes::{LaneStats, Lanes};
use kubewitness_core::ports::PresentPage;

use crate::ResyncStats;
use crate::reader::{BacklogQuery, CHUNK};

/// The resyncs in progress: the first source, then the others.
#[derive(Debug, Default)]
pub(crate) struct ResyncQueue {
    sources: VecDeque<Arc<str>>,
    from: u64,
    rounds: u64,
    /// The last answer was a part of a resync, so owed states have the next turn.
    had_its_turn: bool,
}

impl ResyncQueue {
    pub fn request_resync(&mut self, source: Arc<str>) {
        if !self.sources.contains(&source) {
            self.sources.push_back(source);
        }
    }

    /// The query for the next part, once the lanes have room for all of it. It alternates with `owed`, the
    /// reading of owed states, so that a busy source and a long resync do not wait for each other.
    pub fn next(&self, lanes: &Lanes, owed: Option<BacklogQuery>) -> Option<BacklogQuery> {
        let waits = self.had_its_turn && owed.is_some();
        match self.sources.front() {
            Some(source) if !waits && lanes.resync_room() >= CHUNK => {
                Some(BacklogQuery::Present { source: Arc::clone(source), from: self.from })
            }
            _ => owed,
        }
    }

    pub fn note_yielded(&mut self) {
        self.had_its_turn = false;
    }

    pub fn apply_page(&mut self, present: PresentPage, lanes: &mut Lanes, now: Duration) {
        self.had_its_turn = true;
        for state in present.states {
            lanes.resync_state(state, now);
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

    pub fn resync_stats(&self, lanes: &LaneStats) -> ResyncStats {
        ResyncStats {
            rounds: self.rounds,
            delivered: lanes.resynced,
            skipped: lanes.resync_skipped,
            failed: lanes.resync_failed,
        }
    }
}
