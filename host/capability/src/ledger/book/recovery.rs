//! Recovers the files of a ledger after a crash, and detects damage that no crash can cause.

use std::cmp::Ordering;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use kubewitness_core::files;
use kubewitness_core::ledger::{
    LedgerProgress, LedgerStatement, MerkleTree, STATEMENT_BYTES, closed_file, is_statement,
};

use super::receipts::AppendIntent;
use super::{LedgerBook, RECORD_BYTES, damaged_error, file_identity, missing_file_error, sha256_hex};

/// A disk writes this many bytes as a unit.
pub const SECTOR: u64 = 512;

/// Undoes an append whose sync failed: the present content of the file may never reach the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AppendUndo {
    pub offset: u64,
    /// Device and inode, so that a file that replaced it is not cut.
    pub(super) file: (u64, u64),
}

/// A shorter file has lost more than that, which recovery reports.
pub fn undo_append(data: &File, cut: AppendUndo) -> io::Result<()> {
    let found = data.metadata()?;
    if file_identity(&found) == cut.file && found.len() > cut.offset {
        data.set_len(cut.offset)?;
        data.sync_all()?;
    }
    Ok(())
}

/// Refuses files that lack what the controller has signed. Nothing is written before this check: replaced
/// files would leave no trace once their receipts are restored as well.
pub fn expect_reached(path: &Path, reached: &LedgerProgress) -> io::Result<()> {
    let closed = closed_file(path, reached.file);
    let is_closed = files::look(&closed)?.is_some();
    let file = if is_closed { &closed } else { path };
    let mut tree = MerkleTree::default();
    if files::look(file)?.is_some() {
        let opened = files::open(file, OpenOptions::new().read(true))?;
        let mut reader = BufReader::new(opened);
        let mut line = Vec::new();
        while tree.count_leaves() < reached.lines
            && reader.by_ref().take(RECORD_BYTES as u64 + 1).read_until(b'\n', &mut line)? > 0
        {
            tree.push(line.strip_suffix(b"\n").unwrap_or(&line));
            line.clear();
        }
    }
    if (tree.count_leaves(), hex::encode(tree.root())) == (reached.lines, reached.root.clone()) {
        return Ok(());
    }
    damaged_error(format!(
        "{} was rewritten or removed: the journal has a root over {} lines of file {} of the ledger {}, and they are not \
         there. Bring the files back from a copy; to begin a new ledger, move these files away and give it a new name \
         in the settings",
        file.display(),
        reached.lines,
        reached.file,
        reached.ledger
    ))
}

impl LedgerBook {
    /// Refuses if the names no longer lead to the open files, in the state in which they were left.
    pub fn expect_in_place(&self) -> io::Result<()> {
        let of_data = (&self.path, &self.data, self.bytes);
        let of_receipts = (&self.sidecar_path, &self.sidecar, self.noted);
        for (path, file, length) in [of_data, of_receipts] {
            let named =
                |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
            let Some(found) = files::look(path).map_err(named)? else {
                return Err(missing_file_error(path, &self.sidecar_path));
            };
            if file_identity(&found) != file_identity(&file.metadata()?) {
                return damaged_error(format!(
                    "{} is another file than the one that was open: bring that one back in its place. Moving or \
                     replacing a ledger while the controller runs is not supported",
                    path.display()
                ));
            }
            if found.len() != length {
                return damaged_error(format!(
                    "{} has {} bytes and {length} were written here: another program changed it. Bring the file \
                     back as it was, from a copy",
                    path.display(),
                    found.len()
                ));
            }
        }
        Ok(())
    }

    /// A file that existed before its receipts is adopted as it is, whole lines only.
    pub(super) fn adopt_file(&mut self) -> io::Result<()> {
        let mut reader = BufReader::new(&self.data);
        let mut line = Vec::new();
        while reader.by_ref().take(RECORD_BYTES as u64 + 1).read_until(b'\n', &mut line)? > 0 {
            if line.last() != Some(&b'\n') {
                return damaged_error("the file is not made of whole lines: complete or remove the last one");
            }
            self.bytes += line.len() as u64;
            match LedgerStatement::parse(&line[..line.len() - 1]) {
                Some(head) if self.bytes == line.len() as u64 => self.records = head.records,
                _ if is_statement(&line) => {}
                _ => self.records += 1,
            }
            line.clear();
        }
        self.note_settled()?;
        self.sidecar.sync_all()
    }

