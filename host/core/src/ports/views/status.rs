//! The view that people have of the whole controller: its sources, its journal, and what blocks it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::PluginView;
use crate::state::{ObjectRef, Seq};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Status"))]
pub struct StatusView {
    /// The controller's version; absent for people who may not see figures, and from older controllers.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub version: String,
    /// Absent if no other process shares the journal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replica: Option<ReplicaView>,
    pub sources: Vec<SourceView>,
    pub plugins: Vec<PluginView>,
    /// Streams to which this process sends states; absent if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub streams: Vec<StreamView>,
    /// Ledgers whose closed files this process ships to a bucket; absent if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ledgers: Vec<LedgerView>,
    pub journal: JournalView,
    /// The holders that keep retention from removing states beyond their source's bounds; absent if there are
    /// none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub held: Vec<HeldView>,
    /// Faults of the configuration as a whole; absent if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
    /// Whether the viewer may not see the figures. Then all are 0, and plugins, streams and other parts about
    /// the controller's work are absent.
    #[serde(default, skip_serializing_if = "is_false")]
    pub restricted: bool,
    /// How many parts of the configuration are refused: these problems, and the plugins whose newest version,
    /// or every version, was refused. Absent if there are none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub configuration_problems: u64,
}

fn is_false(it: &bool) -> bool {
    !it
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// States beyond the bounds of their source's retention, and what keeps them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Held"))]
pub struct HeldView {
    /// The source whose retention is held up.
    pub source: String,
    /// `plugin NAME`, `stream NAME`, `dead letters`, `the watch's checkpoint`.
    pub holder: String,
    /// How many states it keeps.
    pub states: u64,
    /// The time since which it is known to keep some. RFC 3339, UTC.
    pub since: String,
    /// The remedy, for people.
    pub remedy: String,
}

/// This process, if it is one of several that share the journal. One of them delivers states to plugins.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Replica"))]
pub struct ReplicaView {
    pub name: String,
    /// Whether this replica delivers states to plugins.
    pub dispatches: bool,
    /// The replica that delivers them; null while there is none.
    pub dispatcher: Option<String>,
    /// The Lease by which the replicas elect the dispatcher: `NAMESPACE/NAME`.
    pub lease: String,
    /// The names of all running replicas.
    pub replicas: Vec<String>,
    /// The obstacle to the election, for people; absent if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub condition: Option<String>,
}

/// A stream that carries states to other controllers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Stream"))]
pub struct StreamView {
    pub name: String,
    /// Sources of this controller.
    pub carries: Vec<String>,
    /// States that the stream's server has acknowledged since the carrier began.
    pub carried: u64,
    /// States in the journal that the stream does not have yet.
    pub waiting: u64,
    /// The obstacle to carrying states, for people; absent if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub condition: Option<String>,
    /// Why its readers can't trust it, such as a missing key; absent without a reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limitation: Option<String>,
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
    /// Files that were shipped since the controller started or its settings changed.
    pub shipped: u64,
    /// Shipped files that were removed locally since then.
    pub removed: u64,
    /// Failed turns since then.
    pub failed: u64,
    /// The obstacle to shipping or removing files, for people; absent if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub condition: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Source"))]
pub struct SourceView {
    pub name: String,
    /// The kind of resource that it watches, in the form of its settings: `batch/v1`, `Job`.
    #[serde(default)]
    pub api_version: String,
    #[serde(default)]
    pub kind: String,
    pub objects: u64,
    /// The version after which a watch would resume; empty before the first list.
    pub checkpoint: String,
    pub epoch: u32,
    /// Whether the source is current, except for events on their way: its resources were listed, and nothing
    /// blocks it.
    pub synced: bool,
    pub gaps: u64,
    pub poison: u64,
    /// RFC 3339, UTC; null before the first event.
    pub last_event_at: Option<String>,
    /// The age of the last event by the controller's clock, so that nobody has to compare two clocks; absent
    /// before the first event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_event_age_seconds: Option<f64>,
    /// The obstacle to storing new states, such as a refusal by the server or a journal that can't be
    /// written; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub condition: Option<String>,
    /// The limitations of this server, or of the stream from which the states come, which may make a gap larger
    /// than necessary, or leave one undetected; absent without any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limitation: Option<String>,
    /// Why the watch alone would not be enough: an audit or an event showed that something was missed, and
    /// every audit since then found more. Absent while audits agree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub doubt: Option<String>,
    /// Objects whose missed versions are being read back now.
    #[serde(default)]
    pub walking: u64,
    /// When a list was last compared with the witnessed states; absent before the first time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_audit_at: Option<String>,
    /// For how long, or how many, states are kept; absent if all are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention: Option<String>,
    #[serde(default)]
    pub counts: SourceCounts,
    /// Objects that audits or events showed to differ from the witnessed ones, since the journal began.
    #[serde(default)]
    pub differed: u64,
    /// The newest of them, newest first.
    #[cfg_attr(feature = "schema", schemars(extend("maxItems" = crate::limits::DISCREPANCIES)))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub discrepancies: Vec<DiscrepancyView>,
    /// Objects that ended badly since this process started, by cause, for kinds that end by themselves. Each
    /// is counted once it is explained, some seconds after its end.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub outcomes: BTreeMap<String, u64>,
    /// One for each history of the server, oldest first. A second one means that the first was replaced.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub epochs: Vec<EpochView>,
}

/// An object that an audit or an event showed to differ from the witnessed one. The missed versions were then
/// read back, or became a gap.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Discrepancy"))]
pub struct DiscrepancyView {
    pub object: ObjectRef,
    /// The last version that was witnessed before; empty if there was none.
    pub witnessed: String,
    /// The version in the audit's list; empty if the object was missing there, because its end was missed.
    pub listed: String,
    pub found_ms: u64,
}

/// The witnessed part of one history of a source's server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Epoch"))]
pub struct EpochView {
    pub epoch: u32,
    pub states: u64,
    /// The version up to which it was watched; empty before its first list.
    pub checkpoint: String,
    /// When it replaced the previous history; null for the first, and before its first list.
    pub replaced_at: Option<String>,
    pub last_event_at: Option<String>,
}

/// Counts of a source's work since the process started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SourceCounts {
    /// Lines of watches.
    pub frames: u64,
    /// Received bytes.
    pub bytes: u64,
    pub present: u64,
    pub gone: u64,
    pub left: u64,
    pub bookmarks: u64,
    pub poison: u64,
    /// Repeated versions of the same object.
    pub duplicates: u64,
    /// Refused versions that were lower than the known one.
    pub stale: u64,
    pub gaps: u64,
    /// Watches that began.
    pub watches: u64,
    /// Lists at the beginning, when nothing was witnessed yet.
    pub lists_first: u64,
    /// Lists because the watch's version was compacted.
    pub lists_expired: u64,
    /// Lists because the server's history was replaced.
    pub lists_replaced: u64,
    /// Lists for the periodic comparison.
    pub lists_audit: u64,
    /// How many of all lists were streamed.
    pub lists_streamed: u64,
    /// Watches that ended because their version was compacted.
    pub expired: u64,
    /// Replaced histories.
    pub epochs: u64,
    /// Objects that an audit or an event showed to differ from the witnessed ones.
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
    /// Empty from older controllers.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(extend("enum" = ["", "sqlite", "postgres", "mysql"])))]
    pub store: String,
    /// Its location, without secrets.
    #[serde(default)]
    pub place: String,
    pub states: u64,
    pub bytes: u64,
    pub oldest_seq: Seq,
    pub newest_seq: Seq,
    /// When the oldest state was observed; null if there is none.
    #[serde(default)]
    pub oldest_at: Option<String>,
}
