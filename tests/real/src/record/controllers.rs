//! A cluster with its controllers: the controller manager, the scheduler, and simulated kubelets.

use std::cell::Cell;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use kubewitness_harness::{ChildProcess, Scratch, until};
use reqwest::Method;
use serde_json::json;

use super::capture::Capture;
use super::dashboards::RayDashboards;
use super::kubelet::Fleet;
use crate::cluster::{RealCluster, ServerPrograms};

const ENDED_WITHIN: Duration = Duration::from_secs(30);
const READY_WITHIN: Duration = Duration::from_secs(60);
/// For the pods of all cases that need no node of their own.
const SHARED_NODES: [&str; 3] = ["worker-1", "worker-2", "worker-3"];
/// Those with a part in what happens to Jobs. Others would only make the cluster busier.
const CONTROLLERS: &str = "cronjob-controller,disruption-controller,garbage-collector-controller,job-controller,\
    namespace-controller,node-lifecycle-controller,pod-garbage-collector-controller,resourcequota-controller,\
    taint-eviction-controller,ttl-after-finished-controller";
/// A lost node's pods are evicted after seconds, not after five minutes.
const API_FLAGS: [&str; 2] =
    ["--default-not-ready-toleration-seconds=4", "--default-unreachable-toleration-seconds=4"];

pub(super) struct ControlledCluster {
    pub(super) api: RealCluster,
    pub(super) fleet: Fleet,
    pub(super) capture: Capture,
    pub(super) dashboards: RayDashboards,
    pub(super) kubernetes: String,
    manager: ChildProcess,
    scheduler: ChildProcess,
    names: Cell<u32>,
}

impl ControlledCluster {
    pub(super) async fn start(programs: &ServerPrograms, scratch: &Scratch) -> Result<Self> {
        let api = RealCluster::start_with(programs, scratch, &API_FLAGS).await?;
        let capture = Capture::start(api.etcd_url()).await?;
        let (_, version) = api.request(Method::GET, "/version", None).await?;
        let kubernetes =
            version["gitVersion"].as_str().unwrap_or_default().trim_start_matches('v').to_owned();
        let mut manager = programs.command("kube-controller-manager");
        manager.arg(format!("--kubeconfig={}", api.kubeconfig().display()));
        manager.arg(format!("--controllers={CONTROLLERS}"));
        manager.args(["--leader-elect=false", "--use-service-account-credentials=false", "--secure-port=0"]);
        manager.args(["--kube-api-qps=500", "--kube-api-burst=1000", "--concurrent-job-syncs=20"]);
        manager.args(["--node-monitor-period=1s", "--node-monitor-grace-period=8s"]);
        // Nodes of many cases are lost at once, in one zone: none may wait for its turn.
        manager.args(["--node-eviction-rate=100", "--secondary-node-eviction-rate=100"]);
        manager.args(["--unhealthy-zone-threshold=1", "--resource-quota-sync-period=2s"]);
        let manager = ChildProcess::start("kube-controller-manager", &mut manager, api.folder())?;
        let mut scheduler = programs.command("kube-scheduler");
        scheduler.arg(format!("--kubeconfig={}", api.kubeconfig().display()));
        scheduler.args(["--leader-elect=false", "--secure-port=0"]);
        let scheduler = ChildProcess::start("kube-scheduler", &mut scheduler, api.folder())?;
        let fleet = Fleet::start(api.client().clone());
        let dashboards = RayDashboards::start().await?;
        let names = Cell::new(0);
        let mut cluster = Self { api, fleet, capture, dashboards, kubernetes, manager, scheduler, names };
        cluster.await_ready().await?;
        Ok(cluster)
    }

    async fn await_ready(&mut self) -> Result<()> {
        until(READY_WITHIN, "the namespace of leases", async || {
            for process in [&mut self.manager, &mut self.scheduler] {
                if let Some(ended) = process.ended()? {
                    bail!("it ended with {ended:?}; {}", process.say());
                }
            }
            ensure!(!self.fleet.has_ended(), "the kubelets ended");
            let lease = self.api.request(Method::GET, "/api/v1/namespaces/kube-node-lease", None).await?;
            Ok((lease.0 == 200).then_some(()))
        })
        .await?;
        for node in SHARED_NODES {
            self.fleet.add_node(node, "96", None).await?;
        }
        for (name, value) in [("batch-low", 100), ("batch-high", 1000)] {
            let class = json!({
                "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": value,
            });
            let path = "/apis/scheduling.k8s.io/v1/priorityclasses";
            let (code, answer) = self.api.request(Method::POST, path, Some(&class)).await?;
            ensure!(code == 201, "a priority class was answered with {code}: {answer}");
        }
        Ok(())
    }

    /// A number that no other case has.
    pub(super) fn next_number(&self) -> u32 {
        self.names.replace(self.names.get() + 1) + 1
    }

    pub(super) async fn stop(mut self) -> Result<()> {
        // The API server does not end while somebody watches.
        drop(self.fleet);
        self.scheduler.terminate(ENDED_WITHIN).await?;
        self.manager.terminate(ENDED_WITHIN).await?;
        self.api.stop().await
    }
}
