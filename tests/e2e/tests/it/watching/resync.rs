//! A source with `resync`: what plugins see again, and what does not change by it.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kubewitness_core::views::StatusView;
use kubewitness_harness::{Kubewitness, Platform, command, in_scratch};
use reqwest::Method;

use crate::support::{create_job, example_copy, plugin_manifest, proofs, same_story, simulator, write};

const WITHIN: Duration = Duration::from_secs(90);

const PERSISTENCE: &str = "module: {file: persistence.wasm}
subscribe:
  - {source: jobs, resync: true}
  - {source: pods}
grants:
  sql: [{name: main, database: platform}]";

const AUDIT: &str = "module: {file: audit.wasm}
subscribe:
  - {source: jobs, resync: true}
grants:
  ledger: [{name: trail, ledger: trail}]";

/// Writes to the log what it is handed. It imports every capability, so it has to be granted each.
const PROBE: &str = "module: {file: probe.wasm}
subscribe:
  - {source: jobs, resync: true}
grants:
  kv: true
  sql: [{name: main, database: second}]
  http: [{name: sink, destination: nowhere}]
  ledger: [{name: trail, ledger: trail}]
  lister: [jobs]
config: {command: envelope}";

/// Everything that the effects of the plugins left.
async fn effects(data: &Path) -> Result<String> {
    let mut platform = Platform::open(&data.join("platform.db")).await?;
    let (history, status) = (platform.history("jobs").await?, platform.status("jobs").await?);
    let trail = std::fs::read_to_string(data.join("audit/trail.jsonl")).context("the ledger")?;
    Ok(format!("{history:#?}\n{status:#?}\n{trail}"))
}

fn accounts(status: &StatusView) -> Vec<(String, u64, u64, u64)> {
    let of = |p: &kubewitness_core::views::PluginView| (p.name.clone(), p.observed, p.delivered, p.dead);
    status.plugins.iter().map(of).collect()
}

async fn resynced(kubewitness: &mut Kubewitness, states: u64) -> Result<StatusView> {
    let what = format!("{states} resynced states in every plugin");
    let all = move |status: &StatusView| status.plugins.iter().all(|plugin| plugin.resynced >= states);
    kubewitness.status_when(WITHIN, &what, all).await
}

#[tokio::test]
async fn a_resync_shows_each_object_again_with_its_id_and_changes_no_row_and_no_line() {
    in_scratch("resync", async |scratch| {
        let simulator = simulator(scratch).await?;
        let config = example_copy(scratch)?;
        let host = std::fs::read_to_string(config.join("host.yaml"))?;
        let host = host.replace("kind: Job}", "kind: Job, resync: 10s}");
        let more = "\n      destinations:\n        - {name: nowhere, url: \"http://127.0.0.1:9\"}\n";
        write(&config, "host.yaml", &format!("{}{more}", host.trim_end()))?;
        for (name, spec) in [("persistence", PERSISTENCE), ("audit", AUDIT), ("probe", PROBE)] {
            write(&config, &format!("{name}.yaml"), &plugin_manifest(name, spec))?;
        }
        let options = simulator.run_options(scratch, config)?;
        for job in ["one", "two", "gone"] {
            create_job(&simulator, job).await?;
        }
        let mut kubewitness = Kubewitness::start("run", &options, scratch.path())?;
        kubewitness.answers().await?;
        let three = |status: &StatusView| {
            status.plugins.len() == 3 && status.plugins.iter().all(|p| p.delivered >= 3 && p.waiting == 0)
        };
        kubewitness.status_when(WITHIN, "three jobs in every plugin", three).await?;
        let path = "/apis/batch/v1/namespaces/default/jobs/gone";
        let (code, answer) = simulator.request(Method::DELETE, path, None).await?;
        ensure!(code == 200, "deleting answered {code}: {answer}");
        let four = |status: &StatusView| status.plugins.iter().all(|p| p.delivered >= 4 && p.waiting == 0);
        let before = kubewitness.status_when(WITHIN, "the deletion in every plugin", four).await?;
        let left = effects(&options.data).await?;

        let since = before.plugins.iter().map(|plugin| plugin.resynced).max().unwrap_or_default();
        let after = resynced(&mut kubewitness, since + 4).await?;
        ensure!(effects(&options.data).await? == left, "a resync changed what the plugins wrote");
        ensure!(accounts(&after) == accounts(&before), "{after:?} is not {before:?}");

        // The first time and at least two resyncs; what is gone is not shown again.
        let log = kubewitness.process().stderr();
        for (job, handed) in [("one", 3..), ("two", 3..), ("gone", 2..)] {
            // What the plugin has logged stands as JSON in the field `data` of a record, and so its quotes are written twice.
            let name = format!(r#"name: \\\"{job}\\\""#);
            let of = |line: &&str| line.contains("envelope") && line.contains(&name);
            let lines: Vec<&str> = log.lines().filter(of).collect();
            ensure!(handed.contains(&lines.len()), "{job} was handed over {} times: {log}", lines.len());
            let told: Vec<&str> = lines
                .iter()
                .filter_map(|line| line.split(r#"id: \\\""#).nth(1)?.split('\\').next())
                .collect();
            let ids: BTreeSet<&str> = told.iter().copied().collect();
            let expected = if job == "gone" { 2 } else { 1 };
            ensure!(ids.len() == expected, "{job} has the ids {ids:?}");
            // On a busy machine it may have been resynced before its end, which comes once and last.
            let ends = told.iter().filter(|id| Some(**id) == told.last().copied()).count();
            ensure!(job != "gone" || ends == 1, "what is gone is not resynced: {lines:#?}");
        }
        kubewitness.stop().await?;
        same_story(&simulator, &options.data).await?;
        proofs(&options.data).await
    })
    .await;
}

#[tokio::test]
async fn check_tells_of_resyncs_that_are_too_frequent_or_never_come() {
    in_scratch("resync", async |scratch| {
        let config = example_copy(scratch)?;
        write(&config, "persistence.yaml", &plugin_manifest("persistence", PERSISTENCE))?;
        let folder = config.to_string_lossy().into_owned();
        let (code, stdout, stderr) = command(&["check", &folder]).await?;
        ensure!(code == Some(4), "a warning is no failure: {code:?} {stdout}{stderr}");
        ensure!(
            stdout.contains("persistence.yaml") && stdout.contains("`jobs` is never resynced"),
            "{stdout}"
        );
        let host = std::fs::read_to_string(config.join("host.yaml"))?;
        write(&config, "host.yaml", &host.replace("kind: Job}", "kind: Job, resync: 5s}"))?;
        let (code, stdout, stderr) = command(&["check", &folder]).await?;
        ensure!(code == Some(3) && stdout.contains("spec.sources[0].resync"), "{code:?} {stdout}{stderr}");
        write(&config, "host.yaml", &host.replace("kind: Job}", "kind: Job, resync: 10m}"))?;
        let (code, stdout, stderr) = command(&["check", &folder]).await?;
        ensure!(code == Some(0), "{code:?} {stdout}{stderr}");
        Ok(())
    })
    .await;
}
