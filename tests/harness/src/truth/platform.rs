//! Reads the persistence plugin's tables, as a program that depends on them would, and records every attempt to write
//! into them.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions, Connection as _, Row as _};
use sqlx::{MySqlConnection, PgConnection, SqliteConnection};

/// A writer commits in milliseconds; a test machine may be slow.
const BUSY: Duration = Duration::from_secs(20);

/// The columns that both tables have; this list is the contract.
const COLUMNS: &str = "id, seq, source, api_group, kind, namespace, name, uid, resource_version, change, phase, \
    reason, message, attempt, ready, total, exit_code, terminal, owner_kind, owner_name, observed_at";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlatformRow {
    pub id: String,
    pub seq: i64,
    pub source: String,
    pub api_group: String,
    pub kind: String,
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub resource_version: String,
    pub change: String,
    pub phase: String,
    pub reason: Option<String>,
    pub message: Option<String>,
    pub attempt: i64,
    pub ready: i64,
    pub total: i64,
    pub exit_code: Option<i64>,
    pub terminal: bool,
    pub owner_kind: Option<String>,
    pub owner_name: Option<String>,
    pub observed_at: String,
}

/// The same for the rows of each database, whose types differ.
macro_rules! read {
    ($row:expr) => {{
        let row = $row;
        Ok(PlatformRow {
            id: row.try_get("id")?,
            seq: row.try_get("seq")?,
            source: row.try_get("source")?,
            api_group: row.try_get("api_group")?,
            kind: row.try_get("kind")?,
            namespace: row.try_get("namespace")?,
            name: row.try_get("name")?,
            uid: row.try_get("uid")?,
            resource_version: row.try_get("resource_version")?,
            change: row.try_get("change")?,
            phase: row.try_get("phase")?,
            reason: row.try_get("reason")?,
            message: row.try_get("message")?,
            attempt: row.try_get("attempt")?,
            ready: row.try_get("ready")?,
            total: row.try_get("total")?,
            exit_code: row.try_get("exit_code")?,
            terminal: row.try_get::<i64, _>("terminal")? != 0,
            owner_kind: row.try_get("owner_kind")?,
            owner_name: row.try_get("owner_name")?,
            observed_at: row.try_get("observed_at")?,
        })
    }};
}

/// Runs a query with one parameter and makes something of each row.
macro_rules! rows {
    ($connection:expr, $statement:expr, $parameter:expr, $row:ident => $made:expr) => {{
        let query = sqlx::query(AssertSqlSafe($statement)).bind($parameter);
        let rows = query.fetch_all($connection).await?;
        rows.iter().map(|$row| $made).collect::<Result<Vec<_>, sqlx::Error>>()?
    }};
}

enum PlatformConnection {
    Sqlite(SqliteConnection),
    Postgres(PgConnection),
    Mysql(MySqlConnection),
}

pub struct Platform {
    connection: PlatformConnection,
}

impl Platform {
    pub async fn open(path: &Path) -> Result<Self> {
        let options = SqliteConnectOptions::new().filename(path).read_only(true).busy_timeout(BUSY);
        let connection = options.connect().await.with_context(|| format!("opening {}", path.display()))?;
        Ok(Self { connection: PlatformConnection::Sqlite(connection) })
    }

    /// The same, to note effects.
    pub async fn open_to_note(path: &Path) -> Result<Self> {
        let options = SqliteConnectOptions::new().filename(path).busy_timeout(BUSY);
        let connection = options.connect().await.with_context(|| format!("opening {}", path.display()))?;
        Ok(Self { connection: PlatformConnection::Sqlite(connection) })
    }

    /// A new file for a test's own rows.
    pub async fn create(path: &Path) -> Result<Self> {
        let options = SqliteConnectOptions::new().filename(path).create_if_missing(true).busy_timeout(BUSY);
        let connection = options.connect().await.with_context(|| format!("making {}", path.display()))?;
        Ok(Self { connection: PlatformConnection::Sqlite(connection) })
    }

    /// Connects to a database on a server.
    pub async fn connect(url: &str) -> Result<Self> {
        let connection = match url.split_once("://").map(|(scheme, _)| scheme) {
            Some("postgres") => PlatformConnection::Postgres(PgConnection::connect(url).await?),
            Some("mysql") => PlatformConnection::Mysql(MySqlConnection::connect(url).await?),
            _ => bail!("no such database"),
        };
        Ok(Self { connection })
    }

    /// Every state of one source, by position.
    pub async fn history(&mut self, source: &str) -> Result<Vec<PlatformRow>> {
        self.rows("object_history", source).await
    }

    /// The newest state of each object of one source.
    pub async fn status(&mut self, source: &str) -> Result<Vec<PlatformRow>> {
        self.rows("object_status", source).await
    }

    async fn rows(&mut self, table: &'static str, source: &str) -> Result<Vec<PlatformRow>> {
        let rows = async {
            let of = format!("FROM {table} WHERE source =");
            Ok::<_, sqlx::Error>(match &mut self.connection {
                PlatformConnection::Sqlite(connection) => {
                    rows!(connection, format!("SELECT {COLUMNS} {of} ? ORDER BY seq"), source, row => read!(row))
                }
                PlatformConnection::Postgres(connection) => {
                    rows!(connection, format!("SELECT {COLUMNS} {of} $1 ORDER BY seq"), source, row => read!(row))
                }
                PlatformConnection::Mysql(connection) => {
                    let columns = COLUMNS.replace(" change,", " `change`,");
                    rows!(connection, format!("SELECT {columns} {of} ? ORDER BY seq"), source, row => read!(row))
                }
            })
        };
        rows.await.with_context(|| format!("reading {table}"))
    }

