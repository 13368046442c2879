//! A part of a list: the body has its rows, and the headers have the next part's address and notices.

use axum::Json;
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use crate::serve::ReadingTurn;

/// A sentence about why the answer is incomplete.
pub(crate) const NOTICE: HeaderName = HeaderName::from_static("kubewitness-notice");

/// Names the subject of an empty answer if the person may see none of it.
const FORBIDDEN: HeaderName = HeaderName::from_static("kubewitness-forbidden");

pub(crate) struct PagedAnswer<T> {
    pub body: T,
    /// The address of the next part.
    pub next: Option<String>,
    pub notices: Vec<String>,
    /// The verb and the resources for which a right is needed.
    pub forbidden: Option<String>,
    /// Held until the rows have become text.
    pub turn: Option<ReadingTurn>,
}

impl<T> PagedAnswer<T> {
    pub(crate) fn new(body: T, next: Option<String>) -> Self {
        Self { body, next, notices: Vec::new(), forbidden: None, turn: None }
    }

    pub(crate) fn forbidden(self, forbidden: Option<String>) -> Self {
        Self { forbidden, ..self }
    }

    pub(crate) fn in_turn(self, turn: Option<ReadingTurn>) -> Self {
        Self { turn, ..self }
    }
}

impl<T: Serialize> IntoResponse for PagedAnswer<T> {
    fn into_response(self) -> Response {
        let mut response = Json(self.body).into_response();
        drop(self.turn);
        let link = self.next.map(|next| (header::LINK, format!("<{next}>; rel=\"next\"")));
        let notices = self.notices.into_iter().map(|notice| (NOTICE, notice));
        let forbidden = self.forbidden.map(|what| (FORBIDDEN, what));
        for (name, value) in link.into_iter().chain(notices).chain(forbidden) {
            // Names of sources are plain text, and so is the rest.
            if let Ok(value) = HeaderValue::try_from(value) {
                response.headers_mut().append(name, value);
            }
        }
        response
    }
}
