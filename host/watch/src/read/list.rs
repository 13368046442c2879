//! Lists a source: as a stream if the server streams lists, by pages otherwise.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use kubewitness_core::Version;
use tokio::time::{Instant, sleep};

use super::ServerReader;
use crate::connect::request::RequestFailure;
use crate::connect::resource::SourceResource;
use crate::read::next_action::{ActionStep, NextAction, ReadAction, ReadPause};
use crate::read::paged_list::{ListEnd, PagedList, count_list};
use crate::read::streamed_list::{FinishedList, StreamedList};
use crate::repair::compare::ListFailure;
use crate::repair::compare::list_request::{ListReason, ListRequest};
use crate::repair::history::newest_common::{HistoryBase, NewestCommon, UnknownVersion};
use crate::source::handle::count;
use crate::source::input::{WriterClosed, WriterInput, WriterPosition, await_settled};
use crate::source::landmarks::LandmarkSet;
use crate::source::round::RepairRound;
use crate::version::version_number;

/// How long a list waits for the repair before the log reports it.
const UNSAID: Duration = Duration::from_secs(2);

/// How often the base of a new history is listed before the present objects are listed instead.
const BASED_TRIES: u32 = 3;

/// How often a streamed list may fail to reach its end before pages are used.
const STREAMED_TRIES: u32 = 3;

impl ServerReader {
    pub(super) async fn run_list(
        &mut self,
        action: &ReadAction,
        reason: &ListReason,
    ) -> Result<ActionStep, WriterClosed> {
        let Some(resource) = self.resource.clone() else { return Ok(NextAction::resolve_address()) };
        self.check_first_witness().await?;
        self.unbroken = None;
        // The previous list must be settled first. Its missed versions are older than those of this list, and
        // compaction removes the oldest first.
        let standing = self.await_all_read_back().await?;
        if reason.continues_history() && self.is_another_history().await {
            return Ok(match self.server_version().await {
                Ok(server) => NextAction::begin_new_epoch(server),
                Err(failure) => NextAction::after_failure(action, &failure),
            });
        }
        if *reason == ListReason::Replaced {
            // States in the journal from before belong to another history.
            *self.parts.shared.lock_landmarks() = LandmarkSet::default();
        }
        let base = match self.find_history_base(reason, &resource, standing.epoch).await {
            Ok(base) => base,
            Err(failure) => return Ok(NextAction::after_failure(action, &failure)),
        };
        self.round += 1;
        let after = standing.resume.as_ref().map(ToString::to_string).unwrap_or_default();
        tracing::info!(source = %self.parts.spec.name, ?reason, %after, "listing");
        let baseline = match reason {
            // Nothing above this version is certain.
            ListReason::Doubted => self.newest_certain(),
            _ => standing.resume,
        };
        let asked = ListRequest { resource, reason: reason.clone(), baseline, base, id: self.round };
        if self.streams && asked.base.is_none() {
            match self.run_streamed_list(&asked).await {
                Err(ListFailure::NotStreamed(why)) => {
                    tracing::info!(source = %self.parts.spec.name, "lists are paged, because the server does not stream them: {why}");
                    (self.streams, self.refuses_streams) = (false, true);
                }
                listed => {
                    // A server that is unreachable, or refuses everything, does not show whether it supports
                    // streams.
                    let is_cut = matches!(&listed, Err(ListFailure::Again))
                        || matches!(&listed, Err(ListFailure::Failed(failure)) if self.is_listing(failure).await);
                    self.cut_short = if is_cut { self.cut_short + 1 } else { 0 };
                    if self.cut_short >= STREAMED_TRIES {
                        tracing::info!(source = %self.parts.spec.name, "lists are paged, because streamed lists do not reach their end");
                        (self.streams, self.cut_short) = (false, 0);
                    }
                    return Self::step_after_list(action, listed);
                }
            }
        }
        let relist = PagedList::new(Arc::clone(&self.parts), self.inputs.clone(), asked);
        match relist.run(self.in_one_piece).await? {
            ListEnd::Complete(version, round) => {
                self.send_list_complete(version, round).await?;
                Ok(NextAction::after_list())
            }
            ListEnd::OtherHistory(server) => Ok(NextAction::begin_new_epoch(server)),
            ListEnd::Failed(failure) => {
                let waited = self.looked_since.map(|since| since.elapsed());
                let is_busy = failure.is_passing() && failure.status_code() != Some(501);
                if is_busy && waited.is_some_and(|waited| waited < self.parts.tuning.walk.time) {
                    self.based = self.based.saturating_sub(1);
                }
                Ok(NextAction::after_failure(action, &failure))
            }
            ListEnd::Baseless => {
                self.based = BASED_TRIES;
                Ok(ActionStep { action: action.clone(), pause: None, condition: None })
            }
            ListEnd::TooSlow => {
                // A stream has no pages that could expire. Without streams, the list comes in one piece.
                (self.streams, self.in_one_piece) = (!self.refuses_streams, self.refuses_streams);
                Ok(ActionStep {
                    action: action.clone(),
                    pause: Some(ReadPause::as_asked(None)),
                    condition: None,
                })
            }
        }
    }

