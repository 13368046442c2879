//! The parts that all tasks of a source share, and the ways in which a source ends.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use kubewitness_core::clock::Clock;
use kubewitness_core::config::SourceSpec;
use kubewitness_core::ports::{JournalError, StateWitness};
use kubewitness_core::redact::RulesInForce;
use kubewitness_core::status::StatusRules;
use thiserror::Error;

use crate::connect::request::ApiClient;
use crate::source::handle::SharedState;
use crate::source::listers::CacheListers;
use crate::source::repair_budget::RepairBudget;
use crate::tuning::WatchTuning;

/// The values that all tasks of a source share.
pub(crate) struct SourceParts {
    pub api: ApiClient,
    pub spec: SourceSpec,
    pub shared: Arc<SharedState>,
    pub witness: Arc<dyn StateWitness>,
    pub clock: Arc<dyn Clock>,
    pub rules: Arc<StatusRules>,
    pub secret_rules: RulesInForce,
    pub listers: CacheListers,
    pub tuning: WatchTuning,
    pub repairs: RepairBudget,
    /// Whether this process audits the source. Of several replicas only the leader does.
    pub audits: Arc<AtomicBool>,
}

/// Why a source has ended for good. A passing failure does not end it: the source waits, and its handle shows
/// why.
#[derive(Debug, Error)]
pub enum SourceError {
    /// Stop the process: the data on disk can't be trusted, or this program has a bug.
    #[error(transparent)]
    Journal(JournalError),
    /// Restart the source. It then continues at the position of another witness.
    #[error("{0}")]
    Overtaken(String),
}

impl From<JournalError> for SourceError {
    fn from(error: JournalError) -> Self {
        match error {
            JournalError::Overtaken(why) => Self::Overtaken(why),
            error => Self::Journal(error),
        }
    }
}
