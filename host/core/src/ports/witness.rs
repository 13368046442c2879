//! Watch → journal: what the watch observed, and how the journal stored it.

use std::ops::RangeInclusive;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use thiserror::Error;
use tokio::sync::mpsc;

use crate::document::PackedDocument;
use crate::state::{Change, Gap, ObjectRef, RulesPrint, Seq, State, StateId, Status};
use crate::version::Version;
use crate::views::DiscrepancyView;

/// One state as the watch observed it. It has no position yet.
#[derive(Clone, Debug)]
pub struct WitnessedState {
    pub id: StateId,
    pub change: Change,
    pub object: Arc<ObjectRef>,
    pub owner: Option<Arc<ObjectRef>>,
    /// The direct owner, if it is not the outermost one. For example, the pods of a JobSet are owned by a
    /// Job.
    pub controller: Option<Arc<ObjectRef>>,
    pub resource_version: Version,
    pub status: Arc<Status>,
    pub previous: Option<Arc<Status>>,
    pub observed_ms: u64,
    /// The exact bytes of the object from the server. For `Gone` it is the last content (empty if a relist
    /// found the deletion). For `Gap` it is the JSON of [`Gap`].
    pub document: Bytes,
    /// The previous version's document, if the watch has it: a hint for the delta. The journal compares it
    /// with its own checksum before it uses it.
    pub base: Option<Bytes>,
    /// The rules under which its texts quote no secret of `document` and `base`, if the watch has searched.
    pub quotes_none_under: Option<RulesPrint>,
}

impl WitnessedState {
    /// A state that another journal holds, with its document.
    pub fn from_other_journal(state: State, document: Bytes) -> Self {
        Self {
            id: state.id,
            change: state.change,
            object: state.object,
            owner: state.owner,
            controller: None,
            resource_version: state.resource_version,
            status: state.status,
            previous: state.previous,
            observed_ms: state.observed_ms,
            document,
            base: None,
            quotes_none_under: None,
        }
    }
}

/// Bytes that are not an object of their source's kind.
#[derive(Clone, Debug)]
pub struct PoisonMessage {
    pub raw: Bytes,
    pub error: String,
    pub observed_ms: u64,
}

/// Everything that one transaction stores. The checkpoint never runs ahead of the states.
#[derive(Clone, Debug, Default)]
pub struct AppendBatch {
    pub source: Arc<str>,
    pub epoch: u32,
    pub states: Vec<WitnessedState>,
    pub poison: Vec<PoisonMessage>,
    /// Gaps of the whole source. Gaps of one object are states.
    pub gaps: Vec<Gap>,
    /// Differences that an audit found. The journal counts all of them and stores the newest.
    pub discrepancies: Vec<DiscrepancyView>,
    /// The version from which a watch can be resumed without loss once this is on disk.
    pub checkpoint: Option<Version>,
    /// The checkpoint that these states follow, while older versions are still being read back. If another
    /// witness has moved the checkpoint meanwhile, that witness decides what counts as a gap.
    pub since: Option<Version>,
    /// Whether the checkpoint moves back on purpose. Without this, an older checkpoint than another witness's
    /// changes nothing.
    pub rewinds: bool,
}

#[derive(Clone, Debug, Default)]
pub struct AppendResult {
    /// The position of each state; `None` if its id was already stored.
    pub seqs: Vec<Option<Seq>>,
    /// The newest position of these states, including those that were already stored.
    pub through: Seq,
    /// The newest position of the journal.
    pub newest: Seq,
}

/// An object as it was last witnessed.
#[derive(Clone, Debug)]
pub struct CurrentObject {
    pub object: Arc<ObjectRef>,
    pub owner: Option<Arc<ObjectRef>>,
    pub resource_version: Version,
    pub status: Arc<Status>,
    pub seq: Seq,
    pub observed_ms: u64,
    pub packed: PackedDocument,
}

/// The start of a source after a restart.
#[derive(Clone, Debug, Default)]
pub struct WarmStart {
    pub epoch: u32,
    pub checkpoint: Option<Version>,
    /// Existing objects only. Deleted objects, and those that left the selector, are history.
    pub objects: Vec<CurrentObject>,
    /// It contains all states of the source up to this position. Later states have greater positions.
    pub through: Seq,
}

/// The differences that audits of a source have found since its journal began.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditDifferences {
    pub count: u64,
    /// Newest first, up to [`DISCREPANCIES`](crate::limits::DISCREPANCIES).
    pub newest: Vec<DiscrepancyView>,
}

