//! SQLite: one writer connection for each database, shared by the plugins that were granted it. A call holds
//! the writer from its first statement to its commit. Both the wait for it and its use are limited in time.
//! WAL lets people read at the same time; every commit is synced. It knows no server and no other capability.
//!
//! The work of a call runs as a whole, with the writer, on a thread that may block. If the call is dropped,
//! the running statement is stopped, and the next call rolls back the open transaction.
//!
//! A failed statement leaves the rest of the call's transaction intact, unless SQLite reports otherwise; then
//! the whole call is rolled back.

mod authority;
mod convert;
mod deadline;
mod each;
mod writer;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use kubewitness_core::config::Bytes;
use kubewitness_core::intents::commits::NotedCommit;
use kubewitness_core::ports::{GrantError, SqlDialect, SqlValue, TableCopy, TableWrite};
use kubewitness_core::{BoxedError, Seq, files};
use thiserror::Error;
use tokio::sync::{Mutex, OwnedMutexGuard};

use self::convert::unanswered_error;
pub(super) use self::convert::{bind_values, safe_message};
use self::deadline::{CallLimits, PATIENCE, SqlitePatience, StatementDeadline};
use self::each::{Each, RowWrite};
use self::writer::SqliteWriter;
use super::guard::{self, StatementPurpose};
use super::receipt::StoredReceipt;
use super::values::{QUERY_ROWS, VALUE_BYTES, ValueRows, check_size, fits_arity, values_size};
use super::{
    CommitError, DatabaseEngine, ReceiptPruning, ReceiptSurvey, SqlFault, SqlTransaction, TransactionMode,
    only_reads, write,
};

/// The time limit for opening a file and preparing its connection.
const CONNECT: Duration = Duration::from_secs(10);

pub struct SqliteDatabase {
    writer: Arc<Mutex<SqliteWriter>>,
    patience: SqlitePatience,
}

type HeldWriter = OwnedMutexGuard<SqliteWriter>;

/// If it is dropped before the work has ended, the work is marked as given up.
struct WaitingWork(Option<Arc<StatementDeadline>>);

impl Drop for WaitingWork {
    fn drop(&mut self) {
        if let Some(deadline) = &self.0 {
            deadline.end_call();
        }
    }
}

/// Runs work with the writer on a thread that may block. If the caller is dropped, the work panics, or the
/// disk does not answer, the writer is released once the work has ended.
async fn run_on_blocking_thread<T: Send + 'static>(
    patience: SqlitePatience,
    mut writer: HeldWriter,
    work: impl FnOnce(&mut SqliteWriter) -> T + Send + 'static,
) -> Result<(HeldWriter, T), GrantError> {
    let deadline = writer.deadline.clone();
    let mut working = tokio::task::spawn_blocking(move || {
        let done = work(&mut writer);
        (writer, done)
    });
    // Dropped before `working`, which may hold the writer, so that the writer's next call is not stopped.
    let mut waiting = WaitingWork(Some(deadline));
    let ended = tokio::time::timeout(patience.disk, &mut working).await;
    let Ok(ended) = ended else {
        tracing::error!("a database's disk has not answered for {} s", patience.disk.as_secs());
        return Err(unanswered_error());
    };
    waiting.0 = None;
    ended.map_err(|error| {
        tracing::error!(%error, "work with the database broke off");
        unanswered_error()
    })
}

async fn make_ready(writer: HeldWriter) -> Result<HeldWriter, GrantError> {
    if writer.is_ready() {
        return Ok(writer);
    }
    let made =
        tokio::time::timeout(CONNECT, run_on_blocking_thread(PATIENCE, writer, SqliteWriter::make_ready))
            .await;
    let (writer, made) = made.map_err(|_| unanswered_error())??;
    made.map(|()| writer)
}

/// The file of a database can't be opened.
#[derive(Debug, Error)]
#[error("{} can't be opened: {source}", path.display())]
pub struct SqliteOpenError {
    path: PathBuf,
    source: BoxedError,
}

impl SqliteDatabase {
    /// Opens the file, and creates it and its folder if they are missing. First a separate thread accesses
    /// its disk, because a disk may hang; such a disk is tried again until it answers.
    pub async fn open(path: &Path, size: Option<Bytes>) -> Result<Self, SqliteOpenError> {
        let refused = |source: BoxedError| SqliteOpenError { path: path.to_owned(), source };
        let file = path.to_owned();
        let looked = files::run_within_limit(path, files::ANSWER, move || {
            let made = file.parent().map_or(Ok(()), std::fs::create_dir_all);
            made.map_err(|error| io::Error::new(error.kind(), format!("its folder can't be made: {error}")))?;
            files::look(&file)
        });
        looked.await.map_err(|error| refused(error.into()))?;
        let writer = Arc::new(Mutex::new(SqliteWriter::new(path.to_owned(), size)));
        let opened = make_ready(writer.clone().lock_owned().await).await;
        opened.map_err(|error| refused(error.into()))?;
        Ok(Self { writer, patience: PATIENCE })
    }

