//! Builds the controller's own statements, which write rows into one table and define what happens to a row
//! whose key exists. Names are checked and quoted, and rows with equal keys are merged. The rest is split
//! into statements of few sizes, so that prepared ones are reused.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::Arc;

use hashbrown::{DefaultHashBuilder, HashTable};
use kubewitness_core::ports::{GrantError, OnConflict, SqlDialect, SqlValue, TableWrite};

use super::guard::{GuardedStatement, MAX_BINDS, OWN_PREFIX, check_journal_name, invalid_statement};
use super::values::{MAX_ROWS, values_size};

/// The most rows of one statement. Beyond this, the cost of a statement no longer matters.
const MAX_CHUNK: usize = 256;
const MAX_COLUMNS: usize = 256;
const NAME_BYTES: usize = 63;

/// Rows that fit their columns, one for each key, ready to be written.
#[derive(Debug)]
pub struct WritePlan {
    dialect: SqlDialect,
    pub table: String,
    pub columns: Vec<String>,
    /// The columns of the key.
    pub key: Vec<usize>,
    /// The column that decides which row is newer, if rows may be replaced.
    newer: Option<usize>,
    pub rows: Vec<Vec<SqlValue>>,
}

/// Refuses the names of the database's own tables and of the controller's.
fn check_name(what: &str, name: &str) -> Result<(), GrantError> {
    let shaped = !name.is_empty()
        && name.len() <= NAME_BYTES
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
        && !name.starts_with(|c: char| c.is_ascii_digit());
    if !shaped {
        return invalid_statement(format!(
            "{what} is not named by 1 to {NAME_BYTES} letters, digits and underscores"
        ));
    }
    let lower = name.to_ascii_lowercase();
    if [OWN_PREFIX, "sqlite_", "pg_", "pragma_"].iter().any(|prefix| lower.starts_with(prefix)) {
        return invalid_statement(format!("{what} `{name}`: names that begin so are not for plugins"));
    }
    Ok(())
}

pub fn quote_name(name: &str, dialect: SqlDialect) -> String {
    // The name has been checked: it contains no quote.
    match dialect {
        SqlDialect::Mysql => format!("`{name}`"),
        SqlDialect::Sqlite | SqlDialect::Postgres => format!("\"{name}\""),
    }
}

pub fn plan_write(write: TableWrite, dialect: SqlDialect) -> Result<WritePlan, GrantError> {
    let key = check_shape(&write, dialect)?;
    let newer = match &write.on_conflict {
        OnConflict::Ignore => None,
        OnConflict::ReplaceOlder { newer } => write.columns.iter().position(|column| column == newer),
    };
    check_newer(write.rows.iter(), newer)?;
    let rows = match dialect {
        // It processes the rows one by one, each on top of those before it.
        SqlDialect::Sqlite => write.rows,
        SqlDialect::Postgres | SqlDialect::Mysql => merge(write.rows, &key, newer),
    };
    Ok(WritePlan { dialect, table: write.table, columns: write.columns, key, newer, rows })
}

/// Checks names and shapes; returns the indexes of the key's columns.
pub fn check_shape(write: &TableWrite, dialect: SqlDialect) -> Result<Vec<usize>, GrantError> {
    check_name("the table", &write.table)?;
    check_journal_name(&write.table, dialect)?;
    if write.columns.is_empty() || write.columns.len() > MAX_COLUMNS {
        return invalid_statement(format!("a write has 1 to {MAX_COLUMNS} columns"));
    }
    let mut at: HashMap<String, usize> = HashMap::new();
    for (index, column) in write.columns.iter().enumerate() {
        check_name("a column", column)?;
        check_journal_name(column, dialect)?;
        if at.insert(column.to_ascii_lowercase(), index).is_some() {
            return invalid_statement(format!("the column `{column}` is there twice"));
        }
    }
    let position = |name: &String| match write.columns.iter().position(|column| column == name) {
        Some(position) => Ok(position),
        None => invalid_statement("the key and the newer column are among the columns"),
    };
    let key = write.key.iter().map(position).collect::<Result<Vec<_>, _>>()?;
    if key.is_empty() {
        return invalid_statement("a write needs a key: the columns of a unique index");
    }
    if let OnConflict::ReplaceOlder { newer } = &write.on_conflict
        && key.contains(&position(newer)?)
    {
        return invalid_statement("the newer column is not part of the key");
    }
    if write.rows.len() > MAX_ROWS {
        return Err(GrantError::TooLarge(format!("a write has at most {MAX_ROWS} rows")));
    }
    if let Some(row) = write.rows.iter().position(|row| row.len() != write.columns.len()) {
        let (has, wants) = (write.rows[row].len(), write.columns.len());
        return invalid_statement(format!("row {row} has {has} values for {wants} columns"));
    }
    Ok(key)
}

