//! Defines `PortalApp`, the state that axum passes to every handler: the views, the gate, the places of live
//! streams, and the count of figures that open pages share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::routing::MethodRouter;
use kubewitness_core::ports::JobSubmitter;
use kubewitness_core::views::{StatusView, ViewError, Views};
use tokio::runtime::Handle;
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::access::ages::NamespaceAges;
use crate::access::gate::RequestGate;
use crate::options::PortalOptions;
use crate::serve::{ListenerTraffic, ReadingRoom, RecentKeys, StreamPlaces};

/// A path, in the common form of axum and OpenAPI, and its handler.
pub(crate) type AppRoute = (&'static str, MethodRouter<PortalApp>);

#[derive(Clone)]
pub(crate) struct PortalApp {
    pub(crate) views: Arc<dyn Views>,
    pub(crate) streams: StreamPlaces,
    pub(crate) readings: ReadingRoom,
    pub(crate) status: Arc<SharedStatus>,
    /// Ends the live streams, which would otherwise block the shutdown forever.
    pub(crate) stop: CancellationToken,
    pub(crate) traffic: ListenerTraffic,
    pub(crate) gate: RequestGate,
    pub(crate) ages: Arc<NamespaceAges>,
    pub(crate) submitter: Option<Arc<dyn JobSubmitter>>,
    pub(crate) submissions: RecentKeys,
    figures_on: Option<Handle>,
}

impl PortalApp {
    pub(crate) fn new(views: Arc<dyn Views>, options: &PortalOptions, stop: CancellationToken) -> Self {
        let streams = options.streams.min(options.bounds.connections / 2);
        let streams = u32::try_from(streams).unwrap_or(u32::MAX);
        let traffic = options.traffic.clone();
        let gate = RequestGate { access: options.access.clone(), secure: options.tls.is_some() };
        let (submitter, figures_on) = (options.submitter.clone(), options.figures_on.clone());
        let streams = StreamPlaces::new(streams, traffic.portal.clone());
        let readings = ReadingRoom::new();
        let status = Arc::new(SharedStatus::new(views.clone()));
        let (ages, submissions) = (Arc::default(), RecentKeys::default());
        Self {
            views,
            streams,
            readings,
            status,
            stop,
            traffic,
            gate,
            ages,
            submitter,
            submissions,
            figures_on,
        }
    }

    /// Connections to the journal's database belong to the runtime that opened them, and outlive the runtime
    /// that serves. Abandoning a request cancels the read.
    pub(crate) async fn status_in_time(&self) -> Result<StatusView, ViewError> {
        let Some(runtime) = &self.figures_on else { return self.views.status_view().await };
        let views = self.views.clone();
        let mut reading = JoinSet::new();
        reading.spawn_on(async move { views.status_view().await }, runtime);
        let ended = |why: &str| ViewError::Unavailable(format!("the figures can't be read: {why}"));
        match reading.join_next().await {
            Some(read) => read.map_err(|error| ended(&error.to_string()))?,
            None => Err(ended("nobody reads them")),
        }
    }
}

/// A page follows within a second, also if it gets figures of this age.
const RECENT: Duration = Duration::from_millis(500);
/// A count of the figures that takes longer has failed, because everybody waits for it.
const LONGEST_COUNT: Duration = Duration::from_secs(10);

/// One count of the figures for all who look at them at the same time.
///
/// Pages of figures are requested every second by each open tab, and a count reads tables of the journal. So
/// one request counts, and all that wait meanwhile take its result. The result has everything, as the
/// controller sees it: each viewer gets a copy, and `status` removes from it what the viewer may not see. So
/// it does not matter for whom it was counted.
///
/// A page accepts figures that are up to [`RECENT`] old, unless somebody has changed something through this
/// portal since: whoever pauses a plugin sees it paused. Scripts compare figures with what they did a moment
/// ago, so the API accepts only a count that began after its request.
pub(crate) struct SharedStatus {
    views: Arc<dyn Views>,
    /// Held during a count, so that one runs at a time.
    last: Mutex<Option<StatusCount>>,
    requests: AtomicU64,
    changes: AtomicU64,
}

struct StatusCount {
    began: Instant,
    ended: Instant,
    /// How many requests and changes came before it began.
    requests: u64,
    changes: u64,
    result: Result<Arc<StatusView>, ViewError>,
}

impl SharedStatus {
    pub(crate) fn new(views: Arc<dyn Views>) -> Self {
        Self { views, last: Mutex::default(), requests: AtomicU64::new(0), changes: AtomicU64::new(0) }
    }

    /// Figures that were counted after this call.
    pub(crate) async fn count_anew(&self) -> Result<Arc<StatusView>, ViewError> {
        let request = self.requests.fetch_add(1, Ordering::SeqCst);
        self.read_if(|count| count.requests > request).await
    }

    /// Figures that are not older than a page may show, or those of a count that this call waited for.
    pub(crate) async fn recent_figures(&self) -> Result<Arc<StatusView>, ViewError> {
        let changes = self.changes.load(Ordering::SeqCst);
        let requested = Instant::now();
        let is_recent = |count: &StatusCount| count.began.elapsed() < RECENT || count.ended >= requested;
        self.read_if(|count| count.changes >= changes && is_recent(count)).await
    }

    /// Somebody has changed something: counts that began before do not show it.
    pub(crate) fn note_change(&self) {
        self.changes.fetch_add(1, Ordering::SeqCst);
    }

    /// A failed count is shared as well: a journal that fails slowly would otherwise be asked by each tab in
    /// turn.
    async fn read_if(
        &self,
        is_new_enough: impl Fn(&StatusCount) -> bool,
    ) -> Result<Arc<StatusView>, ViewError> {
        let mut last = self.last.lock().await;
        if let Some(count) = last.as_ref().filter(|count| is_new_enough(count)) {
            return count.result.clone();
        }
        let (requests, changes) = (self.requests.load(Ordering::SeqCst), self.changes.load(Ordering::SeqCst));
        let began = Instant::now();
        let counted = tokio::time::timeout(LONGEST_COUNT, self.views.status_view()).await;
        let result = counted.unwrap_or_else(|_| Err(slow_count_error())).map(Arc::new);
        let ended = Instant::now();
        *last = Some(StatusCount { began, ended, requests, changes, result: result.clone() });
        result
    }
}

fn slow_count_error() -> ViewError {
    let seconds = LONGEST_COUNT.as_secs();
    ViewError::Unavailable(format!(
        "The figures were not counted within {seconds} s: the journal's disk or database is slow."
    ))
}
