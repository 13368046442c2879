//! Jobs in the queues of Kueue. Each case has a queue of the cluster for itself, and a queue of its namespace that leads
//! there.

mod failures;
mod people;
mod preemption;
mod queue;

use anyhow::Result;
use serde_json::{Value, json};

use super::super::case::Case;
use super::super::lab::{JOB, MAIN, RecordLab, container, has_condition, job};
use super::super::operators::{KUEUE, KUEUE_VERSION, URGENT, cluster_queue};

/// The queue of the namespace.
const QUEUE: &str = "main";
/// The Job that needs the place of the other one.
const URGENT_JOB: &str = "urgent";

pub(super) fn cases() -> Vec<Case> {
    [queue::cases(), preemption::cases(), people::cases(), failures::cases()].into_iter().flatten().collect()
}

/// Those for a Kueue that takes Jobs back whose pods are not ready in time.
pub(super) fn cases_with_deadline() -> Vec<Case> {
    failures::cases_with_deadline()
}

fn cluster_path(name: &str) -> String {
    format!("/apis/{KUEUE}/{KUEUE_VERSION}/clusterqueues{name}")
}

fn local_path(lab: &RecordLab<'_>, resource: &str) -> String {
    format!("/apis/{KUEUE}/{KUEUE_VERSION}/namespaces/{}/{resource}", lab.namespace)
}

/// Creates both queues, with this many processors and more fields of the spec of the cluster's.
async fn open_queue(lab: &RecordLab<'_>, cpu: &str, more: Value) -> Result<()> {
    lab.post(&cluster_path(""), cluster_queue(&lab.namespace, cpu, &more)).await?;
    local_queue(lab, QUEUE, &lab.namespace, json!({})).await
}

async fn local_queue(lab: &RecordLab<'_>, name: &str, leads_to: &str, more: Value) -> Result<()> {
    let mut queue = json!({
        "apiVersion": format!("{KUEUE}/{KUEUE_VERSION}"), "kind": "LocalQueue", "metadata": {"name": name},
        "spec": {"clusterQueue": leads_to},
    });
    kubewitness_causes::apply_merge_patch(&mut queue["spec"], &more);
    lab.post(&local_path(lab, "localqueues"), queue).await
}

/// A Job of this name that asks its queue for so many processors for each of its pods.
fn queued_job(name: &str, cpu: &str, spec: &Value) -> Value {
    let mut queued = job(name, spec, &json!({"containers": [container(MAIN, cpu)]}));
    queued["metadata"]["labels"] = json!({"kueue.x-k8s.io/queue-name": QUEUE});
    queued
}

/// Submits the Job that the label is about.
async fn submit(lab: &RecordLab<'_>, cpu: &str, spec: Value) -> Result<()> {
    lab.create("batch", "jobs", queued_job(JOB, cpu, &spec)).await
}

/// Submits a Job of this name that may preempt others in this queue.
async fn submit_urgent(lab: &RecordLab<'_>, name: &str, cpu: &str, queue: &str) -> Result<()> {
    let mut urgent = queued_job(name, cpu, &json!({}));
    urgent["metadata"]["labels"] =
        json!({"kueue.x-k8s.io/queue-name": queue, "kueue.x-k8s.io/priority-class": URGENT});
    lab.create("batch", "jobs", urgent).await
}

async fn workload_until(lab: &RecordLab<'_>, what: &str, is_so: impl Fn(&Value) -> bool) -> Result<Value> {
    lab.some_until(&format!("workloads/job-{JOB}-"), what, is_so).await
}

/// Waits until Kueue has said that the Job has no quota.
async fn await_queued(lab: &RecordLab<'_>) -> Result<Value> {
    let is_so = |workload: &Value| {
        let conditions = workload["status"]["conditions"].as_array();
        conditions.into_iter().flatten().any(|it| it["type"] == "QuotaReserved" && it["status"] == "False")
    };
    workload_until(lab, "a Workload without quota", is_so).await
}

/// Waits until Kueue has taken the running Job back, and its pod is gone.
async fn await_eviction(lab: &RecordLab<'_>, pod: &str) -> Result<Value> {
    let workload = workload_until(lab, "an evicted Workload", |it| has_condition(it, "Evicted")).await?;
    lab.await_end(&format!("pods/{}/{pod}", lab.namespace)).await?;
    Ok(workload)
}
