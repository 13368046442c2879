//! The one writer of the file. Before and in each transaction it checks that the file is still the one that
//! it opened, and that no commit is missing in it.

use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use kubewitness_core::Seq;
use kubewitness_core::ports::JournalError;
use sqlx::{Connection as _, SqliteConnection};

use super::fault::classify_error;
use super::files;
use super::schema;
use super::statements::{lookup, remove, write};
use super::writer_thread::{BUSY, SyncMode, WriterThread};
use crate::report::LOST;
use crate::store::format::with_mark;
use crate::store::memory::{FoundObject, ObjectIdentity, StoreMemory};
use crate::store::rows::removal::{RemovalPlan, UnusedRows};
use crate::store::rows::{KnownKeys, RowBatch, StateKey, StoreResult};
use crate::store::{PluginWrites, StoreReader, StoreWriter, TransactionStart};

/// Beyond this size the WAL is moved into the file and truncated, even if that has to wait a moment for
/// readers. SQLite's own checkpoints don't wait, so a permanent reader would let it grow forever.
const WAL_BYTES: u64 = 64 << 20;

/// How long the writer waits for readers before it postpones that.
const WAL_PATIENCE: Duration = Duration::from_millis(100);

/// How many transactions are between two checks of the WAL's size.
const WAL_LOOK: u32 = 64;

/// The one writer.
pub(crate) struct SqliteWriter {
    path: PathBuf,
    thread: WriterThread,
    /// The file that was opened, whatever file has its name now.
    file: Option<u64>,
    /// The newest state that is known to be committed.
    committed: Seq,
    /// Used between two transactions.
    reader: SqliteConnection,
    transactions: u32,
}

/// The newest position of the journal as the connection sees it.
fn newest_position(connection: &rusqlite::Connection) -> rusqlite::Result<Seq> {
    let mut asked = connection.prepare_cached("SELECT coalesce(max(seq), 0) FROM states")?;
    asked.query_row([], |row| row.get::<_, i64>(0)).map(|newest| newest as Seq)
}

impl SqliteWriter {
    pub(super) fn new(
        path: PathBuf,
        thread: WriterThread,
        file: Option<u64>,
        reader: SqliteConnection,
    ) -> Self {
        Self { path, thread, file, committed: 0, reader, transactions: 0 }
    }

    /// The companion files belong to the file that was opened.
    fn lost_file_error(&self, what: &str) -> JournalError {
        let path = self.path.display();
        JournalError::Fatal(format!(
            "{path} was {what} while it was in use: {LOST}. Before you put a copy there, remove {path}-wal and \
             {path}-shm; keep them if you put the same file back"
        ))
    }

    /// SQLite would continue to write into a deleted file, and everything would be lost at the end.
    fn check_file_in_place(&self) -> StoreResult<()> {
        match files::file_id(&self.path) {
            // An unanswered check proves nothing.
            Err(_) => Ok(()),
            Ok(found) if found == self.file => Ok(()),
            Ok(_) => Err(self.lost_file_error("removed or replaced")),
        }
    }

    /// Retention never removes the newest state.
    fn require_newest(&self, newest: Seq) -> StoreResult<()> {
        match newest < self.committed {
            true => Err(self.lost_file_error("overwritten by an older copy")),
            false => Ok(()),
        }
    }

    /// Atomic, and refused if the journal lacks a known commit.
    async fn run_transaction(
        &self,
        sync: SyncMode,
        work: impl FnOnce(&rusqlite::Connection) -> rusqlite::Result<()> + Send + 'static,
    ) -> StoreResult<()> {
        self.check_file_in_place()?;
        let committed = self.committed;
        let checked = move |transaction: &rusqlite::Connection| {
            let newest = newest_position(transaction)?;
            if newest >= committed {
                work(transaction)?;
            }
            Ok(newest)
        };
        let newest = self.thread.run_transaction(sync, checked).await?;
        self.require_newest(newest)
    }
}

#[async_trait]
impl StoreWriter for SqliteWriter {
    async fn reconnect(&mut self) -> StoreResult<()> {
        // Once this returns, an abandoned transaction has been committed or rolled back, and everything read
        // from then on is true. It comes first, because this call may be abandoned as well.
        self.thread.run(|_| Ok(())).await?;
        // No new file is created under its name.
        self.check_file_in_place()?;
        self.thread.reopen_connection().await
    }

    /// Only one process has the file, so a transaction needs no start of its own.
    async fn begin_transaction(&mut self) -> StoreResult<TransactionStart> {
        Ok(TransactionStart::ALONE)
    }

    async fn set_leadership(&mut self, _: bool) -> StoreResult<()> {
        Ok(())
    }

