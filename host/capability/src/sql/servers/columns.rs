//! Checks whether a plugin's values fit the columns of a server's table. A server silently converts some
//! values that do not fit, and refuses others without naming the column.

use std::collections::HashMap;

use kubewitness_core::ports::{GrantError, SqlDialect, SqlValue, TableWrite};
use thiserror::Error;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ColumnKind {
    Boolean,
    Integer(i64, i64),
    Float,
    Text,
    Blob,
    /// A type that the server parses from a text, such as a date.
    Other,
}

#[derive(Clone, Debug)]
pub struct TableColumn {
    pub kind: ColumnKind,
    /// The type's name on the server.
    pub of: String,
}

/// A table's columns by name. Names in MySQL are case-insensitive.
pub type TableColumns = HashMap<String, TableColumn>;

/// The columns of a write, in its order, after a check that every value fits its column.
pub fn check<'a>(
    write: &TableWrite,
    columns: &'a TableColumns,
    dialect: SqlDialect,
) -> Result<Vec<&'a TableColumn>, GrantError> {
    let find = |name: &String| {
        let key = if dialect == SqlDialect::Mysql { name.to_ascii_lowercase() } else { name.clone() };
        let missing = || GrantError::Invalid(format!("the table `{}` has no column `{name}`", write.table));
        columns.get(&key).ok_or_else(missing)
    };
    let found = write.columns.iter().map(find).collect::<Result<Vec<_>, _>>()?;
    for (row, values) in write.rows.iter().enumerate() {
        for ((value, column), name) in values.iter().zip(&found).zip(&write.columns) {
            if let Err(why) = check_fits(value, column.kind, dialect) {
                let of = &column.of;
                return Err(GrantError::Invalid(format!("row {row}, column `{name}` ({of}): {why}")));
            }
        }
    }
    Ok(found)
}

/// Why a column can't store a value unchanged.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum ValueMisfit {
    #[error("the text has a NUL, which this database can't keep")]
    NulInText,
    #[error("{0} is no number that this database can keep")]
    NoNumber(f64),
    #[error("{0} is out of range")]
    OutOfRange(i64),
    #[error("{given} was given, and it holds {expected}")]
    OtherType { given: &'static str, expected: &'static str },
}

/// Checks that a column stores a value unchanged.
pub fn check_fits(value: &SqlValue, kind: ColumnKind, dialect: SqlDialect) -> Result<(), ValueMisfit> {
    match (value, kind) {
        (SqlValue::Text(text), _) if dialect == SqlDialect::Postgres && text.contains('\0') => {
            Err(ValueMisfit::NulInText)
        }
        (SqlValue::Float(float), _) if dialect == SqlDialect::Mysql && !float.is_finite() => {
            Err(ValueMisfit::NoNumber(*float))
        }
        (SqlValue::Integer(value), ColumnKind::Integer(least, most)) if !(least..=most).contains(value) => {
            Err(ValueMisfit::OutOfRange(*value))
        }
        (SqlValue::Null, _)
        | (SqlValue::Boolean(_) | SqlValue::Integer(0 | 1), ColumnKind::Boolean)
        | (SqlValue::Boolean(_) | SqlValue::Integer(_), ColumnKind::Integer(..))
        | (SqlValue::Float(_) | SqlValue::Integer(_), ColumnKind::Float)
        | (SqlValue::Text(_), ColumnKind::Text | ColumnKind::Other)
        | (SqlValue::Blob(_), ColumnKind::Blob)
        | (SqlValue::Boolean(_) | SqlValue::Integer(_) | SqlValue::Float(_), ColumnKind::Other) => Ok(()),
        (value, kind) => {
            Err(ValueMisfit::OtherType { given: describe_given(value), expected: describe_column(kind) })
        }
    }
}

fn describe_given(value: &SqlValue) -> &'static str {
    match value {
        SqlValue::Null => "null",
        SqlValue::Boolean(_) => "a boolean",
        SqlValue::Integer(_) => "an integer",
        SqlValue::Float(_) => "a float",
        SqlValue::Text(_) => "a text",
        SqlValue::Blob(_) => "a blob",
    }
}

fn describe_column(kind: ColumnKind) -> &'static str {
    match kind {
        ColumnKind::Boolean => "booleans",
        ColumnKind::Integer(..) => "integers",
        ColumnKind::Float => "floats",
        ColumnKind::Text => "texts",
        ColumnKind::Blob => "blobs",
        ColumnKind::Other => "what is written as a text",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_does_not_fit_is_told_with_its_row_and_column() {
        let columns: TableColumns =
            [("n", ColumnKind::Integer(-128, 127), "tinyint"), ("s", ColumnKind::Text, "text")]
                .map(|(name, kind, of)| (name.to_owned(), TableColumn { kind, of: of.to_owned() }))
                .into();
        let write = |rows: Vec<Vec<SqlValue>>| TableWrite {
            table: "t".into(),
            columns: vec!["n".into(), "s".into()],
            key: vec!["n".into()],
            on_conflict: kubewitness_core::ports::OnConflict::Ignore,
            rows,
        };
        let text = |text: &str| SqlValue::Text(text.into());
        let why = |last: Vec<SqlValue>, dialect| {
            let rows = vec![vec![SqlValue::Integer(1), text("a")], last];
            check(&write(rows), &columns, dialect).map(drop).map_err(|error| error.to_string())
        };
        assert_eq!(why(vec![SqlValue::Boolean(true), SqlValue::Null], SqlDialect::Postgres), Ok(()));
        let wide = why(vec![SqlValue::Integer(128), SqlValue::Null], SqlDialect::Mysql).unwrap_err();
        assert_eq!(wide, "invalid: row 1, column `n` (tinyint): 128 is out of range");
        let other = why(vec![text("7"), SqlValue::Null], SqlDialect::Mysql).unwrap_err();
        assert_eq!(other, "invalid: row 1, column `n` (tinyint): a text was given, and it holds integers");
        let nul = vec![SqlValue::Null, text("a\0b")];
        assert!(why(nul.clone(), SqlDialect::Postgres).unwrap_err().contains("has a NUL"));
        assert_eq!(why(nul, SqlDialect::Mysql), Ok(()));
    }
}
