//! The gate: admits requests of people who are signed in, and refuses all others.

use std::sync::Arc;

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Redirect, Response};
use maud::html;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use super::reviews::{AccessControl, KnownPerson, ReviewUnanswered};
use super::viewer::{IdentityProof, ViewerPerson};
use super::{PortalAccess, PortalViewer, proxy, session};
use crate::answer::frame::{FrameReader, PageContent};
use crate::answer::{Problem, codes};
use crate::serve::RequestConnection;

pub(crate) const LOGIN: &str = "/login";
pub(crate) const LOGOUT: &str = "/logout";
pub(crate) const ONCE: &str = "/login/once";
/// Room for an address of the portal with a selector.
const NEXT_BYTES: usize = 2048;
const TOKEN_FROM: &str = "Send a token as `Authorization: Bearer TOKEN`: `kubectl create token NAME -n NAMESPACE \
     --audience kubewitness.dev` makes one for a service account.";

/// The checks of every request.
#[derive(Clone)]
pub(crate) struct RequestGate {
    pub(crate) access: PortalAccess,
    /// Whether browsers use HTTPS.
    pub(crate) secure: bool,
}

impl RequestGate {
    /// How pages are rendered for an unknown person.
    pub(crate) fn frame_for_stranger(&self) -> FrameReader {
        match self.access {
            PortalAccess::None => FrameReader::Anybody,
            PortalAccess::Kubernetes(_) => FrameReader::Nobody,
        }
    }

    pub(crate) async fn admit_request(self, mut request: Request, next: Next) -> Response {
        let PortalAccess::Kubernetes(control) = &self.access else {
            RequestConnection::of_request(&request).note_person();
            request.extensions_mut().insert(PortalViewer::Everybody);
            return next.run(request).await;
        };
        if is_open(request.uri().path()) {
            return next.run(request).await;
        }
        match self.identify_viewer(control, request.headers()).await {
            Ok(Some(person)) => {
                let Some(_under_way) = control.begin_request(&person.known) else {
                    return answer_problem(busy_problem(), request.uri());
                };
                RequestConnection::of_request(&request).note_person();
                let can_leave = matches!(person.proof, IdentityProof::Session(_));
                let reader =
                    FrameReader::Person { name: person.known.person.user.as_str().into(), can_leave };
                let viewer = PortalViewer::Person(Arc::new(person));
                request.extensions_mut().insert(viewer.clone());
                let mut response = viewer.run_as_party(next.run(request)).await;
                response.extensions_mut().insert(reader);
                response
            }
            Ok(None) => self.refuse_request(&request),
            Err(unanswered) => answer_problem(Problem::from(unanswered), request.uri()),
        }
    }

    /// Identifies the person. The first proof in the request decides: if it is wrong, no other one is tried.
    async fn identify_viewer(
        &self,
        control: &Arc<AccessControl>,
        headers: &HeaderMap,
    ) -> Result<Option<ViewerPerson>, ReviewUnanswered> {
        let person = |known: Arc<KnownPerson>, proof| ViewerPerson { control: control.clone(), known, proof };
        let trusted = control.options.trusted_proxy.as_ref();
        match trusted.map_or(Ok(None), |trusted| proxy::person_from_proxy(trusted, headers)) {
            Ok(Some(claimed)) => {
                return Ok(Some(person(Arc::new(KnownPerson::new(claimed)), IdentityProof::Proxy)));
            }
            Err(proxy::UnclearProxy) => return Ok(None),
            Ok(None) => {}
        }
        if headers.contains_key(header::AUTHORIZATION) {
            let Some(token) = bearer_token(headers) else { return Ok(None) };
            let known = control.person_of_token(token).await?;
            return Ok(known.map(|known| person(known, IdentityProof::Token(token.to_owned()))));
        }
        let Some(session) = session::read_each(headers, self.secure).find_map(|text| control.open(&text))
        else {
            return Ok(None);
        };
        let known = control.person_of(&session).await?;
        Ok(known.map(|known| person(known, IdentityProof::Session(session))))
    }

    /// Whether the browser's session is valid.
    pub(crate) async fn is_signed_in(&self, headers: &HeaderMap) -> Result<bool, ReviewUnanswered> {
        match &self.access {
            PortalAccess::None => Ok(true),
            PortalAccess::Kubernetes(control) => Ok(self.identify_viewer(control, headers).await?.is_some()),
        }
    }

    /// Ends the browser's session, and returns the cookies that remove it.
    pub(crate) async fn end_session(&self, headers: &HeaderMap) -> Vec<String> {
        if let PortalAccess::Kubernetes(control) = &self.access
            && let Some(session) =
                session::read_each(headers, self.secure).find_map(|text| control.open(&text))
        {
            control.end_session(&session).await;
        }
        session::unset_cookie_headers(self.secure)
    }

