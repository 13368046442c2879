//! `kubewitness run` from a folder: manifests come, change, break and go while it runs.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kubewitness_core::views::{PluginView, StatusView};
use kubewitness_harness::{Kubewitness, Platform, RunOptions, Scratch, Simulator, in_scratch, until};

use crate::support::{
    AUDIT, create_job, example, example_copy, is_active, plugin, plugin_manifest, proofs, same_story,
    simulator, write,
};

const WITHIN: Duration = Duration::from_secs(90);

const SECOND: &str = "module: {file: persistence.wasm}
subscribe:
  - {source: jobs, mode: every, start: beginning}
grants:
  sql: [{name: main, database: second}]";

struct RunLab<'a> {
    simulator: Simulator,
    options: RunOptions,
    scratch: &'a Scratch,
}

impl<'a> RunLab<'a> {
    async fn new(scratch: &'a Scratch, config: PathBuf) -> Result<Self> {
        let simulator = simulator(scratch).await?;
        let options = simulator.run_options(scratch, config)?;
        Ok(Self { simulator, options, scratch })
    }

    async fn start(&self, name: &str) -> Result<Kubewitness> {
        let mut kubewitness = Kubewitness::start(name, &self.options, self.scratch.path())?;
        kubewitness.answers().await?;
        Ok(kubewitness)
    }

    fn config(&self) -> &Path {
        self.options.config.as_deref().expect("every test here has a folder")
    }

    fn data(&self, file: &str) -> PathBuf {
        self.options.data.join(file)
    }
}

/// Waits until a table has a row of this job.
async fn reaches(path: &Path, job: &str) -> Result<()> {
    let what = format!("{job} in {}", path.display());
    until(WITHIN, &what, async || {
        let Ok(mut platform) = Platform::open(path).await else { return Ok(None) };
        let rows = platform.history("jobs").await.unwrap_or_default();
        Ok(rows.iter().any(|row| row.name == job).then_some(()))
    })
    .await
}

async fn says(kubewitness: &mut Kubewitness, parts: &[&str]) -> Result<()> {
    let what = format!("its log to say {parts:?}");
    let said = until(WITHIN, &what, async || {
        let log = kubewitness.process().stderr();
        Ok(log.lines().any(|line| parts.iter().all(|part| line.contains(part))).then_some(()))
    });
    let said = said.await;
    said.with_context(|| kubewitness.process().say())
}

#[tokio::test]
async fn the_example_works_as_it_stands_and_ends_with_0() {
    in_scratch("run", async |scratch| {
        let lab = RunLab::new(scratch, example()).await?;
        create_job(&lab.simulator, "before").await?;
        let mut kubewitness = lab.start("run").await?;
        reaches(&lab.data("platform.db"), "before").await?;
        create_job(&lab.simulator, "after").await?;
        reaches(&lab.data("platform.db"), "after").await?;
        let status = kubewitness.caught_up(WITHIN).await?;
        for plugin in &status.plugins {
            let sum = plugin.delivered + plugin.filtered + plugin.dead + plugin.waiting;
            ensure!(plugin.observed == sum, "{plugin:?}");
        }
        ensure!(status.journal.states >= 2 && status.sources.len() == 2, "{status:?}");
        let server = format!("http://{}", kubewitness.address());
        let told = kubewitness_harness::command_json(&["status", "-o", "json", "--server", &server]).await?;
        ensure!(told["sources"][0]["name"] == "jobs" && told["journal"]["states"].is_u64(), "{told}");
        kubewitness.stop().await?;
        same_story(&lab.simulator, &lab.options.data).await?;
        proofs(&lab.options.data).await
    })
    .await;
}

#[tokio::test]
async fn plugins_are_added_changed_and_removed_while_it_runs() {
    in_scratch("run", async |scratch| {
        let lab = RunLab::new(scratch, example_copy(scratch)?).await?;
        let mut kubewitness = lab.start("run").await?;
        create_job(&lab.simulator, "one").await?;
        reaches(&lab.data("platform.db"), "one").await?;

        write(lab.config(), "second.yaml", &plugin_manifest("second", SECOND))?;
        let status =
            kubewitness.status_when(WITHIN, "the added plugin", |status| is_active(status, "second")).await?;
        reaches(&lab.data("second.db"), "one").await.context("it starts from the beginning")?;
        let digest = plugin(&status, "second").map(|plugin| plugin.digest.clone()).unwrap_or_default();

        write(lab.config(), "second.yaml", &plugin_manifest("second", AUDIT))?;
        let changed = |status: &StatusView| {
            is_active(status, "second")
                && plugin(status, "second").is_some_and(|plugin| plugin.digest != digest)
        };
        kubewitness.status_when(WITHIN, "the changed plugin", changed).await?;
        create_job(&lab.simulator, "two").await?;
        reaches(&lab.data("platform.db"), "two").await?;
        kubewitness.caught_up(WITHIN).await?;
        let trail = std::fs::read_to_string(lab.data("audit/trail.jsonl")).context("the ledger")?;
        ensure!(trail.contains("two"), "the new component was handed the new state: {trail}");

        std::fs::remove_file(lab.config().join("second.yaml"))?;
        let gone =
            |status: &StatusView| plugin(status, "second").is_none() && is_active(status, "persistence");
        kubewitness.status_when(WITHIN, "the plugin to be gone", gone).await?;
        create_job(&lab.simulator, "three").await?;
        reaches(&lab.data("platform.db"), "three").await?;
        kubewitness.stop().await?;
        same_story(&lab.simulator, &lab.options.data).await?;
        proofs(&lab.options.data).await
    })
    .await;
}

