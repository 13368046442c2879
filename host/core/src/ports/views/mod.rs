//! What people and scripts are shown: the shapes of the API, the command line and the portal.
//!
//! What is said of a type or a field here is what the API's description says of it. The shapes know no store and no
//! page.

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
    BackfillView, CallEndsView, CallFailureView, CallsView, ConfigField, GrantUseView, GrantView,
    HistogramView, ManifestView, PauseRequest, PauseView, PausedView, PluginView, QueueView, ShadowActView,
    ShadowDifferenceView, ShadowSideView, ShadowView, TickView, VerdictsView,
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
    Cause, CauseKind, ContainerRole, DocumentsBySeq, ExplainedStates, FailedContainer, Outcome, WhyView,
};

/// A one-time login: the page `/login/once?code=CODE` takes the code once, and signs the browser in.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Login"))]
pub struct LoginView {
    /// Empty where nobody signs in.
    pub code: String,
    pub good_for_seconds: u64,
}

#[derive(Debug, Error)]
pub enum ViewError {
    /// What is missing decides where to look instead, so it brings its own hint.
    #[error("{message}")]
    NotFound { message: String, hint: String },
    #[error("{0}")]
    Invalid(String),
    /// The request was right when it was made, and something has changed since.
    #[error("{message}")]
    Changed { message: String, hint: String },
    #[error("{0}")]
    Unavailable(String),
}

/// What the portal reads; the controller answers.
#[async_trait]
pub trait Views: Send + Sync {
    async fn status(&self) -> Result<StatusView, ViewError>;
    /// What each source witnesses. Asked with every request of somebody who may not see all.
    fn watched(&self) -> Vec<WatchedResource>;
    /// The namespaces in which the source knows an object, but no more than so many of them. `past`: also those of
    /// the objects that ended last.
    async fn namespaces(&self, source: &str, past: bool, most: usize) -> Result<BTreeSet<String>, ViewError>;
    /// A page of the objects that a query selects, the newest change first.
    async fn objects(&self, query: &ObjectQuery) -> Result<ObjectPage, ViewError>;
    /// The objects that are there and that a query selects, counted by phase.
    async fn counts(&self, query: &ObjectQuery) -> Result<ObjectCounts, ViewError>;
    /// Whose states a story has. The caller keeps of it what somebody may see, and [`Self::told`] tells that.
    async fn story(&self, query: &TimelineQuery) -> Result<RawStory, ViewError>;
    /// A story without secrets, with what Events and reports say of its objects.
    async fn timeline_view(&self, story: RawStory) -> Result<TimelineView, ViewError>;
    /// Explains why the object of a timeline failed or waits. It reads documents of the timeline's states alone.
    async fn explain(&self, timeline: &TimelineView) -> Result<WhyView, ViewError>;
    /// A state without secrets.
    async fn redacted_state(&self, state: RawState) -> Result<Arc<State>, ViewError>;
    /// When the object was created of which a state is, if its document says so.
    async fn created_ms(&self, seq: Seq) -> Result<Option<u64>, ViewError>;
    /// Whether an object that was created then lies in the namespace that was made at `since_ms`.
    async fn is_since(&self, since_ms: u64, created_ms: u64, uid: &str) -> Result<bool, ViewError> {
        // Its end tells in the same second alone.
        let newest = match created_ms == since_ms {
            true => self.story(&TimelineQuery::newest_of(uid)).await?.states.pop(),
            false => None,
        };
        Ok(is_of_namespace(created_ms, since_ms, newest.and_then(|state| state.ended_ms())))
    }
    /// How far each plugin is with these states.
    async fn deliveries(&self, states: &[Arc<State>]) -> Result<DeliveryMap, ViewError>;
    /// The document of one state, exactly as it came from the server.
    async fn document(&self, seq: Seq) -> Result<Vec<u8>, ViewError>;
    /// Newest first, each with its number.
    async fn gaps(&self, query: &GapQuery) -> Result<Vec<(u64, Gap)>, ViewError>;
    /// Newest first.
    async fn poison(&self, query: &PoisonQuery) -> Result<Vec<PoisonView>, ViewError>;
    /// The bytes as they came.
    async fn poison_raw(&self, number: u64) -> Result<Vec<u8>, ViewError>;
    /// By plugin and position.
    async fn dead_letters(&self, query: &LetterQuery) -> Result<Vec<DeadLetterView>, ViewError>;
    async fn replay(&self, request: &ReplayRequest) -> Result<ReplayView, ViewError>;
    async fn drop_letters(&self, request: &ReplayRequest) -> Result<DropView, ViewError>;
    /// Pauses a plugin, or resumes it. Returns once that is durable and in force.
    async fn pause(&self, plugin: &str, pauses: bool, request: &PauseRequest)
    -> Result<PauseView, ViewError>;
    /// What people have muted, oldest first.
    async fn mutes(&self) -> Result<Vec<MuteView>, ViewError>;
    /// Mutes, or undoes it. Returns once that is durable; on other replicas it holds within seconds.
    async fn mute(&self, mute: &MuteView, mutes: bool) -> Result<MutedView, ViewError>;
    /// Who took dead letters back or dropped them, and who paused and resumed plugins, newest first.
    async fn letter_records(&self, query: &RecordQuery) -> Result<Vec<LetterRecordView>, ViewError>;
    /// For the live stream: states after a position, oldest first. The caller asks [`Self::shown`] for those that
    /// somebody may see.
    async fn states_after(&self, after: Seq, limit: usize) -> Result<Vec<RawState>, ViewError>;
    /// States by position, oldest first. Those that retention has removed are left out.
    async fn states_at(&self, seqs: &[Seq]) -> Result<Vec<RawState>, ViewError>;
    /// Whether the journal still has every state after a position. Retention may have taken some.
    async fn has_all_after(&self, after: Seq) -> Result<bool, ViewError>;
    /// Follows the newest position. An error before the journal is open: a position that nobody knows yet is none.
    fn newest(&self) -> Result<watch::Receiver<Seq>, ViewError>;
    /// What keeps retention from going on, as [`StatusView::held`] tells it; asked with each view of a page.
    fn retention_holds(&self) -> Vec<HeldView>;
    /// Whether this process does its work (for `/readyz`), and if not, why: the journal is open and
    /// answers, the host's settings are in force, and each source has made its first list and is not held
    /// up. Whatever of the configuration is refused leaves what was taken before in force: it is told in
    /// `problems` and by the plugins, and makes nothing less ready.
    fn ready(&self) -> Result<(), String>;
}
