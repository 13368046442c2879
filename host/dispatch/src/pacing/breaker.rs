//! A circuit breaker: it pauses calls to a plugin that keeps failing. The caller passes the time.
//!
//! A fixed number of failures was not enough as a rule, because failures have different causes. Four things
//! open it:
//!
//! - A call that was `unavailable` opens it at once. No state is to blame, and the next call would fail as
//!   well.
//! - A state that fails alone in its call is evidence. One poison state says nothing about the plugin, but
//!   several in a row without a success do. From then on only probes use up tries, so a broken plugin does
//!   not turn its whole backlog into dead letters.
//! - A call in which every answer was `retry` is evidence, too: the plugin found its sink down. A plugin may
//!   also have a good reason to wait for each object, so the pauses stay short and the probes are whole
//!   batches.
//! - A rejected state becomes a dead letter at its first try. Several in a row without a success mean that
//!   the plugin rejects everything, for example because a table has a constraint that no row satisfies. From
//!   then on a rejected state waits instead, and each probe has another state. The reasons are not compared:
//!   they name keys and values.

use std::time::Duration;

/// The failures without a success that open it. Splitting a batch down to one poison state must not reach it;
/// such a state fails alone once.
const EVIDENCE: u32 = 5;
/// The rejections without a success that open it, of which all but the last are dead letters. One object may well have
/// a few bad states in a row.
const REFUSALS: u32 = 16;
const SHORTEST: Duration = Duration::from_millis(10);

/// The longest pauses of a breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LongestPauses {
    /// While nothing can succeed. It is also how late a recovery is noticed.
    pub broken: Duration,
    /// While a plugin answers `retry` to everything.
    pub fruitless: Duration,
}

