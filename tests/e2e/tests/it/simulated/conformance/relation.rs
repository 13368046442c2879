//! Compares what a real server said with what this one says, where neither uids, times nor
//! versions can be the same: each recorded value stands for one value here, and order is kept.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;

use serde_json::Value;

/// One place where the two differ (and not by value alone).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnswerDifference {
    /// Such as `3.body.items[0].metadata.name`: step, part, path.
    pub path: String,
    pub recorded: String,
    pub here: String,
}

/// The values of this replay for which the recording's values stand.
#[derive(Default)]
pub struct ValueRelations {
    uids: HashMap<String, String>,
    versions: BTreeMap<u64, u64>,
    /// Recorded times and the latest that stood for them.
    times: BTreeMap<String, String>,
    names: HashMap<String, String>,
    tokens: HashMap<String, String>,
}

/// Versions above this are made up by the recording ("from the future"), those below
/// [`ANCIENT`] too ("long compacted"): they stand for themselves.
const FUTURE: u64 = 900_000_000;
const ANCIENT: u64 = 10;

impl ValueRelations {
    /// A version that this replay gave to what the recording knows as `recorded`. False where
    /// that contradicts what is known.
    pub fn bind_version(&mut self, recorded: u64, here: u64) -> bool {
        if let Some(known) = self.versions.get(&recorded) {
            return *known == here;
        }
        let below = self.versions.range(..recorded).next_back().is_none_or(|(_, known)| *known < here);
        let above = self.versions.range(recorded..).next().is_none_or(|(_, known)| *known > here);
        if below && above {
            self.versions.insert(recorded, here);
        }
        below && above
    }

    /// The version here for a recorded one; one that was never seen lies as far before or
    /// behind its neighbour as it did there, since both count one a write.
    pub fn version(&self, recorded: u64) -> u64 {
        if !(ANCIENT..FUTURE).contains(&recorded) {
            return recorded;
        }
        if let Some((known, here)) = self.versions.range(recorded..).next() {
            return here.saturating_sub(known - recorded);
        }
        self.versions
            .range(..recorded)
            .next_back()
            .map_or(recorded, |(known, here)| here + (recorded - known))
    }

    /// A request of the recording, as it has to be sent here.
    pub fn request_path(&self, path: &str) -> String {
        let Some((path, query)) = path.split_once('?') else { return self.text(path) };
        let pairs = query.split('&').map(|pair| match pair.split_once('=') {
            Some(("resourceVersion", value)) => match value.parse() {
                Ok(version) => format!("resourceVersion={}", self.version(version)),
                Err(_) => pair.to_owned(),
            },
            Some(("continue", token)) => {
                format!("continue={}", self.tokens.get(token).map_or(token, String::as_str))
            }
            _ => pair.to_owned(),
        });
        format!("{}?{}", self.text(path), pairs.collect::<Vec<_>>().join("&"))
    }

    pub fn request_body(&self, body: &Value) -> Value {
        match body {
            Value::String(text) => Value::String(self.text(text)),
            Value::Array(items) => items.iter().map(|item| self.request_body(item)).collect(),
            Value::Object(fields) => {
                let mapped = fields.iter().map(|(name, value)| match (name.as_str(), value.as_str()) {
                    ("resourceVersion", Some(text)) => {
                        let version =
                            text.parse().map_or_else(|_| text.to_owned(), |v| self.version(v).to_string());
                        (name.clone(), Value::String(version))
                    }
                    _ => (name.clone(), self.request_body(value)),
                });
                Value::Object(mapped.collect())
            }
            other => other.clone(),
        }
    }

    fn text(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (recorded, here) in self.uids.iter().chain(&self.names) {
            text = text.replace(recorded, here);
        }
        text
    }

