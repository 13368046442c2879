//! The one writer of a source: it turns lines and items into durable states, and then shows them in the
//! cache.
//!
//! Promises that the cache and the checkpoint never show anything that is not durable. It takes whatever has
//! arrived, up to one transaction, and never waits for more: a fixed batch size would delay a quiet source.
//! While a batch is written, it makes the next one. If the journal can't be written, it keeps its batches and
//! accepts nothing else, so that the socket is no longer read. It sends no request to the server.

pub(crate) mod append;
mod checkpoint;
pub(crate) mod durable;
mod held_names;

pub(crate) use durable::to_current_object;

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use kubewitness_core::Version;
use kubewitness_core::limits::{APPEND_BATCH, FRAME_BYTES};
use kubewitness_core::ports::AppendBatch;
use kubewitness_core::project::{self, EventType, ObjectEnvelope, ObjectOutline};
use kubewitness_core::state::ObjectRef;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::connect::request::{RequestFailure, status_failure};
use crate::judge::batch::StateBatch;
use crate::judge::meaning::JudgedEvent;
use crate::judge::object::matches_labels;
use crate::judge::states::{EventOrigin, EventOutcome, StateMaker, WatchedTimes};
use crate::source::handle::count;
use crate::source::input::{ReadStory, StoryStep, WriterInput, WriterPosition};
use crate::source::missing::{MissingVersions, reason};
use crate::source::parts::{SourceError, SourceParts};
use crate::source::round::{MISSED_AT_ONCE, MissedObject, RoundId};
use crate::write::append::BatchResult;
use crate::write::checkpoint::CheckpointTracker;
use crate::write::held_names::{HeldLine, HeldNames};

use durable::PendingBatch;

/// The most states of one event: the end of an object and the beginning of the next one of its name, or a
/// hole and the version above it.
const EVENT_STATES: usize = 2;

/// The most batches that are made and not yet durable: one that is being written and one that is ready. With
/// only one, the journal would idle while its result is shown and the next batch is submitted.
pub(crate) const FLIGHTS: usize = 2;

pub(crate) struct StateWriter {
    parts: Arc<SourceParts>,
    maker: StateMaker,
    checkpoint: CheckpointTracker,
    /// To the appender and back, in order.
    appends: mpsc::Sender<AppendBatch>,
    appended: mpsc::Receiver<BatchResult>,
    flights: VecDeque<PendingBatch>,
    /// An empty batch that is kept for its memory.
    spare: StateBatch,
    /// The checkpoint on disk, and when it was written.
    written: Option<Version>,
    written_at: Instant,
    /// Whether an append without states is due, for an epoch or a checkpoint.
    due: bool,
    /// Whether this batch completes a list.
    listed: bool,
    /// The open stream, and the content of its ERROR frame.
    stream: Option<CancellationToken>,
    error_frame: Option<RequestFailure>,
    /// Whether the stream delivered a readable event or bookmark.
    understood: bool,
    /// The version at which it began.
    opened: Option<Version>,
    waiting: Vec<oneshot::Sender<WriterPosition>>,
    /// Callers that wait until everything is settled.
    patient: Vec<oneshot::Sender<WriterPosition>>,
    holds: HeldNames,
    /// When this batch was begun.
    begun: Instant,
    /// When changed objects are packed, if nothing arrives before.
    cool_at: Option<Instant>,
    /// The outline of the current line.
    outline: ObjectOutline,
    /// Names that were added while a round is not settled.
    fresh: Vec<(String, String)>,
    /// Events that were released. They go before anything else.
    released: VecDeque<HeldLine>,
    /// The story that is being written, and the name that it releases.
    steps: VecDeque<StoryStep>,
    release: Option<Arc<ObjectRef>>,
    /// The round whose missed versions are being read back. Until it is settled, the checkpoint on disk stays
    /// where it was.
    round: Option<RoundId>,
    /// The version at which the round began that this batch settles.
    since: Option<Version>,
    /// Whether the sweep of the round is over.
    swept: bool,
    /// Objects for the repair. Their number is bounded by the places, plus what had been read when the last
    /// place was taken.
    unended: mpsc::UnboundedSender<MissedObject>,
    places: Arc<Semaphore>,
    /// Tells the reader to pause.
    full: watch::Sender<bool>,
}

/// Either the journal took the batch, or the process was stopped first.
#[derive(PartialEq, Eq)]
enum WriteOutcome {
    GoesOn,
    Stopped,
}

