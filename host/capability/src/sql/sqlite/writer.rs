//! The one connection that writes. Every function waits for the disk and for locks, so it must be called on a
//! thread that may block.

use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kubewitness_core::config::Bytes;
use kubewitness_core::intents::commits::NotedCommit;
use kubewitness_core::ports::{GrantError, SqlValue};
use kubewitness_core::{Seq, files};
use rusqlite::limits::Limit;
use rusqlite::{Connection, Error, MAIN_DB, OpenFlags, params};

use super::authority::{PluginTurn, StatementAuthority};
use super::convert::{is_statements_own, read, refusal_of, step_to_end, unanswered_error};
use super::deadline::{CallLimits, StatementDeadline};
use super::each::{Each, RowWrite};
use crate::receipts;
use crate::sql::receipt::{FLOOR, StoredReceipt, claims, floor_token};
use crate::sql::values::{VALUE_BYTES, ValueRows};
use crate::sql::{
    CommitError, FloorColumns, ReceiptPruning, ReceiptSurvey, SqlFault, SurveyColumns, SurveyRow,
    TransactionMode, next_connection_number, only_reads,
};

/// How long another process may hold the file.
const BUSY: Duration = Duration::from_secs(5);
/// How many steps of SQLite's virtual machine are between two checks of the deadline: some hundred
/// microseconds.
const STEPS: i32 = 20_000;
/// The longest text, blob or row, also for intermediate values of a statement.
const VALUE_LIMIT: i32 = VALUE_BYTES as i32;
/// The most prepared statements that are kept.
const STATEMENTS: usize = 128;
/// Data that is kept only to undo something stays off the disk (`temp_store`). The WAL is moved into the file
/// after 16 MiB of it: rows of objects that change again and again are then moved once for many changes. The
/// writer keeps 8 MiB of pages: a batch touches as many pages as it has objects, and what does not fit is
/// written to the WAL and read again before the batch is committed.
///
/// Values that one statement makes are in memory at the same time, and nothing else bounds their number. The heap's
/// limits hold for all of SQLite in this process, and for the journal too: from the lower one on pages that caches keep are
/// given back, also those of other files, and what would go beyond the upper one fails. The journal needs a few MiB
/// beside its caches. The container's limit has room for 1 GiB.
const PRAGMAS: &str = "PRAGMA journal_mode = WAL; PRAGMA foreign_keys = ON; PRAGMA synchronous = FULL; \
    PRAGMA temp_store = MEMORY; PRAGMA wal_autocheckpoint = 4096; PRAGMA cache_size = -8192; \
    PRAGMA trusted_schema = OFF; PRAGMA hard_heap_limit = 536870912; PRAGMA soft_heap_limit = 268435456";

const RECEIPTS: &str = "CREATE TABLE IF NOT EXISTS kubewitness_receipts (\
    plugin TEXT NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL, states BLOB NOT NULL, \
    token TEXT NOT NULL, at INTEGER NOT NULL)";
/// A receipt, or what it tells of its rows.
const KEEP: &str = "INSERT INTO kubewitness_receipts (plugin, first, last, states, token, at) \
    VALUES (?, ?, ?, ?, ?, ?)";
/// Rows may be gone: what was told of any is told no longer.
const TAKE_BACK: &str = "DELETE FROM kubewitness_receipts WHERE plugin = '/rows'";
const REMOVE: &str = "DELETE FROM kubewitness_receipts WHERE token = ?";
/// The newest first, in the order of their commits.
const OWN: &str =
    "SELECT states, token, at FROM kubewitness_receipts WHERE plugin = ? ORDER BY rowid DESC LIMIT ?";
const FLOORS: &str = "SELECT last, at FROM kubewitness_receipts WHERE plugin = '/floor' AND token = ?";
const PRUNE: &str = "DELETE FROM kubewitness_receipts WHERE last <= ?1 AND at < ?4 \
    AND (plugin = ?2 OR plugin = '/rows' AND token LIKE ?3)";
const REMOVE_FLOOR: &str =
    "DELETE FROM kubewitness_receipts WHERE plugin = '/floor' AND token = ?1 AND last <= ?2";
const COMMITTED: &str = "SELECT 1 FROM kubewitness_receipts WHERE token = ? LIMIT 1";

