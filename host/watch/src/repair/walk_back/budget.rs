//! Limits the cost of one round of reading old versions back: requests, and time in which the server was
//! reachable. The rate of requests belongs to the whole connection and its
//! [budget](crate::source::repair_budget).

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

pub(crate) struct RequestBudget {
    requests: AtomicU32,
    time: Duration,
    since: Instant,
    state: Mutex<BudgetState>,
}

#[derive(Default)]
struct BudgetState {
    /// How long the server has been unreachable in total, and since when it is unreachable now.
    away: Duration,
    away_since: Option<Instant>,
}

impl RequestBudget {
    pub fn new(requests: u32, time: Duration) -> Self {
        Self { requests: AtomicU32::new(requests), time, since: Instant::now(), state: Mutex::default() }
    }

    /// How many requests can be sent at most, at this rate per second.
    pub fn possible_requests(&self, rate: u32) -> u32 {
        let seconds = self.time.saturating_sub(self.time_spent()).as_secs_f64();
        // A number that is too large becomes the largest.
        self.requests.load(Ordering::Relaxed).min((seconds * f64::from(rate)) as u32)
    }

    fn lock_state(&self) -> MutexGuard<'_, BudgetState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The time since the beginning, without the time in which the server was unreachable.
    pub fn time_spent(&self) -> Duration {
        let state = self.lock_state();
        let away = state.away + state.away_since.map(|since| since.elapsed()).unwrap_or_default();
        self.since.elapsed().saturating_sub(away)
    }

    /// Takes one request. Returns `false` if none is left.
    pub fn take(&self) -> bool {
        let less = |left: u32| left.checked_sub(1);
        self.time_spent() < self.time
            && self.requests.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }

    pub fn note_server_away(&self) {
        self.lock_state().away_since.get_or_insert_with(Instant::now);
    }

    pub fn note_answered(&self) {
        let mut state = self.lock_state();
        if let Some(since) = state.away_since.take() {
            state.away += since.elapsed();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn time_in_which_the_server_is_away_does_not_count() {
        let budget = RequestBudget::new(3, Duration::from_secs(3600));
        let begun = Instant::now();
        budget.note_server_away();
        tokio::time::sleep(Duration::from_millis(30)).await;
        budget.note_answered();
        assert!(budget.time_spent() + Duration::from_millis(30) <= begun.elapsed());
        assert!(budget.take() && budget.take() && budget.take() && !budget.take());
        assert!(!RequestBudget { time: Duration::ZERO, requests: AtomicU32::new(9), ..budget }.take());
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_possible_follows_from_requests_and_time() {
        let budget = RequestBudget::new(20_000, Duration::from_secs(60));
        assert_eq!((budget.possible_requests(200), budget.possible_requests(u32::MAX)), (12_000, 20_000));
        tokio::time::advance(Duration::from_secs(30)).await;
        assert_eq!(budget.possible_requests(200), 6_000);
    }
}
