//! Where long documents are redacted: on threads that may block, a few at a time. A short one is redacted at once.
//!
//! The time that this takes grows with the document, and a tenant may write long ones. Neither other people's requests
//! nor the watch wait for them: they have the runtime's own threads.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::available_parallelism;

use kubewitness_core::redact::Withheld;
use tokio::sync::Semaphore;

/// A usual Job of 5 KiB takes less than what it costs to change the thread.
const SHORT_BYTES: usize = 8 << 10;
/// There are two at least, so that no party has all of them.
const LEAST: usize = 2;
/// Longer ones leave a place to those that are shorter, which take some milliseconds.
const MEDIUM_BYTES: usize = 64 << 10;

/// For whom a document is redacted. Each has a share of the threads.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Party {
    Person(Arc<str>),
    Plugin(Arc<str>),
    /// Whose object a list shows to somebody.
    Namespace(Arc<str>),
    /// Where nobody is told apart.
    Anybody,
}

pub(super) struct Threads {
    places: Arc<Semaphore>,
    /// For those that are no longer than [`MEDIUM_BYTES`].
    medium: Arc<Semaphore>,
    /// Places of one party at most.
    share: usize,
    /// Those of whom something is redacted or waits.
    parties: Mutex<HashMap<Party, Weak<Semaphore>>>,
}

impl Default for Threads {
    /// One processor is left to everything else.
    fn default() -> Self {
        let processors = available_parallelism().map_or(1, usize::from);
        Self::of(processors.saturating_sub(1).max(LEAST))
    }
}

impl Threads {
    pub(super) fn of(places: usize) -> Self {
        let (places, medium) = (Arc::new(Semaphore::new(places)), Arc::new(Semaphore::new(1)));
        Self { share: places.available_permits() / 2, places, medium, parties: Mutex::default() }
    }

    /// What `work` makes of so many bytes. Work that began keeps its place to its end, also where nobody waits for it
    /// any more.
    pub async fn run<T: Send + 'static>(
        &self,
        party: &Party,
        bytes: usize,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Withheld> {
        if bytes <= SHORT_BYTES {
            let done = work();
            // Many short ones are a long one.
            tokio::task::yield_now().await;
            return Ok(done);
        }
        let own = self.of_party(party).acquire_owned().await.map_err(Withheld::because)?;
        let place = match bytes <= MEDIUM_BYTES {
            true => self.medium.clone().acquire_owned().await,
            false => self.places.clone().acquire_owned().await,
        };
        let place = place.map_err(Withheld::because)?;
        let placed = move || {
            let _places = (own, place);
            work()
        };
        tokio::task::spawn_blocking(placed).await.map_err(Withheld::because)
    }

    fn of_party(&self, party: &Party) -> Arc<Semaphore> {
        let mut parties = self.parties.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = parties.get(party).and_then(Weak::upgrade) {
            return known;
        }
        parties.retain(|_, places| places.strong_count() > 0);
        let places = Arc::new(Semaphore::new(self.share));
        parties.insert(party.clone(), Arc::downgrade(&places));
        places
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::sync::mpsc;
    use std::task::Poll;

    use super::*;

    const LONG: usize = MEDIUM_BYTES + 1;

    fn person(name: &str) -> Party {
        Party::Person(name.into())
    }

    /// Until whatever is spawned has had its turn.
    async fn is_waiting(mut work: std::pin::Pin<&mut impl Future>) -> bool {
        for _ in 0..100 {
            let polled = std::future::poll_fn(|context| Poll::Ready(work.as_mut().poll(context))).await;
            if polled.is_ready() {
                return false;
            }
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        true
    }

    #[tokio::test]
    async fn the_long_documents_of_one_party_leave_threads_to_another() {
        let threads = Threads::of(4);
        let (end, ended) = mpsc::channel::<()>();
        let ended = Arc::new(Mutex::new(ended));
        let held = || {
            let ended = ended.clone();
            threads.run(&Party::Anybody, LONG, move || ended.lock().unwrap().recv().is_ok())
        };
        let all: Vec<_> = (0..8).map(|_| Box::pin(held())).collect();
        let mut all = futures::future::join_all(all);
        assert!(is_waiting(std::pin::Pin::new(&mut all)).await);
        assert_eq!(threads.places.available_permits(), 2, "a party has its share and no more");
        for name in ["ann", "bob"] {
            let done = threads.run(&person(name), LONG, move || name).await;
            assert_eq!(done, Ok(name));
        }
        let medium = threads.run(&person("dan"), MEDIUM_BYTES, || 1).await;
        assert_eq!(medium, Ok(1), "it has a place of its own");
        let short = threads.run(&Party::Anybody, SHORT_BYTES, || 1).await;
        assert_eq!(short, Ok(1), "a short one waits for nothing");
        drop(all);
        assert_eq!(threads.places.available_permits(), 2, "what began keeps its places");
        (0..2).for_each(|_| end.send(()).unwrap());
        assert_eq!(threads.run(&Party::Anybody, LONG, || 2).await, Ok(2));
        threads.of_party(&person("cy"));
        assert!(threads.parties.lock().unwrap().len() <= 2, "those who are gone are forgotten");
    }

    #[tokio::test]
    async fn while_a_long_document_is_redacted_the_thread_of_the_requests_is_free() {
        let threads = Threads::of(2);
        let (end, ended) = mpsc::channel();
        // On the thread of this test the work would wait for ever.
        let (done, ()) = tokio::join!(
            threads.run(&Party::Anybody, LONG, move || ended
                .recv_timeout(std::time::Duration::from_secs(30))
                .is_ok()),
            async move { end.send(()).unwrap() },
        );
        assert_eq!(done, Ok(true));
    }

    #[tokio::test]
    async fn a_document_whose_redaction_fails_is_withheld() {
        let told = Threads::of(2).run(&Party::Anybody, LONG, || panic!("out of luck")).await;
        let told: Result<(), _> = told;
        assert!(told.unwrap_err().to_string().contains("withheld"));
    }
}