pub struct SqliteWriter {
    path: PathBuf,
    /// The largest that the file may be.
    size: Option<Bytes>,
    connection: Option<Connection>,
    /// The file that was opened, whatever lies under its name by now.
    file: Option<u64>,
    /// The number of the connection.
    number: u64,
    /// A transaction may be open: its call went away without ending it.
    open: bool,
    authority: Arc<StatementAuthority>,
    pub deadline: Arc<StatementDeadline>,
}

impl SqliteWriter {
    pub fn new(path: PathBuf, size: Option<Bytes>) -> Self {
        let deadline = Arc::new(StatementDeadline::without_deadline());
        let authority = Arc::default();
        Self { path, size, connection: None, file: None, number: 0, open: false, authority, deadline }
    }

    fn connect_file(&mut self) -> Result<(), Error> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE;
        let connection = Connection::open_with_flags(&self.path, flags | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
        connection.busy_timeout(BUSY)?;
        connection.set_prepared_statement_cache_capacity(STATEMENTS);
        connection.set_limit(Limit::SQLITE_LIMIT_LENGTH, VALUE_LIMIT)?;
        connection.execute_batch(PRAGMAS)?;
        if let Some(Bytes(size)) = self.size {
            let page: i64 = connection.pragma_query_value(None, "page_size", |row| row.get(0))?;
            let pages = i64::try_from(size).unwrap_or(i64::MAX) / page.max(1);
            connection.pragma_update(None, "max_page_count", pages)?;
        }
        let deadline = self.deadline.clone();
        connection.progress_handler(STEPS, Some(move || deadline.has_passed()))?;
        connection.execute_batch(RECEIPTS)?;
        connection.authorizer(Some(Arc::clone(&self.authority).into_hook()))?;
        self.connection = Some(connection);
        self.number = next_connection_number();
        self.file = self.inode_under_name();
        self.open = false;
        Ok(())
    }

    /// Identifies the connection, once there is one.
    pub fn connection_number(&self) -> u64 {
        self.number
    }

    /// The inode of the file with this name. `None` of an unanswered question does not count as another file.
    fn inode_under_name(&self) -> Option<u64> {
        match std::fs::metadata(&self.path) {
            Ok(found) => Some(found.ino()),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(_) => self.file,
        }
    }

    /// Drops the connection to a file that was removed: SQLite would continue to write into it, and the rows
    /// would be lost. Returns whether it was removed.
    fn drops_lost_file(&mut self) -> bool {
        if self.connection.is_none() || self.inode_under_name() == self.file {
            return false;
        }
        self.connection = None;
        self.open = false;
        tracing::warn!(
            path = %self.path.display(),
            "the database's file was removed or replaced while it was open: its rows are lost. New rows go to the \
             file that is there now"
        );
        true
    }

    pub fn is_ready(&self) -> bool {
        self.connection.is_some() && !self.open
    }

    /// Ends what a dropped call left open, and reopens a connection that was discarded.
    pub fn make_ready(&mut self) -> Result<(), GrantError> {
        if self.open {
            self.roll_back();
        }
        if self.connection.is_none() {
            // SQLite opens any file type, and reports a pipe only as a failing disk.
            let looked = files::look(&self.path);
            looked.map_err(|error| self.name_file_in_error(GrantError::Unavailable(error.to_string())))?;
            self.connect_file().map_err(|error| self.name_file_in_error(refusal_of(&error)))?;
        }
        Ok(())
    }

    /// Names the file in an error, without its folder, which is for the controller's log.
    fn name_file_in_error(&self, refused: GrantError) -> GrantError {
        let GrantError::Unavailable(why) = refused else { return refused };
        tracing::warn!(path = %self.path.display(), "the database can't be used: {why}");
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        GrantError::Unavailable(format!("{name}: {why}"))
    }

    #[cfg(test)]
    pub fn forbid_writing(&mut self) {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        self.connection = Some(Connection::open_with_flags(&self.path, flags).unwrap());
    }

    /// Runs work on the connection. A failed statement leaves the transaction unchanged, unless SQLite
    /// reports otherwise.
    fn with_connection<'a, T>(
        &'a self,
        work: impl FnOnce(&'a Connection) -> Result<T, Error>,
    ) -> Result<T, SqlFault> {
        self.with_explained_errors(|_| None, work)
    }

