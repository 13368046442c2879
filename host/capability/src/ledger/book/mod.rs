//! The files of one ledger, and how they are brought in order after a crash.
//!
//! `NAME.jsonl` (whatever the operator calls it) holds records, one line each, and is only ever
//! appended to. Beside it `NAME.receipts` holds one JSON line an event:
//!
//! ```text
//! {"intent":{"offset":0,"bytes":512,"records":2,"sha256":"…","plugin":"audit","states":[[1,77],[2,78]]}}
//! {"settled":{"bytes":512,"records":2}}
//! {"receipt":{"plugin":"audit","states":[[1,77]]}}        (an intent of old, kept by a compaction)
//! {"turn":{"file":1,"bytes":512,"records":2,"head":"…"}}  (the first line, until the next file has records)
//! ```
//!
//! An append is: intent, sync; records, sync; settled. After a crash the last intent tells what to
//! do. Its records are all there: applied, and its states are never handed over again. They are
//! there in part: cut back to its offset, and its states come again. After a power cut the file may be
//! as long as it was to be, with zeros where a part never came to the disk: that is in part, too. Where
//! the same call also wrote to a database, the intent names that transaction, and the database decides.
//!
//! What can't have been left by a crash (settled records that are missing or changed, bytes that
//! nobody announced) is refused, never repaired: somebody may have to look at it.
//!
//! An open handle still writes to a file that was removed or moved. So each append first compares both
//! names with what the handles lead to. A file that is not the one that is open, or has another length,
//! refuses the append. A file whose records are known is never made anew.
//!
//! Statements of the host stand between the records ([`kubewitness_core::ledger`]). They are appended like records, by
//! an intent without states. [`seals`] writes them, and [`turn`] closes a file.

use std::fs::{File, Metadata, OpenOptions, TryLockError};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use kubewitness_core::ledger::{STATEMENT_BYTES, Statement, Tally, closed_file, is_statement};
use kubewitness_core::{Seq, files};
use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};

use self::turn::Turn;
use crate::receipts::Mark;

pub mod seals;
mod turn;

/// One record: a line of an audit trail, not a document store.
pub const RECORD_BYTES: usize = 256 * 1024;
/// What a disk writes as a whole.
const SECTOR: u64 = 512;
/// Lines of receipts before they are compacted: some megabytes, read in milliseconds.
const COMPACT_LINES: usize = 4096;

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Intent(Intent),
    Settled { bytes: u64, records: u64 },
    Receipt { plugin: String, states: Vec<(Seq, u32)> },
    Turn(Turn),
}

/// What one append is about to write.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Intent {
    pub offset: u64,
    pub bytes: u64,
    pub records: u64,
    pub sha256: String,
    pub plugin: String,
    pub states: Vec<(Seq, u32)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decided_by: Option<Decider>,
}

/// The transaction whose commit decides whether an append counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decider {
    pub database: String,
    pub token: String,
}

impl Intent {
    fn end(&self) -> u64 {
        self.offset + self.bytes
    }
}

/// What the receipts of a ledger hold before its first record.
const NO_RECORDS: &str = "{\"settled\":{\"bytes\":0,\"records\":0}}\n";

/// Whether files that are missing may be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// At a start: a ledger that nobody knows begins empty, and a file without receipts is taken over.
    First,
    /// The process had it open before: whatever is missing was removed meanwhile.
    Again,
}

/// Undoes an append whose sync failed: what the file shows then may never reach the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    pub offset: u64,
    /// Device and inode: another file in its place is not cut.
    file: (u64, u64),
}

/// An open ledger. Its data file is locked against other processes while it lives.
pub struct Book {
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
    receipts: Vec<(String, Vec<(Seq, u32)>)>,
    lines: usize,
    /// Written in full, but its transaction has yet to be asked for.
    pub doubt: Option<Intent>,
    /// The open file has no records yet.
    turn: Option<Turn>,
    /// Of the open file; counted when a statement is first due.
    tally: Option<Tally>,
    /// The time of the call that uses the ledger.
    pub now_ms: u64,
}

