//! Journal → dispatch: the states to deliver, and the progress of each plugin.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use tokio::sync::watch;

use super::{JournalError, PluginProgress};
use crate::BoxedError;
use crate::ledger::LedgerProgress;
use crate::state::{ObjectRef, Seq, State, StateId};

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
    /// Whether it is being replayed: back in its lane, and not finished yet.
    #[serde(default)]
    pub replaying: bool,
    /// Whether an operator dropped it. It stays counted as dead and can't be replayed.
    #[serde(default)]
    pub dropped: bool,
    /// The newest tries, oldest first.
    #[cfg_attr(feature = "schema", schemars(extend("maxItems" = crate::limits::TRIES_KEPT)))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tries: Vec<Try>,
}

/// A pause that an operator has ordered and that is still in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginPause {
    pub who: String,
    pub why: String,
    pub at_ms: u64,
}

/// One call with this state that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Try {
    /// 1 for the first try.
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub attempt: u32,
    pub at_ms: u64,
    pub took_ms: u64,
    pub error: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvWrite {
    pub key: String,
    /// `None` deletes the key.
    pub value: Option<Vec<u8>>,
}

/// The changes of one save of a plugin's progress. They are written in one transaction.
#[derive(Clone, Debug, Default)]
pub struct ProgressSave {
    pub progress: PluginProgress,
    pub parked: Vec<DeadLetter>,
    /// Dead letters that were replayed, and owed states, that are finished now.
    pub revived: Vec<Seq>,
    /// States that the progress counts as finished although they are not, because their lanes are blocked for
    /// long. They are written before `parked`, and after `revived`.
    pub owed: Vec<Seq>,
    pub kv: Vec<KvWrite>,
}

/// A part of the states that are owed to a plugin.
#[derive(Clone, Debug, Default)]
pub struct OwedPage {
    pub states: Vec<Arc<State>>,
    /// The last position that was looked at; `None` after the last part.
    pub end: Option<Seq>,
}

/// A part of a source's present objects: the newest state of each.
#[derive(Clone, Debug, Default)]
pub struct PresentPage {
    pub states: Vec<Arc<State>>,
    /// Where the next part begins; `None` after the last part.
    pub next: Option<u64>,
}

/// States whose objects are outside some namespaces.
#[derive(Clone, Debug, Default)]
pub struct OtherNamespaces {
    pub states: Vec<Arc<State>>,
    /// No other such state exists up to this position.
    pub looked: Seq,
}

impl OtherNamespaces {
    /// Filters states that were read from all namespaces. `limit` is the requested number.
    pub fn of(mut states: Vec<Arc<State>>, through: Seq, limit: usize, namespaces: &[String]) -> Self {
        let is_all = states.len() < limit;
        let looked = states.last().filter(|_| !is_all).map_or(through, |state| state.seq.min(through));
        states.retain(|state| state.seq <= through && !namespaces.contains(&state.object.namespace));
        Self { states, looked }
    }
}

/// The part of the journal that dispatch reads and writes.
#[async_trait]
pub trait Backlog: Send + Sync {
    /// The newest durable position. A change wakes the dispatchers.
    fn newest_position(&self) -> watch::Receiver<Seq>;
    /// Reads at most `limit` states of any source after `after`, in order.
    async fn read(&self, after: Seq, limit: usize) -> Result<Vec<Arc<State>>, JournalError>;
    /// Reads at most `limit` states in `(after, through]`, in order, whose objects are in none of these
    /// namespaces. A store that can skip the other states without reading them should do so. It may return
    /// before it has looked at the whole range.
    async fn read_outside(
        &self,
        after: Seq,
        through: Seq,
        limit: usize,
        namespaces: &[String],
    ) -> Result<OtherNamespaces, JournalError> {
        Ok(OtherNamespaces::of(self.read(after, limit).await?, through, limit, namespaces))
    }
    /// Reads single states by position, for replays. Unknown positions are left out.
    async fn read_at(&self, seqs: &[Seq]) -> Result<Vec<Arc<State>>, JournalError>;
    /// Reads at most `limit` present objects of a source, from the end of the previous part (0: from the
    /// first). The answer contains everything that is durable when the call begins.
    async fn present_objects(
        &self,
        source: &str,
        from: u64,
        limit: usize,
    ) -> Result<PresentPage, JournalError>;
    /// Counts the states of these sources in `(after, through]`.
    async fn count(&self, sources: &[Arc<str>], after: Seq, through: Seq) -> Result<u64, JournalError>;
    async fn plugin_progress(&self, plugin: &str) -> Result<Option<PluginProgress>, JournalError>;
    async fn save(&self, plugin: &str, save: ProgressSave) -> Result<(), JournalError>;
    async fn dead_letters(&self, plugin: &str) -> Result<Vec<DeadLetter>, JournalError>;
    /// Reads at most `limit` states that are owed to a plugin, from a position on, in order.
    async fn owed_states(&self, plugin: &str, from: Seq, limit: usize) -> Result<OwedPage, JournalError>;
    /// Marks dead letters as replaying, durably, before they go back into their lanes.
    async fn mark_replaying(
        &self,
        plugin: &str,
        seqs: &[Seq],
        who: &str,
        why: &str,
    ) -> Result<(), JournalError>;
    /// Marks dead letters as dropped, durably, before their lanes continue.
    async fn mark_dropped(
        &self,
        plugin: &str,
        seqs: &[Seq],
        who: &str,
        why: &str,
    ) -> Result<(), JournalError>;
    /// The plugin's pause, if it is paused. A pause belongs to the plugin's name and applies to every version
    /// of it.
    async fn plugin_pause(&self, plugin: &str) -> Result<Option<PluginPause>, JournalError>;
    /// Records, durably, that an operator pauses the plugin or resumes it.
    async fn mark_paused(&self, plugin: &str, pauses: bool, who: &str, why: &str)
    -> Result<(), JournalError>;
    async fn plugin_kv(&self, plugin: &str) -> Result<Vec<(String, Vec<u8>)>, JournalError>;
    /// Returns once every earlier write is done or can never happen, even if its caller has given up. A
    /// dispatcher that takes over from another calls it first: a late save by the old one would undo what
    /// both rely on.
    async fn await_earlier_writes(&self) -> Result<(), JournalError>;
}