    /// Does the same for a plugin's statement, and says why the authorizer refused it.
    fn with_plugin_turn<'a, T>(
        &'a self,
        turn: &PluginTurn<'_>,
        work: impl FnOnce(&'a Connection) -> Result<T, Error>,
    ) -> Result<T, SqlFault> {
        self.with_explained_errors(|error| turn.explain_error(error), work)
    }

    fn with_explained_errors<'a, T>(
        &'a self,
        explain: impl FnOnce(&Error) -> Option<GrantError>,
        work: impl FnOnce(&'a Connection) -> Result<T, Error>,
    ) -> Result<T, SqlFault> {
        let Some(connection) = &self.connection else { return Err(SqlFault::Lost(unanswered_error())) };
        work(connection).map_err(|error| match is_statements_own(&error) && !connection.is_autocommit() {
            true => SqlFault::Own(explain(&error).unwrap_or_else(|| refusal_of(&error))),
            false => SqlFault::Lost(self.name_file_in_error(refusal_of(&error))),
        })
    }

    /// One of the controller's own.
    fn run(&self, text: &str) -> Result<(), SqlFault> {
        self.with_connection(|connection| connection.prepare_cached(text)?.execute([]).map(|_| ()))
    }

    pub fn begin_for_call(&mut self) -> Result<(), GrantError> {
        // A connection to a file that was not writable when it was opened never becomes writable.
        let reads_only = |connection: &Connection| connection.is_readonly(MAIN_DB).unwrap_or(false);
        self.connection.take_if(|connection| reads_only(connection));
        self.drops_lost_file();
        self.make_ready()?;
        // Set first, so that a call that is dropped meanwhile leaves a transaction that is ended later.
        self.open = true;
        // A deferred transaction would fail later, at its first write.
        self.run("BEGIN IMMEDIATE").map_err(|fault| {
            self.roll_back();
            fault.into_error()
        })
    }

    pub fn roll_back(&mut self) {
        self.deadline.lift_deadline();
        if let Err(fault) = self.run("ROLLBACK") {
            // Closing a connection also rolls back. ROLLBACK fails if SQLite has already done so.
            let error = fault.into_error();
            tracing::debug!(%error, "a rollback was refused; the connection is replaced");
            self.connection = None;
        }
        self.open = false;
    }

    fn in_time<T>(
        &self,
        limits: &CallLimits,
        work: impl FnOnce() -> Result<T, SqlFault>,
    ) -> Result<T, SqlFault> {
        self.deadline.start(limits)?;
        let done = work();
        self.deadline.lift_deadline();
        done
    }

    /// Runs statements once for each row. Either all of them are kept or all are undone, within the call's
    /// transaction.
    pub fn execute_rows(&self, write: &RowWrite, limits: &CallLimits) -> Result<u64, SqlFault> {
        self.in_time(limits, || {
            self.run("SAVEPOINT kw")?;
            let done = self.execute_all(write, limits);
            if let Err(SqlFault::Lost(_)) = done {
                return done;
            }
            let left = match done {
                Ok(_) => Ok(()),
                Err(_) => self.run("ROLLBACK TO kw"),
            };
            // Without this, the state of the transaction would be unknown.
            left.and_then(|()| self.run("RELEASE kw")).map_err(lost_transaction)?;
            done
        })
    }

    /// Like [`execute_rows`](Self::execute_rows), in a call that has only written the rows of `before`. A
    /// savepoint would copy each changed page, so none is made. If a row fails, which is rare, the call is
    /// undone and the rows of `before` are written again.
    pub fn write(
        &self,
        write: &RowWrite,
        before: &[Arc<RowWrite>],
        limits: &CallLimits,
    ) -> Result<u64, SqlFault> {
        self.in_time(limits, || {
            let error = match self.execute_all(write, limits) {
                Err(SqlFault::Own(error)) => error,
                done => return done,
            };
            match self.write_again(before, limits).map_err(SqlFault::into_error) {
                Ok(()) => Err(SqlFault::Own(error)),
                // The row is at fault, not the time for undoing it: the call is split, as for any invalid
                // row.
                Err(GrantError::Timeout(_)) => Err(SqlFault::Lost(error)),
                Err(other) => Err(SqlFault::Lost(other)),
            }
        })
    }