pub fn check_newer<'w>(
    mut rows: impl Iterator<Item = &'w Vec<SqlValue>>,
    newer: Option<usize>,
) -> Result<(), GrantError> {
    let Some(newer) = newer else { return Ok(()) };
    match rows.all(|row| matches!(row.get(newer), Some(SqlValue::Integer(_)))) {
        true => Ok(()),
        false => invalid_statement("the newer column holds an integer in each row"),
    }
}

/// Merges rows with the same key: the first stays if existing rows are kept, otherwise the newest. Some
/// databases refuse a statement that meets a key twice, and others process it twice.
fn merge(rows: Vec<Vec<SqlValue>>, key: &[usize], newer: Option<usize>) -> Vec<Vec<SqlValue>> {
    let hasher = DefaultHashBuilder::default();
    // The indexes of the merged rows, by their keys.
    let mut seen: HashTable<usize> = HashTable::with_capacity(rows.len());
    let mut kept: Vec<Vec<SqlValue>> = Vec::with_capacity(rows.len());
    for row in rows {
        let Some(hash) = hash_key(&row, key, &hasher) else {
            kept.push(row);
            continue;
        };
        let has_same_key =
            |place: &usize| key.iter().all(|column| is_same(&kept[*place][*column], &row[*column]));
        let Some(place) = seen.find(hash, has_same_key).copied() else {
            // The table has room for all rows, so nothing is hashed again.
            seen.insert_unique(hash, kept.len(), |_| 0);
            kept.push(row);
            continue;
        };
        if let Some(column) = newer
            && let (SqlValue::Integer(before), SqlValue::Integer(version)) =
                (&kept[place][column], &row[column])
            && version > before
        {
            kept[place] = row;
        }
    }
    // Concurrent calls lock rows in the same order, so that they can't wait for each other in a circle.
    kept.sort_by_cached_key(|row| encode_key(row, key));
    kept
}

/// `None` if a part of the key is NULL: such a key equals no other.
fn hash_key(row: &[SqlValue], key: &[usize], hasher: &DefaultHashBuilder) -> Option<u64> {
    let mut state = hasher.build_hasher();
    for column in key {
        match &row[*column] {
            SqlValue::Null => return None,
            SqlValue::Boolean(value) => value.hash(&mut state),
            SqlValue::Integer(value) => value.hash(&mut state),
            SqlValue::Float(value) => value.to_bits().hash(&mut state),
            SqlValue::Text(value) => value.hash(&mut state),
            SqlValue::Blob(value) => value.hash(&mut state),
        }
    }
    Some(state.finish())
}

/// Whether both are the same value of the same kind. The two zeros are equal, but not the same.
fn is_same(first: &SqlValue, second: &SqlValue) -> bool {
    match (first, second) {
        (SqlValue::Float(first), SqlValue::Float(second)) => first.to_bits() == second.to_bits(),
        (first, second) => first == second,
    }
}

/// The key as sortable bytes; `None` if a part is NULL.
fn encode_key(row: &[SqlValue], key: &[usize]) -> Option<Vec<u8>> {
    let mut encoded = Vec::with_capacity(64);
    for column in key {
        let (tag, bytes): (u8, &[u8]) = match &row[*column] {
            SqlValue::Null => return None,
            SqlValue::Boolean(value) => (1, if *value { &[1] } else { &[0] }),
            SqlValue::Integer(value) => (1, &value.to_le_bytes()),
            SqlValue::Float(value) => (2, &value.to_le_bytes()),
            SqlValue::Text(value) => (3, value.as_bytes()),
            SqlValue::Blob(value) => (4, value),
        };
        encoded.push(tag);
        encoded.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
        encoded.extend_from_slice(bytes);
    }
    Some(encoded)
}

