//! Ends a batch: waits until it is durable, shows it to the readers, then answers callers. The next batch is
//! made meanwhile.

use std::sync::Arc;
use std::time::Duration;

use kubewitness_core::Version;
use kubewitness_core::document::pack_document;
use kubewitness_core::ports::{AppendBatch, AppendResult, CurrentObject, WitnessedState};
use kubewitness_core::state::Change;
use tokio::time::Instant;

use super::{FLIGHTS, StateWriter, WriteOutcome};
use crate::cache::{RecentObject, ToPack};
use crate::judge::batch::StateBatch;
use crate::source::handle::count;
use crate::source::input::WriterPosition;
use crate::source::landmarks::VersionLandmark;
use crate::source::parts::SourceError;
use crate::write::append::BatchResult;

/// A source that was quiet for this long packs its changed objects: a slice at a time, with a pause in which
/// new lines are taken.
const COOL_AFTER: Duration = Duration::from_secs(1);
const COOL_PAUSE: Duration = Duration::from_millis(1);
const COOL_SLICE: usize = 64;

/// A batch that is being written.
pub(super) struct PendingBatch {
    checkpoint: Option<Version>,
    /// Whether it completes a list.
    listed: bool,
}

impl StateWriter {
    /// Submits the batch once the previous one is durable, and answers callers that wait.
    pub(super) async fn write(&mut self) -> Result<WriteOutcome, SourceError> {
        let decoded = u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        count(&self.parts.shared.counters.decode_ns, decoded);
        let written = self.write_batch().await;
        self.begun = Instant::now();
        written
    }

    async fn write_batch(&mut self) -> Result<WriteOutcome, SourceError> {
        let settled = self.is_settled();
        if self.due || !self.maker.batch.is_empty() {
            while self.flights.len() >= FLIGHTS {
                if self.land_one().await? == WriteOutcome::Stopped {
                    return Ok(WriteOutcome::Stopped);
                }
            }
            self.submit_batch(settled).await;
        }
        self.maker.batch.permits.clear();
        if settled {
            self.maker.gap_log.note_end(&self.parts.shared.name);
        }
        if self.waiting.is_empty() && (self.patient.is_empty() || !settled) {
            return Ok(WriteOutcome::GoesOn);
        }
        if self.await_durable().await? == WriteOutcome::Stopped {
            return Ok(WriteOutcome::Stopped);
        }
        let standing = WriterPosition {
            resume: self.checkpoint.safe_version().cloned(),
            newest: self.checkpoint.newest_seen().cloned(),
            epoch: self.maker.epoch,
            settled,
            error_frame: self.error_frame.clone(),
            understood: self.understood,
        };
        if settled {
            self.waiting.append(&mut self.patient);
        }
        for waiting in self.waiting.drain(..) {
            // A caller that no longer waits was stopped.
            drop(waiting.send(standing.clone()));
        }
        Ok(WriteOutcome::GoesOn)
    }

    /// Submits the batch to the appender. Later events are judged as if it were durable already. The appender
    /// writes it after the previous one, whatever this task does then.
    async fn submit_batch(&mut self, settled: bool) {
        let moved = |safe: &&Version| settled && self.written.as_ref() != Some(safe);
        let checkpoint = self.checkpoint.safe_version().filter(moved).cloned();
        let batch = &mut self.maker.batch;
        let append = AppendBatch {
            source: Arc::clone(&self.parts.shared.name),
            epoch: self.maker.epoch,
            states: batch.states.clone(),
            poison: std::mem::take(&mut batch.poison),
            gaps: std::mem::take(&mut batch.gaps),
            discrepancies: batch.discrepancies.clone(),
            since: self.since.take().or_else(|| self.round.and(self.written.clone())),
            rewinds: match (&self.written, &checkpoint) {
                (Some(written), Some(checkpoint)) => written.is_newer_than(checkpoint),
                _ => false,
            },
            checkpoint: checkpoint.clone(),
        };
        batch.submit_batch(std::mem::take(&mut self.spare));
        self.flights.push_back(PendingBatch { checkpoint, listed: std::mem::take(&mut self.listed) });
        self.due = false;
        // If the appender has ended, it does not answer either.
        self.appends.send(append).await.ok();
        // A task that is woken here would wait for this thread, which continues with the next batch.
        tokio::task::yield_now().await;
    }

    /// Waits until every batch in flight is durable.
    pub(super) async fn await_durable(&mut self) -> Result<WriteOutcome, SourceError> {
        while !self.flights.is_empty() {
            if self.land_one().await? == WriteOutcome::Stopped {
                return Ok(WriteOutcome::Stopped);
            }
        }
        Ok(WriteOutcome::GoesOn)
    }

