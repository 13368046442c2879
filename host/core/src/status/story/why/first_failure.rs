//! Chooses the pod failure that is the cause: the first one that no other failure explains.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::documents::{OwnerDocument, PodDocument};
use super::{Cause, CauseKind, DocumentsBySeq, ExplainedStates, is_pod, last_work_status, pod_end, waits};
use crate::state::{Change, Seq, State, Status};
use crate::status::phase;

/// How long a program may wait for a lost peer before it ends. Collective operations wait for ten minutes by default.
const LONGEST_GIVING_UP_MS: u64 = 15 * 60 * 1000;

/// The first and the last failed state of each pod that failed.
///
/// The first state has the moment, and the end of the first of several attempts in place. The last state has
/// facts that were reported late: a kubelet reports an eviction after the pod's containers have ended, and a
/// container may have ended by itself before its pod was deleted.
pub(super) struct PodFailures<'a>(Vec<FailureStates<'a>>);

#[derive(Clone, Copy)]
struct FailureStates<'a> {
    first: &'a State,
    last: &'a State,
    /// When a state of the pod first showed that it is being deleted. In the last document, the kubelet's own
    /// deletion of the ended pod has replaced the request.
    deleting_ms: Option<u64>,
}

/// How a pod ended.
pub(super) struct PodFailure {
    cause: Cause,
    /// The position of the state that first showed it. A controller deletes a failed pod later, and its last state may
    /// belong to a time when the next attempt has begun.
    first_seq: Seq,
    completion_index: Option<u32>,
    index_failures: Option<u32>,
}

impl<'a> PodFailures<'a> {
    pub fn of(story: &ExplainedStates<'a>) -> Self {
        let after = if is_pod_itself(story) { 0 } else { earlier_failure(story) };
        let mut failures: Vec<FailureStates<'a>> = Vec::new();
        let mut places: HashMap<&str, usize> = HashMap::new();
        // A pod that its queue took did not fail, unless the object says so or failed for no other pod.
        let taken_back: HashMap<&str, Seq> =
            waits::pods_taken_back(story).iter().map(|pod| (pod.object.uid.as_str(), pod.seq)).collect();
        let ended = story.last_state().filter(|last| last.status.terminal);
        let is_named =
            |pod: &State| ended.is_some_and(|last| names_word(&last.status.message, &pod.object.name));
        let is_own = |state: &State| {
            let taken = taken_back.get(state.object.uid.as_str());
            taken.is_none_or(|taken| state.seq < *taken) || is_named(state)
        };
        let reports = |state: &&State| state.seq > after && reports_failure(state);
        let has_own = story.pod_states().filter(reports).any(is_own);
        let counts = |state: &&State| reports(state) && (is_own(state) || ended.is_some() && !has_own);
        for state in story.pod_states().filter(counts) {
            let deleting_ms =
                (last_work_status(state).phase == phase::CANCELLED).then_some(state.observed_ms);
            match places.get(state.object.uid.as_str()) {
                // The document of a deletion that a comparison found is empty.
                Some(_) if state.change != Change::Present => {}
                Some(place) => {
                    let failure = &mut failures[*place];
                    failure.last = state;
                    failure.deleting_ms = failure.deleting_ms.or(deleting_ms);
                }
                None => {
                    places.insert(&state.object.uid, failures.len());
                    failures.push(FailureStates { first: state, last: state, deleting_ms });
                }
            }
        }
        Self(failures)
    }

    /// The failed states of at most `most` pods. Pods whose documents matter most come first: those that the
    /// object names, then those that failed first.
    pub fn candidate_states(self, named_in: &str, most: usize) -> impl Iterator<Item = &'a State> {
        let (named, mut others): (Vec<_>, Vec<_>) =
            self.0.into_iter().partition(|failure| names_word(named_in, &failure.first.object.name));
        others.sort_by_key(|failure| failure.first.seq);
        let chosen = named.into_iter().chain(others).take(most);
        chosen.flat_map(|failure| {
            [failure.first].into_iter().chain((failure.last.seq != failure.first.seq).then_some(failure.last))
        })
    }

    /// The end of each of these pods, in the order in which they failed. Documents have whole seconds, so
    /// within a second the order of the states decides.
    pub fn ends_in_order(self, story: &ExplainedStates<'_>, documents: &DocumentsBySeq) -> Vec<PodFailure> {
        let mut ends: Vec<_> =
            self.0.into_iter().filter_map(|failure| failure.explain_end(story, documents)).collect();
        ends.sort_by_key(|failure| (failure.cause.at_ms / 1000, failure.cause.seq));
        ends
    }
}

