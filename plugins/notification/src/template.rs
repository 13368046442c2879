//! Fills the template: any JSON, whose strings may contain placeholders such as `{{phase}}`. A string that is
//! only a placeholder becomes a value of its own type, so that numbers stay numbers.

use kubewitness_sdk::{Change, FieldError, ObjectRef, State, time};
use serde_json::{Value, json};

const OPEN: &str = "{{";
const CLOSE: &str = "}}";

pub fn standard() -> Value {
    json!({
        "id": "{{id}}",
        "text": "{{kind}} {{namespace}}/{{name}}: {{phase}}",
        "source": "{{source}}",
        "kind": "{{kind}}",
        "namespace": "{{namespace}}",
        "name": "{{name}}",
        "uid": "{{uid}}",
        "change": "{{change}}",
        "phase": "{{phase}}",
        "previousPhase": "{{previousPhase}}",
        "reason": "{{reason}}",
        "message": "{{message}}",
        "attempt": "{{attempt}}",
        "exitCode": "{{exitCode}}",
        "terminal": "{{terminal}}",
        "ownerKind": "{{ownerKind}}",
        "ownerName": "{{ownerName}}",
        "observedAt": "{{observedAt}}",
        "late": "{{late}}",
    })
}

pub fn phase(state: &State) -> &str {
    if state.change == Change::Gone { "Deleted" } else { &state.status.phase }
}

fn change(state: &State) -> &'static str {
    match state.change {
        Change::Present => "present",
        Change::Gone => "gone",
        Change::Left => "left",
        Change::Gap => "gap",
    }
}

/// A placeholder's name and value.
type Placeholder = (&'static str, fn(&State) -> Value);

fn owner(state: &State, field: fn(&ObjectRef) -> &String) -> Value {
    state.owner.as_ref().map(field).cloned().into()
}

const PLACEHOLDERS: [Placeholder; 23] = [
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
    ("observedAt", |s| time::rfc3339(s.observed_ms).into()),
    ("late", |s| s.extra.iter().any(|(key, value)| key == "late" && value == "true").into()),
];

fn find(name: &str) -> Option<fn(&State) -> Value> {
    PLACEHOLDERS.iter().find(|(known, _)| *known == name.trim()).map(|(_, value)| *value)
}

/// The text before, in and after the first placeholder.
fn split(text: &str) -> Option<(&str, &str, &str)> {
    let (before, rest) = text.split_once(OPEN)?;
    let (name, behind) = rest.split_once(CLOSE)?;
    Some((before, name, behind))
}

pub fn fill(template: &Value, state: &State) -> Value {
    match template {
        Value::String(text) => fill_text(text, state),
        Value::Array(items) => items.iter().map(|item| fill(item, state)).collect(),
        Value::Object(fields) => {
            Value::Object(fields.iter().map(|(name, value)| (name.clone(), fill(value, state))).collect())
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => template.clone(),
    }
}

fn fill_text(text: &str, state: &State) -> Value {
    if let Some(("", name, "")) = split(text)
        && let Some(value) = find(name)
    {
        return value(state);
    }
    let mut filled = String::new();
    let mut rest = text;
    while let Some((before, name, behind)) = split(rest) {
        filled.push_str(before);
        match find(name).map(|value| value(state)) {
            Some(Value::String(value)) => filled.push_str(&value),
            Some(Value::Null) | None => {}
            Some(value) => filled.push_str(&value.to_string()),
        }
        rest = behind;
    }
    filled.push_str(rest);
    filled.into()
}

/// Faults for unknown placeholders, each with its field.
pub fn check(template: &Value) -> Vec<FieldError> {
    let mut faults = Vec::new();
    check_at("template", template, &mut faults);
    faults
}

fn check_at(path: &str, template: &Value, faults: &mut Vec<FieldError>) {
    match template {
        Value::String(text) => {
            let mut rest = text.as_str();
            while let Some((_, name, behind)) = split(rest) {
                if find(name).is_none() {
                    let known: Vec<_> = PLACEHOLDERS.iter().map(|(known, _)| *known).collect();
                    let message = format!("`{{{{{name}}}}}` is not known; there are {}", known.join(", "));
                    faults.push(FieldError::new(path, message));
                }
                rest = behind;
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                check_at(&format!("{path}[{index}]"), item, faults);
            }
        }
        Value::Object(fields) => {
            for (name, value) in fields {
                check_at(&format!("{path}.{name}"), value, faults);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}
