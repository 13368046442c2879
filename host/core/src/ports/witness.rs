//! Watch → journal: what was seen, and what became of it.

use std::ops::RangeInclusive;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use thiserror::Error;
use tokio::sync::mpsc;

use crate::document::Packed;
use crate::state::{Change, Gap, ObjectRef, Seq, State, StateId, Status};
use crate::version::Version;
use crate::views::DiscrepancyView;

/// One state as the watch saw it, before it has a position.
#[derive(Clone, Debug)]
pub struct Witnessed {
    pub id: StateId,
    pub change: Change,
    pub object: Arc<ObjectRef>,
    pub owner: Option<Arc<ObjectRef>>,
    /// The direct owner, where it is not the outermost one: a Job within a JobSet has its pods.
    pub controller: Option<Arc<ObjectRef>>,
    pub resource_version: Version,
    pub status: Arc<Status>,
    pub previous: Option<Arc<Status>>,
    pub observed_ms: u64,
    /// The exact bytes of the object as they came from the server. For `Gone` the last content
    /// (empty where a comparison found the deletion), for `Gap` the JSON of [`Gap`].
    pub document: Bytes,
    /// The document of the version before, where it is at hand: a hint for the delta. The
    /// journal checks it against its own checksum before it builds on it.
    pub base: Option<Bytes>,
}

impl Witnessed {
    /// A state that was journaled elsewhere, with its document.
    pub fn elsewhere(state: State, document: Bytes) -> Self {
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
        }
    }
}

/// Bytes that were not an object of their kind.
#[derive(Clone, Debug)]
pub struct Poison {
    pub raw: Bytes,
    pub error: String,
    pub observed_ms: u64,
}

/// Everything that one transaction keeps. The checkpoint never runs ahead of the states.
#[derive(Clone, Debug, Default)]
pub struct Append {
    pub source: Arc<str>,
    pub epoch: u32,
    pub states: Vec<Witnessed>,
    pub poison: Vec<Poison>,
    /// Holes of the whole source; those of one object are states.
    pub gaps: Vec<Gap>,
    /// What was found to differ. Of many only the newest are kept one by one, but all are counted.
    pub discrepancies: Vec<DiscrepancyView>,
    /// The version from which a watch may safely be resumed once this is on disk.
    pub checkpoint: Option<Version>,
    /// The checkpoint since which was read back what is told here, while that goes on. Where another witness
    /// has moved it meanwhile, that one knows what is a gap and what is not.
    pub since: Option<Version>,
    /// The checkpoint goes back on purpose. One that is only behind another witness's leaves that one
    /// where it is.
    pub rewinds: bool,
}

#[derive(Clone, Debug, Default)]
pub struct Appended {
    /// The position of each state, `None` where its id was already there.
    pub seqs: Vec<Option<Seq>>,
    /// The newest position of any of them, also of those that were there.
    pub through: Seq,
    /// Of the journal.
    pub newest: Seq,
}

/// The object as it was last witnessed.
#[derive(Clone, Debug)]
pub struct Current {
    pub object: Arc<ObjectRef>,
    pub owner: Option<Arc<ObjectRef>>,
    pub resource_version: Version,
    pub status: Arc<Status>,
    pub seq: Seq,
    pub observed_ms: u64,
    pub packed: Packed,
}

/// What a source starts from after a restart.
#[derive(Clone, Debug, Default)]
pub struct Warm {
    pub epoch: u32,
    pub checkpoint: Option<Version>,
    /// Present objects only: the gone and the left are history.
    pub objects: Vec<Current>,
    /// All states of the source up to this position are in it; later ones have greater ones.
    pub through: Seq,
}

/// What audits of a source have found since its journal began.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Discrepancies {
    pub count: u64,
    /// Newest first, up to [`DISCREPANCIES`](crate::limits::DISCREPANCIES).
    pub newest: Vec<DiscrepancyView>,
}

