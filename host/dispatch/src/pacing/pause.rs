//! Computes the pauses between tries while the journal is unavailable.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(50);
/// How late the end of a full disk may be noticed.
const LONGEST: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub(crate) struct OperatorPause {
    failures: u32,
    until: Duration,
}

impl OperatorPause {
    pub fn begin_pause(&mut self, now: Duration) {
        let factor = 1u32.checked_shl(self.failures).unwrap_or(u32::MAX);
        self.until = now + FIRST.saturating_mul(factor).min(LONGEST);
        self.failures = self.failures.saturating_add(1);
    }

    pub fn end_pause(&mut self) {
        *self = Self::default();
    }

    pub fn is_paused(&self) -> bool {
        self.failures > 0
    }

    /// Zero without a pause.
    pub fn pause_end(&self) -> Duration {
        self.until
    }
}
