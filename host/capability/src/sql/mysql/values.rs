//! Converts values between plugins and MySQL's driver.

use kubewitness_core::ports::{GrantError, SqlDialect, SqlValue};
use sqlx::mysql::{MySql, MySqlArguments, MySqlRow};
use sqlx::{Arguments, Column as _, Row, Type, TypeInfo, ValueRef};

use super::faults;
use crate::sql::SqlFault;
use crate::sql::servers::columns::{self, ColumnKind};
use crate::sql::values::values_size;

/// Returns the kind of a column, from the type that `information_schema` gives, such as `int(10) unsigned`.
pub fn column_kind(of: &str) -> ColumnKind {
    let of = of.to_ascii_lowercase();
    let word = of.split(['(', ' ']).next().unwrap_or_default();
    let integer = |bits: u32| {
        if of.contains("unsigned") {
            ColumnKind::Integer(0, if bits == 64 { i64::MAX } else { (1 << bits) - 1 })
        } else {
            ColumnKind::Integer(i64::MIN >> (64 - bits), i64::MAX >> (64 - bits))
        }
    };
    match word {
        "tinyint" => integer(8),
        "smallint" => integer(16),
        "mediumint" => integer(24),
        "int" | "integer" => integer(32),
        "bigint" => integer(64),
        "float" | "double" => ColumnKind::Float,
        "char" | "varchar" | "tinytext" | "text" | "mediumtext" | "longtext" => ColumnKind::Text,
        "binary" | "varbinary" | "tinyblob" | "blob" | "mediumblob" | "longblob" => ColumnKind::Blob,
        _ => ColumnKind::Other,
    }
}

fn refused_value(message: String) -> SqlFault {
    SqlFault::Own(GrantError::Invalid(message))
}

pub fn bind_values(values: Vec<SqlValue>) -> Result<MySqlArguments, SqlFault> {
    let mut arguments = MySqlArguments::default();
    arguments.reserve(values.len(), values_size(&values));
    for (index, value) in values.into_iter().enumerate() {
        columns::check_fits(&value, kind_of_value(&value), SqlDialect::Mysql)
            .map_err(|why| refused_value(format!("parameter {}: {why}", index + 1)))?;
        let added = match value {
            SqlValue::Null => arguments.add(None::<i64>),
            SqlValue::Boolean(value) => arguments.add(value),
            SqlValue::Integer(value) => arguments.add(value),
            SqlValue::Float(value) => arguments.add(value),
            SqlValue::Text(value) => arguments.add(value),
            SqlValue::Blob(value) => arguments.add(value),
        };
        added.map_err(|error| refused_value(error.to_string()))?;
    }
    Ok(arguments)
}

/// The kind of a value without a column.
fn kind_of_value(value: &SqlValue) -> ColumnKind {
    match value {
        SqlValue::Float(_) => ColumnKind::Float,
        SqlValue::Blob(_) => ColumnKind::Blob,
        _ => ColumnKind::Other,
    }
}

pub fn decode_row(row: &MySqlRow) -> Result<Vec<SqlValue>, SqlFault> {
    (0..row.len()).map(|column| decode_value(row, column)).collect()
}

fn decode_value(row: &MySqlRow, column: usize) -> Result<SqlValue, SqlFault> {
    let failed = |error: sqlx::Error| faults::classify_fault(&error);
    let raw = row.try_get_raw(column).map_err(failed)?;
    if raw.is_null() {
        return Ok(SqlValue::Null);
    }
    let of = raw.type_info().name().to_owned();
    // The driver reports a text whose collation compares bytes as a blob.
    let is_text = <str as Type<MySql>>::compatible(&raw.type_info());
    let value = match of.as_str() {
        _ if is_text => row.try_get_unchecked(column).map(SqlValue::Text),
        "BIGINT UNSIGNED" => {
            let value: u64 = row.try_get_unchecked(column).map_err(failed)?;
            let fits = i64::try_from(value).map_err(|_| refused_value(format!("{value} is out of range")))?;
            return Ok(SqlValue::Integer(fits));
        }
        "TINYINT UNSIGNED" | "SMALLINT UNSIGNED" | "MEDIUMINT UNSIGNED" | "INT UNSIGNED" => {
            row.try_get_unchecked::<u32, _>(column).map(|value| SqlValue::Integer(value.into()))
        }
        "BOOLEAN" | "TINYINT" | "SMALLINT" | "MEDIUMINT" | "INT" | "BIGINT" => {
            row.try_get_unchecked(column).map(SqlValue::Integer)
        }
        "FLOAT" => row.try_get_unchecked::<f32, _>(column).map(|value| SqlValue::Float(value.into())),
        "DOUBLE" => row.try_get_unchecked(column).map(SqlValue::Float),
        "JSON" => row.try_get_unchecked(column).map(SqlValue::Text),
        "BINARY" | "VARBINARY" | "TINYBLOB" | "BLOB" | "MEDIUMBLOB" | "LONGBLOB" => {
            row.try_get_unchecked(column).map(SqlValue::Blob)
        }
        _ => {
            let name = row.column(column).name();
            return Err(refused_value(format!(
                "the column `{name}` is of type {of}: cast it to signed, double or char"
            )));
        }
    };
    value.map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integer_columns_have_the_range_of_their_type() {
        assert_eq!(column_kind("tinyint(1)"), ColumnKind::Integer(-128, 127));
        assert_eq!(column_kind("INT(10) UNSIGNED"), ColumnKind::Integer(0, u32::MAX.into()));
        assert_eq!(column_kind("mediumint(9)"), ColumnKind::Integer(-8_388_608, 8_388_607));
        assert_eq!(column_kind("bigint(20)"), ColumnKind::Integer(i64::MIN, i64::MAX));
        assert_eq!(column_kind("bigint unsigned"), ColumnKind::Integer(0, i64::MAX));
        assert_eq!(
            (column_kind("varchar(63)"), column_kind("datetime")),
            (ColumnKind::Text, ColumnKind::Other)
        );
    }
}
