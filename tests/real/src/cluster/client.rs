//! Asks an API server as its administrator.

use std::time::Duration;

use anyhow::Result;
use reqwest::Method;
use serde_json::Value;

/// Longer than any run.
const LONGEST_WATCH: Duration = Duration::from_secs(3600);

#[derive(Clone, Debug)]
pub struct ApiClient {
    pub(super) url: String,
    pub(super) http: reqwest::Client,
    pub(super) token: String,
}

impl ApiClient {
    /// Returns the code and the object of the answer.
    pub async fn request(&self, method: Method, path: &str, body: Option<&Value>) -> Result<(u16, Value)> {
        let media = match method {
            Method::PATCH => "application/merge-patch+json",
            _ => "application/json",
        };
        self.send(method, path, media, body).await
    }

    /// A patch that merges lists by their keys, as kubelets write.
    pub async fn merge_lists(&self, path: &str, body: &Value) -> Result<(u16, Value)> {
        self.send(Method::PATCH, path, "application/strategic-merge-patch+json", Some(body)).await
    }

    /// An answer that goes on.
    pub async fn watch(&self, path: &str) -> Result<reqwest::Response> {
        let request = self.http.get(format!("{}{path}", self.url)).bearer_auth(&self.token);
        Ok(request.timeout(LONGEST_WATCH).send().await?.error_for_status()?)
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        media: &str,
        body: Option<&Value>,
    ) -> Result<(u16, Value)> {
        let mut request = self.http.request(method, format!("{}{path}", self.url)).bearer_auth(&self.token);
        if let Some(body) = body {
            request = request.header("content-type", media).body(body.to_string());
        }
        let answer = request.send().await?;
        let (code, text) = (answer.status().as_u16(), answer.text().await?);
        Ok((code, serde_json::from_str(&text).unwrap_or(Value::String(text))))
    }
}
