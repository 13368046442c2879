//! Tests of statements and verdicts against a scripted database.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use kubewitness_sdk::sql::{Dialect, OnConflict, Value};
use kubewitness_sdk::{Change, testing};

use super::*;

type Refusal = Box<dyn Fn(&TableWrite) -> Option<Error>>;

/// A database that records what it receives, and refuses what a test tells it to.
#[derive(Default)]
struct Database {
    statements: RefCell<Vec<String>>,
    writes: RefCell<Vec<TableWrite>>,
    version: RefCell<Option<i64>>,
    dialect: Cell<Option<Dialect>>,
    refuse: RefCell<Option<Refusal>>,
}

impl testing::Host for Database {
    fn sql_dialect(&self, _: &str) -> Result<Dialect, Error> {
        Ok(self.dialect.get().unwrap_or(Dialect::Sqlite))
    }

    fn sql_execute(&self, database: &str, statement: &str, rows: &[Vec<Value>]) -> Result<u64, Error> {
        assert_eq!((database, rows.len()), ("main", 1));
        self.statements.borrow_mut().push(statement.to_string());
        Ok(0)
    }

    fn sql_query(&self, _: &str, _: &str, _: &[Value]) -> Result<Vec<Vec<Value>>, Error> {
        Ok(vec![vec![(*self.version.borrow()).into()]])
    }

    fn sql_write(&self, _: &str, rows: &TableWrite) -> Result<u64, Error> {
        if let Some(error) = self.refuse.borrow().as_ref().and_then(|refuse| refuse(rows)) {
            return Err(error);
        }
        self.writes.borrow_mut().push(rows.clone());
        Ok(rows.rows.len() as u64)
    }
}

fn handle(database: &Rc<Database>, states: &[State]) -> Vec<Verdict> {
    SEEN.set(false);
    testing::with_host(database.clone(), || Persistence::handle(&Config::default(), states))
}

fn column(write: &TableWrite, row: usize, name: &str) -> Value {
    let at = write.columns.iter().position(|column| column == name).unwrap();
    write.rows[row][at].clone()
}

fn text(text: &str) -> Value {
    Value::Text(text.to_string())
}

#[test]
fn a_batch_is_one_write_a_table_with_the_columns_of_the_contract() {
    let database = Rc::new(Database::default());
    let states = [testing::state(1, "a", "Pending"), testing::state(2, "b", "Running")];
    assert_eq!(handle(&database, &states), [Verdict::Done, Verdict::Done]);
    let writes = &database.writes.borrow()[1..];
    let [history, status] = writes else { panic!("{} writes", writes.len()) };
    let contract = "id, seq, source, api_group, kind, namespace, name, uid, resource_version, change, phase, reason, \
                    message, attempt, ready, total, exit_code, terminal, owner_kind, owner_name, observed_at";
    assert_eq!(status.columns.join(", "), contract);
    assert_eq!(history.columns.join(", "), format!("{contract}, previous_phase"));
    assert!(writes.iter().all(|write| write.rows.iter().all(|row| row.len() == write.columns.len())));
    assert_eq!(
        (&status.key, &status.on_conflict),
        (&vec!["uid".into()], &OnConflict::ReplaceOlder("seq".into()))
    );
    assert_eq!((history.table.as_str(), &history.on_conflict), ("object_history", &OnConflict::Ignore));
    assert_eq!(column(status, 1, "phase"), text("Running"));
}

#[test]
fn tables_are_made_with_a_version_and_looked_for_once() {
    let database = Rc::new(Database::default());
    handle(&database, &[testing::state(1, "a", "Pending")]);
    let made = database.statements.borrow().clone();
    assert!(
        made[0].starts_with("CREATE TABLE IF NOT EXISTS object_status (\"id\" TEXT NOT NULL, \"seq"),
        "{}",
        made[0]
    );
    assert!(made[1].ends_with("PRIMARY KEY (resource_version, id))"), "{}", made[1]);
    assert_eq!(made.len(), 3);
    let writes = database.writes.borrow().clone();
    assert_eq!((writes[0].table.as_str(), &writes[0].rows), ("object_schema", &vec![vec![1_i64.into()]]));
    let again = || Persistence::handle(&Config::default(), &[testing::state(2, "a", "Pending")]);
    testing::with_host(database.clone(), again);
    assert_eq!(database.statements.borrow().len(), made.len());
}

#[test]
fn tables_that_are_there_are_not_made_again() {
    let database = Rc::new(Database { version: RefCell::new(Some(1)), ..Database::default() });
    handle(&database, &[testing::state(1, "a", "Pending")]);
    assert_eq!(*database.statements.borrow(), [] as [String; 0]);
    assert_eq!(database.writes.borrow().len(), 2);
}

