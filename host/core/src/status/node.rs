//! A part of an object as the rules read it. It resembles `serde_json`'s value, but its texts stay in the
//! document: a status is derived for each state, and most values are read only once.

use std::borrow::Cow;
use std::fmt;

use serde_json::Number;

use crate::project::{JsonScanner, MEMBERS, ProjectError, ScanFlow};

/// A number with at most this many digits always fits into 64 bits.
const SAFE_DIGITS: usize = 18;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum StatusNode<'a> {
    Null,
    Bool(bool),
    /// An integer and its text, if it is written in the usual form.
    Integer(&'a str, i64),
    Number(Number),
    Text(Cow<'a, str>),
    List(Vec<StatusNode<'a>>),
    /// If a key occurs twice, the last value counts.
    Map(Vec<(Cow<'a, str>, StatusNode<'a>)>),
}

impl<'a> StatusNode<'a> {
    /// Parses a value. It is null if `serde_json` refuses something that the scanner did not need to decode.
    pub fn parse(bytes: &'a [u8]) -> Self {
        Self::read(&mut JsonScanner::new(bytes)).ok().flatten().unwrap_or(Self::Null)
    }

    fn read(value: &mut JsonScanner<'a>) -> Result<Option<Self>, ProjectError> {
        Ok(Some(match value.peek_byte() {
            b'"' => Self::Text(value.text()?.decode()?),
            b'{' => {
                let (mut map, mut is_whole) = (Vec::new(), true);
                value.for_each_member(|key, value| {
                    if map.is_empty() {
                        map.reserve(MEMBERS);
                    }
                    match Self::read(value)? {
                        Some(node) => map.push((key.decode()?, node)),
                        None => is_whole = false,
                    }
                    Ok(ScanFlow::Next)
                })?;
                return Ok(is_whole.then_some(Self::Map(map)));
            }
            b'[' => {
                let (mut list, mut is_whole) = (Vec::new(), true);
                value.for_each_element(|value| {
                    match Self::read(value)? {
                        Some(node) => list.push(node),
                        None => is_whole = false,
                    }
                    Ok(())
                })?;
                return Ok(is_whole.then_some(Self::List(list)));
            }
            b'n' => value.skip_any_value().map(|()| Self::Null)?,
            b't' => value.skip_any_value().map(|()| Self::Bool(true))?,
            b'f' => value.skip_any_value().map(|()| Self::Bool(false))?,
            _ => return Ok(Self::number(value.take_value_bytes()?)),
        }))
    }

    fn number(raw: &'a [u8]) -> Option<Self> {
        let text = std::str::from_utf8(raw).ok()?;
        let is_plain = text.len() <= SAFE_DIGITS && text != "-0" && !text.contains(['.', 'e', 'E']);
        match is_plain {
            true => Some(Self::Integer(text, text.parse().ok()?)),
            false => serde_json::from_str(text).ok().map(Self::Number),
        }
    }

    pub fn is_null(&self) -> bool {
        matches!(self, Self::Null)
    }

    pub fn get(&self, key: &str) -> Option<&Self> {
        match self {
            Self::Map(map) => map.iter().rev().find(|(held, _)| held == key).map(|(_, value)| value),
            _ => None,
        }
    }

    pub fn as_i64(&self) -> Option<i64> {
        match self {
            Self::Integer(_, number) => Some(*number),
            Self::Number(number) => number.as_i64(),
            _ => None,
        }
    }

    pub fn as_u64(&self) -> Option<u64> {
        match self {
            Self::Integer(_, number) => u64::try_from(*number).ok(),
            Self::Number(number) => number.as_u64(),
            _ => None,
        }
    }

    /// A scalar as text; `None` for null, lists and maps.
    pub fn text(&self) -> Option<Cow<'_, str>> {
        match self {
            Self::Text(text) => Some(Cow::Borrowed(text)),
            Self::Bool(truth) => Some(Cow::Borrowed(if *truth { "true" } else { "false" })),
            Self::Integer(text, _) => Some(Cow::Borrowed(text)),
            Self::Number(number) => Some(Cow::Owned(number.to_string())),
            Self::Null | Self::List(_) | Self::Map(_) => None,
        }
    }

    /// Visits the elements of a list, or the values of a map in key order, until `visit` returns `true`.
    /// Returns whether it did.
    pub fn any_value(&self, mut visit: impl FnMut(&Self) -> bool) -> bool {
        match self {
            Self::List(list) => list.iter().any(visit),
            Self::Map(map) => {
                let mut members: Vec<_> = map.iter().collect();
                members.sort_by(|(one, _), (other, _)| one.cmp(other));
                let last_of =
                    |place: usize| members.get(place + 1).is_none_or(|(after, _)| *after != members[place].0);
                (0..members.len()).any(|place| last_of(place) && visit(&members[place].1))
            }
            _ => false,
        }
    }
}

/// Writes the value as JSON.
impl fmt::Display for StatusNode<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quoted = |text: &str| serde_json::to_string(text).map_err(|_| fmt::Error);
        match self {
            Self::Null => f.write_str("null"),
            Self::Text(text) => f.write_str(&quoted(text)?),
            Self::List(list) => {
                for (place, node) in list.iter().enumerate() {
                    write!(f, "{}{node}", if place == 0 { "[" } else { "," })?;
                }
                f.write_str(if list.is_empty() { "[]" } else { "]" })
            }
            Self::Map(map) => {
                for (place, (key, node)) in map.iter().enumerate() {
                    write!(f, "{}{}:{node}", if place == 0 { "{" } else { "," }, quoted(key)?)?;
                }
                f.write_str(if map.is_empty() { "{}" } else { "}" })
            }
            scalar => f.write_str(&scalar.text().unwrap_or_default()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    fn agree(node: &StatusNode<'_>, value: &Value) {
        assert_eq!(
            (node.is_null(), node.as_i64(), node.as_u64()),
            (value.is_null(), value.as_i64(), value.as_u64())
        );
        assert_eq!(node.text(), super::super::path::text_of(value));
        assert_eq!(serde_json::from_str::<Value>(&node.to_string()).unwrap(), *value);
        let mut values: Vec<&Value> = match value {
            Value::Array(list) => list.iter().collect(),
            Value::Object(map) => map.values().collect(),
            _ => Vec::new(),
        };
        values.reverse();
        node.any_value(|inner| {
            agree(inner, values.pop().unwrap());
            false
        });
        assert!(values.is_empty());
        for (key, value) in value.as_object().into_iter().flatten() {
            agree(node.get(key).unwrap(), value);
        }
    }

    #[test]
    fn what_is_odd_reads_as_serde_reads_it() {
        for text in [
            "0",
            "-0",
            "-1",
            "1.0",
            "1e3",
            "1E400",
            "18446744073709551615",
            "18446744073709551616",
            "-9223372036854775808",
            "123456789012345678",
            "1234567890123456789",
            r#""\ud800""#,
            r#"{"a":1,"a":2}"#,
            r#"{"b":[],"a":{},"b":"x"}"#,
            r#"[1,{"a":"\u0041\n"},null,true]"#,
            r#"{"a":[1e999]}"#,
        ] {
            agree(&StatusNode::parse(text.as_bytes()), &serde_json::from_str(text).unwrap_or_default());
        }
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            (-1e9..1e9).prop_map(Value::from),
            "\\PC{0,8}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 40, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                prop::collection::btree_map(".{0,4}", inner, 0..6)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn any_json_reads_as_serde_reads_it(value in any_json()) {
            let text = value.to_string();
            agree(&StatusNode::parse(text.as_bytes()), &serde_json::from_str(&text).unwrap());
        }
    }
}
