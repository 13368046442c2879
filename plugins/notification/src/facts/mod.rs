//! The facts about a state, under the names that templates use: the fields of the state, and values of its
//! document by JSON Pointer (`/metadata/labels/team`). The host is asked why the object ended badly
//! ([`outcomes`]).

pub mod outcomes;

use std::collections::BTreeSet;

use kubewitness_sdk::{Change, Error, ObjectRef, State, documents, time};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

pub type Facts = Map<String, Value>;

/// A status' message is for people, and is stored in `kv` until it is sent.
const MESSAGE_BYTES: usize = 512;
/// The limit of other texts. Names of objects have at most 253 bytes.
const SHORT_BYTES: usize = 253;

type Field = (&'static str, fn(&State) -> Value);

const FIELDS: [Field; 27] = [
    ("id", |s| s.id.clone().into()),
    ("seq", |s| s.seq.into()),
    ("source", |s| s.source.clone().into()),
    ("change", |s| change(s).into()),
    ("group", |s| s.object.group.clone().into()),
    ("kind", |s| s.object.kind.clone().into()),
    ("namespace", |s| s.object.namespace.clone().into()),
    ("name", |s| s.object.name.clone().into()),
    ("uid", |s| s.object.uid.clone().into()),
    ("resourceVersion", |s| s.resource_version.clone().into()),
    ("phase", |s| phase(s).into()),
    ("previousPhase", |s| s.previous.as_ref().map(|previous| previous.phase.clone()).into()),
    ("reason", |s| s.status.reason.clone().into()),
    ("message", |s| s.status.message.clone().into()),
    ("attempt", |s| s.status.attempt.into()),
    ("ready", |s| s.status.ready.into()),
    ("total", |s| s.status.total.into()),
    ("exitCode", |s| s.status.exit_code.into()),
    ("terminal", |s| (s.status.terminal || s.change == Change::Gone).into()),
    ("ownerKind", |s| owner(s, |owner| &owner.kind)),
    ("ownerName", |s| owner(s, |owner| &owner.name)),
    ("ownerUid", |s| owner(s, |owner| &owner.uid)),
    ("observedAt", |s| time::rfc3339(s.observed_ms).into()),
    ("late", |s| is_late(s).into()),
    // Added later: see [`outcomes`].
    (outcomes::CAUSE, |_| Value::Null),
    (outcomes::WHY, |_| Value::Null),
    (outcomes::SUMMARY, |s| phase(s).into()),
];

/// Whether a newer version of the object was journaled before.
pub fn is_late(state: &State) -> bool {
    state.extra.iter().any(|(key, value)| key == "late" && value == "true")
}

pub fn phase(state: &State) -> &str {
    if state.change == Change::Gone { "Deleted" } else { &state.status.phase }
}

pub fn change(state: &State) -> &'static str {
    match state.change {
        Change::Present => "present",
        Change::Gone => "gone",
        Change::Left => "left",
        Change::Gap => "gap",
    }
}

fn owner(state: &State, field: fn(&ObjectRef) -> &String) -> Value {
    state.owner.as_ref().map(field).cloned().into()
}

pub fn is_pointer(name: &str) -> bool {
    name.starts_with('/')
}

/// Whether the name is a field of the state, or a pointer.
pub fn is_known(name: &str) -> bool {
    is_pointer(name) || FIELDS.iter().any(|(known, _)| *known == name)
}

pub fn names() -> String {
    FIELDS.map(|(name, _)| name).join(", ")
}

/// A loop, because `collect` would sort the members first, with code that is larger than this whole file.
pub fn map(fields: impl IntoIterator<Item = (String, Value)>) -> Facts {
    let mut map = Facts::new();
    map.extend(fields);
    map
}

fn fields(state: &State) -> Facts {
    map(FIELDS.iter().map(|(name, value)| (name.to_string(), value(state))))
}

/// The facts outside the document, bounded.
pub fn plain_facts(state: &State) -> Facts {
    bound_facts(fields(state))
}

