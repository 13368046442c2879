//! Commands that call one capability each and log its answer.

use std::fmt::Debug;

use kubewitness_sdk::http::Request;
use kubewitness_sdk::sql::{FilledColumn, OnConflict, StateFact, StateWrite, TableCopy, TableWrite, Value};
use kubewitness_sdk::{Error, State, clock, documents, http, kv, ledger, lister, outcomes, sql};

use crate::number;

pub fn obey_command(name: &str, words: &[&str], state: &State) -> Option<String> {
    Some(match (name, words) {
        ("kv.get", [key]) => result_text(kv::get(key).map(|value| value.map(text))),
        ("kv.set", [key, value]) => result_text(kv::set(key, value.as_bytes())),
        ("kv.delete", [key]) => result_text(kv::delete(key)),
        ("kv.keys", [prefix]) => result_text(kv::keys(prefix, 10)),
        ("sql.dialect", [database]) => result_text(sql::dialect_of(database)),
        ("sql.run", [database, statement @ ..]) => result_text(sql::run(database, &statement.join(" "))),
        ("sql.query", [database, statement @ ..]) => {
            result_text(sql::query(database, &statement.join(" "), &[]))
        }
        ("sql.write", [database]) => result_text(sql::write(database, &row_of(state))),
        ("sql.both", [database]) => result_text(sql::write_both(database, &row_of(state), &copy())),
        ("sql.states", [database]) => {
            result_text(sql::write_states(database, &filled_row(state.seq), Some(&copy())))
        }
        ("sql.states", [database, seq]) => {
            result_text(sql::write_states(database, &filled_row(number(seq)), None))
        }
        ("http.post", [destination, path]) => result_text(
            http::post_json(destination, path, &state.id, &state.object.name).map(|answer| answer.status),
        ),
        ("http.get", [destination, path]) => {
            let request = Request {
                method: "GET".to_string(),
                path: (*path).to_string(),
                headers: vec![],
                body: vec![],
            };
            result_text(http::send(destination, &request).map(|answer| text(answer.body)))
        }
        ("ledger.append", [ledger, record]) => {
            result_text(ledger::append(ledger, &[record.as_bytes().to_vec()]))
        }
        ("ledger.last", [ledger]) => result_text(ledger::last(ledger).map(|record| record.map(text))),
        ("ledger.sign", [key]) => result_text(ledger::sign(key, b"message").map(|signature| signature.len())),
        ("ledger.signature", [key]) => result_text(
            ledger::sign(key, b"message")
                .map(|signature| signature.iter().map(|byte| format!("{byte:02x}")).collect::<String>()),
        ),
        ("lister.get", [source, namespace, name]) => result_text(lister::get(source, namespace, name)),
        ("lister.list", [source]) => result_text(
            lister::all(source, 10)
                .map(|found| found.into_iter().map(|object| object.name).collect::<Vec<_>>()),
        ),
        ("lister.list", [source, index, key]) => result_text(
            lister::by_index(source, index, key, 10)
                .map(|found| found.into_iter().map(|object| object.name).collect::<Vec<_>>()),
        ),
        ("outcomes.explain", [source, uid]) => result_text(outcomes::explain(source, uid)),
        ("outcomes.changes", after) => result_text(outcomes::changes(&after.join(""), 10)),
        ("document", []) => result_text(documents::json(state.seq)),
        ("document", [pointer]) => result_text(documents::get(state.seq, pointer)),
        ("document.of", [seq]) => result_text(documents::json(number(seq))),
        ("patch", []) => result_text(documents::patch(state.seq)),
        ("extra", []) => format!("{:?}", state.extra),
        ("envelope", []) => format!("{state:?}"),
        ("clock", []) => clock::now_ms().to_string(),
        _ => return None,
    })
}

fn text(bytes: impl AsRef<[u8]>) -> String {
    String::from_utf8_lossy(bytes.as_ref()).into_owned()
}

fn result_text<T: Debug>(answer: Result<T, Error>) -> String {
    match answer {
        Ok(value) => format!("ok: {value:?}"),
        Err(error) => error.text(),
    }
}

/// A second table, which has no exit codes.
fn copy() -> TableCopy {
    TableCopy {
        table: "probe_newest".to_string(),
        columns: vec!["seq".to_string(), "id".to_string()],
        key: vec!["id".to_string()],
        on_conflict: OnConflict::Ignore,
        without: Vec::new(),
    }
}

/// A row that the host fills.
fn filled_row(seq: u64) -> StateWrite {
    StateWrite {
        table: "probe".to_string(),
        columns: vec![
            FilledColumn::of_fact("id", StateFact::Id),
            FilledColumn::of_fact("seq", StateFact::Seq),
            FilledColumn::of_fact("phase", StateFact::Phase),
            FilledColumn::of_one("own", "words"),
            FilledColumn::of_each("exit_code", vec![Value::Null]),
        ],
        key: vec!["id".to_string()],
        on_conflict: OnConflict::ReplaceOlder("seq".to_string()),
        states: vec![seq],
    }
}

fn row_of(state: &State) -> TableWrite {
    TableWrite {
        table: "probe".to_string(),
        columns: vec!["id".to_string(), "seq".to_string(), "exit_code".to_string()],
        key: vec!["id".to_string()],
        on_conflict: OnConflict::ReplaceOlder("seq".to_string()),
        rows: vec![vec![state.id.as_str().into(), state.seq.into(), Value::from(state.status.exit_code)]],
    }
}
