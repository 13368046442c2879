//! Keeps a plugin that fails from being called at full speed. Time is a parameter.
//!
//! Three things open it. A call that was `unavailable` does at once: no state is to blame, and
//! the next call would meet the same. A state that fails alone is evidence, since one poison
//! state says nothing about a plugin, but several in a row with no success in between do; so
//! only the probes use up tries then, and a broken plugin doesn't turn its whole backlog into
//! dead letters. A call whose every answer was `retry` is evidence too, of a sink that the
//! plugin found to be down; since a plugin may also have its own good reason to wait for each
//! object, the pauses stay short and the probes are whole batches.

use std::time::Duration;

/// Failures without a success in between. Splitting a batch must not reach it by one poison
/// state, which fails alone once.
const EVIDENCE: u32 = 5;
/// The longest pause while nothing can succeed: how late a recovery may be noticed.
const BROKEN_PAUSE: Duration = Duration::from_secs(10);
/// The longest pause while a plugin answers `retry` to everything.
const FRUITLESS_PAUSE: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    Unavailable,
    /// A state failed though it was alone in its call.
    Alone,
    /// Every verdict was `retry`.
    Fruitless,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Allowed {
    Freely,
    /// One call, of a single state or of a whole batch.
    Probe {
        single: bool,
    },
    /// Nothing before this moment; `None`: not before the probe is back.
    Not(Option<Duration>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Position {
    Closed,
    Open { until: Duration },
    Probing,
}

#[derive(Debug)]
pub(crate) struct Breaker {
    position: Position,
    cause: Failure,
    first: Duration,
    pause: Duration,
    evidence: u32,
    /// Calls in a row that failed as a whole.
    failures: u32,
}

impl Breaker {
    pub fn new(first_pause: Duration) -> Self {
        let first = first_pause.clamp(Duration::from_millis(10), FRUITLESS_PAUSE);
        Self {
            position: Position::Closed,
            cause: Failure::Unavailable,
            first,
            pause: first,
            evidence: 0,
            failures: 0,
        }
    }

    pub fn is_open(&self) -> bool {
        self.position != Position::Closed
    }

    pub fn failures(&self) -> u32 {
        self.failures
    }

    pub fn allowed(&self, now: Duration) -> Allowed {
        match self.position {
            Position::Closed => Allowed::Freely,
            Position::Open { until } if now >= until => {
                Allowed::Probe { single: self.cause != Failure::Fruitless }
            }
            Position::Open { until } => Allowed::Not(Some(until)),
            Position::Probing => Allowed::Not(None),
        }
    }

    /// The probe is on its way.
    pub fn probe(&mut self) {
        self.position = Position::Probing;
    }

    pub fn succeeded(&mut self) {
        self.position = Position::Closed;
        self.pause = self.first;
        self.evidence = 0;
        self.failures = 0;
    }

    /// A call that was part of finding a culprit failed: seen, but no evidence by itself.
    pub fn suspected(&mut self) {
        self.failures = self.failures.saturating_add(1);
    }

    /// `fresh`: a state was tried for the first time. States that failed before are paced by
    /// their lanes and prove nothing new about the plugin.
    pub fn failed(&mut self, failure: Failure, fresh: bool, now: Duration) {
        self.failures = self.failures.saturating_add(1);
        match self.position {
            // A call that began before it opened.
            Position::Open { .. } => {}
            Position::Probing => self.open(failure, self.pause.saturating_mul(2), now),
            Position::Closed => {
                self.evidence += match failure {
                    Failure::Unavailable => EVIDENCE,
                    Failure::Alone | Failure::Fruitless => u32::from(fresh),
                };
                if self.evidence >= EVIDENCE {
                    self.open(failure, self.first, now);
                }
            }
        }
    }

    fn open(&mut self, cause: Failure, pause: Duration, now: Duration) {
        let longest = if cause == Failure::Fruitless { FRUITLESS_PAUSE } else { BROKEN_PAUSE };
        self.cause = cause;
        self.pause = pause.min(longest);
        self.position = Position::Open { until: now + self.pause };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn breaker() -> Breaker {
        Breaker::new(100 * MS)
    }

    #[test]
    fn an_unavailable_sink_opens_at_once_and_probes_grow_rarer() {
        let mut breaker = breaker();
        let mut now = Duration::ZERO;
        breaker.failed(Failure::Unavailable, true, now);
        for pause in [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000] {
            assert_eq!(breaker.allowed(now), Allowed::Not(Some(now + pause * MS)));
            now += pause * MS;
            assert_eq!(breaker.allowed(now), Allowed::Probe { single: true });
            breaker.probe();
            assert_eq!(breaker.allowed(now), Allowed::Not(None), "one probe at a time");
            breaker.failed(Failure::Unavailable, true, now);
        }
        breaker.succeeded();
        assert_eq!((breaker.allowed(now), breaker.failures()), (Allowed::Freely, 0));
        breaker.failed(Failure::Unavailable, true, now);
        assert_eq!(breaker.allowed(now), Allowed::Not(Some(now + 100 * MS)), "it starts over");
    }

    #[test]
    fn poison_states_open_it_only_in_a_row() {
        let mut breaker = breaker();
        for _ in 0..10 {
            breaker.failed(Failure::Alone, true, Duration::ZERO);
            breaker.failed(Failure::Alone, true, Duration::ZERO);
            breaker.succeeded();
        }
        assert!(!breaker.is_open());
        for _ in 0..EVIDENCE {
            breaker.failed(Failure::Alone, true, Duration::ZERO);
        }
        assert!(breaker.is_open());
    }

    #[test]
    fn a_state_that_fails_again_is_no_new_evidence() {
        let mut breaker = breaker();
        for _ in 0..100 {
            breaker.failed(Failure::Alone, false, Duration::ZERO);
        }
        assert!(!breaker.is_open());
        assert_eq!(breaker.failures(), 100);
    }

    #[test]
    fn fruitless_calls_are_slowed_and_not_cut_to_single_states() {
        let mut breaker = breaker();
        let mut now = Duration::ZERO;
        for _ in 0..EVIDENCE {
            breaker.failed(Failure::Fruitless, true, now);
        }
        for _ in 0..20 {
            let Allowed::Not(Some(until)) = breaker.allowed(now) else { panic!("it is open") };
            assert!(until - now <= FRUITLESS_PAUSE);
            now = until;
            assert_eq!(breaker.allowed(now), Allowed::Probe { single: false });
            breaker.probe();
            breaker.failed(Failure::Fruitless, false, now);
        }
    }

    #[test]
    fn calls_that_began_before_it_opened_do_not_lengthen_the_pause() {
        let mut breaker = breaker();
        for _ in 0..4 {
            breaker.failed(Failure::Unavailable, true, Duration::ZERO);
        }
        assert_eq!(breaker.allowed(Duration::ZERO), Allowed::Not(Some(100 * MS)));
    }
}
