//! The data that people and scripts see in the API, the command line and the portal.
//!
//! The same figure must not have two forms. So one type serves all three, and the API's description is
//! generated from the doc comments here. These types know no store and no page. [`Views`] returns states that
//! were not checked for the viewer's rights as raw types, so that a caller can't show them by mistake.

mod foreign_filters;
mod history;
mod letters;
mod objects;
mod plugins;
mod status;

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use tokio::sync::watch;

pub use self::foreign_filters::ForeignFilter;
pub use self::history::{GapQuery, KindWithin, PoisonQuery, PoisonView, TimelineQuery, TimelineView};
pub use self::letters::{
    DeadLetterView, DropView, LetterChoice, LetterQuery, LetterRecordView, RecordQuery, ReplayRequest,
    ReplayView,
};
pub use self::objects::{
    DeliveryMap, DeliveryStage, DetailsView, GoneFilter, NAMESPACES, ObjectCounts, ObjectPage, ObjectQuery,
    ObjectView, ThenView, WasView,
};
pub use self::plugins::{
    BackfillView, CallEndsView, CallFailureView, CallsView, ConfigField, DatabaseLossView, GrantUseView,
    GrantView, HistogramView, ManifestView, PauseRequest, PauseView, PausedView, PluginView, QueueView,
    ShadowActView, ShadowDifferenceView, ShadowSideView, ShadowView, TickView, VerdictsView,
};
pub use self::status::{
    DiscrepancyView, EpochView, HeldView, JournalView, LedgerView, ReplicaView, SourceCounts, SourceView,
    StatusView, StreamView,
};
pub use super::submit::{SubmitRequest, SubmitView, TemplateView};
use crate::ports::{RawState, RawStory, WatchedResource, is_of_namespace};
use crate::state::{Gap, Seq, State};
pub use crate::status::story::events::EventView;
pub use crate::status::story::mutes::{MuteRequest, MuteView, MutedView};
pub use crate::status::story::reports::ReportView;
pub use crate::status::story::why::{
    Cause, CauseKind, ContainerRole, DocumentsBySeq, ExplainedStates, FailedContainer, Outcome, PodCoverage,
    SentenceClaim, WhyView, signal_name, signal_number,
};

/// A one-time login: the page `/login/once?code=CODE` takes the code once, and signs the browser in.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Login"))]
pub struct LoginView {
    /// Empty if nobody signs in.
    pub code: String,
    pub good_for_seconds: u64,
}

#[derive(Clone, Debug, Error)]
pub enum ViewError {
    /// The requested thing is missing. Its kind determines where to look instead, so it has its own hint.
    #[error("{message}")]
    NotFound { message: String, hint: String },
    #[error("{0}")]
    Invalid(String),
    /// The request was valid when it was made, but something has changed since.
    #[error("{message}")]
    Changed { message: String, hint: String },
    #[error("{0}")]
    Unavailable(String),
}

