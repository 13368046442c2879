//! The tables of a MySQL database as a connection knows them: their columns and unique indexes.
//!
//! MySQL can't name the index that a row is compared by. If somebody drops it, nothing fails: repeated rows are
//! added again. So unique indexes are read again after a second, and columns, whose change fails, after a
//! minute. A read for each write was rejected: it would be one more answer to wait for in each batch.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use kubewitness_core::ports::{GrantError, TableWrite};
use sqlx::mysql::MySqlConnection;

use super::{faults, values};
use crate::sql::SqlFault;
use crate::sql::servers::columns::{TableColumn, TableColumns};

pub const ENGINE: &str = "SELECT CAST(engine AS CHAR) FROM information_schema.tables \
    WHERE table_schema = DATABASE() AND table_name = ?";
const COLUMNS: &str = "SELECT CAST(column_name AS CHAR), CAST(column_type AS CHAR) \
    FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = ?";
const UNIQUE: &str = "SELECT CAST(index_name AS CHAR), CAST(column_name AS CHAR) \
    FROM information_schema.statistics WHERE table_schema = DATABASE() AND table_name = ? AND non_unique = 0";
/// The most tables that a connection remembers.
const TABLES: usize = 64;
/// How long a connection remembers a table's engine and columns.
const REMEMBERS: Duration = Duration::from_secs(60);
/// How long it remembers the unique indexes: so long may a dropped key repeat rows.
pub const REMEMBERS_KEYS: Duration = Duration::from_secs(1);

/// The tables that a connection has written.
#[derive(Default)]
pub struct KnownTables(HashMap<String, MysqlTable>);

#[derive(Clone, Debug)]
pub struct MysqlTable {
    columns_read: Instant,
    keys_read: Instant,
    pub columns: TableColumns,
    /// The columns of each unique index, in lower case.
    unique: BTreeMap<String, Vec<String>>,
}

impl KnownTables {
    pub fn clear(&mut self) {
        self.0.clear();
    }

    pub async fn describe_table(
        &mut self,
        connection: &mut MySqlConnection,
        name: &str,
    ) -> Result<MysqlTable, SqlFault> {
        if let Some(table) = self.0.get_mut(name).filter(|table| table.columns_read.elapsed() < REMEMBERS) {
            if table.keys_read.elapsed() >= REMEMBERS_KEYS {
                table.keys_read = Instant::now();
                table.unique = read_keys(connection, name).await?;
            }
            return Ok(table.clone());
        }
        let table = MysqlTable::read(connection, name).await?;
        if self.0.len() >= TABLES {
            self.0.clear();
        }
        self.0.insert(name.to_owned(), table.clone());
        Ok(table)
    }
}

fn fault(error: &sqlx::Error) -> SqlFault {
    faults::classify_fault(error)
}

async fn read_keys(
    connection: &mut MySqlConnection,
    name: &str,
) -> Result<BTreeMap<String, Vec<String>>, SqlFault> {
    let rows = sqlx::query_as::<_, (String, String)>(UNIQUE).bind(name).fetch_all(connection).await;
    let mut unique: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (index, column) in rows.map_err(|error| fault(&error))? {
        unique.entry(index).or_default().push(column.to_ascii_lowercase());
    }
    Ok(unique)
}

impl MysqlTable {
    async fn read(connection: &mut MySqlConnection, name: &str) -> Result<Self, SqlFault> {
        let read_at = Instant::now();
        let engine = sqlx::query_scalar::<_, Option<String>>(ENGINE).bind(name);
        let Some(engine) = engine.fetch_optional(&mut *connection).await.map_err(|error| fault(&error))?
        else {
            return Err(SqlFault::Own(GrantError::Invalid(format!("no such table: {name}"))));
        };
        if !engine.as_deref().is_some_and(|engine| engine.eq_ignore_ascii_case("InnoDB")) {
            let why = format!("the table `{name}` is not of the engine InnoDB: it has no transactions");
            return Err(SqlFault::Own(GrantError::Invalid(why)));
        }
        let mut columns = TableColumns::new();
        let found = sqlx::query_as::<_, (String, String)>(COLUMNS).bind(name);
        for (column, of) in found.fetch_all(&mut *connection).await.map_err(|error| fault(&error))? {
            columns.insert(column.to_ascii_lowercase(), TableColumn { kind: values::column_kind(&of), of });
        }
        let unique = read_keys(connection, name).await?;
        Ok(Self { columns_read: read_at, keys_read: read_at, columns, unique })
    }

    /// Requires that the table has no other unique index than the one that the write names. MySQL treats a
    /// row that meets any unique index as existing, and does not report which index it met.
    pub fn check_key(&self, write: &TableWrite) -> Result<(), GrantError> {
        let lower = |names: &[String]| {
            let mut names: Vec<_> = names.iter().map(|name| name.to_ascii_lowercase()).collect();
            names.sort_unstable();
            names
        };
        let (key, written) = (lower(&write.key), lower(&write.columns));
        if !self.unique.values().any(|columns| lower(columns) == key) {
            let key = write.key.join(", ");
            return Err(GrantError::Invalid(format!(
                "the table `{}` has no unique index ({key})",
                write.table
            )));
        }
        let touches = |columns: &[String]| columns.iter().any(|column| written.contains(column));
        let other = self.unique.iter().find(|(_, columns)| lower(columns) != key && touches(columns));
        match other {
            Some((name, _)) => Err(GrantError::Invalid(format!(
                "the table `{}` has a second unique index, {name}: MySQL can't tell which one a row meets",
                write.table
            ))),
            None => Ok(()),
        }
    }
}
