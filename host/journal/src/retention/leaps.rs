//! The clock by which retention measures ages. A clock that leaps ahead would make every state look old, so a
//! leap takes effect only after an hour: until then an operator can correct the clock.

use std::time::Duration;

use kubewitness_core::clock::Clock;

/// Smaller steps are ordinary adjustments of the clock.
const LEAP: Duration = Duration::from_secs(60);
const COUNTS_AFTER: Duration = Duration::from_secs(3600);

#[derive(Default)]
pub struct ClockLeaps {
    /// The last reading before a leap, and the monotonic time of that reading.
    last: Option<(u64, Duration)>,
    /// When a leap that does not count yet was detected.
    found: Option<Duration>,
}

impl ClockLeaps {
    /// The reading of the clock, without a leap that does not count yet.
    pub fn now_ms(&mut self, clock: &dyn Clock, source: &str) -> u64 {
        let (now, elapsed) = (clock.now_ms(), clock.elapsed());
        let (before, then) = *self.last.get_or_insert((now, elapsed));
        let expected = before.saturating_add(as_millis_u64(elapsed.saturating_sub(then)));
        let ahead = now.saturating_sub(expected);
        if ahead > as_millis_u64(LEAP) {
            let found = *self.found.get_or_insert_with(|| {
                tracing::warn!(
                    source,
                    seconds = ahead / 1000,
                    "the clock has leapt ahead. Retention ignores that for an hour: put the clock right if it is wrong"
                );
                elapsed
            });
            if elapsed.saturating_sub(found) < COUNTS_AFTER {
                return expected;
            }
        }
        *self = Self { last: Some((now, elapsed)), found: None };
        now
    }
}

fn as_millis_u64(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const YEAR: u64 = 365 * 24 * 3_600_000;

    /// The machine's wall clock, and the seconds that have passed.
    struct ClockReading(u64, u64);

    impl Clock for ClockReading {
        fn now_ms(&self) -> u64 {
            self.0
        }

        fn elapsed(&self) -> Duration {
            Duration::from_secs(self.1)
        }
    }

    #[test]
    fn a_clock_that_leaps_ahead_is_believed_after_an_hour() {
        let mut leaps = ClockLeaps::default();
        let mut now = |shown, seconds| leaps.now_ms(&ClockReading(shown, seconds), "jobs");
        assert_eq!(now(1_000, 0), 1_000);
        assert_eq!(now(YEAR, 10), 11_000, "as much later as time has passed");
        assert_eq!(now(YEAR + 3_589_000, 3_599), 3_600_000);
        assert_eq!(now(YEAR + 3_600_000, 3_610), YEAR + 3_600_000);
        assert_eq!(now(YEAR + 3_660_000, 3_670), YEAR + 3_660_000);
    }

    #[test]
    fn a_clock_that_is_put_right_in_time_takes_nothing_along() {
        let mut leaps = ClockLeaps::default();
        let mut now = |shown, seconds| leaps.now_ms(&ClockReading(shown, seconds), "jobs");
        assert_eq!(now(1_000, 0), 1_000);
        assert_eq!(now(YEAR, 60), 61_000);
        assert_eq!(now(121_000, 120), 121_000);
        assert_eq!(now(YEAR, 3_700), 3_701_000, "the next leap has an hour of its own");
    }

    #[test]
    fn small_steps_in_either_direction_are_followed() {
        let mut leaps = ClockLeaps::default();
        let mut now = |shown, seconds| leaps.now_ms(&ClockReading(shown, seconds), "jobs");
        for (shown, seconds) in [(100_000, 0), (130_000, 0), (90_000, 10), (140_000, 20), (199_000, 20)] {
            assert_eq!(now(shown, seconds), shown);
        }
    }
}
