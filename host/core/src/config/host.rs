//! The host's own settings: sources, databases, destinations, ledgers, keys.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};

use serde::{Deserialize, Serialize};

#[cfg(test)]
use super::check::{CONNECTIONS_MOST, SQLITE_LEAST};
#[cfg(test)]
use super::destinations::ADDRESSES;
use super::{
    AddressRange, Bytes, DestinationSpec, Duration, FromSpec, HostLimitsSpec, LedgerSpec, MailSpec,
    RedactionSpec, StreamSpec, SubmitSpec,
};
use crate::find::index::IndexSpec;
#[cfg(test)]
use crate::find::index::NAMED;
#[cfg(test)]
use crate::limits::{AUDIT_LEAST, RESYNC_LEAST};
use crate::status::RuleSpec;

/// The settings of the host: what it watches, and what plugins may be granted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HostSpec {
    /// The resources that the controller watches. One list and watch serves every plugin.
    pub sources: Vec<SourceSpec>,
    /// Databases that plugins may be granted under `grants.sql`.
    #[serde(default)]
    pub databases: Vec<DatabaseSpec>,
    /// HTTP destinations that plugins may be granted under `grants.http`.
    #[serde(default)]
    pub destinations: Vec<DestinationSpec>,
    /// Mail servers that plugins may be granted under `grants.mail`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mail: Vec<MailSpec>,
    /// Append-only files that plugins may be granted under `grants.ledger`.
    #[serde(default)]
    pub ledgers: Vec<LedgerSpec>,
    /// Signing keys that plugins may be granted under `grants.keys`.
    #[serde(default)]
    pub keys: Vec<KeySpec>,
    /// Streams on NATS servers that carry states from the controller that watches to other controllers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub streams: Vec<StreamSpec>,
    /// Rules that derive the status of a kind. They replace the built-in rules of the same kind.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub status_rules: Vec<RuleSpec>,
    /// Values that people and plugins do not see. Left out: the defaults of its fields.
    #[serde(default, skip_serializing_if = "RedactionSpec::is_default")]
    pub redaction: RedactionSpec,
    /// Lets people submit Jobs from templates, through the portal, the API and the command line. Left out: nobody
    /// submits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub submit: Option<SubmitSpec>,
    /// The limits of plugins. No manifest can exceed them.
    #[serde(default)]
    pub limits: HostLimitsSpec,
    /// How components are fetched from registries and URLs. Left out: the controller sends no password and asks for no
    /// signature.
    #[serde(default, skip_serializing_if = "ModulesSpec::is_default")]
    pub modules: ModulesSpec,
}

/// How components are fetched from registries and URLs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ModulesSpec {
    /// Names and passwords of registries: a `config.json` of Docker, as a Secret of the type
    /// `kubernetes.io/dockerconfigjson` has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub credentials: Option<SecretRef>,
    /// Public keys of cosign, as PEM. Where there is one, every component needs a signature by one of them, except a
    /// `file`. Left out: no signature is needed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub signed_by: Vec<String>,
    /// The addresses from which the controller fetches components, of registries and of `url`. Each is `public`,
    /// `private`, `loopback`, `linkLocal` or a range such as `10.20.0.0/16`. Left out: `public` and `private`.
    #[cfg_attr(test, schemars(length(max = ADDRESSES)))]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<AddressRange>,
}

impl ModulesSpec {
    /// A registry within the cluster has a private address.
    pub fn reachable_addresses(&self) -> Vec<AddressRange> {
        match self.addresses.is_empty() {
            true => vec![AddressRange::Public, AddressRange::Private],
            false => self.addresses.clone(),
        }
    }

    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// One watched resource.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SourceSpec {
    /// The name of the source. Plugins subscribe to it.
    #[cfg_attr(test, schemars(schema_with = "super::reference::name"))]
    pub name: String,
    /// The group and version of the resource, such as `v1` or `batch/v1`.
    pub api_version: String,
    /// The kind of the objects, such as `Job`.
    pub kind: String,
    /// The plural that the API server uses in its paths. Left out: discovery finds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource: Option<String>,
    /// Watches this namespace alone. Left out: all namespaces.
    #[cfg_attr(test, schemars(schema_with = "super::reference::name"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Watches only objects that have all of these labels. The controller applies the selector, so that an object
    /// that no longer matches becomes `left` and not `gone`.
    #[serde(default)]
    pub match_labels: BTreeMap<String, String>,
    /// More indexes of the cache. Every source has `namespace`, `owner`, `node` and `label`.
    #[cfg_attr(test, schemars(length(max = NAMED)))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub indexes: Vec<IndexSpec>,
    /// How often the objects that exist are handed again to the subscriptions that say `resync: true`. Left
    /// out: never.
    #[cfg_attr(test, schemars(extend("x-bounds" = super::reference::at_least(RESYNC_LEAST))))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resync: Option<Duration>,
    /// How often a consistent list is compared with what was witnessed. `0s`: never.
    #[cfg_attr(test, schemars(extend("x-bounds" = format!("`0s`, or {}", super::reference::at_least(AUDIT_LEAST)))))]
    #[serde(default = "ten_minutes")]
    pub audit: Duration,
    /// How much of the history the journal keeps. Left out: all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention: Option<RetentionSpec>,
    /// Another controller watches this resource, under the same source name. Its states arrive over a stream.
    /// `resource`, `namespace` and `matchLabels` belong to that controller and are refused here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<FromSpec>,
}

