//! The loop of one plugin: start what can be started, wait for one event, apply it.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use kubewitness_core::Seq;
use kubewitness_core::clock::Clock;
use kubewitness_core::lanes::{ClockReading, Lanes};
use kubewitness_core::limits;
use kubewitness_core::ports::{
    Backlog, CallError, CallOutcome, CallPause, DeadLetter, JournalError, KvWrite, PluginHandler,
    PluginPause, StateDelivery,
};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::handle::{DispatchCommand, FigureSources, LetterAction, LetterCommand, SharedFigures};
use crate::load::LoadedProgress;
use crate::pacing::breaker::{CallPermission, CircuitBreaker};
use crate::pacing::pause::OperatorPause;
use crate::pacing::ticks::{TickNews, TickSchedule};
use crate::paused::{self, PauseOutcome};
use crate::progress_saver::{ProgressSaver, SavedRows};
use crate::reader::{BacklogAnswer, BacklogQuery, BacklogReader};
use crate::resync::ResyncQueue;
use crate::subscriptions::SourceInterest;
use crate::verdicts::DoubtAnswer;
use crate::{DispatchError, DispatchOptions};

/// The time for the last save of a drain.
const FINAL_SAVE: Duration = Duration::from_secs(5);
/// The time for the last save after an abort. Unsaved states are handed over again.
const ABORTED_SAVE: Duration = Duration::from_millis(500);

pub(crate) struct RunParts {
    pub options: DispatchOptions,
    pub backlog: Arc<dyn Backlog>,
    pub handler: Arc<dyn PluginHandler>,
    pub clock: Arc<dyn Clock>,
    pub shared: Arc<SharedFigures>,
    pub commands: mpsc::Receiver<DispatchCommand>,
}

pub(crate) struct FinishedCall {
    pub batch: Vec<StateDelivery>,
    pub result: Result<CallOutcome, CallError>,
}

struct RecalledLetters {
    act: LetterAction,
    letters: Result<Vec<DeadLetter>, JournalError>,
    reply: oneshot::Sender<Result<u64, DispatchError>>,
}

/// The futures in progress. Dropping it equals a kill.
#[derive(Default)]
struct PendingWork {
    calls: FuturesUnordered<BoxFuture<'static, FinishedCall>>,
    ticking: Option<BoxFuture<'static, Result<Vec<KvWrite>, CallError>>>,
    saving: Option<BoxFuture<'static, Result<(), JournalError>>>,
    fetching: Option<BoxFuture<'static, (BacklogQuery, Result<BacklogAnswer, JournalError>)>>,
    recalling: Option<BoxFuture<'static, RecalledLetters>>,
    asking: Option<BoxFuture<'static, DoubtAnswer>>,
    ordering: Option<BoxFuture<'static, PauseOutcome>>,
}

enum RunEvent {
    Called(FinishedCall),
    Ticked(Result<Vec<KvWrite>, CallError>),
    Saved(Result<(), JournalError>),
    Fetched(BacklogQuery, Result<BacklogAnswer, JournalError>),
    Recalled(RecalledLetters),
    Asked(DoubtAnswer),
    Ordered(PauseOutcome),
    Command(Option<DispatchCommand>),
    /// The journal grew; `false`: it has ended and never will.
    Grown(bool),
    Woken,
}

pub(crate) struct DispatchLoop {
    pub(crate) parts: RunParts,
    newest: watch::Receiver<Seq>,
    pub(crate) lanes: Lanes,
    interest: Arc<SourceInterest>,
    reader: BacklogReader,
    resync: ResyncQueue,
    pub(crate) saver: ProgressSaver,
    pub(crate) breaker: CircuitBreaker,
    /// Halves of failed batches. They are called before anything else.
    pub(crate) splits: Vec<Vec<StateDelivery>>,
    pub(crate) last_error: Option<Arc<str>>,
    /// No call begins while it is set.
    paused: Option<Arc<PluginPause>>,
    /// The same until its time is over: the plugin has taken more than its share of something.
    rest: Option<CallPause>,
    /// The journal is being asked for owed states. Its answer may be older than a save that ends meanwhile.
    reads_owed: bool,
    /// The rows of such saves. The lanes hear of them after the answer.
    unapplied_saves: Vec<SavedRows>,
    /// The pause after receipts could not be looked for.
    pub(crate) receipt_pause: OperatorPause,
    ticks: Option<TickSchedule>,
    commands_closed: bool,
    journal_ended: bool,
}

