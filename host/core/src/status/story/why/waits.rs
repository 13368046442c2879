//! What an object waits for, and how long it has waited for each thing before it first ran.

use std::collections::BTreeMap;

use super::documents::{OwnerDocument, PodDocument};
use super::{Cause, CauseKind, DocumentsBySeq, Story, is_workload, pod_end, told};
use crate::state::{Change, State, Status};
use crate::status::phase;

/// The newest state of each object, by uid, without those that are gone.
fn newest<'a>(states: impl Iterator<Item = &'a State>) -> impl Iterator<Item = &'a State> {
    let mut newest: BTreeMap<&str, &State> = BTreeMap::new();
    for state in states.filter(|state| state.change != Change::Gap) {
        newest.insert(&state.object.uid, state);
    }
    newest.into_values().filter(|state| state.change == Change::Present)
}

/// Of the pods that can't start now, the one whose newest state is the oldest.
pub(super) fn stuck_pod<'a>(story: &Story<'a>) -> Option<&'a State> {
    let stuck = newest(story.pods()).filter(|state| pod_end::waiting(&state.status.reason).is_some());
    stuck.filter(|state| !state.status.terminal).min_by_key(|state| state.seq)
}

/// The first pod that did not run, by the last state that says what it waited for. Pods that ended later count, too.
pub(super) fn stuck_before_end<'a>(story: &Story<'a>) -> Option<&'a State> {
    let mut stuck: BTreeMap<&str, &State> = BTreeMap::new();
    for state in story.pods().filter(|state| state.change == Change::Present) {
        match pod_end::waiting(&state.status.reason) {
            Some(_) => drop(stuck.insert(&state.object.uid, state)),
            None if matches!(state.status.phase.as_str(), phase::RUNNING | phase::SUCCEEDED) => {
                stuck.remove(state.object.uid.as_str());
            }
            None => {}
        }
    }
    stuck.into_values().min_by_key(|state| state.seq)
}

/// Whether the pod of a cause still exists and has not ended.
pub(super) fn is_alive(story: &Story<'_>, cause: &Cause) -> bool {
    let Some(object) = &cause.object else { return false };
    newest(story.pods()).any(|state| state.object.uid == object.uid && !state.status.terminal)
}

/// Kueue's own object, which says why its owner waits.
fn workload<'a>(story: &Story<'a>) -> Option<&'a State> {
    newest(story.related.iter().map(|state| &**state).filter(|state| is_workload(&state.object)))
        .max_by_key(|state| state.seq)
}

pub(super) fn has_queue(story: &Story<'_>, owner: &OwnerDocument) -> bool {
    owner.has_queue || story.related.iter().any(|state| is_workload(&state.object))
}

/// Whether somebody holds the object back. Kueue holds what it queues in the same way.
fn is_held(status: &Status) -> bool {
    match status.phase.as_str() {
        phase::SUSPENDED => true,
        phase::QUEUED => status.reason.ends_with("Suspended"),
        _ => false,
    }
}

/// What an object waits for by its own status; none where its pods decide.
fn by_owner(status: &Status, has_queue: bool) -> Option<CauseKind> {
    match status.phase.as_str() {
        phase::PREEMPTED => Some(CauseKind::Preempted),
        _ if is_held(status) && !has_queue => Some(CauseKind::Suspended),
        phase::SUSPENDED | phase::QUEUED => Some(CauseKind::Quota),
        _ => None,
    }
}

/// Why an object waits now.
pub(super) fn cause(story: &Story<'_>, owner: &OwnerDocument, documents: &DocumentsBySeq) -> Option<Cause> {
    let last = story.last()?;
    let status = told(last);
    // A pod's document says more than its phase.
    let by_owner = by_owner(&status, has_queue(story, owner)).filter(|_| !super::is_pod(&last.object));
    if let Some(kind) = by_owner {
        return Some(match workload(story) {
            Some(workload) if kind != CauseKind::Suspended => of_workload(workload),
            _ => of_state(last, kind),
        });
    }
    unstarted(story, documents)
}

/// Why pods that an object wants do not start.
pub(super) fn unstarted(story: &Story<'_>, documents: &DocumentsBySeq) -> Option<Cause> {
    if let Some(pod) = stuck_pod(story) {
        return Some(of_stuck_pod(pod, documents));
    }
    refused(story)
}

