//! Ledgers: their files, when a file is closed, which key signs them, and where closed files are shipped.
//!
//! A ledger is evidence, so nobody who could be its subject may write it another way. So a plugin is never
//! granted the key of the ledger's own signatures, and no other store may use its files. This module checks
//! that on the settings alone: it opens no file and no bucket, and reads no key.

pub mod files;
mod ship;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::{Deserialize, Serialize};

pub use self::ship::ShipSpec;
use super::values::unknown_name_message;
use super::{Bytes, Duration, GrantsSpec, KeyGrant, LedgerGrant, PluginSpec};
use crate::ledger::{FileRotation, LedgerSchedule, SigningInterval, is_closed_file};
use crate::model::fault::{ManifestFault, fault};

/// Smaller files would be too many.
const SIZE_LEAST: u64 = 64 << 10;
/// The open file is read at each start, within the time limit for its disk.
const SIZE_MOST: u64 = 1 << 30;
const ROTATE_LEAST: std::time::Duration = std::time::Duration::from_secs(60);
const SIGN_LEAST: std::time::Duration = std::time::Duration::from_secs(1);
const RECORDS_MOST: u64 = 1_000_000;

/// An append-only file of records, such as an audit trail.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LedgerSpec {
    /// The name that grants use.
    #[cfg_attr(test, schemars(schema_with = "super::reference::name"))]
    pub name: String,
    /// The file of the records. A relative path starts in the data folder. The receipts lie beside it, in a
    /// file with the ending `.receipts`.
    pub path: String,
    /// When the file is closed and the next one begins. A closed file ends with a seal and has a number in its name:
    /// `trail-000001.jsonl`. Left out: never, or the defaults of its fields if there is `signing`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotate: Option<RotateSpec>,
    /// Signs the ledger, so that nobody without the key can rewrite what is signed unnoticed. The journal keeps the
    /// newest root: the controller refuses files that lack it. Left out: no signature.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signing: Option<SigningSpec>,
    /// Copies closed files into a bucket, and says how long they stay here afterwards. Left out: they stay here alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ship: Option<ShipSpec>,
}

/// When a file of a ledger is closed: at a size or at an age, whichever comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RotateSpec {
    /// A file of this size is closed. It may be longer by one call's records.
    #[cfg_attr(test, schemars(extend("x-bounds" = format!("{} to {}", Bytes(SIZE_LEAST), Bytes(SIZE_MOST)))))]
    pub size: Bytes,
    /// A file of this age is closed, unless it has no records. Left out: only its size counts.
    #[cfg_attr(test, schemars(extend("x-bounds" = super::reference::at_least(ROTATE_LEAST))))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub every: Option<Duration>,
}

impl Default for RotateSpec {
    fn default() -> Self {
        Self { size: Bytes(64 << 20), every: None }
    }
}

/// How a ledger is signed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SigningSpec {
    /// The name of the key, in `spec.keys`. No plugin may be granted the same key.
    pub key: String,
    /// So many records get a signed root.
    #[cfg_attr(test, schemars(range(min = 1, max = RECORDS_MOST)))]
    #[serde(default = "thousand")]
    pub records: u64,
    /// Records that have waited so long get a signed root, whatever their number.
    #[cfg_attr(test, schemars(extend("x-bounds" = super::reference::at_least(SIGN_LEAST))))]
    #[serde(default = "ten_seconds")]
    pub every: Duration,
}

fn thousand() -> u64 {
    1000
}

fn ten_seconds() -> Duration {
    Duration(std::time::Duration::from_secs(10))
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.0.as_millis()).unwrap_or(u64::MAX)
}

impl LedgerSpec {
    pub fn ledger_schedule(&self) -> LedgerSchedule {
        let signing = self
            .signing
            .as_ref()
            .map(|signing| SigningInterval { records: signing.records, every_ms: millis(signing.every) });
        let rotate = self.rotate.or_else(|| signing.map(|_| RotateSpec::default()));
        let rotation =
            rotate.map(|rotate| FileRotation { bytes: rotate.size.0, every_ms: rotate.every.map(millis) });
        LedgerSchedule { rotation, signing }
    }
}

