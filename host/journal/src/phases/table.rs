//! The file of the index: an SQLite database with the times that objects spent in phases.
//!
//! | table | a row is |
//! |---|---|
//! | `reached` | how far the journal was read, and the id of the state there |
//! | `objects` | an object of a source |
//! | `times` | a time of an object in a phase |
//! | `causes` | why an object ended badly (see `causes.rs`) |
//! | `explanations` | how many explanations there were (see `changed.rs`) |
//!
//! A time has a `rank`, by which it is found and ordered. The rank of an ended time is the position of the
//! state that ended it. The rank of an open time is [`OPEN`] plus the position of the state that began it. So
//! a range of ranks has the times that overlap a range of positions, and no two times of a phase have the
//! same rank. A state that is read back late is a separate time, because it is unknown how long the object
//! was in that phase.
//!
//! A crash may lose the newest rows. They are then read from the journal again.

use std::collections::{HashMap, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kubewitness_core::ports::{ChangeQuestion, JournalError, KeptOutcome, OutcomeChanges};
use kubewitness_core::story::outcomes;
use kubewitness_core::views::CauseKind;
use kubewitness_core::{Change, Seq, State, kinds};
use rusqlite::{CachedStatement, Connection, OptionalExtension, Transaction, params};

use super::causes::{self, CauseQuery, OpenOutcome};
use super::ended::{self, NamedEnd, NamedEndQuery};
use super::{PhasePage, PhaseQuery, TimeInPhase, changed};
use crate::store::rows::StoreResult;

/// "KWP1".
const APPLICATION_ID: i64 = 0x4B57_5031;
/// Version 2 added the names of ended objects, version 3 causes, version 4 the owners of causes, and version 5
/// their numbers.
const VERSION: i64 = 5;
/// The rank of an open time is beyond all positions.
pub(super) const OPEN: u64 = 1 << 62;
/// How long a write waits for the file's lock. Only a tool that somebody runs on the file can hold it.
const BUSY: Duration = Duration::from_secs(5);
/// Times of one source that are read at once.
const PART: usize = 512;

const TABLES: &str = "
CREATE TABLE reached (seq INTEGER NOT NULL, id TEXT NOT NULL) STRICT;
CREATE TABLE objects (
    id INTEGER PRIMARY KEY, source TEXT NOT NULL, uid TEXT NOT NULL, namespace TEXT NOT NULL,
    name TEXT NOT NULL, ended INTEGER, UNIQUE (uid, source)
) STRICT;
CREATE TABLE times (
    source TEXT NOT NULL, phase TEXT NOT NULL, rank INTEGER NOT NULL, entered INTEGER NOT NULL,
    object INTEGER NOT NULL, PRIMARY KEY (source, phase, rank)
) STRICT, WITHOUT ROWID;
CREATE INDEX times_by_object ON times (object, rank);
CREATE INDEX ended_by_name ON objects (source, name, uid) WHERE ended IS NOT NULL;
CREATE INDEX ended_by_namespace ON objects (source, namespace, name, uid) WHERE ended IS NOT NULL;
";

/// A time that has ended.
#[derive(Clone, Debug)]
pub(super) struct ClosedTime {
    pub object: i64,
    pub rank: u64,
}

pub(super) struct PhaseTable {
    connection: Connection,
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
    pub fn open(path: &Path) -> StoreResult<Self> {
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
                changed::leave_out(&connection)?;
                Ok(Some(Self { connection }))
            }
            (0, 0) => {
                let transaction = connection.transaction()?;
                transaction.execute_batch(TABLES)?;
                transaction.execute_batch(causes::TABLES)?;
                transaction.execute_batch(changed::TABLES)?;
                transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
                transaction.pragma_update(None, "user_version", VERSION)?;
                transaction.commit()?;
                Ok(Some(Self { connection }))
            }
            _ => Ok(None),
        }
    }

    fn create_anew(path: &Path) -> StoreResult<Self> {
        remove(path)?;
        let made = Self::open_existing(path).map_err(|error| index_error(&error))?;
        made.ok_or_else(|| JournalError::Unavailable(format!("{} is no index of phases", path.display())))
    }

    /// Removes its whole content.
    pub fn remove_content(&mut self) -> rusqlite::Result<()> {
        let transaction = self.connection.transaction()?;
        for table in ["reached", "objects", "times", "causes"] {
            transaction.execute(&format!("DELETE FROM {table}"), [])?;
        }
        transaction.execute(changed::ANEW, [])?;
        transaction.commit()
    }

    /// The position up to which the journal was read, and the id of the state there.
    pub fn indexed_through(&self) -> rusqlite::Result<(Seq, String)> {
        let row = self.connection.query_row("SELECT seq, id FROM reached", [], |row| {
            Ok((row.get::<_, i64>(0)? as Seq, row.get(1)?))
        });
        Ok(row.optional()?.unwrap_or_default())
    }

    /// Records the phases of states. They come in the journal's order, each once.
    pub fn take_in(&mut self, states: &[Arc<State>], now_ms: u64) -> rusqlite::Result<()> {
        let Some(last) = states.last() else { return Ok(()) };
        let transaction = self.connection.transaction()?;
        for state in states {
            take(&transaction, state, now_ms)?;
        }
        transaction.execute("DELETE FROM reached", [])?;
        let through = params![as_signed(last.seq), last.id.as_str()];
        transaction.execute("INSERT INTO reached (seq, id) VALUES (?1, ?2)", through)?;
        transaction.commit()
    }

    /// Finds times in a phase, the newest first.
    pub fn find(&self, query: &PhaseQuery) -> rusqlite::Result<PhasePage> {
        let upper = OPEN.saturating_add(query.before.min(OPEN));
        let below = query.cursor.map_or(upper, |cursor| cursor.min(upper));
        let mut ahead: Vec<PhaseReadahead> =
            query.sources.iter().map(|source| PhaseReadahead::new(source, below)).collect();
        let mut page = PhasePage::default();
        for looked in 1..=query.looked {
            for readahead in &mut ahead {
                readahead.read_ahead(&self.connection, query)?;
            }
            let first = ahead.iter_mut().filter(|readahead| !readahead.times.is_empty());
            let first = first.max_by_key(|readahead| readahead.times.front().map(|(_, time)| time.rank));
            let Some((object, time)) = first.and_then(|readahead| readahead.times.pop_front()) else {
                return Ok(page);
            };
            page.next = Some(time.rank).filter(|_| looked == query.looked);
            if time.entered < query.before && !self.has_later(object, &time, query, upper)? {
                page.times.push(time);
            }
        }
        Ok(page)
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

    /// Whether the object has a later matching time in this phase, so that it was already returned.
    fn has_later(
        &self,
        object: i64,
        time: &TimeInPhase,
        query: &PhaseQuery,
        upper: u64,
    ) -> rusqlite::Result<bool> {
        let mut statement = self.connection.prepare_cached(
            "SELECT 1 FROM times WHERE object = ?1 AND rank > ?2 AND rank < ?3 AND entered < ?4 AND phase = ?5 LIMIT 1",
        )?;
        let bounds = (object, as_signed(time.rank), as_signed(upper), as_signed(query.before), &query.phase);
        statement.exists(bounds)
    }

    /// Ended times, in the order of objects.
    pub fn closed_times(&self, after: Option<(i64, u64)>, limit: usize) -> rusqlite::Result<Vec<ClosedTime>> {
        let (object, rank) = after.unwrap_or((0, 0));
        let mut statement = self.connection.prepare_cached(
            "SELECT object, rank FROM times WHERE (object, rank) > (?1, ?2) AND rank < ?3
             ORDER BY object, rank LIMIT ?4",
        )?;
        let bounds = params![object, as_signed(rank), as_signed(OPEN), limit as i64];
        let closed = statement.query_map(bounds, |row| {
            Ok(ClosedTime { object: row.get(0)?, rank: row.get::<_, i64>(1)? as u64 })
        })?;
        closed.collect()
    }

    /// Also removes objects without any other time.
    pub fn remove(&mut self, times: &[ClosedTime]) -> rusqlite::Result<()> {
        let transaction = self.connection.transaction()?;
        for ClosedTime { object, rank } in times {
            let time = params![object, as_signed(*rank)];
            transaction.execute("DELETE FROM times WHERE object = ?1 AND rank = ?2", time)?;
            transaction.execute(
                "DELETE FROM objects WHERE id = ?1 AND NOT EXISTS (SELECT 1 FROM times WHERE object = ?1)",
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

/// The times of one source that were read and not yet used.
struct PhaseReadahead {
    source: Arc<str>,
    below: u64,
    times: VecDeque<(i64, TimeInPhase)>,
    is_over: bool,
}

impl PhaseReadahead {
    fn new(source: &str, below: u64) -> Self {
        Self { source: source.into(), below, times: VecDeque::new(), is_over: false }
    }

    fn read_ahead(&mut self, connection: &Connection, query: &PhaseQuery) -> rusqlite::Result<()> {
        if self.is_over || !self.times.is_empty() {
            return Ok(());
        }
        let mut statement: CachedStatement<'_> = connection.prepare_cached(
            "SELECT t.rank, t.entered, t.object, o.namespace, o.name, o.uid, o.ended FROM times t
             JOIN objects o ON o.id = t.object WHERE t.source = ?1 AND t.phase = ?2 AND t.rank > ?3 AND t.rank < ?4
             ORDER BY t.rank DESC LIMIT ?5",
        )?;
        let bounds =
            params![&*self.source, query.phase, as_signed(query.after), as_signed(self.below), PART as i64];
        let mut rows = statement.query(bounds)?;
        while let Some(row) = rows.next()? {
            let rank = row.get::<_, i64>(0)? as u64;
            let time = TimeInPhase {
                rank,
                entered: row.get::<_, i64>(1)? as u64,
                left: Some(rank).filter(|rank| *rank < OPEN),
                source: self.source.clone(),
                namespace: row.get(3)?,
                name: row.get(4)?,
                uid: row.get(5)?,
                ended: row.get::<_, Option<i64>>(6)?.map(|seq| seq as Seq),
            };
            self.times.push_back((row.get(2)?, time));
        }
        self.is_over = self.times.len() < PART;
        self.below = self.times.back().map_or(self.below, |(_, time)| time.rank);
        Ok(())
    }
}

/// Records what a state says about its object's phase.
fn take(rows: &Transaction<'_>, state: &State, now_ms: u64) -> rusqlite::Result<()> {
    // Objects that report about others, such as Events, are in no phase.
    let is_event = kinds::is_event(&state.object.group, &state.object.kind);
    if state.change == Change::Gap || is_event {
        return Ok(());
    }
    if let Some(owner) = state.owner.as_ref().filter(|_| outcomes::bears_on_owner(state)) {
        causes::reopen_outcomes(rows, &owner.uid, now_ms)?;
    }
    let phase = state.status.phase.as_str();
    let object = find_object(rows, state)?.map_or_else(|| add(rows, state), Ok)?;
    if state.late {
        return insert(rows, &state.source, phase, state.seq, state.seq, object);
    }
    let open = open_time(rows, object)?;
    let goes_on = state.change == Change::Present;
    if goes_on && open.as_ref().is_some_and(|(of, _)| of == phase) {
        return Ok(());
    }
    causes::take(rows, state, object, open.as_ref().map(|(of, _)| of.as_str()), now_ms)?;
    if let Some((of, rank)) = open {
        let mut statement =
            rows.prepare_cached("UPDATE times SET rank = ?1 WHERE source = ?2 AND phase = ?3 AND rank = ?4")?;
        statement.execute(params![as_signed(state.seq), &*state.source, of, as_signed(rank)])?;
    }
    match state.change {
        Change::Present => insert(rows, &state.source, phase, OPEN + state.seq, state.seq, object)?,
        // `Deleted` is recorded for the moment only, not as a lasting phase.
        Change::Gone => insert(rows, &state.source, phase, state.seq, state.seq, object)?,
        Change::Left | Change::Gap => {}
    }
    let ended = (!goes_on).then_some(as_signed(state.seq));
    rows.prepare_cached("UPDATE objects SET ended = ?1 WHERE id = ?2")?.execute(params![ended, object])?;
    Ok(())
}

fn find_object(rows: &Transaction<'_>, state: &State) -> rusqlite::Result<Option<i64>> {
    let mut statement = rows.prepare_cached("SELECT id FROM objects WHERE uid = ?1 AND source = ?2")?;
    statement.query_row(params![state.object.uid, &*state.source], |row| row.get(0)).optional()
}

fn add(rows: &Transaction<'_>, state: &State) -> rusqlite::Result<i64> {
    let mut statement =
        rows.prepare_cached("INSERT INTO objects (source, uid, namespace, name) VALUES (?1, ?2, ?3, ?4)")?;
    let object = &state.object;
    statement.insert(params![&*state.source, object.uid, object.namespace, object.name])
}

/// The open time of an object: its phase and its rank.
fn open_time(rows: &Transaction<'_>, object: i64) -> rusqlite::Result<Option<(String, u64)>> {
    let mut statement =
        rows.prepare_cached("SELECT phase, rank FROM times WHERE object = ?1 AND rank >= ?2 LIMIT 1")?;
    let time = statement
        .query_row(params![object, as_signed(OPEN)], |row| Ok((row.get(0)?, row.get::<_, i64>(1)? as u64)));
    time.optional()
}

fn insert(
    rows: &Transaction<'_>,
    source: &str,
    phase: &str,
    rank: u64,
    entered: Seq,
    object: i64,
) -> rusqlite::Result<()> {
    let mut statement = rows.prepare_cached(
        "INSERT OR IGNORE INTO times (source, phase, rank, entered, object) VALUES (?1, ?2, ?3, ?4, ?5)",
    )?;
    statement.execute(params![source, phase, as_signed(rank), as_signed(entered), object])?;
    Ok(())
}
