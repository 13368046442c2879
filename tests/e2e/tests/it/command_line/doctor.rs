//! `kubewitness doctor` beside a controller and its API server, as they are and as they should not be.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use kubewitness_harness::{Simulator, SimulatorOptions, command, in_scratch};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::support::{create_job, write};
use crate::watching::gaps::GapLab;

const WITHIN: Duration = Duration::from_secs(90);

/// The exit code, and the outcomes of each code in order.
async fn doctor_outcomes(line: &[&str]) -> Result<(Option<i32>, Value)> {
    let (code, stdout, stderr) = command(&[&["doctor", "-o", "json"], line].concat()).await?;
    let found = serde_json::from_str(&stdout).with_context(|| format!("{code:?}: {stdout}{stderr}"))?;
    Ok((code, found))
}

fn outcomes<'a>(found: &'a Value, code: &str) -> Vec<(&'a str, &'a str)> {
    let all = found.as_array().into_iter().flatten().filter(|one| one["code"] == code);
    all.map(|one| (one["outcome"].as_str().unwrap_or(""), one["detail"].as_str().unwrap_or(""))).collect()
}

fn is(found: &Value, code: &str, outcome: &str) -> bool {
    let told = outcomes(found, code);
    !told.is_empty() && told.iter().all(|(was, _)| *was == outcome)
}

#[tokio::test]
async fn a_controller_that_works_has_a_tick_at_each_check() {
    in_scratch("doctor", async |scratch| {
        let mut lab = GapLab::start(scratch).await?;
        create_job(&lab.simulator, "train-1").await?;
        lab.kubewitness.caught_up(WITHIN).await?;
        let (kubeconfig, url) = (lab.simulator.kubeconfig().display().to_string(), lab.url());
        let data = scratch.path().join("data").display().to_string();
        let line = ["--kubeconfig", &kubeconfig, "--server", &url, "--data", &data];
        let (code, found) = doctor_outcomes(&line).await?;
        for code in ["001", "002", "003", "004", "005", "006", "008", "009", "010", "012", "013"] {
            ensure!(is(&found, &format!("KW-D{code}"), "fine"), "{code}: {found:#}");
        }
        ensure!(outcomes(&found, "KW-D003").len() == 2, "jobs and pods: {found:#}");
        // How full this machine's disk is, nobody knows.
        let space = outcomes(&found, "KW-D007")[0].0;
        let wanted = match space {
            "fine" => 0,
            "warning" => 4,
            _ => 3,
        };
        ensure!(code == Some(wanted), "{code:?}: {found:#}");
        lab.kubewitness.stop().await?;
        let (code, found) = doctor_outcomes(&line).await?;
        ensure!(code == Some(3) && is(&found, "KW-D004", "failed"), "{code:?}: {found:#}");
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn before_installing_the_rights_of_an_account_are_told() {
    in_scratch("doctor-pre", async |scratch| {
        let options = SimulatorOptions { enforce_rbac: true, ..SimulatorOptions::default() };
        let simulator = Simulator::start(scratch.path(), &options).await?;
        let rules = "/apis/rbac.authorization.k8s.io/v1";
        let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "w"},
            "rules": [{"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["list", "watch"]},
                {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]});
        let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": {"name": "w"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "w"},
            "subjects": [{"kind": "ServiceAccount", "name": "host", "namespace": "kw"}]});
        for (kind, body) in [("clusterroles", role), ("clusterrolebindings", binding)] {
            let (status, answer) =
                simulator.request(Method::POST, &format!("{rules}/{kind}"), Some(&body)).await?;
            ensure!(status == 201, "{answer}");
        }
        let kubeconfig = simulator.kubeconfig().display().to_string();
        let line = ["--pre", "--kubeconfig", &kubeconfig, "--account", "kw/host"];
        let (code, found) = doctor_outcomes(&line).await?;
        let rights = outcomes(&found, "KW-D003");
        ensure!(code == Some(3) && rights.len() == 3, "every shipped source: {code:?}: {found:#}");
        ensure!(rights[0].0 == "fine" && rights[0].1.contains("kw/host may list, watch jobs.batch"), "{rights:?}");
        ensure!(rights[1] == ("failed", "pods: kw/host may not list, watch pods"), "{rights:?}");
        ensure!(rights[2] == ("failed", "events: kw/host may not list, watch events"), "{rights:?}");
        ensure!(outcomes(&found, "KW-D004").is_empty(), "no controller is asked: {found:#}");

        let config = scratch.folder("config")?;
        write(&config, "host.yaml", "apiVersion: kubewitness.dev/v1alpha1\nkind: Host\nmetadata: {name: host}\nspec:\n  sources:\n    - {name: w, apiVersion: example.com/v1, kind: Widget}\n")?;
        let config = config.display().to_string();
        let (code, found) = doctor_outcomes(&[&line[..], &["--config", &config]].concat()).await?;
        ensure!(code == Some(3) && is(&found, "KW-D013", "fine"), "{found:#}");
        ensure!(is(&found, "KW-D003", "failed"), "a kind that the server does not have: {found:#}");

        let (code, text, _) = command(&[&["doctor"], &line[..]].concat()).await?;
        ensure!(code == Some(3) && text.contains("✗ KW-D003 rights for a source: pods"), "{text}");
        ensure!(text.contains("  Add the resource to the rules"), "{text}");
        let (code, _, stderr) = command(&["doctor", "--pre", "--account", "host"]).await?;
        ensure!(code == Some(2) && stderr.contains("NAMESPACE/NAME"), "{stderr}");
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_told_in_time() {
    in_scratch("doctor-deaf", async |scratch| {
        let deaf = TcpListener::bind("127.0.0.1:0").await?;
        let cluster = format!("{{server: 'http://{}'}}", deaf.local_addr()?);
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{{name: c, cluster: {cluster}}}]\n\
             users: [{{name: u, user: {{token: t}}}}]\ncontexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n"
        );
        write(scratch.path(), "kubeconfig", &text)?;
        let kubeconfig = scratch.path().join("kubeconfig").display().to_string();
        let begun = Instant::now();
        let (code, found) = doctor_outcomes(&["--pre", "--kubeconfig", &kubeconfig]).await?;
        ensure!(code == Some(3) && is(&found, "KW-D001", "failed"), "{code:?}: {found:#}");
        ensure!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
        Ok(())
    })
    .await;
}
