//! The states in flight, and when each was handed over. The sums are kept up to date, because every turn asks
//! for them and must not walk all states.

use std::collections::BTreeMap;
use std::time::Duration;

use hashbrown::HashMap;

use crate::state::{LaneKey, Seq};

#[derive(Clone, Copy, Debug)]
pub(in crate::lanes) struct FlightEntry {
    pub lane: LaneKey,
    pub since: Duration,
}

#[derive(Debug, Default)]
pub(in crate::lanes) struct InFlight {
    flights: HashMap<Seq, FlightEntry>,
    /// The number of states handed over at each moment. A batch has one moment.
    moments: BTreeMap<Duration, u32>,
}

impl InFlight {
    pub fn insert(&mut self, seq: Seq, lane: LaneKey, since: Duration) {
        self.flights.insert(seq, FlightEntry { lane, since });
        *self.moments.entry(since).or_default() += 1;
    }

    pub fn remove(&mut self, seq: Seq) -> Option<FlightEntry> {
        let flight = self.flights.remove(&seq)?;
        if let Some(count) = self.moments.get_mut(&flight.since) {
            *count -= 1;
            if *count == 0 {
                self.moments.remove(&flight.since);
            }
        }
        Some(flight)
    }

    pub fn contains(&self, seq: Seq) -> bool {
        self.flights.contains_key(&seq)
    }

    pub fn len(&self) -> usize {
        self.flights.len()
    }

    /// The sum of the moments at which the states were handed over.
    pub fn since_sum(&self) -> Duration {
        self.moments.iter().map(|(since, count)| *since * *count).sum()
    }

    pub fn since_first(&self) -> Option<Duration> {
        self.moments.keys().next().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::ObjectRef;

    #[test]
    fn moments_are_those_of_what_is_still_in_flight() {
        let lane = LaneKey::of("s", &ObjectRef::default());
        let mut flights = InFlight::default();
        assert_eq!((flights.since_sum(), flights.since_first()), (Duration::ZERO, None));
        for (seq, at) in [(1, 2), (2, 2), (3, 5)] {
            flights.insert(seq, lane, Duration::from_secs(at));
        }
        assert_eq!(flights.since_sum(), Duration::from_secs(9));
        assert_eq!(flights.remove(1).unwrap().since, Duration::from_secs(2));
        assert_eq!(flights.since_first(), Some(Duration::from_secs(2)));
        flights.remove(2);
        assert_eq!(
            (flights.since_sum(), flights.since_first()),
            (Duration::from_secs(5), Some(Duration::from_secs(5)))
        );
        assert!(flights.remove(2).is_none() && flights.contains(3) && flights.len() == 1);
    }
}