    /// The version from which a replaced history is read, if it can be found.
    async fn find_history_base(
        &mut self,
        reason: &ListReason,
        resource: &SourceResource,
        epoch: u32,
    ) -> Result<Option<HistoryBase>, RequestFailure> {
        if *reason != ListReason::Replaced || self.based >= BASED_TRIES {
            return Ok(None);
        }
        let why =
            "the server's history was replaced: the newest version that both histories have is searched for";
        self.parts.shared.set_condition(Some(why.to_string()));
        self.looked_since.get_or_insert_with(Instant::now);
        while self.based < BASED_TRIES {
            let server = self.server_version().await?;
            self.based += 1;
            let Some(common) = NewestCommon::new(&self.parts, resource, epoch, &server) else { break };
            match common.find_newest_base().await {
                Ok(base) => return Ok(Some(base)),
                Err(UnknownVersion::Now) => {}
                Err(UnknownVersion::Ever) => break,
            }
        }
        Ok(None)
    }

    /// Waits until nothing is being read back. That takes long if a server gives no old versions for a while,
    /// so the log reports why nothing is listed.
    async fn await_all_read_back(&self) -> Result<WriterPosition, WriterClosed> {
        let mut settled = pin!(await_settled(&self.inputs));
        tokio::select! {
            standing = &mut settled => return standing,
            () = sleep(UNSAID) => {}
        }
        let why = "the next list waits until missed versions are read back, which takes long";
        self.parts.shared.set_condition(Some(why.to_string()));
        settled.await
    }

    /// The newest version up to which all witnessed states can be recognized, or were at least witnessed.
    fn newest_certain(&self) -> Option<Version> {
        let newest = self.parts.shared.lock_landmarks().newest_version();
        newest.or_else(|| {
            let cache = self.parts.shared.read();
            let witnessed =
                cache.all_briefs().filter_map(|held| version_number(&held.resource_version)).max();
            witnessed.map(|number| Version::new(&number.to_string()))
        })
    }

    /// Runs a list that continues as a watch. Returns the step after the watch.
    async fn run_streamed_list(&mut self, asked: &ListRequest) -> Result<ActionStep, ListFailure> {
        count_list(&self.parts, &asked.reason);
        let seconds = self.watch_seconds();
        let list = StreamedList::new(&self.parts, &self.inputs, asked);
        let FinishedList { complete, round, stream, changes } = list.run(asked, seconds).await?;
        count(&self.parts.shared.counters.lists_streamed, 1);
        count(&self.parts.shared.counters.watches, 1);
        self.send_list_complete(complete, round).await?;
        Ok(self.follow_to_end(stream, Some(changes)).await?)
    }

    /// The step after a streamed list, or after a failed one.
    fn step_after_list(
        action: &ReadAction,
        listed: Result<ActionStep, ListFailure>,
    ) -> Result<ActionStep, WriterClosed> {
        match listed {
            Ok(step) => Ok(step),
            Err(ListFailure::Closed) => Err(WriterClosed),
            Err(ListFailure::OtherHistory(server)) => Ok(NextAction::begin_new_epoch(server)),
            Err(ListFailure::Failed(failure)) => Ok(NextAction::after_failure(action, &failure)),
            Err(ListFailure::Again | ListFailure::NotStreamed(_) | ListFailure::Baseless) => Ok(ActionStep {
                action: action.clone(),
                pause: Some(ReadPause::as_asked(None)),
                condition: None,
            }),
        }
    }

    /// Completes the list. Watching continues at once; only the names that are read back wait.
    async fn send_list_complete(
        &mut self,
        version: Version,
        round: Option<RepairRound>,
    ) -> Result<(), WriterClosed> {
        for job in round.iter().flat_map(|round| &round.jobs) {
            self.send(WriterInput::Hold(job.object(), None)).await?;
        }
        self.unbroken = Some(version.clone());
        self.send(WriterInput::Listed(version, round.as_ref().map(|round| round.id))).await?;
        // Listed objects must be durable before the watch begins.
        self.sync_writer().await?;
        if let Some(round) = round {
            self.cancel = round.cancel.clone();
            self.rounds.send(round).await.map_err(|_| WriterClosed)?;
        }
        (self.just_listed, self.is_unsure) = (true, false);
        (self.based, self.looked_since) = (0, None);
        self.parts.shared.set_condition(None);
        Ok(())
    }

    /// Whether a server that failed to stream a list gives a page.
    async fn is_listing(&self, failure: &RequestFailure) -> bool {
        !matches!(failure.status_code(), Some(401 | 403 | 429)) && self.server_version().await.is_ok()
    }
}
