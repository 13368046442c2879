//! The fields of a plugin's configuration, for people to read, taken from the JSON Schema in its component.
//!
//! The schema comes from an untrusted guest, so the cost of reading it is bounded.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::model::fault::shorten_text;

/// One field of a plugin's configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ConfigField {
    /// Its path: `[]` stands for each item of a list, and `*` for each name of a map.
    pub field: String,
    /// For people, such as `text` or `list of texts`.
    #[serde(rename = "type")]
    pub kind: String,
    pub required: bool,
    /// As JSON; left out where there is none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub default: String,
    pub meaning: String,
}

/// A person reads no more fields of one plugin.
const FIELDS: usize = 300;
/// How deeply types may be nested or refer to themselves.
const DEPTH: usize = 16;
/// The most parts of the schema that are examined. Nested alternatives could demand any number.
const STEPS: usize = 10_000;
/// How many bytes of one text are kept.
const TEXT: usize = 1024;
/// The most words of a field and alternatives of a type.
const WORDS: usize = 20;

/// The fields of a schema, each after the field that contains it. A text that is no schema has no fields.
pub fn config_fields(schema: &str) -> Vec<ConfigField> {
    let root = serde_json::from_str(schema).unwrap_or_default();
    let mut walk = FieldWalk { root: &root, found: Vec::new(), steps: 0 };
    walk.walk_below(&root, "", 0);
    walk.found
}

struct FieldWalk<'a> {
    root: &'a Value,
    found: Vec<ConfigField>,
    steps: usize,
}

impl<'a> FieldWalk<'a> {
    /// Resolves a part of the schema.
    fn resolve_schema(&self, schema: &'a Value) -> &'a Value {
        let mut schema = schema;
        for _ in 0..DEPTH {
            let target = schema["$ref"].as_str().and_then(|target| target.strip_prefix('#'));
            let Some(found) = target.and_then(|path| self.root.pointer(path)) else { break };
            schema = found;
        }
        schema
    }

    fn walk_below(&mut self, schema: &'a Value, at: &str, depth: usize) {
        self.steps += 1;
        if depth > DEPTH || self.steps > STEPS {
            return;
        }
        let schema = self.resolve_schema(schema);
        for alternative in schema_alternatives(schema) {
            self.walk_below(alternative, at, depth + 1);
        }
        let required = schema["required"].as_array().map_or(&[][..], Vec::as_slice);
        for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            let place = if at.is_empty() { name.clone() } else { format!("{at}.{name}") };
            if self.found.len() >= FIELDS {
                return;
            }
            // If several alternatives have this field, the first one describes it.
            if self.found.iter().all(|known| known.field != place) {
                let found =
                    self.describe_field(&place, field, required.contains(&Value::from(name.as_str())));
                self.found.push(found);
                self.walk_below(field, &place, depth + 1);
            }
        }
        if schema["items"].is_object() {
            self.walk_below(&schema["items"], &format!("{at}[]"), depth + 1);
        }
        if schema["additionalProperties"].is_object() {
            self.walk_below(&schema["additionalProperties"], &format!("{at}.*"), depth + 1);
        }
    }

    fn describe_field(&mut self, place: &str, field: &'a Value, required: bool) -> ConfigField {
        let of = self.resolve_schema(field);
        let default = field.get("default").filter(|default| !default.is_null());
        let meaning = field["description"].as_str().or(of["description"].as_str()).unwrap_or_default();
        let text = |text: &str| shorten_text(text, TEXT).replace('\n', " ");
        ConfigField {
            field: text(place),
            kind: text(&self.describe_kind(of, 0)),
            required,
            default: text(&default.map(Value::to_string).unwrap_or_default()),
            meaning: text(meaning),
        }
    }

    fn describe_kind(&mut self, schema: &'a Value, depth: usize) -> String {
        self.steps += 1;
        if depth > DEPTH || self.steps > STEPS {
            return "any value".to_owned();
        }
        let schema = self.resolve_schema(schema);
        let words = enum_words(schema);
        if !words.is_empty() {
            return words.join(", ");
        }
        let mut kinds: Vec<String> = Vec::new();
        for alternative in schema_alternatives(schema).take(WORDS) {
            let kind = self.describe_kind(alternative, depth + 1);
            if !kind.is_empty() && !kinds.contains(&kind) {
                kinds.push(kind);
            }
        }
        if !kinds.is_empty() {
            return kinds.join(" or ");
        }
        let types = match &schema["type"] {
            Value::Array(types) => types.iter().find(|name| **name != "null"),
            kind => Some(kind),
        };
        let of = |inner: String| match inner.starts_with('`') {
            true => inner,
            false => format!("{inner}s"),
        };
        match types.and_then(Value::as_str) {
            Some("string") => "text".to_owned(),
            Some("integer") => "whole number".to_owned(),
            Some("number") => "number".to_owned(),
            Some("boolean") => "`true` or `false`".to_owned(),
            Some("null") => String::new(),
            Some("array") => format!("list of {}", of(self.describe_kind(&schema["items"], depth + 1))),
            Some("object") if schema["additionalProperties"].is_object() => {
                format!("map of {}", of(self.describe_kind(&schema["additionalProperties"], depth + 1)))
            }
            Some("object") => "object".to_owned(),
            _ => "any value".to_owned(),
        }
    }
}

