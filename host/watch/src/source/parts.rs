//! What all tasks of a source hold, and how a source ends.

use std::sync::Arc;

use kubewitness_core::clock::Clock;
use kubewitness_core::config::SourceSpec;
use kubewitness_core::ports::{JournalError, Witness};
use kubewitness_core::status::Rules;
use thiserror::Error;

use crate::connect::request::Api;
use crate::source::handle::Shared;
use crate::source::listers::Listers;
use crate::tuning::Tuning;

/// What all parts of a source share.
pub(crate) struct Parts {
    pub api: Api,
    pub spec: SourceSpec,
    pub shared: Arc<Shared>,
    pub witness: Arc<dyn Witness>,
    pub clock: Arc<dyn Clock>,
    pub rules: Arc<Rules>,
    pub listers: Listers,
    pub tuning: Tuning,
}

/// Why a source has ended for good. Everything that can pass is waited for instead, and shown
/// in the handle.
#[derive(Debug, Error)]
pub enum SourceError {
    /// Stop the process: what is on disk can't be trusted, or this program is wrong.
    #[error(transparent)]
    Journal(JournalError),
    /// Start the source again, which then goes on from where another witness of it is.
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
