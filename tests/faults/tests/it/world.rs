//! One cluster, one wire, one journal, one source; and what is asked of them.

mod judgement;

use std::collections::{BTreeMap, HashSet};
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kubewitness_core::clock::Clock;
use kubewitness_core::config::SourceSpec;
use kubewitness_core::status::StatusRules;
use kubewitness_faults::TruthFloor;
use kubewitness_journal::{Journal, JournalOptions};
use kubewitness_playground::apiserver::{ApiServer, ApiServerOptions, HistoryLimits};
use kubewitness_watch::{
    ApiConnection, CacheListers, ConnectOptions, SourceError, SourceHandle, SourceSnapshot, SourceTask,
    WalkBudget, WatchTuning, connect_to_server,
};
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::killed_journal::{MortalJournal, ProcessDeath};
use crate::seeds::Dice;
use crate::wire::FaultyWire;
use crate::workload::{JOBS, OURS, TEAM, WatchedKind, WriterHerd};

const BACKUP: &str = "backup";

pub const SOURCE: &str = "watched";
/// Objects of one page of a list.
pub const PAGE: usize = 3;

/// Nothing that is waited for takes this long, however slow the machine is.
const DEADLINE: Duration = Duration::from_secs(240);
const POLL: Duration = Duration::from_millis(3);
/// A source that was told of a change has mostly written it by then.
const SOON: Duration = Duration::from_millis(40);

/// The longest pause of a source under test; what it must recover from is bounded by a few of them.
pub const LONGEST_PAUSE: Duration = Duration::from_millis(60);

#[derive(Clone)]
pub struct WorldOptions {
    pub kind: WatchedKind,
    /// Only objects of our team.
    pub scoped: bool,
    /// `None`: bookmarks never come.
    pub bookmark_every: Option<Duration>,
    pub idle: Duration,
    pub audit: Duration,
    pub walk: WalkBudget,
    /// From asking for one object at an old version to the answer.
    pub one_answer: Duration,
    /// Versions are words without an order.
    pub opaque: bool,
    /// The source comes as a service account with this name, whose rights are what they are given.
    pub account: Option<&'static str>,
}

impl Default for WorldOptions {
    fn default() -> Self {
        Self {
            kind: JOBS,
            scoped: false,
            bookmark_every: Some(Duration::from_millis(50)),
            idle: Duration::from_secs(20),
            audit: Duration::ZERO,
            walk: WalkBudget::default(),
            one_answer: Duration::from_secs(8),
            opaque: false,
            account: None,
        }
    }
}

/// Time in which no two moments are the same, so that before and after are never in doubt.
#[derive(Default)]
pub struct TickClock(AtomicU64);

impl Clock for TickClock {
    fn now_ms(&self) -> u64 {
        self.0.fetch_add(1, Ordering::SeqCst) + 1
    }

    fn elapsed(&self) -> Duration {
        Duration::from_millis(self.now_ms())
    }
}

pub struct RunningSource {
    pub handle: SourceHandle,
    mortal: Arc<MortalJournal>,
    stop: CancellationToken,
    task: JoinHandle<Result<(), SourceError>>,
}

pub struct FaultWorld {
    pub options: WorldOptions,
    pub dice: Dice,
    pub server: ApiServer,
    /// Another one over the same store.
    pub second: ApiServer,
    pub wire: FaultyWire,
    pub herd: WriterHerd,
    pub clock: Arc<TickClock>,
    /// uid and version of what was made unreadable on its way.
    pub poisoned: HashSet<(String, u64)>,
    pub unread_allowed: bool,
    pub unordered: bool,
    killed: bool,
    pub running: Option<RunningSource>,
    /// The floors of each history.
    floors: Vec<Vec<TruthFloor>>,
    /// Names that were in use when a backup was made.
    backup: Option<BTreeMap<String, u64>>,
    /// Between these versions of the server the first list was made.
    pub listed: (u64, u64),
    folder: TempDir,
    serving: CancellationToken,
}

impl Drop for FaultWorld {
    fn drop(&mut self) {
        self.serving.cancel();
    }
}