impl FailureStates<'_> {
    /// Returns `None` if the pod came to a good end.
    fn explain_end(self, story: &ExplainedStates<'_>, documents: &DocumentsBySeq) -> Option<PodFailure> {
        let pods = [self.first, self.last]
            .map(|state| documents.get(&state.seq).and_then(|document| PodDocument::read(document)));
        let requested = pods.iter().flatten().filter_map(pod_end::deletion_requested_ms);
        let requested_ms = requested.chain(self.deleting_ms).min();
        let read = |state: &State, pod: Option<&PodDocument>| {
            Some(PodFailure {
                cause: pod_end::end_cause(state, pod, requested_ms, story)?,
                first_seq: self.first.seq,
                completion_index: pod.and_then(PodDocument::completion_index),
                index_failures: pod.and_then(PodDocument::index_failures),
            })
        };
        let [first_pod, last_pod] = &pods;
        let first = read(self.first, first_pod.as_ref());
        if self.first.seq == self.last.seq {
            return first;
        }
        let (first, last) = match (first, read(self.last, last_pod.as_ref())) {
            (Some(first), Some(last)) => (first, last),
            (first, last) => return first.or(last),
        };
        Some(match (first.cause.kind, last.cause.kind) {
            (_, kind) if kind.is_disruption() => last,
            (CauseKind::Deleted | CauseKind::Unknown, kind) if kind != CauseKind::Deleted => last,
            // A container was restarted in place before, and this end is the decisive one.
            (_, kind) if self.last.status.terminal && kind != CauseKind::Deleted => last,
            _ => first,
        })
    }
}

/// The attempts of indexes, if each index has a limit of its own.
pub(super) struct IndexAttempts(Vec<IndexAttempt>);

struct IndexAttempt {
    /// The position of the state that shows how the pod ended.
    seq: Seq,
    index: Option<u32>,
    number: u32,
}

impl IndexAttempts {
    pub fn of(failures: &[PodFailure]) -> Self {
        let attempt = |failure: &PodFailure| {
            let number = failure.index_failures?.saturating_add(1);
            Some(IndexAttempt { seq: failure.cause.seq, index: failure.completion_index, number })
        };
        Self(failures.iter().filter_map(attempt).collect())
    }

    /// The attempts of the index whose pod is the cause. If no pod is the cause, the index that failed most
    /// often.
    pub fn used_of(&self, cause: Option<&Cause>) -> Option<u32> {
        let pod = cause.filter(|cause| cause.object.is_some());
        let named = pod.and_then(|pod| self.0.iter().find(|attempt| attempt.seq == pod.seq));
        let is_meant = |attempt: &&IndexAttempt| named.is_none_or(|named| named.index == attempt.index);
        self.0.iter().filter(is_meant).map(|attempt| attempt.number).max()
    }
}

fn is_pod_itself(story: &ExplainedStates<'_>) -> bool {
    story.states.first().is_some_and(|state| is_pod(&state.object))
}

/// The position of an earlier failure after which the object ran again. Pods that failed up to there explain
/// that failure.
fn earlier_failure(story: &ExplainedStates<'_>) -> Seq {
    let has_failed = |state: &&Arc<State>| state.status.phase == phase::FAILED;
    let versions = story.states.iter().rev().filter(|state| state.change != Change::Gap);
    let since = versions.skip_while(|state| state.change == Change::Gone);
    let earlier = since.skip_while(|state| has_failed(state)).find(|state| has_failed(state));
    earlier.map_or(0, |state| state.seq)
}

/// The position at which the object was last started again as a whole: earlier failures did not end it. A Job
/// replaces single pods, so its first failure remains the one that it gave up for.
fn last_restart(story: &ExplainedStates<'_>) -> Seq {
    let is_restarting = |state: &&State| state.status.phase == phase::RESTARTING;
    let versions =
        || story.states.iter().map(|state| &**state).filter(|state| state.change == Change::Present);
    if versions().any(|state| state.object.kind == "Job" && state.object.group == "batch") {
        return 0;
    }
    let last_begun = versions().zip(versions().skip(1));
    let begins = last_begun.filter(|(before, state)| !is_restarting(before) && is_restarting(state));
    begins.last().map_or(0, |(_, state)| state.seq)
}