impl DispatchLoop {
    pub fn new(parts: RunParts, loaded: LoadedProgress) -> Self {
        let LoadedProgress { lanes, interest, reader, paused } = loaded;
        parts.shared.set_paused(paused.clone());
        Self {
            newest: parts.backlog.newest_position(),
            breaker: CircuitBreaker::new(parts.options.delivery.backoff.0, parts.options.pauses),
            saver: ProgressSaver::new(lanes.last_read()),
            interest: Arc::new(interest),
            lanes,
            reader,
            resync: ResyncQueue::default(),
            ticks: parts.options.tick.map(TickSchedule::new),
            parts,
            splits: Vec::new(),
            last_error: None,
            paused,
            rest: None,
            reads_owed: false,
            unapplied_saves: Vec::new(),
            receipt_pause: OperatorPause::default(),
            commands_closed: false,
            journal_ended: false,
        }
    }

    pub async fn run(
        mut self,
        drain: &CancellationToken,
        abort: &CancellationToken,
    ) -> Result<(), DispatchError> {
        let mut work = PendingWork::default();
        loop {
            let newest = *self.newest.borrow_and_update();
            let now = self.parts.clock.elapsed();
            self.start_calls(&mut work, now);
            self.start_save(&mut work, now);
            self.start_fetch(&mut work, newest, now);
            if work.asking.is_none() {
                work.asking = self.ask_about_doubts(now);
            }
            self.publish_figures();
            let wake = self.next_wake(newest, now);
            let event = tokio::select! {
                biased;
                () = abort.cancelled() => break,
                () = drain.cancelled() => break,
                event = self.next_event(&mut work, wake) => event,
            };
            self.take_in(event, &mut work)?;
        }
        self.wind_down(work, abort).await
    }

    async fn next_event(&mut self, work: &mut PendingWork, wake: Option<Duration>) -> RunEvent {
        let is_idle = work.recalling.is_none() && work.ordering.is_none();
        // A fast plugin must not keep the journal waiting. Branches that run at most one future come first,
        // and can't keep the calls waiting in turn.
        tokio::select! {
            biased;
            saved = await_slot(&mut work.saving) => RunEvent::Saved(saved),
            (fetch, answer) = await_slot(&mut work.fetching) => RunEvent::Fetched(fetch, answer),
            recalled = await_slot(&mut work.recalling) => RunEvent::Recalled(recalled),
            asked = await_slot(&mut work.asking) => RunEvent::Asked(asked),
            ordered = await_slot(&mut work.ordering) => RunEvent::Ordered(ordered),
            command = self.parts.commands.recv(), if is_idle && !self.commands_closed => RunEvent::Command(command),
            ticked = await_slot(&mut work.ticking) => RunEvent::Ticked(ticked),
            Some(called) = work.calls.next(), if !work.calls.is_empty() => RunEvent::Called(called),
            grown = self.newest.changed(), if !self.journal_ended => RunEvent::Grown(grown.is_ok()),
            () = sleep_or_wait(wake) => RunEvent::Woken,
        }
    }

