//! Reads a block of states in one step, for followers of the journal: a plugin that lags, a replay, a
//! carrier.
//!
//! sqlx passes rows one by one between two threads. To avoid that, the sqlx statements let SQLite build a
//! JSON text for a block, but building and parsing it costs more than reading the rows. This module reads the
//! columns directly, on a thread that may block, with one thread switch for each block. It has its own
//! connections, so it is not part of a snapshot that sqlx's connection has begun.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use kubewitness_core::ports::JournalError;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OpenFlags, OptionalExtension, Row};

use super::fault::classify_direct;
use super::writer_thread::BUSY;
use crate::report::DOUBTFUL;
use crate::store::rows::check::{self, EnvelopeColumns};
use crate::store::rows::{DocumentRow, StateEnvelope, StateKey, StoreResult};

const AFTER: &str = "SELECT seq, object, version, flags, back, status, previous, owner, observed_ms, at, anchor, sums \
    FROM states WHERE seq > ? ORDER BY seq LIMIT +?";

const AT: &str = "SELECT seq, object, version, flags, back, status, previous, owner, observed_ms, at, anchor, sums, document \
    FROM states WHERE seq = ?";

/// The index of the document in [`AT`].
const DOCUMENT: usize = 12;

/// KiB of pages that each reader caches. Pages that are read again are in the system's own cache; SQLite's
/// default of 2 MiB would be 8 MiB for four readers.
pub(super) const READER_CACHE_KIB: i64 = 512;

pub(super) struct BlockReader {
    path: PathBuf,
    /// `None` once the store is closed.
    idle: Mutex<Option<Vec<Connection>>>,
    /// Idle connections that are kept.
    most: usize,
}

impl BlockReader {
    pub fn new(path: PathBuf, most: usize) -> Self {
        Self { path, idle: Mutex::new(Some(Vec::new())), most }
    }

    /// States after a position, in order.
    pub async fn states_after(self: &Arc<Self>, after: i64, limit: i64) -> StoreResult<Vec<StateEnvelope>> {
        self.run(move |connection| read_envelopes(connection, after, limit)).await
    }

    /// The states at these positions with their stored documents. It ends early once these have so many bytes.
    pub async fn rows_at(
        self: &Arc<Self>,
        seqs: Vec<i64>,
        most_bytes: usize,
    ) -> StoreResult<Vec<DocumentRow>> {
        self.run(move |connection| read_rows(connection, &seqs, most_bytes)).await
    }

    /// A connection that failed is not reused.
    async fn run<T: Send + 'static>(
        self: &Arc<Self>,
        read: impl FnOnce(&Connection) -> StoreResult<T> + Send + 'static,
    ) -> StoreResult<T> {
        let readers = Arc::clone(self);
        let read = move || {
            let connection = match readers.take()? {
                Some(connection) => connection,
                None => readers.open_connection().map_err(|error| classify_direct(&error))?,
            };
            let found = read(&connection)?;
            readers.return_connection(connection);
            Ok(found)
        };
        let ended = |error| JournalError::Fatal(format!("a reading thread ended: {error}: {DOUBTFUL}"));
        tokio::task::spawn_blocking(read).await.map_err(ended)?
    }

    fn take(&self) -> StoreResult<Option<Connection>> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let closed = || JournalError::Unavailable("the journal is closed".into());
        Ok(idle.as_mut().ok_or_else(closed)?.pop())
    }

    fn return_connection(&self, connection: Connection) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(idle) = idle.as_mut().filter(|idle| idle.len() < self.most) {
            idle.push(connection);
        }
    }

    /// A read in progress closes its own connection when it ends.
    pub fn close(&self) {
        drop(self.idle.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    fn open_connection(&self) -> rusqlite::Result<Connection> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(&self.path, flags)?;
        connection.busy_timeout(BUSY)?;
        connection.pragma_update(None, "cell_size_check", true)?;
        connection.pragma_update(None, "cache_size", -READER_CACHE_KIB)?;
        Ok(connection)
    }
}

fn read_envelopes(connection: &Connection, after: i64, limit: i64) -> StoreResult<Vec<StateEnvelope>> {
    let read = read_columns(connection, after, limit).map_err(|error| classify_direct(&error))?;
    read.into_iter().map(check::check_envelope).collect()
}

fn read_columns(connection: &Connection, after: i64, limit: i64) -> rusqlite::Result<Vec<EnvelopeColumns>> {
    let mut statement = connection.prepare_cached(AFTER)?;
    statement.query_map([after, limit], envelope_columns)?.collect()
}

fn envelope_columns(row: &Row<'_>) -> rusqlite::Result<EnvelopeColumns> {
    Ok((
        row.get(0)?,
        row.get(1)?,
        key(row, 2)?.unwrap_or(StateKey::GONE),
        row.get(3)?,
        row.get(4)?,
        row.get(5)?,
        row.get(6)?,
        row.get(7)?,
        row.get(8)?,
        key(row, 9)?,
        row.get(10)?,
        row.get(11)?,
    ))
}

