//! Determines what an object waits for, and what interrupted it.

use std::collections::{BTreeMap, BTreeSet};

use super::documents::{OwnerDocument, PodDocument};
use super::{
    Cause, CauseKind, DocumentsBySeq, ExplainedStates, is_workload, last_work_status, pod_end, queue,
};
use crate::state::{Change, ObjectRef, Seq, State, Status};
use crate::status::phase;
use crate::status::story::events::EventView;

/// The newest state of each object that still exists, by uid.
pub(super) fn newest_per_object<'a>(
    states: impl Iterator<Item = &'a State>,
) -> impl Iterator<Item = &'a State> {
    let mut newest: BTreeMap<&str, &State> = BTreeMap::new();
    for state in states.filter(|state| state.change != Change::Gap) {
        newest.insert(&state.object.uid, state);
    }
    newest.into_values().filter(|state| state.change == Change::Present)
}

/// Among the pods that can't start now, the one whose newest state is the oldest.
pub(super) fn stuck_pod<'a>(story: &ExplainedStates<'a>) -> Option<&'a State> {
    let stuck = newest_per_object(story.pod_states())
        .filter(|state| pod_end::waiting_kind(&state.status.reason).is_some());
    stuck.filter(|state| !state.status.terminal).min_by_key(|state| state.seq)
}

/// The first pod that did not run, with the last state that has its waiting reason. Pods that ended later
/// count, too.
pub(super) fn stuck_before_end<'a>(story: &ExplainedStates<'a>) -> Option<&'a State> {
    stuck_pods(story).min_by_key(|state| state.seq)
}

/// Each pod that did not run, whether it ended later or not, by the last state that has its waiting reason.
pub(super) fn stuck_pods<'a>(story: &ExplainedStates<'a>) -> impl Iterator<Item = &'a State> {
    let mut stuck: BTreeMap<&str, &State> = BTreeMap::new();
    for state in story.pod_states().filter(|state| state.change == Change::Present) {
        match pod_end::waiting_kind(&state.status.reason) {
            Some(_) => drop(stuck.insert(&state.object.uid, state)),
            None if matches!(state.status.phase.as_str(), phase::RUNNING | phase::SUCCEEDED) => {
                stuck.remove(state.object.uid.as_str());
            }
            None => {}
        }
    }
    stuck.into_values()
}

/// Whether the pod of a cause still exists and has not ended.
pub(super) fn is_alive(story: &ExplainedStates<'_>, cause: &Cause) -> bool {
    let Some(object) = &cause.object else { return false };
    newest_per_object(story.pod_states())
        .any(|state| state.object.uid == object.uid && !state.status.terminal)
}

pub(super) fn has_queue(story: &ExplainedStates<'_>, owner: &OwnerDocument) -> bool {
    owner.has_queue || story.related.iter().any(|state| is_workload(&state.object))
}

/// Whether the object is suspended. Kueue suspends the objects in its queues in the same way.
fn is_held(status: &Status) -> bool {
    match status.phase.as_str() {
        phase::SUSPENDED => true,
        phase::QUEUED => status.reason.ends_with("Suspended"),
        _ => false,
    }
}

/// The wait that the object's own status shows; `None` if its pods decide.
pub(super) fn by_owner(status: &Status, has_queue: bool) -> Option<CauseKind> {
    match status.phase.as_str() {
        phase::PREEMPTED => Some(CauseKind::Preempted),
        _ if is_held(status) && !has_queue => Some(CauseKind::Suspended),
        phase::SUSPENDED | phase::QUEUED => Some(CauseKind::Quota),
        _ => None,
    }
}

