//! Tests of explanations: states of a Job and of its pods go in, and the sentence with its cause comes out. They
//! read no files.

use serde_json::{Value, json};

use super::*;
use crate::state::StateId;
use crate::status::StatusRules;
use crate::version::Version;

mod clauses;
mod queues;

const SECOND: u64 = 1_000;
/// 2026-01-01T00:00:00Z.
const NEW_YEAR: u64 = 1_767_225_600_000;

/// The witnessed states of a Job named `job` and of its pods.
#[derive(Default)]
struct WitnessedJob {
    states: Vec<Arc<State>>,
    related: Vec<Arc<State>>,
    events: Vec<EventView>,
    preemptors: Vec<ObjectRef>,
    pods: PodCoverage,
    documents: DocumentsBySeq,
}

impl WitnessedJob {
    /// Adds the document after this many seconds.
    fn at(mut self, second: u64, document: &Value) -> Self {
        self.push(second, Change::Present, document);
        self
    }

    fn gone(mut self, second: u64, document: &Value) -> Self {
        self.push(second, Change::Gone, document);
        self
    }

    fn push(&mut self, second: u64, change: Change, document: &Value) {
        let bytes = document.to_string().into_bytes();
        let seq = (self.states.len() + self.related.len()) as Seq + 1;
        let text = |field: &str| document["metadata"][field].as_str().unwrap_or_default().to_owned();
        let object = ObjectRef {
            group: document["apiVersion"]
                .as_str()
                .and_then(|it| it.split_once('/'))
                .map_or("", |it| it.0)
                .into(),
            kind: document["kind"].as_str().unwrap_or_default().to_owned(),
            name: text("name"),
            uid: text("name"),
            namespace: "team".into(),
            ..ObjectRef::default()
        };
        let rules = StatusRules::builtin();
        let mut status = Arc::new(rules.status_of(&object.group, &object.kind, &bytes));
        let mut previous = None;
        if change == Change::Gone {
            let deleted = Arc::new(StatusRules::deleted_status(&status));
            previous = Some(std::mem::replace(&mut status, deleted));
        }
        let is_subject = ["Job", "JobSet", "TrainJob", "RayJob"].contains(&object.kind.as_str());
        let state = Arc::new(State {
            id: StateId::parse("x"),
            seq,
            source: "jobs".into(),
            epoch: 0,
            change,
            object: Arc::new(object),
            owner: None,
            resource_version: Version::new("1"),
            status,
            previous,
            observed_ms: NEW_YEAR + second * SECOND,
            late: false,
            quotes_none_under: None,
        });
        self.documents.insert(seq, bytes);
        if is_subject { self.states.push(state) } else { self.related.push(state) }
    }

    fn story(&self) -> ExplainedStates<'_> {
        ExplainedStates {
            states: &self.states,
            related: &self.related,
            events: &self.events,
            preemptors: &self.preemptors,
            pods: self.pods,
            is_cut: false,
        }
    }

    fn why(&self) -> WhyView {
        let wanted = self.story().documents_wanted();
        let documents = wanted.into_iter().map(|seq| (seq, self.documents[&seq].clone())).collect();
        let why = self.story().explain_object(&documents, NEW_YEAR + 100 * SECOND);
        self.assert_claims_rest_on_states(&why);
        why
    }

    fn assert_claims_rest_on_states(&self, why: &WhyView) {
        let states = self.states.iter().chain(&self.related).map(|state| state.seq);
        let known: BTreeSet<_> = states.chain(self.events.iter().map(|event| event.seq)).collect();
        for claim in &why.claims {
            assert!(!claim.seqs.is_empty(), "nothing says: {}", claim.text);
            assert!(claim.seqs.iter().all(|seq| known.contains(seq)), "{claim:?} of {known:?}");
        }
        assert_eq!(sentence::join_claims(&why.claims, &why.doubt), why.sentence);
    }

    fn sentence_without_documents(&self) -> String {
        self.story().explain_object(&DocumentsBySeq::new(), NEW_YEAR + 100 * SECOND).sentence
    }
}

fn job(status: &Value) -> Value {
    json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "job", "uid": "job", "generation": 1},
        "spec": {"parallelism": 2, "completions": 2, "backoffLimit": 0}, "status": status})
}

fn failed_job(reason: &str, message: &str) -> Value {
    let conditions = json!([{"type": "Failed", "status": "True", "reason": reason, "message": message}]);
    job(&json!({"startTime": "2026-01-01T00:00:01Z", "failed": 2, "conditions": conditions}))
}

fn running_job() -> Value {
    job(&json!({"startTime": "2026-01-01T00:00:01Z", "active": 2, "ready": 2}))
}

/// A pod on a node, with one container.
fn pod(name: &str, phase: &str, state: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "uid": name},
        "spec": {"nodeName": "n1", "restartPolicy": "Never", "containers": [{"name": "main"}]},
        "status": {"phase": phase, "startTime": "2026-01-01T00:00:02Z", "containerStatuses": [
            {"name": "main", "ready": phase == "Running", "restartCount": 0, "state": state}]}})
}

fn running(name: &str) -> Value {
    pod(name, "Running", &json!({"running": {}}))
}

