//! What people and scripts are shown: the shapes of the API, the command line and the portal.
//!
//! What is said of a type or a field here is what the API's description says of it.

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use tokio::sync::watch;

pub use crate::status::story::events::EventView;
pub use crate::status::story::mutes::{MuteRequest, MuteView, MutedView};
pub use crate::status::story::reports::ReportView;

pub use super::objects::{
    Counts, Deliveries, DetailsView, Gone, NAMESPACES, ObjectPage, ObjectQuery, ObjectView, ThenView, Told,
    WasView,
};
pub use super::plugins::{
    CallEndsView, CallFailureView, CallsView, ConfigField, GrantUseView, GrantView, HistogramView,
    ManifestView, PausedView, PluginView, QueueView, ShadowActView, ShadowDifferenceView, ShadowSideView,
    ShadowView, TickView, VerdictsView,
};
pub use super::submit::{SubmitRequest, SubmitView, TemplateView};
use crate::calendar;
use crate::cursor::{LetterCursor, StoryCursor};
use crate::ports::{DeadLetter, RawState, RawStory, Watched};
use crate::state::{Gap, ObjectRef, Seq, State};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Status"))]
pub struct StatusView {
    /// The controller's own version; left out for people who may not see figures, and by older controllers.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub version: String,
    /// Left out where this process has the journal for itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replica: Option<ReplicaView>,
    pub sources: Vec<SourceView>,
    pub plugins: Vec<PluginView>,
    /// Streams that this process hands states to; left out where there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub streams: Vec<StreamView>,
    /// Ledgers whose closed files this process ships to a bucket; left out where there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ledgers: Vec<LedgerView>,
    pub journal: JournalView,
    /// What keeps retention from taking states that are beyond their source's bounds; left out where nothing does.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub held: Vec<HeldView>,
    /// Faults of the configuration as a whole; left out where there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
    /// The person who asks may not see the figures: all are 0, and plugins, streams and whatever else tells of
    /// the controller's work are left out.
    #[serde(default, skip_serializing_if = "is_false")]
    pub restricted: bool,
    /// How many parts of the configuration are refused: these problems, and the plugins whose newest version, or
    /// every version, was refused. Left out where there are none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub configuration_problems: u64,
}

