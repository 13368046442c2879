//! How much a plugin writes to `kv` in a second, on the average. The journal has one writer, and whoever writes megabytes
//! keeps it busy: what the others have to say waits. Who has written ahead rests before its next call. Time is a parameter.

use std::time::Duration;

/// A plugin may be ahead by what it may write in so long. At the default rate it may fill all of its `kv` at once.
const AHEAD: Duration = Duration::from_secs(4);

/// When what was written is paid for.
#[derive(Debug, Default)]
pub struct Spent(Duration);

impl Spent {
    pub fn add(&mut self, bytes: usize, a_second: u64, now: Duration) {
        let took = Duration::from_secs_f64(bytes as f64 / a_second.max(1) as f64);
        self.0 = self.0.max(now) + took;
    }

    /// How long the next call waits.
    pub fn rest(&self, now: Duration) -> Option<Duration> {
        self.0.saturating_sub(now).checked_sub(AHEAD).filter(|wait| !wait.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn what_is_within_the_rate_never_rests_and_a_pause_saves_up_no_more_than_the_advance() {
        let mut spent = Spent::default();
        for second in 0..100 {
            spent.add(1000, 1000, second * SECOND);
            assert_eq!(spent.rest(second * SECOND), None);
        }
        let later = 10_000 * SECOND;
        spent.add(4000, 1000, later);
        assert_eq!(spent.rest(later), None);
        spent.add(500, 1000, later);
        assert_eq!(spent.rest(later), Some(SECOND / 2));
        assert_eq!(spent.rest(later + SECOND / 2), None);
    }

    #[test]
    fn whoever_writes_all_it_may_at_each_call_gets_the_rate_on_the_average() {
        let (mut spent, mut now, mut written) = (Spent::default(), Duration::ZERO, 0);
        while now < 1000 * SECOND {
            spent.add(50_000, 1000, now);
            written += 50_000;
            now += spent.rest(now).unwrap_or(SECOND / 100);
        }
        assert!((1_000_000..1_060_000).contains(&written), "{written} bytes in 1000 s");
    }
}
