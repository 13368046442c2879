//! Creates Jobs in the name of the person who submits them.
//!
//! A person's own token goes over a connection that has no credentials of the controller. Impersonation goes over the
//! controller's. Nothing is tried again here: whoever asks repeats the request with the same name.

use std::time::Duration;

use http::header::AUTHORIZATION;
use http::{HeaderName, HeaderValue, Method};
use kubewitness_core::config::is_name;
use kubewitness_core::ports::{Acting, Cause, Person, SubmitError};
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::connect::Connection;
use crate::connect::request::{Address, Api, Failure};

/// From a request to its whole answer, waiting for its turn included. A person waits for it, and for two of them
/// where a name is taken.
const WITHIN: Duration = Duration::from_secs(6);
/// The API server takes no larger object.
const BYTES: usize = 3 * 1024 * 1024;
/// Requests at once.
const AT_ONCE: usize = 16;
/// What of a refusal's causes is told.
const CAUSES: usize = 100;
/// The API server adds these groups by itself, and would ask whether the controller may impersonate them.
const ADDED: [&str; 2] = ["system:authenticated", "system:serviceaccounts"];

/// The Jobs of one API server.
pub struct Jobs {
    own: Api,
    bare: Api,
    turns: Semaphore,
}

impl Jobs {
    pub fn new(connection: &Connection) -> Self {
        Self {
            own: connection.api(),
            bare: Api::new(connection.bare.clone()),
            turns: Semaphore::new(AT_ONCE),
        }
    }

    pub async fn create(
        &self,
        acting: Acting<'_>,
        namespace: &str,
        job: &Value,
        dry_run: bool,
    ) -> Result<Value, SubmitError> {
        let address = jobs_of(namespace)?.with("fieldManager", "kubewitness-submit");
        // A field that the API server does not know is a slip in the template.
        let address = address.with("fieldValidation", "Strict");
        let address = if dry_run { address.with("dryRun", "All") } else { address };
        self.ask(acting, Method::POST, &address, Some(job.to_string().into_bytes())).await
    }

