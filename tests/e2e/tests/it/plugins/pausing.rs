//! A plugin is paused under load: the pause outlives a kill and a change of the manifest, and a resume hands on
//! every state once and in order.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kubewitness_core::views::StatusView;
use kubewitness_harness::{Kubewitness, Platform, Simulator, SimulatorOptions, command, in_scratch, until};

use crate::support::{
    AUDIT, CATCH_UP, everything_arrives, example_copy, platform_file, plugin, plugin_manifest, proofs,
    same_story, write,
};
use crate::watching::restart::first_sync;

const WITHIN: Duration = Duration::from_secs(120);
/// A number of states of which one kept batch is a small part.
const MORE: u64 = 300;
/// States of Jobs that retention leaves.
const KEPT: u64 = 40;

async fn order(run: &Kubewitness, verb: &str, reason: &str) -> Result<String> {
    let server = format!("http://{}", run.address());
    let line = [verb, "persistence", "--reason", reason, "--who", "ada", "--server", &server];
    let (code, stdout, stderr) = command(&line).await?;
    ensure!(code == Some(0), "{verb} ended with {code:?}: {stdout}{stderr}");
    Ok(stdout)
}

async fn command_text(run: &Kubewitness, line: &[&str]) -> Result<String> {
    let server = format!("http://{}", run.address());
    let (code, stdout, stderr) = command(&[line, &["--server", &server]].concat()).await?;
    ensure!(code == Some(0), "{line:?} ended with {code:?}: {stdout}{stderr}");
    Ok(stdout)
}

async fn rows(data: &Path) -> Result<i64> {
    Platform::open(&data.join("platform.db")).await?.count().await
}

/// It is paused, and states go on to come that it does not get.
async fn stays_paused(run: &mut Kubewitness, data: &Path, rows_before: i64) -> Result<()> {
    let is_paused = |status: &StatusView| plugin(status, "persistence").is_some_and(|p| p.state == "paused");
    let status = run.status_when(WITHIN, "it to be paused", is_paused).await?;
    let waiting = plugin(&status, "persistence").context("it")?.waiting;
    let more = |status: &StatusView| {
        plugin(status, "persistence").is_some_and(|p| p.waiting > waiting + MORE)
            && plugin(status, "audit").is_some_and(|p| p.waiting == 0 || p.delivered > waiting)
    };
    let status = run.status_when(WITHIN, "more states to wait for it", more).await?;
    let paused = plugin(&status, "persistence").and_then(|p| p.paused.clone()).context("the pause")?;
    ensure!((paused.who.as_str(), paused.why.as_str()) == ("ada", "the database moves"), "{paused:?}");
    ensure!(rows(data).await? == rows_before, "it got states while it was paused");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_outlives_a_kill_and_another_manifest_and_a_resume_hands_on_every_state_once() {
    in_scratch("pausing", async |scratch| {
        let simulated = SimulatorOptions::keeping_history();
        let simulator = Simulator::start(scratch.path(), &simulated).await?;
        let config = example_copy(scratch)?;
        write(&config, "audit.yaml", &plugin_manifest("audit", AUDIT))?;
        let host = std::fs::read_to_string(config.join("host.yaml"))?;
        let source = "{name: jobs, apiVersion: batch/v1, kind: Job";
        let kept = format!("{source}, retention: {{count: {KEPT}}}");
        write(&config, "host.yaml", &host.replace(source, &kept))?;
        let options = simulator.run_options(scratch, config.clone())?;
        let (data, platform) = (&options.data, platform_file(&options.data));
        let (_, load) = first_sync(&options, scratch.path(), &simulator).await?;
        let mut run = Kubewitness::start("run-paused", &options, scratch.path())?;
        platform.grows_by(&mut run, CATCH_UP).await?;
        let said = order(&run, "pause", "the database moves").await?;
        ensure!(said.contains("persistence is paused") && said.contains("kubewitness resume"), "{said}");
        ensure!(order(&run, "pause", "again").await?.contains("was paused already, by ada"));
        let is_idle = |status: &StatusView| {
            plugin(status, "persistence")
                .is_some_and(|p| p.state == "paused" && p.queue.unfinished_seconds <= 0.0)
        };
        run.status_when(WITHIN, "calls in progress to end", is_idle).await?;
        let before = rows(data).await?;
        stays_paused(&mut run, data, before).await?;
        run.kill().await?;

        let mut run = Kubewitness::start("run-killed", &options, scratch.path())?;
        run.answers().await?;
        stays_paused(&mut run, data, before).await?;
        let status = command_text(&run, &["status"]).await?;
        ensure!(status.contains("ada paused it at 20") && status.contains("the database moves"), "{status}");
        ensure!(status.contains("retention keeps"), "{status}");
        let is_held = |status: &StatusView| {
            let mut held = status.held.iter();
            held.any(|held| held.source == "jobs" && held.remedy.starts_with("ada has paused it since 20"))
        };
        run.status_when(WITHIN, "retention to be held by the pause", is_held).await?;

        let manifest = std::fs::read_to_string(config.join("persistence.yaml"))?;
        write(&config, "persistence.yaml", &manifest.replace("batch: 1024", "batch: 100"))?;
        let taken = until(WITHIN, "the other manifest to be taken", async || {
            let log = run.process().stderr();
            let is_it = |line: &str| line.contains("drained") && line.contains("persistence");
            Ok(log.lines().any(is_it).then_some(()))
        });
        taken.await.with_context(|| run.process().say())?;
        stays_paused(&mut run, data, before).await?;

        let said = order(&run, "resume", "it has moved").await?;
        ensure!(said.contains("persistence is resumed"), "{said}");
        platform.grows_by(&mut run, CATCH_UP).await?;
        let report = load.stop().await?;
        ensure!(report.errors == 0, "the workload met {} errors", report.errors);
        everything_arrives(&mut run, &simulator, &platform, 2).await?;
        let records = command_text(&run, &["deadletters", "records", "--plugin", "persistence"]).await?;
        ensure!(
            ["pause", "resume", "ada", "it has moved"].iter().all(|word| records.contains(word)),
            "{records}"
        );
        ensure!(!command_text(&run, &["status"]).await?.contains("paused"));
        run.stop().await?;
        same_story(&simulator, data).await?;
        proofs(data).await
    })
    .await;
}

#[tokio::test]
async fn a_pause_names_a_plugin_that_is_there_and_a_reason() {
    let (code, _, stderr) = command(&["pause", "persistence"]).await.expect("it runs");
    assert!(code == Some(2) && stderr.contains("--reason"), "{code:?} {stderr}");
    let (code, _, stderr) = command(&["pause", "../x", "--reason", "x"]).await.expect("it runs");
    assert!(code == Some(2) && stderr.contains("kubewitness plugins"), "{code:?} {stderr}");
}
