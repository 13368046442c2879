//! Writes statements into the open file of a ledger.

use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};

use kubewitness_core::ledger::{
    DueWrite, LedgerProgress, LedgerSchedule, LedgerStatement, LedgerTally, StatementKind,
};
use ring::rand::{SecureRandom, SystemRandom};

use super::{AppendIntent, LedgerBook, RECORD_BYTES, damaged_error};
use crate::secrets::signing_keys::SigningKey;

/// A statement that is on disk. It counts once [`LedgerBook::settle_statement`] has recorded it.
pub struct WrittenStatement {
    pub statement: LedgerStatement,
    pub line: Vec<u8>,
    intent: AppendIntent,
    tally: LedgerTally,
}

impl LedgerBook {
    /// The tally in memory shows that no statement is due. Without a tally, the answer is `false`: the file is not read.
    pub fn is_quiet(&self, schedule: &LedgerSchedule, now_ms: u64) -> bool {
        let due = |tally: &LedgerTally| schedule.due_write(tally, self.bytes, now_ms);
        self.tally.as_ref().is_some_and(|tally| due(tally) == DueWrite::Nothing)
    }

    /// Writes the statement that is due, without counting it: if the caller has given up waiting, it is cut
    /// off again. After an error the book can't be trusted: open it again with a cut.
    pub fn write_due_statement(
        &mut self,
        schedule: &LedgerSchedule,
        key: Option<&SigningKey>,
    ) -> io::Result<Option<WrittenStatement>> {
        let tally = match self.tally.take() {
            Some(tally) => tally,
            None => self.count_lines(key.is_some())?,
        };
        let kind = match schedule.due_write(&tally, self.bytes, self.now_ms) {
            DueWrite::Nothing => {
                self.tally = Some(tally);
                return Ok(None);
            }
            DueWrite::Root => StatementKind::Root,
            DueWrite::Seal => StatementKind::Seal,
        };
        let statement = tally.next_statement(kind, &fresh_id()?, self.now_ms, key.map(SigningKey::id));
        let line = match key {
            Some(key) => statement.encode_line(Some(&|text| key.sign_statement(text))),
            None => statement.encode_line(None),
        }?;
        let intent = self.append_lines("", &[], &[&line, b"\n".as_slice()].concat(), 0, None)?;
        Ok(Some(WrittenStatement { statement, line, intent, tally }))
    }

    /// From here on the statement counts, and may not be cut off any more.
    pub fn settle_statement(&mut self, written: WrittenStatement) -> io::Result<(LedgerStatement, Vec<u8>)> {
        let WrittenStatement { statement, line, intent, mut tally } = written;
        self.count(&intent);
        self.note_settled()?;
        // Parsed again from its text, so that exactly the file's content is counted.
        let wrong = |wrong| io::Error::other(format!("the statement that was written {wrong}"));
        tally.count_line(&line, self.now_ms).map_err(wrong)?;
        self.tally = Some(tally);
        Ok((statement, line))
    }

    /// The progress of the ledger, once a statement was written.
    pub fn reached_progress(&self) -> Option<LedgerProgress> {
        self.tally.as_ref().and_then(LedgerTally::progress_reached)
    }

    fn count_lines(&self, is_signed: bool) -> io::Result<LedgerTally> {
        let mut tally = LedgerTally::before_first_statement(self.now_ms);
        let mut file = &self.data;
        file.seek(SeekFrom::Start(0))?;
        let mut reader = BufReader::new(file).take(self.bytes);
        let (mut line, mut number) = (Vec::new(), 0);
        while reader.by_ref().take(RECORD_BYTES as u64 + 1).read_until(b'\n', &mut line)? > 0 {
            number += 1;
            let Some(text) = line.strip_suffix(b"\n") else {
                return damaged_error(format!("line {number} of {} has no end", self.path.display()));
            };
            if let Err(wrong) = tally.count_line(text, self.now_ms) {
                return damaged_error(format!(
                    "line {number} of {} {wrong}: somebody changed the file. Bring it back as it was",
                    self.path.display()
                ));
            }
            line.clear();
        }
        let is_new = self.reached.is_none() && tally.progress_reached().is_none();
        if is_signed && (self.is_adopted || is_new) {
            tally.adopt_existing_lines(self.reached.as_ref());
        }
        Ok(tally)
    }
}

/// The name of a ledger that has none yet.
fn fresh_id() -> io::Result<String> {
    let mut random = [0; 16];
    let filled = SystemRandom::new().fill(&mut random);
    filled.map_err(|_| io::Error::other("the machine has no randomness"))?;
    Ok(hex::encode(random))
}
