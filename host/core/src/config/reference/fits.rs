//! Checks a value against the subset of JSON Schema that the schemas here use. A full JSON Schema crate would
//! change the features of crates that production shares with tests, and so build them twice.

use regex::Regex;
use serde_json::{Map, Value};

/// Keywords that do not decide which values fit.
const NOTES: [&str; 7] = ["$schema", "$defs", "title", "description", "default", "format", super::BOUNDS];

pub fn fits(schema: &Value, value: &Value) -> Result<(), String> {
    schema_fits(schema, schema, value)
}

fn schema_fits(root: &Value, schema: &Value, value: &Value) -> Result<(), String> {
    let keywords = match schema {
        Value::Bool(true) => return Ok(()),
        Value::Object(keywords) => keywords,
        _ => return Err(format!("{value} is refused")),
    };
    for (keyword, rule) in keywords.iter().filter(|(keyword, _)| !NOTES.contains(&keyword.as_str())) {
        let any = |rules: &Value| {
            let fitting = rules.as_array().into_iter().flatten();
            fitting.filter(|rule| schema_fits(root, rule, value).is_ok()).count()
        };
        let is_fine = match (keyword.as_str(), value) {
            ("$ref", _) => {
                let path =
                    rule.as_str().and_then(|path| path.strip_prefix('#')).expect("a path of this schema");
                schema_fits(root, root.pointer(path).expect("a type of this schema"), value)?;
                true
            }
            ("type", _) => {
                let types = rule.as_array().cloned().unwrap_or_else(|| vec![rule.clone()]);
                types.iter().any(|name| is_of(name.as_str().expect("a type"), value))
            }
            ("const", _) => rule == value,
            ("enum", _) => rule.as_array().is_some_and(|all| all.contains(value)),
            ("anyOf", _) => any(rule) > 0,
            ("oneOf", _) => any(rule) == 1,
            ("pattern", Value::String(text)) => {
                Regex::new(rule.as_str().expect("a pattern")).expect("a pattern that is one").is_match(text)
            }
            ("minimum", Value::Number(number)) => number.as_f64() >= rule.as_f64(),
            ("maximum", Value::Number(number)) => number.as_f64() <= rule.as_f64(),
            ("minItems", Value::Array(list)) => list.len() as u64 >= rule.as_u64().unwrap_or_default(),
            ("maxItems", Value::Array(list)) => list.len() as u64 <= rule.as_u64().unwrap_or_default(),
            ("items", Value::Array(list)) => {
                list.iter().try_for_each(|item| schema_fits(root, rule, item))?;
                true
            }
            ("required", Value::Object(fields)) => rule
                .as_array()
                .into_iter()
                .flatten()
                .all(|name| fields.contains_key(name.as_str().unwrap_or_default())),
            ("properties", Value::Object(fields)) => {
                known(root, rule, fields)?;
                true
            }
            ("additionalProperties", Value::Object(fields)) => {
                let mut more = fields.iter().filter(|(name, _)| schema["properties"].get(name).is_none());
                more.try_for_each(|(name, value)| {
                    schema_fits(root, rule, value).map_err(|error| format!("{name}: {error}"))
                })?;
                true
            }
            ("pattern" | "minimum" | "maximum" | "minItems" | "maxItems" | "items", _)
            | ("required" | "properties" | "additionalProperties", _) => true,
            (keyword, _) => panic!("the schemas have a keyword that this does not know: {keyword}"),
        };
        if !is_fine {
            return Err(format!("{value} does not fit {keyword} {rule}"));
        }
    }
    Ok(())
}

fn known(root: &Value, properties: &Value, fields: &Map<String, Value>) -> Result<(), String> {
    for (name, value) in fields {
        let Some(schema) = properties.get(name) else { continue };
        schema_fits(root, schema, value).map_err(|error| format!("{name}: {error}"))?;
    }
    Ok(())
}

fn is_of(name: &str, value: &Value) -> bool {
    match name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("the schemas have a type that this does not know: {other}"),
    }
}
