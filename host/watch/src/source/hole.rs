//! Versions that are missing, and why: what becomes a gap.

/// Why versions are missing; the words that programs read in a gap.
pub(crate) mod reason {
    /// The missed versions were asked for one by one, and compaction had removed them.
    pub const COMPACTED: &str = "Compacted";
    /// Asking for them would have taken more requests or time than the budget allows.
    pub const BUDGET: &str = "BudgetSpent";
    /// The server can't be asked for old versions.
    pub const UNREADABLE: &str = "ExactListRefused";
    /// The server's history was replaced by another one.
    pub const REPLACED: &str = kubewitness_core::Gap::REPLACED;
}

/// Versions strictly between two, either empty where it is not known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hole {
    pub after: String,
    pub before: String,
    pub reason: &'static str,
    pub message: String,
}
