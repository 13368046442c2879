//! Renders a schema as a page for people: one section for each type, one row for each field.

use std::collections::BTreeSet;

use kubewitness_harness::cell;
use serde_json::Value;

use super::BOUNDS;

/// A longer value is shown only in the complete example.
const INLINE: usize = 64;

/// The name of a field's type, also if the field is optional or a list of that type.
pub fn field_type_name(field: &Value) -> Option<&str> {
    let of = |schema: &'_ Value| schema["$ref"].as_str().map(str::len);
    if of(field).is_some() {
        return field["$ref"].as_str()?.strip_prefix("#/$defs/");
    }
    match (field["anyOf"].as_array(), field.get("items")) {
        (Some(list), _) => list.iter().find_map(field_type_name),
        (None, Some(items)) => field_type_name(items),
        (None, None) => None,
    }
}

fn is_list(field: &Value) -> bool {
    match &field["type"] {
        Value::Array(types) => types.contains(&"array".into()),
        other => other == "array",
    }
}

/// The required fields in the order of the type, then the others by name.
fn ordered_fields(of: &Value) -> Vec<(&str, &Value)> {
    let Some(properties) = of["properties"].as_object() else { return Vec::new() };
    let required: Vec<_> =
        of["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let mut rest: Vec<_> =
        properties.keys().map(String::as_str).filter(|name| !required.contains(name)).collect();
    rest.sort_unstable();
    required.into_iter().chain(rest).map(|name| (name, &properties[name])).collect()
}

/// Each type with the paths of the fields that use it, in the order of the manifest.
fn types_with_paths(schema: &Value) -> Vec<(String, Vec<String>)> {
    let mut found: Vec<(String, Vec<String>)> = Vec::new();
    let mut open = vec![(schema, String::new())];
    while let Some((of, path)) = open.pop() {
        let mut next = Vec::new();
        for (name, field) in ordered_fields(of) {
            let Some(to) = field_type_name(field) else { continue };
            let dot = if path.is_empty() { "" } else { "." };
            let at = format!("{path}{dot}{name}{}", if is_list(field) { "[]" } else { "" });
            if let Some((_, uses)) = found.iter_mut().find(|(known, _)| known == to) {
                uses.push(at);
                continue;
            }
            found.push((to.to_owned(), vec![at.clone()]));
            next.push((&schema["$defs"][to], at));
        }
        open.extend(next.into_iter().rev());
    }
    found
}

/// The path of every field, such as `spec.sources[].name`.
pub fn all_field_paths(schema: &Value) -> Vec<String> {
    let of = types_with_paths(schema).into_iter().flat_map(|(name, uses)| {
        let fields = ordered_fields(&schema["$defs"][&name]).into_iter();
        // A member of an enum is a value, not a field.
        let is_struct = schema["$defs"][&name].get("properties").is_some();
        fields
            .filter(move |_| is_struct)
            .map(move |(field, _)| format!("{}.{field}", uses[0]))
            .collect::<Vec<_>>()
    });
    ["apiVersion", "kind"].map(str::to_owned).into_iter().chain(of).collect()
}

/// The first value that an example has at this path.
pub fn first_example_at<'a>(examples: &'a [Value], path: &str) -> Option<&'a Value> {
    fn find<'a>(value: &'a Value, path: &[&str]) -> Option<&'a Value> {
        let Some((first, rest)) = path.split_first() else { return Some(value) };
        let (name, is_list) = first.strip_suffix("[]").map_or((*first, false), |name| (name, true));
        match (value.get(name)?, is_list) {
            (Value::Array(list), true) => list.iter().find_map(|value| find(value, rest)),
            (value, _) => find(value, rest),
        }
    }
    let path: Vec<_> = path.split('.').collect();
    examples.iter().find_map(|example| find(example, &path))
}

fn type_title(name: &str) -> &str {
    name.strip_suffix("Spec").unwrap_or(name)
}

fn type_link(name: &str) -> String {
    format!("[{}](#{})", type_title(name), type_title(name).to_lowercase())
}

fn type_of(field: &Value) -> String {
    let is_list = is_list(field);
    if let Some(name) = field_type_name(field) {
        return if is_list { format!("list of {}", type_link(name)) } else { type_link(name) };
    }
    let word = |schema: &Value| {
        let types = match &schema["type"] {
            Value::Array(types) => types.iter().find(|name| **name != "null").cloned().unwrap_or_default(),
            other => other.clone(),
        };
        types.as_str().map_or("any value", |name| match name {
            "integer" => "whole number",
            "string" => "text",
            "boolean" => "`true` or `false`",
            "object" => "map",
            other => panic!("the page does not know the type {other}"),
        })
    };
    match (is_list, field.get("additionalProperties")) {
        (true, _) => format!("list of {}s", word(&field["items"])),
        (false, Some(values)) if values.is_object() => format!("map of {}s", word(values)),
        _ => word(field).to_owned(),
    }
}