    /// Runs any statements, as an administrator would.
    pub async fn run(&mut self, statements: &str) -> Result<()> {
        let text = AssertSqlSafe(statements.to_owned());
        let done = match &mut self.connection {
            PlatformConnection::Sqlite(connection) => sqlx::raw_sql(text).execute(connection).await.map(drop),
            PlatformConnection::Postgres(connection) => {
                sqlx::raw_sql(text).execute(connection).await.map(drop)
            }
            PlatformConnection::Mysql(connection) => sqlx::raw_sql(text).execute(connection).await.map(drop),
        };
        done.with_context(|| format!("running {statements}"))
    }

    /// The rows of a query whose one column is a text.
    pub async fn texts(&mut self, query: &str) -> Result<Vec<String>> {
        let text = AssertSqlSafe(query.to_owned());
        let rows = match &mut self.connection {
            PlatformConnection::Sqlite(connection) => sqlx::query_scalar(text).fetch_all(connection).await,
            PlatformConnection::Postgres(connection) => sqlx::query_scalar(text).fetch_all(connection).await,
            PlatformConnection::Mysql(connection) => sqlx::query_scalar(text).fetch_all(connection).await,
        };
        rows.with_context(|| format!("asking {query}"))
    }

    /// SQLite writes its files once more when the last connection is closed. One that is dropped is closed some time later.
    pub async fn close(self) -> Result<()> {
        let closed = match self.connection {
            PlatformConnection::Sqlite(connection) => connection.close().await,
            PlatformConnection::Postgres(connection) => connection.close().await,
            PlatformConnection::Mysql(connection) => connection.close().await,
        };
        closed.context("closing the connection")
    }

    pub async fn count(&mut self) -> Result<i64> {
        let count = "SELECT count(*) FROM object_history";
        let counted = match &mut self.connection {
            PlatformConnection::Sqlite(connection) => sqlx::query_scalar(count).fetch_one(connection).await,
            PlatformConnection::Postgres(connection) => sqlx::query_scalar(count).fetch_one(connection).await,
            PlatformConnection::Mysql(connection) => sqlx::query_scalar(count).fetch_one(connection).await,
        };
        counted.context("counting object_history")
    }

    /// From now on every try to write a row of the history is noted in the same transaction, also one
    /// that finds the row there: two notes of one id are two effects.
    pub async fn note_effects(&mut self) -> Result<()> {
        let noted = match &mut self.connection {
            PlatformConnection::Sqlite(connection) => {
                let text = "CREATE TABLE effects (id TEXT); CREATE TRIGGER effect BEFORE INSERT ON object_history \
                            BEGIN INSERT INTO effects VALUES (NEW.id); END";
                sqlx::raw_sql(text).execute(connection).await.map(drop)
            }
            PlatformConnection::Postgres(connection) => {
                let text = "CREATE TABLE effects (id text); \
                     CREATE FUNCTION effect() RETURNS trigger LANGUAGE plpgsql AS \
                     'BEGIN INSERT INTO effects VALUES (NEW.id); RETURN NEW; END'; \
                     CREATE TRIGGER effect BEFORE INSERT ON object_history FOR EACH ROW EXECUTE FUNCTION effect()";
                sqlx::raw_sql(text).execute(connection).await.map(drop)
            }
            PlatformConnection::Mysql(connection) => {
                let text = "CREATE TABLE effects (n BIGINT AUTO_INCREMENT PRIMARY KEY, \
                     id VARCHAR(600) COLLATE utf8mb4_bin); \
                     CREATE TRIGGER effect BEFORE INSERT ON object_history FOR EACH ROW \
                     INSERT INTO effects (id) VALUES (NEW.id)";
                sqlx::raw_sql(text).execute(connection).await.map(drop)
            }
        };
        noted.context("noting effects from now on")
    }

    /// Each state since the notes began had one effect, and there is no effect without its row. Before
    /// they began there were so many rows.
    pub async fn one_effect_each(&mut self, rows_before: i64) -> Result<()> {
        let text = "SELECT count(*), count(DISTINCT id) FROM effects";
        let counted = match &mut self.connection {
            PlatformConnection::Sqlite(connection) => sqlx::query_as(text).fetch_one(connection).await,
            PlatformConnection::Postgres(connection) => sqlx::query_as(text).fetch_one(connection).await,
            PlatformConnection::Mysql(connection) => sqlx::query_as(text).fetch_one(connection).await,
        };
        let (all, ids): (i64, i64) = counted.context("counting effects")?;
        ensure!(all == ids, "{all} effects of {ids} states");
        let rows = self.count().await?;
        ensure!(rows - rows_before == all, "{rows} rows, {rows_before} of them before {all} effects");
        Ok(())
    }

    /// Reads the phase before each state, as the history says.
    pub async fn previous_phases(&mut self, uid: &str) -> Result<Vec<(Option<String>, String)>> {
        let phases = async {
            let of = "SELECT previous_phase, phase FROM object_history WHERE uid =";
            Ok::<_, sqlx::Error>(match &mut self.connection {
                PlatformConnection::Sqlite(connection) => {
                    rows!(connection, format!("{of} ? ORDER BY seq"), uid, row => Ok((row.try_get(0)?, row.try_get(1)?)))
                }
                PlatformConnection::Postgres(connection) => {
                    rows!(connection, format!("{of} $1 ORDER BY seq"), uid, row => Ok((row.try_get(0)?, row.try_get(1)?)))
                }
                PlatformConnection::Mysql(connection) => {
                    rows!(connection, format!("{of} ? ORDER BY seq"), uid, row => Ok((row.try_get(0)?, row.try_get(1)?)))
                }
            })
        };
        phases.await.context("reading previous phases")
    }
}