#[tokio::test]
async fn a_bad_change_leaves_the_last_good_one_running_also_across_a_restart_and_says_why() {
    in_scratch("run", async |scratch| {
        let lab = RunLab::new(scratch, example_copy(scratch)?).await?;
        let mut kubewitness = lab.start("run").await?;
        create_job(&lab.simulator, "one").await?;
        reaches(&lab.data("platform.db"), "one").await?;

        let good = std::fs::read_to_string(lab.config().join("persistence.yaml"))?;
        for (bad, parts) in [
            (
                good.replace("source: jobs", "source: jobz"),
                vec!["persistence.yaml:", "spec.subscribe[0].source", "jobz"],
            ),
            (good.replace("batch: 1024", "batch: many"), vec!["persistence.yaml:", "spec.delivery.batch"]),
            (good.replace("persistence.wasm", "missing.wasm"), vec!["persistence.yaml", "missing.wasm"]),
            (good.replace("grants:", "grants: ["), vec!["persistence.yaml:", "while parsing"]),
        ] {
            write(lab.config(), "persistence.yaml", &bad)?;
            says(&mut kubewitness, &parts).await?;
        }
        let says_why =
            |plugin: &PluginView| plugin.message.as_ref().is_some_and(|m| m.contains("persistence.yaml"));
        let shown = |status: &StatusView| {
            plugin(status, "persistence").is_some_and(|p| p.state != "failed" && says_why(p))
        };
        kubewitness.status_when(WITHIN, "the last good one with why the new one was refused", shown).await?;
        create_job(&lab.simulator, "two").await?;
        reaches(&lab.data("platform.db"), "two").await?;
        kubewitness.stop().await?;

        let mut again = lab.start("again").await?;
        create_job(&lab.simulator, "three").await?;
        reaches(&lab.data("platform.db"), "three").await.context("after a restart with the bad manifest")?;
        write(lab.config(), "persistence.yaml", &good)?;
        let whole = |status: &StatusView| {
            is_active(status, "persistence")
                && plugin(status, "persistence").is_some_and(|p| p.message.is_none())
        };
        again.status_when(WITHIN, "the good manifest to be taken again", whole).await?;
        again.stop().await?;
        same_story(&lab.simulator, &lab.options.data).await
    })
    .await;
}

#[tokio::test]
async fn a_plugin_that_never_fitted_is_shown_with_its_reason_and_holds_up_no_other() {
    in_scratch("run", async |scratch| {
        let lab = RunLab::new(scratch, example_copy(scratch)?).await?;
        write(
            lab.config(),
            "greedy.yaml",
            &plugin_manifest("greedy", &SECOND.replace("database: second", "database: nobodys")),
        )?;
        let mut kubewitness = lab.start("run").await?;
        create_job(&lab.simulator, "one").await?;
        reaches(&lab.data("platform.db"), "one").await?;
        let shown = |status: &StatusView| {
            plugin(status, "greedy").is_some_and(|plugin| {
                plugin.state == "failed"
                    && plugin.message.as_ref().is_some_and(|message| message.contains("nobodys"))
            })
        };
        kubewitness.status_when(WITHIN, "the refused plugin with its reason", shown).await?;
        let (code, stdout, stderr) =
            kubewitness_harness::command(&["check", &lab.config().to_string_lossy()]).await?;
        ensure!(
            code == Some(3) && format!("{stdout}{stderr}").contains("nobodys"),
            "{code:?} {stdout}{stderr}"
        );
        kubewitness.stop().await
    })
    .await;
}

#[tokio::test]
async fn a_folder_that_is_not_there_is_told_and_taken_once_it_is() {
    in_scratch("run", async |scratch| {
        let there = example_copy(scratch)?;
        let mut lab = RunLab::new(scratch, scratch.path().join("nowhere")).await?;
        lab.options.config = Some(scratch.path().join("nowhere"));
        let mut kubewitness = lab.start("run").await?;
        says(&mut kubewitness, &["nowhere", "is not a folder that can be read"]).await?;
        let (ready, why) = kubewitness.get("/readyz").await?;
        ensure!(ready == 503, "without a configuration it is not ready: {ready} {why}");
        std::fs::rename(there, lab.config())?;
        kubewitness
            .status_when(WITHIN, "the plugin of the folder", |status| is_active(status, "persistence"))
            .await?;
        kubewitness.stop().await
    })
    .await;
}
