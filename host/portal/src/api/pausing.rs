//! Pausing and resuming a plugin.

use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{Path, State};
use axum::http::Uri;
use kubewitness_core::config::is_name;
use kubewitness_core::views::{PauseRequest, PauseView};

use super::check_record;
use crate::access::{GuardedAct, PortalViewer};
use crate::answer::Problem;
use crate::answer::params::QueryParams;
use crate::app::PortalApp;

type PauseBody = Result<Json<PauseRequest>, JsonRejection>;

pub(super) async fn pause(
    State(app): State<PortalApp>,
    viewer: PortalViewer,
    Path(name): Path<String>,
    uri: Uri,
    body: PauseBody,
) -> Result<Json<PauseView>, Problem> {
    QueryParams::read(&uri, &[])?;
    Ok(Json(change_pause(&app, &viewer, true, &name, body?.0).await?))
}

pub(super) async fn resume(
    State(app): State<PortalApp>,
    viewer: PortalViewer,
    Path(name): Path<String>,
    uri: Uri,
    body: PauseBody,
) -> Result<Json<PauseView>, Problem> {
    QueryParams::read(&uri, &[])?;
    Ok(Json(change_pause(&app, &viewer, false, &name, body?.0).await?))
}

/// The record has the name of the signed-in person.
pub(crate) async fn change_pause(
    app: &PortalApp,
    viewer: &PortalViewer,
    pauses: bool,
    name: &str,
    mut request: PauseRequest,
) -> Result<PauseView, Problem> {
    let (act, what) = if pauses { (GuardedAct::Pause, "A pause") } else { (GuardedAct::Resume, "A resume") };
    if !is_name(name) {
        return Err(Problem::invalid_request(
            "This is no name of a plugin.",
            "`kubewitness plugins` and the portal's page of plugins list those that there are.",
        ));
    }
    viewer.require_right(act, name).await?;
    check_record(what, &request.reason, &request.who)?;
    if let Some(name) = viewer.name() {
        request.who = name.to_owned();
    }
    Ok(app.views.set_plugin_pause(name, pauses, &request).await?)
}
