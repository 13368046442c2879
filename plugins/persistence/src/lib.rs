//! Writes every state to a database: `object_status` has the newest state of each object, `object_history`
//! has all of them, and `object_transitions` has each change of a phase. It creates missing tables. It sends
//! nothing, and writes only to its own tables.
//!
//! With `causes` a tick writes why objects ended badly, and with `keep` it deletes old rows.
//!
//! It needs the grant `sql: [{name: main, …}]`. SQLite, PostgreSQL and MySQL get the same tables, in each
//! one's own types. A state may be delivered more than once. So the writes of a batch share one transaction
//! with the receipts of its states, and a repeat changes nothing.

mod columns;
mod config;
mod document;
mod gpus;
mod rows;
mod schema;
mod tables;
mod ticks;
mod transitions;

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

use kubewitness_sdk::sql::{self, FilledColumn, OnConflict, StateWrite, TableCopy, Value};
use kubewitness_sdk::{About, Error, FieldError, Plugin, State, Ticking, Verdict};

use self::columns::{ColumnReader, TableColumns};
pub use self::config::Config;
use self::schema::{DATABASE, PrefixedNames};
use self::tables::ReadyTables;
use self::ticks::{outcomes, retention};

pub struct Persistence;

impl Plugin for Persistence {
    const NAME: &'static str = "persistence";
    type Config = Config;

    fn about() -> About {
        About {
            config_schema: include_str!("config.schema.json"),
            needs: vec![format!("sql:{DATABASE}")],
            needs_with: vec![
                ("keep", vec!["tick".into()]),
                ("causes", vec!["outcomes".into(), "tick".into()]),
            ],
            may_need: vec!["outcomes".into()],
            ..About::default()
        }
    }

    fn check(config: &Config) -> Vec<FieldError> {
        config::check(config)
    }

    fn handle(config: &Config, states: &[State]) -> Vec<Verdict> {
        let writer = match ready_tables(config) {
            Ok(ready) => CallWriter { config, ready, reader: ColumnReader::new(config) },
            Err(error) => return vec![Verdict::from(error); states.len()],
        };
        let verdicts = match writer.write(states) {
            Ok(()) => vec![Verdict::Done; states.len()],
            // One bad row makes the statement fail for all rows. A state that is delivered alone only fails
            // itself.
            Err(Error::Invalid(_) | Error::TooLarge(_)) if states.len() > 1 => {
                states.iter().map(|state| writer.write_one(state)).collect()
            }
            Err(error) => vec![Verdict::from(error); states.len()],
        };
        writer.reader.log_wrong_values();
        verdicts
    }
}

impl Ticking for Persistence {
    fn tick(config: &Config, _: u64) -> Result<(), String> {
        if !config.causes && config.keep.is_none() {
            return Ok(());
        }
        let ticked = ready_tables(config).and_then(|_| {
            if config.causes {
                outcomes::tick(config)?;
            }
            config.keep.map_or(Ok(()), |keep| retention::tick(config, keep))
        });
        // The tables may have changed since this instance found them.
        Ok(ticked.inspect_err(|_| FOUND_TABLES.set(None))?)
    }
}

kubewitness_sdk::export!(Persistence, tick);

thread_local! {
    /// The tables that this instance has found. They are only cached: [`CallWriter::write`] notices if they
    /// are missing.
    static FOUND_TABLES: RefCell<Option<ReadyTables>> = const { RefCell::new(None) };
    /// Whether a write failed because a table was missing.
    static MISSES_TABLE: Cell<bool> = const { Cell::new(false) };
}

fn ready_tables(config: &Config) -> Result<ReadyTables, Error> {
    if let Some(ready) = FOUND_TABLES.with_borrow(Clone::clone) {
        return Ok(ready);
    }
    let ready = tables::prepare(config, MISSES_TABLE.get())?;
    FOUND_TABLES.set(Some(ready.clone()));
    MISSES_TABLE.set(false);
    Ok(ready)
}

/// Writes the states of one call.
struct CallWriter<'c> {
    config: &'c Config,
    ready: ReadyTables,
    reader: ColumnReader<'c>,
}

