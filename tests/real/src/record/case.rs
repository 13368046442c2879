//! A case: its name, what happens in it in a sentence, and the run that does it and returns the label.

use std::future::Future;
use std::pin::Pin;

use anyhow::Result;
use kubewitness_causes::Expected;

use super::lab::RecordLab;

type CaseRun<'a> = Pin<Box<dyn Future<Output = Result<Expected>> + 'a>>;

pub(super) struct Case {
    pub(super) name: &'static str,
    /// The events, in a sentence.
    pub(super) scenario: &'static str,
    pub(super) run: for<'a> fn(&'a RecordLab<'a>) -> CaseRun<'a>,
}

pub(super) const fn case(
    name: &'static str,
    scenario: &'static str,
    run: for<'a> fn(&'a RecordLab<'a>) -> CaseRun<'a>,
) -> Case {
    Case { name, scenario, run }
}
