use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::IntoResponse;
use kubewitness_core::config::{
    AddressRange, Bytes as Size, Duration as Span, HeaderSpec, RESPONSE_MOST, SchemeSpec,
};
use tokio::sync::Mutex as Async;

use super::*;

const NOW: u64 = 1_700_000_000_123;

type SeenRequests = Arc<Async<Vec<(String, HeaderMap, Vec<u8>)>>>;

/// A receiver that answers according to the last word of the path, and keeps the requests.
#[allow(clippy::disallowed_methods)]
async fn receiver() -> (String, SeenRequests) {
    let seen = SeenRequests::default();
    let kept = seen.clone();
    let answer = move |uri: Uri, headers: HeaderMap, body: Bytes| {
        let kept = kept.clone();
        async move {
            kept.lock().await.push((uri.to_string(), headers, body.to_vec()));
            match uri.path().rsplit('/').next() {
                Some("large") => Body::from(vec![0; RESPONSE_MOST as usize + 1]).into_response(),
                Some("moved") => (StatusCode::FOUND, [("location", "http://127.0.0.1:1/")]).into_response(),
                Some("later") => {
                    let headers = [("retry-after", "7"), ("set-cookie", "a=b")];
                    (StatusCode::TOO_MANY_REQUESTS, headers, "slow").into_response()
                }
                // The connection is not used again, so the next request resolves the name again.
                Some("close") => ([("connection", "close")], "closed").into_response(),
                Some("never") => std::future::pending().await,
                _ => "fine".into_response(),
            }
        }
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, Router::new().fallback(answer)).await.unwrap() });
    (format!("http://{address}/base"), seen)
}

fn spec(url: &str) -> DestinationSpec {
    DestinationSpec { timeout: Span(Duration::from_secs(5)), ..DestinationSpec::of("hook", url) }
}

fn post(path: &str, headers: &[(&str, &str)]) -> HttpRequest {
    let headers = headers.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
    HttpRequest { method: "POST".into(), path: path.into(), headers, body: b"{}".to_vec() }
}

async fn send(
    destination: &HttpDestination,
    request: HttpRequest,
    id: Option<&StateId>,
) -> Result<HttpResponse, GrantError> {
    let prepared = destination.prepare_request(request, id, NOW).await?;
    destination.take()?;
    destination.send(prepared).await.map_err(|unanswered| unanswered.error)
}

#[tokio::test]
async fn a_request_goes_below_the_address_with_its_secret_and_the_id() {
    let (url, seen) = receiver().await;
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    std::fs::write(&token, "Bearer hush\n").unwrap();
    let value_from = SecretRef::File(token.to_str().unwrap().into());
    let headers = vec![HeaderSpec { name: "Authorization".into(), value_from }];
    let spec = DestinationSpec { headers, allow_plain: true, ..spec(&url) };
    let destination = HttpDestination::open(&spec).await.unwrap();
    let id = StateId::parse("jobs/0/batch/Job/u/1");
    let typed = [("Content-Type", "application/json")];
    let sent = send(&destination, post("/jobs?a=b", &typed), Some(&id)).await.unwrap();
    assert_eq!((sent.status, sent.body.as_slice()), (200, b"fine".as_slice()));
    let own = [("Idempotency-Key", "own")];
    std::fs::write(&token, "Bearer rotated\n").unwrap();
    send(&destination, post("", &own), Some(&id)).await.unwrap();
    let seen = seen.lock().await;
    assert_eq!(seen[0].0, "/base/jobs?a=b");
    assert_eq!(seen[0].1["authorization"], "Bearer hush");
    assert_eq!(seen[0].1["idempotency-key"], "jobs/0/batch/Job/u/1");
    assert_eq!(seen[0].1["content-type"], "application/json");
    assert_eq!(seen[0].2, b"{}");
    assert_eq!(seen[1].0, "/base");
    assert_eq!(seen[1].1["authorization"], "Bearer rotated");
    assert_eq!(seen[1].1["idempotency-key"], "own");
}

#[tokio::test]
async fn redirects_are_not_followed_and_answers_are_bounded() {
    let (url, seen) = receiver().await;
    let destination = HttpDestination::open(&spec(&url)).await.unwrap();
    let moved = send(&destination, post("moved", &[]), None).await.unwrap();
    assert_eq!((moved.status, moved.headers.iter().any(|(name, _)| name == "location")), (302, false));
    let later = send(&destination, post("later", &[]), None).await.unwrap();
    assert!(later.headers.contains(&("retry-after".into(), "7".into())));
    assert!(!later.headers.iter().any(|(name, _)| name == "set-cookie"));
    assert!(matches!(send(&destination, post("large", &[]), None).await, Err(GrantError::TooLarge(_))));
    assert_eq!(seen.lock().await.len(), 3);
}

