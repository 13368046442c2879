//! A compiled rule, which derives the status of an object. `spec` holds the written form.

use super::node::Node;
use super::path::{Cut, Path, Slots};
use super::spec::RuleSpec;
use crate::project::Outline;
use crate::state::Status;

/// What a cut text ends with. It counts among its bytes.
const CUT: char = '…';
/// Reasons are words for programs. A longer one is cut.
const REASON_BYTES: usize = 256;
/// Each state carries its message, and pages show it in one or two lines. The document has the rest.
const MESSAGE_BYTES: usize = 1024;

#[derive(Clone, Debug)]
pub(super) struct Rule {
    pub spec: RuleSpec,
    pub slots: Slots,
    pub attempt: Vec<Number>,
    pub ready: Vec<Number>,
    pub total: Vec<Number>,
    pub exit: Vec<Path>,
    pub cases: Vec<Case>,
}

#[derive(Clone, Debug)]
pub(super) struct Case {
    pub when: Vec<Test>,
    pub phase: &'static str,
    pub terminal: bool,
    pub reason: Vec<Text>,
    pub message: Vec<Text>,
}

#[derive(Clone, Debug)]
pub(super) struct Number {
    pub when: Vec<Test>,
    pub sum: Vec<Path>,
    pub max: Vec<Path>,
    pub count: Vec<Path>,
    pub plus: u32,
}

#[derive(Clone, Debug)]
pub(super) enum Text {
    Fixed(String),
    At(Path),
}

#[derive(Clone, Debug)]
pub(super) struct Test {
    pub at: Vec<Path>,
    /// The result that makes the test hold.
    pub wanted: bool,
    pub check: Check,
}

#[derive(Clone, Debug)]
pub(super) enum Check {
    Exists,
    In(Vec<String>),
    Like(Vec<String>),
    Above(i64),
    Below(i64),
    Behind(Path),
}

impl Rule {
    pub fn status(&self, object: &[u8], outline: &Outline) -> Option<Status> {
        let cut = Cut::new(&self.slots, object, outline);
        Some(self.told(self.cases.get(self.deciding(&cut)?)?, &cut))
    }

    /// The index of the first case whose tests all hold.
    pub fn deciding(&self, cut: &Cut<'_>) -> Option<usize> {
        self.cases.iter().position(|case| hold(&case.when, cut))
    }

    pub fn told(&self, case: &Case, cut: &Cut<'_>) -> Status {
        Status {
            phase: case.phase.to_owned(),
            reason: first_text(&case.reason, cut, REASON_BYTES).0,
            message: first_text(&case.message, cut, MESSAGE_BYTES).0,
            attempt: number(&self.attempt, cut),
            ready: number(&self.ready, cut),
            total: number(&self.total, cut),
            exit_code: self.exit.iter().find_map(|path| i32::try_from(path.integer(cut)?).ok()),
            terminal: case.terminal,
        }
    }
}

impl Number {
    /// All sums saturate, because the numbers come from outside.
    fn value(&self, cut: &Cut<'_>) -> u32 {
        let mut value = self.plus;
        for path in &self.sum {
            path.any(cut, |found| {
                value = value.saturating_add(natural(found));
                false
            });
        }
        for path in &self.count {
            path.any(cut, |_| {
                value = value.saturating_add(1);
                false
            });
        }
        let mut greatest = 0;
        for path in &self.max {
            path.any(cut, |found| {
                greatest = greatest.max(natural(found));
                false
            });
        }
        value.saturating_add(greatest)
    }
}

impl Test {
    pub fn holds(&self, cut: &Cut<'_>) -> bool {
        let passes = |value: &Node<'_>| match &self.check {
            Check::Exists => true,
            Check::In(list) => value.text().is_some_and(|found| list.iter().any(|item| *item == found)),
            Check::Like(list) => {
                value.text().is_some_and(|found| list.iter().any(|item| item.eq_ignore_ascii_case(&found)))
            }
            Check::Above(limit) => value.as_i64().is_some_and(|found| found > *limit),
            Check::Below(limit) => value.as_i64().is_some_and(|found| found < *limit),
            Check::Behind(path) => {
                let other = path.integer(cut);
                value.as_i64().zip(other).is_some_and(|(found, other)| found < other)
            }
        };
        self.at.iter().any(|path| path.any(cut, passes)) == self.wanted
    }
}

fn hold(tests: &[Test], cut: &Cut<'_>) -> bool {
    tests.iter().all(|test| test.holds(cut))
}

fn natural(value: &Node<'_>) -> u32 {
    value.as_u64().map_or(0, |number| u32::try_from(number).unwrap_or(u32::MAX))
}

fn number(numbers: &[Number], cut: &Cut<'_>) -> u32 {
    numbers.iter().find(|number| hold(&number.when, cut)).map_or(0, |number| number.value(cut))
}

/// The first text that is not empty, and its index.
pub(super) fn first_text(texts: &[Text], cut: &Cut<'_>, most: usize) -> (String, Option<usize>) {
    let mut found = String::new();
    for (index, text) in texts.iter().enumerate() {
        match text {
            Text::Fixed(fixed) => found.push_str(fixed),
            Text::At(path) => {
                path.any(cut, |value| match value.text() {
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

/// At most so many bytes of a text, with the mark of a cut.
fn push(found: &mut String, text: &str, most: usize) {
    if text.len() <= most {
        return found.push_str(text);
    }
    found.push_str(&text[..text.floor_char_boundary(most - CUT.len_utf8())]);
    found.push(CUT);
}