fn damaged<T>(message: impl Into<String>) -> io::Result<T> {
    Err(io::Error::new(io::ErrorKind::InvalidData, message.into()))
}

fn identity(found: &Metadata) -> (u64, u64) {
    (found.dev(), found.ino())
}

/// Of a file that is not there, though its ledger was in use.
fn missing(path: &Path, sidecar: &Path) -> io::Error {
    let message = format!(
        "{} is gone, and records of this ledger are known: bring the file back from where it was moved; to begin a \
         new ledger, stop the host, and move both the old file and {} away",
        path.display(),
        sidecar.display()
    );
    io::Error::new(io::ErrorKind::NotFound, message)
}

fn hash(data: &[u8]) -> String {
    hex::encode(digest(&SHA256, data))
}

fn lock(data: &File) -> io::Result<()> {
    data.try_lock().map_err(|error| match error {
        TryLockError::WouldBlock => {
            io::Error::new(io::ErrorKind::WouldBlock, "another process writes this ledger")
        }
        TryLockError::Error(error) => error,
    })
}

/// A file that is shorter already lost more than that: recovery says so.
fn undo(data: &File, cut: Cut) -> io::Result<()> {
    let found = data.metadata()?;
    if identity(&found) == cut.file && found.len() > cut.offset {
        data.set_len(cut.offset)?;
        data.sync_all()?;
    }
    Ok(())
}

impl Drop for Book {
    /// By name, not by closing: a child process that another thread is just starting has the file
    /// open as well, and would keep it locked until its program begins.
    fn drop(&mut self) {
        if let Err(error) = self.data.unlock() {
            tracing::debug!(%error, "a ledger's lock is let go of by closing the file");
        }
    }
}

impl Book {
    pub fn open(path: &Path, cut: Option<Cut>, opening: Opening) -> io::Result<Self> {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let sidecar_path = path.with_extension("receipts");
        let beside = |error: io::Error| {
            io::Error::new(error.kind(), format!("{} beside it: {error}", sidecar_path.display()))
        };
        let receipts = files::look(&sidecar_path).map_err(beside)?;
        let pending = match &receipts {
            Some(_) => Turn::pending(&sidecar_path).map_err(beside)?,
            None => None,
        };
        if let Some(turn) = &pending {
            turn.complete(path, None)?;
        }
        let is_known = receipts.as_ref().is_some_and(|found| found.len() > NO_RECORDS.len() as u64);
        for (path, is_there) in [(path, files::look(path)?.is_some()), (&sidecar_path, receipts.is_some())] {
            if !is_there && (is_known || opening == Opening::Again) {
                return Err(missing(path, &sidecar_path));
            }
        }
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let open = |path: &Path| {
            files::open(path, OpenOptions::new().read(true).append(true).create(true).mode(0o600))
        };
        let data = open(path)?;
        lock(&data)?;
        if let Some(cut) = cut {
            undo(&data, cut)?;
        }
        let mut book = Self {
            path: path.to_owned(),
            file: identity(&data.metadata()?),
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
            now_ms: 0,
        };
        File::open(folder)?.sync_all()?;
        if receipts.is_none() {
            book.adopt()?;
        } else {
            book.recover()?;
        }
        if pending.is_some() {
            book.settle()?;
        }
        let tail = book.read_tail()?;
        book.last = book.last_record(&tail)?;
        book.close_sealed(&tail)?;
        Ok(book)
    }

    /// What undoes an append that begins at the offset.
    pub fn cut_at(&self, offset: u64) -> Cut {
        Cut { offset, file: self.file }
    }

