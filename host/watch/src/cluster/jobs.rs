//! Creates Jobs under the identity of the person who submits them.
//!
//! A person's own token goes over a connection without any credentials of the controller. Impersonation uses
//! the controller's connection. Nothing is retried here: the caller repeats the request with the same name.

use std::time::Duration;

use http::header::AUTHORIZATION;
use http::{HeaderName, HeaderValue, Method};
use kubewitness_core::config::is_name;
use kubewitness_core::ports::{ActingIdentity, FieldCause, Person, SubmitError};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::connect::ApiConnection;
use crate::connect::request::{ApiClient, RequestAddress, RequestFailure};

/// From the request to its whole answer, including the wait for a turn. A person waits for it, and for two of
/// them if a name is in use.
const WITHIN: Duration = Duration::from_secs(6);
/// The API server accepts no larger object.
const BYTES: usize = 3 * 1024 * 1024;
/// The most concurrent requests.
const AT_ONCE: usize = 16;
/// The most causes of a refusal that are reported.
const CAUSES: usize = 100;
/// The longest key of an extra attribute that is sent. Keys of Kubernetes are a domain name and a word.
const EXTRA_KEY_BYTES: usize = 512;
/// Includes capital letters, because names of headers have none.
const ESCAPED_IN_A_KEY: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .add(b'A')
    .add(b'B')
    .add(b'C')
    .add(b'D')
    .add(b'E')
    .add(b'F')
    .add(b'G')
    .add(b'H')
    .add(b'I')
    .add(b'J')
    .add(b'K')
    .add(b'L')
    .add(b'M')
    .add(b'N')
    .add(b'O')
    .add(b'P')
    .add(b'Q')
    .add(b'R')
    .add(b'S')
    .add(b'T')
    .add(b'U')
    .add(b'V')
    .add(b'W')
    .add(b'X')
    .add(b'Y')
    .add(b'Z');
/// The API server adds these groups by itself. Sending them would require the right to impersonate them.
const ADDED: [&str; 2] = ["system:authenticated", "system:serviceaccounts"];

/// The Jobs of one API server.
pub struct JobClient {
    own: ApiClient,
    bare: ApiClient,
    turns: Semaphore,
}

impl JobClient {
    pub fn new(connection: &ApiConnection) -> Self {
        Self {
            own: connection.api_client(),
            bare: ApiClient::new(connection.bare.clone()),
            turns: Semaphore::new(AT_ONCE),
        }
    }

    pub async fn create(
        &self,
        acting: ActingIdentity<'_>,
        namespace: &str,
        job: &Value,
        dry_run: bool,
    ) -> Result<Value, SubmitError> {
        let address = jobs_of(namespace)?.with_parameter("fieldManager", "kubewitness-submit");
        // A field that the API server does not know is probably a mistake in the template.
        let address = address.with_parameter("fieldValidation", "Strict");
        let address = if dry_run { address.with_parameter("dryRun", "All") } else { address };
        self.send_request(acting, Method::POST, &address, Some(job.to_string().into_bytes())).await
    }

