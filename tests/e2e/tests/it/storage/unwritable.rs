//! Databases that can't be written for a while: their disk is full, or a fail-over left them read-only. The plugin waits
//! and says why, also across a kill; other plugins go on. Once there is room, each row is there once.

use anyhow::{Context, Result, bail, ensure};
use kubewitness_harness::{
    DatabaseServer, Dice, Kubewitness, Simulator, SmallDisk, SqlService, database_of, in_scratch, seed, skip,
};
use reqwest::Method;

use crate::storage::place::{DatabasePlace, WITHIN, again, says};
use crate::support::{
    AUDIT, everything_arrives, job, journal_proof_in, plugin_manifest, same_story_in, simulator, trail_proof,
    write,
};

const JOBS: &str = "/apis/batch/v1/namespaces/default/jobs";
/// More than any page that a table has begun has room for.
const LARGE: usize = 200_000;
/// Room for the tables, and little more.
const ROOM: &str = "48m";
/// MiB of InnoDB's one file at first, and what an operator then adds.
const MORE: u64 = 48;
/// Jobs of a round: together more than a table's file keeps ready.
const ROUND: u64 = 10;

/// The fault that makes a database unwritable.
enum WriteFault {
    /// The file system with its files is full.
    Disk(SmallDisk),
    /// Other rows take all that InnoDB's one file may have, in MiB. MariaDB itself ends where a disk is full.
    OneFile(u64),
    /// As a server is after a fail-over made another one the leader.
    ReadOnly,
}

impl WriteFault {
    fn begin(&self, place: &DatabasePlace<'_>) -> Result<()> {
        match (self, &place.server) {
            (Self::Disk(disk), _) => disk.fill(),
            (Self::OneFile(_), Some((server, _))) => fill_one_file(server),
            (Self::ReadOnly, Some((server, _))) => match server.service() {
                SqlService::Postgres => {
                    let database = place.database()?;
                    let set = format!("ALTER DATABASE {database} SET default_transaction_read_only = on");
                    server.run(None, &set)?;
                    // The leader that was there has closed its connections.
                    let close = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'kubewitness'";
                    server.run(None, close).map(drop)
                }
                SqlService::MariaDb | SqlService::MySql => {
                    server.run(None, "SET GLOBAL read_only = 1").map(drop)
                }
            },
            (Self::OneFile(_) | Self::ReadOnly, None) => bail!("SQLite has no server"),
        }
    }

    fn end(&mut self, place: &mut DatabasePlace<'_>) -> Result<()> {
        match (self, &mut place.server) {
            (Self::Disk(disk), _) => disk.make_room(),
            (Self::OneFile(most), Some((server, _))) => {
                *most += MORE;
                server.stop()?;
                server.set_args(one_file(*most))?;
                server.start_again()
            }
            (Self::ReadOnly, Some((server, url))) => match server.service() {
                SqlService::Postgres => {
                    let database = database_of(url);
                    let reset = format!("ALTER DATABASE {database} RESET default_transaction_read_only");
                    server.run(None, &reset).map(drop)
                }
                SqlService::MariaDb | SqlService::MySql => {
                    server.run(None, "SET GLOBAL read_only = 0").map(drop)
                }
            },
            (Self::OneFile(_) | Self::ReadOnly, None) => bail!("SQLite has no server"),
        }
    }

    fn words(&self) -> &'static str {
        match self {
            Self::Disk(_) | Self::OneFile(_) => "full",
            Self::ReadOnly => "can't be written now",
        }
    }
}

/// All tables in one file, which grows so far.
fn one_file(most: u64) -> Vec<String> {
    let file = format!("--innodb-data-file-path=ibdata1:12M:autoextend:max:{most}M");
    vec!["--innodb-file-per-table=OFF".to_owned(), file]
}

