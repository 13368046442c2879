//! Limits what reading old versions back costs: requests, requests a second, and time in which the server was
//! there.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// Unused turns are given out later, at most this many at once.
const BURST: u32 = 8;

pub(crate) struct Budget {
    requests: AtomicU32,
    time: Duration,
    since: Instant,
    step: Duration,
    state: Mutex<State>,
}

struct State {
    /// When the next request may go out.
    turn: Instant,
    /// How long the server was away, and since when it is.
    away: Duration,
    away_since: Option<Instant>,
}

impl Budget {
    pub fn new(requests: u32, time: Duration, rate: u32) -> Self {
        let now = Instant::now();
        let state = State { turn: now, away: Duration::ZERO, away_since: None };
        Self {
            requests: AtomicU32::new(requests),
            time,
            since: now,
            step: Duration::from_secs(1) / rate.max(1),
            state: Mutex::new(state),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The time since the beginning, without the time in which the server was away.
    pub fn spent(&self) -> Duration {
        let state = self.state();
        let away = state.away + state.away_since.map(|since| since.elapsed()).unwrap_or_default();
        self.since.elapsed().saturating_sub(away)
    }

    /// Takes one request. Returns `false` if none is left.
    pub fn take(&self) -> bool {
        let less = |left: u32| left.checked_sub(1);
        self.spent() < self.time
            && self.requests.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }

    /// Waits for the next turn.
    pub async fn turn(&self) {
        let now = Instant::now();
        let at = {
            let mut state = self.state();
            let earliest = now.checked_sub(self.step * BURST).unwrap_or(now);
            let at = state.turn.max(earliest);
            state.turn = at + self.step;
            at
        };
        // A timer rings at the next millisecond, also if its time has passed.
        if at > now {
            sleep_until(at).await;
        }
    }

    pub fn away(&self) {
        self.state().away_since.get_or_insert_with(Instant::now);
    }

    pub fn answered(&self) {
        let mut state = self.state();
        if let Some(since) = state.away_since.take() {
            state.away += since.elapsed();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn requests_come_no_faster_than_their_rate_after_a_burst() {
        let budget = Budget::new(100, Duration::from_secs(60), 200);
        let begun = Instant::now();
        for _ in 0..20 {
            budget.turn().await;
        }
        assert!(begun.elapsed() >= budget.step * (20 - BURST - 1), "{:?}", begun.elapsed());
    }

    #[tokio::test]
    async fn time_in_which_the_server_is_away_does_not_count() {
        let budget = Budget::new(3, Duration::from_secs(3600), 10);
        let begun = Instant::now();
        budget.away();
        tokio::time::sleep(Duration::from_millis(30)).await;
        budget.answered();
        assert!(budget.spent() + Duration::from_millis(30) <= begun.elapsed());
        assert!(budget.take() && budget.take() && budget.take() && !budget.take());
        assert!(!Budget { time: Duration::ZERO, requests: AtomicU32::new(9), ..budget }.take());
    }
}