    async fn land_one(&mut self) -> Result<WriteOutcome, SourceError> {
        let appended = self.appended.recv().await;
        self.take_batch_result(appended)
    }

    /// `None` if it was stopped before the batch was durable.
    pub(super) fn take_batch_result(
        &mut self,
        appended: Option<BatchResult>,
    ) -> Result<WriteOutcome, SourceError> {
        let (Some(appended), Some(flight)) = (appended, self.flights.pop_front()) else {
            return Ok(WriteOutcome::Stopped);
        };
        let appended = appended?;
        if let Some(mut batch) = self.maker.batch.remove_durable() {
            self.publish_batch(&mut batch, flight, &appended);
            batch.clear();
            self.spare = *batch;
        }
        Ok(WriteOutcome::GoesOn)
    }

    /// Makes the newest state of a batch a landmark.
    fn mark_landmark(&self, states: &[WitnessedState]) {
        let Some(newest) = states.iter().rfind(|state| state.change == Change::Present) else { return };
        let mut landmarks = self.parts.shared.lock_landmarks();
        if landmarks.is_news(&newest.resource_version) {
            let made = VersionLandmark::new(&newest.object, &newest.resource_version, &newest.document);
            made.into_iter().for_each(|landmark| landmarks.note_landmark(&landmark));
        }
    }

    fn publish_batch(&mut self, batch: &mut StateBatch, flight: PendingBatch, appended: &AppendResult) {
        if flight.checkpoint.is_some() {
            self.written = flight.checkpoint;
            self.written_at = Instant::now();
        }
        let newest = batch.states.iter().map(|state| state.observed_ms).max();
        self.mark_landmark(&batch.states);
        self.show_in_cache(batch, appended);
        if appended.through > 0 {
            self.parts.shared.set_shown(appended.through);
        }
        self.parts.shared.note_differences(std::mem::take(&mut batch.discrepancies));
        let mut live = self.parts.shared.lock_live();
        live.epoch = self.maker.epoch;
        live.checkpoint = self.written.as_ref().map(Version::to_string).unwrap_or_default();
        live.last_event_ms = newest.or(live.last_event_ms);
        live.synced |= flight.listed;
    }
}

impl StateWriter {
    /// Puts the existing objects into the cache, and removes the others.
    fn show_in_cache(&mut self, batch: &mut StateBatch, appended: &AppendResult) {
        if batch.states.is_empty() {
            return;
        }
        let mut cache = self.parts.shared.write();
        for (place, (state, note)) in batch.states.drain(..).zip(batch.notes.drain(..)).enumerate() {
            if note.past {
                continue;
            }
            match state.change {
                Change::Present => {
                    let seq = appended.seqs.get(place).copied().flatten();
                    // The state was journaled before, by a repeat or by another witness, so its position is
                    // unknown here. The position of the previous version is the best approximation.
                    let seq = seq.or_else(|| cache.seq_of_uid(&state.object.uid)).unwrap_or_default();
                    if let Some(keys) = note.keys {
                        let (recent, status) = RecentObject::of(state, seq, keys, note.secretless_under);
                        cache.put_recent(recent, status);
                    } else {
                        let document = state.document.clone();
                        cache.put_object(&to_current_object(state, seq), Some(&document));
                    }
                }
                Change::Gone | Change::Left => {
                    cache.remove(&state.object.uid);
                }
                Change::Gap => {}
            }
        }
        if cache.has_recent() {
            self.cool_at = Some(Instant::now() + COOL_AFTER);
        }
        drop(cache);
        while self.parts.shared.read().is_overheated() {
            self.pack_old_objects();
        }
    }

    /// Handles a quiet period.
    pub(super) fn cool_down(&mut self) {
        self.pack_old_objects();
        let has_recent = self.parts.shared.read().has_recent();
        self.cool_at = has_recent.then(|| Instant::now() + COOL_PAUSE);
    }

    /// Packs the objects that have been unchanged for longest. No reader waits for it.
    fn pack_old_objects(&self) {
        let to_pack = self.parts.shared.write().longest_quiet(COOL_SLICE);
        let packed: Vec<_> = to_pack.into_iter().map(ToPack::pack_object).collect();
        let mut cache = self.parts.shared.write();
        packed.into_iter().for_each(|packed| cache.store_packed(packed));
    }
}

pub(crate) fn to_current_object(state: WitnessedState, seq: u64) -> CurrentObject {
    CurrentObject {
        object: state.object,
        owner: state.owner,
        resource_version: state.resource_version,
        status: state.status,
        seq,
        observed_ms: state.observed_ms,
        packed: pack_document(&state.document),
    }
}
