//! Says which part of an explanation is not known: versions are missing, or pods are not in the story.
//!
//! The cause of most failures is in a pod. If none of its states is at hand, the explanation tells why they are missing,
//! because a reader would otherwise take the absence for a fact.

use std::sync::Arc;

use super::{Cause, CauseKind, ExplainedStates, Outcome};
use crate::state::{Change, Gap, State};
use crate::version::Version;

/// How far the pods of an object are in its story.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PodCoverage {
    /// All that were witnessed, and no time without a watch is known.
    #[default]
    Whole,
    /// The viewer may not see them.
    Hidden,
    /// No source watches them.
    Unwatched,
    /// Their whole source has a gap in the time of the object.
    Gap,
}

impl PodCoverage {
    /// The doubt if no pod explains a failure.
    fn without_pod(self) -> &'static str {
        match self {
            Self::Whole => "no recorded pod failure explains it",
            Self::Hidden => "pods that you may not see may explain it",
            Self::Unwatched => "pods are not watched, and one of them may explain it",
            Self::Gap => "versions of pods are missing in its time, and one of them may explain it",
        }
    }
}

impl ExplainedStates<'_> {
    /// Whether any state of a pod is in the story.
    pub fn has_pods(&self) -> bool {
        self.pod_states().next().is_some()
    }

    /// Whether a gap of the source of pods lies in the time of the object. One API server counts the versions of both.
    pub fn is_in_its_time(&self, gap: &Gap) -> bool {
        let mut known = self.states.iter().filter(|state| state.change != Change::Gap);
        let Some(first) = known.next() else { return false };
        let last = known.next_back().unwrap_or(first);
        let number = |text: &str| Version::new(text).as_number();
        let versions = first.resource_version.as_number().zip(last.resource_version.as_number());
        match versions {
            Some((from, to)) => {
                number(&gap.after).is_none_or(|after| after < to)
                    && number(&gap.before).is_none_or(|before| before > from)
            }
            None => (first.observed_ms..=last.observed_ms).contains(&gap.recorded_ms),
        }
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
            return self.pods.without_pod().to_owned();
        };
        let is_missing = |state: &Arc<State>| state.change == Change::Gap && state.seq < cause.seq;
        let words = match cause.object.is_some() {
            true if self.related.iter().any(is_missing) => {
                "versions of its pods are missing before that, so another one may have failed first"
            }
            true if self.pods == PodCoverage::Gap => {
                "versions of pods are missing in its time, so another one may have failed first"
            }
            true if self.is_cut => "older states were not read, so another pod may have failed first",
            _ => "",
        };
        words.to_owned()
    }
}
