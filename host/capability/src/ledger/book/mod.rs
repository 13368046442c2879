//! The files of one ledger, and their recovery after a crash.
//!
//! A ledger must never have a record twice, nor half of one. `NAME.jsonl` (the operator chooses the name) has
//! records, one line each, and is append-only. Beside it, `NAME.receipts` has one JSON line for each event:
//!
//! ```text
//! {"intent":{"offset":0,"bytes":512,"records":2,"sha256":"…","plugin":"audit","states":[[1,"25053d9c…"],[2,"86f1…"]]}}
//! {"settled":{"bytes":512,"records":2}}
//! {"receipt":{"plugin":"audit","states":[[1,"25053d9c…"]]}}        (an intent of old, kept by a compaction)
//! {"turn":{"file":1,"bytes":512,"records":2,"head":"…"}}  (the first line, until the next file has records)
//! ```
//!
//! A state is written as its position and the print of its id, which in older lines is a number.
//!
//! An append is: intent, sync; records, sync; settled. After a crash the last intent decides. If all of its
//! records exist, it was applied, and its states are never delivered again. If some are missing, the file is
//! cut back to its offset, and its states come again. After a power failure the file may have its full
//! length, with zeros for parts that never reached the disk: those count as missing. If the same call also
//! wrote to a database, the intent names that transaction, and the database decides.
//!
//! Damage that no crash can cause (settled records that are missing or changed, unannounced bytes) is refused
//! and never repaired: a person may have to look at it.
//!
//! An open handle still writes to a file that was removed or moved. So each append first checks that both
//! names still lead to the open files. If a name leads to another file, or the length differs, the append is
//! refused. A file with known records is never created again.
//!
//! The controller's statements are between the records ([`kubewitness_core::ledger`]). They are appended like
//! records, with an intent that has no states. [`seals`] writes them, and [`rotate`] closes a file.

mod receipts;
mod recovery;
mod rotate;
pub mod seals;

use std::fs::{File, Metadata, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use kubewitness_core::intents::prints::IdPrint;
use kubewitness_core::ledger::{LedgerProgress, LedgerTally};
use kubewitness_core::{Seq, files};
use ring::digest::{SHA256, digest};

pub use self::receipts::{AppendIntent, DecidingTransaction};
use self::receipts::{NO_RECORDS, ReceiptLine};
use self::recovery::undo_append;
pub use self::recovery::{AppendUndo, expect_reached};
use self::rotate::FileTurn;
use crate::receipts::ReceiptMark;

/// One record: a line of an audit trail, not a document store.
pub const RECORD_BYTES: usize = 256 * 1024;

/// Says if missing files may be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BookOpening {
    /// At startup: an unknown ledger begins empty, and a file without receipts is adopted.
    First,
    /// The process had it open before, so anything missing was removed meanwhile.
    Again,
}

/// An open ledger. Its data file is locked against other processes while it lives.
pub struct LedgerBook {
    path: PathBuf,
    data: File,
    file: (u64, u64),
    sidecar: File,
    sidecar_path: PathBuf,
    pub bytes: u64,
    /// The length of the receipts.
    noted: u64,
    pub records: u64,
    pub last: Option<Vec<u8>>,
    receipts: Vec<(String, Vec<(Seq, IdPrint)>)>,
    lines: usize,
    /// An append that was written in full. Its transaction must still be looked up.
    pub doubt: Option<AppendIntent>,
    /// Set while the open file has no records.
    turn: Option<FileTurn>,
    /// The tally of the open file, computed when a statement is first due.
    tally: Option<LedgerTally>,
    /// The journal's progress of a signed ledger when it was opened.
    pub reached: Option<LedgerProgress>,
    /// True if the ledger had no receipts.
    is_adopted: bool,
    /// The time of the call that uses the ledger.
    pub now_ms: u64,
}

fn damaged_error<T>(message: impl Into<String>) -> io::Result<T> {
    Err(io::Error::new(io::ErrorKind::InvalidData, message.into()))
}

fn file_identity(found: &Metadata) -> (u64, u64) {
    (found.dev(), found.ino())
}

/// The error for a missing file of a ledger that was in use.
fn missing_file_error(path: &Path, sidecar: &Path) -> io::Error {
    let message = format!(
        "{} is gone, and records of this ledger are known: bring the file back from where it was moved; to begin a \
         new ledger, stop the controller, and move both the old file and {} away",
        path.display(),
        sidecar.display()
    );
    io::Error::new(io::ErrorKind::NotFound, message)
}

fn sha256_hex(data: &[u8]) -> String {
    hex::encode(digest(&SHA256, data))
}

fn lock_file(data: &File) -> io::Result<()> {
    data.try_lock().map_err(|error| match error {
        TryLockError::WouldBlock => {
            io::Error::new(io::ErrorKind::WouldBlock, "another process writes this ledger")
        }
        TryLockError::Error(error) => error,
    })
}

