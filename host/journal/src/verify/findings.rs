//! The findings of the verification so far.

use kubewitness_core::Seq;
use kubewitness_core::ports::JournalError;

use crate::report::VerifyReport;

#[derive(Default)]
pub(super) struct ProblemList {
    pub report: VerifyReport,
}

impl ProblemList {
    pub fn add(&mut self, code: &str, seq: Option<Seq>, message: impl Into<String>) {
        self.report.add(code, seq, message);
    }
}

/// Damage is reported as a finding and does not end the check.
pub(super) fn text_of(error: JournalError) -> String {
    match error {
        JournalError::Fatal(text)
        | JournalError::Unavailable(text)
        | JournalError::Invalid(text)
        | JournalError::Overtaken(text) => text,
    }
}
