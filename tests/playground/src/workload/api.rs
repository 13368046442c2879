//! Writes to an API server, with bounded retries. It knows HTTP and Status documents, not jobs.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use reqwest::{Method, Response, StatusCode, header};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::{WorkloadError, WorkloadProgress};

/// How often one write is tried, with pauses of 50 ms that double up to [`LONGEST_PAUSE`]. This takes about
/// half a minute, so an API server may restart under load.
const TRIES: u32 = 20;
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// The longest duration of a request. After that it is retried.
const REQUEST_WITHIN: Duration = Duration::from_secs(10);

pub struct WorkloadApi {
    client: reqwest::Client,
    base: String,
    token: Option<String>,
    progress: Arc<WorkloadProgress>,
    stop: CancellationToken,
}

/// The result of a write, for a caller that continues.
#[derive(Debug)]
pub enum WriteEnd {
    Done(Value),
    /// The object does not exist, or does not exist any more.
    Missing,
    /// Another object has this name.
    Taken,
    /// The write was based on an old version: read and decide again.
    Conflict,
}

impl WorkloadApi {
    pub fn new(
        client: reqwest::Client,
        url: &str,
        token: Option<String>,
        progress: Arc<WorkloadProgress>,
        stop: CancellationToken,
    ) -> Self {
        Self { client, base: url.trim_end_matches('/').to_owned(), token, progress, stop }
    }

    pub async fn create(&self, path: &str, body: &Value) -> Result<WriteEnd, WorkloadError> {
        self.write(Method::POST, path, "application/json", body).await
    }

    pub async fn replace(&self, path: &str, body: &Value) -> Result<WriteEnd, WorkloadError> {
        self.write(Method::PUT, path, "application/json", body).await
    }

    pub async fn merge(&self, path: &str, body: &Value) -> Result<WriteEnd, WorkloadError> {
        self.write(Method::PATCH, path, "application/merge-patch+json", body).await
    }

    pub async fn delete(&self, path: &str) -> Result<WriteEnd, WorkloadError> {
        let options = serde_json::json!({"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"});
        self.write(Method::DELETE, path, "application/json", &options).await
    }

    pub async fn get(&self, path: &str) -> Result<WriteEnd, WorkloadError> {
        self.write(Method::GET, path, "application/json", &Value::Null).await
    }

    /// Counts a write that the server accepted. Reads are not writes.
    fn count(&self, method: &Method) {
        if method != Method::GET {
            self.progress.writes.fetch_add(1, Ordering::Relaxed);
        }
    }

    async fn write(
        &self,
        method: Method,
        path: &str,
        kind: &str,
        body: &Value,
    ) -> Result<WriteEnd, WorkloadError> {
        let mut pause = FIRST_PAUSE;
        let mut last = String::new();
        for attempt in 1..=TRIES {
            let wait = match self.send(&method, path, kind, body).await {
                Ok(response) if response.status().is_success() => {
                    self.count(&method);
                    return Ok(WriteEnd::Done(response.json().await.unwrap_or(Value::Null)));
                }
                Ok(response) => {
                    // A missing object is an answer, not a failure.
                    if response.status() != StatusCode::NOT_FOUND {
                        self.progress.errors.fetch_add(1, Ordering::Relaxed);
                    }
                    let retry_after = retry_after(&response);
                    match judge(&method, path, response, attempt).await {
                        AnswerVerdict::Sent(sent) => return Ok(sent),
                        AnswerVerdict::Refused(error) => return Err(error),
                        // An earlier attempt created it, and its answer was lost.
                        AnswerVerdict::Ours => return Ok(WriteEnd::Conflict),
                        AnswerVerdict::Later(why) => last = why,
                    }
                    retry_after.unwrap_or(pause)
                }
                Err(error) => {
                    self.progress.errors.fetch_add(1, Ordering::Relaxed);
                    last = error_chain(&error);
                    pause
                }
            };
            if attempt < TRIES && self.stop.run_until_cancelled(tokio::time::sleep(wait)).await.is_none() {
                return Err(WorkloadError::Stopped);
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        Err(WorkloadError::Unreachable { request: format!("{method} {path}"), tries: TRIES, last })
    }

    async fn send(&self, method: &Method, path: &str, kind: &str, body: &Value) -> reqwest::Result<Response> {
        let mut request = self
            .client
            .request(method.clone(), format!("{}{path}", self.base))
            .timeout(REQUEST_WITHIN)
            .header(header::ACCEPT, "application/json");
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        if !body.is_null() {
            request = request.header(header::CONTENT_TYPE, kind).body(body.to_string());
        }
        request.send().await
    }
}

enum AnswerVerdict {
    Sent(WriteEnd),
    Refused(WorkloadError),
    Ours,
    Later(String),
}

async fn judge(method: &Method, path: &str, response: Response, attempt: u32) -> AnswerVerdict {
    let code = response.status();
    let text = response.text().await.unwrap_or_default();
    let status: Value = serde_json::from_str(&text).unwrap_or(Value::Null);
    let message = status["message"].as_str().unwrap_or(&text).to_owned();
    match (code, status["reason"].as_str()) {
        (StatusCode::NOT_FOUND, _) => AnswerVerdict::Sent(WriteEnd::Missing),
        (StatusCode::CONFLICT, Some("AlreadyExists")) if attempt > 1 => AnswerVerdict::Ours,
        (StatusCode::CONFLICT, Some("AlreadyExists")) => AnswerVerdict::Sent(WriteEnd::Taken),
        (StatusCode::CONFLICT, _) => AnswerVerdict::Sent(WriteEnd::Conflict),
        (StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT, _) => AnswerVerdict::Later(message),
        _ if code.is_server_error() => AnswerVerdict::Later(format!("{code}: {message}")),
        _ => AnswerVerdict::Refused(WorkloadError::Refused {
            request: format!("{method} {path}"),
            status: code.as_u16(),
            message,
        }),
    }
}

/// In seconds, as Kubernetes sends it, and never longer than a request may take.
fn retry_after(response: &Response) -> Option<Duration> {
    let seconds: u64 = response.headers().get(header::RETRY_AFTER)?.to_str().ok()?.parse().ok()?;
    Some(Duration::from_secs(seconds).min(REQUEST_WITHIN))
}

fn error_chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
