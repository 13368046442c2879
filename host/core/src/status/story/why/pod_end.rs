//! Decides how one pod ended: by a disruption, by a deletion, or by the container that failed first.

use super::documents::{ContainerStatus, PodDocument, TerminatedContainer};
use super::{Cause, CauseKind, ContainerRole, ExplainedStates, FailedContainer, is_pod, last_work_status};
use crate::calendar;
use crate::state::{Change, ObjectRef, State, Status};
use crate::status::phase;

/// Exit codes above this one stand for a signal.
const SIGNALS_FROM: i32 = 128;
const GREATEST_SIGNAL: i32 = 31;
/// How much earlier than observed a container's end may be by the container's own clock.
const CLOCK_TRUSTED_MS: u64 = 60_000;

/// How a pod ended, by its document, or by its status if the document is missing; `None` if it came to a good end.
/// `requested_ms` is the time of the deletion request, by the pod's earliest state that has it.
pub(super) fn end_cause(
    state: &State,
    pod: Option<&PodDocument>,
    requested_ms: Option<u64>,
    story: &ExplainedStates<'_>,
) -> Option<Cause> {
    let status = last_work_status(state);
    let cause = match pod {
        Some(pod) => of_document(state, &status, pod, requested_ms, story)?,
        None if state.change == Change::Gone && !status.terminal => deleted_cause(),
        None => of_status(&status),
    };
    let at_ms = if cause.at_ms > 0 { cause.at_ms } else { state.observed_ms };
    let object = is_pod(&state.object).then(|| (*state.object).clone());
    Some(Cause { object, at_ms, seq: state.seq, ..cause })
}

/// The cause as far as the status alone shows it. It names no container.
pub(super) fn of_status(status: &Status) -> Cause {
    let kind = match status.phase.as_str() {
        phase::PREEMPTED => disruption_kind(&status.reason, &status.message),
        phase::CANCELLED | phase::DELETED => CauseKind::Deleted,
        _ => waiting_kind(&status.reason)
            .unwrap_or_else(|| termination_kind(&status.reason, status.exit_code, None)),
    };
    let container = status.exit_code.filter(|code| *code != 0).map(|code| FailedContainer {
        exit_code: Some(code),
        signal: signal_number(code),
        ..FailedContainer::default()
    });
    let by = pressure_resource(&status.message);
    Cause {
        kind,
        container,
        reason: status.reason.clone(),
        message: status.message.clone(),
        by,
        ..Cause::default()
    }
}

/// How Ray begins the message of a job whose program has failed.
const ENTRYPOINT_FAILED: &str = "Job entrypoint command failed with exit code ";
/// The words of such a message before those that the program has written.
const PROGRAM_LOGS: &str = "last available logs";

/// The end of a RayJob's program, which runs in the pod of a head that outlives it. Only the object tells its code. A
/// program that a signal ended has the negative number of the signal.
pub(super) fn told_end(status: &Status) -> Option<Cause> {
    let told = status.message.strip_prefix(ENTRYPOINT_FAILED)?;
    let code = told.split(|letter: char| !letter.is_ascii_digit() && letter != '-').next()?;
    let code: i32 = code.parse().ok().filter(|code| *code != 0)?;
    let exit_code = if code < 0 { code.checked_neg()?.checked_add(128)? } else { code };
    Some(of_status(&Status { exit_code: Some(exit_code), ..status.clone() }))
}

/// The part of an object's message that no program has written.
pub(super) fn controller_text(status: &Status) -> &str {
    status.message.split(PROGRAM_LOGS).next().unwrap_or_default()
}

fn deleted_cause() -> Cause {
    Cause { kind: CauseKind::Deleted, ..Cause::default() }
}

