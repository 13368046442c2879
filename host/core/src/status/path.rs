//! Paths into an object, as the rules write them: `status.conditions[type=Complete].status`,
//! `status.containerStatuses[*].restartCount`, `spec.suspend`.
//!
//! A path names any number of values. `[*]` is each element of a list or each value of a map;
//! `[a.b=x]`, `[a.b!=x]`, `[a.b]` and `[!a.b]` are those where `a.b` is x, is there and is not x,
//! is there, or is not there; `[=x]` those that are x themselves. `["a.b/c"]` is a member whose
//! name has dots. A null is not there.
//!
//! Of an object, only the second-level members that some path of a rule begins with are cut
//! out, and each is parsed when it is first asked for.

use std::borrow::Cow;
use std::cell::OnceCell;

use serde_json::Value;

use crate::project::{Flow, Scanner};

/// Members of the second level, such as `status.conditions`, that a rule may look at.
#[derive(Clone, Debug, Default)]
pub(super) struct Slots {
    /// By the first key, so that a member is compared with its like alone.
    tops: Vec<Top>,
    count: usize,
}

#[derive(Clone, Debug)]
struct Top {
    key: String,
    members: Vec<(String, usize)>,
}

impl Slots {
    /// The place of a member, a new one where no path began with it yet.
    fn place(&mut self, top: &str, second: &str) -> usize {
        let known = self.tops.iter().position(|known| known.key == top);
        let known = known.unwrap_or_else(|| {
            self.tops.push(Top { key: top.to_owned(), members: Vec::new() });
            self.tops.len() - 1
        });
        let members = &mut self.tops[known].members;
        if let Some((_, slot)) = members.iter().find(|(key, _)| key == second) {
            return *slot;
        }
        members.push((second.to_owned(), self.count));
        self.count += 1;
        self.count - 1
    }
}

#[derive(Clone, Debug)]
pub(super) struct Path {
    slot: usize,
    rest: Vec<Segment>,
}

#[derive(Clone, Debug)]
enum Segment {
    Key(String),
    Each,
    Where { key: Vec<String>, test: Where },
}

#[derive(Clone, Debug)]
enum Where {
    Is(String),
    IsNot(String),
    Exists,
    Absent,
}

impl Path {
    /// Parses a path and notes in `slots` what it begins with.
    pub(super) fn parse(text: &str, slots: &mut Slots) -> Result<Self, String> {
        let wrong = |what: &str| format!("`{text}` is not a path: {what}");
        let mut segments = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            let end = rest.find(['.', '[']).unwrap_or(rest.len());
            if end == 0 {
                return Err(wrong("a key is missing"));
            }
            segments.push(Segment::Key(rest[..end].to_owned()));
            rest = &rest[end..];
            while let Some(inner) = rest.strip_prefix('[') {
                let end = if inner.starts_with('"') { "\"]" } else { "]" };
                let close = inner.find(end).ok_or_else(|| wrong("a `]` is missing"))?;
                segments.push(Segment::selector(&inner[..close]).map_err(wrong)?);
                rest = &inner[close + end.len()..];
            }
            match rest.strip_prefix('.') {
                Some("") => return Err(wrong("a key is missing")),
                Some(after) => rest = after,
                None if rest.is_empty() => {}
                None => return Err(wrong("a `.` is missing")),
            }
        }
        let mut segments = segments.into_iter();
        let (Some(Segment::Key(top)), Some(Segment::Key(second))) = (segments.next(), segments.next()) else {
            return Err(wrong("it needs at least two keys, such as `status.phase`"));
        };
        let slot = slots.place(&top, &second);
        Ok(Self { slot, rest: segments.collect() })
    }

    /// Calls `visit` with each value until it answers `true`; whether it did.
    pub(super) fn any<'v>(&self, cut: &'v Cut<'_>, mut visit: impl FnMut(&'v Value) -> bool) -> bool {
        walk(cut.value(self.slot), &self.rest, &mut visit)
    }

    pub(super) fn first<'v>(&self, cut: &'v Cut<'_>) -> Option<&'v Value> {
        let mut found = None;
        self.any(cut, |value| {
            found = Some(value);
            true
        });
        found
    }
}

