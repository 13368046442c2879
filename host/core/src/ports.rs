//! The traits through which the stages meet. A state goes down through them; what comes back
//! is a return value.

use std::collections::HashSet;
use std::ops::RangeInclusive;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use tokio::sync::{mpsc, watch};

use crate::document::Packed;
use crate::index::IndexError;
use crate::selector::Selector;
use crate::state::{Change, Gap, ObjectRef, Seq, State, StateId, Status};
use crate::version::Version;
use crate::views::DiscrepancyView;

// ---- watch → journal ---------------------------------------------------------------------

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
}

#[derive(Clone, Debug, Default)]
pub struct Appended {
    /// The position of each state, `None` where its id was already there.
    pub seqs: Vec<Option<Seq>>,
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
    /// Stop: what is on disk can't be trusted, or a write's fate is unknown.
    #[error("the journal is damaged or its last write is in doubt: {0}")]
    Fatal(String),
    /// A fault of the caller; fix it.
    #[error("{0}")]
    Invalid(String),
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

// ---- journal → dispatch ------------------------------------------------------------------

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
    /// What became of each try, oldest first; of many, the newest
    /// [`TRIES_KEPT`](crate::limits::TRIES_KEPT).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tries: Vec<Try>,
}

/// One call with a state that did not succeed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Try {
    /// 1 the first time.
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

// ---- dispatch → sandbox ------------------------------------------------------------------

#[derive(Clone, Debug)]
pub struct Delivery {
    pub state: Arc<State>,
    /// 1 the first time.
    pub attempt: u32,
    /// Handed over once more although it was finished, by a resync of its source.
    pub resync: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Done,
    Retry {
        after_ms: Option<u64>,
        reason: String,
    },
    /// Will never succeed: park it.
    Reject(String),
}

/// What a call gave back: one verdict a state, in order, and what it wrote to its `kv`.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    pub verdicts: Vec<Verdict>,
    pub kv: Vec<KvWrite>,
}

/// Why a whole call failed. Everything that it wrote was rolled back.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CallError {
    #[error("the plugin trapped: {0}")]
    Trap(String),
    #[error("the plugin ran longer than its limit of {limit_ms} ms")]
    Timeout { limit_ms: u64 },
    #[error("the plugin wanted more memory than its limit of {limit_bytes} bytes")]
    Memory { limit_bytes: u64 },
    #[error("the plugin answered wrongly: {0}")]
    Protocol(String),
    /// Not the plugin's fault: a database, a ledger or the host itself.
    #[error("{0}")]
    Unavailable(String),
}

impl CallError {
    /// Whether splitting the batch can find the state that does it.
    pub fn is_plugins_fault(&self) -> bool {
        !matches!(self, Self::Unavailable(_))
    }
}

/// A plugin, ready to be called.
#[async_trait]
pub trait Handler: Send + Sync {
    async fn handle(&self, batch: &[Delivery]) -> Result<Outcome, CallError>;
}

// ---- sandbox → capability ----------------------------------------------------------------

/// A refusal or fault of one capability call, as a plugin may see it. No addresses or secrets.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum GrantError {
    #[error("denied: {0}")]
    Denied(String),
    #[error("invalid: {0}")]
    Invalid(String),
    #[error("unavailable: {0}")]
    Unavailable(String),
    #[error("too large: {0}")]
    TooLarge(String),
    #[error("timed out: {0}")]
    Timeout(String),
    #[error("rate limited, {after_ms} ms")]
    RateLimited { after_ms: u64 },
    #[error("{0}")]
    Other(String),
}

#[derive(Clone, Debug, PartialEq)]
pub enum SqlValue {
    Null,
    Boolean(bool),
    Integer(i64),
    Float(f64),
    Text(String),
    Blob(Vec<u8>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    Sqlite,
    Postgres,
    Mysql,
}

/// What happens to a row whose key is already there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OnConflict {
    /// The row that is there stays.
    Ignore,
    /// The row is replaced where `newer` (an integer column) is greater than what is there.
    ReplaceOlder { newer: String },
}

/// Rows for one table, written in the fastest form that the database has.
#[derive(Clone, Debug, PartialEq)]
pub struct TableWrite {
    pub table: String,
    pub columns: Vec<String>,
    /// The columns of the table's unique key.
    pub key: Vec<String>,
    pub on_conflict: OnConflict,
    pub rows: Vec<Vec<SqlValue>>,
}