fn of_document(
    state: &State,
    status: &Status,
    pod: &PodDocument,
    requested_ms: Option<u64>,
    story: &ExplainedStates<'_>,
) -> Option<Cause> {
    let node = pod.spec.node_name.clone();
    if let Some(cause) = disruption_cause(state, pod, story) {
        return Some(Cause { node, ..cause });
    }
    let failed = first_failed(pod, state.observed_ms);
    let is_deleted_first = match &failed {
        Some(failed) => requested_ms.is_some_and(|requested_ms| failed.finished_ms >= requested_ms),
        None => deletion_requested_ms(pod).is_some() || state.change == Change::Gone,
    };
    if is_deleted_first {
        return Some(Cause { node, ..deleted_cause() });
    }
    let cause = match (failed, stuck_container(pod)) {
        (Some(failed), _) => failed.as_cause(),
        (None, Some(stuck)) => stuck,
        (None, None) if work_ended_ms(pod).is_some() && status.phase != phase::FAILED => return None,
        (None, None) => of_status(status),
    };
    Some(Cause { node, ..cause })
}

/// When the last of the main containers ended; `None` while one of them has not ended. Afterwards the kubelet ends the
/// sidecars, and that is no failure.
fn work_ended_ms(pod: &PodDocument) -> Option<u64> {
    let ends = pod.status.container_statuses.iter().map(|status| {
        let end = status.state.terminated.as_ref()?;
        Some(end.finished_at.as_deref().and_then(calendar::parse_rfc3339_ms).unwrap_or_default())
    });
    ends.collect::<Option<Vec<_>>>()?.into_iter().max()
}

/// The disruption that ended the pod: the cluster announced that it removes the pod, or the kubelet refused
/// it. The ends of its containers follow from that.
fn disruption_cause(state: &State, pod: &PodDocument, story: &ExplainedStates<'_>) -> Option<Cause> {
    let target = pod.find_condition("DisruptionTarget").filter(|condition| condition.status == "True");
    let (reason, message) = match target {
        Some(condition) => {
            (condition.reason.clone().unwrap_or_default(), condition.message.clone().unwrap_or_default())
        }
        None if disruption_of_status(&pod.status.reason).is_some() => {
            (pod.status.reason.clone(), pod.status.message.clone())
        }
        None => return None,
    };
    let own_events = || story.events.iter().filter(|event| event.about.uid == state.object.uid);
    let mut kind = disruption_kind(&reason, &message);
    // Taint evictions occur on nodes that an operator drains, and on nodes that stopped reporting. In the
    // latter case, the controller first sets the pod to not ready, while its containers stay as the kubelet
    // last reported them.
    let is_silent = pod.find_condition("Ready").is_some_and(|ready| ready.status == "False")
        && !pod.status.container_statuses.is_empty()
        && pod.status.container_statuses.iter().all(|container| container.ready);
    if reason == "DeletionByTaintManager"
        && (is_silent || own_events().any(|event| event.reason == "NodeNotReady"))
    {
        kind = CauseKind::NodeLost;
    }
    let preempted = own_events().find(|event| event.reason == PREEMPTED_EVENT);
    let by = match kind {
        CauseKind::Preempted => {
            preempted.and_then(|event| preemptor_of(&event.message, story.preemptors)).unwrap_or_default()
        }
        _ => pressure_resource(&message),
    };
    Some(Cause { kind, reason, message, by, ..Cause::default() })
}

/// The beginning of what a queue says for whom it takes a place.
const QUEUE_PREEMPTS: &str = "Preempted to ";

/// Whether a queue took the pod. The scheduler and the kubelet have reasons of their own.
pub(super) fn is_taken_by_queue(status: &Status) -> bool {
    let by_others = ["PreemptionByScheduler", "PreemptionByKubeScheduler", "Preempting"];
    status.phase == phase::PREEMPTED
        && !by_others.contains(&status.reason.as_str())
        && status.message.starts_with(QUEUE_PREEMPTS)
        && of_status(status).kind == CauseKind::Preempted
}

/// The kind of disruption for the reason that announces it.
fn disruption_kind(reason: &str, message: &str) -> CauseKind {
    match reason {
        // The kubelet writes the same reason for an eviction and for the shutdown of its node.
        "TerminationByKubelet" if message.contains("shutdown") => CauseKind::NodeLost,
        "EvictionByEvictionAPI" | "DeletionByTaintManager" | "TerminationByKubelet" => CauseKind::Evicted,
        "PreemptionByScheduler" | "PreemptionByKubeScheduler" => CauseKind::Preempted,
        "DeletionByPodGC" => CauseKind::NodeLost,
        // A queue has reasons of its own, and says for whom it takes the place.
        _ if message.starts_with(QUEUE_PREEMPTS) => CauseKind::Preempted,
        other => disruption_of_status(other).unwrap_or(CauseKind::Evicted),
    }
}

