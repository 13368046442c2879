//! Tests of a source against the simulated API server, which other clients check as well.

use std::collections::{BTreeMap, HashSet};

use http::{Method, Request};
use kubewitness_core::state::Change;
use kubewitness_playground::apiserver::faults::{FaultKind, InjectedFault};
use kubewitness_playground::apiserver::{ApiServer, ApiServerOptions, TlsOptions, WatchDrop};
use kubewitness_watch::configmaps::{RecordType, delete_status, emit_event, write_status};
use kubewitness_watch::{ConfigMapSnapshot, ConfigMaps};
use tokio::sync::watch;

use super::*;

pub struct SimulatedCluster {
    pub server: ApiServer,
    pub connection: ApiConnection,
    pub stop: CancellationToken,
}

impl SimulatedCluster {
    pub async fn start() -> Self {
        Self::start_by(None).await
    }

    pub async fn start_by(tls: Option<TlsOptions>) -> Self {
        let options = ApiServerOptions {
            bookmark_every: Duration::from_millis(100),
            keep_truth: true,
            tls,
            ..ApiServerOptions::default()
        };
        let (server, serving) = ApiServer::bind(options).await.unwrap();
        let stop = CancellationToken::new();
        tokio::spawn(serving.serve(stop.clone()));
        let connection = connected_by(&server.kubeconfig()).await;
        Self { server, connection, stop }
    }

    pub async fn send(&self, method: Method, path: &str, body: Value) -> Value {
        let media = if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        let request =
            Request::builder().method(method).uri(path).header("Content-Type", media).body(body).unwrap();
        serde_json::from_str(&self.connection.client.request_text(request).await.unwrap()).unwrap()
    }

    pub async fn create_job(&self, name: &str) {
        let template =
            json!({"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}});
        let job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name},
            "spec": {"template": template}});
        self.send(Method::POST, "/apis/batch/v1/namespaces/default/jobs", job).await;
    }

    pub async fn touch_job(&self, name: &str, number: u32) {
        let patch = json!({"metadata": {"annotations": {"n": number.to_string()}}});
        self.send(Method::PATCH, &format!("/apis/batch/v1/namespaces/default/jobs/{name}"), patch).await;
    }

    pub async fn delete_job(&self, name: &str) {
        let path = format!("/apis/batch/v1/namespaces/default/jobs/{name}?propagationPolicy=Background");
        self.send(Method::DELETE, &path, Value::Null).await;
    }

    pub async fn create_map(&self, name: &str, labels: Value, data: Value) -> Value {
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": labels},
            "data": data, "binaryData": {"plugin.wasm": "AGFzbQ=="}});
        self.send(Method::POST, "/api/v1/namespaces/default/configmaps", map).await
    }
}

#[tokio::test]
async fn every_version_of_the_simulated_server_is_witnessed_over_its_restarts() {
    every_version_is_witnessed(&SimulatedCluster::start().await).await;
}

/// Covers lists, watches that end in every way, and versions that can only be read back.
pub async fn every_version_is_witnessed(cluster: &SimulatedCluster) {
    let memory = Arc::new(MemoryWitness::default());
    for number in 0..5 {
        cluster.create_job(&format!("job-{number}")).await;
    }
    let running = RunningSource::start_by(&cluster.connection, &memory, spec(json!({})), tuning());
    until("synced", || running.handle.snapshot_view().synced).await;
    for round in 0..6 {
        for number in 0..5 {
            cluster.touch_job(&format!("job-{number}"), round).await;
        }
        match round {
            0 => cluster.server.drop_watches(WatchDrop::Cut),
            1 => {
                // The next versions are missed, and a watch can't bring them.
                cluster
                    .server
                    .inject(InjectedFault::always(FaultKind::HangUp).verb("watch").on("jobs.batch"));
                cluster.server.drop_watches(WatchDrop::Abort)
            }
            2 => {
                cluster.server.forget_watch_window();
                cluster.server.disarm()
            }
            3 => cluster.server.drop_watches(WatchDrop::Clean),
            _ => 0,
        };
    }
    cluster.delete_job("job-0").await;
    let truth: HashSet<_> = cluster
        .server
        .history("batch", "jobs")
        .into_iter()
        .filter(|entry| entry.event != "DELETED")
        .map(|entry| (entry.uid, entry.version.to_string()))
        .collect();
    let witnessed = || -> HashSet<_> {
        let states = memory.states().into_iter().filter(|state| state.change == Change::Present);
        states.map(|state| (state.object.uid.clone(), state.resource_version.to_string())).collect()
    };
    until("every version", || witnessed() == truth).await;
    until("the deletion", || running.handle.snapshot_view().objects == 4).await;
    assert_eq!(memory.object_gaps(), []);
    assert!(memory.poison().is_empty());
    let view = running.handle.snapshot_view();
    assert_eq!((view.epoch, view.condition), (0, None));
    assert!(view.counts.walk_back_requests > 0 && view.counts.walked_back > 0);
    running.stop().await;
}

