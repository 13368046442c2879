//! Converts a state's envelope and its document into the values that an expression can read.

use std::collections::HashMap;

use cel::Value;
use kubewitness_core::state::{ObjectRef, State, Status};

/// The fields of `state`. A missing owner is null, and so is `previous` at the first state.
pub(crate) const FIELDS: [&str; 24] = [
    "source",
    "epoch",
    "change",
    "transition",
    "late",
    "resourceVersion",
    "group",
    "apiVersion",
    "kind",
    "namespace",
    "name",
    "uid",
    "owner",
    "labels",
    "annotations",
    "phase",
    "reason",
    "message",
    "attempt",
    "ready",
    "total",
    "exitCode",
    "terminal",
    "previous",
];
/// The fields that come from the document.
pub(crate) const OF_DOCUMENT: [&str; 2] = ["labels", "annotations"];
/// The fields of `state.previous`.
pub(crate) const OF_STATUS: [&str; 8] =
    ["phase", "reason", "message", "attempt", "ready", "total", "exitCode", "terminal"];

type FieldMap = HashMap<String, Value>;

pub(crate) fn state_value(state: &State, document: &serde_json::Value) -> Value {
    let mut fields = object_fields(&state.object);
    fields.extend(status_fields(&state.status));
    let of_document = |field: &str| match &document["metadata"][field] {
        serde_json::Value::Null => Value::from(FieldMap::new()),
        map => json_value(map),
    };
    let api_version = match state.object.group.as_str() {
        "" => state.object.version.clone(),
        group => format!("{group}/{}", state.object.version),
    };
    let owner = state.owner.as_ref().map_or(Value::Null, |owner| Value::from(object_fields(owner)));
    let previous = state.previous.as_ref().map_or(Value::Null, |before| Value::from(status_fields(before)));
    for (name, value) in [
        ("source", text(&state.source)),
        ("epoch", Value::Int(state.epoch.into())),
        ("change", text(state.change.as_str())),
        ("transition", Value::Bool(state.is_transition())),
        ("late", Value::Bool(state.late)),
        ("resourceVersion", text(&state.resource_version.to_string())),
        ("apiVersion", text(&api_version)),
        ("owner", owner),
        ("labels", of_document("labels")),
        ("annotations", of_document("annotations")),
        ("previous", previous),
    ] {
        fields.insert(name.to_owned(), value);
    }
    Value::from(fields)
}

fn object_fields(object: &ObjectRef) -> FieldMap {
    let fields = [
        ("group", &object.group),
        ("kind", &object.kind),
        ("namespace", &object.namespace),
        ("name", &object.name),
        ("uid", &object.uid),
    ];
    fields.map(|(name, value)| (name.to_owned(), text(value))).into()
}

fn status_fields(status: &Status) -> FieldMap {
    let number = |number: u32| Value::Int(number.into());
    let fields = [
        ("phase", text(&status.phase)),
        ("reason", text(&status.reason)),
        ("message", text(&status.message)),
        ("attempt", number(status.attempt)),
        ("ready", number(status.ready)),
        ("total", number(status.total)),
        ("exitCode", status.exit_code.map_or(Value::Null, |code| Value::Int(code.into()))),
        ("terminal", Value::Bool(status.terminal)),
    ];
    fields.map(|(name, value)| (name.to_owned(), value)).into()
}

fn text(text: &str) -> Value {
    Value::from(text.to_owned())
}

/// Whole numbers become ints, so that they compare with the numbers that people write.
pub(crate) fn json_value(value: &serde_json::Value) -> Value {
    match value {
        serde_json::Value::Null => Value::Null,
        serde_json::Value::Bool(value) => Value::Bool(*value),
        serde_json::Value::Number(number) => match number.as_i64() {
            Some(number) => Value::Int(number),
            None => Value::Float(number.as_f64().unwrap_or(f64::NAN)),
        },
        serde_json::Value::String(value) => text(value),
        serde_json::Value::Array(values) => Value::from(values.iter().map(json_value).collect::<Vec<_>>()),
        serde_json::Value::Object(fields) => Value::from(
            fields.iter().map(|(name, value)| (name.clone(), json_value(value))).collect::<FieldMap>(),
        ),
    }
}

/// The length of the longest list or map in a value.
pub(crate) fn longest_part(value: &serde_json::Value) -> u64 {
    let deeper =
        |values: &mut dyn Iterator<Item = &serde_json::Value>| values.map(longest_part).max().unwrap_or(0);
    match value {
        serde_json::Value::Array(values) => deeper(&mut values.iter()).max(values.len() as u64),
        serde_json::Value::Object(fields) => deeper(&mut fields.values()).max(fields.len() as u64),
        _ => 0,
    }
}

/// The approximate bytes of the state without its document: its texts, and an allowance for its other fields.
pub(crate) fn approximate_bytes(state: &State) -> u64 {
    let of_object = |object: &ObjectRef| {
        let ObjectRef { group, version, kind, namespace, name, uid } = object;
        [group, version, kind, namespace, name, uid].into_iter().map(|text| text.len()).sum::<usize>()
    };
    let of_status = |status: &Status| status.phase.len() + status.reason.len() + status.message.len();
    let owner = state.owner.as_deref().map_or(0, of_object);
    let previous = state.previous.as_deref().map_or(0, of_status);
    let texts = of_object(&state.object) + owner + of_status(&state.status) + previous;
    (texts + 24 * FIELDS.len()) as u64
}