    fn take_in(&mut self, event: RunEvent, work: &mut PendingWork) -> Result<(), DispatchError> {
        match event {
            RunEvent::Called(called) => self.on_called(called),
            RunEvent::Ticked(ticked) => self.on_ticked(ticked),
            RunEvent::Saved(saved) => self.on_saved(saved)?,
            RunEvent::Fetched(fetch, answer) => self.on_fetched(fetch, answer)?,
            RunEvent::Recalled(recalled) => self.on_recalled(recalled)?,
            RunEvent::Asked(asked) => self.on_asked(asked)?,
            RunEvent::Ordered(ordered) => self.on_ordered(ordered)?,
            RunEvent::Command(Some(DispatchCommand::Pause(order))) => {
                let (backlog, plugin) = (Arc::clone(&self.parts.backlog), self.parts.options.plugin.clone());
                work.ordering = Some(paused::carry_out(backlog, plugin, order));
            }
            RunEvent::Command(Some(DispatchCommand::Letters(letters))) => {
                work.recalling = Some(self.recall_letters(letters));
            }
            RunEvent::Command(Some(DispatchCommand::Resync(source))) => self.resync.request_resync(source),
            RunEvent::Command(None) => self.commands_closed = true,
            RunEvent::Grown(grown) => self.journal_ended = !grown,
            RunEvent::Woken => {}
        }
        Ok(())
    }

    // ---- calls ---------------------------------------------------------------------------

    fn start_calls(&mut self, work: &mut PendingWork, now: Duration) {
        let batch = self.parts.options.delivery.batch.max(1) as usize;
        self.rest = self.parts.handler.pause_before_call();
        let is_ticks_turn = self.start_tick(work);
        if is_ticks_turn || self.paused.is_some() || self.rest.is_some() {
            return;
        }
        while work.calls.len() < self.parts.options.concurrency.max(1) as usize {
            if self.saver.is_full() || self.saver.is_failing() {
                return;
            }
            let allowed = self.breaker.call_permission(now);
            let states = match allowed {
                CallPermission::Not(_) => return,
                CallPermission::Probe { single } => self.lanes.take(now, if single { 1 } else { batch }),
                CallPermission::Freely => match self.splits.pop() {
                    Some(part) => part,
                    None => self.lanes.take(now, batch),
                },
            };
            if states.is_empty() {
                return;
            }
            if allowed != CallPermission::Freely {
                self.breaker.note_probe();
            }
            let handler = Arc::clone(&self.parts.handler);
            work.calls.push(
                async move {
                    let result = handler.handle_batch(&states).await;
                    FinishedCall { result, batch: states }
                }
                .boxed(),
            );
        }
    }

    /// Begins the tick that is due once no call is in progress. So a plugin may read `kv` and write it back in a
    /// tick, and no state is handed over in between. Tells whether states wait for it.
    fn start_tick(&mut self, work: &mut PendingWork) -> bool {
        let now = ClockReading::read(&*self.parts.clock);
        let Some(ticks) = &mut self.ticks else { return false };
        ticks.plan_next(now, self.paused.is_some());
        let is_free = work.calls.is_empty() && work.ticking.is_none();
        let is_kept = !self.saver.is_full() && !self.saver.is_failing() && self.rest.is_none();
        if !ticks.is_turn(now.elapsed) {
            return false;
        }
        if is_free && is_kept {
            let (tick, handler) = (ticks.begin_tick(now), Arc::clone(&self.parts.handler));
            work.ticking = Some(async move { handler.handle_tick(tick).await }.boxed());
        }
        true
    }

    /// A tick is no evidence for the breaker: it says nothing about whether states can be handled.
    fn on_ticked(&mut self, ticked: Result<Vec<KvWrite>, CallError>) {
        let now = ClockReading::read(&*self.parts.clock);
        let (plugin, failed) = (&self.parts.options.plugin, ticked.as_ref().err());
        match (self.ticks.as_mut().and_then(|ticks| ticks.note_end(failed, now)), failed) {
            (Some(TickNews::Works { failed }), _) => tracing::info!(plugin, failed, "ticks work again"),
            (Some(TickNews::Fails), Some(error)) => {
                tracing::warn!(plugin, %error, "a tick failed; further ones that fail for this reason are not logged");
            }
            _ => {}
        }
        if let Ok(kv) = ticked
            && !kv.is_empty()
        {
            self.saver.note_finished(0, kv);
        }
    }

