//! Sends single requests to the API server: the address, the bounded answer, and the meaning of a failure. It
//! knows HTTP and the `Status` object, and nothing about sources.

use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_TYPE, DATE, RETRY_AFTER};
use http::response::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode};
use http_body_util::{BodyExt, Limited};
use kube::client::Body;
use kubewitness_core::project::{self, EndlessList, ListPage, ProjectError};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use thiserror::Error;
use tokio::time::timeout;

/// Everything except RFC 3986's unreserved characters.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// The largest single answer. A page of 500 objects of 1.5 MiB would be larger. Such a source needs smaller
/// pages, and its condition says so.
const ANSWER_BYTES: usize = 512 * 1024 * 1024;
const JSON: &str = "application/json";
/// A server that does not know the first form sends whole objects.
const METADATA: &str = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io,application/json";
/// How much of an error's body is read. A `Status` has a few hundred bytes.
const ERROR_BYTES: usize = 64 * 1024;
/// The limit for a request with its whole answer. A page of 500 objects takes a second on a slow server.
pub(crate) const ANSWER_TIME: Duration = Duration::from_secs(90);
/// The longest pause that a server can demand. After that the request is repeated.
pub(crate) const RETRY_AFTER_CAP: Duration = Duration::from_secs(600);

/// Why a request failed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum RequestFailure {
    #[error("{code} {reason}: {message}")]
    Status {
        code: u16,
        reason: String,
        message: String,
        retry_after: Option<Duration>,
        /// A token with which an expired list may continue inconsistently.
        token: Option<String>,
    },
    #[error("the API server can't be reached: {0}")]
    Transport(String),
    #[error("no answer within {} s", .0.as_secs())]
    TimedOut(Duration),
    #[error("the answer can't be parsed: {0}")]
    Answer(String),
    #[error(transparent)]
    Endless(#[from] EndlessList),
    #[error(transparent)]
    Unfit(#[from] UnfitResource),
}

/// Why a resource can't be a source, and what to do.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum UnfitResource {
    #[error(
        "the server's lists have no `resourceVersion`, so what changes can't be followed: remove the source"
    )]
    Unversioned,
    #[error(
        "the server can't list and watch `{kind}` of {api_version} (it offers: {offers}): remove the source"
    )]
    Unwatchable { kind: String, api_version: String, offers: String },
    #[error("`{kind}` has no namespaces: leave out `namespace: {namespace}`")]
    WithoutNamespaces { kind: String, namespace: String },
}

