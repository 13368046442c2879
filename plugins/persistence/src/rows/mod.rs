//! Names the facts about states that rows contain, which the host fills in, and makes the texts that the
//! plugin compares.

pub mod overlap;

use kubewitness_sdk::sql::{self, FilledColumn, StateFact};
use kubewitness_sdk::{Change, State};

use crate::schema;

/// The host uses the same limit for words.
const WORD_BYTES: usize = 1024;

/// The facts for [`schema::COLUMNS`] and [`schema::OWNER_UID`], in their order.
const FACTS: [StateFact; schema::COLUMNS.len() + 1] = [
    StateFact::Id,
    StateFact::Seq,
    StateFact::Source,
    StateFact::ApiGroup,
    StateFact::Kind,
    StateFact::Namespace,
    StateFact::Name,
    StateFact::Uid,
    StateFact::ResourceVersion,
    StateFact::Change,
    StateFact::Phase,
    StateFact::Reason,
    StateFact::Message,
    StateFact::Attempt,
    StateFact::Ready,
    StateFact::Total,
    StateFact::ExitCode,
    StateFact::Terminal,
    StateFact::OwnerKind,
    StateFact::OwnerName,
    StateFact::ObservedAt,
    StateFact::OwnerUid,
];

/// The columns that object_status and object_history have in common.
pub fn status_columns() -> Vec<FilledColumn> {
    let names = schema::COLUMNS.iter().chain([&schema::OWNER_UID]).map(|(name, _)| name);
    names.zip(FACTS).map(|(name, fact)| FilledColumn::of_fact(name, fact)).collect()
}

/// The column of the previous phase, which object_history has in addition.
pub fn previous_column() -> FilledColumn {
    FilledColumn::of_fact(schema::PREVIOUS.0, StateFact::PreviousPhase)
}

/// The positions by which the host identifies the states.
pub fn positions(states: &[&State]) -> Vec<u64> {
    states.iter().map(|state| state.seq).collect()
}

/// Whether this state is the present one of its object. A late state is an earlier one, and a gap only means
/// that the state is unknown.
pub fn is_current(state: &State) -> bool {
    let late = state.extra.iter().any(|(key, value)| key == "late" && value == "true");
    !late && state.change != Change::Gap
}

pub fn uid(state: &State) -> String {
    sql::uid_text(&state.object.uid)
}

pub fn phase(state: &State) -> String {
    if state.change == Change::Gone { "Deleted".into() } else { text(&state.status.phase) }
}

/// A text as a column stores it.
pub fn text(value: &str) -> String {
    sql::column_text(value, WORD_BYTES)
}
