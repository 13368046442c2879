//! Killed between every two steps of a batch, in each database: before the effect, after the effect
//! and before the commit, after the commit and before the verdict is kept, after the verdict and
//! before the receipt is dropped. Each time the state has exactly one effect afterwards.
//!
//! The real binary has no places to stop at, so it is held from outside: a trigger of the database
//! waits for a lock that the test has, and the journal is locked while a verdict is to be kept.

mod losses;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use kubewitness_harness::{
    DatabaseServer, Kubewitness, Platform, RunOptions, Scratch, Simulator, SqlService, database_of,
    in_scratch, skip, until,
};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, MySqlConnection, PgConnection, SqliteConnection};

use crate::storage::databases::{ADDRESS, configuration};
use crate::support::{create_job, proofs_with, same_story_in, simulator};

const WITHIN: Duration = Duration::from_secs(120);
const BUSY: Duration = Duration::from_secs(20);

/// Where the persistence plugin writes.
enum SinkStore {
    Sqlite(PathBuf),
    Server(DatabaseServer, String),
}

/// The obstacle that keeps the store from going on, as long as it is there.
enum StoreHold {
    Sqlite(SqliteConnection),
    Postgres(PgConnection),
    Mysql(MySqlConnection),
}

impl StoreHold {
    async fn release(self) -> Result<()> {
        match self {
            Self::Sqlite(mut connection) => {
                sqlx::query("ROLLBACK").execute(&mut connection).await?;
            }
            // The lock ends with its session.
            Self::Postgres(connection) => connection.close().await?,
            Self::Mysql(connection) => connection.close().await?,
        }
        Ok(())
    }
}

async fn locked(path: &Path) -> Result<SqliteConnection> {
    let mut connection = SqliteConnectOptions::new().filename(path).busy_timeout(BUSY).connect().await?;
    sqlx::query("BEGIN IMMEDIATE").execute(&mut connection).await?;
    Ok(connection)
}

impl SinkStore {
    async fn platform(&self) -> Result<Platform> {
        match self {
            Self::Sqlite(path) => Platform::open(path).await,
            Self::Server(_, url) => Platform::connect(url).await,
        }
    }

    async fn count(&self) -> Result<i64> {
        self.platform().await?.count().await
    }

    /// Makes the notes of effects, and where the store can be held: in front of the history, and in
    /// front of the receipts.
    async fn arm(&self) -> Result<()> {
        match self {
            Self::Sqlite(path) => Platform::open_to_note(path).await?.note_effects().await,
            Self::Server(server, url) => {
                Platform::connect(url).await?.note_effects().await?;
                server.run(Some(database_of(url)), holds(server.service())).map(drop)
            }
        }
    }

    /// `of`: 1 in front of the history, 2 in front of the receipts. SQLite has only one writer, who
    /// is held before the first.
    async fn hold(&self, of: u32) -> Result<StoreHold> {
        match self {
            Self::Sqlite(path) => Ok(StoreHold::Sqlite(locked(path).await?)),
            Self::Server(server, url) if server.service() == SqlService::Postgres => {
                let mut connection = PgConnection::connect(url).await?;
                let lock = format!("SELECT pg_advisory_lock({of})");
                sqlx::raw_sql(AssertSqlSafe(lock)).execute(&mut connection).await?;
                Ok(StoreHold::Postgres(connection))
            }
            Self::Server(_, url) => {
                let mut connection = MySqlConnection::connect(url).await?;
                let lock = format!("SELECT GET_LOCK(CONCAT('hold{of} ', DATABASE()), 10)");
                sqlx::raw_sql(AssertSqlSafe(lock)).execute(&mut connection).await?;
                Ok(StoreHold::Mysql(connection))
            }
        }
    }

