//! KubeRay's operator, which makes a RayCluster and a submitter of each RayJob, and asks the head's dashboard how it goes.

use std::net::SocketAddr;

use anyhow::Result;
use kubewitness_harness::bound_command;

use super::{OperatorFolder, OperatorProcess};
use crate::cluster::{RealCluster, ServerPrograms};

pub(super) const NAME: &str = "kuberay";

/// Starts it with the dashboards as its proxy.
pub(super) async fn start(
    cluster: &RealCluster,
    programs: &ServerPrograms,
    dashboards: SocketAddr,
) -> Result<OperatorProcess> {
    let folder = OperatorFolder::make(NAME, cluster, programs)?;
    folder.define_kinds(cluster, "ray.io/v1", "rayservices").await?;
    let mut command = bound_command(folder.built.join(NAME));
    command.args(["--enable-leader-election=false", "--metrics-addr=0", "--qps=500", "--burst=1000"]);
    // Many cases run at once.
    command.arg("--reconcile-concurrency=10");
    // It has webhooks for RayClusters alone, which only refuse what can't be. So nobody asks them, and its probe says that
    // it has started.
    command.arg(format!("--health-probe-bind-address=127.0.0.1:{}", folder.port));
    command.env("HTTP_PROXY", format!("http://{dashboards}"));
    command.env_remove("NO_PROXY").env_remove("no_proxy");
    folder.start(NAME, &mut command, cluster).await
}
