//! A source against a small API server over real sockets, and a journal in memory.

// A helper of a test fails as the test itself would; its tasks end with the test's runtime.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, clippy::needless_pass_by_value)]

mod audit;
mod faults;
mod logs;
mod memory;
mod model;
mod ordinary;
mod protocols;
mod simulator;
mod streaming;
mod world;

use std::sync::Arc;
use std::time::Duration;

use kubewitness_core::clock::SystemClock;
use kubewitness_core::config::SourceSpec;
use kubewitness_core::status::Rules;
use kubewitness_watch::{
    ConnectOptions, Connection, KeepAlive, Listers, Source, SourceError, SourceHandle, Tuning, WalkBudget,
    connect_with,
};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use memory::Memory;
use world::{World, until};

/// Short times, small pages.
fn tuning() -> Tuning {
    Tuning {
        page: 3,
        stream_lists: false,
        first_pause: Duration::from_millis(10),
        longest_pause: Duration::from_millis(50),
        checkpoint_every: Duration::from_millis(20),
        walk: WalkBudget { rate: 20_000, ..WalkBudget::default() },
        seed: Some(1),
        ..Tuning::default()
    }
}

async fn connected(world: &World) -> Connection {
    let config = json!({"apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": format!("http://{}", world.address)}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "ml"}}]});
    connected_by(&config.to_string()).await
}

async fn connected_by(kubeconfig: &str) -> Connection {
    connected_with(kubeconfig, &KeepAlive::default()).await
}

async fn connected_with(kubeconfig: &str, keep_alive: &KeepAlive) -> Connection {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kubeconfig");
    std::fs::write(&path, kubeconfig).unwrap();
    let options = ConnectOptions { kubeconfig: Some(path), context: None };
    connect_with(&options, keep_alive).await.unwrap()
}

fn spec(more: Value) -> SourceSpec {
    let mut value = json!({"name": "jobs", "apiVersion": "batch/v1", "kind": "Job"});
    value.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    serde_json::from_value(value).unwrap()
}

/// A source that runs until it is stopped, as in a process.
struct Running {
    handle: SourceHandle,
    listers: Listers,
    stop: CancellationToken,
    task: JoinHandle<Result<(), SourceError>>,
}

impl Running {
    async fn start(world: &World, memory: &Arc<Memory>) -> Self {
        Self::start_with(world, memory, spec(json!({})), tuning()).await
    }

    async fn start_with(world: &World, memory: &Arc<Memory>, spec: SourceSpec, tuning: Tuning) -> Self {
        Self::start_by(&connected(world).await, memory, spec, tuning)
    }

    fn start_by(connection: &Connection, memory: &Arc<Memory>, spec: SourceSpec, tuning: Tuning) -> Self {
        let listers = Listers::default();
        let (clock, rules) = (Arc::new(SystemClock::default()), Arc::new(Rules::builtin()));
        let (source, handle) =
            Source::new(connection, spec, Arc::clone(memory) as _, clock, rules, listers.clone());
        listers.add(handle.clone());
        let stop = CancellationToken::new();
        let task = tokio::spawn(source.with_tuning(tuning).run(stop.clone()));
        Self { handle, listers, stop, task }
    }

    async fn stop(self) {
        self.stop.cancel();
        self.task.await.unwrap().unwrap();
    }

    async fn watching(&self, world: &World) {
        until("the source watches", || world.watches() > 0 && self.handle.view().synced).await;
    }
}

/// Waits until what was witnessed is what is there.
async fn level(world: &World, memory: &Memory) {
    until("the journal's current objects equal the server's", || memory.current() == world.live()).await;
}
