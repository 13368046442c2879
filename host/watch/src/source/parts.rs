//! The parts that all tasks of a source share, and the ways in which a source ends.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use kubewitness_core::clock::Clock;
use kubewitness_core::config::SourceSpec;
use kubewitness_core::ports::{JournalError, Witness};
use kubewitness_core::redact::RulesInForce;
use kubewitness_core::status::Rules;
use thiserror::Error;

use crate::connect::request::Api;
use crate::source::handle::Shared;
use crate::source::listers::Listers;
use crate::source::repair_budget::RepairBudget;
use crate::tuning::Tuning;

/// What all tasks of a source share.
pub(crate) struct Parts {
    pub api: Api,
    pub spec: SourceSpec,
    pub shared: Arc<Shared>,
    pub witness: Arc<dyn Witness>,
    pub clock: Arc<dyn Clock>,
    pub rules: Arc<Rules>,
    pub secret_rules: RulesInForce,
    pub listers: Listers,
    pub tuning: Tuning,
    pub repairs: RepairBudget,
    /// Whether this process audits the source. Of several replicas only the leader does.
    pub audits: Arc<AtomicBool>,
}

/// Why a source has ended for good. A passing failure does not end it: the source waits, and its handle shows
/// why.
#[derive(Debug, Error)]
pub enum SourceError {
    /// Stop the process: the data on disk can't be trusted, or this program is wrong.
    #[error(transparent)]
    Journal(JournalError),
    /// Start the source again. It then goes on where another witness of it stands.
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
