//! Converts a state into a row.

use kubewitness_sdk::sql::Value;
use kubewitness_sdk::{Change, State, time};

use crate::tables;

/// Messages are for people. The document has what is cut.
const MESSAGE_BYTES: usize = 4096;
/// The longest name, version or reason. Kubernetes keeps to 253 bytes; a source may send anything.
const WORD_BYTES: usize = 1024;

pub fn status_columns() -> Vec<String> {
    tables::COLUMNS.map(|(name, _)| name.to_string()).to_vec()
}

pub fn history_columns() -> Vec<String> {
    let mut columns = status_columns();
    columns.push(tables::PREVIOUS.0.to_string());
    columns
}

/// Whether this state says how the object is now. A late state says how it was, and a gap only says that
/// something is not known.
pub fn is_current(state: &State) -> bool {
    let late = state.extra.iter().any(|(key, value)| key == "late" && value == "true");
    !late && state.change != Change::Gap
}

pub fn status(state: &State) -> Vec<Value> {
    let (object, status) = (&state.object, &state.status);
    let gone = state.change == Change::Gone;
    let mut row = Vec::with_capacity(tables::COLUMNS.len() + 1);
    row.extend([
        // The id is never cut: it would no longer be one.
        clean(&state.id, usize::MAX).into(),
        state.seq.into(),
        word(&state.source),
        word(&object.group),
        word(&object.kind),
        word(&object.namespace),
        word(&object.name),
        word(&object.uid),
        word(&state.resource_version),
        change(state.change).into(),
        if gone { "Deleted".into() } else { word(&status.phase) },
        word(&status.reason),
        clean(&status.message, MESSAGE_BYTES).into(),
        status.attempt.into(),
        status.ready.into(),
        status.total.into(),
        status.exit_code.into(),
        i64::from(status.terminal || gone).into(),
        state.owner.as_ref().map(|owner| clean(&owner.kind, WORD_BYTES)).into(),
        state.owner.as_ref().map(|owner| clean(&owner.name, WORD_BYTES)).into(),
        time::rfc3339(state.observed_ms).into(),
    ]);
    row
}

/// The columns of [`status`], and the status before.
pub fn history(state: &State) -> Vec<Value> {
    let mut row = status(state);
    row.push(state.previous.as_ref().map(|previous| clean(&previous.phase, WORD_BYTES)).into());
    row
}

fn change(change: Change) -> &'static str {
    match change {
        Change::Present => "present",
        Change::Gone => "gone",
        Change::Left => "left",
        Change::Gap => "gap",
    }
}

fn word(text: &str) -> Value {
    clean(text, WORD_BYTES).into()
}

/// Replaces NUL: some databases refuse it, and others stop reading at it.
fn clean(text: &str, limit: usize) -> String {
    let text = &text[..text.floor_char_boundary(limit)];
    // NUL almost never occurs, and a copy is much cheaper than a replacement.
    if text.contains('\0') { text.replace('\0', "\u{fffd}") } else { text.to_string() }
}
