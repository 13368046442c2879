//! The promise: what the controller witnessed is etcd's history, each version once and in order, whoever is killed.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use kubewitness_harness::{
    Dice, Kubewitness, PlatformAddress, RunOptions, Scratch, command_json, compare, compare_newest,
    project_root,
};
use serde::Serialize;

use crate::cluster::{Cluster, ServerPrograms};
use crate::history::History;
use crate::workload::Workload;

const EXAMPLE: &str = "deploy/examples/jobs-to-sqlite";
/// The example's source, and its resource in etcd.
const SOURCE: &str = "jobs";
/// Both of the example.
const SOURCES: usize = 2;
const ARRIVES_WITHIN: Duration = Duration::from_secs(120);
/// Changes between two faults.
const CHANGES: u64 = 40;

/// What a run proved, in figures.
#[derive(Debug, Serialize)]
pub struct PromiseReport {
    pub version: String,
    pub seed: u64,
    pub versions: usize,
    pub objects: usize,
    pub controller_kills: u64,
    pub server_kills: u64,
    pub compactions: u64,
    pub ready_seconds: f64,
    pub seconds: f64,
}

/// Changes Jobs while the controller and the API server are killed, and compacts what was witnessed.
pub async fn survives_kills(
    programs: &ServerPrograms,
    scratch: &Scratch,
    seed: u64,
    faults: u64,
) -> Result<PromiseReport> {
    let begun = Instant::now();
    let mut cluster = Cluster::start(programs, scratch).await?;
    let history = History::of(cluster.etcd_url(), SOURCE).await?;
    let options = RunOptions {
        kubeconfig: cluster.kubeconfig().to_path_buf(),
        config: Some(project_root().join(EXAMPLE)),
        data: scratch.folder("data")?,
        ..RunOptions::default()
    };
    let mut run = Kubewitness::start("run-first", &options, scratch.path())?;
    run.answers().await?;
    run.listed(SOURCES, ARRIVES_WITHIN).await?;
    let (mut dice, mut workload) = (Dice::new(seed), Workload::new(seed));
    let mut report = PromiseReport {
        version: programs.version.0.clone(),
        seed,
        versions: 0,
        objects: 0,
        controller_kills: 0,
        server_kills: 0,
        compactions: 0,
        ready_seconds: cluster.ready_after.as_secs_f64(),
        seconds: 0.0,
    };
    for fault in 0..faults {
        for _ in 0..dice.between(CHANGES / 2, CHANGES) {
            workload.step(&cluster).await?;
        }
        match dice.below(3) {
            0 => {
                cluster.restart_api_server().await?;
                report.server_kills += 1;
            }
            1 => {
                // What was not witnessed yet would be lost to a gap: another promise.
                let mark = workload.mark(&cluster).await?;
                arrived(&mut run, history.through(&mark).await?.entries.len()).await?;
                cluster.compact().await?;
                report.compactions += 1;
            }
            _ => {
                run.kill().await?;
                for _ in 0..dice.below(CHANGES) {
                    workload.step(&cluster).await?;
                }
                run = Kubewitness::start(&format!("run-{fault:02}"), &options, scratch.path())?;
                run.answers().await?;
                report.controller_kills += 1;
            }
        }
    }
    let mark = workload.mark(&cluster).await?;
    let truth = history.through(&mark).await?;
    arrived(&mut run, truth.entries.len()).await?;
    run.stop().await?;
    judge(&truth, &options, &mut report).await?;
    cluster.stop().await?;
    report.seconds = begun.elapsed().as_secs_f64();
    Ok(report)
}

/// Waits until the plugin has been handed so many states.
async fn arrived(run: &mut Kubewitness, states: usize) -> Result<()> {
    let what = format!("{states} states to be delivered");
    run.status_when(ARRIVES_WITHIN, &what, |status| {
        // A controller that has just begun has no plugin yet.
        let [plugin] = &status.plugins[..] else { return false };
        plugin.delivered >= states as u64 && plugin.waiting == 0 && plugin.dead == 0
    })
    .await
    .map(drop)
}

async fn judge(
    truth: &kubewitness_harness::Truth,
    options: &RunOptions,
    report: &mut PromiseReport,
) -> Result<()> {
    let mut platform = PlatformAddress::File(options.data.join("platform.db")).open().await?;
    let rows = platform.history(SOURCE).await?;
    compare(truth, &rows).context("etcd's history and what the plugin wrote")?;
    compare_newest(&rows, &platform.status(SOURCE).await?).context("the newest states")?;
    let data = options.data.to_string_lossy();
    let verified = command_json(&["journal", "verify", "--data", &data, "-o", "json"]).await?;
    ensure!(verified["ok"] == true, "journal verify said {verified}");
    report.versions = rows.len();
    report.objects = rows.iter().map(|row| &row.uid).collect::<std::collections::BTreeSet<_>>().len();
    Ok(())
}
