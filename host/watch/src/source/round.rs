//! What a comparison leaves to be done: objects of which versions were missed, and what else may
//! have happened while nobody looked. Values only; `repair::rounds` works them off beside the watch.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use kubewitness_core::Version;
use kubewitness_core::document::Packed;
use kubewitness_core::state::ObjectRef;
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;

use crate::connect::resource::Resource;
use crate::version::number;

/// Numbers rounds, so that what belongs to one that was given up is not taken for a later one's.
pub(crate) type RoundId = u64;

pub(crate) struct Round {
    pub id: RoundId,
    pub resource: Resource,
    pub jobs: Vec<Job>,
    /// `None` where nothing unknown can have happened.
    pub sweep: Option<Outage>,
    /// What this witness could not see, another one of a shared journal may have seen.
    pub may_be_seen: bool,
    /// Given up: the history to which it belongs is over.
    pub cancel: CancellationToken,
}

impl Round {
    /// Nothing newer is asked for.
    pub fn newest(&self, jobs: &[Job]) -> Option<u128> {
        newest(jobs).max(self.sweep.as_ref().and_then(|outage| number(&outage.listed)))
    }
}

/// The newest version below which anything is asked for.
pub(crate) fn newest(jobs: &[Job]) -> Option<u128> {
    let version = |job: &Job| match job {
        Job::Moved(moved) => number(&moved.version),
        Job::Vanished(vanished) => number(&vanished.absent),
    };
    jobs.iter().filter_map(version).max()
}

/// The time in which nobody looked, and what is known of it.
pub(crate) struct Outage {
    /// Everything up to here was witnessed.
    pub after: Version,
    /// Here everything was listed.
    pub listed: Version,
    /// Nothing of it was listed later.
    pub is_whole: bool,
    pub known: Uids,
    /// How many objects there were at `after`, where that is certain.
    pub expected: Option<u64>,
}

/// A set of uids by their hashes: the chance that two of a million collide is one in ten million.
#[derive(Default)]
pub(crate) struct Uids {
    hashes: HashSet<u64>,
    hasher: RandomState,
}

impl Uids {
    /// Whether it was new.
    pub fn insert(&mut self, uid: &str) -> bool {
        self.hashes.insert(self.hasher.hash_one(uid))
    }

    pub fn contains(&self, uid: &str) -> bool {
        self.hashes.contains(&self.hasher.hash_one(uid))
    }
}

/// One name that is read back.
pub(crate) enum Job {
    Moved(Moved),
    Vanished(Vanished),
}

impl Job {
    pub fn object(&self) -> Arc<ObjectRef> {
        Arc::clone(match self {
            Self::Moved(moved) => &moved.object,
            Self::Vanished(vanished) => &vanished.object,
        })
    }
}

/// Up to where nothing of an object is missing, as far as is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Since {
    /// Up to here the watch was complete.
    pub floor: Version,
    /// What was witnessed of it last, where that is known: anything between it and the floor shows
    /// that the watch was not complete.
    pub last: Option<Version>,
}

impl Since {
    pub fn at(floor: Version) -> Self {
        Self { floor, last: None }
    }

    /// Whether something at this version was lost, if it is of this object.
    pub fn lost(&self, version: &Version) -> bool {
        let is_beyond = self.last.as_ref().is_some_and(|last| version.is_newer_than(last));
        is_beyond && !version.is_newer_than(&self.floor)
    }

    /// Nothing that could come to light would show more.
    pub fn settle(mut self) -> Self {
        self.last = self.last.filter(|last| self.floor.is_newer_than(last));
        self
    }

    /// The floor is no longer believed.
    pub fn sink(&mut self) {
        self.floor = self.last.take().unwrap_or_else(|| self.floor.clone());
    }
}

/// A listed object of which versions may be missing below.
pub(crate) struct Moved {
    pub object: Arc<ObjectRef>,
    pub since: Since,
    pub version: Version,
    /// As it was listed.
    pub document: Packed,
    /// Whether it was witnessed before.
    pub witnessed: bool,
    /// What came of it was its end.
    pub is_end: bool,
    /// Another uid that had its name.
    pub rival: Option<(Arc<ObjectRef>, Since)>,
}

impl Moved {
    /// The version at which it is there.
    pub fn listed(&self) -> Option<&Version> {
        (!self.is_end).then_some(&self.version)
    }
}

/// An object that was no longer listed.
pub(crate) struct Vanished {
    pub object: Arc<ObjectRef>,
    pub since: Since,
    /// Here it was no longer there.
    pub absent: Version,
}

/// An object of which something was missed, with the epoch in which that was seen. Its name is held
/// until its story is told.
pub(crate) struct MissedObject {
    pub epoch: u32,
    pub moved: Moved,
    /// Its place among those that wait.
    pub place: Option<OwnedSemaphorePermit>,
}

/// So many names wait to be looked into, and as many are looked into, before nothing more is read
/// from the server.
pub(crate) const MISSED_AT_ONCE: usize = 256;