#[tokio::test]
async fn errors_say_what_to_do_and_not_where_it_was() {
    let (url, _) = receiver().await;
    let short = Span(Duration::from_millis(50));
    let destination = HttpDestination::open(&DestinationSpec { timeout: short, ..spec(&url) }).await.unwrap();
    let error = send(&destination, post("never", &[]), None).await.unwrap_err();
    assert!(matches!(error, GrantError::Timeout(_)), "{error}");
    // The port is free again, so nothing listens there.
    let free = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let destination = HttpDestination::open(&spec(&format!("http://{free}/hush"))).await.unwrap();
    let error = send(&destination, post("", &[]), None).await.unwrap_err();
    assert!(matches!(error, GrantError::Unavailable(_)), "{error}");
    assert!(!error.to_string().contains("127.0.0.1") && !error.to_string().contains("hush"), "{error}");
}

#[tokio::test]
async fn a_destinations_rate_is_kept() {
    let (url, seen) = receiver().await;
    let destination = HttpDestination::open(&DestinationSpec { rate: Some(1), ..spec(&url) }).await.unwrap();
    send(&destination, post("", &[]), None).await.unwrap();
    let limited = send(&destination, post("", &[]), None).await;
    assert!(matches!(limited, Err(GrantError::RateLimited { after_ms: 1..=1001 })), "{limited:?}");
    assert_eq!(seen.lock().await.len(), 1);
}

#[tokio::test]
async fn a_header_that_nobody_named_is_refused_beside_the_operators_secret() {
    let (url, seen) = receiver().await;
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    std::fs::write(&token, "hush").unwrap();
    let value_from = SecretRef::File(token.to_str().unwrap().into());
    let headers = vec![HeaderSpec { name: "X-Token".into(), value_from }];
    let plugin_headers = vec!["x-team".into(), "x-token".into()];
    let spec = DestinationSpec { headers, plugin_headers, allow_plain: true, ..spec(&url) };
    let destination = HttpDestination::open(&spec).await.unwrap();
    send(&destination, post("", &[("X-Team", "ai")]), None).await.unwrap();
    let sent = seen.lock().await[0].1.clone();
    assert_eq!((sent["x-team"].as_bytes(), sent["x-token"].as_bytes()), (&b"ai"[..], &b"hush"[..]));
    for name in ["x-token", "X_Token", "x_team", "X-Scope-OrgID", "X-Vault-Token", "Authorization"] {
        let error = send(&destination, post("", &[(name, "x")]), None).await.unwrap_err();
        assert!(
            matches!(&error, GrantError::Denied(why) if why.contains("`pluginHeaders`")),
            "{name}: {error}"
        );
    }
    assert_eq!(seen.lock().await.len(), 1);
}

#[tokio::test]
async fn a_destination_with_a_password_in_its_address_is_a_fault() {
    let (field, _) = HttpDestination::open(&spec("https://me:hush@hooks.example/")).await.err().unwrap();
    assert_eq!(field, "url");
    let missing =
        HeaderSpec { name: "a".into(), value_from: SecretRef::Env("KUBEWITNESS_TEST_NO_SUCH".into()) };
    let spec = DestinationSpec { headers: vec![missing], ..spec("https://hooks.example/") };
    assert_eq!(HttpDestination::open(&spec).await.err().unwrap().0, "headers[0].valueFrom");
}

#[tokio::test]
async fn a_destination_takes_the_methods_paths_and_sizes_that_it_names() {
    let (url, seen) = receiver().await;
    let spec = DestinationSpec {
        methods: vec![HttpMethod::Post],
        paths: vec!["/jobs".into()],
        request_size: Size(4),
        response_size: Size(4),
        ..spec(&url)
    };
    let destination = HttpDestination::open(&spec).await.unwrap();
    assert_eq!(send(&destination, post("/jobs/7", &[]), None).await.unwrap().body, b"fine");
    let get = HttpRequest { method: "GET".into(), ..post("/jobs", &[]) };
    let error = send(&destination, get, None).await.unwrap_err().to_string();
    assert_eq!(error, "denied: the destination allows POST, and not GET");
    for path in ["/pods", "/jobsx", "/jobs/../pods", "/pods?/jobs", "/jobs/..;/pods", "/jobs/%252e%252e/pods"]
    {
        let error = send(&destination, post(path, &[]), None).await.unwrap_err();
        assert!(matches!(error, GrantError::Denied(_) | GrantError::Invalid(_)), "{path}: {error}");
    }
    let large = HttpRequest { body: vec![0; 5], ..post("/jobs", &[]) };
    assert!(matches!(send(&destination, large, None).await, Err(GrantError::TooLarge(_))));
    let error = send(&destination, post("/jobs/close", &[]), None).await.unwrap_err();
    assert_eq!(error, GrantError::TooLarge("the response has more than 4 bytes".into()));
    assert_eq!(seen.lock().await.len(), 2);
    let small = HttpRequest { body: vec![], ..post("/jobs/7?of=10%25", &[]) };
    assert!(send(&destination, small, None).await.is_ok(), "a query is no path");
}

