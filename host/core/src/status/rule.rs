//! A rule: how the status of one kind is read, compiled from its file.
//!
//! The file is JSON. `cases` are tried in order, and the first whose tests all hold gives the
//! phase; a text is the first of a list that is not empty, where `@` marks a path. A test
//! holds if any value of its path (or of its paths) passes, and `"not": true` turns it round.
//! Numbers are the first of a list whose `when` holds: the sum of paths, the greatest value of
//! paths, the count of a path's values, and a constant, added up.

use serde::Deserialize;
use serde_json::Value;
use thiserror::Error;

use super::PHASES;
use super::path::{Cut, Path, Slots, text_of};
use crate::state::Status;

/// Reasons are words for programs; a longer one is cut.
const REASON_BYTES: usize = 256;
/// Messages are carried with each state and shown in one line or two; the document has the rest.
const MESSAGE_BYTES: usize = 1024;

#[derive(Debug, Error)]
pub enum RuleError {
    #[error("not a rule: {0}")]
    Format(#[from] serde_json::Error),
    #[error("{place}: {message}")]
    Invalid { place: String, message: String },
}

// ---- the file ----------------------------------------------------------------------------

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleText {
    #[serde(default, rename = "about")]
    _about: String,
    group: String,
    kind: String,
    #[serde(default)]
    attempt: Vec<NumberText>,
    #[serde(default)]
    ready: Vec<NumberText>,
    #[serde(default)]
    total: Vec<NumberText>,
    #[serde(default)]
    exit: Vec<String>,
    cases: Vec<CaseText>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NumberText {
    #[serde(default)]
    when: Vec<TestText>,
    #[serde(default)]
    sum: Vec<String>,
    #[serde(default)]
    max: Vec<String>,
    #[serde(default)]
    count: Vec<String>,
    #[serde(default)]
    plus: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CaseText {
    #[serde(default, rename = "about")]
    _about: String,
    when: Vec<TestText>,
    phase: String,
    #[serde(default)]
    terminal: bool,
    #[serde(default)]
    reason: Vec<String>,
    #[serde(default)]
    message: Vec<String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Paths {
    One(String),
    Many(Vec<String>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TestText {
    at: Paths,
    #[serde(default)]
    not: bool,
    exists: Option<bool>,
    is: Option<Value>,
    #[serde(rename = "in")]
    one_of: Option<Vec<String>>,
    /// As `in`, whatever the case of the letters.
    like: Option<Vec<String>>,
    above: Option<i64>,
    below: Option<i64>,
    /// Less than the number at another path.
    behind: Option<String>,
}

// ---- compiled ----------------------------------------------------------------------------

#[derive(Clone, Debug)]
pub(super) struct Rule {
    pub(super) group: String,
    pub(super) kind: String,
    slots: Slots,
    attempt: Vec<Number>,
    ready: Vec<Number>,
    total: Vec<Number>,
    exit: Vec<Path>,
    cases: Vec<Case>,
}

#[derive(Clone, Debug)]
struct Case {
    when: Vec<Test>,
    phase: &'static str,
    terminal: bool,
    reason: Vec<Text>,
    message: Vec<Text>,
}

#[derive(Clone, Debug)]
struct Number {
    when: Vec<Test>,
    sum: Vec<Path>,
    max: Vec<Path>,
    count: Vec<Path>,
    plus: u32,
}

#[derive(Clone, Debug)]
enum Text {
    Fixed(String),
    At(Path),
}

#[derive(Clone, Debug)]
struct Test {
    at: Vec<Path>,
    /// The answer that makes the test hold.
    wanted: bool,
    check: Check,
}

#[derive(Clone, Debug)]
enum Check {
    Exists,
    In(Vec<String>),
    Like(Vec<String>),
    Above(i64),
    Below(i64),
    Behind(Path),
}

impl Rule {
    pub(super) fn parse(json: &str) -> Result<Self, RuleError> {
        let text: RuleText = serde_json::from_str(json)?;
        let place = format!("the rule for {}/{}", text.group, text.kind);
        let mut slots = Slots::default();
        Self::compile(text, &mut slots).map_err(|message| RuleError::Invalid { place, message })
    }

    fn compile(text: RuleText, slots: &mut Slots) -> Result<Self, String> {
        let mut numbers = |list: Vec<NumberText>| -> Result<Vec<Number>, String> {
            list.into_iter().map(|number| Number::compile(number, slots)).collect()
        };
        let (attempt, ready, total) = (numbers(text.attempt)?, numbers(text.ready)?, numbers(text.total)?);
        let exit = paths(&text.exit, slots)?;
        let last = text.cases.last().ok_or("it has no cases")?;
        if !last.when.is_empty() {
            return Err("the last case must have an empty `when`, so that one always holds".into());
        }
        let cases =
            text.cases.into_iter().map(|case| Case::compile(case, slots)).collect::<Result<_, _>>()?;
        let slots = std::mem::take(slots);
        Ok(Self { group: text.group, kind: text.kind, slots, attempt, ready, total, exit, cases })
    }

    /// `None` where the bytes are not an object.
    pub(super) fn status(&self, object: &[u8]) -> Option<Status> {
        let cut = Cut::new(&self.slots, object)?;
        let case = self.cases.iter().find(|case| hold(&case.when, &cut))?;
        Some(Status {
            phase: case.phase.to_owned(),
            reason: text(&case.reason, &cut, REASON_BYTES),
            message: text(&case.message, &cut, MESSAGE_BYTES),
            attempt: number(&self.attempt, &cut),
            ready: number(&self.ready, &cut),
            total: number(&self.total, &cut),
            exit_code: self.exit.iter().find_map(|path| i32::try_from(path.first(&cut)?.as_i64()?).ok()),
            terminal: case.terminal,
        })
    }
}

impl Case {
    fn compile(text: CaseText, slots: &mut Slots) -> Result<Self, String> {
        let phase = PHASES
            .into_iter()
            .find(|phase| *phase == text.phase)
            .ok_or_else(|| format!("`{}` is no phase; there are {}", text.phase, PHASES.join(", ")))?;
        let mut texts = |list: Vec<String>| -> Result<Vec<Text>, String> {
            list.into_iter().map(|item| Text::compile(item, slots)).collect()
        };
        let (reason, message) = (texts(text.reason)?, texts(text.message)?);
        Ok(Self { when: tests(text.when, slots)?, phase, terminal: text.terminal, reason, message })
    }
}

impl Text {
    fn compile(text: String, slots: &mut Slots) -> Result<Self, String> {
        match text.strip_prefix('@') {
            Some(path) => Path::parse(path, slots).map(Self::At),
            None => Ok(Self::Fixed(text)),
        }
    }
}

impl Number {
    fn compile(text: NumberText, slots: &mut Slots) -> Result<Self, String> {
        Ok(Self {
            when: tests(text.when, slots)?,
            sum: paths(&text.sum, slots)?,
            max: paths(&text.max, slots)?,
            count: paths(&text.count, slots)?,
            plus: text.plus,
        })
    }

    /// Saturating throughout: the numbers come from outside.
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
    fn compile(text: TestText, slots: &mut Slots) -> Result<Self, String> {
        let at = match text.at {
            Paths::One(path) => paths(&[path], slots)?,
            Paths::Many(many) => paths(&many, slots)?,
        };
        let mut wanted = !text.not;
        let mut checks = Vec::new();
        if let Some(exists) = text.exists {
            wanted = exists != text.not;
            checks.push(Check::Exists);
        }
        if let Some(value) = text.is {
            let scalar = text_of(&value).ok_or("`is` needs a string, a number, true or false")?;
            checks.push(Check::In(vec![scalar.into_owned()]));
        }
        checks.extend(text.one_of.map(Check::In));
        checks.extend(text.like.map(Check::Like));
        checks.extend(text.above.map(Check::Above));
        checks.extend(text.below.map(Check::Below));
        if let Some(path) = text.behind {
            checks.push(Check::Behind(Path::parse(&path, slots)?));
        }
        match (checks.pop(), checks.is_empty()) {
            (Some(check), true) => Ok(Self { at, wanted, check }),
            _ => Err("a test needs exactly one of exists, is, in, like, above, below and behind".into()),
        }
    }

    fn holds(&self, cut: &Cut<'_>) -> bool {
        let passes = |value: &Value| match &self.check {
            Check::Exists => true,
            Check::In(list) => text_of(value).is_some_and(|found| list.iter().any(|item| *item == found)),
            Check::Like(list) => {
                text_of(value).is_some_and(|found| list.iter().any(|item| item.eq_ignore_ascii_case(&found)))
            }
            Check::Above(limit) => value.as_i64().is_some_and(|found| found > *limit),
            Check::Below(limit) => value.as_i64().is_some_and(|found| found < *limit),
            Check::Behind(path) => {
                let other = path.first(cut).and_then(Value::as_i64);
                value.as_i64().zip(other).is_some_and(|(found, other)| found < other)
            }
        };
        self.at.iter().any(|path| path.any(cut, passes)) == self.wanted
    }
}

fn paths(list: &[String], slots: &mut Slots) -> Result<Vec<Path>, String> {
    list.iter().map(|path| Path::parse(path, slots)).collect()
}

fn tests(list: Vec<TestText>, slots: &mut Slots) -> Result<Vec<Test>, String> {
    list.into_iter().map(|test| Test::compile(test, slots)).collect()
}

fn hold(tests: &[Test], cut: &Cut<'_>) -> bool {
    tests.iter().all(|test| test.holds(cut))
}

fn natural(value: &Value) -> u32 {
    value.as_u64().map_or(0, |number| u32::try_from(number).unwrap_or(u32::MAX))
}

fn number(numbers: &[Number], cut: &Cut<'_>) -> u32 {
    numbers.iter().find(|number| hold(&number.when, cut)).map_or(0, |number| number.value(cut))
}

fn text(texts: &[Text], cut: &Cut<'_>, most: usize) -> String {
    let mut found = String::new();
    for text in texts {
        match text {
            Text::Fixed(fixed) => found.push_str(fixed),
            Text::At(path) => {
                path.any(cut, |value| match text_of(value) {
                    Some(text) => {
                        let mut end = text.len().min(most);
                        while !text.is_char_boundary(end) {
                            end -= 1;
                        }
                        found.push_str(&text[..end]);
                        !found.is_empty()
                    }
                    None => false,
                });
            }
        }
        if !found.is_empty() {
            break;
        }
    }
    found
}
