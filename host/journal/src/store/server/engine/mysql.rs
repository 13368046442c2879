//! MySQL and MariaDB: one statement writes many rows. The number of rows is a power of two, so that few texts
//! serve every length, and a statement stays below the server's packet limit.

use async_trait::async_trait;
use sqlx::mysql::{MySqlArguments, MySqlColumn, MySqlConnection, MySqlRow};
use sqlx::{Arguments, AssertSqlSafe, Column as _, Row as _, TypeInfo};

use super::dialect::ServerDialect;
use super::link::{ServerLink, SqlParam, SqlRow, Value};
use super::table::{
    ColumnMerge, DeleteStatement, InsertStatement, KeyConflict, RowsBatch, TableColumn, UpdateStatement,
    column_names, fitting_rows,
};

/// The most rows of one statement. With the 13 columns of the widest table they take 3,328 of 65,535
/// parameters.
const LARGEST: usize = 256;

/// The most bytes of one statement, unless a single row is larger. It is well below the smallest default
/// limit of a server (MariaDB's `max_allowed_packet` of 16 MiB).
const PACKET: usize = 4 << 20;

/// How many of these rows go into the next statement.
fn next_rows(values: &[Value], width: usize) -> usize {
    let most = values.len().min(LARGEST * width);
    1 << fitting_rows(&values[..most], width, PACKET).ilog2()
}

fn bind_value(arguments: &mut MySqlArguments, value: Value) -> Result<(), sqlx::Error> {
    let bound = match value {
        Value::Null => arguments.add(None::<i64>),
        Value::Int(number) => arguments.add(number),
        Value::Bytes(bytes) => arguments.add(bytes),
    };
    bound.map_err(sqlx::Error::Encode)
}

fn decode_row(row: &MySqlRow) -> Result<SqlRow, sqlx::Error> {
    let value = |(index, column): (usize, &MySqlColumn)| {
        Ok(match column.type_info().name() {
            "BIGINT" | "INT" | "SMALLINT" | "TINYINT" | "BOOLEAN" => {
                row.try_get::<Option<i64>, _>(index)?.into()
            }
            _ => row.try_get_unchecked::<Option<Vec<u8>>, _>(index)?.map_or(Value::Null, Value::Bytes),
        })
    };
    row.columns().iter().enumerate().map(value).collect::<Result<_, sqlx::Error>>().map(SqlRow)
}

fn placeholder_row(width: usize) -> String {
    format!("({})", vec!["?"; width].join(","))
}

/// The parts of a statement's text for many rows.
struct RowsText<'a> {
    head: &'a str,
    row: &'a str,
    between: &'a str,
    tail: &'a str,
}

async fn run(link: &mut MySqlConnection, text: RowsText<'_>, batch: RowsBatch) -> Result<(), sqlx::Error> {
    let RowsText { head, row, between, tail } = text;
    for part in batch.split_into_parts(next_rows) {
        let text = format!("{head} {} {tail}", vec![row; part.len()].join(between));
        let mut arguments = MySqlArguments::default();
        for value in part.values {
            bind_value(&mut arguments, value)?;
        }
        sqlx::query_with(AssertSqlSafe(text), arguments).execute(&mut *link).await?;
    }
    Ok(())
}

fn on_conflict(insert: &InsertStatement) -> String {
    let merges = match insert.conflict {
        KeyConflict::Refuse => return String::new(),
        // `INSERT IGNORE` would also truncate values that are too long.
        KeyConflict::Keep => {
            let key = insert.key[0];
            return format!("ON DUPLICATE KEY UPDATE {key} = {}.{key}", insert.table);
        }
        KeyConflict::Merge(merges) => merges,
    };
    let set = merges.iter().map(|(name, merge)| match merge {
        ColumnMerge::New => format!("{name} = VALUES({name})"),
        ColumnMerge::Sum => format!("{name} = {name} + VALUES({name})"),
    });
    format!("ON DUPLICATE KEY UPDATE {}", set.collect::<Vec<_>>().join(", "))
}

