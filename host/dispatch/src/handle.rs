//! The handle of a running dispatcher: what the rest of the controller may read and request.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kubewitness_core::Seq;
use kubewitness_core::clock::Clock;
use kubewitness_core::lanes::Lanes;
use kubewitness_core::ports::{CallPause, DeadLetter, DurableCursor, PluginPause};
use tokio::sync::{mpsc, oneshot, watch};

use crate::pacing::breaker::CircuitBreaker;
use crate::pacing::ticks::TickSchedule;
use crate::paused::{PauseChange, PauseOrder};
use crate::progress_saver::ProgressSaver;
use crate::reader::BacklogReader;
use crate::resync::ResyncQueue;
use crate::subscriptions::SourceInterest;
use crate::{DispatchError, DispatchStats};

/// The requests that may wait. Further callers wait for a place.
pub(crate) const COMMANDS: usize = 16;

pub(crate) enum DispatchCommand {
    Letters(LetterCommand),
    Pause(PauseOrder),
    /// Resync this source.
    Resync(Arc<str>),
}

/// An action of an operator on dead letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LetterAction {
    Replay,
    Drop,
}

/// The dead letters that an operator means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LetterSelection {
    All,
    /// Those of these positions that are parked.
    Parked(Vec<Seq>),
    /// All of these positions, or none if one of them is not parked any more.
    Exactly(Vec<Seq>),
}

impl LetterSelection {
    /// Removes the letters that are not meant.
    pub(crate) fn retain_meant(&self, letters: &mut Vec<DeadLetter>) {
        let (Self::Parked(seqs) | Self::Exactly(seqs)) = self else { return };
        let named: HashSet<Seq> = seqs.iter().copied().collect();
        letters.retain(|letter| named.contains(&letter.seq));
        if matches!(self, Self::Exactly(_)) && letters.len() < named.len() {
            letters.clear();
        }
    }
}

pub(crate) struct LetterCommand {
    pub act: LetterAction,
    pub letters: LetterSelection,
    pub who: String,
    pub why: String,
    pub reply: oneshot::Sender<Result<u64, DispatchError>>,
}

/// The figures of one moment, so that they always add up.
#[derive(Clone, Debug, Default)]
struct DispatchFigures {
    stats: DispatchStats,
    cursor: Seq,
    /// The cursor that is durable.
    saved: Seq,
    /// A state from which on receipts are needed all the same.
    receipts_from: Option<Seq>,
    last_error: Option<Arc<str>>,
    why: Option<Arc<str>>,
    rest: Option<Arc<str>>,
}

#[derive(Debug, Default)]
pub(crate) struct SharedFigures {
    figures: Mutex<DispatchFigures>,
    paused: Mutex<Option<Arc<PluginPause>>>,
}

/// The values that the figures of a moment are made of.
pub(crate) struct FigureSources<'d> {
    pub lanes: &'d Lanes,
    pub interest: &'d SourceInterest,
    pub resync: &'d ResyncQueue,
    pub reader: &'d BacklogReader,
    pub breaker: &'d CircuitBreaker,
    pub saver: &'d ProgressSaver,
    pub ticks: Option<&'d TickSchedule>,
    pub last_error: Option<&'d Arc<str>>,
    pub rest: Option<&'d CallPause>,
}

impl SharedFigures {
    pub fn publish_figures(&self, sources: &FigureSources<'_>) {
        let FigureSources { lanes, interest, resync, reader, breaker, saver, ticks, last_error, rest } =
            sources;
        let of = lanes.lane_stats();
        let stats = DispatchStats {
            started: true,
            observed: of.delivered + of.filtered + of.dead + of.waiting,
            delivered: of.delivered,
            filtered: of.filtered,
            dead: of.dead,
            superseded: of.superseded,
            dropped: of.dropped,
            waiting: of.waiting,
            retrying: of.retrying,
            lag_seq: 0,
            oldest_unfinished_ms: lanes.oldest_unfinished_ms(),
            last_error: None,
            rest: None,
            unclear: reader.unclear,
            filter_error: None,
            consecutive_failures: breaker.count_failures(),
            open: breaker.is_open(),
            paused: None,
            resync: resync.resync_stats(&of),
            backfill: interest.current_backfill(lanes.cursor()).cloned(),
            tick: ticks.map(TickSchedule::tick_stats),
            queue: lanes.queue_stats(),
            unfinished: Duration::ZERO,
            longest: Duration::ZERO,
        };
        // These are plain figures: a panic elsewhere can't have left them half written.
        let mut figures = self.figures.lock().unwrap_or_else(PoisonError::into_inner);
        *figures = DispatchFigures {
            stats,
            cursor: lanes.cursor(),
            saved: saver.saved_cursor(),
            receipts_from: lanes.first_needed_receipt(),
            last_error: last_error.cloned(),
            why: reader.why.clone(),
            rest: rest.map(|rest| rest.why.clone()),
        };
    }

