//! Plugins' rows in PostgreSQL, MariaDB and MySQL: the controller is killed, the database is stopped, killed and
//! paused, and afterwards every version is there exactly once and in order, with one effect each.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use kubewitness_harness::{
    DatabaseServer, Dice, Kubewitness, PASSWORD, Platform, RunOptions, Scratch, Service, Simulator,
    SimulatorOptions, database_of, in_scratch, seed, skip, until,
};

use crate::support::{
    AUDIT, Load, SOURCES, create_job, plugin_manifest, proofs_with, same_story_in, simulator, write,
};

/// Each way in which something can end comes several times.
const ROUNDS: u64 = 15;
const RATE: f64 = 60.0;
const CATCH_UP: Duration = Duration::from_secs(180);
/// The variable that holds the database's address.
pub const ADDRESS: &str = "KUBEWITNESS_TEST_DATABASE";

pub const PERSISTENCE: &str = "module: {file: persistence.wasm}
subscribe:
  - {source: jobs, mode: every, start: beginning}
  - {source: pods, mode: every, start: beginning}
grants:
  sql: [{name: main, database: platform}]
delivery: {batch: 64}";

/// A host with a database of this kind, the persistence plugin in it, and a ledger beside it.
pub fn configuration(scratch: &Scratch, database: &str) -> Result<PathBuf> {
    let folder = scratch.folder("config")?;
    let host = format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: host\n  labels: {{kubewitness.dev/host: \"true\"}}\n\
         data:\n  host.yaml: |\n    apiVersion: kubewitness.dev/v1alpha1\n    kind: Host\n    metadata: {{name: host}}\n    \
         spec:\n      sources:\n        - {{name: jobs, apiVersion: batch/v1, kind: Job}}\n        \
         - {{name: pods, apiVersion: v1, kind: Pod}}\n      databases:\n        - {{name: platform, {database}}}\n      \
         ledgers:\n        - {{name: trail, path: audit/trail.jsonl}}\n"
    );
    write(&folder, "host.yaml", &host)?;
    write(&folder, "persistence.yaml", &plugin_manifest("persistence", PERSISTENCE))?;
    Ok(folder)
}

fn options(scratch: &Scratch, simulator: &Simulator, service: Service, url: &str) -> Result<RunOptions> {
    Ok(RunOptions {
        kubeconfig: simulator.kubeconfig().to_path_buf(),
        config: Some(configuration(
            scratch,
            &format!("{}: {{urlFrom: {{env: {ADDRESS}}}}}", service.scheme()),
        )?),
        data: scratch.folder("data")?,
        env: vec![(ADDRESS.to_owned(), url.to_owned())],
        ..RunOptions::default()
    })
}

/// Waits until more is in the history than when it was asked.
async fn grows(kubewitness: &mut Kubewitness, url: &str) -> Result<i64> {
    let count = async || match Platform::connect(url).await {
        Ok(mut platform) => platform.count().await.unwrap_or(0),
        Err(_) => 0,
    };
    let before = count().await;
    let grown = until(CATCH_UP, "the history to grow", async || {
        if let Some(ended) = kubewitness.process().ended()? {
            bail!("it ended with {ended:?}");
        }
        let now = count().await;
        Ok((now > before).then_some(now))
    });
    let grown = grown.await;
    grown.with_context(|| kubewitness.process().say())
}

/// The first start may list, and what was before that list nobody can witness, so the load begins
/// after it. Answers how many rows there are when the notes of effects begin.
async fn begin(
    options: &RunOptions,
    scratch: &Scratch,
    simulator: &Simulator,
    server: &DatabaseServer,
    url: &str,
) -> Result<(Load, i64)> {
    let database = database_of(url);
    let mut first = Kubewitness::start("run-first", options, scratch.path())?;
    first.answers().await?;
    first.listed(SOURCES.len(), CATCH_UP).await?;
    let load = Load::start(simulator, seed(), RATE);
    grows(&mut first, url).await?;
    first.kill().await?;
    // Its last commit may still be on its way: what it was counts as before once it is settled.
    let idle = until(CATCH_UP, "the last transaction to end", async || {
        let idle = match server.service() {
            Service::Postgres => {
                let open = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'kubewitness'";
                server.run(Some(database), open)?.trim() == "0"
            }
            Service::MariaDb | Service::MySql => {
                server.sessions()?.iter().all(|session| session.database != database)
            }
        };
        Ok(idle.then_some(()))
    });
    idle.await?;
    let mut platform = Platform::connect(url).await?;
    platform.note_effects().await?;
    Ok((load, platform.count().await?))
}

async fn every_state_has_one_effect(
    service: Service,
    scratch: &Scratch,
    mut server: DatabaseServer,
) -> Result<()> {
    let simulated = SimulatorOptions {
        bookmark_every: Some("1s".to_owned()),
        // However slow the machine is: nothing is compacted that a restart still needs.
        args: vec!["--history-age".to_owned(), "0s".to_owned()],
        ..SimulatorOptions::default()
    };
    let simulator = Simulator::start(scratch.path(), &simulated).await?;
    let url = server.create_database()?;
    let options = options(scratch, &simulator, service, &url)?;
    let (load, before) = begin(&options, scratch, &simulator, &server, &url).await?;
    let mut dice = Dice::new(seed());
    let mut kubewitness = Kubewitness::start("run-00", &options, scratch.path())?;
    for round in 1..=ROUNDS {
        grows(&mut kubewitness, &url).await.with_context(|| format!("round {round}"))?;
        dice.pause(700).await;
        let restarted = |name: &str| Kubewitness::start(name, &options, scratch.path());
        let name = format!("run-{round:02}");
        match round % 5 {
            0 => {
                kubewitness.kill().await?;
                kubewitness = restarted(&name)?;
            }
            1 => {
                // The host is killed while its database is silent: what it sent is done later.
                server.pause()?;
                dice.pause(300).await;
                kubewitness.kill().await?;
                kubewitness = restarted(&name)?;
                dice.pause(1500).await;
                server.resume()?;
            }
            2 => {
                server.kill()?;
                dice.pause(1500).await;
                server.start_again()?;
            }
            3 => {
                if dice.below(2) == 0 {
                    server.stop()?;
                } else {
                    server.stop_at_once()?;
                }
                // The host starts while there is no database.
                kubewitness.kill().await?;
                kubewitness = restarted(&name)?;
                dice.pause(1500).await;
                server.start_again()?;
            }
            _ => {
                server.pause()?;
                dice.pause(3000).await;
                server.resume()?;
            }
        }
    }
    grows(&mut kubewitness, &url).await?;
    let report = load.stop().await?;
    ensure!(report.errors == 0, "the workload met {} errors", report.errors);
    everything_arrives(&mut kubewitness, &simulator).await?;
    kubewitness.stop().await?;
    same_story_in(&simulator, Platform::connect(&url).await?).await?;
    Platform::connect(&url).await?.one_effect_each(before).await?;
    proofs_with(&options.data, &options.env).await
}

/// Every version that the server had is delivered, and none is parked.
pub async fn everything_arrives(kubewitness: &mut Kubewitness, simulator: &Simulator) -> Result<()> {
    let mut versions = 0;
    for (_, group, resource) in SOURCES {
        versions += simulator.truth(group, resource).await?.entries.len() as u64;
    }
    let what = format!("{versions} states to be delivered, and none to be parked");
    let arrived = kubewitness.status_when(CATCH_UP, &what, |status| {
        !status.plugins.is_empty()
            && status
                .plugins
                .iter()
                .all(|plugin| plugin.waiting == 0 && plugin.delivered == versions && plugin.dead == 0)
    });
    arrived.await.map(drop)
}

async fn a_database_that_is_away_holds_up_its_plugin_alone(
    service: Service,
    scratch: &Scratch,
    mut server: DatabaseServer,
) -> Result<()> {
    let simulator = simulator(scratch).await?;
    let url = server.create_database()?;
    let options = options(scratch, &simulator, service, &url)?;
    let config = options.config.clone().context("a folder")?;
    write(&config, "audit.yaml", &plugin_manifest("audit", AUDIT))?;
    server.stop()?;
    create_job(&simulator, "early").await?;
    let mut kubewitness = Kubewitness::start("run", &options, scratch.path())?;
    kubewitness.answers().await?;
    let waits = kubewitness.status_when(CATCH_UP, "one plugin to wait and the other to go on", |status| {
        let plugin = |name: &str| status.plugins.iter().find(|plugin| plugin.name == name);
        let persistence = plugin("persistence").is_some_and(|plugin| {
            let why = plugin.message.as_deref().unwrap_or_default();
            plugin.delivered == 0
                && plugin.waiting > 0
                && plugin.dead == 0
                && why.contains("can't be reached")
        });
        persistence && plugin("audit").is_some_and(|plugin| plugin.delivered > 0 && plugin.waiting == 0)
    });
    let status = serde_json::to_string(&waits.await?)?;
    server.start_again()?;
    kubewitness.caught_up(CATCH_UP).await?;
    kubewitness.stop().await?;
    same_story_in(&simulator, Platform::connect(&url).await?).await?;
    let process = kubewitness.process();
    let logs = format!("{}{}{status}", process.stdout(), process.stderr());
    ensure!(!logs.contains(PASSWORD), "the database's password was told");
    Ok(())
}

/// The password may be rotated, so it is read for each connection, and nothing has to be restarted.
async fn a_wrong_password_is_told_and_mended_while_it_runs(
    service: Service,
    scratch: &Scratch,
    server: DatabaseServer,
) -> Result<()> {
    let simulator = simulator(scratch).await?;
    let url = server.create_database()?;
    let file = scratch.path().join("address");
    std::fs::write(&file, url.replace(PASSWORD, "wrong-word"))?;
    let database = format!("{}: {{urlFrom: {{file: {}}}}}", service.scheme(), file.display());
    let options = RunOptions {
        kubeconfig: simulator.kubeconfig().to_path_buf(),
        config: Some(configuration(scratch, &database)?),
        data: scratch.folder("data")?,
        ..RunOptions::default()
    };
    create_job(&simulator, "early").await?;
    let mut kubewitness = Kubewitness::start("run", &options, scratch.path())?;
    kubewitness.answers().await?;
    let told = kubewitness.status_when(CATCH_UP, "what to do about the password", |status| {
        status.plugins.iter().any(|plugin| {
            let why = plugin.message.as_deref().unwrap_or_default();
            plugin.waiting > 0 && plugin.dead == 0 && why.contains("the password: correct them in what")
        })
    });
    told.await?;
    std::fs::write(&file, &url)?;
    kubewitness.caught_up(CATCH_UP).await?;
    kubewitness.stop().await?;
    let said = kubewitness.process().stderr();
    ensure!(!said.contains(PASSWORD) && !said.contains("wrong-word"), "a password was told: {said}");
    same_story_in(&simulator, Platform::connect(&url).await?).await
}

fn own(service: Service) -> Result<Option<DatabaseServer>> {
    DatabaseServer::start(service, &[])
}

/// Each test with where its server comes from.
macro_rules! for_each_server {
    (@ $name:ident $service:ident [$($test:ident: $server:path),* $(,)?]) => {
        mod $name {
            use super::*;

            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                let service = Service::$service;
                let Some(server) = $server(service).expect("the server starts") else {
                    let test = concat!("databases::", stringify!($name), "::", stringify!($test));
                    return skip(test, &format!("{service} is not installed"));
                };
                in_scratch(stringify!($name), async |scratch| {
                    let told = super::$test(service, scratch, server).await;
                    told.with_context(|| format!("again with `KUBEWITNESS_SEED={} cargo xtask test databases`", seed()))
                })
                .await;
            })*
        }
    };
    ($($tests:tt)*) => {
        for_each_server!(@ postgres Postgres [$($tests)*]);
        for_each_server!(@ mariadb MariaDb [$($tests)*]);
        for_each_server!(@ mysql MySql [$($tests)*]);
    };
}

for_each_server!(
    every_state_has_one_effect: own,
    a_database_that_is_away_holds_up_its_plugin_alone: own,
    a_wrong_password_is_told_and_mended_while_it_runs: DatabaseServer::shared,
);
