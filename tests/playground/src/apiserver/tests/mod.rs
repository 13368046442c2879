//! Tests of the server over HTTP, as a client sees it.

mod backup;
mod faults;
mod kinds;
mod lists;
mod resuming;
mod reviews;
mod servers;
mod tls;

use std::time::Duration;

use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::*;

/// Longer than any step takes. Only a failure waits for it.
const PATIENCE: Duration = Duration::from_secs(20);

struct TestCluster {
    server: ApiServer,
    client: reqwest::Client,
    stop: CancellationToken,
    token: String,
}

impl Drop for TestCluster {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl TestCluster {
    async fn start(change: impl FnOnce(&mut ApiServerOptions)) -> Self {
        let mut options = ApiServerOptions {
            bookmark_every: Duration::from_millis(50),
            future_wait: Duration::from_millis(50),
            keep_truth: true,
            ..ApiServerOptions::default()
        };
        change(&mut options);
        let (server, serving) = ApiServer::bind(options).await.unwrap();
        // Another test of this process may have installed it first.
        let _first = rustls::crypto::ring::default_provider().install_default().is_ok();
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        TestCluster::run(server, serving, client)
    }

    fn run(server: ApiServer, serving: ServerTask, client: reqwest::Client) -> Self {
        let stop = CancellationToken::new();
        let until = stop.clone();
        #[allow(clippy::disallowed_methods)]
        tokio::spawn(async move { serving.serve(until).await.unwrap() });
        let token = server.admin_token().to_owned();
        TestCluster { server, client, stop, token }
    }

    /// The same client at another server of the cluster.
    fn over(&self, server: ApiServer, serving: ServerTask) -> Self {
        TestCluster::run(server, serving, self.client.clone())
    }

    async fn send(&self, method: Method, path: &str, kind: &str, body: Value) -> (u16, Value) {
        let request = self.client.request(method, format!("{}{path}", self.server.url()));
        let request = request.bearer_auth(&self.token).header("content-type", kind);
        let response =
            if body.is_null() { request } else { request.body(body.to_string()) }.send().await.unwrap();
        let code = response.status().as_u16();
        (code, serde_json::from_slice(&response.bytes().await.unwrap()).unwrap())
    }

    async fn get(&self, path: &str) -> (u16, Value) {
        self.send(Method::GET, path, "application/json", Value::Null).await
    }

    async fn post(&self, path: &str, body: Value) -> (u16, Value) {
        self.send(Method::POST, path, "application/json", body).await
    }

    async fn merge(&self, path: &str, body: Value) -> (u16, Value) {
        self.send(Method::PATCH, path, "application/merge-patch+json", body).await
    }

    async fn delete(&self, path: &str) -> (u16, Value) {
        self.send(Method::DELETE, path, "application/json", Value::Null).await
    }

    async fn config(&self, name: &str, labels: Value) -> String {
        let map = json!({"metadata": {"name": name, "labels": labels}, "data": {"n": "0"}});
        let (code, map) = self.post(MAPS, map).await;
        assert_eq!(code, 201, "{map}");
        map["metadata"]["resourceVersion"].as_str().unwrap().to_owned()
    }

    async fn watch(&self, query: &str) -> TestFrames {
        let url = format!("{}{MAPS}?watch=true&{query}", self.server.url());
        let response = self.client.get(url).bearer_auth(&self.token).send().await.unwrap();
        assert_eq!(response.status(), 200);
        TestFrames { response, rest: Vec::new() }
    }
}

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

struct TestFrames {
    response: reqwest::Response,
    rest: Vec<u8>,
}

impl TestFrames {
    /// The next frame; `None` at the end of the stream, an error if the connection breaks.
    async fn frame(&mut self) -> Result<Option<Value>, reqwest::Error> {
        loop {
            if let Some(end) = self.rest.iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                return Ok(Some(serde_json::from_slice(&line).unwrap()));
            }
            let chunk: Option<Bytes> =
                tokio::time::timeout(PATIENCE, self.response.chunk()).await.unwrap()?;
            match chunk {
                Some(chunk) => self.rest.extend_from_slice(&chunk),
                None => return Ok(None),
            }
        }
    }

    async fn next(&mut self) -> (String, String, String) {
        let frame = self.frame().await.unwrap().expect("the stream goes on");
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let metadata = &frame["object"]["metadata"];
        (text(&frame["type"]), text(&metadata["name"]), text(&metadata["resourceVersion"]))
    }
}

