//! Asks the API server to whom a token belongs, what a person may do, and which namespaces exist.
//!
//! The API server is the only authority on rights, so nothing is decided here, and an answer that leaves
//! something out counts as no. Nothing is cached: the portal decides how long an answer is valid. Each
//! request is limited in time and size, and so are all requests together, because people who are not yet
//! authenticated decide how many there are.

pub(super) mod answers;

use std::time::Duration;

use async_trait::async_trait;
use http::Method;
use k8s_openapi::api::core::v1::Namespace;
use kubewitness_core::config::is_name;
use kubewitness_core::ports::{AccessAttempt, AccessReviewer, LiveNamespace, Person, ReviewError};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::connect::ApiConnection;
use crate::connect::request::{ApiClient, RequestAddress, RequestFailure};

/// The audience of a token for the portal only.
pub const AUDIENCE: &str = "kubewitness.dev";

/// From a question to its whole answer, including the wait for a turn. A person waits for it.
const WITHIN: Duration = Duration::from_secs(5);
/// A review repeats its request, and a person is in a few hundred groups at most.
const BYTES: usize = 1024 * 1024;
/// The most concurrent reviews. An API server answers one in milliseconds, and has others to serve.
const AT_ONCE: usize = 32;
/// An account's token has about 1 KiB, a token of a large directory somewhat more. No server accepts a longer
/// header.
const TOKEN_BYTES: usize = 32 * 1024;

const TOKENS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
pub(super) const RIGHTS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
const NAMESPACES: &str = "/api/v1/namespaces";

/// The [`AccessReviewer`] over the connection that everything else uses.
pub struct ReviewClient {
    api: ApiClient,
    turns: Semaphore,
}

impl ReviewClient {
    pub fn new(connection: &ApiConnection) -> Self {
        Self::with_api(connection.api_client())
    }

    fn with_api(api: ApiClient) -> Self {
        Self { api, turns: Semaphore::new(AT_ONCE) }
    }

    async fn send_request<T: DeserializeOwned>(
        &self,
        method: Method,
        address: &str,
        body: Option<Vec<u8>>,
    ) -> Result<T, RequestFailure> {
        let body = body.map(|body| ("application/json", body));
        let asked = timeout(WITHIN, async {
            // The semaphore is never closed.
            let _turn = self.turns.acquire().await;
            self.api.ask_for(method, address, body, BYTES).await
        });
        let answer = asked.await.map_err(|_| RequestFailure::TimedOut(WITHIN))??;
        serde_json::from_slice(&answer).map_err(|error| RequestFailure::Answer(error.to_string()))
    }

    /// Creates a review, and returns it with its status.
    async fn create_review<T: Serialize + DeserializeOwned>(
        &self,
        address: &str,
        right: &str,
        review: &T,
    ) -> Result<T, ReviewError> {
        let body = serde_json::to_vec(review).map_err(|error| RequestFailure::Answer(error.to_string()));
        let asked = async { self.send_request(Method::POST, address, Some(body?)).await };
        asked.await.map_err(|failure| refusal_error(right, &failure))
    }

    async fn person_of_token(
        &self,
        token: &str,
        audience: Option<&str>,
    ) -> Result<Option<Person>, ReviewError> {
        const RIGHT: &str = "create tokenreviews.authentication.k8s.io";
        let review = self.create_review(TOKENS, RIGHT, &answers::token_review(token, audience)).await?;
        Ok(answers::person_of_review(review, audience))
    }
}

#[async_trait]
impl AccessReviewer for ReviewClient {
    async fn authenticate_token(&self, token: &str) -> Result<Option<Person>, ReviewError> {
        if token.is_empty() || token.len() > TOKEN_BYTES {
            return Ok(None);
        }
        // A kubeconfig holds tokens for the API server, and names no audience.
        match self.person_of_token(token, Some(AUDIENCE)).await? {
            Some(person) => Ok(Some(person)),
            None => self.person_of_token(token, None).await,
        }
    }

    async fn allows_attempt(&self, person: &Person, attempt: &AccessAttempt) -> Result<bool, ReviewError> {
        const RIGHT: &str = "create subjectaccessreviews.authorization.k8s.io";
        let review = self.create_review(RIGHTS, RIGHT, &answers::access_review(person, attempt)).await?;
        Ok(answers::is_allowed(review.status))
    }

    async fn find_namespace(&self, name: &str) -> Result<Option<LiveNamespace>, ReviewError> {
        const RIGHT: &str = "get namespaces";
        if !is_name(name) {
            return Ok(None);
        }
        let address = RequestAddress::new(NAMESPACES).with_member(name);
        let asked = self.send_request::<Namespace>(Method::GET, address.as_str(), None).await;
        match asked.and_then(answers::live_namespace) {
            Ok(namespace) => Ok(Some(namespace)),
            Err(failure) if failure.status_code() == Some(404) => Ok(None),
            Err(failure) => Err(refusal_error(RIGHT, &failure)),
        }
    }
}

/// Turns a failure into an error for the caller, with its remedy.
fn refusal_error(right: &str, failure: &RequestFailure) -> ReviewError {
    match failure.status_code() {
        Some(403) => ReviewError::Forbidden(format!(
            "Kubewitness may not {right}: bind its account to the ClusterRole kubewitness-reviews, which \
             deploy/kustomize/rbac.yaml has ({failure})"
        )),
        Some(401) => ReviewError::Forbidden(format!(
            "the API server does not know Kubewitness itself any more: look at the credentials of its kubeconfig or \
             service account ({failure})"
        )),
        _ => ReviewError::Unavailable(format!(
            "the API server can't be asked who this is and what they may see; try again in a moment ({failure})"
        )),
    }
}

#[cfg(test)]
mod tests;
