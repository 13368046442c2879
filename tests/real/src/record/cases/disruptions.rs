//! Disruptions of nodes, and those that take pods from them.

use anyhow::Result;
use kubewitness_causes::{Cause, Expected, Outcome};
use serde_json::{Value, json};

use super::super::kubelet::{ContainerExit, PodPlace, PodScript};
use super::super::lab::{MAIN, RecordLab, has_condition};
use super::{Case, case};

const MEMORY: &str = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 52096Ki. Container \
    trainer was using 940Mi, request is 256Mi, has larger consumption of memory. ";
const STORAGE: &str = "The node was low on resource: ephemeral-storage. Threshold quantity: 10Gi, available: 8103120Ki. \
    Container trainer was using 41Gi, request is 0, has larger consumption of ephemeral-storage. ";
const URGENT: &str = "urgent";
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";

pub(super) fn cases() -> Vec<Case> {
    vec![
        case("taint-no-retry", "A person taints the node with NoExecute; no retry is allowed.", |lab| {
            Box::pin(taint_no_retry(lab))
        }),
        case(
            "taint-then-retry-succeeds",
            "A person taints the node with NoExecute; the retry runs on another.",
            |lab| Box::pin(taint_then_retry(lab)),
        ),
        case("drained-no-retry", "The eviction API ends the pod; no retry is allowed.", |lab| {
            Box::pin(drained_no_retry(lab))
        }),
        case("drained-then-retry-succeeds", "The eviction API ends the pod; the retry succeeds.", |lab| {
            Box::pin(drained_then_retry(lab))
        }),
        case(
            "drained-one-of-four",
            "The eviction API ends worker 2; the controller deletes the others.",
            |lab| Box::pin(drained_one_of_four(lab)),
        ),
        case(
            "memory-pressure-no-retry",
            "The kubelet evicts the pod because its node runs out of memory.",
            |lab| Box::pin(pressure(lab, "MemoryPressure", MEMORY, "memory")),
        ),
        case(
            "storage-pressure-no-retry",
            "The kubelet evicts the pod because its node runs out of disk.",
            |lab| Box::pin(pressure(lab, "DiskPressure", STORAGE, "ephemeral-storage")),
        ),
        case(
            "memory-pressure-then-retry-succeeds",
            "The kubelet evicts the pod; the retry runs on another node.",
            |lab| Box::pin(pressure_then_retry(lab)),
        ),
        case(
            "preempted-no-retry",
            "The scheduler preempts the pod for an urgent one; no retry is allowed.",
            |lab| Box::pin(preempted_no_retry(lab)),
        ),
        case(
            "preempted-then-retry-succeeds",
            "The scheduler preempts the pod; the retry runs when the urgent one is done.",
            |lab| Box::pin(preempted_then_retry(lab)),
        ),
        case(
            "preempted-and-waiting",
            "The scheduler preempts the pod; its replacement finds no place.",
            |lab| Box::pin(preempted_and_waiting(lab)),
        ),
        case(
            "preempted-one-of-two",
            "The scheduler preempts one of two workers; the controller deletes the other.",
            |lab| Box::pin(preempted_one_of_two(lab)),
        ),
        case(
            "node-lost-and-removed",
            "The node stops, is tainted, and its object is removed; no retry is allowed.",
            |lab| Box::pin(node_lost(lab, true)),
        ),
        case(
            "node-lost-pod-stuck",
            "The node stops and does not come back; its pod stays in deletion.",
            |lab| Box::pin(node_lost(lab, false)),
        ),
        case(
            "node-lost-then-retry-succeeds",
            "The node stops; the retry succeeds on another; the node comes back.",
            |lab| Box::pin(node_lost_then_retry(lab)),
        ),
        case(
            "node-lost-one-of-four",
            "The node of one of four workers stops; the controller deletes the others.",
            |lab| Box::pin(node_lost_one_of_four(lab)),
        ),
        case("node-removed", "The machine goes and the node's object is removed at once.", |lab| {
            Box::pin(node_removed(lab))
        }),
    ]
}

/// The first pod runs until somebody ends it, and the others succeed.
fn first_endless(place: &PodPlace) -> PodScript {
    match place.ordinal {
        0 => PodScript::endless(),
        _ => PodScript::exits(MAIN, 1_500, ContainerExit::code(0)),
    }
}

/// Four workers of which each fills a node of its own.
fn four_workers() -> Value {
    json!({"completions": 4, "parallelism": 4, "completionMode": "Indexed", "backoffLimit": 0})
}

async fn taint_no_retry(lab: &RecordLab<'_>) -> Result<Expected> {
    let node = lab.node("8").await?;
    lab.job(json!({"backoffLimit": 0}), lab.on_own_nodes("1")).await?;
    let pod = lab.running_pod(0).await?;
    lab.taint_node(&node, "maintenance").await?;
    lab.finished().await?;
    Ok(Expected::new(Cause::Evicted, Outcome::Failed).pod(&pod.name).node(&node).by("maintenance"))
}

