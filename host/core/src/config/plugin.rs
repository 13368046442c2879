//! The settings of one plugin: its module, subscriptions, grants and limits.

use serde::{Deserialize, Serialize};
use thiserror::Error;

#[cfg(test)]
use super::check::RATE_MOST;
use super::{Bytes, Duration};
use crate::calendar;
use crate::limits::TICK_TIMEOUT;
#[cfg(test)]
use crate::limits::{
    BATCH_MOST, CALL_LEAST, HOST_BYTES_LEAST, MEMORY_LEAST, TICK_LEAST, TICK_MOST, TICK_TIMEOUT_MOST,
};

#[cfg(test)]
const ONE: &str = "exactly one of `file`, `configMapKey`, `oci` and `url`";

/// A plugin: its component, its subscriptions, its grants and its limits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PluginSpec {
    /// Where the WebAssembly component is.
    pub module: ModuleSpec,
    /// Which states the plugin is handed. Each source occurs once.
    #[cfg_attr(test, schemars(length(min = 1)))]
    pub subscribe: Vec<SubscribeSpec>,
    /// The capabilities of the plugin. A capability that is not granted answers `denied`.
    #[serde(default)]
    pub grants: GrantsSpec,
    /// The limits of the sandbox.
    #[serde(default)]
    pub limits: LimitsSpec,
    /// How states are handed over, retried and parked.
    #[serde(default)]
    pub delivery: DeliverySpec,
    /// Calls the plugin on a schedule, also when no state comes. The component has to export `ticker`. Left out:
    /// never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tick: Option<TickSpec>,
    /// Another version of the plugin. It is handed the same states. Its effects are held back, and compared with those of
    /// the version at work. Left out: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shadow: Option<ShadowSpec>,
    /// The configuration of the plugin itself, as its own schema describes it. The plugin reads it as JSON.
    #[serde(default)]
    pub config: serde_json::Map<String, serde_json::Value>,
}

impl PluginSpec {
    /// A call locks its ledger from its first read to its commit. Concurrent calls would only wait for the
    /// lock, each holding an instance, and be refused in the end.
    pub fn batches_at_once(&self) -> u32 {
        if self.grants.ledger.is_empty() { self.limits.concurrency } else { 1 }
    }
}

/// A version of a plugin that is compared with the version at work. All but the component is the same.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ShadowSpec {
    /// Where its WebAssembly component is.
    pub module: ModuleSpec,
}

/// The schedule on which a plugin is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TickSpec {
    /// How often. The moments are multiples of it since 1970 in UTC: `1h` is each full hour. The plugin's next tick
    /// is the same after a restart, and missed ticks are not made up for.
    #[cfg_attr(test, schemars(extend("x-bounds" = format!("{} to {}", Duration(TICK_LEAST), Duration(TICK_MOST)))))]
    pub every: Duration,
    /// How long one tick may take, the work of the controller included, and waiting for a turn of the processor not.
    /// States wait meanwhile. A tick that takes longer is stopped, and counts as failed. Left out: 10s, or `every`
    /// where that is shorter.
    #[cfg_attr(test, schemars(extend("x-bounds" = format!("more than 0; at most {} and `every`", Duration(TICK_TIMEOUT_MOST)))))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Duration>,
}

impl TickSpec {
    pub fn timeout_or_default(self) -> std::time::Duration {
        self.timeout.map_or(TICK_TIMEOUT.min(self.every.0), |timeout| timeout.0)
    }
}

/// Where the component is: exactly one of `file`, `configMapKey`, `oci` and `url`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ModuleSpec {
    /// A file. The controller looks beside the manifest, then in its plugin folders. The file has to lie in one of
    /// these folders: no `..`, absolute path or link leads elsewhere. A manifest in a ConfigMap has only the plugin
    /// folders.
    #[cfg_attr(test, schemars(extend("x-bounds" = ONE)))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// A key in the `binaryData` of the same ConfigMap.
    #[cfg_attr(test, schemars(extend("x-bounds" = ONE)))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map_key: Option<String>,
    /// A component in an OCI registry, as `REGISTRY/REPOSITORY:TAG` or `REGISTRY/REPOSITORY@sha256:DIGEST`. The
    /// controller resolves a tag once for each change of the manifest.
    #[cfg_attr(test, schemars(extend("x-bounds" = ONE)))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oci: Option<String>,
    /// The address of a file. `sha256` is needed beside it.
    #[cfg_attr(test, schemars(extend("x-bounds" = ONE)))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// The SHA-256 of the component, in hex. A component with another digest is refused.
    #[cfg_attr(test, schemars(extend("x-bounds" = "64 hex digits")))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
}

/// A subscription to one source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SubscribeSpec {
    /// The name of the source.
    pub source: String,
    /// Which of the states of an object are handed over.
    #[serde(default)]
    pub mode: Mode,
    /// Where in the journal the subscription begins.
    #[serde(default)]
    pub start: Start,
    /// The rate for states that are older than the subscription. They are handed over beside new states.
    /// Left out: no limit of their own, in the order of the journal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replay_rate: Option<RateSpec>,
    /// A CEL expression over `state` and `object`. Only states for which it is true are handed over. A state
    /// that the filter can't judge is handed over too, and counted. Left out: every state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<String>,
    /// Whether the resyncs of the source are handed to this plugin: every object that exists, as it is now,
    /// with the id that this state has, and with `resync` among its extras. The mode does not hold resyncs
    /// back.
    #[serde(default)]
    pub resync: bool,
}

