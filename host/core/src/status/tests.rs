//! Tests of the status rules.

#![allow(clippy::needless_pass_by_value, reason = "tables of cases read better without references")]

mod cases;
mod operators;
mod paths;

use serde_json::{Value, json};

use super::*;

fn status(group: &str, kind: &str, object: &Value) -> Status {
    StatusRules::builtin().status_of(group, kind, object.to_string().as_bytes())
}

fn recorded(lines: &str, group: &str, kind: &str) -> Vec<Status> {
    let rules = StatusRules::builtin();
    lines
        .lines()
        .map(|line| {
            rules.status_of(group, kind, crate::project::split_frame(line.as_bytes()).unwrap().object)
        })
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
fn a_recorded_job_goes_from_pending_to_succeeded() {
    let seen = recorded(include_str!("../../testdata/jobs.jsonl"), "batch", "Job");
    let statuses: Vec<_> =
        seen.iter().map(|s| (&*s.phase, &*s.reason, s.attempt, s.ready, s.total, s.terminal)).collect();
    assert_eq!(
        statuses,
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
    let statuses: Vec<_> = seen.iter().map(|s| (&*s.phase, s.exit_code, s.terminal)).collect();
    assert_eq!(
        statuses[..3],
        [("Pending", None, false), ("Running", None, false), ("Succeeded", Some(0), true)]
    );
}

#[test]
fn a_container_that_fell_restarts_only_where_the_policy_says_so() {
    let fallen = json!({"phase": "Running", "containerStatuses": [{"ready": false, "restartCount": 1, "state": {"terminated": {"exitCode": 2, "reason": "Error"}}}, {"ready": true, "restartCount": 0, "state": {"running": {}}}]});
    let mut object = pod(fallen);
    assert_eq!(status("", "Pod", &object).phase, "Running");
    object["spec"]["restartPolicy"] = json!("OnFailure");
    let status_of_pod = status("", "Pod", &object);
    assert_eq!(
        (&*status_of_pod.phase, status_of_pod.attempt, status_of_pod.ready, status_of_pod.exit_code),
        ("Restarting", 2, 1, Some(2))
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
    let gone = StatusRules::deleted_status(&running);
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
    let gone = StatusRules::deleted_status(&failed);
    assert_eq!((&*gone.reason, &*gone.message, gone.exit_code), ("Failed", "why", Some(3)));
    assert_eq!(StatusRules::deleted_status(&gone), gone);
}

#[test]
fn a_heartbeat_is_no_change_and_texts_are_bounded_and_say_where_they_are_cut() {
    let beat = |time: &str| {
        let mut condition = condition("Suspended", "True", "JobSuspended");
        condition["lastProbeTime"] = json!(time);
        status("batch", "Job", &job(1, true, json!({"conditions": [condition]})))
    };
    assert_eq!(beat("2026-01-01T00:00:00Z"), beat("2026-01-01T00:00:10Z"));
    let long =
        json!({"type": "Failed", "status": "True", "reason": "é".repeat(1000), "message": "é".repeat(5000)});
    let bounded = status("batch", "Job", &job(1, false, json!({"conditions": [long]})));
    let cut = |bytes: usize| format!("{}…", "é".repeat((bytes - "…".len()) / 2));
    assert_eq!((bounded.reason, bounded.message), (cut(256), cut(1024)));
    let fits =
        json!({"type": "Failed", "status": "True", "reason": "r".repeat(256), "message": "m".repeat(1024)});
    let bounded = status("batch", "Job", &job(1, false, json!({"conditions": [fits]})));
    assert_eq!((bounded.reason, bounded.message), ("r".repeat(256), "m".repeat(1024)));
}

#[test]
fn what_is_no_object_is_unknown_and_odd_shapes_are_absent() {
    let rules = StatusRules::builtin();
    assert_eq!(rules.status_of("batch", "Job", b"[1,2").reason, "Unreadable");
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
