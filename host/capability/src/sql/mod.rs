//! `sql`: databases that an operator granted. What one call writes is one transaction, and the
//! receipt of its states commits with it.
//!
//! [`guard`] reads a plugin's statements, [`write`] builds the host's own, and each database has a
//! module behind [`Engine`] and [`Transaction`]; those on servers share [`remote`]. [`claims`] is what a
//! receipt tells of its rows, and [`proof`] looks for them.

pub mod claims;
mod columns;
pub mod guard;
pub mod mysql;
pub mod postgres;
pub mod proof;
pub mod remote;
pub mod sqlite;
pub mod write;

use std::io;
use std::sync::Arc;

use async_trait::async_trait;
use futures::{Stream, TryStreamExt};
use kubewitness_core::Seq;
use kubewitness_core::ports::{Dialect, GrantError, SqlValue, TableCopy, TableWrite};

use self::claims::Claims;
use crate::applied::Mark;

/// The proof, kept with the rows, that these states were applied.
#[derive(Clone, Debug)]
pub struct Receipt {
    pub plugin: String,
    /// In order of their positions.
    pub marks: Vec<Mark>,
    /// Names this very transaction, so that its fate can be looked up: `PLUGIN.RANDOM`.
    pub token: String,
    pub at_ms: u64,
    /// What is told of the rows that were written with it.
    pub claims: Claims,
}

/// One database, shared by the plugins that were granted it.
#[async_trait]
pub trait Engine: Send + Sync {
    fn dialect(&self) -> Dialect;
    /// Whether it is a server, which may be away for a while.
    fn is_remote(&self) -> bool {
        false
    }
    /// Waits for the writer or a connection, within a bound, and begins.
    async fn begin(&self, plugin: &str) -> Result<Box<dyn Transaction>, GrantError>;
    /// Every receipt of this plugin above the position.
    async fn receipts(&self, plugin: &str, above: Seq) -> Result<Vec<Mark>, GrantError>;
    /// Drops receipts that lie at or below the position.
    async fn forget(&self, plugin: &str, through: Seq) -> Result<(), GrantError>;
    /// Whether the transaction with this token was committed.
    async fn committed(&self, token: &str) -> Result<bool, GrantError>;
}

/// What became of a transaction that could not be committed.
#[derive(Debug)]
pub enum CommitError {
    /// Nothing of it is there.
    RolledBack(GrantError),
    /// It may be there or not; [`Engine::committed`] will know once the database answers again.
    InDoubt(GrantError),
}

#[async_trait]
pub trait Transaction: Send {
    async fn execute(&mut self, statement: &str, rows: Vec<Vec<SqlValue>>) -> Result<u64, GrantError>;
    /// Both or neither, where the rows are for a second table as well.
    async fn write(&mut self, write: TableWrite, copy: Option<TableCopy>) -> Result<u64, GrantError>;
    async fn query(
        &mut self,
        statement: &str,
        params: Vec<SqlValue>,
    ) -> Result<Vec<Vec<SqlValue>>, GrantError>;
    /// Whether there is anything to commit.
    fn wrote(&self) -> bool;
    /// Refuses where an earlier fault has already undone the transaction.
    fn intact(&self) -> Result<(), GrantError>;
    async fn commit(self: Box<Self>, receipt: &Receipt) -> Result<(), CommitError>;
    async fn rollback(self: Box<Self>);
}

pub type Shared = Arc<dyn Engine>;

/// Bytes of values that one call may bind or be given.
pub(crate) const VALUE_BYTES: usize = 16 * 1024 * 1024;

const QUERY_ROWS: usize = 10_000;

pub(crate) fn size(values: &[SqlValue]) -> usize {
    let of = |value: &SqlValue| match value {
        SqlValue::Text(text) => text.len(),
        SqlValue::Blob(bytes) => bytes.len(),
        SqlValue::Null | SqlValue::Boolean(_) | SqlValue::Integer(_) | SqlValue::Float(_) => 8,
    };
    values.iter().map(of).sum()
}

fn fits_arity(arity: usize, row: &[SqlValue]) -> Result<(), GrantError> {
    if row.len() == arity {
        return Ok(());
    }
    Err(GrantError::Invalid(format!("the statement takes {arity} parameters and was given {}", row.len())))
}

fn check_size(rows: &[Vec<SqlValue>]) -> Result<(), GrantError> {
    let bytes: usize = rows.iter().map(|row| size(row)).sum();
    if bytes > VALUE_BYTES {
        return Err(GrantError::TooLarge(format!("{bytes} bytes of values, the most is {VALUE_BYTES}")));
    }
    Ok(())
}

/// The rows of an answer, as long as they are no more than a plugin may be given.
async fn bounded<E>(
    rows: impl Stream<Item = Result<Vec<SqlValue>, E>>,
    own: impl FnOnce(GrantError) -> E,
) -> Result<Vec<Vec<SqlValue>>, E> {
    let mut stream = std::pin::pin!(rows);
    let mut rows = Vec::new();
    let mut bytes = 0;
    while let Some(row) = stream.try_next().await? {
        bytes += size(&row);
        if rows.len() >= QUERY_ROWS || bytes > VALUE_BYTES {
            return Err(own(GrantError::TooLarge(format!(
                "a query gives at most {QUERY_ROWS} rows and {VALUE_BYTES} bytes"
            ))));
        }
        rows.push(row);
    }
    Ok(rows)
}

/// What an operator is told, and may do while everything runs: the address is read for each connection.
const REFUSED: &str = "it refuses the user or the password: correct them in what its `urlFrom` names";
const NO_DATABASE: &str = "it has no database of that name: make it, or correct what its `urlFrom` names";
const NO_RIGHT: &str =
    "its user has no right on that database: grant it, or correct what its `urlFrom` names";

const UNREADABLE: &str = "the secret is no readable address: each `@`, `:` and `/` of its user and its password \
    is written as %40, %3A and %2F";

/// Why there is no connection, without an address.
fn connection_reason(kind: io::ErrorKind) -> String {
    match kind {
        io::ErrorKind::ConnectionRefused => "nobody listens at its address".into(),
        io::ErrorKind::ConnectionReset | io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe => {
            "it closes connections".into()
        }
        kind => kind.to_string(),
    }
}

#[cfg(test)]
mod conformance;
