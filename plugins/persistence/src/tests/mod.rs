//! Tests of statements and verdicts against a scripted database.

mod configuration;
mod generated;
mod outcomes;
mod prepared;
mod transitions;
mod written;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use kubewitness_sdk::log::Level;
use kubewitness_sdk::sql::{Dialect, TableWrite};
use kubewitness_sdk::{Change, testing};

use super::*;
use crate::config::{Column, Documents, Type};
use crate::schema::{TRANSITION, TRANSITIONS};

type Refusal = Box<dyn Fn(&TableWrite) -> Option<Error>>;

/// A database that records what it receives, and refuses what a test tells it to.
#[derive(Default)]
struct Database {
    statements: RefCell<Vec<String>>,
    writes: RefCell<Vec<TableWrite>>,
    version: RefCell<Option<i64>>,
    dialect: Cell<Option<Dialect>>,
    refuse: RefCell<Option<Refusal>>,
    /// The error of each statement that makes something.
    refuse_statements: RefCell<Option<Error>>,
    /// The columns that configurations have added.
    columns: RefCell<HashMap<String, String>>,
    /// Columns that the tables lack until they are added.
    lacks: RefCell<Vec<String>>,
    /// The document of every state.
    document: RefCell<Option<String>>,
    reads: RefCell<Vec<String>>,
    /// The answer of object_status to the question who shows an object.
    shown: RefCell<Vec<Vec<Value>>>,
    logged: RefCell<Vec<String>>,
    /// The states of the call.
    states: RefCell<Vec<State>>,
}

impl Database {
    /// With the tables of this version.
    fn ready() -> Rc<Self> {
        Rc::new(Self { version: RefCell::new(Some(schema::VERSION)), ..Self::default() })
    }

    fn handle(self: &Rc<Self>, config: &Config, states: &[State]) -> Vec<Verdict> {
        FOUND_TABLES.set(None);
        *self.states.borrow_mut() = states.to_vec();
        testing::with_host(self.clone(), || Persistence::handle(config, states))
    }

    fn written(&self, table: &str) -> Vec<TableWrite> {
        self.writes.borrow().iter().filter(|write| write.table == table).cloned().collect()
    }

    /// The newest transition of each object that is asked about.
    fn transitions(&self, uids: &[Value]) -> Vec<Vec<Value>> {
        let place = |name: &str| TRANSITION.iter().position(|(column, _)| *column == name).unwrap();
        let wanted = ["uid", "seq", "to_phase", "changed_ms", "gpus"].map(place);
        let mut newest: HashMap<String, Vec<Value>> = HashMap::new();
        for row in self.written(TRANSITIONS).iter().flat_map(|write| &write.rows) {
            if let (Value::Text(uid), true) = (&row[0], uids.contains(&row[0])) {
                newest.insert(uid.clone(), wanted.map(|place| row[place].clone()).to_vec());
            }
        }
        newest.into_values().collect()
    }
}

impl testing::Host for Database {
    fn document(&self, _: u64) -> Result<Option<String>, Error> {
        self.reads.borrow_mut().push(String::new());
        Ok(self.document.borrow().clone())
    }

    fn document_value(&self, _: u64, pointer: &str) -> Result<Option<String>, Error> {
        self.reads.borrow_mut().push(pointer.to_string());
        let Some(document) = &*self.document.borrow() else { return Ok(None) };
        // The host finds a value in the text, and does not parse numbers.
        let Ok(document) = serde_json::from_str::<serde_json::Value>(document) else {
            return Ok(Some("1e400".into()));
        };
        Ok(document.pointer(pointer).map(ToString::to_string))
    }

    fn sql_dialect(&self, _: &str) -> Result<Dialect, Error> {
        Ok(self.dialect.get().unwrap_or(Dialect::Sqlite))
    }

    fn sql_execute(&self, database: &str, statement: &str, rows: &[Vec<Value>]) -> Result<u64, Error> {
        assert_eq!((database, rows.len()), ("main", 1));
        self.statements.borrow_mut().push(statement.to_string());
        if let Some(error) = &*self.refuse_statements.borrow() {
            return Err(error.clone());
        }
        self.lacks.borrow_mut().retain(|column| !statement.contains(&format!("\"{column}\"")));
        Ok(0)
    }

    fn sql_query(&self, _: &str, statement: &str, given: &[Value]) -> Result<Vec<Vec<Value>>, Error> {
        if statement.starts_with("SELECT max(version)") {
            return Ok(vec![vec![(*self.version.borrow()).into()]]);
        }
        if statement.starts_with("SELECT name, type") {
            let columns = self.columns.borrow();
            return Ok(columns.iter().map(|(name, holds)| vec![name.into(), holds.into()]).collect());
        }
        if statement.starts_with("SELECT count(") {
            let lacks = self.lacks.borrow();
            let lacking = lacks.iter().find(|column| statement.contains(&format!("\"{column}\"")));
            let why = |column| Error::Invalid(format!("no such column: {column}"));
            return lacking.map_or_else(|| Ok(vec![vec![0_i64.into()]]), |column| Err(why(column)));
        }
        if statement.starts_with("SELECT uid, seq, source") {
            return Ok(self.shown.borrow().clone());
        }
        assert!(statement.starts_with("SELECT t.uid"), "{statement}");
        assert_eq!(statement.matches('?').count(), given.len());
        Ok(self.transitions(given))
    }

    fn sql_write(&self, _: &str, rows: &TableWrite) -> Result<u64, Error> {
        if let Some(error) = self.refuse.borrow().as_ref().and_then(|refuse| refuse(rows)) {
            return Err(error);
        }
        assert!(rows.rows.iter().all(|row| row.len() == rows.columns.len()), "{rows:?}");
        self.writes.borrow_mut().push(rows.clone());
        Ok(rows.rows.len() as u64)
    }

    fn sql_write_states(
        &self,
        database: &str,
        rows: &StateWrite,
        copy: Option<&TableCopy>,
    ) -> Result<u64, Error> {
        let write = testing::fill_rows(rows, &self.states.borrow())?;
        match copy {
            Some(copy) => self.sql_write_both(database, &write, copy),
            None => self.sql_write(database, &write),
        }
    }

    fn log(&self, _: Level, message: &str, fields: &[(String, String)]) {
        self.logged.borrow_mut().push(format!("{message} {fields:?}"));
    }
}

fn column(write: &TableWrite, row: usize, name: &str) -> Value {
    let at = write.columns.iter().position(|column| column == name).unwrap();
    write.rows[row][at].clone()
}

fn text(text: &str) -> Value {
    Value::Text(text.to_string())
}

fn added(name: &str, pointer: &str, holds: Type) -> Column {
    Column { name: name.into(), pointer: pointer.into(), holds }
}
