//! A share for each party of what all ask for, so that one person's questions keep nobody else waiting.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};

use super::party_of;

/// By party. It holds those that ask right now, and so no more than there are requests.
pub(super) struct Shares {
    each: usize,
    asking: Mutex<HashMap<String, Asking>>,
}

struct Asking {
    places: Arc<Semaphore>,
    /// Questions under way, and those that wait for a place.
    questions: usize,
}

/// One question of a party. Dropped, it makes room for the next one.
pub(crate) struct Share<'a> {
    shares: &'a Shares,
    party: &'a str,
    _place: Option<OwnedSemaphorePermit>,
}

impl Shares {
    pub(super) fn new(each: usize) -> Self {
        Self { each, asking: Mutex::default() }
    }

    /// Waits while the party of this person has as many questions under way as it may.
    pub(super) async fn take<'a>(&'a self, user: &'a str) -> Result<Share<'a>, AcquireError> {
        let party = party_of(user);
        let places = {
            let mut asking = self.lock();
            let new = || Asking { places: Arc::new(Semaphore::new(self.each)), questions: 0 };
            let theirs = asking.entry(party.to_owned()).or_insert_with(new);
            theirs.questions += 1;
            theirs.places.clone()
        };
        // It counts as a question from here on, also if nobody waits for it to the end.
        let mut share = Share { shares: self, party, _place: None };
        share._place = Some(places.acquire_owned().await?);
        Ok(share)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Asking>> {
        self.asking.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        let mut asking = self.shares.lock();
        let Some(theirs) = asking.get_mut(self.party) else { return };
        theirs.questions -= 1;
        if theirs.questions == 0 {
            asking.remove(self.party);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn a_party_that_asks_much_waits_for_itself_and_is_forgotten_afterwards() {
        let shares = Shares::new(2);
        let first = shares.take("system:serviceaccount:team:a").await.unwrap();
        let second = shares.take("system:serviceaccount:team:b").await.unwrap();
        let mut third = Box::pin(shares.take("system:serviceaccount:team:c"));
        assert!(third.as_mut().now_or_never().is_none(), "accounts of one namespace are one party");
        assert!(shares.take("ann").now_or_never().is_some());
        drop(first);
        let third = third.now_or_never().expect("there is room now").unwrap();
        assert!(
            shares.take("system:serviceaccount:team:d").now_or_never().is_none(),
            "given up while it waited"
        );
        drop((second, third));
        assert!(shares.lock().is_empty());
    }
}