/// A destination whose name resolves to these addresses in turn, and then to the last one.
async fn named(url: &str, addresses: &[&str], answers: &'static [&'static str]) -> HttpDestination {
    let port = Url::parse(url).unwrap().port().unwrap();
    let asked = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let lookup = move |_: String| {
        let turn = asked.fetch_add(1, std::sync::atomic::Ordering::SeqCst).min(answers.len() - 1);
        let answer = answers[turn].split(' ').map(|address| address.parse().unwrap()).collect();
        Box::pin(async move { Ok(answer) }) as futures::future::BoxFuture<'static, _>
    };
    let addresses: Vec<AddressRange> = addresses.iter().map(|range| range.parse().unwrap()).collect();
    let spec = DestinationSpec { addresses, ..spec(&format!("http://hooks.example.com:{port}/base")) };
    let base = Url::parse(&spec.url).unwrap();
    HttpDestination::with_guard(
        &spec,
        base,
        AddressGuard::with_lookup("hook", spec.reachable_addresses(&spec.url), Arc::new(lookup)),
    )
    .await
    .unwrap()
}

#[tokio::test]
async fn a_name_that_resolves_elsewhere_later_is_refused_when_the_client_connects() {
    let (url, seen) = receiver().await;
    let destination = named(&url, &["127.0.0.1"], &["127.0.0.1", "127.0.0.2", "169.254.169.254"]).await;
    assert_eq!(send(&destination, post("close", &[]), None).await.unwrap().body, b"closed");
    for kind in ["a loopback address", "the address of a cloud's metadata"] {
        let error = send(&destination, post("close", &[]), None).await.unwrap_err();
        let expected = format!(
            "unavailable: the destination's name resolves to {kind}, which the destination's `addresses` do not allow"
        );
        assert_eq!(error.to_string(), expected);
    }
    assert_eq!(seen.lock().await.len(), 1);
}

#[tokio::test]
async fn a_public_name_that_resolves_inward_is_refused_in_every_spelling() {
    let (url, seen) = receiver().await;
    for answer in [&["127.0.0.1"], &["::ffff:127.0.0.1"], &["::1"], &["10.0.0.1"], &["0.0.0.0"], &["fe80::1"]]
    {
        let destination = named(&url, &[], answer).await;
        let error = send(&destination, post("", &[]), None).await.unwrap_err().to_string();
        assert!(error.contains("the destination's name resolves to"), "{answer:?}: {error}");
    }
    assert_eq!(seen.lock().await.len(), 0);
}

#[tokio::test]
async fn of_several_addresses_the_host_connects_to_those_that_are_allowed() {
    let (url, seen) = receiver().await;
    let destination = named(&url, &["127.0.0.1/32"], &["10.0.0.1 127.0.0.1"]).await;
    send(&destination, post("", &[]), None).await.unwrap();
    assert_eq!(seen.lock().await.len(), 1);
}

fn secret(folder: &tempfile::TempDir, name: &str, value: &str) -> SecretRef {
    let path = folder.path().join(name);
    std::fs::write(&path, value).unwrap();
    SecretRef::File(path.to_str().unwrap().into())
}

