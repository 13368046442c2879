//! Defines `PortalApp`, the state that axum passes to every handler: the views, the gate, and the places of
//! live streams.

use std::sync::Arc;

use axum::routing::MethodRouter;
use kubewitness_core::ports::JobSubmitter;
use kubewitness_core::views::{StatusView, ViewError, Views};
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::access::ages::NamespaceAges;
use crate::access::gate::RequestGate;
use crate::options::PortalOptions;
use crate::scope::SharedStatus;
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