/// Stores what a plugin's calls are about to do, beside its `kv` and fenced as its progress is. The keys
/// begin with [`NOTE`], so none collides with a key of the plugin. [`Backlog::plugin_kv`] reads them back, and the
/// writes of a [`ProgressSave`] remove them.
#[async_trait]
pub trait NoteStore: Send + Sync {
    /// Returns once the notes are durable to this degree.
    async fn save_notes(
        &self,
        plugin: &str,
        notes: Vec<KvWrite>,
        kept: NoteDurability,
    ) -> Result<(), JournalError>;
    /// Stores the notes with the journal's next transaction, after all earlier notes. They may be lost, so
    /// only a repeat that skips work may rely on them.
    fn note_later(&self, plugin: &str, notes: Vec<KvWrite>);
}

/// Stores the progress of each signed ledger, fenced as notes are.
#[async_trait]
pub trait Ledgers: Send + Sync {
    async fn ledger_progress(&self, ledger: &str) -> Result<Option<LedgerProgress>, JournalError>;
    /// A power failure may lose the newest.
    async fn save_ledger_progress(&self, ledger: &str, reached: &LedgerProgress) -> Result<(), JournalError>;
}

/// No key of a plugin contains a NUL.
pub const NOTE: char = '\0';

/// The failure that a note survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoteDurability {
    /// Survives a crash of the process. A power failure may lose it, unless something else was written to the
    /// journal since.
    ProcessCrash,
    /// Survives a power failure as well.
    PowerLoss,
}

/// A document that was read ahead of its question.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ReadDocument {
    /// It was not read: ask for it alone.
    #[default]
    Unread,
    /// The journal has none.
    Absent,
    Found(Bytes),
}

/// The documents that were read of one state ahead of the questions about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateDocuments {
    pub seq: Seq,
    /// As [`DocumentReader::document_at`] answers.
    pub own: ReadDocument,
    /// As [`DocumentReader::document_before`] answers.
    pub before: ReadDocument,
}

/// Reads documents back, byte for byte.
#[async_trait]
pub trait DocumentReader: Send + Sync {
    /// `None` if the journal has no document: the position is unknown, or a relist found the deletion.
    async fn document_at(&self, seq: Seq) -> Result<Option<Bytes>, JournalError>;
    /// The version of the same object that was journaled before this one.
    async fn document_before(&self, seq: Seq) -> Result<Option<Bytes>, JournalError>;
    /// Reads the documents of several states at once, and with `has_before` the versions before them, too. It is a help
    /// and not an answer: it leaves out what would take too much memory, and what can't be read. A reader that hides
    /// secrets reads nothing ahead: these are the journal's own bytes.
    async fn read_ahead(
        &self,
        _seqs: &[Seq],
        _has_before: bool,
    ) -> Result<Vec<StateDocuments>, JournalError> {
        Ok(Vec::new())
    }
    /// The newest states of the object with this uid in this namespace, at most three. `None` if no such
    /// object was ever journaled.
    async fn newest_of(&self, object: &ObjectRef) -> Result<Vec<Seq>, JournalError>;
}

/// Why a filter could not decide about a state.
#[derive(Debug, Error)]
pub enum FilterError {
    /// The filter can never decide about this state.
    #[error(transparent)]
    Unclear(BoxedError),
    /// The state's document can't be read.
    #[error(transparent)]
    Journal(#[from] JournalError),
}

/// The filter of a subscription. It always gives the same answer for the same state.
#[async_trait]
pub trait StateFilter: Send + Sync + std::fmt::Debug {
    async fn wants_state(&self, state: &State) -> Result<bool, FilterError>;
}
