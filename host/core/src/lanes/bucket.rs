//! A token bucket whose caller supplies the time. It stores the moment until which its tokens are spent, so
//! nothing is refilled and no rounding error grows.
//!
//! The crate `governor` does not fit: the lanes ask for the number of tokens without taking one, and they
//! spend more tokens than there are.

use std::time::Duration;

use crate::config::{RateQuota, RateSpec};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenBucket {
    /// The time between two tokens.
    interval: Duration,
    /// How far ahead of time tokens may be spent.
    depth: Duration,
    spent_until: Duration,
}

impl TokenBucket {
    pub fn new(rate: RateSpec) -> Self {
        let interval = Duration::from_secs(1) / rate.per_second.max(1);
        let depth = interval * rate.burst_or_default().max(1);
        Self { interval, depth, spent_until: Duration::ZERO }
    }

    /// Never gives more than the quota, whatever moment its time begins at: half of it may come at once, and the other
    /// half comes evenly.
    pub fn within_quota(quota: RateQuota) -> Self {
        let burst = (quota.most / 2).max(1);
        let interval = quota.within / quota.most.saturating_sub(burst).max(1);
        Self { interval, depth: interval * burst, spent_until: Duration::ZERO }
    }

    pub fn available_tokens(&self, now: Duration) -> usize {
        let left = self.depth.saturating_sub(self.spent_until.saturating_sub(now));
        usize::try_from(left.as_nanos() / self.interval.as_nanos().max(1)).unwrap_or(usize::MAX)
    }

    /// When the bucket holds this many tokens, or when it is full if it never holds so many.
    pub fn due_at(&self, tokens: u32) -> Duration {
        (self.spent_until + (self.interval * tokens).min(self.depth)).saturating_sub(self.depth)
    }

    pub fn spend_tokens(&mut self, tokens: usize, now: Duration) {
        let tokens = u32::try_from(tokens).unwrap_or(u32::MAX);
        self.spent_until = self.spent_until.max(now) + self.interval * tokens;
    }

    /// Takes a token, or returns the time until there is one.
    pub fn take(&mut self, now: Duration) -> Result<(), Duration> {
        match self.due_at(1).saturating_sub(now) {
            Duration::ZERO => {
                self.spend_tokens(1, now);
                Ok(())
            }
            wait => Err(wait),
        }
    }

    /// Takes a token of each, or returns the time until each has one.
    pub fn take_all(buckets: &mut [Self], now: Duration) -> Result<(), Duration> {
        let wait =
            buckets.iter().map(|bucket| bucket.due_at(1).saturating_sub(now)).max().unwrap_or_default();
        if wait > Duration::ZERO {
            return Err(wait);
        }
        buckets.iter_mut().for_each(|bucket| bucket.spend_tokens(1, now));
        Ok(())
    }

    /// Takes the next free token and returns the time until the caller may use it. If that is longer than
    /// `longest`, it takes no token and returns `longest`.
    pub fn reserve_token(&mut self, now: Duration, longest: Duration) -> Duration {
        let wait = self.due_at(1).saturating_sub(now);
        if wait > longest {
            return longest;
        }
        self.spend_tokens(1, now);
        wait
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bucket(per_second: u32, burst: u32) -> TokenBucket {
        TokenBucket::new(RateSpec { per_second, burst: Some(burst) })
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_full_bucket_gives_its_burst_and_then_one_token_at_a_time() {
        let mut bucket = bucket(10, 3);
        assert_eq!(bucket.available_tokens(ms(0)), 3);
        bucket.spend_tokens(3, ms(0));
        assert_eq!((bucket.available_tokens(ms(99)), bucket.available_tokens(ms(100))), (0, 1));
        assert_eq!((bucket.due_at(1), bucket.due_at(2), bucket.due_at(9)), (ms(100), ms(200), ms(300)));
    }

    #[test]
    fn an_empty_bucket_says_when_the_next_token_comes_and_a_pause_saves_up_no_more_than_the_burst() {
        let mut bucket = bucket(10, 2);
        let takes = [0, 0, 0, 60_000, 60_000, 60_000].map(|now| bucket.take(ms(now)));
        let wait = Err(ms(100));
        assert_eq!(takes, [Ok(()), Ok(()), wait, Ok(()), Ok(()), wait]);
        assert_eq!(bucket.take(ms(60_100)), Ok(()), "it comes when it was said");
    }

    #[test]
    fn a_reservation_waits_its_turn_and_never_longer_than_it_may() {
        let mut bucket = bucket(10, 1);
        let waits = [0, 100, 200, 250, 250].map(ms);
        assert_eq!([0; 5].map(|now| bucket.reserve_token(ms(now), ms(250))), waits);
        assert_eq!(
            bucket.reserve_token(ms(200), ms(250)),
            ms(100),
            "those that took none did not lengthen the line"
        );
    }

    #[test]
    fn buckets_give_one_token_of_each_or_none() {
        let mut both = [bucket(10, 1), bucket(1, 2)];
        let takes = [0, 50, 100, 200, 1000].map(|now| TokenBucket::take_all(&mut both, ms(now)));
        assert_eq!(takes, [Ok(()), Err(ms(50)), Ok(()), Err(ms(800)), Ok(())]);
        assert_eq!(TokenBucket::take_all(&mut [], ms(0)), Ok(()));
    }

    proptest! {
        #[test]
        fn a_quota_is_kept_in_any_stretch_of_its_time(
            most in 1u32..120, pauses in proptest::collection::vec(0u64..3_000, 1..400),
        ) {
            let mut bucket = TokenBucket::within_quota(RateQuota { most, within: ms(60_000) });
            let (mut now, mut given) = (0, Vec::new());
            for pause in pauses {
                now += pause;
                if bucket.take(ms(now)).is_ok() {
                    given.push(now);
                }
            }
            for (place, first) in given.iter().enumerate() {
                let within = given[place..].iter().filter(|at| **at < first + 60_000).count();
                prop_assert!(within <= most as usize, "{} of {}", within, most);
            }
        }

        /// The model is a bucket that counts whole tokens in thousandths.
        #[test]
        fn it_gives_what_a_counted_bucket_gives(
            rate in 1u32..50, burst in 1u32..20,
            steps in proptest::collection::vec((0u64..700, 0usize..8), 1..60),
        ) {
            let mut bucket = TokenBucket::new(RateSpec { per_second: 1000 / rate, burst: Some(burst) });
            let interval = Duration::from_secs(1).as_nanos() / u128::from(1000 / rate);
            let full = u128::from(burst) * interval;
            let (mut level, mut now) = (full, 0);
            for (pass, wanted) in steps {
                now += pass;
                level = (level + u128::from(pass) * 1_000_000).min(full);
                let there = usize::try_from(level / interval).unwrap();
                prop_assert_eq!(bucket.available_tokens(ms(now)), there);
                let spent = wanted.min(there);
                bucket.spend_tokens(spent, ms(now));
                level -= spent as u128 * interval;
            }
        }
    }
}
