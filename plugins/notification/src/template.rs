//! Fills a template: any JSON, whose strings may contain placeholders such as `{{phase}}`. A string that is
//! only a placeholder becomes a value of its own type, so that numbers stay numbers.

use std::collections::BTreeSet;

use kubewitness_sdk::FieldError;
use serde_json::Value;

use crate::facts::{self, Facts, outcomes};

const OPEN: &str = "{{";
const CLOSE: &str = "}}";

/// The facts of a state in the standard template, beside the text.
const STANDARD: [&str; 20] = [
    "id",
    "source",
    "kind",
    "namespace",
    "name",
    "uid",
    "change",
    "phase",
    "previousPhase",
    "reason",
    "message",
    "attempt",
    "exitCode",
    "terminal",
    "ownerKind",
    "ownerName",
    "observedAt",
    "late",
    outcomes::CAUSE,
    outcomes::WHY,
];

pub fn standard() -> Value {
    let mut template =
        facts::map(STANDARD.map(|name| (name.to_string(), format!("{OPEN}{name}{CLOSE}").into())));
    template.insert("text".to_string(), "{{kind}} {{namespace}}/{{name}}: {{summary}}".into());
    Value::Object(template)
}

/// The text before, in and after the first placeholder.
fn split(text: &str) -> Option<(&str, &str, &str)> {
    let (before, rest) = text.split_once(OPEN)?;
    let (name, behind) = rest.split_once(CLOSE)?;
    Some((before, name, behind))
}

pub fn fill(template: &Value, facts: &Facts) -> Value {
    match template {
        Value::String(text) => match split(text) {
            Some(("", name, "")) if facts.contains_key(name.trim()) => facts[name.trim()].clone(),
            _ => fill_text(text, facts).into(),
        },
        Value::Array(items) => items.iter().map(|item| fill(item, facts)).collect(),
        Value::Object(fields) => {
            Value::Object(facts::map(fields.iter().map(|(name, value)| (name.clone(), fill(value, facts)))))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => template.clone(),
    }
}

pub fn fill_text(text: &str, facts: &Facts) -> String {
    let mut filled = String::new();
    let mut rest = text;
    while let Some((before, name, behind)) = split(rest) {
        filled.push_str(before);
        match facts.get(name.trim()) {
            Some(Value::String(value)) => filled.push_str(value),
            Some(Value::Null) | None => {}
            Some(value) => filled.push_str(&facts::json(value)),
        }
        rest = behind;
    }
    filled.push_str(rest);
    filled
}

/// Faults for unknown placeholders, each with its field. `more` are additional names that this template may
/// use.
pub fn check(path: &str, template: &Value, more: &[&str]) -> Vec<FieldError> {
    let mut faults = Vec::new();
    visit(path, template, &mut |path, name| {
        if name.starts_with(OPEN) {
            faults.push(FieldError::new(path, format!("`{name}` is not closed by `{CLOSE}`")));
        } else if !facts::is_known(name) && !more.contains(&name) {
            let known = [&[facts::names().as_str()], more].concat().join(", ");
            let message = format!(
                "`{{{{{name}}}}}` is not known; there are {known}, and JSON Pointers into the document such as \
                 `{{{{/metadata/labels/team}}}}`"
            );
            faults.push(FieldError::new(path, message));
        }
    });
    faults
}

/// Whether a template contains the cause of a bad end.
pub fn says_why(template: &Value) -> bool {
    let mut says = false;
    visit("", template, &mut |_, name| {
        says |= [outcomes::CAUSE, outcomes::WHY, outcomes::SUMMARY].contains(&name);
    });
    says
}

/// The JSON Pointers into the document that a template uses.
pub fn pointers(template: &Value) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    visit("", template, &mut |_, name| {
        if facts::is_pointer(name) {
            found.insert(name.to_string());
        }
    });
    found
}

fn visit(path: &str, template: &Value, seen: &mut dyn FnMut(&str, &str)) {
    match template {
        Value::String(text) => {
            let mut rest = text.as_str();
            while let Some((_, name, behind)) = split(rest) {
                seen(path, name.trim());
                rest = behind;
            }
            // The text of a placeholder that is not closed is kept with its braces.
            if let Some(open) = rest.find(OPEN) {
                seen(path, &rest[open..]);
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                visit(&format!("{path}[{index}]"), item, seen);
            }
        }
        Value::Object(fields) => {
            for (name, value) in fields {
                visit(&format!("{path}.{name}"), value, seen);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}