/// Why an object waits now.
pub(super) fn waiting_cause(
    story: &ExplainedStates<'_>,
    owner: &OwnerDocument,
    documents: &DocumentsBySeq,
) -> Option<Cause> {
    let last = story.last_state()?;
    let status = last_work_status(last);
    // A pod's document says more than its phase.
    let by_owner = by_owner(&status, has_queue(story, owner)).filter(|_| !super::is_pod(&last.object));
    if let Some(kind) = by_owner {
        return Some(match queue::newest_workload(story) {
            Some(workload) if kind != CauseKind::Suspended => {
                queue::workload_cause(story, workload, documents)
            }
            _ => of_pod_taken_back(story).unwrap_or_else(|| of_state(last, kind)),
        });
    }
    unstarted_pods_cause(story, documents)
}

/// Why the pods that an object requests do not start.
pub(super) fn unstarted_pods_cause(story: &ExplainedStates<'_>, documents: &DocumentsBySeq) -> Option<Cause> {
    if let Some(pod) = stuck_pod(story) {
        return Some(of_stuck_pod(pod, documents));
    }
    refused_pods_cause(story)
}

pub(super) fn of_stuck_pod(pod: &State, documents: &DocumentsBySeq) -> Cause {
    let document = documents.get(&pod.seq).and_then(|document| PodDocument::read(document));
    let stuck = document.as_ref().and_then(pod_end::stuck_container);
    let kind = pod_end::waiting_kind(&pod.status.reason).unwrap_or_default();
    let cause = stuck.unwrap_or_else(|| of_state(pod, kind));
    let node = document.and_then(|document| document.spec.node_name);
    let object = Some((*pod.object).clone());
    Cause { object, node, at_ms: pod.observed_ms, seq: pod.seq, ..cause }
}

pub(super) fn of_state(state: &State, kind: CauseKind) -> Cause {
    let Status { reason, message, .. } = last_work_status(state);
    Cause { kind, reason, message, at_ms: state.observed_ms, seq: state.seq, ..Cause::default() }
}

/// The queue of an object that is held back has no Workload here, and one of the pods that it took says why.
fn of_pod_taken_back(story: &ExplainedStates<'_>) -> Option<Cause> {
    let (began_ms, _) = times_held(story).last().copied().filter(|(_, ends_ms)| *ends_ms == u64::MAX)?;
    let mut pods = pods_taken_back(story).into_iter();
    let pod = pods.find(|pod| was_taken_within(pod, began_ms, u64::MAX))?;
    Some(Cause { object: Some((*pod.object).clone()), ..of_state(pod, CauseKind::Preempted) })
}

/// Why a running object was interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InterruptionKind {
    /// Something more important took its place.
    Preempted,
    /// Its queue evicted it for another reason.
    Evicted,
    /// Somebody suspended it.
    Suspended,
}

/// An interruption of an object that had run.
pub(super) struct RunInterruption<'a> {
    pub kind: InterruptionKind,
    /// The cluster's message about a preemption, or the reason of an eviction.
    pub message: &'a str,
    /// The state that says so.
    pub seq: Seq,
}

/// The phases of an object that is held back.
pub(super) const HELD: [&str; 3] = [phase::PREEMPTED, phase::SUSPENDED, phase::QUEUED];

/// From when to when an object was held back; without an end while it still is.
fn times_held(story: &ExplainedStates<'_>) -> Vec<(u64, u64)> {
    let mut times: Vec<(u64, u64)> = Vec::new();
    // In a gap it may have run again.
    let known = [Change::Present, Change::Gap];
    for state in story.states.iter().filter(|state| known.contains(&state.change)) {
        let is_held = state.change == Change::Present && HELD.contains(&state.status.phase.as_str());
        match times.last_mut().filter(|(_, ends_ms)| *ends_ms == u64::MAX) {
            Some((_, ends_ms)) if !is_held => *ends_ms = state.observed_ms,
            None if is_held => times.push((state.observed_ms, u64::MAX)),
            _ => {}
        }
    }
    times
}

