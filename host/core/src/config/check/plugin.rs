//! Checks the settings of one plugin against the controller's settings.

use std::fmt::Display;

use crate::config::components::check_module;
use crate::config::values::unknown_name_message;
use crate::config::{
    Bytes, DeliverySpec, Duration, HostSpec, LedgerGrant, ModuleSpec, PluginSpec, RateSpec, SubscribeSpec,
    TickSpec, ledgers,
};
use crate::limits::{
    BATCH_MOST, CALL_LEAST, HOST_BYTES_LEAST, MEMORY_LEAST, TICK_LEAST, TICK_MOST, TICK_TIMEOUT_MOST,
};
use crate::model::fault::{ManifestFault, fault};
use crate::model::kinds::is_name;

/// More states a second than any plugin handles; a higher rate would limit nothing.
pub(in crate::config) const RATE_MOST: u32 = 1_000_000;

impl PluginSpec {
    /// Every module, with its field.
    pub(in crate::config) fn all_modules(&self) -> impl Iterator<Item = (&'static str, &ModuleSpec)> {
        let shadow = self.shadow.iter().map(|shadow| ("spec.shadow.module", &shadow.module));
        std::iter::once(("spec.module", &self.module)).chain(shadow)
    }

    /// Checks the names against the host's settings. The sandbox checks the component itself.
    pub fn check(&self, host: &HostSpec) -> Vec<ManifestFault> {
        let mut faults = Vec::new();
        for (field, module) in self.all_modules() {
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

    /// Settings that are harmless but probably not intended.
    pub fn warnings(&self, host: &HostSpec) -> Vec<ManifestFault> {
        let DeliverySpec { backoff, max_backoff, .. } = self.delivery;
        let is_cut = backoff.0 > max_backoff.0 && backoff != DeliverySpec::default().backoff;
        let message =
            format!("is {backoff}, longer than `maxBackoff`, {max_backoff}: lower it, or raise `maxBackoff`");
        let cut = is_cut.then(|| fault("spec.delivery.backoff", message));
        let never = |source: &str| host.sources.iter().any(|s| s.name == source && s.resync.is_none());
        let asks = self.subscribe.iter().enumerate().filter(|(_, s)| s.resync && never(&s.source));
        let warning = |(index, s): (usize, &SubscribeSpec)| {
            let message = format!(
                "is true, but the source `{}` is never resynced: give it `resync: 10m` in the host's settings, or \
                 leave this out",
                s.source
            );
            fault(format!("spec.subscribe[{index}].resync"), message)
        };
        asks.map(warning).chain(cut).chain(ledgers::signed_by_plugin(&self.grants, &host.ledgers)).collect()
    }

    /// Settings that are valid but probably not intended, given this other plugin.
    pub fn warnings_beside(&self, name: &str, other: &Self) -> Vec<ManifestFault> {
        let is_shared = |ledger: &str| other.grants.ledger.iter().any(|theirs| theirs.ledger == ledger);
        let shared = self.grants.ledger.iter().enumerate().filter(|(_, own)| is_shared(&own.ledger));
        let warning = |(index, own): (usize, &LedgerGrant)| {
            let message = format!(
                "is `{}`, which `{name}` writes as well: a state that both write stands there twice, and `kubewitness \
                 audit verify` fails on it; give each a ledger of its own",
                own.ledger
            );
            fault(format!("spec.grants.ledger[{index}].ledger"), message)
        };
        shared.map(warning).collect()
    }

    fn check_subscriptions(&self, host: &HostSpec, faults: &mut Vec<ManifestFault>) {
        let known: Vec<_> = host.sources.iter().map(|s| s.name.as_str()).collect();
        if self.subscribe.is_empty() {
            faults.push(fault("spec.subscribe", "is empty: a plugin without a subscription is never called"));
        }
        let mut seen = std::collections::HashSet::new();
        for (index, subscription) in self.subscribe.iter().enumerate() {
            check_rate(&format!("spec.subscribe[{index}].replayRate"), subscription.replay_rate, faults);
            let field = format!("spec.subscribe[{index}].source");
            if !known.contains(&subscription.source.as_str()) {
                faults.push(fault(field, unknown_name_message("source", &subscription.source, &known)));
            } else if !seen.insert(subscription.source.as_str()) {
                faults.push(fault(field, format!("`{}` is subscribed twice", subscription.source)));
            }
        }
    }

    fn check_granted(&self, host: &HostSpec, faults: &mut Vec<ManifestFault>) {
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
        for (list, named) in [("lister", &grants.lister), ("outcomes", &grants.outcomes)] {
            for (index, source) in
                named.iter().enumerate().filter(|(_, source)| !sources.contains(&source.as_str()))
            {
                faults.push(fault(
                    format!("spec.grants.{list}[{index}]"),
                    unknown_name_message("source", source, &sources),
                ));
            }
        }
    }
}

fn check_grants<'a>(
    list: &str,
    target: &str,
    grants: impl Iterator<Item = (&'a str, &'a str)>,
    known: &[&str],
    faults: &mut Vec<ManifestFault>,
) {
    for (index, (name, to)) in grants.enumerate() {
        if !is_name(name) {
            faults
                .push(fault(format!("spec.grants.{list}[{index}].name"), format!("`{name}` is not a name")));
        }
        if !known.contains(&to) {
            faults.push(fault(
                format!("spec.grants.{list}[{index}].{target}"),
                unknown_name_message(target, to, known),
            ));
        }
    }
}

fn check_rate(field: &str, rate: Option<RateSpec>, faults: &mut Vec<ManifestFault>) {
    let Some(rate) = rate else { return };
    if !(1..=RATE_MOST).contains(&rate.per_second) {
        let message = format!("is {}: write a number from 1 to {RATE_MOST}", rate.per_second);
        faults.push(fault(format!("{field}.perSecond"), message));
    }
    if !(1..=RATE_MOST).contains(&rate.burst_or_default()) && rate.burst.is_some() {
        let message = format!("is {}: write a number from 1 to {RATE_MOST}", rate.burst_or_default());
        faults.push(fault(format!("{field}.burst"), message));
    }
}

fn check_least<T: Copy + PartialOrd + Display>(
    field: &str,
    value: T,
    least: T,
    faults: &mut Vec<ManifestFault>,
) {
    if value < least {
        faults.push(fault(field, format!("is {value}: write {least} or more")));
    }
}

pub(super) fn wrong_tick(tick: TickSpec) -> Option<ManifestFault> {
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
