//! Reads from Kueue's Workloads why their owners wait. The owner itself shows only that it is suspended.
//!
//! A Workload says in words what it waits for: quota, a queue that does not exist, or a queue that takes no work.
//! The texts are those of Kueue's own controllers.

use std::collections::BTreeSet;

use super::sentence::MESSAGE_BYTES;
use super::{Cause, CauseKind, DocumentsBySeq, ExplainedStates, is_workload, pod_end, waits};
use crate::model::fault::shorten_text;
use crate::state::{Change, ObjectRef, Seq, State, Status};
use crate::status::phase;

/// Kueue's reason for taking back a Workload whose pods were not ready in time.
const NOT_READY_IN_TIME: &str = "PodsReadyTimeout";
/// Kueue's reason for a Workload that its queue does not even try to admit.
const INADMISSIBLE: &str = "Inadmissible";
/// Kueue's reasons for taking back what a stopped queue had admitted.
const STOPPED: [&str; 2] = ["ClusterQueueStopped", "LocalQueueStopped"];

/// The preemptors whose names one explanation asks for. Each costs its caller a query and a check of rights.
const PREEMPTORS_NAMED: usize = 4;

/// The newest state of the Workload that says why its owner waits.
pub(super) fn newest_workload<'a>(story: &ExplainedStates<'a>) -> Option<&'a State> {
    let workloads = story.related.iter().map(|state| &**state).filter(|state| is_workload(&state.object));
    waits::newest_per_object(workloads).max_by_key(|state| state.seq)
}

/// Whether Kueue preempted the workload. Kueue also evicts workloads for other reasons, such as pods that do
/// not get ready in time.
pub(super) fn is_preempted(workload: &State) -> bool {
    workload.status.phase == phase::PREEMPTED && workload.status.reason == "Preempted"
}

/// Whether Kueue took back the workload because somebody deactivated it.
pub(super) fn is_deactivated(workload: &State) -> bool {
    workload.status.phase == phase::PREEMPTED && workload.status.reason == "Deactivated"
}

/// Whether Kueue took back the workload because its pods were not ready in time.
fn is_not_ready_in_time(workload: &State) -> bool {
    workload.status.phase == phase::PREEMPTED && workload.status.reason == NOT_READY_IN_TIME
}

/// The reason of Kueue if it took the workload back before the owner ran, and not for another one, with the state that
/// says so.
pub(super) fn eviction_before_run<'a>(story: &ExplainedStates<'a>) -> Option<(&'a str, Seq)> {
    let workload = newest_workload(story).filter(|workload| is_not_ready_in_time(workload))?;
    Some((&workload.status.reason, workload.seq))
}

/// The wait that the workload causes; `None` once it is admitted.
pub(super) fn wait_kind(workload: &State) -> Option<CauseKind> {
    let Status { phase, reason, message, .. } = &*workload.status;
    let admitted = [phase::ADMITTED, phase::STARTING, phase::RUNNING, phase::RESTARTING];
    if admitted.contains(&phase.as_str()) || reason == "QuotaReserved" {
        return None;
    }
    let ends = |endings: &[&str]| endings.iter().any(|ending| message.ends_with(ending));
    Some(match (phase.as_str(), reason.as_str()) {
        (phase::SUSPENDED, _) => CauseKind::Suspended,
        (phase::PREEMPTED, reason) if STOPPED.contains(&reason) => CauseKind::Suspended,
        (_, INADMISSIBLE) if ends(&["is stopped", "is inactive"]) => CauseKind::Suspended,
        (_, INADMISSIBLE) if ends(&["doesn't exist", "is terminating or missing"]) => {
            CauseKind::Configuration
        }
        _ => CauseKind::Quota,
    })
}

/// Whether a suspension is that of the queue, and not of the Workload alone.
pub(super) fn is_by_queue(cause: &Cause) -> bool {
    cause.reason == INADMISSIBLE || STOPPED.contains(&cause.reason.as_str())
}

