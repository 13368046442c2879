//! `sql`: databases that an operator granted. A state may be delivered more than once, and its rows must be
//! written once. So one transaction has everything that one call writes, and the receipt of its states
//! commits with it: after a crash, the receipt shows whether the rows exist.
//!
//! [`guard`] checks the statements of plugins, and [`write`] builds the controller's own. Each database has a
//! module behind [`DatabaseEngine`] and [`SqlTransaction`]; servers share [`servers`]. [`receipt`] is stored
//! with the rows, and [`proof`] compares it with them. Nothing here knows of other capabilities.

pub mod guard;
pub mod mysql;
pub mod postgres;
pub mod proof;
pub mod receipt;
pub mod servers;
pub mod sqlite;
mod values;
pub mod write;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use kubewitness_core::Seq;
use kubewitness_core::config::SqlAccess;
use kubewitness_core::intents::commits::{CommitHistory, NotedCommit};
use kubewitness_core::ports::{GrantError, SqlDialect, SqlValue, TableCopy, TableWrite};

use self::receipt::StoredReceipt;
use crate::receipts::{self, ReceiptMark};

/// Whether a transaction writes. The database itself keeps a `ReadOnly` one from writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransactionMode {
    ReadWrite,
    ReadOnly,
}

impl TransactionMode {
    pub fn for_access(access: SqlAccess) -> Self {
        match access {
            SqlAccess::Read => Self::ReadOnly,
            SqlAccess::Write | SqlAccess::Schema => Self::ReadWrite,
        }
    }
}

fn only_reads() -> GrantError {
    GrantError::Denied("the database is granted with `access: read`, and the statement writes".into())
}

/// One database, shared by the plugins that were granted it.
#[async_trait]
pub trait DatabaseEngine: Send + Sync {
    fn dialect(&self) -> SqlDialect;
    /// Whether it is a server, which may be away for a while.
    fn is_remote(&self) -> bool {
        false
    }
    /// Waits for the writer or a connection, within a bound, and begins.
    async fn begin_in(
        &self,
        mode: TransactionMode,
        plugin: &str,
    ) -> Result<Box<dyn SqlTransaction>, GrantError>;
    #[cfg(test)]
    async fn begin(&self, plugin: &str) -> Result<Box<dyn SqlTransaction>, GrantError> {
        self.begin_in(TransactionMode::ReadWrite, plugin).await
    }
    /// Everything that the database knows of this plugin, and which of these commits have no receipt.
    ///
    /// A server that takes no writes is refused, unless nothing is to be written there: it may be a replica that lacks
    /// commits, or it still catches up.
    async fn survey_receipts(
        &self,
        plugin: &str,
        mode: TransactionMode,
        expected: &[NotedCommit],
    ) -> Result<ReceiptSurvey, GrantError>;
    /// Uses no connection again that is open now: it may lead to a server that the address no longer names.
    fn forget_connections(&self) {}
    /// Every receipt of this plugin.
    #[cfg(test)]
    async fn receipts_of_plugin(&self, plugin: &str) -> Result<Vec<ReceiptMark>, GrantError> {
        Ok(self.survey_receipts(plugin, TransactionMode::ReadWrite, &[]).await?.marks)
    }
    /// Drops everything that is kept of the plugin up to the position.
    async fn forget_receipts(&self, plugin: &str, through: Seq) -> Result<(), GrantError>;
    /// Whether the transaction with this token was committed.
    async fn was_committed(&self, token: &str) -> Result<bool, GrantError>;
}

/// The outcome of a transaction that could not be committed.
#[derive(Debug)]
pub enum CommitError {
    /// Nothing of it is there.
    RolledBack(GrantError),
    /// It may be there or not; [`DatabaseEngine::was_committed`] will know once the database answers again.
    InDoubt(GrantError),
}

/// Why a statement was not executed, or may not have been.
#[derive(Clone, Debug, PartialEq)]
pub enum SqlFault {
    /// Only the statement failed: earlier effects of the transaction remain.
    Own(GrantError),
    /// The transaction can't continue: the server undid it, or does not answer.
    Lost(GrantError),
}

impl SqlFault {
    pub fn into_error(self) -> GrantError {
        match self {
            Self::Own(error) | Self::Lost(error) => error,
        }
    }
}

