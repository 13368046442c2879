//! Checks a configuration: names that point nowhere, lists that are empty, numbers out of range.

use std::fmt::Display;

use super::components::{check_module, check_modules};
use super::values::{check_secret, unknown};
use super::{
    Bytes, DatabaseKind, DatabaseSpec, DeliverySpec, Duration, HostSpec, IndexSpec, ModuleSpec, PluginSpec,
    RateSpec, RetentionSpec, TickSpec, components, destinations, ledgers, places, streams,
};
use crate::index::{BUILTIN, NAMED};
use crate::limits::{
    AUDIT_LEAST, BATCH_MOST, CALL_LEAST, HOST_BYTES_LEAST, MEMORY_LEAST, RESYNC_LEAST, TICK_LEAST, TICK_MOST,
    TICK_TIMEOUT_MOST,
};
use crate::model::fault::{Fault, fault};
use crate::model::kinds::is_name;
use crate::project::Pointer;
use crate::redact::Redactor;
use crate::selector::{check_key, check_value};
use crate::status::Rules;

/// No plugin takes more states a second; a higher rate bounds nothing.
pub(super) const RATE_MOST: u32 = 1_000_000;
/// More connections do not make one database faster, and every plugin of the cluster may want some.
pub(super) const CONNECTIONS_MOST: u32 = 64;
/// The host's own table and one of a plugin need less.
pub(super) const SQLITE_LEAST: u64 = 1 << 20;

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
            faults.push(fault(
                field,
                format!("`{name}` occurs twice: give each entry of the list a name of its own"),
            ));
        }
    }
}

fn check_indexes(list: &str, indexes: &[IndexSpec], faults: &mut Vec<Fault>) {
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
        if let Err(message) = Pointer::parse(&index.pointer) {
            faults.push(fault(format!("{list}[{place}].pointer"), message));
        }
    }
}