impl StateWriter {
    pub fn new(
        parts: Arc<SourceParts>,
        epoch: u32,
        checkpoint: Option<Version>,
        full: watch::Sender<bool>,
        unended: mpsc::UnboundedSender<MissedObject>,
        (appends, appended): (mpsc::Sender<AppendBatch>, mpsc::Receiver<BatchResult>),
    ) -> Self {
        Self {
            maker: StateMaker::new(Arc::clone(&parts), epoch),
            appends,
            appended,
            flights: VecDeque::with_capacity(FLIGHTS),
            spare: StateBatch::default(),
            checkpoint: CheckpointTracker::complete_up_to(checkpoint.clone()),
            written: checkpoint,
            written_at: Instant::now(),
            due: false,
            listed: false,
            stream: None,
            error_frame: None,
            understood: false,
            opened: None,
            waiting: Vec::new(),
            patient: Vec::new(),
            holds: HeldNames::new(parts.tuning.held_events, parts.tuning.held_bytes),
            begun: Instant::now(),
            cool_at: None,
            outline: ObjectOutline::default(),
            fresh: Vec::new(),
            released: VecDeque::new(),
            steps: VecDeque::new(),
            release: None,
            round: None,
            since: None,
            swept: false,
            full,
            unended,
            places: Arc::new(Semaphore::new(MISSED_AT_ONCE)),
            parts,
        }
    }

    /// Runs until the reader has ended and everything from it is durable, or until a stop while the journal
    /// can't be written.
    pub async fn run(mut self, mut inputs: mpsc::Receiver<WriterInput>) -> Result<(), SourceError> {
        let mut came_in = Vec::with_capacity(APPEND_BATCH);
        loop {
            let moved = self.is_settled() && self.checkpoint.safe_version() != self.written.as_ref();
            let due_at = self.written_at + self.parts.tuning.checkpoint_every;
            let cool_at = self.cool_at.unwrap_or(due_at);
            let received = tokio::select! {
                biased;
                appended = self.appended.recv(), if !self.flights.is_empty() => {
                    if self.take_batch_result(appended)? == WriteOutcome::Stopped {
                        return Ok(());
                    }
                    continue;
                }
                () = sleep_until(due_at), if moved && self.flights.is_empty() => 0,
                received = inputs.recv_many(&mut came_in, APPEND_BATCH) => received,
                () = sleep_until(cool_at), if self.cool_at.is_some() => {
                    self.cool_down();
                    continue;
                }
            };
            self.begun = Instant::now();
            if received == 0 {
                self.due = moved;
                let ended = inputs.is_closed() && inputs.is_empty();
                if self.write().await? == WriteOutcome::Stopped {
                    return Ok(());
                }
                if ended {
                    return self.await_durable().await.map(drop);
                }
                continue;
            }
            for input in came_in.drain(..) {
                if let WriterInput::Overtaken(why) = input {
                    return self.end_for_other_witness(why).await;
                }
                let apart = matches!(input, WriterInput::NewEpoch);
                if apart {
                    self.history_ends();
                }
                if (self.is_full(EVENT_STATES) || apart) && self.write().await? == WriteOutcome::Stopped {
                    return Ok(());
                }
                // Everything that is known from then on belongs to another history.
                if apart && self.await_durable().await? == WriteOutcome::Stopped {
                    return Ok(());
                }
                self.take(input);
                if self.take_story().await? == WriteOutcome::Stopped {
                    return Ok(());
                }
            }
            if self.write().await? == WriteOutcome::Stopped {
                return Ok(());
            }
        }
    }

    /// Ends in favour of another witness. All witnessed states are durable by then, because the other witness
    /// may lack them.
    async fn end_for_other_witness(mut self, why: String) -> Result<(), SourceError> {
        let is_there = self.write().await? == WriteOutcome::GoesOn
            && self.await_durable().await? == WriteOutcome::GoesOn;
        if is_there { Err(SourceError::Overtaken(why)) } else { Ok(()) }
    }

    /// Ends the history. Events beyond the witnessed states are lost.
    fn history_ends(&mut self) {
        let after = self.written.as_ref().map(Version::to_string).unwrap_or_default();
        let message = format!("the history was replaced: what happened in it after {after} is not known");
        let hole = MissingVersions { after, before: String::new(), reason: reason::REPLACED, message };
        self.maker.source_hole(&hole);
    }

    fn is_full(&self, states: usize) -> bool {
        self.maker.batch.states.len() + states > APPEND_BATCH
    }

    /// Whether the checkpoint on disk may follow the one in memory.
    fn is_settled(&self) -> bool {
        self.round.is_none() && self.holds.is_empty()
    }

