//! Decides how long a hold lasts and how often it is renewed. Pure.

use std::time::Duration;

use thiserror::Error;

use crate::connect::backoff::JitterDice;

/// After a crash nobody dispatches until the lease expires, so a longer duration is a typing error.
const LONGEST: Duration = Duration::from_secs(3600);

/// Checked on construction: a holder never believes in its hold longer than others wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTiming {
    lease: Duration,
    renew_deadline: Duration,
    retry: Duration,
}

#[derive(Debug, Error, PartialEq, Eq)]
pub enum TimingError {
    #[error("a lease of {lease:?} must last longer than its renew deadline of {renew_deadline:?}")]
    BelievesTooLong { lease: Duration, renew_deadline: Duration },
    #[error("a renew deadline of {renew_deadline:?} must be at least twice the retry period of {retry:?}")]
    NoSecondTry { renew_deadline: Duration, retry: Duration },
    #[error("a retry period must be longer than nothing")]
    NoPause,
    #[error("a lease of {0:?} is longer than {LONGEST:?}")]
    TooLong(Duration),
}

/// The values of client-go.
impl Default for LeaseTiming {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry: Duration::from_secs(2),
        }
    }
}

impl LeaseTiming {
    pub fn new(lease: Duration, renew_deadline: Duration, retry: Duration) -> Result<Self, TimingError> {
        if retry.is_zero() {
            return Err(TimingError::NoPause);
        }
        if lease <= renew_deadline {
            return Err(TimingError::BelievesTooLong { lease, renew_deadline });
        }
        if renew_deadline < retry.saturating_mul(2) {
            return Err(TimingError::NoSecondTry { renew_deadline, retry });
        }
        if lease > LONGEST {
            return Err(TimingError::TooLong(lease));
        }
        Ok(Self { lease, renew_deadline, retry })
    }

    /// How long others wait for us, as the Lease says it: in whole seconds, rounded up.
    pub fn lease_seconds(&self) -> u32 {
        let whole = self.lease + Duration::from_nanos(999_999_999);
        u32::try_from(whole.as_secs()).expect("an hour has fewer seconds")
    }

    pub(crate) fn lease_time(&self) -> Duration {
        self.lease
    }

    pub(crate) fn renew_deadline(&self) -> Duration {
        self.renew_deadline
    }

    /// The timeout of a request: it leaves time for another one before a hold expires.
    pub(crate) fn answer_timeout(&self) -> Duration {
        self.retry.saturating_mul(2).min(self.renew_deadline / 2)
    }

    /// Up to a quarter more than the period, so that replicas don't send requests in step.
    pub(crate) fn retry_pause(&self, dice: &mut JitterDice) -> Duration {
        let nanos = u64::try_from(self.retry.as_nanos()).expect("an hour has fewer nanoseconds");
        Duration::from_nanos(dice.random_between(nanos, nanos + nanos / 4))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_holder_that_would_believe_as_long_as_others_wait_is_refused() {
        let refused = LeaseTiming::new(SECOND * 10, SECOND * 10, SECOND * 2);
        assert!(matches!(refused, Err(TimingError::BelievesTooLong { .. })), "{refused:?}");
        assert!(LeaseTiming::new(SECOND * 10, SECOND * 9, SECOND * 2).is_ok());
    }

    #[test]
    fn times_that_leave_no_second_try_or_no_pause_are_refused() {
        assert!(matches!(
            LeaseTiming::new(SECOND * 9, SECOND * 3, SECOND * 2),
            Err(TimingError::NoSecondTry { .. })
        ));
        assert_eq!(LeaseTiming::new(SECOND, SECOND / 2, Duration::ZERO), Err(TimingError::NoPause));
        assert_eq!(
            LeaseTiming::new(SECOND * 3601, SECOND, SECOND / 2),
            Err(TimingError::TooLong(SECOND * 3601))
        );
    }

    #[test]
    fn others_are_told_to_wait_rather_too_long_than_too_short() {
        let timing = LeaseTiming::new(SECOND * 3 / 2, SECOND, SECOND / 5).unwrap();
        assert_eq!((timing.lease_seconds(), LeaseTiming::default().lease_seconds()), (2, 15));
    }

    #[test]
    fn a_pause_is_never_shorter_than_the_period_and_not_always_the_same() {
        let mut dice = JitterDice::new(Some(3));
        let pauses: Vec<_> = (0..50).map(|_| LeaseTiming::default().retry_pause(&mut dice)).collect();
        assert!(pauses.iter().all(|pause| (SECOND * 2..=SECOND * 5 / 2).contains(pause)));
        assert!(pauses.iter().any(|pause| *pause != pauses[0]));
    }
}
