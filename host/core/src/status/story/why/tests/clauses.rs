//! Tests of single clauses: waits, attempts, preemptors, last words, and doubt.

use super::*;

fn unschedulable(name: &str) -> Value {
    let mut pod = pod(name, "Pending", &json!({}));
    pod["spec"].as_object_mut().expect("a map").remove("nodeName");
    pod["status"] = json!({"phase": "Pending", "conditions": [{
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available"}]});
    pod
}

fn retried_job() -> Value {
    let mut job = job(&json!({"startTime": "2026-01-01T00:00:01Z", "active": 2, "ready": 0, "failed": 1}));
    job["spec"]["backoffLimit"] = 3.into();
    job
}

#[test]
fn each_later_wait_has_its_cause_and_its_duration() {
    let retry = || two_run().at(10, &ended("a", 1, "Error", 10)).at(11, &retried_job());
    let waits = retry().at(14, &unschedulable("c")).why();
    assert!(
        waits.sentence.starts_with(
            "Waited 3 s to start, ran 7 s, has waited again 3 s to start and 1 min for a node, "
        ),
        "{}",
        waits.sentence
    );
    let runs = retry().at(14, &unschedulable("c")).at(34, &running("c")).at(35, &running_job()).why();
    assert!(
        runs.sentence.contains("has run for 1 min, waited again 4 s to start and 20 s for a node"),
        "{}",
        runs.sentence
    );
    let gone = retry().at(14, &unschedulable("c")).gone(34, &unschedulable("c")).at(44, &running_job()).why();
    assert!(gone.sentence.contains("waited again 13 s to start and 20 s for a node"), "{}", gone.sentence);
}

#[test]
fn a_running_pod_that_is_not_ready_for_a_moment_makes_no_wait() {
    let unready = job(&json!({"startTime": "2026-01-01T00:00:01Z", "active": 2, "ready": 0}));
    let why = two_run().at(20, &unready).at(30, &running_job()).why();
    assert!(!why.sentence.contains("again"), "{}", why.sentence);
}

#[test]
fn pods_that_are_not_ready_for_a_moment_after_an_earlier_retry_make_no_wait() {
    let mut ready = retried_job();
    ready["status"]["ready"] = 2.into();
    let retry = two_run().at(10, &ended("a", 1, "Error", 10)).at(11, &retried_job()).at(15, &ready);
    let flap = retry.at(40, &retried_job());
    assert_eq!(flap.states.last().expect("a state").status.phase, phase::RESTARTING);
    for why in [flap.why(), flap.at(80, &ready).why()] {
        assert!(why.sentence.contains("waited again 4 s to start,"), "{}", why.sentence);
    }
}

#[test]
fn a_pod_that_the_scheduler_preempts_names_the_other_pod_only_if_its_name_is_known() {
    let story = |preemptors: Vec<ObjectRef>| {
        let taken = disrupted(
            running("a"),
            "PreemptionByScheduler",
            "preempting to accommodate a higher priority pod",
        );
        let mut story = two_run().at(10, &taken).at(13, &failed_job("BackoffLimitExceeded", ""));
        story.events.push(event("a", "Preempted", "Preempted by pod p-9 on node n1", NEW_YEAR + 10 * SECOND));
        WitnessedJob { preemptors, ..story }
    };
    assert_eq!(story(Vec::new()).story().preemptors_wanted(), ["p-9"]);
    let unknown = story(Vec::new()).why();
    assert_eq!(unknown.cause.expect("a cause").by, "pod p-9");
    let urgent =
        ObjectRef { kind: "Pod".into(), name: "urgent".into(), uid: "p-9".into(), ..ObjectRef::default() };
    let known = story(vec![urgent]).why();
    assert_eq!(known.cause.as_ref().expect("a cause").by, "pod urgent");
    assert!(known.sentence.ends_with("was preempted by pod urgent"), "{}", known.sentence);
}

#[test]
fn the_names_of_a_few_preemptors_are_wanted_at_most() {
    let mut story = two_run();
    for number in 0..20 {
        let message = format!("Preempted by pod p-{} on node n1", number / 2);
        story.events.push(event("a", "Preempted", &message, 1));
    }
    assert_eq!(story.story().preemptors_wanted(), ["p-0", "p-1", "p-2", "p-3"]);
}

#[test]
fn a_deadline_ends_no_attempt() {
    let mut failed = failed_job("DeadlineExceeded", "Job was active longer than specified deadline");
    failed["spec"]["backoffLimit"] = 6.into();
    failed["status"]["failed"] = 5.into();
    let why = two_run().at(8, &ended("a", 1, "Error", 8)).at(13, &failed).why();
    assert!(why.sentence.ends_with("failed: its deadline passed, other pods: exit 1"), "{}", why.sentence);
}

#[test]
fn a_job_whose_workers_are_ended_with_the_first_one_was_not_restarted() {
    let mut failed = failed_job("BackoffLimitExceeded", "");
    failed["status"]["failed"] = 4.into();
    let story = two_run().at(13, &failed);
    assert_eq!(story.states.last().expect("a state").status.attempt, 1);
    let times = crate::status::story::PhaseTimes::of(&story.states, NEW_YEAR + 20 * SECOND);
    assert_eq!(times.restarts, 0);
}

#[test]
fn the_last_words_of_a_program_are_told_of_signals_and_lost_memory_too() {
    let of = |code: i32, reason: &str, words: &str| {
        let mut end = ended("a", code, reason, 8);
        end["status"]["containerStatuses"][0]["state"]["terminated"]["message"] = words.into();
        two_run().at(8, &end).at(9, &failed_job("BackoffLimitExceeded", "")).why().sentence
    };
    let signal = of(134, "Error", "NCCL watchdog: rank 3 timed out\n");
    assert!(signal.ends_with("was ended by SIGABRT (exit 134): NCCL watchdog: rank 3 timed out"), "{signal}");
    let memory = of(137, "OOMKilled", "batch of 512 samples");
    assert!(memory.ends_with("ran out of memory (exit 137): batch of 512 samples"), "{memory}");
    let silent = of(137, "OOMKilled", " ");
    assert!(silent.ends_with("ran out of memory (exit 137)"), "{silent}");
}

#[test]
fn a_failure_without_its_pods_says_why_they_are_missing() {
    let doubt = |pods: PodCoverage| {
        let story =
            WitnessedJob::default().at(0, &running_job()).at(9, &failed_job("BackoffLimitExceeded", ""));
        WitnessedJob { pods, ..story }.why().sentence
    };
    for (pods, words) in [
        (PodCoverage::Whole, "no recorded pod failure explains it"),
        (PodCoverage::Hidden, "pods that you may not see may explain it"),
        (
            PodCoverage::Unwatched,
            "no source watches all pods of its namespace, and one of them may explain it",
        ),
    ] {
        assert_eq!(doubt(pods), format!("Ran 9 s, failed: no attempts left ({words})"));
    }
}

#[test]
fn a_failure_of_what_owns_no_pods_does_not_speak_of_pods() {
    let doubt_of = |object: ObjectRef, pods: PodCoverage| {
        let story = WitnessedJob::default().at(9, &failed_job("BackoffLimitExceeded", ""));
        let state = State { object: Arc::new(object), ..(*story.states[0]).clone() };
        WitnessedJob { states: vec![Arc::new(state)], pods, ..story }.why().doubt
    };
    let of_kind = |group: &str, kind: &str, namespace: &str| ObjectRef {
        group: group.into(),
        kind: kind.into(),
        namespace: namespace.into(),
        ..ObjectRef::default()
    };
    for pods in [PodCoverage::Whole, PodCoverage::Hidden, PodCoverage::Unwatched] {
        for (group, kind) in
            [("", "PersistentVolumeClaim"), ("kueue.x-k8s.io", "Workload"), ("g", "Certificate")]
        {
            assert_eq!(doubt_of(of_kind(group, kind, "team"), pods), "", "{kind}");
        }
        assert_eq!(doubt_of(of_kind("batch", "Job", ""), pods), "", "cluster-scoped");
        assert_ne!(doubt_of(of_kind("batch", "Job", "team"), pods), "");
        assert_ne!(doubt_of(of_kind("apps", "Deployment", "team"), pods), "");
    }
}
