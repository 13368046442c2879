//! Reads one source from the API server: it lists and watches, and passes everything to the writer, in order.
//!
//! A connection can break at any point, a server can lag, restart, or be restored from a backup. Handling
//! each case where it occurs was rejected: the cases combine. So [`NextAction`], a pure machine, decides what
//! to do next, for example after a 410, and this module executes it. The writer decides what an object means.
//! The reader never skips a frame: if the writer is full, it stops reading the socket. It neither changes the
//! cache nor writes to the journal.

mod list;
pub(crate) mod next_action;
pub(crate) mod paged_list;
mod streamed_list;
mod watch_stream;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kubewitness_core::Version;
use kubewitness_core::frames::FrameLine;
use kubewitness_core::limits::FRAME_BYTES;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::connect::backoff::{Backoff, JitterDice};
use crate::connect::request::{RequestFailure, list_page};
use crate::connect::resource::{SourceResource, resolve_resource};
use crate::read::next_action::{ActionStep, NextAction, ReadAction, ReadPause, StreamEnd};
use crate::read::watch_stream::WatchStream;
use crate::repair::history::census::HistoryCensus;
use crate::repair::history::landmarks::are_elsewhere;
use crate::source::handle::count;
use crate::source::input::{WriterClosed, WriterInput, WriterPosition, await_durable};
use crate::source::parts::SourceParts;
use crate::source::round::{RepairRound, RoundId};

/// Only their number bounds frames up to this size (16 MiB in flight at most).
const SMALL_FRAME: usize = 16 * 1024;
/// Larger frames share this many bytes in flight. A burst of large objects waits in the socket.
const LARGE_IN_FLIGHT: usize = 64 * 1024 * 1024;
/// The unit in which these bytes are counted, so that the count fits a semaphore.
const SHARE: usize = 1024;
const _: () = assert!(LARGE_IN_FLIGHT > FRAME_BYTES, "one frame must always fit");

/// A stream that lasted this long counts as a successful attempt, even if it delivered nothing.
const LIVED: Duration = Duration::from_secs(5);

/// How often the log repeats a lasting condition.
const REMINDER: Duration = Duration::from_secs(60);

/// The time for one small answer while nothing is watched.
const PROBE_TIME: Duration = Duration::from_secs(20);

pub(crate) struct ServerReader {
    parts: Arc<SourceParts>,
    inputs: mpsc::Sender<WriterInput>,
    large: Arc<Semaphore>,
    course: NextAction,
    backoff: Backoff,
    dice: JitterDice,
    resource: Option<SourceResource>,
    /// Set while the writer is full. The reader then reads nothing.
    full: watch::Receiver<bool>,
    rounds: mpsc::Sender<RepairRound>,
    round: RoundId,
    /// Cancels the work on the last round.
    cancel: CancellationToken,
    /// Whether lists are asked for as streams. A server that refused is not asked again.
    streams: bool,
    refuses_streams: bool,
    /// Streamed lists in a row that did not reach their end.
    cut_short: u32,
    /// Whether lists come without pages, because pages expire faster than this server sends them.
    in_one_piece: bool,
    /// Whether the server may be a different one: the connection was lost, or the process is new.
    is_unsure: bool,
    /// How often the base of a new history was searched for since the last list.
    based: u32,
    /// When the condition was last logged.
    said_at: Instant,
    looked_since: Option<Instant>,
    /// Whether no watch has lasted since the last list. A watch that expires again must not cause another
    /// list at once.
    just_listed: bool,
    /// The version from which every event came, on watches that each began where the one before ended.
    unbroken: Option<Version>,
}

impl ServerReader {
    pub fn new(
        parts: Arc<SourceParts>,
        inputs: mpsc::Sender<WriterInput>,
        rounds: mpsc::Sender<RepairRound>,
        full: watch::Receiver<bool>,
    ) -> Self {
        Self {
            inputs,
            full,
            rounds,
            round: 0,
            cancel: CancellationToken::new(),
            large: Arc::new(Semaphore::new(LARGE_IN_FLIGHT / SHARE)),
            course: NextAction::default(),
            backoff: Backoff::new(parts.tuning.first_pause, parts.tuning.longest_pause),
            dice: JitterDice::new(parts.tuning.seed),
            resource: None,
            is_unsure: true,
            just_listed: false,
            unbroken: None,
            based: 0,
            said_at: Instant::now(),
            looked_since: None,
            streams: parts.tuning.stream_lists,
            refuses_streams: false,
            cut_short: 0,
            in_one_piece: false,
            parts,
        }
    }

