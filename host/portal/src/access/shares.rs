//! A share for each party of what all ask for, so that one person's questions keep nobody else waiting.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};

use super::party_of;

/// By party. It holds those that ask right now, and at times some that have just asked.
pub(super) struct Shares {
    each: usize,
    asking: Mutex<HashMap<String, Weak<Semaphore>>>,
}

impl Shares {
    pub(super) fn new(each: usize) -> Self {
        Self { each, asking: Mutex::default() }
    }

    /// Waits while the party of this person has as many questions under way as it may. Dropped, the place makes room for
    /// the next one.
    pub(super) async fn take(&self, user: &str) -> Result<OwnedSemaphorePermit, AcquireError> {
        self.of(party_of(user)).acquire_owned().await
    }

    fn of(&self, party: &str) -> Arc<Semaphore> {
        let mut asking = self.asking.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(theirs) = asking.get(party).and_then(Weak::upgrade) {
            return theirs;
        }
        asking.retain(|_, places| places.strong_count() > 0);
        let theirs = Arc::new(Semaphore::new(self.each));
        asking.insert(party.to_owned(), Arc::downgrade(&theirs));
        theirs
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
        let _eve = shares.take("eve").await.unwrap();
        assert_eq!(shares.asking.lock().unwrap().len(), 1, "who has gone is forgotten");
    }
}
