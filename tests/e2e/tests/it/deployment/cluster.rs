//! In a cluster: applied with the real kubectl, run as the service account with the rights of
//! the manifests, plugins chosen by ConfigMaps.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use kubewitness_core::views::StatusView;
use kubewitness_harness::{
    DatabaseServer, Kubectl, Kubewitness, Platform, RunOptions, Scratch, Simulator, SimulatorOptions,
    SqlService, in_scratch, project_root, shared_server, skip, until_ok,
};
use serde_json::{Value, json};

use crate::support::{create_job, plugin_manifest, same_story};

const WITHIN: Duration = Duration::from_secs(90);
const NAMESPACE: &str = "kubewitness";

pub struct ClusterLab<'a> {
    pub kubectl: Kubectl,
    pub simulator: Simulator,
    scratch: &'a Scratch,
}

impl<'a> ClusterLab<'a> {
    async fn new(scratch: &'a Scratch, test: &str) -> Result<Option<Self>> {
        Self::of("kustomize", scratch, test).await
    }

    /// With what a folder of `deploy` has.
    pub async fn of(folder: &str, scratch: &'a Scratch, test: &str) -> Result<Option<Self>> {
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
        let folder = project_root().join("deploy").join(folder);
        kubectl.ok(&["apply", "-k", &folder.to_string_lossy()]).await?;
        Ok(Some(Self { kubectl, simulator, scratch }))
    }

    async fn token(&self) -> Result<String> {
        self.token_of(NAMESPACE, "kubewitness", &[]).await
    }