fn reports_failure(state: &State) -> bool {
    let status = last_work_status(state);
    match status.phase.as_str() {
        phase::SUCCEEDED => false,
        phase::FAILED | phase::PREEMPTED | phase::RESTARTING | phase::CANCELLED => true,
        _ => state.change == Change::Gone || status.exit_code.is_some_and(|code| code != 0),
    }
}

/// Compares whole words, so that `train-1` is not found in a text about `train-10`.
fn names_word(text: &str, name: &str) -> bool {
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '.');
    !name.is_empty() && text.split(|letter| !is_part(letter)).any(|word| word == name)
}

/// The pods that failed by themselves or by a disruption, one of each kind. A deletion is a consequence of
/// another failure: the controller deletes running pods when one of them failed.
pub(super) fn independent_causes(failures: Vec<PodFailure>) -> Vec<Cause> {
    let failures = failures.into_iter().map(|failure| failure.cause);
    let mut kinds = HashSet::new();
    failures.filter(|cause| cause.kind != CauseKind::Deleted && kinds.insert(cause.kind)).collect()
}

/// Explains the failure of an object with this status, and lists other causes among its pods.
pub(super) fn of_failure(
    story: &ExplainedStates<'_>,
    status: &Status,
    owner: &OwnerDocument,
    mut failures: Vec<PodFailure>,
    documents: &DocumentsBySeq,
) -> (Cause, Vec<Cause>) {
    if status.reason == "DeadlineExceeded" && !is_pod_itself(story) {
        let also = independent_causes(failures).into_iter();
        let stuck = waits::stuck_before_end(story).map(|pod| waits::of_stuck_pod(pod, documents));
        let also = also.chain(stuck);
        return (of_object(story, status, CauseKind::Deadline), also.collect());
    }
    let counts = |failure: &PodFailure| {
        let is_ignored = owner.ignores_disruptions && failure.cause.kind.is_disruption();
        owner.failed_by_index(failure.completion_index) && !is_ignored
    };
    let by_itself = |failure: &PodFailure| failure.cause.kind != CauseKind::Deleted && counts(failure);
    let text = pod_end::controller_text(status);
    let is_named = |failure: &PodFailure| {
        let object = failure.cause.object.as_ref();
        object.is_some_and(|object| names_word(text, &object.name))
    };
    let named = failures.iter().position(is_named);
    let told = pod_end::told_end(status).map(|cause| with_moment(story, cause));
    // A program that goes on for long after a pod has failed ends for another reason.
    let is_too_early = |failure: &PodFailure| {
        told.as_ref().is_some_and(|told| failure.cause.at_ms + LONGEST_GIVING_UP_MS < told.at_ms)
    };
    let restart = last_restart(story);
    let by_itself = |failure: &PodFailure| by_itself(failure) && !is_too_early(failure);
    let is_of_last_attempt = |failure: &PodFailure| by_itself(failure) && failure.first_seq > restart;
    let first = named.or_else(|| failures.iter().position(is_of_last_attempt));
    let first = first.or_else(|| failures.iter().position(by_itself));
    // A disruption alone counts if the policy was changed since, and a deletion counts if nothing else
    // failed, by the object's own words, either.
    let first = first.or_else(|| (!failures.is_empty() && told.is_none()).then_some(0));
    let Some(first) = first else {
        let cause = told.unwrap_or_else(|| with_moment(story, pod_end::of_status(status)));
        let also = independent_causes(failures).into_iter();
        return (cause.clone(), also.filter(|other| other.kind != cause.kind).collect());
    };
    let cause = failures.remove(first).cause;
    let also = independent_causes(failures).into_iter().filter(|other| other.kind != cause.kind).collect();
    (cause, also)
}

/// The cause if no pod is to blame: the object's own state.
fn of_object(story: &ExplainedStates<'_>, status: &Status, kind: CauseKind) -> Cause {
    let (reason, message) = (status.reason.clone(), status.message.clone());
    with_moment(story, Cause { kind, reason, message, ..Cause::default() })
}

fn with_moment(story: &ExplainedStates<'_>, cause: Cause) -> Cause {
    let seq = failure_began(story);
    let at_ms = story.states.iter().find(|state| state.seq == seq).map_or(0, |state| state.observed_ms);
    Cause { seq, at_ms, ..cause }
}

/// The position at which the object's last failure began.
fn failure_began(story: &ExplainedStates<'_>) -> Seq {
    let versions = story.states.iter().rev().filter(|state| state.change == Change::Present);
    let failed = versions.take_while(|state| state.status.phase == phase::FAILED);
    let last = story.states.last().map_or(0, |state| state.seq);
    failed.last().map_or(last, |state| state.seq)
}