    /// Runs until its writer ends. Dropping the future stops it.
    pub async fn run(mut self) {
        let mut action = ReadAction::Resolve;
        loop {
            let step = match self.carry_out(&action).await {
                Ok(step) => step,
                Err(WriterClosed) => return,
            };
            if let Some(condition) = step.condition {
                self.repeat_condition(&condition);
                self.parts.shared.set_condition(Some(condition));
            }
            self.is_unsure |= step.pause.is_some();
            if step.pause.is_some() || !matches!(step.action, ReadAction::Probe | ReadAction::Watch) {
                // Another witness that was away does not wait for anything here.
                self.parts.witness.announce_watch(&self.parts.spec.name, None);
            }
            if let Some(pause) = step.pause {
                sleep(self.pause_duration(&pause)).await;
            }
            action = step.action;
        }
    }

    /// Logs a lasting condition again, so that a log of the last minutes contains it.
    fn repeat_condition(&mut self, condition: &str) {
        if self.parts.shared.lock_live().condition.as_deref() != Some(condition) {
            self.said_at = Instant::now();
        } else if self.said_at.elapsed() >= REMINDER {
            self.said_at = Instant::now();
            tracing::warn!(source = %self.parts.spec.name, "still: {condition}");
        }
    }

    fn pause_duration(&mut self, pause: &ReadPause) -> Duration {
        let at_most = if pause.unserved { self.parts.tuning.lookup } else { Duration::MAX };
        self.backoff.next(&mut self.dice, None).min(at_most).max(pause.asked.unwrap_or_default())
    }

    async fn carry_out(&mut self, action: &ReadAction) -> Result<ActionStep, WriterClosed> {
        let failed = |failure: RequestFailure| NextAction::after_failure(action, &failure);
        match action {
            ReadAction::Resolve => match resolve_resource(&self.parts.api, &self.parts.spec).await {
                Ok(resource) => {
                    self.resource = Some(resource);
                    let standing = self.sync_writer().await?;
                    Ok(NextAction::after_resolve(standing.resume.as_ref(), standing.epoch))
                }
                Err(failure) => Ok(failed(failure)),
            },
            ReadAction::Probe => match self.server_version().await {
                Ok(server) => self.take_probe_answer(server).await,
                Err(failure) => Ok(failed(failure)),
            },
            ReadAction::Watch => self.run_watch().await,
            ReadAction::NewEpoch { server } => {
                self.check_first_witness().await?;
                let checkpoint = self.sync_writer().await?.resume.unwrap_or_else(|| Version::new(""));
                // Versions of another history can't be read from this one.
                self.cancel.cancel();
                self.send(WriterInput::NewEpoch).await?;
                let epoch = self.sync_writer().await?.epoch;
                let source = &self.parts.spec.name;
                tracing::warn!(%source, epoch, %checkpoint, %server, "a new epoch: the server's history was replaced");
                Ok(NextAction::after_resolve(None, epoch))
            }
            ReadAction::List(reason) => self.run_list(action, reason).await,
        }
    }

    /// Handles the answer of a probe: the server answers and is not behind, but it may be a different one.
    async fn take_probe_answer(&mut self, server: Version) -> Result<ActionStep, WriterClosed> {
        let standing = self.sync_writer().await?;
        // The checkpoint on disk is below the last event, because other events may share its version.
        let newest = standing.newest.iter().cloned();
        let newest = newest.chain(self.parts.shared.lock_landmarks().newest_version()).reduce(newer_version);
        let seen = newest.filter(|_| standing.resume.is_some());
        let step = self.course.after_probe(&server, seen.as_ref(), standing.epoch);
        if step.action != ReadAction::Watch {
            return Ok(step);
        }
        if self.is_another_history().await {
            return Ok(NextAction::begin_new_epoch(server));
        }
        if self.is_contradicted(&standing, &server).await {
            let source = &self.parts.spec.name;
            tracing::warn!(%source, "the server has objects that the watch never sent: they are read back");
            return Ok(NextAction::list_in_doubt());
        }
        self.is_unsure = false;
        Ok(step)
    }