/// The kind of disruption for a pod's `status.reason`.
fn disruption_of_status(reason: &str) -> Option<CauseKind> {
    match reason {
        "Evicted" => Some(CauseKind::Evicted),
        "Preempting" | "Preempted" => Some(CauseKind::Preempted),
        "NodeLost" | "NodeShutdown" | "Shutdown" | "Terminated" => Some(CauseKind::NodeLost),
        _ => None,
    }
}

/// The resource in "The node was low on resource: memory. …", such as `memory`.
fn pressure_resource(message: &str) -> String {
    let resource = message.split_once("low on resource: ").map(|(_, rest)| rest);
    let end = |rest: &str| rest.find(['.', ' ', ',']).unwrap_or(rest.len());
    resource.map(|rest| rest[..end(rest)].to_owned()).unwrap_or_default()
}

/// The reason of the scheduler's Event about a pod that it preempts.
pub(super) const PREEMPTED_EVENT: &str = "Preempted";

/// The preemptor in "Preempted by pod UID on node NAME": `pod UID`. Older schedulers wrote `NAMESPACE/NAME`.
fn told_preemptor(message: &str) -> Option<&str> {
    let (_, rest) = message.split_once("Preempted by ")?;
    Some(rest.split_once(" on node").map_or(rest, |(by, _)| by).trim())
}

/// The uid of the pod for which the scheduler preempted another.
pub(super) fn preemptor_uid(message: &str) -> Option<&str> {
    told_preemptor(message)?.strip_prefix("pod ").filter(|uid| !uid.is_empty())
}

/// The preemptor by its name if that is known: `pod urgent-x`. Otherwise as the scheduler has it.
fn preemptor_of(message: &str, known: &[ObjectRef]) -> Option<String> {
    let named = preemptor_uid(message).and_then(|uid| known.iter().find(|object| object.uid == uid));
    let name = named.map(|object| format!("{} {}", object.kind.to_lowercase(), object.name));
    name.or_else(|| told_preemptor(message).map(str::to_owned))
}

/// When the deletion of a pod was requested. The document has the time at which the grace period ends. Once
/// its containers have ended, the kubelet deletes the pod without a grace period, and the document has the
/// time of that.
pub(super) fn deletion_requested_ms(pod: &PodDocument) -> Option<u64> {
    let ends = calendar::parse_rfc3339_ms(pod.metadata.deletion_timestamp.as_deref()?)?;
    let grace = pod.metadata.deletion_grace_period_seconds.unwrap_or_default();
    Some(ends.saturating_sub(grace.saturating_mul(1000)))
}

/// Every container of a pod, init containers first.
fn all_containers(pod: &PodDocument) -> impl Iterator<Item = (ContainerRole, &ContainerStatus)> {
    let init = pod.status.init_container_statuses.iter().map(|status| {
        let spec = pod.spec.init_containers.iter().find(|spec| spec.name == status.name);
        let is_sidecar = spec.is_some_and(|spec| spec.restart_policy.as_deref() == Some("Always"));
        (if is_sidecar { ContainerRole::Sidecar } else { ContainerRole::Init }, status)
    });
    init.chain(pod.status.container_statuses.iter().map(|status| (ContainerRole::Main, status)))
}

struct FailedEnd<'a> {
    status: &'a ContainerStatus,
    role: ContainerRole,
    end: &'a TerminatedContainer,
    finished_ms: u64,
}

