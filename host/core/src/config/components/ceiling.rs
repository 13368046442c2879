//! The operator's ceiling on what a plugin manifest may request. A manifest that requests more is refused.

use std::fmt::Display;

use serde::{Deserialize, Serialize};

use crate::config::{Bytes, DocumentsGrant, Duration, GrantsSpec, ModuleSpec, PluginSpec, SqlAccess};
use crate::limits::{BATCH_MOST, KV_BYTES, KV_RATE};
use crate::model::fault::{ManifestFault, fault};

/// The most that a plugin manifest may ask for, and the memory of all plugins together. A manifest that asks for more is
/// refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct CeilingSpec {
    /// The most that a manifest may write as `limits.memory`.
    #[cfg_attr(test, schemars(extend("x-bounds" = crate::config::reference::at_least_bytes(1))))]
    pub memory: Bytes,
    /// The most that a manifest may write as `limits.call`.
    #[cfg_attr(test, schemars(extend("x-bounds" = "more than 0")))]
    pub call: Duration,
    /// The most that a manifest may write as `limits.concurrency`. Each batch has an instance of its own.
    #[cfg_attr(test, schemars(range(min = 1)))]
    pub concurrency: u32,
    /// The most that a manifest may write as `limits.hostCalls`.
    #[cfg_attr(test, schemars(range(min = 1)))]
    pub host_calls: u32,
    /// The most that a manifest may write as `limits.hostBytes`.
    #[cfg_attr(test, schemars(extend("x-bounds" = crate::config::reference::at_least_bytes(1))))]
    pub host_bytes: Bytes,
    /// The most that a manifest may write as `delivery.batch`.
    #[cfg_attr(test, schemars(range(min = 1, max = BATCH_MOST)))]
    pub batch: u32,
    /// The capabilities that a manifest may ask for under `grants`. Left out: all.
    pub grants: Vec<GrantKind>,
    /// The most that a manifest may write as `access` of a database.
    pub sql_access: SqlAccess,
    /// Where a component may come from. Left out: from everywhere.
    #[cfg_attr(test, schemars(length(min = 1)))]
    pub modules: Vec<ModuleKind>,
    /// The memory that all instances of all plugins hold together. A call that wants more fails and is tried
    /// again.
    #[cfg_attr(test, schemars(extend("x-bounds" = crate::config::reference::at_least_bytes(1))))]
    pub total_memory: Bytes,
    /// The most that the `kv` of one plugin holds, keys and values together. A write beyond it is refused. The controller
    /// holds it in memory.
    #[cfg_attr(test, schemars(extend("x-bounds" = crate::config::reference::at_least_bytes(1))))]
    pub kv: Bytes,
    /// The bytes of keys and values that one plugin may write to `kv` in a second, on the average. One that is more than
    /// four seconds ahead rests before its next call.
    #[cfg_attr(test, schemars(extend("x-bounds" = crate::config::reference::at_least_bytes(1))))]
    pub kv_rate: Bytes,
}

/// A capability, as the operator allows or refuses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum GrantKind {
    /// Databases.
    Sql,
    /// Destinations.
    Http,
    /// Mail servers.
    Mail,
    /// Ledgers.
    Ledger,
    /// Signing keys.
    Keys,
    /// Small values of the plugin's own.
    Kv,
    /// The cache of sources.
    Lister,
    /// Why objects ended badly.
    Outcomes,
    /// `documents: digest` of a manifest.
    DocumentDigest,
    /// `documents: raw` of a manifest.
    RawDocuments,
}

/// Where a component comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum ModuleKind {
    /// `module.file` of a manifest.
    File,
    /// `module.configMapKey` of a manifest.
    ConfigMapKey,
    /// `module.oci` of a manifest.
    Oci,
    /// `module.url` of a manifest.
    Url,
}