/// Which of the states of an object are handed over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum Mode {
    /// Every state.
    #[default]
    Every,
    /// Only states whose status differs from the status before.
    Transitions,
    /// Only the newest state that waits. The states that it replaces are counted as superseded, which is a
    /// part of filtered. A deletion, a gap and a `left` state are never replaced.
    Latest,
}

/// Where in the journal a subscription begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum Start {
    /// With the first state that is observed after the subscription begins.
    Now,
    /// With the oldest state that the journal holds.
    #[default]
    Beginning,
    /// With the first state that was observed at this time or later.
    Since(StartTime),
    /// With this position of the journal.
    Position(u64),
}

/// A time, or an age relative to the beginning of the subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum StartTime {
    /// In milliseconds since 1970.
    At(u64),
    Ago(Duration),
}

impl StartTime {
    pub fn as_unix_ms(self, now_ms: u64) -> u64 {
        match self {
            Self::At(ms) => ms,
            Self::Ago(ago) => now_ms.saturating_sub(u64::try_from(ago.0.as_millis()).unwrap_or(u64::MAX)),
        }
    }
}

/// A text is no time.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{0}` is no time: write one such as 2026-11-01T00:00:00Z, or how long ago, such as 12h or 30d")]
pub struct TimeFormError(String);

impl TryFrom<String> for StartTime {
    type Error = TimeFormError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let days = text.strip_suffix('d').and_then(|days| days.parse::<u64>().ok());
        let ago = match days {
            Some(days) => format!("{}h", days.saturating_mul(24)).parse().ok(),
            None => text.parse().ok(),
        };
        let whole = text.strip_suffix('Z').and_then(|text| calendar::parse(&format!("{text}.000Z")));
        calendar::parse(&text).or(whole).map(Self::At).or(ago.map(Self::Ago)).ok_or(TimeFormError(text))
    }
}

impl From<StartTime> for String {
    fn from(since: StartTime) -> Self {
        match since {
            StartTime::At(ms) => calendar::format_rfc3339(ms),
            StartTime::Ago(ago) => ago.into(),
        }
    }
}

/// The capabilities of a plugin, by name. In each grant `name` is what the plugin calls it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GrantsSpec {
    /// The database that the plugin may write.
    #[cfg_attr(test, schemars(length(max = 1)))]
    #[serde(default)]
    pub sql: Vec<SqlGrant>,
    /// The destinations that the plugin may send requests to.
    #[serde(default)]
    pub http: Vec<HttpGrant>,
    /// The mail servers that the plugin may write through.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mail: Vec<MailGrant>,
    /// The ledger that the plugin may append to.
    #[cfg_attr(test, schemars(length(max = 1)))]
    #[serde(default)]
    pub ledger: Vec<LedgerGrant>,
    /// The keys that the plugin may sign with.
    #[serde(default)]
    pub keys: Vec<KeyGrant>,
    /// Whether the plugin may store small values of its own.
    #[serde(default)]
    pub kv: bool,
    /// The sources whose cache the plugin may read.
    #[serde(default)]
    pub lister: Vec<String>,
    /// The sources of which the plugin may ask why their objects ended badly. The answers tell of the objects' pods, also
    /// where the plugin has no subscription to pods.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outcomes: Vec<String>,
    /// Whether the plugin reads documents as the API server sent them, secrets included, or the digest of them.
    #[serde(default)]
    pub documents: DocumentsGrant,
}

/// How a plugin reads documents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum DocumentsGrant {
    /// With a digest in the place of each secret, as the host's settings say under `redaction`.
    #[default]
    Redacted,
    /// The same, and with each state the SHA-256 of the document as the API server sent it, in `extra` under
    /// `documentDigest`. Somebody who guesses a secret can prove it by the digest.
    Digest,
    /// As the API server sent them, and with each state that digest.
    Raw,
}

/// A granted database.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SqlGrant {
    /// The plugin's name for the database.
    #[cfg_attr(test, schemars(schema_with = "super::reference::name"))]
    pub name: String,
    /// The controller's name for the database.
    pub database: String,
    /// The access that the plugin has to the database. Left out: `schema`.
    #[serde(default, skip_serializing_if = "SqlAccess::is_all")]
    pub access: SqlAccess,
}

/// The access that a plugin has to a database. The controller reads each statement; the rights of the
/// database's user are the first fence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum SqlAccess {
    /// Read rows.
    Read,
    /// Read and write rows.
    Write,
    /// Read and write rows, and make, change and remove tables.
    #[default]
    Schema,
}

impl SqlAccess {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Schema => "schema",
        }
    }

    fn is_all(&self) -> bool {
        *self == Self::Schema
    }
}

