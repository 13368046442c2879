//! Chooses the end of a pod that is the cause: the first one that no other end explains.

use std::collections::{HashMap, HashSet};

use super::documents::{OwnerDocument, PodDocument};
use super::{Cause, CauseKind, DocumentsBySeq, Story, is_pod, pod_end, told, waits};
use crate::state::{Change, Seq, State, Status};
use crate::status::phase;
use crate::status::story::events::EventView;

/// For each pod that fell, the first and the last state that say so.
///
/// The first one has the moment, and the end of the first of several attempts in place. The last one has what was
/// reported late: a kubelet writes that it evicted a pod after the ends of the pod's containers, and a container may have
/// ended by itself before its pod was deleted.
pub(super) struct Falls<'a>(Vec<FallStates<'a>>);

#[derive(Clone, Copy)]
struct FallStates<'a> {
    first: &'a State,
    last: &'a State,
}

/// How a pod ended.
pub(super) struct Fall {
    cause: Cause,
    completion_index: Option<u32>,
}

impl<'a> Falls<'a> {
    pub fn of(story: &Story<'a>) -> Self {
        let after = earlier_failure(story);
        let mut falls: Vec<FallStates<'a>> = Vec::new();
        let mut places: HashMap<&str, usize> = HashMap::new();
        for state in story.pods().filter(|state| state.seq > after || is_pod_itself(story)) {
            if !is_fall(state) {
                continue;
            }
            match places.get(state.object.uid.as_str()) {
                // The document of a deletion that a comparison found is empty.
                Some(_) if state.change != Change::Present => {}
                Some(place) => falls[*place].last = state,
                None => {
                    places.insert(&state.object.uid, falls.len());
                    falls.push(FallStates { first: state, last: state });
                }
            }
        }
        Self(falls)
    }

    /// States of at most so many pods. Those whose documents matter most come first: the pods that the object names, then
    /// those that fell first.
    pub fn candidates(self, named_in: &str, most: usize) -> impl Iterator<Item = &'a State> {
        let (named, mut others): (Vec<_>, Vec<_>) =
            self.0.into_iter().partition(|fall| names(named_in, &fall.first.object.name));
        others.sort_by_key(|fall| fall.first.seq);
        let chosen = named.into_iter().chain(others).take(most);
        chosen.flat_map(|fall| {
            [fall.first].into_iter().chain((fall.last.seq != fall.first.seq).then_some(fall.last))
        })
    }

    /// How each of them ended, in the order in which they fell. Documents have whole seconds, so within a second the
    /// order of the states decides.
    pub fn ends(self, documents: &DocumentsBySeq, events: &[EventView]) -> Vec<Fall> {
        let mut ends: Vec<_> = self.0.into_iter().map(|fall| fall.end(documents, events)).collect();
        ends.sort_by_key(|fall| (fall.cause.at_ms / 1000, fall.cause.seq));
        ends
    }
}

impl FallStates<'_> {
    fn end(self, documents: &DocumentsBySeq, events: &[EventView]) -> Fall {
        let read = |state: &State| {
            let document = documents.get(&state.seq);
            let pod = document.and_then(|document| PodDocument::read(document));
            let completion_index = pod.as_ref().and_then(PodDocument::completion_index);
            Fall { cause: pod_end::of(state, &told(state), pod.as_ref(), events), completion_index }
        };
        let first = read(self.first);
        if self.first.seq == self.last.seq {
            return first;
        }
        let last = read(self.last);
        match (first.cause.kind, last.cause.kind) {
            (_, kind) if kind.is_disruption() => last,
            (CauseKind::Deleted | CauseKind::Unknown, kind) if kind != CauseKind::Deleted => last,
            // A container was restarted in place before, and this end is the one that counts.
            (_, kind) if self.last.status.terminal && kind != CauseKind::Deleted => last,
            _ => first,
        }
    }
}

fn is_pod_itself(story: &Story<'_>) -> bool {
    story.states.first().is_some_and(|state| is_pod(&state.object))
}

