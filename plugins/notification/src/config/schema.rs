//! The JSON Schema of the configuration, from its types. A test compares it with `schema.json`, which the component
//! carries: the host checks manifests against it.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

use super::hours::{Minute, Offset};
use super::{Config, Span};

macro_rules! text {
    ($type:ty, $name:literal, $pattern:literal, $about:literal) => {
        impl JsonSchema for $type {
            fn schema_name() -> Cow<'static, str> {
                $name.into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({"type": "string", "pattern": $pattern, "description": $about})
            }
        }
    };
}
text!(
    Span,
    "Time",
    "^[0-9]{1,10}(ms|s|m|h|d)$",
    "A whole number of up to 10 digits and `ms`, `s`, `m`, `h` or `d`, such as `10s`."
);
text!(Minute, "Minute", "^([01][0-9]|2[0-3]):[0-5][0-9]$", "A time of day, such as `22:00`.");
text!(Offset, "Offset", "^[+-]([01][0-9]|2[0-3]):[0-5][0-9]$", "An offset from UTC, such as `+08:00`.");

/// For defaults.
impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format!("{}s", self.ms / 1000))
    }
}

/// Sorts the members, because their order depends on which features of `serde_json` a build has. Joins the lines of texts.
fn sorted(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let field = |(name, value): (String, Value)| match (name.as_str(), value) {
                ("description", Value::String(text)) => (name, text.replace('\n', " ").into()),
                (_, value) => (name, sorted(value)),
            };
            let mut fields: Vec<_> = fields.into_iter().map(field).collect();
            fields.sort_by(|one, other| one.0.cmp(&other.0));
            Value::Object(Map::from_iter(fields))
        }
        Value::Array(list) => list.into_iter().map(sorted).collect(),
        other => other,
    }
}

#[test]
fn the_reference_of_the_configuration_is_what_its_types_say() {
    let schema = sorted(SchemaGenerator::default().into_root_schema_for::<Config>().to_value());
    let text = format!("{schema:#}\n");
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/config/schema.json");
    if std::env::var_os("KUBEWITNESS_WRITE_DOCS").is_some() {
        std::fs::write(path, &text).unwrap();
    }
    let written = std::fs::read_to_string(path).unwrap();
    assert!(written == text, "{path} is not what the types say: run `cargo xtask docs`");
}
