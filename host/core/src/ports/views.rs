//! What people and scripts are shown: the shapes of the API, the command line and the portal.

use std::sync::Arc;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use tokio::sync::watch;

use crate::ports::DeadLetter;
use crate::state::{Gap, ObjectRef, Seq, State, Status};

/// `GET /api/v1/status`: a contract.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StatusView {
    /// Where this process is one of several that share the journal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replica: Option<ReplicaView>,
    pub sources: Vec<SourceView>,
    pub plugins: Vec<PluginView>,
    /// Those that states are handed to here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub streams: Vec<StreamView>,
    pub journal: JournalView,
    /// Faults of the configuration as a whole.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
}

/// A process that witnesses into a journal together with others. One of them hands states to plugins.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaView {
    pub name: String,
    /// It is the one.
    pub dispatches: bool,
    /// The one; null while nobody is.
    pub dispatcher: Option<String>,
    /// By which they elect it: `NAMESPACE/NAME`.
    pub lease: String,
    /// All that are there, by name.
    pub replicas: Vec<String>,
    /// What keeps the election from going on, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub condition: Option<String>,
}

/// A stream that carries states to other hosts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamView {
    pub name: String,
    /// Sources of this host.
    pub carries: Vec<String>,
    /// States that its server has acknowledged, since the stream's carrier began.
    pub carried: u64,
    /// States in the journal that it does not have yet.
    pub waiting: u64,
    /// What keeps it from going on, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub condition: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SourceView {
    pub name: String,
    /// What it watches, as its settings say: `batch/v1`, `Job`.
    #[serde(default)]
    pub api_version: String,
    #[serde(default)]
    pub kind: String,
    pub objects: u64,
    /// The version from which a watch would be resumed; empty before the first list.
    pub checkpoint: String,
    pub epoch: u32,
    /// What is shown is what is there, but for what is on its way: it was listed, and nothing
    /// holds the source up.
    pub synced: bool,
    pub gaps: u64,
    pub poison: u64,
    /// RFC 3339, UTC; null before the first event.
    pub last_event_at: Option<String>,
    /// The same as an age by the host's clock, so that nobody has to compare two clocks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_event_age_seconds: Option<f64>,
    /// What keeps it from taking in states, such as a refusal by the server or a journal that can't
    /// be written; absent while all is well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub condition: Option<String>,
    /// What this server can't do, or won't, so that a hole may be larger than it need be, or is not
    /// found; absent where it can do all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limitation: Option<String>,
    /// Why the watch alone would not be enough: an audit or an event showed that something was missed,
    /// and no audit since then has found nothing. Absent while audits agree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub doubt: Option<String>,
    /// Objects whose missed versions are being read back now.
    #[serde(default)]
    pub walking: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_audit_at: Option<String>,
    #[serde(default)]
    pub counts: SourceCounts,
    /// Objects that audits or events showed to differ from what was witnessed, since the journal began.
    #[serde(default)]
    pub differed: u64,
    /// The newest of them first, up to [`DISCREPANCIES`](crate::limits::DISCREPANCIES).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub discrepancies: Vec<DiscrepancyView>,
    /// One a history of the server's, oldest first; a second one means that the first was replaced.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub epochs: Vec<EpochView>,
}

/// An object that an audit or an event showed to differ from what was witnessed. What was missed was
/// read back then, or lies in a gap.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiscrepancyView {
    pub object: ObjectRef,
    /// The last version that was witnessed before; empty where none was.
    pub witnessed: String,
    /// The version that the audit's list showed; empty where it showed none: its end was missed.
    pub listed: String,
    pub found_ms: u64,
}

/// What was witnessed of one history of a source's server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EpochView {
    pub epoch: u32,
    pub states: u64,
    /// How far it was watched; empty before its first list.
    pub checkpoint: String,
    /// When it took the place of the one before; null for the first, and before its first list.
    pub replaced_at: Option<String>,
    pub last_event_at: Option<String>,
}