    /// Refuses where the names no longer lead to the files that are open, as they were left.
    pub fn expect_in_place(&self) -> io::Result<()> {
        let of_data = (&self.path, &self.data, self.bytes);
        let of_receipts = (&self.sidecar_path, &self.sidecar, self.noted);
        for (path, file, length) in [of_data, of_receipts] {
            let named =
                |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
            let Some(found) = files::look(path).map_err(named)? else {
                return Err(missing(path, &self.sidecar_path));
            };
            if identity(&found) != identity(&file.metadata()?) {
                return damaged(format!(
                    "{} is another file than the one that was open: bring that one back in its place. Moving or \
                     replacing a ledger while the host runs is not supported",
                    path.display()
                ));
            }
            if found.len() != length {
                return damaged(format!(
                    "{} has {} bytes and {length} were written here: another program changed it. Bring the file \
                     back as it was, from a copy",
                    path.display(),
                    found.len()
                ));
            }
        }
        Ok(())
    }

    /// A file that was there before its receipts is taken as it is, whole lines only.
    fn adopt(&mut self) -> io::Result<()> {
        let mut reader = BufReader::new(&self.data);
        let mut line = Vec::new();
        while reader.by_ref().take(RECORD_BYTES as u64 + 1).read_until(b'\n', &mut line)? > 0 {
            if line.last() != Some(&b'\n') {
                return damaged("the file is not made of whole lines: complete or remove the last one");
            }
            self.bytes += line.len() as u64;
            match Statement::parse(&line[..line.len() - 1]) {
                Some(head) if self.bytes == line.len() as u64 => self.records = head.records,
                _ if is_statement(&line) => {}
                _ => self.records += 1,
            }
            line.clear();
        }
        self.settle()?;
        self.sidecar.sync_all()
    }

    fn recover(&mut self) -> io::Result<()> {
        let pending = self.replay()?;
        let there = self.data.metadata()?.len();
        let Some(intent) = pending else { return self.expect_length(there) };
        if there >= intent.end() && !self.is_torn(&intent)? {
            self.count(&intent);
            self.expect_length(there)?;
            if intent.decided_by.is_some() {
                self.doubt = Some(intent);
                return Ok(());
            }
            self.applied(intent.plugin, intent.states);
            return self.settle();
        }
        if there < self.bytes {
            return self.expect_length(there);
        }
        tracing::warn!(bytes = there - self.bytes, "an append that a crash cut off is undone");
        self.data.set_len(self.bytes)?;
        self.data.sync_all()
    }

    /// Reads the receipts; gives the last intent if nothing has settled it.
    fn replay(&mut self) -> io::Result<Option<Intent>> {
        let mut reader = BufReader::new(self.sidecar.try_clone()?);
        reader.seek(SeekFrom::Start(0))?;
        let mut whole = 0;
        let mut pending: Option<Intent> = None;
        let mut text = Vec::new();
        while reader.read_until(b'\n', &mut text)? > 0 {
            // The last lines can be torn: their sync had not ended, and no append had begun behind it.
            let Some(line) = text.strip_suffix(b"\n").filter(|line| !line.contains(&0)) else { break };
            let number = self.lines + 1;
            let Ok(line) = serde_json::from_slice::<Line>(line) else {
                return damaged(format!("line {number} of {} can't be read", self.sidecar_path.display()));
            };
            if !self.apply(line, &mut pending) {
                return damaged(format!(
                    "line {number} of {} does not fit those before",
                    self.sidecar_path.display()
                ));
            }
            whole += text.len() as u64;
            self.lines = number;
            text.clear();
        }
        if whole < self.sidecar.metadata()?.len() {
            self.sidecar.set_len(whole)?;
            self.sidecar.sync_all()?;
        }
        self.noted = whole;
        Ok(pending)
    }

