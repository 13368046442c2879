//! PostgreSQL: a batch is one array for each column, so that one text serves every length.

use async_trait::async_trait;
use sqlx::postgres::{PgArguments, PgConnection, PgRow};
use sqlx::{Arguments, AssertSqlSafe, Column as _, Row as _, TypeInfo};

use super::dialect::ServerDialect;
use super::link::{ServerLink, SqlParam, SqlRow, Value};
use super::table::{
    ColumnKind, ColumnMerge, DeleteStatement, InsertStatement, KeyConflict, RowsBatch, TableColumn,
    UpdateStatement, column_names, fitting_rows,
};

/// The most bytes of one statement, unless a single row is larger. A server holds all of it at once, several
/// times over.
const STATEMENT: usize = 16 << 20;

fn next_rows(values: &[Value], width: usize) -> usize {
    fitting_rows(values, width, STATEMENT)
}

type BoundQuery = Result<(), sqlx::error::BoxDynError>;

fn bind_params(params: Vec<SqlParam>) -> Result<PgArguments, sqlx::Error> {
    let mut arguments = PgArguments::default();
    let mut bind = |param| -> BoundQuery {
        match param {
            SqlParam::Int(number) => arguments.add(number),
            SqlParam::Bytes(bytes) => arguments.add(bytes),
            SqlParam::Numbers(numbers) => arguments.add(numbers),
            SqlParam::Pairs(pairs) => {
                let (numbers, bytes): (Vec<i64>, Vec<Vec<u8>>) = pairs.into_iter().unzip();
                arguments.add(numbers)?;
                arguments.add(bytes)
            }
        }
    };
    params.into_iter().try_for_each(&mut bind).map_err(sqlx::Error::Encode)?;
    Ok(arguments)
}

fn decode_row(row: &PgRow) -> Result<SqlRow, sqlx::Error> {
    let value = |(index, column): (usize, &sqlx::postgres::PgColumn)| {
        Ok(match column.type_info().name() {
            "INT4" => row.try_get::<Option<i32>, _>(index)?.map(i64::from).into(),
            "INT8" => row.try_get::<Option<i64>, _>(index)?.into(),
            _ => row.try_get::<Option<Vec<u8>>, _>(index)?.map_or(Value::Null, Value::Bytes),
        })
    };
    row.columns().iter().enumerate().map(value).collect::<Result<_, sqlx::Error>>().map(SqlRow)
}

/// The columns of a batch as arrays.
fn bind_arrays(columns: &[&TableColumn], batch: RowsBatch) -> Result<PgArguments, sqlx::Error> {
    enum ArrayParam {
        Ints(Vec<Option<i64>>),
        Bytes(Vec<Option<Vec<u8>>>),
    }
    let length = batch.len();
    let mut arrays: Vec<ArrayParam> = columns
        .iter()
        .map(|column| match column.kind {
            ColumnKind::Int => ArrayParam::Ints(Vec::with_capacity(length)),
            ColumnKind::Bytes => ArrayParam::Bytes(Vec::with_capacity(length)),
        })
        .collect();
    let width = columns.len();
    for (index, value) in batch.values.into_iter().enumerate() {
        match (&mut arrays[index % width], value) {
            (ArrayParam::Ints(array), Value::Int(number)) => array.push(Some(number)),
            (ArrayParam::Ints(array), _) => array.push(None),
            (ArrayParam::Bytes(array), Value::Bytes(bytes)) => array.push(Some(bytes)),
            (ArrayParam::Bytes(array), _) => array.push(None),
        }
    }
    let mut arguments = PgArguments::default();
    let mut bind = |array| -> BoundQuery {
        match array {
            ArrayParam::Ints(array) => arguments.add(array),
            ArrayParam::Bytes(array) => arguments.add(array),
        }
    };
    arrays.into_iter().try_for_each(&mut bind).map_err(sqlx::Error::Encode)?;
    Ok(arguments)
}

/// The arrays as a relation.
fn unnest_text(columns: &[&TableColumn]) -> String {
    let casts = columns.iter().enumerate().map(|(index, column)| {
        let place = index + 1;
        match column.kind {
            ColumnKind::Int => format!("${place}::bigint[]"),
            ColumnKind::Bytes => format!("${place}::bytea[]"),
        }
    });
    format!("unnest({})", casts.collect::<Vec<_>>().join(", "))
}

