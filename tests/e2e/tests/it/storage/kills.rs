//! Killed at hundreds of random moments under load, with journal and granted database in SQLite,
//! PostgreSQL, MariaDB and MySQL: every version is there once and in order, with one effect each.
//!
//! CI kills a few times; `KUBEWITNESS_KILLS=300 cargo xtask test kills` does more. The seed is printed,
//! and a failing one says how it is replayed.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use kubewitness_harness::{
    DatabaseServer, Dice, Kubewitness, Platform, RunOptions, Scratch, Service, Simulator, SimulatorOptions,
    in_scratch, kills, seed, skip, until,
};

use crate::storage::databases::{ADDRESS, configuration};
use crate::support::{AUDIT, Load, SOURCES, journal_proof, plugin_manifest, proofs_of, same_story_in, write};

/// What CI has the time for; the other tests of kills have theirs.
const KILLS: u64 = 5;
/// The journal is proven in between, so that what breaks it is found near its cause.
const PROVEN_EVERY: u64 = 25;
const RATE: f64 = 60.0;
const WITHIN: Duration = Duration::from_secs(180);

/// Where the persistence plugin writes.
enum Sink {
    File(PathBuf),
    Server(String),
}

impl Sink {
    async fn platform(&self) -> Result<Platform> {
        match self {
            Self::File(path) => Platform::open(path).await,
            Self::Server(url) => Platform::connect(url).await,
        }
    }

    async fn note_effects(&self) -> Result<()> {
        let mut platform = match self {
            Self::File(path) => Platform::open_to_note(path).await?,
            Self::Server(url) => Platform::connect(url).await?,
        };
        platform.note_effects().await
    }
}

struct World<'a> {
    scratch: &'a Scratch,
    simulator: Simulator,
    options: RunOptions,
    sink: Sink,
    _server: Option<DatabaseServer>,
}

impl<'a> World<'a> {
    async fn new(scratch: &'a Scratch, server: Option<DatabaseServer>) -> Result<Self> {
        let simulated = SimulatorOptions {
            bookmark_every: Some("1s".to_owned()),
            // However slow the machine is: nothing is compacted that a restart still needs.
            args: vec!["--history-age".to_owned(), "0s".to_owned()],
            ..SimulatorOptions::default()
        };
        let simulator = Simulator::start(scratch.path(), &simulated).await?;
        let mut options = RunOptions {
            kubeconfig: simulator.kubeconfig().to_path_buf(),
            data: scratch.folder("data")?,
            ..RunOptions::default()
        };
        let (sink, database) = match &server {
            None => (Sink::File(options.data.join("platform.db")), "sqlite: {path: platform.db}".to_owned()),
            Some(server) => {
                let (url, journal) = (server.create_database()?, server.create_database()?);
                write(scratch.path(), "journal-address", &journal)?;
                let file = scratch.path().join("journal-address").to_string_lossy().into_owned();
                options.args = vec!["--journal-file".to_owned(), file];
                options.env = vec![(ADDRESS.to_owned(), url.clone())];
                let database = format!("{}: {{urlFrom: {{env: {ADDRESS}}}}}", server.service().scheme());
                (Sink::Server(url), database)
            }
        };
        let config = configuration(scratch, &database)?;
        write(&config, "audit.yaml", &plugin_manifest("audit", AUDIT))?;
        options.config = Some(config);
        Ok(Self { scratch, simulator, options, sink, _server: server })
    }

    fn start(&self, name: &str) -> Result<Kubewitness> {
        Kubewitness::start(name, &self.options, self.scratch.path())
    }

    async fn count(&self) -> i64 {
        match self.sink.platform().await {
            Ok(mut platform) => platform.count().await.unwrap_or(0),
            Err(_) => 0,
        }
    }

    /// Waits until more is in the history than when it was asked.
    async fn grows(&self, run: &mut Kubewitness) -> Result<()> {
        let before = self.count().await;
        let grown = until(WITHIN, "the history to grow", async || {
            if let Some(ended) = run.process().ended()? {
                bail!("it ended with {ended:?}");
            }
            Ok((self.count().await > before).then_some(()))
        });
        let grown = grown.await;
        grown.with_context(|| run.process().say())
    }