fn bounds_text(field: &Value) -> String {
    if let Some(text) = field[BOUNDS].as_str() {
        return text.to_owned();
    }
    if let Some(value) = field["const"].as_str() {
        return format!("`{value}`");
    }
    if field.get("enum").is_some() {
        return "a [phase](codes.md#phases-of-objects)".to_owned();
    }
    let number = |name: &str| field[name].as_u64().filter(|number| *number > 0);
    match (number("minimum"), number("maximum"), number("minItems"), number("maxItems")) {
        (Some(least), Some(most), ..) => format!("{least} to {most}"),
        (Some(least), None, ..) => format!("at least {least}"),
        (_, _, Some(least), _) => format!("at least {least} of them"),
        (_, _, _, Some(most)) => format!("at most {most} of them"),
        _ => String::new(),
    }
}

/// Whether the text begins with a digit and needs no quotes all the same.
fn is_quantity(text: &str) -> bool {
    text.parse::<super::Duration>().is_ok()
        || (text.ends_with('i') && super::Bytes::try_from(text.to_owned()).is_ok())
}

/// The value as YAML on one line.
fn yaml_flow_text(value: &Value) -> String {
    let is_plain = |text: &str| {
        let mut bytes = text.bytes();
        bytes.next().is_some_and(|first| first.is_ascii_alphabetic() || first == b'/')
            && bytes.all(|byte| byte.is_ascii_alphanumeric() || b"._-/ ".contains(&byte))
    };
    match value {
        Value::String(text) if is_plain(text) || is_quantity(text) => text.clone(),
        Value::Array(list) => format!("[{}]", list.iter().map(yaml_flow_text).collect::<Vec<_>>().join(", ")),
        Value::Object(fields) => {
            let mut fields: Vec<_> =
                fields.iter().map(|(name, value)| format!("{name}: {}", yaml_flow_text(value))).collect();
            fields.sort();
            format!("{{{}}}", fields.join(", "))
        }
        other => other.to_string(),
    }
}

fn render_field_row(name: &str, path: &str, field: &Value, of: &Value, examples: &[Value]) -> String {
    let is_required = of["required"].as_array().is_some_and(|list| list.contains(&name.into()));
    let default = match field.get("default") {
        _ if is_required => "required".to_owned(),
        Some(Value::Object(fields)) if !fields.is_empty() => "those of its fields".to_owned(),
        Some(value) => format!("`{}`", yaml_flow_text(value)),
        // If no default is written, it is that of the type.
        None if field["type"] == "boolean" => "`false`".to_owned(),
        None if field["type"] == "integer" => "`0`".to_owned(),
        None => "none".to_owned(),
    };
    let example =
        first_example_at(examples, path).map(yaml_flow_text).map_or(String::new(), |text| match text.len() {
            ..=INLINE => format!("`{text}`"),
            _ => "[below](#an-example-with-every-field)".to_owned(),
        });
    let about = field["description"].as_str().unwrap_or_default();
    let cells =
        [&format!("`{name}`"), about, &type_of(field), &default, &bounds_text(field), &example].map(cell);
    format!("| {} |\n", cells.join(" | "))
}

const HEAD: &str = "| field | meaning | type | default | bounds | example |\n|---|---|---|---|---|---|\n";

/// The values of an enum, each with its meaning.
fn render_enum_values(of: &Value) -> String {
    let value = |choice: &Value| {
        let about = choice["description"].as_str().unwrap_or_default();
        let text = match (choice["const"].as_str(), choice["properties"].as_object()) {
            (Some(word), _) => word.to_owned(),
            (None, Some(fields)) => {
                let field = fields.iter().map(|(name, field)| match field_type_name(field) {
                    Some("Since") => format!("{{{name}: TIME}}"),
                    _ if field["type"] == "integer" => format!("{{{name}: NUMBER}}"),
                    _ => format!("{{{name}: TEXT}}"),
                });
                field.collect()
            }
            (None, None) => panic!("the page does not know how to write {choice}"),
        };
        format!("- `{text}`: {about}\n")
    };
    of["oneOf"].as_array().into_iter().flatten().map(value).collect()
}

pub fn render_sections(schema: &Value, examples: &[Value]) -> String {
    let mut text = format!("## The document\n\n{HEAD}");
    for (name, field) in ordered_fields(schema) {
        text.push_str(&render_field_row(name, name, field, schema, examples));
    }
    let types = types_with_paths(schema);
    let titles: BTreeSet<_> = types.iter().map(|(name, _)| type_title(name).to_lowercase()).collect();
    assert_eq!(titles.len(), types.len(), "two types have one title: links lead to the first of them");
    for (name, uses) in types {
        let of = &schema["$defs"][&name];
        let about = of["description"].as_str().unwrap_or_default();
        text.push_str(&format!("\n## {}\n\n", type_title(&name)));
        if of.get("properties").is_some() {
            text.push_str(&format!("`{}`", uses.join("`, `")));
            text.push_str(if about.is_empty() { "\n" } else { ": " });
        }
        text.push_str(about);
        text.push_str("\n\n");
        if of.get("properties").is_some() {
            text.push_str(HEAD);
            for (name, field) in ordered_fields(of) {
                text.push_str(&render_field_row(name, &format!("{}.{name}", uses[0]), field, of, examples));
            }
        }
        text.push_str(&render_enum_values(of));
    }
    text.replace("\n\n\n", "\n\n")
}
