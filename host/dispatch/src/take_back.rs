//! Takes back what a plugin had finished, because its database has lost the rows. The plugin must not be running. Its
//! next dispatcher hands the states over again, in the order of their lanes; the receipts that survived keep the others
//! from being applied twice.

use std::collections::BTreeSet;
use std::sync::Arc;

use kubewitness_core::Seq;
use kubewitness_core::lanes::unfinished_ranges;
use kubewitness_core::ports::{Backlog, JournalError, KvWrite, PluginProgress, ProgressSave};

use crate::reader::CHUNK;
use crate::subscriptions::SourceInterest;

/// The extent of what was taken back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TakenBack {
    /// The last position that was finished before.
    pub through: Seq,
    /// States that are handed over again.
    pub again: u64,
    /// States of sources to which the plugin no longer subscribes: they are counted again, and not handed over.
    pub ended: u64,
    /// The most states in between that the journal no longer has.
    pub missing: u64,
    /// Dead letters and owed states, wherever they are: the plugin had not finished them.
    pub unfinished: BTreeSet<Seq>,
}

/// Takes back everything that was finished after a position; nothing if that is `None`. `record` makes the notes that
/// are saved in the same transaction. `removed` is the number of states that the plugin had finished and that retention
/// has removed, wherever they were.
///
/// Owed states after the position are no longer owed: they come from the journal like the finished ones of their lanes.
/// Otherwise they would come before those. Dead letters stay, and hold their lanes as before.
pub async fn take_back(
    plugin: &str,
    backlog: &dyn Backlog,
    after: Option<Seq>,
    removed: u64,
    record: impl FnOnce(&TakenBack) -> Vec<KvWrite> + Send,
) -> Result<TakenBack, JournalError> {
    backlog.await_earlier_writes().await?;
    let Some(before) = backlog.plugin_progress(plugin).await? else { return Ok(TakenBack::default()) };
    let through = before.furthest_position();
    let mut taken = TakenBack { through, ..TakenBack::default() };
    let mut save = ProgressSave { progress: before.clone(), ..ProgressSave::default() };
    let letters = letter_positions(plugin, backlog).await?;
    let mut owed = owed_states(plugin, backlog).await?;
    taken.unfinished = letters.iter().copied().chain(owed.iter().map(|(seq, _)| *seq)).collect();
    if let Some(after) = after.filter(|after| *after < through) {
        let after = after.max(before.start);
        owed.retain(|(seq, _)| *seq > after);
        save.progress.take_back(after, &letters);
        let all = count_taken(&before, &save.progress, backlog, through).await?;
        let (earlier, now) = (subscribed_part(&before), subscribed_part(&save.progress));
        taken.again = count_taken(&earlier, &now, backlog, through).await?;
        taken.ended = all.saturating_sub(taken.again);
        // These waited before, and wait now.
        let is_subscribed = |(_, source): &(_, Arc<str>)| before.is_subscribed(source);
        let subscribed = owed.iter().filter(|row| is_subscribed(row)).count() as u64;
        taken.again = taken.again.saturating_sub(subscribed);
        taken.ended = taken.ended.saturating_sub(owed.len() as u64 - subscribed);
        taken.missing = count_missing(backlog, after, through, removed).await?;
        uncount_states(&mut save.progress, all.saturating_sub(owed.len() as u64));
        save.revived = owed.into_iter().map(|(seq, _)| seq).collect();
    }
    save.kv = record(&taken);
    backlog.save(plugin, save).await?;
    Ok(taken)
}

/// Takes states out of the accounts. The filters are not asked again which of them they had refused, so the sum is
/// exact and its parts are not.
fn uncount_states(progress: &mut PluginProgress, states: u64) {
    let delivered = states.min(progress.delivered);
    progress.delivered -= delivered;
    progress.filtered = progress.filtered.saturating_sub(states - delivered);
    progress.superseded = progress.superseded.min(progress.filtered);
}

async fn letter_positions(plugin: &str, backlog: &dyn Backlog) -> Result<BTreeSet<Seq>, JournalError> {
    Ok(backlog.dead_letters(plugin).await?.into_iter().map(|letter| letter.seq).collect())
}

/// The owed states, with their sources.
async fn owed_states(plugin: &str, backlog: &dyn Backlog) -> Result<Vec<(Seq, Arc<str>)>, JournalError> {
    let (mut owed, mut from) = (Vec::new(), 0);
    loop {
        let page = backlog.owed_states(plugin, from, CHUNK).await?;
        owed.extend(page.states.iter().map(|state| (state.seq, Arc::clone(&state.source))));
        match page.end {
            Some(end) => from = end + 1,
            None => return Ok(owed),
        }
    }
}

/// The number of states of the subscription up to a position that are not finished.
async fn count_unfinished(
    progress: &PluginProgress,
    backlog: &dyn Backlog,
    through: Seq,
) -> Result<u64, JournalError> {
    let interest = SourceInterest::of(progress);
    let mut states = 0;
    for (after, end) in unfinished_ranges(progress, through) {
        states += interest.count(backlog, after, end).await?;
    }
    Ok(states)
}

/// The number of states that only the later progress calls unfinished.
async fn count_taken(
    before: &PluginProgress,
    now: &PluginProgress,
    backlog: &dyn Backlog,
    through: Seq,
) -> Result<u64, JournalError> {
    let unfinished = count_unfinished(now, backlog, through).await?;
    Ok(unfinished.saturating_sub(count_unfinished(before, backlog, through).await?))
}

/// The progress without the sources to which the plugin no longer subscribes.
fn subscribed_part(progress: &PluginProgress) -> PluginProgress {
    let mut part = progress.clone();
    part.sources.retain(|start| progress.is_subscribed(&start.source));
    part
}

/// The most states in `(after, through]` that were the plugin's and that the journal no longer has. A position does not tell
/// of which source its state was, so at most as many count as retention has `removed` of the plugin's.
async fn count_missing(
    backlog: &dyn Backlog,
    after: Seq,
    through: Seq,
    removed: u64,
) -> Result<u64, JournalError> {
    let (mut at, mut missing) = (after, 0);
    while at < through && missing < removed {
        let states = backlog.read(at, CHUNK).await?;
        let end = states.last().map_or(through, |state| state.seq.min(through));
        let present = states.iter().filter(|state| state.seq <= through).count() as u64;
        missing += (end - at).saturating_sub(present);
        at = end;
    }
    Ok(missing.min(removed))
}