pub(super) fn of_stuck_pod(pod: &State, documents: &DocumentsBySeq) -> Cause {
    let document = documents.get(&pod.seq).and_then(|document| PodDocument::read(document));
    let stuck = document.as_ref().and_then(pod_end::stuck_container);
    let kind = pod_end::waiting(&pod.status.reason).unwrap_or_default();
    let cause = stuck.unwrap_or_else(|| of_state(pod, kind));
    let node = document.and_then(|document| document.spec.node_name);
    let object = Some((*pod.object).clone());
    Cause { object, node, at_ms: pod.observed_ms, seq: pod.seq, ..cause }
}

fn of_state(state: &State, kind: CauseKind) -> Cause {
    let Status { reason, message, .. } = told(state);
    Cause { kind, reason, message, at_ms: state.observed_ms, seq: state.seq, ..Cause::default() }
}

fn of_workload(workload: &State) -> Cause {
    let is_preempted = workload.status.phase == phase::PREEMPTED;
    let kind = if is_preempted { CauseKind::Preempted } else { CauseKind::Quota };
    Cause { object: Some((*workload.object).clone()), ..of_state(workload, kind) }
}

/// The API server refused the pods that the object wants. Only an Event says so.
fn refused(story: &Story<'_>) -> Option<Cause> {
    let uid = &story.last()?.object.uid;
    let own = story.events.iter().rev().filter(|event| event.about.uid == *uid);
    let refused = own.clone().find(|event| event.reason == "FailedCreate")?;
    // Pods that were made later answer it.
    if own.clone().any(|event| event.reason == "SuccessfulCreate" && event.last_ms >= refused.last_ms) {
        return None;
    }
    // A quota limits a namespace, and a limit range each pod or container in it.
    let limits = ["exceeded quota", "usage per Pod", "usage per Container"];
    let is_quota = limits.iter().any(|limit| refused.message.contains(limit));
    Some(Cause {
        kind: if is_quota { CauseKind::Quota } else { CauseKind::Configuration },
        reason: refused.reason.clone(),
        message: refused.message.clone(),
        at_ms: refused.last_ms,
        seq: refused.seq,
        ..Cause::default()
    })
}

/// What an object waited for. `None` stands for its start: images, volumes, init containers.
pub(super) type Wait = Option<CauseKind>;

/// How long it waited for each thing before it first ran, in the order in which it began to wait for them.
pub(super) fn before_first_run(story: &Story<'_>, owner: &OwnerDocument, now_ms: u64) -> Vec<(Wait, u64)> {
    let has_queue = has_queue(story, owner);
    let mut changes: Vec<(&State, bool)> = story.related.iter().map(|state| (&**state, false)).collect();
    changes.retain(|(state, _)| super::is_pod(&state.object));
    changes.extend(story.states.iter().map(|state| (&**state, true)));
    changes.retain(|(state, _)| state.change != Change::Gap);
    changes.sort_by_key(|(state, _)| (state.observed_ms, state.seq));
    let mut waits: Vec<(Wait, u64)> = Vec::new();
    let (mut own, mut pods): (Option<&State>, BTreeMap<&str, Wait>) = (None, BTreeMap::new());
    let ends = changes.iter().skip(1).map(|(next, _)| next.observed_ms).chain([now_ms]);
    for ((state, is_own), end) in changes.iter().zip(ends) {
        match is_own {
            true => own = Some(state),
            false if state.change == Change::Gone => drop(pods.remove(state.object.uid.as_str())),
            false => drop(pods.insert(&state.object.uid, pod_end::waiting(&state.status.reason))),
        }
        let Some(own) = own else { continue };
        // An attempt that failed has run, even if it was never ready.
        let has_begun = matches!(own.status.phase.as_str(), phase::RUNNING | phase::RESTARTING);
        if has_begun || super::super::is_over(own) {
            break;
        }
        let stuck = || pods.values().copied().flatten().min();
        let wait = by_owner(&own.status, has_queue).or_else(stuck);
        let took = end.saturating_sub(state.observed_ms);
        match waits.iter_mut().find(|(known, _)| *known == wait) {
            Some((_, sum)) => *sum += took,
            None => waits.push((wait, took)),
        }
    }
    waits
}