/// Splits a number of rows into the sizes of statements: powers of two, the largest first.
pub fn chunk_sizes(rows: usize, width: usize) -> impl Iterator<Item = usize> {
    let most = MAX_CHUNK.min(MAX_BINDS / width.max(1)).max(1);
    let most = 1 << most.ilog2();
    let mut left = rows;
    std::iter::from_fn(move || {
        let size = (left > 0).then(|| most.min(1 << left.ilog2()))?;
        left -= size;
        Some(size)
    })
}

/// A plugin's statement for all its rows. If it inserts one row, the rows are combined into as few statements
/// as possible. Rows with the same text share it: a long text for each of many rows would not fit into
/// memory.
pub fn statements_for_rows(
    checked: &GuardedStatement<'_>,
    rows: Vec<Vec<SqlValue>>,
) -> Vec<(Arc<str>, Vec<SqlValue>)> {
    let Some(insert) = checked.as_row_insert().filter(|_| rows.len() > 1) else {
        let text: Arc<str> = checked.text.into();
        return rows.into_iter().map(|row| (Arc::clone(&text), row)).collect();
    };
    let sizes = chunk_sizes(rows.len(), checked.arity);
    let mut rows = rows.into_iter();
    let mut last: Option<(usize, Arc<str>)> = None;
    let statement = |size| {
        let text = match &last {
            Some((known, text)) if *known == size => Arc::clone(text),
            _ => repeat_tuple(insert.head, insert.tuple, insert.tail, size).into(),
        };
        last = Some((size, Arc::clone(&text)));
        (text, rows.by_ref().take(size).flatten().collect())
    };
    sizes.map(statement).collect()
}

fn repeat_tuple(head: &str, tuple: &str, tail: &str, rows: usize) -> String {
    let mut text = String::with_capacity(head.len() + (tuple.len() + 1) * rows + tail.len());
    text.push_str(head);
    for row in 0..rows {
        if row > 0 {
            text.push(',');
        }
        text.push_str(tuple);
    }
    text.push_str(tail);
    text
}

impl WritePlan {
    pub fn quoted_table(&self) -> String {
        quote_name(&self.table, self.dialect)
    }

    fn quoted_column(&self, column: usize) -> String {
        quote_name(&self.columns[column], self.dialect)
    }

    fn list_columns(&self, columns: impl Iterator<Item = usize>) -> String {
        columns.map(|column| self.quoted_column(column)).collect::<Vec<_>>().join(", ")
    }

    fn all_columns(&self) -> std::ops::Range<usize> {
        0..self.columns.len()
    }

    fn other_columns(&self) -> impl Iterator<Item = usize> {
        self.all_columns().filter(|column| !self.key.contains(column))
    }

    /// `INSERT INTO table (columns) `.
    pub fn insert_head(&self) -> String {
        format!("INSERT INTO {} ({}) ", self.quoted_table(), self.list_columns(self.all_columns()))
    }

    /// The placeholders of one row's values.
    fn placeholder_tuple(&self) -> String {
        format!("({})", vec!["?"; self.columns.len()].join(","))
    }

    /// A statement that runs once for each row.
    pub fn for_one_row(&self) -> String {
        format!("{}VALUES {}{}", self.insert_head(), self.placeholder_tuple(), self.conflict_tail())
    }

    /// The clause for a row whose key exists.
    pub fn conflict_tail(&self) -> String {
        match self.dialect {
            SqlDialect::Sqlite | SqlDialect::Postgres => self.on_conflict(),
            SqlDialect::Mysql => self.on_duplicate_key(),
        }
    }

    fn on_conflict(&self) -> String {
        let keys = self.list_columns(self.key.iter().copied());
        let Some(newer) = self.newer else { return format!(" ON CONFLICT ({keys}) DO NOTHING") };
        let set: Vec<_> = self
            .other_columns()
            .map(|c| self.quoted_column(c))
            .map(|c| format!("{c} = excluded.{c}"))
            .collect();
        let (set, newer, table) = (set.join(", "), self.quoted_column(newer), self.quoted_table());
        format!(" ON CONFLICT ({keys}) DO UPDATE SET {set} WHERE excluded.{newer} > {table}.{newer}")
    }

