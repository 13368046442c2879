//! Admitted Jobs whose pods fail, or do not get ready.

use anyhow::Result;
use kubewitness_causes::{Cause, Expected, Outcome};
use serde_json::json;

use super::super::super::case::{Case, case};
use super::super::super::kubelet::{ContainerExit, Obstacle, PodScript};
use super::super::super::lab::{JOB, MAIN, RecordLab, has_condition, job};
use super::{QUEUE, await_eviction, open_queue, submit};

const NO_IMAGE: &str = "failed to pull and unpack image \"registry.example/ml/trainer:2.4\": failed to resolve reference \
    \"registry.example/ml/trainer:2.4\": registry.example/ml/trainer:2.4: not found";

pub(super) fn cases() -> Vec<Case> {
    vec![
        case("kueue-out-of-memory", "The pod of the admitted Job is killed for memory.", |lab| {
            Box::pin(out_of_memory(lab))
        }),
        case(
            "kueue-first-of-four-exits-5",
            "Worker 2 of the admitted Job ends with 5; the controller deletes the others.",
            |lab| Box::pin(first_of_four(lab)),
        ),
        case("kueue-node-lost", "The node of the admitted Job stops, and its object is removed.", |lab| {
            Box::pin(node_lost(lab))
        }),
    ]
}

pub(super) fn cases_with_deadline() -> Vec<Case> {
    vec![
        case("kueue-ready-in-time-exits-6", "The pods get ready in time; the Job ends with 6.", |lab| {
            Box::pin(ready_in_time(lab))
        }),
        case(
            "kueue-pods-not-ready-in-time",
            "The image does not exist, and Kueue takes the Job back because its pods do not get ready in time.",
            |lab| Box::pin(not_ready(lab, false)),
        ),
        case(
            "kueue-pods-not-ready-then-succeeds",
            "Kueue takes the Job back because its image does not exist; it is pushed, and the Job ends with 0.",
            |lab| Box::pin(not_ready(lab, true)),
        ),
    ]
}

async fn out_of_memory(lab: &RecordLab<'_>) -> Result<Expected> {
    lab.direct(|_| PodScript::exits(MAIN, 2_000, ContainerExit::out_of_memory()));
    open_queue(lab, "1", json!({})).await?;
    submit(lab, "1", json!({"backoffLimit": 0})).await?;
    lab.finished().await?;
    let pod = lab.pod(0).await?;
    let expected = Expected::new(Cause::OutOfMemory, Outcome::Failed);
    Ok(expected.ended(&pod.name, MAIN, 137).node(&pod.node))
}

async fn first_of_four(lab: &RecordLab<'_>) -> Result<Expected> {
    lab.direct(|place| match place.index {
        Some(2) => PodScript::exits(MAIN, 4_000, ContainerExit::code(5)),
        _ => PodScript::endless(),
    });
    open_queue(lab, "4", json!({})).await?;
    let spec = json!({"completions": 4, "parallelism": 4, "completionMode": "Indexed", "backoffLimit": 0});
    submit(lab, "1", spec).await?;
    lab.finished().await?;
    let pod = lab.pod_of(2).await?;
    Ok(Expected::new(Cause::ExitCode, Outcome::Failed).ended(&pod.name, MAIN, 5).node(&pod.node))
}

async fn node_lost(lab: &RecordLab<'_>) -> Result<Expected> {
    open_queue(lab, "1", json!({})).await?;
    let node = lab.node("8").await?;
    let mut queued = job(JOB, &json!({"backoffLimit": 0}), &lab.on_own_nodes("1"));
    queued["metadata"]["labels"] = json!({"kueue.x-k8s.io/queue-name": QUEUE});
    lab.create("batch", "jobs", queued).await?;
    let pod = lab.running_pod(0).await?;
    lab.kill_node(&node);
    lab.pod_until(&pod.name, "to be evicted", |pod| has_condition(pod, "DisruptionTarget")).await?;
    lab.delete(&format!("/api/v1/nodes/{node}")).await?;
    lab.finished().await?;
    Ok(Expected::new(Cause::NodeLost, Outcome::Failed).pod(&pod.name).node(&node))
}

async fn ready_in_time(lab: &RecordLab<'_>) -> Result<Expected> {
    lab.direct(|_| PodScript::exits(MAIN, 4_000, ContainerExit::code(6)));
    open_queue(lab, "1", json!({})).await?;
    submit(lab, "1", json!({"backoffLimit": 0})).await?;
    lab.finished().await?;
    let pod = lab.pod(0).await?;
    Ok(Expected::new(Cause::ExitCode, Outcome::Failed).ended(&pod.name, MAIN, 6).node(&pod.node))
}

async fn not_ready(lab: &RecordLab<'_>, is_pushed: bool) -> Result<Expected> {
    lab.direct(move |place| match place.ordinal {
        1 if is_pushed => PodScript::exits(MAIN, 2_000, ContainerExit::code(0)),
        _ => PodScript::endless().blocked(MAIN, Obstacle::ImagePull(NO_IMAGE), None),
    });
    open_queue(lab, "1", json!({})).await?;
    submit(lab, "1", json!({})).await?;
    let pod = lab.pod(0).await?;
    await_eviction(lab, &pod.name).await?;
    if is_pushed {
        lab.finished().await?;
        return Ok(Expected::new(Cause::None, Outcome::Succeeded).also(&[Cause::ImagePull]));
    }
    Ok(Expected::new(Cause::ImagePull, Outcome::Waiting).pod(&pod.name).container(MAIN))
}
