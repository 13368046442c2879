//! How long a list waits for long documents, and which namespaces are slow.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::poll;
use tokio::time::{Instant, timeout};

/// How long one list waits in total for the secrets that long documents' statuses and Events quote. After
/// that, the rest is shown without texts.
const A_LIST: Duration = Duration::from_millis(300);
/// For how long no list waits for a document of a slow namespace again.
const PAUSE: Duration = Duration::from_secs(2);
/// The most slow namespaces. If there are more, all are waited for once more.
const NAMESPACES: usize = 1024;

/// The remaining time for which an answer waits for long documents.
#[derive(Clone)]
pub struct AnswerPatience {
    /// `None`: as long as a request may take.
    left: Option<Duration>,
}

impl AnswerPatience {
    pub fn of_a_list() -> Self {
        Self { left: Some(A_LIST) }
    }

    pub fn of_a_request() -> Self {
        Self { left: None }
    }

    pub(super) fn without_time() -> Self {
        Self { left: Some(Duration::ZERO) }
    }

    /// Takes off the time of those who waited at the same time, each with a copy of this one.
    pub(super) fn spend_longest_of(&mut self, copies: &[Self]) {
        self.left = copies.iter().map(|copy| copy.left).min().unwrap_or(self.left);
    }

    pub(super) fn has_no_time_left(&self) -> bool {
        self.left == Some(Duration::ZERO)
    }

    /// An immediate result is returned even if no time is left. `None` if it takes longer.
    pub(super) async fn wait_for<F: Future>(&mut self, awaited: F) -> Option<F::Output> {
        let mut awaited = pin!(awaited);
        if let std::task::Poll::Ready(done) = poll!(awaited.as_mut()) {
            return Some(done);
        }
        let Some(left) = self.left else { return Some(awaited.await) };
        let began = Instant::now();
        let done = timeout(left, awaited).await.ok();
        self.left = Some(left.saturating_sub(began.elapsed()));
        done
    }
}

/// Namespaces of which a document recently took too long.
#[derive(Default)]
pub(super) struct SlowNamespaces(Mutex<HashMap<Arc<str>, Instant>>);

impl SlowNamespaces {
    pub(super) fn is_slow(&self, namespace: &str) -> bool {
        self.lock_namespaces().get(namespace).is_some_and(|at| at.elapsed() < PAUSE)
    }

    pub(super) fn note_slow(&self, namespace: Arc<str>) {
        let mut slow = self.lock_namespaces();
        if slow.len() >= NAMESPACES {
            slow.clear();
        }
        slow.insert(namespace, Instant::now());
    }

    fn lock_namespaces(&self) -> MutexGuard<'_, HashMap<Arc<str>, Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn those_who_wait_at_the_same_time_spend_the_time_of_the_longest() {
        let mut patience = AnswerPatience::of_a_list();
        let mut copies = vec![patience.clone(); 3];
        for (copy, waited) in copies.iter_mut().zip([0, 100, 50]) {
            copy.wait_for(tokio::time::sleep(Duration::from_millis(waited))).await;
        }
        patience.spend_longest_of(&copies);
        assert_eq!(patience.left, Some(A_LIST - Duration::from_millis(100)));
        let mut endless = AnswerPatience::of_a_request();
        endless.spend_longest_of(&[AnswerPatience::of_a_request()]);
        assert_eq!(endless.left, None);
        patience.spend_longest_of(&[]);
        assert_eq!(patience.left, Some(A_LIST - Duration::from_millis(100)));
    }

    #[tokio::test(start_paused = true)]
    async fn all_that_a_list_waits_for_has_one_time_and_what_is_there_needs_none() {
        let mut patience = AnswerPatience::of_a_list();
        let began = Instant::now();
        assert_eq!(patience.wait_for(tokio::time::sleep(A_LIST / 3)).await, Some(()));
        for _ in 0..100 {
            assert_eq!(patience.wait_for(std::future::pending::<()>()).await, None);
        }
        assert!(began.elapsed() < A_LIST * 2, "{:?}", began.elapsed());
        assert!(patience.has_no_time_left());
        assert_eq!(patience.wait_for(std::future::ready(7)).await, Some(7));
        assert_eq!(patience.wait_for(tokio::task::yield_now()).await, Some(()), "it is done at once");
        assert_eq!(AnswerPatience::of_a_request().wait_for(tokio::time::sleep(A_LIST * 3)).await, Some(()));
    }
}
