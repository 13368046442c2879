//! Explains why an object failed, or why it still waits.
//!
//! The object itself often says no more than that it gave up: a Job ends with `BackoffLimitExceeded`, and by then its
//! controller has deleted the pods that were still running, which end with exit code 137. So the cause is looked for in
//! the pods: the container that failed first, by its own fault or by a disruption, before anything was deleted because of
//! it. The last pod that failed is not the cause, because its end is usually a consequence of the first one.
//!
//! Everything here is pure. States say which pods failed and in which order, and are always at hand. Documents say which
//! container it was, and are read for a bounded number of states. A cause that rests on states alone says less, and one
//! that a gap leaves open says so.

mod coverage;
mod documents;
mod first_failure;
mod pod_end;
mod queue;
mod sentence;
mod wait_times;
mod waits;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use self::coverage::PodCoverage;
use self::documents::OwnerDocument;
use self::first_failure::{IndexAttempts, PodFailures};
pub use self::pod_end::{signal_name, signal_number};
use super::events::EventView;
use super::{FAILURE_TARGET, last_work_status};
use crate::state::{Change, ObjectRef, Seq, State, Status};
use crate::status::phase;

/// Pods whose documents one explanation reads: at most two of each, so this also bounds its time.
const PODS_READ: usize = 12;

/// How many states one claim names.
const STATES_NAMED: usize = 8;

/// The group of Kueue's kinds.
pub(super) const KUEUE: &str = "kueue.x-k8s.io";

/// Why an object failed, or waits, in one word for programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum CauseKind {
    /// A container ended by itself with an exit code that is not 0.
    ExitCode,
    /// A signal ended a container, and it was not out of memory.
    Signal,
    /// A container needed more memory than it may have.
    OutOfMemory,
    /// The pod had to leave its node: a lack of resources there, a drain, or a taint.
    Evicted,
    /// Something more important took the place.
    Preempted,
    /// The node stopped reporting, was shut down, or was deleted.
    NodeLost,
    /// An image can't be pulled.
    ImagePull,
    /// A container can't be made as the object describes it, or its queue does not exist.
    Configuration,
    /// No node fits.
    Unschedulable,
    /// The object's own deadline passed.
    Deadline,
    /// A quota has no room.
    Quota,
    /// Somebody suspended it, or stopped its queue.
    Suspended,
    /// Somebody deleted it, or one of its pods.
    Deleted,
    /// No recorded state says why.
    #[default]
    Unknown,
}

impl CauseKind {
    /// The word that programs read.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ExitCode => "exit-code",
            Self::Signal => "signal",
            Self::OutOfMemory => "out-of-memory",
            Self::Evicted => "evicted",
            Self::Preempted => "preempted",
            Self::NodeLost => "node-lost",
            Self::ImagePull => "image-pull",
            Self::Configuration => "configuration",
            Self::Unschedulable => "unschedulable",
            Self::Deadline => "deadline",
            Self::Quota => "quota",
            Self::Suspended => "suspended",
            Self::Deleted => "deleted",
            Self::Unknown => "unknown",
        }
    }

    /// The infrastructure ended the pod, and not its program.
    fn is_disruption(self) -> bool {
        matches!(self, Self::Evicted | Self::Preempted | Self::NodeLost)
    }
}

/// How far the object has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// It has not begun, or can't go on.
    #[default]
    Waiting,
    /// It runs, or is being started again.
    Running,
    /// It came to a good end.
    Succeeded,
    /// It came to a bad end.
    Failed,
    /// It was deleted before anybody saw it come to an end.
    Deleted,
}

/// The kind of a container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum ContainerRole {
    /// It runs to its end before the main ones start.
    Init,
    /// One of the containers that do the work.
    #[default]
    Main,
    /// An init container that is restarted on its own and runs beside the main ones.
    Sidecar,
}

impl ContainerRole {
    /// The role in words for people.
    pub fn words(self) -> &'static str {
        match self {
            Self::Init => "init container",
            Self::Main => "container",
            Self::Sidecar => "sidecar",
        }
    }
}

/// The container that a cause is about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FailedContainer {
    pub name: String,
    pub role: ContainerRole,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
}

