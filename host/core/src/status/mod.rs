//! Derives the status of any object from rules that are data. A rule in Rust for each kind would force an
//! operator with a kind of their own to rebuild the controller. So `status/rules` has one small file for each
//! kind and a generic ladder for all others, and an operator's rules replace these.
//!
//! A status is a pure function of the object: no clock, no history, no other object. So the same state always
//! has the same status, after a replay too. Some questions need history, such as whether a suspended Job has
//! run. For these, the rules use what the object records of its own past.

mod compile;
mod explain;
mod node;
mod path;
mod rule;
mod spec;
pub mod story;
#[cfg(test)]
mod tests;

use std::sync::{Arc, LazyLock};

pub use explain::{RuleExplanation, TestedCase};
pub use spec::{CaseSpec, LimitSpec, NumberSpec, OneOrMany, RuleSpec, TestSpec};

use crate::model::fault::ManifestFault;
pub use crate::model::phases::{PHASES, phase};
use crate::project::ObjectOutline;
use crate::state::Status;
use rule::StatusRule;
use serde::Serialize;

/// The group and kind of the rule for every kind without a rule of its own.
const ANY: &str = "*";

macro_rules! files {
    ($($name:literal),* $(,)?) => {
        /// The files of `status/rules`, by name. The test objects of each rule are in `status/cases`.
        const FILES: &[(&str, &str)] = &[$(($name, include_str!(concat!("rules/", $name, ".json")))),*];
        #[cfg(test)]
        const CASES: &[(&str, &str)] = &[$(($name, include_str!(concat!("cases/", $name, ".json")))),*];
    };
}
// The generic rule for all other kinds comes first.
files!(
    "generic",
    "cronjob",
    "daemonset",
    "deployment",
    "event",
    "job",
    "jobset",
    "kubeflow",
    "pod",
    "podgroup",
    "raycluster",
    "rayjob",
    "rayservice",
    "replicas",
    "sparkapplication",
    "trainjob",
    "volcano",
    "workflow",
    "workload",
);

/// The origin of a rule: built in, or from the operator's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RuleOrigin {
    /// The name of its file, without the ending.
    Builtin(&'static str),
    /// Its index in the operator's list.
    Operator(usize),
}

/// The rules of every kind. They are compiled once and shared.
#[derive(Clone, Debug)]
pub struct StatusRules {
    /// Sorted by kind and group, for a binary search.
    kinds: Vec<KnownKinds>,
    generic: (RuleOrigin, Arc<StatusRule>),
}

#[derive(Clone, Debug)]
struct KnownKinds {
    kind: String,
    group: String,
    rule: (RuleOrigin, Arc<StatusRule>),
}

static BUILTIN: LazyLock<StatusRules> = LazyLock::new(|| {
    let parse = |(name, text): &(&'static str, &str)| {
        let spec: RuleSpec = serde_json::from_str(text).expect("a built-in rule is tested");
        (
            RuleOrigin::Builtin(name),
            Arc::new(compile::compile_rule(&spec).expect("a built-in rule is tested")),
        )
    };
    let mut parsed = FILES.iter().map(parse);
    let generic = parsed.next().expect("the first file is the generic ladder");
    let mut rules = StatusRules { kinds: Vec::new(), generic };
    parsed.for_each(|(origin, rule)| rules.put_rule(origin, &rule));
    rules
});

impl StatusRules {
    pub fn builtin() -> Self {
        BUILTIN.clone()
    }

    /// The built-in rules, with those of the operator in place of built-in ones for the same kinds. A fault
    /// names its field as `[2].cases[0].phase`.
    pub fn with_rules(specs: &[RuleSpec]) -> Result<Self, Vec<ManifestFault>> {
        let (mut rules, mut faults) = (Self::builtin(), Vec::new());
        let mut seen = std::collections::HashMap::new();
        for (index, spec) in specs.iter().enumerate() {
            for kind in &spec.kind.0 {
                if let Some(first) = seen.insert((&spec.group, kind), index) {
                    let message = format!("the rule {first} is for {kind} already: keep one of them");
                    faults.push(ManifestFault { field: format!("[{index}].kind"), message });
                }
            }
            match compile::compile_rule(spec) {
                Ok(rule) => rules.put_rule(RuleOrigin::Operator(index), &Arc::new(rule)),
                Err(found) => faults.extend(found.into_iter().map(|fault| ManifestFault {
                    field: format!("[{index}].{}", fault.field),
                    message: fault.message,
                })),
            }
        }
        if faults.is_empty() { Ok(rules) } else { Err(faults) }
    }

