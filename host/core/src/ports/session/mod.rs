//! Sandbox → capability: the effects of one call, which commit together.

mod outcomes;

use std::collections::HashSet;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use thiserror::Error;

use super::{CallPause, KvWrite, KvWrites, StateDelivery};
use crate::state::{ObjectRef, Seq, State};
pub use outcomes::*;

/// A refusal or failure of one capability call, as the plugin sees it. It contains no addresses and no
/// secrets.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum GrantError {
    #[error("denied: {0}")]
    Denied(String),
    #[error("invalid: {0}")]
    Invalid(String),
    #[error("unavailable: {0}")]
    Unavailable(String),
    #[error("too large: {0}")]
    TooLarge(String),
    #[error("timed out: {0}")]
    Timeout(String),
    #[error("rate limited, {after_ms} ms")]
    RateLimited { after_ms: u64 },
    #[error("{0}")]
    Other(String),
}

#[derive(Clone, Debug, PartialEq)]
pub enum SqlValue {
    Null,
    Boolean(bool),
    Integer(i64),
    Float(f64),
    Text(String),
    Blob(Vec<u8>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SqlDialect {
    Sqlite,
    Postgres,
    Mysql,
}

/// The treatment of a row whose key already exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OnConflict {
    /// Keep the existing row.
    Ignore,
    /// Replace the existing row if the new row is greater in `newer`, an integer column.
    ReplaceOlder { newer: String },
}

/// Rows for one table. The database writes them in its fastest form.
#[derive(Clone, Debug, PartialEq)]
pub struct TableWrite {
    pub table: String,
    pub columns: Vec<String>,
    /// The columns of the table's unique key.
    pub key: Vec<String>,
    pub on_conflict: OnConflict,
    pub rows: Vec<Vec<SqlValue>>,
}

/// Writes the rows of a [`TableWrite`] to a second table as well.
#[derive(Clone, Debug, PartialEq)]
pub struct TableCopy {
    pub table: String,
    /// Some of the columns of the write.
    pub columns: Vec<String>,
    pub key: Vec<String>,
    pub on_conflict: OnConflict,
    /// Indexes of rows that only the first table gets.
    pub without: Vec<usize>,
}

impl TableCopy {
    /// The rows that this table also gets, in order.
    pub fn copied_rows<'w>(&self, write: &'w TableWrite) -> impl Iterator<Item = &'w Vec<SqlValue>> {
        let without: HashSet<usize> = self.without.iter().copied().collect();
        write.rows.iter().enumerate().filter(move |(place, _)| !without.contains(place)).map(|(_, row)| row)
    }

    /// The indexes of its columns among the columns of the write.
    pub fn column_indexes(&self, write: &TableWrite) -> Result<Vec<usize>, GrantError> {
        let rows = write.rows.len();
        if let Some(place) = self.without.iter().find(|place| **place >= rows) {
            return Err(GrantError::Invalid(format!(
                "the copy leaves out row {place}, but the write has {rows} rows"
            )));
        }
        let place = |name: &String| {
            let missing = || {
                GrantError::Invalid(format!(
                    "the copy names the column `{name}`, which the write does not have"
                ))
            };
            write.columns.iter().position(|column| column == name).ok_or_else(missing)
        };
        self.columns.iter().map(place).collect()
    }

    /// The copy as a separate write, for a database without a shorter way.
    pub fn into_write(self, write: &TableWrite) -> Result<TableWrite, GrantError> {
        let places = self.column_indexes(write)?;
        let of = |row: &Vec<SqlValue>| places.iter().filter_map(|place| row.get(*place).cloned()).collect();
        let rows = self.copied_rows(write).map(of).collect();
        let Self { table, columns, key, on_conflict, .. } = self;
        Ok(TableWrite { table, columns, key, on_conflict, rows })
    }
}

#[derive(Clone, Debug, Default)]
pub struct HttpRequest {
    pub method: String,
    pub path: String,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

#[derive(Clone, Debug, Default)]
pub struct HttpResponse {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

/// A message to people, as a plugin writes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MailMessage {
    pub to: Vec<String>,
    pub subject: String,
    pub text: String,
    pub html: Option<String>,
    /// Equal for each repeat of the same message.
    pub id: String,
}

/// A recipient that the mail server refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MailRefusal {
    pub recipient: String,
    /// Whether a retry is pointless.
    pub is_permanent: bool,
    pub reason: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogLevel {
    Trace,
    Debug,
    Info,
    Warn,
    Error,
}

/// The grants of one plugin. `open` begins the effects of one call.
#[async_trait]
pub trait GrantProvider: Send + Sync {
    /// The plugin's own configuration, as JSON.
    fn plugin_config(&self) -> &str;
    async fn open(&self, batch: &[StateDelivery]) -> Result<Box<dyn EffectSession>, GrantError>;
    /// From now on calls are made by this version of the plugin, identified by its digest. The grants stay.
    fn begin_version(&self, _version: &str) {}
    /// Whether the plugin must pause before its next call.
    fn pause_before_call(&self) -> Option<CallPause> {
        None
    }
}

/// A state as one plugin may see it.
#[derive(Clone, Debug)]
pub struct ShownState {
    pub state: Arc<State>,
    /// The SHA-256 of its document as the API server sent it, for a plugin that is granted this digest.
    pub document_digest: Option<String>,
    /// False if the plugin is known to have no subscription to the owner's kind.
    pub has_subscribed_owner: bool,
}

/// The effects of one call. They are committed together with the receipt, or not at all.
#[async_trait]
pub trait EffectSession: Send {
    /// A state of this call as the plugin may see it.
    async fn show_state(&mut self, state: &Arc<State>) -> Result<ShownState, GrantError>;

