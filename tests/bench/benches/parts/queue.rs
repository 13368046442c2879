//! Watch → cache → queue, with nothing durable behind: the real source over loopback TCP, a
//! witness that only numbers the states, and lanes from which a worker takes them. In the same
//! run, on the same stream: kube-runtime's reflector, and client-go where it is installed.

#[path = "../fixtures/canned.rs"]
mod canned;
#[path = "../fixtures/peers.rs"]
mod peers;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use async_trait::async_trait;
use canned::CannedServer;
use futures::{StreamExt, pin_mut};
use k8s_openapi::api::batch::v1::Job;
use kubewitness_bench::{JOBS, PATIENCE, ratio, updates, wanted};
use kubewitness_core::clock::SystemClock;
use kubewitness_core::config::{DeliverySpec, SourceSpec};
use kubewitness_core::lanes::{ClockReading, LaneOptions, Lanes};
use kubewitness_core::ports::{
    AppendBatch, AppendResult, JournalError, PluginProgress, StateWitness, Verdict, WarmStart,
};
use kubewitness_core::state::State;
use kubewitness_core::status::StatusRules;
use kubewitness_watch::{CacheListers, ConnectOptions, SourceTask, SourceTasks, connect_to_server};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// The number of states that a plugin is handed at once.
const BATCH: usize = 64;

#[allow(clippy::disallowed_methods)]
fn main() -> Result<()> {
    if !wanted("queue") {
        return Ok(());
    }
    rustls::crypto::ring::default_provider().install_default().ok();
    let updates = updates()?;
    // As a task, as in the host: the thread that waits for the runtime is woken by a system call.
    tokio::runtime::Runtime::new()?.block_on(async { tokio::spawn(run(updates)).await? })
}

async fn run(updates: usize) -> Result<()> {
    println!("queue: watch → cache → queue, {updates} updates of {JOBS} Jobs, nothing durable");
    let ours = ours(updates).await?;
    println!("  kubewitness  {ours:>10.0} states/s");
    let peer = kube_runtime_peer(updates).await?;
    println!("  kube-runtime {peer:>10.0} states/s  {}", ratio(ours, peer));
    if let Some(peer) = peers::client_go(JOBS, updates, PATIENCE).await? {
        println!("  client-go    {:>10.0} states/s  {} (goal: 10)", peer.rate, ratio(ours, peer.rate));
    }
    Ok(())
}

/// Reading is a task of its own, as in the host.
#[allow(clippy::disallowed_methods)]
async fn ours(updates: usize) -> Result<f64> {
    let canned = CannedServer::with_held_updates(JOBS, updates).await?;
    let folder = tempfile::tempdir()?;
    let options =
        ConnectOptions { kubeconfig: Some(canned.kubeconfig(folder.path())?), ..ConnectOptions::default() };
    let connection = connect_to_server(&options).await?;
    let queue = Arc::new(QueueWitness::new());
    let (source, handle) = SourceTask::new(
        &connection,
        SourceSpec::of("jobs", "batch/v1", "Job"),
        Arc::clone(&queue) as Arc<dyn StateWitness>,
        Arc::new(SystemClock::default()),
        Arc::new(StatusRules::builtin()),
        CacheListers::default(),
    );
    let stop = CancellationToken::new();
    let work = async {
        queue.drain(JOBS).await;
        let begun = canned.release();
        queue.drain(updates).await;
        stop.cancel();
        begun.elapsed()
    };
    let SourceTasks { reading, making, appending } = source.split_tasks(stop.clone());
    let (reading, appending) = (tokio::spawn(reading), tokio::spawn(appending));
    let (ended, elapsed) = tokio::join!(making, async { tokio::time::timeout(PATIENCE, work).await });
    ended?;
    reading.await?;
    appending.await?;
    ensure!(
        handle.snapshot_view().objects == JOBS,
        "the cache has {} objects",
        handle.snapshot_view().objects
    );
    Ok(updates as f64 / elapsed.context("not done")?.as_secs_f64())
}

/// A witness that keeps nothing, and the lanes behind it.
struct QueueWitness {
    seq: AtomicU64,
    lanes: Mutex<Lanes>,
    room: Notify,
    work: Notify,
}

