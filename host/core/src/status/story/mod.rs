//! Explains an object's story: how long it waited and ran, why it failed or waits, and what others report
//! about it.
//!
//! A single status shows only the last symptom: a Job that gave up, pods that were killed because of it. So
//! an explanation uses the whole history of the object and the objects that it owns. Deriving it in each page
//! or plugin was rejected, because they would disagree.
//!
//! Pure: it works on states and on a time that the caller passes. Times are those at which states were
//! observed.

pub mod events;
pub mod mutes;
pub mod outcomes;
pub mod reports;
pub mod why;

use std::sync::Arc;

use super::phase;
use crate::kinds::says_when_it_runs;
use crate::state::{Change, State, Status};

/// The times of one object's phases, from its states, oldest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PhaseTimes {
    /// The time before the object first ran; 0 if its states don't say when it runs.
    pub queued_ms: u64,
    pub running_ms: u64,
    pub restarts: u32,
}

/// The label by which an object names its queue.
pub const QUEUE_LABEL: &str = "kueue.x-k8s.io/queue-name";

/// The reason of a Job that is about to fail: its last pods are still ending.
const FAILURE_TARGET: &str = "FailureTarget";

/// A Job that fails before it ran counts as running until its last pods have ended, and that is no run.
fn begins_run(status: &Status) -> bool {
    status.phase == phase::RUNNING && status.reason != FAILURE_TARGET
}

/// Whether the object has ended: nothing of it continues.
fn has_ended(state: &State) -> bool {
    state.status.terminal || matches!(state.change, Change::Gone | Change::Left)
}

/// The time from each state to the next, and from the last one to now.
fn state_spans(states: &[Arc<State>], now_ms: u64) -> impl Iterator<Item = (&State, u64)> {
    let ends = states.iter().skip(1).map(|next| next.observed_ms).chain([now_ms]);
    let in_turn = states.iter().zip(ends).filter(|(state, _)| !has_ended(state));
    // If the clock was set back, a span has no length.
    in_turn.map(|(state, end)| (&**state, end.saturating_sub(state.observed_ms)))
}

/// The attempt to which an object came. The end of a finished one decides, because a Job that runs counts each of its
/// failed pods. If the end does not say it, as after a deletion or a deadline, the states before it do.
fn last_attempt(states: &[Arc<State>]) -> u32 {
    let last = states.iter().rfind(|state| state.change != Change::Gap);
    let ended =
        last.map(|last| last_work_status(last)).filter(|status| status.terminal && status.attempt > 0);
    let greatest = || states.iter().map(|state| state.status.attempt).max();
    ended.map(|status| status.attempt).or_else(greatest).unwrap_or_default()
}

impl PhaseTimes {
    pub fn of(states: &[Arc<State>], now_ms: u64) -> Self {
        let mut times = Self::default();
        let mut has_run = false;
        for (state, took) in state_spans(states, now_ms) {
            match state.status.phase.as_str() {
                phase::RUNNING if has_run || begins_run(&state.status) => {
                    has_run = true;
                    times.running_ms += took;
                }
                _ if !has_run => times.queued_ms += took,
                _ => {}
            }
        }
        let is_silent = |state: &Arc<State>| !says_when_it_runs(&state.object.group, &state.object.kind);
        if !has_run && states.last().is_some_and(is_silent) {
            times.queued_ms = 0;
        }
        times.restarts = last_attempt(states).saturating_sub(1);
        times
    }
}

/// `4 s`, `4 min`, `2 h 10 min`, `3 d 4 h`.
pub fn duration_text(ms: u64) -> String {
    let (minutes, hours) = (ms / 60_000, ms / 3_600_000);
    match (hours, minutes) {
        (0, 0) if ms < 1_000 => "less than a second".to_owned(),
        (0, 0) => format!("{} s", ms / 1_000),
        (0, minutes) => format!("{minutes} min"),
        (1..24, _) if minutes % 60 == 0 => format!("{hours} h"),
        (1..24, _) => format!("{hours} h {} min", minutes % 60),
        _ => format!("{} d {} h", hours / 24, hours % 24),
    }
}

