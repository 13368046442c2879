#![allow(clippy::needless_pass_by_value, reason = "tables of cases read better without references")]

use serde_json::{Value, json};

use super::*;

fn status(group: &str, kind: &str, object: &Value) -> Status {
    Rules::builtin().status(group, kind, object.to_string().as_bytes())
}

fn recorded(lines: &str, group: &str, kind: &str) -> Vec<Status> {
    let rules = Rules::builtin();
    lines
        .lines()
        .map(|line| rules.status(group, kind, crate::project::frame(line.as_bytes()).unwrap().object))
        .collect()
}

fn condition(kind: &str, status: &str, reason: &str) -> Value {
    json!({"type": kind, "status": status, "reason": reason, "message": format!("because of {reason}"),
        "lastTransitionTime": "2026-01-01T00:00:00Z"})
}

/// A Job with two workers.
fn job(generation: u64, suspend: bool, status: Value) -> Value {
    json!({"apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": "train", "generation": generation, "managedFields": [{"fieldsV1": {"f:status": {}}}]},
        "spec": {"parallelism": 2, "completions": 2, "suspend": suspend, "template": {"spec": {"containers": []}}},
        "status": status})
}

fn pod(status: Value) -> Value {
    json!({"metadata": {"name": "train-0"}, "spec": {"restartPolicy": "Never", "containers": [{"name": "t"}]}, "status": status})
}

#[test]
fn every_builtin_rule_parses() {
    for text in BUILTIN.into_iter().chain([GENERIC]) {
        Rule::parse(text).unwrap();
    }
}

#[test]
fn a_recorded_job_goes_from_pending_to_succeeded() {
    let seen = recorded(include_str!("../../testdata/jobs.jsonl"), "batch", "Job");
    let told: Vec<_> =
        seen.iter().map(|s| (&*s.phase, &*s.reason, s.attempt, s.ready, s.total, s.terminal)).collect();
    assert_eq!(
        told,
        [
            ("Pending", "", 0, 0, 1, false),
            ("Starting", "", 1, 0, 1, false),
            ("Running", "", 1, 1, 1, false),
            ("Running", "SuccessCriteriaMet", 1, 1, 1, false),
            ("Succeeded", "CompletionsReached", 1, 1, 1, true),
        ]
    );
}

#[test]
fn a_recorded_pod_goes_from_pending_to_succeeded() {
    let seen = recorded(include_str!("../../testdata/pods.jsonl"), "", "Pod");
    let told: Vec<_> = seen.iter().map(|s| (&*s.phase, s.exit_code, s.terminal)).collect();
    assert_eq!(told[..3], [("Pending", None, false), ("Running", None, false), ("Succeeded", Some(0), true)]);
}

#[test]
fn a_job_is_told_by_its_conditions_and_counts() {
    let started = "2026-01-01T00:00:00Z";
    let cases = [
        ("just created", job(1, false, json!({})), "Pending", "", 0),
        (
            "pods not ready",
            job(1, false, json!({"startTime": started, "active": 2, "ready": 0})),
            "Starting",
            "",
            1,
        ),
        ("old server", job(1, false, json!({"startTime": started, "active": 2})), "Running", "", 1),
        (
            "a pod failed",
            job(1, false, json!({"startTime": started, "active": 1, "ready": 0, "failed": 2})),
            "Restarting",
            "PodFailed",
            3,
        ),
        (
            "between two tries",
            job(1, false, json!({"startTime": started, "failed": 1})),
            "Restarting",
            "PodFailed",
            2,
        ),
        (
            "a failure not yet counted",
            job(
                1,
                false,
                json!({"startTime": started, "ready": 0, "uncountedTerminatedPods": {"failed": ["u"]}}),
            ),
            "Restarting",
            "PodFailed",
            2,
        ),
        (
            "running again",
            job(1, false, json!({"startTime": started, "active": 2, "ready": 2, "failed": 1})),
            "Running",
            "",
            2,
        ),
        (
            "failed",
            job(
                1,
                false,
                json!({"failed": 4, "startTime": started, "conditions": [condition("FailureTarget", "True", "BackoffLimitExceeded"), condition("Failed", "True", "BackoffLimitExceeded")]}),
            ),
            "Failed",
            "BackoffLimitExceeded",
            4,
        ),
        (
            "failing",
            job(
                1,
                false,
                json!({"failed": 4, "startTime": started, "conditions": [condition("FailureTarget", "True", "BackoffLimitExceeded")]}),
            ),
            "Running",
            "FailureTarget",
            4,
        ),
        (
            "a failure that is not true",
            job(
                1,
                false,
                json!({"startTime": started, "active": 1, "ready": 1, "conditions": [condition("Failed", "False", "No")]}),
            ),
            "Running",
            "",
            1,
        ),
    ];
    for (name, object, phase, reason, attempt) in cases {
        let told = status("batch", "Job", &object);
        assert_eq!((&*told.phase, &*told.reason, told.attempt), (phase, reason, attempt), "{name}");
        assert_eq!(told.terminal, phase == "Failed", "{name}");
    }
}

