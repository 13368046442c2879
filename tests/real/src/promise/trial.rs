//! A cluster in which Jobs change, those that watch it, and the steps of faults.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, ensure};
use kubewitness_harness::{
    Dice, Kubewitness, Platform, RunOptions, Scratch, SmallDisk, project_root, until_ok,
};

use super::history::EtcdHistory;
use super::journal::JournalServers;
use super::plans::{FaultPlan, FaultStep, FaultTarget, WatcherRoute};
use super::workload::JobWorkload;
use super::{DATA, SOURCE, TrialOptions};
use crate::cluster::{LoadBalancer, RealCluster};
use crate::peers::{PeerCrowd, peak_kibibytes};

const EXAMPLE: &str = "deploy/examples/jobs-to-sqlite";
/// Both of the example.
const SOURCES: usize = 2;
/// A read-back after a long outage takes its time on a busy machine.
const ARRIVES_WITHIN: Duration = Duration::from_secs(180);
const NO_SERVER: &str = "a journal in PostgreSQL";
/// Changes of one step.
const CHANGES: (u64, u64) = (8, 40);

pub(super) struct PromiseTrial<'a> {
    scratch: &'a Scratch,
    options: &'a TrialOptions,
    cluster: RealCluster,
    pub(super) history: EtcdHistory,
    /// Between the watchers and the API servers.
    balancer: LoadBalancer,
    /// Between the second API server and etcd.
    link: LoadBalancer,
    second: Option<SocketAddr>,
    pub(super) run_options: RunOptions,
    run: Kubewitness,
    starts: u32,
    disk: Option<&'a SmallDisk>,
    /// `None`: the journal is a file in the data folder.
    journal: Option<JournalServers>,
    pub(super) peers: PeerCrowd,
    dice: Dice,
    workload: JobWorkload,
    /// The floors that were compacted when the backup was made.
    backup_floors: Vec<kubewitness_faults::TruthFloor>,
    rows_before: i64,
    /// The most memory that the controller had.
    pub(super) peak_kibibytes: u64,
    pub(super) done: BTreeMap<&'static str, u64>,
}

impl<'a> PromiseTrial<'a> {
    /// `disk` is where the controller's data are, if it is small.
    pub(super) async fn start(
        options: &'a TrialOptions,
        scratch: &'a Scratch,
        disk: Option<&'a SmallDisk>,
        dice: Dice,
    ) -> Result<Self> {
        let cluster = RealCluster::start(&options.programs, scratch).await?;
        let history = EtcdHistory::of(cluster.etcd_url(), SOURCE).await?;
        let balancer = LoadBalancer::to(cluster.api_address()).await?;
        let link = LoadBalancer::to(cluster.etcd_address()).await?;
        let kubeconfig = cluster.kubeconfig_by(balancer.address())?;
        let (journal, args) = match options.has_journal_server {
            true => {
                let file = scratch.path().join("journal-address");
                let servers = JournalServers::start(&file).await?;
                (Some(servers), vec!["--journal-file".to_owned(), file.display().to_string()])
            }
            false => (None, Vec::new()),
        };
        let run_options = RunOptions {
            args,
            kubeconfig: kubeconfig.clone(),
            config: Some(project_root().join(EXAMPLE)),
            data: scratch.folder(DATA)?,
            // Peers have the pauses of their defaults, too.
            has_real_timers: !options.peers.is_empty(),
            is_bound: true,
            ..RunOptions::default()
        };
        let mut run = Kubewitness::start("run-00", &run_options, scratch.path())?;
        run.answers().await?;
        run.listed(SOURCES, ARRIVES_WITHIN).await?;
        let peers = PeerCrowd::start(&options.peers, &kubeconfig, scratch.path()).await?;
        let workload = JobWorkload::new(options.seed);
        let mut trial = Self {
            scratch,
            options,
            cluster,
            history,
            balancer,
            link,
            second: None,
            run_options,
            run,
            starts: 1,
            disk,
            journal,
            peers,
            dice,
            workload,
            backup_floors: Vec::new(),
            rows_before: 0,
            peak_kibibytes: 0,
            done: BTreeMap::new(),
        };
        trial.note_effects().await?;
        Ok(trial)
    }

    pub(super) fn ready_after(&self) -> Duration {
        self.cluster.ready_after
    }

