//! The JSON of Jobs and Pods, as a submitter, the Job controller, the scheduler and a kubelet write it. Pure:
//! a document depends on the arguments alone.

use serde_json::{Map, Value, json};

use super::life::{JobCondition, JobState, PodIndex, PodState};
use super::plan::WorkloadPlan;
use super::time::rfc3339;

pub const CHANNEL: &str = "kubewitness.dev/channel";
pub const SUBMITTER: &str = "kubewitness.dev/submitter";
pub const QUEUE: &str = "kueue.x-k8s.io/queue-name";
pub const TRACKING: &str = "batch.kubernetes.io/job-tracking";

/// The facts about a created pod.
#[derive(Clone, Debug, Default)]
pub struct PodFacts {
    pub name: String,
    pub uid: String,
    /// When its container started; the times of its end depend on it.
    pub started: Option<u64>,
    pub scheduled: Option<u64>,
}

pub fn namespace(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {"kubewitness.dev/playground": "true"}}})
}

pub fn job(plan: &WorkloadPlan) -> Value {
    let mut spec = json!({
        "parallelism": plan.workers,
        "completions": plan.workers,
        "completionMode": if plan.workers > 1 { "Indexed" } else { "NonIndexed" },
        "backoffLimit": plan.backoff_limit,
        "suspend": plan.queued,
        "template": {"metadata": {"labels": labels(plan), "annotations": annotations(plan)}, "spec": pod_spec(plan)},
    });
    if let Some(seconds) = plan.deadline_seconds {
        spec["activeDeadlineSeconds"] = json!(seconds);
    }
    let mut job_labels = labels(plan);
    job_labels[QUEUE] = json!(format!("{}-gpu", plan.namespace));
    json!({
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": plan.name,
            "namespace": plan.namespace,
            "labels": job_labels,
            "annotations": annotations(plan),
        },
        "spec": spec,
    })
}

fn labels(plan: &WorkloadPlan) -> Value {
    json!({
        "app.kubernetes.io/name": plan.model,
        "app.kubernetes.io/component": "training",
        "app.kubernetes.io/part-of": "ai-platform",
        "platform.example.com/task": plan.task,
        "platform.example.com/team": plan.namespace,
    })
}

fn annotations(plan: &WorkloadPlan) -> Value {
    let submitted_with = match plan.channel {
        super::plan::SubmitChannel::Cli => "train submit --from git",
        super::plan::SubmitChannel::Portal => "https://portal.example.com/submit",
    };
    json!({
        CHANNEL: plan.channel.as_str(),
        SUBMITTER: format!("{}@example.com", plan.submitter),
        "platform.example.com/submitted-with": submitted_with,
        "platform.example.com/experiment": format!("{}/{}", plan.model, plan.dataset),
    })
}

fn pod_spec(plan: &WorkloadPlan) -> Value {
    let gpus = plan.gpus.to_string();
    let amounts = json!({
        "cpu": (plan.gpus * 8).to_string(),
        "memory": format!("{}Gi", plan.gpus * 64),
        "nvidia.com/gpu": gpus,
    });
    json!({
        "restartPolicy": "Never",
        "priorityClassName": if plan.queued { "batch" } else { "interactive" },
        "containers": [{
            "name": plan.container,
            "image": plan.image,
            "command": ["torchrun"],
            "args": [
                format!("--nproc-per-node={}", plan.gpus),
                format!("--nnodes={}", plan.workers),
                "train.py".to_owned(),
                format!("--model={}", plan.model),
                format!("--dataset=s3://datasets/{}/train", plan.dataset),
                format!("--epochs={}", plan.epochs),
                format!("--lr={}", plan.learning_rate),
                format!("--checkpoint-dir=/checkpoints/{}", plan.name),
            ],
            "env": [
                {"name": "RUN_NAME", "value": plan.name},
                {"name": "NCCL_DEBUG", "value": "WARN"},
                {"name": "NCCL_SOCKET_IFNAME", "value": "eth0"},
                {"name": "PYTORCH_CUDA_ALLOC_CONF", "value": "expandable_segments:True"},
                {"name": "TRACKING_URI", "value": "http://tracking.ml-platform.svc:5000"},
                {"name": "WORLD_SIZE", "value": (plan.gpus * plan.workers as u64).to_string()},
            ],
            "resources": {"requests": amounts, "limits": amounts},
            "volumeMounts": [{"name": "checkpoints", "mountPath": "/checkpoints"}, {"name": "shm", "mountPath": "/dev/shm"}],
        }],
        "volumes": [
            {"name": "checkpoints", "persistentVolumeClaim": {"claimName": format!("{}-checkpoints", plan.namespace)}},
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}},
        ],
    })
}