    // ---- the journal ---------------------------------------------------------------------

    fn start_save(&mut self, work: &mut PendingWork, now: Duration) {
        if self.lanes.needs_save() {
            self.saver.note_urgent_change();
        } else if self.lanes.has_unsaved_owed() {
            self.saver.note_cursor_moved(now);
        }
        if work.saving.is_some() || self.saver.next_save_at().is_none_or(|due| due > now) {
            return;
        }
        let save = self.saver.begin_save(&mut self.lanes, &self.interest, now);
        let (backlog, plugin) = (Arc::clone(&self.parts.backlog), self.parts.options.plugin.clone());
        work.saving = Some(async move { backlog.save(&plugin, save).await }.boxed());
    }

    fn on_saved(&mut self, saved: Result<(), JournalError>) -> Result<(), DispatchError> {
        match saved {
            Ok(()) => {
                let saved = self.saver.note_saved();
                self.lanes.letters_saved(saved.letters.iter().copied());
                self.unapplied_saves.push(saved);
                if !self.reads_owed {
                    self.apply_saved_rows();
                }
            }
            Err(JournalError::Unavailable(reason)) => {
                tracing::warn!(
                    plugin = self.parts.options.plugin,
                    reason,
                    "the plugin's progress can't be saved yet"
                );
                self.saver.note_failure(self.parts.clock.elapsed());
            }
            Err(error) => return Err(DispatchError::Journal(error)),
        }
        Ok(())
    }

    /// Notes the rows of what was saved.
    fn apply_saved_rows(&mut self) {
        for SavedRows { letters, owed, revived } in std::mem::take(&mut self.unapplied_saves) {
            self.lanes.note_saved_rows(owed, letters, revived);
        }
    }

    fn start_fetch(&mut self, work: &mut PendingWork, newest: Seq, now: Duration) {
        if work.fetching.is_some() {
            return;
        }
        let Some(fetch) = self.next_fetch(newest, now) else { return };
        if matches!(fetch, BacklogQuery::Read { .. }) && self.saver.is_behind(self.lanes.last_read()) {
            return self.saver.note_urgent_change();
        }
        self.reads_owed = matches!(fetch, BacklogQuery::Owed { .. });
        let (backlog, interest) = (Arc::clone(&self.parts.backlog), Arc::clone(&self.interest));
        work.fetching = Some(
            async move {
                let answer = fetch.run_query(&*backlog, &interest).await;
                (fetch, answer)
            }
            .boxed(),
        );
    }

    fn next_fetch(&self, newest: Seq, now: Duration) -> Option<BacklogQuery> {
        let is_called = !self.breaker.is_open() && self.paused.is_none();
        let owed = self.reader.next(&self.lanes, newest, now, is_called);
        // A plugin that can't be called gets no resyncs, which nobody owes it. While the past of an added source is handed
        // over, the cursor is behind what the others have finished: a resync would skip all of them, so it waits.
        let is_back = self.interest.current_backfill(self.lanes.cursor()).is_some();
        if !is_called || is_back || self.reader.is_paused(now) {
            return owed;
        }
        self.resync.next(&self.lanes, owed)
    }

    fn on_fetched(
        &mut self,
        fetch: BacklogQuery,
        answer: Result<BacklogAnswer, JournalError>,
    ) -> Result<(), DispatchError> {
        self.reads_owed = false;
        let answer = match answer {
            Ok(answer) => answer,
            Err(JournalError::Unavailable(reason)) => {
                let plugin = &self.parts.options.plugin;
                tracing::warn!(plugin, reason, "the journal can't be read yet");
                self.reader.note_failure(self.parts.clock.elapsed());
                self.apply_saved_rows();
                return Ok(());
            }
            Err(error) => return Err(DispatchError::Journal(error)),
        };
        self.apply_answer(fetch, answer);
        self.apply_saved_rows();
        Ok(())
    }

