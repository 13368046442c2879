//! A warm restart: the real binary with 100,000 objects in its journal, from its start until its
//! watch is opened, without a list. What it is made of is measured apart, on the same journal.

#[path = "../fixtures/canned.rs"]
mod canned;
#[path = "../fixtures/host.rs"]
mod host;

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use canned::CannedServer;
use host::{HostLab, mib, settings};
use kubewitness_bench::{PATIENCE, wanted};
use kubewitness_core::ports::StateWitness;
use kubewitness_figures::record;
use kubewitness_journal::{Journal, JournalOptions};

const OBJECTS: usize = 100_000;
const RESTARTS: usize = 3;

const SETTINGS: &str = "sources: [{name: jobs, apiVersion: batch/v1, kind: Job}]";

fn main() -> Result<()> {
    if !wanted("restart") {
        return Ok(());
    }
    rustls::crypto::ring::default_provider().install_default().ok();
    tokio::runtime::Runtime::new()?.block_on(run())
}

async fn run() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let canned = CannedServer::start(OBJECTS, 0).await?;
    let kubeconfig = canned.kubeconfig(folder.path())?;
    let lab = HostLab::new(folder.path(), &[settings(SETTINGS)])?;

    let host = lab.start(&kubeconfig)?;
    // The watch is opened once the whole list is durable.
    canned.first_watch(PATIENCE).await.context("the first start never watched")?;
    let checkpoint = OBJECTS.to_string();
    let started = Instant::now();
    while host.status().await?["sources"][0]["checkpoint"] != *checkpoint {
        ensure!(started.elapsed() < PATIENCE, "the checkpoint was never written");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    drop(host);

    println!("restart: {OBJECTS} objects in the journal, killed, started again");
    let pages = canned.asked().pages.load(Ordering::Relaxed);
    let mut times = Vec::new();
    for _ in 0..RESTARTS {
        canned.forget_watches();
        let started = Instant::now();
        let mut host = lab.start(&kubeconfig)?;
        let watching = canned.first_watch(PATIENCE).await.context("it never watched again")?;
        times.push(watching.duration_since(started));
        host.runs()?;
        ensure!(host.status().await?["sources"][0]["objects"] == OBJECTS, "objects are missing");
        println!(
            "  until it watches {:>8.0} ms (peak memory {:.0} MiB)",
            ms(watching - started),
            mib(host.memory()?.peak)
        );
    }
    ensure!(canned.asked().pages.load(Ordering::Relaxed) == pages, "a warm restart listed");
    times.sort();
    println!("  median           {:>8.0} ms, no list (goal: 2000)", ms(times[RESTARTS / 2]));
    record("restart.warm", ms(times[RESTARTS / 2]))?;

    let opening = Instant::now();
    let journal = Journal::open(&lab.data().join("journal.db"), JournalOptions::default()).await?;
    println!("  of it: opening   {:>8.0} ms", ms(opening.elapsed()));
    let reading = Instant::now();
    let warm = journal.load_warm_start("jobs").await?;
    println!("         reading   {:>8.0} ms", ms(reading.elapsed()));
    ensure!(warm.objects.len() == OBJECTS, "{} objects are warm", warm.objects.len());
    Ok(journal.close().await?)
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}
