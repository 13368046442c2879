//! Tests of jobs in a queue of Kueue: their waits, preemptions and suspensions.

use super::*;

/// The Workload that Kueue makes for the job.
fn workload(conditions: &Value) -> Value {
    json!({"apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "Workload", "metadata": {"name": "job-job", "uid": "w"},
        "spec": {"queueName": "gpus", "podSets": [{"name": "main", "count": 2}]},
        "status": {"conditions": conditions}})
}

/// A suspended job.
fn held_job(generation: u64, condition: &Value) -> Value {
    let mut job = job(&json!({"conditions": [condition]}));
    job["spec"]["suspend"] = true.into();
    job["metadata"]["generation"] = generation.into();
    job
}

fn suspended_condition() -> Value {
    json!({"type": "Suspended", "status": "True", "reason": "JobSuspended", "message": "Job suspended"})
}

fn reserved() -> Value {
    json!({"type": "QuotaReserved", "status": "True", "reason": "QuotaReserved"})
}

fn admitted() -> Value {
    json!({"type": "Admitted", "status": "True", "reason": "Admitted", "message": "The workload is admitted"})
}

#[test]
fn a_job_that_was_admitted_at_once_did_not_wait_for_quota() {
    let story = WitnessedJob::default()
        .at(0, &held_job(1, &suspended_condition()))
        .at(0, &workload(&json!([])))
        .at(0, &workload(&json!([reserved(), admitted()])))
        .at(8, &running_job());
    assert_eq!(story.why().sentence, "Waited 8 s to start, has run for 1 min");
    let full =
        json!([{"type": "QuotaReserved", "status": "False", "reason": "Pending", "message": "no room"}]);
    let waits = WitnessedJob::default()
        .at(0, &held_job(1, &suspended_condition()))
        .at(0, &workload(&full))
        .at(5, &workload(&json!([reserved()])))
        .at(8, &running_job());
    assert_eq!(waits.why().sentence, "Waited 5 s for quota and 3 s to start, has run for 1 min");
}

/// Kueue's message about a Workload that made room.
const PREEMPTED: &str = "Preempted to accommodate a workload (UID: u-9, JobUID: j-9) due to prioritization in the \
    ClusterQueue; preemptor path: /gpus; preemptee path: /gpus";

fn preempted_conditions() -> Value {
    json!([
        {"type": "QuotaReserved", "status": "False", "reason": "Pending", "message": PREEMPTED},
        {"type": "Evicted", "status": "True", "reason": "Preempted", "message": PREEMPTED},
        {"type": "Preempted", "status": "True", "reason": "InClusterQueue", "message": PREEMPTED}
    ])
}

#[test]
fn a_job_that_its_queue_preempts_made_room_for_a_workload_and_was_not_suspended() {
    let story = two_run()
        .at(4, &workload(&json!([reserved(), admitted()])))
        .at(10, &workload(&preempted_conditions()))
        .at(11, &held_job(2, &suspended_condition()));
    let why = story.why();
    let cause = why.cause.expect("a cause");
    assert_eq!((cause.kind, &*cause.by), (CauseKind::Preempted, "workload u-9"));
    assert_eq!(
        why.sentence,
        "Waited 3 s to start, ran 7 s, was preempted to accommodate a workload (UID: u-9, JobUID: j-9) due to \
         prioritization in the ClusterQueue, has waited again 1 min for quota, waits to be admitted again"
    );
    let again = two_run()
        .at(4, &workload(&json!([reserved(), admitted()])))
        .at(10, &workload(&preempted_conditions()))
        .at(11, &held_job(2, &suspended_condition()))
        .at(30, &workload(&json!([reserved(), admitted()])))
        .at(31, &running_job());
    assert_eq!(
        again.why().sentence,
        "Waited 3 s to start, has run for 1 min, was preempted to accommodate a workload (UID: u-9, JobUID: j-9) \
         due to prioritization in the ClusterQueue, waited again 19 s for quota and 1 s to start"
    );
}

#[test]
fn an_object_that_made_room_says_once_for_whom_by_name_if_that_is_known() {
    let known = |kind: &str, uid: &str, name: &str| ObjectRef {
        kind: kind.into(),
        uid: uid.into(),
        name: name.into(),
        ..ObjectRef::default()
    };
    let story = |preemptors: Vec<ObjectRef>| {
        let story = two_run()
            .at(4, &workload(&json!([reserved(), admitted()])))
            .at(10, &workload(&preempted_conditions()))
            .at(11, &held_job(2, &suspended_condition()));
        WitnessedJob { preemptors, ..story }
    };
    assert_eq!(story(Vec::new()).story().preemptors_wanted(), ["j-9", "u-9"]);
    let both = vec![known("Workload", "u-9", "job-urgent-1"), known("Job", "j-9", "urgent")];
    let why = story(both).why();
    assert!(
        why.sentence.contains(
            ", was preempted for job urgent due to prioritization in the ClusterQueue, has waited again 1 min for quota, \
             waits to"
        ),
        "{}",
        why.sentence
    );
    assert!(!why.sentence.contains("UID"), "{}", why.sentence);
    assert_eq!(why.cause.expect("a cause").by, "job urgent");
    let story = story(vec![known("Workload", "u-9", "job-urgent-1"), known("Job", "j-8", "other")]);
    let why = story.why();
    assert!(why.sentence.contains("was preempted for workload job-urgent-1 due to"), "{}", why.sentence);
    // Nothing before the headline says it.
    assert_eq!(
        story.story().headline_text(&why),
        "Waits to be admitted again: was preempted for workload job-urgent-1 due to prioritization in the ClusterQueue"
    );
}

