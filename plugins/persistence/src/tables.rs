//! The tables. People and other programs read them: their columns are a contract, and a change of
//! it is a new schema version.

use kubewitness_sdk::Error;
use kubewitness_sdk::sql::{self, Value};

pub const STATUS: &str = "object_status";
pub const HISTORY: &str = "object_history";
const SCHEMA: &str = "object_schema";
const VERSION: i64 = 1;

/// What makes a row of the history unique is its `id`, and the version is only in front of it so
/// that new rows come at the end of the index: over ids alone, whose uids are random, an insert
/// costs three times as much and grows with the table. An id with two versions does not exist.
pub const HISTORY_KEY: [&str; 2] = ["resource_version", "id"];

/// Columns of both tables with their types, in the order of the contract.
pub const COLUMNS: [(&str, &str); 21] = [
    ("id", "TEXT NOT NULL"),
    ("seq", "BIGINT NOT NULL"),
    ("source", "TEXT NOT NULL"),
    ("api_group", "TEXT NOT NULL"),
    ("kind", "TEXT NOT NULL"),
    ("namespace", "TEXT NOT NULL"),
    ("name", "TEXT NOT NULL"),
    ("uid", "TEXT NOT NULL"),
    ("resource_version", "TEXT NOT NULL"),
    ("change", "TEXT NOT NULL"),
    ("phase", "TEXT NOT NULL"),
    ("reason", "TEXT NOT NULL"),
    ("message", "TEXT NOT NULL"),
    ("attempt", "INTEGER NOT NULL"),
    ("ready", "INTEGER NOT NULL"),
    ("total", "INTEGER NOT NULL"),
    ("exit_code", "INTEGER"),
    ("terminal", "INTEGER NOT NULL"),
    ("owner_kind", "TEXT"),
    ("owner_name", "TEXT"),
    ("observed_at", "TEXT NOT NULL"),
];
pub const PREVIOUS: (&str, &str) = ("previous_phase", "TEXT");

/// Makes what is missing, and refuses tables that a newer version of this plugin has changed.
pub fn prepare(database: &str, index: bool) -> Result<(), Error> {
    sql::run(database, &create(STATUS, &COLUMNS, "uid"))?;
    let history: Vec<_> = COLUMNS.into_iter().chain([PREVIOUS]).collect();
    sql::run(database, &create(HISTORY, &history, &HISTORY_KEY.join(", ")))?;
    if index {
        sql::run(
            database,
            "CREATE INDEX IF NOT EXISTS object_status_by_name ON object_status (namespace, name)",
        )?;
        sql::run(database, "CREATE INDEX IF NOT EXISTS object_history_by_uid ON object_history (uid, seq)")?;
    }
    sql::run(database, &format!("CREATE TABLE IF NOT EXISTS {SCHEMA} (version INTEGER NOT NULL UNIQUE)"))?;
    let newest = sql::query(database, &format!("SELECT max(version) FROM {SCHEMA}"), &[])?;
    match newest.first().and_then(|row| row.first()) {
        Some(Value::Integer(VERSION)) => Ok(()),
        Some(Value::Integer(newer)) if *newer > VERSION => Err(Error::Unavailable(format!(
            "the tables have version {newer}, this plugin writes version {VERSION}"
        ))),
        _ => {
            let row = vec![Value::Integer(VERSION)];
            sql::execute(database, &format!("INSERT INTO {SCHEMA} (version) VALUES (?)"), &[row]).map(drop)
        }
    }
}

fn create(table: &str, columns: &[(&str, &str)], key: &str) -> String {
    let columns: Vec<_> = columns.iter().map(|(name, kind)| format!("{name} {kind}")).collect();
    format!("CREATE TABLE IF NOT EXISTS {table} ({}, UNIQUE ({key}))", columns.join(", "))
}
