//! Jobs that wait for quota, or for a queue.

use anyhow::Result;
use kubewitness_causes::{Cause, Expected, Outcome};
use serde_json::{Value, json};

use super::super::super::case::{Case, case};
use super::super::super::kubelet::{ContainerExit, PodScript};
use super::super::super::lab::{JOB, MAIN, RecordLab, container, job};
use super::{QUEUE, await_queued, local_queue, open_queue, queued_job, submit, workload_until};

/// The Job that has the quota first.
const EARLIER: &str = "earlier";

pub(super) fn cases() -> Vec<Case> {
    vec![
        case("kueue-admitted-at-once", "The queue has room; the Job ends with 0.", |lab| {
            Box::pin(admitted_at_once(lab))
        }),
        case(
            "kueue-waits-then-succeeds",
            "The Job waits until an earlier one has ended; then it ends with 0.",
            |lab| Box::pin(admitted_later(lab, 0)),
        ),
        case(
            "kueue-waits-then-exits-3",
            "The Job waits until an earlier one has ended; then it ends with 3.",
            |lab| Box::pin(admitted_later(lab, 3)),
        ),
        case("kueue-waits-behind-another", "An earlier Job has all of the quota, and runs.", |lab| {
            Box::pin(behind_another(lab))
        }),
        case("kueue-asks-for-too-much", "The Job asks for more than its queue ever has.", |lab| {
            Box::pin(too_much(lab))
        }),
        case(
            "kueue-resource-not-covered",
            "The Job asks for a resource that its queue has none of.",
            |lab| Box::pin(not_covered(lab)),
        ),
        case(
            "kueue-quota-raised-later",
            "The queue has too little quota until a person raises it; the Job ends with 0.",
            |lab| Box::pin(quota_raised(lab)),
        ),
        case("kueue-local-queue-missing", "The Job names a queue that does not exist.", |lab| {
            Box::pin(local_queue_missing(lab))
        }),
        case("kueue-cluster-queue-missing", "The Job's queue leads to one that does not exist.", |lab| {
            Box::pin(cluster_queue_missing(lab))
        }),
    ]
}

async fn admitted_at_once(lab: &RecordLab<'_>) -> Result<Expected> {
    lab.direct(|_| PodScript::exits(MAIN, 1_500, ContainerExit::code(0)));
    open_queue(lab, "2", json!({})).await?;
    submit(lab, "1", json!({})).await?;
    lab.finished().await?;
    Ok(Expected::new(Cause::None, Outcome::Succeeded))
}

async fn admitted_later(lab: &RecordLab<'_>, code: i64) -> Result<Expected> {
    lab.direct(move |place| match place.job.as_str() {
        EARLIER => PodScript::exits(MAIN, 12_000, ContainerExit::code(0)),
        _ => PodScript::exits(MAIN, 2_000, ContainerExit::code(code)),
    });
    open_queue(lab, "1", json!({})).await?;
    lab.create("batch", "jobs", queued_job(EARLIER, "1", &json!({}))).await?;
    lab.running_other(EARLIER).await?;
    submit(lab, "1", json!({"backoffLimit": 0})).await?;
    await_queued(lab).await?;
    lab.finished().await?;
    if code == 0 {
        return Ok(Expected::new(Cause::None, Outcome::Succeeded).also(&[Cause::Quota]));
    }
    let pod = lab.pod_of_job(JOB).await?;
    let expected = Expected::new(Cause::ExitCode, Outcome::Failed).also(&[Cause::Quota]);
    Ok(expected.ended(&pod.name, MAIN, code).node(&pod.node))
}

async fn behind_another(lab: &RecordLab<'_>) -> Result<Expected> {
    open_queue(lab, "1", json!({})).await?;
    lab.create("batch", "jobs", queued_job(EARLIER, "1", &json!({}))).await?;
    lab.running_other(EARLIER).await?;
    submit(lab, "1", json!({})).await?;
    await_queued(lab).await?;
    Ok(Expected::new(Cause::Quota, Outcome::Waiting))
}

async fn too_much(lab: &RecordLab<'_>) -> Result<Expected> {
    open_queue(lab, "2", json!({})).await?;
    submit(lab, "1", json!({"parallelism": 4, "completions": 4})).await?;
    await_queued(lab).await?;
    Ok(Expected::new(Cause::Quota, Outcome::Waiting))
}

async fn not_covered(lab: &RecordLab<'_>) -> Result<Expected> {
    open_queue(lab, "2", json!({})).await?;
    let mut with_gpu = container(MAIN, "1");
    for list in ["requests", "limits"] {
        with_gpu["resources"][list]["nvidia.com/gpu"] = "1".into();
    }
    let mut queued = job(JOB, &json!({}), &json!({"containers": [with_gpu]}));
    queued["metadata"]["labels"] = json!({"kueue.x-k8s.io/queue-name": QUEUE});
    lab.create("batch", "jobs", queued).await?;
    await_queued(lab).await?;
    Ok(Expected::new(Cause::Quota, Outcome::Waiting))
}

async fn quota_raised(lab: &RecordLab<'_>) -> Result<Expected> {
    lab.direct(|_| PodScript::exits(MAIN, 1_500, ContainerExit::code(0)));
    open_queue(lab, "1", json!({})).await?;
    submit(lab, "2", json!({})).await?;
    await_queued(lab).await?;
    lab.sleep(6).await;
    let groups = super::cluster_queue("any", "2", &json!({}))["spec"]["resourceGroups"].clone();
    let path = super::cluster_path(&format!("/{}", lab.namespace));
    lab.patch(&path, json!({"spec": {"resourceGroups": groups}})).await?;
    lab.finished().await?;
    Ok(Expected::new(Cause::None, Outcome::Succeeded).also(&[Cause::Quota]))
}

fn says(workload: &Value, text: &str) -> bool {
    workload["status"]["conditions"].to_string().contains(text)
}

async fn local_queue_missing(lab: &RecordLab<'_>) -> Result<Expected> {
    submit(lab, "1", json!({})).await?;
    workload_until(lab, "a Workload without a queue", |workload| says(workload, QUEUE)).await?;
    Ok(Expected::new(Cause::Configuration, Outcome::Waiting))
}

async fn cluster_queue_missing(lab: &RecordLab<'_>) -> Result<Expected> {
    local_queue(lab, QUEUE, "gpus", json!({})).await?;
    submit(lab, "1", json!({})).await?;
    workload_until(lab, "a Workload without a queue", |workload| says(workload, "gpus")).await?;
    Ok(Expected::new(Cause::Configuration, Outcome::Waiting))
}