#[tokio::test]
async fn a_watch_tells_of_entering_and_leaving_its_selector() {
    let cluster = TestCluster::start(|_| {}).await;
    let first = cluster.config("a", json!({"w": "1"})).await;
    let mut frames = cluster.watch("labelSelector=w%3D1").await;
    assert_eq!(frames.next().await, ("ADDED".into(), "a".into(), first));
    let mut seen = Vec::new();
    for label in ["2", "1"] {
        let (_, map) =
            cluster.merge(&format!("{MAPS}/a"), json!({"metadata": {"labels": {"w": label}}})).await;
        let (event, _, version) = frames.next().await;
        assert_eq!(map["metadata"]["resourceVersion"], version.as_str());
        seen.push(event);
    }
    cluster.delete(&format!("{MAPS}/a")).await;
    seen.push(frames.next().await.0);
    assert_eq!(seen, ["DELETED", "ADDED", "DELETED"]);
}

#[tokio::test]
async fn a_watch_from_a_compacted_version_ends_with_an_error() {
    let cluster = TestCluster::start(|_| {}).await;
    let version = cluster.config("a", json!({})).await;
    cluster.config("b", json!({})).await;
    cluster.server.compact(None);
    let mut frames = cluster.watch(&format!("resourceVersion={version}")).await;
    let frame = frames.frame().await.unwrap().unwrap();
    assert_eq!((&frame["type"], &frame["object"]["code"]), (&json!("ERROR"), &json!(410)));
    assert_eq!(frames.frame().await.unwrap(), None);
    let exact = format!("{MAPS}?resourceVersion={version}&resourceVersionMatch=Exact");
    assert_eq!(cluster.get(&exact).await.0, 410);
}

#[tokio::test]
async fn an_open_watch_outlives_the_compaction_of_what_others_did() {
    let cluster = TestCluster::start(|_| {}).await;
    let version = cluster.config("a", json!({})).await;
    let mut frames = cluster.watch(&format!("resourceVersion={version}")).await;
    cluster.config("b", json!({})).await;
    assert_eq!(frames.next().await.1, "b");
    let secret = json!({"metadata": {"name": "s"}});
    cluster.post("/api/v1/namespaces/default/secrets", secret).await;
    cluster.server.compact(None);
    cluster.config("c", json!({})).await;
    assert_eq!(frames.next().await.1, "c");
}

#[tokio::test]
async fn a_forgotten_watch_window_leaves_exact_lists() {
    let cluster = TestCluster::start(|_| {}).await;
    let version = cluster.config("a", json!({})).await;
    cluster.merge(&format!("{MAPS}/a"), json!({"data": {"n": "1"}})).await;
    cluster.server.forget_watch_window();
    let mut frames = cluster.watch(&format!("resourceVersion={version}")).await;
    assert_eq!(frames.next().await.0, "ERROR");
    let exact = format!(
        "{MAPS}?fieldSelector=metadata.name%3Da&resourceVersion={version}&resourceVersionMatch=Exact&limit=1"
    );
    let (code, list) = cluster.get(&exact).await;
    assert_eq!((code, &list["items"][0]["data"]["n"]), (200, &json!("0")));
    assert_eq!(list["metadata"]["resourceVersion"], version.as_str());
}