async fn taint_then_retry(lab: &RecordLab<'_>) -> Result<Expected> {
    lab.direct(first_endless);
    let node = lab.node("8").await?;
    lab.job(json!({}), lab.on_own_nodes("1")).await?;
    let pod = lab.running_pod(0).await?;
    lab.node("8").await?;
    lab.taint_node(&node, "maintenance").await?;
    lab.finished().await?;
    let expected = Expected::new(Cause::None, Outcome::Succeeded).also(&[Cause::Evicted]);
    Ok(expected.pod(&pod.name).node(&node).by("maintenance"))
}

async fn drained_no_retry(lab: &RecordLab<'_>) -> Result<Expected> {
    lab.job(json!({"backoffLimit": 0}), json!({})).await?;
    let pod = lab.running_pod(0).await?;
    lab.drain_pod(&pod.name).await?;
    lab.finished().await?;
    Ok(Expected::new(Cause::Evicted, Outcome::Failed)
        .pod(&pod.name)
        .node(&pod.node)
        .by("EvictionByEvictionAPI"))
}

async fn drained_then_retry(lab: &RecordLab<'_>) -> Result<Expected> {
    lab.direct(first_endless);
    lab.job(json!({}), json!({})).await?;
    let pod = lab.running_pod(0).await?;
    lab.drain_pod(&pod.name).await?;
    lab.finished().await?;
    let expected = Expected::new(Cause::None, Outcome::Succeeded).also(&[Cause::Evicted]);
    Ok(expected.pod(&pod.name).node(&pod.node).by("EvictionByEvictionAPI"))
}

async fn drained_one_of_four(lab: &RecordLab<'_>) -> Result<Expected> {
    lab.job(four_workers(), json!({})).await?;
    lab.job_until("to have four ready pods", |job| job["status"]["ready"] == 4).await?;
    let pod = lab.pod_of(2).await?;
    lab.drain_pod(&pod.name).await?;
    lab.finished().await?;
    Ok(Expected::new(Cause::Evicted, Outcome::Failed)
        .pod(&pod.name)
        .node(&pod.node)
        .by("EvictionByEvictionAPI"))
}

async fn pressure(lab: &RecordLab<'_>, condition: &str, message: &str, resource: &str) -> Result<Expected> {
    let node = lab.node("8").await?;
    lab.job(json!({"backoffLimit": 0}), lab.on_own_nodes("1")).await?;
    let pod = lab.running_pod(0).await?;
    press(lab, &node, condition).await?;
    lab.evict_for_pressure(&pod.name, message)?;
    lab.finished().await?;
    Ok(Expected::new(Cause::Evicted, Outcome::Failed).pod(&pod.name).node(&node).by(resource))
}

async fn press(lab: &RecordLab<'_>, node: &str, condition: &str) -> Result<()> {
    let (reason, message) = match condition {
        "MemoryPressure" => ("KubeletHasInsufficientMemory", "kubelet has insufficient memory available"),
        _ => ("KubeletHasDiskPressure", "kubelet has disk pressure"),
    };
    lab.press_node(node, condition, reason, message).await
}

async fn pressure_then_retry(lab: &RecordLab<'_>) -> Result<Expected> {
    lab.direct(first_endless);
    let node = lab.node("8").await?;
    lab.job(json!({}), lab.on_own_nodes("1")).await?;
    let pod = lab.running_pod(0).await?;
    lab.node("8").await?;
    press(lab, &node, "MemoryPressure").await?;
    lab.evict_for_pressure(&pod.name, MEMORY)?;
    lab.finished().await?;
    let expected = Expected::new(Cause::None, Outcome::Succeeded).also(&[Cause::Evicted]);
    Ok(expected.pod(&pod.name).node(&node).by("memory"))
}

/// A pod that fills most of a node, at a priority.
fn large(lab: &RecordLab<'_>, priority: &str) -> Value {
    let mut pod = lab.on_own_nodes("3");
    pod["priorityClassName"] = priority.into();
    pod
}

/// Waits until the Job runs, and takes its place by one that is urgent. Returns the pods of both.
async fn preempt(lab: &RecordLab<'_>) -> Result<(String, String)> {
    let pod = lab.running_pod(0).await?;
    lab.other_job(URGENT, json!({}), large(lab, "batch-high")).await?;
    let urgent = lab.pod_of_job(URGENT).await?;
    Ok((pod.name, urgent.name))
}

async fn preempted_no_retry(lab: &RecordLab<'_>) -> Result<Expected> {
    let node = lab.node("4").await?;
    lab.job(json!({"backoffLimit": 0}), large(lab, "batch-low")).await?;
    let (pod, urgent) = preempt(lab).await?;
    lab.finished().await?;
    Ok(Expected::new(Cause::Preempted, Outcome::Failed).pod(&pod).node(&node).by(&urgent))
}

