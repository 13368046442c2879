//! A new version that fails its first calls is taken back: the version before goes on, and no state is lost or parked.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use kubewitness_core::views::{PluginView, StatusView};
use kubewitness_harness::{Kubewitness, RunOptions, in_scratch, until};

use crate::support::{create_job, example_copy, plugin_manifest, simulator, write};

const WITHIN: Duration = Duration::from_secs(60);

const PROBE: &str = "module: {file: probe.wasm}
subscribe: [{source: jobs, mode: every, start: beginning}]
grants:
  kv: true
  lister: [jobs]
  sql: [{name: main, database: second}]
  http: [{name: nobody, destination: nobody}]
  ledger: [{name: notes, ledger: notes}]
delivery: {batch: 8, retries: 8, backoff: 10ms}
config: {command: COMMAND}";

const FOR_PROBE: &str = "        - {name: notes, path: audit/notes.jsonl}
      destinations:
        - {name: nobody, url: 'http://127.0.0.1:9'}
";

/// What it does to each job.
fn version(config: &Path, command: &str) -> Result<()> {
    write(config, "probe.yaml", &plugin_manifest("probe", &PROBE.replace("COMMAND", command)))
}

fn probe(status: &StatusView) -> Option<&PluginView> {
    status.plugins.iter().find(|plugin| plugin.name == "probe")
}

fn has(status: &StatusView, state: &str, delivered: u64) -> bool {
    probe(status).is_some_and(|it| it.state == state && it.delivered == delivered && it.dead == 0)
}

#[tokio::test]
async fn a_version_that_fails_its_first_calls_is_taken_back_and_no_state_is_parked() {
    in_scratch("rollback", async |scratch| {
        let simulator = simulator(scratch).await?;
        let config = example_copy(scratch)?;
        let host = std::fs::read_to_string(config.join("host.yaml"))?;
        write(&config, "host.yaml", &(host.trim_end().to_owned() + "\n" + FOR_PROBE))?;
        version(&config, "done")?;
        let options = RunOptions {
            kubeconfig: simulator.kubeconfig().to_owned(),
            config: Some(config.clone()),
            data: scratch.path().join("data"),
            ..RunOptions::default()
        };
        let mut run = Kubewitness::start("run", &options, scratch.path())?;
        create_job(&simulator, "one").await?;
        run.status_when(WITHIN, "the first job", |status| has(status, "active", 1)).await?;

        version(&config, "trap")?;
        let taken = options.data.join("last-good/probe/plugin.yaml");
        until(WITHIN, "the version to be taken", async || {
            // The first version is active a moment before it is kept.
            Ok(std::fs::read_to_string(&taken).is_ok_and(|text| text.contains("trap")).then_some(()))
        })
        .await?;
        for name in ["two", "three", "four", "five"] {
            create_job(&simulator, name).await?;
        }
        let taken_back = |status: &StatusView| {
            let message = probe(status).and_then(|it| it.message.clone()).unwrap_or_default();
            has(status, "degraded", 5) && message.contains("was taken back") && message.contains("trapped")
        };
        run.status_when(WITHIN, "the version before to go on", taken_back).await?;
        // It stays so, also after a restart: the bad version is tried once more and taken back again.
        run.kill().await?;
        let mut run = Kubewitness::start("again", &options, scratch.path())?;
        for name in ["six", "seven", "eight", "nine"] {
            create_job(&simulator, name).await?;
        }
        let still = |status: &StatusView| {
            let message = probe(status).and_then(|it| it.message.clone()).unwrap_or_default();
            has(status, "degraded", 9) && message.contains("was taken back")
        };
        run.status_when(WITHIN, "the version before after a restart", still).await?;
        // Another document is tried.
        version(&config, "done again")?;
        run.status_when(WITHIN, "the mended version", |status| has(status, "active", 9)).await?;
        create_job(&simulator, "ten").await?;
        run.status_when(WITHIN, "the last job", |status| has(status, "active", 10)).await?;
        let states = run.status().await?;
        ensure!(probe(&states).is_some_and(|it| it.observed == 10), "{states:?}");
        run.stop().await
    })
    .await;
}
