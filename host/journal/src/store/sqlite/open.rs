//! Opens a file: checks that it is a journal of a known format and that no other process writes to it.

use std::fs::{OpenOptions, TryLockError};
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use kubewitness_core::files::{self, FileLock};
use kubewitness_core::ports::JournalError;
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqlitePool, SqlitePoolOptions,
    SqliteSynchronous,
};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection};

use super::block_reader::{BlockReader, READER_CACHE_KIB};
use super::fault;
use super::files::{
    expect_files, file_and_wal_bytes, file_bytes, file_id, path_with_suffix, unavailable_error, wal_bytes,
};
use super::migrate::migrate_file;
use super::schema::{APPLICATION_ID, TABLES, VERSION, triggers_and_views};
use super::statements::fetch;
use super::writer::SqliteWriter;
use super::writer_thread::{BUSY, WriterThread};
use crate::report::OpenError;
use crate::store::format::split_mark;
use crate::store::rows::StoreResult;
use crate::store::{self, OpenedJournal};

/// The most prepared statements of a reader.
const STATEMENTS: usize = 64;

/// The most rows between SQLite's thread and the reader.
const ROWS_IN_FLIGHT: usize = 512;

/// A reader creates no journal.
const NOTHING: &str = "there is no journal here: name the controller's data folder with --data";

/// Where a rollback journal has the number of pages before the transaction.
const PAGES_BEFORE: Range<usize> = 16..20;

pub(crate) struct SqliteStore {
    path: PathBuf,
    readers: SqlitePool,
    blocks: Arc<BlockReader>,
    lock: FileLock,
}

/// The content of a file before anything is written to it.
enum FileContent {
    Nothing,
    /// A journal of this version, which is not newer than ours, with the mark of an unfinished import.
    Journal(i64, bool),
}

fn connect_options(path: &Path) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(path)
        .busy_timeout(BUSY)
        .foreign_keys(false)
        .statement_cache_capacity(STATEMENTS)
        .row_buffer_size(ROWS_IN_FLIGHT)
        .pragma("cell_size_check", "ON")
        .disable_statement_logging()
}

/// An error of SQLite before the journal is open.
pub(super) fn open_error(path: &Path, error: sqlx::Error) -> OpenError {
    const NOT_A_DATABASE: i64 = 26;
    if fault::result_code(&error).is_some_and(|code| code & 0xFF == NOT_A_DATABASE) {
        return OpenError::NotAJournal { path: path.to_path_buf(), reason: "it is no SQLite file".into() };
    }
    open_error_of(path, fault::classify_error(error))
}

fn open_error_of(path: &Path, error: JournalError) -> OpenError {
    match error {
        JournalError::Fatal(reason) => OpenError::Damaged { path: path.to_path_buf(), reason },
        error => unavailable_error(path, error),
    }
}

impl SqliteStore {
    /// With `unfinished` it also opens a journal with an unfinished import, and returns whether it is one.
    pub async fn open(
        path: &Path,
        readers: u32,
        unfinished: bool,
    ) -> Result<(Self, SqliteWriter, bool), OpenError> {
        expect_files(path).await?;
        let lock = lock_journal(path)?;
        // Before any write: a file that isn't ours must stay as it is.
        let found = inspect_file(path).await?;
        let is_unfinished = matches!(found, FileContent::Journal(_, true));
        if is_unfinished && !unfinished {
            return Err(OpenError::Unfinished { place: path.display().to_string() });
        }
        let fail = |error| open_error(path, error);
        let writing = connect_options(path)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full);
        let mut connection = writing.connect().await.map_err(fail)?;
        match found {
            FileContent::Nothing => create_schema(&mut connection).await.map_err(fail)?,
            FileContent::Journal(version, marked) => {
                migrate_file(&mut connection, path, version, marked).await.map_err(fail)?;
            }
        }
        expect_ours(&mut connection, path).await?;
        let file = file_id(path).map_err(|error| unavailable_error(path, error))?;
        let thread = WriterThread::open(path).await.map_err(|error| open_error_of(path, error))?;
        connection.close().await.map_err(fail)?;
        let reading =
            connect_options(path).read_only(true).pragma("cache_size", (-READER_CACHE_KIB).to_string());
        let reader = reading.connect().await.map_err(fail)?;
        let pool = SqlitePoolOptions::new()
            .max_connections(readers.max(1))
            .test_before_acquire(false)
            .connect_lazy_with(reading);
        let path = path.to_path_buf();
        // One for each of the readers, which read at most one block at a time.
        let blocks = Arc::new(BlockReader::new(path.clone(), readers.max(1) as usize));
        let writer = SqliteWriter::new(path.clone(), thread, file, reader);
        Ok((Self { path, readers: pool, blocks, lock }, writer, is_unfinished))
    }
}

#[async_trait]
impl store::OpenStore for SqliteStore {
    async fn open_connection(&self) -> StoreResult<Box<dyn store::StoreConnection>> {
        let connection = self.readers.acquire().await.map_err(fault::classify_error)?;
        Ok(Box::new(fetch::LentConnection::new(connection, Arc::clone(&self.blocks))))
    }

    async fn size_on_disk(&self) -> StoreResult<u64> {
        let (file, wal) = file_and_wal_bytes(&self.path);
        Ok(file + wal)
    }

    async fn close(&self) -> StoreResult<()> {
        self.readers.close().await;
        self.blocks.close();
        let unlocked = self.lock.release();
        unlocked
            .map_err(|error| JournalError::Unavailable(format!("the lock could not be let go of: {error}")))
    }
}

