//! The connection that writes, and its thread. A whole transaction is one hop to a thread that may block:
//! with one hop for each statement, threads would spend more time waking each other than writing rows.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kubewitness_core::ports::JournalError;
use rusqlite::{Connection, OpenFlags, TransactionBehavior};
use tokio::task::JoinError;

use super::fault::classify_direct;
use crate::report::DOUBTFUL;
use crate::store::rows::StoreResult;

/// Only a tool that somebody runs on the file can hold its lock, because this process is the only writer.
pub(super) const BUSY: Duration = Duration::from_secs(5);

/// The number of WAL pages after which SQLite moves them into the file: 16 MiB. Pages that change with every
/// transaction are then moved once for thousands of states, and a state rarely waits for it.
const CHECKPOINT_PAGES: u32 = 4096;

/// The most prepared statements that write, each for one row.
const STATEMENTS: usize = 64;

/// KiB of pages that the writer caches: whole documents of live objects are replaced in no particular order.
const CACHE: i64 = -4096;

/// The WAL's file is truncated to this size when it starts over.
const WAL_KEPT: i64 = 64 << 20;

/// When a transaction is synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SyncMode {
    /// Before the transaction counts as committed.
    Full,
    /// Synced with the next transaction that is. A kill of the process loses nothing; a power failure may
    /// lose all of it.
    Later,
}

impl SyncMode {
    /// In WAL mode, the next sync of `FULL` also covers earlier writes of `NORMAL`.
    fn pragma(self) -> &'static str {
        match self {
            Self::Full => "FULL",
            Self::Later => "NORMAL",
        }
    }
}

pub(super) struct WriterThread {
    path: PathBuf,
    connection: Arc<Mutex<WriterConnection>>,
    #[cfg(test)]
    pub most_pages: Option<i64>,
}

struct WriterConnection {
    connection: Connection,
    /// The present setting. Notes come thousands of times a second, and changing the setting takes as long as
    /// writing one.
    sync: SyncMode,
}

impl WriterConnection {
    fn open(path: &Path) -> rusqlite::Result<Self> {
        Ok(Self { connection: open_existing(path)?, sync: SyncMode::Full })
    }

    fn set_sync(&mut self, sync: SyncMode) -> rusqlite::Result<()> {
        if self.sync != sync {
            self.connection.pragma_update(None, "synchronous", sync.pragma())?;
            self.sync = sync;
        }
        Ok(())
    }
}

/// Opens an existing file.
fn open_existing(path: &Path) -> rusqlite::Result<Connection> {
    let connection = Connection::open_with_flags(
        path,
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX,
    )?;
    connection.busy_timeout(BUSY)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    connection.pragma_update(None, "synchronous", SyncMode::Full.pragma())?;
    connection.pragma_update(None, "foreign_keys", false)?;
    connection.pragma_update(None, "cell_size_check", true)?;
    connection.pragma_update(None, "cache_size", CACHE)?;
    connection.pragma_update(None, "temp_store", "MEMORY")?;
    // These pragmas return the value that was set.
    connection.pragma_update_and_check(None, "journal_size_limit", WAL_KEPT, |_| Ok(()))?;
    connection.pragma_update_and_check(None, "wal_autocheckpoint", CHECKPOINT_PAGES, |_| Ok(()))?;
    Ok(connection)
}

fn thread_result<T>(done: Result<rusqlite::Result<T>, JoinError>) -> StoreResult<T> {
    let ended =
        |error| JournalError::Fatal(format!("the journal's writing thread ended: {error}: {DOUBTFUL}"));
    done.map_err(ended)?.map_err(|error| classify_direct(&error))
}

impl WriterThread {
    pub async fn open(path: &Path) -> StoreResult<Self> {
        let path = path.to_path_buf();
        let place = path.clone();
        let connection =
            thread_result(tokio::task::spawn_blocking(move || WriterConnection::open(&place)).await)?;
        Ok(Self {
            path,
            connection: Arc::new(Mutex::new(connection)),
            #[cfg(test)]
            most_pages: None,
        })
    }

    /// The work continues if its caller is dropped, and later work waits for its end.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> StoreResult<T> {
        self.with_connection(|writing| work(&mut writing.connection)).await
    }

    async fn with_connection<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut WriterConnection) -> rusqlite::Result<T> + Send + 'static,
    ) -> StoreResult<T> {
        let writing = Arc::clone(&self.connection);
        let locked = move || work(&mut writing.lock().unwrap_or_else(PoisonError::into_inner));
        thread_result(tokio::task::spawn_blocking(locked).await)
    }

    /// Atomic.
    pub async fn run_transaction<T: Send + 'static>(
        &self,
        sync: SyncMode,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> StoreResult<T> {
        self.with_connection(move |writing| {
            writing.set_sync(sync)?;
            // A deferred transaction would be refused when it starts to write.
            let transaction = writing.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let done = work(&transaction)?;
            transaction.commit()?;
            Ok(done)
        })
        .await
    }

    /// Gets a connection without open work. Once this returns, an abandoned transaction has been committed or
    /// rolled back.
    pub async fn reopen_connection(&self) -> StoreResult<()> {
        let path = self.path.clone();
        #[cfg(test)]
        let most_pages = self.most_pages;
        self.with_connection(move |writing| {
            *writing = WriterConnection::open(&path)?;
            #[cfg(test)]
            if let Some(most) = most_pages {
                writing.connection.pragma_update_and_check(None, "max_page_count", most, |_| Ok(()))?;
            }
            Ok(())
        })
        .await
    }

    /// Moves the WAL into the file and truncates it, unless somebody reads it for longer than `patience`.
    pub async fn fold_wal(&self, patience: Duration) -> StoreResult<()> {
        self.run(move |connection| {
            connection.busy_timeout(patience)?;
            let folded = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
            connection.busy_timeout(BUSY)?;
            folded
        })
        .await
    }

    pub async fn close(self) -> StoreResult<()> {
        let Some(writing) = Arc::into_inner(self.connection) else { return Ok(()) };
        let writing = writing.into_inner().unwrap_or_else(PoisonError::into_inner);
        let closed =
            tokio::task::spawn_blocking(|| writing.connection.close().map_err(|(_, error)| error)).await;
        thread_result(closed)
    }

    /// Closing the last connection would move the log into the file and sync both once more. This connection
    /// is never closed, so no other one is the last.
    pub fn abandon_connection(self) {
        std::mem::forget(self.connection);
    }
}
