//! Finds states in which an object leaves one source while another source still selects it. `object_status`
//! has one row for each object, so such a state must not end the row: the object still exists.
//!
//! The source that wrote the row last decides. A version that leaves a narrow source is witnessed by a wider
//! one, too, before or after it. This costs a query only if a batch has such a state.

use std::collections::{BTreeMap, BTreeSet};

use kubewitness_sdk::sql::{self, Value};
use kubewitness_sdk::{Change, Error, State};

use super::{is_current, text, uid};
use crate::schema::{PrefixedNames, STATUS};

/// The number of objects in one query.
const OBJECTS_PER_QUERY: usize = 256;

/// The content of an object's row.
struct StatusRow {
    seq: u64,
    source: String,
    is_present: bool,
}

/// The indexes of such states. The states are in the order of the journal.
pub fn shown_elsewhere(
    database: &str,
    states: &[&State],
    names: PrefixedNames<'_>,
) -> Result<BTreeSet<u32>, Error> {
    let uids = states.iter().filter(|state| state.change == Change::Left).map(|state| uid(state));
    let uids: BTreeSet<String> = uids.collect();
    let mut hidden = BTreeSet::new();
    if uids.is_empty() {
        return Ok(hidden);
    }
    let mut shown = shown_now(database, &uids.into_iter().collect::<Vec<_>>(), names)?;
    for (place, state) in (0..).zip(states).filter(|(_, state)| is_current(state)) {
        let (uid, source) = (uid(state), text(&state.source));
        let before = shown.get(&uid);
        let is_left = state.change == Change::Left;
        if is_left && before.is_some_and(|before| before.is_present && before.source != source) {
            hidden.insert(place);
        } else if before.is_none_or(|before| before.seq < state.seq) {
            shown.insert(
                uid,
                StatusRow { seq: state.seq, source, is_present: state.change == Change::Present },
            );
        }
    }
    Ok(hidden)
}

fn shown_now(
    database: &str,
    uids: &[String],
    names: PrefixedNames<'_>,
) -> Result<BTreeMap<String, StatusRow>, Error> {
    let table = names.of(STATUS);
    let mut shown = BTreeMap::new();
    for asked in uids.chunks(OBJECTS_PER_QUERY) {
        // The number of parameters is a power of two, so that the database prepares few statements.
        let count = asked.len().next_power_of_two();
        let places = vec!["?"; count].join(",");
        let question = format!("SELECT uid, seq, source, \"change\" FROM {table} WHERE uid IN ({places})");
        let mut values: Vec<Value> = asked.iter().map(|uid| uid.as_str().into()).collect();
        values.resize(count, values[0].clone());
        for row in sql::query(database, &question, &values)? {
            if let Ok([Value::Text(uid), Value::Integer(seq), Value::Text(source), Value::Text(change)]) =
                <[Value; 4]>::try_from(row)
            {
                let seq = u64::try_from(seq).unwrap_or_default();
                shown.insert(uid, StatusRow { seq, source, is_present: change == "present" });
            }
        }
    }
    Ok(shown)
}
