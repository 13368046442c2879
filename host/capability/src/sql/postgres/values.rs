//! Converts values between plugins and PostgreSQL's driver. The server names the types that it accepts and
//! returns. A type that is not plainly one of a plugin's is refused; a cast in the statement helps.

use kubewitness_core::ports::{GrantError, SqlDialect, SqlValue};
use sqlx::postgres::{PgArguments, PgRow, PgStatement};
use sqlx::{Arguments, Column as _, Either, Row, Statement, TypeInfo, ValueRef};

use crate::sql::SqlFault;
use crate::sql::servers::columns::{self, ColumnKind, TableColumn};

/// Returns the kind of a column, from the name that `format_type` gives.
pub fn column_kind(of: &str) -> ColumnKind {
    match of {
        "boolean" => ColumnKind::Boolean,
        "smallint" => ColumnKind::Integer(i16::MIN.into(), i16::MAX.into()),
        "integer" => ColumnKind::Integer(i32::MIN.into(), i32::MAX.into()),
        "bigint" => ColumnKind::Integer(i64::MIN, i64::MAX),
        "real" | "double precision" => ColumnKind::Float,
        "text" | "character varying" | "character" | "name" => ColumnKind::Text,
        "bytea" => ColumnKind::Blob,
        _ => ColumnKind::Other,
    }
}

/// The type of the array for a column's values.
pub fn array_type(kind: ColumnKind) -> &'static str {
    match kind {
        ColumnKind::Boolean => "bool",
        ColumnKind::Integer(..) => "int8",
        ColumnKind::Float => "float8",
        ColumnKind::Text | ColumnKind::Other => "text",
        ColumnKind::Blob => "bytea",
    }
}

pub fn cast_type(column: &TableColumn) -> Option<&str> {
    (column.kind == ColumnKind::Other).then_some(column.of.as_str())
}

fn refused_value(message: String) -> SqlFault {
    SqlFault::Own(GrantError::Invalid(message))
}

/// Binds one array for each column. The caller has checked that every value fits.
pub fn bind_arrays(rows: Vec<Vec<SqlValue>>, of: &[&TableColumn]) -> Result<PgArguments, SqlFault> {
    let mut columns: Vec<Vec<SqlValue>> = of.iter().map(|_| Vec::with_capacity(rows.len())).collect();
    for row in rows {
        for (column, value) in columns.iter_mut().zip(row) {
            column.push(value);
        }
    }
    let mut arguments = PgArguments::default();
    for (values, column) in columns.into_iter().zip(of) {
        let values = values.into_iter();
        let added = match column.kind {
            ColumnKind::Boolean => arguments.add(values.map(|value| as_boolean(&value)).collect::<Vec<_>>()),
            ColumnKind::Integer(..) => {
                arguments.add(values.map(|value| as_integer(&value)).collect::<Vec<_>>())
            }
            ColumnKind::Float => arguments.add(values.map(|value| as_float(&value)).collect::<Vec<_>>()),
            ColumnKind::Text | ColumnKind::Other => arguments.add(values.map(text).collect::<Vec<_>>()),
            ColumnKind::Blob => arguments.add(values.map(as_blob).collect::<Vec<_>>()),
        };
        added.map_err(|error| refused_value(error.to_string()))?;
    }
    Ok(arguments)
}

fn as_boolean(value: &SqlValue) -> Option<bool> {
    match value {
        SqlValue::Boolean(value) => Some(*value),
        SqlValue::Integer(value) => Some(*value != 0),
        _ => None,
    }
}

fn as_integer(value: &SqlValue) -> Option<i64> {
    match value {
        SqlValue::Integer(value) => Some(*value),
        SqlValue::Boolean(value) => Some((*value).into()),
        _ => None,
    }
}

fn as_float(value: &SqlValue) -> Option<f64> {
    match value {
        SqlValue::Float(value) => Some(*value),
        SqlValue::Integer(value) => Some(*value as f64),
        _ => None,
    }
}

fn text(value: SqlValue) -> Option<String> {
    match value {
        SqlValue::Text(value) => Some(value),
        SqlValue::Boolean(value) => Some(value.to_string()),
        SqlValue::Integer(value) => Some(value.to_string()),
        SqlValue::Float(value) => Some(value.to_string()),
        SqlValue::Null | SqlValue::Blob(_) => None,
    }
}

