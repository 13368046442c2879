//! RayJobs that come to an end at their first attempt.

use anyhow::Result;
use kubewitness_causes::{Cause, Expected, Outcome};
use serde_json::json;

use super::super::super::kubelet::{ContainerExit, PodScript};
use super::super::super::lab::{JOB, RecordLab};
use super::{
    Case, EntrypointEnd, EntrypointRun, FAILED, HEAD, OF_HEAD, OF_WORKER, RUNS_MS, SUBMITTER, WORKER,
    WORKER_RUNS_MS, case, cluster, healthy, submit, submitter,
};

pub(super) fn cases() -> Vec<Case> {
    vec![
        case("ray-job-succeeds", "The entrypoint of a RayJob ends with 0.", |lab| Box::pin(succeeds(lab))),
        case(
            "ray-job-entrypoint-exits-1",
            "The entrypoint of a RayJob ends with 1, and so does its submitter; the operator deletes the cluster.",
            |lab| Box::pin(entrypoint_fails(lab)),
        ),
        case(
            "ray-job-worker-out-of-memory",
            "A Ray worker is killed for memory and started again; the entrypoint fails because of it.",
            |lab| Box::pin(worker_out_of_memory(lab, "Always")),
        ),
        case(
            "ray-job-worker-out-of-memory-replaced",
            "A Ray worker is killed for memory and replaced; the entrypoint fails because of it.",
            |lab| Box::pin(worker_out_of_memory(lab, "Never")),
        ),
        case(
            "ray-job-head-out-of-memory",
            "The head of a RayJob is killed for memory. The next one knows nothing of the entrypoint.",
            |lab| Box::pin(head_out_of_memory(lab)),
        ),
        case("ray-job-deadline", "The deadline of a RayJob passes while its entrypoint runs.", |lab| {
            Box::pin(deadline(lab))
        }),
        case(
            "ray-job-deadline-while-unschedulable",
            "No node has room for the workers of a RayJob, and its deadline passes.",
            |lab| Box::pin(deadline_unschedulable(lab)),
        ),
    ]
}

async fn succeeds(lab: &RecordLab<'_>) -> Result<Expected> {
    lab.direct(|place| match place.job.as_str() {
        JOB => submitter(5_000, 0),
        _ => healthy(place),
    });
    lab.direct_entrypoints(|_| EntrypointRun::ends(5_000, EntrypointEnd::Succeeded));
    submit(lab, &json!({})).await?;
    lab.finished().await?;
    Ok(Expected::new(Cause::None, Outcome::Succeeded))
}

async fn entrypoint_fails(lab: &RecordLab<'_>) -> Result<Expected> {
    lab.direct(|place| match place.job.as_str() {
        JOB => submitter(RUNS_MS, 1),
        _ => healthy(place),
    });
    lab.direct_entrypoints(|_| EntrypointRun::ends(RUNS_MS, FAILED));
    submit(lab, &json!({"shutdownAfterJobFinishes": true})).await?;
    let ended = lab.finished().await?;
    let made = ended["status"]["rayClusterName"].as_str().unwrap_or_default();
    lab.await_end(&format!("rayclusters/{}/{made}", lab.namespace)).await?;
    let pod = lab.pod_of_job(JOB).await?;
    Ok(Expected::new(Cause::ExitCode, Outcome::Failed).ended(&pod.name, SUBMITTER, 1).node(&pod.node))
}

/// The second worker is the one.
async fn worker_out_of_memory(lab: &RecordLab<'_>, restart_policy: &str) -> Result<Expected> {
    lab.direct(|place| match (place.job.as_str(), place.ordinal) {
        (JOB, _) => submitter(RUNS_MS, 1),
        (WORKER, 1) => healthy(place)
            .add_run(OF_WORKER, WORKER_RUNS_MS, ContainerExit::out_of_memory())
            .then_endless(OF_WORKER),
        _ => healthy(place),
    });
    lab.direct_entrypoints(|_| EntrypointRun::ends(RUNS_MS, FAILED));
    let mut cluster = cluster(2, "1");
    cluster["workerGroupSpecs"][0]["template"]["spec"]["restartPolicy"] = restart_policy.into();
    submit(lab, &json!({"rayClusterSpec": cluster})).await?;
    lab.finished().await?;
    let pod = lab.later_pod_of_job(WORKER, 1).await?;
    let expected = Expected::new(Cause::OutOfMemory, Outcome::Failed).also(&[Cause::ExitCode]);
    Ok(expected.ended(&pod.name, OF_WORKER, 137).node(&pod.node))
}

async fn head_out_of_memory(lab: &RecordLab<'_>) -> Result<Expected> {
    lab.direct(|place| match place.job.as_str() {
        JOB => submitter(6_000, 1),
        HEAD => PodScript::exits(OF_HEAD, 11_000, ContainerExit::out_of_memory()).then_endless(OF_HEAD),
        _ => healthy(place),
    });
    lab.direct_entrypoints(|_| EntrypointRun::ends(6_000, EntrypointEnd::Lost));
    submit(lab, &json!({})).await?;
    lab.finished().await?;
    let pod = lab.pod_of_job(HEAD).await?;
    let expected = Expected::new(Cause::OutOfMemory, Outcome::Failed).also(&[Cause::ExitCode]);
    Ok(expected.ended(&pod.name, OF_HEAD, 137).node(&pod.node))
}

async fn deadline(lab: &RecordLab<'_>) -> Result<Expected> {
    lab.direct(healthy);
    submit(lab, &json!({"activeDeadlineSeconds": 16})).await?;
    lab.finished().await?;
    Ok(Expected::new(Cause::Deadline, Outcome::Failed))
}

async fn deadline_unschedulable(lab: &RecordLab<'_>) -> Result<Expected> {
    lab.direct(healthy);
    submit(lab, &json!({"activeDeadlineSeconds": 8, "rayClusterSpec": cluster(2, "500")})).await?;
    lab.finished().await?;
    Ok(Expected::new(Cause::Deadline, Outcome::Failed).also(&[Cause::Unschedulable]))
}