    fn apply(&mut self, line: Line, pending: &mut Option<Intent>) -> bool {
        match line {
            Line::Receipt { plugin, states } => self.receipts.push((plugin, states)),
            Line::Turn(turn) => {
                let is_first = self.lines == 0;
                self.turned(turn);
                return is_first;
            }
            Line::Intent(intent) => {
                // An intent that begins where the intent before it began comes after an undo.
                if let Some(before) = pending.take().filter(|before| before.offset != intent.offset) {
                    self.count(&before);
                    self.applied(before.plugin, before.states);
                }
                if intent.offset != self.bytes {
                    return false;
                }
                *pending = Some(intent);
            }
            Line::Settled { bytes, records } => {
                if let Some(before) = pending.take() {
                    self.count(&before);
                    self.applied(before.plugin, before.states);
                    return (self.bytes, self.records) == (bytes, records);
                }
                (self.bytes, self.records) = (bytes, records);
            }
        }
        true
    }

    fn count(&mut self, intent: &Intent) {
        self.bytes += intent.bytes;
        self.records += intent.records;
        self.turn = None;
    }

    /// A statement applies no states.
    fn applied(&mut self, plugin: String, states: Vec<(Seq, u32)>) {
        if !states.is_empty() {
            self.receipts.push((plugin, states));
        }
    }

    fn expect_length(&self, there: u64) -> io::Result<()> {
        match there.cmp(&self.bytes) {
            std::cmp::Ordering::Equal => Ok(()),
            std::cmp::Ordering::Less => damaged(format!(
                "{} has {there} bytes and {} were acknowledged: records were removed. Bring the file back as it was",
                self.path.display(),
                self.bytes
            )),
            std::cmp::Ordering::Greater => damaged(format!(
                "{} has {there} bytes and {} were written here: another program appended. Bring the file back as it \
                 was",
                self.path.display(),
                self.bytes
            )),
        }
    }

    /// Whether a part of the append never reached the disk. Other bytes in its place are damage.
    fn is_torn(&self, intent: &Intent) -> io::Result<bool> {
        let mut bytes = Vec::new();
        let mut file = &self.data;
        file.seek(SeekFrom::Start(intent.offset))?;
        file.take(intent.bytes).read_to_end(&mut bytes)?;
        if hash(&bytes) == intent.sha256 {
            return Ok(false);
        }
        let first = (SECTOR - intent.offset % SECTOR) as usize;
        let (first, rest) = bytes.split_at(first.min(bytes.len()));
        let mut sectors = std::iter::once(first).chain(rest.chunks(SECTOR as usize));
        if sectors.any(|sector| !sector.is_empty() && sector.iter().all(|byte| *byte == 0)) {
            return Ok(true);
        }
        damaged(format!("the records from byte {} on are not those that were written", intent.offset))
    }

    /// The newest lines, with the newest record of this file among them.
    fn read_tail(&self) -> io::Result<Vec<u8>> {
        // At most two statements stand behind a record, and one before the first.
        let from = self.bytes.saturating_sub((RECORD_BYTES + 1 + 3 * STATEMENT_BYTES) as u64);
        let mut tail = Vec::new();
        let mut file = &self.data;
        file.seek(SeekFrom::Start(from))?;
        file.take(self.bytes - from).read_to_end(&mut tail)?;
        if self.bytes > 0 && tail.last() != Some(&b'\n') {
            return damaged("the last record has no end");
        }
        Ok(tail)
    }

    /// Statements are not for plugins.
    fn last_record(&self, tail: &[u8]) -> io::Result<Option<Vec<u8>>> {
        let lines = tail.split(|byte| *byte == b'\n').rev().skip(1);
        let last = lines.into_iter().find(|line| !is_statement(line)).map(<[u8]>::to_vec);
        match (last, &self.turn) {
            (Some(last), _) => Ok(Some(last)),
            (None, Some(turn)) => turn.last(),
            (None, None) if self.records == 0 => Ok(None),
            (None, None) => damaged(format!(
                "{} was just begun, and its receipts, which have the record before it, are gone: bring them back",
                self.path.display()
            )),
        }
    }

    fn note(&mut self, line: &Line) -> io::Result<()> {
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        self.lines += 1;
        self.noted += text.len() as u64;
        self.sidecar.write_all(&text)
    }

