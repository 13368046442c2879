//! The view that people have of a plugin: its progress, its grants and their use, and its pause.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use crate::config::ConfigField;

/// For each plugin: observed = delivered + filtered + dead + waiting + taken.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Plugin"))]
pub struct PluginView {
    pub name: String,
    /// `active`, `starting`, `standby` (another replica runs it), `failed` (nothing of it runs), `degraded`
    /// (it runs, but its last calls failed or a newer configuration was refused: see `message`), `draining`,
    /// `paused` (an operator has paused it: see `paused`).
    #[cfg_attr(feature = "schema", schemars(extend("enum" = ["active", "starting", "standby", "failed", "degraded", "draining", "paused"])))]
    pub state: String,
    /// sha256 of the component, hex.
    pub digest: String,
    /// The reference from which the component was fetched, with the digest of the image. Absent for a local
    /// file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub module: Option<String>,
    pub observed: u64,
    pub delivered: u64,
    pub filtered: u64,
    pub dead: u64,
    /// Dead letters that an operator dropped; `dead` counts them as well.
    #[serde(default)]
    pub dropped: u64,
    pub waiting: u64,
    /// States that retention has removed before the plugin got them, as its settings allow.
    #[serde(default)]
    pub taken: u64,
    /// Waiting states that failed at least once.
    pub retrying: u64,
    /// Positions between the newest state and the cursor.
    pub lag_seq: u64,
    /// Age of the oldest unfinished state.
    pub lag_seconds: f64,
    /// Resyncs of its sources since the process started. No other figure includes them.
    #[serde(default)]
    pub resyncs: u64,
    /// States that resyncs delivered.
    #[serde(default)]
    pub resynced: u64,
    /// States of resyncs that failed.
    #[serde(default)]
    pub resync_failed: u64,
    /// Filtered states for which a newer state of their object was delivered, as `mode: latest` requests.
    #[serde(default)]
    pub superseded: u64,
    /// States that a filter could not evaluate since the start, and that were therefore delivered; `message`
    /// has the reason of the last one.
    #[serde(default)]
    pub filter_errors: u64,
    #[serde(default)]
    pub queue: QueueView,
    #[serde(default)]
    pub calls: CallsView,
    /// Why it is not active, why its next call waits, or its last error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Absent unless the plugin is paused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<PausedView>,
    /// The past of sources that were added to it. Absent once the cursor has returned to its former position.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backfill: Option<BackfillView>,
    /// Its schedule. Absent if its manifest has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tick: Option<TickView>,
    /// The content of its manifest; absent if none of its versions runs in this process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manifest: Option<Arc<ManifestView>>,
    /// Its next version, which is only compared. Absent if its manifest names none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shadow: Option<ShadowView>,
    /// The times at which its database lacked acknowledged commits, the newest last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub losses: Vec<DatabaseLossView>,
    /// The grants of its manifest. Absent if it does not run in this process.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub grants: Vec<GrantUseView>,
}

impl PluginView {
    /// A plugin with a message, or that failed or is degraded, does not work as it should. Figures that add up don't show
    /// that.
    pub fn needs_attention(&self) -> bool {
        self.message.is_some() || matches!(self.state.as_str(), "failed" | "degraded")
    }
}

/// A granted database lacked acknowledged commits, as after a failover to a standby without them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "DatabaseLoss"))]
pub struct DatabaseLossView {
    /// The controller's name of the database.
    pub database: String,
    pub found: String,
    /// States that are delivered to the plugin again. The controller skips those whose rows exist.
    pub again: u64,
    /// Whether rows may be lost permanently, which is a gap of this plugin.
    pub gap: bool,
    /// A sentence for people, with what they can do.
    pub message: String,
}

/// States from before sources were added to a plugin that had read further. They are delivered in the order
/// of the journal, before newer ones.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Backfill"))]
pub struct BackfillView {
    /// The added sources.
    pub sources: Vec<String>,
    /// The last position that the plugin had read before.
    pub through: u64,
}