    /// Takes a story, and the events that waited for it, in order and before anything that came later.
    async fn take_story(&mut self) -> Result<WriteOutcome, SourceError> {
        while let Some(step) = self.steps.pop_front() {
            // A hole and the version above it go into one append, and so does a whole life. So a kill never
            // leaves half of them.
            let further_states = match &step {
                StoryStep::Life(life) => life.most_states(),
                StoryStep::MissingVersions(..) => 1 + EVENT_STATES,
                StoryStep::Missed(_)
                | StoryStep::Version(_)
                | StoryStep::RelistedObject(_)
                | StoryStep::Late(_)
                | StoryStep::Gone(_)
                | StoryStep::Ended(..) => EVENT_STATES,
            };
            if self.is_full(further_states) && self.write().await? == WriteOutcome::Stopped {
                return Ok(WriteOutcome::Stopped);
            }
            self.take_story_step(step);
        }
        if let Some(object) = self.release.take() {
            self.released = self.holds.release_name(&object.namespace, &object.name);
        }
        if self.round.is_none() || self.swept {
            for object in std::mem::take(&mut self.fresh) {
                self.released.extend(self.holds.release_name(&object.0, &object.1));
            }
        }
        while let Some(held) = self.released.pop_front() {
            if self.is_full(EVENT_STATES) && self.write().await? == WriteOutcome::Stopped {
                return Ok(WriteOutcome::Stopped);
            }
            self.take_line(held);
        }
        let is_full = self.holds.is_full() || self.places.available_permits() == 0;
        self.full.send_if_modified(|full| std::mem::replace(full, is_full) != *full);
        Ok(WriteOutcome::GoesOn)
    }

    /// Whether a story belongs to this history, and to the round that is being settled or to no round.
    fn is_current_story(&self, story: &ReadStory) -> bool {
        let of_round = story.round.is_none() || story.round == self.round;
        of_round && story.epoch.is_none_or(|epoch| epoch == self.maker.epoch)
    }

    /// Takes one step of a story. Documents are copied: the repair counts its own until they are dropped.
    fn take_story_step(&mut self, step: StoryStep) {
        let copied = |document: Bytes| Bytes::copy_from_slice(&document);
        match step {
            StoryStep::MissingVersions(object, hole) => self.maker.object_hole(object, &hole),
            StoryStep::Missed(document) => {
                self.maker.take_item(copied(document), EventOrigin::ReadBack, JudgedEvent::Present);
            }
            StoryStep::Version(document) => {
                self.maker.take_item(document, EventOrigin::ReadBack, JudgedEvent::Present);
            }
            StoryStep::RelistedObject(document) => {
                self.maker.take_item(copied(document), EventOrigin::Listed, JudgedEvent::RelistedObject);
            }
            StoryStep::Late(document) => self.maker.take_late_version(document),
            StoryStep::Gone(document) => {
                self.maker.take_item(document, EventOrigin::Listed, JudgedEvent::Deleted);
            }
            StoryStep::Ended(object, version) => self.maker.take_vanished(&object, version),
            StoryStep::Life(life) => self.maker.take_life(life),
        }
    }

    fn take(&mut self, input: WriterInput) {
        match input {
            WriterInput::Opened(stream) => {
                self.stream = Some(stream);
                (self.error_frame, self.understood) = (None, false);
                self.opened = self.checkpoint.safe_version().cloned();
            }
            WriterInput::Line(line, permit) => {
                count(&self.parts.shared.counters.frames, 1);
                let (complete, opened) = (self.checkpoint.safe_version().cloned(), self.opened.clone());
                if self.take_line(HeldLine { line, permit, complete, opened }) && !self.understood {
                    self.understood = true;
                    self.parts.shared.note_life();
                }
            }
            WriterInput::Oversized(kept) => {
                let error = format!("the frame is larger than {FRAME_BYTES} bytes; its beginning is kept");
                self.maker.keep_poison(kept, &error);
            }
            // A list's items have no order of version. They are complete only with their list.
            WriterInput::Item { document, anew } => {
                let event = if anew { JudgedEvent::RelistedObject } else { JudgedEvent::Present };
                self.maker.take_item(document, EventOrigin::Listed, event);
            }
            WriterInput::Hold(object, epoch) => {
                // In another epoch, its story would be ignored and would never release the name.
                if epoch.is_none_or(|epoch| epoch == self.maker.epoch) {
                    self.holds.hold_name(&object.namespace, &object.name);
                }
            }
            WriterInput::Story(story) if self.is_current_story(&story) => {
                self.steps = story.steps.into();
                self.release = story.release;
            }
            WriterInput::Differs(found) => self.maker.batch.discrepancies.extend(found),
            WriterInput::SourceHole(round, hole) if round.is_none() || round == self.round => {
                self.maker.source_hole(&hole);
            }
            WriterInput::Listed(version, round) => {
                self.checkpoint = CheckpointTracker::complete_up_to(Some(version));
                (self.round, self.swept) = (round, false);
                (self.due, self.listed) = (true, true);
            }
            WriterInput::Swept(round) if Some(round) == self.round => self.swept = true,
            WriterInput::Settled(round) if Some(round) == self.round => {
                (self.round, self.since) = (None, self.written.clone());
                self.due = true;
            }
            // The story belongs to an abandoned round. The last one was taken above.
            WriterInput::Story(_)
            | WriterInput::SourceHole(..)
            | WriterInput::Swept(_)
            | WriterInput::Settled(_)
            | WriterInput::Overtaken(_) => {}
            WriterInput::RecheckHistory => self.stop_watch(),
            WriterInput::NewEpoch => {
                self.maker.epoch += 1;
                self.checkpoint = CheckpointTracker::default();
                (self.written, self.round, self.since) = (None, None, None);
                self.holds.clear();
                self.fresh.clear();
                count(&self.parts.shared.counters.epochs, 1);
                self.due = true;
                self.parts.shared.lock_live().synced = false;
            }
            WriterInput::Sync(answer) => self.waiting.push(answer),
            WriterInput::WhenSettled(answer) => self.patient.push(answer),
        }
    }