fn relation_text(columns: &[&TableColumn]) -> String {
    let names = columns.iter().map(|column| column.name).collect::<Vec<_>>().join(", ");
    format!("{} AS v ({names})", unnest_text(columns))
}

fn same_key(table: &str, key: &[TableColumn]) -> String {
    let pairs = key.iter().map(|TableColumn { name, .. }| format!("{table}.{name} = v.{name}"));
    pairs.collect::<Vec<_>>().join(" AND ")
}

fn insert_text(insert: &InsertStatement) -> String {
    let InsertStatement { table, columns, key, conflict } = insert;
    let column_refs: Vec<&TableColumn> = columns.iter().collect();
    let mut text = format!(
        "INSERT INTO {table} ({}) SELECT * FROM {}",
        column_names(columns),
        unnest_text(&column_refs)
    );
    match conflict {
        KeyConflict::Refuse => {}
        KeyConflict::Keep => text.push_str(" ON CONFLICT DO NOTHING"),
        KeyConflict::Merge(merges) => {
            let set = merges.iter().map(|(name, merge)| match merge {
                ColumnMerge::New => format!("{name} = excluded.{name}"),
                ColumnMerge::Sum => format!("{name} = {table}.{name} + excluded.{name}"),
            });
            let set = set.collect::<Vec<_>>().join(", ");
            text.push_str(&format!(" ON CONFLICT ({}) DO UPDATE SET {set}", key.join(", ")));
        }
    }
    text
}

fn update_text(update: &UpdateStatement) -> String {
    let UpdateStatement { table, key, set } = update;
    let column_refs: Vec<&TableColumn> = key.iter().chain(*set).collect();
    let values = set.iter().map(|TableColumn { name, .. }| format!("{name} = v.{name}"));
    let values = values.collect::<Vec<_>>().join(", ");
    format!("UPDATE {table} SET {values} FROM {} WHERE {}", relation_text(&column_refs), same_key(table, key))
}

fn delete_text(delete: &DeleteStatement) -> String {
    let DeleteStatement { table, key } = delete;
    let column_refs: Vec<&TableColumn> = key.iter().collect();
    format!("DELETE FROM {table} USING {} WHERE {}", relation_text(&column_refs), same_key(table, key))
}

async fn run(link: &mut PgConnection, text: String, arguments: PgArguments) -> Result<(), sqlx::Error> {
    sqlx::query_with(AssertSqlSafe(text), arguments).execute(link).await.map(drop)
}

#[async_trait]
impl ServerLink for PgConnection {
    fn dialect(&self) -> ServerDialect {
        ServerDialect::Postgres
    }

    async fn fetch_rows(&mut self, shared: &str, params: Vec<SqlParam>) -> Result<Vec<SqlRow>, sqlx::Error> {
        let text = AssertSqlSafe(ServerDialect::Postgres.text(shared));
        let rows = sqlx::query_with(text, bind_params(params)?).fetch_all(self).await?;
        rows.iter().map(decode_row).collect()
    }

    async fn run_script(&mut self, text: &str) -> Result<Vec<SqlRow>, sqlx::Error> {
        let rows = sqlx::raw_sql(AssertSqlSafe(text.to_owned())).fetch_all(self).await?;
        rows.iter().map(decode_row).collect()
    }

    async fn insert(&mut self, insert: &InsertStatement, rows: RowsBatch) -> Result<(), sqlx::Error> {
        let column_refs: Vec<&TableColumn> = insert.columns.iter().collect();
        for part in rows.split_into_parts(next_rows) {
            run(self, insert_text(insert), bind_arrays(&column_refs, part)?).await?;
        }
        Ok(())
    }

    async fn run_update(&mut self, update: &UpdateStatement, rows: RowsBatch) -> Result<(), sqlx::Error> {
        if rows.is_empty() {
            return Ok(());
        }
        let column_refs: Vec<&TableColumn> = update.key.iter().chain(update.set).collect();
        run(self, update_text(update), bind_arrays(&column_refs, rows)?).await
    }

    async fn run_delete(&mut self, delete: &DeleteStatement, rows: RowsBatch) -> Result<(), sqlx::Error> {
        if rows.is_empty() {
            return Ok(());
        }
        let column_refs: Vec<&TableColumn> = delete.key.iter().collect();
        run(self, delete_text(delete), bind_arrays(&column_refs, rows)?).await
    }
}