/// A granted destination.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HttpGrant {
    /// The plugin's name for the destination.
    #[cfg_attr(test, schemars(schema_with = "super::reference::name"))]
    pub name: String,
    /// The controller's name for the destination.
    pub destination: String,
}

/// A granted mail server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MailGrant {
    /// The plugin's name for the mail server.
    #[cfg_attr(test, schemars(schema_with = "super::reference::name"))]
    pub name: String,
    /// The controller's name for the mail server.
    pub server: String,
}

/// A granted ledger.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LedgerGrant {
    /// The plugin's name for the ledger.
    #[cfg_attr(test, schemars(schema_with = "super::reference::name"))]
    pub name: String,
    /// The controller's name for the ledger.
    pub ledger: String,
}

/// A granted key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct KeyGrant {
    /// The plugin's name for the key.
    #[cfg_attr(test, schemars(schema_with = "super::reference::name"))]
    pub name: String,
    /// The controller's name for the key.
    pub key: String,
}

/// The limits of the sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct LimitsSpec {
    /// Memory of one instance, summed over all of its memories.
    #[cfg_attr(test, schemars(extend("x-bounds" = format!("at least {}", Bytes(MEMORY_LEAST)))))]
    pub memory: Bytes,
    /// Time of one call. The time that the controller works for the call is not counted, and neither is the time in
    /// which the call waits for its turn of the processor.
    #[cfg_attr(test, schemars(extend("x-bounds" = format!("at least {}", Duration(CALL_LEAST)))))]
    pub call: Duration,
    /// Calls to the controller in one batch.
    #[cfg_attr(test, schemars(range(min = 1)))]
    pub host_calls: u32,
    /// Bytes in one call to the controller.
    #[cfg_attr(test, schemars(extend("x-bounds" = format!("at least {}", Bytes(HOST_BYTES_LEAST)))))]
    pub host_bytes: Bytes,
    /// Batches at once. A plugin with a ledger has one at a time: a call holds its ledger to the end.
    #[cfg_attr(test, schemars(range(min = 1)))]
    pub concurrency: u32,
}

impl Default for LimitsSpec {
    fn default() -> Self {
        Self {
            memory: Bytes(64 << 20),
            call: Duration(std::time::Duration::from_secs(2)),
            host_calls: 4096,
            host_bytes: Bytes(16 << 20),
            concurrency: 4,
        }
    }
}

/// How states are handed over, retried and parked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct DeliverySpec {
    /// States in one call at most.
    #[cfg_attr(test, schemars(range(min = 1, max = BATCH_MOST)))]
    pub batch: u32,
    /// Tries after the first one before a state is parked as a dead letter.
    pub retries: u32,
    /// The pause before the first retry. It doubles with each retry of the same state.
    pub backoff: Duration,
    /// The longest pause between two tries. A longer `backoff` is cut to it.
    pub max_backoff: Duration,
    /// The rate of retries of all objects together. A retry waits for a token as well as for its own pause,
    /// but never longer than `maxBackoff`. A retry whose delay the plugin chose needs no token.
    pub retry_rate: RateSpec,
    /// The rate of states. Left out: as fast as the plugin takes them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<RateSpec>,
    /// The rate of calls, however many states each carries. Left out: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub call_rate: Option<RateSpec>,
    /// The fate of an object's later states once one of its states is parked.
    pub on_dead_letter: OnDeadLetter,
}

/// A token bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RateSpec {
    /// Tokens per second.
    #[cfg_attr(test, schemars(range(min = 1, max = RATE_MOST)))]
    pub per_second: u32,
    /// Tokens that may be spent at once after a pause. Left out: the tokens of one second.
    #[cfg_attr(test, schemars(range(min = 1, max = RATE_MOST)))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst: Option<u32>,
}

impl RateSpec {
    pub fn burst_or_default(self) -> u32 {
        self.burst.unwrap_or(self.per_second)
    }
}

impl Default for DeliverySpec {
    fn default() -> Self {
        Self {
            batch: 64,
            retries: 8,
            backoff: Duration(std::time::Duration::from_millis(200)),
            max_backoff: Duration(std::time::Duration::from_secs(60)),
            // The rate of client-go's controllers.
            retry_rate: RateSpec { per_second: 10, burst: Some(100) },
            rate: None,
            call_rate: None,
            on_dead_letter: OnDeadLetter::Continue,
        }
    }
}

/// The fate of an object's later states once one of its states is parked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum OnDeadLetter {
    /// The lane goes on with the next state.
    #[default]
    Continue,
    /// The lane waits until the dead letter is replayed or dropped.
    Hold,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plugin_with_a_ledger_has_one_batch_at_a_time_whatever_it_asks_for() {
        let with = |grants| -> PluginSpec {
            let module = serde_json::json!({"file": "audit.wasm"});
            let spec = serde_json::json!({"module": module, "subscribe": [], "grants": grants, "limits": {"concurrency": 8}});
            serde_json::from_value(spec).unwrap()
        };
        let trail = serde_json::json!({"ledger": [{"name": "trail", "ledger": "trail"}]});
        assert_eq!(with(serde_json::json!({"kv": true})).batches_at_once(), 8);
        assert_eq!(with(trail).batches_at_once(), 1);
    }
}
