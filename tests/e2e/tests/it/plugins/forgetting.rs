//! The traces that a plugin leaves when it is taken out, and how it is forgotten.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use kubewitness_core::views::StatusView;
use kubewitness_harness::{Kubewitness, command, in_scratch};
use serde_json::Value;

use crate::plugins::probing::{ProbeLab, manifest};
use crate::support::{create_job, journal_proof, write};

const WITHIN: Duration = Duration::from_secs(60);
const TICKS: &str = "tick: {every: 1s}\n";
/// Each job becomes a dead letter, and each tick writes a key.
const DOES: &str = "{command: reject broken, tick: [kv.set a 1]}";

async fn forget(data: &Path, name: &str, more: &[&str], code: i32) -> Result<String> {
    let folder = data.to_string_lossy();
    let line = [&["plugin", "forget", name, "--data", &*folder], more].concat();
    let (ended, stdout, stderr) = command(&line).await?;
    ensure!(ended == Some(code), "{line:?} ended with {ended:?}: {stdout}{stderr}");
    Ok(stdout + &stderr)
}

#[tokio::test]
async fn what_a_plugin_left_is_told_and_removed_once_it_is_taken_out_and_it_begins_anew() {
    in_scratch("forgetting", async |scratch| {
        let lab = ProbeLab::new(scratch, TICKS).await?;
        lab.version(DOES)?;
        let ProbeLab { simulator, config, options, .. } = lab;
        let data = options.data.as_path();
        let mut run = Kubewitness::start("run", &options, scratch.path())?;
        create_job(&simulator, "one").await?;
        let has_left = |status: &StatusView| {
            let plugin = |name: &str| status.plugins.iter().find(|plugin| plugin.name == name);
            plugin("probe")
                .is_some_and(|it| it.dead > 0 && it.tick.as_ref().is_some_and(|tick| tick.ticks > 0))
                && plugin("persistence").is_some_and(|it| it.delivered > 0)
        };
        run.status_when(WITHIN, "a dead letter, a tick, and a plugin that stays", has_left).await?;
        let told = forget(data, "probe", &[], 1).await?;
        ensure!(told.contains("the controller has to be stopped"), "{told}");
        run.stop().await?;
        let told = forget(data, "probe", &["--yes"], 1).await?;
        ensure!(told.contains("`probe` is still selected"), "{told}");

        std::fs::remove_file(config.join("probe.yaml"))?;
        let mut run = Kubewitness::start("without", &options, scratch.path())?;
        let is_gone = |status: &StatusView| {
            !status.plugins.is_empty() && status.plugins.iter().all(|plugin| plugin.name != "probe")
        };
        run.status_when(WITHIN, "the plugin to be taken out", is_gone).await?;
        run.stop().await?;
        let left = ["dead letters: 1\n", "keys of kv: 1, 2 bytes\n", "tables in the database `second`"];
        let told = forget(data, "probe", &[], 0).await?;
        for part in
            left.iter().chain(&["would be removed", "Nothing is removed yet: run it again with --yes"])
        {
            ensure!(told.contains(part), "{part}: {told}");
        }
        // Its receipts would make a plugin of that name skip their states, once the file is back.
        let [database, elsewhere] = ["second.db", "elsewhere.db"].map(|name| data.join(name));
        std::fs::rename(&database, &elsewhere)?;
        let told = forget(data, "probe", &["--yes"], 1).await?;
        ensure!(told.contains("nothing is removed") && told.contains("there is no "), "{told}");
        std::fs::rename(&elsewhere, &database)?;
        let told: Value = serde_json::from_str(&forget(data, "probe", &["-o", "json", "--yes"], 0).await?)?;
        ensure!(told["removed"] == true && told["deadLetters"] == 1 && told["keys"] == 1, "{told}");
        let told = forget(data, "probe", &["--yes"], 1).await?;
        ensure!(told.contains("nothing of a plugin `probe`; it knows persistence"), "{told}");
        let told = forget(&scratch.path().join("nowhere"), "probe", &[], 1).await?;
        ensure!(told.contains("nowhere") && !scratch.path().join("nowhere").exists(), "{told}");
        journal_proof(data, &[]).await?;

        write(&config, "probe.yaml", &manifest("{command: done}", TICKS))?;
        let mut run = Kubewitness::start("anew", &options, scratch.path())?;
        let begins_anew = |status: &StatusView| {
            let probe = status.plugins.iter().find(|plugin| plugin.name == "probe");
            probe.is_some_and(|it| it.delivered > 0 && it.dead == 0)
        };
        run.status_when(WITHIN, "the state to be handed over again", begins_anew).await?;
        run.stop().await
    })
    .await;
}
