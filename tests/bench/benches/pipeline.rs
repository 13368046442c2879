//! The whole way of a state, with the real binary: a canned watch stream of updates of Jobs,
//! served as fast as it is read, through journal, lanes, the persistence plugin and SQLite.
//! Prints states a second, bytes on disk a state, processor time a state and peak memory; then what
//! client-go does with the same stream and no sink at all, and with an insert for each state.

mod canned;
mod host;
mod peers;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use canned::Canned;
use host::Host;
use kubewitness_bench::{JOBS, PATIENCE, ratio, updates, wanted};

const HOST: &str = r#"kind: ConfigMap
metadata: {name: host, labels: {kubewitness.dev/host: "true"}}
data:
  host.yaml: |
    apiVersion: kubewitness.dev/v1alpha1
    kind: Host
    metadata: {name: host}
    spec:
      sources: [{name: jobs, apiVersion: batch/v1, kind: Job}]
      databases: [{name: platform, sqlite: {path: platform.db}}]
---
kind: ConfigMap
metadata: {name: persistence, labels: {kubewitness.dev/plugin: "true"}}
data:
  plugin.yaml: |
    apiVersion: kubewitness.dev/v1alpha1
    kind: Plugin
    metadata: {name: persistence}
    spec:
      module: {file: persistence.wasm}
      subscribe: [{source: jobs, mode: every, start: beginning}]
      grants: {sql: [{name: main, database: platform}]}
      delivery: {batch: 1024}
"#;

/// Updates of the peer that syncs each state: it takes milliseconds for each.
const SYNCED: usize = 2_000;
/// And few Jobs: each of the list costs it as much.
const FEW_JOBS: usize = 100;

fn main() -> Result<()> {
    if !wanted("pipeline") {
        return Ok(());
    }
    // Any HTTP client asks for one; installing it twice would be harmless.
    rustls::crypto::ring::default_provider().install_default().ok();
    tokio::runtime::Runtime::new()?.block_on(run(updates()?))
}

async fn run(updates: usize) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let canned = Canned::start(JOBS, updates).await?;
    let config = folder.path().join("config");
    std::fs::create_dir(&config)?;
    std::fs::write(config.join("all.yaml"), HOST)?;
    let data = folder.path().join("data");
    let mut host = Host::start(&canned.kubeconfig(folder.path())?, &config, &data)?;

    let total = (JOBS + updates) as u64;
    let started = canned.first_watch(PATIENCE).await.context("the host never watched: see its log above")?;
    let mut witnessed = None;
    let status = loop {
        ensure!(started.elapsed() < PATIENCE, "not done after {PATIENCE:?}");
        host.runs()?;
        let Ok(status) = host.status().await else {
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        if witnessed.is_none() && status["journal"]["states"].as_u64() >= Some(total) {
            witnessed = Some(started.elapsed());
        }
        if status["plugins"][0]["delivered"].as_u64() >= Some(total) {
            break status;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let elapsed = started.elapsed();
    let (peak, busy) = (host.peak_memory()?, host.processor_time()?);
    drop(host);
    let rate = |time: Duration| updates as f64 / time.as_secs_f64();
    println!("pipeline: {updates} updates of {JOBS} Jobs of {} bytes", kubewitness_bench::job(1, 1, 1).len());
    println!("  journaled    {:>10.0} states/s", rate(witnessed.unwrap_or(elapsed)));
    println!("  in SQLite    {:>10.0} states/s (watch → journal → Wasm persistence → SQLite)", rate(elapsed));
    println!(
        "  journal      {:>10.0} bytes on disk a state",
        status["journal"]["bytes"].as_f64().unwrap_or(0.0) / total as f64
    );
    println!(
        "  platform.db  {:>10.0} bytes on disk a state",
        size(&data.join("platform.db"))? as f64 / total as f64
    );
    println!("  processor    {:>10.1} µs a state, all threads", busy.as_secs_f64() * 1e6 / total as f64);
    println!("  peak memory  {:>10.1} MiB", peak);
    if let Some(peer) = peers::client_go(JOBS, updates, PATIENCE).await? {
        println!("  client-go    {peer:>10.0} states/s  {} (goal: 5)", ratio(rate(elapsed), peer));
    }
    let (few, database) = (updates.min(SYNCED), folder.path().join("peer.db"));
    if let Some(peer) = peers::client_go_into_sqlite(FEW_JOBS, few, &database, PATIENCE).await {
        let ratio = ratio(rate(elapsed), peer);
        println!("  client-go → SQLite {peer:>4.0} states/s  {ratio} (one insert a state, as durable)");
    }
    Ok(())
}

fn size(path: &Path) -> Result<u64> {
    let wal = path.with_extension("db-wal").metadata().map_or(0, |m| m.len());
    Ok(path.metadata()?.len() + wal)
}