    fn refuse_request(&self, request: &Request) -> Response {
        let (headers, uri) = (request.headers(), request.uri());
        if !is_page(uri.path()) || headers.contains_key(header::AUTHORIZATION) {
            let message = match headers.contains_key(header::AUTHORIZATION) {
                true => "The API server does not know this token, or no longer.",
                false => "The request names no person.",
            };
            return unauthorised_answer(Problem::new(StatusCode::UNAUTHORIZED, message, TOKEN_FROM), uri);
        }
        let reads = matches!(*request.method(), Method::GET | Method::HEAD);
        let had_session = session::read(headers, self.secure).is_some();
        let ended = if had_session { "&ended=true" } else { "" };
        let next = uri.path_and_query().map(|local| local.as_str()).filter(|_| reads).unwrap_or("/");
        let next = utf8_percent_encode(local_address(next), NON_ALPHANUMERIC);
        let address = format!("{LOGIN}?next={next}{ended}");
        match reads && comes_from_elsewhere(headers) {
            true => from_here(&address),
            false => Redirect::to(&address).into_response(),
        }
    }
}

/// Whether the path is open to everybody, such as the assets of the sign-in page.
fn is_open(path: &str) -> bool {
    matches!(path, LOGIN | LOGOUT | ONCE) || path.starts_with("/assets/")
}

fn is_page(path: &str) -> bool {
    !path.starts_with("/api/") && !matches!(path, "/healthz" | "/readyz" | "/metrics")
}

fn bearer_token(headers: &HeaderMap) -> Option<&str> {
    let mut all = headers.get_all(header::AUTHORIZATION).iter();
    let (scheme, token) = all.next()?.to_str().ok()?.split_once(' ')?;
    (all.next().is_none() && scheme.eq_ignore_ascii_case("bearer")).then_some(token.trim())
}

fn answer_problem(problem: Problem, uri: &Uri) -> Response {
    match is_page(uri.path()) {
        true => problem.answer_for_path(uri.path()),
        false => problem.into_response(),
    }
}

fn busy_problem() -> Problem {
    Problem::new(
        StatusCode::SERVICE_UNAVAILABLE,
        "You have too many requests under way.",
        "Send fewer at once. The service accounts of a namespace count as one person.",
    )
}

fn unauthorised_answer(problem: Problem, uri: &Uri) -> Response {
    let mut response = answer_problem(problem, uri);
    let how = HeaderValue::from_static("Bearer realm=\"kubewitness\"");
    response.headers_mut().insert(header::WWW_AUTHENTICATE, how);
    response
}

/// A link on another site comes without the cookie, which browsers send from our own pages only.
fn comes_from_elsewhere(headers: &HeaderMap) -> bool {
    let site = headers.get("sec-fetch-site").and_then(|value| value.to_str().ok());
    matches!(site, Some("cross-site" | "same-site"))
}

/// Redirects the browser from one of our pages, so that it sends the cookie if it has one. The sign-in page
/// redirects people who are signed in to where they wanted to go.
fn from_here(address: &str) -> Response {
    let content = html! {
        div.empty { h1 { "One moment" } p { a href=(address) { "Go on" } } }
    };
    let page = PageContent::new("One moment", "", content);
    ([("refresh", format!("0;url={address}"))], page).into_response()
}

/// Returns a local address of the portal unchanged, and the first page for any other address.
pub(crate) fn local_address(address: &str) -> &str {
    let is_path = address.starts_with('/') && !address.starts_with("//") && address.len() <= NEXT_BYTES;
    let is_plain = address.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\');
    let is_gate = is_open(address.split(['?', '#']).next().unwrap_or_default());
    if is_path && is_plain && !is_gate { address } else { "/" }
}

impl From<ReviewUnanswered> for Problem {
    fn from(unanswered: ReviewUnanswered) -> Self {
        let hint = match unanswered.refused {
            true => {
                "The API server refuses the controller's questions: its role has to have `create` on `tokenreviews` and \
                 `subjectaccessreviews`, and `get` on `namespaces`. The controller's log has the refusal."
            }
            false => "Try again in a moment; the controller's log says why the API server does not answer.",
        };
        let message = "The API server can't be asked who you are and what you may see, so nothing is shown.";
        Self::with_code(codes::CANNOT_REVIEW, message, hint)
    }
}

#[cfg(test)]
mod tests {
    use super::local_address;

    #[test]
    fn only_addresses_of_the_portal_itself_are_gone_on_to() {
        for good in ["/", "/objects/uid-1", "/?kind=Job&namespace=a", "/a//b", "/gaps#poison"] {
            assert_eq!(local_address(good), good);
        }
        let long = format!("/{}", "a".repeat(3000));
        for evil in [
            "",
            "https://evil.example",
            "//evil.example",
            "/\\evil.example",
            "\\\\evil.example",
            "javascript:alert(1)",
            "/a\r\nset-cookie: x",
            "/\tevil",
            " /",
            "/é",
            "/login?next=/",
            "/logout",
            "/login/once?code=x",
            &long,
        ] {
            assert_eq!(local_address(evil), "/", "{evil}");
        }
    }
}
