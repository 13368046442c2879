//! Converts values and errors between plugins and SQLite, in rows that are written and read.

use kubewitness_core::ports::{GrantError, SqlValue};
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, Error, Row, Statement};

use crate::sql::values::{QUERY_ROWS, VALUE_BYTES, ValueRows, values_size};

/// SQLite's codes of an error of no other kind, and of a refusal by the authorizer.
const ERROR: i32 = 1;
const AUTH: i32 = 23;

/// The values of a row by their own types, whatever types the columns declare.
fn row_values(row: &Row<'_>) -> Result<Vec<SqlValue>, Error> {
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

/// Values and their indexes, counted from 0.
pub fn bind_values<'v>(
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

/// Whether two values are equal bit by bit, except that 0 and -0 are equal.
fn is_same(value: &SqlValue, other: &SqlValue) -> bool {
    match (value, other) {
        (SqlValue::Float(value), SqlValue::Float(other)) => value.to_bits() == other.to_bits(),
        _ => value == other,
    }
}

/// Runs the statement to its end and ignores its rows. Values that the previous row also had are bound
/// already: rows have most values in common.
pub fn step_to_end<'r>(
    statement: &mut Statement<'_>,
    values: impl Iterator<Item = &'r SqlValue>,
    before: Option<impl Iterator<Item = &'r SqlValue>>,
) -> Result<(), Error> {
    match before {
        Some(before) => {
            let changed =
                values.zip(before).enumerate().filter(|(_, (value, before))| !is_same(value, before));
            bind_values(statement, changed.map(|(at, (value, _))| (at, value)))?;
        }
        None => bind_values(statement, values.enumerate())?,
    }
    let mut rows = statement.raw_query();
    while rows.next()?.is_some() {}
    Ok(())
}

/// The rows of a result; `None` if they exceed the limit for a plugin.
pub fn read(connection: &Connection, text: &str, params: &[SqlValue]) -> Result<Option<ValueRows>, Error> {
    let mut statement = connection.prepare_cached(text)?;
    bind_values(&mut statement, params.iter().enumerate())?;
    let mut given = statement.raw_query();
    let mut rows = Vec::new();
    let mut bytes = 0;
    while let Some(row) = given.next()? {
        let row = row_values(row)?;
        bytes += values_size(&row);
        if rows.len() >= QUERY_ROWS || bytes > VALUE_BYTES {
            return Ok(None);
        }
        rows.push(row);
    }
    Ok(Some(rows))
}

/// SQLite's primary result code, if the error comes from SQLite.
fn result_code(error: &Error) -> Option<i32> {
    match error {
        Error::SqliteFailure(error, _) | Error::SqlInputError { error, .. } => {
            Some(error.extended_code & 0xff)
        }
        _ => None,
    }
}

/// SQLite's own message, which names tables and columns but no files. The driver may add a statement or a
/// file, which is removed.
pub fn safe_message(error: &Error) -> String {
    const CANT_OPEN: i32 = 14;
    match error {
        Error::SqliteFailure(..) if result_code(error) == Some(CANT_OPEN) => {
            "unable to open database file".into()
        }
        Error::SqlInputError { msg, .. } => msg.clone(),
        other => other.to_string(),
    }
}

/// Recognises a statement that the authorizer refused. SQLite has no code of its own for a function.
pub fn is_refused_by_authorizer(error: &Error) -> bool {
    match result_code(error) {
        Some(AUTH) => true,
        Some(ERROR) => safe_message(error).starts_with("not authorized"),
        _ => false,
    }
}

/// Whether SQLite undid only the failed statement. After a full disk, an I/O error, an interrupt and the like
/// it may have rolled back the transaction.
pub fn is_statements_own(error: &Error) -> bool {
    const TOO_BIG: i32 = 18;
    const CONSTRAINT: i32 = 19;
    const MISMATCH: i32 = 20;
    const RANGE: i32 = 25;
    matches!(result_code(error), Some(ERROR | TOO_BIG | CONSTRAINT | MISMATCH | AUTH | RANGE))
}

pub fn refusal_of(error: &Error) -> GrantError {
    const INTERRUPTED: i32 = 9;
    match result_code(error) {
        Some(INTERRUPTED) => GrantError::Timeout("the statement took too long".into()),
        Some(_) if is_statements_own(error) => GrantError::Invalid(safe_message(error)),
        Some(_) => GrantError::Unavailable(safe_message(error)),
        None => {
            tracing::warn!(%error, "the database does not answer");
            unanswered_error()
        }
    }
}

pub fn unanswered_error() -> GrantError {
    GrantError::Unavailable("the database does not answer".into())
}