async fn preempted_then_retry(lab: &RecordLab<'_>) -> Result<Expected> {
    lab.direct(|place| match (place.job.as_str(), place.ordinal) {
        (URGENT, _) => PodScript::exits(MAIN, 16_000, ContainerExit::code(0)),
        _ => first_endless(place),
    });
    let node = lab.node("4").await?;
    lab.job(json!({}), large(lab, "batch-low")).await?;
    let (pod, urgent) = preempt(lab).await?;
    lab.finished().await?;
    // The retry comes after ten seconds, and waits until the urgent pod is done.
    let also = [Cause::Preempted, Cause::Unschedulable];
    let expected = Expected::new(Cause::None, Outcome::Succeeded).also(&also);
    Ok(expected.pod(&pod).node(&node).by(&urgent))
}

async fn preempted_and_waiting(lab: &RecordLab<'_>) -> Result<Expected> {
    lab.node("4").await?;
    lab.job(json!({}), large(lab, "batch-low")).await?;
    let (pod, urgent) = preempt(lab).await?;
    lab.await_end(&format!("pods/{}/{pod}", lab.namespace)).await?;
    lab.running_other(URGENT).await?;
    let waiting = lab.unbound_pod().await?;
    let expected = Expected::new(Cause::Unschedulable, Outcome::Waiting).also(&[Cause::Preempted]);
    Ok(expected.pod(&waiting).by(&urgent))
}

async fn preempted_one_of_two(lab: &RecordLab<'_>) -> Result<Expected> {
    lab.node("4").await?;
    lab.node("4").await?;
    let spec = json!({"completions": 2, "parallelism": 2, "completionMode": "Indexed", "backoffLimit": 0});
    lab.job(spec, large(lab, "batch-low")).await?;
    lab.job_until("to have two ready pods", |job| job["status"]["ready"] == 2).await?;
    let (_, urgent) = preempt(lab).await?;
    lab.finished().await?;
    let pod = lab.preempted_pod().await?;
    Ok(Expected::new(Cause::Preempted, Outcome::Failed).pod(&pod).by(&urgent))
}

async fn node_lost(lab: &RecordLab<'_>, is_removed: bool) -> Result<Expected> {
    let node = lab.node("8").await?;
    lab.job(json!({"backoffLimit": 0}), lab.on_own_nodes("1")).await?;
    let pod = lab.running_pod(0).await?;
    lab.kill_node(&node);
    lab.pod_until(&pod.name, "to be evicted", |pod| has_condition(pod, "DisruptionTarget")).await?;
    let outcome = if is_removed {
        lab.delete(&format!("/api/v1/nodes/{node}")).await?;
        lab.finished().await?;
        Outcome::Failed
    } else {
        lab.sleep(3).await;
        Outcome::Waiting
    };
    Ok(Expected::new(Cause::NodeLost, outcome).pod(&pod.name).node(&node).by(UNREACHABLE))
}

async fn node_lost_then_retry(lab: &RecordLab<'_>) -> Result<Expected> {
    lab.direct(first_endless);
    let node = lab.node("8").await?;
    lab.job(json!({}), lab.on_own_nodes("1")).await?;
    let pod = lab.running_pod(0).await?;
    lab.node("8").await?;
    lab.kill_node(&node);
    lab.job_until("to have succeeded once", |job| job["status"]["succeeded"] == 1).await?;
    // The Job is complete once no pod of it can run any more.
    lab.revive_node(&node);
    lab.finished().await?;
    let expected = Expected::new(Cause::None, Outcome::Succeeded).also(&[Cause::NodeLost]);
    Ok(expected.pod(&pod.name).node(&node).by(UNREACHABLE))
}

async fn node_lost_one_of_four(lab: &RecordLab<'_>) -> Result<Expected> {
    for _ in 0..4 {
        lab.node("2").await?;
    }
    lab.job(four_workers(), lab.on_own_nodes("1500m")).await?;
    lab.job_until("to have four ready pods", |job| job["status"]["ready"] == 4).await?;
    let pod = lab.pod_of(1).await?;
    lab.kill_node(&pod.node);
    lab.pod_until(&pod.name, "to be evicted", |pod| has_condition(pod, "DisruptionTarget")).await?;
    lab.sleep(3).await;
    lab.revive_node(&pod.node);
    lab.finished().await?;
    Ok(Expected::new(Cause::NodeLost, Outcome::Failed).pod(&pod.name).node(&pod.node).by(UNREACHABLE))
}

async fn node_removed(lab: &RecordLab<'_>) -> Result<Expected> {
    let node = lab.node("8").await?;
    lab.job(json!({"backoffLimit": 0}), lab.on_own_nodes("1")).await?;
    let pod = lab.running_pod(0).await?;
    lab.kill_node(&node);
    lab.delete(&format!("/api/v1/nodes/{node}")).await?;
    lab.finished().await?;
    Ok(Expected::new(Cause::NodeLost, Outcome::Failed).pod(&pod.name).node(&node))
}
