//! A plugin of interface 1.0 that calls every function of every capability once for each state, and logs each answer as
//! `command` and `answer`. The phase of a state chooses the verdict.

wit_bindgen::generate!({ path: "wit", world: "full" });

use exports::kubewitness::plugin::handler::{Description, Guest};
use kubewitness::plugin::types::{Error, FieldError, RetryLater, State, Verdict};
use kubewitness::plugin::{clock, config, documents, http, kv, ledger, lister, log, sql};

struct Plugin;

export!(Plugin);

impl Guest for Plugin {
    fn describe() -> Description {
        log::write(log::Level::Debug, "describe", &[]);
        Description {
            name: "interface-1.0".into(),
            version: "1.0.0".into(),
            config_schema: "{}".into(),
            needs: ["kv", "sql:main", "http:hook", "ledger:audit", "key:audit", "lister:jobs"].map(Into::into).into(),
            extra: vec![("written".into(), "before 1.1".into())],
        }
    }

    fn check(config: String) -> Result<(), Vec<FieldError>> {
        match config.contains("wrong") {
            true => Err(vec![FieldError { path: "a.b".into(), message: "is wrong".into() }]),
            false => Ok(()),
        }
    }

    fn handle(states: Vec<State>) -> Vec<Verdict> {
        states.iter().map(one).collect()
    }
}

fn one(state: &State) -> Verdict {
    tell("config", config::get());
    tell("clock", clock::now_ms().to_string());
    tell("state", format!("{state:?}"));
    of("documents.json", documents::json(state.seq));
    of("documents.get", documents::get(state.seq, "/kind"));
    of("documents.patch", documents::patch(state.seq));
    of("kv.set", kv::set("key", b"value"));
    of("kv.get", kv::get("key").map(|value| value.map(text)));
    of("kv.keys", kv::keys("k", 10));
    of("kv.delete", kv::delete("key"));
    of("sql.dialect", sql::dialect_of("main"));
    of("sql.execute", sql::execute("main", "select 1", &[vec![]]));
    of("sql.query", sql::query("main", "select 1", &[sql::Value::Text("a".into())]));
    of("sql.write", sql::write("main", &rows(state)));
    of("sql.both", sql::write_both("main", &rows(state), &copy()));
    let request = http::Request {
        method: "POST".into(),
        path: "/path".into(),
        headers: vec![("x-of".into(), "1.0".into())],
        body: b"body".to_vec(),
    };
    of("http", http::send("hook", &request).map(|answer| (answer.status, text(answer.body))));
    of("ledger.append", ledger::append("audit", &[b"line".to_vec()]));
    of("ledger.last", ledger::last("audit").map(|line| line.map(text)));
    of("ledger.sign", ledger::sign("audit", b"message").map(|signature| signature.len()));
    of("lister.get", lister::get("jobs", "default", "there"));
    of("lister.list", lister::list("jobs", "", "", 10).map(|found| found.len()));
    match state.status.phase.as_str() {
        "Failed" => Verdict::Reject("it has failed".into()),
        "Pending" => Verdict::Retry(RetryLater { after_ms: Some(70), reason: "not yet".into() }),
        _ => Verdict::Done,
    }
}

fn rows(state: &State) -> sql::TableWrite {
    sql::TableWrite {
        table: "rows".into(),
        columns: vec!["id".into(), "seq".into()],
        key: vec!["id".into()],
        on_conflict: sql::OnConflict::ReplaceOlder("seq".into()),
        rows: vec![vec![sql::Value::Text(state.id.clone()), sql::Value::Integer(state.seq as i64)]],
    }
}

fn copy() -> sql::TableCopy {
    sql::TableCopy {
        table: "newest".into(),
        columns: vec!["id".into()],
        key: vec!["id".into()],
        on_conflict: sql::OnConflict::Ignore,
        without: vec![],
    }
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8_lossy(&bytes).into_owned()
}

fn of<T: std::fmt::Debug>(command: &str, answer: Result<T, Error>) {
    tell(command, format!("{answer:?}"));
}

fn tell(command: &str, answer: String) {
    log::write(log::Level::Info, "probe", &[("command".into(), command.into()), ("answer".into(), answer)]);
}
