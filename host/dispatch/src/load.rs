//! Loads where a dispatcher goes on: progress, dead letters, open states, unread states. Notes where a plugin begins
//! that can't be started yet.

use std::sync::Arc;
use std::time::Duration;

use kubewitness_core::Seq;
use kubewitness_core::config::{OnDeadLetter, Start};
use kubewitness_core::lanes::{LaneOptions, Lanes, unfinished_ranges};
use kubewitness_core::ports::{
    Backlog, DeadLetter, JournalError, OwedPage, PluginPause, PluginProgress, ProgressSave,
};

use crate::reader::{BacklogReader, CHUNK};
use crate::run::RunParts;
use crate::subscriptions::SourceInterest;
use crate::{DispatchError, DispatchOptions, SourceSubscription};

/// The pause between tries while the journal can't be read.
const AGAIN: Duration = Duration::from_millis(500);

pub(crate) struct LoadedProgress {
    pub lanes: Lanes,
    pub interest: SourceInterest,
    pub reader: BacklogReader,
    pub paused: Option<Arc<PluginPause>>,
}

/// Tries until the journal can be read. Without it nothing can be handed over correctly.
pub(crate) async fn load_patiently(parts: &RunParts) -> Result<LoadedProgress, DispatchError> {
    let RunParts { options, backlog, clock, .. } = parts;
    loop {
        match load(options, &**backlog, clock.now_ms()).await {
            Err(JournalError::Unavailable(reason)) => {
                tracing::warn!(plugin = options.plugin, reason, "the plugin's progress can't be loaded yet");
                tokio::time::sleep(AGAIN).await;
            }
            other => return other.map_err(DispatchError::Journal),
        }
    }
}

/// Notes where the sources of a plugin begin that is configured and can't be started yet: it is compiled, or waits for
/// a secret or a database. So retention keeps what the plugin is owed, within the bounds of a plugin that lags. A
/// source that starts with `now` is owed nothing before the first start. A plugin that was started goes on from its
/// progress, and is no longer taken for one that was removed.
pub async fn note_beginning(
    plugin: &str,
    subscriptions: &[SourceSubscription],
    backlog: &dyn Backlog,
    now_ms: u64,
) -> Result<(), JournalError> {
    let noted = backlog.plugin_progress(plugin).await?;
    let progress = match &noted {
        Some(started) if !started.is_unstarted => PluginProgress { retired_ms: None, ..started.clone() },
        _ => {
            let newest = *backlog.newest_position().borrow();
            let mut owed = Vec::new();
            for subscription in subscriptions.iter().filter(|subscription| subscription.start != Start::Now) {
                let start = at_position(subscription, None, backlog, newest, now_ms).await?;
                owed.push(SourceSubscription { start, ..subscription.clone() });
            }
            let mut progress = PluginProgress { is_unstarted: true, ..PluginProgress::default() };
            progress.start = SourceInterest::resolve_starts(&owed, &mut progress, newest).start();
            progress.cursor = progress.start;
            progress
        }
    };
    let is_owed = noted.is_some() || !progress.sources.is_empty();
    if is_owed && noted.as_ref() != Some(&progress) {
        backlog.save(plugin, ProgressSave { progress, ..ProgressSave::default() }).await?;
    }
    Ok(())
}

async fn load(
    options: &DispatchOptions,
    backlog: &dyn Backlog,
    now_ms: u64,
) -> Result<LoadedProgress, JournalError> {
    // The last save of the plugin's former dispatcher may still be in flight.
    backlog.await_earlier_writes().await?;
    let kept = backlog.plugin_progress(&options.plugin).await?.filter(|kept| !kept.is_unstarted);
    let newest = *backlog.newest_position().borrow();
    let mut subscriptions = options.subscriptions.clone();
    for subscription in &mut subscriptions {
        subscription.start = at_position(subscription, kept.as_ref(), backlog, newest, now_ms).await?;
    }
    let (mut progress, interest) = begin_progress(&options.plugin, &subscriptions, kept, newest)?;
    // This comes before any read: from now on retention keeps what the plugin has not finished.
    progress.retired_ms = None;
    backlog
        .save(&options.plugin, ProgressSave { progress: progress.clone(), ..ProgressSave::default() })
        .await?;
    let letters = read_letters(&options.plugin, backlog, &mut progress).await?;
    let mut lanes = Lanes::new(LaneOptions::new(&options.plugin, &options.delivery), &progress);
    lanes.note_previous_run(newest);
    restore_letters(letters, options, backlog, &mut lanes).await?;
    load_owed(&options.plugin, backlog, &mut lanes).await?;
    for (source, until, rate) in interest.paced_sources() {
        lanes.begin_past(source, until, rate);
    }
    for (after, through) in unfinished_ranges(&progress, newest) {
        let unread = interest.count(backlog, after, through).await?;
        lanes.count(through, unread);
    }
    lanes.count(newest, 0);
    let paused = backlog.plugin_pause(&options.plugin).await?.map(Arc::new);
    Ok(LoadedProgress { reader: BacklogReader::default(), lanes, interest, paused })
}