/// The container that failed first. Of those that failed in the same second, an init container comes first and a sidecar
/// last: the kubelet ends sidecars after the others.
fn first_failed(pod: &PodDocument, observed_ms: u64) -> Option<FailedEnd<'_>> {
    let work_ended_ms = work_ended_ms(pod);
    let ends = all_containers(pod).filter_map(|(role, status)| {
        // A restarted container has its previous end in `lastState`.
        let before = status.last_state.terminated.as_ref().filter(|_| status.state.terminated.is_none());
        let end = status.state.terminated.as_ref().or(before).filter(|end| end.exit_code != 0)?;
        let finished = end.finished_at.as_deref().and_then(calendar::parse_rfc3339_ms);
        let is_after_work = work_ended_ms.is_some_and(|work| finished.is_none_or(|at| at >= work));
        if role == ContainerRole::Sidecar && is_after_work {
            return None;
        }
        let trusted = |at: &u64| *at <= observed_ms && observed_ms - at <= CLOCK_TRUSTED_MS;
        let finished_ms = finished.filter(trusted).unwrap_or(observed_ms);
        Some(FailedEnd { status, role, end, finished_ms })
    });
    ends.min_by_key(|failed| (failed.finished_ms, failed.role))
}

impl FailedEnd<'_> {
    fn as_cause(&self) -> Cause {
        let TerminatedContainer { exit_code, signal: own, reason, message, .. } = self.end;
        let container = FailedContainer {
            name: self.status.name.clone(),
            role: self.role,
            exit_code: Some(*exit_code),
            signal: own.filter(|signal| *signal > 0).or_else(|| signal_number(*exit_code)),
        };
        Cause {
            kind: termination_kind(reason, Some(*exit_code), *own),
            container: Some(container),
            reason: reason.clone(),
            message: message.clone(),
            at_ms: self.finished_ms,
            ..Cause::default()
        }
    }
}

/// The signal for which an exit code stands.
pub fn signal_number(exit_code: i32) -> Option<i32> {
    let signal = exit_code.checked_sub(SIGNALS_FROM)?;
    (1..=GREATEST_SIGNAL).contains(&signal).then_some(signal)
}

fn termination_kind(reason: &str, exit_code: Option<i32>, own_signal: Option<i32>) -> CauseKind {
    match (reason, exit_code) {
        ("OOMKilled", _) => CauseKind::OutOfMemory,
        ("StartError" | "ContainerCannotRun", _) => CauseKind::Configuration,
        ("DeadlineExceeded", _) => CauseKind::Deadline,
        // The kubelet has lost track of the container, and reports the exit code of a kill.
        ("ContainerStatusUnknown", _) | (_, None | Some(0)) => CauseKind::Unknown,
        (_, Some(code)) if own_signal.is_some_and(|signal| signal > 0) || signal_number(code).is_some() => {
            CauseKind::Signal
        }
        _ => CauseKind::ExitCode,
    }
}

/// A container that can't start.
pub(super) fn stuck_container(pod: &PodDocument) -> Option<Cause> {
    all_containers(pod).find_map(|(role, status)| {
        let stuck = status.state.waiting.as_ref()?;
        let kind = waiting_kind(&stuck.reason)?;
        let container = FailedContainer { name: status.name.clone(), role, ..FailedContainer::default() };
        Some(Cause {
            kind,
            container: Some(container),
            reason: stuck.reason.clone(),
            message: stuck.message.clone(),
            ..Cause::default()
        })
    })
}

/// The kind of cause for a waiting reason; `None` if the reason is an ordinary one.
pub(super) fn waiting_kind(reason: &str) -> Option<CauseKind> {
    match reason {
        "ErrImagePull"
        | "ImagePullBackOff"
        | "ErrImageNeverPull"
        | "InvalidImageName"
        | "ImageInspectError"
        | "RegistryUnavailable"
        | "SignatureValidationFailed" => Some(CauseKind::ImagePull),
        "CreateContainerConfigError"
        | "CreateContainerError"
        | "RunContainerError"
        | "PreCreateHookError"
        | "PostStartHookError" => Some(CauseKind::Configuration),
        "Unschedulable" => Some(CauseKind::Unschedulable),
        _ => None,
    }
}

/// The name of a signal, such as `SIGKILL`; its number if it is rare.
pub fn signal_name(signal: i32) -> String {
    let name = match signal {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        11 => "SIGSEGV",
        13 => "SIGPIPE",
        15 => "SIGTERM",
        other => return format!("signal {other}"),
    };
    name.to_owned()
}
