//! Places for live streams: a number of them in all, and a share of it for one person.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::traffic::Counts;
use crate::access::party_of;

/// One person holds a quarter of the places at most, so that three others find room.
const SHARE: usize = 4;

#[derive(Clone)]
pub(crate) struct StreamPlaces {
    all: Arc<Semaphore>,
    a_person: usize,
    /// By name. It holds no more names than there are places.
    held: Arc<Mutex<HashMap<String, usize>>>,
    counts: Arc<Counts>,
}

/// A place; it is free again once this is dropped.
pub(crate) struct StreamPlace {
    _permit: OwnedSemaphorePermit,
    held: Arc<Mutex<HashMap<String, usize>>>,
    person: Option<String>,
    counts: Arc<Counts>,
}

impl StreamPlaces {
    pub(crate) fn new(all: usize, counts: Arc<Counts>) -> Self {
        let a_person = all.div_ceil(SHARE);
        Self { all: Arc::new(Semaphore::new(all)), a_person, held: Arc::default(), counts }
    }

    /// None where all places are taken, or all that one person may hold. Where nobody signs in, nobody is told
    /// apart.
    pub(crate) fn take(&self, person: Option<&str>) -> Option<StreamPlace> {
        let permit = self.all.clone().try_acquire_owned().ok()?;
        let person = person.map(party_of);
        if let Some(person) = person {
            let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
            let count = held.entry(person.to_owned()).or_default();
            if *count >= self.a_person {
                return None;
            }
            *count += 1;
        }
        self.counts.stream_began();
        let (held, counts) = (self.held.clone(), self.counts.clone());
        Some(StreamPlace { _permit: permit, held, person: person.map(str::to_owned), counts })
    }
}

impl Drop for StreamPlace {
    fn drop(&mut self) {
        self.counts.stream_ended();
        let Some(person) = &self.person else { return };
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = held.get_mut(person) {
            *count -= 1;
            if *count == 0 {
                held.remove(person);
            }
        }
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
        assert!(eva.is_some() && places.held.lock().unwrap().get("ann").is_none());
        drop((others, eva));
        assert!(places.held.lock().unwrap().is_empty() && places.counts.streams() == 0);
        assert_eq!(std::iter::from_fn(|| places.take(None)).collect::<Vec<_>>().len(), 8);
        let robots = ["a", "b", "c"].map(|name| of(&format!("system:serviceaccount:team:{name}")));
        assert_eq!(robots.iter().flatten().count(), 2, "they are one");
    }
}