    fn write_again(&self, before: &[Arc<RowWrite>], limits: &CallLimits) -> Result<(), SqlFault> {
        // The number changes when another connection commits.
        let version = || {
            self.with_connection(|connection| {
                connection.pragma_query_value(None, "data_version", |row| row.get::<_, i64>(0))
            })
        };
        let begun = version()?;
        self.run("ROLLBACK")?;
        self.run("BEGIN IMMEDIATE")?;
        if version()? != begun {
            let other = "another process wrote to the database while the call was undone";
            return Err(SqlFault::Lost(GrantError::Unavailable(other.into())));
        }
        before.iter().try_for_each(|write| self.execute_all(write, limits).map(drop))
    }

    fn execute_all(&self, write: &RowWrite, limits: &CallLimits) -> Result<u64, SqlFault> {
        write.each.iter().try_fold(0, |sum, each| Ok(sum + self.execute_each(each, &write.rows, limits)?))
    }

    fn execute_each(
        &self,
        each: &Each,
        rows: &[Vec<SqlValue>],
        limits: &CallLimits,
    ) -> Result<u64, SqlFault> {
        // Dropped after the statement.
        let turn = self.authority.begin_plugin_turn(TransactionMode::ReadWrite);
        let text = turn.mark_text(&each.text);
        let mut statement = self.with_plugin_turn(&turn, |connection| connection.prepare_cached(&text))?;
        let mut affected = 0;
        let mut before: Option<&[SqlValue]> = None;
        for row in each.own_rows(rows) {
            self.deadline.start(limits)?;
            affected += self.with_plugin_turn(&turn, |connection| {
                step_to_end(
                    &mut statement,
                    each.own_values(row),
                    before.map(|before| each.own_values(before)),
                )?;
                Ok(connection.changes())
            })?;
            before = Some(row);
        }
        Ok(affected)
    }

    /// `None` if the result has more rows or bytes than a plugin may receive. In a transaction that only
    /// reads, SQLite itself judges whether the statement reads.
    pub fn query_rows(
        &self,
        mode: TransactionMode,
        text: &str,
        params: &[SqlValue],
        limits: &CallLimits,
    ) -> Result<Option<ValueRows>, SqlFault> {
        let turn = self.authority.begin_plugin_turn(mode);
        let text = &turn.mark_text(text);
        let reads =
            || self.with_plugin_turn(&turn, |connection| Ok(connection.prepare_cached(text)?.readonly()));
        if mode == TransactionMode::ReadOnly && !reads()? {
            return Err(SqlFault::Own(only_reads()));
        }
        self.in_time(limits, || self.with_plugin_turn(&turn, |connection| read(connection, text, params)))
    }

    pub fn survey_receipts(
        &mut self,
        plugin: &str,
        expected: &[NotedCommit],
    ) -> Result<ReceiptSurvey, GrantError> {
        if self.drops_lost_file() {
            self.make_ready()?;
        }
        self.survey_open(plugin, expected)
    }

    /// As [`survey_receipts`](Self::survey_receipts), of the file that is open.
    pub fn survey_open(&self, plugin: &str, expected: &[NotedCommit]) -> Result<ReceiptSurvey, GrantError> {
        let most = receipts::READ_RECEIPTS;
        let read = self.with_connection(|connection| {
            let mut statement = connection.prepare_cached(OWN)?;
            let rows = statement
                .query_map(params![plugin, most], |row| SurveyColumns::try_from(row).map(SurveyRow::from))?;
            let rows = rows.collect::<Result<Vec<_>, _>>()?;
            let mut statement = connection.prepare_cached(FLOORS)?;
            let floors = statement.query_map([floor_token(plugin)], |row| FloorColumns::try_from(row))?;
            Ok((rows, floors.collect::<Result<Vec<_>, _>>()?))
        });
        let (rows, floors) = read.map_err(SqlFault::into_error)?;
        let mut survey = ReceiptSurvey::from_rows(rows, floors, expected)?;
        // There may be more rows than were read.
        for commit in std::mem::take(&mut survey.absent) {
            if !self.was_committed(&commit.token)? {
                survey.absent.push(commit);
            }
        }
        Ok(survey)
    }

