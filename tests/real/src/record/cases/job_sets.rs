//! JobSets of two Jobs, with the controller of their own project.

use anyhow::Result;
use kubewitness_causes::{Cause, Expected, Outcome};
use serde_json::{Value, json};

use super::super::kubelet::{ContainerExit, PodScript};
use super::super::lab::{JOB, MAIN, RecordLab, job};
use super::{Case, case};

/// As the controller names the second Job of the set.
const SECOND: &str = "train-workers-1";

pub(super) fn cases() -> Vec<Case> {
    vec![
        case("job-set-succeeds", "Both Jobs of a JobSet end with 0.", |lab| Box::pin(succeeds(lab))),
        case(
            "job-set-worker-exits-7",
            "One Job of a JobSet ends with 7, and no restart is allowed.",
            |lab| Box::pin(fails(lab, ContainerExit::code(7), Cause::ExitCode)),
        ),
        case(
            "job-set-worker-out-of-memory",
            "One Job of a JobSet is killed for memory, and no restart is allowed.",
            |lab| Box::pin(fails(lab, ContainerExit::out_of_memory(), Cause::OutOfMemory)),
        ),
        case(
            "job-set-restarts-and-succeeds",
            "One Job of a JobSet ends with 7; the controller makes both anew, and they end with 0.",
            |lab| Box::pin(restarts(lab)),
        ),
        case(
            "job-set-restarts-then-out-of-memory",
            "One Job of a JobSet ends with 1; in the second attempt it is killed for memory.",
            |lab| Box::pin(restarts_in_vain(lab)),
        ),
    ]
}

fn job_set(restarts: u64) -> Value {
    let template = job(JOB, &json!({"backoffLimit": 0}), &json!({}));
    json!({
        "apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": JOB},
        "spec": {
            "failurePolicy": {"maxRestarts": restarts},
            "replicatedJobs": [{"name": "workers", "replicas": 2, "template": {"spec": template["spec"]}}],
        },
    })
}

async fn succeeds(lab: &RecordLab<'_>) -> Result<Expected> {
    lab.direct(|_| PodScript::exits(MAIN, 1_500, ContainerExit::code(0)));
    lab.subject(job_set(0)).await?;
    lab.finished().await?;
    Ok(Expected::new(Cause::None, Outcome::Succeeded))
}

async fn fails(lab: &RecordLab<'_>, exit: ContainerExit, cause: Cause) -> Result<Expected> {
    let code = exit.code;
    lab.direct(move |place| match place.job.as_str() {
        SECOND => PodScript::exits(MAIN, 2_500, exit.clone()),
        _ => PodScript::endless(),
    });
    lab.subject(job_set(0)).await?;
    lab.finished().await?;
    let pod = lab.pod_of_job(SECOND).await?;
    Ok(Expected::new(cause, Outcome::Failed).ended(&pod.name, MAIN, code).node(&pod.node))
}

async fn restarts(lab: &RecordLab<'_>) -> Result<Expected> {
    lab.direct(|place| match (place.job.as_str(), place.ordinal) {
        (SECOND, 0) => PodScript::exits(MAIN, 2_500, ContainerExit::code(7)),
        (_, 0) => PodScript::endless(),
        _ => PodScript::exits(MAIN, 1_500, ContainerExit::code(0)),
    });
    lab.subject(job_set(1)).await?;
    lab.finished().await?;
    let pod = lab.pod_of_job(SECOND).await?;
    let expected = Expected::new(Cause::None, Outcome::Succeeded).also(&[Cause::ExitCode]);
    Ok(expected.ended(&pod.name, MAIN, 7).node(&pod.node))
}

async fn restarts_in_vain(lab: &RecordLab<'_>) -> Result<Expected> {
    lab.direct(|place| match (place.job.as_str(), place.ordinal) {
        (SECOND, 0) => PodScript::exits(MAIN, 2_500, ContainerExit::code(1)),
        (SECOND, _) => PodScript::exits(MAIN, 2_500, ContainerExit::out_of_memory()),
        _ => PodScript::endless(),
    });
    lab.subject(job_set(1)).await?;
    lab.finished().await?;
    let pod = lab.later_pod_of_job(SECOND, 1).await?;
    let expected = Expected::new(Cause::OutOfMemory, Outcome::Failed).also(&[Cause::ExitCode]);
    Ok(expected.ended(&pod.name, MAIN, 137).node(&pod.node))
}
