//! Decides who is notified of a state. Pure: it depends on the configuration and on what was read of the
//! object.
//!
//! An object passes through many phases, and its pods report the same failure again. So only outcomes are
//! news unless more is requested, and a part is reported with its owner. A state that can't be attributed is
//! reported rather than dropped.

mod past;

use std::collections::{BTreeMap, BTreeSet};

use kubewitness_sdk::{Change, ObjectRef, State};

use crate::config::{Config, Route};
use crate::direct;
use crate::facts::{self, Facts};

pub use past::{PLACES, happened_ms};

/// The annotation that names recipients.
pub const NOTIFY: &str = "kubewitness.dev/notify";
/// The annotation that mutes an object.
pub const MUTE: &str = "kubewitness.dev/mute";
/// The label by which a Pod names its Job.
const JOB_UID: &str = "batch.kubernetes.io/controller-uid";
/// Groups whose kinds own Pods that run without end, such as a Deployment, a DaemonSet or a Node. They
/// replace a Pod that fails.
const SERVICE_GROUPS: [&str; 2] = ["apps", ""];
/// Limits for annotations, because anybody who creates an object writes them.
const ANNOTATION_BYTES: usize = 512;
const RECIPIENTS: usize = 8;
/// The most bytes that the API server allows a label.
const LABEL_BYTES: usize = 63;

pub const PHASES: [&str; 13] = [
    "Queued",
    "Admitted",
    "Pending",
    "Starting",
    "Running",
    "Restarting",
    "Suspended",
    "Preempted",
    "Succeeded",
    "Failed",
    "Cancelled",
    "Deleted",
    "Unknown",
];
const FAILED: &str = "Failed";
/// The phases reported for a Pod that stands in for its owner.
const LOST_PHASES: [&str; 2] = [FAILED, "Preempted"];
/// The phases reported by default.
const OUTCOME_PHASES: [&str; 5] = ["Succeeded", "Failed", "Cancelled", "Preempted", "Deleted"];

/// Phases in which an object continues. An outcome before them is withdrawn, if they follow within the settle
/// time.
const RESUMED_PHASES: [&str; 3] = ["Admitted", "Starting", "Running"];

/// The facts about a state on which the decision depends.
pub struct SeenState<'a> {
    pub state: &'a State,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    /// When the news happened.
    pub happened_ms: u64,
}

#[derive(Debug, PartialEq, Eq)]
pub enum DecidedNews {
    Nothing,
    /// Too old to be reported.
    Old,
    /// Reported to these recipients.
    News(BTreeSet<String>),
    /// Reported with the object to which it belongs.
    Part,
    /// Muted: its recipients, and what mutes it.
    Muted(BTreeSet<String>, &'static str),
}

/// Whether a state may be news. It needs no document.
pub fn may_be_news(config: &Config, state: &State) -> bool {
    direct::is_news(state) && is_reported_change(state) && is_asked_for(config, facts::phase(state))
}

/// Whether the object continues after a phase that may be reported, in a phase that nobody requests. Such a
/// state withdraws the outcome before it. It needs no document.
pub fn withdraws_outcome(config: &Config, state: &State) -> bool {
    let phase = facts::phase(state);
    direct::is_news(state)
        && !facts::is_late(state)
        && RESUMED_PHASES.contains(&phase)
        && !is_asked_for(config, phase)
        && state.previous.as_ref().is_some_and(|previous| is_asked_for(config, &previous.phase))
}

fn is_asked_for(config: &Config, phase: &str) -> bool {
    let routes = config.routes.iter().flatten().flat_map(|route| &route.phases);
    reports_phase(&config.phases, phase) || routes.into_iter().any(|wanted| wanted == phase)
}

/// Whether the change is reported: not if phase, attempt and exit code stay the same.
fn is_reported_change(state: &State) -> bool {
    let of = |status: &kubewitness_sdk::Status| (status.phase.clone(), status.attempt, status.exit_code);
    let previous = state.previous.as_ref();
    match state.change {
        // The controller cleans up an object after its outcome, which is no outcome. A deletion itself is
        // always terminal.
        Change::Gone => previous.is_none_or(|previous| !previous.terminal),
        _ => previous.is_none_or(|previous| of(previous) != of(&state.status)),
    }
}

pub fn decide_news(config: &Config, seen: &SeenState, now_ms: u64) -> DecidedNews {
    let state = seen.state;
    let (recipients, is_part) = (all_recipients(config, seen), is_part(state) && !stands_in(seen));
    if recipients.is_empty() && !(is_part && facts::phase(state) == FAILED) {
        return DecidedNews::Nothing;
    }
    if now_ms.saturating_sub(seen.happened_ms) > config.oldest.ms {
        return DecidedNews::Old;
    }
    match (why_muted(config, seen), recipients.is_empty()) {
        (Some(_), true) => DecidedNews::Nothing,
        (Some(by), false) => DecidedNews::Muted(recipients, by),
        (None, true) => DecidedNews::Part,
        (None, false) => DecidedNews::News(recipients),
    }
}

/// The reason why a state is muted. The object's annotation takes precedence over its namespace. Every value
/// but `false` mutes, so that a misspelled one notifies nobody.
fn why_muted(config: &Config, seen: &SeenState) -> Option<&'static str> {
    let namespace = config.namespaces.get(&seen.state.object.namespace);
    match seen.annotations.get(MUTE) {
        _ if config.mute => Some("the configuration mutes everything"),
        Some(value) => (value != "false").then_some("the object's annotation kubewitness.dev/mute"),
        None => namespace.filter(|namespace| namespace.mute).map(|_| "the configuration mutes the namespace"),
    }
}

