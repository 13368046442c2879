//! Makes a row for each change of an object's phase, with the duration of the previous phase.
//!
//! The previous row, which is read back in the same transaction, has the previous phase and its start. So a
//! row is the same however often it is made, and it is stored once. Late states and gaps are left out,
//! because it is unknown when a late state was true.

use std::collections::BTreeMap;

use kubewitness_sdk::sql::ColumnFilling::{self, Fact};
use kubewitness_sdk::sql::{self, Dialect, FilledColumn, OnConflict, StateFact, StateWrite, Value};
use kubewitness_sdk::{Error, State};

use crate::config::Config;
use crate::schema::{DATABASE, PrefixedNames, STATUS, TRANSITION, TRANSITIONS, TRANSITIONS_KEY};
use crate::{gpus, rows};

/// The number of objects in one query. The number of parameters is a power of two up to it, so that the
/// database prepares few statements.
const OBJECTS_PER_QUERY: usize = 256;

/// The newest row of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
struct NewestRow {
    seq: u64,
    phase: String,
    at_ms: u64,
    gpus: Option<i64>,
}

/// The rows for these states, which are in the order of the journal.
pub fn write(states: &[&State], config: &Config, dialect: Dialect) -> Result<(), Error> {
    let names = PrefixedNames(&config.prefix);
    let changes: Vec<_> = states.iter().filter(|state| changes_phase(state)).collect();
    if changes.is_empty() {
        return Ok(());
    }
    let mut last = last_of(changes.iter().map(|state| rows::uid(state)), names, dialect)?;
    let mut made = TransitionRows::default();
    for state in changes {
        let uid = rows::uid(state);
        let before = last.get(&uid);
        let phase = rows::phase(state);
        // The row is stored already, or is older than the stored one, as when a plugin begins again at the
        // start.
        if before.is_some_and(|before| before.seq >= state.seq || before.phase == phase) {
            continue;
        }
        let gpus = gpus_of(state, before, &config.gpus)?;
        made.push(state, before, gpus);
        last.insert(uid, NewestRow { seq: state.seq, phase, at_ms: state.observed_ms, gpus });
    }
    if made.states.is_empty() {
        return Ok(());
    }
    sql::write_states(DATABASE, &made.into_write(names), None).map(drop)
}

/// Whether a state changes the phase. Most do not, and no query is made for them.
fn changes_phase(state: &State) -> bool {
    let before = state.previous.as_ref().map(|previous| previous.phase.as_str());
    rows::is_current(state) && before != Some(rows::phase(state).as_str())
}

/// A deleted object may have no document any more: it keeps its previous GPUs.
fn gpus_of(state: &State, before: Option<&NewestRow>, resource: &str) -> Result<Option<i64>, Error> {
    if resource.is_empty() {
        return Ok(None);
    }
    Ok(gpus::count(state, resource)?.or_else(|| before.and_then(|before| before.gpus)))
}

/// Rows in the making, with the facts that the states themselves lack.
#[derive(Default)]
struct TransitionRows {
    states: Vec<u64>,
    from: Vec<Value>,
    /// Whether each previous phase is the one that the host knows.
    is_from_known: bool,
    lasted: Vec<Value>,
    gpus: Vec<Value>,
}

impl TransitionRows {
    fn push(&mut self, state: &State, before: Option<&NewestRow>, gpus: Option<i64>) {
        // If no previous row was written, as when version 1 wrote the tables, the host knows the phase, but
        // its time is unknown.
        let known = state.previous.as_ref().map(|previous| rows::text(&previous.phase));
        let from = before.map(|before| before.phase.clone()).or_else(|| known.clone());
        self.is_from_known = (self.states.is_empty() || self.is_from_known) && from == known;
        self.states.push(state.seq);
        self.from.push(from.into());
        self.lasted.push(before.map(|before| state.observed_ms.saturating_sub(before.at_ms)).into());
        self.gpus.push(gpus.into());
    }

    fn into_write(self, names: PrefixedNames<'_>) -> StateWrite {
        let from = match self.is_from_known {
            true => Fact(StateFact::PreviousPhase),
            false => ColumnFilling::Each(self.from),
        };
        let gpus = match self.gpus.iter().any(|gpus| *gpus != Value::Null) {
            true => ColumnFilling::Each(self.gpus),
            false => ColumnFilling::Same(Value::Null),
        };
        let fillings: [ColumnFilling; TRANSITION.len()] = [
            Fact(StateFact::Uid),
            Fact(StateFact::Seq),
            Fact(StateFact::Id),
            Fact(StateFact::Source),
            Fact(StateFact::Kind),
            Fact(StateFact::Namespace),
            Fact(StateFact::Name),
            Fact(StateFact::OwnerKind),
            Fact(StateFact::OwnerName),
            Fact(StateFact::OwnerUid),
            from,
            Fact(StateFact::Phase),
            Fact(StateFact::Reason),
            Fact(StateFact::Attempt),
            Fact(StateFact::ExitCode),
            Fact(StateFact::ObservedAt),
            Fact(StateFact::ObservedMs),
            ColumnFilling::Each(self.lasted),
            gpus,
        ];
        let columns = TRANSITION.iter().zip(fillings);
        StateWrite {
            table: names.of(TRANSITIONS),
            columns: columns
                .map(|((name, _), filling)| FilledColumn { name: name.to_string(), filling })
                .collect(),
            key: TRANSITIONS_KEY.map(str::to_string).to_vec(),
            on_conflict: OnConflict::Ignore,
            states: self.states,
        }
    }
}

/// A query for the newest row of this many objects, with a few look-ups by key for each, however often an
/// object has changed. On servers object_status provides the objects, because it has one row for each.
fn newest_row_query(count: usize, names: PrefixedNames<'_>, dialect: Dialect) -> String {
    let transitions = names.of(TRANSITIONS);
    let columns = "SELECT t.uid, t.seq, t.to_phase, t.changed_ms, t.gpus FROM";
    if dialect == Dialect::Sqlite {
        // The key's index contains the number of the row, so the row is found without another look-up.
        let places = vec!["(?)"; count].join(",");
        return format!(
            "{columns} (VALUES {places}) v JOIN {transitions} t ON t.rowid = (SELECT m.rowid FROM {transitions} m \
             WHERE m.uid = v.column1 ORDER BY m.seq DESC LIMIT 1)"
        );
    }
    let (status, places) = (names.of(STATUS), vec!["?"; count].join(","));
    format!(
        "{columns} {status} s JOIN {transitions} t ON t.uid = s.uid \
         AND t.seq = (SELECT max(m.seq) FROM {transitions} m WHERE m.uid = s.uid) WHERE s.uid IN ({places})"
    )
}

fn last_of(
    uids: impl Iterator<Item = String>,
    names: PrefixedNames<'_>,
    dialect: Dialect,
) -> Result<BTreeMap<String, NewestRow>, Error> {
    let mut uids: Vec<_> = uids.collect();
    uids.sort_unstable();
    uids.dedup();
    let transitions = names.of(TRANSITIONS);
    let mut last = BTreeMap::new();
    for asked in uids.chunks(OBJECTS_PER_QUERY) {
        let question = newest_row_query(asked.len().next_power_of_two(), names, dialect);
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
            // Neither number ever has a sign.
            let gpus = if let Value::Integer(gpus) = gpus { Some(gpus) } else { None };
            last.insert(uid, NewestRow { seq: seq.cast_unsigned(), phase, at_ms: at.cast_unsigned(), gpus });
        }
    }
    Ok(last)
}
