//! Acts of people on Jobs and pods: suspend, resume, delete.

use anyhow::Result;
use kubewitness_causes::{Cause, Expected, Outcome};
use serde_json::json;

use super::super::kubelet::{ContainerExit, PodScript};
use super::super::lab::{JOB, MAIN, RecordLab, has_condition};
use super::{Case, case};

pub(super) fn cases() -> Vec<Case> {
    vec![
        case("suspended-from-the-beginning", "The Job is created as suspended.", |lab| {
            Box::pin(suspended(lab))
        }),
        case("suspended-while-running", "A person suspends the Job while its pod runs.", |lab| {
            Box::pin(suspended_while_running(lab, false))
        }),
        case(
            "suspended-and-resumed",
            "A person suspends the Job, and resumes it; then it succeeds.",
            |lab| Box::pin(suspended_while_running(lab, true)),
        ),
        case("job-deleted-while-running", "A person deletes the Job while its pod runs.", |lab| {
            Box::pin(job_deleted(lab))
        }),
        case(
            "job-deleted-after-a-failure",
            "The first attempt ends with 13; then a person deletes the Job.",
            |lab| Box::pin(job_deleted_after_failure(lab)),
        ),
        case("job-deleted-while-unschedulable", "No node fits, and a person deletes the Job.", |lab| {
            Box::pin(job_deleted_while_waiting(lab))
        }),
        case("pod-deleted-no-retry", "A person deletes the pod; no retry is allowed.", |lab| {
            Box::pin(pod_deleted(lab, false))
        }),
        case("pod-deleted-then-retry-succeeds", "A person deletes the pod; the retry succeeds.", |lab| {
            Box::pin(pod_deleted(lab, true))
        }),
        case(
            "pod-deleted-one-of-four",
            "A person deletes worker 0; the controller deletes the others.",
            |lab| Box::pin(worker_deleted(lab)),
        ),
    ]
}

async fn suspended(lab: &RecordLab<'_>) -> Result<Expected> {
    lab.job(json!({"suspend": true}), json!({})).await?;
    lab.job_until("to be suspended", |job| has_condition(job, "Suspended")).await?;
    Ok(Expected::new(Cause::Suspended, Outcome::Waiting))
}

async fn suspended_while_running(lab: &RecordLab<'_>, is_resumed: bool) -> Result<Expected> {
    lab.direct(|place| match place.ordinal {
        0 => PodScript::endless(),
        _ => PodScript::exits(MAIN, 1_500, ContainerExit::code(0)),
    });
    lab.job(json!({}), json!({})).await?;
    let pod = lab.running_pod(0).await?;
    lab.patch_job(json!({"spec": {"suspend": true}})).await?;
    lab.job_until("to be suspended", |job| has_condition(job, "Suspended")).await?;
    lab.await_end(&format!("pods/{}/{}", lab.namespace, pod.name)).await?;
    if !is_resumed {
        return Ok(Expected::new(Cause::Suspended, Outcome::Waiting));
    }
    lab.patch_job(json!({"spec": {"suspend": false}})).await?;
    lab.finished().await?;
    Ok(Expected::new(Cause::None, Outcome::Succeeded).also(&[Cause::Suspended]))
}

async fn delete_job(lab: &RecordLab<'_>) -> Result<()> {
    // As kubectl does; the API's own default leaves pods without an owner.
    lab.delete(&lab.path("batch", &format!("jobs/{JOB}?propagationPolicy=Background"))).await?;
    lab.await_end(&lab.job_key()).await
}

async fn job_deleted(lab: &RecordLab<'_>) -> Result<Expected> {
    lab.job(json!({}), json!({})).await?;
    let pod = lab.running_pod(0).await?;
    delete_job(lab).await?;
    lab.await_end(&format!("pods/{}/{}", lab.namespace, pod.name)).await?;
    Ok(Expected::new(Cause::Deleted, Outcome::Deleted))
}

async fn job_deleted_after_failure(lab: &RecordLab<'_>) -> Result<Expected> {
    lab.direct(|place| match place.ordinal {
        0 => PodScript::exits(MAIN, 1_500, ContainerExit::code(13)),
        _ => PodScript::endless(),
    });
    lab.job(json!({}), json!({})).await?;
    let pod = lab.pod(0).await?;
    let second = lab.running_pod(1).await?;
    delete_job(lab).await?;
    lab.await_end(&format!("pods/{}/{}", lab.namespace, second.name)).await?;
    let expected = Expected::new(Cause::Deleted, Outcome::Deleted).also(&[Cause::ExitCode]);
    Ok(expected.ended(&pod.name, MAIN, 13).node(&pod.node))
}

async fn job_deleted_while_waiting(lab: &RecordLab<'_>) -> Result<Expected> {
    lab.job(json!({}), json!({"nodeSelector": {"gpu": "h200"}})).await?;
    let pod = lab.unbound_pod().await?;
    delete_job(lab).await?;
    lab.await_end(&format!("pods/{}/{pod}", lab.namespace)).await?;
    Ok(Expected::new(Cause::Deleted, Outcome::Deleted).also(&[Cause::Unschedulable]))
}

async fn pod_deleted(lab: &RecordLab<'_>, is_retried: bool) -> Result<Expected> {
    lab.direct(|place| match place.ordinal {
        0 => PodScript::endless(),
        _ => PodScript::exits(MAIN, 1_500, ContainerExit::code(0)),
    });
    lab.job(json!({"backoffLimit": if is_retried { 6 } else { 0 }}), json!({})).await?;
    let pod = lab.running_pod(0).await?;
    lab.delete_pod(&pod.name).await?;
    lab.finished().await?;
    let expected = if is_retried {
        Expected::new(Cause::None, Outcome::Succeeded).also(&[Cause::Deleted])
    } else {
        Expected::new(Cause::Deleted, Outcome::Failed)
    };
    Ok(expected.pod(&pod.name).node(&pod.node))
}

async fn worker_deleted(lab: &RecordLab<'_>) -> Result<Expected> {
    let spec = json!({"completions": 4, "parallelism": 4, "completionMode": "Indexed", "backoffLimit": 0});
    lab.job(spec, json!({})).await?;
    lab.job_until("to have four ready pods", |job| job["status"]["ready"] == 4).await?;
    let pod = lab.pod_of(0).await?;
    lab.delete_pod(&pod.name).await?;
    lab.finished().await?;
    Ok(Expected::new(Cause::Deleted, Outcome::Failed).pod(&pod.name).node(&pod.node))
}