/// Locks the file beside the journal. The lock is held while the store is open.
fn lock_journal(path: &Path) -> Result<FileLock, OpenError> {
    let name = path_with_suffix(path, ".lock");
    let file = files::open(&name, OpenOptions::new().create(true).truncate(false).write(true));
    let file = file.map_err(|error| unavailable_error(&name, error))?;
    FileLock::try_lock(file).map_err(|error| match error {
        TryLockError::WouldBlock => OpenError::InUse(path.to_path_buf()),
        TryLockError::Error(error) => unavailable_error(&name, error),
    })
}

/// Reads marks and version, and changes nothing.
async fn inspect_file(path: &Path) -> Result<FileContent, OpenError> {
    match (file_bytes(path), wal_bytes(path)) {
        (0, 0) => return Ok(FileContent::Nothing),
        // The header is on disk before anything is in the WAL.
        (0, _) => return Err(OpenError::Orphan { path: path.to_path_buf() }),
        _ => {}
    }
    let mut connection = read_only(path).await?;
    let found = read_marks(&mut connection).await;
    connection.close().await.map_err(|error| open_error(path, error))?;
    let found = match found {
        Err(error) if fault::is_cut_off(&error) => return interrupted_creation(path),
        found => found.map_err(|error| open_error(path, error))?,
    };
    match found {
        // A crash came between the file's creation and its first transaction.
        (0, 0, 0) => Ok(FileContent::Nothing),
        (APPLICATION_ID, format, _) => match split_mark(format) {
            (found, _) if found > VERSION => {
                Err(OpenError::Newer { path: path.to_path_buf(), found, known: VERSION })
            }
            (version, unfinished) => Ok(FileContent::Journal(version, unfinished)),
        },
        _ => {
            let reason = "it is another program's database".into();
            Err(OpenError::NotAJournal { path: path.to_path_buf(), reason })
        }
    }
}

/// Refuses a file with a trigger: each of our writes would run it.
async fn expect_ours(connection: &mut SqliteConnection, path: &Path) -> Result<(), OpenError> {
    let triggers = triggers_and_views(connection).await.map_err(|error| open_error(path, error))?;
    match triggers.first() {
        None => Ok(()),
        Some(name) => Err(OpenError::Foreign { path: path.to_path_buf(), name: name.clone() }),
    }
}

/// Whether a process died within the transaction that created the file. Only that transaction is written
/// without a WAL. The next writer rolls it back, and nothing is left.
fn interrupted_creation(path: &Path) -> Result<FileContent, OpenError> {
    let name = path_with_suffix(path, "-journal");
    let mut header = [0; PAGES_BEFORE.end];
    let opened = files::open(&name, OpenOptions::new().read(true));
    let read = opened.and_then(|mut file| file.read_exact(&mut header));
    read.map_err(|error| unavailable_error(&name, error))?;
    if header[PAGES_BEFORE] == [0; 4] {
        return Ok(FileContent::Nothing);
    }
    let reason = "another program was cut off while it wrote to it, and has not been there since".into();
    Err(OpenError::NotAJournal { path: path.to_path_buf(), reason })
}

pub(super) async fn read_only(path: &Path) -> Result<SqliteConnection, OpenError> {
    connect_options(path).read_only(true).connect().await.map_err(|error| open_error(path, error))
}

/// A journal of this format, with a connection that can't write.
pub(crate) async fn open_to_read(path: &Path) -> Result<OpenedJournal, OpenError> {
    expect_files(path).await?;
    if file_bytes(path) == 0 && wal_bytes(path) == 0 {
        return Err(unavailable_error(path, NOTHING));
    }
    match inspect_file(path).await? {
        FileContent::Journal(VERSION, unfinished) => {
            let connection = Box::new(read_only(path).await?);
            let (bytes, wal_bytes) = file_and_wal_bytes(path);
            Ok(OpenedJournal { connection, bytes, wal_bytes, unfinished })
        }
        FileContent::Journal(found, _) => {
            Err(OpenError::Older { path: path.to_path_buf(), found, known: VERSION })
        }
        FileContent::Nothing => {
            let reason = "it is an empty database".into();
            Err(OpenError::NotAJournal { path: path.to_path_buf(), reason })
        }
    }
}

/// Removes a journal with an unfinished import, and no other.
pub(crate) async fn discard_unfinished_import(path: &Path) -> Result<(), OpenError> {
    let nothing = || OpenError::NothingToDiscard { place: path.display().to_string() };
    if file_bytes(path) == 0 && wal_bytes(path) == 0 {
        return Err(nothing());
    }
    let lock = lock_journal(path)?;
    let FileContent::Journal(_, true) = inspect_file(path).await? else { return Err(nothing()) };
    // Without its WAL, the file is an older state of the same import, or empty. So a killed process leaves
    // something that can be discarded again, or used for a new start. The lock file stays, as always.
    for name in [path_with_suffix(path, "-wal"), path_with_suffix(path, "-shm"), path.to_path_buf()] {
        match std::fs::remove_file(&name) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(unavailable_error(&name, error));
            }
            _ => {}
        }
    }
    lock.release().map_err(|error| unavailable_error(path, error))
}

async fn read_marks(connection: &mut SqliteConnection) -> Result<(i64, i64, i64), sqlx::Error> {
    let application: i64 = sqlx::query_scalar("PRAGMA application_id").fetch_one(&mut *connection).await?;
    let version: i64 = sqlx::query_scalar("PRAGMA user_version").fetch_one(&mut *connection).await?;
    let tables: i64 = sqlx::query_scalar("SELECT count(*) FROM sqlite_schema").fetch_one(connection).await?;
    Ok((application, version, tables))
}

async fn create_schema(connection: &mut SqliteConnection) -> Result<(), sqlx::Error> {
    let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await?;
    let marks = format!("PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {VERSION};");
    sqlx::raw_sql(AssertSqlSafe(format!("{TABLES}{marks}"))).execute(&mut *transaction).await?;
    transaction.commit().await
}
