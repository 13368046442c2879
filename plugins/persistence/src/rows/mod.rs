//! Converts a state into a row.
//!
//! Dashboards and other programs read the rows, so a value has the same form in every database. Only a
//! current state changes `object_status`: a late state shows how the object was, and a gap only says that
//! something is unknown. Long texts are cut here, with a mark, because the document has the rest.

pub mod overlap;

use kubewitness_sdk::sql::Value;
use kubewitness_sdk::{Change, State, time};

use crate::schema;

/// Messages are for people. The host keeps to less, and the document has what is cut.
const MESSAGE_BYTES: usize = 4096;
/// The longest name, version or reason. Kubernetes keeps to 253 bytes; a source may send anything.
const WORD_BYTES: usize = 1024;

/// The columns of [`status`].
pub fn status_columns() -> Vec<String> {
    schema::COLUMNS.iter().chain([&schema::OWNER_UID]).map(|(name, _)| name.to_string()).collect()
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
    let [owner_kind, owner_name, owner_uid] = owner(state);
    vec![
        id(state),
        state.seq.into(),
        word(&state.source),
        word(&object.group),
        word(&object.kind),
        word(&object.namespace),
        word(&object.name),
        uid(state).into(),
        word(&state.resource_version),
        change(state.change).into(),
        phase(state).into(),
        word(&status.reason),
        cut(&status.message, MESSAGE_BYTES).into(),
        status.attempt.into(),
        status.ready.into(),
        status.total.into(),
        status.exit_code.into(),
        i64::from(status.terminal || gone).into(),
        owner_kind,
        owner_name,
        time::rfc3339(state.observed_ms).into(),
        owner_uid,
    ]
}

/// The status before, which the history has beside the columns of [`status`].
pub fn previous(state: &State) -> Value {
    state.previous.as_ref().map(|previous| cut(&previous.phase, WORD_BYTES)).into()
}

/// The id is never cut: it would no longer be one.
pub fn id(state: &State) -> Value {
    clean(&state.id).into()
}

pub fn uid(state: &State) -> String {
    uid_text(&state.object.uid)
}

/// A uid as all tables have it.
pub fn uid_text(uid: &str) -> String {
    without_blank_end(cut(uid, WORD_BYTES))
}

/// MySQL and MariaDB compare texts without the blanks at their end, so two such uids would share a row.
fn without_blank_end(text: String) -> String {
    let kept = text.trim_end_matches(' ').len();
    if kept == text.len() { text } else { text[..kept].to_owned() + &"\u{2420}".repeat(text.len() - kept) }
}

pub fn phase(state: &State) -> String {
    if state.change == Change::Gone { "Deleted".into() } else { cut(&state.status.phase, WORD_BYTES) }
}

/// Kind, name and uid of the outermost owner.
pub fn owner(state: &State) -> [Value; 3] {
    match &state.owner {
        Some(owner) => {
            let uid = without_blank_end(cut(&owner.uid, WORD_BYTES));
            [word(&owner.kind), word(&owner.name), uid.into()]
        }
        None => [const { Value::Null }; 3],
    }
}

fn change(change: Change) -> &'static str {
    match change {
        Change::Present => "present",
        Change::Gone => "gone",
        Change::Left => "left",
        Change::Gap => "gap",
    }
}

pub fn word(value: &str) -> Value {
    text(value).into()
}

/// The text of [`word`].
pub fn text(value: &str) -> String {
    cut(value, WORD_BYTES)
}

/// A text that says where it is cut.
pub fn cut(text: &str, limit: usize) -> String {
    match text.len() <= limit {
        true => clean(text),
        false => clean(&text[..text.floor_char_boundary(limit - "…".len())]) + "…",
    }
}

/// Replaces NUL: some databases refuse it, and others stop reading at it.
fn clean(text: &str) -> String {
    // NUL almost never occurs, and a copy is much cheaper than a replacement.
    if text.contains('\0') { text.replace('\0', "\u{fffd}") } else { text.to_string() }
}
