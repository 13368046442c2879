//! Tells an object's story: how long it waited and ran, how it ended, and the same in a sentence.
//!
//! Pure: it works on the states and on the time that it is given. Times are those at which states were observed.

pub mod events;
pub mod mutes;
pub mod reports;

use std::collections::HashSet;
use std::sync::Arc;

use super::phase;
use crate::state::{Change, Seq, State, Status};

/// What the states of one object tell, oldest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// Before it first ran.
    pub queued_ms: u64,
    pub running_ms: u64,
    pub restarts: u32,
}

/// The group of Kueue's kinds.
const KUEUE: &str = "kueue.x-k8s.io";
/// The label by which an object names its queue.
pub const QUEUE_LABEL: &str = "kueue.x-k8s.io/queue-name";

/// The object has come to its end: nothing of it goes on.
fn is_over(state: &State) -> bool {
    state.status.terminal || matches!(state.change, Change::Gone | Change::Left)
}

/// From each state to the next, and from the last one to now.
fn spans(states: &[Arc<State>], now_ms: u64) -> impl Iterator<Item = (&State, u64)> {
    let ends = states.iter().skip(1).map(|next| next.observed_ms).chain([now_ms]);
    let in_turn = states.iter().zip(ends).filter(|(state, _)| !is_over(state));
    // A clock that was set back makes no time.
    in_turn.map(|(state, end)| (&**state, end.saturating_sub(state.observed_ms)))
}

impl Times {
    pub fn of(states: &[Arc<State>], now_ms: u64) -> Self {
        let mut times = Self::default();
        let mut has_run = false;
        for (state, took) in spans(states, now_ms) {
            match state.status.phase.as_str() {
                phase::RUNNING => {
                    has_run = true;
                    times.running_ms += took;
                }
                _ if !has_run => times.queued_ms += took,
                _ => {}
            }
        }
        let attempts = states.iter().map(|state| state.status.attempt).max();
        times.restarts = attempts.unwrap_or_default().saturating_sub(1);
        times
    }
}

/// `4 s`, `4 min`, `2 h 10 min`, `3 d 4 h`.
pub fn span(ms: u64) -> String {
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

/// What a story tells, beside the states, of what the newest document says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// How often it may be tried.
    pub attempts: Option<u32>,
    /// Kueue lets it start.
    pub has_queue: bool,
}

/// The story in one sentence. `related` are the states of what the object owns.
pub fn words(states: &[Arc<State>], related: &[Arc<State>], known: Known, now_ms: u64) -> String {
    let known = Known { has_queue: known.has_queue || has_workload(related), ..known };
    let Some(last) = states.iter().rfind(|state| state.change != Change::Gap) else { return String::new() };
    let (told, times) = (told(last), Times::of(states, now_ms));
    let mut parts = Vec::new();
    if times.queued_ms >= 1_000 {
        parts.push(format!("waited {}{}", span(times.queued_ms), waited_for(states, known)));
    }
    let is_suspended = |status: &Status| match status.phase.as_str() {
        phase::SUSPENDED => true,
        phase::QUEUED => is_held(&status.reason, known),
        _ => false,
    };
    if !is_suspended(&told) && not_yet_run(states).any(is_suspended) {
        parts.push("was suspended".to_owned());
    }
    if times.running_ms > 0 {
        let runs = states.last().is_some_and(|last| last.status.phase == phase::RUNNING && !is_over(last));
        parts.push(format!("{} {}", if runs { "has run for" } else { "ran" }, span(times.running_ms)));
    }
    match is_suspended(&told) {
        true => parts.push("is suspended".to_owned()),
        false => parts.extend(end(&told, states, related)),
    }
    match (told.attempt, known.attempts) {
        (0, _) | (1, None | Some(1)) => {}
        // A first attempt is news only where it failed and others may follow.
        (1, Some(_)) if told.phase != phase::FAILED => {}
        (attempt, Some(most)) if most >= attempt => parts.push(format!("attempt {attempt} of {most}")),
        (attempt, _) => parts.push(format!("attempt {attempt}")),
    }
    match last.change {
        Change::Gone => parts.push("deleted since".to_owned()),
        Change::Left => parts.push("no longer watched".to_owned()),
        Change::Present | Change::Gap => {}
    }
    let gaps = states.iter().filter(|state| state.change == Change::Gap).count();
    if gaps > 0 {
        parts.push(format!("{gaps} {} in what is known", if gaps == 1 { "gap" } else { "gaps" }));
    }
    capital(&parts.join(", "))
}