    pub(super) async fn suffer(&mut self, plan: &'static FaultPlan) -> Result<()> {
        for step in plan.steps {
            self.step(*step).await.with_context(|| format!("{step:?} of the fault {}", plan.name))?;
        }
        *self.done.entry(plan.name).or_default() += 1;
        Ok(())
    }

    async fn step(&mut self, step: FaultStep) -> Result<()> {
        match step {
            FaultStep::Change => self.change().await,
            FaultStep::Settle => self.settle().await,
            FaultStep::Wait(seconds) => {
                tokio::time::sleep(Duration::from_secs(seconds)).await;
                Ok(())
            }
            FaultStep::Kill(part) => self.kill(part).await,
            FaultStep::Start(part) => self.start_again(part).await,
            FaultStep::Stop(part) => self.signal(part, "STOP").await,
            FaultStep::Continue(part) => self.signal(part, "CONT").await,
            FaultStep::Compact => self.compact().await,
            FaultStep::BackUp => {
                self.backup_floors = self.history.floors();
                self.cluster.back_up().await
            }
            FaultStep::Restore => self.restore().await,
            FaultStep::SwitchMinor => self.switch_minor().await,
            FaultStep::RenewCertificate => self.cluster.renew_certificate(),
            FaultStep::StartSecond => {
                self.second = Some(self.cluster.start_second(self.link.address()).await?);
                Ok(())
            }
            FaultStep::StopSecond => {
                self.second = None;
                self.cluster.stop_second().await
            }
            FaultStep::Route(route) => self.route(route),
            FaultStep::FillDisk => self.disk.context("a small disk")?.fill(),
            FaultStep::MakeRoom => self.disk.context("a small disk")?.make_room(),
            FaultStep::Encrypt(is_encrypted) => self.cluster.encrypt(is_encrypted).await,
            FaultStep::Rewrite => self.workload.rewrite(&self.cluster).await,
            FaultStep::StartStandby => {
                tokio::task::block_in_place(|| self.journal.as_mut().context(NO_SERVER)?.start_standby())
            }
            FaultStep::FailOver => {
                tokio::task::block_in_place(|| self.journal.as_mut().context(NO_SERVER)?.fail_over())
            }
            FaultStep::Cut
            | FaultStep::Shut(_)
            | FaultStep::Delay(_)
            | FaultStep::Reorder(_)
            | FaultStep::LinkDelay(_)
            | FaultStep::LinkShut(_) => {
                self.trouble_connections(step);
                Ok(())
            }
        }
    }

    fn trouble_connections(&self, step: FaultStep) {
        match step {
            FaultStep::Cut => self.balancer.cut(),
            FaultStep::Shut(is_shut) => self.balancer.shut(is_shut),
            FaultStep::Delay(milliseconds) => self.balancer.delay(milliseconds),
            FaultStep::Reorder(is_reordered) => self.balancer.reorder(is_reordered),
            FaultStep::LinkDelay(milliseconds) => self.link.delay(milliseconds),
            FaultStep::LinkShut(is_shut) => {
                self.link.shut(is_shut);
                self.link.cut();
            }
            _ => {}
        }
    }

    async fn change(&mut self) -> Result<()> {
        for _ in 0..self.dice.between(CHANGES.0, CHANGES.1) {
            self.workload.step(&self.cluster).await?;
        }
        Ok(())
    }

    /// Writes an object after everything else, and waits until the oracle has read it. Returns its name and version.
    async fn mark(&mut self) -> Result<(String, u64)> {
        let name = self.workload.mark(&self.cluster).await?;
        let version = self.history.read_until(&name).await?;
        Ok((name, version))
    }

    /// Waits until the journal and the plugin have all that etcd has, and each peer its newest object.
    pub(super) async fn settle(&mut self) -> Result<()> {
        let (name, version) = self.mark().await?;
        let epoch = self.history.restores();
        self.run
            .status_when(ARRIVES_WITHIN, &format!("version {version} of {name} to be delivered"), |status| {
                let Some(source) = status.sources.iter().find(|source| source.name == SOURCE) else {
                    return false;
                };
                // A checkpoint that is there says that nothing is looked for any more.
                let checkpoint: u64 = source.checkpoint.parse().unwrap_or_default();
                let is_read = source.synced && source.walking == 0 && checkpoint + 1 >= version;
                // A controller that has just begun has no plugin yet.
                let [plugin] = &status.plugins[..] else { return false };
                let is_handed = plugin.lag_seq == 0 && plugin.waiting == 0 && plugin.dead == 0;
                is_read && source.epoch == epoch && is_handed && plugin.state != "starting"
            })
            .await?;
        self.peers.have_seen(&name).await
    }

