//! The journal alone, on a disk: appending at durable settings, in batches as the watch gives them,
//! on each store beside that store's own bulk insert of the same states; and reading back what a
//! source starts from where each object has lived for some versions.

#[path = "../fixtures/bulk.rs"]
mod bulk;
#[path = "../fixtures/servers.rs"]
mod servers;

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use bytes::Bytes;
use futures::future::try_join_all;
use kubewitness_bench::{JOBS, job, ratio, uid, wanted};
use kubewitness_core::ports::{AppendBatch, StateWitness, WitnessedState};
use kubewitness_core::status::StatusRules;
use kubewitness_core::{Change, ObjectRef, StateId, Version};
use kubewitness_harness::SqlService;
use kubewitness_journal::{Journal, JournalLocation, JournalOptions, ReplicaSharing};

use bulk::Bulk;

const BATCHES: [usize; 4] = [1, 64, 256, 1024];
/// States of one measurement at most, and its end where syncs are slow. Fewer for a first look:
/// `KUBEWITNESS_BENCH_STATES`.
const STATES: usize = 64 * 1024;
const LONGEST: Duration = Duration::from_secs(5);

const OBJECTS: usize = 100_000;
/// Versions of an object: from 1 to this, so that chains are of every length.
const VERSIONS: usize = 12;

fn main() -> Result<()> {
    if !wanted("journal") {
        return Ok(());
    }
    tokio::runtime::Runtime::new()?.block_on(async {
        appends().await?;
        lived_in().await
    })
}

async fn appends() -> Result<()> {
    let states = std::env::var("KUBEWITNESS_BENCH_STATES").map_or(Ok(STATES), |text| text.parse())?;
    println!("journal: states/s at durable settings, by batch, over {JOBS} Jobs of 2.2 KB");
    let folder = tempfile::tempdir()?;
    let file = |name: &str, batch: usize| folder.path().join(format!("{name}-{batch}.db"));
    for batch in BATCHES {
        let ours = ours(&JournalLocation::file(&file("journal", batch)), batch, states).await?;
        let peer = peer(Bulk::sqlite(&file("peer", batch)).await?, batch, states).await?;
        print_figures("SQLite", batch, ours, peer);
    }
    for service in SqlService::ALL {
        let Some(server) = servers::start(service)? else { continue };
        for batch in BATCHES {
            let place = JournalLocation::server(&server.create_database()?).map_err(anyhow::Error::msg)?;
            let ours = ours(&place, batch, states).await?;
            let bulk = Bulk::server(service, &server.create_database()?).await?;
            print_figures(&service.to_string(), batch, ours, peer(bulk, batch, states).await?);
            let place = JournalLocation::server(&server.create_database()?).map_err(anyhow::Error::msg)?;
            let both = by(&replicas(&place).await?, batch, states).await?;
            println!(
                "  {service:<10} batch {batch:>4}  {both:>8.0}  where two witness the same, of one that has it alone: {}",
                ratio(both, ours)
            );
        }
    }
    Ok(())
}

fn print_figures(store: &str, batch: usize, ours: f64, peer: f64) {
    println!(
        "  {store:<10} batch {batch:>4}  {ours:>8.0}  its bulk insert of whole documents {peer:>8.0}  {}",
        ratio(ours, peer)
    );
}

/// The `index`th state of so many Jobs in turn, with the version before.
fn state(rules: &StatusRules, jobs: usize, index: usize) -> WitnessedState {
    let (number, step) = (index % jobs, index / jobs);
    let text = job(number, step, index as u64 + 1);
    let before = step.checked_sub(1).map(|step| Bytes::from(job(number, step, (index - jobs) as u64 + 1)));
    let object = Arc::new(ObjectRef {
        group: "batch".into(),
        version: "v1".into(),
        kind: "Job".into(),
        namespace: format!("team-{}", number % 20),
        name: format!("train-{number:05}"),
        uid: uid(number),
    });
    let version = Version::new(&(index + 1).to_string());
    let status = Arc::new(rules.status_of("batch", "Job", text.as_bytes()));
    WitnessedState {
        id: StateId::of("jobs", 0, &object, Change::Present, &version, None),
        change: Change::Present,
        object,
        owner: None,
        controller: None,
        resource_version: version,
        previous: before.is_some().then(|| status.clone()),
        status,
        observed_ms: 1,
        document: text.into(),
        base: before,
        quotes_none_under: None,
    }
}

