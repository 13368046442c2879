//! While one component is compiled for minutes, everything else goes on.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use kubewitness_core::views::{PluginView, StatusView};
use kubewitness_harness::{Kubewitness, RunOptions, Scratch, Simulator, in_scratch, until};
use kubewitness_hostile::bomb;

use crate::limits::costly_components::{WITHIN, children};
use crate::support::{create_job, example_copy, plugin, plugin_manifest, simulator, write};

/// The longest that a stop may take while a component is compiled. Nothing that ends by itself would end in
/// this time.
const STOP: Duration = Duration::from_secs(20);

const GRANTED: &str = "subscribe: [{source: jobs}]\ngrants: {sql: [{name: main, database: platform}]}";

/// Within the limits, and still compiled for minutes: every function is quick, and there are many.
fn slow_component(folder: &Path) -> Result<()> {
    std::fs::write(folder.join("slow.wasm"), bomb(2000, 1000, 500)).context("writing the component")
}

fn slow(batch: u32) -> String {
    let spec = format!("module: {{file: slow.wasm}}\n{GRANTED}\ndelivery: {{batch: {batch}}}");
    plugin_manifest("slow", &spec)
}

fn quick(name: &str, more: &str) -> String {
    plugin_manifest(name, &format!("module: {{file: persistence.wasm}}\n{GRANTED}\n{more}"))
}

/// Its message, while it is compiled.
fn compiling(status: &StatusView) -> Option<&str> {
    let slow = plugin(status, "slow").filter(|slow| slow.state == "starting")?;
    slow.message
        .as_deref()
        .filter(|message| message.starts_with("the plugin's component is being compiled (since "))
}

fn is(status: &StatusView, name: &str, state: &str) -> bool {
    plugin(status, name).is_some_and(|plugin: &PluginView| plugin.state == state)
}

struct SlowCompile {
    simulator: Simulator,
    kubewitness: Kubewitness,
    options: RunOptions,
    folder: PathBuf,
}

impl SlowCompile {
    /// The component of the other plugin is compiled before, and lies in the cache.
    async fn begin(scratch: &Scratch) -> Result<Self> {
        let simulator = simulator(scratch).await?;
        let folder = example_copy(scratch)?;
        let host = std::fs::read_to_string(folder.join("host.yaml"))?;
        let limits = "      limits: {components: {compileCpu: 10m, compileTime: 10m}}\n";
        write(&folder, "host.yaml", &format!("{host}{limits}"))?;
        let options = RunOptions { compiles_anew: true, ..simulator.run_options(scratch, folder.clone())? };
        let mut kubewitness = Kubewitness::start("run", &options, scratch.path())?;
        kubewitness.answers().await?;
        kubewitness.status_when(WITHIN, "the first", |status| is(status, "persistence", "active")).await?;
        slow_component(&folder)?;
        // Before the other one in the order of files.
        write(&folder, "a-slow.yaml", &slow(1))?;
        let mut it = Self { simulator, kubewitness, options, folder };
        it.when("the slow one to be compiled", |status| compiling(status).is_some()).await?;
        Ok(it)
    }

    async fn when(&mut self, what: &str, holds: impl Fn(&StatusView) -> bool) -> Result<StatusView> {
        self.kubewitness.status_when(WITHIN, what, holds).await
    }

    /// The one process that compiles.
    fn child(&mut self) -> Result<u32> {
        let children = children(self.kubewitness.process().pid()?)?;
        ensure!(children.len() == 1, "one process compiles: {children:?}");
        Ok(children[0])
    }
}

async fn await_child_end(child: u32) -> Result<()> {
    until(STOP, "the process that compiles to end", async || {
        let status = std::fs::read_to_string(format!("/proc/{child}/status")).unwrap_or_default();
        Ok((status.is_empty() || status.contains("State:\tZ")).then_some(()))
    })
    .await
}

#[tokio::test]
async fn while_a_component_is_compiled_states_are_witnessed_and_other_plugins_start_change_and_end() {
    in_scratch("compiling", async |scratch| {
        let mut it = SlowCompile::begin(scratch).await?;
        let child = it.child()?;
        create_job(&it.simulator, "meanwhile").await?;
        write(&it.folder, "late.yaml", &quick("late", ""))?;
        it.when("another plugin to start and to get the job", |status| {
            is(status, "late", "active") && plugin(status, "late").is_some_and(|late| late.delivered > 0)
        })
        .await?;
        write(&it.folder, "late.yaml", &quick("late", "nonsense: 1"))?;
        it.when("its change to be refused", |status| is(status, "late", "degraded")).await?;
        std::fs::remove_file(it.folder.join("late.yaml"))?;
        it.when("it to be gone", |status| plugin(status, "late").is_none()).await?;
        ensure!(it.child()? == child, "the same process compiles all the while");

        let status = it.kubewitness.status().await?;
        let before = compiling(&status).context("it is still compiled")?.to_owned();
        write(&it.folder, "a-slow.yaml", &slow(2))?;
        it.when("the newer manifest", |status| compiling(status).is_some_and(|now| now != before)).await?;
        ensure!(it.child()? == child, "the component is the same, so compiling goes on");
        write(&it.folder, "a-slow.yaml", &quick("slow", ""))?;
        it.when("a newer manifest with another component", |status| is(status, "slow", "active")).await?;
        await_child_end(child).await?;
        it.kubewitness.stop().await
    })
    .await;
}

#[tokio::test]
async fn a_stop_while_a_component_is_compiled_ends_at_once_and_a_start_does_not_wait_for_it() {
    in_scratch("compiling", async |scratch| {
        let mut it = SlowCompile::begin(scratch).await?;
        let child = it.child()?;
        let since = Instant::now();
        it.kubewitness.stop().await?;
        ensure!(since.elapsed() < STOP, "it took {:?}", since.elapsed());
        await_child_end(child).await?;

        it.kubewitness = Kubewitness::start("run", &it.options, scratch.path())?;
        it.kubewitness.answers().await?;
        it.when("the others to run and the slow one to be compiled", |status| {
            is(status, "persistence", "active") && compiling(status).is_some()
        })
        .await?;
        it.kubewitness.stop().await
    })
    .await;
}