/// A pod as the Job controller creates it from the Job's template.
pub fn pod(plan: &WorkloadPlan, job: &Value, index: PodIndex, name: &str) -> Value {
    let template = &job["spec"]["template"];
    let mut annotations = template["metadata"]["annotations"].clone();
    if plan.workers > 1 {
        annotations["batch.kubernetes.io/job-completion-index"] = json!((index % plan.workers).to_string());
    }
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "generateName": format!("{}-", plan.name),
            "namespace": plan.namespace,
            "labels": template["metadata"]["labels"],
            "annotations": annotations,
            "finalizers": [TRACKING],
            "ownerReferences": [{
                "apiVersion": "batch/v1",
                "kind": "Job",
                "name": plan.name,
                "uid": job["metadata"]["uid"],
                "controller": true,
                "blockOwnerDeletion": true,
            }],
        },
        "spec": template["spec"],
    })
}

/// Leaves out counts of zero, except those that the controller always writes.
pub fn job_status(state: &JobState, pods: &[PodFacts]) -> Value {
    let uids = |indexes: &[PodIndex]| -> Vec<String> {
        indexes.iter().filter_map(|index| pods.get(*index)).map(|pod| pod.uid.clone()).collect()
    };
    let mut uncounted = Map::new();
    for (field, pods) in [("succeeded", &state.uncounted_succeeded), ("failed", &state.uncounted_failed)] {
        if !pods.is_empty() {
            uncounted.insert(field.to_owned(), json!(uids(pods)));
        }
    }
    let mut status = json!({
        "ready": state.ready,
        "terminating": state.terminating,
        "uncountedTerminatedPods": uncounted,
    });
    for (field, count) in [("active", state.active), ("succeeded", state.succeeded), ("failed", state.failed)]
    {
        if count > 0 {
            status[field] = json!(count);
        }
    }
    for (field, time) in [("startTime", state.start), ("completionTime", state.completion)] {
        if let Some(seconds) = time {
            status[field] = json!(rfc3339(seconds));
        }
    }
    if !state.conditions.is_empty() {
        status["conditions"] = state.conditions.iter().map(job_condition).collect();
    }
    status
}

fn job_condition(condition: &JobCondition) -> Value {
    json!({
        "type": condition.kind,
        "status": if condition.status { "True" } else { "False" },
        "lastProbeTime": rfc3339(condition.at),
        "lastTransitionTime": rfc3339(condition.at),
        "reason": condition.reason,
        "message": condition.message,
    })
}

/// How many nodes the cluster has.
const NODES: u32 = 12;

/// The number of the node that the scheduler chooses for a pod of this name.
fn node_number(pod: &str) -> u32 {
    pod.bytes().map(u32::from).sum::<u32>() % NODES + 1
}

/// The node that the scheduler chooses for a pod of this name.
pub fn node_name(pod: &str) -> String {
    format!("gpu-node-{}", node_number(pod))
}

/// The scheduler's request that a pod run on its node.
pub fn binding(namespace: &str, pod: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": pod, "namespace": namespace},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node_name(pod)},
    })
}

/// The status of a pod; `before` is the status that it replaces.
pub fn pod_status(
    plan: &WorkloadPlan,
    state: &PodState,
    facts: &PodFacts,
    before: &Value,
    now: u64,
) -> Value {
    let phase = match state {
        PodState::Unschedulable | PodState::Creating | PodState::Waiting(_) => "Pending",
        PodState::Running => "Running",
        PodState::Ended { exit_code: 0, .. } => "Succeeded",
        PodState::Ended { .. } | PodState::Evicted | PodState::Killed => "Failed",
        // The pod is only marked, and runs until it is deleted.
        PodState::Disrupted(_) => before["phase"].as_str().unwrap_or("Pending"),
    };
    if let PodState::Disrupted(reason) = state {
        return disrupted(before, reason, now);
    }
    let mut status =
        json!({"phase": phase, "qosClass": "Guaranteed", "conditions": pod_conditions(state, facts, now)});
    if *state == PodState::Unschedulable {
        return status;
    }
    status["startTime"] = json!(rfc3339(facts.scheduled.unwrap_or(now)));
    status["hostIP"] = json!(format!("10.0.0.{}", 10 + node_number(&facts.name)));
    if let Some(disruption) = find_condition(before, "DisruptionTarget")
        && let Some(conditions) = status["conditions"].as_array_mut()
    {
        conditions.push(disruption.clone());
    }
    if *state == PodState::Evicted {
        status["reason"] = json!("Evicted");
        status["message"] =
            json!("The node was low on resource: memory. Threshold quantity: 100Mi, available: 71Mi.");
        status["conditions"].as_array_mut().into_iter().for_each(|conditions| {
            conditions.push(disruption("TerminationByKubelet", "The node was low on resource: memory.", now));
        });
    }
    status["containerStatuses"] = json!([container_status(plan, state, facts, now)]);
    status
}

