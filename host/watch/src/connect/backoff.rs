//! Computes pauses: exponential, with jitter, never shorter than the server asked for. Pure. Written by hand
//! for two reasons: the server's request is a lower bound of each pause, and a seed repeats a run.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// A small random generator for jitter. A seed makes a run repeatable.
#[derive(Clone, Debug)]
pub(crate) struct JitterDice(u64);

impl JitterDice {
    pub fn new(seed: Option<u64>) -> Self {
        // A xorshift never leaves zero, so zero is not used.
        Self(seed.unwrap_or_else(|| RandomState::new().hash_one(0u8)).max(1))
    }

    fn next_random(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub fn random_between(&mut self, low: u64, high: u64) -> u64 {
        low + self.next_random() % (high.saturating_sub(low) + 1)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Backoff {
    first: Duration,
    cap: Duration,
    tries: u32,
}

impl Backoff {
    pub fn new(first: Duration, cap: Duration) -> Self {
        Self { first, cap, tries: 0 }
    }

    pub fn reset_tries(&mut self) {
        self.tries = 0;
    }

    /// A pause between half of the step and the whole step, so that many clients do not return at the same
    /// time.
    pub fn next(&mut self, dice: &mut JitterDice, asked: Option<Duration>) -> Duration {
        let step = self.first.saturating_mul(1 << self.tries.min(20)).min(self.cap);
        self.tries = self.tries.saturating_add(1);
        let nanos = u64::try_from(step.as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos(dice.random_between(nanos / 2, nanos)).max(asked.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_their_cap_and_start_again_after_a_success() {
        let mut dice = JitterDice::new(Some(7));
        let mut backoff = Backoff::new(Duration::from_millis(800), Duration::from_secs(30));
        for step in [800u64, 1_600, 3_200, 6_400, 12_800, 25_600, 30_000, 30_000] {
            let pause = backoff.next(&mut dice, None).as_millis() as u64;
            assert!((step / 2..=step).contains(&pause), "{pause} for {step}");
        }
        backoff.reset_tries();
        assert!(backoff.next(&mut dice, None) <= Duration::from_millis(800));
    }

    #[test]
    fn a_pause_is_never_shorter_than_the_server_asked_for() {
        let mut backoff = Backoff::new(Duration::from_millis(1), Duration::from_secs(1));
        let asked = Duration::from_secs(17);
        assert_eq!(backoff.next(&mut JitterDice::new(None), Some(asked)), asked);
    }
}