    async fn hold_writer(&self) -> Result<HeldWriter, GrantError> {
        let waited = tokio::time::timeout(self.patience.wait, self.writer.clone().lock_owned()).await;
        let writer =
            waited.map_err(|_| GrantError::Unavailable("the database is busy with other calls".into()))?;
        writer.deadline.renew_for_call();
        make_ready(writer).await
    }

    async fn ask_writer<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut SqliteWriter) -> Result<T, GrantError> + Send + 'static,
    ) -> Result<T, GrantError> {
        run_on_blocking_thread(self.patience, self.hold_writer().await?, work).await?.1
    }
}

/// Closing a file moves its WAL into it, which waits for the disk.
impl Drop for SqliteDatabase {
    fn drop(&mut self) {
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let writer = self.writer.clone();
            runtime.spawn_blocking(move || drop(writer));
        }
    }
}

#[async_trait]
impl DatabaseEngine for SqliteDatabase {
    fn dialect(&self) -> SqlDialect {
        SqlDialect::Sqlite
    }

    async fn begin_in(
        &self,
        mode: TransactionMode,
        _plugin: &str,
    ) -> Result<Box<dyn SqlTransaction>, GrantError> {
        let (writer, begun) =
            run_on_blocking_thread(self.patience, self.hold_writer().await?, SqliteWriter::begin_for_call)
                .await?;
        begun?;
        let connection = writer.connection_number();
        let limits = CallLimits { patience: self.patience, began: Instant::now() };
        let written = Some(WrittenRows::default());
        Ok(Box::new(SqliteTransaction {
            writer: Some(writer),
            connection,
            mode,
            limits,
            wrote: false,
            written,
            broken: None,
        }))
    }

    async fn survey_receipts(
        &self,
        plugin: &str,
        _: TransactionMode,
        expected: &[NotedCommit],
    ) -> Result<ReceiptSurvey, GrantError> {
        let (plugin, expected) = (plugin.to_owned(), expected.to_vec());
        self.ask_writer(move |writer| writer.survey_receipts(&plugin, &expected)).await
    }

    async fn forget_receipts(&self, plugin: &str, through: Seq) -> Result<(), GrantError> {
        let plugin = plugin.to_owned();
        self.ask_writer(move |writer| writer.forget_receipts(&plugin, through)).await
    }

    async fn was_committed(&self, token: &str) -> Result<bool, GrantError> {
        let token = token.to_owned();
        self.ask_writer(move |writer| writer.was_committed(&token)).await
    }
}

/// The transaction of one call. If it is dropped without an end, the next call rolls it back.
struct SqliteTransaction {
    /// `None` while a thread works with it, and for good if the call stopped waiting for that.
    writer: Option<HeldWriter>,
    connection: u64,
    mode: TransactionMode,
    limits: CallLimits,
    wrote: bool,
    /// The rows that the call has written, as long as it has written nothing else.
    written: Option<WrittenRows>,
    broken: Option<GrantError>,
}

/// The most writes that are kept: each further one copies the list.
const WRITES_HELD: usize = 64;

/// Rows that can be written again. They stay in memory until the call ends.
#[derive(Default)]
struct WrittenRows {
    writes: Vec<Arc<RowWrite>>,
    bytes: usize,
}

impl WrittenRows {
    /// `None` if there are too many to keep. Empty values take memory, too.
    fn and_write(mut self, write: &Arc<RowWrite>) -> Option<Self> {
        let of =
            |row: &Vec<SqlValue>| values_size(row) + size_of::<Vec<SqlValue>>() + size_of_val(row.as_slice());
        self.bytes += write.rows.iter().map(of).sum::<usize>();
        self.writes.push(Arc::clone(write));
        (self.bytes <= VALUE_BYTES && self.writes.len() <= WRITES_HELD).then_some(self)
    }
}

impl SqliteTransaction {
    async fn run_with_writer<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&mut SqliteWriter) -> Result<T, SqlFault> + Send + 'static,
    ) -> Result<T, GrantError> {
        let writer = self.writer.take().ok_or_else(unanswered_error)?;
        let (writer, done) = run_on_blocking_thread(self.limits.patience, writer, work).await?;
        self.writer = Some(writer);
        done.map_err(|fault| {
            if let SqlFault::Lost(error) = &fault {
                self.broken = Some(error.clone());
            }
            fault.into_error()
        })
    }

    /// Whether the rows may be written. Notes that the call writes from now on.
    fn begins_to_write(&mut self) -> Result<(), GrantError> {
        if self.mode == TransactionMode::ReadOnly {
            return Err(only_reads());
        }
        self.check_intact()?;
        self.wrote = true;
        Ok(())
    }

    /// The effect of the plugin's own statements is unknown, so they are not repeated.
    async fn run(&mut self, write: RowWrite) -> Result<u64, GrantError> {
        if write.rows.is_empty() {
            return Ok(0);
        }
        self.begins_to_write()?;
        self.written = None;
        let limits = self.limits;
        self.run_with_writer(move |writer| writer.execute_rows(&write, &limits)).await
    }

    async fn run_rows(&mut self, write: RowWrite) -> Result<u64, GrantError> {
        let Some(written) = self.written.take() else { return self.run(write).await };
        if write.rows.is_empty() {
            self.written = Some(written);
            return Ok(0);
        }
        self.begins_to_write()?;
        let (write, limits) = (Arc::new(write), self.limits);
        let (again, before) = (Arc::clone(&write), written.writes.clone());
        let done = self.run_with_writer(move |writer| writer.write(&again, &before, &limits)).await;
        // If one row is invalid, more may be: from now on each write is undone separately.
        self.written = done.as_ref().ok().and_then(|_| written.and_write(&write));
        done
    }
}