fn schema_alternatives(schema: &Value) -> impl Iterator<Item = &Value> {
    let lists = ["anyOf", "oneOf", "allOf"].into_iter().filter_map(|word| schema[word].as_array());
    lists.flatten()
}

/// The allowed words, if the schema is an enumeration of words.
fn enum_words(schema: &Value) -> Vec<String> {
    let listed = schema["enum"].as_array().map_or(&[][..], Vec::as_slice);
    let constants =
        schema_alternatives(schema).chain([schema]).filter_map(|alternative| alternative.get("const"));
    listed
        .iter()
        .chain(constants)
        .filter_map(Value::as_str)
        .take(WORDS)
        .map(|word| format!("`{word}`"))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use kubewitness_harness::{GENERATED, cell, reference};
    use serde_json::{Map, json};

    use super::*;

    /// The schema that each component contains: the component embeds this file.
    const SHIPPED: [(&str, &str); 3] = [
        ("persistence", include_str!("../../../../../plugins/persistence/src/config.schema.json")),
        ("notification", include_str!("../../../../../plugins/notification/src/config/schema.json")),
        ("audit", include_str!("../../../../../plugins/audit/src/config.schema.json")),
    ];

    #[test]
    fn the_reference_lists_the_configuration_of_each_shipped_plugin() {
        let mut page = format!(
            "{GENERATED}# Configuration of the shipped plugins\n\nThe fields of `spec.config` in the [manifest](plugin.md) \
             of each plugin. `[]` stands for each item of a list, and `*` for each name of a map. The host compares a \
             configuration with the schema of the component, and the portal's page of plugins shows these fields beside \
             what is set.\n"
        );
        for (plugin, schema) in SHIPPED {
            write!(page, "\n## {plugin}\n\n| field | type | default | meaning |\n|---|---|---|---|\n")
                .unwrap();
            let found = config_fields(schema);
            assert!(!found.is_empty() && found.len() < FIELDS, "{plugin}: {}", found.len());
            for field in found {
                assert!(!field.meaning.is_empty(), "{plugin}: {} has no description", field.field);
                let default = match (field.required, field.default.as_str()) {
                    (true, _) => "required".to_owned(),
                    (false, "") => String::new(),
                    (false, default) => format!("`{default}`"),
                };
                let cells = [&format!("`{}`", field.field), &field.kind, &default, &field.meaning]
                    .map(|text| cell(text));
                writeln!(page, "| {} |", cells.join(" | ")).unwrap();
            }
        }
        reference("plugin-configuration.md", &page);
    }

    fn lines(schema: &Value) -> Vec<String> {
        let line = |field: ConfigField| {
            let default = if field.required { "required".to_owned() } else { field.default };
            [field.field, field.kind, default, field.meaning].join(" | ")
        };
        config_fields(&schema.to_string()).into_iter().map(line).collect()
    }

    #[test]
    fn each_field_is_told_with_its_path_type_default_and_meaning() {
        let schema = json!({
            "$defs": {
                "Kind": {"description": "The service.", "oneOf": [{"const": "slack"}, {"const": "mail"}]},
                "Channel": {
                    "properties": {"kind": {"$ref": "#/$defs/Kind"}, "headers": {"type": "object", "additionalProperties": {"type": "string"}}},
                    "required": ["kind"], "type": "object",
                },
            },
            "properties": {
                "channels": {"type": "array", "items": {"$ref": "#/$defs/Channel"}, "description": "Ways\nto tell."},
                "days": {"type": "array", "items": {"enum": ["mon", "tue"]}, "default": ["mon"]},
                "every": {"anyOf": [{"type": "string"}, {"type": "integer"}, {"type": "null"}], "default": null},
                "sign": {"type": ["boolean", "null"], "default": false},
            },
            "type": "object",
        });
        assert_eq!(
            lines(&schema),
            [
                "channels | list of objects |  | Ways to tell.",
                "channels[].headers | map of texts |  | ",
                "channels[].kind | `slack`, `mail` | required | The service.",
                "days | list of `mon`, `tue` | [\"mon\"] | ",
                "every | text or whole number |  | ",
                "sign | `true` or `false` | false | ",
            ]
        );
        assert!(["", "[1]", "{\"type\":\"object\"}"].iter().all(|none| config_fields(none).is_empty()));
    }

    #[test]
    fn the_fields_of_a_guests_schema_cost_no_more_than_their_bounds() {
        let again = json!({"$ref": "#"});
        let schema = json!({
            "anyOf": vec![again.clone(); 50],
            "properties": {"a": again, "b": {"$ref": "#/none"}},
            "items": {"$ref": "#"},
        });
        let found = config_fields(&schema.to_string());
        assert!(!found.is_empty() && found.len() <= FIELDS, "{}", found.len());
        let many: Map<String, Value> = (0..1_000)
            .map(|index| (format!("f{index}"), json!({"description": "x".repeat(5_000)})))
            .collect();
        let found = config_fields(&json!({"properties": many}).to_string());
        assert_eq!(found.len(), FIELDS);
        assert!(found.iter().all(|field| field.meaning.len() <= TEXT + 3), "{}", found[0].meaning.len());
        let turns = json!({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "properties": {"x": {"$ref": "#/$defs/a"}}});
        assert_eq!(lines(&turns), ["x | any value |  | "]);
    }
}