#[derive(Clone, Debug, Default)]
pub struct HttpRequest {
    pub method: String,
    pub path: String,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

#[derive(Clone, Debug, Default)]
pub struct HttpResponse {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogLevel {
    Trace,
    Debug,
    Info,
    Warn,
    Error,
}

/// What one plugin was granted. `open` begins the effects of one call.
#[async_trait]
pub trait Grants: Send + Sync {
    /// The plugin's own configuration, as JSON.
    fn config(&self) -> &str;
    async fn open(&self, batch: &[Delivery]) -> Result<Box<dyn Session>, GrantError>;
}

/// The effects of one call: committed together with the receipt, or not at all.
#[async_trait]
pub trait Session: Send {
    /// States of this batch whose receipt is already there: done, not to be handed over again.
    fn applied(&self) -> &HashSet<Seq>;

    fn sql_dialect(&self, database: &str) -> Result<Dialect, GrantError>;
    async fn sql_execute(
        &mut self,
        database: &str,
        statement: &str,
        rows: Vec<Vec<SqlValue>>,
    ) -> Result<u64, GrantError>;
    async fn sql_write(&mut self, database: &str, write: TableWrite) -> Result<u64, GrantError>;
    async fn sql_query(
        &mut self,
        database: &str,
        statement: &str,
        params: Vec<SqlValue>,
    ) -> Result<Vec<Vec<SqlValue>>, GrantError>;

    async fn http_send(
        &mut self,
        destination: &str,
        request: HttpRequest,
    ) -> Result<HttpResponse, GrantError>;

    fn kv_get(&self, key: &str) -> Option<Vec<u8>>;
    fn kv_set(&mut self, key: &str, value: Vec<u8>) -> Result<(), GrantError>;
    fn kv_delete(&mut self, key: &str) -> Result<(), GrantError>;
    fn kv_keys(&self, prefix: &str, limit: usize) -> Vec<String>;

    async fn ledger_append(&mut self, ledger: &str, records: Vec<Vec<u8>>) -> Result<u64, GrantError>;
    async fn ledger_last(&mut self, ledger: &str) -> Result<Option<Vec<u8>>, GrantError>;
    fn ledger_sign(&self, key: &str, message: &[u8]) -> Result<Vec<u8>, GrantError>;

    /// Documents of the states of this call only.
    async fn document(&mut self, seq: Seq) -> Result<Option<Bytes>, GrantError>;
    async fn document_before(&mut self, seq: Seq) -> Result<Option<Bytes>, GrantError>;

    fn lister_get(&self, source: &str, namespace: &str, name: &str) -> Result<Option<Bytes>, GrantError>;
    fn lister_list(
        &self,
        source: &str,
        index: &str,
        key: &str,
        limit: usize,
    ) -> Result<Vec<ObjectRef>, GrantError>;

    fn log(&self, level: LogLevel, message: &str, fields: &[(String, String)]);
    fn now_ms(&self) -> u64;

    /// Keeps what was written, with the receipt that `done` were applied.
    async fn commit(self: Box<Self>, done: &[Seq]) -> Result<Vec<KvWrite>, GrantError>;
    async fn rollback(self: Box<Self>);
}

// ---- the cache, for readers --------------------------------------------------------------

/// Which objects of one source. Everything that is given must hold.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    pub namespace: Option<String>,
    pub name: Option<String>,
    pub phase: Option<String>,
    pub labels: Selector,
    /// The name of an index ([`crate::index`]) and a key in it.
    pub index: Option<(String, String)>,
    pub limit: usize,
    /// Those that changed last, newest first, and no continuation; otherwise in no order.
    pub newest: bool,
    /// The [`next`](Selected::next) of the page before.
    pub after: Option<u32>,
}

#[derive(Clone, Debug, Default)]
pub struct Selected {
    pub objects: Vec<Current>,
    /// There may be more, from here on.
    pub next: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SelectError {
    #[error("no source `{source_name}` runs here; there is {}", list(known))]
    Source { source_name: String, known: Vec<String> },
    #[error("the source `{0}` is being read from the journal: ask again in a moment")]
    Loading(String),
    #[error(transparent)]
    Index(#[from] IndexError),
}

fn list(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// Reads of what is there now; no request reaches the API server.
#[async_trait]
pub trait Lister: Send + Sync {
    fn get(&self, source: &str, namespace: &str, name: &str) -> Result<Option<Current>, SelectError>;
    fn select(&self, source: &str, selection: &Selection) -> Result<Selected, SelectError>;
    fn count(&self, source: &str) -> usize;
    /// Returns once the source is loaded and shows its state at this position, or what came after
    /// that; at once where the source doesn't run.
    async fn shows(&self, source: &str, seq: Seq);
}
