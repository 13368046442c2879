use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use kubewitness_portal::{PortalError, PortalOptions, router, serve_health, serve_portal};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

use crate::fake::FakeViews;
use crate::{ask, get, options, portal, request};

#[tokio::test]
async fn on_loopback_only_local_names_are_answered() {
    let portal = portal(FakeViews::default());
    let status = async |host: &str| {
        ask(&portal, Request::get("/healthz").header("host", host).body(Body::empty()).unwrap())
            .await
            .status
            .as_u16()
    };
    for host in
        ["localhost", "localhost:8787", "LOCALHOST:1", "127.0.0.1", "127.0.0.1:9", "[::1]", "[::1]:8787"]
    {
        assert_eq!(status(host).await, 200, "{host}");
    }
    for host in [
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example:8787",
        "10.0.0.1",
        "evil@localhost",
        "",
        "[::2]",
    ] {
        assert_eq!(status(host).await, 421, "{host}");
    }
    assert_eq!(ask(&portal, Request::get("/healthz").body(Body::empty()).unwrap()).await.status, 421);
    let absolute = Request::get("http://evil.example/healthz").header("host", "localhost");
    assert_eq!(ask(&portal, absolute.body(Body::empty()).unwrap()).await.status, 421);
    for two in [["localhost", "evil.example"], ["evil.example", "localhost"], ["localhost", "localhost"]] {
        let request =
            two.iter().fold(Request::get("/healthz"), |request, host| request.header("host", *host));
        assert_eq!(ask(&portal, request.body(Body::empty()).unwrap()).await.status, 400, "{two:?}");
    }
}

#[tokio::test]
async fn elsewhere_any_name_is_answered() {
    let options = PortalOptions { listen: ([0, 0, 0, 0], 80).into(), allow_remote: true, ..options() };
    let portal = router(Arc::new(FakeViews::default()), &options);
    let request = Request::get("/healthz").header("host", "portal.example").body(Body::empty()).unwrap();
    assert_eq!(ask(&portal, request).await.status, 200);
}

#[tokio::test]
async fn changes_are_refused_to_pages_of_other_sites() {
    let portal = portal(FakeViews::default());
    let status = async |path: &str, headers: &[(&str, &str)]| {
        let json = path.starts_with("/api");
        let mut request = request("POST", path);
        let kind = if json { "application/json" } else { "application/x-www-form-urlencoded" };
        request = request.header("content-type", kind);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let body = if json {
            r#"{"plugin":"notification","reason":"x","seqs":[7]}"#
        } else {
            "plugin=notification&reason=x&seq=7"
        };
        ask(&portal, request.body(Body::from(body)).unwrap()).await.status.as_u16()
    };
    let (api, form) = ("/api/v1/deadletters/replay", "/deadletters/replay");
    let own = [("sec-fetch-site", "same-origin"), ("origin", "http://localhost:8787")];
    assert_eq!((status(api, &own).await, status(form, &own).await), (200, 303));
    assert_eq!(status(form, &own[1..]).await, 303, "an old browser sends the origin alone");
    assert_eq!(status(api, &[]).await, 200, "a script says nothing");
    assert_eq!(status(form, &[]).await, 403, "a form comes from a browser");
    for foreign in [
        [("sec-fetch-site", "cross-site"), ("origin", "http://localhost:8787")],
        [("sec-fetch-site", "same-site"), ("origin", "http://localhost:8787")],
        [("sec-fetch-site", "none"), ("origin", "http://localhost:8787")],
        [("sec-fetch-site", "same-origin"), ("origin", "http://localhost:9999")],
        [("sec-fetch-site", "same-origin"), ("origin", "http://evil.example")],
        [("sec-fetch-site", "same-origin"), ("origin", "null")],
    ] {
        assert_eq!((status(api, &foreign).await, status(form, &foreign).await), (403, 403), "{foreign:?}");
    }
}

#[tokio::test]
async fn every_answer_carries_the_security_headers() {
    let portal = portal(FakeViews::default());
    for path in ["/", "/plugins", "/api/v1/status", "/nowhere", "/api/v1/nowhere", "/assets/portal.css"] {
        let answer = get(&portal, path).await;
        let policy = answer.header("content-security-policy");
        assert!(policy.contains("default-src 'none'") && !policy.contains("unsafe"), "{path}: {policy}");
        assert_eq!(answer.header("x-content-type-options"), "nosniff", "{path}");
        assert_eq!(answer.header("x-frame-options"), "DENY", "{path}");
        let cache = if path == "/api/v1/status" { "private, no-cache" } else { "no-store" };
        assert_eq!(answer.header("cache-control"), cache, "{path}");
    }
    let foreign = ask(&portal, Request::get("/").header("host", "evil").body(Body::empty()).unwrap()).await;
    assert!(!foreign.header("content-security-policy").is_empty());
}

#[tokio::test]
async fn a_request_that_takes_too_long_is_given_up() {
    let options = PortalOptions { request_timeout: Duration::from_secs(1), ..options() };
    let portal = router(Arc::new(FakeViews { stuck: true, ..FakeViews::default() }), &options);
    let answer = get(&portal, "/api/v1/status").await;
    assert_eq!(answer.status, 503);
    assert!(answer.problem().0.contains("within 1 s"));
}

async fn listener(address: &str) -> TcpListener {
    TcpListener::bind((address, 0)).await.unwrap()
}

#[tokio::test]
async fn an_address_that_others_can_reach_is_refused() {
    let listener = listener("0.0.0.0").await;
    let result = serve_portal(
        listener,
        Arc::new(FakeViews::default()),
        PortalOptions::default(),
        CancellationToken::new(),
    )
    .await;
    assert!(matches!(result, Err(PortalError::Remote(_))));
}

#[tokio::test]
async fn serving_ends_with_its_token_and_takes_the_streams_along() {
    let listener = listener("127.0.0.1").await;
    let (address, stop) = (listener.local_addr().unwrap(), CancellationToken::new());
    let serving =
        serve_portal(listener, Arc::new(FakeViews::default()), PortalOptions::default(), stop.clone());
    let client = async {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET /api/v1/events?after=0 HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
        let mut seen = String::new();
        while !seen.contains("id: 18") {
            let mut bytes = [0; 4096];
            let count = stream.read(&mut bytes).await.unwrap();
            assert!(count > 0, "{seen}");
            seen.push_str(&String::from_utf8_lossy(&bytes[..count]));
        }
        assert!(seen.starts_with("HTTP/1.1 200") && seen.contains("text/event-stream"), "{seen}");
        stop.cancel();
    };
    let both = async { tokio::join!(serving, client).0 };
    tokio::time::timeout(Duration::from_secs(20), both).await.expect("it ends").unwrap();
}

#[tokio::test]
async fn the_probes_alone_may_be_reached_by_others() {
    let listener = listener("0.0.0.0").await;
    let (port, stop) = (listener.local_addr().unwrap().port(), CancellationToken::new());
    let serving =
        serve_health(listener, Arc::new(FakeViews::default()), PortalOptions::default(), stop.clone());
    let ask = async |path: &str| {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: 10.1.2.3:8788\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        text
    };
    let client = async {
        assert!(ask("/readyz").await.starts_with("HTTP/1.1 200"));
        assert!(ask("/metrics").await.contains("kubewitness_ready 1"));
        for path in ["/", "/api/v1/objects", "/deadletters"] {
            assert!(ask(path).await.starts_with("HTTP/1.1 404"), "{path}");
        }
        stop.cancel();
    };
    let both = async { tokio::join!(serving, client).0 };
    tokio::time::timeout(Duration::from_secs(20), both).await.expect("it ends");
}
