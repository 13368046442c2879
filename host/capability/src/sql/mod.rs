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

use std::sync::Arc;

use async_trait::async_trait;
use kubewitness_core::Seq;
use kubewitness_core::config::SqlAccess;
use kubewitness_core::ports::{GrantError, SqlDialect, SqlValue, TableCopy, TableWrite};

use self::receipt::StoredReceipt;
use crate::receipts::ReceiptMark;

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
    /// Every receipt of this plugin.
    async fn receipts_of_plugin(&self, plugin: &str) -> Result<Vec<ReceiptMark>, GrantError>;
    /// Drops receipts that lie at or below the position.
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

/// Why a statement was not run, or may not have been.
#[derive(Clone, Debug, PartialEq)]
pub enum SqlFault {
    /// It alone: what the transaction did before is still there.
    Own(GrantError),
    /// The transaction can't go on: the server undid it, or doesn't answer.
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
    /// Both or neither, where the rows are for a second table as well.
    async fn write(&mut self, write: TableWrite, copy: Option<TableCopy>) -> Result<u64, GrantError>;
    async fn query(
        &mut self,
        statement: &str,
        params: Vec<SqlValue>,
    ) -> Result<Vec<Vec<SqlValue>>, GrantError>;
    /// Whether there is anything to commit. A transaction that only reads has nothing.
    fn has_writes(&self) -> bool;
    /// Refuses where an earlier fault has already undone the transaction.
    fn check_intact(&self) -> Result<(), GrantError>;
    async fn commit_with_receipt(self: Box<Self>, receipt: &StoredReceipt) -> Result<(), CommitError>;
    async fn roll_back(self: Box<Self>);
}

pub type SharedEngine = Arc<dyn DatabaseEngine>;

#[cfg(test)]
mod conformance;
#[cfg(test)]
mod generated;