    /// The first start may list, and what was before that list nobody can witness, so the load begins
    /// after it. Answers how many rows there are when the notes of effects begin.
    async fn begin(&self) -> Result<(Load, i64)> {
        let mut first = self.start("run-first")?;
        first.answers().await?;
        first.listed(SOURCES.len(), WITHIN).await?;
        // Stopped in order, so that no commit is still on its way when the notes begin.
        let load = Load::start(&self.simulator, seed(), RATE);
        self.grows(&mut first).await?;
        first.stop().await?;
        self.sink.note_effects().await?;
        Ok((load, self.sink.platform().await?.count().await?))
    }

    fn place(&self) -> Vec<&str> {
        self.options.args.iter().map(String::as_str).collect()
    }

    async fn everything_arrives(&self, run: &mut Kubewitness) -> Result<()> {
        let mut versions = 0;
        for (_, group, resource) in SOURCES {
            versions += self.simulator.truth(group, resource).await?.entries.len() as u64;
        }
        let what = format!("{versions} states to be delivered");
        let arrived = run.status_when(WITHIN, &what, |status| {
            let whole = |plugin: &kubewitness_core::views::PluginView| {
                plugin.waiting == 0 && plugin.delivered == versions && plugin.dead == 0
            };
            status.plugins.len() == 2 && status.plugins.iter().all(whole)
        });
        if let Err(error) = arrived.await {
            // What is missing says more than how many.
            let story = same_story_in(&self.simulator, self.sink.platform().await?).await;
            return Err(error.context(format!("{story:?}")));
        }
        Ok(())
    }
}

/// A moment of its start, of its first states, or of its work.
async fn a_moment_passes(world: &World<'_>, run: &mut Kubewitness, dice: &mut Dice) -> Result<()> {
    match dice.below(4) {
        0 => dice.pause(1500).await,
        1 => {
            run.answers().await?;
            dice.pause(300).await;
        }
        _ => {
            world.grows(run).await?;
            dice.pause(700).await;
        }
    }
    Ok(())
}

async fn survives(scratch: &Scratch, server: Option<DatabaseServer>) -> Result<()> {
    let world = World::new(scratch, server).await?;
    let (load, before) = world.begin().await?;
    let mut dice = Dice::new(seed());
    for round in 1..=kills(KILLS) {
        let name = format!("run-{round:03}");
        let mut run = world.start(&name)?;
        a_moment_passes(&world, &mut run, &mut dice).await.with_context(|| name.clone())?;
        run.kill().await?;
        if round % PROVEN_EVERY == 0 {
            let proof = journal_proof(&world.options.data, &world.place()).await;
            proof.with_context(|| format!("after {name}"))?;
        }
    }
    let mut last = world.start("run-last")?;
    world.grows(&mut last).await?;
    let report = load.stop().await?;
    ensure!(report.errors == 0, "the workload met {} errors", report.errors);
    world.everything_arrives(&mut last).await?;
    last.stop().await?;
    same_story_in(&world.simulator, world.sink.platform().await?).await?;
    world.sink.platform().await?.one_effect_each(before).await?;
    proofs_of(&world.options.data, &world.place()).await
}

async fn on(store: &str, server: Option<DatabaseServer>) {
    let (seed, kills) = (seed(), kills(KILLS));
    let again = format!("KUBEWITNESS_SEED={seed} KUBEWITNESS_KILLS={kills} cargo xtask test kills::{store}");
    println!("{kills} kills with seed {seed}; again with `{again}`");
    in_scratch("kills", async |scratch| {
        survives(scratch, server).await.with_context(|| format!("again with `{again}`"))
    })
    .await;
}

/// Replicated groups, and some who host MySQL, take no table without a primary key.
fn server_of(service: Service) -> Result<Option<DatabaseServer>> {
    match service {
        Service::MySql => DatabaseServer::start(service, &["--sql-require-primary-key=ON"]),
        Service::Postgres | Service::MariaDb => DatabaseServer::shared(service),
    }
}

async fn on_server(store: &str, service: Service) {
    match server_of(service).expect("the server starts") {
        Some(server) => on(store, Some(server)).await,
        None => skip(&format!("kills::{store}"), &format!("{service} is not installed")),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_has_every_version_once_with_one_effect_after_kills_at_random_moments() {
    on("sqlite", None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_has_every_version_once_with_one_effect_after_kills_at_random_moments() {
    on_server("postgres", Service::Postgres).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mariadb_has_every_version_once_with_one_effect_after_kills_at_random_moments() {
    on_server("mariadb", Service::MariaDb).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mysql_has_every_version_once_with_one_effect_after_kills_at_random_moments() {
    on_server("mysql", Service::MySql).await;
}
