//! `ledger`: append-only record files that an operator granted. A call's records stay in memory until its
//! commit, which writes them at once; [`book`] has the files. Nothing here changes or removes a record.
//!
//! A call locks the ledger from its first read to its commit: each record has the hash of the previous one,
//! so two calls can't continue one chain at the same time.

pub mod book;
mod persons;
mod sealing;
pub mod ship;

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use kubewitness_core::clock::SystemClock;
use kubewitness_core::config::LedgerSpec;
use kubewitness_core::ledger::{LedgerProgress, NAME_BYTES, is_statement};
use kubewitness_core::ports::{GrantError, JournalError, Ledgers};
use kubewitness_core::{Seq, files};
use thiserror::Error;
use tokio::sync::{Mutex, OwnedMutexGuard};

use self::book::{
    AppendIntent, AppendUndo, BookOpening, DecidingTransaction, LedgerBook, RECORD_BYTES, expect_reached,
};
use self::persons::PersonsFile;
use self::sealing::SealingTask;
use self::ship::{FileShipper, ShipPauses, ShippingStatus};
use crate::receipts::ReceiptMark;
use crate::secrets::signing_keys::SigningKey;
use crate::sql;

/// How long a call waits for another one that holds the ledger.
const WAIT: Duration = Duration::from_secs(10);
/// The database that decides about the last append doesn't answer now.
const UNDECIDED: io::ErrorKind = io::ErrorKind::NotConnected;
/// The most bytes that one call appends.
const CALL_BYTES: usize = 16 * 1024 * 1024;

/// The databases by name. They decide about appends of calls that also wrote rows.
pub type LedgerDatabases = Arc<HashMap<String, sql::SharedEngine>>;

/// Why a ledger can't be opened.
#[derive(Debug, Error)]
pub enum LedgerOpenError {
    #[error("the journal does not answer")]
    JournalSilent,
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error("{} can't be opened: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
}

pub struct PluginLedger {
    pub spec: LedgerSpec,
    path: PathBuf,
    slot: Arc<Mutex<LedgerSlot>>,
    sealing: SealingTask,
    persons: Arc<PersonsFile>,
    shipper: Option<FileShipper>,
}

/// Closed after any fault; the next call opens and recovers it.
#[derive(Default)]
struct LedgerSlot {
    book: Option<LedgerBook>,
    cut: Option<AppendUndo>,
    /// The journal's progress of a ledger that is signed, or once was.
    reached: Option<LedgerProgress>,
}

impl PluginLedger {
    pub async fn open(
        spec: &LedgerSpec,
        key: Option<Arc<SigningKey>>,
        data: &Path,
        databases: &LedgerDatabases,
        journal: Option<Arc<dyn Ledgers>>,
    ) -> Result<Self, LedgerOpenError> {
        let path = data.join(&spec.path);
        let persons = Arc::new(PersonsFile::of(&path));
        let sealing = SealingTask::new(spec.ledger_schedule(), key, journal);
        let ledger = Self::from_parts(spec, sealing, path, Arc::default(), persons);
        let mut slot = ledger.slot.lock().await;
        if let Some(journal) = ledger.sealing.journal() {
            let kept = tokio::time::timeout(WAIT, journal.ledger_progress(&spec.name)).await;
            slot.reached = kept.map_err(|_| LedgerOpenError::JournalSilent)??;
        }
        match ledger.open_book(&slot, BookOpening::First, databases).await {
            Ok(book) => slot.book = Some(book),
            // Only calls that need the ledger wait for the database.
            Err(error) if error.kind() == UNDECIDED => {
                tracing::warn!(ledger = spec.name, %error, "the ledger's last append depends on a transaction in the database, whose outcome is not known yet");
            }
            Err(source) => return Err(LedgerOpenError::File { path: ledger.path.clone(), source }),
        }
        drop(slot);
        Ok(ledger)
    }

