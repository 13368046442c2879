//! RayJobs and submitters that try again.

use anyhow::Result;
use kubewitness_causes::{Cause, Expected, Outcome};
use serde_json::json;

use super::super::super::kubelet::{ContainerExit, PodScript};
use super::super::super::lab::{JOB, RecordLab};
use super::{
    Case, EntrypointEnd, EntrypointRun, FAILED, LOST_WORKER, OF_WORKER, RUNS_MS, SUBMITTER, WORKER,
    WORKER_RUNS_MS, case, healthy, submit, submitter,
};

pub(super) fn cases() -> Vec<Case> {
    vec![
        case(
            "ray-job-submitter-gives-up",
            "The submitter of a RayJob reaches no dashboard and ends with 1, until its Job's limit.",
            |lab| Box::pin(submitter_gives_up(lab)),
        ),
        case(
            "ray-job-retry-succeeds",
            "The entrypoint of a RayJob ends with 1; in the second attempt, with a new cluster, it ends with 0.",
            |lab| Box::pin(retry_succeeds(lab)),
        ),
        case(
            "ray-job-retries-in-vain",
            "The entrypoint of a RayJob ends with 1; in the second attempt a worker is killed for memory.",
            |lab| Box::pin(retries_in_vain(lab)),
        ),
    ]
}

async fn submitter_gives_up(lab: &RecordLab<'_>) -> Result<Expected> {
    lab.direct(|place| match place.job.as_str() {
        JOB => PodScript::exits(SUBMITTER, 1_500, ContainerExit::code(1)),
        _ => healthy(place),
    });
    lab.direct_entrypoints(|_| EntrypointRun::never_submitted());
    submit(lab, &json!({"submitterConfig": {"backoffLimit": 1}})).await?;
    lab.finished().await?;
    let pod = lab.pod_of_job(JOB).await?;
    Ok(Expected::new(Cause::ExitCode, Outcome::Failed).ended(&pod.name, SUBMITTER, 1).node(&pod.node))
}

async fn retry_succeeds(lab: &RecordLab<'_>) -> Result<Expected> {
    lab.direct(|place| match (place.job.as_str(), place.ordinal) {
        (JOB, 0) => submitter(RUNS_MS),
        (JOB, _) => submitter(5_000),
        _ => healthy(place),
    });
    lab.direct_entrypoints(|ordinal| match ordinal {
        0 => EntrypointRun::ends(RUNS_MS, FAILED),
        _ => EntrypointRun::ends(5_000, EntrypointEnd::Succeeded),
    });
    submit(lab, &json!({"backoffLimit": 1})).await?;
    lab.finished().await?;
    Ok(Expected::new(Cause::None, Outcome::Succeeded).also(&[Cause::ExitCode]).exit_code(1))
}

/// The last of the four workers that two attempts have is the one.
async fn retries_in_vain(lab: &RecordLab<'_>) -> Result<Expected> {
    lab.direct(|place| match (place.job.as_str(), place.ordinal) {
        (JOB, _) => submitter(RUNS_MS),
        (WORKER, 3) => healthy(place)
            .add_run(OF_WORKER, WORKER_RUNS_MS, ContainerExit::out_of_memory())
            .then_endless(OF_WORKER),
        _ => healthy(place),
    });
    lab.direct_entrypoints(|ordinal| {
        EntrypointRun::ends(RUNS_MS, if ordinal == 0 { FAILED } else { LOST_WORKER })
    });
    submit(lab, &json!({"backoffLimit": 1})).await?;
    lab.finished().await?;
    let pod = lab.later_pod_of_job(WORKER, 3).await?;
    let expected = Expected::new(Cause::OutOfMemory, Outcome::Failed).also(&[Cause::ExitCode]);
    Ok(expected.ended(&pod.name, OF_WORKER, 137).node(&pod.node))
}