    pub fn compare(&mut self, path: &str, recorded: &Value, here: &Value, found: &mut Vec<AnswerDifference>) {
        match (recorded, here) {
            (Value::Object(one), Value::Object(other)) => {
                self.learn_name(one, other);
                for (name, value) in one {
                    let path = format!("{path}.{name}");
                    match other.get(name) {
                        Some(there) => self.compare(&path, value, there, found),
                        None => differ(&path, Some(value), None, found),
                    }
                }
                for (name, value) in other.iter().filter(|(name, _)| !one.contains_key(*name)) {
                    differ(&format!("{path}.{name}"), None, Some(value), found);
                }
            }
            (Value::Array(one), Value::Array(other)) => {
                for (index, value) in one.iter().enumerate() {
                    let path = format!("{path}[{index}]");
                    match other.get(index) {
                        Some(there) => self.compare(&path, value, there, found),
                        None => differ(&path, Some(value), None, found),
                    }
                }
                for (index, value) in other.iter().enumerate().skip(one.len()) {
                    differ(&format!("{path}[{index}]"), None, Some(value), found);
                }
            }
            (Value::String(one), Value::String(other)) if self.same_text(path, one, other) => {}
            (one, other) if one == other && !one.is_string() => {}
            _ => differ(path, Some(recorded), Some(here), found),
        }
    }

    /// A generated name stands for another one with the same beginning.
    fn learn_name(&mut self, one: &serde_json::Map<String, Value>, other: &serde_json::Map<String, Value>) {
        let text = |map: &serde_json::Map<String, Value>, field: &str| {
            map.get(field).and_then(Value::as_str).map(str::to_owned)
        };
        let (Some(start), Some(one), Some(other)) =
            (text(one, "generateName"), text(one, "name"), text(other, "name"))
        else {
            return;
        };
        if other.starts_with(&start) && other.len() == one.len() {
            self.names.entry(one).or_insert(other);
        }
    }

    fn same_text(&mut self, path: &str, one: &str, other: &str) -> bool {
        let field = path.rsplit(['.', ']']).next().unwrap_or_default();
        if field == "resourceVersion" {
            return match (one.parse(), other.parse()) {
                (Ok(one), Ok(other)) => self.bind_version(one, other),
                _ => one == other,
            };
        }
        if field == "continue" {
            self.tokens.insert(one.to_owned(), other.to_owned());
            return self.same_token(one, other);
        }
        if path.contains(".cells[") && is_age(one) && is_age(other) {
            return true;
        }
        if one == other || self.names.get(one).is_some_and(|known| known == other) {
            return true;
        }
        let versions_may_be_named = matches!(field, "message");
        let (one, other) = (pieces(one), pieces(other));
        one.len() == other.len()
            && one.iter().zip(&other).all(|pair| match pair {
                (ValuePiece::Uid(one), ValuePiece::Uid(other)) => self.same_uid(one, other),
                (ValuePiece::Time(one), ValuePiece::Time(other)) => self.same_time(one, other),
                (ValuePiece::Number(one), ValuePiece::Number(other)) => {
                    one == other || (versions_may_be_named && self.bind_version(*one, *other))
                }
                (one, other) => one == other,
            })
    }

    fn same_uid(&mut self, one: &str, other: &str) -> bool {
        if let Some(known) = self.uids.get(one) {
            return known == other;
        }
        let fresh = !self.uids.values().any(|known| known == other);
        self.uids.insert(one.to_owned(), other.to_owned());
        fresh
    }

    /// Checks that a time that was earlier there is not later here. Equal seconds may have become different
    /// ones.
    fn same_time(&mut self, one: &str, other: &str) -> bool {
        let earlier = self.times.range::<str, _>((Bound::Unbounded, Bound::Excluded(one))).next_back();
        let in_order = earlier.is_none_or(|(_, before)| before.as_str() <= other);
        let latest = self.times.entry(one.to_owned()).or_default();
        if latest.as_str() < other {
            other.clone_into(latest);
        }
        in_order
    }