fn fill_one_file(server: &DatabaseServer) -> Result<()> {
    let create =
        "CREATE DATABASE IF NOT EXISTS ballast; CREATE TABLE IF NOT EXISTS ballast.t (b LONGBLOB NOT NULL)";
    server.run(None, create)?;
    for bytes in [4 << 20, 256 << 10, 16 << 10] {
        let insert = format!("INSERT INTO ballast.t SELECT REPEAT('x', {bytes})");
        let refused = loop {
            if let Err(refused) = server.run(None, &insert) {
                break refused;
            }
        };
        ensure!(format!("{refused:#}").contains("is full"), "the file is not full: {refused:#}");
    }
    Ok(())
}

/// A Job whose document no compression makes small.
async fn create_large(simulator: &Simulator, name: &str, dice: &mut Dice) -> Result<()> {
    let mut job = job(name);
    let noise: String = (0..LARGE).map(|_| char::from(b'!' + dice.below(90) as u8)).collect();
    job["metadata"]["annotations"]["noise"] = noise.into();
    let (code, answer) = simulator.request(Method::POST, JOBS, Some(&job)).await?;
    ensure!(code == 201, "{name}: {code}: {answer}");
    Ok(())
}

/// The plugin waits for this, and another one does not.
async fn waits(kubewitness: &mut Kubewitness, words: &str, jobs: u64) -> Result<()> {
    says(kubewitness, words).await?;
    let holds = kubewitness.status_when(WITHIN, "one plugin to wait and the other to go on", |status| {
        let plugin = |name: &str| status.plugins.iter().find(|plugin| plugin.name == name);
        plugin("persistence").is_some_and(|it| it.waiting > 0 && it.dead == 0)
            && plugin("audit").is_some_and(|it| it.waiting == 0 && it.delivered >= jobs)
    });
    holds.await.map(drop)
}

/// `guest`: a user whom read-only holds for, where it holds for no administrator.
async fn it_is_waited_for(
    mut place: DatabasePlace<'_>,
    mut fault: WriteFault,
    guest: Option<String>,
) -> Result<()> {
    let simulator = simulator(place.scratch).await?;
    let mut dice = Dice::new(seed());
    let options = place.options(&simulator, "{documents: whole}", guest.as_deref())?;
    write(options.config.as_ref().context("a folder")?, "audit.yaml", &plugin_manifest("audit", AUDIT))?;
    let scratch = place.scratch;
    let start = |name: &str| Kubewitness::start(name, &options, scratch.path());
    let mut kubewitness = start("run")?;
    kubewitness.answers().await?;
    create_large(&simulator, "before", &mut dice).await?;
    place.comes("SELECT name FROM object_history", &["before"]).await?;
    let mut administrator = place.administrator().await?;
    administrator.note_effects().await?;
    let rows_before = administrator.count().await?;
    // An administrator's own connection must not hold what the next steps need.
    administrator.close().await?;
    let mut jobs = 1;
    for round in ["one", "two"] {
        fault.begin(&place)?;
        for number in 0..ROUND {
            create_large(&simulator, &format!("{round}-{number}"), &mut dice).await?;
        }
        jobs += ROUND;
        waits(&mut kubewitness, fault.words(), jobs).await.with_context(|| format!("round {round}"))?;
        if round == "two" {
            kubewitness.kill().await?;
            kubewitness = start("again")?;
            kubewitness.answers().await?;
            waits(&mut kubewitness, fault.words(), jobs).await.context("after a kill")?;
        }
        fault.end(&mut place)?;
        let arrived = everything_arrives(&mut kubewitness, &simulator, &place.platform()?, 2).await;
        arrived.with_context(|| format!("round {round}"))?;
    }
    kubewitness.stop().await?;
    same_story_in(&simulator, place.administrator().await?).await?;
    place.administrator().await?.one_effect_each(rows_before).await?;
    journal_proof_in(&options.data, &[], &options.env).await?;
    let records = trail_proof(&options.data, &[], &options.env).await?;
    ensure!(records == jobs, "of {jobs} jobs the trail has {records} records");
    Ok(())
}

