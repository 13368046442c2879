//! Limits how much a plugin writes to `kv` per second on average. The journal has one writer, and a plugin
//! that writes megabytes would delay other plugins. A plugin that exceeds its rate pauses before its next
//! call. Time is a parameter.
//!
//! The token bucket of the lanes was rejected: its rate is fixed, and here an operator may change the rate
//! while a debt remains.

use std::time::Duration;

/// How far ahead of its rate a plugin may write. At the default rate it may fill all of its `kv` at once.
const AHEAD: Duration = Duration::from_secs(4);

/// The bytes that were written and still count against the rate.
#[derive(Debug, Default)]
pub struct WriteDebt {
    bytes: f64,
    at: Duration,
}

impl WriteDebt {
    pub fn add(&mut self, bytes: usize, a_second: u64, now: Duration) {
        self.bytes = self.bytes_left(a_second, now) + bytes as f64;
        self.at = now;
    }

    /// How long the next call waits, at the present rate.
    pub fn pause_before_call(&self, a_second: u64, now: Duration) -> Option<Duration> {
        let wait = self.bytes_left(a_second, now) / bytes_per_second(a_second) - AHEAD.as_secs_f64();
        Duration::try_from_secs_f64(wait).ok().filter(|wait| !wait.is_zero())
    }

    fn bytes_left(&self, a_second: u64, now: Duration) -> f64 {
        let worked_off = bytes_per_second(a_second) * now.saturating_sub(self.at).as_secs_f64();
        (self.bytes - worked_off).max(0.0)
    }
}

fn bytes_per_second(a_second: u64) -> f64 {
    a_second.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn what_is_within_the_rate_never_rests_and_a_pause_saves_up_no_more_than_the_advance() {
        let mut spent = WriteDebt::default();
        for second in 0..100 {
            spent.add(1000, 1000, second * SECOND);
            assert_eq!(spent.pause_before_call(1000, second * SECOND), None);
        }
        let later = 10_000 * SECOND;
        spent.add(4000, 1000, later);
        assert_eq!(spent.pause_before_call(1000, later), None);
        spent.add(500, 1000, later);
        assert_eq!(spent.pause_before_call(1000, later), Some(SECOND / 2));
        assert_eq!(spent.pause_before_call(1, later), Some(4496 * SECOND));
        assert_eq!(spent.pause_before_call(2000, later), None, "the rate is the one of now");
        assert_eq!(spent.pause_before_call(1000, later + SECOND / 2), None);
    }

    #[test]
    fn whoever_writes_all_it_may_at_each_call_gets_the_rate_on_the_average() {
        let (mut spent, mut now, mut written) = (WriteDebt::default(), Duration::ZERO, 0);
        while now < 1000 * SECOND {
            spent.add(50_000, 1000, now);
            written += 50_000;
            now += spent.pause_before_call(1000, now).unwrap_or(SECOND / 100);
        }
        assert!((1_000_000..1_060_000).contains(&written), "{written} bytes in 1000 s");
    }
}
