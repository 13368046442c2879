//! The controller as it is shipped: applied manifests, its service account, the arguments of its Deployment.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kubewitness_harness::{Kubectl, Kubewitness, RunOptions, Scratch, free_port, project_root, until_ok};
use reqwest::Method;
use serde_json::{Value, json};

use super::people::job;
use crate::cluster::{RealCluster, ServerPart};

pub(super) const NAMESPACE: &str = "kubewitness";
pub(super) const ACCOUNT: &str = "system:serviceaccount:kubewitness:kubewitness";
const WITHIN: Duration = Duration::from_secs(90);
const PLUGINS: usize = 3;

pub(super) struct ShippedController {
    run: Kubewitness,
    options: RunOptions,
    folder: PathBuf,
    starts: u32,
}

impl ShippedController {
    /// Applies the manifests and starts the controller with the token of its account.
    pub(super) async fn start(kubectl: &Kubectl, cluster: &RealCluster, scratch: &Scratch) -> Result<Self> {
        let base = project_root().join("deploy/kustomize");
        kubectl.ok(&["apply", "-k", &base.to_string_lossy()]).await?;
        let token = kubectl.ok(&["-n", NAMESPACE, "create", "token", "kubewitness", "--duration=1h"]).await?;
        let kubeconfig = scratch.path().join("account.kubeconfig");
        fs::write(&kubeconfig, account_kubeconfig(cluster, token.trim())?.to_string())?;
        let options = RunOptions {
            kubeconfig,
            data: scratch.folder("data")?,
            args: shipped_arguments(kubectl).await?,
            is_bound: true,
            ..RunOptions::default()
        };
        let run = Kubewitness::start("shipped-0", &options, scratch.path())?;
        let mut controller = Self { run, options, folder: scratch.path().to_owned(), starts: 1 };
        controller.works(kubectl).await?;
        Ok(controller)
    }

    /// Waits until it watches and each plugin works, as its status ConfigMaps say. Nobody is signed in.
    async fn works(&mut self, kubectl: &Kubectl) -> Result<()> {
        until_ok(WITHIN, "the plugins to be active", async || {
            let selector = "kubewitness.dev/phase=active";
            let active = kubectl.ok(&["-n", NAMESPACE, "get", "cm", "-l", selector, "-o", "name"]).await?;
            ensure!(active.lines().count() == PLUGINS, "active are {active:?}");
            Ok(())
        })
        .await
        .with_context(|| self.run.process().say())
    }

    pub(super) fn address(&self) -> &str {
        self.run.address()
    }

    /// Does what needs the rights that watching alone does not: plugins come, break and go, and objects of each source
    /// change while nobody watches.
    pub(super) async fn use_each_right(
        &mut self,
        kubectl: &Kubectl,
        cluster: &mut RealCluster,
    ) -> Result<()> {
        let plugin = |module: &str| {
            let text = format!(
                "apiVersion: kubewitness.dev/v1alpha1\nkind: Plugin\nmetadata: {{name: second}}\nspec:\n  module: {{file: \
                 {module}}}\n  subscribe: [{{source: jobs, mode: every, start: beginning}}]\n  grants: {{sql: [{{name: main, \
                 database: platform}}]}}\n"
            );
            json!({"apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {"name": "second", "labels": {"kubewitness.dev/plugin": "true"}},
                "data": {"plugin.yaml": text}})
            .to_string()
        };
        for (module, phase) in [("persistence.wasm", "active"), ("missing.wasm", "degraded")] {
            kubectl.ok_with(&["-n", NAMESPACE, "apply", "-f", "-"], &plugin(module)).await?;
            self.plugin_says(kubectl, phase).await?;
        }
        kubectl.ok(&["-n", NAMESPACE, "delete", "configmap", "second"]).await?;
        until_ok(WITHIN, "the status of a removed plugin to go", async || {
            let maps = kubectl.ok(&["-n", NAMESPACE, "get", "cm", "-o", "name"]).await?;
            ensure!(!maps.contains("kubewitness-status-second"), "{maps}");
            Ok(())
        })
        .await?;
        let objects = subjects();
        for (path, object) in &objects {
            cluster.create(path, object).await?;
        }
        self.run.kill().await?;
        // A server that has just begun knows no watch of before, so the controller lists, and reads back what it missed.
        for step in ["one", "two"] {
            for (path, object) in &objects {
                let path = format!("{path}/{}", object["metadata"]["name"].as_str().unwrap_or_default());
                let patch = json!({"metadata": {"labels": {"step": step}}});
                let (code, answer) = cluster.request(Method::PATCH, &path, Some(&patch)).await?;
                ensure!(code == 200, "{path} was answered with {code}: {answer}");
            }
        }
        cluster.kill(ServerPart::ApiServer).await?;
        cluster.start_again(ServerPart::ApiServer).await?;
        let name = format!("shipped-{}", self.starts);
        self.starts += 1;
        self.run = Kubewitness::start(&name, &self.options, &self.folder)?;
        self.works(kubectl).await
    }

