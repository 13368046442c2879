//! With its journal in PostgreSQL, MariaDB or MySQL: killed at any moment, and the database stopped and
//! started again meanwhile, it has every version once and in order. A database that is away when it
//! starts is waited for, one that refuses it is told, and a second process is turned away.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use kubewitness_core::views::PluginView;
use kubewitness_harness::{
    DatabaseServer, Dice, Kubewitness, PASSWORD, ProcessEnd, RunOptions, Scratch, Simulator,
    SimulatorOptions, SqlService, command, in_scratch, seed, skip, until,
};

use crate::support::{
    AUDIT, CATCH_UP, create_job, everything_arrives, example_copy, platform_file, plugin_manifest, proofs_of,
    same_story, simulator, write,
};
use crate::watching::restart::first_sync;

/// Each way in which something can end comes once.
const ROUNDS: u64 = 6;
/// The longest wait for a refusal: a lock is asked for a while, since its holder may just be dying.
const REFUSED_WITHIN: Duration = Duration::from_secs(60);
const WITHIN: Duration = Duration::from_secs(120);

/// Configuration, data folder, and a file with the journal's address.
fn options(scratch: &Scratch, simulator: &Simulator, address: &str) -> Result<RunOptions> {
    let config = example_copy(scratch)?;
    write(&config, "audit.yaml", &plugin_manifest("audit", AUDIT))?;
    write(scratch.path(), "journal-address", address)?;
    let file = scratch.path().join("journal-address").to_string_lossy().into_owned();
    Ok(RunOptions {
        args: vec!["--journal-file".to_owned(), file],
        ..simulator.run_options(scratch, config)?
    })
}

/// Returns the arguments of `options`, for commands that read the journal.
fn place(options: &RunOptions) -> Vec<&str> {
    options.args.iter().map(String::as_str).collect()
}

fn own(service: SqlService, test: &str, args: &[&str]) -> Option<DatabaseServer> {
    let server = DatabaseServer::start(service, args).expect("starts");
    if server.is_none() {
        skip(test, &format!("{service} is not installed"));
    }
    server
}

async fn every_version_is_there_once_after_kills_of_either_side(service: SqlService, test: &str) {
    let Some(mut server) = own(service, test, &[]) else { return };
    in_scratch("stores", async |scratch| {
        let options = SimulatorOptions::keeping_history();
        let simulator = Simulator::start(scratch.path(), &options).await?;
        let story = kills(scratch, &simulator, &mut server).await;
        story.with_context(|| format!("{service} said:\n{}", server.log()))
    })
    .await;
}

async fn kills(scratch: &Scratch, simulator: &Simulator, server: &mut DatabaseServer) -> Result<()> {
    let options = options(scratch, simulator, &server.create_database()?)?;
    let (_, load) = first_sync(&options, scratch.path(), simulator).await?;
    let start = |name: &str| Kubewitness::start(name, &options, scratch.path());
    let mut kubewitness = start("run-first-again")?;
    let (platform, mut dice) = (platform_file(&options.data), Dice::new(seed()));
    for round in 0..kubewitness_harness::kills(ROUNDS) {
        let name = format!("run-{round:02}");
        // Some are killed while they still start.
        if round % 6 != 0 {
            platform.grows_by(&mut kubewitness, CATCH_UP).await.with_context(|| name.clone())?;
        }
        dice.pause(500).await;
        match round % 6 {
            0 | 1 => {
                kubewitness.kill().await?;
                kubewitness = start(&name)?;
            }
            // The database goes away under it and comes back.
            2 | 3 => {
                if round % 6 == 2 {
                    server.stop()?;
                } else {
                    server.stop_at_once()?;
                }
                dice.pause(1000).await;
                server.start_again()?;
            }
            // It falls silent, and answers late.
            4 => {
                server.pause()?;
                dice.pause(2000).await;
                server.resume()?;
            }
            // Both at once; the database comes back after the one that needs it.
            _ => {
                server.kill()?;
                kubewitness.kill().await?;
                kubewitness = start(&name)?;
                dice.pause(1500).await;
                server.start_again()?;
            }
        }
    }
    platform.grows_by(&mut kubewitness, CATCH_UP).await?;
    let report = load.stop().await?;
    ensure!(report.errors == 0, "the workload met {} errors", report.errors);
    everything_arrives(&mut kubewitness, simulator, &platform, 2).await?;
    let status = kubewitness.status().await?;
    ensure!(status.journal.store != "sqlite", "the status says {:?}", status.journal);
    kubewitness.stop().await?;
    same_story(simulator, &options.data).await?;
    ensure!(!options.data.join("journal.db").exists(), "an embedded journal lies in the data folder");
    proofs_of(&options.data, &place(&options)).await
}

async fn a_second_process_on_one_journal_is_told_what_to_do(service: SqlService, test: &str) {
    let Some(server) = kubewitness_harness::shared_server(service, test) else { return };
    in_scratch("stores-second", async |scratch| {
        let simulator = simulator(scratch).await?;
        let first = options(scratch, &simulator, &server.create_database()?)?;
        let mut running = Kubewitness::start("first", &first, scratch.path())?;
        running.answers().await?;
        let second = RunOptions { data: scratch.folder("second")?, ..first.clone() };
        let mut refused = Kubewitness::start("second", &second, scratch.path())?;
        let ProcessEnd::Code(1) = refused.process().wait(REFUSED_WITHIN).await? else {
            bail!("it was not refused; {}", refused.process().say());
        };
        let said = refused.process().stderr();
        ensure!(said.contains("is in use") && said.contains("stop it"), "{said}");
        ensure!(!said.contains(PASSWORD), "{said}");
        running.caught_up(WITHIN).await?;
        running.stop().await
    })
    .await;
}

