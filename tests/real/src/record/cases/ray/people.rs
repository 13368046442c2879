//! RayJobs that run, and what people do to them.

use anyhow::Result;
use kubewitness_causes::{Cause, Expected, Outcome};
use serde_json::{Value, json};

use super::super::super::lab::RecordLab;
use super::{Case, case, path, run, submit};

pub(super) fn cases() -> Vec<Case> {
    vec![
        case("ray-job-still-running", "The entrypoint of a RayJob runs.", |lab| Box::pin(still_running(lab))),
        case("ray-job-suspended", "The RayJob is created as suspended.", |lab| Box::pin(suspended(lab))),
        case(
            "ray-job-suspended-while-running",
            "A person suspends the RayJob while its entrypoint runs.",
            |lab| Box::pin(suspended_while_running(lab)),
        ),
        case(
            "ray-job-deleted-while-running",
            "A person deletes the RayJob while its entrypoint runs.",
            |lab| Box::pin(deleted(lab)),
        ),
    ]
}

fn is_suspended(job: &Value) -> bool {
    job["status"]["jobDeploymentStatus"] == "Suspended"
}

async fn still_running(lab: &RecordLab<'_>) -> Result<Expected> {
    run(lab, &json!({})).await?;
    Ok(Expected::new(Cause::None, Outcome::Running))
}

/// The operator suspends only what gives its cluster back.
async fn suspended(lab: &RecordLab<'_>) -> Result<Expected> {
    submit(lab, &json!({"suspend": true, "shutdownAfterJobFinishes": true})).await?;
    lab.job_until("to be suspended", is_suspended).await?;
    Ok(Expected::new(Cause::Suspended, Outcome::Waiting))
}

async fn suspended_while_running(lab: &RecordLab<'_>) -> Result<Expected> {
    run(lab, &json!({"shutdownAfterJobFinishes": true})).await?;
    lab.patch(&path(lab, "rayjobs"), json!({"spec": {"suspend": true}})).await?;
    lab.job_until("to be suspended", is_suspended).await?;
    Ok(Expected::new(Cause::Suspended, Outcome::Waiting))
}

async fn deleted(lab: &RecordLab<'_>) -> Result<Expected> {
    run(lab, &json!({})).await?;
    lab.delete(&format!("{}?propagationPolicy=Background", path(lab, "rayjobs"))).await?;
    lab.await_end(&lab.job_key()).await?;
    Ok(Expected::new(Cause::Deleted, Outcome::Deleted))
}
