//! Carries states from the controller that witnesses them to the controllers that deliver them: the format of
//! a message, and how a reader treats it. It knows nothing about message servers.
//!
//! The states of a source are spread over partitions. Within a partition they keep the order of their
//! journal. A server's own numbers can't prove completeness: a server that lost messages assigns their
//! numbers again. So each state has its position in the journal and the position of its predecessor in the
//! partition. From these a reader detects lost states, and it skips repeats, however late they arrive.

mod check;
mod claim;
#[cfg(test)]
mod fault_model;
mod intake;
mod lineage;
mod places;
mod removal;
pub mod state_check;

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use thiserror::Error;

pub use check::PartitionStates;
pub use claim::{CarrierCandidate, CarrierClaim, CarrierStart, ReaderCandidate, ReaderClaim, ReaderStart};
pub use intake::{ArrivalAction, StateArrival, StreamIntake};
pub use lineage::{FORMER_LINES, JournalLineage};
pub use places::{PartitionPosition, ReaderPositions};
pub use removal::MessageRemoval;
use state_check::StateFault;

use crate::BoxedError;
use crate::document::{self, checksum};
use crate::ports::AppendBatch;
use crate::state::{ObjectRef, Seq, State};
use crate::version::Version;

/// The partition of an object's states. Hosts of every version must agree on it, so it never changes.
pub fn partition_of(object: &ObjectRef, partitions: u32) -> u32 {
    let name = [object.namespace.as_bytes(), b"/", object.name.as_bytes()].concat();
    checksum(&name) % partitions.max(1)
}

/// The position of a state in its original journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalPosition {
    /// The line of that journal. A journal that starts over counts from 1 again and has another line.
    pub line: Arc<str>,
    pub position: Seq,
    /// The position of its predecessor in this partition; 0 if it is the first.
    pub before: Seq,
    /// The earlier lines that agree with the journal up to that state, oldest first. A reader that has read one of them
    /// through that state misses nothing.
    pub before_lines: Vec<Arc<str>>,
}

/// A message, or a part of one, that can't be used.
#[derive(Debug, Error)]
pub enum GarbledMessage {
    #[error("it is not signed with the key of the stream: another client has published it")]
    NotSigned,
    #[error("a message does not say its position")]
    NoPosition,
    #[error("`{0}` is no part of a state")]
    NoPart(String),
    #[error("a carried state has more than {most} bytes")]
    TooLarge { most: usize },
    #[error("a carried state can't be read: {0}")]
    Unreadable(#[source] BoxedError),
    #[error("a carried state is refused: {0}")]
    Refused(#[source] StateFault),
    #[error("`{0}` does not name the lines of a journal")]
    NoLines(String),
    #[error("`{0}` does not say how far a stream was read")]
    NoPositions(String),
}

/// Packs a state with its document. The packed bytes are a checksum, the length of the envelope, the envelope
/// and the document.
pub fn pack_state(state: &State, document: &[u8]) -> Bytes {
    let head = serde_json::to_vec(state).expect("strings and numbers always serialize");
    let mut rest = Vec::with_capacity(4 + head.len() + document.len());
    rest.extend_from_slice(&u32::try_from(head.len()).unwrap_or(u32::MAX).to_le_bytes());
    rest.extend_from_slice(&head);
    rest.extend_from_slice(document);
    let whole = [&checksum(&rest).to_le_bytes(), rest.as_slice()].concat();
    Bytes::copy_from_slice(&document::pack_document(&whole))
}

pub fn unpack_state(packed: &[u8]) -> Result<(State, Bytes), GarbledMessage> {
    let too_short = || GarbledMessage::Unreadable("it is too short".into());
    let whole =
        document::unpack_document(packed).map_err(|error| GarbledMessage::Unreadable(error.into()))?;
    let (sum, rest) = whole.split_first_chunk::<4>().ok_or_else(too_short)?;
    if u32::from_le_bytes(*sum) != checksum(rest) {
        return Err(GarbledMessage::Unreadable("its checksum does not match".into()));
    }
    let (length, rest) = rest.split_first_chunk::<4>().ok_or_else(too_short)?;
    let (head, document) =
        rest.split_at_checked(u32::from_le_bytes(*length) as usize).ok_or_else(too_short)?;
    let state: State =
        serde_json::from_slice(head).map_err(|error| GarbledMessage::Unreadable(error.into()))?;
    Ok((state, whole.slice_ref(document)))
}

/// Why nothing can be read now, and what to do about it. The source retries.
#[derive(Debug, Error)]
#[error(transparent)]
pub struct FeedError(pub BoxedError);

/// An item that a source received.
#[derive(Debug, Default)]
pub struct FeedItem {
    pub append: AppendBatch,
    /// For each state, whether it reached the other host late.
    pub late: Vec<bool>,
    /// The number of states that came a second time.
    pub repeats: u64,
    /// The number of poison messages that were skipped without keeping them, because too many arrived.
    pub passed: u64,
    /// Whether everything in transit has arrived.
    pub level: bool,
}

/// A source that another controller witnesses. Its states arrive over a stream.
#[async_trait]
pub trait StateFeed: Send {
    /// Sets the position from which the feed continues. The source calls this first.
    fn resume_from(&mut self, epoch: Option<u32>, checkpoint: Option<&Version>);
    /// Returns the next arrivals, with their checkpoint. After an error, everything that is not yet
    /// [durable](Self::confirm_durable) arrives again.
    async fn next(&mut self) -> Result<FeedItem, FeedError>;
    /// Confirms that everything received is on disk, so the stream need not keep it.
    async fn confirm_durable(&mut self) -> Result<(), FeedError>;
    /// Releases what the feed holds, so that another process need not wait for it. Called last.
    async fn close(&mut self);
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::state::{Change, StateId};

    pub(crate) fn state(seq: Seq, epoch: u32, version: &str) -> State {
        let object = ObjectRef { kind: "Job".into(), uid: "u1".into(), ..ObjectRef::default() };
        let version = Version::new(version);
        State {
            id: StateId::of("jobs", epoch, &object, Change::Present, &version, None),
            seq,
            source: "jobs".into(),
            epoch,
            change: Change::Present,
            object: Arc::new(object),
            owner: None,
            resource_version: version,
            status: Arc::default(),
            previous: None,
            observed_ms: 7,
            late: false,
            quotes_none_under: None,
        }
    }

    #[test]
    fn what_was_packed_is_unpacked_byte_for_byte_and_a_changed_byte_is_found() {
        let state = state(9, 1, "12");
        let packed = pack_state(&state, b"{\"a\": \xff}");
        let (back, document) = unpack_state(&packed).unwrap();
        assert_eq!((back, &*document), (state, &b"{\"a\": \xff}"[..]));
        for place in 0..packed.len() {
            let mut changed = packed.to_vec();
            changed[place] ^= 1;
            // A flipped bit of the packing may have no effect, but it never yields another state.
            if let Ok((_, document)) = unpack_state(&changed) {
                assert_eq!(&*document, b"{\"a\": \xff}", "byte {place}");
            }
        }
        assert!(unpack_state(b"").is_err() && unpack_state(&packed[..packed.len() / 2]).is_err());
    }

    #[test]
    fn a_name_is_always_in_the_same_partition() {
        let object =
            |name: &str| ObjectRef { namespace: "ml".into(), name: name.into(), ..ObjectRef::default() };
        let places: Vec<_> =
            ["a", "b", "c", "d", "e"].iter().map(|name| partition_of(&object(name), 4)).collect();
        assert_eq!(places, [1, 3, 1, 2, 0]);
        assert_eq!(partition_of(&object("a"), 1), 0);
    }
}
