//! A source against a small API server over real sockets, with a journal in memory.
//!
//! The small server has one kind, and a test can replace any of its answers, also with answers that no
//! correct server gives. It keeps its whole history to compare with the witnessed states. The simulated API
//! server of `tests/playground` is closer to a real one but answers correctly; `simulator` runs the source
//! against it, too, and `model` compares random lives and faults with a model.

// A helper of a test fails as the test itself would; its tasks end with the test's runtime.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, clippy::needless_pass_by_value)]

mod cluster;
mod logs;
mod memory;
mod model;
mod reading;
mod repair;
mod simulator;
mod world;

use std::sync::Arc;
use std::time::Duration;

use kubewitness_core::clock::SystemClock;
use kubewitness_core::config::{HostSpec, SourceSpec};
use kubewitness_core::redact::RulesInForce;
use kubewitness_core::status::StatusRules;
use kubewitness_watch::{
    ApiConnection, CacheListers, ConnectOptions, KeepAlive, SourceError, SourceHandle, SourceTask,
    WalkBudget, WatchTuning, connect_with,
};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use memory::MemoryWitness;
use world::{CannedReply, WatchWorld, until};

/// Short times and small pages.
fn tuning() -> WatchTuning {
    WatchTuning {
        page: 3,
        stream_lists: false,
        first_pause: Duration::from_millis(10),
        longest_pause: Duration::from_millis(50),
        journal_pause: Duration::from_millis(50),
        checkpoint_every: Duration::from_millis(20),
        walk: WalkBudget { rate: 20_000, time_per_object: Duration::from_secs(8), ..WalkBudget::default() },
        others_every: Duration::from_millis(20),
        seed: Some(1),
        ..WatchTuning::default()
    }
}

async fn connected(world: &WatchWorld) -> ApiConnection {
    let config = json!({"apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": format!("http://{}", world.address)}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "ml"}}]});
    connected_by(&config.to_string()).await
}

async fn connected_by(kubeconfig: &str) -> ApiConnection {
    connected_with(kubeconfig, &KeepAlive::default()).await
}

async fn connected_with(kubeconfig: &str, keep_alive: &KeepAlive) -> ApiConnection {
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
struct RunningSource {
    handle: SourceHandle,
    listers: CacheListers,
    stop: CancellationToken,
    task: JoinHandle<Result<(), SourceError>>,
}

impl RunningSource {
    async fn start(world: &WatchWorld, memory: &Arc<MemoryWitness>) -> Self {
        Self::start_with(world, memory, spec(json!({})), tuning()).await
    }

    async fn start_with(
        world: &WatchWorld,
        memory: &Arc<MemoryWitness>,
        spec: SourceSpec,
        tuning: WatchTuning,
    ) -> Self {
        Self::start_by(&connected(world).await, memory, spec, tuning)
    }

    fn start_by(
        connection: &ApiConnection,
        memory: &Arc<MemoryWitness>,
        spec: SourceSpec,
        tuning: WatchTuning,
    ) -> Self {
        Self::start_as(connection, memory, spec, tuning, true)
    }

    fn start_as(
        connection: &ApiConnection,
        memory: &Arc<MemoryWitness>,
        spec: SourceSpec,
        tuning: WatchTuning,
        audits: bool,
    ) -> Self {
        let listers = CacheListers::default();
        let (clock, rules) = (Arc::new(SystemClock::default()), Arc::new(StatusRules::builtin()));
        let (source, handle) =
            SourceTask::new(connection, spec, Arc::clone(memory) as _, clock, rules, listers.clone());
        listers.add(handle.clone());
        let stop = CancellationToken::new();
        let secret_rules = RulesInForce::default();
        secret_rules.set_rules(Arc::new(HostSpec::default().compile_redaction_rules().unwrap()));
        let source =
            source.with_tuning(tuning).with_secret_rules(secret_rules).with_audits(Arc::new(audits.into()));
        let task = tokio::spawn(source.run(stop.clone()));
        Self { handle, listers, stop, task }
    }

    async fn stop(self) {
        self.stop.cancel();
        self.task.await.unwrap().unwrap();
    }

    async fn watching(&self, world: &WatchWorld) {
        until("the source watches", || world.watches() > 0 && self.handle.snapshot_view().synced).await;
    }
}

/// Waits until the witnessed objects equal those of the server.
async fn level(world: &WatchWorld, memory: &MemoryWitness) {
    until("the journal's current objects equal the server's", || memory.current() == world.live()).await;
}

async fn started(names: &[&str]) -> (WatchWorld, Arc<MemoryWitness>, RunningSource) {
    let (world, memory) = (WatchWorld::start().await, Arc::new(MemoryWitness::default()));
    for name in names {
        world.create(name, json!({}));
    }
    let running = RunningSource::start(&world, &memory).await;
    running.watching(&world).await;
    (world, memory, running)
}

/// Disconnects the source, so that nothing is watched from now on.
async fn away(world: &WatchWorld) {
    world.spoil({
        let mut refusals = 3;
        move |request| {
            refusals -= i32::from(request.contains("watch=true"));
            (refusals > 0 && request.contains("watch=true"))
                .then(|| CannedReply::status(503, "ServiceUnavailable"))
        }
    });
    world.cut();
    until("the stream ends", || world.watches() == 0).await;
}

/// Waits until everything missed has been read back and the checkpoint moves on.
async fn settled(world: &WatchWorld, memory: &MemoryWitness) {
    until("settled", || {
        world.bookmark();
        memory.checkpoint().is_some_and(|checkpoint| checkpoint == world.version().to_string())
    })
    .await;
}
