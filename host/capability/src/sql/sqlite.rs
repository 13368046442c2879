//! SQLite: one writer connection a database, shared by the plugins that were granted it. A call
//! holds it from its first statement to its commit, waits a bounded time for it, and may keep it
//! for a bounded time only. WAL, so that people can read beside it; every commit is synced.
//!
//! A statement that fails leaves the rest of the call's transaction as it was, unless SQLite says
//! otherwise; then the whole call is undone. Which of both, [`is_statements_own`] knows.

mod alike;
mod convert;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures::TryStreamExt;
use kubewitness_core::Seq;
use kubewitness_core::ports::{Dialect, GrantError, SqlValue, TableWrite};
use sqlx::sqlite::{
    SqliteArguments, SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqliteSynchronous,
};
use sqlx::{AssertSqlSafe, ConnectOptions, Row};
use tokio::sync::{Mutex, OwnedMutexGuard};

use self::alike::Alike;
pub(super) use self::convert::bind;
use self::convert::{is_statements_own, refusal, values};
use super::guard::{self, Purpose};
use super::{
    CommitError, Engine, QUERY_ROWS, Receipt, Transaction, VALUE_BYTES, check_size, claims, fits_arity, size,
    write,
};
use crate::applied::{self, Mark};

/// How long things may take.
#[derive(Clone, Copy, Debug)]
struct Patience {
    /// Waiting for the writer; longer than any healthy call keeps it.
    wait: Duration,
    /// One statement of a plugin.
    statement: Duration,
    /// One call's transaction: others wait for the same writer.
    transaction: Duration,
}

const PATIENCE: Patience = Patience {
    wait: Duration::from_secs(10),
    statement: Duration::from_secs(10),
    transaction: Duration::from_secs(30),
};
/// Another process may hold the file for as long as this.
const BUSY: Duration = Duration::from_secs(5);
/// Opening a file and preparing its connection.
const CONNECT: Duration = Duration::from_secs(10);
/// Steps of SQLite's machine between two looks at the deadline: some hundred microseconds.
const STEPS: i32 = 20_000;
/// Prepared statements that are kept; a few tables in a few sizes.
const STATEMENTS: usize = 128;
/// Pages of the WAL after which SQLite moves it into the file: 16 MiB. Rows of objects that change
/// again and again are then moved once for many changes.
const CHECKPOINT_PAGES: &str = "4096";
/// KiB of pages that the writer keeps: a batch touches as many pages as it has objects, and what
/// does not fit is written to the WAL and read again before the batch is committed.
const CACHE: &str = "-8192";
const NO_DEADLINE: u64 = u64::MAX;

const RECEIPTS: &str = "CREATE TABLE IF NOT EXISTS kubewitness_receipts (\
    plugin TEXT NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL, states BLOB NOT NULL, \
    token TEXT NOT NULL, at INTEGER NOT NULL)";
/// In one round trip: each runs only if the one before succeeded. A receipt, and with it what it tells
/// of its rows.
const KEEP: &str = "INSERT INTO kubewitness_receipts (plugin, first, last, states, token, at) \
    VALUES (?, ?, ?, ?, ?, ?); COMMIT";
const KEEP_BOTH: &str = "INSERT INTO kubewitness_receipts (plugin, first, last, states, token, at) \
    VALUES (?, ?, ?, ?, ?, ?), (?, ?, ?, ?, ?, ?); COMMIT";
/// Rows may be gone: what was told of any is told no longer.
const TAKE_BACK: &str = "DELETE FROM kubewitness_receipts WHERE plugin = '/rows'; ";

pub struct Sqlite {
    writer: Arc<Mutex<Writer>>,
    patience: Patience,
}

struct Writer {
    options: SqliteConnectOptions,
    connection: Option<SqliteConnection>,
    /// A transaction may be open: its call went away without ending it.
    open: bool,
    deadline: Arc<Deadline>,
    alike: Alike,
}

/// When the running statement has to end, read by SQLite itself while it works.
struct Deadline {
    start: Instant,
    at_ms: AtomicU64,
}

impl Deadline {
    fn set(&self, at: Option<Instant>) {
        let at = at.map_or(NO_DEADLINE, |at| at.saturating_duration_since(self.start).as_millis() as u64);
        self.at_ms.store(at, Ordering::Relaxed);
    }

    fn has_passed(&self) -> bool {
        self.start.elapsed().as_millis() as u64 >= self.at_ms.load(Ordering::Relaxed)
    }
}

