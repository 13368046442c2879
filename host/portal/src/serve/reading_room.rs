//! Bounds the rows that answers under way have in memory. Nobody knows how many an answer has before it was read, so it
//! takes room for its limit first and gives back what it does not need. A request waits for its turn and is not refused:
//! to read takes a moment, and the service accounts of a namespace are one party. What is sent has a bound of its own in
//! [`LargeAnswers`](super::LargeAnswers).

use std::sync::Arc;

use kubewitness_core::ports::PartyShares;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Fewer rows than this are bounded by the connections, and by the requests that a party has under way.
const UNIT: usize = 250;
/// The units of all answers together, and those of one party: four of the longest ones, and one.
const UNITS: usize = 160;
const UNITS_OF_A_PARTY: usize = 40;

#[derive(Clone)]
pub(crate) struct ReadingRoom {
    all: Arc<Semaphore>,
    parties: Arc<PartyShares<String>>,
}

/// The turn of one answer. When it is dropped, the next one reads.
pub(crate) struct ReadingTurn {
    of_party: Option<OwnedSemaphorePermit>,
    of_all: OwnedSemaphorePermit,
}

impl ReadingTurn {
    /// Gives back what an answer of so many rows does not need.
    pub(crate) fn give_back_unneeded(&mut self, rows: usize) {
        for permit in self.of_party.iter_mut().chain([&mut self.of_all]) {
            let needed = if rows <= UNIT { 0 } else { rows.div_ceil(UNIT) };
            let spare = permit.num_permits().saturating_sub(needed);
            drop(permit.split(spare));
        }
    }
}

impl ReadingRoom {
    pub(crate) fn new() -> Self {
        let parties = Arc::new(PartyShares::new(UNITS_OF_A_PARTY));
        Self { all: Arc::new(Semaphore::new(UNITS)), parties }
    }

    /// Waits for the turn of an answer with up to so many rows. `None` if they are few.
    pub(crate) async fn await_turn(&self, party: Option<&str>, rows: usize) -> Option<ReadingTurn> {
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
        Some(ReadingTurn { of_party, of_all })
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn answers_of_many_rows_wait_for_their_turn_and_few_rows_do_not() {
        let room = ReadingRoom::new();
        let now = async |party: &str, rows: usize| room.await_turn(Some(party), rows).now_or_never();
        let first = now("ann", 5000).await.flatten().unwrap();
        let _second = now("ann", 5000).await.flatten().unwrap();
        assert!(now("ann", 500).await.is_none(), "she waits for herself");
        assert!(now("ann", 250).await.is_some_and(|turn| turn.is_none()), "a few rows need no turn");
        let _others = [
            now("bea", 10_000).await.flatten().unwrap(),
            now("cid", 20_000).await.flatten().unwrap(),
            now("dan", 10_000).await.flatten().unwrap(),
        ];
        assert!(now("eva", 500).await.is_none(), "the room is full");
        let waiting = room.await_turn(Some("ann"), 5000);
        drop(first);
        assert!(waiting.await.is_some());
    }

    #[tokio::test]
    async fn an_answer_with_fewer_rows_than_its_limit_gives_room_back() {
        let room = ReadingRoom::new();
        let now = async |rows: usize| room.await_turn(Some("ann"), rows).now_or_never();
        let mut long = now(10_000).await.flatten().unwrap();
        long.give_back_unneeded(10_000);
        assert!(now(500).await.is_none());
        long.give_back_unneeded(600);
        assert!(now(9250).await.is_some_and(|turn| turn.is_some()));
        assert!(now(9500).await.is_none(), "what it has takes room still");
        long.give_back_unneeded(0);
        assert!(now(10_000).await.is_some_and(|turn| turn.is_some()));
    }
}
