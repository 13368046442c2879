//! Paths into an object, as rules write them: `status.conditions[type=Complete].status`,
//! `status.containerStatuses[*].restartCount`, `spec.suspend`.
//!
//! A path names any number of values. A null counts as absent.
//!
//! - `[*]`: each element of a list, or each value of a map.
//! - `[a.b=x]`: the elements whose `a.b` is x.
//! - `[a.b!=x]`: the elements that have `a.b`, and it is not x.
//! - `[a.b]` and `[!a.b]`: the elements that have `a.b`, or have none.
//! - `[=x]`: the elements that are x themselves.
//! - `["a.b/c"]`: the member of this name, which has dots.
//!
//! Only the second-level members that a rule's paths begin with are cut out of an object, and each is parsed
//! at its first use.

use std::borrow::Cow;
use std::cell::OnceCell;

use serde_json::Value;
use thiserror::Error;

use super::node::StatusNode;
use crate::project::ObjectOutline;

/// The second-level members that a rule may read, such as `status.conditions`.
#[derive(Clone, Debug, Default)]
pub(super) struct MemberSlots {
    /// Grouped by the first key, so that a member is only compared within its group.
    tops: Vec<TopMembers>,
    count: usize,
}

#[derive(Clone, Debug)]
struct TopMembers {
    key: String,
    members: Vec<(String, usize)>,
}

