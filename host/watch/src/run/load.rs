//! Loads a source's objects from the journal into its cache. It asks the server nothing. One task reads the
//! journal while another places what was read.

use kubewitness_core::Seq;
use kubewitness_core::document::unpack;
use kubewitness_core::ports::{Current, JournalError, Warm};
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::cache::{Cache, Filling};
use crate::connect::backoff::{Backoff, Dice};
use crate::source::landmarks::{Landmark, Landmarks};
use crate::source::parts::{Parts, SourceError};

/// Parts that were read and are not placed yet.
const AHEAD: usize = 2;

pub(crate) enum Load {
    /// Begins an attempt. Objects of an earlier attempt are dropped.
    Objects(mpsc::Receiver<Vec<Current>>),
    /// The attempt is complete up to this position. The answer comes once everything is placed.
    Whole(Seq, oneshot::Sender<()>),
}

/// Reads the journal. Returns `None` if it was stopped before the end.
pub(crate) async fn read(
    parts: &Parts,
    loads: mpsc::Sender<Load>,
    stop: &CancellationToken,
) -> Result<Option<Warm>, SourceError> {
    let mut backoff = Backoff::new(parts.tuning.first_pause, parts.tuning.journal_pause);
    let mut dice = Dice::new(parts.tuning.seed);
    loop {
        let (given, taken) = mpsc::channel(AHEAD);
        if loads.send(Load::Objects(taken)).await.is_err() {
            return Ok(None);
        }
        let why = match parts.witness.warm_by_parts(&parts.spec.name, given).await {
            Ok(warm) => {
                parts.shared.live().stalled = None;
                remember_discrepancies(parts).await;
                let (filled, is_filled) = oneshot::channel();
                let whole =
                    loads.send(Load::Whole(warm.through, filled)).await.is_ok() && is_filled.await.is_ok();
                return Ok(whole.then_some(warm));
            }
            Err(JournalError::Unavailable(why)) => why,
            Err(fatal) => return Err(fatal.into()),
        };
        let pause = backoff.next(&mut dice, None);
        tracing::warn!(source = %parts.spec.name, ?pause, "the journal can't be read: {why}");
        parts.shared.live().stalled = Some(format!("the journal can't be read: {why}"));
        tokio::select! {
            () = sleep(pause) => {}
            () = stop.cancelled() => return Ok(None),
        }
    }
}

async fn remember_discrepancies(parts: &Parts) {
    match parts.witness.discrepancies(&parts.spec.name).await {
        Ok(before) => parts.shared.differed(before),
        // Only people read these, so watching does not wait for them.
        Err(error) => {
            tracing::warn!(source = %parts.spec.name, "the results of earlier audits can't be read: {error}");
        }
    }
}

/// Fills the cache with what [`read`] sends. Returns `false` if that ended early.
pub(crate) async fn fill(parts: &Parts, mut loads: mpsc::Receiver<Load>) -> bool {
    let start = || Filling::instead_of(&parts.shared.read());
    let mut filling = start();
    while let Some(load) = loads.recv().await {
        match load {
            Load::Objects(mut objects) => {
                filling = start();
                while let Some(part) = objects.recv().await {
                    filling.add(part);
                }
            }
            Load::Whole(through, filled) => {
                let cache = filling.finish();
                *parts.shared.landmarks() = landmarks(&cache);
                *parts.shared.write() = cache;
                parts.shared.set_shown(through);
                return filled.send(()).is_ok();
            }
        }
    }
    false
}

/// The landmarks among the journal's objects.
fn landmarks(cache: &Cache) -> Landmarks {
    let mut landmarks = Landmarks::default();
    for held in cache.chosen(|numbers| Landmarks::chosen(&numbers.iter().copied())) {
        let document = unpack(&held.packed).ok();
        let made =
            document.and_then(|document| Landmark::new(&held.object, &held.resource_version, &document));
        made.into_iter().for_each(|landmark| landmarks.note(&landmark));
    }
    landmarks
}
