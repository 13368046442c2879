//! What the host itself is told: sources, databases, destinations, ledgers, keys.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Bytes, Duration, FromSpec, StreamSpec};
use crate::find::index::IndexSpec;
use crate::status::RuleSpec;

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

fn ten_minutes() -> Duration {
    Duration(std::time::Duration::from_secs(600))
}

fn eight() -> u32 {
    8
}

fn ten_seconds() -> Duration {
    Duration(std::time::Duration::from_secs(10))
}