async fn with_server(
    service: SqlService,
    name: &'static str,
    test: impl AsyncFnOnce(DatabasePlace<'_>) -> Result<()>,
) {
    let Some(server) = DatabaseServer::start(service, &[]).expect("the server starts") else {
        return skip(name, &format!("{service} is not installed"));
    };
    in_scratch("unwritable", async |scratch| {
        test(DatabasePlace::new(scratch, Some(server))?).await.with_context(|| again(name))
    })
    .await;
}

const NO_DISK: &str = "a small file system can only be mounted by root";

#[tokio::test]
async fn a_full_disk_is_waited_for_with_sqlite() {
    in_scratch("unwritable", async |scratch| {
        let mut place = DatabasePlace::new(scratch, None)?;
        place.file = "small/platform.db";
        let folder = place.data()?.join("small");
        std::fs::create_dir(&folder)?;
        let Some(disk) = SmallDisk::mount(&folder, ROOM) else {
            skip("a_full_disk_is_waited_for_with_sqlite", NO_DISK);
            return Ok(());
        };
        it_is_waited_for(place, WriteFault::Disk(disk), None).await
    })
    .await;
}

/// Puts the database's files on a small disk.
async fn full_disk_is_waited_for(name: &str, place: DatabasePlace<'_>) -> Result<()> {
    let (server, _) = place.server.as_ref().context("a server")?;
    let folder = match server.service() {
        SqlService::Postgres => server.folder()?.join("small"),
        // Each table has a file in the database's folder.
        SqlService::MariaDb | SqlService::MySql => server.folder()?.join("data").join(place.database()?),
    };
    std::fs::create_dir_all(&folder)?;
    let Some(disk) = SmallDisk::mount(&folder, ROOM) else {
        skip(name, NO_DISK);
        return Ok(());
    };
    server.give(&folder)?;
    if server.service() == SqlService::Postgres {
        server.run(None, &format!("CREATE TABLESPACE small LOCATION '{}'", folder.display()))?;
        server.run(None, &format!("ALTER DATABASE {} SET TABLESPACE small", place.database()?))?;
    }
    it_is_waited_for(place, WriteFault::Disk(disk), None).await
}

#[tokio::test]
async fn a_full_disk_is_waited_for_with_postgres() {
    let name = "a_full_disk_is_waited_for_with_postgres";
    with_server(SqlService::Postgres, name, async |place| full_disk_is_waited_for(name, place).await).await;
}

#[tokio::test]
async fn a_full_disk_is_waited_for_with_mariadb() {
    let name = "a_full_disk_is_waited_for_with_mariadb";
    with_server(SqlService::MariaDb, name, async |mut place| {
        let mut fault = WriteFault::OneFile(0);
        fault.end(&mut place)?;
        it_is_waited_for(place, fault, None).await
    })
    .await;
}

#[tokio::test]
async fn a_full_disk_is_waited_for_with_mysql() {
    let name = "a_full_disk_is_waited_for_with_mysql";
    with_server(SqlService::MySql, name, async |place| full_disk_is_waited_for(name, place).await).await;
}

async fn read_only_is_waited_for(place: DatabasePlace<'_>) -> Result<()> {
    let (server, _) = place.server.as_ref().context("a server")?;
    let guest = match server.service() {
        SqlService::Postgres => None,
        SqlService::MariaDb | SqlService::MySql => {
            let database = place.database()?;
            let user = format!(
                "CREATE USER guest@'%' IDENTIFIED BY 'plain'; GRANT ALL ON {database}.* TO guest@'%'"
            );
            server.run(None, &user)?;
            Some(place.url_of("guest")?)
        }
    };
    it_is_waited_for(place, WriteFault::ReadOnly, guest).await
}

#[tokio::test]
async fn a_read_only_fail_over_is_waited_for_with_postgres() {
    let name = "a_read_only_fail_over_is_waited_for_with_postgres";
    with_server(SqlService::Postgres, name, read_only_is_waited_for).await;
}

#[tokio::test]
async fn a_read_only_fail_over_is_waited_for_with_mariadb() {
    let name = "a_read_only_fail_over_is_waited_for_with_mariadb";
    with_server(SqlService::MariaDb, name, read_only_is_waited_for).await;
}

#[tokio::test]
async fn a_read_only_fail_over_is_waited_for_with_mysql() {
    let name = "a_read_only_fail_over_is_waited_for_with_mysql";
    with_server(SqlService::MySql, name, read_only_is_waited_for).await;
}