impl MemberSlots {
    /// The slot of a member. It is created if no path began with this member yet.
    fn slot_of(&mut self, top: &str, second: &str) -> usize {
        let known = self.tops.iter().position(|known| known.key == top);
        let known = known.unwrap_or_else(|| {
            self.tops.push(TopMembers { key: top.to_owned(), members: Vec::new() });
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
pub(super) struct RulePath {
    slot: usize,
    rest: Vec<PathSegment>,
}

#[derive(Clone, Debug)]
enum PathSegment {
    Key(String),
    Each,
    Where { key: Vec<String>, test: ElementTest },
}

#[derive(Clone, Debug)]
enum ElementTest {
    Is(String),
    IsNot(String),
    Exists,
    Absent,
}

/// A text is not a path.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{text}` is not a path: {fault}")]
pub(super) struct RulePathError {
    text: String,
    fault: &'static str,
}

impl RulePath {
    /// Parses a path, and adds its first member to `slots`.
    pub(super) fn parse(text: &str, slots: &mut MemberSlots) -> Result<Self, RulePathError> {
        let wrong = |fault| RulePathError { text: text.to_owned(), fault };
        let mut segments = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            let end = rest.find(['.', '[']).unwrap_or(rest.len());
            if end == 0 {
                return Err(wrong("a key is missing"));
            }
            segments.push(PathSegment::Key(rest[..end].to_owned()));
            rest = &rest[end..];
            while let Some(inner) = rest.strip_prefix('[') {
                let end = if inner.starts_with('"') { "\"]" } else { "]" };
                let close = inner.find(end).ok_or_else(|| wrong("a `]` is missing"))?;
                segments.push(PathSegment::parse_selector(&inner[..close]).map_err(wrong)?);
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
        let (Some(PathSegment::Key(top)), Some(PathSegment::Key(second))) =
            (segments.next(), segments.next())
        else {
            return Err(wrong("it needs at least two keys, such as `status.phase`"));
        };
        let slot = slots.slot_of(&top, &second);
        Ok(Self { slot, rest: segments.collect() })
    }

    /// Calls `visit` with each value until it returns `true`. Returns whether it did.
    pub(super) fn any_value(
        &self,
        cut: &MemberCut<'_>,
        mut visit: impl FnMut(&StatusNode<'_>) -> bool,
    ) -> bool {
        walk_segments(cut.slot_value(self.slot), &self.rest, &mut visit)
    }

    /// The first value, if it is an integer.
    pub(super) fn first_integer(&self, cut: &MemberCut<'_>) -> Option<i64> {
        let mut found = None;
        self.any_value(cut, |value| {
            found = value.as_i64();
            true
        });
        found
    }
}

impl PathSegment {
    fn parse_selector(text: &str) -> Result<Self, &'static str> {
        let selected = |key: &str, test: ElementTest| {
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
            return selected(key, ElementTest::IsNot(value.to_owned()));
        }
        match (text.split_once('='), text.strip_prefix('!')) {
            (Some((key, value)), _) => selected(key, ElementTest::Is(value.to_owned())),
            (None, Some(key)) => selected(key, ElementTest::Absent),
            (None, None) => selected(text, ElementTest::Exists),
        }
    }
}

fn walk_segments(
    value: &StatusNode<'_>,
    segments: &[PathSegment],
    visit: &mut dyn FnMut(&StatusNode<'_>) -> bool,
) -> bool {
    let Some((segment, rest)) = segments.split_first() else {
        return !value.is_null() && visit(value);
    };
    match segment {
        PathSegment::Key(key) => value.get(key).is_some_and(|inner| walk_segments(inner, rest, visit)),
        PathSegment::Each => value.any_value(|element| walk_segments(element, rest, visit)),
        PathSegment::Where { key, test } => {
            value.any_value(|element| is_selected(element, key, test) && walk_segments(element, rest, visit))
        }
    }
}

fn is_selected(element: &StatusNode<'_>, key: &[String], test: &ElementTest) -> bool {
    let found = key.iter().try_fold(element, |value, key| value.get(key)).filter(|value| !value.is_null());
    match (found, test) {
        (None, test) => matches!(test, ElementTest::Absent),
        (Some(_), ElementTest::Exists) => true,
        (Some(_), ElementTest::Absent) => false,
        (Some(found), ElementTest::Is(text)) => found.text().is_some_and(|found| found == *text),
        (Some(found), ElementTest::IsNot(text)) => found.text().is_some_and(|found| found != *text),
    }
}

/// A scalar of a rule as text; `None` for null, lists and objects.
pub(super) fn text_of(value: &Value) -> Option<Cow<'_, str>> {
    match value {
        Value::String(text) => Some(Cow::Borrowed(text)),
        Value::Bool(truth) => Some(Cow::Borrowed(if *truth { "true" } else { "false" })),
        Value::Number(number) => Some(Cow::Owned(number.to_string())),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

/// The members of one object that one rule may read.
pub(super) struct MemberCut<'a> {
    slots: Vec<MemberSlot<'a>>,
}

#[derive(Default)]
struct MemberSlot<'a> {
    bytes: Option<&'a [u8]>,
    parsed: OnceCell<StatusNode<'a>>,
}

static ABSENT: StatusNode<'static> = StatusNode::Null;

impl<'a> MemberCut<'a> {
    /// Cuts the members out of an object, with the object's own outline.
    pub(super) fn new(slots: &MemberSlots, object: &'a [u8], outline: &ObjectOutline) -> Self {
        let mut cut: Vec<MemberSlot<'a>> = (0..slots.count).map(|_| MemberSlot::default()).collect();
        let mut members: &[(String, usize)] = &[];
        for found in outline.outlined_members(object) {
            if !found.is_inner {
                let wanted = slots.tops.iter().find(|wanted| found.key.equals_bytes(wanted.key.as_bytes()));
                members = wanted.map_or(&[], |wanted| &wanted.members);
            } else if let Some((_, slot)) =
                members.iter().find(|(key, _)| found.key.equals_bytes(key.as_bytes()))
            {
                cut[*slot].bytes.get_or_insert(found.value);
            }
        }
        Self { slots: cut }
    }

    fn slot_value(&self, slot: usize) -> &StatusNode<'a> {
        let slot = &self.slots[slot];
        match slot.bytes {
            None => &ABSENT,
            Some(bytes) => slot.parsed.get_or_init(|| StatusNode::parse(bytes)),
        }
    }
}
