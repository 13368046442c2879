//! Defines a round: the objects whose versions a comparison found missing, and the outage in which more may
//! have happened. It has values only; `repair::rounds` processes them beside the watch.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use kubewitness_core::Version;
use kubewitness_core::document::PackedDocument;
use kubewitness_core::state::ObjectRef;
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;

use crate::connect::resource::SourceResource;
use crate::version::version_number;

/// The number of a round. It distinguishes work of an abandoned round from that of a later one.
pub(crate) type RoundId = u64;

pub(crate) struct RepairRound {
    pub id: RoundId,
    pub resource: SourceResource,
    pub jobs: Vec<NameRead>,
    /// The outage to sweep; `None` if nothing unknown can have happened.
    pub sweep: Option<WatchOutage>,
    /// Whether another witness of a shared journal may have seen what this one missed.
    pub may_be_seen: bool,
    /// Cancelled when the round is abandoned, because its history is over.
    pub cancel: CancellationToken,
}

impl RepairRound {
    /// No newer version than this is requested.
    pub fn newest_asked(&self, jobs: &[NameRead]) -> Option<u128> {
        newest_asked(jobs).max(self.sweep.as_ref().and_then(|outage| version_number(&outage.listed)))
    }
}

/// The newest version below which versions are requested.
pub(crate) fn newest_asked(jobs: &[NameRead]) -> Option<u128> {
    let version = |job: &NameRead| match job {
        NameRead::Moved(moved) => version_number(&moved.version),
        NameRead::Vanished(vanished) => version_number(&vanished.absent),
    };
    jobs.iter().filter_map(version).max()
}

/// A time in which nobody watched, and what is known about it.
pub(crate) struct WatchOutage {
    /// Everything up to here was witnessed.
    pub after: Version,
    /// Everything was listed at this version.
    pub listed: Version,
    /// Whether no part of it was listed later.
    pub is_whole: bool,
    pub known: UidSet,
    /// The number of objects at `after`, if it is certain.
    pub expected: Option<u64>,
}

/// A set of uids by their hashes. The chance that two of a million collide is one in ten million.
#[derive(Default)]
pub(crate) struct UidSet {
    hashes: HashSet<u64>,
    hasher: RandomState,
}

impl UidSet {
    /// Inserts a uid. Returns whether it was new.
    pub fn insert(&mut self, uid: &str) -> bool {
        self.hashes.insert(self.hasher.hash_one(uid))
    }

    pub fn contains(&self, uid: &str) -> bool {
        self.hashes.contains(&self.hasher.hash_one(uid))
    }
}

/// One name that is read back.
pub(crate) enum NameRead {
    Moved(MovedObject),
    Vanished(VanishedObject),
}

impl NameRead {
    pub fn object(&self) -> Arc<ObjectRef> {
        Arc::clone(match self {
            Self::Moved(moved) => &moved.object,
            Self::Vanished(vanished) => &vanished.object,
        })
    }
}

/// The version up to which nothing of an object is missing, as far as is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CompleteSince {
    /// The watch was complete up to here.
    pub floor: Version,
    /// The last witnessed version of the object, if it is known. Anything between it and the floor shows that
    /// the watch was not complete.
    pub last: Option<Version>,
}

impl CompleteSince {
    pub fn since_floor(floor: Version) -> Self {
        Self { floor, last: None }
    }

    /// Whether a version of this object at this number was lost.
    pub fn has_lost(&self, version: &Version) -> bool {
        let is_beyond = self.last.as_ref().is_some_and(|last| version.is_newer_than(last));
        is_beyond && !version.is_newer_than(&self.floor)
    }

    /// Forgets the last witnessed version, unless it is below the floor: then a version in between shows a
    /// loss.
    pub fn forget_last(mut self) -> Self {
        self.last = self.last.filter(|last| self.floor.is_newer_than(last));
        self
    }

    /// Lowers the floor to the last witnessed version, because the watch was not complete up to the floor.
    pub fn lower_floor(&mut self) {
        self.floor = self.last.take().unwrap_or_else(|| self.floor.clone());
    }
}

/// A listed object that may lack earlier versions.
pub(crate) struct MovedObject {
    pub object: Arc<ObjectRef>,
    pub since: CompleteSince,
    pub version: Version,
    /// The document as it was listed.
    pub document: PackedDocument,
    /// Whether the object was witnessed before.
    pub witnessed: bool,
    /// Whether the event was its end.
    pub is_end: bool,
    /// Whether a list showed it above its own version. Then the watch may not deliver it.
    pub is_beyond: bool,
    /// Another uid that had its name.
    pub rival: Option<(Arc<ObjectRef>, CompleteSince)>,
}

impl MovedObject {
    /// The version at which the object exists.
    pub fn listed_version(&self) -> Option<&Version> {
        (!self.is_end).then_some(&self.version)
    }
}

/// An object that was no longer listed.
pub(crate) struct VanishedObject {
    pub object: Arc<ObjectRef>,
    pub since: CompleteSince,
    /// The version at which it no longer existed.
    pub absent: Version,
}

/// An object with missed versions, and the epoch in which this was noticed. Its name is held until the missed
/// versions are sent.
pub(crate) struct MissedObject {
    pub epoch: u32,
    pub moved: MovedObject,
    /// Its place in the queue.
    pub place: Option<OwnedSemaphorePermit>,
}

/// The most names that wait for repair, and the most that are being repaired. At this number the server is
/// not read any further.
pub(crate) const MISSED_AT_ONCE: usize = 256;
