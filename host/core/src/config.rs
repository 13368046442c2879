//! What an operator writes: the host's settings and one document a plugin. These types cannot
//! hold what is wrong in shape; names that point nowhere are found by [`check`](HostSpec::check).

mod check;
mod quantity;
mod secret;
mod streams;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use check::{Fault, is_name};
pub use quantity::{Bytes, Duration};
pub use streams::{FromSpec, StreamSpec};

use crate::calendar;
use crate::status::RuleSpec;

pub const API_VERSION: &str = "kubewitness.dev/v1alpha1";
pub const PLUGIN_LABEL: &str = "kubewitness.dev/plugin";
pub const HOST_LABEL: &str = "kubewitness.dev/host";
pub const STATUS_LABEL: &str = "kubewitness.dev/status";
/// The keys of a ConfigMap's `data` that hold the documents.
pub const PLUGIN_KEY: &str = "plugin.yaml";
pub const HOST_KEY: &str = "host.yaml";

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Manifest<Spec> {
    pub api_version: String,
    pub kind: String,
    pub metadata: Metadata,
    pub spec: Spec,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Metadata {
    pub name: String,
}

// ---- the host ----------------------------------------------------------------------------

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HostSpec {
    pub sources: Vec<SourceSpec>,
    #[serde(default)]
    pub databases: Vec<DatabaseSpec>,
    #[serde(default)]
    pub destinations: Vec<DestinationSpec>,
    #[serde(default)]
    pub ledgers: Vec<LedgerSpec>,
    #[serde(default)]
    pub keys: Vec<KeySpec>,
    /// Streams that carry states from a host that witnesses to hosts that hand them out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub streams: Vec<StreamSpec>,
    /// Rules for the status of kinds, in place of those that are built in.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub status_rules: Vec<RuleSpec>,
}

/// One watched resource.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SourceSpec {
    pub name: String,
    /// `v1`, `batch/v1`, …
    pub api_version: String,
    pub kind: String,
    /// The plural; looked up by discovery where it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource: Option<String>,
    /// Left out: all namespaces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Applied in the host, so that leaving the selector is not taken for a deletion.
    #[serde(default)]
    pub match_labels: BTreeMap<String, String>,
    /// Indexes of its cache beside those that every source has (namespace, owner, node, label).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub indexes: Vec<IndexSpec>,
    /// How often what is there is replayed to the subscriptions that ask for it. Left out: never.
    /// At least [`RESYNC_LEAST`](crate::limits::RESYNC_LEAST).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resync: Option<Duration>,
    /// How often a consistent list is compared with what was witnessed; `0s` for never.
    /// Otherwise at least [`AUDIT_LEAST`](crate::limits::AUDIT_LEAST).
    #[serde(default = "ten_minutes")]
    pub audit: Duration,
    /// How much of its history the journal keeps. Left out: all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention: Option<RetentionSpec>,
    /// Another host witnesses it, under the same name, and a stream brings it here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<FromSpec>,
}

/// What of a source's history may go, oldest first: what is beyond any of these bounds. The newest
/// state of an object that is there never goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RetentionSpec {
    /// States that were observed longer ago than this, such as `30d`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub age: Option<Duration>,
    /// All but so many of the newest states.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// All but the newest states that fit into this, as `kubewitness journal stats` counts it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<Bytes>,
    /// Whether states may go that a plugin has not finished. What goes then is recorded as a gap.
    #[serde(default)]
    pub past_cursors: bool,
}

impl RetentionSpec {
    /// Whether it bounds anything.
    pub fn is_bounded(&self) -> bool {
        self.age.is_some() || self.count.is_some() || self.size.is_some()
    }
}

impl SourceSpec {
    /// All objects of one kind, with the defaults of everything else.
    pub fn of(name: &str, api_version: &str, kind: &str) -> Self {
        Self {
            name: name.to_string(),
            api_version: api_version.to_string(),
            kind: kind.to_string(),
            resource: None,
            namespace: None,
            match_labels: BTreeMap::new(),
            indexes: Vec::new(),
            resync: None,
            audit: ten_minutes(),
            retention: None,
            from: None,
        }
    }
}