/// What a source has done since the process started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceCounts {
    pub frames: u64,
    pub bytes: u64,
    pub present: u64,
    pub gone: u64,
    pub left: u64,
    pub bookmarks: u64,
    pub poison: u64,
    /// The same version of the same object again.
    pub duplicates: u64,
    /// A lower version than the cached one: refused.
    pub stale: u64,
    pub gaps: u64,
    pub watches: u64,
    /// Lists by reason: nothing was witnessed before; the watch's version was gone; the server's
    /// history was replaced; the periodic comparison.
    pub lists_first: u64,
    pub lists_expired: u64,
    pub lists_replaced: u64,
    pub lists_audit: u64,
    /// Of all lists, those that came as a stream.
    pub lists_streamed: u64,
    /// Watches that were told that their version is gone.
    pub expired: u64,
    /// Histories that were found to be replaced.
    pub epochs: u64,
    /// Objects that an audit or an event showed to differ from what was witnessed.
    pub discrepancies: u64,
    /// Requests to read missed versions back, and the versions that they found.
    pub walk_back_requests: u64,
    pub walked_back: u64,
    pub discarded_bytes: u64,
    /// Time spent on reading frames and deriving states.
    pub decode_ns: u64,
}

/// For each plugin: observed = delivered + filtered + dead + waiting + taken.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PluginView {
    pub name: String,
    /// `active`, `starting`, `standby` (another replica runs it), `failed` (nothing of it runs), `degraded` (it runs, but its last calls
    /// failed or a newer configuration was refused: `message` says which), `draining`.
    pub state: String,
    /// sha256 of the component, hex.
    pub digest: String,
    pub observed: u64,
    pub delivered: u64,
    pub filtered: u64,
    pub dead: u64,
    /// Of the dead, those that an operator dropped.
    #[serde(default)]
    pub dropped: u64,
    pub waiting: u64,
    /// States that retention took before it had been handed them, as it was told to.
    #[serde(default)]
    pub taken: u64,
    /// Of the waiting, those that failed at least once.
    pub retrying: u64,
    /// Positions between the newest state and the cursor.
    pub lag_seq: u64,
    /// Age of the oldest unfinished state.
    pub lag_seconds: f64,
    /// Resyncs of its sources since the process started, and the states that they handed over and
    /// that failed. In none of the figures above.
    #[serde(default)]
    pub resyncs: u64,
    #[serde(default)]
    pub resynced: u64,
    #[serde(default)]
    pub resync_failed: u64,
    /// Of the filtered, those for which a newer state of their object was handed over, as
    /// `mode: latest` wants.
    #[serde(default)]
    pub superseded: u64,
    /// States that a filter could not judge since the start, and that were handed over therefore;
    /// `message` says why the last of them.
    #[serde(default)]
    pub filter_errors: u64,
    /// Its lanes, as a work queue of client-go would tell of itself.
    #[serde(default)]
    pub queue: QueueView,
    /// Why it is not active, or its last error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// What grows does so since the plugin's dispatcher started.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct QueueView {
    /// States that wait and are in no call, those in the journal included.
    pub depth: u64,
    /// States that came into the lanes, each retry and replay included.
    pub adds: u64,
    pub retries: u64,
    /// How long the states that are in calls now have been so, together and the longest of them.
    pub unfinished_seconds: f64,
    pub longest_running_seconds: f64,
    /// From coming in, or being due again, until handed over.
    pub queue_duration: HistogramView,
    /// From being handed over until the end of the call.
    pub work_duration: HistogramView,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HistogramView {
    /// Upper bounds in seconds, and how many did not exceed them.
    pub buckets: Vec<(f64, u64)>,
    pub count: u64,
    pub sum_seconds: f64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalView {
    /// `sqlite`, `postgres` or `mysql`; empty where an older controller answers.
    #[serde(default)]
    pub store: String,
    /// Where it is, without any secret.
    #[serde(default)]
    pub place: String,
    pub states: u64,
    pub bytes: u64,
    pub oldest_seq: Seq,
    pub newest_seq: Seq,
    /// When the oldest state was observed; null while there is none.
    #[serde(default)]
    pub oldest_at: Option<String>,
}

/// One object as it is now, or as it was last seen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ObjectView {
    pub source: String,
    pub object: ObjectRef,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<ObjectRef>,
    pub resource_version: String,
    pub status: Status,
    pub seq: Seq,
    pub observed_at: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectQuery {
    pub source: Option<String>,
    /// A kind, as people write it: `Job`, `job`, `jobs`.
    pub kind: Option<String>,
    pub namespace: Option<String>,
    pub phase: Option<String>,
    pub name: Option<String>,
    /// As kubectl takes it: `team=a,tier in (x, y),!old`.
    #[serde(default)]
    pub label_selector: Option<String>,
    /// `NAME=KEY`: an index of the source (`owner`, `node`, or one of its own) and what to look up.
    #[serde(default)]
    pub index: Option<String>,
    pub limit: Option<usize>,
}

/// An object is named by uid, or by kind, namespace and name (then every uid that had the name).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimelineQuery {
    pub uid: Option<String>,
    pub kind: Option<String>,
    pub namespace: Option<String>,
    pub name: Option<String>,
    pub limit: Option<usize>,
}