fn append(states: Vec<WitnessedState>) -> AppendBatch {
    AppendBatch { source: "jobs".into(), states, ..AppendBatch::default() }
}

async fn ours(place: &JournalLocation, batch: usize, states: usize) -> Result<f64> {
    by(&[Journal::open_at(place, JournalOptions::default()).await?], batch, states).await
}

/// Two that share it.
async fn replicas(place: &JournalLocation) -> Result<[Journal; 2]> {
    let open = async |name: &str| {
        let sharing = Some(ReplicaSharing { name: name.into(), lease: "bench".into() });
        Journal::open_at(place, JournalOptions { sharing, ..JournalOptions::default() }).await
    };
    Ok([open("one").await?, open("two").await?])
}

/// The same by each of them, at the same time.
async fn all(journals: &[Journal], states: Vec<WitnessedState>) -> Result<()> {
    try_join_all(journals.iter().map(|journal| journal.append_batch(append(states.clone())))).await?;
    Ok(())
}

async fn by(journals: &[Journal], batch: usize, states: usize) -> Result<f64> {
    let rules = StatusRules::builtin();
    // Every object is known: a stream is what is measured, and not the list before it.
    for first in (0..JOBS).step_by(500) {
        all(journals, (first..first + 500).map(|index| state(&rules, JOBS, index)).collect()).await?;
    }
    let (mut spent, mut next) = (Duration::ZERO, JOBS);
    while spent < LONGEST && next < JOBS + states {
        let batch: Vec<_> = (next..next + batch).map(|index| state(&rules, JOBS, index)).collect();
        next += batch.len();
        let begun = Instant::now();
        all(journals, batch).await?;
        spent += begun.elapsed();
    }
    for journal in journals {
        journal.close().await?;
    }
    Ok((next - JOBS) as f64 / spent.as_secs_f64())
}

/// Times the simplest way: a row a state, with the document as it is and a key.
async fn peer(mut bulk: Bulk, batch: usize, states: usize) -> Result<f64> {
    let rules = StatusRules::builtin();
    let (mut spent, mut next) = (Duration::ZERO, JOBS);
    while spent < LONGEST && next < JOBS + states {
        let batch: Vec<_> = (next..next + batch).map(|index| state(&rules, JOBS, index)).collect();
        let begun = Instant::now();
        bulk.insert(next, &batch).await?;
        spent += begun.elapsed();
        next += batch.len();
    }
    bulk.close().await?;
    Ok((next - JOBS) as f64 / spent.as_secs_f64())
}

async fn lived_in() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("journal.db");
    let journal = Journal::open(&path, JournalOptions::default()).await?;
    let rules = StatusRules::builtin();
    let mut versions = 0;
    for step in 0..VERSIONS {
        // The first objects have few versions, the last have all.
        let living = OBJECTS * step / VERSIONS..OBJECTS;
        let indexes: Vec<usize> = living.map(|number| step * OBJECTS + number).collect();
        for part in indexes.chunks(1024) {
            let states = part.iter().map(|index| state(&rules, OBJECTS, *index)).collect();
            journal.append_batch(append(states)).await?;
        }
        versions += indexes.len();
    }
    journal.close().await?;
    println!("  {OBJECTS} objects, {versions} versions, the document of each from its last few:");
    let opening = Instant::now();
    let journal = Journal::open(&path, JournalOptions::default()).await?;
    println!("  opening {:>8.0} ms", opening.elapsed().as_secs_f64() * 1000.0);
    let reading = Instant::now();
    let warm = journal.load_warm_start("jobs").await?;
    println!("  reading {:>8.0} ms", reading.elapsed().as_secs_f64() * 1000.0);
    ensure!(warm.objects.len() == OBJECTS, "{} objects are warm", warm.objects.len());
    Ok(journal.close().await?)
}
