//! Tests of a job's life against the rules of an API server.

use std::collections::{BTreeMap, BTreeSet};

use super::*;

fn life(seed: u64, index: u64) -> JobLife {
    JobLife::new(seed, index, WorkloadPlan::draw(seed, index, &["team-vision".to_owned()]))
}

/// Every step until the job has finished, and then until it is gone.
fn whole(life: &mut JobLife) -> Vec<LifeStep> {
    let mut steps: Vec<_> = std::iter::from_fn(|| life.next(1_000)).take(10_000).collect();
    life.expire();
    steps.extend(std::iter::from_fn(|| life.next(2_000)).take(10_000));
    steps
}

/// The objects that an API server would hold, with the rules for writes.
#[derive(Default)]
struct ObjectModel {
    job: bool,
    pods: BTreeMap<PodIndex, (bool, bool)>,
    terminal: bool,
}

impl ObjectModel {
    fn take(&mut self, action: &LifeAction, workers: usize) {
        match action {
            LifeAction::CreateJob => assert!(!std::mem::replace(&mut self.job, true), "created twice"),
            LifeAction::DeleteJob => {
                assert!(std::mem::replace(&mut self.job, false), "deleted, but not there");
            }
            LifeAction::Suspend(_) => assert!(self.job && !self.terminal, "suspended, but not there or over"),
            LifeAction::WriteJob(state) => self.write_job(state, workers),
            LifeAction::CreatePod(pod) => {
                assert!(self.job && !self.terminal);
                assert!(self.pods.insert(*pod, (false, false)).is_none(), "pod {pod} created twice");
            }
            LifeAction::WritePod(pod, _) => {
                assert!(self.pods.contains_key(pod), "pod {pod} written, but not there");
            }
            LifeAction::Rest => {}
            LifeAction::ReleasePod(pod) => {
                self.change(*pod, |pod| assert!(!std::mem::replace(&mut pod.0, true)));
            }
            LifeAction::DeletePod(pod) => {
                self.change(*pod, |pod| assert!(!std::mem::replace(&mut pod.1, true)));
            }
        }
    }

    fn change(&mut self, index: PodIndex, with: impl FnOnce(&mut (bool, bool))) {
        let pod = self.pods.get_mut(&index).unwrap_or_else(|| panic!("pod {index} is not there"));
        with(pod);
        if *pod == (true, true) {
            self.pods.remove(&index);
        }
    }

    fn write_job(&mut self, state: &JobState, workers: usize) {
        assert!(self.job && !self.terminal, "a finished job's status is final");
        let there = |kind: &str| state.conditions.iter().any(|c| c.kind == kind && c.status);
        assert!(state.active <= workers && state.ready <= state.active, "{state:?}");
        assert!(
            !there("Complete") || (there("SuccessCriteriaMet") && state.completion.is_some()),
            "{state:?}"
        );
        assert!(!there("Failed") || (there("FailureTarget") && state.completion.is_none()), "{state:?}");
        assert!(!there("Suspended") || state.active == 0, "{state:?}");
        assert!(state.active == 0 || state.start.is_some(), "{state:?}");
        self.terminal = there("Complete") || there("Failed");
        assert!(!self.terminal || (state.active, state.terminating) == (0, 0), "{state:?}");
    }
}

#[test]
fn every_life_keeps_the_rules_of_the_job_controller_and_leaves_nothing_behind() {
    for index in 0..1_000 {
        let mut life = life(11, index);
        let workers = life.plan().workers;
        let mut model = ObjectModel::default();
        for step in whole(&mut life) {
            model.take(&step.action, workers);
        }
        assert!(!model.job && model.pods.is_empty(), "life {index} left something");
    }
}

#[test]
fn a_life_depends_on_its_seed_alone() {
    assert_eq!(whole(&mut life(3, 5)), whole(&mut life(3, 5)));
    assert_ne!(whole(&mut life(3, 5)), whole(&mut life(4, 5)));
}

#[test]
fn every_phase_and_every_way_to_end_is_reached() {
    let mut phases = BTreeSet::new();
    let mut reasons = BTreeSet::new();
    for index in 0..400 {
        for step in whole(&mut life(1, index)) {
            phases.insert(format!("{:?}", step.phase));
            match step.action {
                LifeAction::WriteJob(state) => {
                    reasons.extend(state.conditions.iter().map(|c| c.reason.to_owned()));
                }
                LifeAction::WritePod(_, PodState::Ended { exit_code, reason }) => {
                    reasons.insert(format!("{reason} {exit_code}"));
                }
                LifeAction::WritePod(_, state) => {
                    reasons.insert(format!("{state:?}"));
                }
                _ => {}
            }
        }
    }
    for phase in ["Queued", "Pending", "Running", "Restarting", "Preempted", "Succeeded", "Failed", "Deleted"]
    {
        assert!(phases.contains(phase), "{phase} is missing in {phases:?}");
    }
    for reason in [
        "CompletionsReached",
        "BackoffLimitExceeded",
        "DeadlineExceeded",
        "JobSuspended",
        "JobResumed",
        "Completed 0",
        "Error 1",
        "OOMKilled 137",
        "Evicted",
        "Waiting(\"ImagePullBackOff\")",
        "Disrupted(\"PreemptionByScheduler\")",
    ] {
        assert!(reasons.contains(reason), "{reason} is missing in {reasons:?}");
    }
}

#[test]
fn a_job_that_somebody_else_deleted_is_cleaned_up_from_any_moment() {
    for cut in 1..60 {
        let mut life = life(5, 17);
        let workers = life.plan().workers;
        let mut model = ObjectModel::default();
        for step in std::iter::from_fn(|| life.next(1)).take(cut) {
            model.take(&step.action, workers);
        }
        model.job = false;
        life.vanished();
        for step in std::iter::from_fn(|| life.next(1)).take(1_000) {
            model.take(&step.action, workers);
        }
        assert!(model.pods.is_empty(), "cut after {cut}");
    }
}

#[test]
fn nothing_is_written_to_a_pod_that_somebody_else_deleted() {
    let mut life = life(5, 17);
    while !matches!(life.next(1), Some(LifeStep { action: LifeAction::CreatePod(0), .. })) {}
    life.pod_vanished(0);
    let touches = |step: &LifeStep| {
        matches!(
            step.action,
            LifeAction::WritePod(0, _) | LifeAction::ReleasePod(0) | LifeAction::DeletePod(0)
        )
    };
    assert!(!whole(&mut life).iter().any(touches));
}