    /// Ends the watch.
    fn stop_watch(&self) {
        if let Some(stream) = &self.stream {
            stream.cancel();
        }
    }

    /// Takes one line. Returns whether it was an event or a bookmark that could be read.
    fn take_line(&mut self, held: HeldLine) -> bool {
        let mut outline = std::mem::take(&mut self.outline);
        let understood = self.take_outlined(held, &mut outline);
        self.outline = outline;
        understood
    }

    fn take_outlined(&mut self, held: HeldLine, outline: &mut ObjectOutline) -> bool {
        let HeldLine { line, permit, complete, opened } = held;
        let bytes = line.clone();
        let (frame, envelope) = match project::project_into(&bytes, outline) {
            Ok(projected) => projected,
            Err(error) => {
                self.maker.keep_poison(line, &error.to_string());
                return false;
            }
        };
        match (frame.kind, envelope) {
            (EventType::Added | EventType::Modified | EventType::Deleted, Some(envelope)) => {
                if self.round.is_some() && !self.swept && frame.kind == EventType::Added {
                    self.hold_fresh(&envelope);
                }
                if !self.holds.is_empty() && self.holds.is_held(&envelope.namespace, &envelope.name) {
                    self.checkpoint.take_event(&Version::new(&envelope.resource_version));
                    let held = HeldLine { line, permit, complete, opened };
                    self.holds.push(&envelope.namespace, &envelope.name, held);
                    return true;
                }
                let deleted = frame.kind == EventType::Deleted;
                let event = if deleted { JudgedEvent::Deleted } else { JudgedEvent::Present };
                let document = line.slice_ref(frame.object);
                let modifies = frame.kind == EventType::Modified;
                let came = EventOrigin::Watched(WatchedTimes { outline, modifies, opened: opened.as_ref() });
                match self.maker.observe_object(&line, document, envelope, came, event, complete.as_ref()) {
                    EventOutcome::Waits(version, moved) => {
                        self.checkpoint.take_event(&version);
                        self.maker.batch.permits.extend(permit);
                        // It arrives with its story.
                        self.holds.hold_name(&moved.object.namespace, &moved.object.name);
                        let (epoch, place) =
                            (self.maker.epoch, Arc::clone(&self.places).try_acquire_owned().ok());
                        self.parts.shared.lock_live().mending += 1;
                        // If a stop was seen first, the receiver has ended.
                        self.unended.send(MissedObject { epoch, moved, place }).ok();
                    }
                    EventOutcome::Taken(version) => {
                        self.maker.batch.permits.extend(permit);
                        self.checkpoint.take_event(&version);
                    }
                    EventOutcome::Poison => {
                        self.maker.batch.permits.extend(permit);
                        return false;
                    }
                }
                return true;
            }
            (EventType::Bookmark, _) => match project::bookmark_version(frame.object) {
                Ok(version) => {
                    count(&self.parts.shared.counters.bookmarks, 1);
                    self.checkpoint.take_bookmark(&Version::new(&version));
                    return true;
                }
                Err(error) => self.maker.keep_poison(line, &error.to_string()),
            },
            (EventType::Error, _) => {
                self.error_frame = Some(status_failure(None, frame.object, None));
                // The server may keep the stream open, but it is not needed any more.
                self.stop_watch();
            }
            (_, None) => self.maker.keep_poison(line, "an event without an object"),
        }
        false
    }

    /// Holds the names of added objects while the sweep may still find a former object of the same name.
    fn hold_fresh(&mut self, envelope: &ObjectEnvelope<'_>) {
        let known = self.maker.batch.known_object(&self.parts.shared.read(), &envelope.uid).is_some();
        let held = self.holds.is_held(&envelope.namespace, &envelope.name);
        if !known && !held && matches_labels(&self.parts, envelope) {
            self.holds.hold_name(&envelope.namespace, &envelope.name);
            self.fresh.push((envelope.namespace.to_string(), envelope.name.to_string()));
        }
    }
}
