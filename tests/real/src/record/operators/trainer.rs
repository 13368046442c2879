//! Kubeflow's Trainer, which makes a JobSet of each TrainJob. So it needs the controller of JobSets, too.

use anyhow::Result;
use kubewitness_harness::bound_command;
use serde_json::json;

use super::{OperatorFolder, OperatorProcess};
use crate::cluster::{RealCluster, ServerPrograms};

pub(super) const NAME: &str = "trainer";
const API: &str = "trainer.kubeflow.org/v1alpha1";
/// The namespace that it takes for its own outside of a pod.
const NAMESPACE: &str = "kubeflow-system";
/// Runs a program with a folder of certificates where Trainer alone looks for them, and which no flag moves. The rest of
/// the machine does not see them.
const WITH_CERTIFICATES: &str = "certificates=/tmp/k8s-webhook-server/serving-certs; mkdir -p $certificates && \
    mount --bind \"$1\" $certificates && shift && exec \"$@\"";

pub(super) async fn start(cluster: &RealCluster, programs: &ServerPrograms) -> Result<OperatorProcess> {
    let folder = OperatorFolder::make(NAME, cluster, programs)?;
    folder.define_kinds(cluster, API, "trainjobs").await?;
    prepare(cluster).await?;
    let mut command = bound_command("unshare");
    command.args(["--user", "--map-root-user", "--mount", "sh", "-c", WITH_CERTIFICATES, "sh"]);
    command.arg(&folder.path).arg(folder.built.join(NAME));
    command.args(["--webhook-server-port", &folder.port.to_string(), "--health-probe-bind-address", "0"]);
    // Its webhooks only refuse TrainJobs that can't be, and it trusts no certificate but its own for them. So nobody asks
    // them.
    folder.start(NAME, &mut command, cluster).await
}

/// Creates the objects that it fills with its certificates before it starts.
async fn prepare(cluster: &RealCluster) -> Result<()> {
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
    cluster.create("/api/v1/namespaces", &namespace).await?;
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "kubeflow-trainer-webhook-cert"},
    });
    cluster.create(&format!("/api/v1/namespaces/{NAMESPACE}/secrets"), &secret).await?;
    let webhooks = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "validator.trainer.kubeflow.org"},
    });
    let path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
    cluster.create(path, &webhooks).await.map(drop)
}
