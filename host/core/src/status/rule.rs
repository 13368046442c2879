//! A compiled rule, which derives the status of an object. `spec` has the written form.

use super::node::StatusNode;
use super::path::{MemberCut, MemberSlots, RulePath};
use super::spec::RuleSpec;
use crate::project::ObjectOutline;
use crate::state::Status;

/// Marks the end of a cut text. It counts towards the length.
const CUT: char = '…';
/// Reasons are words for programs. A longer one is cut.
const REASON_BYTES: usize = 256;
/// Each state carries its message, and pages show it in one or two lines. The document has the rest.
const MESSAGE_BYTES: usize = 1024;

#[derive(Clone, Debug)]
pub(super) struct StatusRule {
    pub spec: RuleSpec,
    pub slots: MemberSlots,
    pub attempt: Vec<RuleNumber>,
    pub ready: Vec<RuleNumber>,
    pub total: Vec<RuleNumber>,
    pub exit: Vec<RulePath>,
    pub cases: Vec<RuleCase>,
}

#[derive(Clone, Debug)]
pub(super) struct RuleCase {
    pub when: Vec<RuleTest>,
    pub phase: &'static str,
    pub terminal: bool,
    pub reason: Vec<RuleText>,
    pub message: Vec<RuleText>,
}

#[derive(Clone, Debug)]
pub(super) struct RuleNumber {
    pub when: Vec<RuleTest>,
    pub sum: Vec<RulePath>,
    pub max: Vec<RulePath>,
    pub count: Vec<RulePath>,
    pub less: Vec<RulePath>,
    pub plus: u32,
    pub most: Vec<RuleLimit>,
}

/// The greatest value of a number.
#[derive(Clone, Debug)]
pub(super) struct RuleLimit {
    pub when: Vec<RuleTest>,
    pub sum: Vec<RulePath>,
    pub plus: u32,
}

#[derive(Clone, Debug)]
pub(super) enum RuleText {
    Fixed(String),
    At(RulePath),
}

#[derive(Clone, Debug)]
pub(super) struct RuleTest {
    pub at: Vec<RulePath>,
    /// The result that makes the test hold.
    pub wanted: bool,
    pub check: RuleCheck,
}

#[derive(Clone, Debug)]
pub(super) enum RuleCheck {
    Exists,
    In(Vec<String>),
    Like(Vec<String>),
    Above(i64),
    Below(i64),
    Behind(RulePath),
}

impl StatusRule {
    pub fn status(&self, object: &[u8], outline: &ObjectOutline) -> Option<Status> {
        let cut = MemberCut::new(&self.slots, object, outline);
        Some(self.case_status(self.cases.get(self.deciding_case(&cut)?)?, &cut))
    }

    /// The index of the first case whose tests all hold.
    pub fn deciding_case(&self, cut: &MemberCut<'_>) -> Option<usize> {
        self.cases.iter().position(|case| all_hold(&case.when, cut))
    }

    pub fn case_status(&self, case: &RuleCase, cut: &MemberCut<'_>) -> Status {
        Status {
            phase: case.phase.to_owned(),
            reason: first_text(&case.reason, cut, REASON_BYTES).0,
            message: first_text(&case.message, cut, MESSAGE_BYTES).0,
            attempt: first_number(&self.attempt, cut),
            ready: first_number(&self.ready, cut),
            total: first_number(&self.total, cut),
            exit_code: self.exit.iter().find_map(|path| i32::try_from(path.first_integer(cut)?).ok()),
            terminal: case.terminal,
        }
    }
}

impl RuleNumber {
    /// All sums saturate, because the numbers come from outside.
    fn evaluate(&self, cut: &MemberCut<'_>) -> u32 {
        let mut value = sum_values(&self.sum, cut);
        for path in &self.count {
            path.any_value(cut, |_| {
                value = value.saturating_add(1);
                false
            });
        }
        let mut greatest = 0;
        for path in &self.max {
            path.any_value(cut, |found| {
                greatest = greatest.max(as_natural(found));
                false
            });
        }
        value = value.saturating_add(greatest);
        if !self.less.is_empty() && value > 0 {
            value = value.saturating_sub(sum_values(&self.less, cut));
        }
        value = value.saturating_add(self.plus);
        value.min(self.limit_above(value, cut))
    }

    /// The limit, if `value` may exceed it. A limit is at least its constant, so most objects need no look at its paths.
    fn limit_above(&self, value: u32, cut: &MemberCut<'_>) -> u32 {
        if self.most.iter().all(|limit| value <= limit.plus) {
            return u32::MAX;
        }
        let limit = self.most.iter().find(|limit| all_hold(&limit.when, cut));
        limit.map_or(u32::MAX, |limit| sum_values(&limit.sum, cut).saturating_add(limit.plus))
    }
}

fn sum_values(paths: &[RulePath], cut: &MemberCut<'_>) -> u32 {
    let mut value: u32 = 0;
    for path in paths {
        path.any_value(cut, |found| {
            value = value.saturating_add(as_natural(found));
            false
        });
    }
    value
}

impl RuleTest {
    pub fn holds(&self, cut: &MemberCut<'_>) -> bool {
        let passes = |value: &StatusNode<'_>| match &self.check {
            RuleCheck::Exists => true,
            RuleCheck::In(list) => value.text().is_some_and(|found| list.iter().any(|item| *item == found)),
            RuleCheck::Like(list) => {
                value.text().is_some_and(|found| list.iter().any(|item| item.eq_ignore_ascii_case(&found)))
            }
            RuleCheck::Above(limit) => value.as_i64().is_some_and(|found| found > *limit),
            RuleCheck::Below(limit) => value.as_i64().is_some_and(|found| found < *limit),
            RuleCheck::Behind(path) => {
                let other = path.first_integer(cut);
                value.as_i64().zip(other).is_some_and(|(found, other)| found < other)
            }
        };
        self.at.iter().any(|path| path.any_value(cut, passes)) == self.wanted
    }
}

fn all_hold(tests: &[RuleTest], cut: &MemberCut<'_>) -> bool {
    tests.iter().all(|test| test.holds(cut))
}

fn as_natural(value: &StatusNode<'_>) -> u32 {
    value.as_u64().map_or(0, |number| u32::try_from(number).unwrap_or(u32::MAX))
}

fn first_number(numbers: &[RuleNumber], cut: &MemberCut<'_>) -> u32 {
    numbers.iter().find(|number| all_hold(&number.when, cut)).map_or(0, |number| number.evaluate(cut))
}

/// The first text that is not empty, and its index.
pub(super) fn first_text(texts: &[RuleText], cut: &MemberCut<'_>, most: usize) -> (String, Option<usize>) {
    let mut found = String::new();
    for (index, text) in texts.iter().enumerate() {
        match text {
            RuleText::Fixed(fixed) => found.push_str(fixed),
            RuleText::At(path) => {
                path.any_value(cut, |value| match value.text() {
                    Some(text) => {
                        push(&mut found, &text, most);
                        !found.is_empty()
                    }
                    None => false,
                });
            }
        }
        if !found.is_empty() {
            return (found, Some(index));
        }
    }
    (found, None)
}

/// Appends at most `most` bytes of a text, with the mark if it was cut.
fn push(found: &mut String, text: &str, most: usize) {
    if text.len() <= most {
        return found.push_str(text);
    }
    found.push_str(&text[..text.floor_char_boundary(most - CUT.len_utf8())]);
    found.push(CUT);
}
