//! Opens the journal, and waits while its server is away. Until then, the portal answers that it waits, and
//! why.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use anyhow::Result;
use async_trait::async_trait;
use kubewitness_core::ports::{RawState, RawStory, WatchedResource};
use kubewitness_core::views::{
    DeadLetterView, DeliveryMap, DropView, GapQuery, HeldView, LetterQuery, LetterRecordView, MuteView,
    MutedView, ObjectCounts, ObjectPage, ObjectQuery, PauseRequest, PauseView, PoisonQuery, PoisonView,
    RecordQuery, ReplayRequest, ReplayView, StatusView, TimelineQuery, TimelineView, ViewError, Views,
    WhyView,
};
use kubewitness_core::{Gap, Seq, State};
use kubewitness_journal::{Journal, JournalLocation, JournalOptions, OpenError, ReplicaSharing};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::election::ReplicaElection;

const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// How late a returning server may be noticed.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Answers that the controller is waiting, until the real views exist.
pub struct OpeningViews {
    views: OnceLock<Arc<dyn Views>>,
    why: RwLock<String>,
}

impl OpeningViews {
    pub fn new() -> Self {
        Self { views: OnceLock::new(), why: RwLock::new("the journal is being opened".into()) }
    }

    pub fn set_views(&self, views: Arc<dyn Views>) {
        self.views.get_or_init(|| views);
    }

    /// Waits until the Lease is known, and returns its unique identification. `None` if it was stopped
    /// before.
    pub async fn await_lease(&self, election: &ReplicaElection, stop: &CancellationToken) -> Option<String> {
        let mut leadership = election.leadership.clone();
        let lease = &election.lease;
        loop {
            if let Some(lease) = election.lease_identity() {
                return Some(lease);
            }
            let standing = leadership.current_standing();
            let why = standing.condition.unwrap_or_else(|| "the API server has not answered yet".into());
            let why =
                format!("waiting for the Lease {lease}, and witnessing nothing until it is there: {why}");
            *self.why.write().unwrap_or_else(PoisonError::into_inner) = why;
            stop.run_until_cancelled(leadership.await_change()).await?;
        }
    }

