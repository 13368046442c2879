//! Time as a trait, so that a simulation can control it.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Wall time is for people and records. Every decision uses `elapsed`, which never jumps.
pub trait Clock: Send + Sync {
    /// Milliseconds since 1970, as the machine reports them.
    fn now_ms(&self) -> u64;
    /// The time since a fixed moment. It never decreases.
    fn elapsed(&self) -> Duration;
}

/// The machine's clocks.
#[derive(Debug, Clone)]
pub struct SystemClock {
    start: Instant,
}

impl Default for SystemClock {
    fn default() -> Self {
        Self { start: Instant::now() }
    }
}

impl Clock for SystemClock {
    fn now_ms(&self) -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
    }

    fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }
}
