//! Controllers of kinds that are not Kubernetes' own, each from its project's own module, beside Kubernetes' controllers.
//! The API server asks their webhooks, as in a cluster where they are installed.
//!
//! Their modules have manifests, too. Those name Services, and no Service leads anywhere here. So the definitions of kinds
//! are taken from the module, and the webhooks stand here as a table, by address.

mod job_sets;
mod kueue;
mod ray;
mod trainer;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use kubewitness_harness::{ChildProcess, Kubectl, free_port, tls::TestCertificates, until};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::process::Command;

pub(super) use kueue::{GROUP as KUEUE, URGENT, VERSION as KUEUE_VERSION, cluster_queue};

use super::controllers::ControlledCluster;
use crate::cluster::{RealCluster, ServerPrograms};

/// The folder of definitions beside a program. `cargo xtask real --record` copies them from the program's module.
const DEFINITIONS: &str = "definitions";
const READY_WITHIN: Duration = Duration::from_secs(60);
const ENDED_WITHIN: Duration = Duration::from_secs(30);

/// The controllers that cases may need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum OperatorKind {
    JobSets,
    Kueue,
    Ray,
    /// It makes JobSets, so it needs their controller.
    Trainer,
}

impl OperatorKind {
    /// The name of its program, and of its module.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::JobSets => job_sets::NAME,
            Self::Kueue => kueue::NAME,
            Self::Ray => ray::NAME,
            Self::Trainer => trainer::NAME,
        }
    }
}

/// The controllers of one recording.
pub(super) struct RunningOperators<'a> {
    cluster: &'a RealCluster,
    programs: &'a ServerPrograms,
    running: BTreeMap<OperatorKind, OperatorProcess>,
}

impl<'a> RunningOperators<'a> {
    pub(super) async fn start(
        needed: &BTreeSet<OperatorKind>,
        controlled: &'a ControlledCluster,
        programs: &'a ServerPrograms,
    ) -> Result<Self> {
        let cluster = &controlled.api;
        let mut running = BTreeMap::new();
        for kind in needed {
            let started = match kind {
                OperatorKind::JobSets => job_sets::start(cluster, programs).await,
                OperatorKind::Kueue => kueue::start(cluster, programs).await,
                OperatorKind::Ray => ray::start(cluster, programs, controlled.dashboards.address).await,
                OperatorKind::Trainer => trainer::start(cluster, programs).await,
            };
            running.insert(*kind, started.with_context(|| format!("starting {kind:?}"))?);
        }
        Ok(Self { cluster, programs, running })
    }

    /// From now on Kueue takes back each Job whose pods are not ready in time.
    pub(super) async fn set_pods_deadline(&mut self) -> Result<()> {
        let kueue = self.running.remove(&OperatorKind::Kueue).context("Kueue does not run")?;
        let restarted = kueue::restart_with_deadline(kueue, self.cluster, self.programs).await?;
        self.running.insert(OperatorKind::Kueue, restarted);
        Ok(())
    }

    pub(super) async fn stop(self) -> Result<()> {
        for operator in self.running.into_values() {
            operator.stop().await?;
        }
        Ok(())
    }
}

/// A webhook for one resource.
struct OperatorWebhook {
    group: &'static str,
    version: &'static str,
    resource: &'static str,
    /// The kind in small letters, as paths of webhooks have it.
    kind: &'static str,
    changes: bool,
    checks: &'static [&'static str],
}

struct OperatorProcess {
    process: ChildProcess,
    port: u16,
}

/// A folder for a controller's configuration, with the certificate that its webhooks show.
struct OperatorFolder {
    path: PathBuf,
    built: PathBuf,
    port: u16,
}

impl OperatorFolder {
    fn make(name: &str, cluster: &RealCluster, programs: &ServerPrograms) -> Result<Self> {
        let path = cluster.folder().join(name);
        fs::create_dir_all(&path).with_context(|| format!("making {}", path.display()))?;
        let certificates = TestCertificates::in_folder(cluster.folder());
        fs::copy(&certificates.certificate, path.join("tls.crt")).context("the certificate of webhooks")?;
        fs::copy(&certificates.key, path.join("tls.key")).context("the key of webhooks")?;
        Ok(Self { path, built: programs.folder.join(name), port: free_port()? })
    }

