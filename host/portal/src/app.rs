//! The state that every handler shares.

use std::sync::Arc;

use axum::routing::MethodRouter;
use kubewitness_core::ports::Submitter;
use kubewitness_core::views::Views;
use tokio_util::sync::CancellationToken;

use crate::access::ages::Ages;
use crate::access::gate::Gate;
use crate::options::PortalOptions;
use crate::serve::{StreamPlaces, Traffic};

/// A path, as axum and OpenAPI both write it, and what answers there.
pub(crate) type Route = (&'static str, MethodRouter<App>);

#[derive(Clone)]
pub(crate) struct App {
    pub(crate) views: Arc<dyn Views>,
    pub(crate) streams: StreamPlaces,
    /// Ends the live streams, which would otherwise hold a shut-down for ever.
    pub(crate) stop: CancellationToken,
    pub(crate) traffic: Traffic,
    pub(crate) gate: Gate,
    pub(crate) ages: Arc<Ages>,
    pub(crate) submitter: Option<Arc<dyn Submitter>>,
}

impl App {
    pub(crate) fn new(views: Arc<dyn Views>, options: &PortalOptions, stop: CancellationToken) -> Self {
        let streams = options.streams.min(options.bounds.connections / 2);
        let traffic = options.traffic.clone();
        let gate = Gate { access: options.access.clone(), secure: options.tls.is_some() };
        let submitter = options.submitter.clone();
        let streams = StreamPlaces::new(streams, traffic.portal.clone());
        Self { views, streams, stop, traffic, gate, ages: Arc::default(), submitter }
    }
}
