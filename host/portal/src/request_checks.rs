//! The layers before every handler: they check the person and the origin of a request, limit its time, and
//! set the security headers of the answer.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::{Extension, Router};
use futures::FutureExt;

use crate::access::gate::{ONCE, RequestGate};
use crate::access::{PortalViewer, party_of};
use crate::answer::etag;
use crate::answer::frame::{self, FrameReader};
use crate::answer::{Problem, codes};
use crate::options::PortalOptions;
use crate::serve::{LargeAnswers, OF_ONE_MIB, RequestConnection};

pub(crate) fn protect_router(router: Router, gate: RequestGate, options: &PortalOptions) -> Router {
    let timeout = options.request_timeout;
    let local = options.listen.ip().is_loopback();
    let admit = {
        let gate = gate.clone();
        move |request: Request, next: Next| gate.clone().admit_request(request, next)
    };
    let answers = LargeAnswers::new();
    let dressed = move |request: Request, next: Next| {
        dress_and_limit(gate.frame_for_stranger(), answers.clone(), request, next)
    };
    let router = router.layer(middleware::from_fn(admit));
    in_time_alone(router.layer(middleware::from_fn(same_origin)), timeout)
        .layer(middleware::from_fn(move |request: Request, next: Next| known_host(local, request, next)))
        .layer(middleware::from_fn(dressed))
        .layer(middleware::from_fn(set_headers))
}

/// For requests that anybody may make.
pub(crate) fn for_anybody(router: Router, timeout: Duration) -> Router {
    let router = router.layer(Extension(PortalViewer::Everybody)).layer(middleware::map_request(
        |request: Request| {
            RequestConnection::of_request(&request).note_person();
            std::future::ready(request)
        },
    ));
    in_time_alone(router, timeout).layer(middleware::map_response(|response: Response| {
        std::future::ready(frame::dress_response(response, &FrameReader::Nobody))
    }))
}

fn in_time_alone(router: Router, timeout: Duration) -> Router {
    router.layer(middleware::from_fn(move |request: Request, next: Next| in_time(timeout, request, next)))
}

/// A foreign page whose name resolves to 127.0.0.1 is "same origin" to the browser; only the requested host
/// name distinguishes it from ours.
async fn known_host(local: bool, request: Request, next: Next) -> Response {
    if request.headers().get_all(header::HOST).iter().count() > 1 {
        let problem = Problem::with_code(
            codes::INVALID,
            "The request has more than one `Host`.",
            "Send one: nobody can tell which of them counts.",
        );
        return problem.answer_for_path(request.uri().path());
    }
    if local && !(is_local(host_header(&request)) && request.uri().host().is_none_or(is_local_name)) {
        let problem = Problem::with_code(
            codes::MISDIRECTED,
            "This portal answers to localhost alone.",
            "Ask for it as localhost, 127.0.0.1 or [::1].",
        );
        return problem.answer_for_path(request.uri().path());
    }
    next.run(request).await
}

fn host_header(request: &Request) -> Option<&str> {
    request.headers().get(header::HOST)?.to_str().ok()
}

fn is_local(host: Option<&str>) -> bool {
    let Some(authority) = host.and_then(|host| host.parse::<axum::http::uri::Authority>().ok()) else {
        return false;
    };
    !authority.as_str().contains('@') && is_local_name(authority.host())
}

fn is_local_name(name: &str) -> bool {
    matches!(name, "127.0.0.1" | "[::1]") || name.eq_ignore_ascii_case("localhost")
}

/// A request that changes something must come from our own page, or from no page at all. Browsers send the
/// origin of a request; scripts and the command line send none, and a foreign page can't prevent its browser
/// from sending it.
async fn same_origin(request: Request, next: Next) -> Response {
    let reads = matches!(*request.method(), Method::GET | Method::HEAD);
    // A one-time login comes from a file. Its page asks everybody for confirmation who does not come from one
    // of our pages.
    let asks_itself = request.uri().path() == ONCE;
    if !reads && !asks_itself && is_foreign(request.headers()) {
        let problem = Problem::with_code(
            codes::FOREIGN_PAGE,
            "This change was asked for by a page of another site.",
            "Open the portal itself and do it there.",
        );
        return problem.answer_for_path(request.uri().path());
    }
    next.run(request).await
}