/// Gaps are found by what they are about; everything that is left out fits all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GapQuery {
    pub source: Option<String>,
    pub uid: Option<String>,
    /// As people write it; a gap of a whole source is of no kind.
    pub kind: Option<String>,
    pub namespace: Option<String>,
    pub name: Option<String>,
    pub limit: Option<usize>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoisonQuery {
    pub source: Option<String>,
    pub limit: Option<usize>,
}

/// What came and was no object of its kind. The bytes themselves are asked for by number.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoisonView {
    /// Ascends in the order of arrival.
    pub number: u64,
    pub source: String,
    pub epoch: u32,
    pub error: String,
    pub observed_ms: u64,
    pub bytes: u64,
    /// How it begins, as far as that is text.
    pub excerpt: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TimelineView {
    /// Oldest first.
    pub states: Vec<Arc<State>>,
    /// States of objects that this one owns (a Job's pods), oldest first.
    pub related: Vec<Arc<State>>,
}

/// Which dead letters are taken back or dropped. Everything that is given must hold; where nothing
/// is, all of the plugin.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReplayRequest {
    pub plugin: String,
    /// Empty: wherever they are.
    #[serde(default)]
    pub seqs: Vec<Seq>,
    /// Of objects in this namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Whose last error has this text in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// That were parked at least so long ago.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub older_than_seconds: Option<u64>,
    pub reason: String,
    /// Who asks, as they say of themselves: it is kept, and nobody checks it. Empty: `api`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub who: String,
    #[serde(default)]
    pub dry_run: bool,
}

impl ReplayRequest {
    /// As the record has it.
    pub fn who(&self) -> &str {
        match self.who.trim() {
            "" => "api",
            who => who,
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplayView {
    pub replayed: u64,
    pub dry_run: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DropView {
    pub dropped: u64,
    pub dry_run: bool,
}

/// What somebody did with dead letters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LetterRecordView {
    pub number: u64,
    pub plugin: String,
    /// `replay` or `drop`.
    pub what: String,
    pub who: String,
    pub why: String,
    pub seqs: Vec<Seq>,
    pub at: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadLetterView {
    #[serde(flatten)]
    pub letter: DeadLetter,
    pub object: ObjectRef,
    pub phase: String,
}

#[derive(Debug, Error)]
pub enum ViewError {
    /// What is missing decides where to look instead, so it brings its own hint.
    #[error("{message}")]
    NotFound { message: String, hint: String },
    #[error("{0}")]
    Invalid(String),
    #[error("{0}")]
    Unavailable(String),
}

/// What the portal reads; the host answers.
#[async_trait]
pub trait Views: Send + Sync {
    async fn status(&self) -> Result<StatusView, ViewError>;
    async fn objects(&self, query: &ObjectQuery) -> Result<Vec<ObjectView>, ViewError>;
    async fn timeline(&self, query: &TimelineQuery) -> Result<TimelineView, ViewError>;
    /// The document of one state, exactly as it came from the server.
    async fn document(&self, seq: Seq) -> Result<Vec<u8>, ViewError>;
    /// Newest first.
    async fn gaps(&self, query: &GapQuery) -> Result<Vec<Gap>, ViewError>;
    /// Newest first.
    async fn poison(&self, query: &PoisonQuery) -> Result<Vec<PoisonView>, ViewError>;
    /// The bytes as they came.
    async fn poison_raw(&self, number: u64) -> Result<Vec<u8>, ViewError>;
    async fn dead_letters(&self, plugin: Option<&str>) -> Result<Vec<DeadLetterView>, ViewError>;
    async fn replay(&self, request: &ReplayRequest) -> Result<ReplayView, ViewError>;
    async fn drop_letters(&self, request: &ReplayRequest) -> Result<DropView, ViewError>;
    /// Who took dead letters back or dropped them, newest first.
    async fn letter_records(&self, plugin: Option<&str>) -> Result<Vec<LetterRecordView>, ViewError>;
    /// For the live stream: states after a position, oldest first.
    async fn states_after(&self, after: Seq, limit: usize) -> Result<Vec<Arc<State>>, ViewError>;
    fn newest(&self) -> watch::Receiver<Seq>;
    /// Whether this process takes in states and keeps them (for `/readyz`), and if not, why.
    fn ready(&self) -> Result<(), String>;
}
