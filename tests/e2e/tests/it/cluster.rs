//! In a cluster: applied with the real kubectl, run as the service account with the rights of
//! the manifests, plugins chosen by ConfigMaps.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use kubewitness_harness::{
    Kubectl, Kubewitness, Platform, RunOptions, Scratch, Simulator, SimulatorOptions, project_root, skip,
    until_ok,
};
use serde_json::{Value, json};

use crate::support::{create_job, plugin_manifest, same_story};

const WITHIN: Duration = Duration::from_secs(90);
const NAMESPACE: &str = "kubewitness";

struct Lab {
    kubectl: Kubectl,
    simulator: Simulator,
    scratch: Scratch,
}

impl Lab {
    async fn new(test: &str) -> Result<Option<Self>> {
        let scratch = Scratch::new("cluster")?;
        let options = SimulatorOptions {
            enforce_rbac: true,
            bookmark_every: Some("1s".to_owned()),
            ..SimulatorOptions::default()
        };
        let simulator = Simulator::start(scratch.path(), &options).await?;
        let Some(kubectl) = Kubectl::find(simulator.kubeconfig(), scratch.path()) else {
            skip(&format!("cluster::{test}"), "kubectl is not on the PATH");
            return Ok(None);
        };
        let folder = project_root().join("deploy").join("kustomize");
        kubectl.ok(&["apply", "-k", &folder.to_string_lossy()]).await?;
        Ok(Some(Self { kubectl, simulator, scratch }))
    }

    /// A kubeconfig with nothing but the service account's token.
    async fn as_service_account(&self) -> Result<PathBuf> {
        // `kubectl create token` speaks protobuf only.
        let path = format!("/api/v1/namespaces/{NAMESPACE}/serviceaccounts/kubewitness/token");
        let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}});
        let (status, answer) = self.simulator.request(reqwest::Method::POST, &path, Some(&request)).await?;
        ensure!(status == 201, "asking for a token answered {status}: {answer}");
        let token = answer["status"]["token"].as_str().context("an answer without a token")?;
        let path = self.scratch.path().join("service-account.kubeconfig");
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: sim\nclusters:\n- name: sim\n  cluster: {{server: \"{}\"}}\n\
             users:\n- name: kubewitness\n  user: {{token: \"{}\"}}\ncontexts:\n- name: sim\n  context: {{cluster: sim, \
             user: kubewitness, namespace: {NAMESPACE}}}\n",
            self.simulator.url(),
            token
        );
        std::fs::write(&path, text)?;
        Ok(path)
    }

    async fn run(&self) -> Result<(Kubewitness, RunOptions)> {
        let options = RunOptions {
            kubeconfig: self.as_service_account().await?,
            data: self.scratch.folder("data")?,
            ..RunOptions::default()
        };
        let mut kubewitness = Kubewitness::start("kubewitness", &options, self.scratch.path())?;
        kubewitness.answers().await?;
        Ok((kubewitness, options))
    }

    async fn apply(&self, manifest: &str) -> Result<()> {
        self.kubectl.ok_with(&["-n", NAMESPACE, "apply", "-f", "-"], manifest).await.map(drop)
    }

    /// The status ConfigMap of a plugin, once it `holds`.
    async fn status(&self, plugin: &str, what: &str, holds: impl Fn(&Value) -> bool) -> Result<Value> {
        let what = format!("the status ConfigMap of {plugin} to say {what}");
        until_ok(WITHIN, &what, async || {
            let name = format!("kubewitness-status-{plugin}");
            let map = self.kubectl.ok(&["-n", NAMESPACE, "get", "cm", &name, "-o", "json"]).await?;
            let map: Value = serde_json::from_str(&map)?;
            if !holds(&map) {
                bail!("{}", map["data"]);
            }
            Ok(map)
        })
        .await
    }
}

fn phase(map: &Value) -> &str {
    map["metadata"]["labels"]["kubewitness.dev/phase"].as_str().unwrap_or_default()
}

async fn history_has(data: &Path, job: &str) -> Result<()> {
    until_ok(WITHIN, &format!("{job} in the history"), async || {
        let mut platform = Platform::open(&data.join("platform.db")).await?;
        let rows = platform.history("jobs").await?;
        ensure!(rows.iter().any(|row| row.name == job), "{} rows, none of {job}", rows.len());
        Ok(())
    })
    .await
}