impl Default for LongestPauses {
    fn default() -> Self {
        Self { broken: Duration::from_secs(10), fruitless: Duration::from_secs(2) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallFailure {
    Unavailable,
    /// A state failed that was alone in its call.
    Alone,
    /// Every verdict was `retry`.
    Fruitless,
    /// A state was rejected.
    Refused,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallPermission {
    Freely,
    /// One call, with a single state or with a whole batch.
    Probe {
        single: bool,
    },
    /// No call before this moment; `None`: no call before the probe has returned.
    Not(Option<Duration>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BreakerState {
    Closed,
    Open { until: Duration },
    Probing,
}

#[derive(Debug)]
pub(crate) struct CircuitBreaker {
    position: BreakerState,
    cause: CallFailure,
    longest: LongestPauses,
    first: Duration,
    pause: Duration,
    evidence: u32,
    /// Rejected states in a row.
    refusals: u32,
    /// Calls in a row that failed as a whole.
    failures: u32,
}

impl CircuitBreaker {
    pub fn new(first_pause: Duration, longest: LongestPauses) -> Self {
        let first = first_pause.clamp(SHORTEST, longest.fruitless);
        Self {
            position: BreakerState::Closed,
            cause: CallFailure::Unavailable,
            longest,
            first,
            pause: first,
            evidence: 0,
            refusals: 0,
            failures: 0,
        }
    }

    pub fn is_open(&self) -> bool {
        self.position != BreakerState::Closed
    }

    pub fn count_failures(&self) -> u32 {
        self.failures
    }

    pub fn call_permission(&self, now: Duration) -> CallPermission {
        match self.position {
            BreakerState::Closed => CallPermission::Freely,
            BreakerState::Open { until } if now >= until => {
                CallPermission::Probe { single: self.cause != CallFailure::Fruitless }
            }
            BreakerState::Open { until } => CallPermission::Not(Some(until)),
            BreakerState::Probing => CallPermission::Not(None),
        }
    }

    /// Notes that the probe has been sent.
    pub fn note_probe(&mut self) {
        self.position = BreakerState::Probing;
    }

    pub fn note_success(&mut self) {
        self.position = BreakerState::Closed;
        self.pause = self.first;
        self.refusals = 0;
        self.note_answer();
    }

    /// Notes an answer that is neither a success nor only `retry`.
    pub fn note_answer(&mut self) {
        if self.position == BreakerState::Probing {
            self.position = BreakerState::Closed;
        }
        self.evidence = 0;
        self.failures = 0;
    }

    /// Notes a state that was rejected, and nothing done in its call. Answers until when it waits, if it is not parked.
    pub fn note_rejection(&mut self, now: Duration) -> Option<Duration> {
        let is_open = self.position != BreakerState::Closed && self.cause == CallFailure::Refused;
        match self.position {
            BreakerState::Probing if is_open => {
                self.open(CallFailure::Refused, self.pause.saturating_mul(2), now);
            }
            BreakerState::Open { .. } => {}
            BreakerState::Closed | BreakerState::Probing => {
                self.note_answer();
                self.refusals += 1;
                if self.refusals >= REFUSALS {
                    self.open(CallFailure::Refused, self.first, now);
                }
            }
        }
        match self.position {
            BreakerState::Open { until } if self.cause == CallFailure::Refused => {
                self.failures = self.failures.saturating_add(1);
                Some(until)
            }
            _ => None,
        }
    }

    /// Notes a failed call of a search for the failing state. By itself it is no evidence.
    pub fn note_search_failure(&mut self) {
        self.failures = self.failures.saturating_add(1);
    }

    /// `fresh`: one of the states was tried for the first time. The lanes pace states that failed before, and
    /// these prove nothing new about the plugin.
    pub fn note_failure(&mut self, failure: CallFailure, fresh: bool, now: Duration) {
        self.failures = self.failures.saturating_add(1);
        match self.position {
            // The call began before the breaker opened.
            BreakerState::Open { .. } => {}
            BreakerState::Probing => self.open(failure, self.pause.saturating_mul(2), now),
            BreakerState::Closed => {
                self.evidence += match failure {
                    CallFailure::Unavailable => EVIDENCE,
                    CallFailure::Alone | CallFailure::Fruitless | CallFailure::Refused => u32::from(fresh),
                };
                if self.evidence >= EVIDENCE {
                    self.open(failure, self.first, now);
                }
            }
        }
    }

    fn open(&mut self, cause: CallFailure, pause: Duration, now: Duration) {
        let longest =
            if cause == CallFailure::Fruitless { self.longest.fruitless } else { self.longest.broken };
        self.cause = cause;
        self.pause = pause.min(longest);
        self.position = BreakerState::Open { until: now + self.pause };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn breaker() -> CircuitBreaker {
        CircuitBreaker::new(100 * MS, LongestPauses::default())
    }

    #[test]
    fn an_unavailable_sink_opens_at_once_and_probes_grow_rarer() {
        let mut breaker = breaker();
        let mut now = Duration::ZERO;
        breaker.note_failure(CallFailure::Unavailable, true, now);
        for pause in [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000] {
            assert_eq!(breaker.call_permission(now), CallPermission::Not(Some(now + pause * MS)));
            now += pause * MS;
            assert_eq!(breaker.call_permission(now), CallPermission::Probe { single: true });
            breaker.note_probe();
            assert_eq!(breaker.call_permission(now), CallPermission::Not(None), "one probe at a time");
            breaker.note_failure(CallFailure::Unavailable, true, now);
        }
        breaker.note_success();
        assert_eq!((breaker.call_permission(now), breaker.count_failures()), (CallPermission::Freely, 0));
        breaker.note_failure(CallFailure::Unavailable, true, now);
        assert_eq!(breaker.call_permission(now), CallPermission::Not(Some(now + 100 * MS)), "it starts over");
    }

    #[test]
    fn poison_states_open_it_only_in_a_row() {
        let mut breaker = breaker();
        for _ in 0..10 {
            breaker.note_failure(CallFailure::Alone, true, Duration::ZERO);
            breaker.note_failure(CallFailure::Alone, true, Duration::ZERO);
            breaker.note_success();
        }
        assert!(!breaker.is_open());
        for _ in 0..EVIDENCE {
            breaker.note_failure(CallFailure::Alone, true, Duration::ZERO);
        }
        assert!(breaker.is_open());
    }

    #[test]
    fn a_state_that_fails_again_is_no_new_evidence() {
        let mut breaker = breaker();
        for _ in 0..100 {
            breaker.note_failure(CallFailure::Alone, false, Duration::ZERO);
        }
        assert!(!breaker.is_open());
        assert_eq!(breaker.count_failures(), 100);
    }

    #[test]
    fn fruitless_calls_are_slowed_and_not_cut_to_single_states() {
        let mut breaker = breaker();
        let mut now = Duration::ZERO;
        for _ in 0..EVIDENCE {
            breaker.note_failure(CallFailure::Fruitless, true, now);
        }
        for _ in 0..20 {
            let CallPermission::Not(Some(until)) = breaker.call_permission(now) else { panic!("it is open") };
            assert!(until - now <= LongestPauses::default().fruitless);
            now = until;
            assert_eq!(breaker.call_permission(now), CallPermission::Probe { single: false });
            breaker.note_probe();
            breaker.note_failure(CallFailure::Fruitless, false, now);
        }
    }

    #[test]
    fn rejections_in_a_row_open_it_and_then_rejected_states_wait() {
        let mut breaker = breaker();
        for _ in 1..REFUSALS {
            assert_eq!(breaker.note_rejection(Duration::ZERO), None, "these are dead letters");
        }
        assert_eq!(breaker.note_rejection(Duration::ZERO), Some(100 * MS));
        assert_eq!(breaker.note_rejection(Duration::ZERO), Some(100 * MS), "it was in a call beside");
        assert_eq!(breaker.call_permission(100 * MS), CallPermission::Probe { single: true });
        breaker.note_probe();
        assert_eq!(breaker.note_rejection(100 * MS), Some(300 * MS), "probes grow rarer");
        breaker.note_probe();
        breaker.note_success();
        assert_eq!(breaker.note_rejection(300 * MS), None, "it counts from the start");
        assert_eq!(breaker.call_permission(300 * MS), CallPermission::Freely);
    }

    #[test]
    fn a_rejected_probe_after_another_failure_closes_it() {
        let mut breaker = breaker();
        breaker.note_failure(CallFailure::Unavailable, true, Duration::ZERO);
        assert_eq!(breaker.note_rejection(Duration::ZERO), None, "its call began before");
        assert!(breaker.is_open());
        breaker.note_probe();
        assert_eq!(breaker.note_rejection(100 * MS), None);
        assert_eq!(breaker.call_permission(100 * MS), CallPermission::Freely);
    }

    #[test]
    fn calls_that_began_before_it_opened_do_not_lengthen_the_pause() {
        let mut breaker = breaker();
        for _ in 0..4 {
            breaker.note_failure(CallFailure::Unavailable, true, Duration::ZERO);
        }
        assert_eq!(breaker.call_permission(Duration::ZERO), CallPermission::Not(Some(100 * MS)));
    }
}