/// The ticks of a plugin since its dispatcher started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Tick"))]
pub struct TickView {
    /// Ticks that have ended.
    pub ticks: u64,
    /// How many of them failed.
    pub failed: u64,
    /// When the last one began. Absent before the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<String>,
    /// When the next one is due. Absent while one runs and while the plugin is paused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// Why the last one failed. Absent if it succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A comparison of a shadow version with the running version, on the states of a plugin. Both get each state
/// after the plugin's own call, and the effects of both are held back.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Shadow"))]
pub struct ShadowView {
    /// sha256 of its component, hex.
    pub digest: String,
    /// The reference from which the component was fetched. Absent for a local file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub module: Option<String>,
    pub since: String,
    /// States that were compared.
    pub states: u64,
    pub same: u64,
    pub different: u64,
    /// States that came faster than they could be compared.
    pub missed: u64,
    /// The running version.
    pub active: ShadowSideView,
    pub shadow: ShadowSideView,
    /// The first states with differences. Absent for people who may not `get` the plugin.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub differences: Vec<ShadowDifferenceView>,
    /// Why nothing can be compared now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// The results of one of the two versions for all states, and their cost.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "ShadowSide"))]
pub struct ShadowSideView {
    /// States that did not end with the verdict `done`.
    pub not_done: u64,
    /// Calls with an effect, held back.
    pub effects: u64,
    /// Time of its calls.
    pub seconds: f64,
    /// The part of that time that the plugin itself took.
    pub guest_seconds: f64,
    /// The most bytes of memory that its instance has held.
    pub peak_memory: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "ShadowDifference"))]
pub struct ShadowDifferenceView {
    /// The id of the state.
    pub id: String,
    pub seq: u64,
    /// Kind, namespace and name, such as `Job team/train-1`.
    pub object: String,
    pub change: String,
    pub phase: String,
    pub active: ShadowActView,
    pub shadow: ShadowActView,
}

/// The effects of one version for one state.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "ShadowAct"))]
pub struct ShadowActView {
    /// The first effects, with digests instead of values whose names look like those of secrets.
    pub effects: Vec<serde_json::Value>,
    /// Further effects, which are compared, but not shown.
    pub more: u64,
    /// `done`, or another verdict of the version.
    pub verdict: serde_json::Value,
}

/// One grant of a plugin.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "GrantUse"))]
pub struct GrantUseView {
    /// In the form of a component's needs: `sql:main`, `kv`, `lister:jobs`.
    pub name: String,
    /// Whether the component declares that it needs it, or uses its interface without declaring it.
    pub declared: bool,
    /// The plugin's calls since it was started, including refused ones.
    pub calls: u64,
    /// The access that the grant of a database allows: `read`, `write` or `schema`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access: Option<String>,
    /// The least access to a database that would have been enough since the plugin was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enough: Option<String>,
}

/// The needs of the plugin version that runs, and the grants of its manifest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "PluginManifest"))]
pub struct ManifestView {
    /// The needs that the component declares, such as `sql:main`, and undeclared interfaces that it uses,
    /// such as `kv`.
    pub declared: Vec<String>,
    pub granted: Vec<GrantView>,
    /// The sources that it subscribes to.
    pub sources: Vec<String>,
    /// The configuration of the plugin itself, with digests instead of values whose names look like those of
    /// secrets. Absent for people who may not `get` the plugin, and if the key of the digests is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<serde_json::Map<String, serde_json::Value>>,
    /// The fields that its configuration may have, from the component's schema.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fields: Vec<ConfigField>,
    /// Bytes of memory that one instance may have.
    pub memory_limit: u64,
    /// How long one call may take.
    pub call_limit_ms: u64,
}

