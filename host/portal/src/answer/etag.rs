//! ETags: a client that sends the tag of its copy as `If-None-Match` gets 304 instead of the same body again.
//!
//! The tag is computed from the body that was made for this person, after their rights were checked. Tagging
//! by a version of the data was rejected: it would reveal changes that the person may not see. So a tag
//! reveals nothing about others, and a person who lost a right does not get 304. Answers of the API have
//! tags, and so has the content of a page that refreshes itself.

use axum::body::{Body, Bytes, HttpBody, to_bytes};
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::digest::{Context, SHA256};

use super::codes;
use super::problem::Problem;

/// It may be stored, but must be revalidated before it is shown.
pub(crate) const CACHE: &str = "private, no-cache";
/// The headers that identify the person.
const VARY: &str = "authorization, cookie";
/// How many bytes of the digest the tag has: enough to avoid collisions by chance.
const TAG_BYTES: usize = 16;

/// Gives a tag to each complete answer of the API.
pub(crate) async fn tag_answers(request: Request, next: Next) -> Response {
    let reads = *request.method() == Method::GET;
    let is_api = request.uri().path().starts_with("/api/");
    let known = request.headers().get_all(header::IF_NONE_MATCH).iter().cloned().collect::<Vec<_>>();
    let response = next.run(request).await;
    // A stream has no size, and no two are equal.
    let size = response.body().size_hint().exact().and_then(|size| usize::try_from(size).ok());
    match size {
        Some(size) if reads && is_api && response.status() == StatusCode::OK => {
            let (parts, body) = response.into_parts();
            match to_bytes(body, size).await {
                Ok(bytes) => tagged_answer(Response::from_parts(parts, Body::empty()), bytes, &known),
                Err(_) => {
                    Problem::with_code(codes::FAILED, "The answer broke off.", "Send the request again.")
                        .into_response()
                }
            }
        }
        _ => response,
    }
}

/// An answer with this body and its tag, or 304 without a body if the client has the tag.
pub(super) fn tagged_answer(response: Response, bytes: Bytes, known: &[HeaderValue]) -> Response {
    let (mut parts, _) = response.into_parts();
    let tag = compute_tag(&parts.headers, &bytes);
    let Ok(value) = HeaderValue::try_from(&tag) else {
        return Response::from_parts(parts, Body::from(bytes));
    };
    parts.headers.insert(header::ETAG, value);
    parts.headers.insert(header::VARY, HeaderValue::from_static(VARY));
    if !known.iter().any(|value| lists_tag(value, &tag)) {
        return Response::from_parts(parts, Body::from(bytes));
    }
    parts.status = StatusCode::NOT_MODIFIED;
    parts.headers.remove(header::CONTENT_LENGTH);
    parts.headers.remove(header::CONTENT_TYPE);
    Response::from_parts(parts, Body::empty())
}

/// The next page and the notices are part of the answer, although they are headers.
fn compute_tag(headers: &HeaderMap, bytes: &[u8]) -> String {
    let mut context = Context::new(&SHA256);
    for name in [header::LINK, HeaderName::from_static("kubewitness-notice")] {
        for value in headers.get_all(&name) {
            context.update(value.as_bytes());
            context.update(b"\n");
        }
    }
    context.update(bytes);
    let digest = context.finish();
    format!("W/\"{}\"", URL_SAFE_NO_PAD.encode(&digest.as_ref()[..TAG_BYTES]))
}

/// Whether a list contains the tag; weak and strong tags are equal here, as RFC 9110 says.
fn lists_tag(list: &HeaderValue, tag: &str) -> bool {
    let Ok(list) = list.to_str() else { return false };
    let bare = |tag: &str| tag.trim().trim_start_matches("W/").to_owned();
    let tag = bare(tag);
    list.split(',').any(|one| one.trim() == "*" || bare(one) == tag)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_tags_names_the_weak_and_the_strong_form() {
        let names = |list: &'static str| super::lists_tag(&HeaderValue::from_static(list), "W/\"a_b\"");
        for list in ["W/\"a_b\"", "\"a_b\"", "\"x\", W/\"a_b\"", "*"] {
            assert!(names(list), "{list}");
        }
        for list in ["", "a_b", "\"a_\"", "W/\"A_B\""] {
            assert!(!names(list), "{list}");
        }
    }

    #[test]
    fn another_next_page_is_another_answer() {
        let headers = |link| HeaderMap::from_iter([(header::LINK, HeaderValue::from_static(link))]);
        assert_ne!(compute_tag(&headers("</a>"), b"[]"), compute_tag(&headers("</b>"), b"[]"));
        assert_ne!(compute_tag(&headers("</a>"), b"[]"), compute_tag(&headers("</a>"), b"[1]"));
        assert_eq!(compute_tag(&headers("</a>"), b"[]"), compute_tag(&headers("</a>"), b"[]"));
    }
}