impl RequestFailure {
    pub fn status_code(&self) -> Option<u16> {
        match self {
            Self::Status { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// Whether the requested version no longer exists.
    pub fn is_expired(&self) -> bool {
        matches!(self, Self::Status { code: 410, .. })
            || matches!(self, Self::Status { reason, .. } if reason == "Expired" || reason == "Gone")
    }

    /// Whether the failure is temporary, so that a retry may succeed.
    pub fn is_passing(&self) -> bool {
        match self {
            Self::Status { code, .. } => *code == 429 || *code >= 500,
            Self::Transport(_) | Self::TimedOut(_) => true,
            Self::Answer(_) | Self::Endless(_) | Self::Unfit(_) => false,
        }
    }

    pub fn continue_token(&self) -> Option<&str> {
        match self {
            Self::Status { token, .. } => token.as_deref(),
            _ => None,
        }
    }

    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Status { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}

/// Splits one page of a source's list.
pub(crate) fn list_page(bytes: &[u8]) -> Result<ListPage<'_>, RequestFailure> {
    project::list_page(bytes).map_err(|error| match error {
        ProjectError::Missing("metadata.resourceVersion") => UnfitResource::Unversioned.into(),
        error => RequestFailure::Answer(error.to_string()),
    })
}

/// Reads a `Status` from an ERROR frame or an answer's body. Any other body becomes the message.
pub(crate) fn status_failure(code: Option<u16>, body: &[u8], header: Option<Duration>) -> RequestFailure {
    let status = project::error_status(body);
    let code = code.or((status.code > 0).then_some(status.code)).unwrap_or(500);
    let retry_after_time = status.retry_after_seconds.map(|seconds| Duration::from_secs(seconds.into()));
    let reason = if status.reason.is_empty() {
        StatusCode::from_u16(code)
            .ok()
            .and_then(|code| code.canonical_reason())
            .unwrap_or("error")
            .to_string()
    } else {
        status.reason
    };
    let retry_after = header.max(retry_after_time).map(|pause| pause.min(RETRY_AFTER_CAP));
    RequestFailure::Status {
        code,
        reason,
        message: status.message,
        retry_after,
        token: status.continue_token,
    }
}

/// Seconds only: API servers send no dates here.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok().map(Duration::from_secs)
}

/// A path with an escaped query.
#[derive(Clone, Debug)]
pub(crate) struct RequestAddress {
    text: String,
    has_query: bool,
}

impl RequestAddress {
    pub fn new(path: &str) -> Self {
        Self { text: path.to_string(), has_query: false }
    }

    pub fn with_parameter(mut self, key: &str, value: &str) -> Self {
        self.text.push(if self.has_query { '&' } else { '?' });
        self.has_query = true;
        self.text.push_str(key);
        self.text.push('=');
        self.push_escaped(value);
        self
    }

    /// The address of one object of a collection. The name of a role or a binding may have any character
    /// except `/` and `%`.
    pub fn with_member(mut self, name: &str) -> Self {
        self.text.push('/');
        self.push_escaped(name);
        self
    }

    fn push_escaped(&mut self, value: &str) {
        self.text.extend(utf8_percent_encode(value, ESCAPED));
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }
}

/// The client, reduced to the requests that this crate makes.
#[derive(Clone)]
pub(crate) struct ApiClient {
    client: kube::Client,
}

impl ApiClient {
    pub fn new(client: kube::Client) -> Self {
        Self { client }
    }

    pub async fn get(&self, address: &str) -> Result<Bytes, RequestFailure> {
        self.send_request(Method::GET, address, None).await
    }

    /// A list with only the metadata of objects, if the server supports that form.
    pub async fn list_metadata(&self, address: &str) -> Result<Bytes, RequestFailure> {
        let headers = vec![(ACCEPT, HeaderValue::from_static(METADATA))];
        let asked = self.send_with_headers(Method::GET, address, headers, None, ANSWER_BYTES);
        let answered =
            timeout(ANSWER_TIME, asked).await.map_err(|_| RequestFailure::TimedOut(ANSWER_TIME))?;
        answered.map_err(|(failure, _)| failure)
    }

    /// Gets an answer with a separate time limit.
    pub async fn get_within(&self, address: &str, within: Duration) -> Result<Bytes, RequestFailure> {
        timeout(within, self.get(address)).await.map_err(|_| RequestFailure::TimedOut(within))?
    }

    /// Sends one request and reads its whole answer. `body` comes with its media type.
    pub async fn send_request(
        &self,
        method: Method,
        address: &str,
        body: Option<(&'static str, Vec<u8>)>,
    ) -> Result<Bytes, RequestFailure> {
        let answered = timeout(ANSWER_TIME, self.ask_for(method, address, body, ANSWER_BYTES));
        answered.await.map_err(|_| RequestFailure::TimedOut(ANSWER_TIME))?
    }

    /// Like [`send_request`](Self::send_request), for an answer of at most this size. The caller limits the
    /// time.
    pub async fn ask_for(
        &self,
        method: Method,
        address: &str,
        body: Option<(&'static str, Vec<u8>)>,
        bytes: usize,
    ) -> Result<Bytes, RequestFailure> {
        collect_body(self.send(method, address, body).await?, bytes).await
    }

    /// The body of an answer, and when the server sent it by its own clock.
    pub async fn body_and_date(
        &self,
        address: &str,
        bytes: usize,
    ) -> Result<(Bytes, Option<String>), RequestFailure> {
        let (head, body) = self.successful_answer(Method::GET, address, None).await?;
        let date = head.headers.get(DATE).and_then(|date| date.to_str().ok()).map(str::to_owned);
        Ok((collect_body(body, bytes).await?, date))
    }

    /// Opens a streaming answer. Returns its body once the server has accepted the request.
    pub async fn open(&self, address: &str, within: Duration) -> Result<Body, RequestFailure> {
        timeout(within, self.send(Method::GET, address, None))
            .await
            .map_err(|_| RequestFailure::TimedOut(within))?
    }

    async fn send(
        &self,
        method: Method,
        address: &str,
        body: Option<(&'static str, Vec<u8>)>,
    ) -> Result<Body, RequestFailure> {
        Ok(self.successful_answer(method, address, body).await?.1)
    }

    /// Sends a request with additional headers. A failure comes with the answer's body, which has details.
    pub async fn send_with_headers(
        &self,
        method: Method,
        address: &str,
        headers: Vec<(HeaderName, HeaderValue)>,
        body: Option<(&'static str, Vec<u8>)>,
        bytes: usize,
    ) -> Result<Bytes, (RequestFailure, Vec<u8>)> {
        let (head, body) =
            self.send_raw(method, address, headers, body).await.map_err(|failure| (failure, Vec::new()))?;
        if head.status.is_success() {
            return collect_body(body, bytes).await.map_err(|failure| (failure, Vec::new()));
        }
        let text = collect_body(body, ERROR_BYTES).await.unwrap_or_default();
        let retry_after_time = retry_after(&head.headers);
        Err((status_failure(Some(head.status.as_u16()), &text, retry_after_time), text.to_vec()))
    }

    async fn successful_answer(
        &self,
        method: Method,
        address: &str,
        body: Option<(&'static str, Vec<u8>)>,
    ) -> Result<(Parts, Body), RequestFailure> {
        let (head, body) = self.send_raw(method, address, Vec::new(), body).await?;
        if head.status.is_success() {
            return Ok((head, body));
        }
        let retry_after_time = retry_after(&head.headers);
        let text = collect_body(body, ERROR_BYTES).await.unwrap_or_default();
        Err(status_failure(Some(head.status.as_u16()), &text, retry_after_time))
    }

    /// The answer, whatever its status.
    async fn send_raw(
        &self,
        method: Method,
        address: &str,
        headers: Vec<(HeaderName, HeaderValue)>,
        body: Option<(&'static str, Vec<u8>)>,
    ) -> Result<(Parts, Body), RequestFailure> {
        // Compression is not requested: since Kubernetes 1.37 a compressed stream would need a decoder for
        // each frame.
        let mut request = Request::builder().method(method).uri(address).header(ACCEPT_ENCODING, "identity");
        if headers.iter().all(|(name, _)| *name != ACCEPT) {
            request = request.header(ACCEPT, JSON);
        }
        let body = match body {
            Some((media_type, bytes)) => {
                request = request.header(CONTENT_TYPE, media_type);
                Body::from(bytes)
            }
            None => Body::empty(),
        };
        let request = headers.into_iter().fold(request, |request, (name, value)| request.header(name, value));
        let request =
            request.body(body).map_err(|error| RequestFailure::Answer(format!("`{address}`: {error}")))?;
        let answer = self
            .client
            .send(request)
            .await
            .map_err(|error| RequestFailure::Transport(error_chain(&error)))?;
        Ok(answer.into_parts())
    }
}

async fn collect_body(body: Body, limit: usize) -> Result<Bytes, RequestFailure> {
    match Limited::new(body, limit).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<http_body_util::LengthLimitError>() => {
            Err(RequestFailure::Answer(format!("it is larger than {limit} bytes")))
        }
        Err(error) => Err(RequestFailure::Transport(error_chain(&*error))),
    }
}

/// The whole chain of an error in one line. The last link, such as "connection refused", usually helps most.
pub(crate) fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        next = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_escaped() {
        let address = RequestAddress::new("/api/v1/pods")
            .with_parameter("limit", "1")
            .with_parameter("fieldSelector", "metadata.name=a b");
        assert_eq!(address.as_str(), "/api/v1/pods?limit=1&fieldSelector=metadata.name%3Da%20b");
    }

    #[test]
    fn a_status_says_how_long_to_wait_in_its_header_or_its_details() {
        let body = br#"{"kind":"Status","reason":"Timeout","message":"m","code":504,"details":{"retryAfterSeconds":3}}"#;
        let failure = status_failure(None, body, None);
        assert_eq!(failure.status_code(), Some(504));
        assert_eq!(failure.retry_after(), Some(Duration::from_secs(3)));
        let longer = status_failure(Some(429), b"slow down", Some(Duration::from_secs(1 << 40)));
        assert_eq!(longer.retry_after(), Some(RETRY_AFTER_CAP));
        assert_eq!(longer.to_string(), "429 Too Many Requests: slow down");
    }

    #[test]
    fn expired_is_recognised_by_code_and_by_reason() {
        assert!(status_failure(Some(410), b"", None).is_expired());
        assert!(status_failure(None, br#"{"kind":"Status","reason":"Expired"}"#, None).is_expired());
        assert!(!status_failure(Some(404), b"", None).is_expired());
    }

    /// An API that answers every request with this, or never.
    fn api(answer: Option<(u16, Vec<u8>)>) -> ApiClient {
        let service = tower::service_fn(move |_: Request<Body>| {
            let answer = answer.clone();
            async move {
                let Some((status, body)) = answer else { return std::future::pending().await };
                let answer = http::Response::builder().status(status).body(Body::from(body));
                Ok::<_, tower::BoxError>(answer.unwrap())
            }
        });
        ApiClient::new(kube::Client::new(service, "default"))
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_never_comes_is_given_up() {
        assert_eq!(api(None).get("/version").await, Err(RequestFailure::TimedOut(ANSWER_TIME)));
    }

    #[tokio::test]
    async fn an_answer_has_no_more_bytes_than_its_bound() {
        let ten = || Body::from(vec![7; 10]);
        assert_eq!(collect_body(ten(), 10).await.unwrap().len(), 10);
        assert_eq!(
            collect_body(ten(), 9).await,
            Err(RequestFailure::Answer("it is larger than 9 bytes".into()))
        );
    }

    #[tokio::test]
    async fn an_errors_body_is_read_up_to_its_bound_and_its_code_counts_whatever_is_in_it() {
        let failure_for =
            async |bytes: usize| api(Some((503, vec![b'x'; bytes]))).get("/version").await.unwrap_err();
        assert!(failure_for(ERROR_BYTES).await.to_string().len() > 100);
        let large = failure_for(ERROR_BYTES + 1).await;
        assert_eq!(
            (large.status_code(), large.to_string().trim_end()),
            (Some(503), "503 Service Unavailable:")
        );
    }
}