    /// MySQL has no condition for the whole update, so each column has its own. Later assignments see the
    /// earlier ones, so the deciding column is assigned last. (`INSERT IGNORE` would turn every error into a
    /// warning.)
    fn on_duplicate_key(&self) -> String {
        let Some(newer) = self.newer else {
            let same = self.quoted_column(self.key[0]);
            return format!(" ON DUPLICATE KEY UPDATE {same} = {same}");
        };
        let decides = self.quoted_column(newer);
        let others = self.other_columns().filter(|column| *column != newer).chain([newer]);
        let set: Vec<_> = others
            .map(|column| self.quoted_column(column))
            .map(|c| format!("{c} = IF(VALUES({decides}) > {decides}, VALUES({c}), {c})"))
            .collect();
        format!(" ON DUPLICATE KEY UPDATE {}", set.join(", "))
    }

    /// One statement for all rows, with one array for each column.
    pub fn unnested_statement(&self, arrays: &[&str], casts: &[Option<&str>]) -> String {
        let arrays: Vec<_> =
            arrays.iter().enumerate().map(|(n, array)| format!("${}::{array}[]", n + 1)).collect();
        let names: Vec<_> = self.all_columns().map(|n| format!("c{n}")).collect();
        let cast = |(name, cast): (&String, &Option<&str>)| match cast {
            Some(cast) => format!("CAST({name} AS {cast})"),
            None => name.clone(),
        };
        let values: Vec<_> = names.iter().zip(casts).map(cast).collect();
        format!(
            "{}SELECT {} FROM UNNEST({}) AS given ({}){}",
            self.insert_head(),
            values.join(", "),
            arrays.join(", "),
            names.join(", "),
            self.conflict_tail()
        )
    }