fn find_condition<'a>(status: &'a Value, kind: &str) -> Option<&'a Value> {
    status["conditions"].as_array()?.iter().find(|condition| condition["type"] == kind)
}

fn disruption(reason: &str, message: &str, now: u64) -> Value {
    json!({
        "type": "DisruptionTarget",
        "status": "True",
        "lastProbeTime": null,
        "lastTransitionTime": rfc3339(now),
        "reason": reason,
        "message": message,
    })
}

/// The queue's message about a job that it preempts.
pub const MADE_ROOM: &str = "Preempted to accommodate a workload of higher priority in the ClusterQueue";

fn disrupted(before: &Value, reason: &str, now: u64) -> Value {
    let message = match reason {
        "PreemptionByScheduler" => "default-scheduler: preempting to accommodate a higher priority pod",
        _ => MADE_ROOM,
    };
    let mut status = before.clone();
    match status["conditions"].as_array_mut() {
        Some(conditions) => conditions.push(disruption(reason, message, now)),
        None => status["conditions"] = json!([disruption(reason, message, now)]),
    }
    status
}

fn pod_conditions(state: &PodState, facts: &PodFacts, now: u64) -> Value {
    if *state == PodState::Unschedulable {
        return json!([{
            "type": "PodScheduled",
            "status": "False",
            "lastProbeTime": null,
            "lastTransitionTime": rfc3339(now),
            "reason": "Unschedulable",
            "message": "0/12 nodes are available: 12 Insufficient nvidia.com/gpu. preemption: 0/12 nodes are available: 12 No preemption victims found for incoming pod.",
        }]);
    }
    let ready = if *state == PodState::Running { "True" } else { "False" };
    let why = match state {
        PodState::Running => None,
        PodState::Ended { exit_code: 0, .. } => Some("PodCompleted"),
        PodState::Ended { .. } | PodState::Evicted | PodState::Killed => Some("PodFailed"),
        _ => Some("ContainersNotReady"),
    };
    let scheduled = rfc3339(facts.scheduled.unwrap_or(now));
    let mut conditions = Vec::new();
    for (kind, status, at) in [
        ("PodScheduled", "True", scheduled.clone()),
        ("Initialized", "True", scheduled),
        ("ContainersReady", ready, rfc3339(now)),
        ("Ready", ready, rfc3339(now)),
    ] {
        let mut condition =
            json!({"type": kind, "status": status, "lastProbeTime": null, "lastTransitionTime": at});
        if let Some(reason) = why.filter(|_| status == "False") {
            condition["reason"] = json!(reason);
        }
        conditions.push(condition);
    }
    Value::Array(conditions)
}

fn container_status(plan: &WorkloadPlan, state: &PodState, facts: &PodFacts, now: u64) -> Value {
    let running = *state == PodState::Running;
    let terminated = |exit_code: i32, reason: &str| {
        json!({"terminated": {
            "exitCode": exit_code,
            "reason": reason,
            "startedAt": rfc3339(facts.started.unwrap_or(now)),
            "finishedAt": rfc3339(now),
        }})
    };
    let inner = match state {
        PodState::Waiting(reason) => {
            json!({"waiting": {"reason": reason, "message": waiting_message(reason, &plan.image)}})
        }
        PodState::Running => json!({"running": {"startedAt": rfc3339(facts.started.unwrap_or(now))}}),
        PodState::Ended { exit_code, reason } => terminated(*exit_code, reason),
        PodState::Evicted | PodState::Killed => terminated(137, "Error"),
        PodState::Unschedulable | PodState::Creating | PodState::Disrupted(_) => {
            json!({"waiting": {"reason": "ContainerCreating"}})
        }
    };
    json!({
        "name": plan.container,
        "state": inner,
        "lastState": {},
        "ready": running,
        "started": running,
        "restartCount": 0,
        "image": plan.image,
        "imageID": "",
    })
}

