//! What a plugin is given: its module, what it subscribes to, its grants and limits.

use serde::{Deserialize, Serialize};

use super::{Bytes, Duration};
use crate::calendar;

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
