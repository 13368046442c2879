//! What a comparison leaves to be done: objects of which versions were missed, and what else may
//! have happened while nobody looked. Values only; the walker works them off beside the watch.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use kubewitness_core::Version;
use kubewitness_core::document::Packed;
use kubewitness_core::state::ObjectRef;
use tokio_util::sync::CancellationToken;

use crate::discovery::Resource;
use crate::sweep::number;

/// Numbers rounds, so that what belongs to one that was given up is not taken for a later one's.
pub(crate) type RoundId = u64;

pub(crate) struct Round {
    pub id: RoundId,
    pub resource: Resource,
    pub jobs: Vec<Job>,
    /// `None` where nothing unknown can have happened.
    pub sweep: Option<Outage>,
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

/// A listed object of which versions may be missing below.
pub(crate) struct Moved {
    pub object: Arc<ObjectRef>,
    pub floor: Version,
    pub version: Version,
    /// As it was listed.
    pub document: Packed,
    /// Whether it was witnessed before, at the floor or below it.
    pub witnessed: bool,
    /// Another uid that had its name, with the version below which nothing of it is missing.
    pub rival: Option<(Arc<ObjectRef>, Version)>,
}

/// An object that was no longer listed.
pub(crate) struct Vanished {
    pub object: Arc<ObjectRef>,
    pub floor: Version,
    /// Here it was no longer there.
    pub absent: Version,
}