    /// The same files under changed settings: calls in progress are not disturbed.
    pub fn with_settings(&self, spec: &LedgerSpec, key: Option<Arc<SigningKey>>) -> Self {
        let sealing = SealingTask::new(spec.ledger_schedule(), key, self.sealing.journal().cloned());
        Self::from_parts(spec, sealing, self.path.clone(), self.slot.clone(), self.persons.clone())
    }

    /// Sets how long shipping pauses.
    pub fn with_pauses(self, pauses: ShipPauses) -> Self {
        let shipper = self.shipper.map(|shipper| shipper.with_pauses(pauses));
        Self { shipper, ..self }
    }

    fn from_parts(
        spec: &LedgerSpec,
        sealing: SealingTask,
        path: PathBuf,
        slot: Arc<Mutex<LedgerSlot>>,
        persons: Arc<PersonsFile>,
    ) -> Self {
        let ship = |ship| FileShipper::new(&spec.name, &path, ship, Arc::new(SystemClock::default()));
        let shipper = spec.ship.as_ref().map(ship);
        Self { spec: spec.clone(), path, slot, sealing, persons, shipper }
    }

    /// Whether statements are signed with this key.
    pub fn is_signed_with(&self, key: Option<&Arc<SigningKey>>) -> bool {
        self.sealing.is_signed_with(key)
    }

    /// Writes the statement that is due. A ledger that a call holds is left to that call.
    pub async fn write_due_statement(&self) -> Result<(), GrantError> {
        let Ok(mut slot) = self.slot.clone().try_lock_owned() else { return Ok(()) };
        self.sealing
            .write_due_statement(&self.spec.name, &self.path, &mut slot)
            .await
            .map_err(|error| self.refusal_of(&error))
    }

    /// The digest that replaces a person's name in records. The name is stored beside them.
    pub async fn conceal_name(&self, name: String) -> Result<String, GrantError> {
        if name.is_empty() || name.len() > NAME_BYTES {
            return Err(GrantError::TooLarge(format!("a name has 1 to {NAME_BYTES} bytes")));
        }
        if let Some(digest) = self.persons.recent_digest(&name) {
            return Ok(digest);
        }
        let persons = self.persons.clone();
        let concealed = run_in_time(&self.persons.path, move || persons.conceal_name(&name)).await;
        concealed.map_err(|error| refusal_of(&self.spec.name, &self.persons.path, &error))
    }

    /// Ships closed files, and removes those that were kept long enough. No call waits for it.
    pub async fn ship_closed_files(&self) {
        if let Some(shipper) = &self.shipper {
            shipper.run_if_due().await;
        }
    }

    /// `None` if the settings ship nothing.
    pub fn shipping_status(&self) -> Option<ShippingStatus> {
        self.shipper.as_ref().map(FileShipper::shipping_status)
    }

    /// Signs the remaining records, because no call will follow.
    pub async fn sign_off(&self) -> Result<(), GrantError> {
        let waited = tokio::time::timeout(WAIT, self.slot.clone().lock_owned()).await;
        let mut slot = waited.map_err(|_| GrantError::Unavailable("the ledger is busy".into()))?;
        let signed =
            self.sealing.at_the_end().write_due_statement(&self.spec.name, &self.path, &mut slot).await;
        signed.map_err(|error| self.refusal_of(&error))
    }

    async fn open_book(
        &self,
        slot: &LedgerSlot,
        opening: BookOpening,
        databases: &LedgerDatabases,
    ) -> io::Result<LedgerBook> {
        let (path, cut, reached) = (self.path.clone(), slot.cut, slot.reached.clone());
        let open = move || {
            if let Some(reached) = &reached {
                expect_reached(&path, reached)?;
            }
            let mut book = LedgerBook::open(&path, cut, opening)?;
            book.reached = reached;
            Ok(book)
        };
        let mut book = run_in_time(&self.path, open).await?;
        let Some(intent) = book.doubt.take() else { return Ok(book) };
        let Some(DecidingTransaction { database, token }) = &intent.decided_by else { return Ok(book) };
        let Some(engine) = databases.get(database) else {
            return Err(io::Error::other(format!(
                "its last append depends on a transaction in the database `{database}`, which is not open or not in the settings"
            )));
        };
        let undecided = |error: GrantError| io::Error::new(UNDECIDED, error.to_string());
        let committed = engine.was_committed(token).await.map_err(undecided)?;
        let path = self.path.clone();
        run_in_time(&self.path, move || {
            if committed {
                book.keep_doubted(intent)?;
                return Ok(book);
            }
            let cut = book.cut_at(intent.offset);
            // The lock is released together with the book, so that the file can be opened again.
            drop(book);
            LedgerBook::open(&path, Some(cut), BookOpening::Again)
        })
        .await
    }