impl FaultWorld {
    pub async fn new(seed: u64, options: WorldOptions) -> Result<Self> {
        let server_options = ApiServerOptions {
            hooks: true,
            keep_truth: true,
            enforce_rbac: options.account.is_some(),
            bookmark_every: options.bookmark_every.unwrap_or(Duration::from_secs(3600)),
            // Nothing is forgotten unless a test says so: what is readable is then known.
            history: HistoryLimits { age: None, ..HistoryLimits::default() },
            seed: Some(seed),
            ..ApiServerOptions::default()
        };
        let (server, serving) = ApiServer::bind(server_options).await?;
        let stop = CancellationToken::new();
        tokio::spawn(serving.serve(stop.clone()));
        let (second, serving) = server.beside((Ipv4Addr::LOCALHOST, 0).into()).await?;
        tokio::spawn(serving.serve(stop.clone()));
        let folder = tempfile::tempdir()?;
        let wire = FaultyWire::new(server.address(), options.opaque).await?;
        // Others write through the second one, whatever becomes of the first.
        let direct = connection(&folder, &second.kubeconfig()).await?;
        let mut dice = Dice::new(seed);
        let herd = WriterHerd::new(&direct, options.kind, Dice::new(dice.throw()));
        Ok(Self {
            options,
            dice,
            server,
            second,
            wire,
            herd,
            clock: Arc::default(),
            poisoned: HashSet::new(),
            unread_allowed: false,
            unordered: false,
            killed: false,
            running: None,
            floors: vec![Vec::new()],
            backup: None,
            listed: (0, 0),
            folder,
            serving: stop,
        })
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("journal.db")
    }

    // ---- the source ----------------------------------------------------------------------

    fn spec(&self) -> SourceSpec {
        let mut spec = self.options.kind.source(SOURCE);
        spec.audit = kubewitness_core::config::Duration(self.options.audit);
        if self.options.scoped {
            spec.match_labels.insert(TEAM.to_string(), OURS.to_string());
        }
        spec
    }

    fn tuning(&mut self) -> WatchTuning {
        WatchTuning {
            page: PAGE,
            idle: self.options.idle,
            first_pause: Duration::from_millis(5),
            longest_pause: LONGEST_PAUSE,
            journal_pause: LONGEST_PAUSE,
            checkpoint_every: Duration::from_millis(10),
            walk: self.options.walk.clone(),
            one_answer: self.options.one_answer,
            seed: Some(self.dice.throw()),
            ..WatchTuning::default()
        }
    }

    /// Starts it, as a process would: the journal is opened, the source is warm from it.
    pub async fn start(&mut self) -> Result<()> {
        ensure!(self.running.is_none(), "it runs");
        if !self.path().exists() {
            self.listed = (self.server.version(), self.server.version());
        }
        let journal = self.open().await?;
        let kubeconfig = match self.options.account {
            Some(account) => self.server.kubeconfig_for("default", account),
            None => self.server.kubeconfig(),
        };
        let by_wire = kubeconfig.replace(&self.server.address().to_string(), &self.wire.address.to_string());
        let connection = connection(&self.folder, &by_wire).await?;
        let (mortal, listers, stop) =
            (MortalJournal::new(journal), CacheListers::default(), CancellationToken::new());
        let (source, handle) = SourceTask::new(
            &connection,
            self.spec(),
            Arc::clone(&mortal) as _,
            Arc::clone(&self.clock) as _,
            Arc::new(StatusRules::builtin()),
            listers.clone(),
        );
        listers.add(handle.clone());
        let task = tokio::spawn(source.with_tuning(self.tuning()).run(stop.clone()));
        self.running = Some(RunningSource { handle, mortal, stop, task });
        Ok(())
    }

    pub async fn start_synced(&mut self) -> Result<()> {
        self.start().await?;
        self.until("it watches", |world| world.view().synced && world.wire.open_watches() > 0).await
    }

    async fn open(&self) -> Result<Journal> {
        let options = JournalOptions { clock: Arc::clone(&self.clock) as _, ..JournalOptions::default() };
        Journal::open(&self.path(), options).await.context("the journal is opened")
    }

    /// As SIGKILL does it: nothing is finished. What is on disk must be true at that moment.
    pub async fn kill(&mut self) -> Result<()> {
        self.kill_beside_a_lie().await?;
        self.check_the_checkpoint().await
    }

    /// A bookmark of a server that lies may have led the checkpoint past what was never sent, so nothing is asked of it.
    pub async fn kill_beside_a_lie(&mut self) -> Result<()> {
        let running = self.running.take().context("it doesn't run")?;
        running.task.abort();
        self.killed = true;
        // Aborted, or an end of its own, which is what is to be known.
        if let Ok(ended) = running.task.await {
            ended.context("it ended by itself")?;
        }
        // A dead process writes nothing more, and a connection that was dropped might: what is
        // under way comes to its end, as if the kill had come after it.
        running.mortal.close().await?;
        Ok(())
    }

