//! One append in the making, with what it already says about its objects: the events of one batch
//! are judged against the ones before them. Knows nothing about the journal or the server.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use bytes::Bytes;
use kubewitness_core::Version;
use kubewitness_core::document::{Packed, unpack};
use kubewitness_core::ports::{Current, Poison, Witnessed};
use kubewitness_core::state::{Change, Gap, ObjectRef, Status};
use tokio::sync::OwnedSemaphorePermit;

use crate::cache::Cache;

/// What is known of an object: from this batch or from the cache.
pub(crate) struct Known {
    pub object: Arc<ObjectRef>,
    pub owner: Option<Arc<ObjectRef>>,
    pub version: Version,
    pub status: Arc<Status>,
    held: Held,
}

enum Held {
    Plain(Bytes),
    Packed(Packed),
}

impl Known {
    fn drafted(state: &Witnessed) -> Self {
        Self {
            object: Arc::clone(&state.object),
            owner: state.owner.clone(),
            version: state.resource_version.clone(),
            status: Arc::clone(&state.status),
            held: Held::Plain(state.document.clone()),
        }
    }

    pub(crate) fn cached(current: Current) -> Self {
        Self {
            object: current.object,
            owner: current.owner,
            version: current.resource_version,
            status: current.status,
            held: Held::Packed(current.packed),
        }
    }

    /// A hint for the journal's delta: one that can't be read is none.
    pub fn document(&self) -> Option<Bytes> {
        match &self.held {
            Held::Plain(document) => Some(document.clone()),
            Held::Packed(packed) => unpack(packed).ok(),
        }
    }
}

#[derive(Default)]
pub(crate) struct Draft {
    pub states: Vec<Witnessed>,
    pub poison: Vec<Poison>,
    pub gaps: Vec<Gap>,
    /// Bytes in flight are given back once they are durable.
    pub permits: Vec<OwnedSemaphorePermit>,
    /// Places of states that say nothing about what is there now.
    pub past: HashSet<usize>,
    /// The last state of each uid and of each name, by hash.
    last: HashMap<u64, usize>,
    hasher: RandomState,
}

impl Draft {
    pub fn is_empty(&self) -> bool {
        self.states.is_empty() && self.poison.is_empty() && self.gaps.is_empty()
    }

    pub fn push(&mut self, state: Witnessed, past: bool) {
        let place = self.states.len();
        // A gap says nothing about what an object is now.
        if past {
            self.past.insert(place);
        } else if state.change != Change::Gap {
            let object = &state.object;
            self.last.insert(self.hasher.hash_one(&object.uid), place);
            self.last.insert(self.hasher.hash_one((&object.namespace, &object.name)), place);
        }
        self.states.push(state);
    }

    pub fn clear(&mut self) {
        self.states.clear();
        self.poison.clear();
        self.gaps.clear();
        self.permits.clear();
        self.past.clear();
        self.last.clear();
    }

    pub fn known(&self, cache: &Cache, uid: &str) -> Option<Known> {
        match self.find(self.hasher.hash_one(uid), |object| object.uid == uid) {
            Some(state) => (state.change == Change::Present).then(|| Known::drafted(state)),
            None => cache.by_uid(uid).map(Known::cached),
        }
    }

    /// Another uid that has this name.
    pub fn rival(&self, cache: &Cache, namespace: &str, name: &str, uid: &str) -> Option<Known> {
        let of_name = |object: &ObjectRef| object.namespace == namespace && object.name == name;
        match self.find(self.hasher.hash_one((namespace, name)), of_name) {
            Some(state) => {
                (state.change == Change::Present && state.object.uid != uid).then(|| Known::drafted(state))
            }
            None => cache
                .by_name(namespace, name)
                // It may have ended in this batch, under whatever name.
                .filter(|held| held.object.uid != uid)
                .and_then(|held| self.known(cache, &held.object.uid)),
        }
    }

    /// Whether a state changes what is there now.
    pub fn says_now(&self, place: usize, state: &Witnessed) -> bool {
        state.change != Change::Gap && !self.past.contains(&place)
    }

    fn find(&self, hash: u64, is: impl Fn(&ObjectRef) -> bool) -> Option<&Witnessed> {
        let state = self.states.get(*self.last.get(&hash)?)?;
        if is(&state.object) {
            return Some(state);
        }
        // Two keys with one hash: look at them all.
        let mut others = self.states.iter().enumerate().rev();
        others
            .find(|(place, state)| self.says_now(*place, state) && is(&state.object))
            .map(|(_, state)| state)
    }
}