    /// If another witness of a shared journal is ahead, this one reads nothing back that the other may have
    /// written. The source begins again from there.
    async fn check_first_witness(&self) -> Result<(), WriterClosed> {
        let source = &self.parts.spec.name;
        let (epoch, checkpoint) = match self.parts.witness.shared_standing(source).await {
            Ok(Some(standing)) => standing,
            Ok(None) => return Ok(()),
            Err(error) => {
                tracing::warn!(%source, "the progress of other replicas can't be read: {error}");
                return Ok(());
            }
        };
        let mine = self.sync_writer().await?;
        let is_further = match (&checkpoint, &mine.resume) {
            (Some(theirs), Some(mine)) => theirs.is_newer_than(mine),
            (theirs, None) => theirs.is_some(),
            (None, _) => false,
        };
        if epoch < mine.epoch || (epoch == mine.epoch && !is_further) {
            return Ok(());
        }
        let at = checkpoint.as_ref().map_or("its first list", Version::as_str);
        let why = format!("another replica is ahead in the source {source}, in epoch {epoch} at {at}");
        self.send(WriterInput::Overtaken(why)).await?;
        // The writer ends with the reader.
        Err(WriterClosed)
    }

    /// Whether the server contradicts a checkpoint that lies beyond the last witnessed state.
    async fn is_contradicted(&self, standing: &WriterPosition, server: &Version) -> bool {
        let (Some(resource), Some(at)) = (&self.resource, &standing.resume) else { return false };
        if !self.is_unsure || !standing.settled || !self.parts.shared.lock_landmarks().is_news(at) {
            return false;
        }
        HistoryCensus { parts: &self.parts, resource, epoch: standing.epoch, at, server }
            .is_contradicted()
            .await
    }

    /// Whether the server contradicts the states that were witnessed.
    async fn is_another_history(&self) -> bool {
        let landmarks = self.parts.shared.lock_landmarks().clone();
        match &self.resource {
            Some(resource) => are_elsewhere(&landmarks, &self.parts, resource).await,
            None => false,
        }
    }

    /// A consistent list of one object. Its version is the server's newest.
    async fn server_version(&self) -> Result<Version, RequestFailure> {
        let Some(resource) = &self.resource else {
            return Err(RequestFailure::Answer("the kind is not known".into()));
        };
        let address = resource.collection_address().with_parameter("limit", "1");
        let page = self.parts.api.get_within(address.as_str(), PROBE_TIME).await?;
        Ok(Version::new(&list_page(&page)?.resource_version))
    }

    async fn run_watch(&mut self) -> Result<ActionStep, WriterClosed> {
        let Some(resource) = self.resource.clone() else { return Ok(NextAction::resolve_address()) };
        let Some(from) = self.sync_writer().await?.resume else { return Ok(NextAction::resolve_address()) };
        let seconds = self.watch_seconds().to_string();
        let address = resource
            .collection_address()
            .with_parameter("watch", "true")
            .with_parameter("allowWatchBookmarks", "true")
            .with_parameter("resourceVersion", from.as_str())
            .with_parameter("timeoutSeconds", &seconds);
        count(&self.parts.shared.counters.watches, 1);
        let opened = self.parts.api.open(address.as_str(), self.parts.tuning.idle).await;
        let body = match opened {
            Ok(body) => body,
            Err(failure) => {
                self.count_expired(&failure);
                return Ok(self.delay_repeated_list(NextAction::after_failure(&ReadAction::Watch, &failure)));
            }
        };
        tracing::debug!(source = %self.parts.spec.name, %from, "watching");
        self.unbroken.get_or_insert(from);
        self.follow_to_end(WatchStream::new(&self.parts, body), None).await
    }

    fn watch_seconds(&mut self) -> u64 {
        let (low, high) = self.parts.tuning.watch_seconds;
        self.dice.random_between(low, high)
    }