/// More than any shipped plugin needs. The deployment's container of 2Gi has 1Gi for the process that
/// compiles, and half of the rest for plugins.
impl Default for CeilingSpec {
    fn default() -> Self {
        use GrantKind::{DocumentDigest, Http, Keys, Kv, Ledger, Lister, Mail, Outcomes, RawDocuments, Sql};
        Self {
            memory: Bytes(512 << 20),
            call: Duration(std::time::Duration::from_secs(300)),
            concurrency: 64,
            host_calls: 1_000_000,
            host_bytes: Bytes(64 << 20),
            batch: BATCH_MOST,
            grants: vec![Sql, Http, Mail, Ledger, Keys, Kv, Lister, Outcomes, DocumentDigest, RawDocuments],
            sql_access: SqlAccess::Schema,
            modules: vec![ModuleKind::File, ModuleKind::ConfigMapKey, ModuleKind::Oci, ModuleKind::Url],
            total_memory: Bytes(512 << 20),
            kv: Bytes(KV_BYTES),
            kv_rate: Bytes(KV_RATE),
        }
    }
}

impl CeilingSpec {
    /// Lists the fields of a manifest that are beyond the ceiling.
    pub fn check(&self, plugin: &PluginSpec) -> Vec<ManifestFault> {
        let mut faults = Vec::new();
        let (limits, delivery) = (&plugin.limits, &plugin.delivery);
        let mut compare = |field: &str, asked: &dyn Display, is_over: bool, most: &dyn Display, by: &str| {
            if is_over {
                let message = format!(
                    "is {asked}, over {most}, the ceiling of the host's settings (`spec.limits.plugins.{by}`)"
                );
                faults.push(fault(field, message));
            }
        };
        for (most, by) in [(self.memory, "memory"), (self.total_memory, "totalMemory")] {
            compare("spec.limits.memory", &limits.memory, limits.memory.0 > most.0, &most, by);
        }
        compare("spec.limits.call", &limits.call, limits.call.0 > self.call.0, &self.call, "call");
        let bytes = limits.host_bytes;
        compare("spec.limits.hostBytes", &bytes, bytes.0 > self.host_bytes.0, &self.host_bytes, "hostBytes");
        for (field, asked, most, by) in [
            ("spec.limits.concurrency", limits.concurrency, self.concurrency, "concurrency"),
            ("spec.limits.hostCalls", limits.host_calls, self.host_calls, "hostCalls"),
            ("spec.delivery.batch", delivery.batch, self.batch, "batch"),
        ] {
            compare(field, &asked, asked > most, &most, by);
        }
        self.check_grants(&plugin.grants, &mut faults);
        for (field, module) in plugin.all_modules() {
            self.check_module(field, module, &mut faults);
        }
        faults
    }

    fn check_module(&self, place: &str, module: &ModuleSpec, faults: &mut Vec<ManifestFault>) {
        // All fields are named, so that a new source can't be forgotten here.
        let ModuleSpec { file, config_map_key, oci, url, sha256: _ } = module;
        for (kind, is_asked, field) in [
            (ModuleKind::File, file.is_some(), "file"),
            (ModuleKind::ConfigMapKey, config_map_key.is_some(), "configMapKey"),
            (ModuleKind::Oci, oci.is_some(), "oci"),
            (ModuleKind::Url, url.is_some(), "url"),
        ] {
            if is_asked && !self.modules.contains(&kind) {
                let message = "is a source that the host's settings do not allow: `spec.limits.plugins.modules` leaves it out";
                faults.push(fault(format!("{place}.{field}"), message));
            }
        }
    }

