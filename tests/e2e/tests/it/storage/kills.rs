//! Killed at random moments under load, with journal and granted database in SQLite,
//! PostgreSQL, MariaDB and MySQL: every version is there once and in order, with one effect each.
//!
//! CI kills a few times, at other moments in each run; `KUBEWITNESS_KILLS=300 cargo xtask test kills` does more.

use anyhow::{Context, Result, ensure};
use kubewitness_core::views::StatusView;
use kubewitness_harness::{
    DatabaseServer, Dice, Kubewitness, PlatformAddress, RunOptions, Scratch, Simulator, SimulatorOptions,
    SqlService, in_scratch, kills, seed, skip,
};

use crate::storage::databases::{ADDRESS, PERSISTENCE, configuration};
use crate::support::{
    AUDIT, BackgroundLoad, CATCH_UP, everything_arrives, journal_proof, plugin_manifest, proofs_of,
    same_story_in, write,
};

/// The number of kills that CI has the time for; the other tests of kills have theirs.
const KILLS: u64 = 5;
/// The journal is proven in between, so that what breaks it is found near its cause.
const PROVEN_EVERY: u64 = 25;
const RATE: f64 = 60.0;

struct KillWorld<'a> {
    scratch: &'a Scratch,
    simulator: Simulator,
    options: RunOptions,
    platform: PlatformAddress,
    _server: Option<DatabaseServer>,
}

impl<'a> KillWorld<'a> {
    async fn new(scratch: &'a Scratch, server: Option<DatabaseServer>) -> Result<Self> {
        let simulated = SimulatorOptions::keeping_history();
        let simulator = Simulator::start(scratch.path(), &simulated).await?;
        let mut options = simulator.run_options(scratch, None)?;
        let (platform, database) = match &server {
            None => {
                let file = options.data.join("platform.db");
                (PlatformAddress::File(file), "sqlite: {path: platform.db}".to_owned())
            }
            Some(server) => {
                let (url, journal) = (server.create_database()?, server.create_database()?);
                write(scratch.path(), "journal-address", &journal)?;
                let file = scratch.path().join("journal-address").to_string_lossy().into_owned();
                options.args = vec!["--journal-file".to_owned(), file];
                options.env = vec![(ADDRESS.to_owned(), url.clone())];
                let database = format!("{}: {{urlFrom: {{env: {ADDRESS}}}}}", server.service().scheme());
                (PlatformAddress::Server(url), database)
            }
        };
        let config = configuration(scratch, &database)?;
        write(&config, "audit.yaml", &plugin_manifest("audit", AUDIT))?;
        options.config = Some(config);
        Ok(Self { scratch, simulator, options, platform, _server: server })
    }

    fn start(&self, name: &str) -> Result<Kubewitness> {
        Kubewitness::start(name, &self.options, self.scratch.path())
    }

    fn place(&self) -> Vec<&str> {
        self.options.args.iter().map(String::as_str).collect()
    }
}

/// A moment of its start, of its first states, or of its work.
async fn a_moment_passes(world: &KillWorld<'_>, run: &mut Kubewitness, dice: &mut Dice) -> Result<()> {
    match dice.below(4) {
        0 => dice.pause(1500).await,
        1 => {
            run.answers().await?;
            dice.pause(300).await;
        }
        _ => {
            world.platform.grows_by(run, CATCH_UP).await?;
            dice.pause(700).await;
        }
    }
    Ok(())
}

async fn survives(scratch: &Scratch, server: Option<DatabaseServer>) -> Result<()> {
    let world = KillWorld::new(scratch, server).await?;
    let first = world.start("run-first")?;
    let (load, before) = BackgroundLoad::start_noted(first, &world.simulator, &world.platform, RATE).await?;
    kill_repeatedly(&world).await?;
    ends_whole(&world, load, before).await
}