    /// Follows a watch to its end. `listed` are the lines that arrived with the list from which this watch
    /// continues.
    async fn follow_to_end(
        &mut self,
        mut stream: WatchStream,
        listed: Option<Vec<Bytes>>,
    ) -> Result<ActionStep, WriterClosed> {
        let epoch = self.parts.shared.lock_live().epoch;
        let has_listed = listed.is_some();
        // After silent watches, this one has to deliver something before the source counts as synced. The
        // writer checks that.
        if has_listed || !self.course.is_mute() {
            self.parts.shared.set_condition(None);
            self.parts.shared.lock_live().synced = true;
            let unbroken = self.unbroken.clone().map(|since| (epoch, since));
            self.parts.witness.announce_watch(&self.parts.spec.name, unbroken);
        }
        let since = Instant::now();
        let ended = self.follow_stream(&mut stream, listed.unwrap_or_default()).await?;
        let WriterPosition { error_frame, understood, .. } = self.sync_writer().await?;
        let ended = error_frame.map_or(ended, StreamEnd::ErrorFrame);
        if let StreamEnd::ErrorFrame(failure) = &ended {
            self.count_expired(failure);
        }
        self.is_unsure |= ended != StreamEnd::Closed;
        let ended_with_error = matches!(ended, StreamEnd::ErrorFrame(_));
        // Received bytes alone don't prove that the watch works. A long quiet period does: a quiet source may
        // have nothing to deliver.
        let lived = match understood || has_listed {
            true => !ended_with_error || since.elapsed() >= LIVED,
            false => (ended_with_error || !stream.any) && since.elapsed() >= LIVED,
        };
        if lived {
            self.backoff.reset_tries();
            self.just_listed = false;
        }
        tracing::debug!(source = %self.parts.spec.name, ?ended, "the watch ended");
        let step = self.course.after_stream_end(&ended, lived);
        if self.course.is_mute() {
            self.parts.shared.lock_live().synced = false;
        }
        Ok(self.delay_repeated_list(step))
    }

    fn delay_repeated_list(&self, mut step: ActionStep) -> ActionStep {
        if self.just_listed && matches!(step.action, ReadAction::List(_)) {
            step.pause.get_or_insert(ReadPause::as_asked(None));
        }
        step
    }

    async fn follow_stream(
        &self,
        stream: &mut WatchStream,
        first: Vec<Bytes>,
    ) -> Result<StreamEnd, WriterClosed> {
        let hush = CancellationToken::new();
        self.send(WriterInput::Opened(hush.clone())).await?;
        for line in first {
            self.send_line(line).await?;
        }
        let mut full = self.full.clone();
        let mut lived = pin!(sleep(LIVED));
        let mut is_doubted = self.course.is_mute();
        loop {
            for line in stream.lines.drain(..) {
                match line {
                    FrameLine::Frame(frame) => self.send_line(frame).await?,
                    FrameLine::Oversized(kept) => self.send(WriterInput::Oversized(kept)).await?,
                }
            }
            let is_full = *full.borrow_and_update();
            tokio::select! {
                biased;
                () = hush.cancelled() => return Ok(StreamEnd::Closed),
                () = &mut lived, if is_doubted => {
                    is_doubted = false;
                    if !stream.any {
                        self.parts.shared.note_life();
                    }
                }
                changed = full.changed(), if is_full => changed.map_err(|_| WriterClosed)?,
                more = stream.await_more(self.parts.tuning.idle), if !is_full => {
                    if let Err(ended) = more {
                        return Ok(ended);
                    }
                }
            }
        }
    }

    async fn send_line(&self, line: Bytes) -> Result<(), WriterClosed> {
        let permit = if line.len() > SMALL_FRAME {
            let shares = u32::try_from(line.len().div_ceil(SHARE)).unwrap_or(u32::MAX);
            Some(Arc::clone(&self.large).acquire_many_owned(shares).await.map_err(|_| WriterClosed)?)
        } else {
            None
        };
        self.send(WriterInput::Line(line, permit)).await
    }

    async fn send(&self, input: WriterInput) -> Result<(), WriterClosed> {
        self.inputs.send(input).await.map_err(|_| WriterClosed)
    }

    async fn sync_writer(&self) -> Result<WriterPosition, WriterClosed> {
        await_durable(&self.inputs).await
    }

    fn count_expired(&self, failure: &RequestFailure) {
        if failure.is_expired() {
            count(&self.parts.shared.counters.expired, 1);
            self.parts.shared.lock_live().synced = false;
            tracing::warn!(source = %self.parts.spec.name, "the watch's version is gone: {failure}");
        }
    }
}

fn newer_version(first: Version, second: Version) -> Version {
    if second.is_newer_than(&first) { second } else { first }
}