    /// In a transaction, which ends with it.
    pub fn prune_receipts(&mut self, pruning: &ReceiptPruning) -> Result<(), GrantError> {
        let ReceiptPruning { plugin, through, before_ms, floor, pruned_before_ms } = pruning;
        let pruned = self.with_connection(|connection| {
            delete_receipts(connection, plugin, *through, *before_ms)?;
            delete_floor(connection, plugin, u64::MAX)?;
            let before = as_position(*pruned_before_ms);
            let floor = params![FLOOR, 0, as_position(*floor), [0_u8; 0], floor_token(plugin), before];
            connection.prepare_cached(KEEP)?.execute(floor).map(drop)
        });
        match pruned.and_then(|()| self.run("COMMIT")) {
            Ok(()) => self.open = false,
            Err(fault) => {
                self.roll_back();
                return Err(fault.into_error());
            }
        }
        Ok(())
    }

    pub fn forget_receipts(&self, plugin: &str, through: Seq) -> Result<(), GrantError> {
        let forgotten = self.with_connection(|connection| {
            delete_receipts(connection, plugin, through, u64::MAX)?;
            delete_floor(connection, plugin, through)
        });
        forgotten.map_err(SqlFault::into_error)
    }

    pub fn was_committed(&self, token: &str) -> Result<bool, GrantError> {
        let found = self.with_connection(|connection| connection.prepare_cached(COMMITTED)?.exists([token]));
        found.map_err(SqlFault::into_error)
    }

    pub fn commit_with_receipt(&mut self, receipt: &StoredReceipt) -> Result<(), CommitError> {
        self.deadline.lift_deadline();
        if self.drops_lost_file() {
            let lost = GrantError::Unavailable("the database's file was removed or replaced".into());
            return Err(CommitError::RolledBack(lost));
        }
        let Err(fault) = self.keep_receipt(receipt).and_then(|()| self.run("COMMIT")) else {
            self.open = false;
            return Ok(());
        };
        // Whether the commit took effect is read over a new connection: closing this one rolls back
        // uncommitted work.
        self.connection = None;
        self.open = false;
        let refused = fault.into_error();
        if self.make_ready().is_err() {
            return Err(CommitError::InDoubt(refused));
        }
        match self.was_committed(&receipt.token) {
            Ok(true) => Ok(()),
            Ok(false) => Err(CommitError::RolledBack(refused)),
            Err(_) => Err(CommitError::InDoubt(refused)),
        }
    }

    fn keep_receipt(&self, receipt: &StoredReceipt) -> Result<(), SqlFault> {
        let StoredReceipt { plugin, marks, token, at_ms, claims, replaces, .. } = receipt;
        if claims.takes {
            self.run(TAKE_BACK)?;
        }
        let (first, last) = receipt.position_span();
        let (first, last, at) = (as_position(first), as_position(last), as_position(*at_ms));
        let told = claims.encode(marks).map(|told| (claims::OWNER, told));
        let kept = [(plugin.as_str(), receipts::encode(marks))].into_iter().chain(told);
        self.with_connection(|connection| {
            for replaced in replaces {
                connection.prepare_cached(REMOVE)?.execute([replaced])?;
            }
            let mut statement = connection.prepare_cached(KEEP)?;
            for (owner, states) in kept {
                statement.execute(params![owner, first, last, states, token, at])?;
            }
            Ok(())
        })
    }
}

/// The state of the transaction is unknown.
fn lost_transaction(fault: SqlFault) -> SqlFault {
    SqlFault::Lost(fault.into_error())
}

fn delete_receipts(connection: &Connection, plugin: &str, through: Seq, before_ms: u64) -> Result<(), Error> {
    let mut statement = connection.prepare_cached(PRUNE)?;
    let values = params![as_position(through), plugin, format!("{plugin}.%"), as_position(before_ms)];
    statement.execute(values).map(drop)
}

fn delete_floor(connection: &Connection, plugin: &str, through: Seq) -> Result<(), Error> {
    let mut statement = connection.prepare_cached(REMOVE_FLOOR)?;
    statement.execute(params![floor_token(plugin), as_position(through)]).map(drop)
}

/// Positions are counted by the journal's own SQLite and fit.
fn as_position(seq: u64) -> i64 {
    i64::try_from(seq).unwrap_or(i64::MAX)
}
