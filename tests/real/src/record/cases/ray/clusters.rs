//! RayClusters of their own, which have no end.

use anyhow::Result;
use kubewitness_causes::{Cause, Expected, Outcome};
use serde_json::json;

use super::super::super::kubelet::{ContainerExit, Obstacle, PodScript};
use super::super::super::lab::{JOB, QUOTA, RecordLab, has_condition, waits_for};
use super::waiting::NO_HEAD_IMAGE;
use super::{API, Case, HEAD, OF_HEAD, case, cluster, healthy};

pub(super) fn cases() -> Vec<Case> {
    vec![
        case("ray-cluster-still-running", "The head and the workers of a RayCluster run.", |lab| {
            Box::pin(still_running(lab))
        }),
        case("ray-cluster-worker-unschedulable", "No node has room for the worker of a RayCluster.", |lab| {
            Box::pin(worker_unschedulable(lab))
        }),
        case(
            "ray-cluster-head-image-not-found",
            "The image of the head of a RayCluster does not exist.",
            |lab| Box::pin(head_image_not_found(lab)),
        ),
        case(
            "ray-cluster-head-crash-loops",
            "The kubelet restarts the head of a RayCluster, which ends with 1.",
            |lab| Box::pin(head_crash_loops(lab)),
        ),
        case(
            "ray-cluster-quota-allows-no-pod",
            "The quota of a RayCluster's namespace allows no pod.",
            |lab| Box::pin(quota(lab)),
        ),
    ]
}

async fn create(lab: &RecordLab<'_>, workers: u64, cpu: &str) -> Result<()> {
    let cluster = cluster(workers, cpu);
    lab.subject(json!({"apiVersion": API, "kind": "RayCluster", "metadata": {"name": JOB}, "spec": cluster}))
        .await
}

async fn still_running(lab: &RecordLab<'_>) -> Result<Expected> {
    lab.direct(healthy);
    create(lab, 2, "1").await?;
    lab.job_until("to be there", |cluster| has_condition(cluster, "RayClusterProvisioned")).await?;
    Ok(Expected::new(Cause::None, Outcome::Running))
}

async fn worker_unschedulable(lab: &RecordLab<'_>) -> Result<Expected> {
    lab.direct(healthy);
    create(lab, 1, "500").await?;
    let pod = lab.unbound_pod().await?;
    Ok(Expected::new(Cause::Unschedulable, Outcome::Waiting).pod(&pod))
}

async fn head_image_not_found(lab: &RecordLab<'_>) -> Result<Expected> {
    lab.direct(|place| match place.job.as_str() {
        HEAD => PodScript::endless().blocked(OF_HEAD, Obstacle::ImagePull(NO_HEAD_IMAGE), None),
        _ => PodScript::endless(),
    });
    create(lab, 1, "1").await?;
    let pod = lab.pod_of_job(HEAD).await?;
    lab.pod_until(&pod.name, "to back off", |pod| waits_for(pod, "ImagePullBackOff")).await?;
    Ok(Expected::new(Cause::ImagePull, Outcome::Waiting).pod(&pod.name).container(OF_HEAD).node(&pod.node))
}

async fn head_crash_loops(lab: &RecordLab<'_>) -> Result<Expected> {
    lab.direct(|place| match place.job.as_str() {
        HEAD => PodScript::exits(OF_HEAD, 1_500, ContainerExit::code(1)),
        _ => PodScript::endless(),
    });
    create(lab, 1, "1").await?;
    let pod = lab.pod_of_job(HEAD).await?;
    lab.pod_until(&pod.name, "to back off", |pod| waits_for(pod, "CrashLoopBackOff")).await?;
    Ok(Expected::new(Cause::ExitCode, Outcome::Waiting).ended(&pod.name, OF_HEAD, 1).node(&pod.node))
}

async fn quota(lab: &RecordLab<'_>) -> Result<Expected> {
    lab.quota(json!({"pods": "0"})).await?;
    create(lab, 1, "1").await?;
    lab.event("FailedToCreateHeadPod").await?;
    Ok(Expected::new(Cause::Quota, Outcome::Waiting).by(QUOTA))
}
