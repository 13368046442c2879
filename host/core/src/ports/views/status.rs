//! The view that people have of the whole controller: its sources, its journal, and what blocks it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::PluginView;
use crate::state::{ObjectRef, Seq};

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
    /// The holders that keep retention from taking states beyond their source's bounds; left out where there
    /// are none.
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
    /// The action that helps, for people.
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
    /// The obstacle that keeps the election from going on, for people; left out where there is none.
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
    /// The obstacle that keeps the carrier from going on, for people; left out where there is none.
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
    /// Files that were shipped since the controller has started or its settings have changed.
    pub shipped: u64,
    /// Shipped files that were removed here since then.
    pub removed: u64,
    /// Turns that failed since then.
    pub failed: u64,
    /// The obstacle that keeps files from being shipped or removed, for people; left out where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub condition: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Source"))]
pub struct SourceView {
    pub name: String,
    /// The kind of resource that it watches, as its settings say: `batch/v1`, `Job`.
    #[serde(default)]
    pub api_version: String,
    #[serde(default)]
    pub kind: String,
    pub objects: u64,
    /// The version from which a watch would be resumed; empty before the first list.
    pub checkpoint: String,
    pub epoch: u32,
    /// Set where it shows everything that is there, but for what is on its way: it was listed, and nothing
    /// holds it up.
    pub synced: bool,
    pub gaps: u64,
    pub poison: u64,
    /// RFC 3339, UTC; null before the first event.
    pub last_event_at: Option<String>,
    /// The age of the last event by the controller's clock, so that nobody has to compare two clocks; left out
    /// before the first event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_event_age_seconds: Option<f64>,
    /// The obstacle that keeps it from taking in states, such as a refusal by the server or a journal that
    /// can't be written; left out while all is well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub condition: Option<String>,
    /// The things that this server can't do, or won't, so that a hole may be larger than it need be, or is
    /// not found; left out where it can do all.
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
    /// Objects of kinds that come to an end, which ended badly since this process has started, by cause. Each is counted
    /// once it is explained, some seconds after its end.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub outcomes: BTreeMap<String, u64>,
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

/// The witnessed part of one history of a source's server.
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

/// Counts of a source's work since the process started.
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
    /// Those of all lists that came as a stream.
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
