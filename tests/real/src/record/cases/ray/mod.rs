//! RayJobs and RayClusters, with KubeRay's operator. What becomes of an entrypoint is told by the dashboards.

mod clusters;
mod failures;
mod people;
mod retries;
mod waiting;

use anyhow::Result;
use serde_json::{Value, json};

use super::super::dashboards::{EntrypointEnd, EntrypointRun};
use super::super::kubelet::{ContainerExit, PodPlace, PodScript};
use super::super::lab::{JOB, RecordLab, container};
use super::{Case, case};

const API: &str = "ray.io/v1";
/// The parts of a cluster, as the operator labels their pods.
const HEAD: &str = "head";
const WORKER: &str = "worker";
/// The containers.
const OF_HEAD: &str = "ray-head";
const OF_WORKER: &str = "ray-worker";
/// As the operator names the one that waits for the head in each worker, and the one that submits the entrypoint.
const WAITER: &str = "wait-gcs-ready";
const SUBMITTER: &str = "ray-job-submitter";
/// As a dashboard tells of an entrypoint that ended by itself, that refused its arguments, and that missed a worker.
const FAILED: EntrypointEnd = EntrypointEnd::Failed(
    "Job entrypoint command failed with exit code 1, last available logs (truncated to 20,000 chars):\n\
     ValueError: loss is NaN at step 1200\n",
);
const REFUSED: EntrypointEnd = EntrypointEnd::Failed(
    "Job entrypoint command failed with exit code 2, last available logs (truncated to 20,000 chars):\n\
     train.py: error: unrecognized arguments: --epoch\n",
);
const LOST_WORKER: EntrypointEnd = EntrypointEnd::Failed(
    "Job entrypoint command failed with exit code 1, last available logs (truncated to 20,000 chars):\n\
     ray.exceptions.ActorDiedError: The actor died because its node has died.\n",
);
/// An entrypoint that fails runs so long, from some seconds after its cluster. Its worker that is to blame ends before it.
const RUNS_MS: u64 = 8_000;
const WORKER_RUNS_MS: u64 = 9_000;

pub(super) fn cases() -> Vec<Case> {
    let groups = [failures::cases(), retries::cases(), waiting::cases(), people::cases(), clusters::cases()];
    groups.into_iter().flatten().collect()
}

/// A cluster of a head and so many workers, which need so many processors each.
fn cluster(workers: u64, cpu: &str) -> Value {
    let template = |name: &str, cpu: &str| {
        let pod = json!({"containers": [container(name, cpu)], "terminationGracePeriodSeconds": 5});
        json!({"spec": pod})
    };
    json!({
        "rayVersion": "2.46.0",
        "headGroupSpec": {"rayStartParams": {}, "template": template(OF_HEAD, "1")},
        "workerGroupSpecs": [{
            "groupName": "workers", "replicas": workers, "minReplicas": workers, "maxReplicas": workers,
            "rayStartParams": {}, "template": template(OF_WORKER, cpu),
        }],
    })
}

/// Creates a RayJob with these fields of its spec over the usual ones: a submitter that is not started again, and two
/// workers.
async fn submit(lab: &RecordLab<'_>, spec: &Value) -> Result<()> {
    let mut ray_job = json!({
        "apiVersion": API, "kind": "RayJob", "metadata": {"name": JOB},
        "spec": {
            "entrypoint": "python train.py", "submitterConfig": {"backoffLimit": 0},
            "rayClusterSpec": cluster(2, "1"),
        },
    });
    kubewitness_causes::apply_merge_patch(&mut ray_job["spec"], spec);
    lab.subject(ray_job).await
}

/// The path of the object that the label is about.
fn path(lab: &RecordLab<'_>, resource: &str) -> String {
    format!("/apis/{API}/namespaces/{}/{resource}/{JOB}", lab.namespace)
}

/// A pod of a cluster in which nothing goes wrong.
fn healthy(place: &PodPlace) -> PodScript {
    match place.job.as_str() {
        WORKER => PodScript::exits(WAITER, 1_000, ContainerExit::code(0)),
        _ => PodScript::endless(),
    }
}

/// A submitter, which follows the log of the entrypoint to its end. It ends with 0, however the entrypoint ended.
fn submitter(entrypoint_runs_ms: u64) -> PodScript {
    PodScript::exits(SUBMITTER, entrypoint_runs_ms + 2_000, ContainerExit::code(0))
}

/// The entrypoint runs until somebody ends it, and its submitter waits.
async fn run(lab: &RecordLab<'_>, spec: &Value) -> Result<()> {
    lab.direct(healthy);
    submit(lab, spec).await?;
    lab.job_until("to run", |job| job["status"]["jobStatus"] == "RUNNING").await?;
    lab.sleep(2).await;
    Ok(())
}
