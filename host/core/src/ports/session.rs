//! Sandbox → capability: what one call may do, and is kept together.

use std::collections::HashSet;

use async_trait::async_trait;
use bytes::Bytes;
use thiserror::Error;

use super::{Delivery, KvWrite};
use crate::state::{ObjectRef, Seq};

/// A refusal or fault of one capability call, as a plugin may see it. No addresses or secrets.
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    Sqlite,
    Postgres,
    Mysql,
}

/// What happens to a row whose key is already there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OnConflict {
    /// The row that is there stays.
    Ignore,
    /// The row is replaced where `newer` (an integer column) is greater than what is there.
    ReplaceOlder { newer: String },
}

/// Rows for one table, written in the fastest form that the database has.
#[derive(Clone, Debug, PartialEq)]
pub struct TableWrite {
    pub table: String,
    pub columns: Vec<String>,
    /// The columns of the table's unique key.
    pub key: Vec<String>,
    pub on_conflict: OnConflict,
    pub rows: Vec<Vec<SqlValue>>,
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogLevel {
    Trace,
    Debug,
    Info,
    Warn,
    Error,
}

/// What one plugin was granted. `open` begins the effects of one call.
#[async_trait]
pub trait Grants: Send + Sync {
    /// The plugin's own configuration, as JSON.
    fn config(&self) -> &str;
    async fn open(&self, batch: &[Delivery]) -> Result<Box<dyn Session>, GrantError>;
}

/// The effects of one call: committed together with the receipt, or not at all.
#[async_trait]
pub trait Session: Send {
    /// States of this batch whose receipt is already there: done, not to be handed over again.
    fn applied(&self) -> &HashSet<Seq>;

    fn sql_dialect(&self, database: &str) -> Result<Dialect, GrantError>;
    async fn sql_execute(
        &mut self,
        database: &str,
        statement: &str,
        rows: Vec<Vec<SqlValue>>,
    ) -> Result<u64, GrantError>;
    async fn sql_write(&mut self, database: &str, write: TableWrite) -> Result<u64, GrantError>;
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

    fn kv_get(&self, key: &str) -> Option<Vec<u8>>;
    fn kv_set(&mut self, key: &str, value: Vec<u8>) -> Result<(), GrantError>;
    fn kv_delete(&mut self, key: &str) -> Result<(), GrantError>;
    fn kv_keys(&self, prefix: &str, limit: usize) -> Vec<String>;

    async fn ledger_append(&mut self, ledger: &str, records: Vec<Vec<u8>>) -> Result<u64, GrantError>;
    async fn ledger_last(&mut self, ledger: &str) -> Result<Option<Vec<u8>>, GrantError>;
    fn ledger_sign(&self, key: &str, message: &[u8]) -> Result<Vec<u8>, GrantError>;

    /// Documents of the states of this call only.
    async fn document(&mut self, seq: Seq) -> Result<Option<Bytes>, GrantError>;
    async fn document_before(&mut self, seq: Seq) -> Result<Option<Bytes>, GrantError>;

    fn lister_get(&self, source: &str, namespace: &str, name: &str) -> Result<Option<Bytes>, GrantError>;
    fn lister_list(
        &self,
        source: &str,
        index: &str,
        key: &str,
        limit: usize,
    ) -> Result<Vec<ObjectRef>, GrantError>;

    fn log(&self, level: LogLevel, message: &str, fields: &[(String, String)]);
    fn now_ms(&self) -> u64;

    /// Keeps what was written, with the receipt that `done` were applied.
    async fn commit(self: Box<Self>, done: &[Seq]) -> Result<Vec<KvWrite>, GrantError>;
    async fn rollback(self: Box<Self>);
}
