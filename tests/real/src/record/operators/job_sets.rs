//! The controller of JobSets.

use std::path::Path;

use anyhow::Result;
use kubewitness_harness::bound_command;
use serde_json::{Value, json};

use super::{OperatorFolder, OperatorProcess, OperatorWebhook};
use crate::cluster::{RealCluster, ServerPrograms};

pub(super) const NAME: &str = "jobset";
const GROUP: &str = "jobset.x-k8s.io";
const WEBHOOK: OperatorWebhook = OperatorWebhook {
    group: GROUP,
    version: "v1alpha2",
    resource: "jobsets",
    kind: "jobset",
    changes: true,
    checks: &["CREATE", "UPDATE"],
};

pub(super) async fn start(cluster: &RealCluster, programs: &ServerPrograms) -> Result<OperatorProcess> {
    let folder = OperatorFolder::make(NAME, cluster, programs)?;
    folder.define_kinds(cluster, &format!("{GROUP}/{}", WEBHOOK.version), "jobsets").await?;
    let config = folder.write_config(&configuration(&folder.path, folder.port))?;
    let mut command = bound_command(folder.built.join(NAME));
    let started = folder.start(NAME, command.arg("--config").arg(config), cluster).await?;
    started.register(NAME, &[WEBHOOK], cluster).await?;
    Ok(started)
}

fn configuration(certificates: &Path, port: u16) -> Value {
    json!({
        "apiVersion": "config.jobset.x-k8s.io/v1alpha1", "kind": "Configuration",
        "leaderElection": {"leaderElect": false}, "internalCertManagement": {"enable": false},
        "webhook": {"host": "127.0.0.1", "port": port, "certDir": certificates},
        // Nobody asks for either.
        "metrics": {"bindAddress": "0"}, "health": {"healthProbeBindAddress": "0"},
    })
}
