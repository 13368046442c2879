//! Reads rows with their checksums for `journal verify`, and fills them in for a migration.

use sqlx::sqlite::SqliteRow;
use sqlx::{AssertSqlSafe, Row, SqliteConnection, TypeInfo, ValueRef};

use crate::store::rows::StoreResult;
use crate::store::rows::checksum::{SumCell, SummedTable, TABLES};
use crate::store::sqlite::fault::classify_error;

/// Rows of one step of a migration.
const PAGE: i64 = 512;

fn decode_cell(row: &SqliteRow, column: usize) -> Result<SumCell, sqlx::Error> {
    let raw = row.try_get_raw(column)?;
    if raw.is_null() {
        return Ok(SumCell::Null);
    }
    Ok(match raw.type_info().name() {
        "TEXT" | "BLOB" => SumCell::Bytes(row.try_get_unchecked(column)?),
        _ => SumCell::Int(row.try_get_unchecked(column)?),
    })
}

async fn read(
    connection: &mut SqliteConnection,
    table: &SummedTable,
    after: i64,
    limit: i64,
) -> Result<Vec<Vec<SumCell>>, sqlx::Error> {
    let SummedTable { name, columns, keys, .. } = table;
    let (all, key) = (columns.join(", "), columns[..*keys].join(", "));
    let text = match table.is_numbered() {
        true => format!("SELECT {all}, sum FROM {name} WHERE id > ?1 ORDER BY id LIMIT ?2"),
        false => format!("SELECT {all}, sum FROM {name} ORDER BY {key} LIMIT ?2 OFFSET ?1"),
    };
    let query = sqlx::query(AssertSqlSafe(text)).bind(after).bind(limit);
    let rows = query.fetch_all(connection).await?;
    let cells = |row: &SqliteRow| (0..=columns.len()).map(|column| decode_cell(row, column)).collect();
    rows.iter().map(cells).collect()
}

pub(super) async fn sealed_rows(
    connection: &mut SqliteConnection,
    table: &SummedTable,
    after: i64,
    limit: i64,
) -> StoreResult<Vec<Vec<SumCell>>> {
    read(connection, table, after, limit).await.map_err(classify_error)
}

/// Computes the checksum of every row.
pub(crate) async fn fill_checksums(connection: &mut SqliteConnection) -> Result<(), sqlx::Error> {
    for table in &TABLES {
        let mut after = 0;
        loop {
            let page = read(connection, table, after, PAGE).await?;
            for cells in &page {
                if let Some(sum) = table.refilled_checksum(cells) {
                    set_checksum(connection, table, cells, sum).await?;
                }
            }
            after = match page.last().and_then(|cells| cells[0].as_int()) {
                Some(number) if table.is_numbered() => number,
                _ => after + page.len() as i64,
            };
            if (page.len() as i64) < PAGE {
                break;
            }
        }
    }
    Ok(())
}

async fn set_checksum(
    connection: &mut SqliteConnection,
    table: &SummedTable,
    cells: &[SumCell],
    sum: i64,
) -> Result<(), sqlx::Error> {
    let keys: Vec<_> = table.columns[..table.keys].iter().map(|column| format!("{column} = ?")).collect();
    let text = format!("UPDATE {} SET sum = ? WHERE {}", table.name, keys.join(" AND "));
    let mut query = sqlx::query(AssertSqlSafe(text)).bind(sum);
    for cell in &cells[..table.keys] {
        query = match cell.as_int() {
            Some(number) => query.bind(number),
            None => query.bind(cell.text().unwrap_or_default().to_owned()),
        };
    }
    query.execute(connection).await.map(drop)
}