fn waiting_message(reason: &str, image: &str) -> String {
    match reason {
        "ImagePullBackOff" => format!("Back-off pulling image \"{image}\""),
        _ => format!("failed to pull and unpack image \"{image}\": not found"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> WorkloadPlan {
        WorkloadPlan::draw(1, 1, &["team-vision".to_owned()])
    }

    #[test]
    fn a_job_is_about_two_kilobytes_and_says_who_submitted_it_and_how() {
        let job = job(&plan());
        let size = job.to_string().len();
        assert!((1_600..3_500).contains(&size), "{size}");
        let annotations = &job["metadata"]["annotations"];
        assert!(matches!(annotations[CHANNEL].as_str(), Some("cli" | "portal")));
        assert!(annotations[SUBMITTER].as_str().is_some_and(|who| who.ends_with("@example.com")));
        assert_eq!(job["metadata"]["labels"][QUEUE], "team-vision-gpu");
        assert!(
            job["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"]
                .is_string()
        );
    }

    #[test]
    fn a_completed_status_has_the_fields_that_the_controller_writes_and_no_others() {
        let done =
            |kind| JobCondition { kind, status: true, reason: "CompletionsReached", message: "m", at: 60 };
        let state = JobState {
            conditions: vec![done("SuccessCriteriaMet"), done("Complete")],
            start: Some(0),
            completion: Some(60),
            succeeded: 1,
            ..JobState::default()
        };
        let status = job_status(&state, &[]);
        let mut fields: Vec<_> = status.as_object().expect("an object").keys().map(String::as_str).collect();
        fields.sort_unstable();
        let expected = [
            "completionTime",
            "conditions",
            "ready",
            "startTime",
            "succeeded",
            "terminating",
            "uncountedTerminatedPods",
        ];
        assert_eq!(fields, expected);
        assert_eq!(status["conditions"][1]["lastTransitionTime"], "1970-01-01T00:01:00Z");
        assert_eq!(status["uncountedTerminatedPods"], json!({}));
    }

    #[test]
    fn pods_that_are_not_counted_yet_are_named_by_uid() {
        let pods = [PodFacts { uid: "u0".into(), ..PodFacts::default() }];
        let state = JobState { uncounted_failed: vec![0], ..JobState::default() };
        assert_eq!(job_status(&state, &pods)["uncountedTerminatedPods"], json!({"failed": ["u0"]}));
    }

    #[test]
    fn a_pod_belongs_to_its_job_and_is_tracked() {
        let plan = plan();
        let mut owner = job(&plan);
        owner["metadata"]["uid"] = json!("job-uid");
        let pod = pod(&plan, &owner, 0, "p-0");
        assert_eq!(pod["metadata"]["ownerReferences"][0]["uid"], "job-uid");
        assert_eq!(pod["metadata"]["finalizers"], json!([TRACKING]));
    }

    #[test]
    fn an_eviction_and_a_preemption_keep_the_reason_until_the_end() {
        let (plan, facts) =
            (plan(), PodFacts { scheduled: Some(5), started: Some(9), ..PodFacts::default() });
        let running = pod_status(&plan, &PodState::Running, &facts, &json!({}), 10);
        let marked = pod_status(&plan, &PodState::Disrupted("PreemptionByScheduler"), &facts, &running, 20);
        assert_eq!(marked["phase"], "Running");
        let killed = pod_status(&plan, &PodState::Killed, &facts, &marked, 30);
        assert_eq!(killed["phase"], "Failed");
        assert_eq!(
            find_condition(&killed, "DisruptionTarget").expect("kept")["reason"],
            "PreemptionByScheduler"
        );
        assert_eq!(
            killed["containerStatuses"][0]["state"]["terminated"]["startedAt"],
            "1970-01-01T00:00:09Z"
        );
        let evicted = pod_status(&plan, &PodState::Evicted, &facts, &running, 40);
        assert_eq!((&evicted["phase"], &evicted["reason"]), (&json!("Failed"), &json!("Evicted")));
        assert_eq!(
            find_condition(&evicted, "DisruptionTarget").expect("there")["reason"],
            "TerminationByKubelet"
        );
    }

    #[test]
    fn out_of_memory_is_told_by_exit_code_and_reason() {
        let state = PodState::Ended { exit_code: 137, reason: "OOMKilled" };
        let status = pod_status(&plan(), &state, &PodFacts::default(), &json!({}), 1);
        assert_eq!(status["containerStatuses"][0]["state"]["terminated"]["reason"], "OOMKilled");
        assert_eq!(status["containerStatuses"][0]["state"]["terminated"]["exitCode"], 137);
    }
}
