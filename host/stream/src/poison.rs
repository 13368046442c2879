//! Keeps the poison messages of a stream: messages that are not a state of their partition. Anybody who may
//! publish there decides how many come and how large they are. So few are kept, and only the beginning of
//! each. All are counted.

use std::time::Duration;

use bytes::Bytes;
use kubewitness_core::bucket::TokenBucket;
use kubewitness_core::config::RateQuota;
use kubewitness_core::ports::PoisonMessage;
use tokio::time::Instant;

/// How many bytes of each message are kept: enough to see who sent it.
const KEPT_BYTES: usize = 4096;
/// A day of nothing but poison adds 6 MiB to the journal.
const KEPT: RateQuota = RateQuota { most: 60, within: Duration::from_secs(3600) };

#[derive(Clone)]
pub(crate) struct PoisonKeeper {
    began: Instant,
    kept: TokenBucket,
    passed: u64,
}

impl Default for PoisonKeeper {
    fn default() -> Self {
        Self { began: Instant::now(), kept: TokenBucket::within_quota(KEPT), passed: 0 }
    }
}

impl PoisonKeeper {
    pub fn age(&self) -> Duration {
        self.began.elapsed()
    }

    /// `None` if too many arrived: this one is only counted. `now` is a time that never decreases.
    pub fn keep_message(
        &mut self,
        raw: &Bytes,
        error: &str,
        observed_ms: u64,
        now: Duration,
    ) -> Option<PoisonMessage> {
        if self.kept.available_tokens(now) == 0 {
            self.passed += 1;
            return None;
        }
        self.kept.spend_tokens(1, now);
        let mut error = error.to_owned();
        let passed = std::mem::take(&mut self.passed);
        if passed > 0 {
            error += &format!("; {passed} messages before it were passed, and are not kept");
        }
        let raw = match raw.len() {
            0..=KEPT_BYTES => raw.clone(),
            bytes => {
                error += &format!("; it has {bytes} bytes, and its beginning is kept");
                Bytes::copy_from_slice(&raw[..KEPT_BYTES])
            }
        };
        Some(PoisonMessage { raw, error, observed_ms })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_messages_are_kept_and_the_others_are_counted() {
        let mut keeper = PoisonKeeper::default();
        let raw = Bytes::from(vec![b'a'; KEPT_BYTES + 1]);
        let mut keep = |at: u64| keeper.keep_message(&raw, "it is none", 7, Duration::from_secs(at));
        let first = keep(0).unwrap();
        assert_eq!(first.raw.len(), KEPT_BYTES);
        assert!(first.error.ends_with("it has 4097 bytes, and its beginning is kept"), "{}", first.error);
        let kept = (0..1000).filter(|_| keep(1).is_some()).count();
        assert!(kept < KEPT.most as usize, "{kept}");
        let later = keep(3600).unwrap();
        assert!(later.error.contains(&format!("{} messages before it", 1000 - kept)), "{}", later.error);
    }
}
