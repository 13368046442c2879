//! The portal: the HTTP API, the pages for people, and what probes and Prometheus ask for.
//!
//! It reads through [`Views`] and knows neither Kubernetes nor the journal. It is the only
//! crate that serves HTTP. Everything that it gives out is bounded: rows, streams, time and
//! the size of what it is sent.

mod api;
mod app;
mod events;
mod guard;
mod health;
mod metrics;
mod pages;
mod params;
mod problem;
mod scope;
mod serve;
mod time;
mod traffic;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use kubewitness_core::views::Views;
use thiserror::Error;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use app::App;
use serve::Terms;
pub use serve::{Bounds, listen};
pub use traffic::Traffic;

/// A replay names positions; 64 KiB are thousands of them.
const BODY_BYTES: usize = 64 * 1024;

#[derive(Clone)]
pub struct PortalOptions {
    /// What [`router`] takes to be the address that it is served at; [`serve`] asks its listener.
    pub listen: SocketAddr,
    /// Whether an address that others can reach is accepted. There is no authentication yet,
    /// so whoever says yes puts something before the portal that has it.
    pub allow_remote: bool,
    /// A request that is not answered by then is given up.
    pub request_timeout: Duration,
    /// Live streams at once. Each holds a connection and a batch of states. Half of the connections are
    /// left for other requests, whatever stands here.
    pub streams: usize,
    /// What clients can take of it by connecting.
    pub bounds: Bounds,
    /// Counts connections; the portal and the health port have one together.
    pub traffic: Traffic,
    /// Ends connections at once, where `stop` gives them time.
    pub abort: CancellationToken,
}

impl Default for PortalOptions {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 8787)),
            allow_remote: false,
            request_timeout: Duration::from_secs(15),
            streams: 64,
            bounds: Bounds::PORTAL,
            traffic: Traffic::default(),
            abort: CancellationToken::new(),
        }
    }
}

#[derive(Debug, Error)]
pub enum PortalError {
    #[error(
        "the portal would listen on {0}, which others can reach, and it does not know who asks: \
         listen on 127.0.0.1 and let people reach it with `kubectl port-forward`"
    )]
    Remote(SocketAddr),
    #[error("the portal can't serve: {0}")]
    Serve(#[from] std::io::Error),
}

/// The API and the pages.
pub fn router(views: Arc<dyn Views>, options: &PortalOptions) -> Router {
    build(views, options, CancellationToken::new())
}

fn build(views: Arc<dyn Views>, options: &PortalOptions, stop: CancellationToken) -> Router {
    let app = App::new(views, options, stop);
    let routes = api::routes().into_iter().chain(health::routes()).chain(pages::routes());
    let router = routes.fold(Router::new(), |router, (path, handler)| router.route(path, handler));
    let router = router
        .fallback(problem::no_such_page)
        .method_not_allowed_fallback(problem::no_such_method)
        .layer(DefaultBodyLimit::max(BODY_BYTES))
        .with_state(app);
    guard::protect(router, options)
}

/// Serves the API and the pages until `stop`; then streams end, and open requests have
/// `bounds.grace` to be finished.
pub async fn serve(
    listener: TcpListener,
    views: Arc<dyn Views>,
    options: PortalOptions,
    stop: CancellationToken,
) -> Result<(), PortalError> {
    let listen = listener.local_addr()?;
    if !listen.ip().is_loopback() && !options.allow_remote {
        return Err(PortalError::Remote(listen));
    }
    let options = PortalOptions { listen, ..options };
    let router = build(views, &options, stop.clone());
    let PortalOptions { bounds, traffic, abort, .. } = options;
    let terms = Terms { name: "portal", bounds, counts: traffic.portal, stop, abort };
    serve::serve(listener, router, terms).await;
    Ok(())
}

/// Serves `/healthz`, `/readyz` and `/metrics` alone, on any address: they name sources and
/// plugins and count, and tell nothing of what was witnessed. It shares no place for a connection with
/// the portal, so that one that is overrun leaves the other answering.
pub async fn serve_health(
    listener: TcpListener,
    views: Arc<dyn Views>,
    options: PortalOptions,
    stop: CancellationToken,
) {
    let app = App::new(views, &options, stop.clone());
    let routes = health::routes().into_iter();
    let router = routes.fold(Router::new(), |router, (path, handler)| router.route(path, handler));
    let router = guard::in_time_alone(router.with_state(app), options.request_timeout);
    let PortalOptions { bounds, traffic, abort, .. } = options;
    let terms = Terms { name: "health", bounds, counts: traffic.health, stop, abort };
    serve::serve(listener, router, terms).await;
}