/// Replaces a start whose position must be looked up. A source that is subscribed already keeps its start.
async fn at_position(
    SourceSubscription { source, start, .. }: &SourceSubscription,
    kept: Option<&PluginProgress>,
    backlog: &dyn Backlog,
    newest: Seq,
    now_ms: u64,
) -> Result<Start, JournalError> {
    if kept.is_some_and(|kept| kept.is_subscribed(source)) {
        return Ok(*start);
    }
    let after = match (start, kept) {
        (Start::Since(since), _) => position_before(backlog, since.as_unix_ms(now_ms), newest).await?,
        // The cursor goes back no further than the source needs.
        (Start::Beginning, Some(kept)) => {
            before_first(backlog, source, kept.first_beginning(source), kept.read_through()).await?
        }
        _ => return Ok(*start),
    };
    Ok(Start::Position(after + 1))
}

/// A position in `(after, through]` with no state of the source before it, and near the first one if there is any.
async fn before_first(
    backlog: &dyn Backlog,
    source: &Arc<str>,
    after: Seq,
    through: Seq,
) -> Result<Seq, JournalError> {
    let source = std::slice::from_ref(source);
    if after >= through || backlog.count(source, after, through).await? == 0 {
        return Ok(through.max(after));
    }
    let (mut low, mut high) = (after, through);
    while high - low > CHUNK as Seq {
        let middle = low + (high - low) / 2;
        match backlog.count(source, low, middle).await? {
            0 => low = middle,
            _ => high = middle,
        }
    }
    Ok(low)
}

/// The last position before a time, found by halving. States are journaled as they are observed, so their
/// times ascend with small exceptions.
async fn position_before(backlog: &dyn Backlog, ms: u64, newest: Seq) -> Result<Seq, JournalError> {
    let (mut low, mut high) = (0, newest);
    while low < high {
        let middle = low + (high - low) / 2;
        let is_before = match backlog.read(middle, 1).await?.first() {
            Some(state) if state.observed_ms < ms => Some(state.seq.min(high)),
            _ => None,
        };
        match is_before {
            Some(seq) => low = seq,
            None => high = middle,
        }
    }
    Ok(low)
}

/// The progress to go on from. It is saved before the first call, so that `now` keeps its meaning.
fn begin_progress(
    plugin: &str,
    subscriptions: &[SourceSubscription],
    kept: Option<PluginProgress>,
    newest: Seq,
) -> Result<(PluginProgress, SourceInterest), JournalError> {
    let is_new = kept.is_none();
    let mut progress = kept.unwrap_or_default();
    let read = progress.furthest_position();
    if read > newest {
        return Err(JournalError::Fatal(format!(
            "`{plugin}` is at position {read}, but the journal ends at {newest}: it is not the journal that the \
             plugin was handed",
        )));
    }
    let was_at = progress.cursor;
    let interest = SourceInterest::resolve_starts(subscriptions, &mut progress, newest);
    progress.start = interest.start();
    if is_new {
        progress.cursor = progress.start;
    } else if progress.cursor < was_at {
        let (cursor, sources) = (progress.cursor, progress.former_cursors.last().map(|former| &former.added));
        tracing::info!(
            plugin,
            was_at,
            cursor,
            ?sources,
            "the plugin is first handed the past of added sources"
        );
    }
    Ok((progress, interest))
}

/// Reads the letters that the journal has, and notes in the progress how many dropped ones retention has removed by
/// then. Retention may remove a letter between the two reads, and it would be counted in neither or in both. So the
/// letters are read again until the number stays the same meanwhile. That ends, because nobody drops letters before
/// the plugin has started.
async fn read_letters(
    plugin: &str,
    backlog: &dyn Backlog,
    progress: &mut PluginProgress,
) -> Result<Vec<DeadLetter>, JournalError> {
    loop {
        let letters = backlog.dead_letters(plugin).await?;
        let saved = backlog.plugin_progress(plugin).await?;
        let removed_letters = saved.map_or(0, |saved| saved.removed_letters);
        if removed_letters == progress.removed_letters {
            return Ok(letters);
        }
        progress.removed_letters = removed_letters;
    }
}

async fn restore_letters(
    letters: Vec<DeadLetter>,
    options: &DispatchOptions,
    backlog: &dyn Backlog,
    lanes: &mut Lanes,
) -> Result<(), JournalError> {
    let (dropped, letters): (Vec<_>, Vec<_>) = letters.into_iter().partition(|letter| letter.dropped);
    for letter in dropped {
        lanes.drop_letter(letter.seq);
    }
    for letters in letters.chunks(CHUNK) {
        // Only the lane of a held letter must be known before the letter is taken back.
        let states = if options.delivery.on_dead_letter == OnDeadLetter::Hold {
            let seqs: Vec<Seq> = letters.iter().map(|letter| letter.seq).collect();
            backlog.read_at(&seqs).await?
        } else {
            Vec::new()
        };
        for state in &states {
            lanes.hold_lane_at(state.seq, state.lane_key());
        }
        for letter in letters {
            if letter.replaying {
                lanes.restore_replay(letter);
            } else {
                lanes.add_parked(letter.seq);
            }
        }
    }
    Ok(())
}

/// Loads which lanes are owed states below the cursor, and how many. The states themselves are read when their turn comes.
async fn load_owed(plugin: &str, backlog: &dyn Backlog, lanes: &mut Lanes) -> Result<(), JournalError> {
    let mut from = 0;
    loop {
        let OwedPage { states, end } = backlog.owed_states(plugin, from, CHUNK).await?;
        states.iter().for_each(|state| lanes.restore_owed_row(state));
        match end {
            Some(end) => from = end + 1,
            None => return Ok(()),
        }
    }
}
