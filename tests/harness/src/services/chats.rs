//! The services that people are told by, for tests: Slack, Feishu, Lark, DingTalk, WeCom, Alertmanager, a receiver of CloudEvents
//! and one that checks an HMAC. Each answers as the real one does, and takes only what is signed, shaped and paced as the
//! real one demands.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result};
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use kubewitness_core::calendar;
use serde_json::{Value, json};

use crate::slowdown;

/// The secret with which requests are signed.
pub const SIGNING_SECRET: &str = "hush-sign-4711";
/// Part of each address. Whoever does not know it is refused.
pub const ADDRESS_SECRET: &str = "hush-address-4711";
/// How far a signature's time may be off.
const LATE_SECONDS: u64 = 300;
const MINUTE: Duration = Duration::from_secs(60);
/// How long an alert of a failure fires.
const DAY_MS: u64 = 24 * 3_600_000;
/// Requests that leave a second apart arrive up to so much closer where a busy machine holds up the first. What is
/// too fast all the same has too many in the longer time.
const JITTER: Duration = Duration::from_millis(400);

/// The messages that one service took and refused.
#[derive(Clone, Debug, Default)]
pub struct ChatLog {
    pub taken: Vec<Value>,
    /// Why, each time.
    pub refused: Vec<String>,
    at: Vec<Instant>,
}

/// Runs until it is dropped.
pub struct ChatServices {
    address: SocketAddr,
    seen: SeenMessages,
    server: tokio::task::JoinHandle<()>,
}

type SeenMessages = Arc<Mutex<BTreeMap<String, ChatLog>>>;

impl Drop for ChatServices {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl ChatServices {
    pub async fn start() -> Result<Self> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.context("binding the services")?;
        let (address, seen) = (listener.local_addr()?, SeenMessages::default());
        let router = Router::new().fallback(answer).with_state(seen.clone());
        #[allow(clippy::disallowed_methods)]
        let server = tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, router).await {
                eprintln!("the services of chats end: {error}");
            }
        });
        Ok(Self { address, seen, server })
    }

    /// The address of a service: `slack`, `feishu`, `lark`, `dingtalk`, `wecom`, `alertmanager`, `events` or `hook`.
    pub fn url(&self, service: &str) -> String {
        match service {
            "dingtalk" | "wecom" => format!("http://{}/{service}/send?key={ADDRESS_SECRET}", self.address),
            _ => format!("http://{}/{service}/{ADDRESS_SECRET}", self.address),
        }
    }

    pub fn of(&self, service: &str) -> ChatLog {
        lock(&self.seen).get(service).cloned().unwrap_or_default()
    }
}

fn lock(seen: &SeenMessages) -> MutexGuard<'_, BTreeMap<String, ChatLog>> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn answer(State(seen): State<SeenMessages>, uri: Uri, headers: HeaderMap, bytes: Bytes) -> Response {
    let service = uri.path().split('/').nth(1).unwrap_or_default().to_owned();
    let mut seen = lock(&seen);
    let chat = seen.entry(service.clone()).or_default();
    let quota: &[(usize, Duration)] = match service.as_str() {
        "slack" => &[(1, Duration::from_secs(1)), (5, Duration::from_secs(5))],
        "feishu" | "lark" => &[(100, MINUTE), (5, Duration::from_secs(1))],
        "dingtalk" | "wecom" => &[(20, MINUTE)],
        _ => &[],
    };
    let now = Instant::now();
    let jitter = JITTER.mul_f64(slowdown());
    let is_fast = quota.iter().any(|(most, within)| {
        chat.at.iter().filter(|at| now.duration_since(**at) + jitter < *within).count() >= *most
    });
    chat.at.push(now);
    let body: Value = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
    let wrong = match () {
        () if is_fast => Err(RefusedMessage::Fast),
        () if !uri.to_string().contains(ADDRESS_SECRET) => Err(RefusedMessage::Address),
        () => check(&service, &uri, &headers, &bytes, &body),
    };
    match &wrong {
        Ok(()) => chat.taken.push(body),
        Err(wrong) => chat.refused.push(format!("{wrong:?}")),
    }
    said(&service, wrong.err())
}

