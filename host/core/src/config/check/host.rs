//! Checks the host's settings.

use super::check_names;
use crate::config::components::{self, check_modules};
use crate::config::values::check_secret;
use crate::config::{
    Bytes, DatabaseKind, DatabaseSpec, HostSpec, IndexSpec, PluginSpec, RetentionSpec, SourceSpec,
    destinations, files, ledgers, streams,
};
use crate::index::{BUILTIN, NAMED};
use crate::limits::{AUDIT_LEAST, RESYNC_LEAST};
use crate::model::fault::{ManifestFault, fault};
use crate::model::kinds::is_name;
use crate::project::JsonPointer;
use crate::redact::RedactionRules;
use crate::selector::{check_key, check_value};
use crate::status::StatusRules;

/// More connections do not make one database faster, and every plugin of the cluster may need some.
pub(in crate::config) const CONNECTIONS_MOST: u32 = 64;
/// Enough for the controller's own table and one table of a plugin.
pub(in crate::config) const SQLITE_LEAST: u64 = 1 << 20;

impl HostSpec {
    /// Settings that are valid but probably not intended. `plugins` are all plugins of the controller.
    pub fn warnings<'p>(&self, plugins: impl Iterator<Item = &'p PluginSpec>) -> Vec<ManifestFault> {
        let keys: Vec<&str> = self.keys.iter().map(|key| key.name.as_str()).collect();
        ledgers::warn_of_unsigned_ledgers(&self.ledgers, &keys, plugins)
    }

    /// Streams without a key, whatever plugins there are.
    pub fn stream_warnings(&self) -> Vec<ManifestFault> {
        streams::warn_of_unsigned_streams(self)
    }

    /// The stores that are files, the databases before the ledgers.
    pub fn file_stores(&self) -> impl Iterator<Item = files::FileStore<'_>> {
        let databases = self.databases.iter().enumerate().filter_map(|(index, spec)| {
            let path = &spec.sqlite.as_ref()?.path;
            Some(files::FileStore { list: "databases", index, field: "sqlite.path", path, name: &spec.name })
        });
        let ledgers = self.ledgers.iter().enumerate();
        let ledgers = ledgers.map(|(index, spec)| files::FileStore {
            list: "ledgers",
            index,
            field: "path",
            path: &spec.path,
            name: &spec.name,
        });
        databases.chain(ledgers)
    }

    pub fn check(&self) -> Vec<ManifestFault> {
        let mut faults = Vec::new();
        check_names("sources", self.sources.iter().map(|s| s.name.as_str()), &mut faults);
        check_names("databases", self.databases.iter().map(|s| s.name.as_str()), &mut faults);
        check_names("destinations", self.destinations.iter().map(|s| s.name.as_str()), &mut faults);
        check_names("mail", self.mail.iter().map(|s| s.name.as_str()), &mut faults);
        check_names("ledgers", self.ledgers.iter().map(|s| s.name.as_str()), &mut faults);
        check_names("keys", self.keys.iter().map(|s| s.name.as_str()), &mut faults);
        check_names("streams", self.streams.iter().map(|s| s.name.as_str()), &mut faults);
        streams::check(self, &mut faults);
        let keys: Vec<_> = self.keys.iter().map(|key| key.name.as_str()).collect();
        ledgers::check(&self.ledgers, &keys, &mut faults);
        files::check(self.file_stores(), &mut faults);
        for (index, source) in self.sources.iter().enumerate() {
            check_source(&format!("spec.sources[{index}]"), source, &mut faults);
        }
        for (index, database) in self.databases.iter().enumerate() {
            check_database(&format!("spec.databases[{index}]"), database, &mut faults);
        }
        for (index, destination) in self.destinations.iter().enumerate() {
            destinations::check(&format!("spec.destinations[{index}]"), destination, &mut faults);
        }
        for (index, mail) in self.mail.iter().enumerate() {
            destinations::check_mail(&format!("spec.mail[{index}]"), mail, &mut faults);
        }
        components::check(&self.limits, &mut faults);
        check_modules(&self.modules.signed_by, &self.modules.addresses, &mut faults);
        faults.extend(self.status_rules_in_force().err().unwrap_or_default());
        faults.extend(self.compile_redaction_rules().err().unwrap_or_default());
        faults
    }

    /// Compiles the rules that redact documents.
    pub fn compile_redaction_rules(&self) -> Result<RedactionRules, Vec<ManifestFault>> {
        self.redaction.compile_redaction_rules()
    }

    /// The status rules of every kind: the built-in rules, in which those of the settings replace the ones
    /// for the same kinds.
    pub fn status_rules_in_force(&self) -> Result<StatusRules, Vec<ManifestFault>> {
        let placed = |found: ManifestFault| fault(format!("spec.statusRules{}", found.field), found.message);
        StatusRules::with_rules(&self.status_rules).map_err(|faults| faults.into_iter().map(placed).collect())
    }
}

