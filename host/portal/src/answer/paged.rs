//! A part of a list: the body has its rows, and the headers say where the next part is and what else there is to know.

use axum::Json;
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

/// A sentence that tells what makes the answer less than all.
pub(crate) const NOTICE: HeaderName = HeaderName::from_static("kubewitness-notice");

pub(crate) struct Paged<T> {
    pub body: T,
    /// The address of the next part.
    pub next: Option<String>,
    pub notices: Vec<String>,
}

impl<T> Paged<T> {
    pub(crate) fn new(body: T, next: Option<String>) -> Self {
        Self { body, next, notices: Vec::new() }
    }
}

impl<T: Serialize> IntoResponse for Paged<T> {
    fn into_response(self) -> Response {
        let mut response = Json(self.body).into_response();
        let link = self.next.map(|next| (header::LINK, format!("<{next}>; rel=\"next\"")));
        let notices = self.notices.into_iter().map(|notice| (NOTICE, notice));
        for (name, value) in link.into_iter().chain(notices) {
            // Names of sources are plain, and so is all else in it.
            if let Ok(value) = HeaderValue::try_from(value) {
                response.headers_mut().append(name, value);
            }
        }
        response
    }
}
