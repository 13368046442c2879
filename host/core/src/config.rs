//! What an operator writes: the host's settings and one document a plugin. These types cannot
//! hold what is wrong in shape; names that point nowhere are found by [`check`](HostSpec::check).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

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
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DatabaseSpec {
    pub name: String,
    pub sqlite: SqliteSpec,
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
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
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Mode {
    #[default]
    Every,
    /// Only states whose status differs from the one before.
    Transitions,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Start {
    Now,
    #[default]
    Beginning,
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
    pub on_dead_letter: OnDeadLetter,
}

impl Default for DeliverySpec {
    fn default() -> Self {
        Self {
            batch: 64,
            retries: 8,
            backoff: Duration(std::time::Duration::from_millis(200)),
            max_backoff: Duration(std::time::Duration::from_secs(60)),
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

// ---- quantities --------------------------------------------------------------------------

fn ten_seconds() -> Duration {
    Duration(std::time::Duration::from_secs(10))
}

/// `250ms`, `2s`, `5m`, `1h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Duration(pub std::time::Duration);

impl std::str::FromStr for Duration {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (digits, unit) = text.split_at(split);
        let millis = match unit {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            _ => {
                return Err(format!(
                    "`{text}` is not a duration: write a whole number and ms, s, m or h, such as 2s"
                ));
            }
        };
        digits
            .parse::<u64>()
            .ok()
            .and_then(|number| number.checked_mul(millis))
            .map(|total| Self(std::time::Duration::from_millis(total)))
            .ok_or_else(|| {
                format!("`{text}` is not a duration: write a whole number and ms, s, m or h, such as 2s")
            })
    }
}

impl TryFrom<String> for Duration {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Duration> for String {
    fn from(duration: Duration) -> Self {
        format!("{}ms", duration.0.as_millis())
    }
}

/// `512Ki`, `64Mi`, `1Gi`, or plain bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Bytes(pub u64);

impl TryFrom<String> for Bytes {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (digits, unit) = text.split_at(split);
        let factor = match unit {
            "" => Some(1u64),
            "Ki" => Some(1 << 10),
            "Mi" => Some(1 << 20),
            "Gi" => Some(1 << 30),
            _ => None,
        };
        factor.and_then(|factor| digits.parse::<u64>().ok()?.checked_mul(factor)).map(Self).ok_or_else(|| {
            format!("`{text}` is not a size: write a whole number and Ki, Mi or Gi, such as 64Mi")
        })
    }
}

impl From<Bytes> for String {
    fn from(bytes: Bytes) -> Self {
        bytes.0.to_string()
    }
}

// ---- names -------------------------------------------------------------------------------

/// A fault of a manifest: which field, and what is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// Such as `spec.subscribe[0].source`.
    pub field: String,
    pub message: String,
}

fn fault(field: impl Into<String>, message: impl Into<String>) -> Fault {
    Fault { field: field.into(), message: message.into() }
}

/// Lower-case letters, digits and dashes: usable in file names, labels and addresses.
fn is_name(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 63
        && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        && !text.starts_with('-')
        && !text.ends_with('-')
}

fn check_names<'a>(list: &str, names: impl Iterator<Item = &'a str>, faults: &mut Vec<Fault>) {
    let mut seen = std::collections::HashSet::new();
    for (index, name) in names.enumerate() {
        let field = format!("spec.{list}[{index}].name");
        if !is_name(name) {
            faults.push(fault(
                field,
                format!("`{name}` is not a name: use up to 63 lower-case letters, digits and dashes"),
            ));
        } else if !seen.insert(name) {
            faults.push(fault(field, format!("`{name}` is there twice: names of one list are unique")));
        }
    }
}

fn check_grants<'a>(
    list: &str,
    target: &str,
    grants: impl Iterator<Item = (&'a str, &'a str)>,
    known: &[&str],
    faults: &mut Vec<Fault>,
) {
    for (index, (name, to)) in grants.enumerate() {
        if !is_name(name) {
            faults
                .push(fault(format!("spec.grants.{list}[{index}].name"), format!("`{name}` is not a name")));
        }
        if !known.contains(&to) {
            faults.push(fault(format!("spec.grants.{list}[{index}].{target}"), unknown(target, to, known)));
        }
    }
}

fn unknown(what: &str, name: &str, known: &[&str]) -> String {
    if known.is_empty() {
        return format!("the host has no {what} `{name}`, nor any other: add it to the host's settings");
    }
    format!("the host has no {what} `{name}`; it has {}", known.join(", "))
}

impl HostSpec {
    pub fn check(&self) -> Vec<Fault> {
        let mut faults = Vec::new();
        check_names("sources", self.sources.iter().map(|s| s.name.as_str()), &mut faults);
        check_names("databases", self.databases.iter().map(|s| s.name.as_str()), &mut faults);
        check_names("destinations", self.destinations.iter().map(|s| s.name.as_str()), &mut faults);
        check_names("ledgers", self.ledgers.iter().map(|s| s.name.as_str()), &mut faults);
        check_names("keys", self.keys.iter().map(|s| s.name.as_str()), &mut faults);
        for (index, source) in self.sources.iter().enumerate() {
            if source.api_version.is_empty() || source.api_version.matches('/').count() > 1 {
                faults.push(fault(
                    format!("spec.sources[{index}].apiVersion"),
                    "write `v1` or `group/version`",
                ));
            }
            if source.kind.is_empty() {
                faults
                    .push(fault(format!("spec.sources[{index}].kind"), "is empty: name a kind, such as Job"));
            }
        }
        for (index, destination) in self.destinations.iter().enumerate() {
            if !destination.url.starts_with("http://") && !destination.url.starts_with("https://") {
                faults.push(fault(
                    format!("spec.destinations[{index}].url"),
                    format!("`{}` is not an http or https address", destination.url),
                ));
            }
        }
        faults
    }
}

impl PluginSpec {
    /// Checks the names against the host's; the component itself is checked by the sandbox.
    pub fn check(&self, host: &HostSpec) -> Vec<Fault> {
        let mut faults = Vec::new();
        match (&self.module.file, &self.module.config_map_key) {
            (Some(_), Some(_)) => {
                faults.push(fault("spec.module", "has both `file` and `configMapKey`: keep one"));
            }
            (None, None) => {
                faults.push(fault("spec.module", "names no component: give `file` or `configMapKey`"));
            }
            _ => {}
        }
        self.check_subscriptions(host, &mut faults);
        self.check_granted(host, &mut faults);
        for (field, value) in [
            ("spec.delivery.batch", self.delivery.batch),
            ("spec.limits.concurrency", self.limits.concurrency),
            ("spec.limits.hostCalls", self.limits.host_calls),
        ] {
            if value == 0 {
                faults.push(fault(field, "is 0: the least is 1"));
            }
        }
        if self.delivery.batch > 1024 {
            faults.push(fault("spec.delivery.batch", "is over 1024, the most that one call may carry"));
        }
        faults
    }

    fn check_subscriptions(&self, host: &HostSpec, faults: &mut Vec<Fault>) {
        let known: Vec<_> = host.sources.iter().map(|s| s.name.as_str()).collect();
        if self.subscribe.is_empty() {
            faults.push(fault("spec.subscribe", "is empty: a plugin without a subscription is never called"));
        }
        let mut seen = std::collections::HashSet::new();
        for (index, subscription) in self.subscribe.iter().enumerate() {
            let field = format!("spec.subscribe[{index}].source");
            if !known.contains(&subscription.source.as_str()) {
                faults.push(fault(field, unknown("source", &subscription.source, &known)));
            } else if !seen.insert(subscription.source.as_str()) {
                faults.push(fault(field, format!("`{}` is subscribed twice", subscription.source)));
            }
        }
    }

    fn check_granted(&self, host: &HostSpec, faults: &mut Vec<Fault>) {
        let grants = &self.grants;
        let databases: Vec<_> = host.databases.iter().map(|s| s.name.as_str()).collect();
        let pairs = grants.sql.iter().map(|g| (g.name.as_str(), g.database.as_str()));
        check_grants("sql", "database", pairs, &databases, faults);
        if grants.sql.len() > 1 {
            faults.push(fault(
                "spec.grants.sql",
                "has more than one database: rows and receipt commit together in one only",
            ));
        }
        if grants.ledger.len() > 1 {
            faults.push(fault(
                "spec.grants.ledger",
                "has more than one ledger: records and receipt are kept together in one only",
            ));
        }
        let destinations: Vec<_> = host.destinations.iter().map(|s| s.name.as_str()).collect();
        let pairs = grants.http.iter().map(|g| (g.name.as_str(), g.destination.as_str()));
        check_grants("http", "destination", pairs, &destinations, faults);
        let ledgers: Vec<_> = host.ledgers.iter().map(|s| s.name.as_str()).collect();
        let pairs = grants.ledger.iter().map(|g| (g.name.as_str(), g.ledger.as_str()));
        check_grants("ledger", "ledger", pairs, &ledgers, faults);
        let keys: Vec<_> = host.keys.iter().map(|s| s.name.as_str()).collect();
        let pairs = grants.keys.iter().map(|g| (g.name.as_str(), g.key.as_str()));
        check_grants("keys", "key", pairs, &keys, faults);
        let sources: Vec<_> = host.sources.iter().map(|s| s.name.as_str()).collect();
        for (index, source) in grants.lister.iter().enumerate() {
            if !sources.contains(&source.as_str()) {
                faults
                    .push(fault(format!("spec.grants.lister[{index}]"), unknown("source", source, &sources)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host() -> HostSpec {
        serde_json::from_value(serde_json::json!({
            "sources": [{"name": "jobs", "apiVersion": "batch/v1", "kind": "Job"}],
            "databases": [{"name": "platform", "sqlite": {"path": "platform.db"}}],
        }))
        .unwrap()
    }

    fn plugin(value: serde_json::Value) -> PluginSpec {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_name_that_points_nowhere_is_a_fault_of_its_field() {
        let spec = plugin(serde_json::json!({
            "module": {"file": "p.wasm"},
            "subscribe": [{"source": "pods"}],
            "grants": {"sql": [{"name": "main", "database": "other"}]},
        }));
        let fields: Vec<_> = spec.check(&host()).into_iter().map(|f| f.field).collect();
        assert_eq!(fields, ["spec.subscribe[0].source", "spec.grants.sql[0].database"]);
    }

    #[test]
    fn a_component_is_named_exactly_once() {
        let both = plugin(serde_json::json!({
            "module": {"file": "p.wasm", "configMapKey": "p.wasm"}, "subscribe": [{"source": "jobs"}],
        }));
        assert_eq!(both.check(&host())[0].field, "spec.module");
        let neither = plugin(serde_json::json!({"module": {}, "subscribe": [{"source": "jobs"}]}));
        assert_eq!(neither.check(&host())[0].field, "spec.module");
    }

    #[test]
    fn durations_and_sizes_refuse_what_they_cannot_mean() {
        assert_eq!("2s".parse::<Duration>().unwrap().0.as_secs(), 2);
        for bad in ["", "2", "s", "-1s", "1.5s", "2 s", "99999999999999999999h"] {
            assert!(bad.parse::<Duration>().is_err(), "{bad}");
        }
        assert_eq!(Bytes::try_from("64Mi".to_string()).unwrap().0, 64 << 20);
        assert!(Bytes::try_from("64MB".to_string()).is_err());
    }
}
