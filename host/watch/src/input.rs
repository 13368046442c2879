//! What the reader hands to the writer, in order, and what the writer answers.

use std::sync::Arc;

use bytes::Bytes;
use kubewitness_core::Version;
use kubewitness_core::state::ObjectRef;
pub(crate) use kubewitness_core::state::gap_reason as reason;
use kubewitness_core::views::DiscrepancyView;
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio_util::sync::CancellationToken;

use crate::exact::Life;
use crate::request::Failure;
use crate::round::RoundId;

/// Versions strictly between two, either empty where it is not known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hole {
    pub after: String,
    pub before: String,
    pub reason: &'static str,
    pub message: String,
}

pub(crate) enum Input {
    /// A watch has been accepted; cancelling the token ends it from the writer's side.
    Opened(CancellationToken),
    /// A line of the watch, with its share of the bytes in flight where it is a large one.
    Line(Bytes, Option<OwnedSemaphorePermit>),
    Oversized(Bytes),
    /// An object that was listed; `anew` where it is of a new epoch.
    Item {
        document: Bytes,
        anew: bool,
    },
    /// What comes of this name waits until its story is told: that of an audit has the epoch
    /// in which it was made.
    Hold(Arc<ObjectRef>, Option<u32>),
    /// What was missed of one name, in order; with it, or with its last part, the name passes.
    Story(Story),
    /// What an audit found to differ; its stories follow.
    Differs(Vec<DiscrepancyView>),
    /// Of the round that it belongs to, if to one.
    SourceHole(Option<RoundId>, Hole),
    /// A list is complete: a watch from this version misses nothing. The checkpoint on disk stays
    /// where it is until the round is settled.
    Listed(Version, Option<RoundId>),
    /// Whoever can be found has been found: nobody waits for those who had their names before.
    Swept(RoundId),
    /// Everything that was missed has been read back, or lies in gaps.
    Settled(RoundId),
    /// Answered once everything is settled and durable.
    WhenSettled(oneshot::Sender<Standing>),
    /// What is watched may be another history: the watch ends, and that is looked into.
    Doubt,
    /// The server's history is another one.
    NewEpoch,
    /// Another witness is ahead of this one: the source ends, to begin again where that one is.
    Overtaken(String),
    /// Answered once everything before it is durable.
    Sync(oneshot::Sender<Standing>),
}

pub(crate) struct Story {
    /// `None`: of an audit, which belongs to no round.
    pub round: Option<RoundId>,
    /// The epoch that it was read in, where it doesn't follow from the round.
    pub epoch: Option<u32>,
    pub steps: Vec<Step>,
    /// The name that passes from now on.
    pub release: Option<Arc<ObjectRef>>,
}

pub(crate) enum Step {
    Hole(Arc<ObjectRef>, Hole),
    /// A version that was missed, older than those that follow.
    Missed(Bytes),
    /// The version that was listed.
    Version(Bytes),
    /// The same, of a new epoch.
    Anew(Bytes),
    /// A version of an object that has ended or left, if it was not witnessed before.
    Late(Bytes),
    /// The end of an object, as it came.
    Gone(Bytes),
    /// An object has ended. The version of its deletion is there where walking back showed it.
    Ended(Arc<ObjectRef>, Option<Version>),
    /// Of an object of which nothing was witnessed.
    Life(Life),
}

/// Where the writer is.
#[derive(Clone, Debug, Default)]
pub(crate) struct Standing {
    /// From where a watch may be resumed.
    pub resume: Option<Version>,
    /// What was seen of the server: it can't be behind this.
    pub newest: Option<Version>,
    pub epoch: u32,
    /// Nothing is being read back, so that what is in the cache is what was witnessed.
    pub settled: bool,
    /// The ERROR frame that ended the last watch.
    pub told: Option<Failure>,
}
