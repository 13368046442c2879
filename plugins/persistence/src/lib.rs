//! Writes every state to a database: `object_status` has the newest of each object, and
//! `object_history` has all of them. The tables are made where they are missing.
//!
//! It needs the grant `sql: [{name: main, …}]`; SQLite, PostgreSQL and MySQL get the same tables, in
//! the types that each has. What a batch writes is one transaction with the
//! receipt of its states, so a repeat changes nothing.

mod rows;
mod tables;

use std::cell::Cell;

use kubewitness_sdk::sql::{self, TableWrite};
use kubewitness_sdk::{About, Error, Plugin, State, Verdict};
use serde::Deserialize;

/// What the plugin calls its database; the operator says which one it is.
const DATABASE: &str = "main";

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Indexes for people who look up one object: each costs the hot path as much again.
    index: bool,
}

pub struct Persistence;

impl Plugin for Persistence {
    const NAME: &'static str = "persistence";
    type Config = Config;

    fn about() -> About {
        About { config_schema: include_str!("config.schema.json"), needs: vec![format!("sql:{DATABASE}")] }
    }

    fn handle(config: &Config, states: &[State]) -> Vec<Verdict> {
        match ready(config).and_then(|()| write(states)) {
            Ok(()) => vec![Verdict::Done; states.len()],
            // One bad row fails the statement of all; alone it fails alone.
            Err(Error::Invalid(_) | Error::TooLarge(_)) if states.len() > 1 => {
                states.iter().map(one).collect()
            }
            Err(error) => vec![Verdict::from(error); states.len()],
        }
    }
}

kubewitness_sdk::export!(Persistence);

thread_local! {
    /// This instance has seen the tables. Only a shortcut: [`write`] finds out where they are gone.
    static SEEN: Cell<bool> = const { Cell::new(false) };
    /// A write found a table missing.
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
        // Made in a call that was undone, or removed by somebody: the next try makes them again.
        SEEN.set(false);
        MISSING.set(true);
        return Err(Error::Unavailable(message.clone()));
    }
    written
}

fn write_tables(states: &[State]) -> Result<(), Error> {
    // A resync shows how an object is; it is no part of what happened to it.
    let (shown, happened): (Vec<_>, Vec<_>) = states.iter().partition(|state| state.is_resync());
    let history = TableWrite {
        table: tables::HISTORY.to_string(),
        columns: rows::history_columns(),
        key: tables::HISTORY_KEY.map(str::to_string).to_vec(),
        on_conflict: sql::OnConflict::Ignore,
        rows: happened.iter().map(|state| rows::history(state)).collect(),
    };
    if !history.rows.is_empty() {
        sql::write(DATABASE, &history)?;
    }
    // The rows that were sent are used again, instead of copies.
    let sent = happened.into_iter().zip(history.rows.into_iter().map(rows::without_previous));
    let resent = shown.into_iter().map(|state| (state, rows::status(state)));
    let current = sent.chain(resent).filter(|(state, _)| rows::is_current(state));
    let status = TableWrite {
        table: tables::STATUS.to_string(),
        columns: rows::status_columns(),
        key: vec!["uid".to_string()],
        on_conflict: sql::OnConflict::ReplaceOlder("seq".to_string()),
        rows: current.map(|(_, row)| row).collect(),
    };
    if status.rows.is_empty() {
        return Ok(());
    }
    sql::write(DATABASE, &status).map(drop)
}

#[cfg(test)]
mod tests;