    pub async fn job(
        &self,
        acting: ActingIdentity<'_>,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Value>, SubmitError> {
        let address = jobs_of(namespace)?.with_member(name);
        match self.send_request(acting, Method::GET, &address, None).await {
            Ok(job) => Ok(Some(job)),
            Err(SubmitError::Refused { status: 404, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn send_request(
        &self,
        acting: ActingIdentity<'_>,
        method: Method,
        address: &RequestAddress,
        body: Option<Vec<u8>>,
    ) -> Result<Value, SubmitError> {
        let (api, headers) = match acting {
            ActingIdentity::Token(token) => (&self.bare, bearer_headers(token)?),
            ActingIdentity::Person(person) => (&self.own, impersonation_headers(person)?),
            ActingIdentity::Controller => (&self.own, Vec::new()),
        };
        let body = body.map(|body| ("application/json", body));
        let asked = timeout(WITHIN, async {
            // The semaphore is never closed.
            let _turn = self.turns.acquire().await;
            api.send_with_headers(method, address.as_str(), headers, body, BYTES).await
        });
        let answer = asked.await.unwrap_or(Err((RequestFailure::TimedOut(WITHIN), Vec::new())));
        let answer = answer.map_err(|(failure, body)| refusal_error(&failure, &body))?;
        serde_json::from_slice(&answer).map_err(|error| {
            SubmitError::Unanswered(format!("the API server's answer can't be parsed: {error}"))
        })
    }
}

/// A namespace becomes part of an address.
fn jobs_of(namespace: &str) -> Result<RequestAddress, SubmitError> {
    match is_name(namespace) {
        true => Ok(RequestAddress::new(&format!("/apis/batch/v1/namespaces/{namespace}/jobs"))),
        false => Err(SubmitError::Refused {
            status: 400,
            message: "this is no namespace's name".into(),
            causes: vec![FieldCause { field: "metadata.namespace".into(), message: "is no name".into() }],
        }),
    }
}

type RequestHeaders = Vec<(HeaderName, HeaderValue)>;

fn header_pair(name: HeaderName, text: &str) -> Result<(HeaderName, HeaderValue), SubmitError> {
    let refused = || SubmitError::Refused {
        status: 400,
        message: format!("what `{name}` would name has characters that no header has"),
        causes: Vec::new(),
    };
    // The API server decodes a name as UTF-8, so the header may contain non-ASCII letters.
    let is_clean = !text.chars().any(char::is_control);
    let value = HeaderValue::from_bytes(text.as_bytes()).ok().filter(|_| is_clean);
    let mut value = value.ok_or_else(refused)?;
    value.set_sensitive(true);
    Ok((name, value))
}

fn bearer_headers(token: &str) -> Result<RequestHeaders, SubmitError> {
    Ok(vec![header_pair(AUTHORIZATION, &format!("Bearer {token}"))?])
}

/// Everything that the API server knows of the person. A token with narrowed rights is marked by an extra
/// attribute: without it, an admission rule or a webhook would treat the Job as one of the person with full
/// rights. If the controller may not impersonate one of these, the API server refuses the Job and names the
/// right.
fn impersonation_headers(person: &Person) -> Result<RequestHeaders, SubmitError> {
    let mut headers = vec![header_pair(HeaderName::from_static("impersonate-user"), &person.user)?];
    if !person.uid.is_empty() {
        headers.push(header_pair(HeaderName::from_static("impersonate-uid"), &person.uid)?);
    }
    for (key, values) in &person.extra {
        let name = extra_header(key)?;
        for value in values {
            headers.push(header_pair(name.clone(), value)?);
        }
    }
    let is_account = person.user.starts_with("system:serviceaccount:");
    let is_added =
        |group: &str| ADDED.contains(&group) || is_account && group.starts_with("system:serviceaccounts:");
    for group in person.groups.iter().filter(|group| !is_added(group)) {
        headers.push(header_pair(HeaderName::from_static("impersonate-group"), group)?);
    }
    Ok(headers)
}

/// The API server takes the rest of the header's name as the key, in lower case and unescaped.
fn extra_header(key: &str) -> Result<HeaderName, SubmitError> {
    let name = format!("impersonate-extra-{}", utf8_percent_encode(key, ESCAPED_IN_A_KEY));
    let is_short = key.len() <= EXTRA_KEY_BYTES && !key.is_empty();
    HeaderName::from_bytes(name.as_bytes()).ok().filter(|_| is_short).ok_or_else(|| SubmitError::Refused {
        status: 400,
        message: "an extra attribute of this person has a name that can't be impersonated".into(),
        causes: Vec::new(),
    })
}

fn refusal_error(failure: &RequestFailure, body: &[u8]) -> SubmitError {
    match failure {
        RequestFailure::Status { code, message, reason, .. } if !failure.is_passing() => {
            let message = if message.is_empty() { reason.clone() } else { message.clone() };
            SubmitError::Refused { status: *code, message, causes: field_causes(body) }
        }
        failure => SubmitError::Unanswered(failure.to_string()),
    }
}

fn field_causes(status: &[u8]) -> Vec<FieldCause> {
    let status: Value = serde_json::from_slice(status).unwrap_or_default();
    let causes = status["details"]["causes"].as_array().map_or(&[][..], Vec::as_slice);
    let text = |cause: &Value, name: &str| cause[name].as_str().unwrap_or_default().to_owned();
    let reported = causes.iter().take(CAUSES);
    reported
        .map(|cause| FieldCause { field: text(cause, "field"), message: text(cause, "message") })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_person_is_impersonated_without_the_groups_that_the_api_server_adds() {
        let groups_of = |user: &str, groups: &[&str]| {
            let groups = groups.iter().map(|group| (*group).to_owned()).collect();
            let person = Person { user: user.into(), groups, ..Person::default() };
            let headers = impersonation_headers(&person).unwrap();
            headers
                .iter()
                .map(|(name, value)| format!("{name}={}", value.to_str().unwrap()))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            groups_of("ada", &["research", "system:authenticated"]),
            ["impersonate-user=ada", "impersonate-group=research"]
        );
        let account = "system:serviceaccount:research:bot";
        let groups = ["system:serviceaccounts", "system:serviceaccounts:research", "system:authenticated"];
        assert_eq!(groups_of(account, &groups), [format!("impersonate-user={account}")]);
        for evil in ["a\r\nImpersonate-User: root", "a\u{9b}b", "a\0"] {
            let person = Person { user: evil.into(), ..Person::default() };
            assert!(
                matches!(impersonation_headers(&person), Err(SubmitError::Refused { status: 400, .. })),
                "{evil:?}"
            );
        }
    }

    #[test]
    fn a_person_is_impersonated_with_all_that_narrows_their_token_and_in_their_own_letters() {
        let extra = [
            ("scopes.authorization.openshift.io", &["user:info"][..]),
            ("authentication.kubernetes.io/credential-id", &["JTI=1"]),
            ("Team%", &["größe", "b"]),
        ];
        let extra = extra
            .map(|(key, values)| (key.to_owned(), values.iter().map(|value| (*value).to_owned()).collect()));
        let person = Person {
            user: "zoë".into(),
            uid: "u-1".into(),
            groups: vec!["forschung-größe".into()],
            extra: extra.into(),
        };
        let headers = impersonation_headers(&person).unwrap();
        let sent: Vec<_> = headers
            .iter()
            .map(|(name, value)| format!("{name}={}", String::from_utf8_lossy(value.as_bytes())))
            .collect();
        assert_eq!(
            sent,
            [
                "impersonate-user=zoë",
                "impersonate-uid=u-1",
                "impersonate-extra-%54eam%25=größe",
                "impersonate-extra-%54eam%25=b",
                "impersonate-extra-authentication.kubernetes.io%2fcredential-id=JTI=1",
                "impersonate-extra-scopes.authorization.openshift.io=user:info",
                "impersonate-group=forschung-größe",
            ]
        );
        for key in [String::new(), "k".repeat(EXTRA_KEY_BYTES + 1)] {
            let person = Person { extra: [(key, vec!["v".into()])].into(), ..person.clone() };
            assert!(impersonation_headers(&person).is_err());
        }
    }

    #[test]
    fn what_a_server_refuses_is_told_from_what_it_has_not_answered() {
        let status = |code: u16| {
            let body = format!(
                "{{\"kind\":\"Status\",\"code\":{code},\"message\":\"no\",\"details\":{{\"causes\":[{{\"field\":\"spec.a\",\"message\":\"m\"}}]}}}}"
            );
            let failure = crate::connect::request::status_failure(Some(code), body.as_bytes(), None);
            refusal_error(&failure, body.as_bytes())
        };
        let cause = FieldCause { field: "spec.a".into(), message: "m".into() };
        assert_eq!(
            status(422),
            SubmitError::Refused { status: 422, message: "no".into(), causes: vec![cause] }
        );
        for code in [429, 500, 503, 504] {
            assert!(matches!(status(code), SubmitError::Unanswered(_)), "{code}");
        }
        assert!(matches!(refusal_error(&RequestFailure::TimedOut(WITHIN), b""), SubmitError::Unanswered(_)));
    }

    #[test]
    fn a_namespace_that_would_lead_elsewhere_is_refused() {
        for evil in ["../../api/v1/namespaces/kube-system/secrets?", "a/b", "", "A"] {
            assert!(jobs_of(evil).is_err(), "{evil}");
        }
    }
}
