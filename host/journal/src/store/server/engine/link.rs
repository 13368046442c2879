//! One connection to a server: takes texts and values, returns rows. It knows no table of the journal.

use async_trait::async_trait;
use kubewitness_core::ports::JournalError;

use super::dialect::ServerDialect;
use super::table::{DeleteStatement, InsertStatement, RowsBatch, UpdateStatement};
use crate::store::rows::{StateKey, StoreResult};

/// The types of values in the journal's tables.
pub(crate) use crate::store::rows::checksum::SumCell as Value;

/// The values for the parameters of a statement.
#[derive(Clone, Debug)]
pub(crate) enum SqlParam {
    Int(i64),
    Bytes(Vec<u8>),
    /// For `@numbers`.
    Numbers(Vec<i64>),
    /// For `@pairs`.
    Pairs(Vec<(i64, Vec<u8>)>),
}

impl From<i64> for SqlParam {
    fn from(number: i64) -> Self {
        Self::Int(number)
    }
}

impl From<&str> for SqlParam {
    fn from(text: &str) -> Self {
        Self::Bytes(text.as_bytes().to_vec())
    }
}

impl From<&[i64]> for SqlParam {
    fn from(numbers: &[i64]) -> Self {
        Self::Numbers(numbers.to_vec())
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Self::Int(number)
    }
}

impl From<Option<i64>> for Value {
    fn from(number: Option<i64>) -> Self {
        number.map_or(Self::Null, Self::Int)
    }
}

impl From<Vec<u8>> for Value {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Bytes(bytes)
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Bytes(text.into_bytes())
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Bytes(text.as_bytes().to_vec())
    }
}

impl From<&StateKey> for Value {
    fn from(key: &StateKey) -> Self {
        Self::Bytes(key_bytes(key))
    }
}

impl From<Option<&StateKey>> for Value {
    fn from(key: Option<&StateKey>) -> Self {
        key.map_or(Self::Null, Self::from)
    }
}

const NUMBER: u8 = 1;
const TEXT: u8 = 2;

/// In the order of the numbers, so that new versions go to the end of the index.
pub(crate) fn key_bytes(key: &StateKey) -> Vec<u8> {
    match key {
        StateKey::Number(number) => {
            let ordered = (*number as u64) ^ (1 << 63);
            [&[NUMBER], &ordered.to_be_bytes()[..]].concat()
        }
        StateKey::Text(text) => [&[TEXT], text.as_bytes()].concat(),
    }
}

fn key_of(bytes: &[u8]) -> Option<StateKey> {
    match bytes.split_first()? {
        (&NUMBER, number) => {
            let ordered = u64::from_be_bytes(number.try_into().ok()?);
            Some(StateKey::Number((ordered ^ (1 << 63)) as i64))
        }
        (&TEXT, text) => Some(StateKey::Text(std::str::from_utf8(text).ok()?.into())),
        _ => None,
    }
}

/// One row of an answer. A column of an unexpected type is damage.
#[derive(Debug)]
pub(crate) struct SqlRow(pub Vec<Value>);

fn malformed_column(column: usize) -> JournalError {
    JournalError::Fatal(format!("a row is not of this format: column {column} is something else"))
}

impl SqlRow {
    fn take(&mut self, column: usize) -> StoreResult<Value> {
        let value = self.0.get_mut(column).ok_or_else(|| malformed_column(column))?;
        Ok(std::mem::replace(value, Value::Null))
    }

    pub fn optional_int(&self, column: usize) -> StoreResult<Option<i64>> {
        match self.0.get(column) {
            Some(Value::Int(number)) => Ok(Some(*number)),
            Some(Value::Null) => Ok(None),
            _ => Err(malformed_column(column)),
        }
    }

    pub fn int_at(&self, column: usize) -> StoreResult<i64> {
        self.optional_int(column)?.ok_or_else(|| malformed_column(column))
    }

    pub fn optional_bytes(&mut self, column: usize) -> StoreResult<Option<Vec<u8>>> {
        match self.take(column)? {
            Value::Bytes(bytes) => Ok(Some(bytes)),
            Value::Null => Ok(None),
            Value::Int(_) => Err(malformed_column(column)),
        }
    }

    pub fn bytes_at(&mut self, column: usize) -> StoreResult<Vec<u8>> {
        self.optional_bytes(column)?.ok_or_else(|| malformed_column(column))
    }

    pub fn optional_text(&mut self, column: usize) -> StoreResult<Option<String>> {
        let bytes = self.optional_bytes(column)?;
        bytes.map(|bytes| String::from_utf8(bytes).map_err(|_| malformed_column(column))).transpose()
    }

    pub fn text(&mut self, column: usize) -> StoreResult<String> {
        self.optional_text(column)?.ok_or_else(|| malformed_column(column))
    }

    pub fn optional_key(&mut self, column: usize) -> StoreResult<Option<StateKey>> {
        let bytes = self.optional_bytes(column)?;
        bytes.map(|bytes| key_of(&bytes).ok_or_else(|| malformed_column(column))).transpose()
    }

    pub fn key(&mut self, column: usize) -> StoreResult<StateKey> {
        self.optional_key(column)?.ok_or_else(|| malformed_column(column))
    }
}

/// A connection. After an error it is not reused, because its next answer is unpredictable.
#[async_trait]
pub(crate) trait ServerLink: Send {
    fn dialect(&self) -> ServerDialect;

    /// `shared` has the tokens that [`ServerDialect::text`] replaces.
    async fn fetch_rows(&mut self, shared: &str, params: Vec<SqlParam>) -> Result<Vec<SqlRow>, sqlx::Error>;

    /// Sends statements without parameters together, and returns their rows.
    async fn run_script(&mut self, text: &str) -> Result<Vec<SqlRow>, sqlx::Error>;

    async fn insert(&mut self, insert: &InsertStatement, rows: RowsBatch) -> Result<(), sqlx::Error>;

    async fn run_update(&mut self, update: &UpdateStatement, rows: RowsBatch) -> Result<(), sqlx::Error>;

    async fn run_delete(&mut self, delete: &DeleteStatement, rows: RowsBatch) -> Result<(), sqlx::Error>;
}

pub(crate) type WriteResult = Result<(), sqlx::Error>;

/// We assign numbers ourselves: a sequence would also count rows that already existed.
pub(crate) async fn next(link: &mut dyn ServerLink, text: &str) -> Result<i64, sqlx::Error> {
    let rows = link.fetch_rows(text, Vec::new()).await?;
    rows.first().and_then(|row| row.int_at(0).ok()).ok_or(sqlx::Error::RowNotFound)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_come_back_and_keep_the_order_of_their_numbers() {
        let keys = [-1, 0, 1, 255, 256, 999_999_999_999_999_999].map(StateKey::Number);
        let stored = keys.clone().map(|key| key_bytes(&key));
        assert!(stored.is_sorted());
        for (key, bytes) in keys.into_iter().zip(&stored) {
            assert_eq!(key_of(bytes), Some(key));
        }
        let text = StateKey::Text("=abc".into());
        assert_eq!(key_of(&key_bytes(&text)), Some(text));
        assert_eq!(key_of(&[NUMBER, 1]), None);
    }
}
