//! The page in place of an object of which nothing was witnessed. It waits for a Job that was submitted a
//! moment ago.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use kubewitness_core::clock::{Clock, SystemClock};
use maud::html;

use crate::answer::Problem;
use crate::answer::frame::PageContent;

/// When the portal created the object, in milliseconds since 1970: the link on the page of a submission
/// contains it.
pub(super) const SUBMITTED: &str = "submitted";
/// The first state arrives within seconds, unless nothing watches the object.
const SEEN_WITHIN_MS: u64 = 120_000;
/// The browser refreshes by itself, even without script.
const AGAIN_SECONDS: u64 = 2;

pub(super) fn page(uid: &str, submitted: Option<u64>) -> Result<Response, Problem> {
    let now_ms = SystemClock::default().now_ms();
    // The clock of another replica may be ahead.
    match submitted.map(|ms| ms.abs_diff(now_ms)) {
        Some(age_ms) if age_ms < SEEN_WITHIN_MS => Ok(waiting_page()),
        Some(_) => Err(Problem::new(
            StatusCode::NOT_FOUND,
            format!("Nothing was witnessed of the Job with the uid {uid}."),
            "Look at /sources whether a source watches Jobs of its namespace and follows the API server, and whether you \
             may list them there.",
        )),
        None => Err(Problem::new(
            StatusCode::NOT_FOUND,
            format!("Nothing was witnessed of an object with the uid {uid}."),
            "Objects keep their page after their deletion, as long as the journal keeps their states.",
        )),
    }
}

fn waiting_page() -> Response {
    let content = html! {
        div.empty role="status" {
            h1 { "Not seen yet, waiting" }
            p { "The API server has created the Job, and its first state has not been witnessed yet." }
            p.hint { "This page looks again every " (AGAIN_SECONDS) " seconds, for two minutes." }
        }
    };
    ([("refresh", AGAIN_SECONDS.to_string())], PageContent::new("Not seen yet", "/", content)).into_response()
}
