//! Bounds the rows that answers in progress have in memory. The size of an answer is unknown until it is
//! read, so it reserves room for its limit and then gives back what it does not need. Requests wait for their
//! turn instead of being refused: reading takes a moment, and all service accounts of a namespace are one
//! party. [`LargeAnswers`](super::LargeAnswers) bounds the text that is being sent.

use std::sync::Arc;

use kubewitness_core::ports::PartyShares;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Answers with fewer rows need no turn: the limits for connections and for the requests of a party bound
/// them.
const UNIT: usize = 250;
/// The units of all answers together: four of the longest. One party has those of one.
const UNITS: usize = 160;
const UNITS_OF_A_PARTY: usize = 40;

#[derive(Clone)]
pub(crate) struct ReadingRoom {
    all: Arc<Semaphore>,
    parties: Arc<PartyShares<String>>,
}

/// The turn of one answer. The next answer reads once this is dropped.
pub(crate) struct ReadingTurn {
    of_party: Option<OwnedSemaphorePermit>,
    of_all: OwnedSemaphorePermit,
}

impl ReadingTurn {
    /// Gives back the units that an answer of this many rows does not need.
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

    /// Waits for the turn of an answer with up to this many rows. `None` if it has so few that it needs none.
    pub(crate) async fn await_turn(&self, party: Option<&str>, rows: usize) -> Option<ReadingTurn> {
        if rows <= UNIT {
            return None;
        }
        let units = u32::try_from(rows.div_ceil(UNIT).min(UNITS_OF_A_PARTY)).unwrap_or(u32::MAX);
        // The party's share comes first: a request that waits for it takes nothing from other parties. The
        // semaphores are never closed.
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