#[derive(Debug)]
enum RefusedMessage {
    Fast,
    Address,
    Signature,
    Shape(&'static str),
}

fn shape(is_right: bool, what: &'static str) -> Result<(), RefusedMessage> {
    if is_right { Ok(()) } else { Err(RefusedMessage::Shape(what)) }
}

fn check(
    service: &str,
    uri: &Uri,
    headers: &HeaderMap,
    bytes: &[u8],
    body: &Value,
) -> Result<(), RefusedMessage> {
    let text = |pointer: &str| body.pointer(pointer).and_then(Value::as_str);
    let count = |pointer: &str| body.pointer(pointer).and_then(Value::as_array).map(Vec::len);
    let is_of = |kind: &str| headers.get("content-type").is_some_and(|found| found == kind);
    match service {
        "slack" => {
            let fits = |pointer: &str, most: usize| {
                text(pointer).is_some_and(|text| !text.is_empty() && text.chars().count() <= most)
            };
            shape(text("/text").is_some_and(|text| !text.is_empty()), "text")?;
            shape(count("/blocks") == Some(2), "blocks")?;
            shape(text("/blocks/0/type") == Some("header") && fits("/blocks/0/text/text", 150), "header")?;
            shape(text("/blocks/0/text/type") == Some("plain_text"), "header")?;
            shape(text("/blocks/1/type") == Some("section") && fits("/blocks/1/text/text", 3000), "section")?;
            shape(text("/blocks/1/text/type") == Some("mrkdwn"), "section")?;
            shape(body.pointer("/blocks/1/text/verbatim") == Some(&true.into()), "verbatim")
        }
        "feishu" | "lark" => {
            let time = text("/timestamp").unwrap_or_default();
            let key = format!("{time}\n{SIGNING_SECRET}");
            signed(text("/sign").unwrap_or_default(), &key, "", time.parse().ok())?;
            shape(text("/msg_type") == Some("post") && bytes.len() <= 20_000, "msg_type")?;
            shape(text("/content/post/en_us/title").is_some_and(|title| !title.is_empty()), "title")?;
            let lines = body.pointer("/content/post/en_us/content").and_then(Value::as_array);
            let is_known = |part: &Value| match part["tag"].as_str() {
                Some("text") => part["text"].is_string(),
                Some("a") => part["text"].is_string() && part["href"].is_string(),
                _ => false,
            };
            let is_line = |line: &Value| line.as_array().is_some_and(|line| line.iter().all(is_known));
            shape(lines.is_some_and(|lines| !lines.is_empty() && lines.iter().all(is_line)), "content")
        }
        "dingtalk" => {
            let query = uri.query().unwrap_or_default();
            let of = |name: &str| {
                query
                    .split('&')
                    .find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
                    .unwrap_or_default()
            };
            let (time, sign) = (of("timestamp"), of("sign"));
            let sign = sign.replace("%2B", "+").replace("%2F", "/").replace("%3D", "=");
            let seconds = time.parse::<u64>().ok().map(|ms| ms / 1000);
            signed(&sign, SIGNING_SECRET, &format!("{time}\n{SIGNING_SECRET}"), seconds)?;
            shape(text("/msgtype") == Some("markdown") && bytes.len() <= 20_000, "msgtype")?;
            let has = |pointer: &str| text(pointer).is_some_and(|text| !text.is_empty());
            shape(has("/markdown/title") && has("/markdown/text"), "markdown")
        }
        "wecom" => {
            let content = text("/markdown/content").unwrap_or_default();
            shape(text("/msgtype") == Some("markdown"), "msgtype")?;
            shape(!content.is_empty() && content.len() <= 4096, "content")
        }
        "alertmanager" => {
            shape(uri.path().ends_with("/api/v2/alerts"), "path")?;
            shape(text("/0/labels/alertname").is_some(), "labels")?;
            let at = |pointer: &str| text(pointer).and_then(calendar::parse_rfc3339_ms);
            let (starts, ends) =
                (at("/0/startsAt").ok_or(RefusedMessage::Shape("startsAt"))?, at("/0/endsAt"));
            // Without an end it is over after five minutes, unless somebody sends it again.
            let fires_ms = if text("/0/annotations/phase") == Some("Failed") { DAY_MS } else { 0 };
            shape(ends == Some(starts + fires_ms), "endsAt")
        }
        "events" => {
            shape(is_of("application/cloudevents+json"), "content-type")?;
            let required =
                ["/id", "/source", "/type"].iter().all(|field| text(field).is_some_and(|it| !it.is_empty()));
            shape(text("/specversion") == Some("1.0") && required, "event")?;
            shape(text("/time").is_some_and(|time| calendar::parse_rfc3339_ms(time).is_some()), "time")?;
            shape(text("/datacontenttype") == Some("application/json") && body["data"].is_object(), "data")
        }
        "hook" => {
            let header = headers.get("x-kubewitness-signature").and_then(|value| value.to_str().ok());
            let parts = header.and_then(|header| header.strip_prefix("t=")?.split_once(",v1="));
            let (time, sign) = parts.ok_or(RefusedMessage::Signature)?;
            let message = [time.as_bytes(), b".", bytes].concat();
            let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, SIGNING_SECRET.as_bytes());
            let sign = hex::decode(sign).map_err(|_| RefusedMessage::Signature)?;
            ring::hmac::verify(&key, &message, &sign).map_err(|_| RefusedMessage::Signature)?;
            recent(time.parse().ok())
        }
        _ => Err(RefusedMessage::Shape("no such service")),
    }
}

