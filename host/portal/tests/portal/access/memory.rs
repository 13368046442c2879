//! Tests of the memory for answers with many rows that one person requests at once.

use std::time::Duration;

use axum::body::Body;
use http_body_util::BodyExt;
use kubewitness_portal::PortalOptions;
use tower::ServiceExt;

use super::GuardedPortal;
use super::tenants::{TenantPortal, TenantServer};
use crate::held_bytes::HeldBytes;
use crate::request;

/// As many concurrent requests as one person may have.
const AT_ONCE: usize = 16;
const STATES: u64 = 10_000;

async fn open(portal: &GuardedPortal, path: &str) -> Body {
    let request = request("GET", path).header("authorization", "Bearer red").body(Body::empty()).unwrap();
    let response = portal.router.clone().oneshot(request).await.unwrap();
    assert_eq!(response.status(), 200);
    response.into_body()
}

/// The size of the next piece; 0 at the end.
async fn next(body: &mut Body) -> usize {
    match body.frame().await {
        Some(frame) => frame.unwrap().into_data().unwrap().len(),
        None => 0,
    }
}

#[tokio::test]
async fn sixteen_long_timelines_of_one_person_hold_together_no_more_than_two() {
    let views = TenantPortal { copies: true, ..TenantPortal::default() };
    views.push_many("red", STATES, &"long ".repeat(200));
    // A slow machine must not end the requests.
    let patient = |options| PortalOptions { request_timeout: Duration::from_secs(600), ..options };
    let portal = GuardedPortal::of(views, TenantServer::default(), patient);
    let path = "/api/v1/timeline?uid=uid-red&limit=10000";
    let one = portal.as_token("red", path).await.text;
    let states = one.matches("long long").count() / 100;
    assert!(one.ends_with('}') && states as u64 >= STATES, "{states} states");

    let held = HeldBytes::begin();
    let mut bodies = futures::future::join_all((0..AT_ONCE).map(|_| open(&portal, path))).await;
    let waiting = held.now();
    assert!(waiting < one.len() / 4, "{waiting} bytes wait for clients that read nothing");
    // Each client takes some blocks.
    for _ in 0..64 {
        for body in &mut bodies {
            assert!(next(body).await > 0);
        }
    }
    let (sent, most) = (held.now(), held.most());
    assert!(sent < one.len(), "{sent} bytes are held while {} are sent", one.len());
    assert!(most < 2 * one.len(), "{most} bytes at most, where one answer has {}", one.len());

    let mut last = open(&portal, path).await;
    let mut text = Vec::new();
    while let Some(frame) = last.frame().await {
        text.extend(frame.unwrap().into_data().unwrap());
    }
    assert!(text == one.as_bytes(), "what is written as it is read is the same answer");
}

/// The most bytes that these requests hold, until each answer has begun.
async fn most_held(portal: &GuardedPortal, path: &str, requests: usize) -> usize {
    let held = HeldBytes::begin();
    let bodies = futures::future::join_all((0..requests).map(|_| open(portal, path))).await;
    let most = held.most();
    drop(bodies);
    most
}

#[tokio::test]
async fn sixteen_stories_with_hidden_parts_are_read_one_at_a_time() {
    let views = TenantPortal { copies: true, ..TenantPortal::default() };
    views.push_many("red", STATES / 2, &"long ".repeat(100));
    // The person may not see this Pod, so more rows have to be read.
    views.push_owned("Pod", "blue", "red");
    let patient = |options| PortalOptions { request_timeout: Duration::from_secs(600), ..options };
    let portal = GuardedPortal::of(views, TenantServer::default(), patient);
    let path = "/api/v1/timeline?uid=uid-red&limit=5000";
    let text = portal.as_token("red", path).await.text;
    assert!(text.contains("long long") && !text.contains("blue"));

    let one = most_held(&portal, path, 1).await;
    let all = most_held(&portal, path, AT_ONCE).await;
    assert!(all < 2 * one, "{all} bytes at most, where one story takes {one}");
}
