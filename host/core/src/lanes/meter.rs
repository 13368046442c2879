//! The figures of a plugin's queue, as client-go's work queues define them.

use std::time::Duration;

/// The bounds of a histogram: ten nanoseconds and the next eleven powers of ten.
pub const BOUNDS: usize = 12;
const NANOS: [u64; BOUNDS] = {
    let mut bounds = [10; BOUNDS];
    let mut power = 1;
    while power < BOUNDS {
        bounds[power] = bounds[power - 1] * 10;
        power += 1;
    }
    bounds
};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    /// One count for each bound, for values up to it; the last count is for values above all bounds.
    pub counts: [u64; BOUNDS + 1],
    pub sum: Duration,
}

impl Histogram {
    /// The upper bounds in seconds, each with the number of values up to it.
    pub fn cumulative_counts(&self) -> impl Iterator<Item = (f64, u64)> + '_ {
        (0..BOUNDS).scan(0, |total, bound| {
            *total += self.counts[bound];
            Some((10f64.powi(bound as i32 - 8), *total))
        })
    }

    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    pub(super) fn observe_time(&mut self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.counts[NANOS.partition_point(|bound| *bound < nanos)] += 1;
        self.sum += time;
    }
}

/// Figures since the process started. Only the waiting and in-flight figures are of now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueStats {
    /// States that wait and are not in flight.
    pub depth: u64,
    /// States that entered the lanes, with every retry and replay.
    pub adds: u64,
    pub retries: u64,
    /// The time from when a state enters or is due again until it is handed over.
    pub waited: Histogram,
    /// The time from when a state is handed over until its call ends.
    pub worked: Histogram,
    pub in_flight: u64,
    /// The moments at which the states in flight were handed over: their sum and the earliest.
    pub since_sum: Duration,
    pub since_first: Option<Duration>,
}

impl QueueStats {
    /// The time that the states in flight have taken so far, summed.
    pub fn unfinished_time(&self, now: Duration) -> Duration {
        let flights = u32::try_from(self.in_flight).unwrap_or(u32::MAX);
        now.saturating_mul(flights).saturating_sub(self.since_sum)
    }

    pub fn longest_time(&self, now: Duration) -> Duration {
        self.since_first.map_or(Duration::ZERO, |since| now.saturating_sub(since))
    }
}

#[derive(Debug, Default)]
pub(super) struct LaneMeter {
    pub adds: u64,
    pub retries: u64,
    pub waited: Histogram,
    pub worked: Histogram,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_lies_in_the_first_bound_that_it_does_not_exceed() {
        let mut histogram = Histogram::default();
        for nanos in [0, 10, 11, 1_000_000_000, u64::MAX] {
            histogram.observe_time(Duration::from_nanos(nanos));
        }
        let mut counts = [0; BOUNDS + 1];
        (counts[0], counts[1], counts[8], counts[BOUNDS]) = (2, 1, 1, 1);
        assert_eq!(histogram.counts, counts);
        let cumulative: Vec<_> = histogram.cumulative_counts().collect();
        assert_eq!((cumulative[0].1, cumulative[1].1, cumulative[8], histogram.count()), (2, 3, (1.0, 4), 5));
    }

    #[test]
    fn what_is_in_progress_grows_older_between_two_looks() {
        let seconds = Duration::from_secs;
        let stats = QueueStats {
            in_flight: 2,
            since_sum: seconds(7),
            since_first: Some(seconds(3)),
            ..QueueStats::default()
        };
        assert_eq!(
            (stats.unfinished_time(seconds(10)), stats.longest_time(seconds(10))),
            (seconds(13), seconds(7))
        );
        assert_eq!(QueueStats::default().longest_time(seconds(10)), Duration::ZERO);
    }
}