    /// Durable when it returns. The files are in place: the caller asked. After an error the book can't be trusted: open it anew, with a cut.
    pub fn append(
        &mut self,
        plugin: &str,
        marks: &[Mark],
        data: &[u8],
        records: u64,
        decided_by: Option<Decider>,
    ) -> io::Result<Intent> {
        let intent = Intent {
            offset: self.bytes,
            bytes: data.len() as u64,
            records,
            sha256: hash(data),
            plugin: plugin.to_owned(),
            states: marks.iter().map(|mark| (mark.seq, mark.print)).collect(),
            decided_by,
        };
        self.note(&Line::Intent(intent.clone()))?;
        self.sidecar.sync_data()?;
        self.data.write_all(data)?;
        self.data.sync_data()?;
        if let Some(tally) = self.tally.as_mut().filter(|_| records > 0) {
            let lines = data.split_inclusive(|byte| *byte == b'\n');
            lines.for_each(|line| tally.record(&line[..line.len() - 1], self.now_ms));
        }
        Ok(intent)
    }

    /// The append counts. The line needs no sync: without it the append is found complete.
    pub fn keep(&mut self, intent: Intent, last: Vec<u8>) -> io::Result<()> {
        self.count(&intent);
        self.last = Some(last);
        self.applied(intent.plugin, intent.states);
        self.settle()
    }

    /// A recovered append whose transaction was committed. It is counted already.
    pub fn keep_doubted(&mut self, intent: Intent) -> io::Result<()> {
        self.applied(intent.plugin, intent.states);
        self.settle()
    }

    fn settle(&mut self) -> io::Result<()> {
        self.note(&Line::Settled { bytes: self.bytes, records: self.records })
    }

    pub fn receipts(&self, plugin: &str, above: Seq) -> Vec<Mark> {
        let own = self.receipts.iter().filter(|(of, _)| of == plugin);
        let marks = own.flat_map(|(_, states)| states).map(|(seq, print)| Mark { seq: *seq, print: *print });
        marks.filter(|mark| mark.seq > above).collect()
    }

    /// Drops what lies at or below the position. Everything settled is on disk when it returns, so
    /// that no other store's receipt is needed for it any more.
    pub fn forget(&mut self, plugin: &str, through: Seq) -> io::Result<()> {
        self.expect_in_place()?;
        self.receipts.retain(|(of, states)| of != plugin || states.iter().any(|(seq, _)| *seq > through));
        if self.lines < COMPACT_LINES.max(2 * self.receipts.len()) {
            return self.sidecar.sync_data();
        }
        self.compact()
    }

    /// Writes the receipts anew, from where the ledger stands.
    fn compact(&mut self) -> io::Result<()> {
        let path = self.sidecar_path.with_extension("receipts.new");
        let stands = match &self.turn {
            Some(turn) => Line::Turn(turn.clone()),
            None => Line::Settled { bytes: self.bytes, records: self.records },
        };
        let mut text = serde_json::to_vec(&stands)?;
        text.push(b'\n');
        for (plugin, states) in &self.receipts {
            serde_json::to_writer(
                &mut text,
                &Line::Receipt { plugin: plugin.clone(), states: states.clone() },
            )?;
            text.push(b'\n');
        }
        let mut options = OpenOptions::new();
        let mut file = files::open(&path, options.write(true).create(true).truncate(true).mode(0o600))?;
        file.write_all(&text)?;
        file.sync_all()?;
        std::fs::rename(&path, &self.sidecar_path)?;
        if let Some(folder) = self.sidecar_path.parent() {
            File::open(folder)?.sync_all()?;
        }
        self.sidecar = files::open(&self.sidecar_path, OpenOptions::new().read(true).append(true))?;
        self.lines = self.receipts.len() + 1;
        self.noted = text.len() as u64;
        Ok(())
    }
}

#[cfg(test)]
mod seal_tests;
#[cfg(test)]
mod tests;
