//! The statements of each version, and those that configuration adds.

use kubewitness_sdk::sql::Dialect;

use super::{
    COLUMNS, COLUMNS_TABLE, CURSORS, ColumnContent, DOCUMENT, HISTORY, HISTORY_KEY, OUTCOME, OUTCOMES,
    OWNER_UID, PREVIOUS, PrefixedNames, SCHEMA, STATUS, TRANSITION, TRANSITIONS, TRANSITIONS_KEY,
};

/// The version that this plugin writes.
pub const VERSION: i64 = 2;

/// The project's folder with the same statements as files.
pub fn folder(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Sqlite => "deploy/schema/sqlite",
        Dialect::Postgres => "deploy/schema/postgres",
        Dialect::Mysql => "deploy/schema/mysql",
    }
}

/// The statements that a version adds to the previous one. Each may be repeated, except those that add a
/// column to a table of SQLite or MySQL, which have no `IF NOT EXISTS` for that.
pub fn version(number: i64, names: PrefixedNames<'_>, dialect: Dialect) -> Vec<String> {
    match number {
        1 => first(names, dialect),
        2 => second(names, dialect),
        _ => Vec::new(),
    }
}

fn first(names: PrefixedNames<'_>, dialect: Dialect) -> Vec<String> {
    let history: Vec<_> = COLUMNS.into_iter().chain([PREVIOUS]).collect();
    vec![
        create(&names.of(STATUS), &COLUMNS, &["uid"], dialect),
        create(&names.of(HISTORY), &history, &HISTORY_KEY, dialect),
        format!("CREATE TABLE IF NOT EXISTS {} (version BIGINT NOT NULL PRIMARY KEY)", names.of(SCHEMA)),
    ]
}

/// Configured columns, transitions, documents, and the link from a pod to its job.
fn second(names: PrefixedNames<'_>, dialect: Dialect) -> Vec<String> {
    let columns = [("name", ColumnContent::Version), ("type", ColumnContent::Word)];
    vec![
        add_column(&names.of(STATUS), OWNER_UID.0, OWNER_UID.1, dialect),
        add_column(&names.of(HISTORY), OWNER_UID.0, OWNER_UID.1, dialect),
        add_column(&names.of(HISTORY), DOCUMENT.0, DOCUMENT.1, dialect),
        create(&names.of(TRANSITIONS), &TRANSITION, &TRANSITIONS_KEY, dialect),
        create(&names.of(COLUMNS_TABLE), &columns, &["name"], dialect),
    ]
}

/// For `causes`. Each statement may be repeated.
pub fn outcome_tables(names: PrefixedNames<'_>, dialect: Dialect) -> [String; 2] {
    let cursor = [
        ("name", ColumnContent::Version),
        ("place", ColumnContent::Word),
        ("moves", ColumnContent::Position),
    ];
    [
        create(&names.of(OUTCOMES), &OUTCOME, &["uid"], dialect),
        create(&names.of(CURSORS), &cursor, &["name"], dialect),
    ]
}

/// Existing rows have NULL in the new column, so no database has to rewrite them.
pub fn add_column(table: &str, name: &str, holds: ColumnContent, dialect: Dialect) -> String {
    let missing = if dialect == Dialect::Postgres { "IF NOT EXISTS " } else { "" };
    format!("ALTER TABLE {table} ADD COLUMN {missing}\"{name}\" {}", holds.sql(dialect))
}

/// For people who look up a single object.
pub fn indexes(names: PrefixedNames<'_>, dialect: Dialect) -> [String; 2] {
    // MySQL has no IF NOT EXISTS here, and can't index whole names.
    let (missing, name) = match dialect {
        Dialect::Mysql => ("", "namespace(191), name(191)"),
        Dialect::Sqlite | Dialect::Postgres => ("IF NOT EXISTS ", "namespace, name"),
    };
    [(STATUS, "by_name", name), (HISTORY, "by_uid", "uid, seq")].map(|(table, by, columns)| {
        let table = names.of(table);
        format!("CREATE INDEX {missing}{table}_{by} ON {table} ({columns})")
    })
}

/// For the deletion of old rows.
pub fn indexes_by_time(names: PrefixedNames<'_>, dialect: Dialect) -> [String; 2] {
    let (missing, observed_at) = match dialect {
        Dialect::Mysql => ("", "observed_at(24)"),
        Dialect::Sqlite | Dialect::Postgres => ("IF NOT EXISTS ", "observed_at"),
    };
    [(HISTORY, observed_at), (TRANSITIONS, "changed_ms")].map(|(table, column)| {
        let table = names.of(table);
        format!("CREATE INDEX {missing}{table}_by_time ON {table} ({column})")
    })
}

/// Quotes names: `change` is a reserved word of MySQL. Some of its servers refuse a table without a primary
/// key.
fn create(table: &str, columns: &[(&str, ColumnContent)], key: &[&str], dialect: Dialect) -> String {
    let columns: Vec<_> =
        columns.iter().map(|(name, holds)| format!("\"{name}\" {}", holds.sql(dialect))).collect();
    format!("CREATE TABLE IF NOT EXISTS {table} ({}, PRIMARY KEY ({}))", columns.join(", "), key.join(", "))
}