impl Sqlite {
    /// Opens the file, creates it if it is missing, and its folder.
    pub async fn open(path: &Path) -> Result<Self, String> {
        if let Some(folder) = path.parent() {
            let made = tokio::fs::create_dir_all(folder).await;
            made.map_err(|error| format!("the folder of {} can't be made: {error}", path.display()))?;
        }
        let options = SqliteConnectOptions::new()
            .filename(path)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .busy_timeout(BUSY)
            .statement_cache_capacity(STATEMENTS)
            // What a statement of many rows needs to be undone alone stays off the disk.
            .pragma("temp_store", "MEMORY")
            .pragma("wal_autocheckpoint", CHECKPOINT_PAGES)
            .pragma("cache_size", CACHE)
            .pragma("trusted_schema", "OFF")
            .disable_statement_logging();
        let deadline = Arc::new(Deadline { start: Instant::now(), at_ms: AtomicU64::new(NO_DEADLINE) });
        let mut writer = Writer { options, connection: None, open: false, deadline, alike: Alike::default() };
        writer.connect().await.map_err(|error| format!("{} can't be opened: {error}", path.display()))?;
        Ok(Self { writer: Arc::new(Mutex::new(writer)), patience: PATIENCE })
    }

    async fn writer(&self) -> Result<OwnedMutexGuard<Writer>, GrantError> {
        let waited = tokio::time::timeout(self.patience.wait, self.writer.clone().lock_owned()).await;
        let mut writer =
            waited.map_err(|_| GrantError::Unavailable("the database is busy with other calls".into()))?;
        writer.make_ready().await.map_err(|error| refusal(&error))?;
        Ok(writer)
    }
}

impl Writer {
    async fn connect(&mut self) -> Result<(), sqlx::Error> {
        let connecting = async {
            let mut connection = self.options.connect().await?;
            let deadline = self.deadline.clone();
            // Taken once, before the first statement; nothing else ever takes the handle.
            connection.lock_handle().await?.set_progress_handler(STEPS, move || !deadline.has_passed());
            sqlx::query(RECEIPTS).execute(&mut connection).await?;
            Ok::<_, sqlx::Error>(connection)
        };
        let connected = tokio::time::timeout(CONNECT, connecting).await;
        self.connection = Some(connected.map_err(|_| sqlx::Error::PoolTimedOut)??);
        self.open = false;
        Ok(())
    }

    /// Ends what a vanished call left open, and opens anew what was thrown away.
    async fn make_ready(&mut self) -> Result<(), sqlx::Error> {
        self.deadline.set(None);
        if self.open {
            self.roll_back().await;
        }
        if self.connection.is_none() {
            self.connect().await?;
        }
        Ok(())
    }

    async fn roll_back(&mut self) {
        let rolled = match self.connection.as_mut() {
            Some(connection) => sqlx::query("ROLLBACK").execute(connection).await.map(|_| ()),
            None => Ok(()),
        };
        if let Err(error) = rolled {
            // Closing a connection rolls back as well; it fails here where SQLite already did.
            tracing::debug!(%error, "a roll-back was refused; the connection is replaced");
            self.connection = None;
        }
        self.open = false;
    }

    fn connection(&mut self) -> Result<&mut SqliteConnection, sqlx::Error> {
        self.connection.as_mut().ok_or(sqlx::Error::WorkerCrashed)
    }

    async fn run(&mut self, statement: &str, arguments: SqliteArguments) -> Result<u64, sqlx::Error> {
        let query = sqlx::query_with(AssertSqlSafe(statement.to_owned()), arguments);
        query.execute(self.connection()?).await.map(|done| done.rows_affected())
    }
}

#[async_trait]
impl Engine for Sqlite {
    fn dialect(&self) -> Dialect {
        Dialect::Sqlite
    }

    async fn begin(&self, _plugin: &str) -> Result<Box<dyn Transaction>, GrantError> {
        let mut writer = self.writer().await?;
        // Set first: a call that goes away in between leaves something to end.
        writer.open = true;
        // A deferred one would fail later, when it first writes.
        if let Err(error) = writer.run("BEGIN IMMEDIATE", SqliteArguments::default()).await {
            writer.roll_back().await;
            return Err(refusal(&error));
        }
        Ok(Box::new(Open {
            writer,
            patience: self.patience,
            began: Instant::now(),
            wrote: false,
            broken: None,
        }))
    }

