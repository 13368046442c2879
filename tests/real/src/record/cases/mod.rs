//! The cases: what each does to a Job, and the label that follows from it.

mod containers;
mod disruptions;
mod exits;
mod job_sets;
mod kueue;
mod people;
mod policies;
mod ray;
mod train_jobs;
mod waiting;

use super::case::{Case, case};
use super::operators::OperatorKind;

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
        group(&[OperatorKind::JobSets, OperatorKind::Trainer], train_jobs::cases()),
        group(&[OperatorKind::Ray], ray::cases()),
        CaseGroup { has_pods_deadline: true, ..group(&[OperatorKind::Kueue], kueue::cases_with_deadline()) },
    ]
}
