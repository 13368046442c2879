//! Acts of people on queues, and on Jobs in them: stop, deactivate, delete.

use anyhow::Result;
use kubewitness_causes::{Cause, Expected, Outcome};
use serde_json::{Value, json};

use super::super::super::case::{Case, case};
use super::super::super::kubelet::{ContainerExit, PodScript};
use super::super::super::lab::{JOB, MAIN, RecordLab};
use super::{
    QUEUE, await_eviction, await_queued, cluster_path, cluster_queue, local_path, local_queue, open_queue,
    submit, workload_until,
};

pub(super) fn cases() -> Vec<Case> {
    vec![
        case("kueue-cluster-queue-on-hold", "The cluster's queue is on hold.", |lab| {
            Box::pin(on_hold(lab, json!({"stopPolicy": "Hold"}), json!({})))
        }),
        case("kueue-local-queue-on-hold", "The namespace's queue is on hold.", |lab| {
            Box::pin(on_hold(lab, json!({}), json!({"stopPolicy": "Hold"})))
        }),
        case(
            "kueue-drained-while-running",
            "A person drains the cluster's queue while the Job runs.",
            |lab| Box::pin(drained(lab, false)),
        ),
        case(
            "kueue-drained-then-succeeds",
            "A person drains the queue and opens it again; then the Job ends with 0.",
            |lab| Box::pin(drained(lab, true)),
        ),
        case(
            "kueue-deactivated-while-running",
            "A person deactivates the Workload while the Job runs.",
            |lab| Box::pin(deactivated(lab, false)),
        ),
        case(
            "kueue-deactivated-then-succeeds",
            "A person deactivates the Workload and activates it again; then the Job ends with 0.",
            |lab| Box::pin(deactivated(lab, true)),
        ),
        case(
            "kueue-deactivated-while-queued",
            "The Job waits for quota, and a person deactivates its Workload.",
            |lab| Box::pin(deactivated_while_queued(lab)),
        ),
        case("kueue-deleted-while-queued", "The Job waits for quota, and a person deletes it.", |lab| {
            Box::pin(deleted(lab, false))
        }),
        case("kueue-deleted-while-running", "A person deletes the admitted Job.", |lab| {
            Box::pin(deleted(lab, true))
        }),
    ]
}

async fn on_hold(lab: &RecordLab<'_>, cluster: Value, local: Value) -> Result<Expected> {
    lab.post(&cluster_path(""), cluster_queue(&lab.namespace, "2", &cluster)).await?;
    local_queue(lab, QUEUE, &lab.namespace, local).await?;
    submit(lab, "1", json!({})).await?;
    await_queued(lab).await?;
    Ok(Expected::new(Cause::Suspended, Outcome::Waiting))
}

fn first_endless(lab: &RecordLab<'_>) {
    lab.direct(|place| match place.ordinal {
        0 => PodScript::endless(),
        _ => PodScript::exits(MAIN, 2_000, ContainerExit::code(0)),
    });
}

async fn drained(lab: &RecordLab<'_>, is_opened: bool) -> Result<Expected> {
    first_endless(lab);
    open_queue(lab, "1", json!({})).await?;
    submit(lab, "1", json!({})).await?;
    let pod = lab.running_pod(0).await?;
    lab.sleep(2).await;
    let queue = cluster_path(&format!("/{}", lab.namespace));
    lab.patch(&queue, json!({"spec": {"stopPolicy": "HoldAndDrain"}})).await?;
    await_eviction(lab, &pod.name).await?;
    if !is_opened {
        return Ok(Expected::new(Cause::Suspended, Outcome::Waiting));
    }
    lab.sleep(3).await;
    lab.patch(&queue, json!({"spec": {"stopPolicy": "None"}})).await?;
    lab.finished().await?;
    Ok(Expected::new(Cause::None, Outcome::Succeeded).also(&[Cause::Suspended]))
}

async fn set_active(lab: &RecordLab<'_>, workload: &Value, is_active: bool) -> Result<()> {
    let name = workload["metadata"]["name"].as_str().unwrap_or_default();
    let path = local_path(lab, &format!("workloads/{name}"));
    lab.patch(&path, json!({"spec": {"active": is_active}})).await.map(drop)
}

async fn deactivated(lab: &RecordLab<'_>, is_activated: bool) -> Result<Expected> {
    first_endless(lab);
    open_queue(lab, "1", json!({})).await?;
    submit(lab, "1", json!({})).await?;
    let pod = lab.running_pod(0).await?;
    let workload = workload_until(lab, "a Workload", |_| true).await?;
    lab.sleep(2).await;
    set_active(lab, &workload, false).await?;
    await_eviction(lab, &pod.name).await?;
    if !is_activated {
        return Ok(Expected::new(Cause::Suspended, Outcome::Waiting));
    }
    lab.sleep(3).await;
    set_active(lab, &workload, true).await?;
    lab.finished().await?;
    Ok(Expected::new(Cause::None, Outcome::Succeeded).also(&[Cause::Suspended]))
}

async fn deactivated_while_queued(lab: &RecordLab<'_>) -> Result<Expected> {
    open_queue(lab, "1", json!({})).await?;
    submit(lab, "2", json!({})).await?;
    let workload = await_queued(lab).await?;
    lab.sleep(2).await;
    set_active(lab, &workload, false).await?;
    lab.sleep(2).await;
    Ok(Expected::new(Cause::Suspended, Outcome::Waiting))
}

async fn deleted(lab: &RecordLab<'_>, is_admitted: bool) -> Result<Expected> {
    open_queue(lab, "1", json!({})).await?;
    submit(lab, if is_admitted { "1" } else { "2" }, json!({})).await?;
    if is_admitted {
        lab.running_pod(0).await?;
    } else {
        await_queued(lab).await?;
    }
    lab.delete(&lab.path("batch", &format!("jobs/{JOB}?propagationPolicy=Background"))).await?;
    lab.await_end(&lab.job_key()).await?;
    Ok(Expected::new(Cause::Deleted, Outcome::Deleted))
}