    async fn receipts(&self, plugin: &str, above: Seq) -> Result<Vec<Mark>, GrantError> {
        let mut writer = self.writer().await?;
        let rows =
            sqlx::query("SELECT states FROM kubewitness_receipts WHERE plugin = ? AND last > ? LIMIT ?")
                .bind(plugin)
                .bind(position(above))
                .bind(applied::MAX_RECEIPTS as i64);
        let rows = rows.fetch_all(writer.connection().map_err(|error| refusal(&error))?).await;
        let mut marks = Vec::new();
        for row in rows.map_err(|error| refusal(&error))? {
            let bytes: Vec<u8> = row.try_get(0).map_err(|error| refusal(&error))?;
            let decoded = applied::decode(&bytes);
            marks.extend(
                decoded.ok_or_else(|| GrantError::Other("a receipt in the database is damaged".into()))?,
            );
        }
        marks.retain(|mark| mark.seq > above);
        Ok(marks)
    }

    async fn forget(&self, plugin: &str, through: Seq) -> Result<(), GrantError> {
        let mut writer = self.writer().await?;
        let text = "DELETE FROM kubewitness_receipts WHERE last <= ?1 AND (plugin = ?2 OR plugin = '/rows' AND token LIKE ?3)";
        let delete = sqlx::query(text).bind(position(through)).bind(plugin).bind(format!("{plugin}.%"));
        let deleted = delete.execute(writer.connection().map_err(|error| refusal(&error))?).await;
        deleted.map(|_| ()).map_err(|error| refusal(&error))
    }

    async fn committed(&self, token: &str) -> Result<bool, GrantError> {
        let mut writer = self.writer().await?;
        let found = sqlx::query("SELECT 1 FROM kubewitness_receipts WHERE token = ? LIMIT 1").bind(token);
        let found = found.fetch_optional(writer.connection().map_err(|error| refusal(&error))?).await;
        found.map(|row| row.is_some()).map_err(|error| refusal(&error))
    }
}

/// The transaction of one call. Dropped without an end, it is rolled back by whoever comes next.
struct Open {
    writer: OwnedMutexGuard<Writer>,
    patience: Patience,
    began: Instant,
    wrote: bool,
    broken: Option<GrantError>,
}

impl Open {
    fn start_statement(&mut self) -> Result<(), GrantError> {
        self.intact()?;
        let now = Instant::now();
        let end = self.began + self.patience.transaction;
        if now >= end {
            let error = GrantError::Timeout(format!(
                "a call may keep the database for {} s",
                self.patience.transaction.as_secs()
            ));
            self.broken = Some(error.clone());
            return Err(error);
        }
        self.writer.deadline.set(Some(end.min(now + self.patience.statement)));
        Ok(())
    }

    fn end<T>(&mut self, result: Result<T, sqlx::Error>) -> Result<T, GrantError> {
        self.writer.deadline.set(None);
        result.map_err(|error| {
            let refused = refusal(&error);
            if !is_statements_own(&error) {
                self.broken = Some(refused.clone());
            }
            refused
        })
    }

    async fn run(&mut self, statement: &str, values: Vec<SqlValue>) -> Result<u64, GrantError> {
        let arguments = bind(values)?;
        self.start_statement()?;
        self.wrote = true;
        let result = self.writer.run(statement, arguments).await;
        self.end(result)
    }

    /// Several statements that are kept or undone together, within the call's transaction.
    async fn run_all(&mut self, statements: Vec<(String, Vec<SqlValue>)>) -> Result<u64, GrantError> {
        let several = statements.len() > 1;
        if several {
            self.run("SAVEPOINT kw", Vec::new()).await?;
        }
        let mut affected = 0;
        for (statement, values) in statements {
            match self.run(&statement, values).await {
                Ok(rows) => affected += rows,
                Err(error) if several && self.broken.is_none() => {
                    self.run("ROLLBACK TO kw", Vec::new()).await?;
                    self.run("RELEASE kw", Vec::new()).await?;
                    return Err(error);
                }
                Err(error) => return Err(error),
            }
        }
        if several {
            self.run("RELEASE kw", Vec::new()).await?;
        }
        Ok(affected)
    }
}

#[async_trait]
impl Transaction for Open {
    async fn execute(&mut self, statement: &str, rows: Vec<Vec<SqlValue>>) -> Result<u64, GrantError> {
        let checked = guard::check(statement, Purpose::Execute, Dialect::Sqlite)?;
        for row in &rows {
            fits_arity(checked.arity, row)?;
        }
        check_size(&rows)?;
        self.run_all(write::statements(&checked, rows)).await
    }

    async fn write(&mut self, write: TableWrite) -> Result<u64, GrantError> {
        let plan = write::plan(write, Dialect::Sqlite)?;
        check_size(&plan.rows)?;
        let alike = self.writer.alike.of(&plan);
        let statements = plan.into_statements(VALUE_BYTES, &alike);
        self.run_all(statements).await
    }

