//! Runs a source that another controller witnesses. It stores and shows the carried states as if this
//! controller had watched them. It sends no request to the API server.

use std::sync::Arc;

use kubewitness_core::ports::{AppendBatch, AppendResult, WitnessedState};
use kubewitness_core::state::{Change, ObjectRef};
use kubewitness_core::stream::{FeedItem, StateFeed};
use kubewitness_core::{events, project};
use tokio::sync::mpsc;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::connect::backoff::{Backoff, JitterDice};
use crate::judge::owners;
use crate::run::{SourceTask, load};
use crate::source::handle::count;
use crate::source::parts::{SourceError, SourceParts};
use crate::write::append::write;
use crate::write::to_current_object;

impl SourceTask {
    /// Reads the feed until the stop. An error is final.
    pub async fn run_feed(
        self,
        mut feed: Box<dyn StateFeed>,
        stop: CancellationToken,
    ) -> Result<(), SourceError> {
        let parts = Arc::new(self.parts);
        let (loads, loading) = mpsc::channel(1);
        let (warm, filled) =
            tokio::join!(load::read(&parts, loads, &stop), load::fill_cache(&parts, loading));
        let Some(warm) = warm?.filter(|_| filled) else { return Ok(()) };
        feed.resume_from(warm.checkpoint.as_ref().map(|_| warm.epoch), warm.checkpoint.as_ref());
        {
            let mut live = parts.shared.lock_live();
            live.epoch = warm.epoch;
            live.checkpoint = warm.checkpoint.as_ref().map(ToString::to_string).unwrap_or_default();
        }
        let ended = follow_feed(&parts, &mut *feed, &stop).await;
        feed.close().await;
        ended
    }
}

async fn follow_feed(
    parts: &SourceParts,
    feed: &mut dyn StateFeed,
    stop: &CancellationToken,
) -> Result<(), SourceError> {
    let mut dice = JitterDice::new(parts.tuning.seed);
    let mut backoff = Backoff::new(parts.tuning.first_pause, parts.tuning.longest_pause);
    loop {
        let Some(fed) = stop.run_until_cancelled(feed.next()).await else { return Ok(()) };
        let taken = match fed {
            Ok(fed) => match take(parts, fed, &mut dice, stop).await? {
                Some(()) => feed.confirm_durable().await,
                None => return Ok(()),
            },
            Err(away) => Err(away),
        };
        match taken {
            Ok(()) => {
                backoff.reset_tries();
                parts.shared.set_condition(None);
            }
            Err(error) => {
                parts.shared.set_condition(Some(error.to_string()));
                let pause = sleep(backoff.next(&mut dice, None));
                if stop.run_until_cancelled(pause).await.is_none() {
                    return Ok(());
                }
            }
        }
    }
}

/// Makes what arrived durable, then shows it. Returns `None` if it was stopped before.
async fn take(
    parts: &SourceParts,
    fed: FeedItem,
    dice: &mut JitterDice,
    stop: &CancellationToken,
) -> Result<Option<()>, SourceError> {
    let FeedItem { mut append, late, repeats, passed, level } = fed;
    count(&parts.shared.counters.duplicates, repeats);
    count(&parts.shared.counters.poison, passed);
    let is_nothing = append.states.is_empty() && append.poison.is_empty() && append.gaps.is_empty();
    if !is_nothing || append.checkpoint.is_some() {
        append.states.iter_mut().for_each(|state| complete_state(parts, state));
        let Some(appended) = write(parts, &append, dice, stop).await else { return Ok(None) };
        show_states(parts, append, &late, &appended?);
    }
    let mut live = parts.shared.lock_live();
    live.synced |= level;
    Ok(Some(()))
}

/// Adds the facts that this controller knows better than the carrier: the direct owner and the former
/// document.
fn complete_state(parts: &SourceParts, state: &mut WitnessedState) {
    let known = parts.shared.read().known_object(&state.object.uid);
    state.base = known.as_ref().and_then(|known| known.document_hint());
    if events::is_event(&state.object.group, &state.object.kind) {
        let is_another = |about: &ObjectRef| state.owner.as_ref().is_some_and(|owner| owner.uid != about.uid);
        state.controller = events::event_subject(&state.document).filter(is_another).map(Arc::new);
    } else if let Ok(envelope) = project::read_envelope(&state.document) {
        state.controller = owners::direct_owner(&envelope, state.owner.as_ref());
    }
}

fn show_states(parts: &SourceParts, append: AppendBatch, late: &[bool], appended: &AppendResult) {
    let counters = &parts.shared.counters;
    count(&counters.poison, append.poison.len() as u64);
    count(&counters.gaps, append.gaps.len() as u64);
    let newest = append.states.iter().map(|state| state.observed_ms).max();
    let mut cache = parts.shared.write();
    for ((state, seq), late) in append.states.into_iter().zip(&appended.seqs).zip(late) {
        let counter = match (seq, state.change) {
            (None, _) => &counters.duplicates,
            (_, Change::Present) => &counters.present,
            (_, Change::Gone) => &counters.gone,
            (_, Change::Left) => &counters.left,
            (_, Change::Gap) => &counters.gaps,
        };
        count(counter, 1);
        match state.change {
            // A late state does not change the cache.
            _ if *late => {}
            Change::Present => {
                let seq = seq.or_else(|| cache.seq_of_uid(&state.object.uid)).unwrap_or_default();
                let document = state.document.clone();
                cache.put_object(&to_current_object(state, seq), Some(&document));
            }
            Change::Gone | Change::Left => {
                cache.remove(&state.object.uid);
            }
            Change::Gap => {}
        }
    }
    drop(cache);
    if let Some(newest) = appended.seqs.iter().flatten().max() {
        parts.shared.set_shown(*newest);
    }
    let mut live = parts.shared.lock_live();
    live.epoch = append.epoch;
    if let Some(checkpoint) = append.checkpoint {
        live.checkpoint = checkpoint.to_string();
    }
    live.last_event_ms = newest.or(live.last_event_ms);
}
