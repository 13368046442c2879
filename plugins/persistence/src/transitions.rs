//! Makes a row for each change of an object's phase, with the duration of the previous phase.
//!
//! The previous row, which is read back in the same transaction, has the previous phase and its start. So a
//! row is the same however often it is made, and it is stored once. Late states and gaps are left out,
//! because it is unknown when a late state was true.

use std::collections::BTreeMap;

use kubewitness_sdk::sql::{self, OnConflict, TableWrite, Value};
use kubewitness_sdk::{Error, State, time};

use crate::config::Config;
use crate::schema::{DATABASE, PrefixedNames, STATUS, TRANSITION, TRANSITIONS, TRANSITIONS_KEY};
use crate::{gpus, rows};

/// Objects of one question. Numbers of parameters are powers of two up to it, so that the database prepares few
/// statements.
const ASKED: usize = 256;

/// The newest row of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
struct NewestRow {
    seq: u64,
    phase: String,
    at_ms: u64,
    gpus: Option<i64>,
}

/// The rows for these states, which are in the order of the journal.
pub fn write(states: &[&State], config: &Config) -> Result<(), Error> {
    let names = PrefixedNames(&config.prefix);
    let changes: Vec<_> = states.iter().filter(|state| changes_phase(state)).collect();
    if changes.is_empty() {
        return Ok(());
    }
    let mut last = last_of(changes.iter().map(|state| rows::uid(state)), names)?;
    let mut made = Vec::with_capacity(changes.len());
    for state in changes {
        let uid = rows::uid(state);
        let before = last.get(&uid);
        // It is stored already, or is older than what is stored, as when a plugin starts from the beginning again.
        if before.is_some_and(|before| before.seq >= state.seq || before.phase == rows::phase(state)) {
            continue;
        }
        let gpus = gpus_of(state, before, &config.gpus)?;
        made.push(row(state, before, gpus));
        let phase = rows::phase(state);
        last.insert(uid, NewestRow { seq: state.seq, phase, at_ms: state.observed_ms, gpus });
    }
    if made.is_empty() {
        return Ok(());
    }
    let rows = TableWrite {
        table: names.of(TRANSITIONS),
        columns: TRANSITION.map(|(name, _)| name.to_string()).to_vec(),
        key: TRANSITIONS_KEY.map(str::to_string).to_vec(),
        on_conflict: OnConflict::Ignore,
        rows: made,
    };
    sql::write(DATABASE, &rows).map(drop)
}

/// A state whose phase is the one before is not asked about: most are such.
fn changes_phase(state: &State) -> bool {
    let before = state.previous.as_ref().map(|previous| previous.phase.as_str());
    rows::is_current(state) && before != Some(rows::phase(state).as_str())
}

/// An object that is gone may have no document any more: it had the GPUs that it had before.
fn gpus_of(state: &State, before: Option<&NewestRow>, resource: &str) -> Result<Option<i64>, Error> {
    if resource.is_empty() {
        return Ok(None);
    }
    Ok(gpus::count(state, resource)?.or_else(|| before.and_then(|before| before.gpus)))
}

fn row(state: &State, before: Option<&NewestRow>, gpus: Option<i64>) -> Vec<Value> {
    let (object, status) = (&state.object, &state.status);
    // Where no row was written before, as when version 1 wrote the tables, the host knows the phase and nobody its time.
    let known = state.previous.as_ref().map(|previous| rows::word(&previous.phase));
    let from = before.map(|before| before.phase.as_str().into()).or(known);
    let lasted = before.map(|before| state.observed_ms.saturating_sub(before.at_ms));
    let [owner_kind, owner_name, owner_uid] = rows::owner(state);
    vec![
        rows::uid(state).into(),
        state.seq.into(),
        rows::id(state),
        rows::word(&state.source),
        rows::word(&object.kind),
        rows::word(&object.namespace),
        rows::word(&object.name),
        owner_kind,
        owner_name,
        owner_uid,
        from.unwrap_or(Value::Null),
        rows::phase(state).into(),
        rows::word(&status.reason),
        status.attempt.into(),
        status.exit_code.into(),
        time::rfc3339(state.observed_ms).into(),
        state.observed_ms.into(),
        lasted.into(),
        gpus.into(),
    ]
}

/// The newest row of each object. object_status has one row an object, so each costs two look-ups by key, however often
/// an object has changed.
fn last_of(
    uids: impl Iterator<Item = String>,
    names: PrefixedNames<'_>,
) -> Result<BTreeMap<String, NewestRow>, Error> {
    let mut uids: Vec<_> = uids.collect();
    uids.sort_unstable();
    uids.dedup();
    let (status, transitions) = (names.of(STATUS), names.of(TRANSITIONS));
    let mut last = BTreeMap::new();
    for asked in uids.chunks(ASKED) {
        let places = vec!["?"; asked.len().next_power_of_two()].join(",");
        let question = format!(
            "SELECT t.uid, t.seq, t.to_phase, t.changed_ms, t.gpus FROM {status} s JOIN {transitions} t ON t.uid = s.uid \
             AND t.seq = (SELECT max(m.seq) FROM {transitions} m WHERE m.uid = s.uid) WHERE s.uid IN ({places})"
        );
        let filled = asked.iter().chain(std::iter::repeat(&asked[0])).take(asked.len().next_power_of_two());
        let given: Vec<Value> = filled.map(Value::from).collect();
        for row in sql::query(DATABASE, &question, &given)? {
            let Ok([Value::Text(uid), Value::Integer(seq), Value::Text(phase), Value::Integer(at), gpus]) =
                <[Value; 5]>::try_from(row)
            else {
                return Err(Error::Unavailable(format!(
                    "a row of {transitions} is not of its columns' types"
                )));
            };
            // Neither is ever written with a sign.
            let gpus = if let Value::Integer(gpus) = gpus { Some(gpus) } else { None };
            last.insert(uid, NewestRow { seq: seq.cast_unsigned(), phase, at_ms: at.cast_unsigned(), gpus });
        }
    }
    Ok(last)
}
