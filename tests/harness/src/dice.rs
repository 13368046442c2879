//! The choices that tests with real processes leave to chance: one seed decides all of them.

use std::time::Duration;

/// The seed where the environment names no other.
const SEED: u64 = 42;

/// Another one is tried with `KUBEWITNESS_SEED=7`.
pub fn seed() -> u64 {
    std::env::var("KUBEWITNESS_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(SEED)
}

/// How often something is killed: so often, or as `KUBEWITNESS_KILLS` says.
pub fn kills(unless_told: u64) -> u64 {
    std::env::var("KUBEWITNESS_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(unless_told)
}

/// The same numbers for the same seed.
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        (z ^ (z >> 31)) % limit
    }

    /// Up to so many milliseconds.
    pub async fn pause(&mut self, most: u64) {
        tokio::time::sleep(Duration::from_millis(self.below(most))).await;
    }
}