fn ended(name: &str, code: i32, reason: &str, second: u64) -> Value {
    let at = crate::calendar::format_rfc3339(NEW_YEAR + second * SECOND);
    pod(name, "Failed", &json!({"terminated": {"exitCode": code, "reason": reason, "finishedAt": at}}))
}

fn deleting(mut pod: Value, second: u64) -> Value {
    let at = crate::calendar::format_rfc3339(NEW_YEAR + (second + 30) * SECOND);
    pod["metadata"]["deletionTimestamp"] = at.into();
    pod["metadata"]["deletionGracePeriodSeconds"] = 30.into();
    pod
}

fn disrupted(mut pod: Value, reason: &str, message: &str) -> Value {
    pod["status"]["conditions"] =
        json!([{"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message}]);
    pod
}

fn event(about: &str, reason: &str, message: &str, last_ms: u64) -> EventView {
    EventView {
        about: ObjectRef { uid: about.into(), ..ObjectRef::default() },
        reason: reason.into(),
        message: message.into(),
        last_ms,
        ..EventView::default()
    }
}

fn ray_job(status: &Value) -> Value {
    json!({"apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": {"name": "job", "uid": "job", "generation": 1},
        "spec": {"entrypoint": "python train.py"}, "status": status})
}

fn ray_cluster() -> Value {
    json!({"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": "cluster", "uid": "cluster"}})
}

/// A job with two running pods.
fn two_run() -> WitnessedJob {
    let pods = WitnessedJob::default()
        .at(1, &job(&json!({"startTime": "2026-01-01T00:00:01Z", "active": 2, "ready": 0})));
    pods.at(3, &running("a")).at(3, &running("b")).at(4, &running_job())
}

#[test]
fn the_first_container_that_failed_is_named_and_not_the_pods_deleted_because_of_it() {
    let why = two_run()
        .at(10, &ended("a", 137, "OOMKilled", 10))
        .at(10, &deleting(running("b"), 10))
        .at(12, &deleting(ended("b", 137, "Error", 12), 10))
        .at(13, &failed_job("BackoffLimitExceeded", "Job has reached the specified backoff limit"))
        .why();
    let cause = why.cause.clone().expect("a cause");
    assert_eq!((cause.kind, cause.object.expect("a pod").name.as_str()), (CauseKind::OutOfMemory, "a"));
    assert_eq!((cause.node.as_deref(), cause.seq), (Some("n1"), 5));
    let container = cause.container.expect("a container");
    assert_eq!((container.name.as_str(), container.exit_code), ("main", Some(137)));
    assert_eq!(
        why.sentence,
        "Waited 3 s to start, ran 9 s, failed: container main of pod a on node n1 ran out of memory (exit 137)"
    );
}

#[test]
fn a_container_that_ended_earlier_but_was_observed_later_is_the_first() {
    let why = two_run()
        .at(10, &ended("b", 1, "Error", 9))
        .at(11, &ended("a", 3, "Error", 8))
        .at(13, &failed_job("BackoffLimitExceeded", ""))
        .why();
    assert_eq!(why.cause.expect("a cause").object.expect("a pod").name, "a");
    let unbelievable = two_run()
        .at(10, &ended("b", 1, "Error", 9))
        .at(11, &ended("a", 3, "Error", 0).clone())
        .at(13, &failed_job("BackoffLimitExceeded", ""));
    assert_eq!(unbelievable.why().also, [], "the same kind is told once");
}

#[test]
fn signals_and_disruptions_are_told_apart() {
    let of = |end: &Value| {
        let why = two_run().at(10, end).at(13, &failed_job("BackoffLimitExceeded", "")).why();
        let cause = why.cause.expect("a cause");
        (cause.kind, cause.by)
    };
    assert_eq!(of(&ended("a", 139, "Error", 10)).0, CauseKind::Signal);
    assert_eq!(of(&ended("a", 137, "Error", 10)).0, CauseKind::Signal);
    assert_eq!(of(&ended("a", 255, "Error", 10)).0, CauseKind::ExitCode);
    assert_eq!(of(&ended("a", 128, "StartError", 10)).0, CauseKind::Configuration);
    let pressure = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 4Ki.";
    assert_eq!(
        of(&disrupted(running("a"), "TerminationByKubelet", pressure)),
        (CauseKind::Evicted, "memory".into())
    );
    let shutdown = "Pod was terminated in response to imminent node shutdown.";
    assert_eq!(of(&disrupted(running("a"), "TerminationByKubelet", shutdown)).0, CauseKind::NodeLost);
    assert_eq!(of(&disrupted(running("a"), "PreemptionByScheduler", "")).0, CauseKind::Preempted);
    assert_eq!(of(&disrupted(running("a"), "DeletionByPodGC", "")).0, CauseKind::NodeLost);
    assert_eq!(of(&disrupted(running("a"), "EvictionByEvictionAPI", "")).0, CauseKind::Evicted);
    let taint =
        disrupted(running("a"), "DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint");
    assert_eq!(of(&taint).0, CauseKind::Evicted);
    let mut silent = taint;
    let ready = json!({"type": "Ready", "status": "False"});
    silent["status"]["conditions"].as_array_mut().expect("a list").push(ready);
    assert_eq!(of(&silent).0, CauseKind::NodeLost, "its containers are as the kubelet last saw them");
}

#[test]
fn a_deletion_is_the_cause_only_if_nothing_else_failed() {
    let deleted = deleting(running("a"), 9);
    let alone = two_run().at(9, &deleted).at(12, &deleting(ended("a", 143, "Error", 10), 9));
    let why = alone.at(13, &failed_job("BackoffLimitExceeded", "")).why();
    assert_eq!(why.cause.expect("a cause").kind, CauseKind::Deleted);
    let why = two_run().at(9, &deleted).at(11, &ended("b", 2, "Error", 11));
    let why = why.at(13, &failed_job("BackoffLimitExceeded", "")).why();
    let cause = why.cause.expect("a cause");
    assert_eq!((cause.kind, cause.object.expect("a pod").name.as_str()), (CauseKind::ExitCode, "b"));
    // The job failed before its deletion was requested.
    let why = two_run().at(10, &deleting(ended("a", 5, "Error", 8), 9));
    let why = why.at(13, &failed_job("BackoffLimitExceeded", "")).why();
    assert_eq!(why.cause.expect("a cause").container.expect("a container").exit_code, Some(5));
}

#[test]
fn the_kubelets_last_deletion_of_a_pod_hides_no_earlier_one() {
    let killed = |deletion: &str, grace: u64| {
        let mut pod = ended("a", 137, "Error", 20);
        pod["metadata"]["deletionTimestamp"] = deletion.into();
        pod["metadata"]["deletionGracePeriodSeconds"] = grace.into();
        pod
    };
    // The deletion was requested at 18, and the kubelet removes the ended pod at 22.
    let (asked, removed) = (killed("2026-01-01T00:00:48Z", 30), killed("2026-01-01T00:00:22Z", 0));
    let story = two_run().at(21, &asked).at(22, &removed).gone(22, &removed);
    let why = story.at(23, &failed_job("BackoffLimitExceeded", "")).why();
    assert_eq!(why.cause.expect("a cause").kind, CauseKind::Deleted);
    let by_itself = two_run().at(21, &removed).at(23, &failed_job("BackoffLimitExceeded", "")).why();
    assert_eq!(by_itself.cause.expect("a cause").kind, CauseKind::Signal, "nobody asked before it ended");
}

#[test]
fn a_container_that_is_ended_with_its_job_after_restarts_failed_for_the_first_end() {
    let mut restarting = running("a");
    restarting["status"]["containerStatuses"][0] = json!({"name": "main", "ready": false, "restartCount": 1,
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled", "finishedAt": "2026-01-01T00:00:10Z"}}});
    // The Job's controller requests the deletion at 15; the kubelet removes the ended pod at 20.
    let mut removed = ended("a", 137, "Error", 19);
    removed["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:20Z".into();
    removed["metadata"]["deletionGracePeriodSeconds"] = 0.into();
    let story = two_run().at(11, &restarting).at(13, &running("a")).at(15, &deleting(running("a"), 15));
    let why = story.at(20, &removed).gone(20, &removed).at(21, &failed_job("BackoffLimitExceeded", "")).why();
    assert_eq!(why.cause.expect("a cause").kind, CauseKind::OutOfMemory);
}

#[test]
fn the_pod_that_a_failure_policy_names_is_the_cause() {
    let message = "Container main for pod team/a-1 failed with exit code 42 matching FailJob rule at index 0";
    let why = two_run()
        .at(8, &ended("a", 1, "Error", 8))
        .at(10, &ended("a-1", 42, "Error", 10))
        .at(13, &failed_job("PodFailurePolicy", message))
        .why();
    let cause = why.cause.expect("a cause");
    assert_eq!(cause.object.expect("a pod").name, "a-1");
    assert_eq!(cause.container.expect("a container").exit_code, Some(42));
}

#[test]
fn a_deadline_is_the_cause_and_pods_that_fell_are_told_besides() {
    let why = two_run()
        .at(8, &ended("a", 1, "Error", 8))
        .at(13, &failed_job("DeadlineExceeded", "Job was active longer than specified deadline"))
        .why();
    assert_eq!(why.cause.as_ref().expect("a cause").kind, CauseKind::Deadline);
    assert!(why.sentence.ends_with("failed: its deadline passed, other pods: exit 1"), "{}", why.sentence);
}

#[test]
fn only_indexes_that_failed_for_good_are_a_cause() {
    let of_index = |mut pod: Value, index: u32| {
        pod["metadata"]["annotations"] =
            json!({"batch.kubernetes.io/job-completion-index": index.to_string()});
        pod
    };
    let mut failed = failed_job("FailedIndexes", "Job has failed indexes");
    failed["status"]["failedIndexes"] = "3,7-8".into();
    let why = two_run()
        .at(8, &of_index(ended("a", 1, "Error", 8), 0))
        .at(10, &of_index(ended("b", 7, "Error", 10), 8))
        .at(13, &failed)
        .why();
    assert_eq!(why.cause.expect("a cause").object.expect("a pod").name, "b");
}

#[test]
fn disruptions_that_a_policy_ignores_are_no_cause() {
    let mut failed = failed_job("BackoffLimitExceeded", "");
    failed["spec"]["podFailurePolicy"] =
        json!({"rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]});
    let why = two_run()
        .at(8, &disrupted(running("a"), "PreemptionByScheduler", ""))
        .at(10, &ended("b", 7, "Error", 10))
        .at(13, &failed)
        .why();
    assert_eq!(why.cause.expect("a cause").kind, CauseKind::ExitCode);
    assert_eq!(why.also.iter().map(|other| other.kind).collect::<Vec<_>>(), [CauseKind::Preempted]);
}

#[test]
fn an_init_container_and_a_sidecar_are_told_apart() {
    let mut with_init = pod("a", "Failed", &json!({"waiting": {"reason": "PodInitializing"}}));
    with_init["spec"]["initContainers"] =
        json!([{"name": "data"}, {"name": "proxy", "restartPolicy": "Always"}]);
    let end = |code: i32| json!({"terminated": {"exitCode": code, "reason": "Error", "finishedAt": "2026-01-01T00:00:09Z"}});
    with_init["status"]["initContainerStatuses"] = json!([{"name": "data", "state": end(4)}]);
    let failed = || failed_job("BackoffLimitExceeded", "");
    let container =
        |pod: &Value| two_run().at(10, pod).at(13, &failed()).why().cause.expect("a cause").container;
    let init = container(&with_init).expect("a container");
    assert_eq!((init.name.as_str(), init.role, init.exit_code), ("data", ContainerRole::Init, Some(4)));
    // The kubelet ends sidecars after the main containers.
    let mut with_sidecar = ended("a", 1, "Error", 9);
    with_sidecar["spec"]["initContainers"] = with_init["spec"]["initContainers"].clone();
    with_sidecar["status"]["initContainerStatuses"] = json!([{"name": "proxy", "state": end(137)}]);
    assert_eq!(container(&with_sidecar).expect("a container").role, ContainerRole::Main);
}

fn succeeded_job() -> Value {
    let conditions = json!([{"type": "Complete", "status": "True", "reason": "CompletionsReached"}]);
    job(&json!({"startTime": "2026-01-01T00:00:01Z", "succeeded": 2, "conditions": conditions}))
}

#[test]
fn a_job_that_succeeds_says_what_failed_on_its_way() {
    let retried = two_run().at(9, &ended("a", 3, "Error", 9)).at(13, &succeeded_job()).why();
    assert_eq!((retried.outcome, retried.cause), (Outcome::Succeeded, None));
    assert!(retried.sentence.contains("succeeded, pods that failed: exit 3"), "{}", retried.sentence);
    // The kubelet restarts a sidecar, and its pod comes to a good end.
    let mut shipping = running("a");
    shipping["spec"]["initContainers"] = json!([{"name": "log-shipper", "restartPolicy": "Always"}]);
    let end =
        json!({"terminated": {"exitCode": 137, "reason": "OOMKilled", "finishedAt": "2026-01-01T00:00:09Z"}});
    shipping["status"]["initContainerStatuses"] = json!([{"name": "log-shipper", "state": end}]);
    let mut complete = pod("a", "Succeeded", &json!({"terminated": {"exitCode": 0, "reason": "Completed"}}));
    complete["spec"] = shipping["spec"].clone();
    let why = two_run().at(9, &shipping).at(12, &complete).at(13, &succeeded_job()).why();
    assert!(
        why.sentence
            .ends_with("succeeded, sidecar log-shipper of pod a on node n1 ran out of memory (exit 137)"),
        "{}",
        why.sentence
    );
}

#[test]
fn a_sidecar_that_the_kubelet_ends_after_the_work_did_not_fail() {
    let mut ending = pod(
        "a",
        "Running",
        &json!({"terminated": {"exitCode": 0, "reason": "Completed", "finishedAt": "2026-01-01T00:00:09Z"}}),
    );
    ending["spec"]["initContainers"] = json!([{"name": "proxy", "restartPolicy": "Always"}]);
    let end =
        json!({"terminated": {"exitCode": 143, "reason": "Error", "finishedAt": "2026-01-01T00:00:09Z"}});
    ending["status"]["initContainerStatuses"] = json!([{"name": "proxy", "state": end}]);
    let complete = two_run().at(10, &ending).at(13, &succeeded_job()).why();
    assert!(complete.sentence.ends_with("succeeded"), "{}", complete.sentence);
    // The other worker's failure is the cause, though this pod has ended before it.
    let failed = two_run()
        .at(10, &ending)
        .at(12, &ended("b", 7, "Error", 12))
        .at(13, &failed_job("BackoffLimitExceeded", ""))
        .why();
    let cause = failed.cause.expect("a cause");
    assert_eq!((cause.kind, cause.object.expect("a pod").name), (CauseKind::ExitCode, "b".to_owned()));
    assert!(failed.also.is_empty(), "{}", failed.sentence);
    // The kubelet fails a pod at its own deadline, though its program ends with 0.
    let mut late = ending.clone();
    late["status"]["phase"] = "Failed".into();
    late["status"]["reason"] = "DeadlineExceeded".into();
    let failed = two_run().at(10, &late).at(13, &failed_job("BackoffLimitExceeded", "")).why();
    assert_eq!(failed.cause.expect("a cause").kind, CauseKind::Deadline, "{}", failed.sentence);
}

#[test]
fn what_a_job_waits_for_is_said_with_its_duration() {
    let pending = |reason: &str, message: &str| {
        let mut pod = pod("a", "Pending", &json!({}));
        pod["spec"].as_object_mut().expect("a map").remove("nodeName");
        pod["status"] = json!({"phase": "Pending", "conditions": [
            {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}]});
        pod
    };
    let made = || {
        WitnessedJob::default()
            .at(0, &job(&json!({"startTime": "2026-01-01T00:00:01Z", "active": 1, "ready": 0})))
    };
    let why = made().at(0, &pending("Unschedulable", "0/3 nodes are available: 3 Insufficient cpu.")).why();
    assert_eq!(why.outcome, Outcome::Waiting);
    assert_eq!(
        why.sentence,
        "Has waited 1 min for a node, no node fits pod a: 0/3 nodes are available: 3 Insufficient cpu"
    );
    let pull =
        |reason: &str| pod("a", "Pending", &json!({"waiting": {"reason": reason, "message": "no such tag"}}));
    let stuck = made().at(2, &pull("ErrImagePull")).at(5, &pull("ImagePullBackOff"));
    let why = stuck.why();
    assert_eq!(why.cause.as_ref().expect("a cause").kind, CauseKind::ImagePull);
    assert_eq!(
        why.sentence,
        "Has waited 2 s to start and 1 min for an image, the image of container main of pod a on node n1 can't be \
         pulled: no such tag"
    );
    let split = stuck.at(12, &running("a")).at(12, &running_job()).why();
    assert_eq!(split.sentence, "Waited 2 s to start and 10 s for an image, has run for 1 min");
    assert_eq!(split.cause, None);
}

#[test]
fn a_refused_pod_is_quota_until_one_is_made() {
    let mut waits = WitnessedJob::default().at(0, &job(&json!({"startTime": "2026-01-01T00:00:01Z"})));
    let refused = r#"Error creating: pods "job-x" is forbidden: exceeded quota: team, requested: cpu=2"#;
    waits.events.push(event("job", "FailedCreate", refused, 5));
    assert_eq!(waits.why().cause.expect("a cause").kind, CauseKind::Quota);
    waits.events.push(event("job", "SuccessfulCreate", "", 9));
    assert_eq!(waits.why().cause, None);
}

#[test]
fn a_pod_that_is_refused_to_what_makes_it_for_the_object_is_quota() {
    let waits = || {
        let begun = WitnessedJob::default().at(0, &ray_job(&json!({"jobDeploymentStatus": "Initializing"})));
        begun.at(1, &ray_cluster())
    };
    let refused =
        r#"Failed to create head Pod a/b, pods "b" is forbidden: exceeded quota: team, requested: pods=1"#;
    let with = |mut story: WitnessedJob, events: &[(&str, &str, u64)]| {
        let told =
            events.iter().map(|(reason, message, last_ms)| event("cluster", reason, message, *last_ms));
        story.events = told.collect();
        story.why().cause.map(|cause| cause.kind)
    };
    let head = ("FailedToCreateHeadPod", refused, 5);
    assert_eq!(with(waits(), &[head]), Some(CauseKind::Quota));
    assert_eq!(with(waits(), &[head, ("CreatedHeadPod", "", 9)]), None);
    let worker = ("FailedToCreateWorkerPod", refused, 9);
    assert_eq!(with(waits(), &[("CreatedHeadPod", "", 5), worker]), Some(CauseKind::Quota));
    let mut in_one_second = waits();
    let (made, missed) = (event("cluster", "CreatedHeadPod", "", 5), event("cluster", worker.0, refused, 5));
    in_one_second.events = vec![EventView { seq: 3, ..made }, EventView { seq: 4, ..missed }];
    assert_eq!(in_one_second.why().cause.expect("a cause").kind, CauseKind::Quota);
    let combined = format!("(combined from similar events): {refused}");
    let mut again = waits();
    again.events.push(event("cluster", "FailedToCreateHeadPod", &combined, 5));
    assert_eq!(again.why().cause.expect("a cause").message, refused);
    let of_gone_cluster = with(waits().gone(9, &ray_cluster()), &[head]);
    assert_eq!(of_gone_cluster, None, "the next attempt has another one");
}

#[test]
fn a_program_whose_end_the_object_tells_is_the_cause_and_not_the_pods_deleted_after_it() {
    let message = "Job entrypoint command failed with exit code 3, last available logs: no checkpoint";
    let failed = json!({"jobDeploymentStatus": "Failed", "jobStatus": "FAILED", "reason": "AppFailed",
        "message": message});
    let story = WitnessedJob::default()
        .at(0, &ray_job(&json!({"jobDeploymentStatus": "Running", "jobStatus": "RUNNING"})))
        .at(1, &ray_cluster())
        .at(2, &running("a"))
        .at(10, &ray_job(&failed))
        .at(11, &deleting(running("a"), 11));
    let why = story.why();
    let cause = why.cause.expect("a cause");
    let code = cause.container.and_then(|container| container.exit_code);
    assert_eq!((cause.kind, cause.object, code), (CauseKind::ExitCode, None, Some(3)));
    assert!(why.sentence.ends_with(&format!("failed: it exited with 3: {message}")), "{}", why.sentence);
    let by_worker = story.at(9, &ended("b", 137, "OOMKilled", 9)).why();
    assert_eq!(by_worker.cause.expect("a cause").kind, CauseKind::OutOfMemory);
}

#[test]
fn neither_an_early_failure_nor_what_a_program_prints_hides_how_the_program_ended() {
    let job = |phase: &str, message: &str| {
        ray_job(&json!({"jobDeploymentStatus": phase, "reason": "AppFailed", "message": message}))
    };
    let runs = || {
        let story = WitnessedJob::default().at(0, &job("Running", "")).at(1, &ray_cluster());
        story.at(2, &running("a"))
    };
    let failed =
        |message: &str| job("Failed", &format!("Job entrypoint command failed with exit code {message}"));
    let cause_of = |story: &WitnessedJob| {
        let cause = story.why().cause.expect("a cause");
        (cause.kind, cause.container.and_then(|container| container.exit_code))
    };
    let printed = failed("3, last available logs: peer a is gone");
    let names_pod = runs().at(10, &printed).at(11, &deleting(running("a"), 11));
    assert_eq!(cause_of(&names_pod), (CauseKind::ExitCode, Some(3)));
    let signalled = runs().at(10, &failed("-9, last available logs: ")).at(11, &deleting(running("a"), 11));
    assert_eq!(cause_of(&signalled), (CauseKind::Signal, Some(137)));
    let replaced = || runs().at(5, &ended("b", 137, "OOMKilled", 5));
    let gave_up = replaced().at(605, &failed("1. No logs available."));
    assert_eq!(cause_of(&gave_up), (CauseKind::OutOfMemory, Some(137)));
    let went_on = replaced().at(3605, &failed("2. No logs available."));
    assert_eq!(cause_of(&went_on), (CauseKind::ExitCode, Some(2)));
    assert_eq!(went_on.why().also[0].kind, CauseKind::OutOfMemory);
}

#[test]
fn who_suspended_a_job_decides_what_it_waited_for() {
    let suspended = |generation: u64| {
        let mut job =
            job(&json!({"conditions": [{"type": "Suspended", "status": "True", "reason": "JobSuspended"}]}));
        job["spec"]["suspend"] = true.into();
        job["metadata"]["generation"] = generation.into();
        job
    };
    let by_hand = WitnessedJob::default().at(0, &suspended(1));
    assert_eq!(by_hand.why().cause.expect("a cause").kind, CauseKind::Suspended);
    assert_eq!(by_hand.why().sentence, "Has waited 1 min suspended, is suspended");
    let mut queued = suspended(1);
    queued["metadata"]["labels"] = json!({"kueue.x-k8s.io/queue-name": "gpus"});
    let mut started = running_job();
    started["metadata"]["labels"] = queued["metadata"]["labels"].clone();
    let why = WitnessedJob::default().at(0, &queued).at(4, &started).why();
    assert_eq!(why.sentence, "Waited 4 s for quota, has run for 1 min");
    let again = two_run().at(14, &suspended(2)).at(20, &running_job()).why();
    assert_eq!(
        again.sentence,
        "Waited 3 s to start, has run for 1 min, was suspended, waited again 6 s suspended"
    );
}

#[test]
fn pods_of_other_indexes_that_failed_are_no_attempts_of_one() {
    let of_index = |mut pod: Value, index: u32, failures: u32| {
        pod["metadata"]["annotations"] = json!({
            "batch.kubernetes.io/job-completion-index": index.to_string(),
            "batch.kubernetes.io/job-index-failure-count": failures.to_string(),
        });
        pod
    };
    let failed = |indexes: &str, limit: u32| {
        let mut failed = failed_job("MaxFailedIndexesExceeded", "");
        failed["spec"]["backoffLimitPerIndex"] = limit.into();
        failed["status"]["failedIndexes"] = indexes.into();
        failed["status"]["failed"] = 4.into();
        failed
    };
    let once = two_run().at(8, &of_index(ended("a", 8, "Error", 8), 1, 0)).at(9, &failed("1", 0)).why();
    assert!(once.sentence.ends_with("exited with 8"), "{}", once.sentence);
    let twice = two_run()
        .at(8, &of_index(ended("a", 8, "Error", 8), 1, 0))
        .at(12, &of_index(ended("c", 8, "Error", 12), 1, 1))
        .at(13, &failed("1", 2))
        .why();
    assert!(twice.sentence.contains("failed after 2 of 3 attempts of its index: "), "{}", twice.sentence);
    let another = two_run()
        .at(7, &of_index(ended("a", 8, "Error", 7), 1, 0))
        .at(8, &of_index(ended("b", 8, "Error", 8), 1, 1))
        .at(9, &of_index(ended("c", 8, "Error", 9), 4, 2))
        .at(12, &failed("1,4", 2))
        .why();
    let is_its_own = another.sentence.contains("failed after 2 of 3 attempts of its index: ");
    assert!(is_its_own, "not that of 4: {}", another.sentence);
}

#[test]
fn an_object_without_a_status_runs_as_its_pods_do() {
    let train_job = |status: &Value| {
        json!({"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob",
            "metadata": {"name": "job", "uid": "job", "namespace": "team"}, "status": status})
    };
    let begun = || WitnessedJob::default().at(0, &train_job(&json!({}))).at(4, &running("a"));
    let why = begun().why();
    assert_eq!((why.outcome, &*why.sentence), (Outcome::Running, "Waited 4 s to start, has run for 1 min"));
    let failed = json!({"conditions": [{"type": "Failed", "status": "True", "reason": "FailedJobs"}]});
    let why = begun().at(10, &ended("a", 2, "Error", 10)).at(11, &train_job(&failed)).why();
    assert_eq!(
        why.sentence,
        "Waited 4 s to start, ran 7 s, failed: container main of pod a on node n1 exited with 2"
    );
    let waits = WitnessedJob::default().at(0, &train_job(&json!({}))).why();
    assert_eq!(waits.outcome, Outcome::Waiting);
}

#[test]
fn a_pod_of_an_earlier_attempt_that_is_deleted_later_does_not_explain_the_last_failure() {
    let job_set = |status: Value| {
        json!({"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet",
            "metadata": {"name": "job", "uid": "job", "namespace": "team"},
            "spec": {"replicatedJobs": [{"name": "workers", "replicas": 1}]}, "status": status})
    };
    let jobs = |active: u32, ready: u32, failed: u32, restarts: u32| {
        let jobs = json!([{"name": "workers", "active": active, "ready": ready, "failed": failed}]);
        job_set(json!({"restarts": restarts, "replicatedJobsStatus": jobs}))
    };
    let failed = json!({"restarts": 1, "conditions": [{
        "type": "Failed", "status": "True", "reason": "ReachedMaxRestarts", "message": "no restart is left"}]});
    let first = ended("a", 1, "Error", 10);
    let why = WitnessedJob::default()
        .at(0, &jobs(1, 0, 0, 0))
        .at(3, &running("a"))
        .at(4, &jobs(1, 1, 0, 0))
        .at(10, &first)
        .at(11, &jobs(0, 0, 0, 1))
        // Its controller deletes the pod when the next attempt has begun.
        .at(12, &deleting(first, 12))
        .at(14, &running("b"))
        .at(15, &jobs(1, 1, 0, 1))
        .at(20, &ended("b", 137, "OOMKilled", 20))
        .at(21, &job_set(failed))
        .why();
    assert_eq!(why.cause.expect("a cause").kind, CauseKind::OutOfMemory, "{}", why.sentence);
}

#[test]
fn a_job_that_gave_up_before_it_ran_has_not_run() {
    let target = json!([{"type": "FailureTarget", "status": "True", "reason": "DeadlineExceeded"}]);
    let why = WitnessedJob::default()
        .at(0, &job(&json!({"startTime": "2026-01-01T00:00:00Z", "active": 2, "ready": 0})))
        .at(
            5,
            &job(
                &json!({"startTime": "2026-01-01T00:00:00Z", "active": 2, "ready": 0, "conditions": target}),
            ),
        )
        .at(8, &failed_job("DeadlineExceeded", "Job was active longer than specified deadline"))
        .why();
    assert_eq!(why.sentence, "Waited 5 s to start, failed: its deadline passed");
}

#[test]
fn what_a_program_left_to_say_is_told() {
    let mut end = ended("a", 2, "Error", 8);
    end["status"]["containerStatuses"][0]["state"]["terminated"]["message"] =
        "no checkpoint at step 4\n".into();
    let why = two_run().at(8, &end).at(9, &failed_job("BackoffLimitExceeded", "")).why();
    assert!(why.sentence.ends_with("exited with 2: no checkpoint at step 4"), "{}", why.sentence);
}

#[test]
fn without_documents_the_states_say_what_they_can() {
    let story = two_run()
        .at(10, &ended("a", 137, "OOMKilled", 10))
        .at(10, &deleting(running("b"), 10))
        .at(13, &failed_job("BackoffLimitExceeded", ""));
    assert_eq!(
        story.sentence_without_documents(),
        "Waited 3 s to start, ran 9 s, failed: pod a ran out of memory (exit 137)"
    );
    let no_pods =
        WitnessedJob::default().at(0, &running_job()).at(9, &failed_job("BackoffLimitExceeded", ""));
    assert_eq!(
        no_pods.why().sentence,
        "Ran 9 s, failed: no attempts left (no recorded pod failure explains it)"
    );
}

#[test]
fn a_gap_before_the_first_end_leaves_the_cause_in_doubt() {
    let mut story = two_run();
    let mut gap = State::clone(&story.related[0]);
    (gap.change, gap.seq) = (Change::Gap, 4);
    story.related.push(Arc::new(gap));
    let story = story.at(10, &ended("a", 1, "Error", 10)).at(13, &failed_job("BackoffLimitExceeded", ""));
    assert!(story.why().doubt.contains("another one may have failed first"), "{:?}", story.why());
}

#[test]
fn a_deleted_job_is_told_by_what_it_was_before() {
    let failed = failed_job("BackoffLimitExceeded", "");
    let over = two_run().at(10, &ended("a", 1, "Error", 10)).at(13, &failed).gone(60, &failed).why();
    assert_eq!(over.outcome, Outcome::Failed);
    assert!(over.sentence.ends_with("pod a on node n1 exited with 1, deleted since"), "{}", over.sentence);
    let early = two_run().gone(20, &running_job()).why();
    assert_eq!((early.outcome, early.cause.expect("a cause").kind), (Outcome::Deleted, CauseKind::Deleted));
    assert_eq!(early.sentence, "Waited 3 s to start, ran 16 s, was deleted before its end");
}

#[test]
fn a_job_whose_last_versions_are_missing_is_not_told_as_deleted() {
    let gap = |story: &mut WitnessedJob| {
        let mut gap = State::clone(&story.states[0]);
        (gap.change, gap.seq) = (Change::Gap, story.states.len() as Seq + story.related.len() as Seq + 1);
        story.states.push(Arc::new(gap));
    };
    let mut story = two_run();
    gap(&mut story);
    let why = story.gone(20, &running_job()).why();
    assert_eq!((why.outcome, why.cause.expect("a cause").kind), (Outcome::Deleted, CauseKind::Unknown));
    let sentence =
        "is gone, and how it ended is not known, 1 gap in the history (its last versions are missing)";
    assert!(why.sentence.ends_with(sentence), "{}", why.sentence);
    let mut seen = two_run();
    gap(&mut seen);
    let seen = seen.at(18, &running_job()).gone(20, &running_job()).why();
    assert_eq!(seen.cause.expect("a cause").kind, CauseKind::Deleted, "it ran on after the gap");
    let mut over = two_run().at(13, &failed_job("BackoffLimitExceeded", ""));
    gap(&mut over);
    let over = over.gone(20, &failed_job("BackoffLimitExceeded", "")).why();
    assert_eq!(over.outcome, Outcome::Failed, "its end was seen");
}

#[test]
fn a_headline_is_the_clause_that_says_how_it_ended() {
    let failed = failed_job("BackoffLimitExceeded", "");
    let story = two_run().at(10, &ended("a", 1, "Error", 10)).at(13, &failed);
    assert_eq!(
        story.story().headline_text(&story.why()),
        "Failed: container main of pod a on node n1 exited with 1"
    );
    let gone = two_run().gone(20, &running_job());
    assert_eq!(gone.story().headline_text(&gone.why()), "Was deleted before its end");
}

#[test]
fn a_pod_explains_itself() {
    let states = WitnessedJob::default().at(1, &running("a")).at(9, &ended("a", 3, "Error", 9));
    let pod = WitnessedJob { states: states.related, documents: states.documents, ..WitnessedJob::default() };
    assert_eq!(pod.why().sentence, "Ran 8 s, failed: container main on node n1 exited with 3");
    assert_eq!(WhyView::default(), WitnessedJob::default().why(), "nothing was witnessed");
}

#[test]
fn a_bare_pod_that_is_drained_was_evicted_and_did_not_make_room() {
    let drained = disrupted(running("a"), "EvictionByEvictionAPI", "Eviction API: evicting");
    let states = WitnessedJob::default().at(1, &running("a")).at(9, &drained);
    let pod = WitnessedJob { states: states.related, documents: states.documents, ..WitnessedJob::default() };
    let why = pod.why();
    assert_eq!(why.cause.expect("a cause").kind, CauseKind::Evicted);
    // It is not given back its place, and waits for nothing.
    assert_eq!(why.sentence, "Ran 8 s, failed: it (on node n1) was evicted: Eviction API: evicting");
}

#[test]
fn the_last_end_of_a_container_that_was_restarted_in_place_counts() {
    let mut restarted = running("a");
    restarted["status"]["containerStatuses"][0]["state"] = json!({"waiting": {"reason": "CrashLoopBackOff"}});
    restarted["status"]["containerStatuses"][0]["lastState"] =
        json!({"terminated": {"exitCode": 1, "reason": "Error", "finishedAt": "2026-01-01T00:00:05Z"}});
    let why = two_run().at(6, &restarted).at(60, &ended("a", 137, "OOMKilled", 60));
    let why = why.at(61, &failed_job("BackoffLimitExceeded", "")).why();
    assert_eq!(why.cause.expect("a cause").kind, CauseKind::OutOfMemory);
}

#[test]
fn an_impossible_exit_code_is_no_signal() {
    let why = two_run()
        .at(9, &ended("a", i32::MIN, "Error", 9))
        .at(13, &failed_job("BackoffLimitExceeded", ""))
        .why();
    assert_eq!(why.cause.expect("a cause").kind, CauseKind::ExitCode);
}
