//! Closes the open file of a ledger and begins the next one.
//!
//! First the receipts record the rotation. From then on each step checks the present state and continues: the
//! file gets its number, and a new one with its head takes the old name. After a kill at any point, the next
//! start completes the rest. No file is overwritten.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use kubewitness_core::files;
use kubewitness_core::ledger::{LedgerStatement, LedgerTally, STATEMENT_BYTES, StatementKind, closed_file};
use serde::{Deserialize, Serialize};

use super::receipts::ReceiptLine;
use super::{LedgerBook, RECORD_BYTES, damaged_error, file_identity, lock_file, missing_file_error};

/// It contains the last record, in hex.
const LINE_BYTES: usize = 2 * RECORD_BYTES + 2 * STATEMENT_BYTES;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileTurn {
    /// The number and the length of the file that is closed.
    pub file: u64,
    pub bytes: u64,
    /// Records of the ledger so far.
    pub records: u64,
    /// The newest record, in hex. A plugin's chain continues from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<String>,
    /// The first line of the next file.
    pub head: String,
}

impl FileTurn {
    /// The rotation at the beginning of the receipts, if they begin with one and have nothing of the next
    /// file yet.
    pub fn pending_rotation(sidecar: &Path) -> io::Result<Option<Self>> {
        let file = files::open(sidecar, OpenOptions::new().read(true))?;
        let mut lines = BufReader::new(file);
        let mut next = || {
            let mut line = Vec::new();
            lines.by_ref().take(LINE_BYTES as u64).read_until(b'\n', &mut line)?;
            // An unreadable line is examined later, line by line.
            io::Result::Ok(serde_json::from_slice::<ReceiptLine>(&line).ok())
        };
        let Some(ReceiptLine::Turn(turn)) = next()? else { return Ok(None) };
        loop {
            match next()? {
                Some(ReceiptLine::Receipt { .. }) => {}
                Some(_) => return Ok(None),
                None => return Ok(Some(turn)),
            }
        }
    }

    pub fn last_record(&self) -> io::Result<Option<Vec<u8>>> {
        let decode = |last: &String| {
            hex::decode(last).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
        };
        self.last.as_ref().map(decode).transpose()
    }

    /// Length of the next file before its first record.
    pub fn head_bytes(&self) -> u64 {
        self.head.len() as u64 + 1
    }

    /// `held` is the file to close, if the caller has locked it.
    pub fn complete_rotation(&self, path: &Path, held: Option<&File>) -> io::Result<()> {
        if self.has_begun(path)? {
            return Ok(());
        }
        let closed = closed_file(path, self.file);
        let (open_len, closed_len) =
            (files::look(path)?.map(|found| found.len()), files::look(&closed)?.map(|found| found.len()));
        let old = match (open_len, closed_len) {
            (Some(_), Some(_)) => {
                return damaged_error(format!(
                    "{} is in the way of closing {}: move it away",
                    closed.display(),
                    path.display()
                ));
            }
            (Some(_), None) => path,
            (None, Some(_)) => &closed,
            (None, None) => return Err(missing_file_error(path, &path.with_extension("receipts"))),
        };
        if open_len.or(closed_len) != Some(self.bytes) {
            return damaged_error(format!(
                "{} had {} bytes when it was to be closed, and has another length now: bring it back as it was",
                old.display(),
                self.bytes
            ));
        }
        let opened = files::open(old, OpenOptions::new().read(true))?;
        if held.is_none() {
            lock_file(&opened)?;
        }
        if old == path {
            std::fs::rename(path, &closed)?;
            // The next file takes the old name only once the records are safe under theirs.
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            File::open(folder.unwrap_or(Path::new(".")))?.sync_all()?;
        }
        files::replace_file_atomically(path, format!("{}\n", self.head).as_bytes(), 0o600)
    }

    fn has_begun(&self, path: &Path) -> io::Result<bool> {
        if files::look(path)?.is_none() {
            return Ok(false);
        }
        let mut begin = Vec::new();
        files::open(path, OpenOptions::new().read(true))?.take(self.head_bytes()).read_to_end(&mut begin)?;
        Ok(begin.strip_suffix(b"\n") == Some(self.head.as_bytes()))
    }
}

impl LedgerBook {
    /// Completes a rotation: nothing is written after a seal. A kill may have come between the seal and its
    /// rotation.
    pub(super) fn close_sealed(&mut self, tail: &[u8]) -> io::Result<()> {
        let Some(line) = tail.split(|byte| *byte == b'\n').rev().nth(1) else { return Ok(()) };
        match LedgerStatement::parse(line).filter(|statement| statement.kind == StatementKind::Seal) {
            Some(seal) => self.close(&seal, line),
            None => Ok(()),
        }
    }

    /// Closes the file that ends with this seal, and begins the next one. After an error the book can't be
    /// trusted.
    pub fn close(&mut self, seal: &LedgerStatement, line: &[u8]) -> io::Result<()> {
        let head = String::from_utf8(seal.head_after(line).encode_line(None)?).map_err(io::Error::other)?;
        let last = self.last.as_deref().map(hex::encode);
        let turn = FileTurn { file: seal.file, bytes: self.bytes, records: self.records, last, head };
        self.note_rotation(turn.clone());
        self.compact_receipts()?;
        turn.complete_rotation(&self.path, Some(&self.data))?;
        let data = files::open(&self.path, OpenOptions::new().read(true).append(true).mode(0o600))?;
        lock_file(&data)?;
        self.file = file_identity(&data.metadata()?);
        // Unlocked explicitly, as when a book is dropped.
        std::mem::replace(&mut self.data, data).unlock()?;
        let mut tally = LedgerTally::before_first_statement(self.now_ms);
        tally.count_line(turn.head.as_bytes(), self.now_ms).map_err(io::Error::other)?;
        self.tally = Some(tally);
        // A file that disappears from here on was removed by somebody: it is not created again.
        self.note_settled()
    }

    pub(super) fn note_rotation(&mut self, turn: FileTurn) {
        (self.bytes, self.records) = (turn.head_bytes(), turn.records);
        self.turn = Some(turn);
    }
}