/// `keys` are the names of the controller's keys.
pub(super) fn check(ledgers: &[LedgerSpec], keys: &[&str], faults: &mut Vec<ManifestFault>) {
    let mut shipped = BTreeMap::new();
    for (index, ledger) in ledgers.iter().enumerate() {
        let field = format!("spec.ledgers[{index}]");
        if let Some(rotate) = &ledger.rotate {
            check_rotate(&format!("{field}.rotate"), rotate, faults);
        }
        if let Some(signing) = &ledger.signing {
            check_signing(&format!("{field}.signing"), signing, keys, faults);
        }
        if let Some(ship) = &ledger.ship {
            ship::check(&format!("{field}.ship"), ship, faults);
            if ledger.ledger_schedule().rotation.is_none() {
                let message = "ships closed files, and this ledger closes none: add `rotate` to the ledger";
                faults.push(fault(format!("{field}.ship"), message));
            }
            let name = Path::new(&ledger.path).file_name();
            if let Some(other) =
                shipped.insert((&ship.endpoint, &ship.bucket, &ship.prefix, name), &ledger.name)
            {
                let message =
                    format!("gives files the same names as `{other}`: give each ledger a prefix of its own");
                faults.push(fault(format!("{field}.ship.prefix"), message));
            }
        }
        let names = |other: &&LedgerSpec| is_closed_file(Path::new(&other.path), Path::new(&ledger.path));
        if let Some(other) = ledgers.iter().find(names) {
            let message = format!("is the name of a closed file of `{}`: choose another", other.name);
            faults.push(fault(format!("{field}.path"), message));
        }
    }
}

fn check_rotate(field: &str, rotate: &RotateSpec, faults: &mut Vec<ManifestFault>) {
    if !(SIZE_LEAST..=SIZE_MOST).contains(&rotate.size.0) {
        let message = format!("is outside {} to {}", Bytes(SIZE_LEAST), Bytes(SIZE_MOST));
        faults.push(fault(format!("{field}.size"), message));
    }
    if rotate.every.is_some_and(|every| every.0 < ROTATE_LEAST) {
        let least = Duration(ROTATE_LEAST);
        let message = format!("is less than {least}: write {least} or more, or leave it out");
        faults.push(fault(format!("{field}.every"), message));
    }
}

fn check_signing(field: &str, signing: &SigningSpec, keys: &[&str], faults: &mut Vec<ManifestFault>) {
    if !keys.contains(&signing.key.as_str()) {
        faults.push(fault(format!("{field}.key"), unknown_name_message("key", &signing.key, keys)));
    }
    if !(1..=RECORDS_MOST).contains(&signing.records) {
        faults.push(fault(format!("{field}.records"), format!("is outside 1 to {RECORDS_MOST}")));
    }
    if signing.every.0 < SIGN_LEAST {
        let least = Duration(SIGN_LEAST);
        faults.push(fault(format!("{field}.every"), format!("is less than {least}: write {least} or more")));
    }
}

/// Refuses a ledger key that is granted to a plugin: a plugin signs anything, so it could forge a statement
/// of the ledger.
pub(super) fn check_granted_keys(
    grants: &[KeyGrant],
    ledgers: &[LedgerSpec],
    faults: &mut Vec<ManifestFault>,
) {
    for (index, grant) in grants.iter().enumerate() {
        let signs = |ledger: &&super::LedgerSpec| {
            ledger.signing.as_ref().is_some_and(|signing| signing.key == grant.key)
        };
        if let Some(ledger) = ledgers.iter().find(signs) {
            let message = format!(
                "is `{}`, with which the controller signs the ledger `{}`: grant another key, or the plugin could forge \
                 the ledger",
                grant.key, ledger.name
            );
            faults.push(fault(format!("spec.grants.keys[{index}].key"), message));
        }
    }
}

/// Finds settings that are valid but probably not intended: an unsigned ledger while a key is unused.
/// `plugins` are all plugins of the controller.
pub(super) fn warn_of_unsigned_ledgers<'p>(
    ledgers: &[LedgerSpec],
    keys: &[&str],
    plugins: impl Iterator<Item = &'p PluginSpec>,
) -> Vec<ManifestFault> {
    let signs = ledgers.iter().filter_map(|ledger| ledger.signing.as_ref());
    let mut used: BTreeSet<_> = signs.map(|signing| signing.key.as_str()).collect();
    used.extend(plugins.flat_map(|plugin| &plugin.grants.keys).map(|grant| grant.key.as_str()));
    let Some(idle) = keys.iter().find(|key| !used.contains(*key)) else { return Vec::new() };
    let ledgers = ledgers.iter().enumerate().filter(|(_, ledger)| ledger.signing.is_none());
    let warning = |(index, ledger): (usize, &LedgerSpec)| {
        let message = format!(
            "is left out, so the ledger `{}` is not signed, and nothing uses the key `{1}`: write `signing: {{key: {1}}}`, or \
             remove the key",
            ledger.name, idle
        );
        fault(format!("spec.ledgers[{index}].signing"), message)
    };
    ledgers.map(warning).collect()
}

