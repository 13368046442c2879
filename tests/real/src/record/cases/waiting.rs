//! Jobs that wait: for a node, an image, a configuration, a quota.

use std::time::Duration;

use anyhow::Result;
use kubewitness_causes::{Cause, Expected, Outcome};
use serde_json::{Value, json};

use super::super::kubelet::{ContainerExit, Obstacle, PodScript};
use super::super::lab::{MAIN, QUOTA, RecordLab, container, waits_for};
use super::{Case, case};

const NO_IMAGE: &str = "failed to pull and unpack image \"registry.example/ml/trainer:2.4\": failed to resolve reference \
    \"registry.example/ml/trainer:2.4\": registry.example/ml/trainer:2.4: not found";
const NO_ACCESS: &str = "failed to pull and unpack image \"registry.example/ml/trainer:2.4\": failed to resolve reference \
    \"registry.example/ml/trainer:2.4\": pull access denied, repository does not exist or may require authorization: \
    server message: insufficient_scope: authorization failed";

pub(super) fn cases() -> Vec<Case> {
    vec![
        case("unschedulable-for-cpu", "No node has as many processors as the pod asks for.", |lab| {
            Box::pin(unschedulable(lab, json!({"containers": [container(MAIN, "500")]})))
        }),
        case("unschedulable-for-selector", "No node has the label that the pod asks for.", |lab| {
            Box::pin(unschedulable(lab, json!({"nodeSelector": {"gpu": "h200"}})))
        }),
        case("unschedulable-for-volume", "The volume claim of the pod does not exist.", |lab| {
            let volume = json!({"name": "data", "persistentVolumeClaim": {"claimName": "dataset"}});
            Box::pin(unschedulable(lab, json!({"volumes": [volume]})))
        }),
        case("unschedulable-then-fits", "No node fits until one is added.", |lab| Box::pin(fits_later(lab))),
        case("image-not-found", "The image does not exist.", |lab| {
            Box::pin(image_pull(lab, NO_IMAGE, "ImagePullBackOff"))
        }),
        case("image-access-denied", "The registry refuses the image.", |lab| {
            Box::pin(image_pull(lab, NO_ACCESS, "ImagePullBackOff"))
        }),
        case("image-found-later", "The image is pushed after the first pulls have failed.", |lab| {
            Box::pin(image_found_later(lab))
        }),
        case(
            "image-not-found-until-deadline",
            "The image does not exist, and the Job's deadline passes.",
            |lab| Box::pin(image_until_deadline(lab)),
        ),
        case("image-not-found-for-init", "The image of an init container does not exist.", |lab| {
            Box::pin(init_image_pull(lab))
        }),
        case("config-map-missing", "The pod refers to a ConfigMap that does not exist.", |lab| {
            Box::pin(configuration(lab, "configmap \"settings\" not found", "configMapRef", "settings"))
        }),
        case("secret-missing", "The pod refers to a Secret that does not exist.", |lab| {
            Box::pin(configuration(lab, "secret \"registry-token\" not found", "secretRef", "registry-token"))
        }),
        case(
            "config-map-created-later",
            "The ConfigMap that the pod refers to is created after some seconds.",
            |lab| Box::pin(configured_later(lab)),
        ),
        case("quota-allows-no-pod", "The namespace's quota allows no pod.", |lab| Box::pin(quota(lab))),
        case("quota-raised-later", "The namespace's quota allows no pod until a person raises it.", |lab| {
            Box::pin(quota_raised(lab))
        }),
        case("quota-allows-two-of-four", "The namespace's quota allows two of four workers.", |lab| {
            Box::pin(quota_for_two(lab))
        }),
        case(
            "limit-range-forbids",
            "The namespace's LimitRange allows less memory than the pod asks for.",
            |lab| Box::pin(limit_range(lab)),
        ),
    ]
}

async fn unschedulable(lab: &RecordLab<'_>, pod: Value) -> Result<Expected> {
    lab.job(json!({}), pod).await?;
    let pod = lab.unbound_pod().await?;
    Ok(Expected::new(Cause::Unschedulable, Outcome::Waiting).pod(&pod))
}

async fn fits_later(lab: &RecordLab<'_>) -> Result<Expected> {
    lab.direct(|_| PodScript::exits(MAIN, 1_500, ContainerExit::code(0)));
    lab.job(json!({}), lab.on_own_nodes("1")).await?;
    lab.unbound_pod().await?;
    lab.node("8").await?;
    lab.finished().await?;
    Ok(Expected::new(Cause::None, Outcome::Succeeded).also(&[Cause::Unschedulable]))
}

async fn image_pull(lab: &RecordLab<'_>, why: &'static str, until: &str) -> Result<Expected> {
    lab.direct(move |_| PodScript::endless().blocked(MAIN, Obstacle::ImagePull(why), None));
    lab.job(json!({}), json!({})).await?;
    let pod = lab.pod(0).await?;
    lab.pod_until(&pod.name, "to back off", |pod| waits_for(pod, until)).await?;
    lab.pod_until(&pod.name, "to try again", |pod| waits_for(pod, "ErrImagePull")).await?;
    Ok(Expected::new(Cause::ImagePull, Outcome::Waiting).pod(&pod.name).container(MAIN).node(&pod.node))
}