#[async_trait]
impl SqlTransaction for SqliteTransaction {
    async fn execute(&mut self, statement: &str, rows: Vec<Vec<SqlValue>>) -> Result<u64, GrantError> {
        let checked = guard::check(statement, StatementPurpose::Execute, SqlDialect::Sqlite)?;
        for row in &rows {
            fits_arity(checked.arity, row)?;
        }
        check_size(&rows)?;
        self.run(RowWrite { each: vec![Each::of(checked.text.to_owned())], rows }).await
    }

    async fn write(&mut self, write: TableWrite, copy: Option<TableCopy>) -> Result<u64, GrantError> {
        let second = copy.map(|copy| Each::of_copy(copy, &write)).transpose()?;
        let plan = write::plan_write(write, SqlDialect::Sqlite)?;
        check_size(&plan.rows)?;
        let each = [Some(Each::of(plan.for_one_row())), second].into_iter().flatten().collect();
        self.run_rows(RowWrite { each, rows: plan.rows }).await
    }

    async fn query(&mut self, statement: &str, params: Vec<SqlValue>) -> Result<ValueRows, GrantError> {
        let checked = guard::check(statement, StatementPurpose::Query, SqlDialect::Sqlite)?;
        fits_arity(checked.arity, &params)?;
        self.check_intact()?;
        // A WITH may also write.
        let mode = self.mode;
        if mode == TransactionMode::ReadWrite && !checked.reads_only() {
            (self.wrote, self.written) = (true, None);
        }
        let (text, limits) = (checked.text.to_owned(), self.limits);
        let rows =
            self.run_with_writer(move |writer| writer.query_rows(mode, &text, &params, &limits)).await?;
        let most = || format!("a query gives at most {QUERY_ROWS} rows and {VALUE_BYTES} bytes");
        rows.ok_or_else(|| GrantError::TooLarge(most()))
    }

    fn has_writes(&self) -> bool {
        self.wrote
    }

    fn check_intact(&self) -> Result<(), GrantError> {
        let undone = |why: &str| format!("the writes of this call were undone: {why}");
        Err(match (&self.broken, &self.writer) {
            // A trigger may refuse a row because of its values: that is an invalid write, not an outage.
            (Some(GrantError::Invalid(why)), _) => GrantError::Invalid(undone(why)),
            (Some(error), _) => GrantError::Unavailable(undone(&error.to_string())),
            (None, None) => GrantError::Unavailable(undone("the call left one of its statements unfinished")),
            (None, Some(_)) => return Ok(()),
        })
    }

    async fn commit_with_receipt(mut self: Box<Self>, receipt: &StoredReceipt) -> Result<(), CommitError> {
        if let Err(error) = self.check_intact() {
            self.roll_back().await;
            return Err(CommitError::RolledBack(error));
        }
        let writer = self.writer.take().ok_or_else(|| CommitError::RolledBack(unanswered_error()))?;
        let receipt = receipt.clone();
        match run_on_blocking_thread(self.limits.patience, writer, move |writer| {
            writer.commit_with_receipt(&receipt)
        })
        .await
        {
            Ok((_, done)) => done,
            Err(error) => Err(CommitError::InDoubt(error)),
        }
    }

    async fn roll_back(mut self: Box<Self>) {
        let Some(writer) = self.writer.take() else { return };
        if let Err(error) =
            run_on_blocking_thread(self.limits.patience, writer, SqliteWriter::roll_back).await
        {
            tracing::debug!(%error, "the next call rolls back");
        }
    }

    async fn prune_receipts(mut self: Box<Self>, pruning: ReceiptPruning) -> Result<(), GrantError> {
        let writer = self.writer.take().ok_or_else(unanswered_error)?;
        let work = move |writer: &mut SqliteWriter| writer.prune_receipts(&pruning);
        run_on_blocking_thread(self.limits.patience, writer, work).await?.1
    }

    fn connection_number(&self) -> u64 {
        self.connection
    }

    async fn has_token(&mut self, token: &str) -> Result<bool, GrantError> {
        let token = token.to_owned();
        self.run_with_writer(move |writer| writer.was_committed(&token).map_err(SqlFault::Lost)).await
    }

    async fn survey_receipts(
        &mut self,
        plugin: &str,
        expected: &[NotedCommit],
    ) -> Result<ReceiptSurvey, GrantError> {
        let (plugin, expected) = (plugin.to_owned(), expected.to_vec());
        let work =
            move |writer: &mut SqliteWriter| writer.survey_open(&plugin, &expected).map_err(SqlFault::Lost);
        self.run_with_writer(work).await
    }
}

#[cfg(test)]
mod tests;
