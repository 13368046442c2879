//! Counts and hashes the lines of a ledger's open file.

use serde::{Deserialize, Serialize};

use super::{LedgerStatement, MerkleTree, NO_FILE, StatementKind, sha256};
use crate::model::calendar;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerTally {
    /// Known after the controller's first statement.
    ledger: Option<String>,
    file: u64,
    previous: String,
    tree: MerkleTree,
    /// In this file.
    records: u64,
    /// In the files before.
    records_before: u64,
    began_ms: u64,
    /// The number of records after the newest root, and when the first of them came.
    waiting: Option<(u64, u64)>,
    /// Lines that existed before the controller took over, unverified. The next statement reports their
    /// number.
    adopted: Option<u64>,
}

/// The progress of a signed ledger. The journal stores it, so that a rewritten file is not signed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerProgress {
    pub ledger: String,
    pub file: u64,
    /// The lines of this file, and the root over them.
    pub lines: u64,
    pub root: String,
}

impl LedgerTally {
    /// The tally of a ledger that has no statement yet.
    pub fn before_first_statement(now_ms: u64) -> Self {
        Self {
            ledger: None,
            file: 1,
            previous: NO_FILE.to_owned(),
            tree: MerkleTree::default(),
            records: 0,
            records_before: 0,
            began_ms: now_ms,
            waiting: None,
            adopted: None,
        }
    }

    /// Counts the next line of a file, and reports a fault in it.
    pub fn count_line(&mut self, line: &[u8], now_ms: u64) -> Result<(), &'static str> {
        if !super::is_statement(line) {
            self.count_record(line, now_ms);
            return Ok(());
        }
        let statement = LedgerStatement::parse(line).ok_or("is a statement that this version can't read")?;
        let at_ms = calendar::parse(&statement.at).ok_or("is a statement without a time")?;
        match (statement.kind, self.tree.count_leaves()) {
            (StatementKind::Head, 0) => {
                self.file = statement.file;
                self.previous = statement.previous;
                self.records_before = statement.records;
                self.began_ms = at_ms;
            }
            (StatementKind::Head, _) => return Err("begins another file"),
            _ if statement.root != Some(hex::encode(self.tree.root())) => {
                return Err("has another root than the lines before it");
            }
            _ if self.ledger.as_ref().is_some_and(|ledger| *ledger != statement.ledger) => {
                return Err("is of another ledger");
            }
            _ => {}
        }
        if self.ledger.is_none() && self.tree.count_leaves() > 0 {
            self.began_ms = at_ms;
        }
        self.ledger = Some(statement.ledger);
        self.count_statement(line);
        Ok(())
    }

    pub fn count_record(&mut self, line: &[u8], now_ms: u64) {
        self.tree.push(line);
        self.records += 1;
        let (records, since_ms) = self.waiting.unwrap_or((0, now_ms));
        self.waiting = Some((records + 1, since_ms));
    }

    /// Counts a statement that was written.
    pub fn count_statement(&mut self, line: &[u8]) {
        self.tree.push(line);
        (self.waiting, self.adopted) = (None, None);
    }

    /// Adopts existing lines, except those that the journal already knows.
    pub fn adopt_existing_lines(&mut self, reached: Option<&LedgerProgress>) {
        let known = reached.filter(|reached| reached.file == self.file).map_or(0, |reached| reached.lines);
        self.adopted = self.tree.count_leaves().checked_sub(known).filter(|lines| *lines > 0);
    }

    /// `None` before the first statement.
    pub fn progress_reached(&self) -> Option<LedgerProgress> {
        let ledger = self.ledger.clone()?;
        let (file, lines, root) = (self.file, self.tree.count_leaves(), hex::encode(self.tree.root()));
        Some(LedgerProgress { ledger, file, lines, root })
    }

    /// The next statement. `fresh` becomes the ledger's id if it has none yet.
    pub fn next_statement(
        &self,
        kind: StatementKind,
        fresh: &str,
        now_ms: u64,
        key: Option<String>,
    ) -> LedgerStatement {
        LedgerStatement {
            kind,
            ledger: self.ledger.clone().unwrap_or_else(|| fresh.to_owned()),
            file: self.file,
            previous: self.previous.clone(),
            lines: Some(self.tree.count_leaves()),
            records: self.records_before + self.records,
            adopted: self.adopted,
            root: Some(hex::encode(self.tree.root())),
            at: calendar::format_rfc3339(now_ms),
            key,
        }
    }

    pub fn has_records(&self) -> bool {
        self.records > 0
    }

    pub fn began_ms(&self) -> u64 {
        self.began_ms
    }

    pub fn unsigned_records(&self) -> Option<(u64, u64)> {
        self.waiting
    }
}

impl LedgerStatement {
    /// The head of the file after this seal; `line` is the seal as written.
    pub fn head_after(&self, line: &[u8]) -> Self {
        Self {
            kind: StatementKind::Head,
            ledger: self.ledger.clone(),
            file: self.file + 1,
            previous: hex::encode(sha256(line)),
            lines: None,
            records: self.records,
            adopted: None,
            root: None,
            at: self.at.clone(),
            key: None,
        }
    }
}
