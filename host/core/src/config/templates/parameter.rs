//! One parameter of a template: the values it accepts, and the value that it puts into the Job.

use regex::{Regex, RegexBuilder};
use serde::{Deserialize, Serialize};
use serde_json::{Number, Value};
use thiserror::Error;

use super::VALUE_BYTES;
use crate::model::fault::shorten_text;

/// A larger compiled pattern costs too much for each value.
const PATTERN_BYTES: usize = 64 * 1024;
/// How many bytes of a value a message quotes.
const VALUE_SHOWN: usize = 80;

/// One parameter of a template.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[cfg_attr(any(test, feature = "schema"), schemars(rename = "Parameter"))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ParameterSpec {
    /// The name under which a person gives the value.
    pub name: String,
    /// The type of its values.
    #[serde(rename = "type")]
    pub kind: ParameterType,
    /// Whether a person must give a value.
    #[serde(default)]
    pub required: bool,
    /// The value if a person gives none. Left out: the value in the manifest stays.
    #[cfg_attr(any(test, feature = "schema"), schemars(with = "Option<Scalar>"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default: Option<Value>,
    /// The smallest value of an `int`, a `number` or a `quantity`.
    #[cfg_attr(any(test, feature = "schema"), schemars(with = "Option<Scalar>"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min: Option<Value>,
    /// The largest value of an `int`, a `number` or a `quantity`.
    #[cfg_attr(any(test, feature = "schema"), schemars(with = "Option<Scalar>"))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<Value>,
    /// A regular expression that the whole of a `string` has to match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pattern: Option<String>,
    /// The values of a `choice`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub choices: Vec<String>,
    /// The text beside the field, for the person who fills it in.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub help: String,
    /// JSON pointers to the places in the manifest where the value goes. The example value at each place decides the
    /// type: at a text, a number is written as text.
    pub places: Vec<String>,
}

/// A text, a number, or true or false.
#[cfg(any(test, feature = "schema"))]
#[derive(schemars::JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
#[allow(dead_code)]
pub(crate) enum Scalar {
    Text(String),
    Number(f64),
    Bool(bool),
}

/// Which values a parameter takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(any(test, feature = "schema"), derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum ParameterType {
    /// A text.
    String,
    /// A whole number.
    Int,
    /// A number.
    Number,
    /// `true` or `false`.
    Bool,
    /// A quantity of Kubernetes, such as `500m`, `2` or `16Gi`.
    Quantity,
    /// One of `choices`.
    Choice,
}

/// Why a parameter does not take a value.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum ValueError {
    #[error("is missing: give a value")]
    Missing,
    #[error("is neither text nor number nor true or false: give one value")]
    NotSingle,
    #[error("is longer than {VALUE_BYTES} bytes: put it into a ConfigMap of the Job")]
    TooLong,
    #[error("`{given}` is {expected}")]
    OtherType { given: String, expected: &'static str },
    #[error("`{given}` is not offered: choose one of {choices}")]
    NotOffered { given: String, choices: String },
    #[error("is no text: write it in quotes")]
    NoText,
    #[error("`{given}` does not match the pattern {pattern}")]
    NoMatch { given: String, pattern: String },
    #[error("`{pattern}` can't be used as a pattern: {source}")]
    BadPattern { pattern: String, source: regex::Error },
    #[error("is less than {0}")]
    BelowMin(String),
    #[error("is more than {0}")]
    AboveMax(String),
}

impl ParameterSpec {
    /// The value as JSON. Forms and command lines pass texts, programs pass JSON; both are accepted.
    pub fn accept_value(&self, given: &Value) -> Result<Value, ValueError> {
        let text = text_of(given).ok_or(ValueError::NotSingle)?;
        if text.len() > VALUE_BYTES {
            return Err(ValueError::TooLong);
        }
        let other =
            |expected| ValueError::OtherType { given: shorten_text(&text, VALUE_SHOWN).into(), expected };
        match self.kind {
            ParameterType::String => self.matching(given).map(Value::from),
            ParameterType::Int => {
                let number: i64 = text.parse().map_err(|_| other("no whole number"))?;
                self.check_bounds(number as f64).map(|()| number.into())
            }
            ParameterType::Number => {
                let number = text.parse().ok().and_then(Number::from_f64);
                let number = number.ok_or_else(|| other("no number"))?;
                self.check_bounds(number.as_f64().unwrap_or_default()).map(|()| number.into())
            }
            ParameterType::Bool => match &*text {
                "true" => Ok(true.into()),
                "false" => Ok(false.into()),
                _ => Err(other("neither true nor false")),
            },
            ParameterType::Quantity => {
                let form = "no quantity of Kubernetes: write it as `500m`, `2` or `16Gi`";
                let amount = parse_quantity(&text).ok_or_else(|| other(form))?;
                self.check_bounds(amount).map(|()| text.into())
            }
            ParameterType::Choice if self.choices.contains(&text) => Ok(text.into()),
            ParameterType::Choice => Err(ValueError::NotOffered {
                given: shorten_text(&text, VALUE_SHOWN).into(),
                choices: self.choices.join(", "),
            }),
        }
    }

