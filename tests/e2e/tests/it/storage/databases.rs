//! Plugins' rows in PostgreSQL, MariaDB and MySQL: the controller is killed, the database is stopped, killed and
//! paused, and afterwards every version is there exactly once and in order, with one effect each.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use kubewitness_harness::{
    DatabaseServer, Dice, Kubewitness, PASSWORD, Platform, PlatformAddress, RunOptions, Scratch, Simulator,
    SimulatorOptions, SqlService, in_scratch, kills, seed, skip,
};

use crate::support::{
    AUDIT, BackgroundLoad, CATCH_UP, create_job, everything_arrives, plugin_manifest, proofs_with,
    same_story_in, simulator, write,
};

/// Each way in which something can end comes once.
const ROUNDS: u64 = 5;
const RATE: f64 = 60.0;
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

fn options(scratch: &Scratch, simulator: &Simulator, service: SqlService, url: &str) -> Result<RunOptions> {
    let database = format!("{}: {{urlFrom: {{env: {ADDRESS}}}}}", service.scheme());
    Ok(RunOptions {
        env: vec![(ADDRESS.to_owned(), url.to_owned())],
        ..simulator.run_options(scratch, configuration(scratch, &database)?)?
    })
}

async fn every_state_has_one_effect(
    service: SqlService,
    scratch: &Scratch,
    mut server: DatabaseServer,
) -> Result<()> {
    let simulated = SimulatorOptions::keeping_history();
    let simulator = Simulator::start(scratch.path(), &simulated).await?;
    let url = server.create_database()?;
    let options = options(scratch, &simulator, service, &url)?;
    let platform = PlatformAddress::Server(url);
    let first = Kubewitness::start("run-first", &options, scratch.path())?;
    let (load, before) = BackgroundLoad::start_noted(first, &simulator, &platform, RATE).await?;
    let mut dice = Dice::new(seed());
    let mut kubewitness = Kubewitness::start("run-00", &options, scratch.path())?;
    for round in 1..=kills(ROUNDS) {
        let grown = platform.grows_by(&mut kubewitness, CATCH_UP).await;
        grown.with_context(|| format!("round {round}"))?;
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
    platform.grows_by(&mut kubewitness, CATCH_UP).await?;
    let report = load.stop().await?;
    ensure!(report.errors == 0, "the workload met {} errors", report.errors);
    everything_arrives(&mut kubewitness, &simulator, &platform, 1).await?;
    kubewitness.stop().await?;
    same_story_in(&simulator, platform.open().await?).await?;
    platform.open().await?.one_effect_each(before).await?;
    proofs_with(&options.data, &options.env).await
}

async fn a_database_that_is_away_holds_up_its_plugin_alone(
    service: SqlService,
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
    service: SqlService,
    scratch: &Scratch,
    server: DatabaseServer,
) -> Result<()> {
    let simulator = simulator(scratch).await?;
    let url = server.create_database()?;
    let file = scratch.path().join("address");
    std::fs::write(&file, url.replace(PASSWORD, "wrong-word"))?;
    let database = format!("{}: {{urlFrom: {{file: {}}}}}", service.scheme(), file.display());
    let options = simulator.run_options(scratch, configuration(scratch, &database)?)?;
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

fn own(service: SqlService) -> Result<Option<DatabaseServer>> {
    DatabaseServer::start(service, &[])
}

/// Each test with where its server comes from.
macro_rules! for_each_server {
    (@ $name:ident $service:ident [$($test:ident: $server:path),* $(,)?]) => {
        mod $name {
            use super::*;

            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                let service = SqlService::$service;
                let Some(server) = $server(service).expect("the server starts") else {
                    let test = concat!("databases::", stringify!($name), "::", stringify!($test));
                    return skip(test, &format!("{service} is not installed"));
                };
                in_scratch(stringify!($name), async |scratch| {
                    super::$test(service, scratch, server).await
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