#[test]
fn each_database_gets_the_tables_in_its_own_types() {
    for (dialect, id, count) in [
        (Dialect::Postgres, "\"id\" TEXT NOT NULL", "\"ready\" BIGINT NOT NULL"),
        (Dialect::Mysql, "\"id\" VARCHAR(600) COLLATE utf8mb4_bin NOT NULL", "\"ready\" BIGINT NOT NULL"),
    ] {
        let database = Rc::new(Database { dialect: Cell::new(Some(dialect)), ..Database::default() });
        handle(&database, &[testing::state(1, "a", "Pending")]);
        let made = database.statements.borrow();
        assert!(made.len() == 3 && made[0].contains(id) && made[1].contains(count), "{made:?}");
    }
}

#[test]
fn indexes_are_made_where_they_are_asked_for() {
    let database = Rc::new(Database { version: RefCell::new(Some(1)), ..Database::default() });
    SEEN.set(false);
    let config = Config { index: true };
    testing::with_host(database.clone(), || {
        Persistence::handle(&config, &[testing::state(1, "a", "Pending")])
    });
    let made = database.statements.borrow();
    assert!(made.len() == 2 && made.iter().all(|made| made.starts_with("CREATE INDEX IF NOT EXISTS ")));
}

#[test]
fn tables_of_a_newer_version_are_left_alone() {
    let database = Rc::new(Database { version: RefCell::new(Some(2)), ..Database::default() });
    let verdicts = handle(&database, &[testing::state(1, "a", "Pending")]);
    assert!(
        matches!(&verdicts[0], Verdict::Retry(retry) if retry.reason.contains("version 2")),
        "{verdicts:?}"
    );
    assert!(database.writes.borrow().is_empty());
}

#[test]
fn late_states_and_gaps_are_history_and_not_the_status() {
    let mut late = testing::state(3, "a", "Pending");
    late.extra.push(("late".into(), "true".into()));
    let mut gap = testing::state(4, "a", "Running");
    gap.change = Change::Gap;
    let database = Rc::new(Database::default());
    handle(&database, &[late, gap]);
    let writes = &database.writes.borrow()[1..];
    assert_eq!((writes.len(), writes[0].table.as_str(), writes[0].rows.len()), (1, "object_history", 2));
    assert_eq!(column(&writes[0], 1, "change"), text("gap"));
}

#[test]
fn what_is_gone_is_deleted_whatever_its_last_status_was() {
    let mut state = testing::state(5, "a", "Running");
    state.change = Change::Gone;
    state.previous = Some(testing::status("Starting"));
    let row = rows::history(&state);
    assert_eq!(
        (row[9].clone(), row[10].clone(), row[17].clone()),
        (text("gone"), text("Deleted"), Value::Integer(1))
    );
    assert_eq!((row[19].clone(), row[20].clone()), (Value::Null, text("1970-01-01T00:00:00.000Z")));
    assert_eq!(row[21], text("Starting"));
}

#[test]
fn texts_have_no_nul_and_a_bound() {
    let mut state = testing::state(6, "a", "Failed");
    state.status.message = format!("a\0{}", "é".repeat(10_000));
    let Value::Text(message) = &rows::status(&state)[12] else { panic!("not a text") };
    assert!(message.starts_with("a\u{fffd}é") && message.len() <= 4098, "{}", message.len());
}

#[test]
fn a_row_that_is_refused_is_rejected_alone() {
    let database = Rc::new(Database::default());
    let bad = |write: &TableWrite| {
        let bad = write.rows.iter().any(|row| row.get(6) == Some(&text("bad")));
        bad.then(|| Error::Invalid("NOT NULL constraint failed".into()))
    };
    *database.refuse.borrow_mut() = Some(Box::new(bad));
    let names = ["good", "bad", "fine"];
    let states: Vec<_> = (1..).zip(names).map(|(seq, name)| testing::state(seq, name, "Running")).collect();
    let verdicts = handle(&database, &states);
    assert!(
        matches!(verdicts.as_slice(), [Verdict::Done, Verdict::Reject(_), Verdict::Done]),
        "{verdicts:?}"
    );
}

#[test]
fn tables_that_vanished_are_made_again_at_the_next_try() {
    let database = Rc::new(Database::default());
    let gone = |_: &TableWrite| Some(Error::Invalid("no such table: object_history".into()));
    *database.refuse.borrow_mut() = Some(Box::new(gone));
    let states = [testing::state(1, "a", "Running"), testing::state(2, "b", "Running")];
    let verdicts = handle(&database, &states);
    assert!(matches!(verdicts.as_slice(), [Verdict::Retry(_), Verdict::Retry(_)]), "{verdicts:?}");
    assert!(!SEEN.get() && MISSING.get());
    *database.refuse.borrow_mut() = None;
    *database.version.borrow_mut() = Some(1);
    handle(&database, &states);
    assert_eq!(database.statements.borrow().len(), 6, "whatever the version says");
    assert!(!MISSING.get());
}