#[derive(Debug, Error)]
pub enum JournalError {
    /// Try again later, after a pause: the disk is full, the store is busy.
    #[error("the journal can't be written now: {0}")]
    Unavailable(String),
    /// Stop: what is on disk can't be trusted or is not there any more, it is another's, or a write's
    /// fate is unknown. Which of these it is, is said by whoever found it.
    #[error("this process can't go on with the journal: {0}")]
    Fatal(String),
    /// A fault of the caller; fix it.
    #[error("{0}")]
    Invalid(String),
    /// Another witness of the same source is ahead: read from the journal again where it stands.
    #[error("{0}")]
    Overtaken(String),
}

/// How what was witnessed of an object that is not there ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Nothing was witnessed of it, or not its last.
    Unknown,
    /// It left the selector at this version.
    Left(Version),
    /// With its end, so that all of its story is there.
    Ended,
}

impl Fate {
    /// From its states in whatever order: what came late says nothing about the end.
    pub fn of<'a>(states: impl Iterator<Item = (Change, &'a Version)>) -> Self {
        states.fold(Self::Unknown, |fate, (change, version)| match (fate, change) {
            (Self::Ended, _) | (_, Change::Gone) => Self::Ended,
            (Self::Left(held), Change::Left) if held.is_newer_than(version) => Self::Left(held),
            (_, Change::Left) => Self::Left(version.clone()),
            (fate, _) => fate,
        })
    }
}

/// A version of an object that was witnessed in a history, which may be over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Former {
    pub object: ObjectRef,
    pub version: Version,
    pub document: Bytes,
    /// What was witnessed of the object before that.
    pub before: Option<Bytes>,
}

/// What the watch writes to.
#[async_trait]
pub trait Witness: Send + Sync {
    /// Returns when it is durable. Idempotent by id.
    async fn append(&self, append: Append) -> Result<Appended, JournalError>;
    async fn warm(&self, source: &str) -> Result<Warm, JournalError>;
    /// What was found to differ before; nothing where that is not kept.
    async fn discrepancies(&self, _source: &str) -> Result<Discrepancies, JournalError> {
        Ok(Discrepancies::default())
    }
    /// The same, with the objects given part by part, so that one part is put in its place while the
    /// next is read; those of the answer are the ones that were not given.
    async fn warm_by_parts(
        &self,
        source: &str,
        parts: mpsc::Sender<Vec<Current>>,
    ) -> Result<Warm, JournalError> {
        let mut warm = self.warm(source).await?;
        if let Err(unheard) = parts.send(std::mem::take(&mut warm.objects)).await {
            warm.objects = unheard.0;
        }
        Ok(warm)
    }
    /// Where the source stands in a journal that other witnesses write to as well: its epoch and its
    /// checkpoint. `None` where there are no others.
    async fn standing(&self, _source: &str) -> Result<Option<(u32, Option<Version>)>, JournalError> {
        Ok(None)
    }
    /// Whether others may write of the same sources.
    fn is_shared(&self) -> bool {
        false
    }
    /// Since which version, of which epoch, this one's watch of a source goes on without a break; `None`: it
    /// doesn't. The others learn of it within seconds.
    fn watches(&self, _source: &str, _since: Option<(u32, Version)>) {}
    /// Another one whose watch of the source began before a version and goes on without a break.
    async fn watched_elsewhere(
        &self,
        _source: &str,
        _epoch: u32,
        _before: &Version,
    ) -> Result<Option<String>, JournalError> {
        Ok(None)
    }
    /// What became of an object that is not there by what was witnessed. One that can't be asked
    /// knows nothing: the story is told again, and the ids are the same.
    async fn fate(&self, _source: &str, _epoch: u32, _uid: &str) -> Result<Fate, JournalError> {
        Ok(Fate::Unknown)
    }
    /// The newest version within these numbers that was witnessed in an epoch.
    async fn former(
        &self,
        _source: &str,
        _epoch: u32,
        _within: RangeInclusive<u64>,
    ) -> Result<Option<Former>, JournalError> {
        Err(JournalError::Invalid("what was witnessed is not found by its version here".into()))
    }
}
