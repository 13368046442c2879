//! Hands over a source's past, the states from before the subscription, at a rate of its own.
//!
//! The past is left in the journal, like states beyond a namespace's share, and taken in as its bucket
//! allows. Newer states pass it meanwhile. But a newer state waits while the past still holds states of the
//! same object, so that an object's states stay in order. So the lanes of the past are remembered while it
//! lasts. If there are more lanes than are remembered, every newer state waits for the end of the past.

use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashSet;

use crate::bucket::TokenBucket;
use crate::config::RateSpec;
use crate::limits;
use crate::state::{Seq, State};

/// The fewest and the most states that one read of a past asks for. Most of what a read brings may belong to
/// others, so it never asks for fewer.
const READ: (usize, usize) = (64, 1024);
/// How often a second a past is read at most. In between its bucket gathers enough tokens to make a read
/// worthwhile.
const READS_A_SECOND: u32 = 20;

#[derive(Debug)]
pub(in crate::lanes) struct BackfillTurns {
    pub source: Arc<str>,
    /// The last position of the past.
    pub until: Seq,
    /// Everything of the past before this position was taken in.
    pub next: Seq,
    /// The namespace without room for the past's next state.
    pub waits_for: Option<u64>,
    worth: u32,
    bucket: TokenBucket,
    lanes: HashSet<u64>,
}

impl BackfillTurns {
    pub fn new(source: &Arc<str>, next: Seq, until: Seq, rate: RateSpec) -> Self {
        Self {
            source: Arc::clone(source),
            until,
            next,
            waits_for: None,
            worth: (rate.per_second / READS_A_SECOND).clamp(1, rate.burst_or_default().max(1)),
            bucket: TokenBucket::new(rate),
            lanes: HashSet::new(),
        }
    }

    pub fn is_of_past(&self, state: &State) -> bool {
        let is_known =
            || self.lanes.len() >= limits::PAST_LANES || self.lanes.contains(&state.lane_key().lane);
        self.source == state.source && (state.seq <= self.until || is_known())
    }

    pub fn remember_lane(&mut self, state: &State) {
        if state.seq <= self.until && self.lanes.len() < limits::PAST_LANES {
            self.lanes.insert(state.lane_key().lane);
        }
    }

    /// When the past may be read again.
    pub fn next_read_at(&self) -> Duration {
        self.bucket.due_at(self.worth)
    }

    /// The number of states that may be read now.
    pub fn read_limit(&self, now: Duration) -> usize {
        self.bucket.available_tokens(now).clamp(READ.0, READ.1)
    }

    /// Takes a token for one state, if there is one.
    pub fn try_spend_token(&mut self, now: Duration) -> bool {
        let is_allowed = self.bucket.available_tokens(now) > 0;
        if is_allowed {
            self.bucket.spend_tokens(1, now);
        }
        is_allowed
    }
}
