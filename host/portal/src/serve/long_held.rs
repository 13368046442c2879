//! Limits what clients hold for long, such as streams: in total, and to a quarter for each party. A party is
//! a person, or the service accounts of a namespace.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The share of one party: a quarter, so that three others find room.
pub(super) const SHARE: u32 = 4;

#[derive(Clone)]
pub(crate) struct BodyRoom {
    all: Arc<Semaphore>,
    a_party: u32,
    /// By party. It has at most as many names as there is room.
    held: Arc<Mutex<HashMap<String, u32>>>,
}

/// A part of the room, which is released when this is dropped.
pub(crate) struct RoomPart {
    _permit: OwnedSemaphorePermit,
    held: Arc<Mutex<HashMap<String, u32>>>,
    party: Option<String>,
    size: u32,
}

impl BodyRoom {
    pub(crate) fn new(all: u32) -> Self {
        let semaphore = Semaphore::new(all as usize);
        Self { all: Arc::new(semaphore), a_party: all.div_ceil(SHARE), held: Arc::default() }
    }

    /// `None` if too little room is left, or the party has used its share. Without sign-in, people are not
    /// distinguished.
    pub(crate) fn take(&self, party: Option<&str>, size: u32) -> Option<RoomPart> {
        let permit = self.all.clone().try_acquire_many_owned(size).ok()?;
        let party = party.map(str::to_owned);
        if let Some(party) = &party {
            let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
            let theirs = held.get(party).copied().unwrap_or(0) + size;
            if theirs > self.a_party {
                return None;
            }
            held.insert(party.clone(), theirs);
        }
        Some(RoomPart { _permit: permit, held: self.held.clone(), party, size })
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.held.lock().unwrap().is_empty()
    }
}

impl Drop for RoomPart {
    fn drop(&mut self) {
        let Some(party) = &self.party else { return };
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(theirs) = held.get_mut(party) {
            *theirs -= self.size;
            if *theirs == 0 {
                held.remove(party);
            }
        }
    }
}