fn is_false(it: &bool) -> bool {
    !it
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// States that are beyond the bounds of their source's retention, and what keeps them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Held"))]
pub struct HeldView {
    /// The source whose retention is held up.
    pub source: String,
    /// `plugin NAME`, `stream NAME`, `dead letters`, `the watch's checkpoint`.
    pub holder: String,
    /// How many states it keeps.
    pub states: u64,
    /// Since when it is known to keep some. RFC 3339, UTC.
    pub since: String,
    /// What a person can do, for people.
    pub remedy: String,
}

/// This process, where it is one of several that share the journal. One of them hands states to plugins.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Replica"))]
pub struct ReplicaView {
    pub name: String,
    /// This replica hands states to plugins.
    pub dispatches: bool,
    /// The replica that does; null while none does.
    pub dispatcher: Option<String>,
    /// The Lease by which the replicas elect the dispatcher: `NAMESPACE/NAME`.
    pub lease: String,
    /// The names of all replicas that are there.
    pub replicas: Vec<String>,
    /// What keeps the election from going on, for people; left out where nothing does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub condition: Option<String>,
}

/// A stream that carries states to other hosts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Stream"))]
pub struct StreamView {
    pub name: String,
    /// Sources of this host.
    pub carries: Vec<String>,
    /// States that the stream's server has acknowledged since the carrier began.
    pub carried: u64,
    /// States in the journal that the stream does not have yet.
    pub waiting: u64,
    /// What keeps the carrier from going on, for people; left out where nothing does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub condition: Option<String>,
}

/// A ledger whose closed files are shipped to a bucket.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Ledger"))]
pub struct LedgerView {
    pub name: String,
    /// Closed files that the bucket does not have yet.
    pub waiting: u64,
    /// How long the oldest of them has been closed.
    pub waiting_seconds: f64,
    /// Files that were shipped since the host has started or its settings have changed.
    pub shipped: u64,
    /// Shipped files that were removed here since then.
    pub removed: u64,
    /// Turns that failed since then.
    pub failed: u64,
    /// What keeps files from being shipped or removed, for people; left out where nothing does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub condition: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Source"))]
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
    /// The age of the last event by the host's clock, so that nobody has to compare two clocks; left out
    /// before the first event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_event_age_seconds: Option<f64>,
    /// What keeps it from taking in states, such as a refusal by the server or a journal that can't
    /// be written; left out while all is well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub condition: Option<String>,
    /// What this server can't do, or won't, so that a hole may be larger than it need be, or is not
    /// found; left out where it can do all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limitation: Option<String>,
    /// Why the watch alone would not be enough: an audit or an event showed that something was missed,
    /// and no audit since then has found nothing. Left out while audits agree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub doubt: Option<String>,
    /// Objects whose missed versions are being read back now.
    #[serde(default)]
    pub walking: u64,
    /// When a list was last compared with what was witnessed; left out before the first time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_audit_at: Option<String>,
    /// For how long, or how many, states stay; left out where all of them stay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention: Option<String>,
    #[serde(default)]
    pub counts: SourceCounts,
    /// Objects that audits or events showed to differ from what was witnessed, since the journal began.
    #[serde(default)]
    pub differed: u64,
    /// The newest of them, newest first.
    #[cfg_attr(feature = "schema", schemars(extend("maxItems" = crate::limits::DISCREPANCIES)))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub discrepancies: Vec<DiscrepancyView>,
    /// One a history of the server's, oldest first; a second one means that the first was replaced.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub epochs: Vec<EpochView>,
}

/// An object that an audit or an event showed to differ from what was witnessed. What was missed was
/// read back then, or lies in a gap.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Discrepancy"))]
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
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Epoch"))]
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
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SourceCounts {
    /// Lines of watches.
    pub frames: u64,
    /// Bytes that were received.
    pub bytes: u64,
    pub present: u64,
    pub gone: u64,
    pub left: u64,
    pub bookmarks: u64,
    pub poison: u64,
    /// The same version of the same object again.
    pub duplicates: u64,
    /// A lower version than the one that is known; it is refused.
    pub stale: u64,
    pub gaps: u64,
    /// Watches that were begun.
    pub watches: u64,
    /// Lists because nothing was witnessed before.
    pub lists_first: u64,
    /// Lists because the watch's version was gone.
    pub lists_expired: u64,
    /// Lists because the server's history was replaced.
    pub lists_replaced: u64,
    /// Lists for the periodic comparison.
    pub lists_audit: u64,
    /// Of all lists, those that came as a stream.
    pub lists_streamed: u64,
    /// Watches that were told that their version is gone.
    pub expired: u64,
    /// Histories that were found to be replaced.
    pub epochs: u64,
    /// Objects that an audit or an event showed to differ from what was witnessed.
    pub discrepancies: u64,
    /// Requests to read missed versions back.
    pub walk_back_requests: u64,
    /// Versions that these requests found.
    pub walked_back: u64,
    pub discarded_bytes: u64,
    /// Nanoseconds spent on reading frames and deriving states.
    pub decode_ns: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Journal"))]
pub struct JournalView {
    /// Empty where an older controller answers.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(extend("enum" = ["", "sqlite", "postgres", "mysql"])))]
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

/// An object is named by uid, or by kind, namespace and name (then every uid that had the name).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TimelineQuery {
    /// The object by uid; or else by kind, namespace and name, which gives every uid that had the name.
    pub uid: Option<String>,
    /// With `name`, instead of `uid`.
    pub kind: Option<String>,
    /// Left out for cluster-scoped objects.
    pub namespace: Option<String>,
    /// With `kind`, instead of `uid`.
    pub name: Option<String>,
    /// Where the part begins, as the link to it in the header `Link` says. A part with a cursor has no Events and no
    /// reports: the first part has them all.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub cursor: Option<StoryCursor>,
    pub limit: Option<usize>,
    /// Whether Events and reports are read as well: each Event has a document.
    #[serde(skip)]
    pub events: bool,
    /// By name: only objects of these kinds. `None`: of all of them.
    #[serde(skip)]
    pub kinds: Option<Vec<KindWithin>>,
}

/// Objects of one kind, in all namespaces or in some.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KindWithin {
    pub group: String,
    pub kind: String,
    pub namespaces: Option<BTreeSet<String>>,
}

impl KindWithin {
    pub fn has(&self, object: &ObjectRef) -> bool {
        let is_in = |all: &BTreeSet<String>| all.contains(&object.namespace);
        self.group == object.group && self.kind == object.kind && self.namespaces.as_ref().is_none_or(is_in)
    }
}

/// Gaps are found by what they are about; everything that is left out fits all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GapQuery {
    /// A source by name; one that is not there is refused.
    pub source: Option<String>,
    /// Gaps of the object with this uid.
    pub uid: Option<String>,
    /// Gaps of objects of this kind, as people write it; a gap of a whole source is of no kind.
    pub kind: Option<String>,
    /// Gaps of objects in this namespace.
    pub namespace: Option<String>,
    /// Gaps of objects with this name.
    pub name: Option<String>,
    /// Where the part begins, as the link to it in the header `Link` says.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub cursor: Option<u64>,
    pub limit: Option<usize>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PoisonQuery {
    /// A source by name; one that is not there is refused.
    pub source: Option<String>,
    /// Where the part begins, as the link to it in the header `Link` says.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub cursor: Option<u64>,
    pub limit: Option<usize>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LetterQuery {
    /// Of this plugin alone.
    pub plugin: Option<String>,
    /// Where the part begins, as the link to it in the header `Link` says.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub cursor: Option<LetterCursor>,
    pub limit: Option<usize>,
}

impl From<&DeadLetter> for LetterCursor {
    fn from(letter: &DeadLetter) -> Self {
        Self { plugin: letter.plugin.clone(), seq: letter.seq }
    }
}

impl LetterQuery {
    /// All of a plugin.
    pub fn of(plugin: &str) -> Self {
        Self { plugin: Some(plugin.to_owned()), ..Self::default() }
    }
}

/// A poison message: bytes that are no object of their source's kind. The bytes themselves are asked for by number.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Poison"))]
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
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Timeline"))]
pub struct TimelineView {
    /// Oldest first.
    pub states: Vec<Arc<State>>,
    /// States of objects that this one owns (a Job's pods), oldest first.
    pub related: Vec<Arc<State>>,
    /// Events of Kubernetes about this object and those that it owns, oldest first. Those that say the same are
    /// one, with a count.
    #[serde(default)]
    pub events: Vec<EventView>,
    /// What plugins report of these objects, such as who was told; oldest first.
    #[cfg_attr(feature = "schema", schemars(extend("maxItems" = crate::reports::SHOWN)))]
    #[serde(default)]
    pub reports: Vec<ReportView>,
    /// There are older states than these: `limit` was reached.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cut: bool,
    /// Where the part with the older ones begins. It stands in the header `Link`.
    #[serde(skip)]
    pub next: Option<StoryCursor>,
}

/// Which dead letters are replayed or dropped. Everything that is given must hold; where nothing
/// is, all of the plugin.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ReplayRequest {
    pub plugin: String,
    /// The positions of the states; empty: all of the plugin.
    #[serde(default)]
    pub seqs: Vec<Seq>,
    /// Only dead letters of objects in this namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Only dead letters whose last error has this text in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Only dead letters that were parked at least so long ago.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub older_than_seconds: Option<u64>,
    /// Only dead letters that were parked at this time or later. RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("format" = "date-time")))]
    pub since: Option<String>,
    /// Only dead letters that were parked before this time. RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("format" = "date-time")))]
    pub until: Option<String>,
    /// Kept with what was done.
    pub reason: String,
    /// Who asks, as they say of themselves: it is kept, and nobody checks it. Empty: `api`. Where people sign in,
    /// it is not taken: their name at Kubernetes is kept.
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

    /// Tells whether its conditions hold for a letter about an object in a namespace, its positions aside. A time that
    /// can't be read is a mistake.
    pub fn filter(&self, now_ms: u64) -> Result<impl Fn(&DeadLetter, &str) -> bool, ViewError> {
        let (since, until) =
            (moment("since", self.since.as_deref())?, moment("until", self.until.as_deref())?);
        let age = self.older_than_seconds.map(|seconds| seconds.saturating_mul(1000));
        Ok(move |letter: &DeadLetter, namespace: &str| {
            self.namespace.as_ref().is_none_or(|asked| namespace == asked)
                && self.error.as_ref().is_none_or(|text| letter.error.contains(text))
                && age.is_none_or(|age| now_ms.saturating_sub(letter.last_ms) >= age)
                && since.is_none_or(|since| letter.last_ms >= since)
                && until.is_none_or(|until| letter.last_ms < until)
        })
    }
}

fn moment(name: &str, text: Option<&str>) -> Result<Option<u64>, ViewError> {
    let read = |text: &str| {
        calendar::moment(text).ok_or_else(|| {
            ViewError::Invalid(format!(
                "`{name}` is no time: write it like 2026-11-24T03:00:00Z, and `{text}` is not"
            ))
        })
    };
    text.map(read).transpose()
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "ReplayResult"))]
pub struct ReplayView {
    pub replayed: u64,
    /// Who the record says it was.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub who: String,
    pub dry_run: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "DropResult"))]