/// Whether messages about the owner cover its parts. A CronJob's Jobs are reported by themselves, and so are
/// parts of an owner to whose kind there is no subscription.
fn leads_its_parts(state: &State, owner: &ObjectRef) -> bool {
    owner.kind != "CronJob" && state.has_subscribed_owner()
}

/// Whether the state is of a part of another object. A part's end is no outcome of its own: a Pod is tried
/// again, or its owner fails.
pub fn is_part(state: &State) -> bool {
    let others = state.owner.as_ref().filter(|owner| owner.uid != state.object.uid);
    others.is_some_and(|owner| is_pod(state) || leads_its_parts(state, owner))
}

/// Whether a Pod stands in for its owner: no subscription has the owner's kind, and no Job is between the
/// two. Only the loss of such a Pod is reported: other Pods may continue, and the owner may try again.
pub fn stands_in(seen: &SeenState) -> bool {
    let state = seen.state;
    let Some(owner) = state.owner.as_ref().filter(|_| is_pod(state) && is_part(state)) else { return false };
    let is_work = !SERVICE_GROUPS.contains(&owner.group.as_str());
    is_work && !state.has_subscribed_owner() && seen.labels.get(JOB_UID).is_none_or(|job| *job == owner.uid)
}

fn is_pod(state: &State) -> bool {
    state.object.kind == "Pod"
}

/// The group of states that are reported together, as `NAMESPACE/UID` of the owner of a part, or of the
/// object itself. A Pod whose owner is not reported belongs to its Job. Anybody who creates an object may
/// choose the uid of its owner and any label. But the namespace of the owner comes from the host, and a Job
/// is in its Pod's namespace, so no part joins a group of another namespace.
pub fn message_group(seen: &SeenState) -> String {
    let state = seen.state;
    let Some(owner) = state.owner.as_ref().filter(|_| is_part(state)) else {
        return group_of(&state.object.namespace, &state.object.uid);
    };
    match seen.labels.get(JOB_UID).filter(|_| !leads_its_parts(state, owner)) {
        Some(job) => group_of(&state.object.namespace, &facts::clip_text(job, LABEL_BYTES)),
        None => group_of(&owner.namespace, &owner.uid),
    }
}

fn group_of(namespace: &str, uid: &str) -> String {
    format!("{namespace}/{uid}")
}

/// Whether these are facts of the object itself after which the group is named.
pub fn is_own(facts: &Facts, group: &str) -> bool {
    group.split_once('/') == Some((facts::text(facts, "namespace"), facts::text(facts, "uid")))
}

