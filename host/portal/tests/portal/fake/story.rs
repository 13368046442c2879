//! The story of a job with two pods: its states, and the Events about it.

use std::sync::Arc;

use kubewitness_core::cursor::StoryCursor;
use kubewitness_core::events::EventView;
use kubewitness_core::ports::{RawState, RawStory};
use kubewitness_core::reports::ReportView;
use kubewitness_core::views::TimelineQuery;
use kubewitness_core::{Change, ObjectRef, Seq, State, StateId, Status, Version};

use serde_json::json;

use super::START;

pub fn object(kind: &str, namespace: &str, name: &str, uid: &str) -> ObjectRef {
    ObjectRef {
        group: if kind == "Job" { "batch".into() } else { String::new() },
        version: "v1".into(),
        kind: kind.into(),
        namespace: namespace.into(),
        name: name.into(),
        uid: uid.into(),
    }
}

pub fn status(phase: &str, reason: &str, message: &str) -> Status {
    let attempt = u32::from(!matches!(phase, "Queued" | "Admitted" | "Pending"));
    let ready = if phase == "Running" { 2 } else { 0 };
    let terminal = matches!(phase, "Succeeded" | "Failed" | "Deleted");
    Status {
        phase: phase.into(),
        reason: reason.into(),
        message: message.into(),
        attempt,
        ready,
        total: 2,
        exit_code: (phase == "Failed").then_some(137),
        terminal,
    }
}

pub fn state(seq: Seq, object: &ObjectRef, change: Change, seconds: u64, status: Status) -> State {
    let version = Version::new(&(1000 + seq).to_string());
    State {
        id: StateId::of("jobs", 0, object, change, &version, None),
        seq,
        source: if object.kind == "Job" { "jobs".into() } else { "pods".into() },
        epoch: 0,
        change,
        owner: (object.kind == "Pod")
            .then(|| Arc::new(self::object("Job", "research", "llm-train-7", "uid-train"))),
        object: Arc::new(object.clone()),
        resource_version: version,
        status: Arc::new(status),
        previous: None,
        observed_ms: START + seconds * 1000,
        late: false,
        quotes_none_under: None,
    }
}

/// Events about the job's first pod: one that repeated, and one that happened once.
pub fn events() -> Vec<EventView> {
    let about = object("Pod", "research", "llm-train-7-0-x8k2p", "uid-llm-train-7-0-x8k2p");
    let event = |seconds: u64, kind: &str, reason: &str, message: &str, count| EventView {
        object: object(
            "Event",
            "research",
            &format!("llm-train-7.{seconds}"),
            &format!("uid-event-{seconds}"),
        ),
        about: about.clone(),
        kind: kind.into(),
        reason: reason.into(),
        message: message.into(),
        count,
        first_ms: START + seconds * 1000 - (count - 1) * 60_000,
        last_ms: START + seconds * 1000,
        from: "default-scheduler".into(),
        seq: 4,
    };
    let gpus = "0/12 nodes are available: 12 Insufficient nvidia.com/gpu.";
    vec![
        event(125, "Warning", "FailedScheduling", gpus, 3),
        event(130, "Normal", "Scheduled", "Successfully assigned research/llm-train-7-0-x8k2p to node-7", 1),
    ]
}

/// Two recipients of the job's outcome: one has the message, and the other does not accept it.
pub fn reports() -> Vec<ReportView> {
    let report = |to: &str, result: &str, why: &str| ReportView {
        plugin: "notification".into(),
        uid: "uid-train".into(),
        at_ms: START + 904_000,
        to: to.into(),
        via: "slack".into(),
        result: result.into(),
        title: "Job research/llm-train-7: Succeeded".into(),
        why: why.into(),
    };
    vec![report("ops", "sent", ""), report("research", "refused", "the destination answered 404: <no_team>")]
}