#[derive(Debug, Error)]
pub enum JournalError {
    /// Retry after a pause: the disk is full, or the store is busy.
    #[error("the journal can't be written now: {0}")]
    Unavailable(String),
    /// Stop: the data on disk is damaged, missing or belongs to another journal, or the result of a write is
    /// unknown. The message says which.
    #[error("this process can't go on with the journal: {0}")]
    Fatal(String),
    /// The caller passed something invalid. This is a bug.
    #[error("{0}")]
    Invalid(String),
    /// Another witness of the same source is ahead. Read the source's position from the journal again.
    #[error("{0}")]
    Overtaken(String),
}

/// How the known history of a former object ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FormerEnd {
    /// No version of the object was witnessed, or not its last one.
    Unknown,
    /// The object left the selector at this version.
    Left(Version),
    /// The end was witnessed, so the history is complete.
    Ended,
}

impl FormerEnd {
    /// Computes the end from the object's states, in any order. A state that arrived late says nothing about
    /// the end.
    pub fn of<'a>(states: impl Iterator<Item = (Change, &'a Version)>) -> Self {
        states.fold(Self::Unknown, |fate, (change, version)| match (fate, change) {
            (Self::Ended, _) | (_, Change::Gone) => Self::Ended,
            (Self::Left(held), Change::Left) if held.is_newer_than(version) => Self::Left(held),
            (_, Change::Left) => Self::Left(version.clone()),
            (fate, _) => fate,
        })
    }
}

/// A witnessed version of an object, from a history that may be over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormerVersion {
    pub object: ObjectRef,
    pub version: Version,
    pub document: Bytes,
    /// The previous witnessed content.
    pub before: Option<Bytes>,
}

/// The store that the watch writes to.
#[async_trait]
pub trait StateWitness: Send + Sync {
    /// Returns when the append is durable. Repeats are harmless, because every state has an id.
    async fn append_batch(&self, append: AppendBatch) -> Result<AppendResult, JournalError>;
    async fn load_warm_start(&self, source: &str) -> Result<WarmStart, JournalError>;
    /// The differences that were found so far; none if the store does not keep them.
    async fn audit_differences(&self, _source: &str) -> Result<AuditDifferences, JournalError> {
        Ok(AuditDifferences::default())
    }
    /// The same as [`load_warm_start`](Self::load_warm_start), but passes the objects on in parts. The caller can load one part
    /// into the cache while the next is read. The result has the objects that were not passed on.
    async fn warm_by_parts(
        &self,
        source: &str,
        parts: mpsc::Sender<Vec<CurrentObject>>,
    ) -> Result<WarmStart, JournalError> {
        let mut warm = self.load_warm_start(source).await?;
        if let Err(unheard) = parts.send(std::mem::take(&mut warm.objects)).await {
            warm.objects = unheard.0;
        }
        Ok(warm)
    }
    /// The source's epoch and checkpoint in a journal that other witnesses also write to. `None` if no other
    /// witness exists.
    async fn shared_standing(&self, _source: &str) -> Result<Option<(u32, Option<Version>)>, JournalError> {
        Ok(None)
    }
    /// Whether other witnesses may write states of the same sources.
    fn is_shared(&self) -> bool {
        false
    }
    /// Announces since which version of which epoch this witness has watched a source without a break; `None`
    /// if it does not watch it. The other witnesses see it within seconds.
    fn announce_watch(&self, _source: &str, _since: Option<(u32, Version)>) {}
    /// The name of another witness that has watched the source without a break since before this version.
    async fn watched_elsewhere(
        &self,
        _source: &str,
        _epoch: u32,
        _before: &Version,
    ) -> Result<Option<String>, JournalError> {
        Ok(None)
    }
    /// How the witnessed history of a former object ends. A store that can't tell returns `Unknown`: the
    /// history is then sent again, with the same ids.
    async fn end_of_former(&self, _source: &str, _epoch: u32, _uid: &str) -> Result<FormerEnd, JournalError> {
        Ok(FormerEnd::Unknown)
    }
    /// The newest version between these numbers that was witnessed in an epoch.
    async fn newest_version_within(
        &self,
        _source: &str,
        _epoch: u32,
        _within: RangeInclusive<u64>,
    ) -> Result<Option<FormerVersion>, JournalError> {
        Err(JournalError::Invalid("this journal does not find states by their version".into()))
    }
}
