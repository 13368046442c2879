//! RayJobs that wait: for a node, an image, a quota.

use anyhow::Result;
use kubewitness_causes::{Cause, Expected, Outcome};
use serde_json::json;

use super::super::super::kubelet::{Obstacle, PodScript};
use super::super::super::lab::{QUOTA, RecordLab, waits_for};
use super::{Case, HEAD, OF_HEAD, WAITER, WORKER, case, cluster, healthy, submit};

const NO_WORKER_IMAGE: &str = "failed to pull and unpack image \"registry.example/ml/ray-worker:2.4\": failed to resolve \
    reference \"registry.example/ml/ray-worker:2.4\": registry.example/ml/ray-worker:2.4: not found";
pub(super) const NO_HEAD_IMAGE: &str = "failed to pull and unpack image \"registry.example/ml/ray-head:2.4\": failed to \
    resolve reference \"registry.example/ml/ray-head:2.4\": registry.example/ml/ray-head:2.4: not found";

pub(super) fn cases() -> Vec<Case> {
    vec![
        case("ray-job-worker-unschedulable", "No node has room for the worker of a RayJob.", |lab| {
            Box::pin(worker_unschedulable(lab))
        }),
        case(
            "ray-job-worker-image-not-found",
            "The image of the workers of a RayJob does not exist.",
            |lab| Box::pin(worker_image_not_found(lab)),
        ),
        case("ray-job-head-image-not-found", "The image of the head of a RayJob does not exist.", |lab| {
            Box::pin(head_image_not_found(lab))
        }),
        case("ray-job-quota-allows-no-pod", "The quota of a RayJob's namespace allows no pod.", |lab| {
            Box::pin(quota(lab))
        }),
    ]
}

async fn worker_unschedulable(lab: &RecordLab<'_>) -> Result<Expected> {
    lab.direct(healthy);
    submit(lab, &json!({"rayClusterSpec": cluster(1, "500")})).await?;
    let pod = lab.unbound_pod().await?;
    Ok(Expected::new(Cause::Unschedulable, Outcome::Waiting).pod(&pod))
}

/// The container that waits for the head has the same image, and is started first.
async fn worker_image_not_found(lab: &RecordLab<'_>) -> Result<Expected> {
    lab.direct(|place| match place.job.as_str() {
        WORKER => PodScript::endless().blocked(WAITER, Obstacle::ImagePull(NO_WORKER_IMAGE), None),
        _ => healthy(place),
    });
    submit(lab, &json!({"rayClusterSpec": cluster(1, "1")})).await?;
    let pod = lab.pod_of_job(WORKER).await?;
    lab.pod_until(&pod.name, "to back off", |pod| waits_for(pod, "ImagePullBackOff")).await?;
    let expected = Expected::new(Cause::ImagePull, Outcome::Waiting).pod(&pod.name);
    Ok(expected.container(WAITER).init().node(&pod.node))
}

async fn head_image_not_found(lab: &RecordLab<'_>) -> Result<Expected> {
    lab.direct(|place| match place.job.as_str() {
        HEAD => PodScript::endless().blocked(OF_HEAD, Obstacle::ImagePull(NO_HEAD_IMAGE), None),
        // It waits for the head.
        _ => PodScript::endless(),
    });
    submit(lab, &json!({})).await?;
    let pod = lab.pod_of_job(HEAD).await?;
    lab.pod_until(&pod.name, "to back off", |pod| waits_for(pod, "ImagePullBackOff")).await?;
    Ok(Expected::new(Cause::ImagePull, Outcome::Waiting).pod(&pod.name).container(OF_HEAD).node(&pod.node))
}

async fn quota(lab: &RecordLab<'_>) -> Result<Expected> {
    lab.quota(json!({"pods": "0"})).await?;
    submit(lab, &json!({})).await?;
    lab.event("FailedToCreateHeadPod").await?;
    Ok(Expected::new(Cause::Quota, Outcome::Waiting).by(QUOTA))
}
