//! Versions that are missing, and why: what becomes a gap.

pub(crate) use kubewitness_core::state::gap_reason as reason;

/// Versions strictly between two, either empty where it is not known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hole {
    pub after: String,
    pub before: String,
    pub reason: &'static str,
    pub message: String,
}
