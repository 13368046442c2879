//! The portal as a client sees it: every route, every refusal, the live stream.
//!
//! Requests go through the real router to made-up views (`fake`) that show every condition at once, which a
//! real controller would take long to reach. So these tests check answers, rights and pages. End-to-end tests
//! check that the real views show the truth.

#![allow(clippy::unwrap_used)]

mod access;
mod api;
mod connections;
mod fake;
mod guard;
mod held_bytes;
mod metrics;
mod pages;
mod parts;
mod stream;
mod submitting;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Request, StatusCode};
use fake::FakeViews;
use http_body_util::BodyExt;
use kubewitness_portal::PortalOptions;
use serde_json::Value;
use tower::ServiceExt;

pub struct PortalAnswer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub text: String,
}

impl PortalAnswer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    /// The message and the hint of a problem.
    pub fn problem(&self) -> (String, String) {
        let json = self.json();
        let text = |name: &str| json["error"][name].as_str().unwrap().to_owned();
        (text("message"), text("hint"))
    }
}

pub fn options() -> PortalOptions {
    PortalOptions { request_timeout: Duration::from_secs(5), ..PortalOptions::default() }
}

pub fn portal(fake: FakeViews) -> Router {
    kubewitness_portal::router(Arc::new(fake), &options())
}

pub async fn ask(router: &Router, request: Request<Body>) -> PortalAnswer {
    let response = router.clone().oneshot(request).await.unwrap();
    let (status, headers) = (response.status(), response.headers().clone());
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    PortalAnswer { status, headers, text: String::from_utf8(bytes.to_vec()).unwrap() }
}

pub fn request(method: &str, path: &str) -> axum::http::request::Builder {
    Request::builder().method(method).uri(path).header("host", "localhost:8787")
}

pub async fn get(router: &Router, path: &str) -> PortalAnswer {
    ask(router, request("GET", path).body(Body::empty()).unwrap()).await
}