/// The pods that a queue took because it held their owner back, by the first state of each that says so. They did not
/// fail: the owner gets others with its next turn.
pub(super) fn pods_taken_back<'a>(story: &ExplainedStates<'a>) -> Vec<&'a State> {
    if story.last_state().is_none_or(|last| super::is_pod(&last.object)) {
        return Vec::new();
    }
    let held = times_held(story);
    let mut known = BTreeSet::new();
    let preempted = story.pod_states().filter(|state| state.status.phase == phase::PREEMPTED);
    let first = preempted.filter(|state| known.insert(state.object.uid.as_str()));
    let made_room = first.filter(|state| pod_end::is_taken_by_queue(&state.status));
    made_room.filter(|pod| held.iter().any(|(from, to)| was_taken_within(pod, *from, *to))).collect()
}

/// Pods come from another source, which may be a moment ahead.
fn was_taken_within(pod: &State, from_ms: u64, to_ms: u64) -> bool {
    const AHEAD_MS: u64 = 1_000;
    (from_ms.saturating_sub(AHEAD_MS)..to_ms).contains(&pod.observed_ms)
}

/// The interruptions of an object, in order. A job that Kueue preempts shows only that it is suspended; its
/// Workload had the reason shortly before.
pub(super) fn run_interruptions<'a>(story: &ExplainedStates<'a>, now_ms: u64) -> Vec<RunInterruption<'a>> {
    let versions: Vec<&State> = story.states.iter().map(|state| &**state).collect();
    // A pod that had to leave its node does not come back.
    if versions.first().is_some_and(|state| super::is_pod(&state.object)) {
        return Vec::new();
    }
    let pods = pods_taken_back(story);
    let Some(first_run) = versions.iter().position(|state| state.status.phase == phase::RUNNING) else {
        return Vec::new();
    };
    let later = &versions[first_run..];
    let mut found: Vec<RunInterruption<'a>> = Vec::new();
    let (mut is_held, mut ran_from) = (false, later[0].observed_ms);
    for (at, state) in later.iter().enumerate().filter(|(_, state)| state.change == Change::Present) {
        let phase = state.status.phase.as_str();
        if HELD.contains(&phase) {
            if !is_held {
                let until_ms = run_again_ms(&later[at..]).unwrap_or(now_ms);
                found.push(run_interruption(story, &pods, state, ran_from, until_ms));
            }
            is_held = true;
        } else if phase == phase::RUNNING {
            (is_held, ran_from) = (false, state.observed_ms);
        }
    }
    found
}

/// When the interrupted object runs again.
fn run_again_ms(later: &[&State]) -> Option<u64> {
    later.iter().find(|state| state.status.phase == phase::RUNNING).map(|state| state.observed_ms)
}

fn run_interruption<'a>(
    story: &ExplainedStates<'a>,
    pods: &[&'a State],
    begins: &'a State,
    ran_from: u64,
    until_ms: u64,
) -> RunInterruption<'a> {
    let workloads = story.related.iter().map(|state| &**state).filter(|state| is_workload(&state.object));
    let taken_back = workloads
        .filter(|state| state.status.phase == phase::PREEMPTED)
        .find(|state| state.observed_ms > ran_from && state.observed_ms < until_ms);
    let preempted = |state: &'a State| RunInterruption {
        kind: InterruptionKind::Preempted,
        message: &state.status.message,
        seq: state.seq,
    };
    let suspended =
        |state: &State| RunInterruption { kind: InterruptionKind::Suspended, message: "", seq: state.seq };
    match taken_back {
        Some(workload) if queue::is_deactivated(workload) => suspended(workload),
        Some(workload) if queue::is_preempted(workload) => preempted(workload),
        Some(workload) => RunInterruption {
            kind: InterruptionKind::Evicted,
            message: &workload.status.reason,
            seq: workload.seq,
        },
        None if begins.status.phase == phase::PREEMPTED => preempted(begins),
        None => match pods.iter().find(|pod| was_taken_within(pod, begins.observed_ms, until_ms)) {
            Some(pod) => preempted(pod),
            None => suspended(begins),
        },
    }
}