    /// Replaces the rule for each of the kinds that this rule names.
    fn put_rule(&mut self, origin: RuleOrigin, rule: &Arc<StatusRule>) {
        let group = &rule.spec.group;
        for kind in &rule.spec.kind.0 {
            let value = (origin, Arc::clone(rule));
            if group == ANY {
                self.generic = value;
                continue;
            }
            match self.find_position(group, kind) {
                Ok(at) => self.kinds[at].rule = value,
                Err(at) => {
                    self.kinds
                        .insert(at, KnownKinds { kind: kind.clone(), group: group.clone(), rule: value });
                }
            }
        }
    }

    fn find_position(&self, group: &str, kind: &str) -> Result<usize, usize> {
        self.kinds.binary_search_by(|known| (&*known.kind, &*known.group).cmp(&(kind, group)))
    }

    fn find(&self, group: &str, kind: &str) -> &(RuleOrigin, Arc<StatusRule>) {
        self.find_position(group, kind).map_or(&self.generic, |at| &self.kinds[at].rule)
    }

    /// The status of an object. Bytes that are not an object are `Unknown`.
    pub fn status_of(&self, group: &str, kind: &str, object: &[u8]) -> Status {
        self.status_with_outline(group, kind, object, ObjectOutline::of(object).ok().as_ref())
    }

    /// Does the work of [`Self::status_of`] with an outline that the caller has; `None` if it has none.
    pub fn status_with_outline(
        &self,
        group: &str,
        kind: &str,
        object: &[u8],
        outline: Option<&ObjectOutline>,
    ) -> Status {
        let rule = &self.find(group, kind).1;
        outline.and_then(|outline| rule.status(object, outline)).unwrap_or_else(|| Status {
            phase: "Unknown".into(),
            reason: "Unreadable".into(),
            ..Status::default()
        })
    }

    /// The rule for a kind, in its written form.
    pub fn rule_for(&self, group: &str, kind: &str) -> &RuleSpec {
        &self.find(group, kind).1.spec
    }

    /// Whether both sets have the same rule for this kind.
    pub fn agree_on_kind(&self, other: &Self, group: &str, kind: &str) -> bool {
        let (mine, others) = (self.rule_for(group, kind), other.rule_for(group, kind));
        (&mine.cases, &mine.attempt, &mine.ready, &mine.total, &mine.exit)
            == (&others.cases, &others.attempt, &others.ready, &others.total, &others.exit)
    }

    /// Every rule once, with its origin. The ladder for all other kinds comes last.
    pub fn all_rules(&self) -> Vec<(RuleOrigin, &RuleSpec)> {
        let mut rules: Vec<(RuleOrigin, &RuleSpec)> = Vec::new();
        for (origin, rule) in self.kinds.iter().map(|known| &known.rule).chain([&self.generic]) {
            if !rules.iter().any(|(known, _)| known == origin) {
                rules.push((*origin, &rule.spec));
            }
        }
        rules
    }

    /// The text of a built-in rule's file.
    pub fn builtin_text(name: &str) -> Option<&'static str> {
        FILES.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
    }

    /// The status of a deleted object. The phase is `Deleted`, so that no list of existing objects shows it
    /// as running. The reason is the phase before the deletion. It distinguishes a Job that was cleaned up
    /// after `Succeeded` from one that was deleted while `Running`. Attempt, total and exit code stay; the
    /// ready count becomes 0. A message stays only if it is about an outcome.
    pub fn deleted_status(last: &Status) -> Status {
        if last.phase == phase::DELETED {
            return last.clone();
        }
        Status {
            phase: phase::DELETED.into(),
            reason: last.phase.clone(),
            message: if last.terminal { last.message.clone() } else { String::new() },
            ready: 0,
            terminal: true,
            ..last.clone()
        }
    }
}

impl Default for StatusRules {
    fn default() -> Self {
        Self::builtin()
    }
}
