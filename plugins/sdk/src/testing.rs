//! Tests a plugin in a native build. A test provides a [`Host`], and the capability calls of its thread go
//! there.
//!
//! ```
//! use kubewitness_sdk::{Error, kv, testing};
//! use std::rc::Rc;
//!
//! struct Empty;
//! impl testing::Host for Empty {
//!     fn kv_get(&self, _key: &str) -> Result<Option<Vec<u8>>, Error> {
//!         Ok(None)
//!     }
//! }
//!
//! testing::with_host(Rc::new(Empty), || {
//!     assert_eq!(kv::get("last"), Ok(None));
//!     assert!(matches!(kv::set("last", b"1"), Err(Error::Denied(_))));
//! });
//! ```

use std::cell::RefCell;
use std::rc::Rc;

pub use crate::facts::rows::fill_rows;
use crate::http::{Request, Response};
use crate::log::Level;
use crate::mail::{Message, Refusal};
use crate::outcomes::{ChangePage, Explanation, Finding};
use crate::sql::{Dialect, StateWrite, TableCopy, TableWrite, Value};
use crate::{Change, Error, ObjectRef, State, Status};

fn denied<T>(what: &str) -> Result<T, Error> {
    Err(Error::Denied(format!("this test's host grants no {what}")))
}

fn copied(rows: &TableWrite, copy: &TableCopy) -> Result<TableWrite, Error> {
    let place = |name: &String| rows.columns.iter().position(|column| column == name);
    let places: Option<Vec<usize>> = copy.columns.iter().map(place).collect();
    let places = places.ok_or_else(|| Error::Invalid("the copy has a column of its own".to_string()))?;
    let kept = rows.rows.iter().enumerate().filter(|(place, _)| !copy.without.contains(&(*place as u32)));
    Ok(TableWrite {
        table: copy.table.clone(),
        columns: copy.columns.clone(),
        key: copy.key.clone(),
        on_conflict: copy.on_conflict.clone(),
        rows: kept.map(|(_, row)| places.iter().map(|place| row[*place].clone()).collect()).collect(),
    })
}

/// A test's answers to capability calls. A call without an answer is denied.
#[allow(unused_variables)]
pub trait Host {
    fn config(&self) -> String {
        "{}".to_string()
    }
    fn document(&self, seq: u64) -> Result<Option<String>, Error> {
        denied("documents")
    }
    fn document_value(&self, seq: u64, pointer: &str) -> Result<Option<String>, Error> {
        denied("documents")
    }
    fn document_patch(&self, seq: u64) -> Result<Option<String>, Error> {
        denied("documents")
    }
    fn lister_get(&self, source: &str, namespace: &str, name: &str) -> Result<Option<String>, Error> {
        denied("lister")
    }
    fn lister_list(&self, source: &str, index: &str, key: &str, limit: u32) -> Result<Vec<ObjectRef>, Error> {
        denied("lister")
    }
    fn explain(&self, source: &str, uid: &str) -> Result<Finding, Error> {
        denied("outcomes")
    }
    fn outcome_changes(&self, after: &str, limit: u32) -> Result<ChangePage, Error> {
        denied("outcomes")
    }
    fn sql_dialect(&self, database: &str) -> Result<Dialect, Error> {
        denied("sql")
    }
    fn sql_write(&self, database: &str, rows: &TableWrite) -> Result<u64, Error> {
        denied("sql")
    }
    /// By default it writes each table separately if it has rows. A test may override it to see the original
    /// call.
    fn sql_write_both(&self, database: &str, rows: &TableWrite, copy: &TableCopy) -> Result<u64, Error> {
        let second = copied(rows, copy)?;
        let mut writes = [rows, &second].into_iter().filter(|write| !write.rows.is_empty());
        writes.try_fold(0, |changed, write| Ok(changed + self.sql_write(database, write)?))
    }
    /// A test that knows the states of the call makes rows of it with [`fill_rows`].
    fn sql_write_states(
        &self,
        database: &str,
        rows: &StateWrite,
        copy: Option<&TableCopy>,
    ) -> Result<u64, Error> {
        denied("sql")
    }
    fn sql_execute(&self, database: &str, statement: &str, rows: &[Vec<Value>]) -> Result<u64, Error> {
        denied("sql")
    }
    fn sql_query(&self, database: &str, statement: &str, params: &[Value]) -> Result<Vec<Vec<Value>>, Error> {
        denied("sql")
    }
    fn http_send(&self, destination: &str, request: &Request) -> Result<Response, Error> {
        denied("http")
    }
    fn mail_send(&self, server: &str, message: &Message) -> Result<Vec<Refusal>, Error> {
        denied("mail")
    }
    fn kv_get(&self, key: &str) -> Result<Option<Vec<u8>>, Error> {
        denied("kv")
    }
    fn kv_set(&self, key: &str, value: &[u8]) -> Result<(), Error> {
        denied("kv")
    }
    fn kv_delete(&self, key: &str) -> Result<(), Error> {
        denied("kv")
    }
    fn kv_keys(&self, prefix: &str, limit: u32) -> Result<Vec<String>, Error> {
        denied("kv")
    }
    fn ledger_append(&self, ledger: &str, records: &[Vec<u8>]) -> Result<u64, Error> {
        denied("ledger")
    }
    fn ledger_last(&self, ledger: &str) -> Result<Option<Vec<u8>>, Error> {
        denied("ledger")
    }
    fn ledger_sign(&self, key: &str, message: &[u8]) -> Result<Vec<u8>, Error> {
        denied("key")
    }
    fn conceal(&self, ledger: &str, name: &str) -> Result<String, Error> {
        denied("ledger")
    }
    fn log(&self, level: Level, message: &str, fields: &[(String, String)]) {}
    fn now_ms(&self) -> u64 {
        0
    }
}