#[tokio::test]
async fn a_streaming_list_ends_with_a_bookmark_and_goes_on() {
    let cluster = TestCluster::start(|_| {}).await;
    cluster.config("a", json!({})).await;
    let version = cluster.config("b", json!({})).await;
    let query = "allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
    let mut frames = cluster.watch(query).await;
    assert_eq!(frames.next().await.1, "a");
    assert_eq!(frames.next().await.1, "b");
    let end = frames.frame().await.unwrap().unwrap();
    assert_eq!(end["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
    assert_eq!(end["object"]["metadata"]["resourceVersion"], version.as_str());
    let periodic = frames.frame().await.unwrap().unwrap();
    assert_eq!(
        (&periodic["type"], &periodic["object"]["metadata"]),
        (&json!("BOOKMARK"), &json!({"resourceVersion": version}))
    );
}

#[tokio::test]
async fn a_watch_from_the_future_is_silent_until_its_time_is_over() {
    let cluster = TestCluster::start(|_| {}).await;
    cluster.config("a", json!({})).await;
    let mut frames = cluster.watch("resourceVersion=999999&allowWatchBookmarks=true&timeoutSeconds=1").await;
    assert_eq!(frames.frame().await.unwrap(), None);
    let (code, status) =
        cluster.get(&format!("{MAPS}?resourceVersion=999999&resourceVersionMatch=NotOlderThan")).await;
    assert_eq!((code, &status["details"]["causes"][0]["reason"]), (504, &json!("ResourceVersionTooLarge")));
}

#[tokio::test]
async fn watches_can_be_ended_cleanly_and_broken() {
    let cluster = TestCluster::start(|_| {}).await;
    cluster.config("a", json!({})).await;
    for (how, breaks) in [(WatchDrop::Clean, false), (WatchDrop::Abort, true), (WatchDrop::Cut, true)] {
        let mut frames = cluster.watch("").await;
        assert_eq!(frames.next().await.0, "ADDED");
        assert_eq!(cluster.server.drop_watches(how), 1);
        assert_eq!(frames.frame().await.is_err(), breaks, "{how:?}");
        assert_eq!(frames.rest.is_empty(), how != WatchDrop::Cut, "{how:?}");
        while cluster.server.drop_watches(how) > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

#[tokio::test]
async fn a_finalizer_holds_a_deletion() {
    let cluster = TestCluster::start(|_| {}).await;
    let map = json!({"metadata": {"name": "held", "finalizers": ["example.com/hold"]}});
    cluster.post(MAPS, map).await;
    let (code, marked) = cluster.delete(&format!("{MAPS}/held")).await;
    assert_eq!((code, marked["metadata"]["deletionTimestamp"].is_string()), (200, true));
    assert_eq!(cluster.get(&format!("{MAPS}/held")).await.0, 200);
    cluster.merge(&format!("{MAPS}/held"), json!({"metadata": {"finalizers": null}})).await;
    assert_eq!(cluster.get(&format!("{MAPS}/held")).await.0, 404);
    let events: Vec<&str> = cluster.server.history("", "configmaps").iter().map(|e| e.event).collect();
    assert_eq!(events, ["ADDED", "MODIFIED", "DELETED"]);
}

fn job(name: &str) -> Value {
    json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name},
        "spec": {"template": {"spec": {
            "restartPolicy": "Never", "containers": [{"name": "t", "image": "train:1"}],
        }}},
    })
}

const JOBS: &str = "/apis/batch/v1/namespaces/default/jobs";

#[tokio::test]
async fn status_and_specification_are_written_apart() {
    let cluster = TestCluster::start(|_| {}).await;
    let (_, created) = cluster.post(JOBS, job("train")).await;
    assert_eq!((&created["metadata"]["generation"], &created["status"]), (&json!(1), &json!({})));
    let patch = json!({"spec": {"suspend": true}, "status": {"active": 1}});
    let (_, main) = cluster.merge(&format!("{JOBS}/train"), patch.clone()).await;
    assert_eq!((&main["metadata"]["generation"], &main["status"]), (&json!(2), &json!({})));
    let patch = json!({"spec": {"suspend": false}, "status": {"active": 1}});
    let (_, status) = cluster.merge(&format!("{JOBS}/train/status"), patch).await;
    assert_eq!((&status["metadata"]["generation"], &status["status"]["active"]), (&json!(2), &json!(1)));
    assert_eq!(status["spec"]["suspend"], true);
    let (code, _) =
        cluster.merge(&format!("{JOBS}/train"), json!({"spec": {"completionMode": "Indexed"}})).await;
    assert_eq!(code, 422);
}

#[tokio::test]
async fn what_a_job_owns_goes_with_it_unless_it_is_orphaned() {
    let cluster = TestCluster::start(|_| {}).await;
    for (name, policy, left) in
        [("one", "Background", 404), ("two", "Orphan", 200), ("three", "Foreground", 404)]
    {
        let (_, owner) = cluster.post(JOBS, job(name)).await;
        let pod = json!({
            "metadata": {
                "name": name, "finalizers": ["batch.kubernetes.io/job-tracking"],
                "ownerReferences": [{
                    "apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": owner["metadata"]["uid"],
                    "controller": true, "blockOwnerDeletion": true,
                }],
            },
            "spec": {"containers": [{"name": "t", "image": "train:1"}]},
        });
        assert_eq!(cluster.post("/api/v1/namespaces/default/pods", pod).await.0, 201);
        cluster.delete(&format!("{JOBS}/{name}?propagationPolicy={policy}")).await;
        assert_eq!(cluster.get(&format!("/api/v1/namespaces/default/pods/{name}")).await.0, left, "{policy}");
        assert_eq!(cluster.get(&format!("{JOBS}/{name}")).await.0, 404, "{policy}");
    }
}

#[tokio::test]
async fn a_namespace_takes_its_contents_along() {
    let cluster = TestCluster::start(|_| {}).await;
    cluster.post("/api/v1/namespaces", json!({"metadata": {"name": "team"}})).await;
    let map = json!({"metadata": {"name": "a"}});
    assert_eq!(cluster.post("/api/v1/namespaces/team/configmaps", map.clone()).await.0, 201);
    let (_, marked) = cluster.delete("/api/v1/namespaces/team").await;
    assert_eq!(marked["status"]["phase"], "Terminating");
    assert_eq!(cluster.post("/api/v1/namespaces/team/configmaps", map.clone()).await.0, 403);
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while cluster.get("/api/v1/namespaces/team").await.0 != 404 {
        assert!(tokio::time::Instant::now() < deadline, "the namespace stays");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(cluster.post("/api/v1/namespaces/team/configmaps", map).await.0, 404);
}

fn definition() -> Value {
    json!({
        "metadata": {"name": "foos.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced", "names": {"plural": "foos", "kind": "Foo"},
            "versions": [
                {"name": "v1", "served": true, "storage": true}, {"name": "v2", "served": true, "storage": false},
            ],
        },
    })
}

#[tokio::test]
async fn a_definition_brings_a_kind_and_takes_it_away() {
    let cluster = TestCluster::start(|_| {}).await;
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    assert_eq!(cluster.post(definitions, definition()).await.0, 201);
    let foos = "/apis/example.com/v1/namespaces/default/foos";
    let foo =
        json!({"apiVersion": "example.com/v1", "kind": "Foo", "metadata": {"name": "f"}, "spec": {"a": 1}});
    assert_eq!(cluster.post(foos, foo).await.0, 201);
    let (_, other) = cluster.get("/apis/example.com/v2/namespaces/default/foos/f").await;
    assert_eq!(other["apiVersion"], "example.com/v2");
    cluster.delete(&format!("{definitions}/foos.example.com")).await;
    assert_eq!(
        cluster.client.get(format!("{}{foos}", cluster.server.url())).send().await.unwrap().status(),
        404
    );
}

#[tokio::test]
async fn an_expired_continue_token_says_how_to_go_on() {
    let cluster = TestCluster::start(|_| {}).await;
    for name in ["a", "b", "c"] {
        cluster.config(name, json!({})).await;
    }
    let (_, first) = cluster.get(&format!("{MAPS}?limit=1")).await;
    assert_eq!(first["metadata"]["remainingItemCount"], 2);
    cluster.config("d", json!({})).await;
    cluster.server.compact(None);
    let token = first["metadata"]["continue"].as_str().unwrap();
    let (code, expired) = cluster.get(&format!("{MAPS}?limit=9&continue={token}")).await;
    assert_eq!(code, 410);
    let token = expired["metadata"]["continue"].as_str().unwrap();
    let (code, rest) = cluster.get(&format!("{MAPS}?limit=9&continue={token}")).await;
    assert_eq!((code, rest["items"].as_array().unwrap().len()), (200, 3));
}

#[tokio::test]
async fn a_watcher_that_does_not_read_is_ended() {
    const CHANGES: usize = 120_000;
    let cluster = TestCluster::start(|_| {}).await;
    cluster.config("a", json!({})).await;
    let mut frames = cluster.watch("").await;
    assert_eq!(frames.next().await.0, "ADDED");
    let shared = &cluster.server.front;
    let place = shared.place("", "configmaps", "default").unwrap();
    for n in 0..CHANGES {
        let record = place.get(shared, "a").unwrap();
        let object = json!({"metadata": {"name": "a", "namespace": "default"}, "data": {"n": n, "x": "x".repeat(200)}});
        let draft = crate::apiserver::store::record::ObjectDraft::new(object.as_object().unwrap(), &[]);
        shared.store.put(place.table, draft, Some(record.version)).unwrap();
        if n % 100 == 0 {
            // The server writes on this thread, too, and must find the socket full.
            tokio::task::yield_now().await;
        }
    }
    let mut seen = 0;
    while let Some(frame) = frames.frame().await.unwrap() {
        seen += usize::from(frame["type"] == "MODIFIED");
    }
    assert!(seen < CHANGES, "{seen}");
}