pub struct DropView {
    pub dropped: u64,
    /// Who the record says it was.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub who: String,
    pub dry_run: bool,
}

/// A one-time login: the page `/login/once?code=CODE` takes the code once, and signs the browser in.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Login"))]
pub struct LoginView {
    /// Empty where nobody signs in.
    pub code: String,
    pub good_for_seconds: u64,
}

/// Why a plugin is paused or resumed. The address names the plugin.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PauseRequest {
    /// Kept with what was done.
    pub reason: String,
    /// Who asks, as they say of themselves: it is kept, and nobody checks it. Empty: `api`. Where people sign in,
    /// it is not taken: their name at Kubernetes is kept.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub who: String,
}

impl PauseRequest {
    /// As the record has it.
    pub fn who(&self) -> &str {
        match self.who.trim() {
            "" => "api",
            who => who,
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "PauseResult"))]
pub struct PauseView {
    pub plugin: String,
    /// False where the plugin was already so; nothing is recorded then.
    pub changed: bool,
    /// The pause that is in force now; left out where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<PausedView>,
}

/// What somebody did with dead letters, or with the plugin itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "LetterRecord"))]
pub struct LetterRecordView {
    pub number: u64,
    pub plugin: String,
    #[cfg_attr(feature = "schema", schemars(extend("enum" = ["replay", "drop", "pause", "resume"])))]
    pub what: String,
    pub who: String,
    pub why: String,
    pub seqs: Vec<Seq>,
    pub at: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "DeadLetter"))]
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
    /// What each source witnesses. Asked with every request of somebody who may not see all.
    fn watched(&self) -> Vec<Watched>;
    /// The namespaces in which the source knows an object, but no more than so many of them. `past`: also those of
    /// the objects that ended last.
    async fn namespaces(&self, source: &str, past: bool, most: usize) -> Result<BTreeSet<String>, ViewError>;
    /// A page of the objects that a query selects, the newest change first.
    async fn objects(&self, query: &ObjectQuery) -> Result<ObjectPage, ViewError>;
    /// The objects that are there and that a query selects, counted by phase.
    async fn counts(&self, query: &ObjectQuery) -> Result<Counts, ViewError>;
    /// Whose states a story has. The caller keeps of it what somebody may see, and [`Self::told`] tells that.
    async fn story(&self, query: &TimelineQuery) -> Result<RawStory, ViewError>;
    /// A story without secrets, with what Events and reports say of its objects.
    async fn told(&self, story: RawStory) -> Result<TimelineView, ViewError>;
    /// A state without secrets.
    async fn shown(&self, state: RawState) -> Result<Arc<State>, ViewError>;
    /// When the object was created of which a state is, if its document says so.
    async fn created_ms(&self, seq: Seq) -> Result<Option<u64>, ViewError>;
    /// How far each plugin is with these states.
    async fn deliveries(&self, states: &[Arc<State>]) -> Result<Deliveries, ViewError>;
    /// The document of one state, exactly as it came from the server.
    async fn document(&self, seq: Seq) -> Result<Vec<u8>, ViewError>;
    /// Newest first, each with its number.
    async fn gaps(&self, query: &GapQuery) -> Result<Vec<(u64, Gap)>, ViewError>;
    /// Newest first.
    async fn poison(&self, query: &PoisonQuery) -> Result<Vec<PoisonView>, ViewError>;
    /// The bytes as they came.
    async fn poison_raw(&self, number: u64) -> Result<Vec<u8>, ViewError>;
    /// By plugin and position.
    async fn dead_letters(&self, query: &LetterQuery) -> Result<Vec<DeadLetterView>, ViewError>;
    async fn replay(&self, request: &ReplayRequest) -> Result<ReplayView, ViewError>;
    async fn drop_letters(&self, request: &ReplayRequest) -> Result<DropView, ViewError>;
    /// Pauses a plugin, or resumes it. Returns once that is durable and in force.
    async fn pause(&self, plugin: &str, pauses: bool, request: &PauseRequest)
    -> Result<PauseView, ViewError>;
    /// What people have muted, oldest first.
    async fn mutes(&self) -> Result<Vec<MuteView>, ViewError>;
    /// Mutes, or undoes it. Returns once that is durable; on other replicas it holds within seconds.
    async fn mute(&self, mute: &MuteView, mutes: bool) -> Result<MutedView, ViewError>;
    /// Who took dead letters back or dropped them, and who paused and resumed plugins, newest first.
    async fn letter_records(&self, plugin: Option<&str>) -> Result<Vec<LetterRecordView>, ViewError>;
    /// For the live stream: states after a position, oldest first. The caller asks [`Self::shown`] for those that
    /// somebody may see.
    async fn states_after(&self, after: Seq, limit: usize) -> Result<Vec<RawState>, ViewError>;
    /// Whether the journal still has every state after a position. Retention may have taken some.
    async fn has_all_after(&self, after: Seq) -> Result<bool, ViewError>;
    fn newest(&self) -> watch::Receiver<Seq>;
    /// What keeps retention from going on, as [`StatusView::held`] tells it; asked with each view of a page.
    fn held(&self) -> Vec<HeldView>;
    /// Whether this process does its work (for `/readyz`), and if not, why: the journal is open and
    /// answers, the host's settings are in force, and each source has made its first list and is not held
    /// up. Whatever of the configuration is refused leaves what was taken before in force: it is told in
    /// `problems` and by the plugins, and makes nothing less ready.
    fn ready(&self) -> Result<(), String>;
}
