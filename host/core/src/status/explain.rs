//! Explains an object's status for people: which case decided, which tests held, and which test ruled out
//! each earlier case. The path of a state does not pay for it: that calls only `StatusRule::status`.

use serde::Serialize;

use super::node::StatusNode;
use super::path::{MemberCut, RulePath};
use super::rule::{RuleTest, StatusRule, first_text};
use super::spec::RuleSpec;
use super::{RuleOrigin, StatusRules};
use crate::model::fault::shorten_text;
use crate::project::ObjectOutline;
use crate::state::Status;

/// How many values of one test are shown, and how many bytes of each. A person reads them.
const VALUES: usize = 4;
const VALUE_BYTES: usize = 80;

#[derive(Clone, Debug, Serialize)]
pub struct RuleExplanation<'r> {
    pub status: Status,
    pub origin: RuleOrigin,
    #[serde(skip)]
    pub rule: &'r RuleSpec,
    /// The number of the deciding case, from 0.
    pub case: usize,
    /// The tests of the deciding case. All of them passed.
    pub held: Vec<TestedCase>,
    /// For each earlier case, the first test that failed.
    pub before: Vec<TestedCase>,
    /// The item of the case's `reason` that gave the reason. The message has the same field.
    pub reason_from: Option<String>,
    pub message_from: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TestedCase {
    /// The place in the rule, such as `cases[3].when[0]`.
    pub field: String,
    pub test: String,
    /// The values that the object has there.
    pub found: Vec<String>,
}

impl StatusRules {
    /// Returns `None` if the bytes are not an object.
    pub fn explain_status(&self, group: &str, kind: &str, object: &[u8]) -> Option<RuleExplanation<'_>> {
        let (origin, rule) = self.find(group, kind);
        let cut = MemberCut::new(&rule.slots, object, &ObjectOutline::of(object).ok()?);
        let decided = rule.deciding_case(&cut)?;
        let case = rule.cases.get(decided)?;
        let spec = rule.spec.cases.get(decided)?;
        let from = |texts, items: &[String]| items.get(first_text(texts, &cut, VALUE_BYTES).1?).cloned();
        Some(RuleExplanation {
            status: rule.case_status(case, &cut),
            origin: *origin,
            rule: &rule.spec,
            case: decided,
            held: (0..case.when.len()).filter_map(|test| tested_case(rule, decided, test, &cut)).collect(),
            before: (0..decided).filter_map(|case| failed_test(rule, case, &cut)).collect(),
            reason_from: from(&case.reason, &spec.reason),
            message_from: from(&case.message, &spec.message),
        })
    }
}

fn failed_test(rule: &StatusRule, case: usize, cut: &MemberCut<'_>) -> Option<TestedCase> {
    let test = rule.cases.get(case)?.when.iter().position(|test| !test.holds(cut))?;
    tested_case(rule, case, test, cut)
}

fn tested_case(rule: &StatusRule, case: usize, test: usize, cut: &MemberCut<'_>) -> Option<TestedCase> {
    let spec = rule.spec.cases.get(case)?.when.get(test)?;
    Some(TestedCase {
        field: format!("cases[{case}].when[{test}]"),
        test: spec.to_string(),
        found: found_values(rule.cases.get(case)?.when.get(test)?, cut),
    })
}

fn found_values(test: &RuleTest, cut: &MemberCut<'_>) -> Vec<String> {
    let mut values = Vec::new();
    let mut visit = |path: &RulePath| {
        path.any_value(cut, |value| {
            values.push(value_text(value));
            values.len() >= VALUES
        })
    };
    test.at.iter().any(&mut visit);
    values
}

fn value_text(value: &StatusNode<'_>) -> String {
    shorten_text(&value.to_string(), VALUE_BYTES).into_owned()
}
