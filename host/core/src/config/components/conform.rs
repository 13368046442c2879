//! Checks a plugin's configuration against the JSON Schema in its component, before the component runs.
//!
//! Only the keywords that schemas generated from types use are implemented. Other keywords are ignored; the
//! component's own check decides those. A full JSON Schema crate was rejected: it would change the features
//! of crates that production shares with the tests, so those crates would be built twice.
//!
//! The schema comes from an untrusted guest, so the cost of evaluating it is bounded.

use std::collections::HashMap;

use regex::{Regex, RegexBuilder};
use serde_json::{Map, Value};

use crate::model::fault::{ManifestFault, fault};
use crate::model::nearest::nearest_name;

/// More faults than one person fixes at once.
const FAULTS: usize = 50;
/// How deeply types may be nested or refer to themselves.
const DEPTH: usize = 64;
/// The most comparisons for one configuration. A schema with many alternatives could demand any number.
const STEPS: usize = 100_000;
/// The memory limit of one compiled pattern, with its cache of texts already matched.
const PATTERN_BYTES: usize = 64 << 10;
/// A longer pattern is ignored: reading it takes time and memory before its compiled size is known.
const PATTERN_TEXT: usize = 1024;
/// The most patterns that are compiled. Further ones are ignored.
const PATTERNS: usize = 256;
/// How many known words are compared to find the one that was probably meant, and how many steps one
/// comparison counts as.
const NEAR: usize = 256;
const NEAR_STEPS: usize = 8;
/// This many bytes of a text count as one comparison.
const STEP_BYTES: usize = 64;
/// How many bytes of a schema's text a message quotes.
const SCHEMA_TEXT_SHOWN: usize = 1024;
/// A message does not quote a longer value.
const VALUE_SHOWN: usize = 60;
/// How many alternatives a message names if none matches.
const ALTERNATIVES_NAMED: usize = 20;

/// Lists the faults of a configuration against its schema. The fields begin below the configuration.
pub fn config_faults(schema: &Value, config: &Value) -> Vec<ManifestFault> {
    let mut check = SchemaCheck { root: schema, steps: 0, patterns: HashMap::new() };
    let mut faults = check.compare_value(schema, config, "", 0);
    faults.truncate(FAULTS);
    faults
}

struct SchemaCheck<'a> {
    root: &'a Value,
    steps: usize,
    /// `None` for a pattern that can't be used.
    patterns: HashMap<&'a str, Option<Regex>>,
}

impl<'a> SchemaCheck<'a> {
    fn compare_value(
        &mut self,
        schema: &'a Value,
        value: &Value,
        at: &str,
        depth: usize,
    ) -> Vec<ManifestFault> {
        self.steps += 1 + at.len() / STEP_BYTES;
        if depth > DEPTH || self.is_out_of_steps() {
            return Vec::new();
        }
        let Value::Object(rules) = schema else { return Vec::new() };
        if let Some(target) = rules.get("$ref").and_then(Value::as_str) {
            self.steps += target.len() / STEP_BYTES;
            let found = target.strip_prefix('#').and_then(|path| self.root.pointer(path));
            return found.map(|schema| self.compare_value(schema, value, at, depth + 1)).unwrap_or_default();
        }
        if let Some(wrong) = self.wrong_value(rules, value) {
            return vec![fault(at, wrong)];
        }
        for word in ["anyOf", "oneOf"] {
            let Some(alternatives) = rules.get(word).and_then(Value::as_array) else { continue };
            let faults = self.closest_alternative_faults(alternatives, value, at, depth);
            if !faults.is_empty() {
                return faults;
            }
        }
        match value {
            Value::Object(fields) => self.compare_fields(rules, fields, at, depth),
            Value::Array(items) => {
                let Some(schema) = rules.get("items") else { return Vec::new() };
                let each = items.iter().enumerate().map(|(index, item)| (format!("{at}[{index}]"), item));
                self.first_faults(each.map(|(at, item)| (schema, at, item)), depth)
            }
            _ => Vec::new(),
        }
    }

