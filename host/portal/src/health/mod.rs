//! Answers probes and Prometheus: `/healthz`, `/readyz` and `/metrics`.
//!
//! A probe must not fail because people use the portal heavily, and a scrape must not cost a walk over the
//! journal. So these endpoints read only figures that are at hand, no state and no document, and can be
//! served on a port of their own. `/healthz` says that the process runs; `/readyz` says whether it does its
//! work. They change nothing.

mod metrics;
mod page;
mod plugin_metrics;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use self::metrics::render;
use crate::access::{GuardedAct, PortalViewer};
use crate::answer::Problem;
use crate::app::{AppRoute, PortalApp};

pub(crate) fn routes() -> Vec<AppRoute> {
    vec![("/healthz", get(healthz)), ("/readyz", get(readyz)), ("/metrics", get(metrics))]
}

/// The process runs and answers; `/readyz` says whether it does its work.
async fn healthz() -> &'static str {
    "ok\n"
}

async fn readyz(State(app): State<PortalApp>, viewer: PortalViewer) -> Response {
    let Some(why) = app.views.why_not_ready() else { return "ready\n".into_response() };
    // The reason may contain details that are not for everybody.
    let text = match viewer.has_right(GuardedAct::SeeStatus, "").await {
        Ok(true) => format!("not ready: {why}\n"),
        _ => "not ready\n".to_owned(),
    };
    (StatusCode::SERVICE_UNAVAILABLE, text).into_response()
}

async fn metrics(State(app): State<PortalApp>, viewer: PortalViewer) -> Result<Response, Problem> {
    viewer.require_right(GuardedAct::SeeStatus, "").await?;
    let status = app.status_in_time().await?;
    let text = render(&status, app.views.why_not_ready().is_none(), &app.traffic);
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response())
}