#[test]
fn a_workload_says_what_else_than_quota_its_owner_waits_for() {
    let says = |conditions: &Value, is_active: bool| {
        let mut workload = workload(conditions);
        workload["spec"]["active"] = is_active.into();
        WitnessedJob::default().at(0, &held_job(1, &suspended_condition())).at(1, &workload).why()
    };
    let refused = |message: &str| {
        let conditions = json!([
            {"type": "QuotaReserved", "status": "False", "reason": "Inadmissible", "message": message}
        ]);
        let why = says(&conditions, true);
        (why.cause.expect("a cause").kind, why.sentence.rsplit_once(", ").expect("two clauses").1.to_owned())
    };
    for (message, kind, clause) in [
        ("LocalQueue main doesn't exist", CauseKind::Configuration, "can't be admitted"),
        ("ClusterQueue gpus is terminating or missing", CauseKind::Configuration, "can't be admitted"),
        ("ClusterQueue gpus is inactive", CauseKind::Suspended, "is queued"),
        ("LocalQueue main is stopped", CauseKind::Suspended, "is queued"),
        ("DRA resource claims not supported", CauseKind::Quota, "is queued"),
    ] {
        assert_eq!(refused(message), (kind, format!("{clause}: {message}")));
    }
    let evicted = json!([
        {"type": "Evicted", "status": "True", "reason": "Deactivated", "message": "The workload is deactivated"}
    ]);
    let why = says(&evicted, false);
    assert_eq!(why.cause.expect("a cause").kind, CauseKind::Suspended);
    assert!(
        why.sentence.ends_with("suspended, is suspended: The workload is deactivated"),
        "{}",
        why.sentence
    );
}

#[test]
fn a_drained_queue_takes_a_job_back_and_is_not_out_of_quota() {
    let drained = json!([
        {"type": "QuotaReserved", "status": "False", "reason": "Pending", "message": "The ClusterQueue is stopped"},
        {"type": "Evicted", "status": "True", "reason": "ClusterQueueStopped", "message": "The ClusterQueue is stopped"}
    ]);
    let why = two_run()
        .at(4, &workload(&json!([reserved(), admitted()])))
        .at(10, &workload(&drained))
        .at(11, &held_job(2, &suspended_condition()))
        .why();
    assert_eq!(why.cause.expect("a cause").kind, CauseKind::Suspended);
    assert!(why.sentence.contains("was taken back by its queue (ClusterQueueStopped)"), "{}", why.sentence);
    assert!(why.sentence.ends_with("is queued: The ClusterQueue is stopped"), "{}", why.sentence);
}

#[test]
fn a_pod_that_was_not_ready_in_time_says_why_its_queue_took_the_job_back() {
    let mut pod = running("a");
    pod["status"] = json!({"phase": "Pending", "containerStatuses": [{
        "name": "main", "ready": false,
        "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such tag"}},
    }]});
    let evicted = json!([
        {"type": "QuotaReserved", "status": "False", "reason": "Pending", "message": "Exceeded the timeout"},
        {"type": "Evicted", "status": "True", "reason": "PodsReadyTimeout", "message": "Exceeded the timeout"}
    ]);
    let story = WitnessedJob::default()
        .at(0, &held_job(1, &suspended_condition()))
        .at(0, &workload(&json!([reserved(), admitted()])))
        .at(1, &job(&json!({"startTime": "2026-01-01T00:00:01Z", "active": 2, "ready": 0})))
        .at(3, &pod)
        .at(20, &workload(&evicted))
        .at(21, &held_job(2, &suspended_condition()))
        .gone(22, &pod);
    let why = story.why();
    let cause = why.cause.expect("a cause");
    assert_eq!((cause.kind, cause.object.expect("a pod").name), (CauseKind::ImagePull, "a".to_owned()));
    assert!(
        why.sentence.ends_with(
            "was taken back by its queue (PodsReadyTimeout), the image of container main of pod a on node n1 can't be \
             pulled: no such tag"
        ),
        "{}",
        why.sentence
    );
}

