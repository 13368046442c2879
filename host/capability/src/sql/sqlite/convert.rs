//! Converts values and errors between plugins and SQLite.

use kubewitness_core::ports::{GrantError, SqlValue};
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Error, Row, Statement};

/// By what each value is, whatever its column was declared to be.
pub fn values(row: &Row<'_>) -> Result<Vec<SqlValue>, Error> {
    let value = |column: usize| {
        Ok(match row.get_ref(column)? {
            ValueRef::Null => SqlValue::Null,
            ValueRef::Integer(value) => SqlValue::Integer(value),
            ValueRef::Real(value) => SqlValue::Float(value),
            text @ ValueRef::Text(_) => SqlValue::Text(text.as_str()?.to_owned()),
            ValueRef::Blob(value) => SqlValue::Blob(value.to_owned()),
        })
    };
    (0..row.as_ref().column_count()).map(value).collect()
}

/// Values and their places, counted from 0.
pub fn bind<'v>(
    statement: &mut Statement<'_>,
    values: impl Iterator<Item = (usize, &'v SqlValue)>,
) -> Result<(), Error> {
    for (at, value) in values {
        let value = match value {
            SqlValue::Null => ValueRef::Null,
            SqlValue::Boolean(value) => ValueRef::Integer(i64::from(*value)),
            SqlValue::Integer(value) => ValueRef::Integer(*value),
            SqlValue::Float(value) => ValueRef::Real(*value),
            SqlValue::Text(value) => ValueRef::Text(value.as_bytes()),
            SqlValue::Blob(value) => ValueRef::Blob(value),
        };
        statement.raw_bind_parameter(at + 1, ToSqlOutput::Borrowed(value))?;
    }
    Ok(())
}

/// SQLite's primary result code, where it was SQLite that refused.
fn code(error: &Error) -> Option<i32> {
    match error {
        Error::SqliteFailure(error, _) | Error::SqlInputError { error, .. } => {
            Some(error.extended_code & 0xff)
        }
        _ => None,
    }
}

/// SQLite's own messages name tables and columns, and no files. What the driver puts beside them, a
/// statement or a file, is left out.
pub fn safe_message(error: &Error) -> String {
    const CANT_OPEN: i32 = 14;
    match error {
        Error::SqliteFailure(..) if code(error) == Some(CANT_OPEN) => "unable to open database file".into(),
        Error::SqlInputError { msg, .. } => msg.clone(),
        other => other.to_string(),
    }
}

/// Whether SQLite undid the failed statement alone. After a full disk, an I/O error, an interrupt
/// and the like it may have rolled back the transaction.
pub fn is_statements_own(error: &Error) -> bool {
    const ERROR: i32 = 1;
    const TOO_BIG: i32 = 18;
    const CONSTRAINT: i32 = 19;
    const MISMATCH: i32 = 20;
    const RANGE: i32 = 25;
    matches!(code(error), Some(ERROR | TOO_BIG | CONSTRAINT | MISMATCH | RANGE))
}

pub fn refusal(error: &Error) -> GrantError {
    const INTERRUPTED: i32 = 9;
    match code(error) {
        Some(INTERRUPTED) => GrantError::Timeout("the statement took too long".into()),
        Some(_) if is_statements_own(error) => GrantError::Invalid(safe_message(error)),
        Some(_) => GrantError::Unavailable(safe_message(error)),
        None => {
            tracing::warn!(%error, "the database does not answer");
            unanswered()
        }
    }
}

pub fn unanswered() -> GrantError {
    GrantError::Unavailable("the database does not answer".into())
}
