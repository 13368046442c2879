//! The HTTP client of the commands: it asks a running controller, with bounds on time, and turns a refusal into an
//! error that says what to do.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use kubewitness_core::shortened;
use reqwest::header::{AUTHORIZATION, HeaderValue};
use reqwest::{Method, RequestBuilder, Response, StatusCode, Url};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::cli::ReachArgs;
use crate::commands::Usage;
use crate::commands::print::clean;
use crate::commands::reach::{self, Reached};

/// Longer than a controller takes to say that it can't answer.
const TIMEOUT: Duration = Duration::from_secs(20);
/// A live stream says at least every 15 seconds that it lives; three missed ones are its end.
const SILENCE: Duration = Duration::from_secs(50);

/// An answer has at most 10,000 rows of some KiB, or one document.
const ANSWER: usize = 256 << 20;
/// A refusal is a sentence and a hint.
const REFUSAL: usize = 1 << 20;
/// Bytes that are told of what an answer has instead.
const WHY: usize = 300;

pub struct Client {
    args: ReachArgs,
    /// It is another one after the pod at its end was replaced.
    to: RwLock<Arc<To>>,
}

/// A controller, and the client that asks it.
struct To {
    reached: Reached,
    http: reqwest::Client,
}

impl To {
    async fn find(args: &ReachArgs) -> Result<Arc<Self>> {
        let reached = reach::controller(args).await?;
        let http = builder(&reached)?.timeout(TIMEOUT).build().context("making an HTTP client")?;
        Ok(Arc::new(Self { reached, http }))
    }

    fn url(&self, path: &str) -> Result<Url> {
        let url = &self.reached.url;
        url.join(path).with_context(|| format!("joining {url} and {path}"))
    }
}

impl Client {
    pub async fn reach(args: &ReachArgs) -> Result<Self> {
        let to = RwLock::new(To::find(args).await?);
        Ok(Self { args: args.clone(), to })
    }

    /// Looks for the pod again where the way leads into one: a pod that was replaced has another name.
    pub async fn find_again(&self) -> Result<()> {
        if self.to().reached.is_forwarded {
            let found = To::find(&self.args).await?;
            *self.to.write().unwrap_or_else(PoisonError::into_inner) = found;
        }
        Ok(())
    }

    fn to(&self) -> Arc<To> {
        self.to.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Where it is, and by what it knows who asks.
    pub fn reached<T>(&self, of: impl FnOnce(&Reached) -> T) -> T {
        of(&self.to().reached)
    }

    pub async fn get<T: DeserializeOwned>(&self, path: &str, query: &impl Serialize) -> Result<T> {
        self.send(Method::GET, path, |request| request.query(query)).await
    }

    pub async fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T> {
        self.send(Method::POST, path, |request| request.json(body)).await
    }

    /// The bytes of an answer, as they are.
    pub async fn bytes(&self, path: &str) -> Result<Vec<u8>> {
        let to = self.to();
        body(to.answer(to.http.get(to.url(path)?)).await?, ANSWER).await
    }

    /// An answer that does not end by itself.
    pub async fn stream(&self, path: &str, query: &impl Serialize) -> Result<Response> {
        let to = self.to();
        let http = builder(&to.reached)?.read_timeout(SILENCE).connect_timeout(TIMEOUT);
        let http = http.build().context("making an HTTP client")?;
        to.answer(http.get(to.url(path)?).query(query)).await
    }

    async fn send<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        with: impl FnOnce(RequestBuilder) -> RequestBuilder,
    ) -> Result<T> {
        let to = self.to();
        let answer = to.answer(with(to.http.request(method, to.url(path)?))).await?;
        let body = body(answer, ANSWER).await?;
        serde_json::from_slice(&body).map_err(|error| {
            let (url, why) = (&to.reached.url, error.to_string());
            anyhow!(
                "{url} does not answer as a Kubewitness controller does: {}",
                clean(&shortened(&why, WHY))
            )
        })
    }
}

