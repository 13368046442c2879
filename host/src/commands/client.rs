//! Asks a running controller.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use reqwest::{Method, StatusCode, Url};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::print::clean;

/// A controller that does not answer within this time would not be waited for by a person either.
const TIMEOUT: Duration = Duration::from_secs(15);

pub struct Client {
    base: Url,
    http: reqwest::Client,
}

impl Client {
    pub fn new(server: &str) -> Result<Self> {
        let base = Url::parse(server).with_context(|| {
            format!("`{server}` is not an address: write one such as http://127.0.0.1:8787")
        })?;
        if !matches!(base.scheme(), "http" | "https") {
            bail!("`{server}` is neither http nor https");
        }
        let http = reqwest::Client::builder()
            .timeout(TIMEOUT)
            .no_proxy()
            .build()
            .context("making an HTTP client")?;
        Ok(Self { base, http })
    }

    pub async fn get<T: DeserializeOwned>(&self, path: &str, query: &impl Serialize) -> Result<T> {
        self.send(Method::GET, path, |request| request.query(query)).await
    }

    pub async fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T> {
        self.send(Method::POST, path, |request| request.json(body)).await
    }

    async fn send<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        with: impl FnOnce(reqwest::RequestBuilder) -> reqwest::RequestBuilder,
    ) -> Result<T> {
        let url = self.base.join(path).with_context(|| format!("joining {} and {path}", self.base))?;
        let answer = with(self.http.request(method, url)).send().await.with_context(|| {
            format!(
                "no controller answers at {}: start one with `kubewitness run` or `kubewitness playground`, \
                 or name another with --server",
                self.base
            )
        })?;
        let status = answer.status();
        let body = answer.bytes().await.context("reading the controller's answer")?;
        if !status.is_success() {
            bail!("{}", refusal(status, &body));
        }
        serde_json::from_slice(&body)
            .with_context(|| format!("{} does not answer as a Kubewitness controller does", self.base))
    }
}

fn refusal(status: StatusCode, body: &[u8]) -> String {
    let json: Value = serde_json::from_slice(body).unwrap_or_default();
    match (json["error"]["message"].as_str(), json["error"]["hint"].as_str()) {
        (Some(message), Some(hint)) => format!("{}\n{}", clean(message), clean(hint)),
        (Some(message), None) => clean(message).into_owned(),
        _ => format!("the controller answered {status}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_told_in_the_controllers_words() {
        let body = br#"{"error":{"message":"no such plugin","hint":"`kubewitness plugins` lists them"}}"#;
        assert_eq!(refusal(StatusCode::NOT_FOUND, body), "no such plugin\n`kubewitness plugins` lists them");
        let hostile = br#"{"error":{"message":"a\u001b[2Jb","hint":"c\u202ed"}}"#;
        assert_eq!(refusal(StatusCode::NOT_FOUND, hostile), "a\u{b7}[2Jb\nc\u{b7}d");
        assert_eq!(refusal(StatusCode::BAD_GATEWAY, b"<html>"), "the controller answered 502 Bad Gateway");
    }
}
