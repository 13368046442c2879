//! Memory for each cached Job, everything included.
//!
//! The sum of the sizes of data structures misses the allocator, the databases and the plugins. So the real
//! binary runs with its journal and its plugins, once without Jobs and once with 50,000, and each is measured
//! at rest, when all Jobs are delivered. The difference belongs to the Jobs.
//!
//! Both run twice: at the first start, which compiles the plugins, and at a second start on the same folder,
//! which loads them. Only like is compared with like. Kube-runtime's reflector with the same Jobs is the peer
//! in the same run.

#[path = "../../fixtures/host.rs"]
mod host;
mod jobs;
mod peer;
mod server;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use host::{HostLab, HostProcess, MemoryUse, mib, plugin, settings};
use kubewitness_bench::{PATIENCE, ratio, wanted};
use kubewitness_figures::record;

const JOBS: usize = 50_000;
/// The goal, in bytes.
const GOAL: f64 = 1_536.0;
/// At rest is what didn't move by more than this many KiB in a while.
const STILL: u64 = 512;
const WHILE: Duration = Duration::from_secs(5);

const SETTINGS: &str = "sources:
- {name: jobs, apiVersion: batch/v1, kind: Job, indexes: [{name: image, pointer: /spec/template/spec/containers/0/image}]}
databases: [{name: platform, sqlite: {path: platform.db}}]
ledgers: [{name: trail, path: trail.jsonl}]";
const PERSISTENCE: &str = "subscribe: [{source: jobs, mode: every, start: beginning}]
grants: {sql: [{name: main, database: platform}]}";
const AUDIT: &str = "subscribe: [{source: jobs, mode: every, start: beginning}]
grants: {ledger: [{name: trail, ledger: trail}]}";

fn main() -> Result<()> {
    // Any HTTP client asks for one; installing it twice would be harmless.
    rustls::crypto::ring::default_provider().install_default().ok();
    let runtime = tokio::runtime::Runtime::new()?;
    if let Some(server) = peer::server() {
        return runtime.block_on(peer::run(&server));
    }
    if !wanted("memory") {
        return Ok(());
    }
    let jobs: usize = std::env::var("KUBEWITNESS_BENCH_JOBS").map_or(Ok(JOBS), |text| text.parse())?;
    runtime.block_on(run(jobs))
}

async fn run(jobs: usize) -> Result<()> {
    let bytes: usize = (0..1_000).map(|index| jobs::real_job(index, 1_000_000).len()).sum();
    println!("memory: {jobs} distinct Jobs of {} bytes on average, two plugins", bytes / 1_000);
    let folder = tempfile::tempdir()?;
    let (empty, full) = (folder.path().join("empty"), folder.path().join("full"));
    let first = HostStart::measure("first start", &empty, &full, jobs).await?;
    let again = HostStart::measure("started again", &empty, &full, jobs).await?;
    record("memory.first", first.each(jobs))?;
    record("memory.again", again.each(jobs))?;
    println!(
        "  peer: kube-runtime's reflector of typed Jobs, which keeps nothing on disk and runs no plugins"
    );
    let peer_empty = measure_peer(0).await?;
    report("peer, empty", &peer_empty, None);
    let peer_listed = measure_peer(jobs).await?;
    report("peer, full", &peer_listed, Some((&peer_empty, jobs)));
    let ours = first.each(jobs).max(again.each(jobs));
    let peer = each(&peer_listed, &peer_empty, jobs);
    println!("  the peer's bytes a Job by ours: {}", ratio(peer, ours));
    println!("  goal: at most {GOAL} bytes a Job: {}", if ours <= GOAL { "held" } else { "NOT held" });
    Ok(())
}

/// One start of the host, without Jobs and with them.
struct HostStart {
    empty: MemoryUse,
    full: MemoryUse,
}

impl HostStart {
    async fn measure(what: &str, empty: &Path, full: &Path, jobs: usize) -> Result<Self> {
        let empty = measure(empty, 0).await?;
        report(&format!("{what}, empty"), &empty, None);
        let full = measure(full, jobs).await?;
        report(&format!("{what}, full"), &full, Some((&empty, jobs)));
        Ok(Self { empty, full })
    }

    fn each(&self, jobs: usize) -> f64 {
        each(&self.full, &self.empty, jobs)
    }
}

fn each(full: &MemoryUse, empty: &MemoryUse, jobs: usize) -> f64 {
    (full.resident as f64 - empty.resident as f64) * 1024.0 / jobs as f64
}

fn report(what: &str, memory: &MemoryUse, against: Option<(&MemoryUse, usize)>) {
    let each = against.map(|(empty, jobs)| format!(", {:.0} bytes a Job", each(memory, empty, jobs)));
    let (resident, peak) = (mib(memory.resident), mib(memory.peak));
    println!("  {what:<20} {resident:>7.1} MiB at rest, {peak:>7.1} MiB at most{}", each.unwrap_or_default());
}

/// Starts the host on a folder and ends it once all is delivered and nothing moves any more.
async fn measure(folder: &Path, jobs: usize) -> Result<MemoryUse> {
    let address = server::start(jobs).await?;
    let manifests = [
        settings(SETTINGS),
        plugin("persistence", "persistence", PERSISTENCE),
        plugin("audit", "audit", AUDIT),
    ];
    let lab = HostLab::new(folder, &manifests)?;
    let kubeconfig = folder.join("kubeconfig");
    std::fs::write(&kubeconfig, server::kubeconfig(address))?;
    let mut host = lab.start(&kubeconfig)?;
    let started = Instant::now();
    loop {
        ensure!(started.elapsed() < PATIENCE, "not done after {PATIENCE:?}");
        host.runs()?;
        tokio::time::sleep(Duration::from_millis(100)).await;
        // It may not listen yet.
        let Ok(status) = host.status().await else { continue };
        let source = &status["sources"][0];
        let is_there = source["objects"].as_u64() == Some(jobs as u64)
            && source["checkpoint"].as_str().is_some_and(|version| !version.is_empty());
        let plugins = status["plugins"].as_array().map(Vec::as_slice).unwrap_or_default();
        let is_done = |plugin: &serde_json::Value| {
            plugin["delivered"].as_u64() == Some(jobs as u64) && plugin["state"] == "active"
        };
        if is_there && plugins.len() == 2 && plugins.iter().all(is_done) {
            break;
        }
    }
    rest(host.pid(), started).await
}

async fn measure_peer(jobs: usize) -> Result<MemoryUse> {
    let started = Instant::now();
    let peer = HostProcess(peer::start(server::start(jobs).await?, jobs).await?);
    rest(peer.0.id(), started).await
}

async fn rest(pid: u32, started: Instant) -> Result<MemoryUse> {
    let mut before = MemoryUse::of(pid)?;
    loop {
        ensure!(started.elapsed() < PATIENCE, "never at rest in {PATIENCE:?}");
        tokio::time::sleep(WHILE).await;
        let now = MemoryUse::of(pid)?;
        if now.resident.abs_diff(before.resident) <= STILL {
            return Ok(now);
        }
        before = now;
    }
}