/// Bounds on the history that the journal keeps. A state goes when it is beyond any of these bounds, oldest
/// first. The newest state of an object that exists never goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RetentionSpec {
    /// States that were observed longer ago than this may go.
    #[cfg_attr(test, schemars(extend("x-bounds" = "more than 0; one of `age`, `count` and `size` is needed")))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub age: Option<Duration>,
    /// States beyond this number may go.
    #[cfg_attr(test, schemars(range(min = 1), extend("x-bounds" = "more than 0; one of `age`, `count` and `size` is needed")))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// States beyond this size may go, as `kubewitness journal stats` counts it.
    #[cfg_attr(test, schemars(extend("x-bounds" = "more than 0; one of `age`, `count` and `size` is needed")))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<Bytes>,
    /// Whether states may go that a plugin has not finished. What goes unfinished is recorded as a gap.
    #[serde(default)]
    pub past_cursors: bool,
}

impl Display for RetentionSpec {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let age = self.age.map(|age| age.to_string());
        let count = self.count.map(|count| format!("{count} states"));
        let size = self.size.map(|size| size.to_string());
        f.write_str(&[age, count, size].into_iter().flatten().collect::<Vec<_>>().join(", "))
    }
}

impl RetentionSpec {
    /// Whether any bound is set.
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

    /// The API group of the witnessed resource; empty for the core group.
    pub fn api_group(&self) -> &str {
        self.api_version.rsplit_once('/').map_or("", |(group, _)| group)
    }
}

/// A database: a name and exactly one of `sqlite`, `postgres` and `mysql`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DatabaseSpec {
    /// The name that grants use.
    #[cfg_attr(test, schemars(schema_with = "super::reference::name"))]
    pub name: String,
    /// A SQLite file.
    #[cfg_attr(test, schemars(extend("x-bounds" = "exactly one of `sqlite`, `postgres` and `mysql`")))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sqlite: Option<SqliteSpec>,
    /// A PostgreSQL server.
    #[cfg_attr(test, schemars(extend("x-bounds" = "exactly one of `sqlite`, `postgres` and `mysql`")))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub postgres: Option<ServerSpec>,
    /// A MySQL or MariaDB server.
    #[cfg_attr(test, schemars(extend("x-bounds" = "exactly one of `sqlite`, `postgres` and `mysql`")))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mysql: Option<ServerSpec>,
}

/// The kind of database that a spec names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatabaseKind<'a> {
    Sqlite(&'a SqliteSpec),
    Postgres(&'a ServerSpec),
    Mysql(&'a ServerSpec),
}

impl DatabaseSpec {
    /// `None` unless exactly one kind is given.
    pub fn only_kind(&self) -> Option<DatabaseKind<'_>> {
        match (&self.sqlite, &self.postgres, &self.mysql) {
            (Some(sqlite), None, None) => Some(DatabaseKind::Sqlite(sqlite)),
            (None, Some(server), None) => Some(DatabaseKind::Postgres(server)),
            (None, None, Some(server)) => Some(DatabaseKind::Mysql(server)),
            _ => None,
        }
    }
}

/// A database server. Its address holds a password, so the whole address is a secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ServerSpec {
    /// Where the address is. The address looks like
    /// `postgres://user:password@host:5432/database?sslmode=verify-full` or
    /// `mysql://user:password@host:3306/database?ssl-mode=VERIFY_IDENTITY`.
    pub url_from: SecretRef,
    /// Connections at once, summed over all plugins that are granted this database.
    #[cfg_attr(test, schemars(range(min = 1, max = CONNECTIONS_MOST)))]
    #[serde(default = "eight")]
    pub connections: u32,
}

/// A SQLite database.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SqliteSpec {
    /// The file. A relative path starts in the data folder.
    pub path: String,
    /// The largest size of the file. A write beyond it is refused. Left out: as large as the disk.
    #[cfg_attr(test, schemars(extend("x-bounds" = super::reference::at_least_bytes(SQLITE_LEAST))))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<Bytes>,
}

/// Where a secret is, never the secret itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum SecretRef {
    /// The environment variable that holds the secret.
    Env(String),
    /// The file that holds the secret, such as a file of a mounted Secret.
    File(String),
}

/// An Ed25519 signing key (PKCS#8, as PEM or base64). Plugins sign with it and never see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct KeySpec {
    /// The name that grants use.
    #[cfg_attr(test, schemars(schema_with = "super::reference::name"))]
    pub name: String,
    /// Where the key is.
    pub value_from: SecretRef,
}

fn ten_minutes() -> Duration {
    Duration(std::time::Duration::from_secs(600))
}

fn eight() -> u32 {
    8
}