    fn write_config(&self, config: &Value) -> Result<PathBuf> {
        let path = self.path.join("config.json");
        fs::write(&path, config.to_string()).with_context(|| format!("writing {}", path.display()))?;
        Ok(path)
    }

    /// Creates the definitions of the kinds, and waits until the API server tells that it serves this resource of the
    /// API. A controller that is started before is told of no such kind, and ends.
    async fn define_kinds(&self, cluster: &RealCluster, api: &str, resource: &str) -> Result<()> {
        let kubectl =
            Kubectl::find(cluster.kubeconfig(), cluster.folder()).context("kubectl is not on the PATH")?;
        // A definition is too large for what `apply` notes in an annotation.
        kubectl.ok(&["create", "-f", &self.built.join(DEFINITIONS).display().to_string()]).await?;
        until(READY_WITHIN, &format!("the API server to serve {resource} of {api}"), async || {
            let (_, known) = cluster.request(Method::GET, &format!("/apis/{api}"), None).await?;
            let mut resources = known["resources"].as_array().into_iter().flatten();
            Ok(resources.any(|known| known["name"] == resource).then_some(()))
        })
        .await
    }

    /// Starts the controller, and waits until its webhooks listen.
    async fn start(
        &self,
        name: &str,
        command: &mut Command,
        cluster: &RealCluster,
    ) -> Result<OperatorProcess> {
        command.env("KUBECONFIG", cluster.kubeconfig());
        let process = ChildProcess::start(name, command, cluster.folder())?;
        let mut started = OperatorProcess { process, port: self.port };
        started.listens(name).await?;
        Ok(started)
    }
}

impl OperatorProcess {
    async fn listens(&mut self, name: &str) -> Result<()> {
        let address = SocketAddr::from(([127, 0, 0, 1], self.port));
        until(READY_WITHIN, &format!("the webhooks of {name}"), async || {
            if let Some(ended) = self.process.ended()? {
                bail!("it ended with {ended:?}");
            }
            Ok(TcpStream::connect(address).await.ok().map(drop))
        })
        .await
        .with_context(|| self.process.say())
    }

    async fn stop(mut self) -> Result<()> {
        self.process.terminate(ENDED_WITHIN).await.map(drop)
    }

    /// Makes the API server ask the webhooks.
    async fn register(&self, name: &str, hooks: &[OperatorWebhook], cluster: &RealCluster) -> Result<()> {
        let authority = TestCertificates::in_folder(cluster.folder()).authority;
        let authority = STANDARD.encode(fs::read(&authority).context("the authority of webhooks")?);
        for (kind, verb) in [("Mutating", "mutate"), ("Validating", "validate")] {
            let asked = hooks.iter().filter_map(|hook| {
                let operations = if verb == "mutate" { &["CREATE"][..] } else { hook.checks };
                let is_asked = hook.changes || verb == "validate";
                let url = format!("https://127.0.0.1:{}{}", self.port, hook.path(verb));
                (is_asked && !operations.is_empty()).then(|| hook.registration(&url, operations, &authority))
            });
            let object = json!({
                "apiVersion": "admissionregistration.k8s.io/v1", "kind": format!("{kind}WebhookConfiguration"),
                "metadata": {"name": name}, "webhooks": asked.collect::<Vec<_>>(),
            });
            let resource = format!("{}webhookconfigurations", kind.to_lowercase());
            let path = format!("/apis/admissionregistration.k8s.io/v1/{resource}");
            let (code, answer) = cluster.request(Method::POST, &path, Some(&object)).await?;
            ensure!(code == 201, "{path} was answered with {code}: {answer}");
        }
        Ok(())
    }
}

impl OperatorWebhook {
    /// As the library of all these controllers names it.
    fn path(&self, verb: &str) -> String {
        format!("/{verb}-{}-{}-{}", self.group.replace('.', "-"), self.version, self.kind)
    }

    fn registration(&self, url: &str, operations: &[&str], authority: &str) -> Value {
        json!({
            "name": format!("{}.{}", self.kind, if self.group.contains('.') { self.group } else { "kubewitness.dev" }),
            "admissionReviewVersions": ["v1"], "sideEffects": "None",
            "clientConfig": {"url": url, "caBundle": authority},
            "rules": [{
                "apiGroups": [self.group], "apiVersions": [self.version], "operations": operations,
                "resources": [self.resource],
            }],
        })
    }
}
