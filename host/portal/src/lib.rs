//! The portal: the HTTP API, the pages for people, and the endpoints for probes and Prometheus.
//!
//! Many people with different rights read one journal, and the journal knows nothing of rights. So the portal
//! asks the API server (through `AccessReviewer`) who a person is and what they may see, and shows no more
//! than that: neither by an answer, nor by its length, its cursor or its time. Own accounts were rejected,
//! because they would drift from the cluster's rights.
//!
//! It reads through [`Views`] and knows neither Kubernetes nor the journal. It creates the Jobs that people
//! submit through `JobSubmitter`. It is the only crate that serves HTTP. Everything is bounded: rows,
//! streams, time, memory and the size of requests.

mod access;
mod answer;
mod api;
mod app;
mod health;
mod options;
mod pages;
mod request_checks;
mod scope;
mod serve;
mod submit;

use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::middleware::{self, Next};
use axum::response::Response;
use kubewitness_core::views::Views;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tracing::warn;

pub use access::{
    AUDIT, AccessControl, AccessOptions, AnswerTimes, EndedSessions, PortalAccess, ProxySecret,
    SESSION_KEY_BYTES, TrustedProxy, WeakSecret, current_party,
};
use answer::{etag, frame, problem};
use app::{PortalApp, SharedStatus};
pub use options::{PortalError, PortalOptions};
pub use serve::{CertificateError, ListenerBounds, ListenerTraffic, TlsFiles, listen_on};
use serve::{ListenerTerms, TlsListener};

/// A replay lists positions; 64 KiB hold thousands of them.
const BODY_BYTES: usize = 64 * 1024;

/// The API and the pages.
pub fn router(views: Arc<dyn Views>, options: &PortalOptions) -> Router {
    build(views, options, CancellationToken::new())
}

fn build(views: Arc<dyn Views>, options: &PortalOptions, stop: CancellationToken) -> Router {
    let app = PortalApp::new(views, options, stop);
    let gate = app.gate.clone();
    let signing_in = match options.access {
        PortalAccess::None => Vec::new(),
        PortalAccess::Kubernetes(_) => pages::login::routes(),
    };
    let routes = api::routes().into_iter().chain(health::routes()).chain(pages::routes());
    let routes = routes.chain(signing_in).chain(frame::asset_routes());
    let router = routes.fold(Router::new(), |router, (path, handler)| router.route(path, handler));
    let router = router
        .fallback(problem::no_such_page)
        .method_not_allowed_fallback(problem::no_such_method)
        .layer(DefaultBodyLimit::max(BODY_BYTES))
        .layer(middleware::from_fn(etag::tag_answers))
        .layer(middleware::from_fn(problem::word_early_refusals))
        .layer(middleware::from_fn_with_state(app.status.clone(), count_anew_after_change))
        .with_state(app);
    request_checks::protect_router(router, gate, options)
}

/// The page after a form shows what the form has changed.
async fn count_anew_after_change(
    State(status): State<Arc<SharedStatus>>,
    request: Request,
    next: Next,
) -> Response {
    let changes = !request.method().is_safe();
    let response = next.run(request).await;
    if changes {
        status.note_change();
    }
    response
}

/// Serves the API and the pages until `stop`; then streams end, and open requests have
/// `bounds.grace` to be finished.
pub async fn serve_portal(
    listener: TcpListener,
    views: Arc<dyn Views>,
    options: PortalOptions,
    stop: CancellationToken,
) -> Result<(), PortalError> {
    let listen = listener.local_addr()?;
    let is_known = options.allow_remote || matches!(options.access, PortalAccess::Kubernetes(_));
    if !listen.ip().is_loopback() && !is_known {
        return Err(PortalError::Remote(listen));
    }
    let tls = match options.tls.clone() {
        Some(files) => Some(Arc::new(TlsListener::open(files).await.map_err(PortalError::Tls)?)),
        None => None,
    };
    if !listen.ip().is_loopback() && tls.is_none() && matches!(options.access, PortalAccess::Kubernetes(_)) {
        warn!(%listen, "people send their tokens to the portal unencrypted: give it a certificate, or put a proxy before it that has one");
    }
    let options = PortalOptions { listen, ..options };
    let router = build(views, &options, stop.clone());
    let PortalOptions { bounds, traffic, abort, .. } = options;
    let terms = ListenerTerms { name: "portal", bounds, counts: traffic.portal, tls, stop, abort };
    serve::serve_listener(listener, router, terms).await;
    Ok(())
}

/// Serves only `/healthz`, `/readyz` and `/metrics`, on any address: they have names of sources and plugins
/// and counts, but nothing that was witnessed. It shares no connection limit with the portal, so that it
/// still answers if the portal is overloaded.
pub async fn serve_health(
    listener: TcpListener,
    views: Arc<dyn Views>,
    options: PortalOptions,
    stop: CancellationToken,
) {
    let app = PortalApp::new(views, &options, stop.clone());
    let routes = health::routes().into_iter();
    let router = routes.fold(Router::new(), |router, (path, handler)| router.route(path, handler));
    let router = request_checks::for_anybody(router.with_state(app), options.request_timeout);
    let PortalOptions { bounds, traffic, abort, .. } = options;
    let terms = ListenerTerms { name: "health", bounds, counts: traffic.health, tls: None, stop, abort };
    serve::serve_listener(listener, router, terms).await;
}
