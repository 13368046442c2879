//! Brings a database to the version of the tables that this plugin writes, and adds the configured columns.
//! Several instances may do so at once, and a crash may come between any two statements. So each step is
//! checked before it is done, and a step that another instance has done meanwhile is not an error.

use std::collections::BTreeMap;

use kubewitness_sdk::sql::{self, Dialect, OnConflict, TableWrite, Value};
use kubewitness_sdk::{Error, log};

use crate::config::{Column, Config};
use crate::schema::{
    self, COLUMNS_TABLE, CURSORS, DATABASE, HISTORY, PrefixedNames, SCHEMA, STATUS, VERSION,
};

/// The most columns that configurations may add over time. Each adds a value to every write, even if no
/// configuration names it any more.
const MOST_ADDED_COLUMNS: usize = 128;

/// The text with which the host reports that the database's user lacks a right.
const LACKS_RIGHT: &str = "refuses it";
/// A message that contains this already advises an administrator.
const GRANT_ADVICE: &str = "let a user who may";

/// The tables that were found or created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadyTables {
    pub dialect: Dialect,
    /// Columns that a former configuration added and the present one does not name.
    pub retired: Vec<String>,
}

/// Creates what is missing, and refuses tables that a newer version of this plugin has changed. `missing` is
/// true if a table was missing although the version is present.
pub fn prepare(config: &Config, missing: bool) -> Result<ReadyTables, Error> {
    let dialect = sql::dialect_of(DATABASE)?;
    let tables = Tables { config, names: PrefixedNames(&config.prefix), dialect };
    tables.prepare(missing).map_err(|error| match error {
        // The states are not at fault for wrong tables, so none is parked for them.
        Error::Invalid(why) => Error::Unavailable(format!("the tables can't be prepared: {why}")),
        Error::Unavailable(why) if why.contains(LACKS_RIGHT) && !why.contains(GRANT_ADVICE) => {
            tables.for_an_administrator(&why)
        }
        other => other,
    })
}

/// Creates the tables of outcomes if they are missing, and their view if views are requested.
pub fn prepare_outcomes(config: &Config) -> Result<(), Error> {
    let dialect = sql::dialect_of(DATABASE)?;
    let tables = Tables { config, names: PrefixedNames(&config.prefix), dialect };
    let asked = format!("SELECT count(*) FROM {} WHERE 1 = 0", tables.names.of(CURSORS));
    match sql::query(DATABASE, &asked, &[]) {
        Ok(_) => {}
        Err(Error::Invalid(message)) if !message.contains("no such table") => {
            return Err(Error::Invalid(message));
        }
        Err(Error::Invalid(_)) if !config.create => {
            return Err(tables.for_an_administrator("tables for `causes` are missing, and `create` is false"));
        }
        Err(Error::Invalid(_)) => {
            let made = schema::outcome_tables(tables.names, dialect);
            made.iter().try_for_each(|statement| tables.make_if_missing(statement))?;
        }
        Err(error) => return Err(error),
    }
    match config.views && config.create {
        true => tables.make_if_missing(&schema::causes_view(tables.names, dialect)),
        false => Ok(()),
    }
}

struct Tables<'c> {
    config: &'c Config,
    names: PrefixedNames<'c>,
    dialect: Dialect,
}

