//! The schedule of a plugin's ticks: when the next one is due, and the result of the last. The caller passes
//! the time.
//!
//! Counting from the start of the process was rejected: every restart would move the schedule. The moments
//! are multiples of `every` since 1970. So they are the same after a restart, in another replica and for the
//! next version, and nothing has to be stored. A moment that passes while the plugin is paused, away or busy
//! is skipped.

use std::sync::Arc;
use std::time::Duration;

use kubewitness_core::calendar;
use kubewitness_core::config::TickSpec;
use kubewitness_core::lanes::ClockReading;
use kubewitness_core::ports::{CallError, ScheduledCall};

/// The ticks of a plugin since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TickStats {
    /// Ticks that have ended.
    pub ticks: u64,
    /// The ticks among these that failed.
    pub failed: u64,
    pub is_running: bool,
    /// When the last one began, and when the next is due, in milliseconds since 1970.
    pub last_ms: Option<u64>,
    pub next_ms: Option<u64>,
    /// Why the last one failed; `None` where it did not.
    pub last_error: Option<Arc<str>>,
}

#[derive(Debug)]
pub(crate) struct TickSchedule {
    spec: TickSpec,
    next: Option<DueTick>,
    is_running: bool,
    stats: TickStats,
    /// Ticks that have failed since the last one that did not.
    failing: u64,
}

/// The news about the end of a tick. A reason is reported once: ticks may fail every few seconds, for days.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum TickNews {
    /// It failed, and the one before did not, or for another reason.
    Fails,
    /// It is the first that works, after so many that failed.
    Works { failed: u64 },
}

#[derive(Clone, Copy, Debug)]
struct DueTick {
    /// On the clock that never jumps.
    at: Duration,
    ms: u64,
}

impl TickSchedule {
    pub fn new(spec: TickSpec) -> Self {
        Self { spec, next: None, is_running: false, stats: TickStats::default(), failing: 0 }
    }

    /// Whether the plugin is to be called for a tick, or is being called. States wait then.
    pub fn is_turn(&self, now: Duration) -> bool {
        self.is_running || self.next.is_some_and(|due| due.at <= now)
    }

    /// Schedules the next tick where none is. A paused plugin has none.
    pub fn plan_next(&mut self, now: ClockReading, is_paused: bool) {
        if is_paused {
            self.next = None;
        } else if self.next.is_none() && !self.is_running {
            self.next = Some(self.first_after(now, Duration::ZERO));
        }
    }

    /// The first moment that is further away than `least`.
    fn first_after(&self, now: ClockReading, least: Duration) -> DueTick {
        let every = (self.spec.every.0.as_millis() as u64).max(1);
        let first = every - now.wall_ms % every;
        let wait = if Duration::from_millis(first) > least { first } else { first + every };
        DueTick { at: now.elapsed + Duration::from_millis(wait), ms: now.wall_ms + wait }
    }

    pub fn begin_tick(&mut self, now: ClockReading) -> ScheduledCall {
        let due_ms = self.next.take().map_or(now.wall_ms, |due| due.ms);
        self.is_running = true;
        self.stats.last_ms = Some(now.wall_ms);
        ScheduledCall { due_ms, timeout: self.spec.timeout_or_default() }
    }

    /// Notes what came of the tick in progress.
    pub fn note_end(&mut self, failed: Option<&CallError>, now: ClockReading) -> Option<TickNews> {
        self.is_running = false;
        self.stats.ticks += 1;
        self.stats.failed += u64::from(failed.is_some());
        let error: Option<Arc<str>> = failed.map(|error| Arc::from(error.to_string()));
        let before = std::mem::replace(&mut self.stats.last_error, error);
        // The machine's two clocks differ by a moment: the tick that was just made is not made again.
        self.next = Some(self.first_after(now, self.spec.every.0 / 2));
        match (&self.stats.last_error, before) {
            (Some(error), before) => {
                self.failing += 1;
                let is_known = before.is_some_and(|before| is_same(&before, error));
                (!is_known).then_some(TickNews::Fails)
            }
            (None, Some(_)) => Some(TickNews::Works { failed: std::mem::take(&mut self.failing) }),
            (None, None) => None,
        }
    }

    /// When the loop has to look again.
    pub fn next_wake(&self) -> Option<Duration> {
        self.next.map(|due| due.at)
    }

