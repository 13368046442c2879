//! Bounds the concurrent requests of each party, so that no party starves the others.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};

/// The concurrency limit of each party. The map has the parties with requests in progress, and briefly some
/// whose requests have just ended.
pub struct PartyShares<P> {
    each: usize,
    asking: Mutex<HashMap<P, Weak<Semaphore>>>,
}

impl<P: Clone + Eq + Hash> PartyShares<P> {
    pub fn new(each: usize) -> Self {
        Self { each, asking: Mutex::default() }
    }

    /// Waits while this party has its maximum in progress. Dropping the place lets the next one begin.
    pub async fn take(&self, party: &P) -> Result<OwnedSemaphorePermit, AcquireError> {
        self.semaphore_of(party).acquire_owned().await
    }

    /// Takes several places at once. The caller must not ask for more than a party has.
    pub async fn take_many(&self, party: &P, places: u32) -> Result<OwnedSemaphorePermit, AcquireError> {
        self.semaphore_of(party).acquire_many_owned(places).await
    }

    /// `None` if the party already has its maximum in progress.
    pub fn take_at_once(&self, party: &P) -> Option<OwnedSemaphorePermit> {
        self.semaphore_of(party).try_acquire_owned().ok()
    }

    fn semaphore_of(&self, party: &P) -> Arc<Semaphore> {
        let mut asking = self.asking.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(theirs) = asking.get(party).and_then(Weak::upgrade) {
            return theirs;
        }
        asking.retain(|_, places| places.strong_count() > 0);
        let theirs = Arc::new(Semaphore::new(self.each));
        asking.insert(party.clone(), Arc::downgrade(&theirs));
        theirs
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn is_there<T>(asked: impl Future<Output = T>) -> bool {
        pin!(asked).poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[tokio::test]
    async fn a_party_that_asks_much_waits_for_itself_and_is_forgotten_afterwards() {
        let shares = PartyShares::new(2);
        let (first, second) = (shares.take(&"a").await.unwrap(), shares.take_at_once(&"a").unwrap());
        let mut third = Box::pin(shares.take(&"a"));
        let mut poll = || third.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(poll().is_pending() && shares.take_at_once(&"a").is_none());
        assert!(is_there(shares.take(&"b")), "another party has a share of its own");
        drop(first);
        let Poll::Ready(third) = poll() else { panic!("there is room now") };
        assert!(!is_there(shares.take(&"a")), "given up while it waited");
        drop((second, third));
        let _eve = shares.take(&"eve").await.unwrap();
        assert_eq!(shares.asking.lock().unwrap().len(), 1, "who has gone is forgotten");
    }
}
