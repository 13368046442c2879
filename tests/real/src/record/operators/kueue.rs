//! Kueue, which lets Jobs start when its queues have room for them.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use kubewitness_harness::bound_command;
use reqwest::Method;
use serde_json::{Value, json};

use super::{OperatorFolder, OperatorProcess, OperatorWebhook};
use crate::cluster::{RealCluster, ServerPrograms};

pub(super) const NAME: &str = "kueue";
pub(in super::super) const GROUP: &str = "kueue.x-k8s.io";
pub(in super::super) const VERSION: &str = "v1beta2";
/// The priority class of Workloads that may preempt others.
pub(in super::super) const URGENT: &str = "urgent";
/// The only flavour: each node has it.
const FLAVOR: &str = "any";
/// A pod without an obstacle is ready after half of that, however busy the machine is.
const PODS_READY_WITHIN: Duration = Duration::from_secs(15);
const BOTH: &[&str] = &["CREATE", "UPDATE"];
/// As the module's manifests have them, for the kinds that cases use.
const WEBHOOKS: [OperatorWebhook; 5] = [
    OperatorWebhook {
        group: "batch",
        version: "v1",
        resource: "jobs",
        kind: "job",
        changes: true,
        checks: BOTH,
    },
    of_kueue("workloads", "workload", true),
    of_kueue("clusterqueues", "clusterqueue", true),
    of_kueue("resourceflavors", "resourceflavor", true),
    of_kueue("cohorts", "cohort", false),
];
/// Runs a program with a folder of certificates as `/etc/kueue/metrics/certs`, where Kueue alone looks for them, and which
/// no flag moves. The rest of the machine does not see it.
const WITH_CERTIFICATES: &str = "mount -t tmpfs tmpfs /etc && mkdir -p /etc/kueue/metrics/certs && \
    cp \"$1\"/tls.crt \"$1\"/tls.key /etc/kueue/metrics/certs && shift && exec \"$@\"";

const fn of_kueue(resource: &'static str, kind: &'static str, changes: bool) -> OperatorWebhook {
    OperatorWebhook { group: GROUP, version: VERSION, resource, kind, changes, checks: BOTH }
}

pub(super) async fn start(cluster: &RealCluster, programs: &ServerPrograms) -> Result<OperatorProcess> {
    let folder = OperatorFolder::make(NAME, cluster, programs)?;
    folder.define_kinds(cluster, &format!("{GROUP}/{VERSION}"), "workloads").await?;
    let started = run(&folder, cluster, None).await?;
    started.register(NAME, &WEBHOOKS, cluster).await?;
    create(cluster, "resourceflavors", json!({"kind": "ResourceFlavor", "metadata": {"name": FLAVOR}}))
        .await?;
    let urgent = json!({"kind": "WorkloadPriorityClass", "metadata": {"name": URGENT}, "value": 1000});
    create(cluster, "workloadpriorityclasses", urgent).await?;
    Ok(started)
}

/// Ends Kueue, and starts it on the same port as one that takes Jobs back whose pods are not ready in time.
pub(super) async fn restart_with_deadline(
    running: OperatorProcess,
    cluster: &RealCluster,
    programs: &ServerPrograms,
) -> Result<OperatorProcess> {
    let port = running.port;
    running.stop().await?;
    let folder = OperatorFolder { port, ..OperatorFolder::make(NAME, cluster, programs)? };
    run(&folder, cluster, Some(PODS_READY_WITHIN)).await
}

async fn run(
    folder: &OperatorFolder,
    cluster: &RealCluster,
    deadline: Option<Duration>,
) -> Result<OperatorProcess> {
    let config = folder.write_config(&configuration(&folder.path, folder.port, deadline))?;
    let mut command = bound_command("unshare");
    command.args(["--user", "--map-root-user", "--mount", "sh", "-c", WITH_CERTIFICATES, "sh"]);
    command.arg(&folder.path).arg(folder.built.join(NAME)).arg("--config").arg(config);
    folder.start(NAME, &mut command, cluster).await
}

fn configuration(certificates: &Path, port: u16, deadline: Option<Duration>) -> Value {
    let mut configuration = json!({
        "apiVersion": "config.kueue.x-k8s.io/v1beta2", "kind": "Configuration",
        "leaderElection": {"leaderElect": false}, "internalCertManagement": {"enable": false},
        "webhook": {"host": "127.0.0.1", "port": port, "certDir": certificates},
        "metrics": {"bindAddress": "0"}, "health": {"healthProbeBindAddress": "0"},
        "clientConnection": {"qps": 500, "burst": 1000},
        "integrations": {"frameworks": ["batch/job"]},
        // An API of its own, which nobody asks.
        "featureGates": {"VisibilityOnDemand": false},
    });
    if let Some(deadline) = deadline {
        configuration["waitForPodsReady"] = json!({
            "timeout": format!("{}s", deadline.as_secs()), "blockAdmission": false,
            // Long enough to be seen, short enough to wait for.
            "requeuingStrategy": {"backoffBaseSeconds": 15},
        });
    }
    configuration
}

async fn create(cluster: &RealCluster, resource: &str, mut object: Value) -> Result<()> {
    object["apiVersion"] = format!("{GROUP}/{VERSION}").into();
    let path = format!("/apis/{GROUP}/{VERSION}/{resource}");
    let (code, answer) = cluster.request(Method::POST, &path, Some(&object)).await?;
    ensure!(code == 201, "{path} was answered with {code}: {answer}");
    Ok(())
}

/// A queue of the cluster with this many processors, and more fields of its spec.
pub(in super::super) fn cluster_queue(name: &str, cpu: &str, more: &Value) -> Value {
    let mut queue = json!({
        "apiVersion": format!("{GROUP}/{VERSION}"), "kind": "ClusterQueue", "metadata": {"name": name},
        "spec": {
            "namespaceSelector": {},
            "resourceGroups": [{
                "coveredResources": ["cpu", "memory"],
                "flavors": [{"name": FLAVOR, "resources": [
                    {"name": "cpu", "nominalQuota": cpu}, {"name": "memory", "nominalQuota": "64Gi"},
                ]}],
            }],
        },
    });
    kubewitness_causes::apply_merge_patch(&mut queue["spec"], more);
    queue
}
