//! Why objects ended badly, as a tick writes it.

use std::collections::BTreeMap;

use kubewitness_sdk::outcomes::{ChangePage, ChangedOutcome, Explanation, Finding};

use super::*;
use crate::schema::{CURSORS, OUTCOME, OUTCOMES};
use crate::ticks::outcomes::READY;

/// A database with the tables of outcomes, and a host that explains.
#[derive(Default)]
struct OutcomeHost {
    has_tables: Cell<bool>,
    rows: RefCell<BTreeMap<String, Vec<Value>>>,
    place: RefCell<Option<String>>,
    moves: Cell<i64>,
    pages: RefCell<Vec<ChangePage>>,
    asked_after: RefCell<Vec<String>>,
    explained: RefCell<Vec<String>>,
    statements: RefCell<Vec<String>>,
    /// Uids of which the journal has nothing any more.
    forgotten: RefCell<Vec<String>>,
    later_ms: Cell<u64>,
}

impl testing::Host for OutcomeHost {
    fn explain(&self, source: &str, uid: &str) -> Result<Finding, Error> {
        assert_eq!(source, "jobs");
        self.explained.borrow_mut().push(uid.to_string());
        if self.forgotten.borrow().iter().any(|forgotten| forgotten == uid) {
            return Ok(Finding::Nothing);
        }
        let state = testing::state(7, uid.trim_start_matches("uid-"), "Failed");
        Ok(Finding::Found(Explanation {
            container: "main".to_string(),
            exit_code: Some(137),
            failed: Some(kubewitness_sdk::ObjectRef { name: "pod-1".to_string(), ..state.object.clone() }),
            ended_ms: 1_767_225_600_000,
            ..testing::explanation(&state, "out-of-memory")
        }))
    }
    fn outcome_changes(&self, after: &str, _: u32) -> Result<ChangePage, Error> {
        self.asked_after.borrow_mut().push(after.to_string());
        Ok(self.pages.borrow_mut().remove(0))
    }
    fn sql_dialect(&self, _: &str) -> Result<Dialect, Error> {
        Ok(Dialect::Sqlite)
    }
    fn sql_execute(&self, _: &str, statement: &str, rows: &[Vec<Value>]) -> Result<u64, Error> {
        if statement.starts_with("DELETE FROM object_outcomes") {
            rows.iter().for_each(|row| drop(self.rows.borrow_mut().remove(&told(&row[0]))));
        } else {
            self.has_tables.set(self.has_tables.get() || statement.contains(OUTCOMES));
        }
        self.statements.borrow_mut().push(statement.to_string());
        Ok(0)
    }
    fn sql_query(&self, _: &str, statement: &str, given: &[Value]) -> Result<Vec<Vec<Value>>, Error> {
        if statement.starts_with("SELECT max(version)") {
            return Ok(vec![vec![schema::VERSION.into()]]);
        }
        if statement.contains(CURSORS) && !self.has_tables.get() {
            return Err(Error::Invalid(format!("no such table: {CURSORS}")));
        }
        if statement.starts_with("SELECT place") {
            let moves = || Value::Integer(self.moves.get());
            return Ok(self.place.borrow().iter().map(|place| vec![place.into(), moves()]).collect());
        }
        if statement.starts_with("SELECT uid, seq, cause") {
            let (rows, place) = (self.rows.borrow(), |name: &str| position(name));
            let of = |row: &Vec<Value>| ["uid", "seq", "cause"].map(|name| row[place(name)].clone()).to_vec();
            let asked: std::collections::BTreeSet<_> = given.iter().map(told).collect();
            return Ok(asked.iter().filter_map(|uid| rows.get(uid)).map(of).collect());
        }
        Ok(vec![])
    }
    fn sql_write(&self, _: &str, write: &TableWrite) -> Result<u64, Error> {
        for row in &write.rows {
            match write.table.as_str() {
                OUTCOMES => drop(self.rows.borrow_mut().insert(told(&row[0]), row.clone())),
                CURSORS => {
                    let Value::Integer(moves) = row[2] else { panic!("{row:?}") };
                    assert!(moves > self.moves.replace(moves), "a row is replaced by one with more");
                    *self.place.borrow_mut() = Some(told(&row[1]));
                }
                other => panic!("{other}"),
            }
        }
        Ok(write.rows.len() as u64)
    }
    fn now_ms(&self) -> u64 {
        1_767_225_700_000 + self.later_ms.get()
    }
}

fn told(value: &Value) -> String {
    match value {
        Value::Text(text) => text.clone(),
        other => panic!("{other:?}"),
    }
}

fn position(name: &str) -> usize {
    OUTCOME.iter().position(|(column, _)| *column == name).unwrap()
}

fn page(outcomes: &[(&str, Option<&str>)], next: &str, more: bool, restarted: bool) -> ChangePage {
    let of = |(name, kind): &(&str, Option<&str>)| ChangedOutcome {
        source: "jobs".to_string(),
        namespace: "default".to_string(),
        name: (*name).to_string(),
        uid: format!("uid-{name}"),
        seq: 7,
        kind: kind.map(str::to_string),
    };
    ChangePage { outcomes: outcomes.iter().map(of).collect(), next: next.to_string(), more, restarted }
}