    pub fn set_paused(&self, paused: Option<Arc<PluginPause>>) {
        *self.paused.lock().unwrap_or_else(PoisonError::into_inner) = paused;
    }

    pub fn current_pause(&self) -> Option<Arc<PluginPause>> {
        self.paused.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn current_figures(&self) -> DispatchFigures {
        self.figures.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The handle outlives its dispatcher. The last figures stay readable, and requests are answered with
/// `Stopped`.
#[derive(Clone)]
pub struct DispatchHandle {
    pub(crate) shared: Arc<SharedFigures>,
    /// The age of calls in progress grows although nothing happens.
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) newest: watch::Receiver<Seq>,
    pub(crate) commands: mpsc::Sender<DispatchCommand>,
    /// The sources whose resyncs the plugin asks for.
    pub(crate) resyncs: Arc<[Arc<str>]>,
}

impl DispatchHandle {
    pub fn dispatch_stats(&self) -> DispatchStats {
        let DispatchFigures { stats, cursor, last_error, why, rest, .. } = self.shared.current_figures();
        let now = self.clock.elapsed();
        DispatchStats {
            unfinished: stats.queue.unfinished_time(now),
            longest: stats.queue.longest_time(now),
            lag_seq: self.newest.borrow().saturating_sub(cursor),
            last_error: last_error.map(|error| error.to_string()),
            filter_error: why.map(|why| why.to_string()),
            rest: rest.map(|why| why.to_string()),
            paused: self.shared.current_pause(),
            ..stats
        }
    }

    /// Every state up to here is finished, and the journal knows it, so nobody needs their receipts. The cursor is 0 until
    /// this dispatcher has saved for the first time. `None` until it knows which states it is owed.
    pub fn durable_cursor(&self) -> Option<DurableCursor> {
        let DispatchFigures { stats, saved, receipts_from, .. } = self.shared.current_figures();
        stats.started.then_some(DurableCursor { cursor: saved, receipts_from })
    }

    /// Takes parked dead letters back into their lanes. Returns their number once it is durable that they are
    /// owed.
    pub async fn replay_letters(
        &self,
        letters: LetterSelection,
        who: &str,
        why: &str,
    ) -> Result<u64, DispatchError> {
        self.send_letter_command(LetterAction::Replay, letters, who, why).await
    }

    /// Drops parked dead letters for good. Their lanes go on, and they stay among the dead in the accounts.
    /// Returns their number once it is durable.
    pub async fn drop_letters(
        &self,
        letters: LetterSelection,
        who: &str,
        why: &str,
    ) -> Result<u64, DispatchError> {
        self.send_letter_command(LetterAction::Drop, letters, who, why).await
    }

    /// Pauses the plugin: no call begins until it is resumed, and calls in progress end. Or resumes it. Returns once
    /// that is durable and in force.
    pub async fn set_pause(&self, pauses: bool, who: &str, why: &str) -> Result<PauseChange, DispatchError> {
        let (reply, answer) = oneshot::channel();
        let order = PauseOrder { pauses, who: who.to_owned(), why: why.to_owned(), reply };
        self.commands.send(DispatchCommand::Pause(order)).await.map_err(|_| DispatchError::Stopped)?;
        answer.await.map_err(|_| DispatchError::Stopped)?
    }

    async fn send_letter_command(
        &self,
        act: LetterAction,
        letters: LetterSelection,
        who: &str,
        why: &str,
    ) -> Result<u64, DispatchError> {
        let (reply, answer) = oneshot::channel();
        let command = LetterCommand { act, letters, who: who.to_owned(), why: why.to_owned(), reply };
        self.commands.send(DispatchCommand::Letters(command)).await.map_err(|_| DispatchError::Stopped)?;
        answer.await.map_err(|_| DispatchError::Stopped)?
    }

    /// Hands the plugin the present objects of a source once more, with the same ids, if the plugin asks for
    /// resyncs. Returns at once. Nothing of it is saved: what is left when the dispatcher ends comes with the
    /// next resync. A resync that arrives during another one joins it.
    pub fn resync_source(&self, source: &str) {
        let Some(source) = self.resyncs.iter().find(|asked| &***asked == source) else { return };
        if self.commands.try_send(DispatchCommand::Resync(Arc::clone(source))).is_err() {
            tracing::debug!(source = &**source, "the plugin is too busy or has ended: it misses a resync");
        }
    }
}