impl Drop for LedgerBook {
    /// Unlocked explicitly and not by closing: a child process that another thread is just starting has the
    /// file open as well, and would keep it locked until its program begins.
    fn drop(&mut self) {
        if let Err(error) = self.data.unlock() {
            tracing::debug!(%error, "a ledger's lock is let go of by closing the file");
        }
    }
}

impl LedgerBook {
    pub fn open(path: &Path, cut: Option<AppendUndo>, opening: BookOpening) -> io::Result<Self> {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let sidecar_path = path.with_extension("receipts");
        let beside = |error: io::Error| {
            io::Error::new(error.kind(), format!("{} beside it: {error}", sidecar_path.display()))
        };
        let receipts = files::look(&sidecar_path).map_err(beside)?;
        let pending = match &receipts {
            Some(_) => FileTurn::pending_rotation(&sidecar_path).map_err(beside)?,
            None => None,
        };
        if let Some(turn) = &pending {
            turn.complete_rotation(path, None)?;
        }
        let is_known = receipts.as_ref().is_some_and(|found| found.len() > NO_RECORDS.len() as u64);
        for (path, is_there) in [(path, files::look(path)?.is_some()), (&sidecar_path, receipts.is_some())] {
            if !is_there && (is_known || opening == BookOpening::Again) {
                return Err(missing_file_error(path, &sidecar_path));
            }
        }
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let open = |path: &Path| {
            files::open(path, OpenOptions::new().read(true).append(true).create(true).mode(0o600))
        };
        let data = open(path)?;
        lock_file(&data)?;
        if let Some(cut) = cut {
            undo_append(&data, cut)?;
        }
        let mut book = Self {
            path: path.to_owned(),
            file: file_identity(&data.metadata()?),
            data,
            sidecar: open(&sidecar_path).map_err(beside)?,
            sidecar_path: sidecar_path.clone(),
            bytes: 0,
            noted: 0,
            records: 0,
            last: None,
            receipts: Vec::new(),
            lines: 0,
            doubt: None,
            turn: None,
            tally: None,
            reached: None,
            is_adopted: receipts.is_none(),
            now_ms: 0,
        };
        File::open(folder)?.sync_all()?;
        if receipts.is_none() {
            book.adopt_file()?;
        } else {
            book.recover_book()?;
        }
        if pending.is_some() {
            book.note_settled()?;
        }
        let tail = book.read_tail()?;
        book.last = book.last_record(&tail)?;
        book.close_sealed(&tail)?;
        Ok(book)
    }

    /// Makes the undo of an append that begins at the offset.
    pub fn cut_at(&self, offset: u64) -> AppendUndo {
        AppendUndo { offset, file: self.file }
    }

    fn count(&mut self, intent: &AppendIntent) {
        self.bytes += intent.bytes;
        self.records += intent.records;
        self.turn = None;
    }

    /// A statement applies no states.
    fn note_applied(&mut self, plugin: String, states: Vec<(Seq, IdPrint)>) {
        if !states.is_empty() {
            self.receipts.push((plugin, states));
        }
    }

    /// Durable when it returns. The caller has checked that the files are in place. After an error the book
    /// can't be trusted: open it again, with a cut.
    pub fn append_lines(
        &mut self,
        plugin: &str,
        marks: &[ReceiptMark],
        data: &[u8],
        records: u64,
        decided_by: Option<DecidingTransaction>,
    ) -> io::Result<AppendIntent> {
        let intent = AppendIntent {
            offset: self.bytes,
            bytes: data.len() as u64,
            records,
            sha256: sha256_hex(data),
            plugin: plugin.to_owned(),
            states: marks.iter().map(|mark| (mark.seq, mark.print)).collect(),
            decided_by,
        };
        self.note_line(&ReceiptLine::Intent(intent.clone()))?;
        self.sidecar.sync_data()?;
        self.data.write_all(data)?;
        self.data.sync_data()?;
        if let Some(tally) = self.tally.as_mut().filter(|_| records > 0) {
            let lines = data.split_inclusive(|byte| *byte == b'\n');
            lines.for_each(|line| tally.count_record(&line[..line.len() - 1], self.now_ms));
        }
        Ok(intent)
    }

    /// Records that the append counts. The line needs no sync: without it, recovery finds the append
    /// complete.
    pub fn keep_append(&mut self, intent: AppendIntent, last: Vec<u8>) -> io::Result<()> {
        self.count(&intent);
        self.last = Some(last);
        self.note_applied(intent.plugin, intent.states);
        self.note_settled()
    }

    /// Keeps a recovered append whose transaction was committed. Its records are counted already.
    pub fn keep_doubted(&mut self, intent: AppendIntent) -> io::Result<()> {
        self.note_applied(intent.plugin, intent.states);
        self.note_settled()
    }
}

#[cfg(test)]
mod seal_tests;
#[cfg(test)]
mod tests;
