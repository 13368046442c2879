//! Secrets in documents: people and plugins read digests, the journal keeps the bytes.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kubewitness_harness::{Kubewitness, RunOptions, command, in_scratch};
use serde_json::{Value, json};

use crate::support::{example, simulator};

const WITHIN: Duration = Duration::from_secs(60);
const SECRET: &str = "hush-4711";
const JOBS: &str = "/apis/batch/v1/namespaces/default/jobs";

fn job(secret: &str) -> Value {
    let env = json!([{"name": "HF_TOKEN", "value": secret}, {"name": "EPOCHS", "value": "3"}]);
    let container = json!({"name": "main", "image": "train", "env": env});
    json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": "train", "annotations": {
            "kubectl.kubernetes.io/last-applied-configuration": format!("{{\"value\":\"{secret}\"}}"),
        }},
        "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [container]}}},
    })
}

fn hides(text: &str) -> Result<()> {
    ensure!(!text.contains(SECRET), "the secret is told: {text}");
    ensure!(text.contains("redacted:"), "no digest is told: {text}");
    Ok(())
}

#[tokio::test]
async fn people_and_tables_get_digests_and_the_journal_keeps_the_bytes() {
    in_scratch("secrets", async |scratch| {
        let simulator = simulator(scratch).await?;
        let data = scratch.folder("data")?;
        let options = RunOptions {
            kubeconfig: simulator.kubeconfig().to_owned(),
            config: Some(example()),
            data: data.clone(),
            ..RunOptions::default()
        };
        let mut kubewitness = Kubewitness::start("run", &options, scratch.path())?;
        kubewitness.status_when(WITHIN, "the sources", |status| status.sources.len() == 2).await?;
        let (code, answer) = simulator.request(reqwest::Method::POST, JOBS, Some(&job(SECRET))).await?;
        ensure!(code == 201, "{answer}");
        kubewitness.status_when(WITHIN, "the job", |status| status.journal.states > 0).await?;
        kubewitness.caught_up(WITHIN).await?;
        let url = format!("http://{}", kubewitness.address());
        for arguments in [["get", "job", "train", "-o", "yaml"], ["get", "job", "train", "-o", "json"]] {
            let line = [&arguments[..], &["-n", "default", "--server", &url]].concat();
            let (code, out, errors) = command(&line).await?;
            ensure!(code == Some(0), "{line:?}: {errors}");
            hides(&out)?;
            ensure!(out.contains("EPOCHS"), "what is no secret stays: {out}");
        }
        let api = reqwest::get(format!("{url}/api/v1/states/1/document")).await?.text().await?;
        hides(&api)?;
        kubewitness.stop().await?;

        let folder = data.to_string_lossy();
        let (_, exported, _) = command(&["journal", "export", "--documents", "--data", &folder]).await?;
        ensure!(exported.contains(SECRET), "the journal has what the server sent");
        let table = std::fs::read(data.join("platform.db")).context("the plugin's database")?;
        let table = String::from_utf8_lossy(&table);
        ensure!(!table.contains(SECRET), "the plugin's database has the secret");
        Ok(())
    })
    .await;
}
