//! Journal → dispatch: what is to be handed over, and how far each plugin is.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use tokio::sync::watch;

use super::JournalError;
use crate::state::{Seq, State, StateId};

/// How far a plugin is. Written in one transaction.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Everything after this position belongs to the subscription.
    pub start: Seq,
    /// Every state up to here is finished (delivered, filtered or dead).
    pub cursor: Seq,
    /// Finished states above the cursor, as inclusive ranges in order.
    pub above: Vec<(Seq, Seq)>,
    pub delivered: u64,
    /// Those that the subscription does not want, and those that `mode: latest` let go.
    pub filtered: u64,
    /// Of the filtered, those for which a newer state of their object was handed over.
    #[serde(default)]
    pub superseded: u64,
    /// Dead letters that are parked now, and those that an operator dropped.
    pub dead: u64,
    /// Where each source of the subscription begins. Kept, so that `now` means the same moment
    /// after a restart.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<SourceStart>,
    /// Up to where what a source has is its past, which is handed over at its own pace. Kept, so
    /// that it means the same moment after a restart.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pasts: Vec<(Arc<str>, Seq)>,
    /// When the plugin was found to be taken out; the next start of it begins by taking that back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retired_ms: Option<u64>,
}

/// States of this source after this position belong to the subscription. A source that was
/// unsubscribed keeps its end, so that what was delivered of it stays accounted for; subscribed
/// again, it has a second entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceStart {
    pub source: Arc<str>,
    pub after: Seq,
    /// The last position that belongs to it; `None` while it is subscribed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Seq>,
}

impl SourceStart {
    pub fn covers(&self, state: &State) -> bool {
        self.source == state.source
            && state.seq > self.after
            && self.until.is_none_or(|until| state.seq <= until)
    }
}

/// A state that was parked after its last try.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(inline))]
pub struct DeadLetter {
    pub plugin: String,
    pub seq: Seq,
    pub id: StateId,
    pub attempts: u32,
    pub error: String,
    pub first_ms: u64,
    pub last_ms: u64,
    /// Taken back into its lane, not yet finished again.
    #[serde(default)]
    pub replaying: bool,
    /// An operator let it go. It stays in the accounts and can't be taken back.
    #[serde(default)]
    pub dropped: bool,
    /// What became of each try, oldest first; of many, the newest.
    #[cfg_attr(feature = "schema", schemars(extend("maxItems" = crate::limits::TRIES_KEPT)))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tries: Vec<Try>,
}

/// One call with a state that did not succeed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Try {
    /// 1 the first time.
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub attempt: u32,
    pub at_ms: u64,
    pub took_ms: u64,
    pub error: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvWrite {
    pub key: String,
    /// `None` deletes.
    pub value: Option<Vec<u8>>,
}

/// What one save of a plugin's progress changes, all in one transaction.
#[derive(Clone, Debug, Default)]
pub struct Save {
    pub progress: Progress,
    pub parked: Vec<DeadLetter>,
    /// Dead letters that were replayed and are finished now.
    pub revived: Vec<Seq>,
    pub kv: Vec<KvWrite>,
}

/// A part of a source's objects as they are now: of each its newest state.
#[derive(Clone, Debug, Default)]
pub struct Present {
    pub states: Vec<Arc<State>>,
    /// Where the next part begins; `None` after the last.
    pub next: Option<u64>,
}

/// What lies outside some namespaces.
#[derive(Clone, Debug, Default)]
pub struct Outside {
    pub states: Vec<Arc<State>>,
    /// Up to here there is nothing else of it.
    pub looked: Seq,
}

impl Outside {
    /// Of states that were read whoever they belong to, `limit` of them if there are as many.
    pub fn of(mut states: Vec<Arc<State>>, through: Seq, limit: usize, namespaces: &[String]) -> Self {
        let is_all = states.len() < limit;
        let looked = states.last().filter(|_| !is_all).map_or(through, |state| state.seq.min(through));
        states.retain(|state| state.seq <= through && !namespaces.contains(&state.object.namespace));
        Self { states, looked }
    }
}

/// What dispatch reads and writes.
#[async_trait]
pub trait Backlog: Send + Sync {
    /// The newest durable position; changes wake the dispatchers.
    fn newest(&self) -> watch::Receiver<Seq>;
    /// States after `after`, in order, at most `limit`, of any source.
    async fn read(&self, after: Seq, limit: usize) -> Result<Vec<Arc<State>>, JournalError>;
    /// States in `(after, through]`, in order, at most `limit`, of objects that are in none of these
    /// namespaces. A store that can pass over the others without reading them should, and may
    /// answer before it has looked through all.
    async fn read_outside(
        &self,
        after: Seq,
        through: Seq,
        limit: usize,
        namespaces: &[String],
    ) -> Result<Outside, JournalError> {
        Ok(Outside::of(self.read(after, limit).await?, through, limit, namespaces))
    }
    /// Single states by position, for replays; unknown positions are left out.
    async fn read_at(&self, seqs: &[Seq]) -> Result<Vec<Arc<State>>, JournalError>;
    /// At most `limit` of a source's present objects, from where the part before ended (0: from
    /// the first). All that is durable when it is asked is in the answer.
    async fn present(&self, source: &str, from: u64, limit: usize) -> Result<Present, JournalError>;
    /// How many states of these sources lie in `(after, through]`.
    async fn count(&self, sources: &[Arc<str>], after: Seq, through: Seq) -> Result<u64, JournalError>;
    async fn progress(&self, plugin: &str) -> Result<Option<Progress>, JournalError>;
    async fn save(&self, plugin: &str, save: Save) -> Result<(), JournalError>;
    async fn dead_letters(&self, plugin: &str) -> Result<Vec<DeadLetter>, JournalError>;
    /// Marks dead letters as replaying, durably, before they go back into their lanes.
    async fn mark_replaying(
        &self,
        plugin: &str,
        seqs: &[Seq],
        who: &str,
        why: &str,
    ) -> Result<(), JournalError>;
    /// Marks dead letters as dropped, durably, before their lanes go on.
    async fn mark_dropped(
        &self,
        plugin: &str,
        seqs: &[Seq],
        who: &str,
        why: &str,
    ) -> Result<(), JournalError>;
    async fn kv(&self, plugin: &str) -> Result<Vec<(String, Vec<u8>)>, JournalError>;
    /// Returns once every write that was begun before is done, or never will be, also one for which
    /// nobody waits any more. Whoever goes on from where another stopped asks for this first: a save
    /// of the other that came later would undo what both rely on.
    async fn settle(&self) -> Result<(), JournalError>;
}

/// Reading documents back, byte for byte.
#[async_trait]
pub trait Documents: Send + Sync {
    async fn document(&self, seq: Seq) -> Result<Option<Bytes>, JournalError>;
    /// The version of the same object that was journaled before this one.
    async fn document_before(&self, seq: Seq) -> Result<Option<Bytes>, JournalError>;
}

/// Why a filter could not tell whether a state is wanted.
#[derive(Debug, Error)]
pub enum FilterError {
    /// It won't for this state, however often it is asked.
    #[error("{0}")]
    Unclear(String),
    /// The state's document can't be read.
    #[error(transparent)]
    Journal(#[from] JournalError),
}

/// What a subscription's filter says. The same state gets the same answer.
#[async_trait]
pub trait StateFilter: Send + Sync + std::fmt::Debug {
    async fn wants(&self, state: &State) -> Result<bool, FilterError>;
}