    fn matching(&self, given: &Value) -> Result<String, ValueError> {
        let Value::String(text) = given else { return Err(ValueError::NoText) };
        let Some(pattern) = &self.pattern else { return Ok(text.clone()) };
        match compile_whole_text_pattern(pattern)?.is_match(text) {
            true => Ok(text.clone()),
            false => Err(ValueError::NoMatch {
                given: shorten_text(text, VALUE_SHOWN).into(),
                pattern: pattern.clone(),
            }),
        }
    }

    fn check_bounds(&self, value: f64) -> Result<(), ValueError> {
        let (min, max) = (self.min.as_ref(), self.max.as_ref());
        if let Some(min) = min.filter(|min| bound_amount(min).is_some_and(|min| value < min)) {
            return Err(ValueError::BelowMin(plain_text(min)));
        }
        match max.filter(|max| bound_amount(max).is_some_and(|max| value > max)) {
            Some(max) => Err(ValueError::AboveMax(plain_text(max))),
            None => Ok(()),
        }
    }

    /// The faults of the parameter's definition, each as a field and a message.
    pub(super) fn definition_faults(&self) -> Vec<(&'static str, String)> {
        let mut faults = Vec::new();
        let is_choice = self.kind == ParameterType::Choice;
        if is_choice == self.choices.is_empty() {
            let message =
                if is_choice { "is empty: a choice offers values" } else { "is for the type `choice`" };
            faults.push(("choices", message.to_owned()));
        }
        if let Some(pattern) = &self.pattern {
            match self.kind {
                ParameterType::String => {
                    let wrong = compile_whole_text_pattern(pattern).err();
                    faults.extend(wrong.map(|error| ("pattern", error.to_string())));
                }
                _ => faults.push(("pattern", "is for the type `string`".to_owned())),
            }
        }
        let is_amount =
            matches!(self.kind, ParameterType::Int | ParameterType::Number | ParameterType::Quantity);
        for (field, bound) in [("min", &self.min), ("max", &self.max)] {
            match bound {
                Some(_) if !is_amount => {
                    faults.push((field, "is for the types `int`, `number` and `quantity`".to_owned()));
                }
                Some(bound) if bound_amount(bound).is_none() => {
                    faults.push((field, "is neither a number nor a quantity".to_owned()));
                }
                _ => {}
            }
        }
        if let Some(Err(error)) = self.default.as_ref().map(|default| self.accept_value(default)) {
            faults.push(("default", error.to_string()));
        }
        faults
    }

    /// Converts the value to the type of the value `example`. `None` if it does not fit.
    pub(super) fn fit_to_type_of(&self, value: &Value, example: &Value) -> Option<Value> {
        match (example, value) {
            (Value::String(_), value) => Some(plain_text(value).into()),
            (Value::Number(_), Value::Number(_)) | (Value::Bool(_), Value::Bool(_)) => Some(value.clone()),
            _ => None,
        }
    }

    /// Whether every value of this type fits in the place of `present`.
    pub(super) fn fits_place_of(&self, present: &Value) -> bool {
        let example = match self.kind {
            ParameterType::Int | ParameterType::Number => Value::from(1),
            ParameterType::Bool => true.into(),
            ParameterType::String | ParameterType::Quantity | ParameterType::Choice => "".into(),
        };
        self.fit_to_type_of(&example, present).is_some()
    }
}

/// The pattern must match the whole text.
fn compile_whole_text_pattern(pattern: &str) -> Result<Regex, ValueError> {
    let build = |text: &str| RegexBuilder::new(text).size_limit(PATTERN_BYTES).build();
    // The pattern is compiled alone first: unbalanced brackets would change the meaning of the text around
    // it.
    let built = build(pattern).and_then(|_| build(&format!("^(?:{pattern})$")));
    built.map_err(|source| ValueError::BadPattern {
        pattern: shorten_text(pattern, VALUE_SHOWN).into(),
        source,
    })
}

