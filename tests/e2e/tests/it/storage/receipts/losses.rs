//! Granted databases that lose the newest of what they committed: a file that is restored from a copy, beside a running
//! controller and while it is down, and a standby that is promoted without the last commits. Each row is there once in
//! the end, and the status, the metrics and `journal verify` say what happened.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use kubewitness_core::views::DatabaseLossView;
use kubewitness_harness::{
    DatabaseServer, Kubewitness, Platform, PlatformAddress, RunOptions, Scratch, Simulator, SqlService,
    command, command_in, command_json_in, database_of, in_scratch, skip, until,
};

use super::WITHIN;
use crate::storage::databases::configuration;
use crate::support::{create_job, everything_arrives, same_story_in, simulator, witness_job};

/// A database with a copy of itself that has an earlier state.
enum LossyDatabase {
    Sqlite {
        file: PathBuf,
        copy: PathBuf,
    },
    /// A standby that stops to follow.
    Standby {
        primary: DatabaseServer,
        standby: Option<DatabaseServer>,
        address: PathBuf,
        database: String,
    },
    /// A second database of the same server.
    Copied {
        server: DatabaseServer,
        address: PathBuf,
        database: String,
    },
}

/// Removes a database's file with all that belongs to it.
fn remove_file(file: &Path) {
    for end in ["-wal", "-shm", ""] {
        std::fs::remove_file(format!("{}{end}", file.display())).ok();
    }
}

impl LossyDatabase {
    /// The settings of the database.
    fn settings(&self) -> String {
        let of_server =
            |scheme: &str, address: &Path| format!("{scheme}: {{urlFrom: {{file: {}}}}}", address.display());
        match self {
            Self::Sqlite { .. } => "sqlite: {path: platform.db}".to_owned(),
            Self::Standby { address, .. } => of_server("postgres", address),
            Self::Copied { address, .. } => of_server("mysql", address),
        }
    }

    fn platform(&self) -> Result<PlatformAddress> {
        match self {
            Self::Sqlite { file, .. } => Ok(PlatformAddress::File(file.clone())),
            Self::Standby { address, .. } | Self::Copied { address, .. } => {
                Ok(PlatformAddress::Server(std::fs::read_to_string(address)?))
            }
        }
    }

    /// From now on the copy lags behind.
    async fn take_copy(&mut self) -> Result<()> {
        match self {
            Self::Sqlite { file, copy } => {
                let text = format!("VACUUM INTO '{}'", copy.display());
                let mut platform = Platform::open_to_note(file).await?;
                platform.run(&text).await?;
                platform.close().await
            }
            Self::Standby { primary, standby, database, .. } => {
                let mut follower = primary.start_standby()?;
                primary.run(None, "ALTER SYSTEM SET synchronous_standby_names = ''")?;
                primary.run(None, "SELECT pg_reload_conf()")?;
                let rows = "SELECT count(*) FROM object_history";
                let (all, url) = (primary.run(Some(database), rows)?, follower.url(database));
                let follows = until(WITHIN, "the standby to follow", async || {
                    let found = Platform::connect(&url).await?.count().await?;
                    Ok((found.to_string() == all.trim()).then_some(()))
                });
                follows.await?;
                follower.stop()?;
                *standby = Some(follower);
                Ok(())
            }
            Self::Copied { server, database, .. } => {
                let copy = format!("{database}_copy");
                server.run(None, &format!("CREATE DATABASE {copy}"))?;
                for table in server.run(Some(database), "SHOW TABLES")?.lines() {
                    let text = format!(
                        "CREATE TABLE {copy}.{table} LIKE {database}.{table}; \
                         INSERT INTO {copy}.{table} SELECT * FROM {database}.{table}"
                    );
                    server.run(Some(database), &text)?;
                }
                Ok(())
            }
        }
    }

    /// The copy takes the database's place.
    fn fall_back(&mut self) -> Result<()> {
        match self {
            Self::Sqlite { file, copy } => {
                remove_file(file);
                std::fs::rename(copy, file).context("restoring the copy")
            }
            Self::Standby { primary, standby, address, database } => {
                primary.kill()?;
                let standby = standby.as_mut().context("a standby")?;
                standby.start_again()?;
                standby.promote()?;
                std::fs::write(address, standby.url(database)).context("the address")
            }
            Self::Copied { server, address, database } => {
                std::fs::write(address, server.url(&format!("{database}_copy")))?;
                server.end_sessions(database)
            }
        }
    }
}

