//! The receipts beside a ledger: how they are read and written. The format is described in [`super`].

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;

use kubewitness_core::intents::prints::IdPrint;
use kubewitness_core::{Seq, files};
use serde::{Deserialize, Serialize};

use super::rotate::FileTurn;
use super::{LedgerBook, damaged_error};
use crate::receipts::ReceiptMark;

/// Lines of receipts before they are compacted: some megabytes, read in milliseconds.
pub const COMPACT_LINES: usize = 4096;
/// The content of a ledger's receipts before its first record.
pub const NO_RECORDS: &str = "{\"settled\":{\"bytes\":0,\"records\":0}}\n";

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReceiptLine {
    Intent(AppendIntent),
    Settled { bytes: u64, records: u64 },
    Receipt { plugin: String, states: Vec<(Seq, IdPrint)> },
    Turn(FileTurn),
}

/// The intent of one append, noted before it writes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AppendIntent {
    pub offset: u64,
    pub bytes: u64,
    pub records: u64,
    pub sha256: String,
    pub plugin: String,
    pub states: Vec<(Seq, IdPrint)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decided_by: Option<DecidingTransaction>,
}

/// The transaction whose commit decides whether an append counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DecidingTransaction {
    pub database: String,
    pub token: String,
}

impl AppendIntent {
    pub(super) fn end_offset(&self) -> u64 {
        self.offset + self.bytes
    }
}

impl LedgerBook {
    /// Reads the receipts. Returns the last intent if it is not settled.
    pub(super) fn replay_receipts(&mut self) -> io::Result<Option<AppendIntent>> {
        let mut reader = BufReader::new(self.sidecar.try_clone()?);
        reader.seek(SeekFrom::Start(0))?;
        let mut whole = 0;
        let mut pending: Option<AppendIntent> = None;
        let mut text = Vec::new();
        while reader.read_until(b'\n', &mut text)? > 0 {
            // The last line can be torn: its sync did not complete, and no append began after it.
            let Some(line) = text.strip_suffix(b"\n").filter(|line| !line.contains(&0)) else { break };
            let number = self.lines + 1;
            let Ok(line) = serde_json::from_slice::<ReceiptLine>(line) else {
                return damaged_error(format!(
                    "line {number} of {} can't be read",
                    self.sidecar_path.display()
                ));
            };
            if !self.apply_line(line, &mut pending) {
                return damaged_error(format!(
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

    fn apply_line(&mut self, line: ReceiptLine, pending: &mut Option<AppendIntent>) -> bool {
        match line {
            ReceiptLine::Receipt { plugin, states } => self.receipts.push((plugin, states)),
            ReceiptLine::Turn(turn) => {
                let is_first = self.lines == 0;
                self.note_rotation(turn);
                return is_first;
            }
            ReceiptLine::Intent(intent) => {
                // An intent at the same offset as the previous one follows an undo.
                if let Some(before) = pending.take().filter(|before| before.offset != intent.offset) {
                    self.count(&before);
                    self.note_applied(before.plugin, before.states);
                }
                if intent.offset != self.bytes {
                    return false;
                }
                *pending = Some(intent);
            }
            ReceiptLine::Settled { bytes, records } => {
                if let Some(before) = pending.take() {
                    self.count(&before);
                    self.note_applied(before.plugin, before.states);
                    return (self.bytes, self.records) == (bytes, records);
                }
                (self.bytes, self.records) = (bytes, records);
            }
        }
        true
    }

    pub(super) fn note_line(&mut self, line: &ReceiptLine) -> io::Result<()> {
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        self.lines += 1;
        self.noted += text.len() as u64;
        self.sidecar.write_all(&text)
    }

    pub(super) fn note_settled(&mut self) -> io::Result<()> {
        self.note_line(&ReceiptLine::Settled { bytes: self.bytes, records: self.records })
    }

    pub fn receipts_of_plugin(&self, plugin: &str) -> Vec<ReceiptMark> {
        let own = self.receipts.iter().filter(|(of, _)| of == plugin);
        own.flat_map(|(_, states)| states)
            .map(|(seq, print)| ReceiptMark { seq: *seq, print: *print })
            .collect()
    }

    /// Drops receipts at or before the position, but for those of the newest states that were applied: so many of them. When
    /// it returns, everything settled is on disk, so that no other store's receipt is needed for it any more.
    pub fn forget_receipts(&mut self, plugin: &str, through: Seq, newest: usize) -> io::Result<()> {
        self.expect_in_place()?;
        let states_of =
            |(of, states): &(String, Vec<(Seq, IdPrint)>)| if of == plugin { states.len() } else { 0 };
        let mut older = self.receipts.iter().map(states_of).sum::<usize>().saturating_sub(newest);
        self.receipts.retain(|receipt| {
            let (of, states) = receipt;
            let is_older = older > 0;
            older = older.saturating_sub(states_of(receipt));
            of != plugin || !is_older || states.iter().any(|(seq, _)| *seq > through)
        });
        if self.lines < COMPACT_LINES.max(2 * self.receipts.len()) {
            return self.sidecar.sync_data();
        }
        self.compact_receipts()
    }

    /// Rewrites the receipts, beginning with the present state of the ledger.
    pub(super) fn compact_receipts(&mut self) -> io::Result<()> {
        let path = self.sidecar_path.with_extension("receipts.new");
        let stands = match &self.turn {
            Some(turn) => ReceiptLine::Turn(turn.clone()),
            None => ReceiptLine::Settled { bytes: self.bytes, records: self.records },
        };
        let mut text = serde_json::to_vec(&stands)?;
        text.push(b'\n');
        for (plugin, states) in &self.receipts {
            serde_json::to_writer(
                &mut text,
                &ReceiptLine::Receipt { plugin: plugin.clone(), states: states.clone() },
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
