//! Stamps what is observed with the machine's time, and doubts a clock that leaps years ahead.
//!
//! A clock may show another year for a moment, after a fault of the hardware or of a time server. States from
//! that moment would show the wild time for ever, in `since`, in tables and in ages. So a leap counts only
//! once it has lasted an hour. Until then the stamps go on by the monotonic clock.
//!
//! Only leaps of more than [`LEAP`] are doubted. A machine that was suspended, or one without a battery that
//! learns the time from the network, leaps ahead as well, and is right. A clock that was wrong when the source
//! started can't be told from one that is right. A clock that is put back is believed at once.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use kubewitness_core::clock::Clock;

/// The smallest leap that is doubted. No suspended machine is expected to sleep that long.
const LEAP: Duration = Duration::from_secs(30 * 24 * 3600);
const COUNTS_AFTER: Duration = Duration::from_secs(3600);

/// A reading is compared with the monotonic clock only once an hour, so that a stamp costs one reading.
const FRESH_MS: u64 = 3_600_000;

/// A reading before 2025, when this code was written, comes from a clock that was never set. What follows it
/// is believed.
const NEVER_SET_MS: u64 = 1_735_689_600_000;

/// The stamps of one source. All tasks of the source share it.
#[derive(Debug, Default)]
pub(crate) struct ObservationTimes(Mutex<LeapGuard>);

impl ObservationTimes {
    pub fn now_ms(&self, clock: &dyn Clock) -> u64 {
        let mut guard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        guard.check_reading(clock.now_ms(), || clock.elapsed())
    }
}

#[derive(Debug, Default)]
struct LeapGuard {
    /// A believed reading of the clock, and the monotonic time of that reading.
    believed: Option<(u64, Duration)>,
    /// When the leap began that does not count yet.
    doubted_since: Option<Duration>,
}

impl LeapGuard {
    /// Returns the time to stamp with.
    fn check_reading(&mut self, now_ms: u64, elapsed: impl FnOnce() -> Duration) -> u64 {
        if let Some((before, _)) = self.believed
            && self.doubted_since.is_none()
            && now_ms.checked_sub(before).is_some_and(|passed| passed < FRESH_MS)
        {
            return now_ms;
        }
        let elapsed = elapsed();
        let Some((before, then)) = self.believed.filter(|(before, _)| *before >= NEVER_SET_MS) else {
            return self.believe(now_ms, elapsed);
        };
        let expected = before.saturating_add(as_millis_u64(elapsed.saturating_sub(then)));
        if now_ms.saturating_sub(expected) <= as_millis_u64(LEAP) {
            return self.believe(now_ms, elapsed);
        }
        let since = *self.doubted_since.get_or_insert_with(|| {
            let days = now_ms.saturating_sub(expected) / 86_400_000;
            tracing::warn!(
                days,
                "the clock has leapt ahead. States are stamped as if it had not, for an hour: put the clock right if \
                 it is wrong"
            );
            elapsed
        });
        if elapsed.saturating_sub(since) >= COUNTS_AFTER { self.believe(now_ms, elapsed) } else { expected }
    }

    fn believe(&mut self, now_ms: u64, elapsed: Duration) -> u64 {
        *self = Self { believed: Some((now_ms, elapsed)), doubted_since: None };
        now_ms
    }
}

fn as_millis_u64(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_800_000_000_000;
    const DAY: u64 = 86_400_000;

    /// Stamps at (wall time, seconds of the monotonic clock).
    fn stamps(readings: &[(u64, u64)]) -> Vec<u64> {
        let mut guard = LeapGuard::default();
        let stamp =
            |(now_ms, seconds): &(u64, u64)| guard.check_reading(*now_ms, || Duration::from_secs(*seconds));
        readings.iter().map(stamp).collect()
    }

    #[test]
    fn a_clock_that_is_years_ahead_for_a_moment_stamps_nothing_with_that_time() {
        let wild = NOW + 3_650 * DAY;
        let readings = [(NOW, 0), (wild, 10), (wild + 1_000, 11), (NOW + 12_000, 12), (wild, 3_700)];
        let expected = [NOW, NOW + 10_000, NOW + 11_000, NOW + 12_000, NOW + 3_700_000];
        assert_eq!(stamps(&readings), expected);
    }

    #[test]
    fn a_leap_that_lasts_an_hour_is_believed() {
        let wild = NOW + 400 * DAY;
        let readings = [(NOW, 0), (wild, 10), (wild, 3_609), (wild, 3_610), (wild + 1, 3_611)];
        assert_eq!(stamps(&readings), [NOW, NOW + 10_000, NOW + 3_609_000, wild, wild + 1]);
    }

    #[test]
    fn a_suspended_machine_a_corrected_clock_and_a_quiet_source_are_right_at_once() {
        let week = (NOW + 7 * DAY, 60);
        assert_eq!(stamps(&[(NOW, 0), week]), [NOW, week.0]);
        assert_eq!(stamps(&[(NOW, 0), (NOW - 900 * DAY, 60)]), [NOW, NOW - 900 * DAY]);
        assert_eq!(stamps(&[(1_000, 0), (NOW, 60), (NOW + 1, 60)]), [1_000, NOW, NOW + 1]);
        let months = (NOW + 90 * DAY, 90 * 86_400);
        assert_eq!(stamps(&[(NOW, 0), months]), [NOW, months.0]);
    }
}
