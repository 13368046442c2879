//! The promise: what the controller witnessed is etcd's history, each version once and in order, whoever is killed.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use kubewitness_harness::{
    Dice, Kubewitness, PlatformAddress, RunOptions, Scratch, Truth, command_json, compare, compare_newest,
    project_root,
};
use serde::Serialize;

use crate::cluster::{RealCluster, ServerPrograms};
use crate::history::EtcdHistory;
use crate::workload::JobWorkload;

const EXAMPLE: &str = "deploy/examples/jobs-to-sqlite";
/// The example's source, and its resource in etcd.
const SOURCE: &str = "jobs";
/// Both of the example.
const SOURCES: usize = 2;
const ARRIVES_WITHIN: Duration = Duration::from_secs(120);
/// Changes between two faults.
const CHANGES: u64 = 40;

/// The figures of a run that held.
#[derive(Debug, Default, Serialize)]
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
    let mut trial = KillTrial::start(programs, scratch, seed).await?;
    for _ in 0..faults {
        trial.one_fault().await?;
    }
    let truth = trial.everything_arrived().await?;
    trial.run.stop().await?;
    judge(&truth, &trial.options, &mut trial.report).await?;
    trial.cluster.stop().await?;
    trial.report.seconds = begun.elapsed().as_secs_f64();
    Ok(trial.report)
}

/// A controller that witnesses a cluster in which Jobs change.
struct KillTrial<'a> {
    scratch: &'a Scratch,
    cluster: RealCluster,
    history: EtcdHistory,
    options: RunOptions,
    run: Kubewitness,
    dice: Dice,
    workload: JobWorkload,
    report: PromiseReport,
}

impl<'a> KillTrial<'a> {
    async fn start(programs: &ServerPrograms, scratch: &'a Scratch, seed: u64) -> Result<Self> {
        let cluster = RealCluster::start(programs, scratch).await?;
        let history = EtcdHistory::of(cluster.etcd_url(), SOURCE).await?;
        let options = RunOptions {
            kubeconfig: cluster.kubeconfig().to_path_buf(),
            config: Some(project_root().join(EXAMPLE)),
            data: scratch.folder("data")?,
            ..RunOptions::default()
        };
        let mut run = Kubewitness::start("run-first", &options, scratch.path())?;
        run.answers().await?;
        run.listed(SOURCES, ARRIVES_WITHIN).await?;
        let report = PromiseReport {
            version: programs.minor.clone(),
            seed,
            ready_seconds: cluster.ready_after.as_secs_f64(),
            ..PromiseReport::default()
        };
        let (dice, workload) = (Dice::new(seed), JobWorkload::new(seed));
        Ok(Self { scratch, cluster, history, options, run, dice, workload, report })
    }

    async fn one_fault(&mut self) -> Result<()> {
        let changes = self.dice.between(CHANGES / 2, CHANGES);
        self.changes(changes).await?;
        match self.dice.below(3) {
            0 => {
                self.cluster.restart_api_server().await?;
                self.report.server_kills += 1;
            }
            1 => {
                // What was not witnessed yet would be lost to a gap: another promise.
                self.everything_arrived().await?;
                self.cluster.compact().await?;
                self.report.compactions += 1;
            }
            _ => {
                self.run.kill().await?;
                let changes = self.dice.below(CHANGES);
                self.changes(changes).await?;
                self.report.controller_kills += 1;
                let name = format!("run-{:02}", self.report.controller_kills);
                self.run = Kubewitness::start(&name, &self.options, self.scratch.path())?;
                self.run.answers().await?;
            }
        }
        Ok(())
    }

    async fn changes(&mut self, count: u64) -> Result<()> {
        for _ in 0..count {
            self.workload.step(&self.cluster).await?;
        }
        Ok(())
    }

    /// Waits until the plugin has been handed all that etcd has, and returns it.
    async fn everything_arrived(&mut self) -> Result<Truth> {
        let mark = self.workload.mark(&self.cluster).await?;
        let truth = self.history.through(&mark).await?;
        arrived(&mut self.run, truth.entries.len()).await?;
        Ok(truth)
    }
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

async fn judge(truth: &Truth, options: &RunOptions, report: &mut PromiseReport) -> Result<()> {
    let mut platform = PlatformAddress::File(options.data.join("platform.db")).open().await?;
    let rows = platform.history(SOURCE).await?;
    compare(truth, &rows).context("etcd's history and what the plugin wrote")?;
    compare_newest(&rows, &platform.status(SOURCE).await?).context("the newest states")?;
    let data = options.data.to_string_lossy();
    let verified = command_json(&["journal", "verify", "--data", &data, "-o", "json"]).await?;
    ensure!(verified["ok"] == true, "journal verify said {verified}");
    report.versions = rows.len();
    report.objects = rows.iter().map(|row| &row.uid).collect::<BTreeSet<_>>().len();
    Ok(())
}
