//! Retention of the plugin's own tables: a tick deletes rows older than `keep`, a few at a time. The status
//! and the outcome of an existing object stay, and so does its newest transition.

use kubewitness_sdk::sql::{self, Value};
use kubewitness_sdk::{Error, clock, time};

use crate::config::{Config, KeepRows};
use crate::schema::{DATABASE, HISTORY, OUTCOMES, PrefixedNames, STATUS, TRANSITIONS};

/// How many rows of each table one step deletes, and how many steps a tick has. States wait meanwhile.
const ROWS: usize = 500;
const STEPS: usize = 20;
const TICKING_MS: u64 = 2000;

/// Deletes old rows until the time of one tick is used up.
pub fn tick(config: &Config, keep: KeepRows) -> Result<(), Error> {
    let begun_ms = clock::now_ms();
    let before_ms = begun_ms.saturating_sub(keep.ms);
    let names = PrefixedNames(&config.prefix);
    for _ in 0..STEPS {
        let outcomes = if config.causes { outcomes(names, before_ms)? } else { 0 };
        let found = history(names, before_ms)? + transitions(names, before_ms)? + outcomes;
        if found == 0 || clock::now_ms().saturating_sub(begun_ms) > TICKING_MS {
            break;
        }
    }
    Ok(())
}

/// Deletes states, with their documents. With the last state of an object, its status is deleted.
fn history(names: PrefixedNames<'_>, before_ms: u64) -> Result<usize, Error> {
    let (history, status) = (names.of(HISTORY), names.of(STATUS));
    let before = Value::from(time::rfc3339(before_ms));
    let asked = format!(
        "SELECT resource_version, id, uid, \"change\" FROM {history} WHERE observed_at < ? ORDER BY observed_at LIMIT {ROWS}"
    );
    let (mut keys, mut gone) = (Vec::new(), Vec::new());
    for row in sql::query(DATABASE, &asked, std::slice::from_ref(&before))? {
        let [version, id, uid, change] = columns(row, &history)?;
        if change == Value::from("gone") {
            gone.push(vec![uid, before.clone()]);
        }
        keys.push(vec![version, id]);
    }
    delete(&status, "uid = ? AND \"change\" = 'gone' AND observed_at < ?", &gone)?;
    delete(&history, "resource_version = ? AND id = ?", &keys)?;
    Ok(keys.len())
}

/// Deletes transitions, except the newest one of an existing object, which shows since when it has its phase.
fn transitions(names: PrefixedNames<'_>, before_ms: u64) -> Result<usize, Error> {
    let (transitions, status) = (names.of(TRANSITIONS), names.of(STATUS));
    let asked = format!(
        "SELECT t.uid, t.seq FROM {transitions} t WHERE t.changed_ms < ? \
         AND (t.seq < (SELECT max(m.seq) FROM {transitions} m WHERE m.uid = t.uid) \
         OR NOT EXISTS (SELECT 1 FROM {status} s WHERE s.uid = t.uid AND s.\"change\" <> 'gone')) \
         ORDER BY t.changed_ms LIMIT {ROWS}"
    );
    let found = sql::query(DATABASE, &asked, &[before_ms.into()])?;
    let keys: Result<Vec<_>, _> =
        found.into_iter().map(|row| columns::<2>(row, &transitions).map(Vec::from)).collect();
    let keys = keys?;
    delete(&transitions, "uid = ? AND seq = ?", &keys)?;
    Ok(keys.len())
}

/// Deletes outcomes, except those of existing objects.
fn outcomes(names: PrefixedNames<'_>, before_ms: u64) -> Result<usize, Error> {
    let (outcomes, status) = (names.of(OUTCOMES), names.of(STATUS));
    let asked = format!(
        "SELECT o.uid FROM {outcomes} o WHERE o.ended_ms < ? \
         AND NOT EXISTS (SELECT 1 FROM {status} s WHERE s.uid = o.uid AND s.\"change\" <> 'gone') \
         ORDER BY o.ended_ms LIMIT {ROWS}"
    );
    let found = sql::query(DATABASE, &asked, &[before_ms.into()])?;
    let keys: Result<Vec<_>, _> =
        found.into_iter().map(|row| columns::<1>(row, &outcomes).map(Vec::from)).collect();
    let keys = keys?;
    delete(&outcomes, "uid = ?", &keys)?;
    Ok(keys.len())
}

fn delete(table: &str, which: &str, rows: &[Vec<Value>]) -> Result<(), Error> {
    if rows.is_empty() {
        return Ok(());
    }
    sql::execute(DATABASE, &format!("DELETE FROM {table} WHERE {which}"), rows).map(drop)
}

fn columns<const N: usize>(row: Vec<Value>, table: &str) -> Result<[Value; N], Error> {
    let wrong = |_| Error::Unavailable(format!("a row of {table} has other columns than were asked for"));
    row.try_into().map_err(wrong)
}