#[test]
fn a_suspended_job_is_queued_until_it_was_let_go_once() {
    let suspended = || json!({"conditions": [condition("Suspended", "True", "JobSuspended")]});
    let resumed = condition("Suspended", "False", "JobResumed");
    let evicted = json!({"conditions": [condition("Suspended", "True", "JobSuspended"), condition("DisruptionTarget", "True", "PreemptionByScheduler")]});
    let by_reason = json!({"conditions": [condition("Suspended", "True", "Preempted")]});
    let cases = [
        ("not yet seen by its controller", job(1, true, json!({})), "Queued", "Suspended"),
        ("waits for its turn", job(1, true, suspended()), "Queued", "JobSuspended"),
        ("let go", job(2, false, suspended()), "Admitted", "Resuming"),
        ("resumed, no pod yet", job(2, false, json!({"conditions": [resumed]})), "Admitted", "JobResumed"),
        (
            "resumed and running",
            job(2, false, json!({"active": 2, "ready": 1, "conditions": [resumed]})),
            "Running",
            "",
        ),
        ("suspended again", job(3, true, suspended()), "Suspended", "JobSuspended"),
        (
            "being suspended",
            job(2, true, json!({"active": 2, "ready": 2, "conditions": [resumed]})),
            "Suspended",
            "JobResumed",
        ),
        ("disrupted", job(3, true, evicted), "Preempted", "PreemptionByScheduler"),
        ("a preemption as reason", job(3, true, by_reason), "Preempted", "Preempted"),
    ];
    for (name, object, phase, reason) in cases {
        let told = status("batch", "Job", &object);
        assert_eq!((&*told.phase, &*told.reason, told.terminal), (phase, reason, false), "{name}");
    }
}

#[test]
fn a_deleted_job_is_cancelled_unless_it_was_over() {
    let deleting = |status: Value| {
        let mut object = job(1, false, status);
        object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        object
    };
    let running = status("batch", "Job", &deleting(json!({"active": 1, "ready": 1})));
    assert_eq!((&*running.phase, running.terminal), ("Cancelled", false));
    let over = status(
        "batch",
        "Job",
        &deleting(json!({"conditions": [condition("Complete", "True", "CompletionsReached")]})),
    );
    assert_eq!((&*over.phase, over.terminal), ("Succeeded", true));
}

