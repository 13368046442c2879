//! Places for live streams.

use std::sync::Arc;

use super::long_held::{Part, Room};
use super::traffic::Counts;

#[derive(Clone)]
pub(crate) struct StreamPlaces {
    room: Room,
    counts: Arc<Counts>,
}

/// A place; it is free again once this is dropped.
pub(crate) struct StreamPlace {
    _part: Part,
    counts: Arc<Counts>,
}

impl StreamPlaces {
    pub(crate) fn new(all: u32, counts: Arc<Counts>) -> Self {
        Self { room: Room::new(all), counts }
    }

    /// None where all places are taken, or all that one party may hold.
    pub(crate) fn take(&self, party: Option<&str>) -> Option<StreamPlace> {
        let part = self.room.take(party, 1)?;
        self.counts.stream_began();
        Some(StreamPlace { _part: part, counts: self.counts.clone() })
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

    #[test]
    fn one_person_leaves_places_to_others_and_places_come_back() {
        let places = StreamPlaces::new(8, Arc::default());
        let of = |person: &str| places.take(Some(person));
        let ann: Vec<_> = std::iter::from_fn(|| of("ann")).collect();
        assert_eq!((ann.len(), places.counts.streams()), (2, 2));
        let others: Vec<_> =
            ["bea", "bea", "cid", "cid", "dan", "dan"].map(|person| of(person).unwrap()).into();
        assert!(of("eva").is_none(), "all are taken");
        drop(ann);
        let eva = of("eva");
        assert!(eva.is_some());
        drop((others, eva));
        assert!(places.room.is_empty() && places.counts.streams() == 0);
        assert_eq!(std::iter::from_fn(|| places.take(None)).collect::<Vec<_>>().len(), 8);
    }
}