/// The last status that tells of its work: a deletion tells that it is gone, and the one before how it went.
pub fn told(last: &State) -> Status {
    match (&last.previous, last.status.phase.as_str()) {
        (Some(previous), phase::DELETED) => (**previous).clone(),
        _ => (*last.status).clone(),
    }
}

/// How it was before it first ran.
fn not_yet_run(states: &[Arc<State>]) -> impl Iterator<Item = &Status> {
    states.iter().map(|state| &*state.status).take_while(|status| status.phase != phase::RUNNING)
}

/// Whether somebody suspended what is queued. The phase is the same where Kueue did it, which lets it start.
fn is_held(reason: &str, known: Known) -> bool {
    reason.ends_with("Suspended") && !known.has_queue
}

/// Kueue makes one of these for whatever it queues.
fn has_workload(related: &[Arc<State>]) -> bool {
    related.iter().any(|state| state.object.kind == "Workload" && state.object.group == KUEUE)
}

fn waited_for(states: &[Arc<State>], known: Known) -> &'static str {
    let is_queued = |it: &Status| it.phase == phase::QUEUED && !is_held(&it.reason, known);
    match not_yet_run(states).any(is_queued) {
        true => " for quota",
        false if not_yet_run(states).any(|it| it.reason == "Unschedulable") => " for a node",
        false => "",
    }
}

/// How it ended, or how it stands.
fn end(status: &Status, states: &[Arc<State>], related: &[Arc<State>]) -> Vec<String> {
    let mut parts = Vec::new();
    match status.phase.as_str() {
        phase::SUCCEEDED => parts.push("succeeded".to_owned()),
        phase::FAILED => {
            // What it owns knows more: a Job tells that it gave up, and its pod why.
            let cause = cause(states, related);
            let exit = status.exit_code.or(cause.as_ref().and_then(|cause| cause.exit_code));
            let known = |reason: &str| !reason.is_empty() && !GAVE_UP.contains(&reason);
            let own = status.reason.as_str();
            parts.push(match &cause {
                Some(cause) if !known(own) && cause.phase == phase::PREEMPTED => "preempted".to_owned(),
                Some(cause) if !known(own) && known(&cause.reason) => why(&cause.reason),
                _ => why(own),
            });
            parts.extend(exit.map(|code| format!("exit {code}")));
        }
        phase::CANCELLED => parts.push("cancelled".to_owned()),
        phase::PREEMPTED => parts.push("made room for another one".to_owned()),
        phase::RESTARTING => parts.push("is being started again".to_owned()),
        phase::QUEUED => parts.push("is queued".to_owned()),
        phase::ADMITTED | phase::PENDING | phase::STARTING => parts.push("has not started yet".to_owned()),
        _ => {}
    }
    parts
}

/// The fall with which an owner gave up: the last one before that. Each pod counts where it fell; its deletion says no
/// more, and may come in any order.
fn cause(states: &[Arc<State>], related: &[Arc<State>]) -> Option<Status> {
    let fell = |status: &Status| matches!(status.phase.as_str(), phase::FAILED | phase::PREEMPTED);
    let mut fallen = HashSet::new();
    let mut falls: Vec<(Seq, Status)> = Vec::new();
    for change in [Change::Present, Change::Gone] {
        let of_change = related.iter().filter(|state| state.change == change);
        let told = of_change.map(|state| (state, told(state))).filter(|(_, status)| fell(status));
        let first = told.filter(|(state, _)| fallen.insert(state.object.uid.as_str()));
        falls.extend(first.map(|(state, status)| (state.seq, status)));
    }
    // It may have failed before, and run again.
    let has_failed = |state: &&Arc<State>| state.status.phase == phase::FAILED;
    let last_time = states.iter().rev().skip_while(|state| !has_failed(state)).take_while(has_failed);
    let gave_up = last_time.last().map(|state| state.seq);
    let before = falls.iter().filter(|(seq, _)| gave_up.is_none_or(|gave_up| *seq < gave_up));
    // A pod's watch may be behind its owner's.
    let last = before.max_by_key(|(seq, _)| *seq).or_else(|| falls.iter().min_by_key(|(seq, _)| *seq));
    last.map(|(_, status)| status.clone())
}