/// Some kinds fail and run again. What fell before that explains an earlier failure.
fn earlier_failure(story: &Story<'_>) -> Seq {
    let has_failed = |state: &&std::sync::Arc<State>| state.status.phase == phase::FAILED;
    let versions = story.states.iter().rev().filter(|state| state.change != Change::Gap);
    let since = versions.skip_while(|state| state.change == Change::Gone);
    let earlier = since.skip_while(|state| has_failed(state)).find(|state| has_failed(state));
    earlier.map_or(0, |state| state.seq)
}

fn is_fall(state: &State) -> bool {
    let status = told(state);
    match status.phase.as_str() {
        phase::SUCCEEDED => false,
        phase::FAILED | phase::PREEMPTED | phase::RESTARTING | phase::CANCELLED => true,
        _ => state.change == Change::Gone || status.exit_code.is_some_and(|code| code != 0),
    }
}

/// Whether a text names an object, and not another one whose name begins alike.
fn names(text: &str, name: &str) -> bool {
    let is_part = |one: char| one.is_ascii_alphanumeric() || matches!(one, '-' | '.');
    !name.is_empty() && text.split(|one| !is_part(one)).any(|word| word == name)
}

/// The pods that fell by themselves or by a disruption. A deletion is the consequence of another fall: the controller
/// deletes the pods that still run when one of them failed. So a deletion counts where nothing else fell.
pub(super) fn own(falls: Vec<Fall>) -> Vec<Cause> {
    let falls = falls.into_iter().map(|fall| fall.cause);
    let mut kinds = HashSet::new();
    falls.filter(|cause| cause.kind != CauseKind::Deleted && kinds.insert(cause.kind)).collect()
}

/// Why an object failed whose own status says `status`, and what else fell.
pub(super) fn of_failure(
    story: &Story<'_>,
    status: &Status,
    owner: &OwnerDocument,
    mut falls: Vec<Fall>,
    documents: &DocumentsBySeq,
) -> (Cause, Vec<Cause>) {
    if status.reason == "DeadlineExceeded" && !is_pod_itself(story) {
        let also = own(falls).into_iter();
        let stuck = waits::stuck_before_end(story).map(|pod| waits::of_stuck_pod(pod, documents));
        let also = also.chain(stuck);
        return (of_object(story, status, CauseKind::Deadline), also.collect());
    }
    let counts = |fall: &Fall| {
        let is_ignored = owner.ignores_disruptions && fall.cause.kind.is_disruption();
        owner.gave_up_on(fall.completion_index) && !is_ignored
    };
    let by_itself = |fall: &Fall| fall.cause.kind != CauseKind::Deleted && counts(fall);
    let is_named = |fall: &Fall| {
        let object = fall.cause.object.as_ref();
        object.is_some_and(|object| names(&status.message, &object.name))
    };
    let first = falls.iter().position(is_named);
    let first = first.or_else(|| falls.iter().position(by_itself));
    // A disruption alone counts where the policy was changed since, and a deletion where nothing else fell.
    let first = first.or_else(|| (!falls.is_empty()).then_some(0));
    let Some(first) = first else {
        let cause = pod_end::of_status(status);
        return (Cause { seq: failure(story), ..with_moment(story, cause) }, Vec::new());
    };
    let cause = falls.remove(first).cause;
    let also = own(falls).into_iter().filter(|other| other.kind != cause.kind).collect();
    (cause, also)
}

/// The object's own state is the cause.
fn of_object(story: &Story<'_>, status: &Status, kind: CauseKind) -> Cause {
    let (reason, message) = (status.reason.clone(), status.message.clone());
    with_moment(story, Cause { kind, reason, message, ..Cause::default() })
}

fn with_moment(story: &Story<'_>, cause: Cause) -> Cause {
    let seq = failure(story);
    let at_ms = story.states.iter().find(|state| state.seq == seq).map_or(0, |state| state.observed_ms);
    Cause { seq, at_ms, ..cause }
}

/// The first state of the last failure.
fn failure(story: &Story<'_>) -> Seq {
    let versions = story.states.iter().rev().filter(|state| state.change == Change::Present);
    let failed = versions.take_while(|state| state.status.phase == phase::FAILED);
    let last = story.states.last().map_or(0, |state| state.seq);
    failed.last().map_or(last, |state| state.seq)
}