/// The questions that the portal asks and the controller answers.
#[async_trait]
pub trait Views: Send + Sync {
    async fn status_view(&self) -> Result<StatusView, ViewError>;
    /// The resources that each source witnesses. Read for every request of a person who may not see
    /// everything.
    fn watched_resources(&self) -> Vec<WatchedResource>;
    /// The namespaces in which the source knows an object, at most `most` of them. With `past`, also those of
    /// the objects that ended last.
    async fn known_namespaces(
        &self,
        source: &str,
        past: bool,
        most: usize,
    ) -> Result<BTreeSet<String>, ViewError>;
    /// A page of the objects that a query selects, the newest change first.
    async fn object_page(&self, query: &ObjectQuery) -> Result<ObjectPage, ViewError>;
    /// The existing objects that a query selects, counted by phase.
    async fn object_counts(&self, query: &ObjectQuery) -> Result<ObjectCounts, ViewError>;
    /// The states of a story, with the identities of their objects. The caller removes what the person may
    /// not see, and passes the rest to [`Self::timeline_view`].
    async fn raw_story(&self, query: &TimelineQuery) -> Result<RawStory, ViewError>;
    /// A story without secrets, with the Events and reports about its objects.
    async fn timeline_view(&self, story: RawStory) -> Result<TimelineView, ViewError>;
    /// Explains why the object of a timeline failed or waits. It reads only documents of the timeline's
    /// states.
    async fn explain_timeline(&self, timeline: &TimelineView) -> Result<WhyView, ViewError>;
    /// A state without secrets.
    async fn redacted_state(&self, state: RawState) -> Result<Arc<State>, ViewError>;
    /// The creation time of a state's object, if its document has one.
    async fn created_ms(&self, seq: Seq) -> Result<Option<u64>, ViewError>;
    /// Whether an object with this creation time is in the namespace that was created at `since_ms`.
    async fn is_since(&self, since_ms: u64, created_ms: u64, uid: &str) -> Result<bool, ViewError> {
        // Its end matters only if both were created in the same second.
        let newest = match created_ms == since_ms {
            true => self.raw_story(&TimelineQuery::newest_of(uid)).await?.states.pop(),
            false => None,
        };
        Ok(is_of_namespace(created_ms, since_ms, newest.and_then(|state| state.ended_ms())))
    }
    /// The stage of these states in each plugin.
    async fn delivery_stages(&self, states: &[Arc<State>]) -> Result<DeliveryMap, ViewError>;
    /// The document of one state, exactly as it came from the server.
    async fn document_at(&self, seq: Seq) -> Result<Vec<u8>, ViewError>;
    /// Newest first, each with its number.
    async fn find_gaps(&self, query: &GapQuery) -> Result<Vec<(u64, Gap)>, ViewError>;
    /// Newest first.
    async fn find_poison(&self, query: &PoisonQuery) -> Result<Vec<PoisonView>, ViewError>;
    /// The bytes as they came.
    async fn poison_raw(&self, number: u64) -> Result<Vec<u8>, ViewError>;
    /// By plugin and position.
    async fn dead_letters(&self, query: &LetterQuery) -> Result<Vec<DeadLetterView>, ViewError>;
    async fn replay_letters(&self, request: &ReplayRequest) -> Result<ReplayView, ViewError>;
    async fn drop_letters(&self, request: &ReplayRequest) -> Result<DropView, ViewError>;
    /// Pauses or resumes a plugin. Returns once the change is durable and in force.
    async fn set_plugin_pause(
        &self,
        plugin: &str,
        pauses: bool,
        request: &PauseRequest,
    ) -> Result<PauseView, ViewError>;
    /// The mutes of all people, oldest first.
    async fn list_mutes(&self) -> Result<Vec<MuteView>, ViewError>;
    /// Adds or removes a mute. Returns once the change is durable; other replicas follow within seconds.
    async fn set_mute(&self, mute: &MuteView, mutes: bool) -> Result<MutedView, ViewError>;
    /// The records of replayed and dropped dead letters and of paused and resumed plugins, newest first.
    async fn letter_records(&self, query: &RecordQuery) -> Result<Vec<LetterRecordView>, ViewError>;
    /// For the live stream: states after a position, oldest first. The caller filters them for the person and
    /// renders them with [`Self::redacted_state`].
    async fn states_after(&self, after: Seq, limit: usize) -> Result<Vec<RawState>, ViewError>;
    /// States by position, oldest first. Those that retention has removed are left out.
    async fn states_at(&self, seqs: &[Seq]) -> Result<Vec<RawState>, ViewError>;
    /// Whether the journal still has every state after a position. Retention may have removed some.
    async fn has_all_after(&self, after: Seq) -> Result<bool, ViewError>;
    /// Follows the newest position. It is an error before the journal is open, because no position is known
    /// yet.
    fn newest_position(&self) -> Result<watch::Receiver<Seq>, ViewError>;
    /// Changes whenever causes of outcomes were found. That takes some seconds after the states, so a viewer
    /// of causes has to read them again.
    fn outcome_news(&self) -> Result<watch::Receiver<u64>, ViewError>;
    /// Lists the holders that block retention, as in [`StatusView::held`]. Read for each page view.
    fn retention_holds(&self) -> Vec<HeldView>;
    /// Why this process is not ready (for `/readyz`); `None` if it is. It is ready if the journal is open and
    /// answers, the host's settings are in force, and each source has made its first list and is not blocked.
    /// A refused change of the configuration leaves the former one in force: it is reported in `problems` and
    /// by the plugins, and does not affect readiness.
    fn why_not_ready(&self) -> Option<String>;
}
