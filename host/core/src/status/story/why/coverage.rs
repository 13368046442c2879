//! Says which part of an explanation is not known: versions are missing, or pods are not in the story.
//!
//! The cause of most failures is in a pod. If none of its states is at hand, the explanation tells why they are missing,
//! because a reader would otherwise take the absence for a fact.

use std::sync::Arc;

use super::{Cause, CauseKind, ExplainedStates, Outcome, is_pod};
use crate::kinds::has_outcome;
use crate::state::{Change, ObjectRef, State};

/// How far the pods of an object are in its story.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PodCoverage {
    /// All that were witnessed.
    #[default]
    Whole,
    /// The viewer may not see them.
    Hidden,
    /// No source watches all pods of the namespace.
    Unwatched,
}

/// API groups, each with its kinds that make pods without an end of their own. Kinds with an end make pods, too.
const SERVING: [(&str, &[&str]); 7] = [
    ("", &["ReplicationController"]),
    ("apps", &["Deployment", "StatefulSet", "DaemonSet", "ReplicaSet"]),
    ("batch", &["CronJob"]),
    ("apps.kruise.io", &["AdvancedCronJob"]),
    ("keda.sh", &["ScaledJob"]),
    ("ray.io", &["RayCluster", "RayService", "RayCronJob"]),
    ("argoproj.io", &["CronWorkflow"]),
];

fn makes_pods(object: &ObjectRef) -> bool {
    let is_among =
        |(group, kinds): &(&str, &[&str])| *group == object.group && kinds.contains(&&*object.kind);
    has_outcome(&object.group, &object.kind) || SERVING.iter().any(is_among)
}

impl PodCoverage {
    /// The doubt if no pod explains a failure.
    fn without_pod(self) -> &'static str {
        match self {
            Self::Whole => "no recorded pod failure explains it",
            Self::Hidden => "pods that you may not see may explain it",
            Self::Unwatched => "no source watches all pods of its namespace, and one of them may explain it",
        }
    }
}

impl ExplainedStates<'_> {
    /// The story has states of pods.
    pub fn has_pods(&self) -> bool {
        self.pod_states().next().is_some()
    }

    /// Whether pods could explain its failure. Objects of an unknown kind own pods only if some are in the story.
    fn may_own_pods(&self) -> bool {
        let Some(object) = self.last_state().map(|last| &*last.object) else { return false };
        let is_namespaced = !object.namespace.is_empty();
        is_namespaced && !is_pod(object) && (makes_pods(object) || self.has_pods())
    }

    /// The reason why the cause may be another one, in words.
    pub(super) fn doubt_text(&self, outcome: Outcome, cause: Option<&Cause>) -> String {
        if outcome == Outcome::Deleted && cause.is_some_and(|cause| cause.kind == CauseKind::Unknown) {
            return "its last versions are missing".to_owned();
        }
        if outcome != Outcome::Failed {
            return String::new();
        }
        let Some(cause) = cause.filter(|cause| cause.kind != CauseKind::Unknown) else {
            let words = if self.may_own_pods() { self.pods.without_pod() } else { "" };
            return words.to_owned();
        };
        let is_missing = |state: &Arc<State>| state.change == Change::Gap && state.seq < cause.seq;
        let words = match cause.object.is_some() {
            true if self.related.iter().any(is_missing) => {
                "versions of its pods are missing before that, so another one may have failed first"
            }
            true if self.is_cut => "older states were not read, so another pod may have failed first",
            _ => "",
        };
        words.to_owned()
    }
}