#[tokio::test]
async fn it_runs_as_its_service_account_and_needs_no_right_that_it_was_not_given() {
    let run = async || -> Result<()> {
        let Some(lab) = Lab::new("service_account").await? else { return Ok(()) };
        let before = lab.simulator.requests().await?;
        let (mut kubewitness, options) = lab.run().await?;
        for plugin in ["persistence", "notification", "audit"] {
            lab.status(plugin, "active", |map| phase(map) == "active").await?;
        }
        create_job(&lab.simulator, "train-1").await?;
        history_has(&options.data, "train-1").await?;
        let listed = lab
            .kubectl
            .ok(&[
                "-n",
                NAMESPACE,
                "get",
                "cm",
                "-l",
                "kubewitness.dev/status",
                "-L",
                "kubewitness.dev/phase,kubewitness.dev/digest",
            ])
            .await?;
        ensure!(
            listed.lines().count() == 4 && listed.contains("PHASE") && listed.contains("active"),
            "{listed}"
        );
        kubewitness.stop().await?;
        same_story(&lab.simulator, &options.data).await?;
        let after = lab.simulator.requests().await?;
        let refused: Vec<_> = after
            .iter()
            .filter(|(key, count)| key.starts_with("forbidden") && before.get(*key) != Some(count))
            .collect();
        ensure!(refused.is_empty(), "it asked for what it may not: {refused:?}");
        may_do_nothing_else(&lab, &options.kubeconfig).await
    };
    if let Err(error) = run().await {
        panic!("{error:#}");
    }
}

async fn may_do_nothing_else(lab: &Lab, kubeconfig: &Path) -> Result<()> {
    let own = Kubectl::find(kubeconfig, lab.scratch.path()).context("kubectl")?;
    let map = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\n";
    for args in [
        &["get", "secrets", "-A"][..],
        &["get", "configmaps", "-n", "default"],
        &["delete", "job", "train-1", "-n", "default"],
        &["create", "-n", "default", "-f", "-"],
        &["get", "clusterroles"],
    ] {
        let said = own.fails(args, map).await?;
        ensure!(
            said.contains("(Forbidden)") && said.contains("system:serviceaccount:kubewitness:kubewitness"),
            "{args:?}: {said}"
        );
    }
    Ok(())
}

const THIRD: &str = "module: {file: persistence.wasm}
subscribe:
  - {source: jobs, mode: transitions, start: beginning}
grants:
  sql: [{name: main, database: platform}]";

#[tokio::test]
async fn a_plugins_config_map_is_applied_changed_broken_and_deleted_while_it_runs() {
    let run = async || -> Result<()> {
        let Some(lab) = Lab::new("config_maps").await? else { return Ok(()) };
        lab.kubectl
            .ok(&["-n", NAMESPACE, "delete", "cm", "kubewitness-notification", "kubewitness-audit"])
            .await?;
        let (mut kubewitness, options) = lab.run().await?;
        create_job(&lab.simulator, "train-1").await?;
        history_has(&options.data, "train-1").await?;

        let audit = "module: {file: audit.wasm}\nsubscribe: [{source: jobs, mode: every, start: beginning}]\n\
                     grants:\n  ledger: [{name: trail, ledger: trail}]";
        lab.apply(&plugin_manifest("trail", audit)).await?;
        let active = lab.status("trail", "active", |map| phase(map) == "active").await?;
        let digest = active["data"]["digest"].clone();

        lab.apply(&plugin_manifest("trail", &audit.replace("source: jobs", "source: nothing"))).await?;
        let why = |map: &Value| {
            let message = map["data"]["message"].as_str().unwrap_or_default();
            message.contains("spec.subscribe[0].source") && message.contains("nothing")
        };
        let broken = lab.status("trail", "why", why).await?;
        ensure!(broken["data"]["digest"] == digest, "the last good one runs on: {broken}");
        create_job(&lab.simulator, "train-2").await?;
        history_has(&options.data, "train-2").await?;
        kubewitness.caught_up(WITHIN).await?;
        let trail = std::fs::read_to_string(options.data.join("audit/trail.jsonl"))?;
        ensure!(trail.contains("train-2"), "{trail}");

        lab.apply(&plugin_manifest("trail", &THIRD.replace("mode: transitions", "mode: every"))).await?;
        lab.status("trail", "the new component", |map| {
            phase(map) == "active" && map["data"]["digest"] != digest
        })
        .await?;
        let untouched = lab.kubectl.ok(&["-n", NAMESPACE, "get", "cm", "trail", "-o", "json"]).await?;
        ensure!(
            !untouched.contains("kubewitness.dev/phase"),
            "the operator's own ConfigMap is never written"
        );

        lab.kubectl.ok(&["-n", NAMESPACE, "delete", "cm", "trail"]).await?;
        let gone = |status: &kubewitness_core::views::StatusView| {
            status.plugins.iter().all(|plugin| plugin.name != "trail")
        };
        kubewitness.status_when(WITHIN, "the plugin to be gone", gone).await?;
        until_ok(WITHIN, "its status ConfigMap to be gone", async || {
            lab.kubectl.fails(&["-n", NAMESPACE, "get", "cm", "kubewitness-status-trail"], "").await
        })
        .await?;
        kubewitness.stop().await
    };
    if let Err(error) = run().await {
        panic!("{error:#}");
    }
}
