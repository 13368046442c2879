//! Configurations that would cost somebody their data, if they were taken as they are.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kubewitness_core::views::{PluginView, StatusView};
use kubewitness_harness::{Kubewitness, ProcessEnd, RunOptions, Scratch, Simulator, in_scratch};

use crate::support::{SOURCES, create_job, example_copy, plugin_manifest, same_story, simulator, write};

const WITHIN: Duration = Duration::from_secs(120);
const WATCH: &str = "module: {file: persistence.wasm}
subscribe: [{source: jobs, mode: every, start: beginning}]
grants: {sql: [{name: main, database: platform}]}";

struct MisuseLab {
    simulator: Simulator,
    options: RunOptions,
    kubewitness: Kubewitness,
}

impl MisuseLab {
    /// The example, running, with the plugin `persistence` active.
    async fn start(scratch: &Scratch) -> Result<Self> {
        let simulator = simulator(scratch).await?;
        let options = simulator.run_options(scratch, example_copy(scratch)?)?;
        let mut kubewitness = Kubewitness::start("run", &options, scratch.path())?;
        kubewitness
            .status_when(WITHIN, "the example", |status| state(status, "persistence") == Some("active"))
            .await?;
        kubewitness.listed(SOURCES.len(), WITHIN).await?;
        Ok(Self { simulator, options, kubewitness })
    }

    fn write(&self, file: &str, text: &str) -> Result<()> {
        write(self.options.config.as_deref().context("a folder")?, file, text)
    }

    fn remove(&self, file: &str) -> Result<()> {
        Ok(std::fs::remove_file(self.options.config.as_deref().context("a folder")?.join(file))?)
    }

    /// It still works, and nothing was lost on the way.
    async fn still_works(mut self, job: &str) -> Result<()> {
        create_job(&self.simulator, job).await?;
        self.kubewitness.status_when(WITHIN, "the job", |status| status.journal.states > 0).await?;
        self.kubewitness.caught_up(WITHIN).await?;
        self.kubewitness.stop().await?;
        same_story(&self.simulator, &self.options.data).await
    }
}

fn find<'a>(status: &'a StatusView, name: &str) -> Option<&'a PluginView> {
    status.plugins.iter().find(|plugin| plugin.name == name)
}

fn state<'a>(status: &'a StatusView, name: &str) -> Option<&'a str> {
    find(status, name).map(|plugin| plugin.state.as_str())
}

#[tokio::test]
async fn a_name_that_is_a_path_is_refused_and_taking_it_out_again_removes_nobodys_files() {
    in_scratch("misuse", async |scratch| {
        let mut lab = MisuseLab::start(scratch).await?;
        let victim = scratch.folder("data/victim")?;
        std::fs::write(victim.join("thesis.txt"), "years")?;
        let named = plugin_manifest("odd", WATCH).replace("{name: odd}", "{name: ../victim}");
        lab.write("odd.yaml", &named)?;
        let refused = |status: &StatusView| {
            find(status, "odd")
                .and_then(|plugin| plugin.message.as_deref())
                .is_some_and(|m| m.contains("metadata.name"))
        };
        lab.kubewitness.status_when(WITHIN, "the refusal", refused).await?;
        lab.remove("odd.yaml")?;
        lab.kubewitness.status_when(WITHIN, "it to be gone", |status| find(status, "odd").is_none()).await?;
        ensure!(victim.join("thesis.txt").is_file(), "somebody's file was removed");
        lab.still_works("one").await
    })
    .await;
}

#[tokio::test]
async fn a_second_config_map_cannot_take_over_a_plugin_and_its_removal_leaves_the_first_one_running() {
    in_scratch("misuse", async |scratch| {
        let mut lab = MisuseLab::start(scratch).await?;
        // Sorts before the rightful one, and is complete.
        let thief = plugin_manifest("thief", WATCH).replace("{name: thief}", "{name: persistence}");
        lab.write("a-thief.yaml", &thief)?;
        let refused = |status: &StatusView| {
            let message = find(status, "thief").and_then(|plugin| plugin.message.as_deref());
            message.is_some_and(|message| message.contains("persistence"))
                && state(status, "persistence") == Some("active")
        };
        lab.kubewitness.status_when(WITHIN, "the refusal of the second", refused).await?;
        lab.remove("a-thief.yaml")?;
        lab.kubewitness
            .status_when(WITHIN, "it to be gone", |status| find(status, "thief").is_none())
            .await?;
        let kept = lab.options.data.join("last-good/persistence/plugin.wasm");
        ensure!(kept.is_file(), "the last good one is still kept");
        lab.still_works("one").await
    })
    .await;
}

#[tokio::test]
async fn the_journal_is_nobodys_database_and_a_source_cannot_become_another_under_its_name() {
    in_scratch("misuse", async |scratch| {
        let mut lab = MisuseLab::start(scratch).await?;
        let folder = lab.options.config.clone().context("a folder")?;
        let host = std::fs::read_to_string(folder.join("host.yaml"))?;
        for (bad, word) in [
            (host.replace("path: second.db", "path: ./journal.db"), "the controller's own"),
            (host.replace("kind: Job}", "kind: Job, namespace: other}"), "give the new source a new name"),
        ] {
            ensure!(bad != host, "the example has changed: {host}");
            lab.write("host.yaml", &bad)?;
            let told = |status: &StatusView| status.problems.iter().any(|problem| problem.contains(word));
            lab.kubewitness.status_when(WITHIN, word, told).await?;
            let (code, why) = lab.kubewitness.get("/readyz").await?;
            ensure!(code == 200, "what was taken before goes on: {why}");
            lab.write("host.yaml", &host)?;
            let well = |status: &StatusView| status.problems.is_empty();
            lab.kubewitness.status_when(WITHIN, "all to be well", well).await?;
        }
        lab.still_works("one").await
    })
    .await;
}

#[tokio::test]
async fn a_journal_that_is_removed_while_nothing_comes_ends_the_run_and_the_next_start_says_that_it_begins_anew()
 {
    in_scratch("misuse", async |scratch| {
        let mut lab = MisuseLab::start(scratch).await?;
        create_job(&lab.simulator, "one").await?;
        lab.kubewitness.caught_up(WITHIN).await?;
        // What a cursor had to be saved for is saved.
        tokio::time::sleep(Duration::from_secs(2)).await;
        let file = lab.options.data.join("journal.db");
        for name in [file.clone(), file.with_extension("db-wal"), file.with_extension("db-shm")] {
            std::fs::remove_file(name)?;
        }
        let process = lab.kubewitness.process();
        let ended = process.wait(WITHIN).await?;
        let told = process.stderr();
        ensure!(ended == ProcessEnd::Code(1), "it ended with {ended:?}; {}", process.say());
        ensure!(
            told.contains("removed or replaced") && told.contains("Put a copy back"),
            "{}",
            process.say()
        );
        ensure!(!file.exists(), "nothing is begun in its place");

        let mut again = Kubewitness::start("again", &lab.options, scratch.path())?;
        again.caught_up(WITHIN).await?;
        let told = again.process().stderr();
        ensure!(told.contains("the journal is a new one"), "{told}");
        again.stop().await?;
        let mut third = Kubewitness::start("third", &lab.options, scratch.path())?;
        third.caught_up(WITHIN).await?;
        ensure!(!third.process().stderr().contains("the journal is a new one"), "it is told once");
        third.stop().await
    })
    .await;
}
