//! The file of the index: an SQLite database with the times that objects spent in phases.
//!
//! | table | a row is |
//! |---|---|
//! | `reached` | how far the journal was read, and the id of the state there |
//! | `objects` | an object of a source |
//! | `lines` | a phase of a source; other rows have its number |
//! | `times` | a time of an object in a phase, after it has ended |
//! | `open_times` | the phase that an object is in |
//! | `causes` | why an object ended badly (see `causes.rs`) |
//! | `explanations` | how many explanations there were (see `changed.rs`) |
//!
//! A time has a rank, by which it is found and ordered. The rank of an ended time is the position of the
//! state that ended it. The rank of an open time is [`OPEN`] plus the position of the state that began it. So
//! a range of ranks has the times that overlap a range of positions, and no two times of a phase have the
//! same rank. A state that is read back late is a separate time, because it is unknown how long the object
//! was in that phase.
//!
//! Times are written seconds after their states came (`pending.rs`), and new objects at once. So a crash loses
//! the newest times. They are then read from the journal again.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kubewitness_core::ports::{ChangeQuestion, JournalError, KeptOutcome, OutcomeChanges};
use kubewitness_core::views::CauseKind;
use kubewitness_core::{Seq, State};
use rusqlite::{Connection, OptionalExtension, params};

use super::causes::{self, CauseQuery, OpenOutcome};
use super::ended::{self, NamedEnd, NamedEndQuery};
use super::intake::PhaseIntake;
use super::pending::{PendingTimes, PhaseLines};
use super::{PhasePage, PhaseQuery, changed, find};
use crate::store::rows::StoreResult;

/// "KWP1".
const APPLICATION_ID: i64 = 0x4B57_5031;
/// Version 2 added the names of ended objects, version 3 causes, version 4 the owners of causes, version 5
/// their numbers, and version 6 tables of their own for lines and open times.
const VERSION: i64 = 6;
/// The rank of an open time is beyond all positions.
pub(super) const OPEN: u64 = 1 << 62;
/// How long a write waits for the file's lock. Only a tool that somebody runs on the file can hold it.
const BUSY: Duration = Duration::from_secs(5);
pub(super) const TABLES: &str = "
CREATE TABLE reached (seq INTEGER NOT NULL, id TEXT NOT NULL) STRICT;
CREATE TABLE objects (
    id INTEGER PRIMARY KEY, source TEXT NOT NULL, uid TEXT NOT NULL, namespace TEXT NOT NULL,
    name TEXT NOT NULL, ended INTEGER, UNIQUE (uid, source)
) STRICT;
CREATE TABLE lines (
    id INTEGER PRIMARY KEY, source TEXT NOT NULL, phase TEXT NOT NULL, UNIQUE (source, phase)
) STRICT;
CREATE TABLE times (
    line INTEGER NOT NULL, rank INTEGER NOT NULL, entered INTEGER NOT NULL, object INTEGER NOT NULL,
    PRIMARY KEY (line, rank)
) STRICT, WITHOUT ROWID;
CREATE INDEX times_by_object ON times (object, rank);
CREATE TABLE open_times (
    object INTEGER PRIMARY KEY, line INTEGER NOT NULL, entered INTEGER NOT NULL
) STRICT;
CREATE INDEX open_times_by_line ON open_times (line, entered);
CREATE INDEX ended_by_name ON objects (source, name, uid) WHERE ended IS NOT NULL;
CREATE INDEX ended_by_namespace ON objects (source, namespace, name, uid) WHERE ended IS NOT NULL;
";

/// Takes back what was written of states after the one that was reached. Most such states are read again, but a journal
/// that lost its newest commits has others in their place.
const UNREACHED: &str = "
UPDATE objects SET ended = NULL WHERE ended > coalesce((SELECT seq FROM reached), 0);
DELETE FROM objects WHERE NOT EXISTS (SELECT 1 FROM times WHERE object = objects.id)
    AND NOT EXISTS (SELECT 1 FROM open_times WHERE object = objects.id)
    AND NOT EXISTS (SELECT 1 FROM causes WHERE object = objects.id);
";

/// A time that has ended.
#[derive(Clone, Debug)]
pub(super) struct ClosedTime {
    pub object: i64,
    pub rank: u64,
}

pub(super) struct PhaseTable {
    connection: Connection,
    pending: PendingTimes,
    lines: PhaseLines,
    /// Whether memory and file may differ, after a write that failed.
    is_stale: bool,
}

pub(super) fn index_error(error: &rusqlite::Error) -> JournalError {
    JournalError::Unavailable(format!("the index of phases: {error}"))
}

pub(super) fn as_signed(number: u64) -> i64 {
    number.min(i64::MAX as u64) as i64
}

