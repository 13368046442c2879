//! Compiles a written rule. It reports every fault with its field.

use super::PHASES;
use super::path::{MemberSlots, RulePath, text_of};
use super::rule::{RuleCase, RuleCheck, RuleLimit, RuleNumber, RuleTest, RuleText, StatusRule};
use super::spec::{CaseSpec, LimitSpec, NumberSpec, OneOrMany, RuleSpec, TestSpec};
use crate::model::fault::ManifestFault;

pub(super) fn compile_rule(spec: &RuleSpec) -> Result<StatusRule, Vec<ManifestFault>> {
    let mut compiler = RuleCompiler::default();
    compiler.check_names(spec);
    let attempt = compiler.compile_numbers("attempt", &spec.attempt);
    let ready = compiler.compile_numbers("ready", &spec.ready);
    let total = compiler.compile_numbers("total", &spec.total);
    let exit = compiler.compile_paths("exit", &spec.exit);
    let cases = compiler.compile_cases(&spec.cases);
    if !compiler.faults.is_empty() {
        return Err(compiler.faults);
    }
    Ok(StatusRule { spec: spec.clone(), slots: compiler.slots, attempt, ready, total, exit, cases })
}

#[derive(Default)]
struct RuleCompiler {
    slots: MemberSlots,
    faults: Vec<ManifestFault>,
}

impl RuleCompiler {
    fn push_fault(&mut self, field: &str, message: impl Into<String>) {
        self.faults.push(ManifestFault { field: field.to_owned(), message: message.into() });
    }

    fn check_names(&mut self, spec: &RuleSpec) {
        let kinds = &spec.kind.0;
        if kinds.is_empty() || kinds.iter().any(String::is_empty) {
            self.push_fault("kind", "names no kind: write one, such as Job, or a list of them");
        }
        if (spec.group == "*") != kinds.iter().any(|kind| kind == "*") {
            let message = "`*` stands for every kind without a rule, and only as both group and kind";
            self.push_fault("kind", message);
        }
        if let Some((group, version)) = spec.group.split_once('/') {
            self.push_fault("group", format!("leave out the version: `{group}` and not `{group}/{version}`"));
        }
    }

    fn compile_cases(&mut self, specs: &[CaseSpec]) -> Vec<RuleCase> {
        let Some(last) = specs.len().checked_sub(1) else {
            self.push_fault("cases", "is empty: the last case has an empty `when`, so that one always holds");
            return Vec::new();
        };
        let mut cases = Vec::new();
        for (index, spec) in specs.iter().enumerate() {
            let at = format!("cases[{index}]");
            if index == last && !spec.when.is_empty() {
                let message = "add a last case with an empty `when` after it, so that one always holds";
                self.push_fault(&format!("{at}.when"), message);
            } else if index < last && spec.when.is_empty() {
                let message = "is empty and always holds, so that the cases after it never decide";
                self.push_fault(&format!("{at}.when"), message);
            }
            cases.extend(self.compile_case(&at, spec));
        }
        cases
    }

    fn compile_case(&mut self, at: &str, spec: &CaseSpec) -> Option<RuleCase> {
        let phase = PHASES.into_iter().find(|phase| *phase == spec.phase);
        if phase.is_none() {
            let message = format!("`{}` is no phase; there are {}", spec.phase, PHASES.join(", "));
            self.push_fault(&format!("{at}.phase"), message);
        }
        Some(RuleCase {
            when: self.compile_tests(at, &spec.when),
            terminal: spec.terminal,
            reason: self.compile_texts(&format!("{at}.reason"), &spec.reason),
            message: self.compile_texts(&format!("{at}.message"), &spec.message),
            phase: phase?,
        })
    }

