//! The end of a batch: it is made durable, then shown to the readers, then answered for.

use std::sync::Arc;

use kubewitness_core::Version;
use kubewitness_core::document::pack;
use kubewitness_core::ports::{Append, Appended, Current, JournalError, Witnessed};
use kubewitness_core::state::Change;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::{Writer, Written};
use crate::SourceError;
use crate::backoff::Backoff;
use crate::handle::count;
use crate::input::Standing;
use crate::landmark::Landmark;

impl Writer {
    /// Makes the batch durable, shows it to the readers, and answers those who wait for it.
    pub(super) async fn write(&mut self, stop: &CancellationToken) -> Result<Written, SourceError> {
        let spent = std::mem::take(&mut self.decoding) + std::mem::take(&mut self.maker.deriving);
        let decoded = u64::try_from(spent.as_nanos()).unwrap_or(u64::MAX);
        count(&self.parts.shared.counters.decode_ns, decoded);
        let settled = self.is_settled();
        if self.due || !self.maker.draft.is_empty() {
            let moved = |safe: &&Version| settled && self.written.as_ref() != Some(safe);
            let checkpoint = self.checkpoint.safe().filter(moved).cloned();
            let append = Append {
                source: Arc::clone(&self.parts.shared.name),
                epoch: self.maker.epoch,
                states: std::mem::take(&mut self.maker.draft.states),
                poison: std::mem::take(&mut self.maker.draft.poison),
                gaps: std::mem::take(&mut self.maker.draft.gaps),
                checkpoint,
            };
            let Some(appended) = self.append(&append, stop).await? else { return Ok(Written::Stopped) };
            self.publish(append, &appended);
        }
        self.maker.draft.clear();
        if settled {
            self.maker.gap_log.end(&self.parts.shared.name);
        }
        if self.waiting.is_empty() && self.patient.is_empty() {
            return Ok(Written::Durable);
        }
        let standing = Standing {
            resume: self.checkpoint.safe().cloned(),
            epoch: self.maker.epoch,
            told: self.told.clone(),
        };
        if settled {
            self.waiting.append(&mut self.patient);
        }
        for waiting in self.waiting.drain(..) {
            // One who no longer waits was stopped.
            drop(waiting.send(standing.clone()));
        }
        Ok(Written::Durable)
    }

    /// Tries until it is durable. `None`: stopped before it was.
    async fn append(
        &mut self,
        append: &Append,
        stop: &CancellationToken,
    ) -> Result<Option<Appended>, SourceError> {
        let tuning = &self.parts.tuning;
        let mut backoff = Backoff::new(tuning.first_pause, tuning.longest_pause);
        loop {
            let why = match self.parts.witness.append(append.clone()).await {
                Ok(appended) => {
                    self.parts.shared.live().stalled = None;
                    return Ok(Some(appended));
                }
                Err(JournalError::Unavailable(why)) => why,
                Err(fatal) => return Err(SourceError::Journal(fatal)),
            };
            let pause = backoff.next(&mut self.dice, None);
            tracing::warn!(source = %append.source, ?pause, "not reading: the journal can't be written: {why}");
            self.parts.shared.live().stalled = Some(format!("the journal can't be written: {why}"));
            tokio::select! {
                () = sleep(pause) => {}
                () = stop.cancelled() => return Ok(None),
            }
        }
    }

    /// The newest of a batch is what the history is known by from now on.
    fn mark(&self, states: &[Witnessed]) {
        let Some(newest) = states.iter().rfind(|state| state.change == Change::Present) else { return };
        let mut landmark = self.parts.shared.landmark();
        if landmark.as_ref().is_none_or(|held| newest.resource_version.is_newer_than(held.version())) {
            let made = Landmark::new(&newest.object, &newest.resource_version, &newest.document);
            *landmark = made.or_else(|| landmark.take());
        }
    }

    fn publish(&mut self, append: Append, appended: &Appended) {
        self.due = false;
        if append.checkpoint.is_some() {
            self.written = append.checkpoint;
            self.written_at = Instant::now();
        }
        let newest = append.states.iter().map(|state| state.observed_ms).max();
        self.mark(&append.states);
        if !append.states.is_empty() {
            let mut cache = self.parts.shared.write();
            for (place, state) in append.states.into_iter().enumerate() {
                if !self.maker.draft.says_now(place, &state) {
                    continue;
                }
                match state.change {
                    Change::Present => {
                        let seq = appended.seqs.get(place).copied().flatten();
                        // Journaled before (by a replay, or by another witness): its position is
                        // not known here, the one of the version before is the best there is.
                        let seq = seq.or_else(|| cache.by_uid(&state.object.uid).map(|held| held.seq));
                        let document = state.document.clone();
                        cache.put(&current(state, seq.unwrap_or_default()), Some(&document));
                    }
                    Change::Gone | Change::Left => {
                        cache.remove(&state.object.uid);
                    }
                    Change::Gap => {}
                }
            }
        }
        let mut live = self.parts.shared.live();
        live.epoch = append.epoch;
        live.checkpoint = self.written.as_ref().map(Version::to_string).unwrap_or_default();
        live.last_event_ms = newest.or(live.last_event_ms);
        live.synced |= std::mem::take(&mut self.listed);
    }
}

fn current(state: Witnessed, seq: u64) -> Current {
    Current {
        object: state.object,
        owner: state.owner,
        resource_version: state.resource_version,
        status: state.status,
        seq,
        observed_ms: state.observed_ms,
        packed: pack(&state.document),
    }
}