    /// Killed at one of its next writes, while `meanwhile` is done.
    pub async fn kill_at(
        &mut self,
        death: ProcessDeath,
        meanwhile: impl AsyncFnOnce(&mut Self) -> Result<()>,
    ) -> Result<()> {
        let mortal = Arc::clone(&self.running.as_ref().context("it doesn't run")?.mortal);
        mortal.dies(death);
        meanwhile(self).await?;
        let deadline = Instant::now() + DEADLINE;
        // Several changes may be one write.
        while tokio::time::timeout(SOON, mortal.died()).await.is_err() {
            ensure!(Instant::now() < deadline, "it never wrote again; it says {:?}", self.view());
            self.herd.live().await?;
        }
        drop(mortal);
        self.kill().await
    }

    /// In good order.
    pub async fn stop(&mut self) -> Result<()> {
        let running = self.running.take().context("it doesn't run")?;
        running.stop.cancel();
        let ended = tokio::time::timeout(DEADLINE, running.task).await.context("it stops")?;
        ended?.context("it ended well")?;
        Ok(running.mortal.close().await?)
    }

    pub fn view(&self) -> SourceSnapshot {
        self.running.as_ref().map(|running| running.handle.snapshot_view()).unwrap_or_default()
    }

    /// Polls with a deadline.
    pub async fn until(&self, what: &str, is: impl Fn(&Self) -> bool) -> Result<()> {
        let deadline = Instant::now() + DEADLINE;
        while !is(self) {
            if let Some(running) = &self.running {
                ensure!(!running.task.is_finished(), "the source ended while waiting until {what}");
            }
            ensure!(Instant::now() < deadline, "waited in vain until {what}; it says {:?}", self.view());
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }

    // ---- the servers ---------------------------------------------------------------------

    /// Nothing below a version (`None`: the newest) can be read from now on.
    pub fn compact(&mut self, version: Option<u64>) -> u64 {
        let since_ms = self.clock.now_ms();
        let floor = self.server.compact(version);
        self.note_floor(since_ms, floor);
        floor
    }

    fn note_floor(&mut self, since_ms: u64, version: u64) {
        self.floors.last_mut().expect("of the first history at least").push(TruthFloor { since_ms, version });
    }

    pub fn back_up(&mut self) {
        self.server.back_up(BACKUP);
        self.backup = Some(self.herd.live.clone());
    }

    /// The servers go back to the backup, and to its version unless that is bumped.
    pub fn restore(&mut self, bump: u64) -> Result<u64> {
        let version = self.server.restore(BACKUP, bump).context("there is a backup")?;
        self.herd.live = self.backup.clone().context("there is a backup")?;
        self.herd.epoch += 1;
        self.floors.push(Vec::new());
        let (kind, since_ms) = (self.options.kind, self.clock.now_ms());
        let floor = self.server.truth(kind.group, kind.resource).floor;
        self.note_floor(since_ms, floor);
        Ok(version)
    }

    /// As SIGKILL does it to an API server: connections break, and its port refuses.
    pub async fn server_dies(&mut self) {
        self.server.power_off().await;
    }

    /// With an empty watch cache.
    pub async fn server_comes_back(&mut self) {
        self.server.power_on().await;
    }

    /// The source can't reach the servers until the wire is up again.
    pub async fn away(&mut self) -> Result<()> {
        self.wire.down(true);
        self.until("nothing is watched", |world| world.wire.open_watches() == 0).await
    }

    /// It can, but the servers have forgotten where it was.
    pub fn back_expired(&mut self) {
        self.server.forget_watch_window();
        self.wire.down(false);
    }

    /// Tells what was asked, for one who looks at a failure.
    pub async fn tell(&mut self) -> String {
        let view = self.view();
        let ended = match self.running.take().filter(|running| running.task.is_finished()) {
            Some(running) => format!("it ended with {:?}\n", running.task.await),
            None => String::new(),
        };
        let asked = self.wire.asked(|_| true);
        let last = asked.iter().rev().take(40).rev();
        let last: Vec<_> =
            last.map(|asked| format!("{:?} ago {}", asked.at.elapsed(), asked.target)).collect();
        format!("{ended}it says {view:?}\nit asked last:\n  {}", last.join("\n  "))
    }
}

async fn connection(folder: &TempDir, kubeconfig: &str) -> Result<ApiConnection> {
    let path = folder.path().join("kubeconfig");
    std::fs::write(&path, kubeconfig)?;
    Ok(connect_to_server(&ConnectOptions { kubeconfig: Some(path), context: None }).await?)
}