pub fn story() -> Vec<Arc<State>> {
    let job = object("Job", "research", "llm-train-7", "uid-train");
    let workers = ["llm-train-7-0-x8k2p", "llm-train-7-1-q9d4z"];
    let pods: Vec<_> =
        workers.iter().map(|name| object("Pod", "research", name, &format!("uid-{name}"))).collect();
    let p = Change::Present;
    let image = "Back-off pulling image \"registry.example/train:9\": the tag does not exist there <yet>";
    let list = [
        (&job, p, 0, status("Queued", "JobSuspended", "Job suspended")),
        (&job, p, 95, status("Admitted", "Resuming", "")),
        (&job, p, 97, status("Starting", "", "")),
        (
            &pods[0],
            p,
            97,
            status("Pending", "Unschedulable", "0/12 nodes are available: 12 Insufficient nvidia.com/gpu."),
        ),
        (
            &pods[1],
            p,
            98,
            status("Pending", "Unschedulable", "0/12 nodes are available: 12 Insufficient nvidia.com/gpu."),
        ),
        (&pods[0], p, 130, status("Starting", "ContainerCreating", "")),
        (&pods[1], p, 131, status("Starting", "ImagePullBackOff", image)),
        (&pods[0], p, 150, status("Running", "", "")),
        (&pods[1], p, 190, status("Running", "", "")),
        (&job, p, 191, status("Running", "", "")),
        (
            &pods[1],
            p,
            420,
            status(
                "Preempted",
                "PreemptionByScheduler",
                "default-scheduler: preempting to accommodate a higher priority pod",
            ),
        ),
        (&pods[1], Change::Gone, 425, status("Deleted", "Preempted", "")),
        (&job, p, 426, status("Restarting", "PodFailed", "")),
        (&job, Change::Gap, 427, status("Restarting", "PodFailed", "")),
        (&job, p, 470, status("Running", "", "")),
        (&pods[0], p, 900, status("Succeeded", "Completed", "")),
        (&job, p, 903, status("Running", "SuccessCriteriaMet", "Reached expected number of succeeded pods")),
        (
            &job,
            p,
            904,
            status("Succeeded", "CompletionsReached", "Reached expected number of succeeded pods"),
        ),
    ];
    list.into_iter()
        .enumerate()
        .map(|(index, (object, change, seconds, status))| {
            Arc::new(state(index as u64 + 1, object, change, seconds, status))
        })
        .collect()
}

/// The story of a job with more pods than one answer has, one of which has more of its own.
pub fn wide(query: &TimelineQuery) -> RawStory {
    let made = |seq: Seq, kind: &str, name: &str| {
        let object = object(kind, "research", name, &format!("uid-{name}"));
        Arc::new(state(seq, &object, Change::Present, seq, status("Running", "", "")))
    };
    let pods = |seqs: [Seq; 2]| raw(seqs.map(|seq| made(seq, "Pod", &format!("wide-{seq}"))).to_vec());
    match query.cursor {
        None => RawStory {
            states: raw(vec![made(1, "Job", "wide")]),
            related: pods([5, 6]),
            owns_more: true,
            next: Some(StoryCursor { states: 0, owned: 5, ..StoryCursor::NEWEST }),
            ..RawStory::default()
        },
        Some(_) => RawStory { related: pods([2, 3]), owns_more: true, ..RawStory::default() },
    }
}

/// The story of an Event that happened once, and then again.
pub fn of_an_event(query: &TimelineQuery) -> RawStory {
    let event = object("Event", "research", "llm-train-7-0.1", "uid-event");
    let made =
        |seq: Seq| Arc::new(state(seq, &event, Change::Present, seq - 900, status("Unknown", "Event", "")));
    part((vec![made(901), made(902)], Vec::new()), query, false)
}

/// The document of the version with this count.
pub fn event_document(count: u64) -> Vec<u8> {
    let about = json!({"apiVersion": "v1", "kind": "Pod", "namespace": "research", "name": "llm-train-7-0", "uid": "uid-pod"});
    let event = json!({
        "kind": "Event", "involvedObject": about, "type": "Warning", "reason": "BackOff", "count": count,
        "message": "Back-off <b>restarting</b>", "source": {"component": "kubelet"},
        "firstTimestamp": "2026-11-20T12:00:00Z", "lastTimestamp": format!("2026-11-20T12:0{count}:00Z"),
    });
    event.to_string().into_bytes()
}

fn raw(states: Vec<Arc<State>>) -> Vec<RawState> {
    states.into_iter().map(RawState::from).collect()
}

/// The part of a story that a query selects.
pub fn part(
    (mut states, mut related): (Vec<Arc<State>>, Vec<Arc<State>>),
    query: &TimelineQuery,
    reports: bool,
) -> RawStory {
    let before = query.cursor.map_or((Seq::MAX, Seq::MAX), |at| (at.states, at.related));
    let cut = |all: &mut Vec<Arc<State>>, before: Seq| {
        all.retain(|state| state.seq < before);
        let over = query.limit.map_or(0, |limit| all.len().saturating_sub(limit));
        all.drain(..over);
        all.first().filter(|_| over > 0).map_or(0, |oldest| oldest.seq)
    };
    let (states_before, related_before) = (cut(&mut states, before.0), cut(&mut related, before.1));
    let next = StoryCursor { states: states_before, related: related_before, ..StoryCursor::NEWEST };
    let next = Some(next).filter(|next| next.states > 0 || next.related > 0);
    let [states, related] = [states, related].map(raw);
    RawStory { states, related, reports, next, ..RawStory::default() }
}