    pub async fn job(
        &self,
        acting: Acting<'_>,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Value>, SubmitError> {
        let address = jobs_of(namespace)?.member(name);
        match self.ask(acting, Method::GET, &address, None).await {
            Ok(job) => Ok(Some(job)),
            Err(SubmitError::Refused { status: 404, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn ask(
        &self,
        acting: Acting<'_>,
        method: Method,
        address: &Address,
        body: Option<Vec<u8>>,
    ) -> Result<Value, SubmitError> {
        let (api, headers) = match acting {
            Acting::Token(token) => (&self.bare, bearer(token)?),
            Acting::Person(person) => (&self.own, impersonating(person)?),
            Acting::Controller => (&self.own, Vec::new()),
        };
        let body = body.map(|body| ("application/json", body));
        let asked = timeout(WITHIN, async {
            // It is never closed.
            let _turn = self.turns.acquire().await;
            api.told_with(method, address.as_str(), headers, body, BYTES).await
        });
        let answer = asked.await.unwrap_or(Err((Failure::TimedOut(WITHIN), Vec::new())));
        let answer = answer.map_err(|(failure, body)| refused(&failure, &body))?;
        serde_json::from_slice(&answer).map_err(|error| {
            SubmitError::Unanswered(format!("the API server's answer can't be parsed: {error}"))
        })
    }
}

/// A namespace becomes part of an address.
fn jobs_of(namespace: &str) -> Result<Address, SubmitError> {
    match is_name(namespace) {
        true => Ok(Address::new(&format!("/apis/batch/v1/namespaces/{namespace}/jobs"))),
        false => Err(SubmitError::Refused {
            status: 400,
            message: "this is no namespace's name".into(),
            causes: vec![Cause { field: "metadata.namespace".into(), message: "is no name".into() }],
        }),
    }
}

type Headers = Vec<(HeaderName, HeaderValue)>;

fn header(name: HeaderName, text: &str) -> Result<(HeaderName, HeaderValue), SubmitError> {
    let mut value = HeaderValue::from_str(text).map_err(|_| SubmitError::Refused {
        status: 400,
        message: format!("what `{name}` would name has characters that no header has"),
        causes: Vec::new(),
    })?;
    value.set_sensitive(true);
    Ok((name, value))
}

fn bearer(token: &str) -> Result<Headers, SubmitError> {
    Ok(vec![header(AUTHORIZATION, &format!("Bearer {token}"))?])
}

/// User and groups: what rules of RBAC are about. A host that may impersonate no more is as good.
fn impersonating(person: &Person) -> Result<Headers, SubmitError> {
    let mut headers = vec![header(HeaderName::from_static("impersonate-user"), &person.user)?];
    let is_account = person.user.starts_with("system:serviceaccount:");
    let is_added =
        |group: &str| ADDED.contains(&group) || is_account && group.starts_with("system:serviceaccounts:");
    for group in person.groups.iter().filter(|group| !is_added(group)) {
        headers.push(header(HeaderName::from_static("impersonate-group"), group)?);
    }
    Ok(headers)
}

fn refused(failure: &Failure, body: &[u8]) -> SubmitError {
    match failure {
        Failure::Status { code, message, reason, .. } if !failure.is_passing() => {
            let message = if message.is_empty() { reason.clone() } else { message.clone() };
            SubmitError::Refused { status: *code, message, causes: causes(body) }
        }
        failure => SubmitError::Unanswered(failure.to_string()),
    }
}

fn causes(status: &[u8]) -> Vec<Cause> {
    let status: Value = serde_json::from_slice(status).unwrap_or_default();
    let causes = status["details"]["causes"].as_array().map_or(&[][..], Vec::as_slice);
    let text = |cause: &Value, name: &str| cause[name].as_str().unwrap_or_default().to_owned();
    let told = causes.iter().take(CAUSES);
    told.map(|cause| Cause { field: text(cause, "field"), message: text(cause, "message") }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_person_is_impersonated_without_the_groups_that_the_api_server_adds() {
        let told = |user: &str, groups: &[&str]| {
            let groups = groups.iter().map(|group| (*group).to_owned()).collect();
            let person = Person { user: user.into(), groups, ..Person::default() };
            let headers = impersonating(&person).unwrap();
            headers
                .iter()
                .map(|(name, value)| format!("{name}={}", value.to_str().unwrap()))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            told("ada", &["research", "system:authenticated"]),
            ["impersonate-user=ada", "impersonate-group=research"]
        );
        let account = "system:serviceaccount:research:bot";
        let groups = ["system:serviceaccounts", "system:serviceaccounts:research", "system:authenticated"];
        assert_eq!(told(account, &groups), [format!("impersonate-user={account}")]);
        let person = Person { user: "a\r\nImpersonate-User: root".into(), ..Person::default() };
        assert!(matches!(impersonating(&person), Err(SubmitError::Refused { status: 400, .. })));
    }

    #[test]
    fn what_a_server_refuses_is_told_from_what_it_has_not_answered() {
        let status = |code: u16| {
            let body = format!(
                "{{\"kind\":\"Status\",\"code\":{code},\"message\":\"no\",\"details\":{{\"causes\":[{{\"field\":\"spec.a\",\"message\":\"m\"}}]}}}}"
            );
            let failure = crate::connect::request::status_failure(Some(code), body.as_bytes(), None);
            refused(&failure, body.as_bytes())
        };
        let cause = Cause { field: "spec.a".into(), message: "m".into() };
        assert_eq!(
            status(422),
            SubmitError::Refused { status: 422, message: "no".into(), causes: vec![cause] }
        );
        for code in [429, 500, 503, 504] {
            assert!(matches!(status(code), SubmitError::Unanswered(_)), "{code}");
        }
        assert!(matches!(refused(&Failure::TimedOut(WITHIN), b""), SubmitError::Unanswered(_)));
    }

    #[test]
    fn a_namespace_that_would_lead_elsewhere_is_refused() {
        for evil in ["../../api/v1/namespaces/kube-system/secrets?", "a/b", "", "A"] {
            assert!(jobs_of(evil).is_err(), "{evil}");
        }
    }
}