    fn is_out_of_steps(&self) -> bool {
        self.steps > STEPS
    }

    fn compare_fields(
        &mut self,
        rules: &'a Map<String, Value>,
        fields: &Map<String, Value>,
        at: &str,
        depth: usize,
    ) -> Vec<ManifestFault> {
        let none = Map::new();
        let known = rules.get("properties").and_then(Value::as_object);
        let names: Vec<&str> = known.unwrap_or(&none).keys().map(String::as_str).collect();
        let required = rules.get("required").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        self.steps += names.len() + required.len();
        let mut faults = Vec::new();
        for name in required.iter().filter_map(Value::as_str).filter(|name| !fields.contains_key(*name)) {
            faults.push(fault(child_path(at, name), "is missing"));
            if faults.len() >= FAULTS {
                return faults;
            }
        }
        let additional = rules.get("additionalProperties");
        for (name, value) in fields {
            let place = child_path(at, name);
            match (known.and_then(|known| known.get(name)), additional) {
                (Some(schema), _) | (None, Some(schema @ Value::Object(_))) => {
                    faults.extend(self.compare_value(schema, value, &place, depth + 1));
                }
                (None, Some(Value::Bool(false))) => {
                    faults.push(fault(place, self.unknown_name_message(name, &names)));
                }
                (None, _) => {}
            }
            if faults.len() >= FAULTS {
                break;
            }
        }
        faults
    }

