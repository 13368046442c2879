//! A token bucket: how often something may happen, with a burst.

use std::time::Duration;

use tokio::time::Instant;

#[derive(Debug)]
pub struct Bucket {
    per_second: f64,
    burst: f64,
    tokens: f64,
    at: Instant,
}

impl Bucket {
    pub fn new(per_second: u32, burst: u32, now: Instant) -> Self {
        let burst = f64::from(burst.max(1));
        Self { per_second: f64::from(per_second.max(1)), burst, tokens: burst, at: now }
    }

    /// Takes one token, or says how long until there is one.
    pub fn take(&mut self, now: Instant) -> Result<(), Duration> {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        self.tokens = (self.tokens + passed * self.per_second).min(self.burst);
        self.at = self.at.max(now);
        if self.tokens >= 1.0 {
            self.tokens -= 1.0;
            return Ok(());
        }
        Err(Duration::from_secs_f64((1.0 - self.tokens) / self.per_second))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_bucket_says_when_the_next_token_comes() {
        let start = Instant::now();
        let mut bucket = Bucket::new(10, 2, start);
        assert_eq!(bucket.take(start), Ok(()));
        assert_eq!(bucket.take(start), Ok(()));
        let wait = bucket.take(start).unwrap_err();
        assert_eq!(wait, Duration::from_millis(100));
        assert_eq!(bucket.take(start + wait), Ok(()));
    }

    #[test]
    fn a_long_pause_saves_up_no_more_than_the_burst() {
        let start = Instant::now();
        let mut bucket = Bucket::new(10, 2, start);
        let later = start + Duration::from_secs(60);
        assert_eq!(bucket.take(later), Ok(()));
        assert_eq!(bucket.take(later), Ok(()));
        assert!(bucket.take(later).is_err());
    }
}
