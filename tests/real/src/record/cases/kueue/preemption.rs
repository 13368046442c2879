//! Jobs that Kueue takes back for others: more urgent ones, or the owner of borrowed quota.

use anyhow::Result;
use kubewitness_causes::{Cause, Expected, Outcome};
use serde_json::{Value, json};

use super::super::super::case::{Case, case};
use super::super::super::kubelet::{ContainerExit, PodScript};
use super::super::super::lab::{JOB, MAIN, RecordLab};
use super::{
    URGENT_JOB, await_eviction, cluster_path, cluster_queue, local_queue, open_queue, submit, submit_urgent,
};

/// The queue of the namespace for the cluster's queue that lends quota.
const LENDER: &str = "lender";

pub(super) fn cases() -> Vec<Case> {
    vec![
        case("kueue-preempted-and-waiting", "Kueue preempts a running Job for a more urgent one.", |lab| {
            Box::pin(preempted(lab))
        }),
        case(
            "kueue-preempted-then-succeeds",
            "Kueue preempts a Job, admits it again when the urgent one has ended, and it ends with 0.",
            |lab| Box::pin(preempted_then(lab, 1, 0)),
        ),
        case(
            "kueue-preempted-then-exits-3",
            "Kueue preempts a Job, admits it again when the urgent one has ended, and it ends with 3.",
            |lab| Box::pin(preempted_then(lab, 1, 3)),
        ),
        case(
            "kueue-preempted-twice-then-succeeds",
            "Kueue preempts a Job for two urgent ones, one after the other; then it ends with 0.",
            |lab| Box::pin(preempted_then(lab, 2, 0)),
        ),
        case(
            "kueue-preempted-then-retry-fails",
            "Kueue preempts a Job; admitted again, its two attempts are killed for memory.",
            |lab| Box::pin(preempted_then_two_attempts(lab)),
        ),
        case(
            "kueue-reclaimed-and-waiting",
            "The Job runs on borrowed quota, which its owner takes back for another Job.",
            |lab| Box::pin(reclaimed(lab, false)),
        ),
        case(
            "kueue-reclaimed-then-succeeds",
            "Borrowed quota is taken back; when its owner's Job has ended, the Job runs again and ends with 0.",
            |lab| Box::pin(reclaimed(lab, true)),
        ),
    ]
}

fn prefers_urgent() -> Value {
    json!({"preemption": {"withinClusterQueue": "LowerPriority"}})
}

async fn preempted(lab: &RecordLab<'_>) -> Result<Expected> {
    open_queue(lab, "1", prefers_urgent()).await?;
    submit(lab, "1", json!({})).await?;
    let pod = lab.running_pod(0).await?;
    lab.sleep(2).await;
    submit_urgent(lab, URGENT_JOB, "1", super::QUEUE).await?;
    await_eviction(lab, &pod.name).await?;
    lab.running_other(URGENT_JOB).await?;
    Ok(Expected::new(Cause::Preempted, Outcome::Waiting).by(URGENT_JOB))
}

/// The Job's first pods are ended by so many preemptions, and its last ends with this code.
async fn preempted_then(lab: &RecordLab<'_>, preemptions: usize, code: i64) -> Result<Expected> {
    lab.direct(move |place| match place.job.as_str() {
        JOB if place.ordinal < preemptions => PodScript::endless(),
        JOB => PodScript::exits(MAIN, 2_000, ContainerExit::code(code)),
        _ => PodScript::exits(MAIN, 5_000, ContainerExit::code(0)),
    });
    open_queue(lab, "1", prefers_urgent()).await?;
    submit(lab, "1", json!({"backoffLimit": 0})).await?;
    for preemption in 0..preemptions {
        let pod = lab.running_pod(preemption).await?;
        lab.sleep(2).await;
        submit_urgent(lab, &format!("{URGENT_JOB}-{preemption}"), "1", super::QUEUE).await?;
        lab.await_end(&format!("pods/{}/{}", lab.namespace, pod.name)).await?;
    }
    lab.finished().await?;
    // Several preemptions have several actors.
    let by_first = |expected: Expected| match preemptions {
        1 => expected.by(&format!("{URGENT_JOB}-0")),
        _ => expected,
    };
    if code == 0 {
        return Ok(by_first(Expected::new(Cause::None, Outcome::Succeeded).also(&[Cause::Preempted])));
    }
    let pod = lab.pod(preemptions).await?;
    let expected = by_first(Expected::new(Cause::ExitCode, Outcome::Failed).also(&[Cause::Preempted]));
    Ok(expected.ended(&pod.name, MAIN, code).node(&pod.node))
}

async fn preempted_then_two_attempts(lab: &RecordLab<'_>) -> Result<Expected> {
    lab.direct(|place| match (place.job.as_str(), place.ordinal) {
        (JOB, 0) => PodScript::endless(),
        (JOB, _) => PodScript::exits(MAIN, 2_000, ContainerExit::out_of_memory()),
        _ => PodScript::exits(MAIN, 5_000, ContainerExit::code(0)),
    });
    open_queue(lab, "1", prefers_urgent()).await?;
    submit(lab, "1", json!({"backoffLimit": 1})).await?;
    let pod = lab.running_pod(0).await?;
    lab.sleep(2).await;
    submit_urgent(lab, URGENT_JOB, "1", super::QUEUE).await?;
    lab.await_end(&format!("pods/{}/{}", lab.namespace, pod.name)).await?;
    lab.finished().await?;
    let pod = lab.pod(1).await?;
    let expected = Expected::new(Cause::OutOfMemory, Outcome::Failed).also(&[Cause::Preempted]);
    Ok(expected.ended(&pod.name, MAIN, 137).node(&pod.node).by(URGENT_JOB))
}

/// The Job needs two processors, of which its queue has one and borrows one.
async fn reclaimed(lab: &RecordLab<'_>, runs_again: bool) -> Result<Expected> {
    lab.direct(move |place| match (place.job.as_str(), place.ordinal) {
        (JOB, 0) => PodScript::endless(),
        (JOB, _) => PodScript::exits(MAIN, 2_000, ContainerExit::code(0)),
        _ if runs_again => PodScript::exits(MAIN, 5_000, ContainerExit::code(0)),
        _ => PodScript::endless(),
    });
    let cohort = json!({"cohortName": format!("{}-all", lab.namespace)});
    open_queue(lab, "1", cohort.clone()).await?;
    let mut lends = cohort;
    lends["preemption"] = json!({"reclaimWithinCohort": "Any"});
    let lender = format!("{}-{LENDER}", lab.namespace);
    lab.post(&cluster_path(""), cluster_queue(&lender, "1", &lends)).await?;
    local_queue(lab, LENDER, &lender, json!({})).await?;
    submit(lab, "2", json!({})).await?;
    let pod = lab.running_pod(0).await?;
    lab.sleep(2).await;
    let mut owners = super::queued_job("evaluate", "1", &json!({}));
    owners["metadata"]["labels"] = json!({"kueue.x-k8s.io/queue-name": LENDER});
    lab.create("batch", "jobs", owners).await?;
    await_eviction(lab, &pod.name).await?;
    if !runs_again {
        lab.running_other("evaluate").await?;
        return Ok(Expected::new(Cause::Preempted, Outcome::Waiting).by("evaluate"));
    }
    lab.finished().await?;
    Ok(Expected::new(Cause::None, Outcome::Succeeded).also(&[Cause::Preempted]).by("evaluate"))
}
