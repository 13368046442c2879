//! The end of a batch: it is made durable, then shown to the readers, then answered for.

use std::sync::Arc;
use std::time::Duration;

use kubewitness_core::Version;
use kubewitness_core::document::pack;
use kubewitness_core::ports::{Append, Appended, Current, JournalError, Witnessed};
use kubewitness_core::state::Change;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::{Writer, Written};
use crate::SourceError;
use crate::backoff::Backoff;
use crate::cache::{Cooling, Hot};
use crate::handle::count;
use crate::input::Standing;
use crate::landmark::Landmark;

/// A source that was quiet for this long has its changed objects packed, so many at a time, with
/// a pause for whatever has come meanwhile.
const COOL_AFTER: Duration = Duration::from_secs(1);
const COOL_PAUSE: Duration = Duration::from_millis(1);
const COOL_SLICE: usize = 64;

impl Writer {
    /// Makes the batch durable, shows it to the readers, and answers those who wait for it.
    pub(super) async fn write(&mut self, stop: &CancellationToken) -> Result<Written, SourceError> {
        let decoded = u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        count(&self.parts.shared.counters.decode_ns, decoded);
        let written = self.write_batch(stop).await;
        self.begun = Instant::now();
        written
    }

    async fn write_batch(&mut self, stop: &CancellationToken) -> Result<Written, SourceError> {
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
                discrepancies: std::mem::take(&mut self.maker.draft.discrepancies),
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
            newest: self.checkpoint.newest().cloned(),
            epoch: self.maker.epoch,
            settled,
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
        let mut landmarks = self.parts.shared.landmarks();
        if landmarks.is_news(&newest.resource_version) {
            let made = Landmark::new(&newest.object, &newest.resource_version, &newest.document);
            made.into_iter().for_each(|landmark| landmarks.note(&landmark));
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
        self.show(append.states, appended);
        if let Some(newest) = appended.seqs.iter().flatten().max() {
            self.parts.shared.set_shown(*newest);
        }
        self.parts.shared.differs(append.discrepancies);
        let mut live = self.parts.shared.live();
        live.epoch = append.epoch;
        live.checkpoint = self.written.as_ref().map(Version::to_string).unwrap_or_default();
        live.last_event_ms = newest.or(live.last_event_ms);
        live.synced |= std::mem::take(&mut self.listed);
    }
}

impl Writer {
    /// Puts what is there now into the cache, and takes out what isn't.
    fn show(&mut self, states: Vec<Witnessed>, appended: &Appended) {
        if states.is_empty() {
            return;
        }
        let mut cache = self.parts.shared.write();
        let notes = self.maker.draft.notes.drain(..);
        for (place, (state, note)) in states.into_iter().zip(notes).enumerate() {
            if note.past {
                continue;
            }
            match state.change {
                Change::Present => {
                    let seq = appended.seqs.get(place).copied().flatten();
                    // Journaled before (by a replay, or by another witness): its position is
                    // not known here, the one of the version before is the best there is.
                    let seq = seq.or_else(|| cache.seq(&state.object.uid)).unwrap_or_default();
                    if let Some(keys) = note.keys {
                        let (hot, status) = Hot::of(state, seq, keys);
                        cache.put_hot(hot, status);
                    } else {
                        let document = state.document.clone();
                        cache.put(&current(state, seq), Some(&document));
                    }
                }
                Change::Gone | Change::Left => {
                    cache.remove(&state.object.uid);
                }
                Change::Gap => {}
            }
        }
        if cache.is_hot() {
            self.cool_at = Some(Instant::now() + COOL_AFTER);
        }
        drop(cache);
        while self.parts.shared.read().is_overheated() {
            self.cool();
        }
    }

    /// Nothing has come for a while.
    pub(super) fn cool_down(&mut self) {
        self.cool();
        let is_hot = self.parts.shared.read().is_hot();
        self.cool_at = is_hot.then(|| Instant::now() + COOL_PAUSE);
    }

    /// Packs some of those that changed the longest ago. Readers wait for none of it.
    fn cool(&self) {
        let cooling = self.parts.shared.write().coolest(COOL_SLICE);
        let cooled: Vec<_> = cooling.into_iter().map(Cooling::packed).collect();
        let mut cache = self.parts.shared.write();
        cooled.into_iter().for_each(|cooled| cache.cool(cooled));
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