#[test]
fn a_pod_is_told_by_what_its_containers_wait_for() {
    let waiting = |reason: &str| json!({"phase": "Pending", "startTime": "t", "containerStatuses": [{"ready": false, "restartCount": 0, "state": {"waiting": {"reason": reason}}}]});
    let crash = json!({"phase": "Running", "startTime": "t", "containerStatuses": [{"ready": false, "restartCount": 3,
        "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s"}}, "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}]});
    let oom = json!({"phase": "Failed", "startTime": "t", "containerStatuses": [{"ready": false, "restartCount": 0, "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}]});
    let unschedulable =
        json!({"phase": "Pending", "conditions": [condition("PodScheduled", "False", "Unschedulable")]});
    let gated =
        json!({"phase": "Pending", "conditions": [condition("PodScheduled", "False", "SchedulingGated")]});
    let scheduled = json!({"phase": "Pending", "conditions": [condition("PodScheduled", "True", "")]});
    let evicted = json!({"phase": "Failed", "reason": "Evicted", "message": "The node was low on memory."});
    let disrupted = json!({"phase": "Failed", "conditions": [condition("DisruptionTarget", "True", "PreemptionByScheduler")]});
    let marked = json!({"phase": "Running", "conditions": [condition("DisruptionTarget", "True", "EvictionByEvictionAPI")]});
    let cases = [
        (json!({}), "Pending", "", None, 0, false),
        (unschedulable, "Pending", "Unschedulable", None, 0, false),
        (gated, "Queued", "SchedulingGated", None, 0, false),
        (scheduled, "Starting", "", None, 0, false),
        (waiting("ContainerCreating"), "Starting", "ContainerCreating", None, 1, false),
        (waiting("ErrImagePull"), "Starting", "ErrImagePull", None, 1, false),
        (waiting("ImagePullBackOff"), "Starting", "ImagePullBackOff", None, 1, false),
        (crash, "Restarting", "OOMKilled", Some(137), 4, false),
        (oom, "Failed", "OOMKilled", Some(137), 1, true),
        (evicted, "Preempted", "Evicted", None, 0, true),
        (disrupted, "Preempted", "PreemptionByScheduler", None, 0, true),
        (marked, "Preempted", "EvictionByEvictionAPI", None, 0, false),
        (json!({"phase": "Unknown", "reason": "NodeLost"}), "Unknown", "NodeLost", None, 0, false),
    ];
    for (state, phase, reason, exit_code, attempt, terminal) in cases {
        let told = status("", "Pod", &pod(state.clone()));
        let seen = (&*told.phase, &*told.reason, told.exit_code, told.attempt, told.terminal);
        assert_eq!(seen, (phase, reason, exit_code, attempt, terminal), "{state}");
        assert_eq!(told.total, 1);
    }
}

#[test]
fn a_container_that_fell_restarts_only_where_the_policy_says_so() {
    let fallen = json!({"phase": "Running", "containerStatuses": [{"ready": false, "restartCount": 1, "state": {"terminated": {"exitCode": 2, "reason": "Error"}}}, {"ready": true, "restartCount": 0, "state": {"running": {}}}]});
    let mut object = pod(fallen);
    assert_eq!(status("", "Pod", &object).phase, "Running");
    object["spec"]["restartPolicy"] = json!("OnFailure");
    let told = status("", "Pod", &object);
    assert_eq!((&*told.phase, told.attempt, told.ready, told.exit_code), ("Restarting", 2, 1, Some(2)));
}

#[test]
fn the_generic_ladder_never_takes_an_old_status_for_success() {
    let object =
        |status: Value| json!({"metadata": {"generation": 3}, "spec": {"replicas": 4}, "status": status});
    let behind = |observed: u64| json!({"observedGeneration": observed, "readyReplicas": 4, "conditions": [condition("Succeeded", "True", "Done")]});
    let old_condition = json!({"type": "Succeeded", "status": "True", "observedGeneration": 2});
    let cases = [
        (behind(2), "Unknown", false),
        (behind(3), "Succeeded", true),
        (json!({"conditions": [old_condition]}), "Unknown", false),
        (
            json!({"conditions": [condition("Failed", "True", "Broken"), condition("Ready", "True", "")]}),
            "Failed",
            true,
        ),
        (json!({"conditions": [condition("Evicted", "True", "Preempted")]}), "Preempted", false),
        (json!({"conditions": [condition("Suspended", "True", "")]}), "Suspended", false),
        (json!({"conditions": [condition("Suspended", "False", "")], "phase": "running"}), "Running", false),
        (json!({"phase": "COMPLETED"}), "Succeeded", true),
        (json!({"state": "Failed"}), "Failed", true),
        (json!({"state": {"phase": "Aborted"}}), "Cancelled", true),
        (json!({"conditions": [condition("Ready", "True", "")]}), "Running", false),
        (json!({"conditions": [condition("Ready", "False", "")]}), "Pending", false),
        (json!({"phase": "Flabbergasted"}), "Unknown", false),
        (json!({}), "Unknown", false),
        (Value::Null, "Unknown", false),
    ];
    for (state, phase, terminal) in cases {
        let told = status("example.dev", "Thing", &object(state.clone()));
        assert_eq!((&*told.phase, told.terminal), (phase, terminal), "{state}");
    }
    assert_eq!(
        status("example.dev", "Thing", &object(json!({"phase": "Flabbergasted"}))).reason,
        "Flabbergasted"
    );
}

#[test]
fn what_is_gone_tells_in_which_phase_it_went() {
    let running = Status {
        phase: "Running".into(),
        attempt: 2,
        ready: 1,
        total: 2,
        message: "fine".into(),
        ..Status::default()
    };
    let gone = Rules::deleted(&running);
    assert_eq!(
        (&*gone.phase, &*gone.reason, &*gone.message, gone.terminal),
        ("Deleted", "Running", "", true)
    );
    assert_eq!((gone.attempt, gone.ready, gone.total), (2, 0, 2));
    let failed = Status {
        phase: "Failed".into(),
        terminal: true,
        exit_code: Some(3),
        message: "why".into(),
        ..Status::default()
    };
    let gone = Rules::deleted(&failed);
    assert_eq!((&*gone.reason, &*gone.message, gone.exit_code), ("Failed", "why", Some(3)));
    assert_eq!(Rules::deleted(&gone), gone);
}

#[test]
fn a_heartbeat_is_no_change_and_texts_are_bounded() {
    let beat = |time: &str| {
        let mut condition = condition("Suspended", "True", "JobSuspended");
        condition["lastProbeTime"] = json!(time);
        status("batch", "Job", &job(1, true, json!({"conditions": [condition]})))
    };
    assert_eq!(beat("2026-01-01T00:00:00Z"), beat("2026-01-01T00:00:10Z"));
    let long =
        json!({"type": "Failed", "status": "True", "reason": "é".repeat(1000), "message": "é".repeat(5000)});
    let told = status("batch", "Job", &job(1, false, json!({"conditions": [long]})));
    assert!(told.reason.len() <= 256 && told.message.len() <= 1024 && told.message.len() > 1000);
}

#[test]
fn what_is_no_object_is_unknown_and_odd_shapes_are_absent() {
    let rules = Rules::builtin();
    assert_eq!(rules.status("batch", "Job", b"[1,2").reason, "Unreadable");
    for odd in [
        json!(7),
        json!([]),
        json!({"conditions": 3}),
        json!({"conditions": [null, 4, {"type": {}}]}),
        json!({"active": "x", "failed": -3}),
    ] {
        assert_eq!(status("batch", "Job", &job(1, false, odd.clone())).phase, "Pending", "{odd}");
    }
}

#[test]
fn an_operators_rule_replaces_the_builtin_one_and_its_faults_are_named() {
    let mut rules = Rules::builtin();
    rules.add(r#"{"group": "batch", "kind": "Job", "cases": [{"when": [], "phase": "Running", "reason": ["@metadata.name"]}]}"#).unwrap();
    assert_eq!(rules.status("batch", "Job", br#"{"metadata":{"name":"a"}}"#).reason, "a");
    let fault = |text: &str| rules.clone().add(text).unwrap_err().to_string();
    let with = |case: &str| format!(r#"{{"group":"g","kind":"K","cases":[{case}]}}"#);
    assert!(fault(&with(r#"{"when": [], "phase": "Great"}"#)).contains("`Great` is no phase"));
    assert!(fault(&with("")).contains("no cases"));
    assert!(
        fault(&with(r#"{"when": [{"at": "a.b", "exists": true}], "phase": "Running"}"#))
            .contains("last case")
    );
    assert!(
        fault(&with(r#"{"when": [], "phase": "Running", "reason": ["@status"]}"#))
            .contains("at least two keys")
    );
    assert!(
        fault(&with(r#"{"when": [{"at": "a.b"}], "phase": "Running"}, {"when": [], "phase": "Running"}"#))
            .contains("exactly one of")
    );
    assert!(fault(&with(r#"{"when": [], "phase": "Running", "oops": 1}"#)).contains("oops"));
}
