//! Loads a source's objects from the journal into its cache. It sends no request to the server. One task
//! reads the journal while another fills the cache.

use kubewitness_core::Seq;
use kubewitness_core::document::unpack_document;
use kubewitness_core::ports::{CurrentObject, JournalError, WarmStart};
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::cache::{CacheFill, ObjectCache};
use crate::connect::backoff::{Backoff, JitterDice};
use crate::source::landmarks::{LandmarkSet, VersionLandmark};
use crate::source::parts::{SourceError, SourceParts};

/// How many parts may be read and not yet placed.
const AHEAD: usize = 2;

pub(crate) enum LoadMode {
    /// Begins an attempt. Objects of an earlier attempt are dropped.
    Objects(mpsc::Receiver<Vec<CurrentObject>>),
    /// The attempt is complete up to this position. The answer comes once everything is placed.
    Whole(Seq, oneshot::Sender<()>),
}

/// Reads the journal. Returns `None` if it was stopped before the end.
pub(crate) async fn read(
    parts: &SourceParts,
    loads: mpsc::Sender<LoadMode>,
    stop: &CancellationToken,
) -> Result<Option<WarmStart>, SourceError> {
    let mut backoff = Backoff::new(parts.tuning.first_pause, parts.tuning.journal_pause);
    let mut dice = JitterDice::new(parts.tuning.seed);
    loop {
        let (given, taken) = mpsc::channel(AHEAD);
        if loads.send(LoadMode::Objects(taken)).await.is_err() {
            return Ok(None);
        }
        let why = match parts.witness.warm_by_parts(&parts.spec.name, given).await {
            Ok(warm) => {
                parts.shared.lock_live().stalled = None;
                remember_discrepancies(parts).await;
                let (filled, is_filled) = oneshot::channel();
                let whole = loads.send(LoadMode::Whole(warm.through, filled)).await.is_ok()
                    && is_filled.await.is_ok();
                return Ok(whole.then_some(warm));
            }
            Err(JournalError::Unavailable(why)) => why,
            Err(fatal) => return Err(fatal.into()),
        };
        let pause = backoff.next(&mut dice, None);
        tracing::warn!(source = %parts.spec.name, ?pause, "the journal can't be read: {why}");
        parts.shared.lock_live().stalled = Some(format!("the journal can't be read: {why}"));
        tokio::select! {
            () = sleep(pause) => {}
            () = stop.cancelled() => return Ok(None),
        }
    }
}

async fn remember_discrepancies(parts: &SourceParts) {
    match parts.witness.audit_differences(&parts.spec.name).await {
        Ok(before) => parts.shared.load_differences(before),
        // Only people read these, so watching does not wait for them.
        Err(error) => {
            tracing::warn!(source = %parts.spec.name, "the results of earlier audits can't be read: {error}");
        }
    }
}

/// Fills the cache with what [`read`] sends. Returns `false` if that ended early.
pub(crate) async fn fill_cache(parts: &SourceParts, mut loads: mpsc::Receiver<LoadMode>) -> bool {
    let start = || CacheFill::instead_of(&parts.shared.read());
    let mut filling = start();
    while let Some(load) = loads.recv().await {
        match load {
            LoadMode::Objects(mut objects) => {
                filling = start();
                while let Some(part) = objects.recv().await {
                    filling.add(part);
                }
            }
            LoadMode::Whole(through, filled) => {
                let cache = filling.into_cache();
                *parts.shared.lock_landmarks() = landmarks_of(&cache);
                *parts.shared.write() = cache;
                parts.shared.set_shown(through);
                return filled.send(()).is_ok();
            }
        }
    }
    false
}

/// The landmarks among the journal's objects.
fn landmarks_of(cache: &ObjectCache) -> LandmarkSet {
    let mut landmarks = LandmarkSet::default();
    for held in cache.chosen_objects(|numbers| LandmarkSet::choose_versions(&numbers.iter().copied())) {
        let document = unpack_document(&held.packed).ok();
        let made = document
            .and_then(|document| VersionLandmark::new(&held.object, &held.resource_version, &document));
        made.into_iter().for_each(|landmark| landmarks.note_landmark(&landmark));
    }
    landmarks
}
