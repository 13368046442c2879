//! Places for live streams. Streams that lag far take turns, one batch each, so that many of them use no more
//! of the disk than a few.

use std::sync::Arc;

use tokio::sync::{Semaphore, SemaphorePermit};

use super::long_held::{BodyRoom, RoomPart};
use super::traffic::TrafficCounts;

/// How many streams read from disk at a time.
const TURNS: usize = 2;

#[derive(Clone)]
pub(crate) struct StreamPlaces {
    room: BodyRoom,
    turns: Arc<Semaphore>,
    counts: Arc<TrafficCounts>,
}

/// A place, which is released when this is dropped.
pub(crate) struct StreamPlace {
    _part: RoomPart,
    turns: Arc<Semaphore>,
    counts: Arc<TrafficCounts>,
}

impl StreamPlaces {
    pub(crate) fn new(all: u32, counts: Arc<TrafficCounts>) -> Self {
        Self { room: BodyRoom::new(all), turns: Arc::new(Semaphore::new(TURNS)), counts }
    }

    /// `None` if all places are taken, or the party has its maximum.
    pub(crate) fn take(&self, party: Option<&str>) -> Option<StreamPlace> {
        let part = self.room.take(party, 1)?;
        self.counts.stream_began();
        Some(StreamPlace { _part: part, turns: self.turns.clone(), counts: self.counts.clone() })
    }
}

impl StreamPlace {
    /// Waits for this stream's turn to read from disk. The next turn begins when the result is dropped.
    pub(crate) async fn await_turn(&self) -> Option<SemaphorePermit<'_>> {
        self.turns.acquire().await.ok()
    }
}

impl Drop for StreamPlace {
    fn drop(&mut self) {
        self.counts.stream_ended();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn streams_that_are_far_behind_take_turns() {
        let places = StreamPlaces::new(8, Arc::default());
        let streams: Vec<_> = std::iter::from_fn(|| places.take(None)).take(TURNS + 1).collect();
        let mut turns = Vec::new();
        for stream in &streams[..TURNS] {
            turns.push(stream.await_turn().await);
        }
        let (mut next, waker) = (Box::pin(streams[TURNS].await_turn()), std::task::Waker::noop());
        let mut context = std::task::Context::from_waker(waker);
        assert!(next.as_mut().poll(&mut context).is_pending(), "it waits for its turn");
        turns.pop();
        assert!(next.await.is_some());
    }

    #[test]
    fn one_person_leaves_places_to_others_and_places_come_back() {
        let places = StreamPlaces::new(8, Arc::default());
        let of = |person: &str| places.take(Some(person));
        let ann: Vec<_> = std::iter::from_fn(|| of("ann")).collect();
        assert_eq!((ann.len(), places.counts.count_streams()), (2, 2));
        let others: Vec<_> =
            ["bea", "bea", "cid", "cid", "dan", "dan"].map(|person| of(person).unwrap()).into();
        assert!(of("eva").is_none(), "all are taken");
        drop(ann);
        let eva = of("eva");
        assert!(eva.is_some());
        drop((others, eva));
        assert!(places.room.is_empty() && places.counts.count_streams() == 0);
        assert_eq!(std::iter::from_fn(|| places.take(None)).collect::<Vec<_>>().len(), 8);
    }
}
