//! RayJobs that come to an end at their first attempt.

use anyhow::Result;
use kubewitness_causes::{Cause, Expected, Outcome};
use serde_json::json;

use super::super::super::kubelet::{ContainerExit, PodScript};
use super::super::super::lab::{JOB, RecordLab};
use super::{
    Case, EntrypointEnd, EntrypointRun, FAILED, HEAD, LOST_WORKER, OF_HEAD, OF_WORKER, REFUSED, RUNS_MS,
    SUBMITTER, WORKER, WORKER_RUNS_MS, case, cluster, healthy, submit, submitter,
};

pub(super) fn cases() -> Vec<Case> {
    vec![
        case("ray-job-succeeds", "The entrypoint of a RayJob ends with 0.", |lab| Box::pin(succeeds(lab))),
        case(
            "ray-job-entrypoint-exits-1",
            "The entrypoint of a RayJob ends with 1; the operator deletes the cluster.",
            |lab| Box::pin(entrypoint_fails(lab, FAILED, 1, true)),
        ),
        case(
            "ray-job-entrypoint-exits-2",
            "The entrypoint of a RayJob ends with 2; its cluster stays.",
            |lab| Box::pin(entrypoint_fails(lab, REFUSED, 2, false)),
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
        JOB => submitter(5_000),
        _ => healthy(place),
    });
    lab.direct_entrypoints(|_| EntrypointRun::ends(5_000, EntrypointEnd::Succeeded));
    submit(lab, &json!({})).await?;
    lab.finished().await?;
    Ok(Expected::new(Cause::None, Outcome::Succeeded))
}

/// No container ends with it: the entrypoint is a child of the head's processes.
async fn entrypoint_fails(
    lab: &RecordLab<'_>,
    end: EntrypointEnd,
    code: i64,
    deletes_cluster: bool,
) -> Result<Expected> {
    lab.direct(|place| match place.job.as_str() {
        JOB => submitter(RUNS_MS),
        _ => healthy(place),
    });
    lab.direct_entrypoints(move |_| EntrypointRun::ends(RUNS_MS, end));
    submit(lab, &json!({"shutdownAfterJobFinishes": deletes_cluster})).await?;
    let ended = lab.finished().await?;
    if deletes_cluster {
        let made = ended["status"]["rayClusterName"].as_str().unwrap_or_default();
        lab.await_end(&format!("rayclusters/{}/{made}", lab.namespace)).await?;
    }
    Ok(Expected::new(Cause::ExitCode, Outcome::Failed).exit_code(code))
}

/// The second worker is the one.
async fn worker_out_of_memory(lab: &RecordLab<'_>, restart_policy: &str) -> Result<Expected> {
    lab.direct(|place| match (place.job.as_str(), place.ordinal) {
        (JOB, _) => submitter(RUNS_MS),
        (WORKER, 1) => healthy(place)
            .add_run(OF_WORKER, WORKER_RUNS_MS, ContainerExit::out_of_memory())
            .then_endless(OF_WORKER),
        _ => healthy(place),
    });
    lab.direct_entrypoints(|_| EntrypointRun::ends(RUNS_MS, LOST_WORKER));
    let mut cluster = cluster(2, "1");
    cluster["workerGroupSpecs"][0]["template"]["spec"]["restartPolicy"] = restart_policy.into();
    submit(lab, &json!({"rayClusterSpec": cluster})).await?;
    lab.finished().await?;
    let pod = lab.later_pod_of_job(WORKER, 1).await?;
    let expected = Expected::new(Cause::OutOfMemory, Outcome::Failed).also(&[Cause::ExitCode]);
    Ok(expected.ended(&pod.name, OF_WORKER, 137).node(&pod.node))
}

/// The submitter can't follow the log any more, and ends with 1.
async fn head_out_of_memory(lab: &RecordLab<'_>) -> Result<Expected> {
    lab.direct(|place| match place.job.as_str() {
        JOB => PodScript::exits(SUBMITTER, 10_000, ContainerExit::code(1)),
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