fn as_blob(value: SqlValue) -> Option<Vec<u8>> {
    match value {
        SqlValue::Blob(value) => Some(value),
        _ => None,
    }
}

/// The kind of a parameter or result, from the name that the driver reports.
fn kind_of(name: &str) -> Option<ColumnKind> {
    Some(match name {
        "BOOL" => ColumnKind::Boolean,
        "INT2" => ColumnKind::Integer(i16::MIN.into(), i16::MAX.into()),
        "INT4" => ColumnKind::Integer(i32::MIN.into(), i32::MAX.into()),
        "INT8" => ColumnKind::Integer(i64::MIN, i64::MAX),
        "FLOAT4" | "FLOAT8" => ColumnKind::Float,
        "TEXT" | "VARCHAR" | "CHAR" | "NAME" | "UNKNOWN" => ColumnKind::Text,
        "BYTEA" => ColumnKind::Blob,
        _ => return None,
    })
}

/// Binds the parameters of a statement, each with the type that the server expects.
pub fn bind_values(statement: &PgStatement, values: Vec<SqlValue>) -> Result<PgArguments, SqlFault> {
    let types = match statement.parameters() {
        Some(Either::Left(types)) => types,
        _ => &[],
    };
    let mut arguments = PgArguments::default();
    for (index, (value, of)) in values.into_iter().zip(types).enumerate() {
        let (number, name) = (index + 1, of.name());
        let added = match (kind_of(name), value) {
            (None, SqlValue::Null) => arguments.add(None::<String>),
            (None, _) => {
                return Err(refused_value(format!(
                    "parameter {number} is of type {name}: write CAST(CAST(? AS text) AS {name})"
                )));
            }
            (Some(kind), value) => {
                columns::check_fits(&value, kind, SqlDialect::Postgres)
                    .map_err(|why| refused_value(format!("parameter {number} ({name}): {why}")))?;
                match name {
                    "BOOL" => arguments.add(as_boolean(&value)),
                    "INT2" => arguments.add(as_integer(&value).and_then(|value| i16::try_from(value).ok())),
                    "INT4" => arguments.add(as_integer(&value).and_then(|value| i32::try_from(value).ok())),
                    "INT8" => arguments.add(as_integer(&value)),
                    "FLOAT4" => arguments.add(as_float(&value).map(|value| value as f32)),
                    "FLOAT8" => arguments.add(as_float(&value)),
                    "BYTEA" => arguments.add(as_blob(value)),
                    _ => arguments.add(text(value)),
                }
            }
        };
        added.map_err(|error| refused_value(error.to_string()))?;
    }
    Ok(arguments)
}

/// Checks before a query runs that every column has a type that a plugin can receive.
pub fn check_columns(statement: &PgStatement) -> Result<(), SqlFault> {
    for column in statement.columns() {
        let of = column.type_info().name();
        if kind_of(of).is_none() {
            return Err(refused_value(format!(
                "the column `{}` is of type {of}: cast it to bigint, double precision or text",
                column.name()
            )));
        }
    }
    Ok(())
}

pub fn decode_row(row: &PgRow) -> Result<Vec<SqlValue>, sqlx::Error> {
    let value = |column: usize| {
        let raw = row.try_get_raw(column)?;
        if raw.is_null() {
            return Ok(SqlValue::Null);
        }
        let of = raw.type_info().name().to_owned();
        Ok(match of.as_str() {
            "BOOL" => SqlValue::Boolean(row.try_get_unchecked(column)?),
            "INT2" => SqlValue::Integer(row.try_get_unchecked::<i16, _>(column)?.into()),
            "INT4" => SqlValue::Integer(row.try_get_unchecked::<i32, _>(column)?.into()),
            "INT8" => SqlValue::Integer(row.try_get_unchecked(column)?),
            "FLOAT4" => SqlValue::Float(row.try_get_unchecked::<f32, _>(column)?.into()),
            "FLOAT8" => SqlValue::Float(row.try_get_unchecked(column)?),
            "BYTEA" => SqlValue::Blob(row.try_get_unchecked(column)?),
            _ => SqlValue::Text(row.try_get_unchecked(column)?),
        })
    };
    (0..row.len()).map(value).collect()
}
