//! What a source has of the time before it was subscribed, handed over at a pace of its own.
//!
//! The past is left in the journal like what a namespace may not take in, and taken from there
//! as its bucket allows. Meanwhile what is new passes it. An object of which the past still has
//! something waits for that, so that its states come in order: therefore the lanes of the past
//! are remembered while it lasts, and what is new of them is left with it. Of a past with more
//! lanes than are remembered, everything that is new waits for its end.

use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashSet;

use crate::bucket::Bucket;
use crate::config::RateSpec;
use crate::limits;
use crate::state::{Seq, State};

/// States of a past that are read at once at most, and at least where most of what is read
/// belongs to somebody else.
const READ: (usize, usize) = (64, 1024);
/// What comes in a twentieth of a second is worth a read.
const READS_A_SECOND: u32 = 20;

#[derive(Debug)]
pub(in crate::lanes) struct Past {
    pub source: Arc<str>,
    /// Where it ends.
    pub until: Seq,
    /// Everything of it before this position was taken in.
    pub next: Seq,
    /// The namespace that had no room for its next state.
    pub waits_for: Option<u64>,
    worth: u32,
    bucket: Bucket,
    lanes: HashSet<u64>,
}

impl Past {
    pub fn new(source: &Arc<str>, next: Seq, until: Seq, rate: RateSpec) -> Self {
        Self {
            source: Arc::clone(source),
            until,
            next,
            waits_for: None,
            worth: (rate.per_second / READS_A_SECOND).clamp(1, rate.burst().max(1)),
            bucket: Bucket::new(rate),
            lanes: HashSet::new(),
        }
    }

    pub fn has(&self, state: &State) -> bool {
        let is_known = || self.lanes.len() >= limits::PAST_LANES || self.lanes.contains(&state.lane().lane);
        self.source == state.source && (state.seq <= self.until || is_known())
    }

    pub fn remember(&mut self, state: &State) {
        if state.seq <= self.until && self.lanes.len() < limits::PAST_LANES {
            self.lanes.insert(state.lane().lane);
        }
    }

    /// When it may be read again.
    pub fn due(&self) -> Duration {
        self.bucket.due(self.worth)
    }

    /// How much may be read of it now.
    pub fn limit(&self, now: Duration) -> usize {
        self.bucket.available(now).clamp(READ.0, READ.1)
    }

    /// Takes a token for one state, if there is one.
    pub fn spend(&mut self, now: Duration) -> bool {
        let is_allowed = self.bucket.available(now) > 0;
        if is_allowed {
            self.bucket.spend(1, now);
        }
        is_allowed
    }
}