/// Whether the browser reports that a page of another site sent it.
pub(crate) fn is_foreign(headers: &HeaderMap) -> bool {
    let text = |name| headers.get(name).map(|value: &HeaderValue| value.to_str().unwrap_or(""));
    if let Some(site) = text(header::HeaderName::from_static("sec-fetch-site"))
        && site != "same-origin"
    {
        return true;
    }
    let Some(origin) = text(header::ORIGIN) else { return false };
    let authority = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    authority.is_none() || authority != text(header::HOST)
}

/// Whatever happens in a handler, the client gets an answer.
async fn in_time(timeout: Duration, request: Request, next: Next) -> Response {
    let path = request.uri().path().to_owned();
    let answer = AssertUnwindSafe(next.run(request)).catch_unwind();
    match tokio::time::timeout(timeout, answer).await {
        Ok(Ok(response)) => response,
        Ok(Err(_)) => {
            tracing::error!(path, "a handler of the portal panicked");
            let problem = Problem::with_code(
                codes::FAILED,
                "The portal failed on this request.",
                "The controller's log has the reason; other pages still work.",
            );
            problem.answer_for_path(&path)
        }
        Err(_) => {
            let problem = Problem::with_code(
                codes::TIMED_OUT,
                format!("This was not answered within {} s.", timeout.as_secs()),
                "Ask for less (a namespace, a limit), or try again. Where the journal does not answer, the log says so.",
            );
            problem.answer_for_path(&path)
        }
    }
}

/// Renders pages, and limits the bytes of answers in progress.
async fn dress_and_limit(
    stranger: FrameReader,
    answers: LargeAnswers,
    request: Request,
    next: Next,
) -> Response {
    let path = request.uri().path().to_owned();
    let headers = request.headers();
    let known = headers
        .contains_key(frame::CONTENT_ONLY)
        .then(|| headers.get_all(header::IF_NONE_MATCH).iter().cloned().collect::<Vec<_>>());
    let response = next.run(request).await;
    let person = match response.extensions().get() {
        Some(FrameReader::Person { name, .. }) => Some(name.clone()),
        _ => None,
    };
    let response = match known {
        Some(known) => frame::content_response(response, &known),
        None => frame::dress_response(response, &stranger),
    };
    answers.hold_answer(person.as_deref().map(party_of), response).unwrap_or_else(|| {
        let problem = Problem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "Too many large answers are under way.",
            format!(
                "Read those that you have asked for to their end, or ask for less, such as a smaller `limit`. Those of \
                 one person have at most {OF_ONE_MIB} MiB."
            ),
        );
        frame::dress_response(problem.answer_for_path(&path), &stranger)
    })
}

/// Styles and scripts come only from our own files, nothing may be framed, and no content type is guessed.
const HEADERS: [(&str, &str); 7] = [
    (
        "content-security-policy",
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; \
         form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    ),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    // Not `no-referrer`: a browser would then send `null` as our own form's origin.
    ("referrer-policy", "same-origin"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("permissions-policy", "camera=(), geolocation=(), microphone=()"),
];

async fn set_headers(uri: Uri, request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let found = response.status().is_success();
    let headers = response.headers_mut();
    for (name, value) in HEADERS {
        headers.insert(header::HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    // The address of an asset contains its checksum.
    let kept = uri.path().starts_with("/assets/") && uri.query().is_some() && found;
    let cache = match kept {
        true => "public, max-age=31536000, immutable",
        false if headers.contains_key(header::ETAG) => etag::CACHE,
        false => "no-store",
    };
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static(cache));
    response
}
