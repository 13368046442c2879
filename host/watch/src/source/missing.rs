//! Defines missing versions: which they are, and why. They become a gap.

pub(crate) use kubewitness_core::state::gap_reason as reason;

/// The versions strictly between two. Either bound is empty if it is not known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MissingVersions {
    pub after: String,
    pub before: String,
    pub reason: &'static str,
    pub message: String,
}