/// Reads the document only for `pointers`. If the document has no such value, or if there is no document, the
/// value is `null`.
pub fn facts_of(state: &State, pointers: &BTreeSet<String>) -> Result<Facts, Error> {
    let mut facts = fields(state);
    for pointer in pointers {
        facts.insert(pointer.clone(), value(state, pointer)?);
    }
    Ok(facts)
}

/// A value of the document.
pub fn value(state: &State, pointer: &str) -> Result<Value, Error> {
    match documents::value::<Value>(state.seq, pointer) {
        Ok(value) => Ok(value.unwrap_or(Value::Null)),
        // The document can't be read, now or later.
        Err(Error::Invalid(_) | Error::TooLarge(_)) => Ok(Value::Null),
        Err(error) => Err(error),
    }
}

/// Cuts texts that other parties choose, so that many facts fit into `kv`.
pub fn bound_facts(mut facts: Facts) -> Facts {
    for (name, value) in &mut facts {
        let most = if name == "message" { MESSAGE_BYTES } else { SHORT_BYTES };
        match value {
            Value::String(text) => *text = clip_text(text, most),
            Value::Array(_) | Value::Object(_) if json(value).len() > most => {
                *value = clip_text(&json(value), most).into();
            }
            _ => {}
        }
    }
    facts
}

/// Reads JSON of `kv` and of answers. A single reader keeps the component small.
pub fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    let text = std::str::from_utf8(bytes).map_err(|error| error.to_string())?;
    serde_json::from_str(text).map_err(|error| error.to_string())
}

/// JSON as a text. A single writer keeps the component small.
pub fn json(value: &Value) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// The text, cut between characters to at most this many bytes.
pub fn clip_text(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.to_string();
    }
    let end = text.floor_char_boundary(most.saturating_sub("…".len()));
    format!("{}…", &text[..end])
}

/// The text without characters that change how the rest is displayed: controls, such as ESC, and marks of
/// direction. Line ends stay.
pub fn clean_text(text: &str) -> String {
    let is_mark = |c: char| matches!(c, '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let shown = |c: char| match c {
        '\n' => Some(c),
        c if c.is_control() => Some(' '),
        c => (!is_mark(c)).then_some(c),
    };
    text.chars().filter_map(shown).collect()
}

/// The same on one line, for a subject, a header or a heading.
pub fn one_line(text: &str) -> String {
    clean_text(text).replace('\n', " ")
}

/// A fact as text, empty if it is missing.
pub fn text<'a>(facts: &'a Facts, name: &str) -> &'a str {
    facts.get(name).and_then(Value::as_str).unwrap_or_default()
}

pub fn is_set(facts: &Facts, name: &str) -> bool {
    facts.get(name).and_then(Value::as_bool).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_values_are_cut_at_a_character_and_the_others_stay() {
        assert_eq!((clip_text("abc", 3), clip_text("äöü", 5)), ("abc".into(), "ä…".into()));
        let facts: Facts = serde_json::from_value(serde_json::json!({
            "message": "m".repeat(600), "name": "n".repeat(253), "/spec": {"a": "b".repeat(300)}, "attempt": 3,
        }))
        .unwrap();
        let cut = bound_facts(facts);
        assert_eq!((text(&cut, "message").len(), text(&cut, "name").len()), (MESSAGE_BYTES, 253));
        assert!(text(&cut, "/spec").starts_with(r#"{"a":"bb"#) && text(&cut, "/spec").len() <= 253);
        assert_eq!(cut["attempt"], 3);
    }

    #[test]
    fn a_text_has_no_controls_and_no_marks_of_direction() {
        let text = "a\r\n\u{1b}[31mred\u{202e}txt.exe\u{2066} \u{200f}é";
        assert_eq!(clean_text(text), "a \n [31mredtxt.exe é");
        assert_eq!(one_line(text), "a   [31mredtxt.exe é");
    }
}
