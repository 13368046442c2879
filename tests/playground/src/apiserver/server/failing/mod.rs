//! Applies the faults of requests and answers.
//!
//! A test needs an API server that fails on request, in the ways in which real ones, proxies and networks
//! fail: it refuses, misreads or ignores a parameter, sends bytes slowly or not at all, or breaks off in a
//! line. A proxy in front could do the latter, but it can't misread a parameter. So the faults are applied
//! inside the server: before a request is handled, to its body, or to the lines of a watch.
//!
//! Invariant: a fault changes answers, never an object. So the history that the server keeps stays the truth
//! for the judges.

mod body;
mod frames;

use std::sync::Arc;

use axum::body::Body;
use http::Response;
use serde_json::json;

use crate::apiserver::cluster::front::ServerFront;
use crate::apiserver::faults::{DrawnFaults, FaultKind};
use crate::apiserver::wire::error::{ApiError, FieldCause};
use crate::apiserver::wire::incoming::IncomingRequest;
use crate::apiserver::wire::query::ContinueToken;
use crate::apiserver::wire::respond;

/// Marks an answer in place of which the connection ends.
#[derive(Debug, Clone, Copy)]
pub struct HangUp;

impl DrawnFaults {
    /// Applies faults before the request is handled. They answer it themselves, or change how it is read.
    pub async fn before(
        &self,
        front: &ServerFront,
        request: &mut IncomingRequest,
    ) -> Result<Option<Response<Body>>, ApiError> {
        for what in &self.0 {
            match what {
                FaultKind::Refuse { code, retry_after } => return Err(refusal(*code, *retry_after)),
                FaultKind::TooLarge => {
                    let current = front.store.version();
                    let asked = request.query.get("resourceVersion").parse().unwrap_or(current + 1);
                    return Err(ApiError::version_too_large(asked, current));
                }
                FaultKind::Expired if request.verb() == "watch" => {
                    let asked = request.query.get("resourceVersion").parse().unwrap_or(0);
                    return Err(ApiError::watch_expired(asked, front.store.version()));
                }
                FaultKind::Expired => return Err(ApiError::list_expired()),
                FaultKind::ExpiredAsStatus => request.expired_as_status = true,
                FaultKind::ExpiredContinue => {
                    let token = ContinueToken::parse(request.query.get("continue"))?;
                    return Err(ApiError::continue_expired(
                        ContinueToken { version: None, ..token }.encode(),
                    ));
                }
                FaultKind::RefuseExact { code } => {
                    let why = "resourceVersionMatch is forbidden on this server";
                    return Err(refused_parameter(*code, "resourceVersionMatch", why));
                }
                FaultKind::IgnoreExact => request.query.remove(&["resourceVersion", "resourceVersionMatch"]),
                FaultKind::RefuseInitialEvents { code } => {
                    let why = "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled";
                    return Err(refused_parameter(*code, "sendInitialEvents", why));
                }
                FaultKind::IgnoreInitialEvents => {
                    request.query.remove(&["sendInitialEvents", "resourceVersionMatch"]);
                }
                FaultKind::Hang => {
                    front.stop.cancelled().await;
                    return Ok(Some(hang_up()));
                }
                FaultKind::HangUp => return Ok(Some(hang_up())),
                _ => {}
            }
        }
        Ok(None)
    }

    /// Applies faults to the body of an answer.
    pub fn after(&self, front: &Arc<ServerFront>, response: Response<Body>) -> Response<Body> {
        if self.0.is_empty() || !response.status().is_success() {
            return response;
        }
        response.map(|body| body::shaped(front, body, &self.0))
    }
}

fn hang_up() -> Response<Body> {
    let mut response = respond::text(500, "");
    response.extensions_mut().insert(HangUp);
    response
}

fn refusal(code: u16, retry_after: Option<u32>) -> ApiError {
    let mut error = match code {
        429 => ApiError::too_many_requests("Too many requests, please try again later."),
        500 => ApiError::new(500, "InternalError", "Internal error occurred: etcdserver: leader changed"),
        503 => {
            ApiError::new(503, "ServiceUnavailable", "the server is currently unable to handle the request")
        }
        504 => ApiError::new(504, "Timeout", "Timeout: request did not complete within the allotted timeout"),
        code => ApiError::new(code, "", "the server has asked for this on purpose"),
    };
    if let Some(seconds) = retry_after {
        error.retry_after = Some(seconds);
        error.details = Some(json!({"retryAfterSeconds": seconds}));
    }
    error
}

fn refused_parameter(code: u16, parameter: &str, why: &str) -> ApiError {
    if code == 422 {
        let cause = FieldCause::forbidden(parameter, why);
        return ApiError::invalid_kind("meta.k8s.io", "ListOptions", "", &[cause]);
    }
    ApiError::new(code, if code == 400 { "BadRequest" } else { "" }, why)
}