impl PhaseTable {
    /// Opens the file, and creates it if it does not exist. A damaged file, or one of another version, is
    /// rebuilt: everything in it comes from the journal.
    fn open(path: &Path) -> StoreResult<Self> {
        let folder = path.parent().map_or(Ok(()), std::fs::create_dir_all);
        folder.map_err(|error| {
            JournalError::Unavailable(format!("the index of phases: making {}: {error}", path.display()))
        })?;
        match Self::open_existing(path) {
            Ok(Some(table)) => Ok(table),
            Ok(None) => Self::create_anew(path),
            Err(error) if is_broken(&error) => Self::create_anew(path),
            Err(error) => Err(index_error(&error)),
        }
    }

    /// Also returns the position up to which the journal was read, and the id of the state there.
    pub fn open_indexed(path: &Path) -> StoreResult<(Self, Seq, String)> {
        let table = Self::open(path)?;
        let (through, id) = table.indexed_through().map_err(|error| index_error(&error))?;
        Ok((table, through, id))
    }

    /// `None` if it has another version or is incomplete.
    fn open_existing(path: &Path) -> rusqlite::Result<Option<Self>> {
        let mut connection = Connection::open(path)?;
        connection.busy_timeout(BUSY)?;
        connection.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(()))?;
        connection.pragma_update(None, "synchronous", "NORMAL")?;
        connection.set_prepared_statement_cache_capacity(32);
        let number = |name: &str| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
        match (number("application_id")?, number("user_version")?) {
            (APPLICATION_ID, VERSION) => {
                connection.execute_batch(UNREACHED)?;
                changed::leave_out(&connection)?;
                Ok(Some(Self::new(connection)))
            }
            (0, 0) => {
                let transaction = connection.transaction()?;
                transaction.execute_batch(TABLES)?;
                transaction.execute_batch(causes::TABLES)?;
                transaction.execute_batch(changed::TABLES)?;
                transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
                transaction.pragma_update(None, "user_version", VERSION)?;
                transaction.commit()?;
                Ok(Some(Self::new(connection)))
            }
            _ => Ok(None),
        }
    }

    fn new(connection: Connection) -> Self {
        let (pending, lines) = (PendingTimes::default(), PhaseLines::default());
        Self { connection, pending, lines, is_stale: false }
    }

    fn create_anew(path: &Path) -> StoreResult<Self> {
        remove(path)?;
        let made = Self::open_existing(path).map_err(|error| index_error(&error))?;
        made.ok_or_else(|| JournalError::Unavailable(format!("{} is no index of phases", path.display())))
    }

    /// Removes its whole content.
    pub fn without_content(mut self) -> StoreResult<Self> {
        self.remove_content().map_err(|error| index_error(&error))?;
        Ok(self)
    }

    fn remove_content(&mut self) -> rusqlite::Result<()> {
        let transaction = self.connection.transaction()?;
        for table in ["reached", "objects", "lines", "times", "open_times", "causes"] {
            transaction.execute(&format!("DELETE FROM {table}"), [])?;
        }
        transaction.execute(changed::ANEW, [])?;
        transaction.commit()?;
        (self.pending, self.lines) = (PendingTimes::default(), PhaseLines::default());
        Ok(())
    }

    /// Whether it has to be opened again, because memory and file may differ.
    pub fn is_stale(&self) -> bool {
        self.is_stale
    }

    /// The position up to which the journal was read, and the id of the state there.
    fn indexed_through(&self) -> rusqlite::Result<(Seq, String)> {
        let row = self.connection.query_row("SELECT seq, id FROM reached", [], |row| {
            Ok((row.get::<_, i64>(0)? as Seq, row.get(1)?))
        });
        Ok(row.optional()?.unwrap_or_default())
    }

    /// Records the phases of states. They come in the journal's order, each once.
    pub fn take_in(&mut self, states: &[Arc<State>], now_ms: u64) -> rusqlite::Result<()> {
        let Some(last) = states.last() else { return Ok(()) };
        if self.pending.is_full_with(states.len()) {
            self.write_pending()?;
            self.pending.forget_objects();
        }
        // Until it is over, only a part of the states is in memory.
        self.is_stale = true;
        let rows = self.connection.transaction()?;
        let (pending, lines) = (&mut self.pending, &mut self.lines);
        let mut intake = PhaseIntake { rows: &rows, pending, lines, now_ms, has_written_outcome: false };
        states.iter().try_for_each(|state| intake.take(state))?;
        let is_written = intake.has_written_outcome;
        self.pending.set_through(last.seq, last.id.as_str(), now_ms);
        if is_written {
            self.pending.write(&rows)?;
        }
        rows.commit()?;
        self.is_stale = false;
        match is_written {
            true => self.pending.set_written(),
            false => self.write_if_due(now_ms)?,
        }
        Ok(())
    }

    pub fn write_if_due(&mut self, now_ms: u64) -> rusqlite::Result<()> {
        if self.pending.is_due(now_ms) { self.write_pending() } else { Ok(()) }
    }

    fn write_pending(&mut self) -> rusqlite::Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        self.is_stale = true;
        let rows = self.connection.transaction()?;
        self.pending.write(&rows)?;
        rows.commit()?;
        self.is_stale = false;
        self.pending.set_written();
        Ok(())
    }

    /// Finds times in a phase, the newest first.
    pub fn find(&mut self, query: &PhaseQuery) -> rusqlite::Result<PhasePage> {
        self.write_pending()?;
        find::find(&self.connection, query)
    }

    /// Ended objects by name.
    pub fn ended_by_name(&self, query: &NamedEndQuery) -> rusqlite::Result<Vec<NamedEnd>> {
        ended::find(&self.connection, query)
    }

    /// Outcomes that are due now: the latest due time first, and for equal times the newest.
    pub fn due_outcomes(&self, now_ms: u64, limit: usize) -> rusqlite::Result<Vec<OpenOutcome>> {
        causes::due_outcomes(&self.connection, now_ms, limit)
    }

    pub fn next_due_ms(&self) -> rusqlite::Result<Option<u64>> {
        causes::next_due_ms(&self.connection)
    }

    pub fn lacks_words(&self, sources: &[String], before_ms: u64) -> rusqlite::Result<bool> {
        causes::lacks_words(&self.connection, sources, before_ms)
    }

    pub fn postpone_outcome(&self, outcome: &OpenOutcome, now_ms: u64) -> rusqlite::Result<()> {
        causes::postpone_outcome(&self.connection, outcome, now_ms)
    }

    pub fn keep_causes(&mut self, explained: &[(OpenOutcome, Option<CauseKind>)]) -> rusqlite::Result<bool> {
        causes::save_causes(&mut self.connection, explained)
    }

    pub fn causes_of(&self, objects: &[(String, String)]) -> rusqlite::Result<HashMap<usize, CauseKind>> {
        causes::causes_of(&self.connection, objects)
    }

    pub fn changed_outcomes(&self, question: &ChangeQuestion) -> rusqlite::Result<OutcomeChanges> {
        changed::outcomes_changed_since(&self.connection, question)
    }

    pub fn kept_outcome(&self, source: &str, uid: &str) -> rusqlite::Result<KeptOutcome> {
        changed::kept_outcome(&self.connection, source, uid)
    }

    pub fn find_by_cause(&self, query: &CauseQuery) -> rusqlite::Result<PhasePage> {
        causes::find(&self.connection, query)
    }

    /// Ended times, in the order of objects.
    pub fn closed_times(
        &mut self,
        after: Option<(i64, u64)>,
        limit: usize,
    ) -> rusqlite::Result<Vec<ClosedTime>> {
        self.write_pending()?;
        let (object, rank) = after.unwrap_or((0, 0));
        let mut statement = self.connection.prepare_cached(
            "SELECT object, rank FROM times WHERE (object, rank) > (?1, ?2) ORDER BY object, rank LIMIT ?3",
        )?;
        let bounds = params![object, as_signed(rank), limit as i64];
        let closed = statement.query_map(bounds, |row| {
            Ok(ClosedTime { object: row.get(0)?, rank: row.get::<_, i64>(1)? as u64 })
        })?;
        closed.collect()
    }

    /// Also removes objects without any other time.
    pub fn remove(&mut self, times: &[ClosedTime]) -> rusqlite::Result<()> {
        self.write_pending()?;
        self.pending.forget_objects();
        let transaction = self.connection.transaction()?;
        for ClosedTime { object, rank } in times {
            let time = params![object, as_signed(*rank)];
            transaction.execute("DELETE FROM times WHERE object = ?1 AND rank = ?2", time)?;
            transaction.execute(
                "DELETE FROM objects WHERE id = ?1 AND NOT EXISTS (SELECT 1 FROM times WHERE object = ?1)
                 AND NOT EXISTS (SELECT 1 FROM open_times WHERE object = ?1)",
                [object],
            )?;
            transaction.execute(
                "DELETE FROM causes WHERE object = ?1 AND NOT EXISTS (SELECT 1 FROM objects WHERE id = ?1)",
                [object],
            )?;
        }
        transaction.commit()
    }
}

/// Whether the error means that the file is damaged, or not an index.
pub(super) fn is_broken(error: &rusqlite::Error) -> bool {
    use rusqlite::ErrorCode::{DatabaseCorrupt, NotADatabase};
    matches!(error.sqlite_error_code(), Some(DatabaseCorrupt | NotADatabase))
}

/// Removes the file, with SQLite's companion files.
pub(super) fn remove(path: &Path) -> StoreResult<()> {
    for end in ["", "-wal", "-shm"] {
        let file = format!("{}{end}", path.display());
        match std::fs::remove_file(&file) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(JournalError::Unavailable(format!("removing {file}: {error}")));
            }
            _ => {}
        }
    }
    Ok(())
}
