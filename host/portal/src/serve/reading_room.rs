//! Limits the rows of concurrent answers before they are read. An answer with many rows is in memory as
//! states and then as text, before its size is known; its sending is limited by
//! [`LargeAnswers`](super::LargeAnswers). A request waits for its turn instead of being refused: reading
//! takes a moment, and the service accounts of a namespace are one party.

use std::sync::Arc;

use kubewitness_core::ports::PartyShares;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Answers with fewer rows are limited by the number of connections.
const UNIT: usize = 1000;
/// For all answers together, and for those of one party: four and two of the longest ones.
const UNITS: usize = 40;
const UNITS_OF_A_PARTY: usize = 20;

#[derive(Clone)]
pub(crate) struct ReadingRoom {
    all: Arc<Semaphore>,
    parties: Arc<PartyShares<String>>,
}

/// The turn of one answer. When it is dropped, the next one reads.
pub(crate) struct ReadingTurn {
    _of_party: Option<OwnedSemaphorePermit>,
    _of_all: OwnedSemaphorePermit,
}

impl ReadingRoom {
    pub(crate) fn new() -> Self {
        let parties = Arc::new(PartyShares::new(UNITS_OF_A_PARTY));
        Self { all: Arc::new(Semaphore::new(UNITS)), parties }
    }

    /// Waits for the turn of an answer with up to so many rows. `None` if they are few.
    pub(crate) async fn enter(&self, party: Option<&str>, rows: usize) -> Option<ReadingTurn> {
        if rows <= UNIT {
            return None;
        }
        let units = u32::try_from(rows.div_ceil(UNIT).min(UNITS_OF_A_PARTY)).unwrap_or(u32::MAX);
        // Its own share first: a request that waits for that takes nothing from others. The semaphores are
        // never closed.
        let of_party = match party {
            Some(party) => Some(self.parties.take_many(&party.to_owned(), units).await.ok()?),
            None => None,
        };
        let of_all = self.all.clone().acquire_many_owned(units).await.ok()?;
        Some(ReadingTurn { _of_party: of_party, _of_all: of_all })
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn answers_of_many_rows_wait_for_their_turn_and_few_rows_do_not() {
        let room = ReadingRoom::new();
        let now = async |party: &str, rows: usize| room.enter(Some(party), rows).now_or_never();
        let first = now("ann", 10_000).await.flatten().unwrap();
        let _second = now("ann", 10_000).await.flatten().unwrap();
        assert!(now("ann", 10_000).await.is_none(), "she waits for herself");
        assert!(now("ann", 1000).await.is_some_and(|turn| turn.is_none()), "a few rows need no turn");
        let _others =
            [now("bea", 10_000).await.flatten().unwrap(), now("cid", 10_000).await.flatten().unwrap()];
        assert!(now("dan", 10_000).await.is_none(), "the room is full");
        let waiting = room.enter(Some("ann"), 5000);
        drop(first);
        assert!(waiting.await.is_some());
    }
}