struct LossWorld<'a> {
    scratch: &'a Scratch,
    simulator: Simulator,
    options: RunOptions,
    database: LossyDatabase,
}

impl<'a> LossWorld<'a> {
    async fn new(scratch: &'a Scratch, server: Option<DatabaseServer>) -> Result<Self> {
        let simulator = simulator(scratch).await?;
        let address = scratch.path().join("address");
        let database = match server {
            None => LossyDatabase::Sqlite {
                file: scratch.folder("data")?.join("platform.db"),
                copy: scratch.path().join("copy.db"),
            },
            Some(server) => {
                let url = server.create_database()?;
                std::fs::write(&address, &url)?;
                let database = database_of(&url).to_owned();
                match server.service() {
                    SqlService::Postgres => {
                        LossyDatabase::Standby { primary: server, standby: None, address, database }
                    }
                    SqlService::MariaDb | SqlService::MySql => {
                        LossyDatabase::Copied { server, address, database }
                    }
                }
            }
        };
        let options = simulator.run_options(scratch, configuration(scratch, &database.settings())?)?;
        Ok(Self { scratch, simulator, options, database })
    }

    async fn start(&self, name: &str) -> Result<Kubewitness> {
        let mut kubewitness = Kubewitness::start(name, &self.options, self.scratch.path())?;
        kubewitness.answers().await?;
        Ok(kubewitness)
    }

    /// The controller witnesses these jobs, and the plugin writes them.
    async fn write_jobs(&self, kubewitness: &mut Kubewitness, jobs: &[&str]) -> Result<()> {
        for job in jobs {
            witness_job(&self.simulator, kubewitness, job).await?;
        }
        kubewitness.caught_up(WITHIN).await.map(drop)
    }

    /// Waits until the status has so many losses, and gives the newest.
    async fn loss(&self, kubewitness: &mut Kubewitness, losses: usize) -> Result<DatabaseLossView> {
        let what = format!("{losses} losses of the database");
        let status = kubewitness.status_when(WITHIN, &what, |status| {
            status.plugins.iter().any(|plugin| plugin.losses.len() == losses)
        });
        let newest = status.await?.plugins.into_iter().find_map(|plugin| plugin.losses.last().cloned());
        newest.context("the newest loss")
    }

    async fn verify(&self) -> Result<(Option<i32>, String, String)> {
        let data = self.options.data.display().to_string();
        command_in(&["journal", "verify", "--data", &data], &self.options.env).await
    }

    /// Everything is in the database once, and everybody says what happened.
    async fn every_row_is_there_once(&self, kubewitness: &mut Kubewitness, losses: usize) -> Result<()> {
        let platform = self.database.platform()?;
        everything_arrives(kubewitness, &self.simulator, &platform, 1).await?;
        same_story_in(&self.simulator, platform.open().await?).await?;
        let (_, metrics) = kubewitness.get("/metrics").await?;
        for (name, count) in [("losses", losses), ("gaps", 0)] {
            let line = format!("kubewitness_plugin_database_{name}{{plugin=\"persistence\"}} {count}");
            ensure!(metrics.lines().any(|found| found == line), "no `{line}` in the metrics");
        }
        let server = format!("http://{}", kubewitness.address());
        let (_, told, _) = command(&["plugins", "--server", &server]).await?;
        ensure!(told.contains("has lost commits that it had answered"), "`plugins` said {told}");
        let data = self.options.data.display().to_string();
        let args = ["journal", "verify", "--data", &data, "-o", "json"];
        let report = command_json_in(&args, &self.options.env).await?;
        let recorded = report["losses"].as_array().map_or(0, Vec::len);
        ensure!(report["ok"] == true && recorded == losses, "journal verify said {report}");
        Ok(())
    }
}

async fn lost_rows_come_again(scratch: &Scratch, server: Option<DatabaseServer>) -> Result<()> {
    let mut world = LossWorld::new(scratch, server).await?;
    let mut kubewitness = world.start("run-1").await?;
    world.write_jobs(&mut kubewitness, &["a", "b"]).await?;
    world.database.take_copy().await?;
    world.write_jobs(&mut kubewitness, &["c", "d"]).await?;
    // The next state finds it out.
    world.database.fall_back()?;
    create_job(&world.simulator, "e").await?;
    let loss = world.loss(&mut kubewitness, 1).await?;
    ensure!(loss.again >= 2 && !loss.gap && loss.database == "platform", "{loss:?}");
    world.every_row_is_there_once(&mut kubewitness, 1).await?;
    kubewitness.stop().await?;

    // A restart finds nothing more.
    let mut kubewitness = world.start("run-2").await?;
    world.write_jobs(&mut kubewitness, &["f"]).await?;
    world.every_row_is_there_once(&mut kubewitness, 1).await?;
    kubewitness.stop().await
}

