//! Tests of every operation in the API's description: without a token, with garbage, with an expired token,
//! as another tenant, and after a right was withdrawn. An operation without a case fails the test.

use std::collections::BTreeSet;
use std::time::Duration;

use axum::body::Body;
use axum::http::StatusCode;
use tower::ServiceExt;

use super::GuardedPortal;
use super::streams::read;
use crate::request;

/// Longer than an answer of the API server is valid.
const KEPT: Duration = Duration::from_secs(11);
const MINUTE: Duration = Duration::from_secs(60);

struct OperationCase {
    method: &'static str,
    /// The path in the description.
    path: &'static str,
    asked: &'static str,
    body: &'static str,
    /// The person who may use it.
    holder: &'static str,
    /// The text that only the holder's answer has; empty if everybody who has signed in gets it.
    word: &'static str,
    /// Set if the operation changes something. Then others are refused.
    is_act: bool,
}

const fn reads(
    path: &'static str,
    asked: &'static str,
    holder: &'static str,
    word: &'static str,
) -> OperationCase {
    OperationCase { method: "get", path, asked, body: "", holder, word, is_act: false }
}

const fn acts(
    path: &'static str,
    asked: &'static str,
    body: &'static str,
    word: &'static str,
) -> OperationCase {
    OperationCase { method: "post", path, asked, body, holder: "boss", word, is_act: true }
}

