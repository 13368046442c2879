//! The probation of a new version: its first calls. One success passes it, because a later failure may be
//! caused by a state or a database. A version that fails for several states before its first success is
//! rolled back to the previous version.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use kubewitness_core::Seq;
use kubewitness_core::ports::{
    AppliedStates, CallError, CallOutcome, CallPause, KvWrite, PluginHandler, ScheduledCall, StateDelivery,
};
use tokio::sync::Notify;

/// One poison state does not count against a version. This many states, each alone in its call, do.
const STATES: usize = 3;
/// Batches are split until a state fails alone. If every call fails, that is known before this many.
const CALLS: usize = 12;

/// Clone freely: all clones share the same version.
#[derive(Clone)]
pub struct VersionProbation {
    evidence: Arc<Mutex<ProbationEvidence>>,
    /// Shared by all versions of all plugins.
    decided: Arc<Notify>,
}

#[derive(Debug, Default)]
struct ProbationEvidence {
    has_passed: bool,
    calls: usize,
    alone: BTreeSet<Seq>,
    /// Why it has finally failed.
    failed: Option<String>,
}

impl ProbationEvidence {
    /// Whether this call decides that the version has passed or failed.
    fn take(&mut self, states: &[Seq], error: Option<&CallError>) -> bool {
        if self.has_passed || self.failed.is_some() {
            return false;
        }
        let Some(error) = error else {
            self.has_passed = true;
            return true;
        };
        if !error.is_plugins_fault() {
            return false;
        }
        self.calls += 1;
        if let [seq] = states {
            self.alone.insert(*seq);
        }
        if self.alone.len() >= STATES || self.calls >= CALLS {
            // A guest's text may have many lines.
            self.failed = Some(error.to_string().lines().next().unwrap_or_default().to_owned());
        }
        self.failed.is_some()
    }
}

impl VersionProbation {
    pub fn new(decided: Arc<Notify>) -> Self {
        Self { evidence: Arc::default(), decided }
    }

    /// Why the version has failed, if it has.
    pub fn why_failed(&self) -> Option<String> {
        self.lock_evidence().failed.clone()
    }

    pub fn has_passed(&self) -> bool {
        self.lock_evidence().has_passed
    }

    fn lock_evidence(&self) -> std::sync::MutexGuard<'_, ProbationEvidence> {
        self.evidence.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Passes calls on, and observes their results.
pub struct WatchedHandler {
    pub handler: Arc<dyn PluginHandler>,
    pub probation: VersionProbation,
}

#[async_trait]
impl PluginHandler for WatchedHandler {
    async fn handle_batch(&self, batch: &[StateDelivery]) -> Result<CallOutcome, CallError> {
        let called = self.handler.handle_batch(batch).await;
        let states: Vec<_> = batch.iter().map(|delivery| delivery.state.seq).collect();
        if self.probation.lock_evidence().take(&states, called.as_ref().err()) {
            self.probation.decided.notify_one();
        }
        called
    }

    async fn find_applied(&self, batch: &[StateDelivery]) -> Result<AppliedStates, CallError> {
        self.handler.find_applied(batch).await
    }

    /// A tick counts neither for nor against the version: the server that it sends to may be at fault.
    async fn handle_tick(&self, tick: ScheduledCall) -> Result<Vec<KvWrite>, CallError> {
        self.handler.handle_tick(tick).await
    }

    fn pause_before_call(&self) -> Option<CallPause> {
        self.handler.pause_before_call()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trap() -> CallError {
        CallError::Trap("unreachable".into())
    }

    #[test]
    fn a_version_that_fails_for_several_states_before_its_first_success_has_failed() {
        let mut evidence = ProbationEvidence::default();
        assert!(!evidence.take(&[1, 2], Some(&trap())) && !evidence.take(&[1], Some(&trap())));
        assert!(!evidence.take(&[1], Some(&trap())), "one state that is tried again is one");
        assert!(!evidence.take(&[2], Some(&CallError::Unavailable("the database is away".into()))));
        assert!(!evidence.take(&[2], Some(&trap())) && evidence.take(&[3], Some(&trap())));
        assert!(evidence.failed.as_deref().unwrap().contains("unreachable"));
        assert!(!evidence.take(&[4], Some(&trap())), "it is told once");
    }

    #[test]
    fn whole_batches_that_fail_are_evidence_too_and_one_success_ends_it() {
        let mut evidence = ProbationEvidence::default();
        let failed = (0..CALLS).filter(|_| evidence.take(&[1, 2], Some(&trap()))).count();
        assert_eq!((failed, evidence.calls), (1, CALLS));
        let mut evidence = ProbationEvidence::default();
        assert!(!evidence.take(&[1], Some(&trap())) && evidence.take(&[2], None));
        assert!(!evidence.take(&[2], None) && evidence.has_passed, "it is told once");
        for seq in 3..100 {
            assert!(!evidence.take(&[seq], Some(&trap())), "it has worked once");
        }
    }
}