fn text_of(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(_) | Value::Bool(_) => Some(value.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

/// The value as a person writes it.
fn plain_text(value: &Value) -> String {
    text_of(value).unwrap_or_default()
}

fn bound_amount(bound: &Value) -> Option<f64> {
    parse_quantity(&text_of(bound)?)
}

/// A quantity as a number. Two quantities that differ by less than a float can express are equal.
fn parse_quantity(text: &str) -> Option<f64> {
    let digits = text.trim_start_matches(['+', '-']).find(|c: char| !c.is_ascii_digit() && c != '.');
    let signs = text.len() - text.trim_start_matches(['+', '-']).len();
    let (number, unit) = text.split_at(digits.map_or(text.len(), |at| at + signs));
    if signs > 1 || !number.contains(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let number: f64 = number.parse().ok()?;
    let binary = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    let decimal = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
    if let Some(power) = binary.iter().position(|known| *known == unit) {
        return Some(number * 1024_f64.powi(power as i32 + 1));
    }
    if let Some(power) = decimal.iter().position(|known| *known == unit) {
        return Some(number * 1000_f64.powi(power as i32 - 3));
    }
    let exponent: i32 = unit.strip_prefix(['e', 'E'])?.parse().ok()?;
    Some(number * 10_f64.powi(exponent)).filter(|amount| amount.is_finite())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parameter(fields: &Value) -> ParameterSpec {
        let mut whole = json!({"name": "p", "places": ["/spec/x"]});
        whole.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        serde_json::from_value(whole).unwrap()
    }

    #[test]
    fn each_type_takes_its_values_and_refuses_others_with_what_is_wrong() {
        let int = json!({"type": "int", "min": 1, "max": 8});
        let quantity = json!({"type": "quantity", "min": "500m", "max": "16Gi"});
        let text = json!({"type": "string", "pattern": "[a-z]+(/[a-z]+)?"});
        let choice = json!({"type": "choice", "choices": ["small", "large"]});
        for (spec, given, taken) in [
            (&int, json!("4"), Ok(json!(4))),
            (&int, json!(4), Ok(json!(4))),
            (&int, json!("4.5"), Err("no whole number")),
            (&int, json!(9), Err("is more than 8")),
            (&int, json!("0"), Err("is less than 1")),
            (&int, json!([1]), Err("give one value")),
            (&json!({"type": "number"}), json!("1e-5"), Ok(json!(1e-5))),
            (&json!({"type": "number"}), json!("NaN"), Err("no number")),
            (&json!({"type": "bool"}), json!("true"), Ok(json!(true))),
            (&json!({"type": "bool"}), json!("yes"), Err("neither true nor false")),
            (&quantity, json!("2"), Ok(json!("2"))),
            (&quantity, json!(2), Ok(json!("2"))),
            (&quantity, json!("100m"), Err("is less than 500m")),
            (&quantity, json!("1Ti"), Err("is more than 16Gi")),
            (&quantity, json!("two"), Err("no quantity")),
            (&text, json!("data/set"), Ok(json!("data/set"))),
            (&text, json!("data/set\nrm -rf"), Err("does not match")),
            (&text, json!(7), Err("in quotes")),
            (&json!({"type": "string"}), json!("x".repeat(5000)), Err("longer than 4096")),
            (&choice, json!("large"), Ok(json!("large"))),
            (&choice, json!("huge"), Err("choose one of small, large")),
        ] {
            match (parameter(spec).accept_value(&given), taken) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{spec} {given}"),
                (Err(error), Err(part)) => {
                    assert!(error.to_string().contains(part), "{spec} {given}: {error}");
                }
                (found, expected) => panic!("{spec} {given}: {found:?}, expected {expected:?}"),
            }
        }
    }

    #[test]
    fn quantities_are_read_as_kubernetes_writes_them() {
        for (text, amount) in [
            ("1", Some(1.0)),
            ("1.5Gi", Some(1.5 * 1024.0 * 1024.0 * 1024.0)),
            ("250m", Some(0.25)),
            ("3e2", Some(300.0)),
            ("2E", Some(2e18)),
            ("-1k", Some(-1000.0)),
            ("", None),
            ("Gi", None),
            ("1GiB", None),
            ("+-1", None),
            ("1 Gi", None),
            (".", None),
        ] {
            let found = parse_quantity(text);
            let same = found.zip(amount).is_some_and(|(one, other)| (one - other).abs() < 1e-9 * other.abs());
            assert!(same || found.is_none() && amount.is_none(), "{text}: {found:?}");
        }
    }

    #[test]
    fn a_pattern_that_compiles_to_too_much_is_refused() {
        let faults = parameter(&json!({"type": "string", "pattern": "(a{1000}){1000}"})).definition_faults();
        assert!(faults[0].0 == "pattern" && faults[0].1.contains("can't be used"), "{faults:?}");
    }
}
