//! From the journal's memory of a source to its cache, with nothing asked of the server. One task
//! reads the journal, and another puts what was read in its place meanwhile.

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

/// Parts that were read and are not in their place yet.
const AHEAD: usize = 2;

pub(crate) enum Load {
    /// A try to read all; what came before was not all.
    Objects(mpsc::Receiver<Vec<Current>>),
    /// It was all, up to this position. Answered once it is in its place.
    Whole(Seq, oneshot::Sender<()>),
}

/// Reads the journal. `None`: stopped before that could be done.
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
        // They are for people to read: watching doesn't wait for them.
        Err(error) => {
            tracing::warn!(source = %parts.spec.name, "what audits found before can't be read: {error}");
        }
    }
}

/// Fills the cache with what [`read`] gives. `false`: that has ended before it had all.
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

/// Of what the journal has.
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