impl ManifestView {
    /// Whether the component requests this grant. A component that requests `sql`, or only uses its
    /// interface, requests each of its names. The interface of ledgers is also the interface of keys.
    pub fn asks_for(&self, grant: &str) -> bool {
        let (capability, _) = grant.split_once(':').unwrap_or((grant, ""));
        let is_of = |asked: &String| match asked.as_str() {
            "ledger" => capability == "ledger" || capability == "key",
            asked => asked == grant || asked == capability,
        };
        self.declared.iter().any(is_of)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Grant"))]
pub struct GrantView {
    /// In the form of `declared`, such as `sql:main`.
    pub name: String,
    /// The controller's name for it, such as `database platform`; empty if it is not a resource of the
    /// controller.
    pub of: String,
}

/// A plugin's pause. It gets no states until it is resumed, and retention keeps the states that it has not finished.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Paused"))]
pub struct PausedView {
    pub who: String,
    pub why: String,
    pub since: String,
}

/// A plugin's lanes, with the figures of client-go's work queues. Totals grow since the plugin's dispatcher
/// started.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Queue"))]
pub struct QueueView {
    /// Waiting states that are in no call, including those in the journal.
    pub depth: u64,
    /// States that entered the lanes, including each retry and replay.
    pub adds: u64,
    pub retries: u64,
    /// The sum of the times for which states have been in the present calls.
    pub unfinished_seconds: f64,
    /// How long the longest of them has been in its call.
    pub longest_running_seconds: f64,
    /// The time from entering the lanes, or from becoming due again, until delivery.
    pub queue_duration: HistogramView,
    /// The time from delivery until the end of the call.
    pub work_duration: HistogramView,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Histogram"))]
pub struct HistogramView {
    /// Upper bounds in seconds, each with the number of values within it.
    pub buckets: Vec<(f64, u64)>,
    pub count: u64,
    pub sum_seconds: f64,
}

/// The results and the cost of a plugin's calls, since this process first started the plugin. A call is one
/// batch of states.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Calls"))]
pub struct CallsView {
    pub ended: CallEndsView,
    /// States that the plugin got, including each retry.
    pub states: u64,
    pub verdicts: VerdictsView,
    /// Time that the plugin itself took.
    pub guest_seconds: f64,
    /// Time in functions of the controller that the plugin called.
    pub host_seconds: f64,
    /// Time in which calls waited for their turn of the processor.
    pub wait_seconds: f64,
    /// Bytes of states, and of answers to the plugin's calls to the controller.
    pub bytes_in: u64,
    /// Bytes of arguments of the plugin's calls to the controller.
    pub bytes_out: u64,
    /// The plugin's calls to the controller by capability, such as `sql`; those that were refused count, too.
    pub host_calls: BTreeMap<String, u64>,
    /// Present instances of the plugin.
    pub instances: u64,
    /// Bytes of memory that they hold together.
    pub memory: u64,
    /// The most bytes of memory that one instance of this version has held.
    pub peak_memory: u64,
    /// The duration of this version's compilation; 0 if its code came from the cache.
    pub compile_seconds: f64,
    /// When a call last succeeded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_answered_at: Option<String>,
    /// The last call that failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_failure: Option<CallFailureView>,
}

/// Calls by their end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "CallEnds"))]
pub struct CallEndsView {
    /// The plugin answered. If all states of the call are done, its writes are committed.
    pub answered: u64,
    /// The plugin trapped, or ended its process.
    pub trapped: u64,
    /// The plugin ran longer than `limits.call`.
    pub timed_out: u64,
    /// The plugin needed more memory than `limits.memory`.
    pub out_of_memory: u64,
    /// The plugin's answer did not have one verdict for each state.
    pub invalid: u64,
    /// A database refused the plugin's writes.
    pub refused: u64,
    /// A database, a ledger or the controller failed. The plugin is not to blame.
    pub unavailable: u64,
}

impl CallEndsView {
    pub fn count_all(&self) -> u64 {
        let Self { answered, trapped, timed_out, out_of_memory, invalid, refused, unavailable } = self;
        answered + trapped + timed_out + out_of_memory + invalid + refused + unavailable
    }
}

/// The verdicts of a plugin on its states.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Verdicts"))]
pub struct VerdictsView {
    pub done: u64,
    pub retry: u64,
    pub reject: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "CallFailure"))]
pub struct CallFailureView {
    pub at: String,
    /// How the call ended.
    #[cfg_attr(feature = "schema", schemars(extend("enum" = ["trapped", "timed-out", "out-of-memory", "invalid", "refused", "unavailable"])))]
    pub end: String,
    pub message: String,
}

/// Why a plugin is paused or resumed. The address names the plugin.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PauseRequest {
    /// The reason, which is recorded with the action.
    pub reason: String,
    /// The author by their own account, which is recorded unchecked. By default `api`. If people sign in, the
    /// name of the signed-in person is recorded instead.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub who: String,
}

impl PauseRequest {
    /// The actor, as the record has it.
    pub fn actor_name(&self) -> &str {
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
    /// False if the plugin was in this state already; then nothing is recorded.
    pub changed: bool,
    /// The present pause; absent if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<PausedView>,
}
