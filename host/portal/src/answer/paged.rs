//! A part of a list: the body has its rows, and the headers have the next part's address and notices.

use axum::Json;
use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::streamed::{self, LONG};
use crate::serve::{ReadingTurn, StreamedAnswer};

/// A sentence about why the answer is incomplete.
pub(crate) const NOTICE: HeaderName = HeaderName::from_static("kubewitness-notice");

const JSON: &str = "application/json";

/// Names the subject of an empty answer if the person may see none of it.
const FORBIDDEN: HeaderName = HeaderName::from_static("kubewitness-forbidden");

enum PagedBody<T> {
    Whole(T),
    /// Written as it is sent.
    Streamed(Body, StreamedAnswer),
}

pub(crate) struct PagedAnswer<T> {
    body: PagedBody<T>,
    /// The address of the next part.
    pub next: Option<String>,
    pub notices: Vec<String>,
    /// The verb and the resources for which a right is needed.
    pub forbidden: Option<String>,
    /// Held until the rows have become text.
    turn: Option<ReadingTurn>,
}

impl<T> PagedAnswer<T> {
    pub(crate) fn new(body: T, next: Option<String>) -> Self {
        Self { body: PagedBody::Whole(body), next, notices: Vec::new(), forbidden: None, turn: None }
    }

    /// The text of such a body, as it is written.
    pub(crate) fn from_stream(body: Body, next: Option<String>) -> Self {
        let body = PagedBody::Streamed(body, StreamedAnswer::default());
        Self { body, next, notices: Vec::new(), forbidden: None, turn: None }
    }

    pub(crate) fn with_forbidden(self, forbidden: Option<String>) -> Self {
        Self { forbidden, ..self }
    }

    pub(crate) fn with_notices(self, notices: Vec<String>) -> Self {
        Self { notices, ..self }
    }
}

impl<T: Serialize + Send + 'static> PagedAnswer<Vec<T>> {
    /// Rows that were read in a turn.
    pub(crate) fn of_rows(rows: Vec<T>, next: Option<String>, mut turn: Option<ReadingTurn>) -> Self {
        if let Some(turn) = &mut turn {
            turn.give_back_unneeded(rows.len());
        }
        match rows.len() > LONG {
            // Its rows have room among the answers, so a client that reads slowly holds nobody's turn.
            true => {
                let held = StreamedAnswer { rows: rows.len() };
                let body = PagedBody::Streamed(streamed::list_body(rows), held);
                Self { body, next, notices: Vec::new(), forbidden: None, turn: None }
            }
            false => Self { turn, ..Self::new(rows, next) },
        }
    }
}

impl<T: Serialize> IntoResponse for PagedAnswer<T> {
    fn into_response(self) -> Response {
        let mut response = match self.body {
            PagedBody::Whole(body) => Json(body).into_response(),
            PagedBody::Streamed(body, held) => {
                let mut response = ([(header::CONTENT_TYPE, JSON)], body).into_response();
                response.extensions_mut().insert(held);
                response
            }
        };
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
