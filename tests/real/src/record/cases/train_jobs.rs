//! TrainJobs, with Kubeflow's Trainer. It makes a JobSet of each, whose Jobs the controller of JobSets makes.

use anyhow::Result;
use kubewitness_causes::{Cause, Expected, Outcome};
use serde_json::{Value, json};

use super::super::kubelet::{ContainerExit, Obstacle, PodScript};
use super::super::lab::{JOB, MAIN, RecordLab, container, has_condition, waits_for};
use super::{Case, case};

const API: &str = "trainer.kubeflow.org/v1alpha1";
const RUNTIME: &str = "torch";
/// As the controllers name the only Job of a TrainJob.
const NODES: &str = "train-node-0";
const NO_IMAGE: &str = "failed to pull and unpack image \"registry.example/ml/trainer:2.4\": failed to resolve reference \
    \"registry.example/ml/trainer:2.4\": registry.example/ml/trainer:2.4: not found";

pub(super) fn cases() -> Vec<Case> {
    vec![
        case("train-job-succeeds", "Both nodes of a TrainJob end with 0.", |lab| Box::pin(succeeds(lab))),
        case("train-job-node-exits-2", "The only node of a TrainJob ends with 2.", |lab| {
            Box::pin(fails(lab, 1, ContainerExit::code(2), Cause::ExitCode))
        }),
        case(
            "train-job-first-of-four-out-of-memory",
            "Node 1 of a TrainJob is killed for memory; the controllers delete the others.",
            |lab| Box::pin(fails(lab, 4, ContainerExit::out_of_memory(), Cause::OutOfMemory)),
        ),
        case(
            "train-job-restarts-and-succeeds",
            "A node of a TrainJob ends with 4; its Jobs are made anew, and end with 0.",
            |lab| Box::pin(restarts(lab)),
        ),
        case("train-job-unschedulable", "No node has room for the nodes of a TrainJob.", |lab| {
            Box::pin(unschedulable(lab))
        }),
        case("train-job-image-not-found", "The image of a TrainJob does not exist.", |lab| {
            Box::pin(image_not_found(lab))
        }),
        case("train-job-still-running", "The nodes of a TrainJob run.", |lab| Box::pin(runs(lab))),
        case("train-job-suspended", "The TrainJob is created as suspended.", |lab| Box::pin(suspended(lab))),
        case(
            "train-job-deleted-while-running",
            "A person deletes the TrainJob while its nodes run.",
            |lab| Box::pin(deleted(lab)),
        ),
    ]
}

/// Creates the runtime of the namespace, and a TrainJob with these fields of its spec over the usual ones.
async fn submit(lab: &RecordLab<'_>, nodes: u64, cpu: &str, restarts: u64, spec: &Value) -> Result<()> {
    let pod = json!({
        "containers": [{"name": MAIN, "image": container(MAIN, cpu)["image"], "resources": container(MAIN, cpu)["resources"]}],
        "restartPolicy": "Never", "terminationGracePeriodSeconds": 5,
    });
    let job = json!({
        "metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}},
        "spec": {"backoffLimit": 0, "template": {"spec": pod}},
    });
    let runtime = json!({
        "apiVersion": API, "kind": "TrainingRuntime", "metadata": {"name": RUNTIME},
        "spec": {
            "mlPolicy": {"numNodes": nodes},
            "template": {"spec": {
                "failurePolicy": {"maxRestarts": restarts},
                "replicatedJobs": [{"name": "node", "template": job}],
            }},
        },
    });
    lab.post(&format!("/apis/{API}/namespaces/{}/trainingruntimes", lab.namespace), runtime).await?;
    let mut train_job = json!({
        "apiVersion": API, "kind": "TrainJob", "metadata": {"name": JOB},
        "spec": {"runtimeRef": {"apiGroup": "trainer.kubeflow.org", "kind": "TrainingRuntime", "name": RUNTIME}},
    });
    kubewitness_causes::apply_merge_patch(&mut train_job["spec"], spec);
    lab.subject(train_job).await
}