/// One cause, and the state that it rests on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Cause {
    pub kind: CauseKind,
    /// The pod that failed first, or that can't start; left out where the object itself is the cause.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object: Option<ObjectRef>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<FailedContainer>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// A word for programs, as the cluster wrote it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// A sentence for people, as the cluster wrote it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The object that it made room for, the resource that its node lacked, or the quota that has no room.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub by: String,
    /// Milliseconds since 1970.
    pub at_ms: u64,
    /// The position of the state that says so.
    pub seq: Seq,
}

/// One claim of a sentence, and the states that it rests on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SentenceClaim {
    pub text: String,
    /// The positions of the states, the most important one first.
    pub seqs: Vec<Seq>,
}

impl SentenceClaim {
    fn new(text: impl Into<String>, seqs: impl IntoIterator<Item = Seq>) -> Self {
        let mut known = BTreeSet::new();
        let seqs = seqs.into_iter().filter(|seq| known.insert(*seq)).take(STATES_NAMED).collect();
        Self { text: text.into(), seqs }
    }
}

/// The answer to "why": a sentence, and the same in fields.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Why"))]
pub struct WhyView {
    pub sentence: String,
    /// The claims of the sentence, in its order: joined by commas, they are the sentence without its doubt.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub claims: Vec<SentenceClaim>,
    pub outcome: Outcome,
    /// Left out where nothing went wrong and nothing is waited for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<Cause>,
    /// Other pods that failed by themselves, in the order in which they failed: at most one of each kind.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub also: Vec<Cause>,
    /// The part that is not known, for people; left out where the cause is certain.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub doubt: String,
}

/// The states that an explanation is made of.
#[derive(Clone, Copy, Debug)]
pub struct ExplainedStates<'a> {
    /// The states of the object, oldest first.
    pub states: &'a [Arc<State>],
    /// The states of the things that it owns, oldest first.
    pub related: &'a [Arc<State>],
    pub events: &'a [EventView],
    /// The objects for which this one made room, as far as they are known.
    pub preemptors: &'a [ObjectRef],
    pub pods: PodCoverage,
    /// Older states exist that are not here.
    pub is_cut: bool,
}

/// Documents by the positions of their states.
pub type DocumentsBySeq = BTreeMap<Seq, Vec<u8>>;

impl<'a> ExplainedStates<'a> {
    /// The positions of the states whose documents [`Self::explain_object`] reads.
    pub fn documents_wanted(&self) -> Vec<Seq> {
        let own = self.newest_version().map(|state| state.seq);
        let message = self.last_state().map(|last| last_work_status(last).message).unwrap_or_default();
        let failures = PodFailures::of(self).candidate_states(&message, PODS_READ).map(|state| state.seq);
        let stuck = [waits::stuck_pod(self), waits::stuck_before_end(self), queue::unready_pod(self)];
        let stuck = stuck.into_iter().flatten();
        let wanted: BTreeSet<_> =
            own.into_iter().chain(failures).chain(stuck.map(|state| state.seq)).collect();
        wanted.into_iter().collect()
    }

    /// Explains the object. Missing documents are tolerated; the cause is then less specific.
    pub fn explain_object(&self, documents: &DocumentsBySeq, now_ms: u64) -> WhyView {
        let Some(last) = self.last_state() else { return WhyView::default() };
        let own = self.newest_version().and_then(|state| documents.get(&state.seq));
        let owner = own.map(|document| OwnerDocument::read(document)).unwrap_or_default();
        let status = last_work_status(last);
        let outcome = outcome_of(self, &status, last);
        let failures = PodFailures::of(self).ends_in_order(self, documents);
        let attempts = IndexAttempts::of(&failures);
        let (cause, also) = match outcome {
            _ if outcome == Outcome::Failed || is_failing(&status) => {
                let (cause, also) = first_failure::of_failure(self, &status, &owner, failures, documents);
                (Some(cause), also)
            }
            Outcome::Deleted => {
                (Some(self.deletion_cause(last)), first_failure::independent_causes(failures))
            }
            // Some of its pods run, and others can't start.
            Outcome::Running if status.ready < status.total => {
                (waits::unstarted_pods_cause(self, documents), first_failure::independent_causes(failures))
            }
            // What failed on the way says why there was another attempt.
            Outcome::Running | Outcome::Succeeded => (None, first_failure::independent_causes(failures)),
            Outcome::Waiting | Outcome::Failed => self.explain_waiting(&owner, documents, failures),
        };
        let doubt = self.doubt_text(outcome, cause.as_ref());
        let mut why = WhyView { outcome, cause, also, doubt, ..WhyView::default() };
        let index_attempt = attempts.used_of(why.cause.as_ref());
        why.claims = sentence::claims_of(self, &owner, index_attempt, &why, now_ms);
        why.sentence = sentence::join_claims(&why.claims, &why.doubt);
        why
    }