    fn first_faults<'v>(
        &mut self,
        alternatives: impl Iterator<Item = (&'a Value, String, &'v Value)>,
        depth: usize,
    ) -> Vec<ManifestFault> {
        let mut faults = Vec::new();
        for (schema, at, value) in alternatives {
            faults.extend(self.compare_value(schema, value, &at, depth + 1));
            if faults.len() >= FAULTS {
                break;
            }
        }
        faults
    }

    /// Reports the faults of the closest alternative: one of the value's type, with the fewest faults. For an
    /// enumeration of words it reports the allowed words.
    fn closest_alternative_faults(
        &mut self,
        alternatives: &'a [Value],
        value: &Value,
        at: &str,
        depth: usize,
    ) -> Vec<ManifestFault> {
        self.steps += alternatives.len();
        let words: Vec<&str> =
            alternatives.iter().filter_map(|alternative| alternative["const"].as_str()).collect();
        if words.len() == alternatives.len() {
            let text = value.as_str().unwrap_or_default();
            let is_one = words.contains(&text) && value.is_string();
            return if is_one {
                Vec::new()
            } else {
                vec![fault(at, self.unknown_name_message(&value_text(value), &words))]
            };
        }
        let mut nearest: Option<Vec<ManifestFault>> = None;
        for alternative in alternatives {
            let faults = self.compare_value(alternative, value, at, depth + 1);
            if faults.is_empty() {
                return faults;
            }
            let is_inside = |faults: &Vec<ManifestFault>| faults.iter().any(|fault| fault.field != at);
            let rank = |faults: &Vec<ManifestFault>| (!is_inside(faults), faults.len());
            if nearest.as_ref().is_none_or(|before| rank(&faults) < rank(before)) {
                nearest = Some(faults);
            }
        }
        nearest.unwrap_or_default()
    }

    /// The fault of a value, without its members.
    fn wrong_value(&mut self, rules: &'a Map<String, Value>, value: &Value) -> Option<String> {
        let types: Vec<&str> = match rules.get("type") {
            Some(Value::String(one)) => vec![one],
            Some(Value::Array(list)) => list.iter().filter_map(Value::as_str).collect(),
            _ => Vec::new(),
        };
        self.steps += types.len();
        if !types.is_empty() && !types.iter().any(|name| is_of(name, value)) {
            // YAML does not read `yes` and `007` as texts.
            let is_scalar = matches!(value, Value::Bool(_) | Value::Number(_));
            let hint = if is_scalar && types.contains(&"string") { ": write it in quotes" } else { "" };
            let types = types.into_iter().filter(|name| *name != "null").take(ALTERNATIVES_NAMED);
            let types: Vec<_> = types.map(|name| cut_text(called(name))).collect();
            return Some(format!(
                "is {}, and has to be {}{hint}",
                called(type_of(value)),
                types.join(" or ")
            ));
        }
        if let Some(only) = rules.get("const") {
            self.steps += comparison_weight(only);
            if only != value {
                return Some(format!("is `{}`, and has to be `{}`", value_text(value), value_text(only)));
            }
        }
        if let Some(allowed) = rules.get("enum").and_then(Value::as_array) {
            self.steps += allowed.iter().map(comparison_weight).sum::<usize>();
            if !allowed.contains(value) {
                let words: Vec<&str> = allowed.iter().filter_map(Value::as_str).collect();
                return Some(self.unknown_name_message(&value_text(value), &words));
            }
        }
        if let (Some(pattern), Some(text)) = (rules.get("pattern").and_then(Value::as_str), value.as_str())
            && self.has_another_form(pattern, text)
        {
            let about = rules.get("description").and_then(Value::as_str).unwrap_or("It has another form.");
            return Some(format!("is `{}`. {}", value_text(value), cut_text(about)));
        }
        wrong_size(rules, value)
    }

    fn has_another_form(&mut self, pattern: &'a str, text: &str) -> bool {
        self.steps += 1 + text.len() + pattern.len() / STEP_BYTES;
        let is_new = !self.patterns.contains_key(pattern);
        if self.is_out_of_steps() || pattern.len() > PATTERN_TEXT || is_new && self.patterns.len() >= PATTERNS
        {
            return false;
        }
        let compile = || {
            RegexBuilder::new(pattern).size_limit(PATTERN_BYTES).dfa_size_limit(PATTERN_BYTES).build().ok()
        };
        let compiled = self.patterns.entry(pattern).or_insert_with(compile);
        compiled.as_ref().is_some_and(|compiled| !compiled.is_match(text))
    }

    /// Reports an unknown name with the names that exist and the one that was probably meant.
    fn unknown_name_message(&mut self, name: &str, known: &[&str]) -> String {
        self.steps += NEAR_STEPS * known.len().min(NEAR);
        let looked = if self.is_out_of_steps() { &[] } else { &known[..known.len().min(NEAR)] };
        match nearest_name(name, looked.iter().map(|name| cut_text(name))) {
            Some(nearest) => format!("`{name}` is not known: is `{nearest}` meant?"),
            None if known.is_empty() => format!("`{name}` is not known"),
            None => {
                let named: Vec<_> =
                    known.iter().take(ALTERNATIVES_NAMED).map(|name| cut_text(name)).collect();
                format!("`{name}` is not known; there are {}", named.join(", "))
            }
        }
    }
}

/// The fault in the size of a number or of a list.
fn wrong_size(rules: &Map<String, Value>, value: &Value) -> Option<String> {
    let number = |name: &str| rules.get(name).and_then(Value::as_f64);
    let size = |name: &str| rules.get(name).and_then(Value::as_u64);
    let length = value.as_array().map(|list| list.len() as u64);
    match (value.as_f64(), length) {
        (Some(found), _) if number("minimum").is_some_and(|least| found < least) => {
            Some(format!("is {value}, and has to be at least {}", rules["minimum"]))
        }
        (Some(found), _) if number("maximum").is_some_and(|most| found > most) => {
            Some(format!("is {value}, and may be at most {}", rules["maximum"]))
        }
        (_, Some(found)) if size("minItems").is_some_and(|least| found < least) => {
            Some(format!("has {found} entries, and needs at least {}", rules["minItems"]))
        }
        (_, Some(found)) if size("maxItems").is_some_and(|most| found > most) => {
            Some(format!("has {found} entries: the most is {}", rules["maxItems"]))
        }
        _ => None,
    }
}