    /// States of this batch that already have a receipt. They are done and are not delivered again.
    fn applied_states(&self) -> &HashSet<Seq>;

    fn sql_dialect(&self, database: &str) -> Result<SqlDialect, GrantError>;
    async fn sql_execute(
        &mut self,
        database: &str,
        statement: &str,
        rows: Vec<Vec<SqlValue>>,
    ) -> Result<u64, GrantError>;
    /// With a copy, the session writes both tables or neither.
    async fn sql_write(
        &mut self,
        database: &str,
        write: TableWrite,
        copy: Option<TableCopy>,
    ) -> Result<u64, GrantError>;
    async fn sql_query(
        &mut self,
        database: &str,
        statement: &str,
        params: Vec<SqlValue>,
    ) -> Result<Vec<Vec<SqlValue>>, GrantError>;

    async fn http_send(
        &mut self,
        destination: &str,
        request: HttpRequest,
    ) -> Result<HttpResponse, GrantError>;

    /// Sends the message to all recipients except those that it returns.
    async fn mail_send(&mut self, server: &str, message: MailMessage)
    -> Result<Vec<MailRefusal>, GrantError>;

    fn kv_get(&self, key: &str) -> Option<Vec<u8>>;
    fn kv_set(&mut self, key: &str, value: Vec<u8>) -> Result<(), GrantError>;
    fn kv_delete(&mut self, key: &str) -> Result<(), GrantError>;
    fn kv_keys(&self, prefix: &str, limit: usize) -> Vec<String>;

    async fn ledger_append(&mut self, ledger: &str, records: Vec<Vec<u8>>) -> Result<u64, GrantError>;
    async fn ledger_last(&mut self, ledger: &str) -> Result<Option<Vec<u8>>, GrantError>;
    fn ledger_sign(&self, key: &str, message: &[u8]) -> Result<Vec<u8>, GrantError>;
    /// Stores a person's name beside the ledger. Returns the digest that replaces it in records.
    async fn conceal_name(&mut self, ledger: &str, name: String) -> Result<String, GrantError>;

    /// The document of a state of this call. Other states are refused.
    async fn document_of_state(&mut self, seq: Seq) -> Result<Option<Bytes>, GrantError>;
    async fn document_before(&mut self, seq: Seq) -> Result<Option<Bytes>, GrantError>;

    async fn lister_get(
        &mut self,
        source: &str,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Bytes>, GrantError>;
    fn lister_list(
        &self,
        source: &str,
        index: &str,
        key: &str,
        limit: usize,
    ) -> Result<Vec<ObjectRef>, GrantError>;

    /// Why an object of a granted source ended badly.
    async fn find_outcome(&mut self, source: &str, uid: &str) -> Result<OutcomeFinding, GrantError>;
    /// Outcomes of all granted sources that changed after a place, as an earlier answer names it.
    async fn outcome_changes(&mut self, after: &str, limit: usize) -> Result<OutcomePage, GrantError>;

    fn log_message(&self, level: LogLevel, message: &str, fields: &[(String, String)]);
    fn now_ms(&self) -> u64;

    /// States of this call whose request may have been sent and is not sent again, each with the reason. They
    /// become dead letters, whatever the plugin's verdict.
    fn in_doubt(&self) -> Vec<(Seq, String)> {
        Vec::new()
    }

    /// The writes to save with these verdicts if the call itself is rolled back.
    fn writes_if_undone(&mut self, _seqs: &[Seq]) -> Vec<KvWrite> {
        Vec::new()
    }

    /// Commits the writes, with a receipt for the states in `done`. The call's states are all done.
    async fn commit_effects(self: Box<Self>, done: &[Seq]) -> Result<KvWrites, GrantError>;
    /// Rolls the call back, because not all of its states are done. `settled` are the states whose verdict
    /// counts. It fails if a commit would have failed before it began, so that no state is blamed for a
    /// database that is down.
    async fn undo_effects(self: Box<Self>, settled: &[Seq]) -> Result<KvWrites, GrantError>;
    async fn roll_back_effects(self: Box<Self>);
}