/// The line that says that it waits.
const WAITS: &str = "waiting for the journal";

async fn waits(run: &mut Kubewitness) -> Result<()> {
    let waits = until(WITHIN, "it to say that it waits", async || {
        if let Some(ended) = run.process().ended()? {
            bail!("it ended with {ended:?}");
        }
        Ok(run.process().stderr().contains(WAITS).then_some(()))
    });
    let waits = waits.await;
    waits.with_context(|| run.process().say())
}

async fn a_database_that_is_started_after_it_is_waited_for(service: SqlService, test: &str) {
    // What tests leave to chance for speed is what an operator is warned of.
    let (args, unsynced): (&[&str], &[&str]) = match service {
        SqlService::Postgres => (&[], &["`fsync = off`"]),
        SqlService::MariaDb | SqlService::MySql => (
            &["--log-bin=changes", "--sync-binlog=0"],
            &["`innodb_flush_log_at_trx_commit`", "`sync_binlog`"],
        ),
    };
    let Some(mut server) = own(service, test, args) else { return };
    in_scratch("stores-late", async |scratch| {
        let simulator = simulator(scratch).await?;
        let options = options(scratch, &simulator, &server.create_database()?)?;
        server.stop()?;
        // Whoever does not want to wait ends it, which is no failure.
        let mut ended = Kubewitness::start("ended", &options, scratch.path())?;
        waits(&mut ended).await?;
        ended.stop().await?;

        let mut run = Kubewitness::start("run", &options, scratch.path())?;
        waits(&mut run).await?;
        let (alive, _) = run.get("/healthz").await?;
        let (ready, why) = run.get("/readyz").await?;
        ensure!(alive == 200 && ready == 503 && why.contains(WAITS), "{alive} {ready} {why}");
        let address = format!("http://{}", run.address());
        let (code, _, told) = command(&["status", "--server", &address]).await?;
        ensure!(code == Some(1) && told.contains(WAITS), "{code:?} {told}");
        create_job(&simulator, "early").await?;

        server.start_again()?;
        run.status_when(WITHIN, "what was made meanwhile to be delivered", |status| {
            let done = |plugin: &PluginView| plugin.delivered >= 1 && plugin.waiting == 0;
            status.plugins.len() == 2 && status.plugins.iter().all(done)
        })
        .await?;
        // The other source may still be listed.
        let why = until(WITHIN, "it to be ready", async || {
            let (ready, why) = run.get("/readyz").await?;
            Ok((ready == 200).then_some(why))
        })
        .await?;
        run.stop().await?;
        let said = run.process().stderr();
        ensure!(said.matches(WAITS).count() == 1, "it is said once: {said}");
        ensure!(unsynced.iter().all(|setting| said.contains(setting)), "{unsynced:?} are not told: {said}");
        ensure!(!said.contains(PASSWORD) && !why.contains(PASSWORD) && !told.contains(PASSWORD), "{said}");
        same_story(&simulator, &options.data).await?;
        proofs_of(&options.data, &place(&options)).await
    })
    .await;
}

async fn a_server_that_refuses_it_ends_it_at_once_with_what_to_do(service: SqlService, test: &str) {
    let Some(server) = kubewitness_harness::shared_server(service, test) else { return };
    in_scratch("stores-refused", async |scratch| {
        let simulator = simulator(scratch).await?;
        let address = server.create_database()?;
        let (before, name) = address.rsplit_once('/').context("an address with a database")?;
        for (number, wrong, remedy) in [
            (1, address.replace(PASSWORD, "wrong-word"), "correct the user or the password"),
            (2, format!("{before}/nobody_made_it"), "make the database"),
            (3, format!("{}://{name}", "ftp"), "postgres:// or mysql://"),
        ] {
            let options = options(scratch, &simulator, &wrong)?;
            let mut refused = Kubewitness::start(&format!("refused-{number}"), &options, scratch.path())?;
            let ended = refused.process().wait(REFUSED_WITHIN).await?;
            let said = refused.process().stderr();
            ensure!(ended == ProcessEnd::Code(1) && said.contains(remedy), "it ended with {ended:?}: {said}");
            ensure!(!said.contains("wrong-word") && !said.contains(PASSWORD), "{said}");
        }
        Ok(())
    })
    .await;
}

macro_rules! on_servers {
    ($($test:ident),* $(,)?) => {
        on_servers!(@ postgres Postgres [$($test),*]);
        on_servers!(@ mariadb MariaDb [$($test),*]);
        on_servers!(@ mysql MySql [$($test),*]);
    };
    (@ $name:ident $service:ident [$($test:ident),*]) => {
        mod $name {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                let test = concat!("stores::", stringify!($name), "::", stringify!($test));
                super::$test(super::SqlService::$service, test).await;
            })*
        }
    };
}

on_servers!(
    every_version_is_there_once_after_kills_of_either_side,
    a_second_process_on_one_journal_is_told_what_to_do,
    a_database_that_is_started_after_it_is_waited_for,
    a_server_that_refuses_it_ends_it_at_once_with_what_to_do,
);