    async fn lock_open_slot(
        &self,
        databases: &LedgerDatabases,
    ) -> Result<OwnedMutexGuard<LedgerSlot>, GrantError> {
        let waited = tokio::time::timeout(WAIT, self.slot.clone().lock_owned()).await;
        let mut slot =
            waited.map_err(|_| GrantError::Unavailable("the ledger is busy with other calls".into()))?;
        if slot.book.is_none() {
            let book = self.open_book(&slot, BookOpening::Again, databases).await;
            let book = book.map_err(|error| self.refusal_of(&error))?;
            slot.book = Some(book);
            slot.cut = None;
        }
        Ok(slot)
    }

    /// Holds the ledger for one call.
    pub async fn hold_for_call(&self, databases: &LedgerDatabases) -> Result<LedgerHold, GrantError> {
        let slot = self.lock_open_slot(databases).await?;
        Ok(LedgerHold {
            slot,
            name: self.spec.name.clone(),
            path: self.path.clone(),
            sealing: self.sealing.clone(),
            data: Vec::new(),
            records: 0,
            last: None,
        })
    }

    pub async fn receipts_of_plugin(
        &self,
        plugin: &str,
        databases: &LedgerDatabases,
    ) -> Result<Vec<ReceiptMark>, GrantError> {
        let slot = self.lock_open_slot(databases).await?;
        Ok(slot.book.as_ref().map(|book| book.receipts_of_plugin(plugin)).unwrap_or_default())
    }

    pub async fn forget_receipts(
        &self,
        plugin: &str,
        through: Seq,
        newest: usize,
        databases: &LedgerDatabases,
    ) -> Result<(), GrantError> {
        let mut slot = self.lock_open_slot(databases).await?;
        let Some(mut book) = slot.book.take() else { return Ok(()) };
        let plugin = plugin.to_owned();
        let forgotten =
            run_in_time(&self.path, move || book.forget_receipts(&plugin, through, newest).map(|()| book))
                .await;
        slot.book = Some(forgotten.map_err(|error| self.refusal_of(&error))?);
        Ok(())
    }

    fn refusal_of(&self, error: &io::Error) -> GrantError {
        refusal_of(&self.spec.name, &self.path, error)
    }
}

/// The file's name is for the controller's log, not for the plugin.
fn refusal_of(ledger: &str, path: &Path, error: &io::Error) -> GrantError {
    tracing::error!(ledger, %error, "the ledger {} can't be used", path.display());
    match error.kind() {
        io::ErrorKind::InvalidData => {
            GrantError::Unavailable("the ledger is damaged; the controller's log says how".into())
        }
        _ => GrantError::Unavailable("the ledger can't be written now; the controller's log says why".into()),
    }
}

/// A disk that does not answer delays a call only this long. Then the ledger is closed, and the first call
/// after the disk is back opens it again.
async fn run_in_time<T: Send + 'static>(
    path: &Path,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    files::run_within_limit(path, files::WORK, work).await
}

/// A ledger in the hands of one call.
pub struct LedgerHold {
    slot: OwnedMutexGuard<LedgerSlot>,
    pub name: String,
    path: PathBuf,
    sealing: SealingTask,
    data: Vec<u8>,
    records: u64,
    last: Option<Vec<u8>>,
}

