//! The bounds and policies of one plugin's lanes, and the times that the caller passes.

use std::time::Duration;

use crate::clock::Clock;
use crate::config::{DeliverySpec, OnDeadLetter, RateSpec};
use crate::limits;

#[derive(Clone, Debug)]
pub struct LaneOptions {
    pub plugin: String,
    /// The most states in memory.
    pub window: usize,
    /// The most of these that one lane holds.
    pub depth: usize,
    /// The most positions without their states.
    pub deferred: usize,
    /// The most runs of positions that may be left.
    pub runs: usize,
    /// The most states that may be owed by rows of the journal.
    pub rows: usize,
    /// The retries after the first try.
    pub retries: u32,
    pub backoff: Duration,
    pub max_backoff: Duration,
    /// The rate of retries over all lanes; `None` for no common rate.
    pub retry_rate: Option<RateSpec>,
    /// The rates of states and of calls.
    pub rate: Option<RateSpec>,
    pub call_rate: Option<RateSpec>,
    pub on_dead_letter: OnDeadLetter,
    /// A lane whose head waits longer for a retry is owed.
    pub owe_after: Duration,
}

impl LaneOptions {
    pub fn new(plugin: &str, delivery: &DeliverySpec) -> Self {
        Self {
            plugin: plugin.to_owned(),
            window: limits::LANE_WINDOW,
            depth: limits::LANE_DEPTH,
            deferred: limits::LANE_DEFERRED,
            runs: limits::LANE_RUNS,
            rows: limits::OWED_ROWS,
            retries: delivery.retries,
            backoff: delivery.backoff.0,
            max_backoff: delivery.max_backoff.0,
            retry_rate: Some(delivery.retry_rate),
            rate: delivery.rate,
            call_rate: delivery.call_rate,
            on_dead_letter: delivery.on_dead_letter,
            owe_after: limits::OWE_AFTER,
        }
    }

    /// The pause after this many failed tries.
    pub(super) fn pause_after_tries(&self, tries: u32) -> Duration {
        let factor = 1u32.checked_shl(tries.saturating_sub(1)).unwrap_or(u32::MAX);
        self.backoff.saturating_mul(factor).min(self.max_backoff)
    }
}

/// A moment in two clocks: `elapsed` decides, `wall_ms` is for records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClockReading {
    pub elapsed: Duration,
    pub wall_ms: u64,
}

impl ClockReading {
    pub fn read(clock: &dyn Clock) -> Self {
        Self { elapsed: clock.elapsed(), wall_ms: clock.now_ms() }
    }
}