    /// `{"v", "rv", "start"}` in base64.
    fn same_token(&mut self, one: &str, other: &str) -> bool {
        let open = |token: &str| -> Option<Value> { serde_json::from_slice(&base64(token)?).ok() };
        let (Some(one), Some(other)) = (open(one), open(other)) else { return false };
        let version = |token: &Value| token["rv"].as_u64();
        let (Some(recorded), Some(here)) = (version(&one), version(&other)) else { return false };
        one["v"] == other["v"] && one["start"] == other["start"] && self.bind_version(recorded, here)
    }
}

fn differ(path: &str, recorded: Option<&Value>, here: Option<&Value>, found: &mut Vec<AnswerDifference>) {
    let show = |value: Option<&Value>| value.map_or_else(|| "(nothing)".to_owned(), Value::to_string);
    found.push(AnswerDifference { path: path.to_owned(), recorded: show(recorded), here: show(here) });
}

/// `3s`, `2m5s`, `1d`: how long ago, in a table.
fn is_age(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_digit())
        && text.ends_with(['s', 'm', 'h', 'd'])
        && text.chars().all(|c| c.is_ascii_digit() || "smhd".contains(c))
}

#[derive(Debug, PartialEq, Eq)]
enum ValuePiece<'a> {
    Uid(&'a str),
    Time(&'a str),
    Number(u64),
    Other(&'a str),
}

/// Splits a text into what is compared by relation and what is compared as it is.
fn pieces(text: &str) -> Vec<ValuePiece<'_>> {
    let (mut pieces, mut rest, mut plain) = (Vec::new(), text, 0);
    let mut at = 0;
    while at < rest.len() {
        let tail = &rest[at..];
        let piece = if let Some(uid) = tail.get(..36).filter(|uid| is_uid(uid)) {
            Some((ValuePiece::Uid(uid), 36))
        } else if let Some(time) = tail.get(..20).filter(|time| is_time(time)) {
            Some((ValuePiece::Time(time), 20))
        } else {
            let digits = tail.bytes().take_while(u8::is_ascii_digit).count();
            tail[..digits].parse().ok().map(|number| (ValuePiece::Number(number), digits))
        };
        match piece {
            Some((piece, length)) => {
                if at > plain {
                    pieces.push(ValuePiece::Other(&rest[plain..at]));
                }
                pieces.push(piece);
                rest = &rest[at + length..];
                (at, plain) = (0, 0);
            }
            None => at += tail.chars().next().map_or(1, char::len_utf8),
        }
    }
    if rest.len() > plain {
        pieces.push(ValuePiece::Other(&rest[plain..]));
    }
    pieces
}

fn is_uid(text: &str) -> bool {
    text.bytes().enumerate().all(|(at, byte)| match at {
        8 | 13 | 18 | 23 => byte == b'-',
        _ => byte.is_ascii_hexdigit(),
    })
}

fn is_time(text: &str) -> bool {
    text.bytes().enumerate().all(|(at, byte)| match at {
        4 | 7 => byte == b'-',
        10 => byte == b'T',
        13 | 16 => byte == b':',
        19 => byte == b'Z',
        _ => byte.is_ascii_digit(),
    })
}

/// Both alphabets, with or without padding.
fn base64(text: &str) -> Option<Vec<u8>> {
    let (mut bits, mut held, mut bytes) = (0u32, 0, Vec::new());
    for byte in text.trim_end_matches('=').bytes() {
        let six = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' | b'-' => 62,
            b'/' | b'_' => 63,
            _ => return None,
        };
        bits = (bits << 6) | u32::from(six);
        held += 6;
        if held >= 8 {
            held -= 8;
            bytes.push((bits >> held) as u8);
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn differences(relations: &mut ValueRelations, recorded: &Value, here: &Value) -> usize {
        let mut found = Vec::new();
        relations.compare("", recorded, here, &mut found);
        found.len()
    }

    const A: &str = "1a540666-b7c1-43be-8765-b746130d1fe2";
    const B: &str = "df26f70d-1441-4772-b576-6385f0807c0d";

    #[test]
    fn a_uid_stands_for_one_uid_wherever_it_is_mentioned() {
        let mut relations = ValueRelations::default();
        assert_eq!(differences(&mut relations, &json!({"uid": A}), &json!({"uid": B})), 0);
        let message = |uid: &str| json!({"message": format!("the record ({uid}) is gone")});
        assert_eq!(differences(&mut relations, &message(A), &message(B)), 0);
        assert_eq!(differences(&mut relations, &message(A), &message(A)), 0, "equal texts are equal");
        assert_eq!(differences(&mut relations, &message(B), &message(B)), 0);
        let other = "00000000-1441-4772-b576-6385f0807c0d";
        assert_eq!(differences(&mut relations, &message(A), &message(other)), 1);
    }

    #[test]
    fn versions_keep_their_order_and_what_was_equal_stays_equal() {
        let version = |version: u64| json!({"resourceVersion": version.to_string()});
        let mut relations = ValueRelations::default();
        assert_eq!(differences(&mut relations, &version(100), &version(7)), 0);
        assert_eq!(differences(&mut relations, &version(105), &version(9)), 0);
        assert_eq!(differences(&mut relations, &version(100), &version(8)), 1, "the same one changed");
        assert_eq!(differences(&mut relations, &version(103), &version(9)), 1, "two became one");
        assert_eq!(differences(&mut relations, &version(110), &version(8)), 1, "later became earlier");
        assert_eq!(relations.version(99), 6);
        assert_eq!(relations.version(107), 11);
        assert_eq!((relations.version(1), relations.version(999_999_999)), (1, 999_999_999));
    }

    #[test]
    fn times_may_grow_apart_but_not_turn_around() {
        let time = |seconds: u32| json!({"at": format!("2026-11-20T10:48:{seconds:02}Z")});
        let mut relations = ValueRelations::default();
        assert_eq!(differences(&mut relations, &time(40), &time(10)), 0);
        assert_eq!(differences(&mut relations, &time(40), &time(11)), 0);
        assert_eq!(differences(&mut relations, &time(41), &time(11)), 0);
        assert_eq!(differences(&mut relations, &time(42), &time(10)), 1);
    }

    #[test]
    fn shapes_and_numbers_that_are_no_versions_must_be_the_same() {
        let mut relations = ValueRelations::default();
        assert_eq!(differences(&mut relations, &json!({"a": 1}), &json!({"b": 1})), 2);
        assert_eq!(differences(&mut relations, &json!([1, 2]), &json!([1])), 1);
        assert_eq!(differences(&mut relations, &json!({"code": 409}), &json!({"code": 410})), 1);
        assert_eq!(differences(&mut relations, &json!({"n": "x1"}), &json!({"n": "x2"})), 1);
    }

    #[test]
    fn a_continue_token_is_compared_by_what_it_says_and_carried_into_requests() {
        let one = "eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6OTA5LCJzdGFydCI6Ii9wMVx1MDAwMCJ9";
        let other = "eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6MTMsInN0YXJ0IjoiL3AxXHUwMDAwIn0";
        let mut relations = ValueRelations::default();
        assert_eq!(differences(&mut relations, &json!({"continue": one}), &json!({"continue": other})), 0);
        assert_eq!(relations.version(909), 13);
        assert_eq!(
            relations.request_path(&format!("/x?limit=2&continue={one}")),
            format!("/x?limit=2&continue={other}")
        );
    }

    #[test]
    fn a_generated_name_stands_for_another_with_the_same_beginning() {
        let named = |name: &str| json!({"metadata": {"generateName": "gen-", "name": name}});
        let mut relations = ValueRelations::default();
        assert_eq!(differences(&mut relations, &named("gen-6hp5m"), &named("gen-abcde")), 0);
        assert_eq!(relations.request_path("/gen-6hp5m"), "/gen-abcde");
        assert_eq!(differences(&mut relations, &named("gen-zzzzz"), &named("other")), 1);
    }
}