    /// Whether somebody waits in front of the hold. Of SQLite nobody can tell.
    fn is_reached(&self) -> Result<bool> {
        let Self::Server(server, url) = self else { return Ok(true) };
        let database = database_of(url);
        match server.service() {
            SqlService::Postgres => {
                let waiting = "SELECT count(*) FROM pg_stat_activity \
                               WHERE datname = current_database() AND wait_event = 'PgSleep'";
                Ok(server.run(Some(database), waiting)?.trim() != "0")
            }
            SqlService::MariaDb | SqlService::MySql => {
                let sessions = server.sessions()?;
                Ok(sessions.iter().any(|it| it.database == database && it.state == "User lock"))
            }
        }
    }

    /// The first job was there before the notes began.
    async fn one_effect_each(&self) -> Result<()> {
        self.platform().await?.one_effect_each(1).await
    }
}

/// Triggers that wait until nobody has the lock of their number and database. Only a server's own limit for a
/// statement ends their waiting, and then nothing of it is there.
fn holds(service: SqlService) -> &'static str {
    match service {
        SqlService::Postgres => {
            "CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS \
             'BEGIN WHILE NOT pg_try_advisory_lock_shared(TG_ARGV[0]::bigint) LOOP PERFORM pg_sleep(0.01); END LOOP; \
             PERFORM pg_advisory_unlock_shared(TG_ARGV[0]::bigint); RETURN NULL; END'; \
             CREATE TRIGGER hold BEFORE INSERT ON object_history FOR EACH STATEMENT EXECUTE FUNCTION hold(1); \
             CREATE TRIGGER hold BEFORE INSERT ON kubewitness_receipts FOR EACH STATEMENT EXECUTE FUNCTION hold(2)"
        }
        SqlService::MariaDb | SqlService::MySql => {
            "CREATE TRIGGER hold1 BEFORE INSERT ON object_history FOR EACH ROW \
             DO GET_LOCK(CONCAT('hold1 ', DATABASE()), 60) + RELEASE_LOCK(CONCAT('hold1 ', DATABASE())); \
             CREATE TRIGGER hold2 BEFORE INSERT ON kubewitness_receipts FOR EACH ROW \
             DO GET_LOCK(CONCAT('hold2 ', DATABASE()), 60) + RELEASE_LOCK(CONCAT('hold2 ', DATABASE()))"
        }
    }
}

struct ReceiptWorld<'a> {
    scratch: &'a Scratch,
    simulator: Simulator,
    options: RunOptions,
    store: SinkStore,
    starts: usize,
}

impl<'a> ReceiptWorld<'a> {
    async fn new(scratch: &'a Scratch, server: Option<DatabaseServer>) -> Result<Self> {
        let simulator = simulator(scratch).await?;
        let data = scratch.folder("data")?;
        let (store, database) = match server {
            None => (SinkStore::Sqlite(data.join("platform.db")), "sqlite: {path: platform.db}".to_owned()),
            Some(server) => {
                let url = server.create_database()?;
                let database = format!("{}: {{urlFrom: {{env: {ADDRESS}}}}}", server.service().scheme());
                (SinkStore::Server(server, url), database)
            }
        };
        let env = match &store {
            SinkStore::Sqlite(_) => Vec::new(),
            SinkStore::Server(_, url) => vec![(ADDRESS.to_owned(), url.clone())],
        };
        let config = Some(configuration(scratch, &database)?);
        let options = RunOptions {
            kubeconfig: simulator.kubeconfig().to_path_buf(),
            config,
            data,
            env,
            ..RunOptions::default()
        };
        Ok(Self { scratch, simulator, options, store, starts: 0 })
    }

    fn start(&mut self) -> Result<Kubewitness> {
        self.starts += 1;
        Kubewitness::start(&format!("run-{:02}", self.starts), &self.options, self.scratch.path())
    }

    /// Everything that was made so far is in the store.
    async fn caught_up(&self, kubewitness: &mut Kubewitness, jobs: i64) -> Result<()> {
        let kept = until(WITHIN, "the rows of every job", async || {
            if let Some(ended) = kubewitness.process().ended()? {
                bail!("it ended with {ended:?}");
            }
            Ok((self.store.count().await.unwrap_or(0) >= jobs).then_some(()))
        });
        kept.await.with_context(|| kubewitness.process().say())
    }