fn read_rows(connection: &Connection, seqs: &[i64], most_bytes: usize) -> StoreResult<Vec<DocumentRow>> {
    let failed = |error: rusqlite::Error| classify_direct(&error);
    let mut statement = connection.prepare_cached(AT).map_err(failed)?;
    let (mut rows, mut bytes) = (Vec::with_capacity(seqs.len()), 0);
    for seq in seqs {
        let read = |row: &Row<'_>| Ok((envelope_columns(row)?, row.get::<_, Vec<u8>>(DOCUMENT)?));
        let Some((columns, stored)) = statement.query_row([seq], read).optional().map_err(failed)? else {
            continue;
        };
        bytes += stored.len();
        rows.push((check::check_envelope(columns)?, stored));
        if bytes > most_bytes {
            break;
        }
    }
    Ok(rows)
}

/// A number or a text. Any other type does not belong to this format.
fn key(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<StateKey>> {
    Ok(match row.get_ref(column)? {
        ValueRef::Null => None,
        ValueRef::Integer(number) => Some(StateKey::Number(number)),
        other => Some(StateKey::Text(other.as_str()?.into())),
    })
}

#[cfg(test)]
mod tests {
    use kubewitness_core::Change;
    use rusqlite::StatementStatus;
    use sqlx::ConnectOptions;
    use sqlx::sqlite::SqliteConnectOptions;

    use super::*;
    use crate::store::rows::{DocumentEncoding, RowBatch, RowFlags, StateRow};
    use crate::store::sqlite::schema::TABLES;
    use crate::store::sqlite::statements::{CHAIN, write};
    use crate::store::{StoreConnection, StoreReader};

    fn state(seq: u64, change: Change, key: StateKey, version: Option<StateKey>) -> StateRow {
        let flags = RowFlags {
            change,
            late: seq == 2,
            encoding: DocumentEncoding::Full,
            depth: 0,
            quotes_none_under: None,
        };
        let envelope = StateEnvelope {
            seq,
            object: 7,
            key,
            flags,
            back: seq - 1,
            status: 1,
            previous: (seq > 1).then_some(2),
            owner: (seq > 2).then_some(3),
            observed_ms: 1_764_000_000_000,
            version,
            anchor: (seq == 3).then_some(4),
            checksum: u32::MAX - seq as u32,
        };
        StateRow { envelope, document: b"{}".to_vec() }
    }

    #[test]
    fn a_statement_with_a_limit_is_planned_once_for_all_limits() {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch(TABLES).unwrap();
        let planned = |text: &str| {
            let mut statement = connection.prepare(text).unwrap();
            for limit in 1..=9 {
                assert!(statement.query([0, limit]).unwrap().next().unwrap().is_none());
            }
            statement.get_status(StatementStatus::RePrepare)
        };
        assert_eq!((planned(AFTER), planned(CHAIN)), (0, 0));
        assert!(planned(&AFTER.replace('+', "")) > 0, "SQLite has changed: limits need no sign any more");
    }

    #[tokio::test]
    async fn a_block_is_what_single_statements_read_and_a_changed_row_of_it_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal.db");
        let writer = Connection::open(&path).unwrap();
        writer.execute_batch(TABLES).unwrap();
        let states = vec![
            state(1, Change::Present, StateKey::Number(12), None),
            state(2, Change::Left, StateKey::Text("=x".into()), None),
            state(3, Change::Gap, StateKey::of_gap("12-15"), Some(StateKey::Number(15))),
            state(4, Change::Gone, StateKey::GONE, Some(StateKey::Text("=".into()))),
        ];
        write::write_rows(&writer, RowBatch { states, ..RowBatch::default() }).unwrap();
        let reader = Arc::new(BlockReader::new(path.clone(), 1));
        let mut single = SqliteConnectOptions::new().filename(&path).connect().await.unwrap();
        for (after, limit) in [(0, 10), (1, 2), (4, 10)] {
            let block = reader.states_after(after, limit).await.unwrap();
            assert_eq!(
                block,
                StoreReader::states_after(&mut single, after, limit).await.unwrap(),
                "{after} {limit}"
            );
        }
        assert_eq!(reader.states_after(0, 10).await.unwrap().len(), 4);
        for (seqs, most) in [(vec![3, 9, 1], 64), (vec![1, 2, 3, 4], 2)] {
            let rows = reader.rows_at(seqs.clone(), most).await.unwrap();
            assert_eq!(rows, StoreConnection::rows_at(&mut single, &seqs, most).await.unwrap());
            assert_eq!(rows.len(), 2, "the other is unknown, or the first two have the bytes");
        }
        writer.execute("UPDATE states SET previous = 5 WHERE seq = 3", []).unwrap();
        assert!(
            matches!(reader.states_after(0, 10).await, Err(JournalError::Fatal(why)) if why.contains('3'))
        );
        assert_eq!(reader.states_after(0, 2).await.unwrap().len(), 2, "what is whole is still read");
        reader.close();
        assert!(matches!(reader.states_after(0, 1).await, Err(JournalError::Unavailable(_))));
    }
}
