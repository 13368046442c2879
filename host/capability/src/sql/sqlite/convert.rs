//! Values and errors between plugins and SQLite's driver.

use kubewitness_core::ports::{GrantError, SqlValue};
use sqlx::sqlite::{SqliteArguments, SqliteRow};
use sqlx::{Arguments, Row, TypeInfo, ValueRef};

pub fn values(row: &SqliteRow) -> Result<Vec<SqlValue>, sqlx::Error> {
    let value = |column: usize| {
        let raw = row.try_get_raw(column)?;
        if raw.is_null() {
            return Ok(SqlValue::Null);
        }
        Ok(match raw.type_info().name() {
            "INTEGER" | "BOOLEAN" => SqlValue::Integer(row.try_get_unchecked(column)?),
            "REAL" => SqlValue::Float(row.try_get_unchecked(column)?),
            "TEXT" => SqlValue::Text(row.try_get_unchecked(column)?),
            _ => SqlValue::Blob(row.try_get_unchecked(column)?),
        })
    };
    (0..row.len()).map(value).collect()
}

pub fn bind(values: Vec<SqlValue>) -> Result<SqliteArguments, GrantError> {
    let mut arguments = SqliteArguments::default();
    arguments.reserve(values.len(), 0);
    for value in values {
        let added = match value {
            SqlValue::Null => arguments.add(None::<i64>),
            SqlValue::Boolean(value) => arguments.add(value),
            SqlValue::Integer(value) => arguments.add(value),
            SqlValue::Float(value) => arguments.add(value),
            SqlValue::Text(value) => arguments.add(value),
            SqlValue::Blob(value) => arguments.add(value),
        };
        added.map_err(|error| GrantError::Invalid(error.to_string()))?;
    }
    Ok(arguments)
}

/// SQLite's primary result code, where it was SQLite that refused.
fn code(error: &sqlx::Error) -> Option<i32> {
    let code: i32 = error.as_database_error()?.code()?.parse().ok()?;
    Some(code & 0xff)
}

/// Whether SQLite undid the failed statement alone. After a full disk, an I/O error, an interrupt
/// and the like it may have rolled back the transaction.
pub fn is_statements_own(error: &sqlx::Error) -> bool {
    const ERROR: i32 = 1;
    const TOO_BIG: i32 = 18;
    const CONSTRAINT: i32 = 19;
    const MISMATCH: i32 = 20;
    const RANGE: i32 = 25;
    matches!(code(error), Some(ERROR | TOO_BIG | CONSTRAINT | MISMATCH | RANGE))
}

/// SQLite's own messages name tables and columns, and no files.
pub fn refusal(error: &sqlx::Error) -> GrantError {
    const INTERRUPTED: i32 = 9;
    let said = || error.as_database_error().map_or_else(String::new, |error| error.message().to_owned());
    match code(error) {
        Some(INTERRUPTED) => GrantError::Timeout("the statement took too long".into()),
        Some(_) if is_statements_own(error) => GrantError::Invalid(said()),
        Some(_) => GrantError::Unavailable(said()),
        None => {
            tracing::warn!(%error, "the database does not answer");
            GrantError::Unavailable("the database does not answer".into())
        }
    }
}