async fn image_found_later(lab: &RecordLab<'_>) -> Result<Expected> {
    lab.direct(|_| {
        let script = PodScript::exits(MAIN, 1_500, ContainerExit::code(0));
        script.blocked(MAIN, Obstacle::ImagePull(NO_IMAGE), Some(Duration::from_secs(8)))
    });
    lab.job(json!({}), json!({})).await?;
    let pod = lab.pod(0).await?;
    lab.finished().await?;
    let expected = Expected::new(Cause::None, Outcome::Succeeded).also(&[Cause::ImagePull]);
    Ok(expected.pod(&pod.name).container(MAIN).node(&pod.node))
}

async fn image_until_deadline(lab: &RecordLab<'_>) -> Result<Expected> {
    lab.direct(|_| PodScript::endless().blocked(MAIN, Obstacle::ImagePull(NO_IMAGE), None));
    lab.job(json!({"activeDeadlineSeconds": 8}), json!({})).await?;
    let pod = lab.pod(0).await?;
    lab.finished().await?;
    let expected = Expected::new(Cause::Deadline, Outcome::Failed).also(&[Cause::ImagePull]);
    Ok(expected.pod(&pod.name).container(MAIN).node(&pod.node))
}

async fn init_image_pull(lab: &RecordLab<'_>) -> Result<Expected> {
    lab.direct(|_| PodScript::endless().blocked("fetch", Obstacle::ImagePull(NO_IMAGE), None));
    lab.job(json!({}), json!({"initContainers": [container("fetch", "100m")]})).await?;
    let pod = lab.pod(0).await?;
    lab.pod_until(&pod.name, "to back off", |pod| waits_for(pod, "ImagePullBackOff")).await?;
    let expected = Expected::new(Cause::ImagePull, Outcome::Waiting).pod(&pod.name).node(&pod.node);
    Ok(expected.container("fetch").init())
}

fn configured(reference: &str, name: &str) -> Value {
    let mut main = container(MAIN, "100m");
    main["envFrom"] = json!([{reference: {"name": name}}]);
    json!({"containers": [main]})
}

async fn configuration(
    lab: &RecordLab<'_>,
    why: &'static str,
    reference: &str,
    name: &str,
) -> Result<Expected> {
    lab.direct(move |_| PodScript::endless().blocked(MAIN, Obstacle::Configuration(why), None));
    lab.job(json!({}), configured(reference, name)).await?;
    let pod = lab.pod(0).await?;
    lab.pod_until(&pod.name, "to wait", |pod| waits_for(pod, "CreateContainerConfigError")).await?;
    Ok(Expected::new(Cause::Configuration, Outcome::Waiting).pod(&pod.name).container(MAIN).node(&pod.node))
}

async fn configured_later(lab: &RecordLab<'_>) -> Result<Expected> {
    lab.direct(|_| {
        let obstacle = Obstacle::Configuration("configmap \"settings\" not found");
        PodScript::exits(MAIN, 1_500, ContainerExit::code(0)).blocked(
            MAIN,
            obstacle,
            Some(Duration::from_secs(4)),
        )
    });
    lab.job(json!({}), configured("configMapRef", "settings")).await?;
    let pod = lab.pod(0).await?;
    lab.finished().await?;
    let expected = Expected::new(Cause::None, Outcome::Succeeded).also(&[Cause::Configuration]);
    Ok(expected.pod(&pod.name).container(MAIN).node(&pod.node))
}

async fn quota(lab: &RecordLab<'_>) -> Result<Expected> {
    lab.quota(json!({"pods": "0"})).await?;
    lab.job(json!({}), json!({})).await?;
    lab.event("FailedCreate").await?;
    Ok(Expected::new(Cause::Quota, Outcome::Waiting).by(QUOTA))
}

async fn quota_raised(lab: &RecordLab<'_>) -> Result<Expected> {
    lab.direct(|_| PodScript::exits(MAIN, 1_500, ContainerExit::code(0)));
    lab.quota(json!({"pods": "0"})).await?;
    lab.job(json!({}), json!({})).await?;
    lab.event("FailedCreate").await?;
    let path = lab.path("", &format!("resourcequotas/{QUOTA}"));
    lab.patch(&path, json!({"spec": {"hard": {"pods": "4"}}})).await?;
    lab.finished().await?;
    Ok(Expected::new(Cause::None, Outcome::Succeeded).also(&[Cause::Quota]).by(QUOTA))
}

async fn quota_for_two(lab: &RecordLab<'_>) -> Result<Expected> {
    lab.quota(json!({"pods": "2"})).await?;
    lab.job(json!({"completions": 4, "parallelism": 4, "completionMode": "Indexed"}), json!({})).await?;
    lab.event("FailedCreate").await?;
    lab.job_until("to have two ready pods", |job| job["status"]["ready"] == 2).await?;
    Ok(Expected::new(Cause::None, Outcome::Running).also(&[Cause::Quota]).by(QUOTA))
}

async fn limit_range(lab: &RecordLab<'_>) -> Result<Expected> {
    let limits = json!([{"type": "Container", "max": {"memory": "512Mi"}}]);
    let range = json!({"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "small"}, "spec": {"limits": limits}});
    lab.create("", "limitranges", range).await?;
    // The API server looks at its cache of LimitRanges.
    lab.sleep(2).await;
    lab.job(json!({}), json!({})).await?;
    lab.event("FailedCreate").await?;
    Ok(Expected::new(Cause::Quota, Outcome::Waiting))
}