    fn check_grants(&self, grants: &GrantsSpec, faults: &mut Vec<ManifestFault>) {
        for (index, grant) in
            grants.sql.iter().enumerate().filter(|(_, grant)| grant.access > self.sql_access)
        {
            let message = format!(
                "is `{}`, over `{}`, the ceiling of the host's settings (`spec.limits.plugins.sqlAccess`)",
                grant.access.as_str(),
                self.sql_access.as_str()
            );
            faults.push(fault(format!("spec.grants.sql[{index}].access"), message));
        }
        for (kind, is_asked, name, field) in [
            (GrantKind::Sql, !grants.sql.is_empty(), "sql", "sql"),
            (GrantKind::Http, !grants.http.is_empty(), "http", "http"),
            (GrantKind::Mail, !grants.mail.is_empty(), "mail", "mail"),
            (GrantKind::Ledger, !grants.ledger.is_empty(), "ledger", "ledger"),
            (GrantKind::Keys, !grants.keys.is_empty(), "keys", "keys"),
            (GrantKind::Kv, grants.kv, "kv", "kv"),
            (GrantKind::Lister, !grants.lister.is_empty(), "lister", "lister"),
            (GrantKind::Outcomes, !grants.outcomes.is_empty(), "outcomes", "outcomes"),
            (
                GrantKind::DocumentDigest,
                grants.documents == DocumentsGrant::Digest,
                "documentDigest",
                "documents",
            ),
            (GrantKind::RawDocuments, grants.documents == DocumentsGrant::Raw, "rawDocuments", "documents"),
        ] {
            if is_asked && !self.grants.contains(&kind) {
                let message = format!(
                    "asks for `{name}`, which the host's settings do not allow: `spec.limits.plugins.grants` leaves it \
                     out"
                );
                faults.push(fault(format!("spec.grants.{field}"), message));
            }
        }
    }
}

