//! The cases: what each does to a Job, and the label that follows from it.

mod containers;
mod disruptions;
mod exits;
mod job_sets;
mod people;
mod policies;
mod waiting;

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

const fn case(
    name: &'static str,
    scenario: &'static str,
    run: for<'a> fn(&'a RecordLab<'a>) -> CaseRun<'a>,
) -> Case {
    Case { name, scenario, run }
}

pub(super) fn all() -> Vec<Case> {
    let groups = [
        exits::cases(),
        policies::cases(),
        disruptions::cases(),
        waiting::cases(),
        containers::cases(),
        people::cases(),
    ];
    groups.into_iter().flatten().collect()
}

/// They need the controller of JobSets.
pub(super) fn of_job_sets() -> Vec<Case> {
    job_sets::cases()
}
