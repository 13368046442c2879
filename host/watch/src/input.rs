//! What the reader hands to the writer, in order, and what the writer answers.

use std::sync::Arc;

use bytes::Bytes;
use kubewitness_core::Version;
use kubewitness_core::state::ObjectRef;
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio_util::sync::CancellationToken;

use crate::request::Failure;

/// Why versions are missing; the words that programs read in a gap.
pub(crate) mod reason {
    /// The server no longer had the checkpoint's version.
    pub const EXPIRED: &str = "WatchExpired";
    /// The missed versions were asked for one by one, and compaction had removed them.
    pub const COMPACTED: &str = "Compacted";
    /// Asking for them would have taken more requests or time than the budget allows.
    pub const BUDGET: &str = "BudgetSpent";
    /// The server can't be asked for old versions.
    pub const UNREADABLE: &str = "ExactListRefused";
    /// The server's history was replaced by another one.
    pub const REPLACED: &str = "HistoryReplaced";
}

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
    /// A comparison no longer found it. The version of its deletion is there where walking back
    /// showed it.
    Vanished {
        object: Arc<ObjectRef>,
        version: Option<Version>,
    },
    ObjectHole(Arc<ObjectRef>, Hole),
    SourceHole(Hole),
    /// A list is complete: a watch from this version misses nothing.
    Listed(Version),
    /// The server's history is another one.
    NewEpoch,
    /// Answered once everything before it is durable.
    Sync(oneshot::Sender<Standing>),
}

/// Where the writer is.
#[derive(Clone, Debug, Default)]
pub(crate) struct Standing {
    /// From where a watch may be resumed.
    pub resume: Option<Version>,
    pub epoch: u32,
    /// The ERROR frame that ended the last watch.
    pub told: Option<Failure>,
}