fn scheme(text: &str, secret: &SecretRef) -> Option<SchemeSpec> {
    let SecretRef::File(path) = secret else { panic!("{secret:?}") };
    Some(
        serde_json::from_str(&text.replace("FROM", &format!(r#""secretFrom": {{"file": "{path}"}}"#)))
            .unwrap(),
    )
}

#[tokio::test]
async fn a_request_is_signed_by_its_scheme_with_the_secret_of_the_moment() {
    let (url, seen) = receiver().await;
    let folder = tempfile::tempdir().unwrap();
    let from = secret(&folder, "secret", "hush");
    let url_from = Some(secret(&folder, "url", &format!("{url}?access_token=abc\n")));
    let open = async |text: &str, from: &SecretRef| {
        let url_from = url_from.clone();
        let spec = DestinationSpec { url_from, allow_plain: true, scheme: scheme(text, from), ..spec("") };
        HttpDestination::open(&spec).await.unwrap()
    };
    send(&open(r#"{"feishu": {FROM}}"#, &from).await, post("", &[]), None).await.unwrap();
    send(&open(r#"{"dingtalk": {FROM}}"#, &from).await, post("", &[]), None).await.unwrap();
    let hmac = open(r#"{"hmac": {FROM, "header": "x-sign"}}"#, &from).await;
    send(&hmac, post("", &[]), None).await.unwrap();
    std::fs::write(folder.path().join("secret"), "rotated").unwrap();
    send(&hmac, post("", &[]), None).await.unwrap();
    let forged = send(&hmac, post("", &[("X-Sign", "t=1,v1=forged")]), None).await;
    assert!(matches!(forged, Err(GrantError::Denied(_))), "{forged:?}");

    let seen = seen.lock().await;
    let body: serde_json::Value = serde_json::from_slice(&seen[0].2).unwrap();
    assert_eq!(
        (body["timestamp"].as_str(), seen[0].0.as_str()),
        (Some("1700000000"), "/base?access_token=abc")
    );
    assert!(body["sign"].as_str().is_some_and(|sign| sign.len() == 44), "{body}");
    assert!(seen[1].0.starts_with("/base?access_token=abc&timestamp=1700000000123&sign="), "{}", seen[1].0);
    assert_eq!(seen[1].2, b"{}");
    let signatures = [2, 3].map(|place| seen[place].1["x-sign"].to_str().unwrap());
    assert!(signatures.iter().all(|signature| signature.starts_with("t=1700000000,v1=")), "{signatures:?}");
    assert_ne!(signatures[0], signatures[1], "the secret was rotated");
}

#[tokio::test]
async fn an_address_that_is_a_secret_is_told_nowhere_and_leads_where_it_was_judged_to_lead() {
    let (url, seen) = receiver().await;
    let folder = tempfile::tempdir().unwrap();
    let from = |value: &str| DestinationSpec {
        url_from: Some(secret(&folder, "url", value)),
        allow_plain: true,
        ..spec("")
    };
    for (wrong, expected) in [
        ("hush", "is not an address"),
        ("ftp://hush.example.com", "is not an http"),
        ("https://joe:hush@example.com", "holds a name or password"),
        ("http://169.254.169.254/hush", "leads to an address that `addresses` does not name"),
    ] {
        let (field, message) = HttpDestination::open(&from(wrong)).await.err().unwrap();
        assert_eq!(field, "urlFrom");
        assert!(message.contains(expected) && !message.contains("hush"), "{message}");
    }
    let plain = DestinationSpec { allow_plain: false, ..from("http://example.com/hush") };
    assert!(HttpDestination::open(&plain).await.err().unwrap().1.contains("`allowPlain: true`"));

    let destination = HttpDestination::open(&from(&format!("{url}/one"))).await.unwrap();
    send(&destination, post("", &[]), None).await.unwrap();
    from(&format!("{url}/two"));
    send(&destination, post("", &[]), None).await.unwrap();
    from("http://127.0.0.1:1/base/hush");
    let moved = send(&destination, post("", &[]), None).await.unwrap_err().to_string();
    assert!(moved.contains("changed to another server") && !moved.contains("hush"), "{moved}");
    let paths: Vec<_> = seen.lock().await.iter().map(|(path, ..)| path.clone()).collect();
    assert_eq!(paths, ["/base/one", "/base/two"]);
}

#[tokio::test(start_paused = true)]
async fn a_scheme_has_the_rate_of_its_service_unless_the_operator_names_one() {
    for (text, rate, at_once) in [
        (r#"{"slack": {}}"#, None, 1),
        (r#"{"feishu": {}}"#, None, 2),
        (r#"{"wecom": {}}"#, None, 10),
        (r#"{"dingtalk": {}}"#, None, 10),
        (r#"{"wecom": {}}"#, Some(3), 3),
    ] {
        let scheme = Some(serde_json::from_str(text).unwrap());
        let spec = DestinationSpec { scheme, rate, ..spec("http://127.0.0.1:1") };
        let destination = HttpDestination::open(&spec).await.unwrap();
        let taken = (0..50).take_while(|_| destination.take().is_ok()).count();
        assert_eq!(taken, at_once, "{text}");
        let Err(GrantError::RateLimited { after_ms }) = destination.take() else { panic!("{text}") };
        tokio::time::advance(Duration::from_millis(after_ms)).await;
        destination.take().unwrap();
    }
}

#[tokio::test]
async fn the_headers_of_an_answer_have_a_bound_and_one_that_is_too_long_is_left_out_alone() {
    let long = "x".repeat(SEEN_BYTES);
    let mut answer = axum::http::Response::builder().header("etag", &long).header("retry-after", "7");
    for number in 0..HEADERS {
        answer = answer.header(format!("x-ratelimit-{number}"), &long[..1000]);
    }
    let received = receive_response(answer.body("").unwrap().into(), 10).await.unwrap();
    let bytes: usize = received.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
    assert!(bytes <= SEEN_BYTES && received.headers.len() >= 8, "{bytes} bytes");
    assert!(received.headers.contains(&("retry-after".into(), "7".into())));
    assert!(received.headers.iter().all(|(name, _)| name != "etag"));
}
