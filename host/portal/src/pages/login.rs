//! Signing in with a token, and out.

use axum::Form;
use axum::extract::State;
use axum::extract::rejection::FormRejection;
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use maud::{Markup, html};

use super::parts::expect_own_page;
use crate::access::gate::{LOGIN, LOGOUT, ONCE, RequestGate, local_address};
use crate::access::{AccessControl, KnownPerson, PortalAccess, PortalTransport};
use crate::answer::frame::PageContent;
use crate::answer::params::QueryParams;
use crate::answer::{Problem, ProblemPage};
use crate::app::{AppRoute, PortalApp};
use crate::request_checks::is_foreign;

pub(crate) fn routes() -> Vec<AppRoute> {
    vec![
        (LOGIN, get(page).post(post_login)),
        (ONCE, get(once_by_address).post(once_by_form)),
        (LOGOUT, post(post_logout)),
    ]
}

async fn page(State(app): State<PortalApp>, headers: HeaderMap, uri: Uri) -> Result<Response, ProblemPage> {
    let params = QueryParams::read(&uri, &["next", "ended", "left", "used"])?;
    let next = local_address(params.text("next").unwrap_or("/"));
    // The next page reports a failed review.
    if app.gate.is_signed_in(&headers).await.unwrap_or(false) {
        return Ok(Redirect::to(next).into_response());
    }
    let said = if params.text("ended").is_some() {
        Some(html! { p.notice role="status" { "Your session has ended. Sign in again to go on." } })
    } else if params.text("left").is_some() {
        Some(html! { p.done role="status" { "You are signed out." } })
    } else if params.text("used").is_some() {
        Some(html! {
            p.alert role="alert" {
                "This one-time login was used already, or is too old. Run " code { "kubewitness dashboard" }
                " again, or sign in with a token."
            }
        })
    } else {
        None
    };
    Ok(login_form(next, said).into_response())
}

fn login_form(next: &str, said: Option<Markup>) -> PageContent {
    let content = html! {
        div.login {
            h1 { "Sign in" }
            p.hint { "You see and do here what Kubernetes lets you." }
            @if let Some(said) = said { (said) }
            form method="post" action=(LOGIN) {
                input type="hidden" name="next" value=(next);
                label {
                    span { "Token" }
                    input type="password" name="token" required autofocus autocomplete="off" spellcheck="false"
                        aria-describedby="token-help";
                }
                button.strong { "Sign in" }
            }
            div.hint #token-help {
                p { "A token of Kubernetes. For a service account, this command makes one:" }
                pre tabindex="0" { code { "kubectl create token NAME -n NAMESPACE --audience kubewitness.dev" } }
                p { "It stays in your browser, encrypted, until it ends or you log out, and for 8 hours at most." }
            }
        }
    };
    PageContent::new("Sign in", "", content)
}

async fn post_login(
    State(app): State<PortalApp>,
    headers: HeaderMap,
    fields: Result<Form<Vec<(String, String)>>, FormRejection>,
) -> Result<Response, ProblemPage> {
    expect_own_page(&headers)?;
    let RequestGate { access: PortalAccess::Kubernetes(control), secure } = &app.gate else {
        return Ok(Redirect::to("/").into_response());
    };
    let Form(fields) = fields?;
    let field = |name: &str| {
        let found = fields.iter().find(|(known, _)| known == name);
        found.map_or("", |(_, value)| value.trim())
    };
    let (token, next) = (field("token"), local_address(field("next")));
    let Some(known) = control.person_of_token(token).await.map_err(Problem::from)? else {
        let said = html! {
            p.alert role="alert" { "The API server does not know this token. It may have ended: make a new one." }
        };
        let mut response = (StatusCode::UNAUTHORIZED, login_form(next, Some(said))).into_response();
        let how = HeaderValue::from_static("Bearer realm=\"kubewitness\"");
        response.headers_mut().insert(header::WWW_AUTHENTICATE, how);
        return Ok(response);
    };
    begin_session(control, token, &known, PortalTransport::of(*secure, &headers), next)
}

/// A new session, and the page that the person wanted.
fn begin_session(
    control: &AccessControl,
    token: &str,
    known: &KnownPerson,
    transport: PortalTransport,
    next: &str,
) -> Result<Response, ProblemPage> {
    let cookies = control.begin_session(token, known, transport).ok_or_else(|| {
        Problem::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "The session could not be encrypted.",
            "Try again; the machine has no random numbers now.",
        )
    })?;
    Ok(with_cookies(Redirect::to(next).into_response(), &cookies))
}

/// Takes a code from the address that `kubewitness dashboard` prints. A link in a mail looks the same to the portal, so
/// this page always asks.
async fn once_by_address(State(app): State<PortalApp>, uri: Uri) -> Result<Response, ProblemPage> {
    let params = QueryParams::read(&uri, &["code"])?;
    confirm_login(&app, params.text("code").unwrap_or_default(), None).await
}

/// Takes a code from the file that `kubewitness dashboard` opens, or from the page that asks for
/// confirmation. Only the latter sets that the person was asked.
async fn once_by_form(
    State(app): State<PortalApp>,
    headers: HeaderMap,
    fields: Result<Form<Vec<(String, String)>>, FormRejection>,
) -> Result<Response, ProblemPage> {
    let Form(fields) = fields?;
    let code = fields.iter().find(|(known, _)| known == "code").map_or("", |(_, value)| value);
    let was_asked = expect_own_page(&headers).is_ok() && !is_foreign(&headers);
    confirm_login(&app, code, was_asked.then(|| PortalTransport::of(app.gate.secure, &headers))).await
}

/// Others could lure people into somebody else's session, and watch what they do there. So each person is
/// asked first, and sees whose session it is. `asked` is set once they confirmed.
async fn confirm_login(
    app: &PortalApp,
    code: &str,
    asked: Option<PortalTransport>,
) -> Result<Response, ProblemPage> {
    let PortalAccess::Kubernetes(control) = &app.gate.access else {
        return Ok(Redirect::to("/").into_response());
    };
    let token = if asked.is_some() { control.codes.redeem_code(code) } else { control.codes.token_of(code) };
    let Some(token) = token else { return Ok(Redirect::to("/login?used=true").into_response()) };
    match (control.person_of_token(&token).await.map_err(Problem::from)?, asked) {
        (Some(known), Some(transport)) => begin_session(control, &token, &known, transport, "/"),
        (Some(known), None) => Ok(confirm_login_page(&known.person.user, code).into_response()),
        (None, _) => Ok(Redirect::to("/login?ended=true").into_response()),
    }
}

fn confirm_login_page(name: &str, code: &str) -> PageContent {
    let content = html! {
        div.login {
            h1 { "Sign in" }
            p { "Go on if you have just run " code { "kubewitness dashboard" } ", and this is you." }
            form method="post" action=(ONCE) {
                input type="hidden" name="code" value=(code);
                button.strong autofocus { "Sign in as " (name) }
            }
        }
    };
    PageContent::new("Sign in", "", content)
}

async fn post_logout(State(app): State<PortalApp>, headers: HeaderMap) -> Result<Response, ProblemPage> {
    expect_own_page(&headers)?;
    let cookies = app.gate.end_session(&headers).await;
    Ok(with_cookies(Redirect::to("/login?left=true").into_response(), &cookies))
}

fn with_cookies(mut response: Response, cookies: &[String]) -> Response {
    for cookie in cookies {
        // The text consists of base64 and names.
        if let Ok(value) = HeaderValue::from_str(cookie) {
            response.headers_mut().append(header::SET_COOKIE, value);
        }
    }
    response
}