fn check_database(place: &str, database: &DatabaseSpec, faults: &mut Vec<Fault>) {
    let given = [
        ("sqlite", database.sqlite.is_some()),
        ("postgres", database.postgres.is_some()),
        ("mysql", database.mysql.is_some()),
    ];
    let given: Vec<_> = given.iter().filter(|(_, given)| *given).map(|(name, _)| *name).collect();
    match database.kind() {
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

impl HostSpec {
    /// Settings that are valid but probably not meant, beside these plugins: all that the host has.
    pub fn warnings<'p>(&self, plugins: impl Iterator<Item = &'p PluginSpec>) -> Vec<Fault> {
        let keys: Vec<&str> = self.keys.iter().map(|key| key.name.as_str()).collect();
        ledgers::unsigned(&self.ledgers, &keys, plugins)
    }

    /// The stores that are files: databases first.
    pub fn stores(&self) -> impl Iterator<Item = places::Store<'_>> {
        let databases = self.databases.iter().enumerate().filter_map(|(index, spec)| {
            let path = &spec.sqlite.as_ref()?.path;
            Some(places::Store { list: "databases", index, field: "sqlite.path", path, name: &spec.name })
        });
        let ledgers = self.ledgers.iter().enumerate();
        let ledgers = ledgers.map(|(index, spec)| places::Store {
            list: "ledgers",
            index,
            field: "path",
            path: &spec.path,
            name: &spec.name,
        });
        databases.chain(ledgers)
    }

    pub fn check(&self) -> Vec<Fault> {
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
        places::check(self.stores(), &mut faults);
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
        for (index, source) in self.sources.iter().enumerate() {
            if source.resync.is_some_and(|every| every.0 < RESYNC_LEAST) {
                let least = RESYNC_LEAST.as_secs();
                faults.push(fault(
                    format!("spec.sources[{index}].resync"),
                    format!("is less than {least}s: write {least}s or more, or leave it out for none"),
                ));
            }
            if !source.audit.0.is_zero() && source.audit.0 < AUDIT_LEAST {
                let least = AUDIT_LEAST.as_secs();
                faults.push(fault(
                    format!("spec.sources[{index}].audit"),
                    format!("is less than {least}s: write {least}s or more, or 0s for never"),
                ));
            }
            if let Some(message) = source.retention.as_ref().and_then(wrong_retention) {
                faults.push(fault(format!("spec.sources[{index}].retention"), message));
            }
            if let Some(namespace) = source.namespace.as_deref().filter(|name| !is_name(name)) {
                faults.push(fault(
                    format!("spec.sources[{index}].namespace"),
                    format!("`{namespace}` is no namespace's name; leave it out for all of them"),
                ));
            }
            for (key, value) in &source.match_labels {
                let wrong = check_key(key).and(check_value(value)).err();
                let field = format!("spec.sources[{index}].matchLabels");
                faults.extend(wrong.map(|message| fault(field, message)));
            }
            check_indexes(&format!("spec.sources[{index}].indexes"), &source.indexes, &mut faults);
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
        faults.extend(self.rules().err().unwrap_or_default());
        faults.extend(self.redactor().err().unwrap_or_default());
        faults
    }

    /// What takes secrets out of documents.
    pub fn redactor(&self) -> Result<Redactor, Vec<Fault>> {
        self.redaction.redactor()
    }

    /// The status rules of every kind: the built-in ones, except where these replace them.
    pub fn rules(&self) -> Result<Rules, Vec<Fault>> {
        let placed = |found: Fault| fault(format!("spec.statusRules{}", found.field), found.message);
        Rules::with(&self.status_rules).map_err(|faults| faults.into_iter().map(placed).collect())
    }
}

fn check_rate(field: &str, rate: Option<RateSpec>, faults: &mut Vec<Fault>) {
    let Some(rate) = rate else { return };
    if !(1..=RATE_MOST).contains(&rate.per_second) {
        let message = format!("is {}: write a number from 1 to {RATE_MOST}", rate.per_second);
        faults.push(fault(format!("{field}.perSecond"), message));
    }
    if !(1..=RATE_MOST).contains(&rate.burst()) && rate.burst.is_some() {
        let message = format!("is {}: write a number from 1 to {RATE_MOST}", rate.burst());
        faults.push(fault(format!("{field}.burst"), message));
    }
}

fn check_least<T: Copy + PartialOrd + Display>(field: &str, value: T, least: T, faults: &mut Vec<Fault>) {
    if value < least {
        faults.push(fault(field, format!("is {value}: write {least} or more")));
    }
}

fn wrong_tick(tick: TickSpec) -> Option<Fault> {
    let every = tick.every;
    if !(TICK_LEAST..=TICK_MOST).contains(&every.0) {
        let (least, most) = (Duration(TICK_LEAST), Duration(TICK_MOST));
        return Some(fault("spec.tick.every", format!("is {every}: write {least} to {most}")));
    }
    let timeout = tick.timeout?;
    let most = Duration(TICK_TIMEOUT_MOST.min(every.0));
    let is_wrong = timeout.0.is_zero() || timeout.0 > most.0;
    let message =
        format!("is {timeout}: write more than 0s and at most {most}, because states wait meanwhile");
    is_wrong.then(|| fault("spec.tick.timeout", message))
}

impl PluginSpec {
    /// Each with its field.
    pub(super) fn modules(&self) -> impl Iterator<Item = (&'static str, &ModuleSpec)> {
        let shadow = self.shadow.iter().map(|shadow| ("spec.shadow.module", &shadow.module));
        std::iter::once(("spec.module", &self.module)).chain(shadow)
    }

    /// Checks the names against the host's settings. The sandbox checks the component itself.
    pub fn check(&self, host: &HostSpec) -> Vec<Fault> {
        let mut faults = Vec::new();
        for (field, module) in self.modules() {
            check_module(field, module, !host.modules.signed_by.is_empty(), &mut faults);
        }
        self.check_subscriptions(host, &mut faults);
        self.check_granted(host, &mut faults);
        for (field, value) in [
            ("spec.delivery.batch", self.delivery.batch),
            ("spec.limits.concurrency", self.limits.concurrency),
            ("spec.limits.hostCalls", self.limits.host_calls),
        ] {
            if value == 0 {
                faults.push(fault(field, "is 0: write 1 or more"));
            }
        }
        let limits = &self.limits;
        let (memory, bytes, call) = (Bytes(MEMORY_LEAST), Bytes(HOST_BYTES_LEAST), Duration(CALL_LEAST));
        check_least("spec.limits.memory", limits.memory, memory, &mut faults);
        check_least("spec.limits.hostBytes", limits.host_bytes, bytes, &mut faults);
        check_least("spec.limits.call", limits.call, call, &mut faults);
        let delivery = &self.delivery;
        let rates = [
            ("rate", delivery.rate),
            ("callRate", delivery.call_rate),
            ("retryRate", Some(delivery.retry_rate)),
        ];
        for (field, rate) in rates {
            check_rate(&format!("spec.delivery.{field}"), rate, &mut faults);
        }
        if self.delivery.batch > BATCH_MOST {
            let message = format!("is over {BATCH_MOST}, the most that one call may carry");
            faults.push(fault("spec.delivery.batch", message));
        }
        faults.extend(self.tick.and_then(wrong_tick));
        faults.extend(host.limits.plugins.check(self));
        faults
    }

    /// Settings that do no harm but can't be meant.
    pub fn warnings(&self, host: &HostSpec) -> Vec<Fault> {
        let DeliverySpec { backoff, max_backoff, .. } = self.delivery;
        let is_cut = backoff.0 > max_backoff.0 && backoff != DeliverySpec::default().backoff;
        let message =
            format!("is {backoff}, and `maxBackoff` cuts it to {max_backoff}: write one of them anew");
        let cut = is_cut.then(|| fault("spec.delivery.backoff", message));
        let never = |source: &str| host.sources.iter().any(|s| s.name == source && s.resync.is_none());
        let asks = self.subscribe.iter().enumerate().filter(|(_, s)| s.resync && never(&s.source));
        let warning = |(index, s): (usize, &super::SubscribeSpec)| {
            let message = format!(
                "is true, but the source `{}` is never resynced: give it `resync: 10m` in the host's settings, or \
                 leave this out",
                s.source
            );
            fault(format!("spec.subscribe[{index}].resync"), message)
        };
        asks.map(warning).chain(cut).chain(ledgers::signed_by_plugin(&self.grants, &host.ledgers)).collect()
    }

    /// Settings that are valid but probably not meant beside this other plugin.
    pub fn warnings_beside(&self, name: &str, other: &Self) -> Vec<Fault> {
        let is_shared = |ledger: &str| other.grants.ledger.iter().any(|theirs| theirs.ledger == ledger);
        let shared = self.grants.ledger.iter().enumerate().filter(|(_, own)| is_shared(&own.ledger));
        let warning = |(index, own): (usize, &super::LedgerGrant)| {
            let message = format!(
                "is `{}`, which `{name}` writes as well: a state that both write stands there twice, and `kubewitness \
                 audit verify` fails on it; give each a ledger of its own",
                own.ledger
            );
            fault(format!("spec.grants.ledger[{index}].ledger"), message)
        };
        shared.map(warning).collect()
    }

    fn check_subscriptions(&self, host: &HostSpec, faults: &mut Vec<Fault>) {
        let known: Vec<_> = host.sources.iter().map(|s| s.name.as_str()).collect();
        if self.subscribe.is_empty() {
            faults.push(fault("spec.subscribe", "is empty: a plugin without a subscription is never called"));
        }
        let mut seen = std::collections::HashSet::new();
        for (index, subscription) in self.subscribe.iter().enumerate() {
            check_rate(&format!("spec.subscribe[{index}].replayRate"), subscription.replay_rate, faults);
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
                "has more than one database: keep one, because rows and receipts commit together",
            ));
        }
        if grants.ledger.len() > 1 {
            faults.push(fault(
                "spec.grants.ledger",
                "has more than one ledger: keep one, because records and receipts are kept together",
            ));
        }
        let destinations: Vec<_> = host.destinations.iter().map(|s| s.name.as_str()).collect();
        let pairs = grants.http.iter().map(|g| (g.name.as_str(), g.destination.as_str()));
        check_grants("http", "destination", pairs, &destinations, faults);
        let mail: Vec<_> = host.mail.iter().map(|s| s.name.as_str()).collect();
        let pairs = grants.mail.iter().map(|g| (g.name.as_str(), g.server.as_str()));
        check_grants("mail", "server", pairs, &mail, faults);
        let ledgers: Vec<_> = host.ledgers.iter().map(|s| s.name.as_str()).collect();
        let pairs = grants.ledger.iter().map(|g| (g.name.as_str(), g.ledger.as_str()));
        check_grants("ledger", "ledger", pairs, &ledgers, faults);
        let keys: Vec<_> = host.keys.iter().map(|s| s.name.as_str()).collect();
        let pairs = grants.keys.iter().map(|g| (g.name.as_str(), g.key.as_str()));
        check_grants("keys", "key", pairs, &keys, faults);
        ledgers::check_granted_keys(&grants.keys, &host.ledgers, faults);
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
    use crate::config::{Since, Start};

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
    fn a_database_is_exactly_one_and_its_address_is_a_reference() {
        let faults = |database: serde_json::Value| {
            let mut host = host();
            host.databases = vec![serde_json::from_value(database).unwrap()];
            host.check().into_iter().map(|fault| fault.field).collect::<Vec<_>>()
        };
        let env = |name: &str| serde_json::json!({"urlFrom": {"env": name}});
        let named = |engine: &str, of: serde_json::Value| serde_json::json!({"name": "a", engine: of});
        assert_eq!(faults(named("postgres", env("URL"))), [] as [String; 0]);
        assert_eq!(
            faults(named("mysql", serde_json::json!({"urlFrom": {"file": "/url"}}))),
            [] as [String; 0]
        );
        assert_eq!(faults(serde_json::json!({"name": "a"})), ["spec.databases[0]"]);
        let two = serde_json::json!({"name": "a", "sqlite": {"path": "a.db"}, "mysql": env("URL")});
        assert_eq!(faults(two), ["spec.databases[0]"]);
        assert_eq!(faults(named("mysql", env(""))), ["spec.databases[0].mysql.urlFrom"]);
        let address = env("postgres://user:password@host/db");
        assert_eq!(faults(named("postgres", address)), ["spec.databases[0].postgres.urlFrom"]);
        let small = serde_json::json!({"path": "a.db", "size": "1023Ki"});
        assert_eq!(faults(named("sqlite", small)), ["spec.databases[0].sqlite.size"]);
        let many = serde_json::json!({"urlFrom": {"env": "URL"}, "connections": 0});
        assert_eq!(faults(named("postgres", many)), ["spec.databases[0].postgres.connections"]);
    }

    #[test]
    fn a_limit_under_which_nothing_runs_is_refused_and_a_pause_that_is_cut_is_told() {
        let of = |more: serde_json::Value| {
            let mut spec =
                serde_json::json!({"module": {"file": "p.wasm"}, "subscribe": [{"source": "jobs"}]});
            spec.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap());
            plugin(spec)
        };
        let told = |faults: Vec<Fault>| -> Vec<_> {
            faults.into_iter().map(|it| format!("{}: {}", it.field, it.message)).collect()
        };
        for (limit, value, least) in [
            ("memory", "64", "is 64: write 64Ki"),
            ("hostBytes", "0Ki", "is 0: write 1Ki"),
            ("call", "0s", "is 0ms: write 1ms"),
        ] {
            let faults = told(of(serde_json::json!({"limits": {limit: value}})).check(&host()));
            assert_eq!(faults, [format!("spec.limits.{limit}: {least} or more")]);
        }
        let smallest = serde_json::json!({"memory": "64Ki", "hostBytes": "1Ki", "call": "1ms"});
        assert_eq!(of(serde_json::json!({"limits": smallest})).check(&host()), []);
        let warnings = |delivery: serde_json::Value| {
            told(of(serde_json::json!({"delivery": delivery})).warnings(&host()))
        };
        assert_eq!(warnings(serde_json::json!({"maxBackoff": "1ms"})), [] as [String; 0]);
        let cut = warnings(serde_json::json!({"backoff": "1d", "maxBackoff": "1ms"}));
        assert!(
            cut.len() == 1 && cut[0].contains("spec.delivery.backoff: is 1d") && cut[0].contains("to 1ms")
        );
    }

    #[test]
    fn a_schedule_has_bounds_and_a_tick_ends_before_the_next() {
        for (tick, told) in [
            (r#"{"every": "999ms"}"#, "spec.tick.every: is 999ms: write 1s to 1d"),
            (r#"{"every": "25h"}"#, "spec.tick.every: is 25h: write 1s to 1d"),
            (
                r#"{"every": "2s", "timeout": "3s"}"#,
                "spec.tick.timeout: is 3s: write more than 0s and at most 2s",
            ),
            (
                r#"{"every": "1h", "timeout": "61s"}"#,
                "spec.tick.timeout: is 61s: write more than 0s and at most 1m",
            ),
            (r#"{"every": "1h", "timeout": "0s"}"#, "spec.tick.timeout: is 0ms: write more"),
        ] {
            let fault = wrong_tick(serde_json::from_str(tick).unwrap()).unwrap();
            let text = format!("{}: {}", fault.field, fault.message);
            assert!(text.starts_with(told), "{text}");
        }
        for (fine, timeout) in [
            (r#"{"every": "1s"}"#, 1),
            (r#"{"every": "1d"}"#, 10),
            (r#"{"every": "1m", "timeout": "1m"}"#, 60),
        ] {
            let tick: TickSpec = serde_json::from_str(fine).unwrap();
            assert_eq!((wrong_tick(tick), tick.timeout().as_secs()), (None, timeout), "{fine}");
        }
        let spec = plugin(serde_json::json!({
            "module": {"file": "p.wasm"},
            "subscribe": [{"source": "jobs"}],
            "tick": {"every": "1ms"},
        }));
        assert_eq!(spec.check(&host())[0].field, "spec.tick.every");
    }

    #[test]
    fn a_resync_has_a_least_pause() {
        let mut host = host();
        for (seconds, faults) in [(10, 0), (9, 1), (0, 1)] {
            host.sources[0].resync = Some(super::super::Duration(std::time::Duration::from_secs(seconds)));
            assert_eq!(host.check().len(), faults, "{seconds} s");
        }
        assert_eq!(host.check()[0].field, "spec.sources[0].resync");
    }

    #[test]
    fn audits_have_a_least_pause_or_never_come() {
        let mut host = host();
        for (millis, faults) in [(0, 0), (1, 1), (9_999, 1), (10_000, 0)] {
            host.sources[0].audit = super::super::Duration(std::time::Duration::from_millis(millis));
            assert_eq!(host.check().len(), faults, "{millis} ms");
        }
    }

    #[test]
    fn a_namespace_is_a_name_and_no_part_of_an_address() {
        let mut host = host();
        for (namespace, faults) in [("team-vision", 0), ("", 1), ("a/../b", 1), ("a?watch=true", 1)] {
            host.sources[0].namespace = Some(namespace.to_string());
            assert_eq!(host.check().len(), faults, "{namespace}");
        }
        assert_eq!(host.check()[0].field, "spec.sources[0].namespace");
    }

    #[test]
    fn labels_that_no_object_can_have_are_a_fault() {
        let mut host = host();
        for (key, value, faults) in [
            ("team", "vision", 0),
            ("example.com/team", "", 0),
            ("team", "a b", 1),
            ("", "a", 1),
            ("-team", "a", 1),
            ("Example.com/team", "a", 1),
            ("a/b/c", "a", 1),
            ("team", &"a".repeat(64), 1),
        ] {
            host.sources[0].match_labels = [(key.to_string(), value.to_string())].into();
            assert_eq!(host.check().len(), faults, "{key}={value}");
        }
        assert_eq!(host.check()[0].field, "spec.sources[0].matchLabels");
    }

    #[test]
    fn a_subscription_to_resyncs_that_never_come_is_a_warning_and_no_fault() {
        let mut host = host();
        let spec = plugin(serde_json::json!({
            "module": {"file": "p.wasm"}, "subscribe": [{"source": "jobs", "resync": true}],
        }));
        assert!(spec.check(&host).is_empty(), "taking it from the source must not take the plugin out");
        assert_eq!(spec.warnings(&host)[0].field, "spec.subscribe[0].resync");
        host.sources[0].resync = Some(super::super::Duration(std::time::Duration::from_secs(60)));
        assert!(spec.warnings(&host).is_empty());
    }

    #[test]
    fn a_start_is_a_word_a_time_or_a_position() {
        let start = |value: serde_json::Value| serde_json::from_value::<Start>(value);
        assert_eq!(start("now".into()).unwrap(), Start::Now);
        assert_eq!(start(serde_json::json!({"position": 7})).unwrap(), Start::Position(7));
        let since = |text: &str| match start(serde_json::json!({"since": text})) {
            Ok(Start::Since(since)) => since.ms(10_000_000_000),
            other => panic!("{other:?}"),
        };
        assert_eq!(since("1970-01-02T00:00:00Z"), 86_400_000);
        assert_eq!((since("2h"), since("30d"), since("400d")), (9_992_800_000, 7_408_000_000, 0));
        let error = start(serde_json::json!({"since": "last month"})).unwrap_err().to_string();
        assert!(error.contains("`last month` is no time"), "{error}");
        let text = serde_json::to_string(&Start::Since(Since::At(86_400_000))).unwrap();
        assert_eq!(text, r#"{"since":"1970-01-02T00:00:00.000Z"}"#);
    }

    #[test]
    fn a_rate_of_nothing_is_a_fault_of_its_field() {
        let spec = plugin(serde_json::json!({
            "module": {"file": "p.wasm"}, "subscribe": [{"source": "jobs"}],
            "delivery": {
                "rate": {"perSecond": 0}, "callRate": {"perSecond": 5, "burst": 0}, "retryRate": {"perSecond": 9},
            },
        }));
        let fields: Vec<_> = spec.check(&host()).into_iter().map(|fault| fault.field).collect();
        assert_eq!(fields, ["spec.delivery.rate.perSecond", "spec.delivery.callRate.burst"]);
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
    fn an_index_has_a_name_of_its_own_and_a_pointer() {
        let mut host = host();
        let indexes =
            [("queue", "/spec/q"), ("node", "/a"), ("9x", "/a"), ("queue", "/b"), ("byZone", "spec")];
        host.sources[0].indexes =
            indexes.map(|(name, pointer)| IndexSpec { name: name.into(), pointer: pointer.into() }).into();
        let fields: Vec<_> = host.check().into_iter().map(|fault| fault.field).collect();
        let expected = ["[1].name", "[2].name", "[3].name", "[4].pointer"];
        assert_eq!(fields, expected.map(|end| format!("spec.sources[0].indexes{end}")));
    }
}