/// The cause if the API server refused the pods that the object requests. Only Events show that: of the object itself, or
/// of what makes the pods for it, such as the Jobs of a JobSet and the cluster of a RayJob.
fn refused_pods_cause(story: &ExplainedStates<'_>) -> Option<Cause> {
    let itself = &*story.last_state()?.object;
    let owned = newest_per_object(story.related.iter().map(|state| &**state)).map(|state| &*state.object);
    // A Workload of Kueue has Events of the same names, about requests for machines.
    let makes_pods = |object: &&ObjectRef| !super::is_pod(object) && !is_workload(object);
    let makers = [itself].into_iter().chain(owned.filter(makes_pods));
    makers.filter_map(|maker| pods_refused_to(maker, story)).max_by_key(|cause| (cause.at_ms, cause.seq))
}

/// Job controllers write `FailedCreate` and `SuccessfulCreate`. Ray's name the part: `FailedToCreateHeadPod`,
/// `CreatedWorkerPod`.
fn tells_of_pod(event: &EventView, controllers: &str, begins: &str) -> bool {
    event.reason == controllers || event.reason.starts_with(begins) && event.reason.ends_with("Pod")
}

/// The library of most controllers says so of Events that differ in names alone.
const COMBINED: &str = "(combined from similar events): ";

fn pods_refused_to(maker: &ObjectRef, story: &ExplainedStates<'_>) -> Option<Cause> {
    let own = story.events.iter().rev().filter(|event| event.about.uid == maker.uid);
    let refused = own.clone().find(|event| tells_of_pod(event, "FailedCreate", "FailedToCreate"))?;
    // Pods that were created later show that the problem is solved. Times have whole seconds.
    let is_later = |event: &EventView| (event.last_ms, event.seq) > (refused.last_ms, refused.seq);
    if own.clone().any(|event| tells_of_pod(event, "SuccessfulCreate", "Created") && is_later(event)) {
        return None;
    }
    // A quota limits a namespace, and a limit range each pod or container in it.
    let limits = ["exceeded quota", "usage per Pod", "usage per Container"];
    let is_quota = limits.iter().any(|limit| refused.message.contains(limit));
    Some(Cause {
        kind: if is_quota { CauseKind::Quota } else { CauseKind::Configuration },
        by: exceeded_quota(&refused.message).to_owned(),
        reason: refused.reason.clone(),
        message: refused.message.strip_prefix(COMBINED).unwrap_or(&refused.message).to_owned(),
        at_ms: refused.last_ms,
        seq: refused.seq,
        ..Cause::default()
    })
}

/// The quota in "exceeded quota: NAME, requested: …".
fn exceeded_quota(message: &str) -> &str {
    let rest = message.split_once("exceeded quota: ").map_or("", |(_, rest)| rest);
    rest.split(',').next().unwrap_or_default().trim()
}

/// The state from which, and the time until which, an object ran that never says so itself; without an end while a pod
/// of it runs. A TrainJob of Trainer 2.0 has no status before its end.
pub(super) fn silent_run<'a>(story: &ExplainedStates<'a>) -> Option<(&'a State, Option<u64>)> {
    let last = story.last_state()?;
    let says = |state: &State| !matches!(state.status.phase.as_str(), phase::PENDING | phase::UNKNOWN);
    let own = story.states.iter().filter(|state| state.change == Change::Present);
    if super::is_pod(&last.object) || own.clone().any(|state| says(state) && !state.status.terminal) {
        return None;
    }
    let runs = |state: &&State| state.change == Change::Present && state.status.phase == phase::RUNNING;
    let begin = story.pod_states().find(runs)?;
    let end = story.states.iter().find(|state| super::super::has_ended(state));
    Some((begin, end.map(|state| state.observed_ms)))
}

/// Whether a pod of the object runs now.
pub(super) fn has_running_pod(story: &ExplainedStates<'_>) -> bool {
    newest_per_object(story.pod_states()).any(|state| state.status.phase == phase::RUNNING)
}
