//! Walking back: 5,000 objects of which the same number of versions was missed, read by exact
//! lists. The peer is the bare client that makes the same requests, as many at once, and looks at
//! nothing but the version that it needs to go on.

#[path = "../fixtures/canned.rs"]
mod canned;

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use async_trait::async_trait;
use canned::CannedServer;
use kubewitness_bench::{PATIENCE, job, ratio, uid, wanted};
use kubewitness_core::clock::SystemClock;
use kubewitness_core::config::SourceSpec;
use kubewitness_core::document::pack_document;
use kubewitness_core::ports::{
    AppendBatch, AppendResult, CurrentObject, JournalError, StateWitness, WarmStart,
};
use kubewitness_core::state::{ObjectRef, StateId};
use kubewitness_core::status::StatusRules;
use kubewitness_core::{Change, Version, project};
use kubewitness_watch::{
    CacheListers, ConnectOptions, SourceTask, WalkBudget, WatchTuning, connect_to_server,
};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

const OBJECTS: usize = 5_000;
/// Versions of each object that nobody saw.
const MISSED: usize = 3;
const STATES: usize = OBJECTS * (MISSED + 1);

#[allow(clippy::disallowed_methods)]
fn main() -> Result<()> {
    if !wanted("walkback") {
        return Ok(());
    }
    rustls::crypto::ring::default_provider().install_default().ok();
    // As a task, as in the host: the thread that waits for the runtime is woken by a system call.
    tokio::runtime::Runtime::new()?.block_on(async { tokio::spawn(run()).await? })
}

async fn run() -> Result<()> {
    println!("walkback: {OBJECTS} objects, {MISSED} versions of each missed and the newest listed");
    let ours = ours().await?;
    println!("  kubewitness  {ours:>10.0} requests/s");
    let peer = bare().await?;
    println!("  bare client  {peer:>10.0} requests/s  {}", ratio(ours, peer));
    Ok(())
}

/// The server that has forgotten what a watch would need, and still knows what is behind it.
async fn server() -> Result<CannedServer> {
    CannedServer::forgetful(OBJECTS, STATES, OBJECTS + STATES).await
}

async fn ours() -> Result<f64> {
    let canned = server().await?;
    let folder = tempfile::tempdir()?;
    let options =
        ConnectOptions { kubeconfig: Some(canned.kubeconfig(folder.path())?), ..ConnectOptions::default() };
    let connection = connect_to_server(&options).await?;
    let journal = Arc::new(CountingJournal::default());
    let (source, _handle) = SourceTask::new(
        &connection,
        SourceSpec::of("jobs", "batch/v1", "Job"),
        Arc::clone(&journal) as Arc<dyn StateWitness>,
        Arc::new(SystemClock::default()),
        Arc::new(StatusRules::builtin()),
        CacheListers::default(),
    );
    // What is measured is how fast it could be, and not how polite it is.
    let walk = WalkBudget {
        requests: u32::MAX,
        rate: u32::MAX,
        bytes_per_second: u64::MAX,
        ..WalkBudget::default()
    };
    let stop = CancellationToken::new();
    let source = source.with_tuning(WatchTuning { walk, ..WatchTuning::default() }).run(stop.clone());
    let watch = async {
        let first = canned.first_exact(PATIENCE).await?;
        let walked = tokio::time::timeout(PATIENCE, journal.complete.notified()).await;
        stop.cancel();
        Ok::<_, anyhow::Error>(walked.map(|()| first.elapsed()))
    };
    let (ended, elapsed) = tokio::join!(source, watch);
    ended?;
    let states = journal.states.lock().unwrap_or_else(PoisonError::into_inner).len();
    ensure!(states == STATES, "{states} states were witnessed");
    let requests = canned.asked().exact.load(Ordering::Relaxed);
    Ok(requests as f64 / elapsed??.as_secs_f64())
}

/// Knows each object's first version, and counts what comes.
#[derive(Default)]
struct CountingJournal {
    states: Mutex<HashSet<StateId>>,
    seq: AtomicU64,
    /// Every version came: those that were missed beside the watch, which goes on meanwhile.
    complete: Notify,
}

#[async_trait]
impl StateWitness for CountingJournal {
    async fn append_batch(&self, append: AppendBatch) -> Result<AppendResult, JournalError> {
        let mut states = self.states.lock().unwrap_or_else(PoisonError::into_inner);
        let number = |state: &kubewitness_core::ports::WitnessedState| {
            let new = state.change == Change::Present && states.insert(state.id.clone());
            new.then(|| self.seq.fetch_add(1, Ordering::Relaxed) + 1)
        };
        let seqs = append.states.iter().map(number).collect();
        if states.len() == STATES {
            self.complete.notify_one();
        }
        Ok(AppendResult { seqs, newest: self.seq.load(Ordering::Relaxed), ..AppendResult::default() })
    }

    async fn load_warm_start(&self, _: &str) -> Result<WarmStart, JournalError> {
        let rules = StatusRules::builtin();
        let current = |index: usize| {
            let document = job(index, 0, index as u64 + 1);
            CurrentObject {
                object: Arc::new(ObjectRef {
                    group: "batch".into(),
                    version: "v1".into(),
                    kind: "Job".into(),
                    namespace: format!("team-{}", index % 20),
                    name: format!("train-{index:05}"),
                    uid: uid(index),
                }),
                owner: None,
                resource_version: Version::new(&(index + 1).to_string()),
                status: Arc::new(rules.status_of("batch", "Job", document.as_bytes())),
                seq: index as u64 + 1,
                observed_ms: 0,
                packed: pack_document(document.as_bytes()),
            }
        };
        let checkpoint = Some(Version::new(&OBJECTS.to_string()));
        Ok(WarmStart { checkpoint, objects: (0..OBJECTS).map(current).collect(), ..WarmStart::default() })
    }
}

/// As many workers as a walk has requests at once, each with a client's connection.
#[allow(clippy::disallowed_methods)]
async fn bare() -> Result<f64> {
    let canned = server().await?;
    let client = reqwest::Client::new();
    let next = Arc::new(AtomicUsize::new(0));
    let started = Instant::now();
    let workers: Vec<_> = (0..WalkBudget::default().concurrency)
        .map(|_| tokio::spawn(walk_bare(client.clone(), canned.url(), Arc::clone(&next))))
        .collect();
    for worker in workers {
        worker.await??;
    }
    let elapsed: Duration = started.elapsed();
    Ok(canned.asked().exact.load(Ordering::Relaxed) as f64 / elapsed.as_secs_f64())
}

async fn walk_bare(client: reqwest::Client, server: String, next: Arc<AtomicUsize>) -> Result<()> {
    loop {
        let index = next.fetch_add(1, Ordering::Relaxed);
        if index >= OBJECTS {
            return Ok(());
        }
        let mut version = Version::new(&(OBJECTS * (MISSED + 1) + index + 1).to_string());
        let first = Version::new(&(index + 1).to_string());
        while version != first {
            let before = version.directly_before().context("a version has one before it")?;
            let address = format!(
                "{server}/apis/batch/v1/namespaces/team-{}/jobs?fieldSelector=metadata.name%3Dtrain-{index:05}&resourceVersion={before}&resourceVersionMatch=Exact&limit=1",
                index % 20
            );
            let body = client.get(address).send().await?.bytes().await?;
            let page = project::list_page(&body)?;
            let item = page.items.first().context("the object was there")?;
            version = Version::new(&project::read_envelope(item)?.resource_version);
        }
    }
}