impl Tables<'_> {
    /// The statements that create tables come before rows, because MySQL commits at each of the former.
    fn prepare(&self, missing: bool) -> Result<ReadyTables, Error> {
        let newest = self.version()?;
        if let Some(newer) = newest.filter(|newest| *newest > VERSION) {
            return Err(Error::Unavailable(format!(
                "the tables have version {newer}, this plugin writes version {VERSION}: run the newer plugin again, or \
                 give this one tables of its own with `prefix`"
            )));
        }
        // If the tables exist, nothing is created, because that would wait for other writers of the tables.
        let from = if missing { 0 } else { newest.unwrap_or(0) };
        if from < VERSION {
            self.migrate(from)?;
        }
        let known = self.known_columns()?;
        self.check_types(&known)?;
        self.add_columns()?;
        let by_name = self.config.index.then(|| schema::indexes(self.names, self.dialect));
        let by_time = self.config.keep.map(|_| schema::indexes_by_time(self.names, self.dialect));
        for index in by_name.into_iter().chain(by_time).flatten().filter(|_| self.config.create) {
            self.make_if_missing(&index)?;
        }
        if self.config.views && self.config.create {
            let views = schema::views(self.names, self.dialect);
            views.iter().try_for_each(|view| self.make_if_missing(view))?;
        }
        self.insert_if_missing(
            SCHEMA,
            &["version"],
            (newest.unwrap_or(0) + 1..=VERSION).map(|version| vec![version.into()]),
        )?;
        let new = self.config.columns.iter().filter(|column| !known.contains_key(&column.name));
        let new = new.map(|column| vec![column.name.as_str().into(), column.holds.word().into()]);
        self.insert_if_missing(COLUMNS_TABLE, &["name", "type"], new)?;
        Ok(ReadyTables { dialect: self.dialect, retired: self.retired_columns(&known)? })
    }

    fn version(&self) -> Result<Option<i64>, Error> {
        let asked = format!("SELECT max(version) FROM {}", self.names.of(SCHEMA));
        match sql::query(DATABASE, &asked, &[]) {
            Err(Error::Invalid(message)) if message.contains("no such table") => Ok(None),
            newest => Ok(match newest?.first().and_then(|row| row.first()) {
                Some(Value::Integer(version)) => Some(*version),
                _ => None,
            }),
        }
    }

    fn migrate(&self, from: i64) -> Result<(), Error> {
        if !self.config.create {
            let what = match from {
                0 => "tables are missing".to_string(),
                from => format!("the tables have version {from}, this plugin writes version {VERSION}"),
            };
            return Err(self.for_an_administrator(&format!("{what}, and `create` is false")));
        }
        for version in from + 1..=VERSION {
            let statements = schema::version(version, self.names, self.dialect);
            statements.iter().try_for_each(|statement| self.make_if_missing(statement))?;
        }
        Ok(())
    }

    /// Names the files for a person who has the right to create tables.
    fn for_an_administrator(&self, why: &str) -> Error {
        let folder = schema::folder(self.dialect);
        let prefix = match self.config.prefix.as_str() {
            "" => String::new(),
            prefix => format!(", with {prefix} before each name that begins with object_"),
        };
        warn_administrator(
            why,
            &format!(
                "let a user who may make tables run the files of {folder} that the database lacks{prefix}"
            ),
        )
    }

    /// Runs a statement that creates something. It may exist already, whoever created it.
    fn make_if_missing(&self, statement: &str) -> Result<(), Error> {
        match sql::run(DATABASE, statement) {
            Err(Error::Invalid(message)) if exists_already(&message) => Ok(()),
            made => made.map(drop),
        }
    }

    /// The columns of this and of former configurations, with the type of each.
    fn known_columns(&self) -> Result<BTreeMap<String, String>, Error> {
        let table = self.names.of(COLUMNS_TABLE);
        let rows = sql::query(
            DATABASE,
            &format!("SELECT name, type FROM {table} LIMIT {}", MOST_ADDED_COLUMNS + 1),
            &[],
        )?;
        let known: BTreeMap<_, _> = rows
            .into_iter()
            .filter_map(|row| match <[Value; 2]>::try_from(row) {
                Ok([Value::Text(name), Value::Text(holds)]) => Some((name, holds)),
                _ => None,
            })
            .collect();
        let new = self.config.columns.iter().filter(|column| !known.contains_key(&column.name)).count();
        if known.len() + new > MOST_ADDED_COLUMNS {
            return Err(Error::Unavailable(format!(
                "the tables would have more than {MOST_ADDED_COLUMNS} columns of configurations: remove old ones from the tables \
                 and from {table}"
            )));
        }
        Ok(known)
    }

    fn check_types(&self, known: &BTreeMap<String, String>) -> Result<(), Error> {
        for Column { name, holds, .. } in &self.config.columns {
            if let Some(other) = known.get(name).filter(|other| *other != holds.word()) {
                return Err(Error::Unavailable(format!(
                    "the column `{name}` was added for the type {other}, and the configuration says {}: give the new \
                     column another name",
                    holds.word()
                )));
            }
        }
        Ok(())
    }

    fn add_columns(&self) -> Result<(), Error> {
        let names: Vec<_> = self.config.columns.iter().map(|column| column.name.as_str()).collect();
        let mut lacking = Vec::new();
        for table in [STATUS, HISTORY].map(|table| self.names.of(table)) {
            // If nothing is missing, one query is enough.
            if self.has_columns(&table, &names)? {
                continue;
            }
            for Column { name, holds, .. } in &self.config.columns {
                if !self.has_columns(&table, &[name])? {
                    lacking.push(schema::add_column(&table, name, schema::of_type(*holds), self.dialect));
                }
            }
        }
        let what = || {
            format!(
                "let a user who may change tables run `{}`",
                for_clients(lacking.join("; "), self.dialect)
            )
        };
        if !lacking.is_empty() && !self.config.create {
            let why = "columns of the configuration are missing, and `create` is false";
            return Err(Error::Unavailable(format!("{why}: {}", what())));
        }
        lacking.iter().try_for_each(|statement| self.make_if_missing(statement)).map_err(
            |error| match error {
                Error::Unavailable(why) if why.contains(LACKS_RIGHT) => warn_administrator(
                    &format!("columns of the configuration are missing, and {why}"),
                    &what(),
                ),
                other => other,
            },
        )
    }

    /// Whether a table has all of these columns. Plugins can't read the catalogues of servers, so the query
    /// reads the columns themselves. Each has the table's name in front, because SQLite takes an unknown name
    /// in quotes for a text.
    fn has_columns(&self, table: &str, columns: &[&str]) -> Result<bool, Error> {
        if columns.is_empty() {
            return Ok(true);
        }
        let counts: Vec<_> = columns.iter().map(|column| format!("count({table}.\"{column}\")")).collect();
        let asked = format!("SELECT {} FROM {table} WHERE 1 = 0", counts.join(", "));
        match sql::query(DATABASE, &asked, &[]) {
            Err(Error::Invalid(message)) if !message.contains("no such table") => Ok(false),
            there => there.map(|_| true),
        }
    }

    /// Columns that a row sets to NULL, so that object_status does not keep values of an older configuration.
    /// Somebody may have removed some of them from the tables.
    fn retired_columns(&self, known: &BTreeMap<String, String>) -> Result<Vec<String>, Error> {
        let is_named = |name: &String| self.config.columns.iter().any(|column| column.name == *name);
        let mut retired: Vec<_> = known.keys().filter(|name| !is_named(name)).cloned().collect();
        retired.sort_unstable();
        let mut there = Vec::new();
        for name in retired {
            if self.has_columns(&self.names.of(STATUS), &[&name])?
                && self.has_columns(&self.names.of(HISTORY), &[&name])?
            {
                there.push(name);
            }
        }
        Ok(there)
    }

    /// Another instance may have written the same rows at the same time.
    fn insert_if_missing(
        &self,
        table: &str,
        columns: &[&str],
        rows: impl Iterator<Item = Vec<Value>>,
    ) -> Result<(), Error> {
        let columns: Vec<_> = columns.iter().map(|column| column.to_string()).collect();
        let rows = TableWrite {
            table: self.names.of(table),
            key: columns[..1].to_vec(),
            columns,
            on_conflict: OnConflict::Ignore,
            rows: rows.collect(),
        };
        if rows.rows.is_empty() { Ok(()) } else { sql::write(DATABASE, &rows).map(drop) }
    }
}

/// Logs advice for an administrator. A refusal undoes the transaction, and the host then reports only that,
/// so both are logged.
fn warn_administrator(why: &str, what: &str) -> Error {
    log::warn(what, &[("why", why)]);
    Error::Unavailable(format!("{why}: {what}"))
}

/// MySQL's clients take a name in double quotes for a text.
pub fn for_clients(text: String, dialect: Dialect) -> String {
    if dialect == Dialect::Mysql { text.replace('"', "`") } else { text }
}

/// Whether SQLite or MySQL reports that a column or an index exists already. They have no `IF NOT EXISTS` for
/// it.
fn exists_already(message: &str) -> bool {
    let message = message.to_ascii_lowercase();
    message.contains("duplicate column name") || message.contains("duplicate key name")
}