async fn kill_repeatedly(world: &KillWorld<'_>) -> Result<()> {
    let mut dice = Dice::new(seed());
    for round in 1..=kills(KILLS) {
        let name = format!("run-{round:03}");
        let mut run = world.start(&name)?;
        a_moment_passes(world, &mut run, &mut dice).await.with_context(|| name.clone())?;
        run.kill().await?;
        if round % PROVEN_EVERY == 0 {
            let proof = journal_proof(&world.options.data, &world.place()).await;
            proof.with_context(|| format!("after {name}"))?;
        }
    }
    Ok(())
}

async fn ends_whole(world: &KillWorld<'_>, load: BackgroundLoad, before: i64) -> Result<()> {
    let mut last = world.start("run-last")?;
    world.platform.grows_by(&mut last, CATCH_UP).await?;
    let report = load.stop().await?;
    ensure!(report.errors == 0, "the workload met {} errors", report.errors);
    let printed = last.process().stderr();
    ensure!(!printed.contains("are lost when its machine dies"), "the server does not sync: {printed}");
    everything_arrives(&mut last, &world.simulator, &world.platform, 2).await?;
    last.stop().await?;
    same_story_in(&world.simulator, world.platform.open().await?).await?;
    world.platform.open().await?.one_effect_each(before).await?;
    proofs_of(&world.options.data, &world.place()).await
}

/// The states of the pods from before their subscription are handed over amid kills, and no job's again.
async fn survives_with_an_added_source(scratch: &Scratch) -> Result<()> {
    let world = KillWorld::new(scratch, None).await?;
    let subscribe = |spec: &str| {
        let config = world.options.config.as_deref().context("the folder of the configuration")?;
        write(config, "persistence.yaml", &plugin_manifest("persistence", spec))
    };
    subscribe(&PERSISTENCE.replace("  - {source: pods, mode: every, start: beginning}\n", ""))?;
    let first = world.start("run-first")?;
    let (load, before) = BackgroundLoad::start_noted(first, &world.simulator, &world.platform, RATE).await?;
    let mut jobs = world.start("run-jobs")?;
    world.platform.grows_by(&mut jobs, CATCH_UP).await?;
    let has_pods = |status: &StatusView| status.journal.states > 1_000;
    jobs.status_when(CATCH_UP, "states of pods that the plugin does not get", has_pods).await?;
    jobs.kill().await?;
    subscribe(PERSISTENCE)?;
    kill_repeatedly(&world).await?;
    ends_whole(&world, load, before).await
}

async fn on(server: Option<DatabaseServer>) {
    in_scratch("kills", async |scratch| survives(scratch, server).await).await;
}

/// As in production, and unlike the servers of other tests: each commit is on the disk when it is confirmed. Replicated
/// groups, and some who host MySQL, take no table without a primary key.
fn strictness(service: SqlService) -> &'static [&'static str] {
    match service {
        SqlService::Postgres => &["-c", "fsync=on"],
        SqlService::MariaDb => {
            &["--innodb-flush-log-at-trx-commit=1", "--log-bin=changes", "--sync-binlog=1"]
        }
        SqlService::MySql => &[
            "--innodb-flush-log-at-trx-commit=1",
            "--log-bin=changes",
            "--sync-binlog=1",
            "--sql-require-primary-key=ON",
        ],
    }
}

async fn on_server(store: &str, service: SqlService) {
    match DatabaseServer::start(service, strictness(service)).expect("the server starts") {
        Some(server) => on(Some(server)).await,
        None => skip(&format!("kills::{store}"), &format!("{service} is not installed")),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_source_that_is_added_to_a_plugin_at_work_has_one_effect_each_from_its_beginning() {
    in_scratch("added-source", async |scratch| survives_with_an_added_source(scratch).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_has_every_version_once_with_one_effect_after_kills_at_random_moments() {
    on(None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_has_every_version_once_with_one_effect_after_kills_at_random_moments() {
    on_server("postgres", SqlService::Postgres).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mariadb_has_every_version_once_with_one_effect_after_kills_at_random_moments() {
    on_server("mariadb", SqlService::MariaDb).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mysql_has_every_version_once_with_one_effect_after_kills_at_random_moments() {
    on_server("mysql", SqlService::MySql).await;
}