impl Segment {
    fn selector(text: &str) -> Result<Self, &'static str> {
        let selected = |key: &str, test: Where| {
            let key = key.split('.').filter(|key| !key.is_empty()).map(str::to_owned).collect();
            Ok(Self::Where { key, test })
        };
        if let Some(key) = text.strip_prefix('"') {
            return Ok(Self::Key(key.to_owned()));
        }
        match text {
            "" | "!" => return Err("`[]` is empty: write `[*]` for each element"),
            "*" => return Ok(Self::Each),
            _ => {}
        }
        if let Some((key, value)) = text.split_once("!=") {
            return selected(key, Where::IsNot(value.to_owned()));
        }
        match (text.split_once('='), text.strip_prefix('!')) {
            (Some((key, value)), _) => selected(key, Where::Is(value.to_owned())),
            (None, Some(key)) => selected(key, Where::Absent),
            (None, None) => selected(text, Where::Exists),
        }
    }
}

fn walk<'v>(value: &'v Value, segments: &[Segment], visit: &mut dyn FnMut(&'v Value) -> bool) -> bool {
    let Some((segment, rest)) = segments.split_first() else {
        return !value.is_null() && visit(value);
    };
    match segment {
        Segment::Key(key) => value.get(key).is_some_and(|inner| walk(inner, rest, visit)),
        Segment::Each => any_of(value, |element| walk(element, rest, visit)),
        Segment::Where { key, test } => {
            any_of(value, |element| selected(element, key, test) && walk(element, rest, visit))
        }
    }
}

/// Of the elements of a list or the values of a map.
fn any_of<'v>(value: &'v Value, visit: impl FnMut(&'v Value) -> bool) -> bool {
    match value {
        Value::Array(list) => list.iter().any(visit),
        Value::Object(map) => map.values().any(visit),
        _ => false,
    }
}

fn selected(element: &Value, key: &[String], test: &Where) -> bool {
    let found = key.iter().try_fold(element, |value, key| value.get(key)).filter(|value| !value.is_null());
    match (found, test) {
        (None, test) => matches!(test, Where::Absent),
        (Some(_), Where::Exists) => true,
        (Some(_), Where::Absent) => false,
        (Some(found), Where::Is(text)) => text_of(found).is_some_and(|found| found == *text),
        (Some(found), Where::IsNot(text)) => text_of(found).is_some_and(|found| found != *text),
    }
}

/// A scalar as text; nothing for null, lists and objects.
pub(super) fn text_of(value: &Value) -> Option<Cow<'_, str>> {
    match value {
        Value::String(text) => Some(Cow::Borrowed(text)),
        Value::Bool(truth) => Some(Cow::Borrowed(if *truth { "true" } else { "false" })),
        Value::Number(number) => Some(Cow::Owned(number.to_string())),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

/// What one rule may look at of one object.
pub(super) struct Cut<'a> {
    slots: Vec<Slot<'a>>,
}

#[derive(Default)]
struct Slot<'a> {
    bytes: Option<&'a [u8]>,
    parsed: OnceCell<Value>,
}

static ABSENT: Value = Value::Null;

impl<'a> Cut<'a> {
    /// `None` where the bytes are not an object.
    pub(super) fn new(slots: &Slots, object: &'a [u8]) -> Option<Self> {
        let mut cut: Vec<Slot<'a>> = (0..slots.count).map(|_| Slot::default()).collect();
        let scanned = Scanner::new(object).members(|top, value| {
            let wanted = slots.tops.iter().find(|wanted| top.is(wanted.key.as_bytes()));
            let Some(wanted) = wanted.filter(|_| value.peek() == b'{') else {
                return value.skip().map(|()| Flow::Next);
            };
            value.members(|second, value| {
                let bytes = value.value()?;
                if let Some((_, slot)) = wanted.members.iter().find(|(key, _)| second.is(key.as_bytes())) {
                    cut[*slot].bytes.get_or_insert(bytes);
                }
                Ok(Flow::Next)
            })?;
            Ok(Flow::Next)
        });
        scanned.ok().map(|()| Self { slots: cut })
    }

    fn value(&self, slot: usize) -> &Value {
        let slot = &self.slots[slot];
        match slot.bytes {
            None => &ABSENT,
            // A string that `serde_json` refuses and the scanner did not need to decode is absent.
            Some(bytes) => slot.parsed.get_or_init(|| serde_json::from_slice(bytes).unwrap_or(Value::Null)),
        }
    }
}