fn check_source(place: &str, source: &SourceSpec, faults: &mut Vec<ManifestFault>) {
    if source.api_version.is_empty() || source.api_version.matches('/').count() > 1 {
        faults.push(fault(format!("{place}.apiVersion"), "write `v1` or `group/version`"));
    }
    if source.kind.is_empty() {
        faults.push(fault(format!("{place}.kind"), "is empty: name a kind, such as Job"));
    }
    if source.resync.is_some_and(|every| every.0 < RESYNC_LEAST) {
        let least = RESYNC_LEAST.as_secs();
        faults.push(fault(
            format!("{place}.resync"),
            format!("is less than {least}s: write {least}s or more, or leave it out for none"),
        ));
    }
    if !source.audit.0.is_zero() && source.audit.0 < AUDIT_LEAST {
        let least = AUDIT_LEAST.as_secs();
        faults.push(fault(
            format!("{place}.audit"),
            format!("is less than {least}s: write {least}s or more, or 0s for never"),
        ));
    }
    if let Some(message) = source.retention.as_ref().and_then(wrong_retention) {
        faults.push(fault(format!("{place}.retention"), message));
    }
    if let Some(namespace) = source.namespace.as_deref().filter(|name| !is_name(name)) {
        faults.push(fault(
            format!("{place}.namespace"),
            format!("`{namespace}` is no namespace's name; leave it out for all of them"),
        ));
    }
    for (key, value) in &source.match_labels {
        let wrong = check_key(key).and(check_value(value)).err();
        let field = format!("{place}.matchLabels");
        faults.extend(wrong.map(|error| fault(field, error.to_string())));
    }
    check_indexes(&format!("{place}.indexes"), &source.indexes, faults);
}

fn check_indexes(list: &str, indexes: &[IndexSpec], faults: &mut Vec<ManifestFault>) {
    if indexes.len() > NAMED {
        faults.push(fault(list, format!("has {} indexes; at most {NAMED} are allowed", indexes.len())));
    }
    let mut seen = std::collections::HashSet::new();
    for (place, index) in indexes.iter().enumerate() {
        let name = index.name.as_str();
        let is_word = name.starts_with(|c: char| c.is_ascii_alphabetic())
            && name.len() <= 63
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        let wrong = match () {
            () if !is_word => Some(format!(
                "`{name}` is not the name of an index: use up to 63 letters, digits and dashes, a letter first"
            )),
            () if BUILTIN.contains(&name) => {
                Some(format!("every source has an index `{name}`: take another name"))
            }
            () if !seen.insert(name) => {
                Some(format!("`{name}` occurs twice: give each entry of the list a name of its own"))
            }
            () => None,
        };
        faults.extend(wrong.map(|message| fault(format!("{list}[{place}].name"), message)));
        if let Err(error) = JsonPointer::parse(&index.pointer) {
            faults.push(fault(format!("{list}[{place}].pointer"), error.to_string()));
        }
    }
}

fn wrong_retention(retention: &RetentionSpec) -> Option<&'static str> {
    let RetentionSpec { age, count, size, .. } = retention;
    let is_nothing =
        age.is_some_and(|age| age.0.is_zero()) || *count == Some(0) || size.is_some_and(|size| size.0 == 0);
    match () {
        () if !retention.is_bounded() => {
            Some("bounds nothing: name an age, a count or a size, or leave it out to keep everything")
        }
        () if is_nothing => Some("has a bound of 0, which would keep nothing: leave that bound out"),
        () => None,
    }
}

fn check_database(place: &str, database: &DatabaseSpec, faults: &mut Vec<ManifestFault>) {
    let given = [
        ("sqlite", database.sqlite.is_some()),
        ("postgres", database.postgres.is_some()),
        ("mysql", database.mysql.is_some()),
    ];
    let given: Vec<_> = given.iter().filter(|(_, given)| *given).map(|(name, _)| *name).collect();
    match database.only_kind() {
        None if given.is_empty() => {
            faults.push(fault(place, "names no database: give one of `sqlite`, `postgres` and `mysql`"));
        }
        None => faults.push(fault(place, format!("has {}: keep one of them", given.join(" and ")))),
        Some(DatabaseKind::Sqlite(sqlite)) => {
            if sqlite.size.is_some_and(|size| size.0 < SQLITE_LEAST) {
                let least = Bytes(SQLITE_LEAST);
                faults
                    .push(fault(format!("{place}.sqlite.size"), format!("is less than {least}, the least")));
            }
        }
        Some(DatabaseKind::Postgres(server) | DatabaseKind::Mysql(server)) => {
            let (place, most) = (format!("{place}.{}", given[0]), CONNECTIONS_MOST);
            if server.connections == 0 || server.connections > most {
                faults.push(fault(
                    format!("{place}.connections"),
                    format!("is {}: use 1 to {most}", server.connections),
                ));
            }
            check_secret(&format!("{place}.urlFrom"), &server.url_from, faults);
        }
    }
}