#[async_trait]
pub trait SqlTransaction: Send {
    async fn execute(&mut self, statement: &str, rows: Vec<Vec<SqlValue>>) -> Result<u64, GrantError>;
    /// Writes the rows. If a second table gets rows as well, both tables are written or neither.
    async fn write(&mut self, write: TableWrite, copy: Option<TableCopy>) -> Result<u64, GrantError>;
    async fn query(
        &mut self,
        statement: &str,
        params: Vec<SqlValue>,
    ) -> Result<Vec<Vec<SqlValue>>, GrantError>;
    /// Whether there is anything to commit. A transaction that only reads has nothing.
    fn has_writes(&self) -> bool;
    /// Fails if an earlier fault has already undone the transaction.
    fn check_intact(&self) -> Result<(), GrantError>;
    async fn commit_with_receipt(self: Box<Self>, receipt: &StoredReceipt) -> Result<(), CommitError>;
    async fn roll_back(self: Box<Self>);
    /// Identifies the connection among all of this process.
    fn connection_number(&self) -> u64;
    /// Removes receipts and commits that.
    async fn prune_receipts(self: Box<Self>, pruning: ReceiptPruning) -> Result<(), GrantError>;
    /// Whether the database has the transaction with this token.
    async fn has_token(&mut self, token: &str) -> Result<bool, GrantError>;
    /// As [`DatabaseEngine::survey_receipts`], within the transaction: other calls may commit meanwhile.
    async fn survey_receipts(
        &mut self,
        plugin: &str,
        expected: &[NotedCommit],
    ) -> Result<ReceiptSurvey, GrantError>;
}

/// The receipts of a plugin that are removed: those at or below a position that were committed before a moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceiptPruning {
    pub plugin: String,
    pub through: Seq,
    pub before_ms: u64,
    /// The database keeps it: see [`ReceiptSurvey::floor`].
    pub floor: Seq,
    /// The database keeps it, too: see [`CommitHistory::pruned_before_ms`].
    pub pruned_before_ms: u64,
}

/// A plugin's receipts in a database.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReceiptSurvey {
    pub marks: Vec<ReceiptMark>,
    /// Every state up to here is committed, and its receipt may have been removed. Every later commit has its receipt.
    /// It is kept beside the receipts, so a database that lost commits names the position as of the last one it has.
    pub floor: Option<Seq>,
    pub history: CommitHistory,
    /// The newest of the plugin's commits.
    pub newest: Option<NotedCommit>,
    pub newest_tick: Option<NotedCommit>,
    /// The tokens of the plugin's ticks.
    pub ticks: Vec<String>,
    /// Expected commits that have no receipt, whatever the reason.
    pub absent: Vec<NotedCommit>,
}

impl ReceiptSurvey {
    /// From rows of the plugin and of its floor.
    fn from_rows(
        rows: Vec<SurveyRow>,
        floors: Vec<FloorColumns>,
        expected: &[NotedCommit],
    ) -> Result<Self, GrantError> {
        let mut survey = Self::default();
        // Two processes may have written one each.
        for (last, at) in floors {
            survey.floor = survey.floor.max(u64::try_from(last).ok());
            let pruned = &mut survey.history.pruned_before_ms;
            *pruned = (*pruned).max(u64::try_from(at).unwrap_or_default());
        }
        let mut found = HashSet::new();
        for SurveyRow { states, token, at } in rows {
            let decoded = receipts::decode(&states);
            let damaged = || GrantError::Other("a receipt in the database is damaged".into());
            let (marks, at_ms) = (decoded.ok_or_else(damaged)?, u64::try_from(at).unwrap_or_default());
            let is_tick = receipt::is_tick(&token);
            survey.marks.extend(marks);
            if expected.iter().any(|commit| commit.token == token) {
                found.insert(token.clone());
            }
            let commit = NotedCommit { token, at_ms, is_tick };
            let is_newer =
                |newest: &Option<NotedCommit>| newest.as_ref().is_none_or(|known| known.at_ms < at_ms);
            if is_tick {
                survey.ticks.push(commit.token.clone());
                if is_newer(&survey.newest_tick) {
                    survey.history.newest_tick_ms = at_ms;
                    survey.newest_tick = Some(commit.clone());
                }
            }
            if is_newer(&survey.newest) {
                survey.newest = Some(commit);
            }
        }
        survey.absent = expected.iter().filter(|commit| !found.contains(&commit.token)).cloned().collect();
        Ok(survey)
    }

    /// Whether the database has lost this commit.
    pub fn has_lost(&self, commit: &NotedCommit) -> bool {
        self.absent.contains(commit) && !self.history.has_outlived(commit)
    }

    /// Whether the database has lost one of the expected commits.
    pub fn is_behind(&self) -> bool {
        self.absent.iter().any(|commit| self.has_lost(commit))
    }
}

/// One row of a survey.
#[derive(Debug)]
pub struct SurveyRow {
    states: Vec<u8>,
    token: String,
    at: i64,
}

/// The columns of a [`SurveyRow`].
pub type SurveyColumns = (Vec<u8>, String, i64);
/// The position and the moment in the row of a floor.
pub type FloorColumns = (i64, i64);

impl From<SurveyColumns> for SurveyRow {
    fn from((states, token, at): SurveyColumns) -> Self {
        Self { states, token, at }
    }
}

/// A number that no other connection of this process has.
pub fn next_connection_number() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed)
}

pub type SharedEngine = Arc<dyn DatabaseEngine>;

#[cfg(test)]
mod conformance;
#[cfg(test)]
mod generated;
