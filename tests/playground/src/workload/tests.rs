//! Tests against a server with just enough of the API's rules to catch a wrong write.

use std::collections::HashMap;
use std::sync::Mutex;

use axum::extract::{Request, State};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use axum::{Json, Router};
use serde_json::{Value, json};

use super::*;

#[derive(Default)]
struct WorkloadServer {
    objects: Mutex<HashMap<String, Value>>,
    version: AtomicU64,
    requests: AtomicU64,
    updates: AtomicU64,
    /// One in this many requests is refused with 429, and one in as many updates meets a conflict; 0: none.
    faults: u64,
    /// Whether creating Jobs is forbidden.
    forbids: bool,
    /// The refusals, by their code.
    refused: Mutex<HashMap<StatusCode, u64>>,
}

impl WorkloadServer {
    fn refuse(&self, code: StatusCode, reason: &str) -> Response {
        *self.refused.lock().expect("not poisoned").entry(code).or_default() += 1;
        status(code, reason)
    }

    fn is_turn(&self, counter: &AtomicU64) -> bool {
        let number = counter.fetch_add(1, Ordering::Relaxed);
        self.faults > 0 && number % self.faults == 3
    }
}

type SharedServer = Arc<WorkloadServer>;

fn status(code: StatusCode, reason: &str) -> Response {
    (code, Json(json!({"kind": "Status", "reason": reason, "message": reason}))).into_response()
}

async fn handle(State(server): State<SharedServer>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, 1 << 20).await.expect("a body");
    let mut body: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
    if server.is_turn(&server.requests) {
        return server.refuse(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests");
    }
    if server.forbids && parts.uri.path().ends_with("/jobs") {
        return server.refuse(StatusCode::FORBIDDEN, "Forbidden");
    }
    let mut objects = server.objects.lock().expect("not poisoned");
    let path = parts.uri.path().trim_end_matches("/status").to_owned();
    let version = server.version.fetch_add(1, Ordering::Relaxed).to_string();
    if let Some(pod) = path.strip_suffix("/binding") {
        let Some(bound) = objects.get_mut(pod) else { return status(StatusCode::NOT_FOUND, "NotFound") };
        bound["spec"]["nodeName"] = body["target"]["name"].clone();
        bound["metadata"]["resourceVersion"] = json!(version);
        return (StatusCode::CREATED, Json(json!({"kind": "Status", "status": "Success"}))).into_response();
    }
    if parts.method == Method::POST {
        let key = format!("{path}/{}", body["metadata"]["name"].as_str().expect("a name"));
        if objects.contains_key(&key) {
            return server.refuse(StatusCode::CONFLICT, "AlreadyExists");
        }
        body["metadata"]["uid"] = json!(format!("uid-{version}"));
        body["metadata"]["resourceVersion"] = json!(version);
        objects.insert(key, body.clone());
        return (StatusCode::CREATED, Json(body)).into_response();
    }
    let Some(there) = objects.get_mut(&path) else { return status(StatusCode::NOT_FOUND, "NotFound") };
    match parts.method {
        Method::PUT if body["metadata"]["resourceVersion"] != there["metadata"]["resourceVersion"] => {
            return server.refuse(StatusCode::CONFLICT, "Conflict");
        }
        Method::PUT if server.is_turn(&server.updates) => {
            there["metadata"]["resourceVersion"] = json!(version);
            return server.refuse(StatusCode::CONFLICT, "Conflict");
        }
        Method::PUT => *there = body,
        Method::PATCH => there["metadata"]["finalizers"] = Value::Null,
        Method::DELETE => there["metadata"]["deletionTimestamp"] = json!("now"),
        _ => return Json(there.clone()).into_response(),
    }
    there["metadata"]["resourceVersion"] = json!(version);
    let answer = there.clone();
    let finalizers = answer["metadata"]["finalizers"].as_array().map_or(0, Vec::len);
    if answer["metadata"]["deletionTimestamp"].is_string() && finalizers == 0 {
        objects.remove(&path);
    }
    Json(answer).into_response()
}

/// The address of a server that runs until the test ends.
async fn serve(faults: u64) -> (String, SharedServer) {
    serve_with(WorkloadServer { faults, ..WorkloadServer::default() }).await
}

#[allow(clippy::disallowed_methods)]
async fn serve_with(server: WorkloadServer) -> (String, SharedServer) {
    let server = Arc::new(server);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let router = Router::new().fallback(any(handle)).with_state(server.clone());
    tokio::spawn(async move { axum::serve(listener, router).await });
    (url, server)
}

