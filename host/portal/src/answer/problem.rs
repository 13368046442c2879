//! A problem: why a request is refused, for programs as `application/problem+json` and for people as a page.

use axum::extract::Request;
use axum::extract::rejection::{FormRejection, JsonRejection};
use axum::http::{Method, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use kubewitness_core::shorten_text;
use kubewitness_core::views::{ForeignFilter, ViewError};
use maud::html;
use serde::Serialize;
use serde_json::json;

use super::codes::{self, ProblemCode};
use super::frame::PageContent;

/// How many bytes of a wrong cursor are shown. An encrypted one has hundreds.
const CURSOR: usize = 48;
/// After how many seconds a browser retries a page that is unavailable now, for example while the journal is
/// being opened.
const REFRESH: header::HeaderValue = header::HeaderValue::from_static("5");
/// The media type of RFC 9457.
const MEDIA: &str = "application/problem+json";

#[derive(Clone, Debug)]
pub(crate) struct Problem {
    pub(crate) status: StatusCode,
    code: &'static ProblemCode,
    pub(crate) message: String,
    /// The remedy.
    pub(crate) hint: String,
    /// The faults of single fields of the request.
    pub(crate) fields: Vec<FieldFault>,
}

/// A fault of one field.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct FieldFault {
    /// A parameter, a field of the request, or a field of the object that the API server has refused.
    pub(crate) field: String,
    pub(crate) message: String,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self {
            status,
            code: ProblemCode::of(status),
            message: message.into(),
            hint: hint.into(),
            fields: Vec::new(),
        }
    }

    /// A problem that programs can distinguish from others with the same status.
    pub(crate) fn with_code(
        code: &'static ProblemCode,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) -> Self {
        Self { code, ..Self::new(code.status, message, hint) }
    }

    pub(crate) fn of_fields(self, fields: Vec<FieldFault>) -> Self {
        Self { fields, ..self }
    }

    pub(crate) fn invalid_request(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message, hint)
    }

    pub(crate) fn no_cursor(text: &str) -> Self {
        let message = format!("`{}` is no cursor of this list.", shorten_text(text, CURSOR));
        Self::invalid_request(
            message,
            "Take it from the header `Link`, or from the link to the next part, as it is.",
        )
    }

    /// As a page on paths for people, as JSON on paths for programs.
    pub(crate) fn answer_for_path(self, path: &str) -> Response {
        match path.starts_with("/api/") {
            true => self.into_response(),
            false => ProblemPage(self).into_response(),
        }
    }
}

impl From<ViewError> for Problem {
    fn from(error: ViewError) -> Self {
        match error {
            ViewError::NotFound { message, hint } => Self::new(StatusCode::NOT_FOUND, message, hint),
            ViewError::Invalid(message) => {
                Self::invalid_request(message, "Correct the value, and try again.")
            }
            ViewError::Changed { message, hint } => Self::with_code(codes::CHANGED, message, hint),
            ViewError::Unavailable(message) => Self::new(
                StatusCode::SERVICE_UNAVAILABLE,
                message,
                "Try again in a moment; /readyz says whether the controller takes in states.",
            ),
        }
    }
}

impl From<ForeignFilter> for Problem {
    fn from(ForeignFilter { message, parameters, command }: ForeignFilter) -> Self {
        let hint = format!("Ask for `{parameters}`, or on the command line: `{command}`.");
        Self::invalid_request(message, hint)
    }
}

impl From<JsonRejection> for Problem {
    fn from(rejection: JsonRejection) -> Self {
        Self::new(rejection.status(), rejection.body_text(), "/api/v1/openapi.json describes the body.")
    }
}

impl From<FormRejection> for Problem {
    fn from(rejection: FormRejection) -> Self {
        Self::new(rejection.status(), rejection.body_text(), "Go back to the form and send it again.")
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let Self { status, code, message, hint, fields } = self;
        let mut body = json!({
            "type": format!("/api#{}", code.name),
            "title": code.title,
            "status": status.as_u16(),
            "detail": message,
            "hint": hint,
            "code": code.name,
            // For clients of earlier versions.
            "error": {"code": code.name, "message": message, "hint": hint},
        });
        if !fields.is_empty() {
            body["error"]["fields"] = json!(fields);
            body["fields"] = json!(fields);
        }
        let mut response = (status, [(header::CONTENT_TYPE, MEDIA)], body.to_string()).into_response();
        add_retry_after(&mut response);
        response
    }
}

/// A problem as a page.
pub(crate) struct ProblemPage(pub(crate) Problem);

impl<E: Into<Problem>> From<E> for ProblemPage {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl IntoResponse for ProblemPage {
    fn into_response(self) -> Response {
        let mut response = (self.0.status, problem_page(&self.0)).into_response();
        add_retry_after(&mut response);
        response
    }
}

fn problem_page(problem: &Problem) -> PageContent {
    let title = match problem.status {
        StatusCode::NOT_FOUND => "Not found",
        StatusCode::SERVICE_UNAVAILABLE => "Not now",
        status if status.is_server_error() => "Something failed",
        _ => "That did not work",
    };
    PageContent::new(
        title,
        "",
        html! {
            div.empty {
                p.code { (problem.status.as_u16()) }
                h1 { (title) }
                p { (problem.message) }
                p.hint { (problem.hint) }
                p { a.button href="/" { "To the jobs" } }
            }
        },
    )
}

fn add_retry_after(response: &mut Response) {
    if response.status() == StatusCode::SERVICE_UNAVAILABLE {
        response.headers_mut().insert(header::RETRY_AFTER, header::HeaderValue::from_static("2"));
    }
}

pub(crate) async fn no_such_page(uri: Uri) -> Response {
    let hint = match uri.path().starts_with("/api/") {
        true => "/api/v1/openapi.json lists what there is.",
        false => "Start from the list of jobs.",
    };
    Problem::new(StatusCode::NOT_FOUND, format!("There is nothing at {}.", uri.path()), hint)
        .answer_for_path(uri.path())
}

pub(crate) async fn no_such_method(method: Method, uri: Uri) -> Response {
    let message = format!("{} does not take {method}.", uri.path());
    let hint = "The Allow header names what it takes.";
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, message, hint).answer_for_path(uri.path())
}

/// A refusal before any handler, such as for a path that is not text, is also shown as a problem.
pub(crate) async fn word_early_refusals(request: Request, next: Next) -> Response {
    let path = request.uri().path().to_owned();
    let is_looked_at = request.method() == Method::GET;
    let mut response = next.run(request).await;
    let is_page = response.extensions().get::<PageContent>().is_some();
    if is_page && is_looked_at && response.status() == StatusCode::SERVICE_UNAVAILABLE {
        response.headers_mut().insert(header::REFRESH, REFRESH);
    }
    let refuses = response.status().is_client_error() || response.status().is_server_error();
    let is_ours = is_page || response.headers().get(header::CONTENT_TYPE).is_some_and(|media| media == MEDIA);
    if !refuses || is_ours || is_probe(&path) {
        return response;
    }
    let hint = "Look at its address and its headers, and send it again.";
    Problem::new(response.status(), "The request can't be read.", hint).answer_for_path(&path)
}

/// Probes get one word as an answer.
fn is_probe(path: &str) -> bool {
    matches!(path, "/healthz" | "/readyz")
}