    pub(super) fn recover_book(&mut self) -> io::Result<()> {
        let pending = self.replay_receipts()?;
        let length = self.data.metadata()?.len();
        let Some(intent) = pending else { return self.expect_length(length) };
        if length >= intent.end_offset() && !self.is_torn(&intent)? {
            self.count(&intent);
            self.expect_length(length)?;
            if intent.decided_by.is_some() {
                self.doubt = Some(intent);
                return Ok(());
            }
            self.note_applied(intent.plugin, intent.states);
            return self.note_settled();
        }
        if length < self.bytes {
            return self.expect_length(length);
        }
        if length > self.bytes {
            tracing::warn!(bytes = length - self.bytes, "an append that was cut off is undone");
        }
        self.data.set_len(self.bytes)?;
        self.data.sync_all()
    }

    fn expect_length(&self, length: u64) -> io::Result<()> {
        match length.cmp(&self.bytes) {
            Ordering::Equal => Ok(()),
            Ordering::Less => damaged_error(format!(
                "{} has {length} bytes and {} were acknowledged: records were removed. Bring the file back as it was",
                self.path.display(),
                self.bytes
            )),
            Ordering::Greater => damaged_error(format!(
                "{} has {length} bytes and {} were written here: another program appended. Bring the file back as it \
                 was",
                self.path.display(),
                self.bytes
            )),
        }
    }

    /// Whether a part of the append never reached the disk. Other bytes in its place are damage.
    fn is_torn(&self, intent: &AppendIntent) -> io::Result<bool> {
        let mut bytes = Vec::new();
        let mut file = &self.data;
        file.seek(SeekFrom::Start(intent.offset))?;
        file.take(intent.bytes).read_to_end(&mut bytes)?;
        if sha256_hex(&bytes) == intent.sha256 {
            return Ok(false);
        }
        let first = (SECTOR - intent.offset % SECTOR) as usize;
        let (first, rest) = bytes.split_at(first.min(bytes.len()));
        let mut sectors = std::iter::once(first).chain(rest.chunks(SECTOR as usize));
        if sectors.any(|sector| !sector.is_empty() && sector.iter().all(|byte| *byte == 0)) {
            return Ok(true);
        }
        damaged_error(format!("the records from byte {} on are not those that were written", intent.offset))
    }

    /// The newest lines. They contain the newest record of this file.
    pub(super) fn read_tail(&self) -> io::Result<Vec<u8>> {
        // At most two statements follow a record, and one precedes the first.
        let from = self.bytes.saturating_sub((RECORD_BYTES + 1 + 3 * STATEMENT_BYTES) as u64);
        let mut tail = Vec::new();
        let mut file = &self.data;
        file.seek(SeekFrom::Start(from))?;
        file.take(self.bytes - from).read_to_end(&mut tail)?;
        if self.bytes > 0 && tail.last() != Some(&b'\n') {
            return damaged_error("the last record has no end");
        }
        Ok(tail)
    }

    /// Statements are not for plugins.
    pub(super) fn last_record(&self, tail: &[u8]) -> io::Result<Option<Vec<u8>>> {
        let lines = tail.split(|byte| *byte == b'\n').rev().skip(1);
        let last = lines.into_iter().find(|line| !is_statement(line)).map(<[u8]>::to_vec);
        match (last, &self.turn) {
            (Some(last), _) => Ok(Some(last)),
            (None, Some(turn)) => turn.last_record(),
            (None, None) if self.records == 0 => Ok(None),
            (None, None) => damaged_error(format!(
                "{} is a new file, and its `.receipts` file is missing: restore it",
                self.path.display()
            )),
        }
    }
}