    fn apply_answer(&mut self, fetch: BacklogQuery, answer: BacklogAnswer) {
        let now = self.parts.clock.elapsed();
        let plugin = &self.parts.options.plugin;
        if let BacklogAnswer::Present(present) = answer {
            self.reader.note_success();
            return self.resync.apply_page(present, &mut self.lanes, now);
        }
        self.resync.note_yielded();
        let before = (self.lanes.cursor(), self.lanes.lane_stats().filtered);
        let missing = self.reader.apply_answer(fetch, answer, &mut self.lanes, now);
        if !missing.is_empty() {
            tracing::error!(plugin, ?missing, "the journal no longer has states that were not handed over");
            self.saver.note_urgent_change();
        }
        if (self.lanes.cursor(), self.lanes.lane_stats().filtered) != before {
            self.saver.note_cursor_moved(now);
        }
    }

    // ---- dead letters --------------------------------------------------------------------

    fn recall_letters(&self, letters: LetterCommand) -> BoxFuture<'static, RecalledLetters> {
        let (backlog, plugin) = (Arc::clone(&self.parts.backlog), self.parts.options.plugin.clone());
        let LetterCommand { act, letters: meant, who, why, reply } = letters;
        async move {
            let letters = async {
                let mut letters = backlog.dead_letters(&plugin).await?;
                letters.retain(|letter| !letter.replaying && !letter.dropped);
                meant.retain_meant(&mut letters);
                let seqs: Vec<Seq> = letters.iter().map(|letter| letter.seq).collect();
                match act {
                    _ if seqs.is_empty() => {}
                    LetterAction::Replay => backlog.mark_replaying(&plugin, &seqs, &who, &why).await?,
                    LetterAction::Drop => backlog.mark_dropped(&plugin, &seqs, &who, &why).await?,
                }
                Ok(letters)
            };
            RecalledLetters { act, letters: letters.await, reply }
        }
        .boxed()
    }

    fn on_recalled(
        &mut self,
        RecalledLetters { act, letters, reply }: RecalledLetters,
    ) -> Result<(), DispatchError> {
        let done = letters.map(|letters| {
            for letter in &letters {
                match act {
                    LetterAction::Replay => self.lanes.replay_letter(letter),
                    LetterAction::Drop => self.lanes.drop_letter(letter.seq),
                }
            }
            self.saver.note_urgent_change();
            letters.len() as u64
        });
        let (answer, end) = split_outcome(done);
        // Published before the answer, so that the caller sees the effect.
        self.publish_figures();
        if reply.send(answer).is_err() {
            tracing::debug!(plugin = self.parts.options.plugin, "the caller of the replay has gone");
        }
        end
    }

    fn on_ordered(&mut self, PauseOutcome { result, reply }: PauseOutcome) -> Result<(), DispatchError> {
        if let Ok(changed) = &result {
            self.paused = changed.paused.clone();
            self.parts.shared.set_paused(changed.paused.clone());
        }
        let (answer, end) = split_outcome(result);
        if reply.send(answer).is_err() {
            tracing::debug!(plugin = self.parts.options.plugin, "the caller of the pause has gone");
        }
        end
    }

    // ---- time and the end ----------------------------------------------------------------

    /// The time until something becomes due. What is due already and was not begun waits for another event.
    fn next_wake(&self, newest: Seq, now: Duration) -> Option<Duration> {
        let probe = match self.breaker.call_permission(now) {
            _ if self.paused.is_some() => None,
            CallPermission::Not(at) => at,
            CallPermission::Freely | CallPermission::Probe { .. } => self.lanes.next_wake(),
        };
        let tick = self.ticks.as_ref().and_then(TickSchedule::next_wake);
        let reader = self.reader.next_wake(&self.lanes, newest);
        let rest = self.rest.as_ref().map(|rest| now + rest.wait);
        let ask = self.receipt_pause.is_paused().then(|| self.receipt_pause.pause_end());
        let wakes = [probe, self.saver.next_save_at(), reader, self.lanes.past_due(), tick, rest, ask];
        wakes.into_iter().flatten().filter_map(|at| at.checked_sub(now)).filter(|wait| !wait.is_zero()).min()
    }

    fn publish_figures(&self) {
        self.parts.shared.publish_figures(&FigureSources {
            lanes: &self.lanes,
            interest: &self.interest,
            resync: &self.resync,
            reader: &self.reader,
            breaker: &self.breaker,
            saver: &self.saver,
            ticks: self.ticks.as_ref(),
            last_error: self.last_error.as_ref(),
            rest: self.rest.as_ref(),
        });
    }

    /// Waits for the calls in progress and saves their effects. What was not begun stays in the journal. What
    /// is aborted is handed over again after the next start.
    async fn wind_down(
        mut self,
        mut work: PendingWork,
        abort: &CancellationToken,
    ) -> Result<(), DispatchError> {
        let deadline = tokio::time::sleep(limits::DRAIN);
        tokio::pin!(deadline);
        while !work.calls.is_empty() || work.ticking.is_some() {
            tokio::select! {
                biased;
                () = abort.cancelled() => break,
                () = &mut deadline => break,
                // A call may wait for what this holds.
                asked = await_slot(&mut work.asking) => self.on_asked(asked)?,
                ticked = await_slot(&mut work.ticking) => self.on_ticked(ticked),
                Some(called) = work.calls.next() => self.on_called(called),
                saved = await_slot(&mut work.saving) => self.on_saved(saved)?,
            }
            self.start_save(&mut work, self.parts.clock.elapsed());
            self.publish_figures();
        }
        let given_up = work.calls.len() + usize::from(work.ticking.is_some());
        if given_up > 0 {
            tracing::warn!(
                plugin = self.parts.options.plugin,
                calls = given_up,
                "calls had not ended in time and were stopped: their states are handed over again"
            );
        }
        work.calls.clear();
        work.ticking = None;
        let limit = if abort.is_cancelled() { ABORTED_SAVE } else { FINAL_SAVE };
        let kept = tokio::time::timeout(limit, self.save_all(&mut work)).await;
        self.publish_figures();
        kept.unwrap_or_else(|_| {
            tracing::warn!(
                plugin = self.parts.options.plugin,
                "the last progress could not be saved in time"
            );
            Ok(())
        })
    }

    async fn save_all(&mut self, work: &mut PendingWork) -> Result<(), DispatchError> {
        while !self.saver.is_clean() {
            self.saver.touch_if_lazy();
            let now = self.parts.clock.elapsed();
            self.start_save(work, now);
            tokio::select! {
                saved = await_slot(&mut work.saving) => self.on_saved(saved)?,
                () = sleep_or_wait(self.saver.next_save_at().map(|due| due.saturating_sub(now))) => {}
            }
        }
        Ok(())
    }
}

/// The answer for the caller of a command, and whether the dispatcher goes on.
fn split_outcome<T>(done: Result<T, JournalError>) -> (Result<T, DispatchError>, Result<(), DispatchError>) {
    match done {
        Ok(done) => (Ok(done), Ok(())),
        Err(JournalError::Unavailable(reason)) => (Err(DispatchError::Unavailable(reason)), Ok(())),
        Err(error @ (JournalError::Invalid(_) | JournalError::Overtaken(_))) => {
            (Err(DispatchError::Journal(error)), Ok(()))
        }
        Err(JournalError::Fatal(reason)) => {
            let error = || DispatchError::Journal(JournalError::Fatal(reason.clone()));
            (Err(error()), Err(error()))
        }
    }
}

/// Waits for the future in the slot and empties the slot. It never returns if the slot is empty.
async fn await_slot<T>(slot: &mut Option<BoxFuture<'static, T>>) -> T {
    let Some(future) = slot else { return std::future::pending().await };
    let value = future.await;
    *slot = None;
    value
}

async fn sleep_or_wait(wait: Option<Duration>) {
    match wait {
        Some(wait) => tokio::time::sleep(wait).await,
        None => std::future::pending().await,
    }
}