#[tokio::test]
async fn labelled_configmaps_come_as_whole_snapshots() {
    let cluster = SimulatedCluster::start().await;
    cluster.create_map("other", json!({"a": "b"}), json!({})).await;
    cluster.create_map("one", json!({"kubewitness.dev/plugin": "true"}), json!({"plugin.yaml": "x"})).await;
    let selectors = ["kubewitness.dev/plugin=true", "kubewitness.dev/host=true"];
    let maps =
        ConfigMaps::new(cluster.connection.client.clone(), "default", &selectors).with_tuning(tuning());
    let (out, seen) = watch::channel(ConfigMapSnapshot::default());
    let task = tokio::spawn(maps.run(out, cluster.stop.clone()));
    let names = || -> Vec<String> { seen.borrow().maps.iter().map(|map| map.name.clone()).collect() };
    until("one", || seen.borrow().synced && names() == ["one"]).await;
    assert_eq!(seen.borrow().maps[0].binary_data["plugin.wasm"][..], *b"\0asm");
    cluster.create_map("host", json!({"kubewitness.dev/host": "true"}), json!({})).await;
    until("two", || names() == ["host", "one"]).await;
    cluster.server.forget_watch_window();
    cluster.server.drop_watches(WatchDrop::Abort);
    let patch = json!({"data": {"plugin.yaml": "y"}});
    cluster.send(Method::PATCH, "/api/v1/namespaces/default/configmaps/one", patch).await;
    until("the change", || {
        seen.borrow().maps.iter().any(|map| map.data.get("plugin.yaml").is_some_and(|text| text == "y"))
    })
    .await;
    // For this client an object that leaves the selector is deleted.
    let patch = json!({"metadata": {"labels": {"kubewitness.dev/plugin": "false"}}});
    cluster.send(Method::PATCH, "/api/v1/namespaces/default/configmaps/one", patch).await;
    until("only the host's", || names() == ["host"]).await;
    cluster.stop.cancel();
    task.await.unwrap();
}

#[tokio::test]
async fn a_status_is_written_when_it_differs_and_an_event_is_said_once() {
    let cluster = SimulatedCluster::start().await;
    let client = &cluster.connection.client;
    let map = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
    };
    let labels = map(&[("kubewitness.dev/status", "true"), ("kubewitness.dev/phase", "active")]);
    let data = map(&[("a", "1"), ("b", "2")]);
    assert!(write_status(client, "default", "p-status", &labels, &data).await.unwrap());
    let version = cluster.server.version();
    assert!(!write_status(client, "default", "p-status", &labels, &data).await.unwrap());
    assert_eq!(cluster.server.version(), version, "nothing was written");
    assert!(write_status(client, "default", "p-status", &labels, &map(&[("a", "3")])).await.unwrap());
    let held = cluster.send(Method::GET, "/api/v1/namespaces/default/configmaps/p-status", Value::Null).await;
    assert_eq!(held["data"], json!({"a": "3"}));
    delete_status(client, "default", "p-status").await.unwrap();
    delete_status(client, "default", "p-status").await.unwrap();
    let left = cluster.send(Method::GET, "/api/v1/namespaces/default/configmaps", Value::Null).await;
    assert!(!left.to_string().contains("p-status"), "{left}");

    let created = cluster.create_map("p", json!({}), json!({})).await;
    let about = kubewitness_watch::ConfigMapDoc {
        name: "p".into(),
        uid: created["metadata"]["uid"].as_str().unwrap().into(),
        resource_version: created["metadata"]["resourceVersion"].as_str().unwrap().into(),
        ..kubewitness_watch::ConfigMapDoc::default()
    };
    for _ in 0..2 {
        emit_event(client, "default", &about, RecordType::Warning, "Refused", "no such grant").await.unwrap();
    }
    let events = cluster.send(Method::GET, "/api/v1/namespaces/default/events", Value::Null).await;
    assert_eq!(events["items"].as_array().unwrap().len(), 1);
    assert_eq!(events["items"][0]["involvedObject"]["name"], "p");
    cluster.stop.cancel();
}

#[tokio::test]
async fn somebody_elses_config_map_with_the_name_of_a_status_is_neither_written_nor_deleted() {
    let cluster = SimulatedCluster::start().await;
    let client = &cluster.connection.client;
    let foreign =
        cluster.create_map("p-status", json!({"kubewitness.dev/status": "no"}), json!({"mine": "x"})).await;
    let labels = BTreeMap::from([("kubewitness.dev/status".to_string(), "true".to_string())]);
    let data = BTreeMap::from([("a".to_string(), "1".to_string())]);
    let refused = [
        write_status(client, "default", "p-status", &labels, &data).await.map(drop).unwrap_err(),
        delete_status(client, "default", "p-status").await.unwrap_err(),
    ];
    for refused in refused {
        assert!(
            refused.to_string().contains("default/p-status was refused: it is somebody else's"),
            "{refused}"
        );
    }
    let held = cluster.send(Method::GET, "/api/v1/namespaces/default/configmaps/p-status", Value::Null).await;
    assert_eq!(held, foreign);
    cluster.stop.cancel();
}
