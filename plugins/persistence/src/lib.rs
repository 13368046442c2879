//! Writes every state to a database: `object_status` has the newest state of each object, and
//! `object_history` has all of them. It creates missing tables.
//!
//! It needs the grant `sql: [{name: main, …}]`. SQLite, PostgreSQL and MySQL get the same tables, in each
//! one's own types. The writes of a batch share one transaction with the receipts of its states, so a repeat
//! changes nothing.

mod rows;
mod tables;

use std::cell::Cell;

use kubewitness_sdk::sql::{self, OnConflict, TableCopy, TableWrite};
use kubewitness_sdk::{About, Error, Plugin, State, Verdict};
use serde::Deserialize;

/// The plugin's name for its database. The operator says which one it is.
const DATABASE: &str = "main";

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Whether to create indexes for people who look up one object. Each costs the hot path as much again.
    index: bool,
}

pub struct Persistence;

impl Plugin for Persistence {
    const NAME: &'static str = "persistence";
    type Config = Config;

    fn about() -> About {
        About {
            config_schema: include_str!("config.schema.json"),
            needs: vec![format!("sql:{DATABASE}")],
            ..About::default()
        }
    }

    fn handle(config: &Config, states: &[State]) -> Vec<Verdict> {
        match ready(config).and_then(|()| write(states)) {
            Ok(()) => vec![Verdict::Done; states.len()],
            // One bad row makes the statement fail for all rows. Alone it only fails itself.
            Err(Error::Invalid(_) | Error::TooLarge(_)) if states.len() > 1 => {
                states.iter().map(one).collect()
            }
            Err(error) => vec![Verdict::from(error); states.len()],
        }
    }
}

kubewitness_sdk::export!(Persistence);

thread_local! {
    /// Whether this instance has seen the tables. It is only a shortcut: [`write`] notices if they are gone.
    static SEEN: Cell<bool> = const { Cell::new(false) };
    /// Whether a write found a table missing.
    static MISSING: Cell<bool> = const { Cell::new(false) };
}

fn ready(config: &Config) -> Result<(), Error> {
    if !SEEN.get() {
        tables::prepare(DATABASE, config.index, MISSING.get())?;
        SEEN.set(true);
        MISSING.set(false);
    }
    Ok(())
}

fn one(state: &State) -> Verdict {
    match write(std::slice::from_ref(state)) {
        Ok(()) => Verdict::Done,
        Err(error) => Verdict::from(error),
    }
}

fn write(states: &[State]) -> Result<(), Error> {
    let written = write_tables(states);
    if let Err(Error::Invalid(message)) = &written
        && message.contains("no such table")
    {
        // The table was made in a call that was rolled back, or somebody removed it. The next try makes it
        // again.
        SEEN.set(false);
        MISSING.set(true);
        return Err(Error::Unavailable(message.clone()));
    }
    written
}

fn write_tables(states: &[State]) -> Result<(), Error> {
    // A resync shows how an object is. It is no part of the object's history.
    let (shown, happened): (Vec<_>, Vec<_>) = states.iter().partition(|state| state.is_resync());
    if !happened.is_empty() {
        sql::write_both(DATABASE, &history(&happened), &status_of(&happened))?;
    }
    let shown: Vec<_> = shown.into_iter().filter(|state| rows::is_current(state)).map(rows::status).collect();
    if shown.is_empty() {
        return Ok(());
    }
    let TableCopy { table, columns, key, on_conflict, .. } = status_of(&[]);
    sql::write(DATABASE, &TableWrite { table, columns, key, on_conflict, rows: shown }).map(drop)
}

fn history(states: &[&State]) -> TableWrite {
    TableWrite {
        table: tables::HISTORY.to_string(),
        columns: rows::history_columns(),
        key: tables::HISTORY_KEY.map(str::to_string).to_vec(),
        on_conflict: OnConflict::Ignore,
        rows: states.iter().map(|state| rows::history(state)).collect(),
    }
}

/// The rows of the history that also say how each object is now.
fn status_of(states: &[&State]) -> TableCopy {
    let of_the_past = states.iter().zip(0..).filter(|(state, _)| !rows::is_current(state));
    TableCopy {
        table: tables::STATUS.to_string(),
        columns: rows::status_columns(),
        key: vec!["uid".to_string()],
        on_conflict: OnConflict::ReplaceOlder("seq".to_string()),
        without: of_the_past.map(|(_, place)| place).collect(),
    }
}

#[cfg(test)]
mod tests;
