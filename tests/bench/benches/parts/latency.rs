//! An idle system, and one change at a time: from the moment at which the API server sends it to the
//! moment at which the plugin is called with it, over loopback TCP and a journal that syncs.

#[path = "../fixtures/canned.rs"]
mod canned;
#[path = "../fixtures/subscribed.rs"]
mod subscribed;

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use async_trait::async_trait;
use canned::CannedServer;
use kubewitness_bench::{PATIENCE, wanted};
use kubewitness_core::clock::SystemClock;
use kubewitness_core::config::{DeliverySpec, SourceSpec};
use kubewitness_core::ports::{
    AppliedStates, Backlog, CallError, CallOutcome, KvWrites, PluginHandler, StateDelivery, StateWitness,
    Verdict,
};
use kubewitness_core::status::StatusRules;
use kubewitness_dispatch::{DispatchOptions, LongestPauses, PluginDispatcher};
use kubewitness_figures::record;
use kubewitness_journal::{Journal, JournalOptions};
use kubewitness_watch::{CacheListers, ConnectOptions, SourceTask, SourceTasks, connect_to_server};
use subscribed::every_job;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

const OBJECTS: usize = 100;
const CHANGES: usize = 2_000;
/// Longer than it takes to save the progress of the change before: the system is idle then.
const PAUSE: Duration = Duration::from_millis(20);

#[allow(clippy::disallowed_methods)]
fn main() -> Result<()> {
    if !wanted("latency") {
        return Ok(());
    }
    rustls::crypto::ring::default_provider().install_default().ok();
    tokio::runtime::Runtime::new()?.block_on(async { tokio::spawn(run()).await? })
}

/// A plugin that says when it was called, and with which version.
struct CalledPlugin(mpsc::UnboundedSender<(String, Instant)>);

#[async_trait]
impl PluginHandler for CalledPlugin {
    async fn handle_batch(&self, batch: &[StateDelivery]) -> Result<CallOutcome, CallError> {
        let now = Instant::now();
        for delivery in batch {
            // Nobody listens once all was measured.
            drop(self.0.send((delivery.state.resource_version.to_string(), now)));
        }
        Ok(CallOutcome {
            verdicts: vec![Verdict::Done; batch.len()],
            kv: KvWrites::default(),
            is_apart: false,
        })
    }

    async fn find_applied(&self, _: &[StateDelivery]) -> Result<AppliedStates, CallError> {
        Ok(AppliedStates::default())
    }
}

/// Reading is a task of its own, as in the host.
#[allow(clippy::disallowed_methods)]
async fn run() -> Result<()> {
    let canned = CannedServer::paced(OBJECTS, CHANGES).await?;
    let folder = tempfile::tempdir()?;
    let options =
        ConnectOptions { kubeconfig: Some(canned.kubeconfig(folder.path())?), ..ConnectOptions::default() };
    let connection = connect_to_server(&options).await?;
    let journal = Journal::open(&folder.path().join("journal.db"), JournalOptions::default()).await?;
    let journal = Arc::new(journal);
    let clock = Arc::new(SystemClock::default());
    let (source, _handle) = SourceTask::new(
        &connection,
        SourceSpec::of("jobs", "batch/v1", "Job"),
        Arc::clone(&journal) as Arc<dyn StateWitness>,
        clock.clone(),
        Arc::new(StatusRules::builtin()),
        CacheListers::default(),
    );
    let (called, mut calls) = mpsc::unbounded_channel();
    let options = DispatchOptions {
        plugin: "latency".into(),
        subscriptions: vec![every_job()],
        delivery: DeliverySpec::default(),
        concurrency: 1,
        tick: None,
        pauses: LongestPauses::default(),
    };
    let backlog = Arc::clone(&journal) as Arc<dyn Backlog>;
    let (dispatcher, _handle) =
        PluginDispatcher::new(options, backlog, Arc::new(CalledPlugin(called)), clock);
    let stop = CancellationToken::new();
    let work = async {
        let measured = tokio::time::timeout(PATIENCE, measure(&canned, &mut calls)).await;
        stop.cancel();
        measured.context("not done")?
    };
    let SourceTasks { reading, making, appending } = source.split_tasks(stop.clone());
    let (reading, appending) = (tokio::spawn(reading), tokio::spawn(appending));
    let dispatching = dispatcher.run(stop.clone(), CancellationToken::new());
    let (watched, dispatched, measured) = tokio::join!(making, dispatching, work);
    watched?;
    reading.await?;
    appending.await?;
    dispatched?;
    report(measured?)?;
    Ok(journal.close().await?)
}

async fn measure(
    canned: &CannedServer,
    calls: &mut mpsc::UnboundedReceiver<(String, Instant)>,
) -> Result<Vec<Duration>> {
    for _ in 0..OBJECTS {
        calls.recv().await.context("the plugin is gone")?;
    }
    canned.first_watch(PATIENCE).await?;
    let mut taken = Vec::with_capacity(CHANGES);
    for change in 0..CHANGES {
        tokio::time::sleep(PAUSE).await;
        let sent = Instant::now();
        canned.send(1);
        let (version, called) = calls.recv().await.context("the plugin is gone")?;
        let expected = (OBJECTS + change + 1).to_string();
        ensure!(version == expected, "the plugin was called with {version}, and {expected} was sent");
        taken.push(called.duration_since(sent));
    }
    Ok(taken)
}

fn report(mut taken: Vec<Duration>) -> Result<()> {
    taken.sort_unstable();
    let ms = |share: f64| taken[(taken.len() as f64 * share) as usize].as_secs_f64() * 1000.0;
    println!("latency: {CHANGES} changes, one at a time, sent → journaled durably → plugin called");
    println!("  p50 {:>7.2} ms", ms(0.5));
    println!("  p99 {:>7.2} ms (goal: 5)", ms(0.99));
    println!("  max {:>7.2} ms", ms((taken.len() - 1) as f64 / taken.len() as f64));
    record("latency.p50", ms(0.5))?;
    record("latency.p99", ms(0.99))
}