/// Grants nothing.
pub struct Nothing;

impl Host for Nothing {}

thread_local! {
    static HOST: RefCell<Rc<dyn Host>> = RefCell::new(Rc::new(Nothing));
}

/// Runs `test` with `host` as the implementation of this thread's capabilities. The former host is restored
/// afterwards, even after a panic.
pub fn with_host<R>(host: Rc<dyn Host>, test: impl FnOnce() -> R) -> R {
    struct Restore(Option<Rc<dyn Host>>);
    impl Drop for Restore {
        fn drop(&mut self) {
            if let Some(before) = self.0.take() {
                HOST.with(|slot| *slot.borrow_mut() = before);
            }
        }
    }
    let _restore = Restore(Some(HOST.with(|slot| slot.replace(host))));
    test()
}

/// A state for a test; change the fields that matter.
pub fn state(seq: u64, name: &str, phase: &str) -> State {
    State {
        id: format!("jobs/0/batch/Job/{name}/{seq}"),
        seq,
        source: "jobs".to_string(),
        change: Change::Present,
        object: ObjectRef {
            group: "batch".to_string(),
            version: "v1".to_string(),
            kind: "Job".to_string(),
            namespace: "default".to_string(),
            name: name.to_string(),
            uid: format!("uid-{name}"),
        },
        owner: None,
        resource_version: seq.to_string(),
        status: status(phase),
        previous: None,
        observed_ms: 0,
        attempt: 1,
        extra: Vec::new(),
    }
}

/// A status with this phase and everything else empty.
pub fn status(phase: &str) -> Status {
    Status {
        phase: phase.to_string(),
        reason: String::new(),
        message: String::new(),
        terminal: false,
        attempt: 0,
        ready: 0,
        total: 0,
        exit_code: None,
    }
}

/// The explanation of an object that ended for this cause, with everything else empty.
pub fn explanation(state: &State, kind: &str) -> Explanation {
    Explanation {
        object: state.object.clone(),
        seq: state.seq,
        ended_ms: state.observed_ms,
        kind: kind.to_string(),
        headline: format!("Failed: {kind}"),
        sentence: format!("Ran 4 s, failed: {kind}"),
        doubt: String::new(),
        failed: None,
        container: String::new(),
        container_role: String::new(),
        exit_code: None,
        signal: None,
        node: String::new(),
        reason: String::new(),
        message: String::new(),
        by: String::new(),
        cause_ms: state.observed_ms,
        cause_seq: state.seq,
        extra: Vec::new(),
    }
}

/// The functions of the generated imports, over the test's host.
pub(crate) mod raw {
    macro_rules! forward {
        ($($module:ident { $($name:ident => $to:ident($($arg:ident: $type:ty),*) -> $ret:ty;)* })*) => {$(
            pub mod $module {
                #[allow(unused_imports)]
                use super::super::*;
                $(pub fn $name($($arg: $type),*) -> $ret {
                    // Cloned, so that a host may itself call a capability.
                    let host = HOST.with(|slot| slot.borrow().clone());
                    host.$to($($arg),*)
                })*
            }
        )*};
    }

    forward! {
        config { get => config() -> String; }
        documents {
            json => document(seq: u64) -> Result<Option<String>, Error>;
            get => document_value(seq: u64, pointer: &str) -> Result<Option<String>, Error>;
            patch => document_patch(seq: u64) -> Result<Option<String>, Error>;
        }
        lister {
            get => lister_get(source: &str, namespace: &str, name: &str) -> Result<Option<String>, Error>;
            list => lister_list(source: &str, index: &str, key: &str, limit: u32) -> Result<Vec<ObjectRef>, Error>;
        }
        outcomes {
            explain => explain(source: &str, uid: &str) -> Result<Finding, Error>;
            changes => outcome_changes(after: &str, limit: u32) -> Result<ChangePage, Error>;
        }
        sql {
            dialect_of => sql_dialect(database: &str) -> Result<Dialect, Error>;
            write => sql_write(database: &str, rows: &TableWrite) -> Result<u64, Error>;
            write_both => sql_write_both(database: &str, rows: &TableWrite, copy: &TableCopy) -> Result<u64, Error>;
            write_states => sql_write_states(database: &str, rows: &StateWrite, copy: Option<&TableCopy>) -> Result<u64, Error>;
            execute => sql_execute(database: &str, statement: &str, rows: &[Vec<Value>]) -> Result<u64, Error>;
            query => sql_query(database: &str, statement: &str, params: &[Value]) -> Result<Vec<Vec<Value>>, Error>;
        }
        http { send => http_send(destination: &str, request: &Request) -> Result<Response, Error>; }
        mail { send => mail_send(server: &str, message: &Message) -> Result<Vec<Refusal>, Error>; }
        kv {
            get => kv_get(key: &str) -> Result<Option<Vec<u8>>, Error>;
            set => kv_set(key: &str, value: &[u8]) -> Result<(), Error>;
            delete => kv_delete(key: &str) -> Result<(), Error>;
            keys => kv_keys(prefix: &str, limit: u32) -> Result<Vec<String>, Error>;
        }
        ledger {
            append => ledger_append(ledger: &str, records: &[Vec<u8>]) -> Result<u64, Error>;
            last => ledger_last(ledger: &str) -> Result<Option<Vec<u8>>, Error>;
            sign => ledger_sign(key: &str, message: &[u8]) -> Result<Vec<u8>, Error>;
        }
        persons { conceal => conceal(ledger: &str, name: &str) -> Result<String, Error>; }
        log { write => log(level: Level, message: &str, fields: &[(String, String)]) -> (); }
        clock { now_ms => now_ms() -> u64; }
    }
}