/// Reasons of an owner that say no more than that it gave up.
const GAVE_UP: [&str; 4] = ["BackoffLimitExceeded", "PodFailurePolicy", "Error", "Failed"];

fn why(reason: &str) -> String {
    let told = match reason {
        "OOMKilled" => "killed: out of memory",
        "DeadlineExceeded" => "stopped: over its deadline",
        "Evicted" => "evicted from its node",
        "BackoffLimitExceeded" => "failed: no attempts left",
        "" => "failed",
        other => return format!("failed: {other}"),
    };
    told.to_owned()
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::{ObjectRef, StateId};
    use crate::version::Version;

    const MINUTE: u64 = 60_000;
    const UNKNOWN: Known = Known { attempts: None, has_queue: false };

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

    fn with(mut state: State, change: impl Fn(&mut Status)) -> Arc<State> {
        change(Arc::make_mut(&mut state.status));
        Arc::new(state)
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
        let times = Times::of(&states, 99 * MINUTE);
        assert_eq!((times.queued_ms, times.running_ms), (4 * MINUTE, 14 * MINUTE));
        let open = Times::of(&states[..3], 9 * MINUTE);
        assert_eq!((open.queued_ms, open.running_ms), (4 * MINUTE, 5 * MINUTE), "up to now");
        let back = Times::of(&story(&[(5, phase::PENDING), (3, phase::RUNNING)]), 4 * MINUTE);
        assert_eq!((back.queued_ms, back.running_ms), (0, MINUTE), "a clock that was set back makes no time");
        assert_eq!(Times::of(&[], 5), Times::default());
    }

    #[test]
    fn a_failed_job_is_told_with_the_cause_that_its_pod_knows() {
        let mut states = story(&[(0, phase::QUEUED), (4, phase::RUNNING)]);
        states.push(with(state(134, phase::FAILED, Change::Present), |status| {
            status.reason = "BackoffLimitExceeded".into();
            status.attempt = 2;
        }));
        let pod = with(state(133, phase::FAILED, Change::Present), |status| {
            status.reason = "OOMKilled".into();
            status.exit_code = Some(137);
        });
        let told = words(&states, &[pod], Known { attempts: Some(3), has_queue: true }, 999 * MINUTE);
        assert_eq!(
            told,
            "Waited 4 min for quota, ran 2 h 10 min, killed: out of memory, exit 137, attempt 2 of 3"
        );
        let told = words(&states, &[], Known { has_queue: true, ..UNKNOWN }, 999 * MINUTE);
        assert_eq!(told, "Waited 4 min for quota, ran 2 h 10 min, failed: no attempts left, attempt 2");
    }

    #[test]
    fn the_last_pod_that_fell_before_its_owner_gave_up_is_the_cause_also_once_all_are_deleted() {
        let of_pod = |uid: &str, minute, phase: &str, change, reason: &str| {
            let mut pod = state(minute, phase, change);
            pod.object = Arc::new(ObjectRef { uid: uid.into(), ..ObjectRef::default() });
            with(pod, |status| status.reason = reason.into())
        };
        let deleted = |uid: &str, minute, of: &Arc<State>| {
            let mut gone = state(minute, phase::DELETED, Change::Gone);
            (gone.object, gone.previous) =
                (Arc::new(ObjectRef { uid: uid.into(), ..ObjectRef::default() }), Some(of.status.clone()));
            Arc::new(gone)
        };
        let mut states = story(&[(0, phase::RUNNING), (9, phase::FAILED)]);
        let oom = of_pod("a", 3, phase::FAILED, Change::Present, "OOMKilled");
        let evicted = of_pod("b", 8, phase::FAILED, Change::Present, "Evicted");
        let cleaned = of_pod("c", 10, phase::FAILED, Change::Present, "DeadlineExceeded");
        let mut pods = vec![oom.clone(), evicted.clone(), cleaned];
        let told = "Ran 9 min, evicted from its node";
        assert_eq!(words(&states, &pods, UNKNOWN, 99 * MINUTE), told);
        pods.extend([deleted("b", 11, &evicted), deleted("a", 12, &oom)]);
        assert_eq!(words(&states, &pods, UNKNOWN, 99 * MINUTE), told);
        assert_eq!(words(&states, &pods[3..], UNKNOWN, 99 * MINUTE), told, "the first one that is known");
        pods.push(of_pod("d", 8, phase::PREEMPTED, Change::Present, "PreemptionByScheduler"));
        states[1] = with((*states[1]).clone(), |status| status.reason = "BackoffLimitExceeded".into());
        assert_eq!(words(&states, &pods, UNKNOWN, 99 * MINUTE), "Ran 9 min, preempted");
    }

    #[test]
    fn a_deleted_object_is_told_by_what_it_was_before_and_gaps_are_told() {
        let mut states = story(&[(0, phase::RUNNING), (2, phase::SUCCEEDED)]);
        states.insert(1, Arc::new(state(1, phase::RUNNING, Change::Gap)));
        let mut gone = state(9, phase::DELETED, Change::Gone);
        gone.previous = Some(states[2].status.clone());
        states.push(Arc::new(gone));
        assert_eq!(
            words(&states, &[], UNKNOWN, 99 * MINUTE),
            "Ran 2 min, succeeded, deleted since, 1 gap in what is known"
        );
    }

    #[test]
    fn what_goes_on_is_told_up_to_now() {
        let told = |steps: &[(u64, &str)], now| words(&story(steps), &[], UNKNOWN, now * MINUTE);
        assert_eq!(told(&[(0, phase::PENDING), (1, phase::RUNNING)], 3), "Waited 1 min, has run for 2 min");
        assert_eq!(told(&[(0, phase::SUSPENDED)], 3), "Waited 3 min, is suspended");
        assert_eq!(told(&[(0, phase::PENDING)], 0), "Has not started yet");
        assert_eq!(words(&[], &[], UNKNOWN, 0), "");
    }

    #[test]
    fn a_job_that_a_person_suspended_waits_for_no_quota() {
        let mut states = story(&[(0, phase::QUEUED), (4, phase::STARTING), (5, phase::RUNNING)]);
        states[0] = with((*states[0]).clone(), |status| status.reason = "JobSuspended".into());
        let told = |states: &[_], related: &[_], known| words(states, related, known, 6 * MINUTE);
        assert_eq!(told(&states, &[], UNKNOWN), "Waited 5 min, was suspended, has run for 1 min");
        assert_eq!(told(&states[..1], &[], UNKNOWN), "Waited 6 min, is suspended");
        // The label of a queue, or Kueue's own object, says that it waits for its turn.
        let queued = "Waited 5 min for quota, has run for 1 min";
        assert_eq!(told(&states, &[], Known { has_queue: true, ..UNKNOWN }), queued);
        let mut workload = state(0, phase::ADMITTED, Change::Present);
        workload.object =
            Arc::new(ObjectRef { group: KUEUE.into(), kind: "Workload".into(), ..ObjectRef::default() });
        assert_eq!(told(&states, &[Arc::new(workload)], UNKNOWN), queued);
    }

    #[test]
    fn spans_have_two_units_at_most() {
        let told: Vec<_> = [5, 4_000, 240_000, 7_200_000, 7_800_000, 273_600_000].map(span).into();
        assert_eq!(told, ["less than a second", "4 s", "4 min", "2 h", "2 h 10 min", "3 d 4 h"]);
    }
}