    async fn await_waiting(&self, kubewitness: &mut Kubewitness) -> Result<()> {
        let waiting = |status: &kubewitness_core::views::StatusView| {
            status.plugins.iter().any(|plugin| plugin.waiting > 0)
        };
        kubewitness.status_when(WITHIN, "a state to wait for the store", waiting).await?;
        until(WITHIN, "the store to be held", async || Ok(self.store.is_reached()?.then_some(()))).await
    }
}

async fn killed_between_every_two_steps(scratch: &Scratch, server: Option<DatabaseServer>) -> Result<()> {
    let mut world = ReceiptWorld::new(scratch, server).await?;
    let mut kubewitness = world.start()?;
    kubewitness.answers().await?;
    create_job(&world.simulator, "first").await?;
    world.caught_up(&mut kubewitness, 1).await?;
    kubewitness.caught_up(WITHIN).await?;
    world.store.arm().await?;

    // Before the effect, and after it before the commit. Where the server has heard the commit it
    // goes through without its client; where it has not, nothing is there.
    for (job, of) in [("before-the-effect", 1), ("before-the-commit", 2)] {
        let hold = world.store.hold(of).await?;
        create_job(&world.simulator, job).await?;
        world.await_waiting(&mut kubewitness).await.context(job)?;
        kubewitness.kill().await?;
        kubewitness = world.start()?;
        kubewitness.answers().await?;
        hold.release().await?;
        world.caught_up(&mut kubewitness, i64::from(of) + 1).await.context(job)?;
        world.store.one_effect_each().await.context(job)?;
    }

    // After the commit, before the verdict is kept.
    let hold = world.store.hold(1).await?;
    create_job(&world.simulator, "before-the-verdict").await?;
    world.await_waiting(&mut kubewitness).await?;
    let journal = locked(&world.options.data.join("journal.db")).await?;
    hold.release().await?;
    world.caught_up(&mut kubewitness, 4).await?;
    kubewitness.kill().await?;
    StoreHold::Sqlite(journal).release().await?;
    kubewitness = world.start()?;
    kubewitness.caught_up(WITHIN).await?;
    world.store.one_effect_each().await.context("before the verdict")?;

    // After the verdict: its receipt is still there, and is not needed.
    create_job(&world.simulator, "after-the-verdict").await?;
    world.caught_up(&mut kubewitness, 5).await?;
    kubewitness.caught_up(WITHIN).await?;
    kubewitness.kill().await?;
    kubewitness = world.start()?;
    kubewitness.caught_up(WITHIN).await?;
    kubewitness.stop().await?;
    world.store.one_effect_each().await.context("after the verdict")?;
    same_story_in(&world.simulator, world.store.platform().await?).await?;
    proofs_with(&world.options.data, &world.options.env).await
}

async fn with_server(service: SqlService, test: &str) {
    let Some(server) = DatabaseServer::shared(service).expect("the server starts") else {
        return skip(test, &format!("{service} is not installed"));
    };
    in_scratch("receipts", async |scratch| killed_between_every_two_steps(scratch, Some(server)).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_26_killed_between_every_two_steps_with_sqlite() {
    in_scratch("receipts", async |scratch| killed_between_every_two_steps(scratch, None).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_26_killed_between_every_two_steps_with_postgres() {
    with_server(SqlService::Postgres, "row_26_killed_between_every_two_steps_with_postgres").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_26_killed_between_every_two_steps_with_mariadb() {
    with_server(SqlService::MariaDb, "row_26_killed_between_every_two_steps_with_mariadb").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_26_killed_between_every_two_steps_with_mysql() {
    with_server(SqlService::MySql, "row_26_killed_between_every_two_steps_with_mysql").await;
}