#[test]
fn a_job_that_was_preempted_and_admitted_again_has_not_started_again() {
    let story = two_run()
        .at(4, &workload(&json!([reserved(), admitted()])))
        .at(10, &workload(&preempted_conditions()))
        .at(11, &held_job(2, &suspended_condition()))
        .at(30, &workload(&json!([reserved(), admitted()])))
        .at(31, &job(&json!({"startTime": "2026-01-01T00:00:31Z", "active": 2, "ready": 0})));
    let sentence = story.why().sentence;
    assert!(sentence.ends_with("has not started again yet"), "{sentence}");
}

#[test]
fn a_job_whose_pods_did_not_get_ready_in_time_was_taken_back_and_made_no_room() {
    let evicted = json!([
        {"type": "QuotaReserved", "status": "False", "reason": "Pending", "message": "Exceeded the timeout"},
        {"type": "Evicted", "status": "True", "reason": "PodsReadyTimeout", "message": "Exceeded the timeout"}
    ]);
    let story = two_run()
        .at(4, &workload(&json!([reserved(), admitted()])))
        .at(10, &workload(&evicted))
        .at(11, &held_job(2, &suspended_condition()));
    let why = story.why();
    assert_eq!(why.cause.expect("a cause").kind, CauseKind::Quota);
    assert!(why.sentence.contains("was taken back by its queue (PodsReadyTimeout)"), "{}", why.sentence);
}

#[test]
fn each_preemption_of_a_job_is_counted_with_the_waits_after_it() {
    let (admits, takes) = (workload(&json!([reserved(), admitted()])), workload(&preempted_conditions()));
    let story = two_run()
        .at(4, &admits)
        .at(10, &takes)
        .at(11, &held_job(2, &suspended_condition()))
        .at(20, &admits)
        .at(21, &running_job())
        .at(30, &takes)
        .at(31, &held_job(4, &suspended_condition()))
        .at(35, &admits)
        .at(36, &running_job())
        .at(50, &held_job(6, &suspended_condition()))
        .at(52, &running_job());
    assert_eq!(
        story.why().sentence,
        "Waited 3 s to start, has run for 1 min, was preempted 2 times, was suspended, waited again 13 s for \
         quota and 4 s to start"
    );
}

#[test]
fn pods_that_a_queue_took_tell_of_a_preemption_and_did_not_fail() {
    let message = "Preempted to accommodate a workload of higher priority in the ClusterQueue";
    let taken = |name: &str| disrupted(running(name), "DeletionByQueue", message);
    let held =
        || two_run().at(10, &held_job(2, &suspended_condition())).at(11, &taken("a")).at(11, &taken("b"));
    let why = held().why();
    assert_eq!(why.cause.expect("a cause").kind, CauseKind::Preempted);
    assert!(
        why.sentence.contains("was preempted to accommodate a workload of higher priority"),
        "{}",
        why.sentence
    );
    assert!(why.sentence.ends_with(", waits to be admitted again"), "{}", why.sentence);
    let failed = held()
        .at(20, &running_job())
        .at(20, &running("c"))
        .at(30, &ended("c", 137, "OOMKilled", 30))
        .at(31, &failed_job("BackoffLimitExceeded", ""))
        .why();
    assert_eq!(
        failed.cause.as_ref().map(|cause| cause.kind),
        Some(CauseKind::OutOfMemory),
        "{}",
        failed.sentence
    );
    assert!(failed.also.is_empty(), "{}", failed.sentence);
    let taken_last =
        held().at(12, &failed_job("PodFailurePolicy", "Pod default/a matching FailJob rule")).why();
    assert_eq!(taken_last.cause.expect("a cause").kind, CauseKind::Preempted, "{}", taken_last.sentence);
    let out_of_memory = two_run()
        .at(9, &ended("a", 137, "OOMKilled", 9))
        .at(10, &held_job(2, &suspended_condition()))
        .at(11, &disrupted(ended("a", 137, "OOMKilled", 9), "DeletionByQueue", message))
        .at(12, &failed_job("BackoffLimitExceeded", ""))
        .why();
    assert_eq!(
        out_of_memory.cause.as_ref().map(|cause| cause.kind),
        Some(CauseKind::OutOfMemory),
        "{}",
        out_of_memory.sentence
    );
    // What the scheduler takes has failed, also shortly before somebody suspends the job.
    let scheduler = disrupted(running("a"), "PreemptionByScheduler", "preempting");
    let suspended = two_run().at(10, &scheduler).at(11, &held_job(2, &suspended_condition())).why();
    assert!(!suspended.sentence.contains("waits to be admitted"), "{}", suspended.sentence);
    // A pod that the scheduler took from a job that nobody held back has failed.
    let scheduler = disrupted(running("a"), "PreemptionByScheduler", "preempting");
    let why = two_run().at(10, &scheduler).at(12, &failed_job("BackoffLimitExceeded", "")).why();
    assert_eq!(why.cause.expect("a cause").kind, CauseKind::Preempted);
}