impl OutcomeHost {
    fn tick(self: &Rc<Self>, config: &str, pages: Vec<ChangePage>) -> Result<(), String> {
        *self.pages.borrow_mut() = pages;
        let config: Config = serde_json::from_str(config).unwrap();
        READY.set(false);
        testing::with_host(self.clone(), || Persistence::tick(&config, 0))
    }

    fn value(&self, uid: &str, column: &str) -> Value {
        self.rows.borrow()[uid][position(column)].clone()
    }

    fn explained(&self) -> Vec<String> {
        self.explained.take()
    }
}

const CAUSES: &str = r#"{"causes": true}"#;

#[test]
fn a_tick_writes_why_objects_ended_badly_and_goes_on_where_it_was() {
    let host = Rc::new(OutcomeHost::default());
    let oom = Some("out-of-memory");
    let pages =
        vec![page(&[("a", oom), ("b", oom)], "1", true, true), page(&[("c", oom)], "2", false, false)];
    host.tick(CAUSES, pages).unwrap();
    assert_eq!(host.rows.borrow().len(), 3);
    assert_eq!(host.value("uid-a", "cause"), text("out-of-memory"));
    assert_eq!(host.value("uid-a", "headline"), text("Failed: out-of-memory"));
    assert_eq!((host.value("uid-a", "pod"), host.value("uid-a", "container")), (text("pod-1"), text("main")));
    assert_eq!(
        (host.value("uid-a", "exit_code"), host.value("uid-a", "node")),
        (137_i64.into(), Value::Null)
    );
    assert_eq!(host.value("uid-a", "ended_at"), text("2026-01-01T00:00:00.000Z"));
    let made = host.statements.borrow();
    assert!(
        made.iter().any(|made| made.starts_with("CREATE TABLE IF NOT EXISTS object_outcomes")),
        "{made:?}"
    );
    assert!(!made.iter().any(|made| made.starts_with("DELETE")), "nothing was there: {made:?}");
    drop(made);
    // One that is explained again, and one that goes on.
    let pages = vec![page(&[("a", oom), ("b", None)], "3", false, false)];
    host.explained();
    host.tick(CAUSES, pages).unwrap();
    assert_eq!(*host.asked_after.borrow(), ["", "1", "2"]);
    assert_eq!(host.explained(), ["uid-a"], "also where its word is the same: it may say more");
    assert_eq!(host.rows.borrow().keys().collect::<Vec<_>>(), ["uid-a", "uid-c"]);
    host.tick("{}", vec![]).unwrap();
    assert_eq!(host.asked_after.borrow().len(), 3, "nothing is asked without `causes`");
}

#[test]
fn an_order_that_begins_anew_costs_explanations_of_what_differs_alone() {
    let host = Rc::new(OutcomeHost::default());
    let oom = Some("out-of-memory");
    host.tick(CAUSES, vec![page(&[("a", oom), ("b", oom)], "x1", false, true)]).unwrap();
    host.explained();
    let anew = vec![
        page(&[("a", oom), ("gone-on", None)], "y1", true, true),
        page(&[("b", Some("signal")), ("c", oom)], "y2", false, false),
    ];
    host.tick(CAUSES, anew).unwrap();
    assert_eq!(host.explained(), ["uid-b", "uid-c"], "also on its later pages");
    assert_eq!(host.place.borrow().as_deref(), Some("y2"));
    host.tick(CAUSES, vec![page(&[("a", oom)], "y3", false, false)]).unwrap();
    assert_eq!(host.explained(), ["uid-a"], "and then everything that changes");
}

#[test]
fn what_the_journal_has_no_more_keeps_its_word_and_what_is_older_than_keep_is_left_out() {
    let host = Rc::new(OutcomeHost::default());
    host.forgotten.borrow_mut().push("uid-a".to_string());
    host.tick(CAUSES, vec![page(&[("a", Some("signal"))], "1", false, true)]).unwrap();
    assert_eq!((host.value("uid-a", "cause"), host.value("uid-a", "pod")), (text("signal"), Value::Null));
    for (later_ms, rows) in [(0, 1), (2 * 3_600_000, 0)] {
        let host = Rc::new(OutcomeHost { later_ms: Cell::new(later_ms), ..OutcomeHost::default() });
        let page = page(&[("a", Some("signal"))], "1", false, true);
        host.tick(r#"{"causes": true, "keep": "1h"}"#, vec![page]).unwrap();
        assert_eq!(host.rows.borrow().len(), rows);
    }
}

#[test]
fn tables_that_may_not_be_made_are_named_with_their_file() {
    let host = Rc::new(OutcomeHost::default());
    let why = host.tick(r#"{"causes": true, "create": false}"#, vec![]).unwrap_err();
    assert!(why.contains("tables for `causes` are missing") && why.contains("deploy/schema/sqlite"), "{why}");
}