/// Why the owner of the workload waits.
pub(super) fn workload_cause(
    story: &ExplainedStates<'_>,
    workload: &State,
    documents: &DocumentsBySeq,
) -> Cause {
    if let Some(pod) = unready_pod(story) {
        return waits::of_stuck_pod(pod, documents);
    }
    let kind = match is_preempted(workload) {
        true => CauseKind::Preempted,
        false => wait_kind(workload).unwrap_or(CauseKind::Quota),
    };
    let by = preemptor_of(&workload.status.message, story.preemptors);
    Cause { object: Some((*workload.object).clone()), by, ..waits::of_state(workload, kind) }
}

/// The pod that could not start, and for which Kueue therefore took back its owner.
pub(super) fn unready_pod<'a>(story: &ExplainedStates<'a>) -> Option<&'a State> {
    newest_workload(story).filter(|workload| is_not_ready_in_time(workload))?;
    waits::stuck_pods(story).max_by_key(|state| state.seq)
}

/// The uids in "Preempted to accommodate a workload (UID: UID, JobUID: UID) due to …": of the owner of the Workload,
/// and of the Workload.
fn preemptor_uids(message: &str) -> impl Iterator<Item = &str> {
    let told = message.strip_prefix("Preempted to accommodate a workload (");
    let told = told.and_then(|rest| rest.split_once(')')).map(|(told, _)| told).unwrap_or_default();
    let uid_of = |name: &str| told.split(", ").find_map(|part| part.strip_prefix(name));
    [uid_of("JobUID: "), uid_of("UID: ")].into_iter().flatten().filter(|uid| !uid.is_empty())
}

impl<'a> ExplainedStates<'a> {
    /// The uids of the objects for which this one or its pods made room. A caller that knows their names, and may
    /// tell them, puts them into [`Self::preemptors`].
    pub fn preemptors_wanted(&self) -> Vec<&'a str> {
        let workloads = self.related.iter().rev().filter(|state| {
            is_workload(&state.object) && state.change == Change::Present && is_preempted(state)
        });
        let by_queue = workloads.take(1).flat_map(|state| preemptor_uids(&state.status.message));
        let preempted = self.events.iter().filter(|event| event.reason == pod_end::PREEMPTED_EVENT);
        let by_scheduler = preempted.filter_map(|event| pod_end::preemptor_uid(&event.message));
        let mut known = BTreeSet::new();
        by_queue.chain(by_scheduler).filter(|uid| known.insert(*uid)).take(PREEMPTORS_NAMED).collect()
    }
}

/// The preemptor by its name if that is known: `job urgent`. Otherwise as `workload UID`.
fn preemptor_of(message: &str, known: &[ObjectRef]) -> String {
    match (named_preemptor(message, known), preemptor_uids(message).last()) {
        (Some(name), _) => name,
        (None, Some(uid)) => format!("workload {uid}"),
        (None, None) => String::new(),
    }
}

fn named_preemptor(message: &str, known: &[ObjectRef]) -> Option<String> {
    let object = preemptor_uids(message).find_map(|uid| known.iter().find(|object| object.uid == uid))?;
    Some(format!("{} {}", object.kind.to_lowercase(), object.name))
}

/// For whom an object made room, and why: ` for job urgent due to prioritization in the ClusterQueue`. An unknown
/// preemptor stays as the message has it: ` to accommodate a workload (UID: …)`. The list of other places that Kueue
/// tried is left out.
pub(super) fn preemption_clause(message: &str, known: &[ObjectRef]) -> String {
    let Some(rest) = message.strip_prefix("Preempted to ") else { return String::new() };
    let rest = rest.split("; ").next().unwrap_or(rest).trim_end_matches('.');
    match (named_preemptor(message, known), rest.split_once(')')) {
        (Some(name), Some((_, why))) => format!(" for {name}{}", shorten_text(why, MESSAGE_BYTES)),
        _ => format!(" to {}", shorten_text(rest, MESSAGE_BYTES)),
    }
}