    pub fn tick_stats(&self) -> TickStats {
        TickStats { next_ms: self.next.map(|due| due.ms), is_running: self.is_running, ..self.stats.clone() }
    }
}

/// Whether two errors have the same reason. Numbers in them, such as times and ports, may differ.
fn is_same(one: &str, other: &str) -> bool {
    let words = |text: &str| text.replace(|c: char| c.is_ascii_digit(), "");
    words(one) == words(other)
}

impl TickStats {
    /// The message about a plugin whose ticks fail.
    pub fn failure_message(&self) -> Option<String> {
        let error = self.last_error.as_deref()?;
        let at = self.last_ms.map(calendar::format_rfc3339).unwrap_or_default();
        Some(format!("its tick at {at} failed, and is tried again when the next is due: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now(ms: u64) -> ClockReading {
        ClockReading { wall_ms: ms, elapsed: Duration::from_millis(ms - 1_000_000) }
    }

    fn ticks(timeout: Option<u64>) -> TickSchedule {
        let seconds = |seconds| kubewitness_core::config::Duration(Duration::from_secs(seconds));
        TickSchedule::new(TickSpec { every: seconds(20), timeout: timeout.map(seconds) })
    }

    #[test]
    fn ticks_are_at_multiples_of_their_pause_whenever_the_process_began() {
        for begun in [1_000_001, 1_015_000, 1_019_999] {
            let mut ticks = ticks(None);
            ticks.plan_next(now(begun), false);
            assert!(!ticks.is_turn(now(begun).elapsed));
            assert_eq!(ticks.tick_stats().next_ms, Some(1_020_000));
            assert!(ticks.is_turn(now(1_020_000).elapsed));
            assert_eq!(ticks.begin_tick(now(1_020_007)).due_ms, 1_020_000);
        }
    }

    #[test]
    fn a_moment_that_passed_is_left_out() {
        let mut ticks = ticks(None);
        ticks.plan_next(now(1_000_001), false);
        let tick = ticks.begin_tick(now(1_020_000));
        assert_eq!(tick.timeout, Duration::from_secs(10));
        ticks.plan_next(now(1_021_000), false);
        assert!(ticks.is_turn(now(1_021_000).elapsed) && ticks.next_wake().is_none(), "it is running");
        ticks.note_end(None, now(1_075_000));
        assert_eq!(ticks.tick_stats().next_ms, Some(1_080_000 + 20_000), "1,080,000 is too near");
        ticks.plan_next(now(1_066_000), true);
        assert_eq!(ticks.tick_stats().next_ms, None, "it is paused");
        ticks.plan_next(now(1_310_000), false);
        assert_eq!(ticks.tick_stats().next_ms, Some(1_320_000));
    }

    #[test]
    fn a_tick_that_begins_a_moment_early_is_not_made_twice() {
        let mut ticks = ticks(Some(3));
        ticks.plan_next(now(1_000_001), false);
        assert_eq!(ticks.begin_tick(now(1_019_998)).timeout, Duration::from_secs(3));
        ticks.note_end(Some(&CallError::Failed("away".into())), now(1_019_999));
        let stats = ticks.tick_stats();
        assert_eq!((stats.ticks, stats.failed, stats.next_ms), (1, 1, Some(1_040_000)));
        assert!(stats.failure_message().unwrap().ends_with("the plugin says: away"), "{stats:?}");
        ticks.begin_tick(now(1_040_000));
        ticks.note_end(None, now(1_040_001));
        assert_eq!(ticks.tick_stats().failure_message(), None, "one that works ends the trouble");
    }

    #[test]
    fn a_reason_is_news_once_until_it_changes_or_is_over() {
        let mut ticks = ticks(None);
        let away = |text: &str| Some(CallError::Failed(text.into()));
        let ends = [
            (None, None),
            (away("away since 12 s"), Some(TickNews::Fails)),
            (away("away since 32 s"), None),
            (away("full"), Some(TickNews::Fails)),
            (away("full"), None),
            (None, Some(TickNews::Works { failed: 4 })),
            (None, None),
            (away("full"), Some(TickNews::Fails)),
        ];
        for (place, (failed, news)) in ends.into_iter().enumerate() {
            assert_eq!(ticks.note_end(failed.as_ref(), now(1_020_000)), news, "{place}");
        }
    }
}
