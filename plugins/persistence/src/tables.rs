//! Defines the tables. People and other programs read them, so their columns are a contract. A change of it
//! needs a new schema version.

use kubewitness_sdk::Error;
use kubewitness_sdk::sql::{self, Dialect, OnConflict, TableWrite, Value};

pub const STATUS: &str = "object_status";
pub const HISTORY: &str = "object_history";
const SCHEMA: &str = "object_schema";
const VERSION: i64 = 1;

/// The `id` alone makes a row of the history unique. The version only comes first so that new rows go to the
/// end of the index. With an index over ids alone, whose uids are random, an insert takes three times as long
/// and grows with the table. No id has two versions.
pub const HISTORY_KEY: [&str; 2] = ["resource_version", "id"];

/// The columns of both tables and their content, in the order of the contract.
pub const COLUMNS: [(&str, Holds); 21] = [
    ("id", Holds::Id),
    ("seq", Holds::Position),
    ("source", Holds::Word),
    ("api_group", Holds::Word),
    ("kind", Holds::Word),
    ("namespace", Holds::Name),
    ("name", Holds::Name),
    ("uid", Holds::Uid),
    ("resource_version", Holds::Version),
    ("change", Holds::Word),
    ("phase", Holds::Word),
    ("reason", Holds::Word),
    ("message", Holds::Word),
    ("attempt", Holds::Count),
    ("ready", Holds::Count),
    ("total", Holds::Count),
    ("exit_code", Holds::MaybeCount),
    ("terminal", Holds::Count),
    ("owner_kind", Holds::MaybeWord),
    ("owner_name", Holds::MaybeWord),
    ("observed_at", Holds::Word),
];
pub const PREVIOUS: (&str, Holds) = ("previous_phase", Holds::MaybeWord);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holds {
    Id,
    Uid,
    Version,
    /// The name of an object or a namespace.
    Name,
    Word,
    MaybeWord,
    Position,
    Count,
    MaybeCount,
}

impl Holds {
    /// The SQL type. Counts have 64 bits on servers, because an object may claim any number. An index of
    /// MySQL has at most 3,072 bytes, and a character takes four. Texts are compared byte by byte, which is
    /// not MySQL's default.
    fn sql(self, dialect: Dialect) -> &'static str {
        match (dialect, self) {
            (_, Self::Position) => "BIGINT NOT NULL",
            (Dialect::Sqlite, Self::Count) => "INTEGER NOT NULL",
            (Dialect::Sqlite, Self::MaybeCount) => "INTEGER",
            (_, Self::Count) => "BIGINT NOT NULL",
            (_, Self::MaybeCount) => "BIGINT",
            (Dialect::Mysql, Self::Id) => "VARCHAR(600) COLLATE utf8mb4_bin NOT NULL",
            (Dialect::Mysql, Self::Version) => "VARCHAR(160) COLLATE utf8mb4_bin NOT NULL",
            (Dialect::Mysql, Self::Uid) => "VARCHAR(700) COLLATE utf8mb4_bin NOT NULL",
            (Dialect::Mysql, Self::Name) => "VARCHAR(1024) COLLATE utf8mb4_bin NOT NULL",
            (Dialect::Mysql, Self::Word) => "TEXT COLLATE utf8mb4_bin NOT NULL",
            (Dialect::Mysql, Self::MaybeWord) => "TEXT COLLATE utf8mb4_bin",
            (_, Self::MaybeWord) => "TEXT",
            (_, Self::Id | Self::Uid | Self::Version | Self::Name | Self::Word) => "TEXT NOT NULL",
        }
    }
}

/// Creates what is missing, and refuses tables that a newer version of this plugin has changed. `missing`: a
/// table was missing, whatever the version says.
pub fn prepare(database: &str, index: bool, missing: bool) -> Result<(), Error> {
    let dialect = sql::dialect_of(database)?;
    // If the tables exist, nothing is created: that would wait for other writers of the tables.
    let newest = match version(database) {
        Err(Error::Invalid(message)) if message.contains("no such table") => None,
        newest => newest?,
    };
    if let Some(newer) = newest.filter(|newest| *newest > VERSION) {
        return Err(Error::Unavailable(format!(
            "the tables have version {newer}, this plugin writes version {VERSION}"
        )));
    }
    if newest.is_none() || missing {
        make(database, dialect)?;
    }
    if index {
        make_indexes(database, dialect)?;
    }
    if newest == Some(VERSION) {
        return Ok(());
    }
    let row = TableWrite {
        table: SCHEMA.to_string(),
        columns: vec!["version".to_string()],
        key: vec!["version".to_string()],
        // Another instance may have written it at the same time.
        on_conflict: OnConflict::Ignore,
        rows: vec![vec![Value::Integer(VERSION)]],
    };
    sql::write(database, &row).map(drop)
}

fn version(database: &str) -> Result<Option<i64>, Error> {
    let newest = sql::query(database, &format!("SELECT max(version) FROM {SCHEMA}"), &[])?;
    Ok(match newest.first().and_then(|row| row.first()) {
        Some(Value::Integer(version)) => Some(*version),
        _ => None,
    })
}

fn make(database: &str, dialect: Dialect) -> Result<(), Error> {
    sql::run(database, &create(STATUS, &COLUMNS, "uid", dialect))?;
    let history: Vec<_> = COLUMNS.into_iter().chain([PREVIOUS]).collect();
    sql::run(database, &create(HISTORY, &history, &HISTORY_KEY.join(", "), dialect))?;
    let version = "BIGINT NOT NULL PRIMARY KEY";
    sql::run(database, &format!("CREATE TABLE IF NOT EXISTS {SCHEMA} (version {version})")).map(drop)
}

fn make_indexes(database: &str, dialect: Dialect) -> Result<(), Error> {
    // MySQL has no IF NOT EXISTS here, and can't index whole names.
    let (missing, name) = match dialect {
        Dialect::Mysql => ("", "namespace(191), name(191)"),
        Dialect::Sqlite | Dialect::Postgres => ("IF NOT EXISTS ", "namespace, name"),
    };
    let indexes = [
        format!("CREATE INDEX {missing}object_status_by_name ON object_status ({name})"),
        format!("CREATE INDEX {missing}object_history_by_uid ON object_history (uid, seq)"),
    ];
    for index in indexes {
        match sql::run(database, &index) {
            Err(Error::Invalid(message)) if message.contains("Duplicate key name") => {}
            made => made.map(drop)?,
        }
    }
    Ok(())
}

/// Quotes names: `change` is a reserved word of MySQL. Some of its servers refuse a table without a primary
/// key.
fn create(table: &str, columns: &[(&str, Holds)], key: &str, dialect: Dialect) -> String {
    let columns: Vec<_> =
        columns.iter().map(|(name, holds)| format!("\"{name}\" {}", holds.sql(dialect))).collect();
    format!("CREATE TABLE IF NOT EXISTS {table} ({}, PRIMARY KEY ({key}))", columns.join(", "))
}