impl QueueWitness {
    fn new() -> Self {
        let options = LaneOptions::new("bench", &DeliverySpec::default());
        Self {
            seq: AtomicU64::new(0),
            lanes: Mutex::new(Lanes::new(options, &PluginProgress::default())),
            room: Notify::new(),
            work: Notify::new(),
        }
    }

    fn lanes(&self) -> MutexGuard<'_, Lanes> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes and finishes so many states as they come. No more of them come before that.
    async fn drain(&self, states: usize) {
        let mut finished = 0;
        while finished < states {
            let taken = {
                let mut lanes = self.lanes();
                let batch = lanes.take(Duration::ZERO, BATCH);
                for delivery in &batch {
                    lanes.apply_verdict(delivery.state.seq, Verdict::Done, ClockReading::default());
                }
                batch.len()
            };
            finished += taken;
            if taken == 0 {
                self.work.notified().await;
            } else {
                self.room.notify_one();
            }
        }
    }
}

#[async_trait]
impl StateWitness for QueueWitness {
    async fn append_batch(&self, append: AppendBatch) -> Result<AppendResult, JournalError> {
        let (mut seqs, mut states) = (Vec::new(), Vec::new());
        for state in append.states {
            let seq = self.seq.fetch_add(1, Ordering::Relaxed) + 1;
            seqs.push(Some(seq));
            states.push(Arc::new(State {
                id: state.id,
                seq,
                source: Arc::clone(&append.source),
                epoch: append.epoch,
                change: state.change,
                object: state.object,
                owner: state.owner,
                resource_version: state.resource_version,
                status: state.status,
                previous: state.previous,
                observed_ms: state.observed_ms,
                late: false,
                quotes_none_under: None,
            }));
        }
        let mut states = states.into_iter().peekable();
        while states.peek().is_some() {
            {
                let mut lanes = self.lanes();
                let room = lanes.room_for_states();
                states.by_ref().take(room).for_each(|state| lanes.push(state, Duration::ZERO));
            }
            self.work.notify_one();
            if states.peek().is_some() {
                self.room.notified().await;
            }
        }
        Ok(AppendResult { seqs, newest: self.seq.load(Ordering::Relaxed), ..AppendResult::default() })
    }

    async fn load_warm_start(&self, _: &str) -> Result<WarmStart, JournalError> {
        Ok(WarmStart::default())
    }
}

/// A typed reflector, whose changes go by name to a worker that looks each up in the store.
#[allow(clippy::disallowed_methods)]
async fn kube_runtime_peer(updates: usize) -> Result<f64> {
    let canned = CannedServer::with_held_updates(JOBS, updates).await?;
    let client = kube::Client::try_from(kube::Config::new(canned.url().parse()?))?;
    let (reader, writer) = kube_runtime::reflector::store::<Job>();
    let watcher = kube_runtime::watcher(kube::Api::all(client), kube_runtime::watcher::Config::default());
    let (sender, mut receiver) = tokio::sync::mpsc::channel(kubewitness_core::limits::LANE_WINDOW);
    let worker = tokio::spawn(async move {
        let mut found = 0_usize;
        while let Some(name) = receiver.recv().await {
            found += usize::from(reader.get(&name).is_some());
        }
        found
    });
    let changes = kube_runtime::reflector(writer, watcher);
    pin_mut!(changes);
    let (mut told, mut begun) = (0, None);
    while told < JOBS + updates {
        use kube_runtime::watcher::Event;
        let event = tokio::time::timeout(PATIENCE, changes.next()).await.context("the peer hangs")?;
        if let Event::Apply(job) | Event::InitApply(job) = event.context("the peer's stream ended")?? {
            told += 1;
            sender.send(kube_runtime::reflector::ObjectRef::from_obj(&job)).await?;
        }
        if told == JOBS && begun.is_none() {
            begun = Some(canned.release());
        }
    }
    drop(sender);
    let found = worker.await?;
    let elapsed = begun.context("the peer never listed")?.elapsed();
    ensure!(found >= updates, "the peer found {found} of {updates}");
    Ok(updates as f64 / elapsed.as_secs_f64())
}