const CASES: &[OperationCase] = &[
    reads("/api/v1/status", "/api/v1/status", "boss", "red-secret"),
    reads("/api/v1/objects", "/api/v1/objects?details=true", "red", "red-train"),
    reads("/api/v1/timeline", "/api/v1/timeline?uid=uid-red", "red", "red-train"),
    reads("/api/v1/states/{seq}/document", "/api/v1/states/1/document", "red", "red-train"),
    reads("/api/v1/plugins", "/api/v1/plugins", "boss", "persistence"),
    reads("/api/v1/gaps", "/api/v1/gaps", "red", "red-gap"),
    reads("/api/v1/mutes", "/api/v1/mutes", "boss", "red-train"),
    reads("/api/v1/poison", "/api/v1/poison", "boss", "red-secret"),
    reads("/api/v1/poison/{number}/raw", "/api/v1/poison/1/raw", "boss", "red-secret"),
    reads("/api/v1/deadletters", "/api/v1/deadletters", "red", "red-error"),
    reads("/api/v1/deadletters/records", "/api/v1/deadletters/records", "boss", "red-secret"),
    reads("/api/v1/events", "/api/v1/events?after=0", "red", "red-train"),
    reads("/api/v1/templates", "/api/v1/templates", "red", ""),
    reads("/api/v1/openapi.json", "/api/v1/openapi.json", "red", ""),
    reads("/healthz", "/healthz", "red", ""),
    reads("/readyz", "/readyz", "boss", "red-secret"),
    reads("/metrics", "/metrics", "boss", "kubewitness_"),
    acts("/api/v1/deadletters/replay", "/api/v1/deadletters/replay", LETTERS, "replayed"),
    acts("/api/v1/deadletters/drop", "/api/v1/deadletters/drop", LETTERS, "dropped"),
    acts("/api/v1/plugins/{name}/pause", "/api/v1/plugins/persistence/pause", REASON, "changed"),
    acts("/api/v1/plugins/{name}/resume", "/api/v1/plugins/persistence/resume", REASON, "changed"),
    acts("/api/v1/mute", "/api/v1/mute", r#"{"all":true}"#, "changed"),
    acts("/api/v1/unmute", "/api/v1/unmute", r#"{"all":true}"#, "changed"),
    OperationCase {
        method: "post",
        path: "/api/v1/login",
        asked: "/api/v1/login",
        body: "",
        holder: "red",
        word: "",
        is_act: false,
    },
    // The API server itself decides.
    OperationCase {
        method: "post",
        path: "/api/v1/jobs",
        asked: "/api/v1/jobs",
        body: r#"{"template":"train","namespace":"red","parameters":{"size":"small"},"dry_run":true}"#,
        holder: "red",
        word: "",
        is_act: false,
    },
];
const LETTERS: &str = r#"{"plugin":"persistence","reason":"mended","exactly":2}"#;
const REASON: &str = r#"{"reason":"a move"}"#;

struct SentRequest {
    status: StatusCode,
    text: String,
    ended: bool,
    /// The part of the body that has not arrived yet.
    body: Body,
}

impl OperationCase {
    /// Sends the request, and reads the answer for two seconds.
    async fn send(&self, portal: &GuardedPortal, authorization: Option<&str>) -> SentRequest {
        let mut asked = request(&self.method.to_uppercase(), self.asked);
        if let Some(text) = authorization {
            asked = asked.header("authorization", text);
        }
        if !self.body.is_empty() {
            asked = asked.header("content-type", "application/json");
        }
        let response =
            portal.router.clone().oneshot(asked.body(Body::from(self.body)).unwrap()).await.unwrap();
        let status = response.status();
        let mut body = response.into_body();
        let (text, ended) = read(&mut body, Duration::from_secs(2)).await;
        SentRequest { status, text, ended, body }
    }

    async fn as_token(&self, portal: &GuardedPortal, token: &str) -> SentRequest {
        self.send(portal, Some(&format!("Bearer {token}"))).await
    }

    fn shows(&self, sent: &SentRequest) -> bool {
        !self.word.is_empty() && sent.text.contains(self.word)
    }
}

fn changes(portal: &GuardedPortal) -> usize {
    let views = &portal.views;
    views.replays.lock().unwrap().len()
        + views.pauses.lock().unwrap().len()
        + views.muted.lock().unwrap().len()
}

#[test]
fn every_operation_of_the_description_is_among_the_cases() {
    let described: serde_json::Value =
        serde_json::from_str(include_str!("../../../src/api/openapi.json")).unwrap();
    let mut operations = BTreeSet::new();
    for (path, methods) in described["paths"].as_object().unwrap() {
        for method in methods.as_object().unwrap().keys() {
            assert!(operations.insert(format!("{method} {path}")));
        }
    }
    let cases: BTreeSet<_> = CASES.iter().map(|case| format!("{} {}", case.method, case.path)).collect();
    assert_eq!(cases, operations, "a new operation takes a case here");
    assert_eq!(CASES.len(), cases.len());
}

#[tokio::test(start_paused = true)]
async fn without_a_token_that_is_good_nothing_is_answered_and_nothing_is_done() {
    let portal = GuardedPortal::new();
    portal.server.gone.lock().unwrap().insert("redx".into());
    for case in CASES {
        for authorization in
            [None, Some("Bearer garbage"), Some("Bearer redx"), Some("Basic cmVkOng="), Some("Bearer")]
        {
            let sent = case.send(&portal, authorization).await;
            assert_eq!(sent.status, 401, "{} {authorization:?}", case.asked);
            assert!(sent.ended && !case.shows(&sent), "{}: {}", case.asked, sent.text);
        }
    }
    assert_eq!(changes(&portal), 0);
}

#[tokio::test(start_paused = true)]
async fn a_token_that_ends_is_good_for_nothing_within_seconds_and_closes_what_is_open() {
    for case in CASES {
        let portal = GuardedPortal::new();
        let mut sent = case.as_token(&portal, case.holder).await;
        assert!(sent.status == 200 || case.path == "/readyz", "{} {}", case.asked, sent.status);
        assert!(case.word.is_empty() || case.shows(&sent), "{}: {}", case.asked, sent.text);
        let done = changes(&portal);
        portal.server.gone.lock().unwrap().insert(case.holder.into());
        assert!(sent.ended || read(&mut sent.body, MINUTE).await.1, "{} goes on", case.asked);
        tokio::time::advance(KEPT).await;
        assert_eq!(case.as_token(&portal, case.holder).await.status, 401, "{}", case.asked);
        assert_eq!(changes(&portal), done, "{}", case.asked);
    }
}

#[tokio::test(start_paused = true)]
async fn a_right_that_is_withdrawn_counts_within_seconds_and_closes_what_is_open() {
    for case in CASES.iter().filter(|case| !case.word.is_empty()) {
        let portal = GuardedPortal::new();
        let mut sent = case.as_token(&portal, case.holder).await;
        assert!(case.shows(&sent), "{}: {}", case.asked, sent.text);
        let done = changes(&portal);
        portal.server.denied.lock().unwrap().insert(case.holder.into());
        assert!(sent.ended || read(&mut sent.body, MINUTE).await.1, "{} goes on", case.asked);
        tokio::time::advance(KEPT).await;
        let sent = case.as_token(&portal, case.holder).await;
        assert!(!case.shows(&sent), "{}: {}", case.asked, sent.text);
        assert!(!case.is_act || sent.status == 403, "{} {}", case.asked, sent.status);
        assert_eq!(changes(&portal), done, "{}", case.asked);
    }
}

#[tokio::test(start_paused = true)]
async fn another_tenants_token_shows_and_does_nothing_of_the_holders() {
    for case in CASES.iter().filter(|case| !case.word.is_empty()) {
        let portal = GuardedPortal::new();
        for other in ["blue", "guest"] {
            let sent = case.as_token(&portal, other).await;
            assert!(
                !case.shows(&sent) && !sent.text.contains("red-"),
                "{} as {other}: {}",
                case.asked,
                sent.text
            );
            assert!(!case.is_act || sent.status == 403, "{} {}", case.asked, sent.status);
        }
        assert_eq!(changes(&portal), 0, "{}", case.asked);
    }
}