/// Reports a plugin that may sign what it appends to a ledger that the controller does not sign. No verifier
/// checks a plugin's signature.
pub(super) fn signed_by_plugin(grants: &GrantsSpec, ledgers: &[LedgerSpec]) -> Option<ManifestFault> {
    let own = |grant: &&LedgerGrant| {
        ledgers.iter().any(|ledger| ledger.name == grant.ledger && ledger.signing.is_none())
    };
    let ledger = grants.ledger.iter().find(own).filter(|_| !grants.keys.is_empty())?;
    let message = format!(
        "lets the plugin sign what it appends to `{}`, and `kubewitness audit verify` checks no signature of a plugin: give \
         the ledger `signing` in the host's settings, with another key",
        ledger.ledger
    );
    Some(fault("spec.grants.keys", message))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::config::HostSpec;

    fn host(ledgers: &serde_json::Value) -> HostSpec {
        let keys = json!([{"name": "seal", "valueFrom": {"file": "/secrets/seal"}}]);
        let jobs = json!([{"name": "jobs", "apiVersion": "batch/v1", "kind": "Job"}]);
        serde_json::from_value(json!({"sources": jobs, "ledgers": ledgers, "keys": keys})).unwrap()
    }

    fn faults(ledgers: &serde_json::Value) -> Vec<String> {
        host(ledgers).check().iter().map(|fault| format!("{} {}", fault.field, fault.message)).collect()
    }

    #[test]
    fn a_ledger_that_is_signed_is_rotated_as_well_and_one_without_either_stays_one_file() {
        let host = host(&json!([
            {"name": "a", "path": "a.jsonl"},
            {"name": "b", "path": "b.jsonl", "signing": {"key": "seal"}},
            {"name": "c", "path": "c.jsonl", "rotate": {"every": "1d"}},
        ]));
        assert_eq!(host.check(), []);
        let [a, b, c] = [0, 1, 2].map(|index: usize| host.ledgers[index].ledger_schedule());
        let default = FileRotation { bytes: 64 << 20, every_ms: None };
        assert!(!a.is_any());
        assert_eq!(b.rotation, Some(default));
        assert_eq!(b.signing, Some(SigningInterval { records: 1000, every_ms: 10_000 }));
        assert_eq!(c.rotation, Some(FileRotation { every_ms: Some(86_400_000), ..default }));
        assert_eq!(c.signing, None);
    }

    #[test]
    fn wrong_settings_of_a_ledger_are_told_with_their_field() {
        let messages = faults(&json!([
            {"name": "a", "path": "a.jsonl", "rotate": {"size": "1Ki", "every": "1s"}},
            {"name": "b", "path": "b.jsonl", "signing": {"key": "other", "records": 0, "every": "1ms"}},
            {"name": "c", "path": "a-000012.jsonl"},
        ]));
        let expected = [
            "spec.ledgers[0].rotate.size is outside",
            "spec.ledgers[0].rotate.every is less than 1m",
            "spec.ledgers[1].signing.key the controller has no key `other`; it has seal",
            "spec.ledgers[1].signing.records is outside",
            "spec.ledgers[1].signing.every is less than 1s",
            "spec.ledgers[2].path is the name of a closed file of `a`",
        ];
        assert_eq!(messages.len(), expected.len(), "{messages:#?}");
        for (message, expected) in messages.iter().zip(expected) {
            assert!(message.starts_with(expected), "{message}");
        }
    }

    #[test]
    fn wrong_settings_of_shipping_are_told_with_their_field() {
        let ship = |fields: serde_json::Value| {
            let mut ship = json!({"endpoint": "https://s3.example.com", "bucket": "trails",
                "accessKeyFrom": {"env": "ACCESS"}, "secretKeyFrom": {"file": "/secrets/s3"}});
            ship.as_object_mut().unwrap().append(&mut fields.as_object().unwrap().clone());
            json!({"name": "a", "path": "a.jsonl", "rotate": {}, "ship": ship})
        };
        assert_eq!(faults(&json!([ship(json!({"prefix": "eu/a_1.", "keep": "90d"}))])), Vec::<String>::new());
        for (fields, expected) in [
            (json!({"endpoint": "s3.example.com"}), "endpoint is no address"),
            (json!({"endpoint": "http://s3.example.com"}), "endpoint would send the files over plain http"),
            (json!({"endpoint": "https://a:b@s3.example.com"}), "endpoint holds a name"),
            (json!({"endpoint": "https://s3.example.com/trails"}), "endpoint has more than a host"),
            (
                json!({"endpoint": "https://10.1.2.3", "pathStyle": false}),
                "endpoint is an address without a name",
            ),
            (json!({"endpoint": "https://169.254.169.254"}), "endpoint is "),
            (json!({"bucket": "Trails"}), "bucket is no name"),
            (json!({"bucket": "a..b"}), "bucket is no name"),
            (json!({"prefix": "/a"}), "prefix is no prefix"),
            (json!({"prefix": "a/../b"}), "prefix is no prefix"),
            (json!({"prefix": "a b"}), "prefix is no prefix"),
            (json!({"region": ""}), "region is no region"),
            (json!({"keep": "1s"}), "keep is less than 1m"),
            (json!({"secretKeyFrom": {"env": ""}}), "secretKeyFrom is empty"),
        ] {
            let messages = faults(&json!([ship(fields)]));
            let expected = format!("spec.ledgers[0].ship.{expected}");
            assert!(messages.len() == 1 && messages[0].starts_with(&expected), "{messages:?} and {expected}");
        }
        let mut unrotated = ship(json!({}));
        unrotated.as_object_mut().unwrap().remove("rotate");
        assert!(faults(&json!([unrotated]))[0].contains("this ledger closes none"));
        let mut second = ship(json!({}));
        second["name"] = json!("b");
        second["path"] = json!("other/a.jsonl");
        let messages = faults(&json!([ship(json!({})), second]));
        assert!(
            messages.len() == 1 && messages[0].contains("ship.prefix gives files the same names as `a`"),
            "{messages:?}"
        );
    }

    #[test]
    fn the_bucket_is_in_the_path_or_before_the_name() {
        let address = |path_style: bool| {
            let ship: ShipSpec = serde_json::from_value(json!({"endpoint": "https://s3.example.com:9000",
                "bucket": "trails", "pathStyle": path_style, "accessKeyFrom": {"env": "A"},
                "secretKeyFrom": {"env": "B"}}))
            .unwrap();
            ship.bucket_address().unwrap().to_string()
        };
        assert_eq!(address(true), "https://s3.example.com:9000/trails");
        assert_eq!(address(false), "https://trails.s3.example.com:9000/");
    }

    #[test]
    fn a_plugin_is_not_granted_the_key_that_signs_a_ledger() {
        let host = host(&json!([{"name": "a", "path": "a.jsonl", "signing": {"key": "seal"}}]));
        let plugin: PluginSpec = serde_json::from_value(json!({
            "module": {"file": "p.wasm"}, "subscribe": [{"source": "jobs"}],
            "grants": {"keys": [{"name": "trail", "key": "seal"}]},
        }))
        .unwrap();
        let faults = plugin.check(&host);
        assert!(faults.iter().any(|fault| fault.message.contains("signs the ledger `a`")), "{faults:?}");
    }

    #[test]
    fn a_key_that_nobody_uses_beside_a_ledger_that_nobody_signs_is_told() {
        let warnings = |ledgers: &serde_json::Value, grants: &serde_json::Value| {
            let plugin =
                json!({"module": {"file": "p.wasm"}, "subscribe": [{"source": "jobs"}], "grants": grants});
            let plugin: PluginSpec = serde_json::from_value(plugin).unwrap();
            host(ledgers).warnings(std::iter::once(&plugin))
        };
        let bare = json!([{"name": "a", "path": "a.jsonl"}]);
        let [warning] = warnings(&bare, &json!({})).try_into().unwrap();
        assert_eq!(warning.field, "spec.ledgers[0].signing");
        assert!(warning.message.contains("write `signing: {key: seal}`"), "{}", warning.message);
        // A plugin that signs its own records uses the key, and so does another ledger.
        assert_eq!(warnings(&bare, &json!({"keys": [{"name": "trail", "key": "seal"}]})), []);
        let signed = json!([bare[0], {"name": "b", "path": "b.jsonl", "signing": {"key": "seal"}}]);
        assert_eq!(warnings(&signed, &json!({})), []);
        assert_eq!(warnings(&json!([]), &json!({})), []);
    }

    #[test]
    fn a_plugin_that_signs_where_the_host_does_not_is_told_what_is_checked() {
        let plugin: PluginSpec = serde_json::from_value(json!({
            "module": {"file": "p.wasm"}, "subscribe": [{"source": "jobs"}],
            "grants": {"ledger": [{"name": "trail", "ledger": "a"}], "keys": [{"name": "trail", "key": "seal"}]},
        }))
        .unwrap();
        let [warning] =
            plugin.warnings(&host(&json!([{"name": "a", "path": "a.jsonl"}]))).try_into().unwrap();
        assert!(warning.field == "spec.grants.keys" && warning.message.contains("`a`"), "{warning:?}");
        let signed = host(&json!([{"name": "a", "path": "a.jsonl", "signing": {"key": "other"}}]));
        assert_eq!(plugin.warnings(&signed), []);
    }
}