    /// Statements of several rows each, with their values, limited to a number of bytes.
    pub fn into_statements(self, most: usize) -> Vec<(String, Vec<SqlValue>)> {
        let head = format!("{}VALUES ", self.insert_head());
        let (tuple, tail, width) = (self.placeholder_tuple(), self.conflict_tail(), self.columns.len());
        let mut rows = self.rows.into_iter().peekable();
        let mut statements = Vec::new();
        while rows.peek().is_some() {
            let mut bytes = 0;
            let mut fitting = Vec::new();
            while let Some(row) = rows.next_if(|row| fitting.is_empty() || bytes + values_size(row) <= most) {
                bytes += values_size(&row);
                fitting.push(row);
            }
            let mut fitting = fitting.into_iter();
            for size in chunk_sizes(fitting.len(), width) {
                let values = fitting.by_ref().take(size).flatten().collect();
                statements.push((repeat_tuple(&head, &tuple, &tail, size), values));
            }
        }
        statements
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sql::guard::{StatementPurpose, check};
    use crate::sql::values::{VALUE_BYTES, check_size};

    fn strings(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn write(on_conflict: OnConflict, rows: &[(&str, i64, &str)]) -> TableWrite {
        let row = |(uid, seq, phase): &(&str, i64, &str)| {
            vec![SqlValue::Text((*uid).into()), SqlValue::Integer(*seq), SqlValue::Text((*phase).into())]
        };
        TableWrite {
            table: "status".into(),
            columns: strings(&["uid", "seq", "phase"]),
            key: strings(&["uid"]),
            on_conflict,
            rows: rows.iter().map(row).collect(),
        }
    }

    fn newer() -> OnConflict {
        OnConflict::ReplaceOlder { newer: "seq".into() }
    }

    #[test]
    fn the_newest_row_of_a_key_is_written_and_the_first_where_rows_stay() {
        let rows = [("a", 2, "Running"), ("b", 1, "Pending"), ("a", 3, "Failed"), ("a", 1, "Queued")];
        let phases = |on_conflict| {
            let plan = plan_write(write(on_conflict, &rows), SqlDialect::Mysql).unwrap();
            plan.rows.into_iter().map(|mut row| row.remove(2)).collect::<Vec<_>>()
        };
        assert_eq!(phases(newer()), [SqlValue::Text("Failed".into()), SqlValue::Text("Pending".into())]);
        let first = phases(OnConflict::Ignore);
        assert_eq!(first, [SqlValue::Text("Running".into()), SqlValue::Text("Pending".into())]);
    }

    #[test]
    fn a_write_has_no_more_columns_and_no_more_rows_than_its_bounds() {
        let shaped = |columns: usize, rows: usize| {
            let columns: Vec<_> = (0..columns).map(|column| format!("c{column}")).collect();
            let key = vec!["c0".to_owned()];
            let rows = vec![vec![SqlValue::Integer(1); columns.len()]; rows];
            let table = "t".to_owned();
            let write = TableWrite { table, columns, key, on_conflict: OnConflict::Ignore, rows };
            check_shape(&write, SqlDialect::Sqlite).map(drop)
        };
        assert_eq!(shaped(MAX_COLUMNS, 1), Ok(()));
        assert!(matches!(shaped(MAX_COLUMNS + 1, 1), Err(GrantError::Invalid(_))));
        assert_eq!(shaped(1, MAX_ROWS), Ok(()));
        assert!(matches!(shaped(1, MAX_ROWS + 1), Err(GrantError::TooLarge(_))));
    }

    #[test]
    fn a_statement_without_values_is_not_given_more_rows_than_a_write() {
        assert_eq!(check_size(&vec![vec![]; MAX_ROWS]), Ok(()));
        assert!(matches!(check_size(&vec![vec![]; MAX_ROWS + 1]), Err(GrantError::TooLarge(_))));
    }

    #[test]
    fn a_statement_for_many_rows_is_in_memory_once() {
        for text in ["UPDATE t SET n = ? WHERE k = ?", "INSERT INTO t (k, n) VALUES (?, ?)"] {
            let checked = check(text, StatementPurpose::Execute, SqlDialect::Postgres).unwrap();
            let rows = vec![vec![SqlValue::Integer(1); 2]; 1024];
            let made = statements_for_rows(&checked, rows);
            assert_eq!(made.iter().map(|(_, values)| values.len()).sum::<usize>(), 2048);
            assert!(made.len() > 1 && made.iter().all(|(text, _)| Arc::ptr_eq(text, &made[0].0)), "{text}");
        }
    }

    #[test]
    fn the_statement_guards_by_the_newer_column() {
        let plan = plan_write(write(newer(), &[("a", 1, "x"), ("b", 1, "x")]), SqlDialect::Sqlite).unwrap();
        assert_eq!(
            plan.into_statements(VALUE_BYTES)[0].0,
            "INSERT INTO \"status\" (\"uid\", \"seq\", \"phase\") VALUES (?,?,?),(?,?,?) ON CONFLICT (\"uid\") \
             DO UPDATE SET \"seq\" = excluded.\"seq\", \"phase\" = excluded.\"phase\" \
             WHERE excluded.\"seq\" > \"status\".\"seq\""
        );
    }

    #[test]
    fn each_database_has_its_own_fastest_form() {
        let rows = [("b", 1, "x"), ("a", 1, "y")];
        let postgres = plan_write(write(newer(), &rows), SqlDialect::Postgres).unwrap();
        assert_eq!(
            postgres.unnested_statement(&["text", "int8", "text"], &[None, None, Some("date")]),
            "INSERT INTO \"status\" (\"uid\", \"seq\", \"phase\") SELECT c0, c1, CAST(c2 AS date) \
             FROM UNNEST($1::text[], $2::int8[], $3::text[]) AS given (c0, c1, c2) ON CONFLICT (\"uid\") \
             DO UPDATE SET \"seq\" = excluded.\"seq\", \"phase\" = excluded.\"phase\" \
             WHERE excluded.\"seq\" > \"status\".\"seq\""
        );
        assert_eq!(postgres.rows[0][0], SqlValue::Text("a".into()), "rows are locked in order of their keys");
        let sqlite = plan_write(write(OnConflict::Ignore, &rows), SqlDialect::Sqlite).unwrap();
        assert_eq!(
            sqlite.for_one_row(),
            "INSERT INTO \"status\" (\"uid\", \"seq\", \"phase\") VALUES (?,?,?) ON CONFLICT (\"uid\") DO NOTHING"
        );
        let mysql = plan_write(write(newer(), &rows), SqlDialect::Mysql).unwrap();
        assert_eq!(
            mysql.conflict_tail(),
            " ON DUPLICATE KEY UPDATE `phase` = IF(VALUES(`seq`) > `seq`, VALUES(`phase`), `phase`), \
             `seq` = IF(VALUES(`seq`) > `seq`, VALUES(`seq`), `seq`)"
        );
        let mysql = plan_write(write(OnConflict::Ignore, &rows), SqlDialect::Mysql).unwrap();
        assert_eq!(mysql.conflict_tail(), " ON DUPLICATE KEY UPDATE `uid` = `uid`");
    }

    #[test]
    fn a_statement_holds_no_more_bytes_than_it_may() {
        let rows: Vec<_> = ["a", "b", "c", "d", "e"].map(|key| (key, 1, "0123456789")).to_vec();
        let plan = plan_write(write(newer(), &rows), SqlDialect::Mysql).unwrap();
        let sizes: Vec<_> = plan.into_statements(40).iter().map(|(_, values)| values.len() / 3).collect();
        assert_eq!(sizes, [2, 2, 1], "19 bytes a row");
    }

    #[test]
    fn rows_are_cut_into_few_different_sizes_within_the_bounds() {
        assert_eq!(chunk_sizes(64, 22).collect::<Vec<_>>(), [64]);
        assert_eq!(chunk_sizes(77, 22).collect::<Vec<_>>(), [64, 8, 4, 1]);
        assert_eq!(chunk_sizes(700, 3).collect::<Vec<_>>(), [256, 256, 128, 32, 16, 8, 4]);
        assert_eq!(chunk_sizes(0, 3).count(), 0);
        for (rows, width) in [(1000, 1), (1000, 250), (3, 32_766)] {
            assert!(chunk_sizes(rows, width).all(|size| size * width <= MAX_BINDS));
            assert_eq!(chunk_sizes(rows, width).sum::<usize>(), rows);
        }
    }

    #[test]
    fn keys_do_not_run_into_each_other_and_null_equals_nothing() {
        let merged = |rows: Vec<Vec<SqlValue>>, key: &[usize]| merge(rows, key, None).len();
        let row = |a: &str, b: &str| vec![SqlValue::Text(a.into()), SqlValue::Text(b.into())];
        assert_eq!(merged(vec![row("ab", "c"), row("a", "bc"), row("ab", "c")], &[0, 1]), 2);
        assert_ne!(encode_key(&row("ab", "c"), &[0, 1]), encode_key(&row("a", "bc"), &[0, 1]));
        let (text, blob) = (SqlValue::Text("1".into()), SqlValue::Blob(b"1".to_vec()));
        let (zero, below) = (SqlValue::Float(0.0), SqlValue::Float(-0.0));
        let odd = [text, blob, SqlValue::Integer(1), SqlValue::Boolean(true), zero, below];
        assert_eq!(merged(odd.map(|value| vec![value]).to_vec(), &[0]), 6);
        assert_eq!(merged(vec![vec![SqlValue::Null], vec![SqlValue::Null]], &[0]), 2);
    }

    #[test]
    fn names_and_shapes_that_do_not_fit_are_refused() {
        let refused = |change: &dyn Fn(&mut TableWrite)| {
            let mut write = write(newer(), &[("a", 1, "x")]);
            change(&mut write);
            plan_write(write, SqlDialect::Sqlite).is_err()
        };
        assert!(refused(&|w| w.table = "kubewitness_receipts".into()));
        assert!(refused(&|w| w.table = "sqlite_master".into()));
        assert!(refused(&|w| w.table = "a\" (b) --".into()));
        assert!(refused(&|w| w.columns[0] = "1st".into()));
        assert!(refused(&|w| w.columns[2] = "UID".into()));
        assert!(refused(&|w| w.key = vec![]));
        assert!(refused(&|w| w.key = strings(&["other"])));
        assert!(refused(&|w| w.key = strings(&["seq"])));
        assert!(refused(&|w| w.rows[0].truncate(2)));
        assert!(refused(&|w| w.rows[0][1] = SqlValue::Text("1".into())));
    }

    #[test]
    fn a_write_on_a_server_reaches_no_table_of_the_journal() {
        for name in ["kw_states", "KW_States"] {
            let named = |dialect| {
                plan_write(TableWrite { table: name.into(), ..write(newer(), &[("a", 1, "x")]) }, dialect)
                    .map(drop)
            };
            for dialect in [SqlDialect::Postgres, SqlDialect::Mysql] {
                let refused = named(dialect).unwrap_err().to_string();
                assert!(refused.contains("the journal's own"), "{dialect:?}: {refused}");
            }
            assert_eq!(named(SqlDialect::Sqlite), Ok(()), "a journal in SQLite has its own file");
        }
    }
}