/// Objects by what stands at a place of their document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct IndexSpec {
    pub name: String,
    /// A JSON pointer (RFC 6901), such as `/spec/schedulerName`.
    pub pointer: String,
}

/// Exactly one of `sqlite`, `postgres` and `mysql` beside the name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DatabaseSpec {
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sqlite: Option<SqliteSpec>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub postgres: Option<ServerSpec>,
    /// MySQL or MariaDB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mysql: Option<ServerSpec>,
}

/// Which database it is, of a spec that has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatabaseKind<'a> {
    Sqlite(&'a SqliteSpec),
    Postgres(&'a ServerSpec),
    Mysql(&'a ServerSpec),
}

impl DatabaseSpec {
    /// `None` where there is not exactly one.
    pub fn kind(&self) -> Option<DatabaseKind<'_>> {
        match (&self.sqlite, &self.postgres, &self.mysql) {
            (Some(sqlite), None, None) => Some(DatabaseKind::Sqlite(sqlite)),
            (None, Some(server), None) => Some(DatabaseKind::Postgres(server)),
            (None, None, Some(server)) => Some(DatabaseKind::Mysql(server)),
            _ => None,
        }
    }
}

/// A database server. Its address holds a password, so it is a secret as a whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ServerSpec {
    /// Such as `postgres://user:password@host:5432/database?sslmode=verify-full` or
    /// `mysql://user:password@host:3306/database?ssl-mode=VERIFY_IDENTITY`.
    pub url_from: SecretRef,
    /// Connections at once, over all plugins that were granted it.
    #[serde(default = "eight")]
    pub connections: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SqliteSpec {
    /// A relative path lies in the data folder.
    pub path: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DestinationSpec {
    pub name: String,
    /// The base address; a plugin names a path below it.
    pub url: String,
    #[serde(default)]
    pub headers: Vec<HeaderSpec>,
    /// Requests a second at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<u32>,
    #[serde(default = "ten_seconds")]
    pub timeout: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HeaderSpec {
    pub name: String,
    pub value_from: SecretRef,
}

/// Where a secret is; never the secret itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum SecretRef {
    Env(String),
    File(String),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LedgerSpec {
    pub name: String,
    /// The file of its records, such as `audit/ledger.jsonl`; a relative path lies in the data folder.
    /// Its receipts lie beside it, under the same name with `.receipts`.
    pub path: String,
}

/// An Ed25519 signing key (PKCS#8, PEM or base64) that plugins can sign with and never see.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct KeySpec {
    pub name: String,
    pub value_from: SecretRef,
}

// ---- a plugin ----------------------------------------------------------------------------

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PluginSpec {
    pub module: ModuleSpec,
    pub subscribe: Vec<SubscribeSpec>,
    #[serde(default)]
    pub grants: GrantsSpec,
    #[serde(default)]
    pub limits: LimitsSpec,
    #[serde(default)]
    pub delivery: DeliverySpec,
    #[serde(default)]
    pub config: serde_json::Map<String, serde_json::Value>,
}

/// Where the component is; exactly one of `file` and `configMapKey`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ModuleSpec {
    /// Looked for beside the manifest, then in the host's plugin folders.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// A key of the same ConfigMap's `binaryData`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map_key: Option<String>,
    /// Hex; refused where it differs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SubscribeSpec {
    pub source: String,
    #[serde(default)]
    pub mode: Mode,
    #[serde(default)]
    pub start: Start,
    /// How fast what the journal has before the subscription is handed over, beside what is new.
    /// Left out: as fast as everything else, and in the journal's order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replay_rate: Option<RateSpec>,
    /// In CEL over `state` and `object`; left out: every state. One that can't be judged is handed
    /// over, since nothing is lost by that, and counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<String>,
    /// Whether the source's resyncs are replayed to this plugin: every object that is there, as it
    /// is now, with the id that this state has, and `resync` among its extras. That is so in
    /// every mode: a mode chooses among changes, and a resync is none.
    #[serde(default)]
    pub resync: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Mode {
    #[default]
    Every,
    /// Only states whose status differs from the one before.
    Transitions,
    /// Of one object only the newest state that waits: what it replaces is counted as superseded,
    /// which is a part of filtered. A deletion, a gap and what left the selector are never
    /// replaced.
    Latest,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Start {
    Now,
    #[default]
    Beginning,
    /// With what was observed at this time or later.
    Since(Since),
    /// With this position of the journal.
    Position(u64),
}

/// A time, or how long ago it is when the subscription begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Since {
    /// In milliseconds since 1970.
    At(u64),
    Ago(Duration),
}

impl Since {
    pub fn ms(self, now_ms: u64) -> u64 {
        match self {
            Self::At(ms) => ms,
            Self::Ago(ago) => now_ms.saturating_sub(u64::try_from(ago.0.as_millis()).unwrap_or(u64::MAX)),
        }
    }
}

impl TryFrom<String> for Since {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let days = text.strip_suffix('d').and_then(|days| days.parse::<u64>().ok());
        let ago = match days {
            Some(days) => format!("{}h", days.saturating_mul(24)).parse().ok(),
            None => text.parse().ok(),
        };
        let whole = text.strip_suffix('Z').and_then(|text| calendar::parse(&format!("{text}.000Z")));
        calendar::parse(&text).or(whole).map(Self::At).or(ago.map(Self::Ago)).ok_or_else(|| {
            format!("`{text}` is no time: write one such as 2026-11-01T00:00:00Z, or how long ago, such as 12h or 30d")
        })
    }
}

impl From<Since> for String {
    fn from(since: Since) -> Self {
        match since {
            Since::At(ms) => calendar::rfc3339(ms),
            Since::Ago(ago) => ago.into(),
        }
    }
}

/// Capabilities, by name. What is not here is denied.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GrantsSpec {
    #[serde(default)]
    pub sql: Vec<SqlGrant>,
    #[serde(default)]
    pub http: Vec<HttpGrant>,
    #[serde(default)]
    pub ledger: Vec<LedgerGrant>,
    #[serde(default)]
    pub keys: Vec<KeyGrant>,
    #[serde(default)]
    pub kv: bool,
    /// Sources whose cache may be read.
    #[serde(default)]
    pub lister: Vec<String>,
}

