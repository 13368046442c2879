//! The Jobs and containers of cases.

use kubewitness_causes::apply_merge_patch;
use serde_json::{Value, json};

/// The container of a Job that names no other.
pub(super) const MAIN: &str = "trainer";

pub(super) fn container(name: &str, cpu: &str) -> Value {
    json!({
        "name": name, "image": format!("registry.example/ml/{name}:2.4"),
        "resources": {"requests": {"cpu": cpu, "memory": "256Mi"}, "limits": {"memory": "1Gi"}},
    })
}

/// A Job with these fields of its spec and of its pods' over the usual ones.
pub(super) fn job(name: &str, spec: &Value, pod: &Value) -> Value {
    let mut job = json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name},
        "spec": {"template": {"spec": {
            "restartPolicy": "Never", "containers": [container(MAIN, "100m")], "terminationGracePeriodSeconds": 5,
        }}},
    });
    apply_merge_patch(&mut job["spec"], spec);
    apply_merge_patch(&mut job["spec"]["template"]["spec"], pod);
    job
}