    async fn query(
        &mut self,
        statement: &str,
        params: Vec<SqlValue>,
    ) -> Result<Vec<Vec<SqlValue>>, GrantError> {
        let checked = guard::check(statement, Purpose::Query, Dialect::Sqlite)?;
        fits_arity(checked.arity, &params)?;
        let arguments = bind(params)?;
        self.start_statement()?;
        // A WITH may also write.
        self.wrote |= !checked.reads_only();
        let result = read(&mut self.writer, checked.text, arguments).await;
        match self.end(result)? {
            Some(rows) => Ok(rows),
            None => Err(GrantError::TooLarge(format!(
                "a query gives at most {QUERY_ROWS} rows and {VALUE_BYTES} bytes"
            ))),
        }
    }

    fn wrote(&self) -> bool {
        self.wrote
    }

    fn intact(&self) -> Result<(), GrantError> {
        match &self.broken {
            Some(error) => Err(GrantError::Unavailable(format!("what this call wrote was undone: {error}"))),
            None => Ok(()),
        }
    }

    async fn commit(mut self: Box<Self>, receipt: &Receipt) -> Result<(), CommitError> {
        if let Err(error) = self.intact() {
            self.writer.roll_back().await;
            return Err(CommitError::RolledBack(error));
        }
        let (statement, arguments) = keep(receipt).map_err(CommitError::RolledBack)?;
        let statement = match receipt.claims.takes {
            true => format!("{TAKE_BACK}{statement}"),
            false => statement.to_owned(),
        };
        self.writer.deadline.set(None);
        let Err(error) = self.writer.run(&statement, arguments).await else {
            self.writer.open = false;
            return Ok(());
        };
        // Whether the commit took hold is read back over a new connection: closing this one rolls
        // back what was not committed.
        self.writer.connection = None;
        self.writer.open = false;
        let refused = refusal(&error);
        match self.writer.make_ready().await {
            Ok(()) if receipt.marks.is_empty() => Err(CommitError::RolledBack(refused)),
            Ok(()) => self.look_up(&receipt.token, refused).await,
            Err(_) => Err(CommitError::InDoubt(refused)),
        }
    }

    async fn rollback(mut self: Box<Self>) {
        self.writer.deadline.set(None);
        self.writer.roll_back().await;
    }
}

impl Open {
    async fn look_up(&mut self, token: &str, refused: GrantError) -> Result<(), CommitError> {
        let found = sqlx::query("SELECT 1 FROM kubewitness_receipts WHERE token = ? LIMIT 1").bind(token);
        let Ok(connection) = self.writer.connection() else { return Err(CommitError::InDoubt(refused)) };
        match found.fetch_optional(connection).await {
            Ok(Some(_)) => Ok(()),
            Ok(None) => Err(CommitError::RolledBack(refused)),
            Err(_) => Err(CommitError::InDoubt(refused)),
        }
    }
}

fn keep(receipt: &Receipt) -> Result<(&'static str, SqliteArguments), GrantError> {
    let Receipt { plugin, marks, token, at_ms, claims } = receipt;
    let (Some(first), Some(last)) = (marks.first(), marks.last()) else {
        return Ok(("COMMIT", SqliteArguments::default()));
    };
    let row = |plugin: &str, states| {
        [
            SqlValue::Text(plugin.to_owned()),
            SqlValue::Integer(position(first.seq)),
            SqlValue::Integer(position(last.seq)),
            SqlValue::Blob(states),
            SqlValue::Text(token.clone()),
            SqlValue::Integer(position(*at_ms)),
        ]
    };
    let mut values = row(plugin, applied::encode(marks)).to_vec();
    match claims.encode(marks) {
        None => Ok((KEEP, bind(values)?)),
        Some(told) => {
            values.extend(row(claims::OWNER, told));
            Ok((KEEP_BOTH, bind(values)?))
        }
    }
}

/// Positions are counted by the journal's own SQLite and fit.
fn position(seq: u64) -> i64 {
    i64::try_from(seq).unwrap_or(i64::MAX)
}

/// `None` where there are more rows or bytes than a plugin may be given.
async fn read(
    writer: &mut Writer,
    statement: &str,
    arguments: SqliteArguments,
) -> Result<Option<Vec<Vec<SqlValue>>>, sqlx::Error> {
    let query = sqlx::query_with(AssertSqlSafe(statement.to_owned()), arguments);
    let mut stream = query.fetch(writer.connection()?);
    let mut rows = Vec::new();
    let mut bytes = 0;
    while let Some(row) = stream.try_next().await? {
        let row = values(&row)?;
        bytes += size(&row);
        if rows.len() >= QUERY_ROWS || bytes > VALUE_BYTES {
            return Ok(None);
        }
        rows.push(row);
    }
    Ok(Some(rows))
}

#[cfg(test)]
mod tests;