fn fast(url: &str, jobs: u64) -> WorkloadOptions {
    WorkloadOptions {
        url: url.to_owned(),
        jobs,
        rate: f64::INFINITY,
        keep_finished: Duration::from_millis(20),
        active: Some(8),
        ..WorkloadOptions::default()
    }
}

#[tokio::test]
async fn every_job_is_submitted_ends_and_is_cleaned_up() {
    let (url, server) = serve(0).await;
    let progress = Arc::new(WorkloadProgress::default());
    let report = run(fast(&url, 25), progress.clone(), CancellationToken::new()).await.expect("runs");
    assert!(report.complete);
    assert_eq!((report.submitted, report.deleted, report.errors), (25, 25, 0));
    assert!(report.finished > 5 && report.finished <= 25, "{report:?}");
    assert_eq!(progress.running.load(Ordering::Relaxed), 0);
    let left: Vec<_> = server.objects.lock().expect("not poisoned").keys().cloned().collect();
    assert!(
        left.iter().all(|key| key.starts_with("/api/v1/namespaces/team-") && !key.contains("/pods/")),
        "{left:?}"
    );
}

#[tokio::test]
async fn events_are_written_beside_and_forgotten_with_their_job() {
    let (url, server) = serve(0).await;
    let plain = run(fast(&url, 25), Arc::default(), CancellationToken::new()).await.expect("runs");
    let options = WorkloadOptions { events: true, ..fast(&url, 25) };
    let report = run(options, Arc::default(), CancellationToken::new()).await.expect("runs");
    assert!(report.complete);
    assert!(report.writes > plain.writes * 5 / 4, "{report:?} {plain:?}");
    let left = server.objects.lock().expect("not poisoned");
    assert!(!left.keys().any(|key| key.contains("/events/")), "{:?}", left.keys());
}

#[tokio::test]
async fn refusals_that_pass_and_conflicts_are_retried_and_counted() {
    let (url, server) = serve(20).await;
    let report = run(fast(&url, 6), Arc::default(), CancellationToken::new()).await.expect("runs");
    assert_eq!((report.complete, report.deleted), (true, 6));
    let refused = server.refused.lock().expect("not poisoned").clone();
    assert_eq!(report.errors, refused.values().sum::<u64>(), "{refused:?}");
    for code in [StatusCode::TOO_MANY_REQUESTS, StatusCode::CONFLICT] {
        assert!(refused.contains_key(&code), "{refused:?}");
    }
}

#[tokio::test]
async fn it_stops_when_it_is_told_to_and_says_so() {
    let (url, _server) = serve(0).await;
    let stop = CancellationToken::new();
    let progress = Arc::new(WorkloadProgress::default());
    let working = run(WorkloadOptions { rate: 2_000.0, ..fast(&url, 0) }, progress.clone(), stop.clone());
    let stopping = async {
        while progress.writes.load(Ordering::Relaxed) < 50 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        stop.cancel();
    };
    let (report, ()) = tokio::join!(working, stopping);
    let report = report.expect("runs");
    assert!(!report.complete && report.writes >= 50);
}

#[tokio::test]
async fn a_refusal_for_good_ends_it_with_what_was_refused_and_why() {
    let (url, _server) = serve_with(WorkloadServer { forbids: true, ..WorkloadServer::default() }).await;
    let error = run(fast(&url, 1), Arc::default(), CancellationToken::new()).await.expect_err("refused");
    let text = error.to_string();
    assert!(text.contains("/jobs?fieldManager=kubectl-create was refused with 403: Forbidden"), "{text}");
}

#[tokio::test]
async fn options_that_cannot_work_are_refused() {
    let (url, _server) = serve(0).await;
    let options = WorkloadOptions { namespaces: vec![], ..fast(&url, 1) };
    assert!(matches!(
        run(options, Arc::default(), CancellationToken::new()).await,
        Err(WorkloadError::NoNamespace)
    ));
    let options = WorkloadOptions { rate: 0.0, ..fast(&url, 1) };
    assert!(matches!(
        run(options, Arc::default(), CancellationToken::new()).await,
        Err(WorkloadError::BadRate(0.0))
    ));
}

#[tokio::test]
async fn it_stops_while_it_waits_for_a_server_that_is_down() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    drop(listener);
    let (stop, progress) = (CancellationToken::new(), Arc::new(WorkloadProgress::default()));
    let working = run(fast(&url, 1), progress.clone(), stop.clone());
    let stopping = async {
        while progress.errors.load(Ordering::Relaxed) < 2 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        stop.cancel();
    };
    let (report, ()) = tokio::join!(working, stopping);
    assert!(!report.expect("stopped is not an error").complete);
}