async fn a_file_is_restored_while_the_controller_is_down(scratch: &Scratch) -> Result<()> {
    let mut world = LossWorld::new(scratch, None).await?;
    let mut kubewitness = world.start("run-1").await?;
    world.write_jobs(&mut kubewitness, &["a", "b"]).await?;
    world.database.take_copy().await?;
    world.write_jobs(&mut kubewitness, &["c", "d"]).await?;
    kubewitness.stop().await?;
    let (code, told, _) = world.verify().await?;
    ensure!(code == Some(0), "journal verify said {told}");
    world.database.fall_back()?;
    let (code, told, _) = world.verify().await?;
    let said = told.contains("persistence has commits that the database no longer has");
    ensure!(code != Some(0) && said, "journal verify ended with {code:?}: {told}");

    let mut kubewitness = world.start("run-2").await?;
    create_job(&world.simulator, "e").await?;
    let loss = world.loss(&mut kubewitness, 1).await?;
    ensure!(loss.again >= 2 && !loss.gap, "{loss:?}");
    world.every_row_is_there_once(&mut kubewitness, 1).await?;
    kubewitness.stop().await
}

/// Nothing says how much an empty database has lost, so nothing comes again.
async fn an_emptied_database_is_a_gap(scratch: &Scratch) -> Result<()> {
    let world = LossWorld::new(scratch, None).await?;
    let mut kubewitness = world.start("run-1").await?;
    // The first start finds an empty database as well.
    world.write_jobs(&mut kubewitness, &["a", "b"]).await?;
    let status = kubewitness.status().await?;
    ensure!(status.plugins.iter().all(|plugin| plugin.losses.is_empty()), "{:?}", status.plugins);
    kubewitness.stop().await?;
    remove_file(&world.options.data.join("platform.db"));

    let mut kubewitness = world.start("run-2").await?;
    create_job(&world.simulator, "c").await?;
    let loss = world.loss(&mut kubewitness, 1).await?;
    ensure!(loss.again == 0 && loss.gap && loss.message.contains("`resync`"), "{loss:?}");
    kubewitness.caught_up(WITHIN).await?;
    let names = world.database.platform()?.open().await?.texts("SELECT name FROM object_status").await?;
    ensure!(names == ["c"], "{names:?}");
    let (_, metrics) = kubewitness.get("/metrics").await?;
    let line = "kubewitness_plugin_database_gaps{plugin=\"persistence\"} 1";
    ensure!(metrics.lines().any(|found| found == line), "no `{line}` in the metrics");
    kubewitness.stop().await?;
    let (code, told, _) = world.verify().await?;
    ensure!(code == Some(0) && told.contains("lost commits: persistence"), "journal verify said {told}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_is_restored_beside_the_controller_gets_its_lost_rows_again() {
    in_scratch("losses", async |scratch| lost_rows_come_again(scratch, None).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_is_restored_while_the_controller_is_down_gets_its_lost_rows_again() {
    in_scratch("losses", async |scratch| a_file_is_restored_while_the_controller_is_down(scratch).await)
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_was_emptied_is_a_gap_of_its_plugin() {
    in_scratch("losses", async |scratch| an_emptied_database_is_a_gap(scratch).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_promoted_standby_of_postgres_gets_its_lost_rows_again() {
    let Some(server) = DatabaseServer::start(SqlService::Postgres, &[]).expect("the server starts") else {
        return skip("a_promoted_standby_of_postgres_gets_its_lost_rows_again", "Postgres is not installed");
    };
    in_scratch("losses", async |scratch| lost_rows_come_again(scratch, Some(server)).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_of_mariadb_without_the_last_commits_gets_its_lost_rows_again() {
    let Some(server) = DatabaseServer::shared(SqlService::MariaDb).expect("the server starts") else {
        return skip(
            "a_copy_of_mariadb_without_the_last_commits_gets_its_lost_rows_again",
            "MariaDB is not installed",
        );
    };
    in_scratch("losses", async |scratch| lost_rows_come_again(scratch, Some(server)).await).await;
}