/// The last status that describes the object's work. A deletion shows only that the object no longer exists;
/// the status before it shows how the work went.
pub fn last_work_status(last: &State) -> Status {
    match (&last.previous, last.status.phase.as_str()) {
        (Some(previous), phase::DELETED) => (**previous).clone(),
        _ => (*last.status).clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::{ObjectRef, StateId};
    use crate::version::Version;

    const MINUTE: u64 = 60_000;

    fn state(minute: u64, phase: &str, change: Change) -> State {
        State {
            id: StateId::parse("x"),
            seq: minute + 1,
            source: "jobs".into(),
            epoch: 0,
            change,
            object: Arc::new(ObjectRef::default()),
            owner: None,
            resource_version: Version::new("1"),
            status: Arc::new(Status {
                phase: phase.into(),
                terminal: matches!(phase, phase::SUCCEEDED | phase::FAILED),
                ..Status::default()
            }),
            previous: None,
            observed_ms: minute * MINUTE,
            late: false,
            quotes_none_under: None,
        }
    }

    fn story(steps: &[(u64, &str)]) -> Vec<Arc<State>> {
        steps.iter().map(|(minute, phase)| Arc::new(state(*minute, phase, Change::Present))).collect()
    }

    #[test]
    fn times_are_those_before_the_first_run_and_of_all_runs() {
        let states = story(&[
            (0, phase::QUEUED),
            (3, phase::PENDING),
            (4, phase::RUNNING),
            (10, phase::RESTARTING),
            (12, phase::RUNNING),
            (20, phase::SUCCEEDED),
        ]);
        let times = PhaseTimes::of(&states, 99 * MINUTE);
        assert_eq!((times.queued_ms, times.running_ms), (4 * MINUTE, 14 * MINUTE));
        let open = PhaseTimes::of(&states[..3], 9 * MINUTE);
        assert_eq!((open.queued_ms, open.running_ms), (4 * MINUTE, 5 * MINUTE), "up to now");
        let back = PhaseTimes::of(&story(&[(5, phase::PENDING), (3, phase::RUNNING)]), 4 * MINUTE);
        assert_eq!((back.queued_ms, back.running_ms), (0, MINUTE), "a clock that was set back makes no time");
        assert_eq!(PhaseTimes::of(&[], 5), PhaseTimes::default());
    }

    #[test]
    fn an_object_that_never_says_that_it_runs_has_no_waiting_time() {
        let train_job = ObjectRef {
            group: "trainer.kubeflow.org".into(),
            kind: "TrainJob".into(),
            ..ObjectRef::default()
        };
        let of = |steps: &[(u64, &str)]| {
            let states = story(steps);
            let of_job = |state: &Arc<State>| {
                Arc::new(State { object: train_job.clone().into(), ..State::clone(state) })
            };
            PhaseTimes::of(&states.iter().map(of_job).collect::<Vec<_>>(), 99 * MINUTE)
        };
        assert_eq!(of(&[(0, phase::PENDING)]), PhaseTimes::default());
        let later = of(&[(0, phase::PENDING), (2, phase::RUNNING), (5, phase::SUCCEEDED)]);
        assert_eq!((later.queued_ms, later.running_ms), (2 * MINUTE, 3 * MINUTE), "a version that says so");
    }

    #[test]
    fn the_end_of_a_finished_object_says_how_often_it_was_restarted() {
        let restarts = |steps: &[(&str, u32)]| {
            let state = |(minute, (phase, attempt)): (u64, &(&str, u32))| {
                let state = state(minute, phase, Change::Present);
                let status = Status { attempt: *attempt, ..(*state.status).clone() };
                Arc::new(State { status: Arc::new(status), ..state })
            };
            PhaseTimes::of(&(0..).zip(steps).map(state).collect::<Vec<_>>(), MINUTE).restarts
        };
        assert_eq!(restarts(&[(phase::RUNNING, 2), (phase::FAILED, 1)]), 0);
        assert_eq!(restarts(&[(phase::RUNNING, 2), (phase::FAILED, 3)]), 2);
        assert_eq!(restarts(&[(phase::RUNNING, 3), (phase::FAILED, 0)]), 2, "the end does not say it");
        assert_eq!(restarts(&[(phase::RUNNING, 3), (phase::PENDING, 0)]), 2);
        assert_eq!(restarts(&[]), 0);
    }

    #[test]
    fn spans_have_two_units_at_most() {
        let texts: Vec<_> = [5, 4_000, 240_000, 7_200_000, 7_800_000, 273_600_000].map(duration_text).into();
        assert_eq!(texts, ["less than a second", "4 s", "4 min", "2 h", "2 h 10 min", "3 d 4 h"]);
    }
}