    /// A token of a service account, as `kubectl create token` asks for one.
    pub async fn token_of(&self, namespace: &str, account: &str, audiences: &[&str]) -> Result<String> {
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token");
        let spec = json!({"expirationSeconds": 3600, "audiences": audiences});
        let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec});
        let (status, answer) = self.simulator.request(reqwest::Method::POST, &path, Some(&request)).await?;
        ensure!(status == 201, "asking for a token answered {status}: {answer}");
        Ok(answer["status"]["token"].as_str().context("an answer without a token")?.to_owned())
    }

    /// A kubeconfig with nothing but the service account's token. kubectl sends no tokens where
    /// there is no TLS, so that for it the simulator takes the token in the address.
    pub async fn kubeconfig(&self, name: &str, token_in_address: bool) -> Result<PathBuf> {
        let token = self.token().await?;
        let path = self.scratch.path().join(name);
        let suffix = if token_in_address { format!("/_token/{token}") } else { String::new() };
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: sim\nclusters:\n- name: sim\n  cluster: {{server: \"{}{suffix}\"}}\n\
             users:\n- name: kubewitness\n  user: {{token: \"{token}\"}}\ncontexts:\n- name: sim\n  context: {{cluster: sim, \
             user: kubewitness, namespace: {NAMESPACE}}}\n",
            self.simulator.url(),
        );
        std::fs::write(&path, text)?;
        Ok(path)
    }

    async fn run(&self) -> Result<(Kubewitness, RunOptions)> {
        let options = RunOptions {
            kubeconfig: self.kubeconfig("service-account.kubeconfig", false).await?,
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
    in_scratch("cluster", async |scratch| {
        let Some(lab) = ClusterLab::new(scratch, "it_runs_as_its_service_account").await? else {
            return Ok(());
        };
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
        check_no_other_right(&lab).await
    })
    .await;
}

async fn check_no_other_right(lab: &ClusterLab<'_>) -> Result<()> {
    let kubeconfig = lab.kubeconfig("kubectl.kubeconfig", true).await?;
    let own = Kubectl::find(&kubeconfig, lab.scratch.path()).context("kubectl")?;
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
    in_scratch("cluster", async |scratch| {
        let Some(lab) = ClusterLab::new(scratch, "a_plugins_config_map_is_applied").await? else {
            return Ok(());
        };
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

        lab.kubectl.ok(&["-n", NAMESPACE, "delete", "cm", "kubewitness-status-trail"]).await?;
        lab.status("trail", "the same again, though somebody deleted it", |map| phase(map) == "active")
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
    })
    .await;
}

/// Makes the environment of the pods.
fn environment(server: &DatabaseServer) -> Result<Vec<(String, String)>> {
    let (journal, platform) = (server.create_database()?, server.create_database()?);
    let named = [
        ("KUBEWITNESS_LEASE", "kubewitness".into()),
        ("KUBEWITNESS_JOURNAL", journal),
        ("PLATFORM_DATABASE", platform),
    ];
    Ok(named.map(|(name, value): (&str, String)| (name.to_owned(), value)).to_vec())
}

#[tokio::test]
async fn the_replicas_of_the_example_share_the_key_of_peoples_sessions() {
    let test = "the_replicas_of_the_example_share_the_key_of_peoples_sessions";
    in_scratch("cluster-sessions", async |scratch| {
        let Some(lab) = ClusterLab::of("examples/several-replicas", scratch, test).await? else {
            return Ok(());
        };
        let deployment =
            lab.kubectl.ok(&["-n", NAMESPACE, "get", "deploy", "kubewitness", "-o", "json"]).await?;
        let deployment: Value = serde_json::from_str(&deployment)?;
        let pod = &deployment["spec"]["template"]["spec"];
        let flags = pod["containers"][0]["args"].as_array().context("flags")?;
        ensure!(flags.contains(&json!("--session-key-file=/session/key")), "{flags:?}");
        ensure!(flags.contains(&json!("--auth=kubernetes")), "the base's flags stay: {flags:?}");
        let has = |list: &Value, wanted: &Value| {
            list.as_array().is_some_and(|all| all.iter().any(|one| one == wanted))
        };
        let mount = json!({"name": "session", "mountPath": "/session", "readOnly": true});
        ensure!(has(&pod["containers"][0]["volumeMounts"], &mount), "{pod}");
        let secret = json!({"secretName": "kubewitness-session", "defaultMode": 0o440});
        ensure!(has(&pod["volumes"], &json!({"name": "session", "secret": secret})), "{pod}");
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn two_replicas_elect_one_by_a_lease_and_need_no_right_that_they_were_not_given() {
    let test = "two_replicas_elect_one";
    let Some(server) = shared_server(SqlService::Postgres, test) else { return };
    in_scratch("cluster-replicas", async |scratch| {
        let Some(lab) = ClusterLab::of("examples/several-replicas", scratch, test).await? else {
            return Ok(());
        };
        let before = lab.simulator.requests().await?;
        let deployment =
            lab.kubectl.ok(&["-n", NAMESPACE, "get", "deploy", "kubewitness", "-o", "json"]).await?;
        let deployment: Value = serde_json::from_str(&deployment)?;
        let told = &deployment["spec"]["template"]["spec"]["containers"][0]["env"];
        let env = environment(server)?;
        let names: Vec<_> =
            told.as_array().context("an environment")?.iter().map(|env| &env["name"]).collect();
        ensure!(names == env.iter().map(|(name, _)| name).collect::<Vec<_>>(), "{told}");

        let kubeconfig = lab.kubeconfig("service-account.kubeconfig", false).await?;
        let run = |name: &str| {
            let (kubeconfig, data) = (kubeconfig.clone(), scratch.folder(name)?);
            let options = RunOptions { kubeconfig, data, env: env.clone(), ..RunOptions::default() };
            Kubewitness::start(name, &options, scratch.path())
        };
        let mut first = run("first")?;
        let dispatches =
            |status: &StatusView| status.replica.as_ref().is_some_and(|replica| replica.dispatches);
        first.status_when(WITHIN, "the first to dispatch", dispatches).await?;
        let mut second = run("second")?;
        second
            .status_when(WITHIN, "the second to stand by", |status| {
                status.plugins.len() == 2 && status.plugins.iter().all(|plugin| plugin.state == "standby")
            })
            .await?;
        lab.status("persistence", "active", |map| phase(map) == "active").await?;
        create_job(&lab.simulator, "train-1").await?;
        let holder = async || {
            let path =
                ["-n", NAMESPACE, "get", "lease", "kubewitness", "-o", "jsonpath={.spec.holderIdentity}"];
            lab.kubectl.ok(&path).await
        };
        let was = holder().await?;
        // Told to end, it gives the Lease back.
        first.stop().await?;
        let delivered = |status: &StatusView| {
            dispatches(status)
                && status.plugins.iter().any(|plugin| plugin.name == "persistence" && plugin.delivered == 1)
        };
        second.status_when(WITHIN, "the second to go on", delivered).await?;
        ensure!(holder().await? != was, "the Lease is still {was}'s");
        create_job(&lab.simulator, "train-2").await?;
        until_ok(WITHIN, "train-2 in the history", async || {
            let mut platform = Platform::connect(&env[2].1).await?;
            let rows = platform.history("jobs").await?;
            ensure!(rows.len() == 2 && rows[1].name == "train-2", "{rows:?}");
            Ok(())
        })
        .await?;
        second.stop().await?;
        let after = lab.simulator.requests().await?;
        let refused: Vec<_> = after
            .iter()
            .filter(|(key, count)| key.starts_with("forbidden") && before.get(*key) != Some(count))
            .collect();
        ensure!(refused.is_empty(), "they asked for what they may not: {refused:?}");
        Ok(())
    })
    .await;
}