/// Passes rows as a JSON table. It supports only numbers, because nothing else is ever updated.
fn update_text(update: &UpdateStatement) -> String {
    let UpdateStatement { table, key, set } = update;
    let columns = key.iter().chain(*set).enumerate();
    let columns = columns.map(|(index, TableColumn { name, .. })| format!("{name} BIGINT PATH '$[{index}]'"));
    let on = key.iter().map(|TableColumn { name, .. }| format!("t.{name} = v.{name}")).collect::<Vec<_>>();
    let values =
        set.iter().map(|TableColumn { name, .. }| format!("t.{name} = v.{name}")).collect::<Vec<_>>();
    format!(
        "UPDATE JSON_TABLE(?, '$[*]' COLUMNS ({})) AS v STRAIGHT_JOIN {table} t ON {} SET {}",
        columns.collect::<Vec<_>>().join(", "),
        on.join(" AND "),
        values.join(", ")
    )
}

fn rows_as_json(batch: &RowsBatch) -> String {
    let rows: Vec<Vec<Option<i64>>> = batch
        .values
        .chunks(batch.width)
        .map(|row| row.iter().map(|value| if let Value::Int(number) = value { Some(*number) } else { None }))
        .map(Iterator::collect)
        .collect();
    serde_json::to_string(&rows).expect("numbers always serialize")
}

#[async_trait]
impl ServerLink for MySqlConnection {
    fn dialect(&self) -> ServerDialect {
        ServerDialect::Mysql
    }

    async fn fetch_rows(&mut self, shared: &str, params: Vec<SqlParam>) -> Result<Vec<SqlRow>, sqlx::Error> {
        let mut arguments = MySqlArguments::default();
        for param in params {
            let bound = match param {
                SqlParam::Int(number) => arguments.add(number),
                SqlParam::Bytes(bytes) => arguments.add(bytes),
                SqlParam::Numbers(numbers) => {
                    arguments.add(serde_json::to_string(&numbers).expect("numbers always serialize"))
                }
                SqlParam::Pairs(pairs) => {
                    let pairs: Vec<_> =
                        pairs.iter().map(|(number, bytes)| (number, hex::encode_upper(bytes))).collect();
                    arguments.add(serde_json::to_string(&pairs).expect("numbers and texts always serialize"))
                }
            };
            bound.map_err(sqlx::Error::Encode)?;
        }
        let text = AssertSqlSafe(ServerDialect::Mysql.text(shared));
        let rows = sqlx::query_with(text, arguments).fetch_all(self).await?;
        rows.iter().map(decode_row).collect()
    }

    async fn run_script(&mut self, text: &str) -> Result<Vec<SqlRow>, sqlx::Error> {
        let rows = sqlx::raw_sql(AssertSqlSafe(text.to_owned())).fetch_all(self).await?;
        rows.iter().map(decode_row).collect()
    }

    async fn insert(&mut self, insert: &InsertStatement, rows: RowsBatch) -> Result<(), sqlx::Error> {
        let head = format!("INSERT INTO {} ({}) VALUES", insert.table, column_names(insert.columns));
        let (row, tail) = (placeholder_row(rows.width), on_conflict(insert));
        run(self, RowsText { head: &head, row: &row, between: ",", tail: &tail }, rows).await
    }

    async fn run_update(&mut self, update: &UpdateStatement, rows: RowsBatch) -> Result<(), sqlx::Error> {
        if rows.is_empty() {
            return Ok(());
        }
        let mut arguments = MySqlArguments::default();
        arguments.add(rows_as_json(&rows)).map_err(sqlx::Error::Encode)?;
        let text = AssertSqlSafe(update_text(update));
        sqlx::query_with(text, arguments).execute(self).await.map(drop)
    }

    async fn run_delete(&mut self, delete: &DeleteStatement, rows: RowsBatch) -> Result<(), sqlx::Error> {
        // Not a list of pairs: MariaDB would scan the whole table for it.
        let row = delete.key.iter().map(|TableColumn { name, .. }| format!("{name} = ?")).collect::<Vec<_>>();
        let (head, row) = (format!("DELETE FROM {} WHERE", delete.table), format!("({})", row.join(" AND ")));
        run(self, RowsText { head: &head, row: &row, between: " OR ", tail: "" }, rows).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_stays_below_the_packet_and_has_one_row_at_least() {
        let rows = |count: usize, bytes: usize| -> Vec<Value> {
            (0..count).flat_map(|_| [Value::Int(1), Value::Bytes(vec![0; bytes])]).collect()
        };
        assert_eq!(next_rows(&rows(1000, 10), 2), 256);
        assert_eq!(next_rows(&rows(7, 10), 2), 4);
        assert_eq!(next_rows(&rows(9, 1 << 20), 2), 2);
        assert_eq!(next_rows(&rows(9, 32 << 20), 2), 1);
    }
}
