//! Reads rows with their checksums for `journal verify`, and fills them in for a migration.

use crate::store::rows::checksum::{SumCell, SummedTable, TABLES};
use crate::store::rows::{EndRow, StoreResult};
use crate::store::server::connect::session::ServerSession;
use crate::store::server::engine::dialect::ServerDialect;
use crate::store::server::engine::link::{SqlParam, SqlRow};

/// How many rows one step of a migration handles, and how many owners.
const PAGE: i64 = 512;
const OWNERS: i64 = 64 * 1024;

/// The most reported findings of one kind about links between rows.
const SOME: i64 = 100;

/// `key` is a reserved word of MySQL.
fn column_name(table: &SummedTable, column: &'static str) -> &'static str {
    match (table.name, column) {
        ("gaps", "key") => "bounds",
        ("kv", "key") => "name",
        _ => column,
    }
}

fn two_ints(row: &SqlRow) -> StoreResult<(i64, i64)> {
    Ok((row.int_at(0)?, row.int_at(1)?))
}

impl ServerSession {
    pub(super) async fn read_sealed(
        &mut self,
        table: &SummedTable,
        after: i64,
        limit: i64,
    ) -> StoreResult<Vec<Vec<SumCell>>> {
        let columns: Vec<_> = table.columns.iter().map(|name| column_name(table, name)).collect();
        let (all, key, name) = (columns.join(", "), columns[..table.keys].join(", "), table.name);
        let (text, params): (_, Vec<SqlParam>) = match table.is_numbered() {
            true => (
                format!("SELECT {all}, sum FROM kw_{name} WHERE id > ? ORDER BY id LIMIT ?"),
                vec![after.into(), limit.into()],
            ),
            false => (
                format!("SELECT {all}, sum FROM kw_{name} ORDER BY {key} LIMIT ? OFFSET ?"),
                vec![limit.into(), after.into()],
            ),
        };
        Ok(self.fetch_rows(&text, params).await?.into_iter().map(|SqlRow(cells)| cells).collect())
    }

    pub(super) async fn read_object_keys(
        &mut self,
        after: i64,
        limit: i64,
    ) -> StoreResult<Vec<(i64, i64, i64)>> {
        let text = "SELECT id, uid_key, name_key FROM kw_objects WHERE id > ? ORDER BY id LIMIT ?";
        let rows = self.fetch_rows(text, vec![after.into(), limit.into()]).await?;
        rows.into_iter().map(|row| Ok((row.int_at(0)?, row.int_at(1)?, row.int_at(2)?))).collect()
    }

    pub(super) async fn read_misowned(&mut self) -> StoreResult<Vec<(i64, i64)>> {
        let text = "SELECT d.owner, d.object FROM kw_owned d WHERE d.sum <> 31 * d.owner + 17 * d.object \
                    OR NOT EXISTS (SELECT 1 FROM kw_objects o WHERE o.id = d.owner) LIMIT ?";
        self.fetch_rows(text, vec![SOME.into()]).await?.iter().map(two_ints).collect()
    }

    pub(super) async fn read_unowned(&mut self) -> StoreResult<Vec<i64>> {
        let text = "SELECT o.id FROM kw_objects o WHERE o.owner > 0 AND NOT EXISTS \
                    (SELECT 1 FROM kw_owned d WHERE d.owner = o.owner AND d.object = o.id) LIMIT ?";
        self.fetch_numbers(text, vec![SOME.into()]).await
    }

    pub(super) async fn read_ends(&mut self, after: i64, limit: i64) -> StoreResult<Vec<EndRow>> {
        let text = "SELECT o.id, o.tail, o.newest, s.object, s.flags, s.version, s.at FROM kw_objects o \
                    LEFT JOIN kw_states s ON s.seq = o.newest WHERE o.id > ? AND o.stream > 0 \
                    ORDER BY o.id LIMIT ?";
        let row = |mut row: SqlRow| {
            Ok(EndRow {
                object: row.int_at(0)?,
                tail: row.optional_int(1)?,
                newest: row.optional_int(2)?,
                newest_object: row.optional_int(3)?,
                version: EndRow::version_of(row.optional_int(4)?, row.optional_key(5)?, row.optional_key(6)?),
            })
        };
        self.fetch_rows(text, vec![after.into(), limit.into()]).await?.into_iter().map(row).collect()
    }

    /// Computes the checksum of every row without one. It may be repeated.
    pub(crate) async fn fill_checksums(&mut self) -> StoreResult<()> {
        let last = self.fetch_numbers("SELECT coalesce(max(owner), 0) FROM kw_owned", Vec::new()).await?;
        for from in (0..=last.first().copied().unwrap_or_default()).step_by(OWNERS as usize) {
            let text = "UPDATE kw_owned SET sum = 31 * owner + 17 * object WHERE owner >= ? AND owner < ?";
            self.fetch_rows(text, vec![from.into(), (from + OWNERS).into()]).await?;
        }
        for table in &TABLES {
            let mut after = 0;
            loop {
                let page = self.read_sealed(table, after, PAGE).await?;
                for cells in &page {
                    if let Some(sum) = table.refilled_checksum(cells) {
                        self.set_sum(table, cells, sum).await?;
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

    async fn set_sum(&mut self, table: &SummedTable, cells: &[SumCell], sum: i64) -> StoreResult<()> {
        let keys: Vec<_> = table.columns[..table.keys]
            .iter()
            .map(|name| format!("{} = ?", column_name(table, name)))
            .collect();
        let text = format!("UPDATE kw_{} SET sum = ? WHERE {}", table.name, keys.join(" AND "));
        let key = cells[..table.keys].iter().map(|cell| match cell {
            SumCell::Bytes(bytes) => SqlParam::Bytes(bytes.clone()),
            cell => SqlParam::Int(cell.as_int().unwrap_or_default()),
        });
        self.fetch_rows(&text, [SqlParam::Int(sum)].into_iter().chain(key).collect()).await.map(drop)
    }

    /// Whether a table of the journal has a column.
    pub(crate) async fn has_column(&mut self, table: &str, column: &str) -> StoreResult<bool> {
        let schema = match self.dialect() {
            ServerDialect::Postgres => "current_schema()",
            ServerDialect::Mysql => "database()",
        };
        let text = format!(
            "SELECT 1 FROM information_schema.columns WHERE table_schema = {schema} AND table_name = '{table}' \
             AND column_name = '{column}'"
        );
        Ok(!self.fetch_rows(&text, Vec::new()).await?.is_empty())
    }

    /// For MySQL and MariaDB only: PostgreSQL itself creates an index only if it is missing.
    pub(crate) async fn has_index(&mut self, table: &str, index: &str) -> StoreResult<bool> {
        let text = format!(
            "SELECT 1 FROM information_schema.statistics WHERE table_schema = database() AND table_name = '{table}' \
             AND index_name = '{index}' LIMIT 1"
        );
        Ok(!self.fetch_rows(&text, Vec::new()).await?.is_empty())
    }
}
