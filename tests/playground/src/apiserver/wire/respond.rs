//! Builds HTTP answers: bodies with their types, failures with their headers.

use axum::body::Body;
use http::{HeaderValue, Response, StatusCode, header};

use crate::apiserver::wire::error::ApiError;

pub const JSON: &str = "application/json";

pub fn with_type(code: u16, content_type: &'static str, body: impl Into<Body>) -> Response<Body> {
    let mut response = Response::new(body.into());
    *response.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    response
}

pub fn json(code: u16, body: impl Into<Body>) -> Response<Body> {
    with_type(code, JSON, body)
}

pub fn text(code: u16, body: &'static str) -> Response<Body> {
    with_type(code, "text/plain; charset=utf-8", body)
}

pub fn failure(error: &ApiError) -> Response<Body> {
    let mut response = json(error.code, error.to_status().to_string());
    if let Some(seconds) = error.retry_after {
        response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
    }
    response
}