    /// A clause that says how it ended: the sentence without how long it waited and ran.
    pub fn headline_text(&self, why: &WhyView) -> String {
        let status = self.last_state().map(last_work_status).unwrap_or_default();
        sentence::headline_clause(self, &status, why)
    }

    /// Says why it waits, and which pods failed before.
    fn explain_waiting(
        &self,
        owner: &OwnerDocument,
        documents: &DocumentsBySeq,
        failures: Vec<first_failure::PodFailure>,
    ) -> (Option<Cause>, Vec<Cause>) {
        let mut failed = first_failure::independent_causes(failures);
        let cause = waits::waiting_cause(self, owner, documents).or_else(|| {
            // A pod survives as long as one of its containers runs, and no other pod takes its place until
            // then.
            let alive = failed.iter().position(|cause| waits::is_alive(self, cause))?;
            Some(failed.remove(alive))
        });
        (cause, failed)
    }

    /// The last state that is not a gap.
    fn last_state(&self) -> Option<&'a State> {
        self.states.iter().rfind(|state| state.change != Change::Gap).map(|state| &**state)
    }

    /// The newest state that has a document of the object.
    fn newest_version(&self) -> Option<&'a State> {
        self.states.iter().rfind(|state| state.change == Change::Present).map(|state| &**state)
    }

    fn pod_states(&self) -> impl DoubleEndedIterator<Item = &'a State> + use<'a> {
        let itself = self.states.iter().filter(|state| is_pod(&state.object));
        let owned = self.related.iter().filter(|state| is_pod(&state.object));
        itself.chain(owned).map(|state| &**state)
    }

    /// The cause if the object was deleted while it ran. It is uncertain if its last versions are missing,
    /// because it may have ended in one of them.
    fn deletion_cause(&self, last: &State) -> Cause {
        let seen = self.newest_version().map_or(0, |state| state.seq);
        let is_missing = |state: &Arc<State>| state.change == Change::Gap && state.seq > seen;
        let is_unseen = last.change == Change::Gone && self.states.iter().any(is_missing);
        let kind = if is_unseen { CauseKind::Unknown } else { CauseKind::Deleted };
        Cause { kind, at_ms: last.observed_ms, seq: last.seq, ..Cause::default() }
    }
}

pub(super) fn is_pod(object: &ObjectRef) -> bool {
    object.kind == "Pod" && object.group.is_empty()
}

pub(super) fn is_workload(object: &ObjectRef) -> bool {
    object.kind == "Workload" && object.group == KUEUE
}

/// Whether the object has failed, but its last pods are still ending.
fn is_failing(status: &Status) -> bool {
    status.phase == phase::RUNNING && status.reason == FAILURE_TARGET
}

fn outcome_of(story: &ExplainedStates<'_>, status: &Status, last: &State) -> Outcome {
    let is_gone = last.change == Change::Gone;
    match status.phase.as_str() {
        phase::SUCCEEDED => Outcome::Succeeded,
        phase::FAILED => Outcome::Failed,
        // A pod that was disrupted does not come back, and an owner that was preempted waits for its next turn.
        phase::PREEMPTED if status.terminal || is_pod(&last.object) => Outcome::Failed,
        phase::CANCELLED | phase::DELETED => Outcome::Deleted,
        _ if is_gone => Outcome::Deleted,
        phase::RUNNING if is_failing(status) => Outcome::Waiting,
        // The next attempt can't start, so the object waits.
        phase::RESTARTING if waits::stuck_pod(story).is_some() => Outcome::Waiting,
        phase::RUNNING | phase::RESTARTING => Outcome::Running,
        _ if waits::silent_run(story).is_some() && waits::has_running_pod(story) => Outcome::Running,
        _ => Outcome::Waiting,
    }
}

#[cfg(test)]
mod tests;
