//! Submitting a Job from a template.

use axum::Json;
use axum::extract::State;
use axum::extract::rejection::JsonRejection;
use axum::http::{HeaderMap, HeaderName, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use kubewitness_core::views::{SubmitRequest, SubmitView, TemplateView};

use crate::access::Viewer;
use crate::answer::Problem;
use crate::answer::params::Params;
use crate::app::App;
use crate::submit::{Desk, KEY_BYTES, random_key};

const KEY: HeaderName = HeaderName::from_static("idempotency-key");

pub(super) async fn templates(
    State(app): State<App>,
    viewer: Viewer,
    uri: Uri,
) -> Result<Json<Vec<TemplateView>>, Problem> {
    Params::read(&uri, &[])?;
    Ok(Json(Desk::of(&app)?.templates(&viewer).await?))
}

/// 201 where the Job was created, and 200 where it was there already.
pub(super) struct Submitted(SubmitView);

impl IntoResponse for Submitted {
    fn into_response(self) -> Response {
        let status = if self.0.created { StatusCode::CREATED } else { StatusCode::OK };
        (status, Json(self.0)).into_response()
    }
}

pub(super) async fn submit(
    State(app): State<App>,
    viewer: Viewer,
    uri: Uri,
    headers: HeaderMap,
    body: Result<Json<SubmitRequest>, JsonRejection>,
) -> Result<Submitted, Problem> {
    Params::read(&uri, &[])?;
    let desk = Desk::of(&app)?;
    let Json(request) = body?;
    let channel = match request.channel.as_str() {
        "" | "api" => "api",
        "cli" => "cli",
        _ => {
            return Err(Problem::invalid("This is no channel.", "`channel` is `api` or `cli`, or left out."));
        }
    };
    let key = match headers.get(KEY) {
        Some(key) => checked(key.to_str().unwrap_or_default())?.to_owned(),
        None => random_key()?,
    };
    Ok(Submitted(desk.submit(&app, &viewer, &request, channel, &key).await?))
}

/// A key that a program or a form brings.
pub(crate) fn checked(key: &str) -> Result<&str, Problem> {
    let is_plain = key.bytes().all(|byte| byte.is_ascii_graphic());
    match is_plain && (1..=KEY_BYTES).contains(&key.len()) {
        true => Ok(key),
        false => Err(Problem::invalid(
            "The key of this submission can't be used.",
            format!("`Idempotency-Key` has from 1 to {KEY_BYTES} letters, digits and signs, such as a UUID."),
        )),
    }
}