impl CallWriter<'_> {
    fn write_one(&self, state: &State) -> Verdict {
        match self.write(std::slice::from_ref(state)) {
            Ok(()) => Verdict::Done,
            Err(error) => Verdict::from(error),
        }
    }

    fn write(&self, states: &[State]) -> Result<(), Error> {
        let written = self.write_tables(states);
        let Err(Error::Invalid(message)) = &written else { return written };
        let lacks_table = message.contains("no such table");
        // A connection of the pool may also remember a table as it was before another connection added the
        // column.
        if lacks_table || message.contains("has no column") {
            // The table was created in a call that was rolled back, or somebody removed it. The next try
            // creates it again.
            FOUND_TABLES.set(None);
            MISSES_TABLE.set(lacks_table);
            return Err(Error::Unavailable(message.clone()));
        }
        written
    }

    fn write_tables(&self, states: &[State]) -> Result<(), Error> {
        // A resync shows the present state of an object, and is not part of its history.
        let (shown, happened): (Vec<_>, Vec<_>) = states.iter().partition(|state| state.is_resync());
        if !happened.is_empty() {
            let hidden = rows::overlap::shown_elsewhere(DATABASE, &happened, self.names())?;
            // Other calls wait for the database after the first statement. So the host makes these rows,
            // which are most of the work, before the first statement.
            sql::write_states(
                DATABASE,
                &self.history(&happened)?,
                Some(&self.status_of(&happened, &hidden)),
            )?;
            transitions::write(&happened, self.config, self.ready.dialect)?;
        }
        let shown: Vec<_> = shown.into_iter().filter(|state| rows::is_current(state)).collect();
        if shown.is_empty() {
            return Ok(());
        }
        let TableCopy { table, key, on_conflict, .. } = self.status_of(&[], &BTreeSet::new());
        let (columns, _) = self.columns(&shown)?;
        let states = rows::positions(&shown);
        sql::write_states(DATABASE, &StateWrite { table, columns, key, on_conflict, states }, None).map(drop)
    }

    fn names(&self) -> PrefixedNames<'_> {
        PrefixedNames(&self.config.prefix)
    }

    fn history(&self, states: &[&State]) -> Result<StateWrite, Error> {
        let (mut columns, documents) = self.columns(states)?;
        columns.extend([rows::previous_column(), documents]);
        Ok(StateWrite {
            table: self.names().of(schema::HISTORY),
            columns,
            key: schema::HISTORY_KEY.map(str::to_string).to_vec(),
            on_conflict: OnConflict::Ignore,
            states: rows::positions(states),
        })
    }

    /// The rows of the history that also change the present state of their object.
    fn status_of(&self, states: &[&State], hidden: &BTreeSet<u32>) -> TableCopy {
        let says_nothing = |state: &State, place| !rows::is_current(state) || hidden.contains(&place);
        let of_the_past = states.iter().zip(0..).filter(|(state, place)| says_nothing(state, *place));
        TableCopy {
            table: self.names().of(schema::STATUS),
            columns: self.status_columns(),
            key: vec!["uid".to_string()],
            on_conflict: OnConflict::ReplaceOlder("seq".to_string()),
            without: of_the_past.map(|(_, place)| place).collect(),
        }
    }

    fn status_columns(&self) -> Vec<String> {
        let mut columns: Vec<_> = rows::status_columns().into_iter().map(|column| column.name).collect();
        columns.extend(self.config.columns.iter().map(|column| column.name.clone()));
        columns.extend(self.ready.retired.iter().cloned());
        columns
    }

    /// The columns of object_status, and the documents for object_history.
    fn columns(&self, states: &[&State]) -> Result<(Vec<FilledColumn>, FilledColumn), Error> {
        let mut columns = rows::status_columns();
        let TableColumns { configured, documents } = self.reader.columns(states)?;
        columns.extend(configured);
        columns.extend(self.ready.retired.iter().map(|column| FilledColumn::of_one(column, Value::Null)));
        Ok((columns, documents))
    }
}

#[cfg(test)]
mod tests;
