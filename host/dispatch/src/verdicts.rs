//! Applies the result of a call: verdicts go to the lanes, failed batches are halved or retried after a
//! pause. States whose verdicts nobody knows are looked for among the plugin's receipts.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use kubewitness_core::Seq;
use kubewitness_core::lanes::{ClockReading, SettledAs};
use kubewitness_core::ports::{
    AppliedStates, CallError, CallOutcome, JournalError, StateDelivery, Verdict, split_by_verdict,
};

use crate::DispatchError;
use crate::pacing::breaker::CallFailure;
use crate::reader::CHUNK;
use crate::run::{DispatchLoop, FinishedCall};

/// The states that were looked for, and those that have receipts. A receipt that can't be looked for now is no error.
pub(crate) struct DoubtAnswer {
    asked: Vec<Seq>,
    applied: Result<Result<AppliedStates, CallError>, JournalError>,
}

impl DispatchLoop {
    /// Looks for the receipts of states below the cursor that may have been applied. The plugin may be paused, or its breaker
    /// open: nothing is handed over.
    pub(crate) fn ask_about_doubts(&self, now: Duration) -> Option<BoxFuture<'static, DoubtAnswer>> {
        if now < self.receipt_pause.pause_end() {
            return None;
        }
        let asked = self.lanes.doubtful_positions(CHUNK);
        if asked.is_empty() {
            return None;
        }
        let (backlog, handler) = (Arc::clone(&self.parts.backlog), Arc::clone(&self.parts.handler));
        let looking = async move {
            // A state that the journal no longer has is missed when its turn comes.
            let applied = backlog.read_at(&asked).await.map(|states| {
                let batch =
                    states.into_iter().map(|state| StateDelivery { state, attempt: 1, resync: false });
                batch.collect::<Vec<_>>()
            });
            let applied = match applied {
                Ok(batch) if batch.is_empty() => Ok(Ok(AppliedStates::default())),
                Ok(batch) => Ok(handler.find_applied(&batch).await),
                Err(error) => Err(error),
            };
            DoubtAnswer { asked, applied }
        };
        Some(looking.boxed())
    }

    pub(crate) fn on_asked(
        &mut self,
        DoubtAnswer { asked, applied }: DoubtAnswer,
    ) -> Result<(), DispatchError> {
        let (plugin, now) = (&self.parts.options.plugin, self.parts.clock.elapsed());
        let reason = match applied {
            Ok(Ok(AppliedStates { seqs, kv })) => {
                if self.receipt_pause.is_paused() {
                    self.last_error = None;
                }
                self.receipt_pause.end_pause();
                let finished = self.lanes.resolve_doubts(&asked, &seqs);
                if finished > 0 || !kv.is_empty() {
                    self.saver.note_finished(finished, kv.take());
                }
                return Ok(());
            }
            Ok(Err(error)) => error.to_string(),
            Err(JournalError::Unavailable(reason)) => reason,
            Err(error) => return Err(DispatchError::Journal(error)),
        };
        if !self.receipt_pause.is_paused() {
            tracing::warn!(
                plugin,
                reason,
                "receipts of states that may have been applied can't be looked for yet: their lanes wait"
            );
            self.last_error = Some(reason.into());
        }
        self.receipt_pause.begin_pause(now);
        Ok(())
    }

    pub(crate) fn on_called(&mut self, FinishedCall { batch, result }: FinishedCall) {
        let now = ClockReading::read(&*self.parts.clock);
        let result = result.and_then(|outcome| match outcome.verdicts.len() {
            verdicts if verdicts == batch.len() => Ok(outcome),
            verdicts => Err(CallError::Protocol(format!("{verdicts} verdicts for {} states", batch.len()))),
        });
        match result {
            Ok(outcome) if outcome.is_apart => self.on_mixed(batch, outcome),
            Ok(outcome) => self.on_verdicts(&batch, outcome, now),
            Err(error) => self.on_failure(batch, &error, now),
        }
        if self.breaker.is_open() {
            for part in std::mem::take(&mut self.splits).into_iter().rev() {
                self.return_untried(&part, now);
            }
        }
    }

    /// Takes a batch apart of which nothing was kept. That only some of its states are done says nothing against the
    /// plugin.
    fn on_mixed(&mut self, batch: Vec<StateDelivery>, outcome: CallOutcome) {
        let kv = outcome.kv.take();
        if !kv.is_empty() {
            self.saver.note_finished(0, kv);
        }
        if outcome.verdicts.iter().any(Verdict::is_done) {
            self.breaker.note_success();
        } else {
            self.breaker.note_answer();
        }
        // Each state is of another lane, so the parts may be called in any order.
        self.splits.extend(split_by_verdict(batch, &outcome.verdicts).into_iter().rev());
    }

    fn on_verdicts(&mut self, batch: &[StateDelivery], outcome: CallOutcome, now: ClockReading) {
        let fruitless = outcome.verdicts.iter().all(Verdict::is_retry);
        let has_done = outcome.verdicts.iter().any(Verdict::is_done);
        let mut finished = 0;
        let mut complaint = None;
        for (delivery, verdict) in batch.iter().zip(outcome.verdicts) {
            if let Verdict::Retry { reason, .. } | Verdict::Reject(reason) = &verdict {
                complaint = Some(Arc::from(reason.as_str()));
            }
            if !has_done
                && matches!(verdict, Verdict::Reject(_))
                && let Some(until) = self.breaker.note_rejection(now.elapsed)
            {
                self.postpone_rejected(delivery, until, now);
                continue;
            }
            let settled = self.settle_delivery(delivery, verdict, now);
            finished += usize::from(matches!(
                settled,
                SettledAs::Delivered | SettledAs::Parked | SettledAs::Superseded | SettledAs::Resynced
            ));
        }
        if finished > 0 || !outcome.kv.is_empty() {
            self.saver.note_finished(finished, outcome.kv.take());
        }
        if fruitless {
            self.breaker.note_failure(CallFailure::Fruitless, is_fresh(batch), now.elapsed);
        } else if has_done {
            self.breaker.note_success();
        }
        if complaint.is_some() || self.lanes.lane_stats().retrying == 0 {
            self.last_error = complaint;
        }
    }

    fn on_failure(&mut self, mut batch: Vec<StateDelivery>, error: &CallError, now: ClockReading) {
        let text = error.to_string();
        tracing::warn!(
            plugin = self.parts.options.plugin,
            states = batch.len(),
            error = text,
            "a call failed"
        );
        self.last_error = Some(text.as_str().into());
        if !error.is_plugins_fault() {
            self.return_untried(&batch, now);
            self.breaker.note_failure(CallFailure::Unavailable, is_fresh(&batch), now.elapsed);
        } else if let [delivery] = &batch[..] {
            let verdict = Verdict::Retry { after_ms: None, reason: text };
            if matches!(
                self.settle_delivery(delivery, verdict, now),
                SettledAs::Parked | SettledAs::Superseded
            ) {
                self.saver.note_finished(1, Vec::new());
            }
            self.breaker.note_failure(CallFailure::Alone, is_fresh(&batch), now.elapsed);
        } else if self.breaker.is_open() {
            self.return_untried(&batch, now);
            self.breaker.note_failure(CallFailure::Alone, is_fresh(&batch), now.elapsed);
        } else {
            // Each state is of another lane, so the halves may be called in any order.
            let second = batch.split_off(batch.len() / 2);
            self.splits.extend([second, batch]);
            self.breaker.note_search_failure();
        }
    }

    fn settle_delivery(
        &mut self,
        delivery: &StateDelivery,
        verdict: Verdict,
        now: ClockReading,
    ) -> SettledAs {
        let settled = self.lanes.apply_verdict(delivery.state.seq, verdict, now);
        if settled == SettledAs::Dropped {
            let (plugin, id) = (&self.parts.options.plugin, delivery.state.id.as_str());
            let failed = self.lanes.lane_stats().resync_failed;
            tracing::warn!(plugin, id, failed, "a resync of this state failed and is dropped");
        }
        settled
    }

    /// Puts the states first in line again, in their order. It counts no try.
    fn return_untried(&mut self, batch: &[StateDelivery], now: ClockReading) {
        let before = self.lanes.lane_stats().superseded;
        for delivery in batch.iter().rev() {
            self.lanes.return_untried(delivery.state.seq, now.elapsed);
        }
        if self.lanes.lane_stats().superseded > before {
            self.saver.note_urgent_change();
        }
    }

    /// Lets a rejected state wait while the breaker is open. So the next probe has another state.
    fn postpone_rejected(&mut self, delivery: &StateDelivery, until: Duration, now: ClockReading) {
        let before = self.lanes.lane_stats().superseded;
        self.lanes.postpone_state(delivery.state.seq, until, now.elapsed);
        if self.lanes.lane_stats().superseded > before {
            self.saver.note_urgent_change();
        }
    }
}

fn is_fresh(batch: &[StateDelivery]) -> bool {
    batch.iter().any(|delivery| delivery.attempt == 1)
}