    /// Opens the journal, and waits for an unreachable server for as long as it takes. A fault that only a
    /// person can fix is an error. `None` if it was stopped before the journal was open.
    pub async fn open_journal(
        &self,
        place: &JournalLocation,
        sharing: Option<ReplicaSharing>,
        stop: &CancellationToken,
    ) -> Result<Option<Journal>> {
        let mut pause = FIRST_PAUSE;
        let mut is_told = false;
        loop {
            let options = JournalOptions { sharing: sharing.clone(), ..JournalOptions::default() };
            let opening = Journal::open_at(place, options);
            let Some(opened) = stop.run_until_cancelled(opening).await else { return Ok(None) };
            let away = match opened {
                Ok(journal) => {
                    if is_told {
                        info!("the journal is open: {place}");
                    }
                    return Ok(Some(journal));
                }
                Err(error @ OpenError::Away { .. }) => error,
                Err(error) => return Err(error.into()),
            };
            if !is_told {
                warn!("waiting for the journal, and witnessing nothing until it is there: {away}");
                is_told = true;
            }
            let why = format!("waiting for the journal: {away}");
            *self.why.write().unwrap_or_else(PoisonError::into_inner) = why;
            if stop.run_until_cancelled(tokio::time::sleep(pause)).await.is_none() {
                return Ok(None);
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    fn why_closed(&self) -> String {
        self.why.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn opened_views(&self) -> Result<&dyn Views, ViewError> {
        self.views.get().map(|views| &**views).ok_or_else(|| ViewError::Unavailable(self.why_closed()))
    }
}

#[async_trait]
impl Views for OpeningViews {
    async fn status_view(&self) -> Result<StatusView, ViewError> {
        self.opened_views()?.status_view().await
    }

    fn watched_resources(&self) -> Vec<WatchedResource> {
        self.views.get().map(|views| views.watched_resources()).unwrap_or_default()
    }

    async fn known_namespaces(
        &self,
        source: &str,
        past: bool,
        most: usize,
    ) -> Result<BTreeSet<String>, ViewError> {
        self.opened_views()?.known_namespaces(source, past, most).await
    }

    async fn object_page(&self, query: &ObjectQuery) -> Result<ObjectPage, ViewError> {
        self.opened_views()?.object_page(query).await
    }

    async fn object_counts(&self, query: &ObjectQuery) -> Result<ObjectCounts, ViewError> {
        self.opened_views()?.object_counts(query).await
    }

    async fn raw_story(&self, query: &TimelineQuery) -> Result<RawStory, ViewError> {
        self.opened_views()?.raw_story(query).await
    }

    async fn timeline_view(&self, story: RawStory) -> Result<TimelineView, ViewError> {
        self.opened_views()?.timeline_view(story).await
    }

    async fn explain_timeline(&self, timeline: &TimelineView) -> Result<WhyView, ViewError> {
        self.opened_views()?.explain_timeline(timeline).await
    }

    async fn redacted_state(&self, state: RawState) -> Result<Arc<State>, ViewError> {
        self.opened_views()?.redacted_state(state).await
    }

    async fn created_ms(&self, seq: Seq) -> Result<Option<u64>, ViewError> {
        self.opened_views()?.created_ms(seq).await
    }

    async fn delivery_stages(&self, states: &[Arc<State>]) -> Result<DeliveryMap, ViewError> {
        self.opened_views()?.delivery_stages(states).await
    }

    async fn document_at(&self, seq: Seq) -> Result<Vec<u8>, ViewError> {
        self.opened_views()?.document_at(seq).await
    }

    async fn find_gaps(&self, query: &GapQuery) -> Result<Vec<(u64, Gap)>, ViewError> {
        self.opened_views()?.find_gaps(query).await
    }

    async fn find_poison(&self, query: &PoisonQuery) -> Result<Vec<PoisonView>, ViewError> {
        self.opened_views()?.find_poison(query).await
    }

    async fn poison_raw(&self, number: u64) -> Result<Vec<u8>, ViewError> {
        self.opened_views()?.poison_raw(number).await
    }

    async fn dead_letters(&self, query: &LetterQuery) -> Result<Vec<DeadLetterView>, ViewError> {
        self.opened_views()?.dead_letters(query).await
    }

    async fn replay_letters(&self, request: &ReplayRequest) -> Result<ReplayView, ViewError> {
        self.opened_views()?.replay_letters(request).await
    }

    async fn drop_letters(&self, request: &ReplayRequest) -> Result<DropView, ViewError> {
        self.opened_views()?.drop_letters(request).await
    }

    async fn set_plugin_pause(
        &self,
        plugin: &str,
        pauses: bool,
        request: &PauseRequest,
    ) -> Result<PauseView, ViewError> {
        self.opened_views()?.set_plugin_pause(plugin, pauses, request).await
    }

    async fn list_mutes(&self) -> Result<Vec<MuteView>, ViewError> {
        self.opened_views()?.list_mutes().await
    }

    async fn set_mute(&self, mute: &MuteView, mutes: bool) -> Result<MutedView, ViewError> {
        self.opened_views()?.set_mute(mute, mutes).await
    }

    async fn letter_records(&self, query: &RecordQuery) -> Result<Vec<LetterRecordView>, ViewError> {
        self.opened_views()?.letter_records(query).await
    }

    async fn has_all_after(&self, after: Seq) -> Result<bool, ViewError> {
        self.opened_views()?.has_all_after(after).await
    }

    async fn states_at(&self, seqs: &[Seq]) -> Result<Vec<RawState>, ViewError> {
        self.opened_views()?.states_at(seqs).await
    }

    async fn states_after(&self, after: Seq, limit: usize) -> Result<Vec<RawState>, ViewError> {
        self.opened_views()?.states_after(after, limit).await
    }

    fn newest_position(&self) -> Result<watch::Receiver<Seq>, ViewError> {
        self.opened_views()?.newest_position()
    }

    fn outcome_news(&self) -> Result<watch::Receiver<u64>, ViewError> {
        self.opened_views()?.outcome_news()
    }

    fn retention_holds(&self) -> Vec<HeldView> {
        self.views.get().map(|views| views.retention_holds()).unwrap_or_default()
    }

    fn why_not_ready(&self) -> Option<String> {
        match self.views.get() {
            Some(views) => views.why_not_ready(),
            None => Some(self.why_closed()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nobody() -> JournalLocation {
        JournalLocation::server("postgres://ann:hush@127.0.0.1:1/none").unwrap()
    }

    #[tokio::test]
    async fn who_asks_while_the_journal_is_away_is_told_what_is_waited_for() {
        let (opening, stop, nobody) = (OpeningViews::new(), CancellationToken::new(), nobody());
        let waiting = opening.open_journal(&nobody, None, &stop);
        let answers_that_it_waits = async {
            while !opening.why_closed().contains("waiting") {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            let ready = opening.why_not_ready().unwrap();
            assert!(ready.contains("127.0.0.1:1/none") && !ready.contains("hush"), "{ready}");
            let ViewError::Unavailable(why) = opening.status_view().await.unwrap_err() else {
                panic!("answered")
            };
            assert_eq!(why, ready);
            stop.cancel();
        };
        let (journal, ()) = tokio::join!(waiting, answers_that_it_waits);
        assert!(journal.unwrap().is_none(), "a stop ends the waiting");
    }

    #[test]
    fn nobody_is_given_a_position_before_the_journal_is_open() {
        let error = OpeningViews::new().newest_position().err();
        assert!(
            matches!(&error, Some(ViewError::Unavailable(why)) if why.contains("being opened")),
            "{error:?}"
        );
    }
}