impl LedgerHold {
    /// The position of the last record once the call is committed; positions begin at 1.
    pub fn append_records(&mut self, records: Vec<Vec<u8>>) -> Result<u64, GrantError> {
        let bytes: usize = records.iter().map(|record| record.len() + 1).sum();
        if self.data.len() + bytes > CALL_BYTES {
            return Err(GrantError::TooLarge(format!("a call appends at most {CALL_BYTES} bytes")));
        }
        for record in &records {
            if record.is_empty() || record.contains(&b'\n') {
                return Err(GrantError::Invalid("a record is one line, and not empty".into()));
            }
            if is_statement(record) {
                let message =
                    "a record may not begin as a statement of the controller does: choose other fields";
                return Err(GrantError::Invalid(message.into()));
            }
            if record.len() > RECORD_BYTES {
                return Err(GrantError::TooLarge(format!("a record has at most {RECORD_BYTES} bytes")));
            }
        }
        for record in &records {
            self.data.extend_from_slice(record);
            self.data.push(b'\n');
        }
        self.records += records.len() as u64;
        self.last = records.into_iter().next_back().or(self.last.take());
        Ok(self.slot.book.as_ref().map_or(0, |book| book.records) + self.records)
    }

    pub fn last_record(&self) -> Option<Vec<u8>> {
        self.last.clone().or_else(|| self.slot.book.as_ref()?.last.clone())
    }

    pub fn has_records(&self) -> bool {
        self.records > 0
    }

    /// Writes the records to disk. They count once [`PendingRecords::keep_records`] is called, or, with a decider,
    /// once that transaction is committed.
    pub async fn write(
        self,
        plugin: &str,
        marks: &[ReceiptMark],
        decider: Option<DecidingTransaction>,
    ) -> Result<PendingRecords, GrantError> {
        let Self { mut slot, name, path, sealing, data, records, last } = self;
        // Before the records, so that a root never covers records that do not count yet.
        sealing
            .write_due_statement(&name, &path, &mut slot)
            .await
            .map_err(|error| refusal_of(&name, &path, &error))?;
        let (Some(mut book), Some(last)) = (slot.book.take(), last) else {
            return Err(GrantError::Other("the ledger was not held, or nothing was appended".into()));
        };
        // Until the append is known to be on disk, the next call cuts it off.
        slot.cut = Some(book.cut_at(book.bytes));
        let decided = decider.is_some();
        let (plugin, marks) = (plugin.to_owned(), marks.to_vec());
        book.now_ms = sealing.now_ms();
        let written = run_in_time(&path, move || {
            if let Err(error) = book.expect_in_place() {
                return Ok(Err(error));
            }
            let intent = book.append_lines(&plugin, &marks, &data, records, decider)?;
            Ok(Ok((book, intent)))
        });
        let written = written.await.map_err(|error| refusal_of(&name, &path, &error))?;
        let (book, intent) = written.map_err(|error| {
            // Nothing was written: the next call must not cut a file that somebody put in its place.
            slot.cut = None;
            refusal_of(&name, &path, &error)
        })?;
        if decided {
            // From here on the database decides, and the next call asks it.
            slot.cut = None;
        }
        Ok(PendingRecords { slot, name, path, book, intent, last })
    }
}

/// Records on disk that do not count yet. If this is dropped, the ledger is closed; opening it cuts the
/// records off, unless they have a decider whose transaction is committed.
pub struct PendingRecords {
    slot: OwnedMutexGuard<LedgerSlot>,
    name: String,
    path: PathBuf,
    book: LedgerBook,
    intent: AppendIntent,
    last: Vec<u8>,
}

impl PendingRecords {
    pub async fn keep_records(self) -> Result<(), GrantError> {
        let Self { mut slot, name, path, mut book, intent, last } = self;
        slot.cut = None;
        let kept = run_in_time(&path, move || book.keep_append(intent, last).map(|()| book)).await;
        slot.book = Some(kept.map_err(|error| refusal_of(&name, &path, &error))?);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