    fn compile_numbers(&mut self, field: &str, specs: &[NumberSpec]) -> Vec<RuleNumber> {
        let mut numbers = Vec::new();
        for (index, spec) in specs.iter().enumerate() {
            let at = format!("{field}[{index}]");
            numbers.push(RuleNumber {
                when: self.compile_tests(&at, &spec.when),
                sum: self.compile_paths(&format!("{at}.sum"), &spec.sum),
                max: self.compile_paths(&format!("{at}.max"), &spec.max),
                count: self.compile_paths(&format!("{at}.count"), &spec.count),
                less: self.compile_paths(&format!("{at}.less"), &spec.less),
                plus: spec.plus,
                most: self.compile_limits(&format!("{at}.most"), &spec.most),
            });
        }
        numbers
    }

    fn compile_limits(&mut self, field: &str, specs: &[LimitSpec]) -> Vec<RuleLimit> {
        let mut limits = Vec::new();
        for (index, spec) in specs.iter().enumerate() {
            let at = format!("{field}[{index}]");
            limits.push(RuleLimit {
                when: self.compile_tests(&at, &spec.when),
                sum: self.compile_paths(&format!("{at}.sum"), &spec.sum),
                plus: spec.plus,
            });
        }
        limits
    }

    fn compile_texts(&mut self, field: &str, specs: &[String]) -> Vec<RuleText> {
        let mut texts = Vec::new();
        for (index, spec) in specs.iter().enumerate() {
            match spec.strip_prefix('@') {
                Some(path) => {
                    texts.extend(self.compile_path(&format!("{field}[{index}]"), path).map(RuleText::At));
                }
                None => texts.push(RuleText::Fixed(spec.clone())),
            }
        }
        texts
    }

    fn compile_tests(&mut self, at: &str, specs: &[TestSpec]) -> Vec<RuleTest> {
        let tests = specs.iter().enumerate();
        tests.filter_map(|(index, spec)| self.compile_test(&format!("{at}.when[{index}]"), spec)).collect()
    }

    fn compile_test(&mut self, field: &str, spec: &TestSpec) -> Option<RuleTest> {
        let at = self.one_or_many(&format!("{field}.at"), &spec.at);
        let mut wanted = !spec.not;
        let mut checks = Vec::new();
        if let Some(exists) = spec.exists {
            wanted = exists != spec.not;
            checks.push(RuleCheck::Exists);
        }
        if let Some(value) = &spec.is {
            match text_of(value) {
                Some(scalar) => checks.push(RuleCheck::In(vec![scalar.into_owned()])),
                None => self.push_fault(&format!("{field}.is"), "is no text, number, true or false"),
            }
        }
        checks.extend(spec.one_of.clone().map(RuleCheck::In));
        checks.extend(spec.like.clone().map(RuleCheck::Like));
        checks.extend(spec.above.map(RuleCheck::Above));
        checks.extend(spec.below.map(RuleCheck::Below));
        if let Some(path) = &spec.behind {
            checks.push(RuleCheck::Behind(self.compile_path(&format!("{field}.behind"), path)?));
        }
        match (checks.pop(), checks.is_empty()) {
            (Some(check), true) => Some(RuleTest { at, wanted, check }),
            (None, _) if spec.is.is_some() => None,
            _ => {
                let message = "needs exactly one of exists, is, in, like, above, below and behind";
                self.push_fault(field, message);
                None
            }
        }
    }

    fn one_or_many(&mut self, field: &str, texts: &OneOrMany) -> Vec<RulePath> {
        match texts.0.as_slice() {
            [] => {
                self.push_fault(field, "names no path");
                Vec::new()
            }
            [path] => self.compile_path(field, path).into_iter().collect(),
            many => self.compile_paths(field, many),
        }
    }

    fn compile_paths(&mut self, field: &str, texts: &[String]) -> Vec<RulePath> {
        let texts = texts.iter().enumerate();
        texts.filter_map(|(index, text)| self.compile_path(&format!("{field}[{index}]"), text)).collect()
    }

    fn compile_path(&mut self, field: &str, text: &str) -> Option<RulePath> {
        RulePath::parse(text, &mut self.slots).map_err(|error| self.push_fault(field, error.to_string())).ok()
    }
}