    async fn elect_by(&mut self, _: &str) -> StoreResult<()> {
        Ok(())
    }

    async fn mark_import(&mut self, unfinished: bool) -> StoreResult<()> {
        let version = with_mark(schema::VERSION, unfinished);
        let mark = move |transaction: &rusqlite::Connection| {
            transaction.pragma_update(None, "user_version", version)
        };
        self.run_transaction(SyncMode::Full, mark).await
    }

    async fn forget_plugin(&mut self, plugin: &str) -> StoreResult<()> {
        let plugin = plugin.to_owned();
        self.run_transaction(SyncMode::Full, move |transaction| remove::forget_plugin(transaction, &plugin))
            .await
    }

    async fn load_memory(&mut self) -> StoreResult<StoreMemory> {
        lookup::load_memory(&mut self.reader).await
    }

    async fn find_chain_ends(
        &mut self,
        memory: &StoreMemory,
        strangers: Vec<ObjectIdentity>,
    ) -> StoreResult<Vec<FoundObject>> {
        lookup::find_chain_ends(&mut self.reader, memory, strangers).await
    }

    async fn find_known_keys(&mut self, questions: Vec<(i64, StateKey)>) -> StoreResult<KnownKeys> {
        lookup::find_known_keys(&mut self.reader, questions).await
    }

    async fn commit_rows(&mut self, rows: Option<RowBatch>, left: &PluginWrites<'_>) -> StoreResult<()> {
        let (saved, replays) = (write::QueuedSaves::of(left), left.replays.clone());
        let sync = if rows.is_none() && left.is_lax { SyncMode::Later } else { SyncMode::Full };
        let last = rows.as_ref().and_then(RowBatch::newest_position);
        let write = move |transaction: &rusqlite::Connection| {
            rows.map_or(Ok(()), |rows| write::write_rows(transaction, rows))?;
            saved.write(transaction)?;
            replays.iter().try_for_each(|replay| write::write_marks(transaction, replay))
        };
        self.run_transaction(sync, write).await?;
        self.committed = last.unwrap_or(self.committed);
        Ok(())
    }

    fn store_reader(&mut self) -> &mut dyn StoreReader {
        &mut self.reader
    }

    async fn remove(&mut self, removal: &RemovalPlan) -> StoreResult<()> {
        let removal = removal.clone();
        self.run_transaction(SyncMode::Full, move |transaction| remove::remove(transaction, &removal)).await
    }

    async fn sweep_unused_rows(&mut self, sweep: &UnusedRows) -> StoreResult<()> {
        let sweep = sweep.clone();
        self.run_transaction(SyncMode::Full, move |transaction| {
            remove::delete_unused_rows(transaction, &sweep)
        })
        .await
    }

    async fn end_transaction(&mut self) -> StoreResult<()> {
        self.check_file_in_place()?;
        // The file has its first page before anything is in the WAL.
        if std::fs::metadata(&self.path).is_ok_and(|found| found.len() == 0) {
            return Err(self.lost_file_error("emptied"));
        }
        let newest = self.thread.run(|connection| newest_position(connection)).await?;
        self.require_newest(newest)
    }

    /// Keeps the WAL bounded. A failure is not an error: the next call tries again.
    async fn maintain_store(&mut self) {
        self.transactions = self.transactions.wrapping_add(1);
        if !self.transactions.is_multiple_of(WAL_LOOK) || files::wal_bytes(&self.path) <= WAL_BYTES {
            return;
        }
        if let Err(error) = self.thread.fold_wal(WAL_PATIENCE).await {
            tracing::warn!(%error, "the journal's WAL could not be truncated");
        }
    }

    async fn close(mut self: Box<Self>) -> StoreResult<()> {
        if let Err(lost) = self.check_file_in_place() {
            self.abandon_store();
            return Err(lost);
        }
        let asked = self.reader.close().await;
        // Readers are closed later and could not do it. Then the whole journal is in one file, and a copy of
        // that file is a copy of the journal.
        self.thread.fold_wal(BUSY).await?;
        self.thread.close().await?;
        asked.map_err(classify_error)
    }

    fn abandon_store(self: Box<Self>) {
        self.thread.abandon_connection();
        // It can't be the last connection to a file in doubt, because one such connection is kept already.
        drop(self.reader);
    }

    #[cfg(test)]
    async fn limit_pages(&mut self, more: Option<i64>) -> StoreResult<()> {
        let pages = sqlx::query_scalar("PRAGMA page_count").fetch_one(&mut self.reader);
        let pages: i64 = pages.await.map_err(classify_error)?;
        self.thread.most_pages = Some(more.map_or(i64::from(u32::MAX - 1), |more| pages + more));
        self.thread.reopen_connection().await
    }
}