    async fn kill(&mut self, part: FaultTarget) -> Result<()> {
        match part {
            FaultTarget::Server(part) => self.cluster.kill(part).await,
            FaultTarget::Watchers => {
                self.look_at_memory()?;
                self.peers.kill().await?;
                self.run.kill().await
            }
        }
    }

    fn look_at_memory(&mut self) -> Result<()> {
        self.peak_kibibytes = self.peak_kibibytes.max(peak_kibibytes(self.run.process())?);
        Ok(())
    }

    async fn start_again(&mut self, part: FaultTarget) -> Result<()> {
        match part {
            FaultTarget::Server(part) => self.cluster.start_again(part).await,
            FaultTarget::Watchers => {
                let name = format!("run-{:02}", self.starts);
                self.starts += 1;
                self.run = Kubewitness::start(&name, &self.run_options, self.scratch.path())?;
                self.peers.start_again().await?;
                self.run.answers().await.map(drop)
            }
        }
    }

    async fn signal(&mut self, part: FaultTarget, signal: &str) -> Result<()> {
        match part {
            FaultTarget::Server(part) => self.cluster.signal(part, signal).await,
            FaultTarget::Watchers => {
                self.peers.signal(signal).await?;
                self.run.process().signal(signal).await
            }
        }
    }

    /// The oracle has read everything first.
    async fn compact(&mut self) -> Result<()> {
        self.mark().await?;
        let since = SystemTime::now();
        let version = self.cluster.compact().await?;
        self.history.compacted(since, version)
    }

    async fn restore(&mut self) -> Result<()> {
        self.mark().await?;
        self.history.ends();
        let revision = self.cluster.restore().await?;
        self.history.read_restored(revision, self.backup_floors.clone()).await?;
        self.workload.look_again(&self.cluster).await
    }

    async fn switch_minor(&mut self) -> Result<()> {
        let known = self.options.other_minors.iter().chain([&self.options.programs.minor]);
        let others: Vec<_> = known.filter(|minor| *minor != self.cluster.minor()).collect();
        let chosen = self.dice.pick(&others).context("a second minor")?;
        self.cluster.switch_to(chosen).await
    }

    fn route(&self, route: WatcherRoute) -> Result<()> {
        let (first, second) = (self.cluster.api_address(), self.second);
        match route {
            WatcherRoute::First => self.balancer.route(&[first]),
            WatcherRoute::Second => self.balancer.route(&[second.context("a second API server")?]),
            WatcherRoute::InTurn => self.balancer.route(&[first, second.context("a second API server")?]),
        }
        Ok(())
    }

    /// From now on each try to write a row into the granted database is noted.
    async fn note_effects(&mut self) -> Result<()> {
        self.settle().await?;
        // The plugin makes its table with its first row, a moment after the status says that nothing waits.
        until_ok(ARRIVES_WITHIN, "the first row of the granted database", async || {
            let rows = Platform::open(&self.granted()).await?.count().await?;
            ensure!(rows > 0, "it has no row");
            Ok(())
        })
        .await?;
        let mut platform = Platform::open_to_note(&self.granted()).await?;
        platform.note_effects().await?;
        self.rows_before = platform.count().await?;
        platform.close().await
    }

    fn granted(&self) -> PathBuf {
        self.run_options.data.join("platform.db")
    }

    pub(super) async fn gaps(&self) -> Result<Vec<kubewitness_core::Gap>> {
        super::judge::gaps(&self.run).await
    }

    /// Ends the watchers, and proves that no state had two effects.
    pub(super) async fn stop_watchers(&mut self) -> Result<()> {
        self.look_at_memory()?;
        self.run.stop().await?;
        self.peers.kill().await?;
        let mut platform = Platform::open(&self.granted()).await?;
        platform.one_effect_each(self.rows_before).await.context("the granted database")
    }

    /// Kills everything after a failure, so that nothing writes any more into what is kept.
    pub(super) async fn kill_all(mut self) {
        // One that has ended already can't be killed.
        self.run.kill().await.ok();
        self.peers.kill_all().await;
        self.cluster.kill_all().await;
    }

    pub(super) async fn stop_servers(self) -> Result<()> {
        self.cluster.stop().await
    }
}
