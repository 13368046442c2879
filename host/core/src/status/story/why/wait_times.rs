//! Measures how long an object waited for each thing, before it first ran and after that.
//!
//! A time counts as a wait for one thing alone, the first one that holds the object back: its owner or its queue, and
//! otherwise its pods. A time between two runs counts if the object was held back or is started again. A pod that is
//! not ready for a moment makes no wait.

use std::collections::BTreeMap;

use super::documents::OwnerDocument;
use super::waits::{self, HELD};
use super::{CauseKind, ExplainedStates, is_pod, is_workload, pod_end, queue};
use crate::state::{Change, Seq, State};
use crate::status::phase;

/// The reason of a wait. `None` stands for starting up: images, volumes, init containers.
pub(super) type WaitReason = Option<CauseKind>;

/// How long an object waited for one thing.
pub(super) struct MeasuredWait {
    pub reason: WaitReason,
    pub took_ms: u64,
    /// The state in which it began to wait for it.
    pub seq: Seq,
}

/// How long an object waited for each thing, in the order in which it began to wait for them.
#[derive(Default)]
pub(super) struct WaitTimes {
    /// Before the object first ran.
    pub first: Vec<MeasuredWait>,
    /// Between its runs, and since the last one.
    pub again: Vec<MeasuredWait>,
    pub has_begun: bool,
    /// The last of these waits goes on.
    pub is_waiting: bool,
}

/// The waits at one moment: of the object itself, of its Workload and of its pods.
#[derive(Default)]
struct WaitingMoment<'a> {
    own: Option<&'a State>,
    workload: Option<&'a State>,
    pods: BTreeMap<&'a str, WaitReason>,
    /// It was held back or failed since it ran.
    is_interrupted: bool,
    /// The attempt of its last run.
    ran_attempt: u32,
}

/// The rules of these groups call an object restarting whenever none of its pods is ready after its first failure, so
/// a readiness probe that fails hours later looks like a restart. Other objects say by themselves that they restart.
const RESTARTING_BY_COUNT: [&str; 2] = ["batch", "jobset.x-k8s.io"];

impl<'a> WaitingMoment<'a> {
    fn take_own(&mut self, state: &'a State) {
        self.own = Some(state);
        match state.status.phase.as_str() {
            phase::RUNNING => (self.is_interrupted, self.ran_attempt) = (false, state.status.attempt),
            phase::RESTARTING => self.is_interrupted |= self.is_restarted(state),
            phase if HELD.contains(&phase) => self.is_interrupted = true,
            _ => {}
        }
    }

    fn is_restarted(&self, state: &State) -> bool {
        let is_by_count = RESTARTING_BY_COUNT.contains(&&*state.object.group);
        !is_by_count || state.status.attempt > self.ran_attempt
    }

    fn take_related(&mut self, state: &'a State) {
        let uid = state.object.uid.as_str();
        let has_ended = state.change == Change::Gone || state.status.terminal;
        match (is_workload(&state.object), state.change == Change::Gone) {
            (true, is_gone) => self.workload = Some(state).filter(|_| !is_gone),
            (false, _) if has_ended => drop(self.pods.remove(uid)),
            (false, _) => drop(self.pods.insert(uid, pod_end::waiting_kind(&state.status.reason))),
        }
    }

    /// `knows_queue` is set if the story has the object's Workload. Then a time without the Workload, or
    /// after its admission, is no wait for quota.
    fn wait_reason(&self, own: &State, has_queue: bool, knows_queue: bool) -> WaitReason {
        let by_owner = waits::by_owner(&own.status, has_queue);
        let by_queue = match self.workload {
            Some(workload) => queue::wait_kind(workload),
            None => Some(CauseKind::Quota).filter(|_| !knows_queue),
        };
        let by_owner = by_owner.and_then(|kind| if kind == CauseKind::Quota { by_queue } else { Some(kind) });
        by_owner.or_else(|| self.pods.values().copied().flatten().min())
    }

    /// Whether an object that has run waits now. A pod does not come back.
    fn waits_again(&self, own: &State, reason: WaitReason) -> bool {
        let goes_on = matches!(own.status.phase.as_str(), phase::RUNNING | phase::CANCELLED);
        !goes_on && !is_pod(&own.object) && (self.is_interrupted || reason.is_some())
    }
}

impl WaitTimes {
    pub fn of(story: &ExplainedStates<'_>, owner: &OwnerDocument, now_ms: u64) -> Self {
        let knows_queue = story.related.iter().any(|state| is_workload(&state.object));
        let has_queue = waits::has_queue(story, owner) || !waits::pods_taken_back(story).is_empty();
        let silent_from = waits::silent_run(story).map(|(begin, _)| begin.observed_ms);
        let changes = changes_in_order(story);
        let ends = changes.iter().skip(1).map(|(next, _)| next.observed_ms).chain([now_ms]);
        let (mut times, mut moment) = (Self::default(), WaitingMoment::default());
        for ((state, is_own), end) in changes.iter().zip(ends) {
            match is_own {
                true => moment.take_own(state),
                false => moment.take_related(state),
            }
            let Some(own) = moment.own else { continue };
            let runs_silently = silent_from.is_some_and(|from_ms| state.observed_ms >= from_ms);
            let has_ended = super::super::has_ended(own);
            // A failed attempt has run, even if it was never ready.
            let runs = matches!(own.status.phase.as_str(), phase::RUNNING | phase::RESTARTING);
            times.has_begun |= runs || runs_silently || has_ended;
            let reason = moment.wait_reason(own, has_queue, knows_queue);
            times.is_waiting =
                !has_ended && !runs_silently && (!times.has_begun || moment.waits_again(own, reason));
            if times.is_waiting {
                times.add(reason, end.saturating_sub(state.observed_ms), state.seq);
            }
        }
        times
    }

    fn add(&mut self, reason: WaitReason, took_ms: u64, seq: Seq) {
        let waits = if self.has_begun { &mut self.again } else { &mut self.first };
        match waits.iter_mut().find(|wait| wait.reason == reason) {
            Some(wait) => wait.took_ms += took_ms,
            None if took_ms > 0 => waits.push(MeasuredWait { reason, took_ms, seq }),
            None => {}
        }
    }
}

/// The states of the object, of its pods and of its Workload in the order in which they were observed, each with
/// whether it is of the object itself.
fn changes_in_order<'a>(story: &ExplainedStates<'a>) -> Vec<(&'a State, bool)> {
    let related = story.related.iter().map(|state| &**state);
    let related = related.filter(|state| is_pod(&state.object) || is_workload(&state.object));
    let own = story.states.iter().map(|state| (&**state, true));
    let mut changes: Vec<(&State, bool)> = related.map(|state| (state, false)).chain(own).collect();
    changes.retain(|(state, _)| state.change != Change::Gap);
    changes.sort_by_key(|(state, _)| (state.observed_ms, state.seq));
    changes
}
