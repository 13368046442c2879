//! The outcome-grade status of any object, by rules that are data: one small file a kind in
//! `status/rules`, and a generic ladder for every other kind.
//!
//! A status is a pure function of the object: no clock, no history, no other object. So where
//! history matters (a Job that is suspended: has it run?) the rules use what the object tells
//! of its own past.

mod path;
mod rule;
#[cfg(test)]
mod tests;

pub use rule::RuleError;

use crate::state::Status;
use rule::Rule;

/// Every phase that a status may have.
pub const PHASES: [&str; 13] = [
    "Queued",
    "Admitted",
    "Pending",
    "Starting",
    "Running",
    "Restarting",
    "Suspended",
    "Preempted",
    "Succeeded",
    "Failed",
    "Cancelled",
    "Deleted",
    "Unknown",
];

const BUILTIN: [&str; 2] = [include_str!("status/rules/job.json"), include_str!("status/rules/pod.json")];
const GENERIC: &str = include_str!("status/rules/generic.json");

/// The rules of every kind. Made once, shared by all.
#[derive(Clone, Debug)]
pub struct Rules {
    kinds: Vec<Rule>,
    generic: Rule,
}

impl Rules {
    pub fn builtin() -> Self {
        let parse = |text| Rule::parse(text).expect("the built-in rules are part of the program and tested");
        Self { kinds: BUILTIN.into_iter().map(parse).collect(), generic: parse(GENERIC) }
    }

    /// Adds one kind's rule, or replaces the one that is there.
    pub fn add(&mut self, json: &str) -> Result<(), RuleError> {
        let rule = Rule::parse(json)?;
        self.kinds.retain(|known| (&known.group, &known.kind) != (&rule.group, &rule.kind));
        self.kinds.push(rule);
        Ok(())
    }

    /// The status of an object. Bytes that are no object are `Unknown`.
    pub fn status(&self, group: &str, kind: &str, object: &[u8]) -> Status {
        let rule = self.kinds.iter().find(|rule| rule.kind == kind && rule.group == group);
        rule.unwrap_or(&self.generic).status(object).unwrap_or_else(|| Status {
            phase: "Unknown".into(),
            reason: "Unreadable".into(),
            ..Status::default()
        })
    }

    /// The status of an object that is gone. The phase is `Deleted`, so that a list of what is
    /// there never shows it as running; the reason is the phase in which it went, so that a
    /// Job cleaned up after `Succeeded` is told from one that was cut short while `Running`.
    /// Attempt, total and exit code stay; nothing is ready any more. A message stays only where
    /// it is about an outcome.
    pub fn deleted(last: &Status) -> Status {
        if last.phase == "Deleted" {
            return last.clone();
        }
        Status {
            phase: "Deleted".into(),
            reason: last.phase.clone(),
            message: if last.terminal { last.message.clone() } else { String::new() },
            ready: 0,
            terminal: true,
            ..last.clone()
        }
    }
}

impl Default for Rules {
    fn default() -> Self {
        Self::builtin()
    }
}