fn signed(sign: &str, key: &str, message: &str, seconds: Option<u64>) -> Result<(), RefusedMessage> {
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, key.as_bytes());
    let sign = STANDARD.decode(sign).map_err(|_| RefusedMessage::Signature)?;
    ring::hmac::verify(&key, message.as_bytes(), &sign).map_err(|_| RefusedMessage::Signature)?;
    recent(seconds)
}

fn recent(seconds: Option<u64>) -> Result<(), RefusedMessage> {
    let now = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs());
    let is_recent = seconds.is_some_and(|seconds| seconds.abs_diff(now) <= LATE_SECONDS);
    if is_recent { Ok(()) } else { Err(RefusedMessage::Signature) }
}

/// The words of each service.
fn said(service: &str, wrong: Option<RefusedMessage>) -> Response {
    let of_code =
        |names: (&str, &str), code: i64, text: &str| json!({names.0: code, names.1: text}).to_string();
    match (service, wrong) {
        ("feishu" | "lark", None) => of_code(("code", "msg"), 0, "success").into_response(),
        ("feishu" | "lark", Some(RefusedMessage::Fast)) => {
            of_code(("code", "msg"), 11232, "frequency limited").into_response()
        }
        ("feishu" | "lark", Some(_)) => of_code(("code", "msg"), 19021, "sign match fail").into_response(),
        ("dingtalk" | "wecom", None) => of_code(("errcode", "errmsg"), 0, "ok").into_response(),
        ("dingtalk", Some(RefusedMessage::Fast)) => {
            of_code(("errcode", "errmsg"), 130_101, "send too fast").into_response()
        }
        ("wecom", Some(RefusedMessage::Fast)) => {
            of_code(("errcode", "errmsg"), 45009, "api freq out of limit").into_response()
        }
        ("dingtalk", Some(_)) => of_code(("errcode", "errmsg"), 310_000, "sign not match").into_response(),
        ("wecom", Some(_)) => of_code(("errcode", "errmsg"), 93000, "invalid webhook url").into_response(),
        (_, None) => "ok".into_response(),
        (_, Some(RefusedMessage::Fast)) => {
            (StatusCode::TOO_MANY_REQUESTS, [("retry-after", "1")], "rate_limited").into_response()
        }
        (_, Some(RefusedMessage::Shape(what))) => (StatusCode::BAD_REQUEST, what).into_response(),
        (_, Some(RefusedMessage::Address | RefusedMessage::Signature)) => {
            StatusCode::FORBIDDEN.into_response()
        }
    }
}
