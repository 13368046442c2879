//! The messages from the reader to the writer, in order, and the writer's answers.

use std::sync::Arc;

use bytes::Bytes;
use kubewitness_core::Version;
use kubewitness_core::state::ObjectRef;
use kubewitness_core::views::DiscrepancyView;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::connect::request::RequestFailure;
use crate::source::life::UnwitnessedLife;
use crate::source::missing::MissingVersions;
use crate::source::round::RoundId;

pub(crate) enum WriterInput {
    /// The server accepted a watch. Cancelling the token ends the watch from the writer's side.
    Opened(CancellationToken),
    /// A line of the watch. A large line comes with its share of the bytes in flight.
    Line(Bytes, Option<OwnedSemaphorePermit>),
    Oversized(Bytes),
    /// A listed object; `anew` if it belongs to a new epoch.
    Item {
        document: Bytes,
        anew: bool,
    },
    /// Holds a name: its events wait until its missed versions have been sent. For an audit it has the epoch
    /// in which the audit began.
    Hold(Arc<ObjectRef>, Option<u32>),
    /// The missed versions of one name, in order. The name is released with the story, or with its last part.
    Story(ReadStory),
    /// The differences that an audit found. Their stories follow.
    Differs(Vec<DiscrepancyView>),
    /// A hole of the source, with its round if it has one.
    SourceHole(Option<RoundId>, MissingVersions),
    /// A list is complete: a watch from this version misses nothing. The checkpoint on disk does not move
    /// until the round is settled.
    Listed(Version, Option<RoundId>),
    /// The sweep is over: nobody waits any longer for former objects of a name.
    Swept(RoundId),
    /// All missed versions have been read back or lie in gaps.
    Settled(RoundId),
    /// Asks for an answer once everything is settled and durable.
    WhenSettled(oneshot::Sender<WriterPosition>),
    /// The watch may belong to another history. It ends, and the reader checks.
    RecheckHistory,
    /// The server's history is another one.
    NewEpoch,
    /// Another witness is ahead. The source ends, and begins again where that one is.
    Overtaken(String),
    /// Asks for an answer once everything before it is durable.
    Sync(oneshot::Sender<WriterPosition>),
}

pub(crate) struct ReadStory {
    /// `None` for the story of an audit, which belongs to no round.
    pub round: Option<RoundId>,
    /// The epoch in which it was read, if no round determines it.
    pub epoch: Option<u32>,
    pub steps: Vec<StoryStep>,
    /// The name to release.
    pub release: Option<Arc<ObjectRef>>,
}

pub(crate) enum StoryStep {
    MissingVersions(Arc<ObjectRef>, MissingVersions),
    /// A missed version, older than the following ones.
    Missed(Bytes),
    /// The version that was listed.
    Version(Bytes),
    /// The listed version in a new epoch.
    RelistedObject(Bytes),
    /// A version of an object that has ended or left. It counts only if it was not witnessed before.
    Late(Bytes),
    /// The end of an object, as it arrived.
    Gone(Bytes),
    /// The end of an object. It has the version of the deletion if walking back showed it.
    Ended(Arc<ObjectRef>, Option<Version>),
    /// The life of an unknown object.
    Life(UnwitnessedLife),
}

/// The position of the writer.
#[derive(Clone, Debug, Default)]
pub(crate) struct WriterPosition {
    /// The version from which a watch may be resumed.
    pub resume: Option<Version>,
    /// The newest version that the server has shown. A server with an older version is lagging.
    pub newest: Option<Version>,
    pub epoch: u32,
    /// Whether nothing is being read back, so that the cache holds exactly the witnessed states.
    pub settled: bool,
    /// The content of the ERROR frame that ended the last watch.
    pub error_frame: Option<RequestFailure>,
    /// Whether the last watch delivered a readable event or bookmark.
    pub understood: bool,
}

/// The writer has ended, and its senders end with it.
pub(crate) struct WriterClosed;

/// Waits until everything sent is durable.
pub(crate) async fn await_durable(
    inputs: &mpsc::Sender<WriterInput>,
) -> Result<WriterPosition, WriterClosed> {
    let (answer, answered) = oneshot::channel();
    inputs.send(WriterInput::Sync(answer)).await.map_err(|_| WriterClosed)?;
    answered.await.map_err(|_| WriterClosed)
}

/// Waits until nothing is being read back and everything sent is durable.
pub(crate) async fn await_settled(
    inputs: &mpsc::Sender<WriterInput>,
) -> Result<WriterPosition, WriterClosed> {
    let (answer, answered) = oneshot::channel();
    inputs.send(WriterInput::WhenSettled(answer)).await.map_err(|_| WriterClosed)?;
    answered.await.map_err(|_| WriterClosed)
}
