//! The journal in one SQLite file: the only module that knows SQL. The format is described in
//! [`schema`].

mod backlog;
mod fault;
mod fetch;
mod findings;
mod lookup;
mod migrate;
mod multi;
mod open;
mod proof;
mod query;
mod read;
mod retain;
mod schema;
mod seals;
mod write;

use std::fs::File;
use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use kubewitness_core::ports::{JournalError, Save};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection as _, SqliteConnection};

use fault::classify;
pub(crate) use open::{Store, open_to_verify, sizes};

use crate::memory::{Found, Identity, Memory};
use crate::plan::{Known, Rows};
use crate::removal::{Removal, Sweep};
use crate::rows::Key;
use crate::store::{self, Answer, LOST, Past, Replay, Writes};
use crate::uid;

/// Beyond this size the WAL is moved into the file and cut, even if that has to wait a moment
/// for readers. SQLite's own checkpoints, every 1,000 pages, don't wait, so that a reader who is
/// always there would let it grow without end.
const WAL_BYTES: u64 = 64 << 20;

/// How long the one writer waits for readers before it puts that off.
const WAL_PATIENCE: Duration = Duration::from_millis(100);

/// Transactions between two looks at the size of the WAL.
const WAL_LOOK: u32 = 64;

/// The one connection that writes.
pub(crate) struct Writer {
    path: PathBuf,
    options: SqliteConnectOptions,
    /// The one that was opened, whatever lies under its name by now.
    file: Option<u64>,
    connection: SqliteConnection,
    transactions: u32,
}

impl Writer {
    /// SQLite goes on in a file that has no name any more, and all of it would be gone at the end.
    fn is_there(&self) -> Answer<()> {
        match open::file_id(&self.path) {
            // What can't be asked now is no answer.
            Err(_) => Ok(()),
            Ok(found) if found == self.file => Ok(()),
            Ok(_) => {
                let path = self.path.display();
                Err(JournalError::Fatal(format!(
                    "{path} was removed or replaced while it was in use: {LOST}"
                )))
            }
        }
    }
}

#[async_trait]
impl Writes for Writer {
    /// SQLite undoes a transaction by itself when the disk is full; the driver doesn't learn of it,
    /// takes it for open still, and begins no other.
    async fn reconnect(&mut self) -> Answer<()> {
        // Commands of one connection are done in order: once this one is answered, what was
        // abandoned has been committed or undone, and what is read from now on is true. It must
        // come first, and on the old connection, since this call may be abandoned as well.
        if let Err(error) = self.connection.ping().await {
            tracing::warn!(%error, "the journal's connection died");
        }
        // Nothing is begun under its name.
        self.is_there()?;
        let fresh = self.options.connect().await.map_err(classify)?;
        let used = std::mem::replace(&mut self.connection, fresh);
        if let Err(error) = used.close().await {
            tracing::debug!(%error, "closing a connection after a failed transaction");
        }
        Ok(())
    }

    async fn memory(&mut self) -> Answer<Memory> {
        lookup::memory(&mut self.connection).await
    }

    async fn tails(&mut self, memory: &Memory, strangers: Vec<Identity>) -> Answer<Vec<Found>> {
        lookup::tails(&mut self.connection, memory, strangers).await
    }

    async fn keys(&mut self, questions: Vec<(i64, Key)>) -> Answer<Known> {
        lookup::keys(&mut self.connection, questions).await
    }

    async fn commit(
        &mut self,
        rows: Option<Rows>,
        saves: &[(&str, &Save)],
        replays: &[Replay],
    ) -> Answer<()> {
        self.is_there()?;
        // A deferred transaction would be refused when it turns into a writing one.
        let mut transaction = self.connection.begin_with("BEGIN IMMEDIATE").await.map_err(classify)?;
        if let Some(rows) = rows {
            write::rows(&mut transaction, rows).await.map_err(classify)?;
        }
        write::saves(&mut transaction, saves).await.map_err(classify)?;
        for replay in replays {
            write::marks(&mut transaction, replay).await.map_err(classify)?;
        }
        transaction.commit().await.map_err(classify)
    }

    fn past(&mut self) -> &mut dyn Past {
        &mut self.connection
    }

    async fn remove(&mut self, removal: &Removal) -> Answer<()> {
        let mut transaction = self.connection.begin_with("BEGIN IMMEDIATE").await.map_err(classify)?;
        retain::remove(&mut transaction, removal).await.map_err(classify)?;
        transaction.commit().await.map_err(classify)
    }

    async fn sweep(&mut self, sweep: &Sweep) -> Answer<()> {
        let mut transaction = self.connection.begin_with("BEGIN IMMEDIATE").await.map_err(classify)?;
        retain::sweep(&mut transaction, sweep).await.map_err(classify)?;
        transaction.commit().await.map_err(classify)
    }

    /// Keeps the WAL bounded. That it can't now is no error: the next look tries again.
    async fn tend(&mut self) {
        self.transactions = self.transactions.wrapping_add(1);
        if !self.transactions.is_multiple_of(WAL_LOOK) || open::wal_bytes(&self.path) <= WAL_BYTES {
            return;
        }
        let text = format!(
            "PRAGMA busy_timeout = {}; PRAGMA wal_checkpoint(TRUNCATE); PRAGMA busy_timeout = {}",
            WAL_PATIENCE.as_millis(),
            open::BUSY.as_millis()
        );
        if let Err(error) = sqlx::raw_sql(sqlx::AssertSqlSafe(text)).execute(&mut self.connection).await {
            tracing::warn!(%error, "the journal's WAL could not be cut");
        }
    }

    async fn close(mut self: Box<Self>) -> Answer<()> {
        // Readers are closed later and could not do it: the whole journal is in the one file then,
        // and a copy of that file is a copy of the journal.
        let folded = sqlx::query("PRAGMA wal_checkpoint(TRUNCATE)").execute(&mut self.connection).await;
        self.connection.close().await.map_err(classify)?;
        folded.map(drop).map_err(classify)
    }

    fn abandon(self: Box<Self>) {
        // Whoever closes the last connection moves the log into the file and syncs both once more. As
        // long as this one is there, which is until the process ends, nobody is the last.
        std::mem::forget(self.connection);
    }

    #[cfg(test)]
    async fn limit_pages(&mut self, more: Option<i64>) -> Answer<()> {
        let pages = sqlx::query_scalar("PRAGMA page_count").fetch_one(&mut self.connection);
        let pages: i64 = pages.await.map_err(classify)?;
        let limit = more.map_or(i64::from(u32::MAX - 1), |more| pages + more);
        self.options = self.options.clone().pragma("max_page_count", limit.to_string());
        self.connection = self.options.connect().await.map_err(classify)?;
        Ok(())
    }
}

#[async_trait]
impl store::Store for Store {
    async fn connection(&self) -> Answer<Box<dyn store::Connection>> {
        Ok(Box::new(fetch::Lent::new(self.readers.acquire().await.map_err(classify)?)))
    }

    async fn bytes(&self) -> Answer<u64> {
        Ok(open::all_bytes(&self.path))
    }

    async fn close(&self) -> Answer<()> {
        self.readers.close().await;
        let unlocked = File::unlock(&self.lock);
        unlocked
            .map_err(|error| JournalError::Unavailable(format!("the lock could not be let go of: {error}")))
    }
}