    async fn plugin_says(&self, kubectl: &Kubectl, phase: &str) -> Result<()> {
        until_ok(WITHIN, &format!("the second plugin to be {phase}"), async || {
            let name = "kubewitness-status-second";
            let map = kubectl.ok(&["-n", NAMESPACE, "get", "cm", name, "-o", "json"]).await?;
            let map: Value = serde_json::from_str(&map)?;
            let said = &map["metadata"]["labels"]["kubewitness.dev/phase"];
            ensure!(said == phase, "it is {said}: {}", map["data"]);
            Ok(())
        })
        .await
    }

    pub(super) async fn stop(&mut self) -> Result<()> {
        self.run.stop().await.map(drop)
    }
}

/// An object of each source, with the collection that it is made in.
fn subjects() -> [(&'static str, Value); 3] {
    let metadata = json!({"name": "missed", "namespace": "team-a"});
    let container = json!({"name": "trainer", "image": "registry.example/ml/trainer:2.4"});
    let about = json!({"kind": "Job", "namespace": "team-a", "name": "missed"});
    [
        ("/apis/batch/v1/namespaces/team-a/jobs", job("team-a", "missed")),
        (
            "/api/v1/namespaces/team-a/pods",
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}),
        ),
        (
            "/api/v1/namespaces/team-a/events",
            json!({"apiVersion": "v1", "kind": "Event", "metadata": metadata, "involvedObject": about,
                "type": "Normal", "reason": "Missed"}),
        ),
    ]
}

fn account_kubeconfig(cluster: &RealCluster, token: &str) -> Result<Value> {
    let text = fs::read_to_string(cluster.kubeconfig()).context("reading the cluster's kubeconfig")?;
    let mut config: Value = serde_json::from_str(&text).context("the cluster's kubeconfig")?;
    config["users"][0]["user"] = json!({"token": token});
    config["contexts"][0]["context"]["namespace"] = NAMESPACE.into();
    Ok(config)
}

/// The arguments of the Deployment, but for the command, for paths and ports.
async fn shipped_arguments(kubectl: &Kubectl) -> Result<Vec<String>> {
    let path = "jsonpath={.spec.template.spec.containers[0].args}";
    let text = kubectl.ok(&["-n", NAMESPACE, "get", "deployment", "kubewitness", "-o", path]).await?;
    let args: Vec<String> = serde_json::from_str(&text).context("the arguments of the Deployment")?;
    let is_of_machine = |arg: &String| {
        arg == "run" || ["--data=", "--listen=", "--health-listen="].iter().any(|flag| arg.starts_with(flag))
    };
    let mut kept: Vec<String> = args.into_iter().filter(|arg| !is_of_machine(arg)).collect();
    ensure!(kept.iter().any(|arg| arg.starts_with("--auth=")), "the Deployment lets everybody in: {text}");
    kept.push(format!("--health-listen=127.0.0.1:{}", free_port()?));
    Ok(kept)
}
