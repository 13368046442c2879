//! The controller of JobSets, from its project's own module, beside Kubernetes' controllers. The API server asks its
//! webhooks, as in a cluster where it is installed.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use kubewitness_harness::{ChildProcess, Kubectl, bound_command, free_port, tls::TestCertificates, until};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::net::TcpStream;

use crate::cluster::{RealCluster, ServerPrograms};

const NAME: &str = "jobset";
/// The kind's definition, as the module has it. `cargo xtask real --record` copies it beside the program.
const DEFINITION: &str = "jobset.x-k8s.io_jobsets.yaml";
pub(super) const GROUP: &str = "jobset.x-k8s.io";
const VERSION: &str = "v1alpha2";
const READY_WITHIN: Duration = Duration::from_secs(60);
const ENDED_WITHIN: Duration = Duration::from_secs(30);

pub(super) struct JobSetController {
    process: ChildProcess,
}

/// The path of JobSets of a namespace.
pub(super) fn path(namespace: &str) -> String {
    format!("/apis/{GROUP}/{VERSION}/namespaces/{namespace}/jobsets")
}

impl JobSetController {
    pub(super) async fn start(cluster: &RealCluster, programs: &ServerPrograms) -> Result<Self> {
        let built = programs.folder.join(NAME);
        let kubectl =
            Kubectl::find(cluster.kubeconfig(), cluster.folder()).context("kubectl is not on the PATH")?;
        // The definition is too large for what `apply` notes in an annotation.
        kubectl.ok(&["create", "-f", &built.join(DEFINITION).display().to_string()]).await?;
        let folder = cluster.folder().join(NAME);
        fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
        let certificates = TestCertificates::in_folder(cluster.folder());
        fs::copy(&certificates.certificate, folder.join("tls.crt")).context("the certificate of webhooks")?;
        fs::copy(&certificates.key, folder.join("tls.key")).context("the key of webhooks")?;
        let port = free_port()?;
        let config = folder.join("config.json");
        fs::write(&config, configuration(&folder, port).to_string())?;
        let mut controller = bound_command(built.join(NAME));
        controller.arg("--config").arg(&config).env("KUBECONFIG", cluster.kubeconfig());
        let process = ChildProcess::start(NAME, &mut controller, cluster.folder())?;
        let mut started = Self { process };
        started.listens(SocketAddr::from(([127, 0, 0, 1], port))).await?;
        let served = format!("/apis/{GROUP}/{VERSION}/jobsets");
        until(READY_WITHIN, "the API server to serve JobSets", async || {
            let (code, _) = cluster.request(Method::GET, &served, None).await?;
            Ok((code == 200).then_some(()))
        })
        .await?;
        let authority = fs::read(&certificates.authority).context("the authority of webhooks")?;
        for (kind, resource, verb) in [
            ("MutatingWebhookConfiguration", "mutatingwebhookconfigurations", "mutate"),
            ("ValidatingWebhookConfiguration", "validatingwebhookconfigurations", "validate"),
        ] {
            let url = format!("https://127.0.0.1:{port}/{verb}-jobset-x-k8s-io-v1alpha2-jobset");
            let path = format!("/apis/admissionregistration.k8s.io/v1/{resource}");
            let (code, answer) =
                cluster.request(Method::POST, &path, Some(&webhook(kind, &url, &authority))).await?;
            ensure!(code == 201, "{path} was answered with {code}: {answer}");
        }
        Ok(started)
    }

    async fn listens(&mut self, address: SocketAddr) -> Result<()> {
        until(READY_WITHIN, "the webhooks of JobSets", async || {
            if let Some(ended) = self.process.ended()? {
                bail!("it ended with {ended:?}");
            }
            Ok(TcpStream::connect(address).await.ok().map(drop))
        })
        .await
        .with_context(|| self.process.say())
    }

    pub(super) async fn stop(mut self) -> Result<()> {
        self.process.terminate(ENDED_WITHIN).await.map(drop)
    }
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

/// As the module's manifests have it, by an address instead of a Service.
fn webhook(kind: &str, url: &str, authority: &[u8]) -> Value {
    let operations = if kind.starts_with("Mutating") { vec!["CREATE"] } else { vec!["CREATE", "UPDATE"] };
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": NAME},
        "webhooks": [{
            "name": format!("webhook.{GROUP}"), "admissionReviewVersions": ["v1"], "sideEffects": "None",
            "clientConfig": {"url": url, "caBundle": STANDARD.encode(authority)},
            "rules": [{
                "apiGroups": [GROUP], "apiVersions": [VERSION], "operations": operations, "resources": ["jobsets"],
            }],
        }],
    })
}