pub(super) fn check(spec: &CeilingSpec, faults: &mut Vec<ManifestFault>) {
    let field = |name: &str| format!("spec.limits.plugins.{name}");
    for (name, value) in [
        ("memory", spec.memory.0),
        ("concurrency", u64::from(spec.concurrency)),
        ("hostCalls", u64::from(spec.host_calls)),
        ("hostBytes", spec.host_bytes.0),
        ("batch", u64::from(spec.batch)),
        ("totalMemory", spec.total_memory.0),
        ("kv", spec.kv.0),
        ("kvRate", spec.kv_rate.0),
    ] {
        if value == 0 {
            faults.push(fault(field(name), "is 0: the least is 1"));
        }
    }
    if spec.call.0.is_zero() {
        faults.push(fault(field("call"), "is 0: no call could end in time"));
    }
    if spec.batch > BATCH_MOST {
        faults.push(fault(field("batch"), format!("is over {BATCH_MOST}, the most that one call may carry")));
    }
    if spec.modules.is_empty() {
        faults.push(fault(field("modules"), "is empty, so no plugin could be loaded: name a source"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ceiling(text: &str) -> CeilingSpec {
        serde_saphyr::from_str(text).unwrap()
    }

    fn plugin(fields: &str) -> PluginSpec {
        serde_saphyr::from_str(&format!("{{subscribe: [{{source: jobs}}], {fields}}}")).unwrap()
    }

    fn fault_lines(ceiling: &CeilingSpec, fields: &str) -> Vec<String> {
        let faults = ceiling.check(&plugin(fields)).into_iter();
        faults.map(|fault| format!("{}: {}", fault.field, fault.message)).collect()
    }

    #[test]
    fn each_limit_beyond_the_ceiling_is_told_with_its_value_and_the_ceiling() {
        let low = ceiling(
            "{memory: 64Mi, totalMemory: 128Mi, call: 2s, concurrency: 4, hostCalls: 4096, hostBytes: 16Mi, batch: 64}",
        );
        let file = "module: {file: a.wasm}";
        assert_eq!(fault_lines(&low, file), [""; 0], "the defaults of a manifest are at the ceiling");
        let reads = ceiling("{sqlAccess: read}");
        let granted = |access: &str| format!("{file}, grants: {{sql: [{{name: a, database: b{access}}}]}}");
        assert_eq!(fault_lines(&reads, &granted(", access: read")), [""; 0]);
        for (access, is) in [(", access: write", "write"), ("", "schema")] {
            let expected = format!(
                "spec.grants.sql[0].access: is `{is}`, over `read`, the ceiling of the host's settings \
                 (`spec.limits.plugins.sqlAccess`)"
            );
            assert_eq!(fault_lines(&reads, &granted(access)), [expected]);
        }
        let over = "the ceiling of the host's settings (`spec.limits.plugins.";
        for (fields, expected) in [
            (
                "limits: {memory: 65Mi}",
                vec![format!("spec.limits.memory: is 65Mi, over 64Mi, {over}memory`)")],
            ),
            ("limits: {call: 2500ms}", vec![format!("spec.limits.call: is 2500ms, over 2s, {over}call`)")]),
            (
                "limits: {concurrency: 5, hostCalls: 5000, hostBytes: 1Gi}",
                vec![
                    format!("spec.limits.hostBytes: is 1Gi, over 16Mi, {over}hostBytes`)"),
                    format!("spec.limits.concurrency: is 5, over 4, {over}concurrency`)"),
                    format!("spec.limits.hostCalls: is 5000, over 4096, {over}hostCalls`)"),
                ],
            ),
            ("delivery: {batch: 65}", vec![format!("spec.delivery.batch: is 65, over 64, {over}batch`)")]),
        ] {
            assert_eq!(fault_lines(&low, &format!("{file}, {fields}")), expected);
        }
        let lines = fault_lines(&ceiling("{totalMemory: 32Mi}"), file);
        assert_eq!(lines, [format!("spec.limits.memory: is 64Mi, over 32Mi, {over}totalMemory`)")]);
    }

    #[test]
    fn a_capability_or_a_source_that_is_left_out_is_refused_by_its_field() {
        let low = ceiling("{grants: [sql, documentDigest], modules: [configMapKey]}");
        let all_grants = "grants: {sql: [{name: a, database: a}], http: [{name: a, destination: a}], ledger: [{name: a, \
                   ledger: a}], keys: [{name: a, key: a}], kv: true, lister: [jobs], outcomes: [jobs], documents: raw}";
        let lines = fault_lines(&low, &format!("module: {{file: a.wasm}}, {all_grants}"));
        let fields: Vec<_> = lines.iter().map(|line| line.split(':').next().unwrap_or_default()).collect();
        assert_eq!(
            fields,
            ["http", "ledger", "keys", "kv", "lister", "outcomes", "documents"]
                .map(|name| format!("spec.grants.{name}"))
                .into_iter()
                .chain(["spec.module.file".to_owned()])
                .collect::<Vec<_>>()
        );
        assert!(lines[6].contains("asks for `rawDocuments`"), "{lines:?}");
        let shadow = "module: {configMapKey: a}, shadow: {module: {oci: 'example.com/a:1'}}";
        assert_eq!(low.check(&plugin(shadow))[0].field, "spec.shadow.module.oci");
        let fine = "module: {configMapKey: a}, grants: {sql: [{name: a, database: a}], documents: digest}";
        assert_eq!(low.check(&plugin(fine)), []);
        assert_eq!(CeilingSpec::default().check(&plugin(&format!("module: {{file: a}}, {all_grants}"))), []);
    }

    #[test]
    fn a_ceiling_under_which_nothing_could_run_is_refused_by_its_field() {
        let mut faults = Vec::new();
        check(
            &ceiling("{memory: 0, call: 0s, batch: 2000, modules: [], totalMemory: 0, kv: 0, kvRate: 0}"),
            &mut faults,
        );
        let fields: Vec<_> = faults.into_iter().map(|fault| fault.field).collect();
        assert_eq!(
            fields,
            ["memory", "totalMemory", "kv", "kvRate", "call", "batch", "modules"]
                .map(|name| format!("spec.limits.plugins.{name}"))
        );
        check(&CeilingSpec::default(), &mut Vec::new());
    }
}