fn all_recipients(config: &Config, seen: &SeenState) -> BTreeSet<String> {
    let state = seen.state;
    let (stands_in, phase) = (stands_in(seen), facts::phase(state));
    let is_part = is_part(state) && !stands_in;
    let is_reported = reports_phase(&config.phases, phase) && (!stands_in || LOST_PHASES.contains(&phase));
    let mut recipients = BTreeSet::new();
    match seen.annotations.get(NOTIFY) {
        // Controllers copy annotations to Pods, many of which may fail.
        Some(annotation) if is_reported && !(is_part && is_pod(state)) => {
            recipients.extend(named_recipients(config, annotation));
        }
        None if is_reported && !is_part => {
            let namespace = config.namespaces.get(&state.object.namespace);
            recipients.extend(namespace.into_iter().flat_map(|namespace| namespace.to.iter().cloned()));
        }
        _ => {}
    }
    if is_reported && !is_part && config.routes.is_none() {
        let all = config.channels.iter().filter(|channel| !channel.kind.has_addresses());
        recipients.extend(all.map(|channel| channel.name.clone()));
    }
    for route in config.routes.iter().flatten().filter(|route| fits_route(config, route, seen)) {
        recipients.extend(route.to.iter().cloned());
    }
    // Mail servers ignore the case of a name.
    let mut seen = BTreeSet::new();
    recipients.retain(|to| seen.insert(to.to_ascii_lowercase()));
    recipients
}

/// The recipients of an annotation, except those that it may not name.
fn named_recipients(config: &Config, annotation: &str) -> Vec<String> {
    let may_be = |name: &&str| why_refused(config, name).is_none();
    names(annotation).filter(may_be).map(str::to_string).collect()
}

/// The recipients of an object's annotation that can't be notified, each with the reason.
pub fn refused_recipients(config: &Config, seen: &SeenState) -> Vec<(String, String)> {
    let annotation = seen.annotations.get(NOTIFY).map(String::as_str).unwrap_or_default();
    let mut refusals: Vec<_> =
        names(annotation).filter_map(|name| Some((name.to_string(), why_refused(config, name)?))).collect();
    let after = parts(annotation).nth(RECIPIENTS).map(|name| facts::clip_text(name, ANNOTATION_BYTES));
    let cut = (annotation.len() > ANNOTATION_BYTES).then(|| "…".to_string());
    let limits = format!("the annotation may name {RECIPIENTS} recipients in {ANNOTATION_BYTES} bytes");
    refusals.extend(after.or(cut).map(|name| (name, limits)));
    refusals
}

fn names(annotation: &str) -> impl Iterator<Item = &str> {
    parts(annotation).take(RECIPIENTS)
}

fn parts(annotation: &str) -> impl Iterator<Item = &str> {
    let text = &annotation[..annotation.floor_char_boundary(ANNOTATION_BYTES)];
    // Line ends and tabs separate names, so none of them gets into a message's header.
    let parts = text.split(|c: char| c == ',' || c.is_whitespace() || c.is_control());
    parts.filter(|name| !name.is_empty())
}

fn why_refused(config: &Config, name: &str) -> Option<String> {
    match config.find_recipient(name) {
        Ok((channel, _)) if channel.annotation => None,
        Ok((channel, _)) => Some(format!("the channel `{}` takes no annotations", channel.name)),
        Err(why) => Some(why),
    }
}

fn reports_phase(phases: &[String], phase: &str) -> bool {
    match phases.is_empty() {
        true => OUTCOME_PHASES.contains(&phase),
        false => phases.iter().any(|wanted| wanted == phase),
    }
}

fn fits_route(config: &Config, route: &Route, seen: &SeenState) -> bool {
    let state = seen.state;
    let any = |wanted: &[String], found: &str| {
        wanted.is_empty() || wanted.iter().any(|one| matches_pattern(one, found))
    };
    let owner =
        state.owner.as_ref().map(|owner| format!("{}/{}", owner.kind, owner.name)).unwrap_or_default();
    let of_itself = || !is_part(state) || stands_in(seen) && LOST_PHASES.contains(&facts::phase(state));
    let kind_fits = if route.kinds.is_empty() { of_itself() } else { any(&route.kinds, &state.object.kind) };
    let phases = if route.phases.is_empty() { &config.phases } else { &route.phases };
    kind_fits
        && reports_phase(phases, facts::phase(state))
        && any(&route.namespaces, &state.object.namespace)
        && any(&route.owners, &owner)
        && any(&route.changes, facts::change(state))
        && route.labels.iter().all(|(name, value)| seen.labels.get(name) == Some(value))
        && route.hours.as_ref().is_none_or(|hours| hours.contains(state.observed_ms))
}

fn matches_pattern(pattern: &str, text: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(start) => text.starts_with(start),
        None => pattern == text,
    }
}

#[cfg(test)]
mod tests;
