//! Limits of the values that a plugin binds and receives, the same for every database.

use futures::{Stream, TryStreamExt};
use kubewitness_core::ports::{GrantError, SqlValue};

pub type ValueRows = Vec<Vec<SqlValue>>;

/// The most rows of one call; a batch has at most 1,024 states.
pub const MAX_ROWS: usize = 65_536;

/// The most bytes of values that one call may bind or receive.
pub const VALUE_BYTES: usize = 16 * 1024 * 1024;

/// The most rows that one query may return.
pub const QUERY_ROWS: usize = 10_000;

pub fn values_size(values: &[SqlValue]) -> usize {
    let of = |value: &SqlValue| match value {
        SqlValue::Text(text) => text.len(),
        SqlValue::Blob(bytes) => bytes.len(),
        SqlValue::Null | SqlValue::Boolean(_) | SqlValue::Integer(_) | SqlValue::Float(_) => 8,
    };
    values.iter().map(of).sum()
}

pub fn fits_arity(arity: usize, row: &[SqlValue]) -> Result<(), GrantError> {
    if row.len() == arity {
        return Ok(());
    }
    Err(GrantError::Invalid(format!("the statement takes {arity} parameters and was given {}", row.len())))
}

pub fn check_size(rows: &[Vec<SqlValue>]) -> Result<(), GrantError> {
    // Each row is a statement of its own, even without values.
    if rows.len() > MAX_ROWS {
        return Err(GrantError::TooLarge(format!("a statement is given at most {MAX_ROWS} rows")));
    }
    let bytes: usize = rows.iter().map(|row| values_size(row)).sum();
    if bytes > VALUE_BYTES {
        return Err(GrantError::TooLarge(format!("{bytes} bytes of values, the most is {VALUE_BYTES}")));
    }
    Ok(())
}

/// The rows of a result, unless they exceed the limits for a plugin.
pub async fn collect_bounded<E>(
    rows: impl Stream<Item = Result<Vec<SqlValue>, E>>,
    own: impl FnOnce(GrantError) -> E,
) -> Result<Vec<Vec<SqlValue>>, E> {
    let mut stream = std::pin::pin!(rows);
    let mut rows = Vec::new();
    let mut bytes = 0;
    while let Some(row) = stream.try_next().await? {
        bytes += values_size(&row);
        if rows.len() >= QUERY_ROWS || bytes > VALUE_BYTES {
            return Err(own(GrantError::TooLarge(format!(
                "a query gives at most {QUERY_ROWS} rows and {VALUE_BYTES} bytes"
            ))));
        }
        rows.push(row);
    }
    Ok(rows)
}