/// `name` is what the plugin calls it, the other field what the host calls it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SqlGrant {
    pub name: String,
    pub database: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HttpGrant {
    pub name: String,
    pub destination: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LedgerGrant {
    pub name: String,
    pub ledger: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct KeyGrant {
    pub name: String,
    pub key: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct LimitsSpec {
    /// Summed over all memories of one instance.
    pub memory: Bytes,
    /// One call's own time; what the host does for it is not counted.
    pub call: Duration,
    /// Calls to the host in one batch.
    pub host_calls: u32,
    /// Bytes that may cross in one host call.
    pub host_bytes: Bytes,
    /// Batches at once.
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

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct DeliverySpec {
    /// States in one call at most.
    pub batch: u32,
    /// Tries after the first before a state is parked.
    pub retries: u32,
    /// The first pause; it doubles with each try.
    pub backoff: Duration,
    pub max_backoff: Duration,
    /// Retries of all objects together: each waits for a token as well as for its own pause, but
    /// never longer than `maxBackoff`. What a plugin's own delay paces needs none.
    pub retry_rate: RateSpec,
    /// States handed over at most. Left out: as fast as the plugin takes them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<RateSpec>,
    /// Calls at most, whatever they carry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub call_rate: Option<RateSpec>,
    pub on_dead_letter: OnDeadLetter,
}

/// A token bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RateSpec {
    pub per_second: u32,
    /// What may happen at once after a pause. Left out: what one second brings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst: Option<u32>,
}

impl RateSpec {
    pub fn burst(self) -> u32 {
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
            // What client-go's controllers have.
            retry_rate: RateSpec { per_second: 10, burst: Some(100) },
            rate: None,
            call_rate: None,
            on_dead_letter: OnDeadLetter::Continue,
        }
    }
}

/// What a lane does once its head was parked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum OnDeadLetter {
    #[default]
    Continue,
    Hold,
}

fn ten_minutes() -> Duration {
    Duration(std::time::Duration::from_secs(600))
}

fn eight() -> u32 {
    8
}

fn ten_seconds() -> Duration {
    Duration(std::time::Duration::from_secs(10))
}