impl To {
    /// Sends it; a refusal is an error in the controller's words.
    async fn answer(&self, request: RequestBuilder) -> Result<Response> {
        let answer = request.send().await.map_err(|error| {
            let what = match error.is_timeout() && !error.is_connect() {
                true => format!(
                    "the controller at {} has not answered in time: its log says what it waits for",
                    self.reached.url
                ),
                false if self.reached.is_forwarded => {
                    "the pod of Kubewitness does not answer: its log says what it waits for".into()
                }
                false => format!(
                    "no controller answers at {}: start one with `kubewitness run` or `kubewitness playground`, \
                     or name another with --server",
                    self.reached.url
                ),
            };
            anyhow!(error).context(what)
        })?;
        let status = answer.status();
        if !status.is_success() {
            let body = body(answer, REFUSAL).await?;
            // The controller knows requests, and this command the way by which a person gives it a token.
            let own_hint = (status == StatusCode::UNAUTHORIZED).then_some(self.reached.to_sign_in.as_str());
            let refusal = refusal(status, &body, own_hint);
            // The controller looks at what was typed, such as a selector.
            return Err(if status == StatusCode::BAD_REQUEST {
                Usage::error(refusal)
            } else {
                anyhow!(refusal)
            });
        }
        Ok(answer)
    }
}

/// All of an answer, up to its bound.
async fn body(mut answer: Response, most: usize) -> Result<Vec<u8>> {
    let mut body = Vec::new();
    while let Some(chunk) = answer.chunk().await.context("reading the controller's answer")? {
        anyhow::ensure!(
            body.len() + chunk.len() <= most,
            "the answer of {} is larger than {} MiB: ask for less, such as one namespace",
            answer.url().host_str().unwrap_or("the controller"),
            most >> 20
        );
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

fn builder(reached: &Reached) -> Result<reqwest::ClientBuilder> {
    let mut builder = reqwest::Client::builder().no_proxy();
    if let Some(token) = &reached.token {
        let mut header = HeaderValue::try_from(format!("Bearer {}", token.0.trim()))
            .map_err(|_| Usage::error("the token has characters that no token has: copy it again"))?;
        header.set_sensitive(true);
        builder = builder.default_headers([(AUTHORIZATION, header)].into_iter().collect());
    }
    // The API server has made the way, and says which pod is at its end. No certificate names 127.0.0.1.
    Ok(if reached.is_forwarded { builder.tls_danger_accept_invalid_certs(true) } else { builder })
}

fn refusal(status: StatusCode, body: &[u8], own_hint: Option<&str>) -> String {
    let json: Value = serde_json::from_slice(body).unwrap_or_default();
    match (json["error"]["message"].as_str(), own_hint.or(json["error"]["hint"].as_str())) {
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
        assert_eq!(
            refusal(StatusCode::NOT_FOUND, body, None),
            "no such plugin\n`kubewitness plugins` lists them"
        );
        let hostile = br#"{"error":{"message":"a\u001b[2Jb","hint":"c\u202ed"}}"#;
        assert_eq!(refusal(StatusCode::NOT_FOUND, hostile, None), "a\u{b7}[2Jb\nc\u{b7}d");
        let stranger = br#"{"error":{"message":"it is not known who asks","hint":"send a token"}}"#;
        let told = refusal(StatusCode::UNAUTHORIZED, stranger, Some("give a token"));
        assert_eq!(told, "it is not known who asks\ngive a token");
        assert_eq!(
            refusal(StatusCode::BAD_GATEWAY, b"<html>", None),
            "the controller answered 502 Bad Gateway"
        );
    }

    #[tokio::test]
    async fn an_answer_is_read_up_to_its_bound() {
        let of = |bytes: usize| Response::from(http::Response::new(vec![b'a'; bytes]));
        assert_eq!(body(of(1 << 20), 1 << 20).await.unwrap().len(), 1 << 20);
        let told = body(of((1 << 20) + 1), 1 << 20).await.unwrap_err().to_string();
        assert!(told.contains("larger than 1 MiB: ask for less"), "{told}");
    }
}