async fn succeeds(lab: &RecordLab<'_>) -> Result<Expected> {
    lab.direct(|_| PodScript::exits(MAIN, 1_500, ContainerExit::code(0)));
    submit(lab, 2, "1", 0, &json!({})).await?;
    lab.finished().await?;
    Ok(Expected::new(Cause::None, Outcome::Succeeded))
}

async fn fails(lab: &RecordLab<'_>, nodes: u64, exit: ContainerExit, cause: Cause) -> Result<Expected> {
    let (code, failing) = (exit.code, usize::from(nodes > 1));
    lab.direct(move |place| match place.index {
        Some(index) if index == failing => PodScript::exits(MAIN, 3_000, exit.clone()),
        _ => PodScript::endless(),
    });
    submit(lab, nodes, "1", 0, &json!({})).await?;
    lab.finished().await?;
    let pod = lab.pod_of_job_at(NODES, failing).await?;
    Ok(Expected::new(cause, Outcome::Failed).ended(&pod.name, MAIN, code).node(&pod.node))
}

async fn restarts(lab: &RecordLab<'_>) -> Result<Expected> {
    lab.direct(|place| match place.ordinal {
        0 => PodScript::exits(MAIN, 2_500, ContainerExit::code(4)),
        _ => PodScript::exits(MAIN, 1_500, ContainerExit::code(0)),
    });
    submit(lab, 1, "1", 1, &json!({})).await?;
    lab.finished().await?;
    let pod = lab.pod_of_job(NODES).await?;
    let expected = Expected::new(Cause::None, Outcome::Succeeded).also(&[Cause::ExitCode]);
    Ok(expected.ended(&pod.name, MAIN, 4).node(&pod.node))
}

async fn unschedulable(lab: &RecordLab<'_>) -> Result<Expected> {
    submit(lab, 1, "500", 0, &json!({})).await?;
    let pod = lab.unbound_pod().await?;
    Ok(Expected::new(Cause::Unschedulable, Outcome::Waiting).pod(&pod))
}

async fn image_not_found(lab: &RecordLab<'_>) -> Result<Expected> {
    lab.direct(|_| PodScript::endless().blocked(MAIN, Obstacle::ImagePull(NO_IMAGE), None));
    submit(lab, 1, "1", 0, &json!({})).await?;
    let pod = lab.pod_of_job(NODES).await?;
    lab.pod_until(&pod.name, "to back off", |pod| waits_for(pod, "ImagePullBackOff")).await?;
    Ok(Expected::new(Cause::ImagePull, Outcome::Waiting).pod(&pod.name).container(MAIN).node(&pod.node))
}

async fn suspended(lab: &RecordLab<'_>) -> Result<Expected> {
    submit(lab, 1, "1", 0, &json!({"suspend": true})).await?;
    lab.job_until("to be suspended", |job| has_condition(job, "Suspended")).await?;
    Ok(Expected::new(Cause::Suspended, Outcome::Waiting))
}

async fn runs(lab: &RecordLab<'_>) -> Result<Expected> {
    submit(lab, 2, "1", 0, &json!({})).await?;
    lab.running_other(NODES).await?;
    lab.sleep(2).await;
    Ok(Expected::new(Cause::None, Outcome::Running))
}

async fn deleted(lab: &RecordLab<'_>) -> Result<Expected> {
    submit(lab, 1, "1", 0, &json!({})).await?;
    lab.running_other(NODES).await?;
    lab.sleep(2).await;
    let path = format!("/apis/{API}/namespaces/{}/trainjobs/{JOB}", lab.namespace);
    lab.delete(&format!("{path}?propagationPolicy=Background")).await?;
    lab.await_end(&lab.job_key()).await?;
    Ok(Expected::new(Cause::Deleted, Outcome::Deleted))
}
