//! Submitting a Job from a template.

use axum::Json;
use axum::extract::State;
use axum::extract::rejection::JsonRejection;
use axum::http::{HeaderMap, HeaderName, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use kubewitness_core::views::{SubmitRequest, SubmitView, TemplateView};

use crate::access::PortalViewer;
use crate::answer::Problem;
use crate::answer::params::QueryParams;
use crate::app::PortalApp;
use crate::submit::{KEY_BYTES, SubmitDesk, random_key};

const KEY: HeaderName = HeaderName::from_static("idempotency-key");

pub(super) async fn templates(
    State(app): State<PortalApp>,
    viewer: PortalViewer,
    uri: Uri,
) -> Result<Json<Vec<TemplateView>>, Problem> {
    QueryParams::read(&uri, &[])?;
    Ok(Json(SubmitDesk::of_app(&app)?.template_views(&viewer).await?))
}

/// 201 if the Job was created, and 200 if it existed already.
pub(super) struct SubmitResponse(SubmitView);

impl IntoResponse for SubmitResponse {
    fn into_response(self) -> Response {
        let status = if self.0.created { StatusCode::CREATED } else { StatusCode::OK };
        (status, Json(self.0)).into_response()
    }
}

pub(super) async fn submit(
    State(app): State<PortalApp>,
    viewer: PortalViewer,
    uri: Uri,
    headers: HeaderMap,
    body: Result<Json<SubmitRequest>, JsonRejection>,
) -> Result<SubmitResponse, Problem> {
    QueryParams::read(&uri, &[])?;
    let desk = SubmitDesk::of_app(&app)?;
    let Json(request) = body?;
    let channel = match request.channel.as_str() {
        "" | "api" => "api",
        "cli" => "cli",
        _ => {
            return Err(Problem::invalid_request(
                "This is no channel.",
                "`channel` is `api` or `cli`, or left out.",
            ));
        }
    };
    let key = match headers.get(KEY) {
        Some(key) => check_key(key.to_str().unwrap_or_default())?.to_owned(),
        None => random_key()?,
    };
    Ok(SubmitResponse(desk.submit_job(&app, &viewer, &request, channel, &key).await?))
}

/// Checks a key that a program or a form sent.
pub(crate) fn check_key(key: &str) -> Result<&str, Problem> {
    let is_plain = key.bytes().all(|byte| byte.is_ascii_graphic());
    match is_plain && (1..=KEY_BYTES).contains(&key.len()) {
        true => Ok(key),
        false => Err(Problem::invalid_request(
            "The key of this submission can't be used.",
            format!("`Idempotency-Key` has from 1 to {KEY_BYTES} letters, digits and signs, such as a UUID."),
        )),
    }
}
