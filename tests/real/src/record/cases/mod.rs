//! The cases: what each does to a Job, and the label that follows from it.

mod containers;
mod disruptions;
mod exits;
mod job_sets;
mod kueue;
mod people;
mod policies;
mod waiting;

use std::future::Future;
use std::pin::Pin;

use anyhow::Result;
use kubewitness_causes::Expected;

use super::lab::RecordLab;
use super::operators::OperatorKind;

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

/// Cases that need the same controllers beside Kubernetes' own.
pub(super) struct CaseGroup {
    pub(super) needs: &'static [OperatorKind],
    /// They need a Kueue that takes Jobs back whose pods are not ready in time.
    pub(super) has_pods_deadline: bool,
    pub(super) cases: Vec<Case>,
}

/// Those that Kubernetes' own controllers suffice for.
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

pub(super) fn groups() -> Vec<CaseGroup> {
    let group = |needs, cases| CaseGroup { needs, has_pods_deadline: false, cases };
    vec![
        group(&[], all()),
        group(&[OperatorKind::JobSets], job_sets::cases()),
        group(&[OperatorKind::Kueue], kueue::cases()),
        CaseGroup { has_pods_deadline: true, ..group(&[OperatorKind::Kueue], kueue::cases_with_deadline()) },
    ]
}