fn child_path(at: &str, name: &str) -> String {
    if at.is_empty() { name.to_owned() } else { format!("{at}.{name}") }
}

fn value_text(value: &Value) -> String {
    let text = match value {
        Value::String(text) => text.as_str(),
        Value::Array(_) | Value::Object(_) => called(type_of(value)),
        value => &value.to_string(),
    };
    let end = text.floor_char_boundary(VALUE_SHOWN);
    if end < text.len() { format!("{}…", &text[..end]) } else { text.to_owned() }
}

/// The number of comparisons that a value of the schema counts as.
fn comparison_weight(value: &Value) -> usize {
    1 + match value {
        Value::String(text) => text.len() / STEP_BYTES,
        Value::Array(items) => items.iter().map(comparison_weight).sum(),
        Value::Object(fields) => {
            fields.iter().map(|(name, value)| name.len() / STEP_BYTES + comparison_weight(value)).sum()
        }
        _ => 0,
    }
}

fn cut_text(text: &str) -> &str {
    &text[..text.floor_char_boundary(SCHEMA_TEXT_SHOWN)]
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn is_of(name: &str, value: &Value) -> bool {
    match name {
        "integer" => value.is_i64() || value.is_u64(),
        name => name == type_of(value),
    }
}

fn called(name: &str) -> &str {
    match name {
        "null" => "nothing",
        "boolean" => "`true` or `false`",
        "integer" => "a whole number",
        "number" => "a number",
        "string" => "a text",
        "array" => "a list",
        "object" => "a map",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn schema() -> Value {
        json!({
            "type": "object",
            "additionalProperties": false,
            "properties": {
                "channels": {"type": "array", "maxItems": 2, "items": {"$ref": "#/$defs/Channel"}},
                "settle": {"$ref": "#/$defs/Time"},
                "quiet": {"anyOf": [{"$ref": "#/$defs/Quiet"}, {"type": "null"}]},
                "above": {"type": "integer", "minimum": 1, "maximum": 9},
                "labels": {"type": "object", "additionalProperties": {"type": "string"}},
                "title": {"type": ["string", "null"]},
            },
            "$defs": {
                "Channel": {
                    "type": "object", "additionalProperties": false, "required": ["name", "kind"],
                    "properties": {"name": {"type": "string"}, "kind": {"$ref": "#/$defs/Kind"}, "inner": {"$ref": "#/$defs/Channel"}},
                },
                "Kind": {"oneOf": [{"const": "slack"}, {"const": "webhook"}]},
                "Time": {"type": "string", "pattern": "^[0-9]+s$", "description": "A number and `s`."},
                "Quiet": {"type": "object", "required": ["from"], "properties": {"from": {"type": "string"}}},
            },
        })
    }

    fn fault_lines(config: &Value) -> Vec<String> {
        config_faults(&schema(), config)
            .iter()
            .map(|fault| format!("{}: {}", fault.field, fault.message))
            .collect()
    }

    #[test]
    fn what_fits_has_no_fault() {
        for config in [
            json!({}),
            json!({"channels": [{"name": "a", "kind": "slack"}], "settle": "10s", "quiet": {"from": "1"}, "title": null}),
            json!({"quiet": null, "above": 9, "labels": {"any": "text"}}),
        ] {
            assert_eq!(fault_lines(&config), [""; 0], "{config}");
        }
    }

    #[test]
    fn a_fault_names_its_path_and_what_is_probably_meant() {
        for (config, expected) in [
            (json!({"chanels": []}), "chanels: `chanels` is not known: is `channels` meant?"),
            (
                json!({"zzzzzzzz": 1}),
                "zzzzzzzz: `zzzzzzzz` is not known; there are above, channels, labels, quiet, settle, title",
            ),
            (
                json!({"channels": [{"name": "a", "kind": "slak"}]}),
                "channels[0].kind: `slak` is not known: is `slack` meant?",
            ),
            (
                json!({"channels": [{"name": "a", "kind": 7}]}),
                "channels[0].kind: `7` is not known; there are slack, webhook",
            ),
            (json!({"channels": [{"kind": "slack"}]}), "channels[0].name: is missing"),
            (json!({"channels": {}}), "channels: is a map, and has to be a list"),
            (
                json!({"channels": [{"name": "a", "kind": "slack", "inner": {"name": 1, "kind": "slack"}}]}),
                "channels[0].inner.name: is a number, and has to be a text: write it in quotes",
            ),
            (json!({"title": true}), "title: is `true` or `false`, and has to be a text: write it in quotes"),
            (json!({"channels": [1, 2, 3]}), "channels: has 3 entries: the most is 2"),
            (json!({"settle": "10"}), "settle: is `10`. A number and `s`."),
            (json!({"quiet": {"form": "1"}}), "quiet.from: is missing"),
            (json!({"above": 0}), "above: is 0, and has to be at least 1"),
            (json!({"above": 10}), "above: is 10, and may be at most 9"),
            (json!({"above": 1.5}), "above: is a number, and has to be a whole number"),
            (json!({"labels": {"a": 1}}), "labels.a: is a number, and has to be a text: write it in quotes"),
        ] {
            assert_eq!(fault_lines(&config), [expected], "{config}");
        }
    }

    #[test]
    fn a_schema_of_a_guest_costs_no_more_than_its_bounds() {
        let deep = json!({"$ref": "#"});
        assert_eq!(config_faults(&deep, &json!({})), []);
        let many: Vec<_> = (0..10).map(|_| json!({"$ref": "#/$defs/a"})).collect();
        let wide = json!({"$defs": {"a": {"anyOf": many}}, "anyOf": many});
        config_faults(&wide, &json!({}));
        let costly = json!({"pattern": "(a{1000}){1000}"});
        assert_eq!(config_faults(&costly, &json!("b")), [], "a pattern that is too large is passed over");
        let long = json!({"items": {"pattern": "a".repeat(200_000)}});
        assert_eq!(
            config_faults(&long, &json!(vec!["b"; 5000])),
            [],
            "a pattern that is too long is passed over"
        );
        let many: Vec<_> =
            (0..13_000).map(|number| json!({"pattern": format!("^{number}[a-z]{{300}}$")})).collect();
        let mut check = SchemaCheck { root: &Value::Null, steps: 0, patterns: HashMap::new() };
        let many = json!({"anyOf": many});
        check.compare_value(&many, &json!("b"), "", 0);
        assert_eq!(check.patterns.len(), PATTERNS);
        let words: Vec<_> = (0..9000).map(|word| format!("{word:0>20}")).collect();
        let refs = vec![json!({"$ref": "#/$defs/w"}); 7000];
        let bomb = json!({"$defs": {"w": {"enum": words}}, "anyOf": refs});
        let mut check = SchemaCheck { root: &bomb, steps: 0, patterns: HashMap::new() };
        assert_eq!(
            check.compare_value(&bomb, &json!("nobody"), "", 0),
            [],
            "what was not looked at is no fault"
        );
        // The check stops soon after the bound: each of the first few steps costs thousands of comparisons.
        assert!(check.steps < STEPS + 20_000, "{}", check.steps);
        let odd = json!({"type": 7, "properties": [], "required": "a", "enum": {}, "anyOf": 1, "items": 2, "not": {}});
        assert_eq!(config_faults(&odd, &json!({"a": [1]})), []);
        let list: Vec<_> = (0..1000).collect();
        assert_eq!(config_faults(&json!({"items": {"type": "string"}}), &json!(list)).len(), FAULTS);
    }
}
