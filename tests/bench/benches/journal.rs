//! The journal alone, on a disk: appending at durable settings, in batches as the watch gives them,
//! beside SQLite's own bulk insert of the same states; and reading back what a source starts from
//! where each object has lived for some versions.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use bytes::Bytes;
use kubewitness_bench::{JOBS, job, ratio, uid, wanted};
use kubewitness_core::ports::{Append, Witness, Witnessed};
use kubewitness_core::status::Rules;
use kubewitness_core::{Change, ObjectRef, StateId, Version};
use kubewitness_journal::{Journal, JournalOptions};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqliteSynchronous};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection};

const BATCHES: [usize; 4] = [1, 64, 256, 1024];
/// States of one measurement at most, and its end where syncs are slow.
const STATES: usize = 64 * 1024;
const LONGEST: Duration = Duration::from_secs(5);

const OBJECTS: usize = 100_000;
/// Versions of an object: from 1 to this, so that chains are of every length.
const VERSIONS: usize = 12;

/// Rows of one statement of the peer.
const ROWS: usize = 64;

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
    println!("journal: states/s at durable settings, by batch, over {JOBS} Jobs of 2.2 KB");
    for batch in BATCHES {
        let folder = tempfile::tempdir()?;
        let ours = ours(&folder.path().join("journal.db"), batch).await?;
        let peer = peer(&folder.path().join("peer.db"), batch).await?;
        println!(
            "  batch {batch:>4}  {ours:>8.0}  SQLite's bulk insert of whole documents {peer:>8.0}  {}",
            ratio(ours, peer)
        );
    }
    Ok(())
}

/// The `index`th state of so many Jobs in turn, with the version before.
fn state(rules: &Rules, jobs: usize, index: usize) -> Witnessed {
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
    let status = Arc::new(rules.status("batch", "Job", text.as_bytes()));
    Witnessed {
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
    }
}

fn append(states: Vec<Witnessed>) -> Append {
    Append { source: "jobs".into(), states, ..Append::default() }
}

async fn ours(path: &Path, batch: usize) -> Result<f64> {
    let journal = Journal::open(path, JournalOptions::default()).await?;
    let rules = Rules::builtin();
    // Every object is known: a stream is what is measured, and not the list before it.
    for first in (0..JOBS).step_by(500) {
        journal
            .append(append((first..first + 500).map(|index| state(&rules, JOBS, index)).collect()))
            .await?;
    }
    let (mut spent, mut next) = (Duration::ZERO, JOBS);
    while spent < LONGEST && next < JOBS + STATES {
        let states = (next..next + batch).map(|index| state(&rules, JOBS, index)).collect();
        next += batch;
        let begun = Instant::now();
        journal.append(append(states)).await?;
        spent += begun.elapsed();
    }
    journal.close().await?;
    Ok((next - JOBS) as f64 / spent.as_secs_f64())
}

/// What is simplest: a row a state, with the document as it is and a key.
async fn peer(path: &Path, batch: usize) -> Result<f64> {
    let options = SqliteConnectOptions::new().filename(path).create_if_missing(true);
    let options = options.journal_mode(SqliteJournalMode::Wal).synchronous(SqliteSynchronous::Full);
    let mut connection = options.connect().await?;
    sqlx::raw_sql(
        "CREATE TABLE states (seq INTEGER PRIMARY KEY, version INTEGER NOT NULL, uid TEXT NOT NULL, \
         status TEXT NOT NULL, document BLOB NOT NULL, UNIQUE (version, uid))",
    )
    .execute(&mut connection)
    .await?;
    let rules = Rules::builtin();
    let (mut spent, mut next) = (Duration::ZERO, JOBS);
    while spent < LONGEST && next < JOBS + STATES {
        let states: Vec<_> = (next..next + batch).map(|index| state(&rules, JOBS, index)).collect();
        let begun = Instant::now();
        insert(&mut connection, next, &states).await?;
        next += batch;
        spent += begun.elapsed();
    }
    connection.close().await?;
    Ok((next - JOBS) as f64 / spent.as_secs_f64())
}

async fn insert(connection: &mut SqliteConnection, first: usize, states: &[Witnessed]) -> Result<()> {
    let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await?;
    for (part, states) in states.chunks(ROWS).enumerate() {
        let rows = vec!["(?,?,?,?,?)"; states.len()].join(",");
        let text = format!("INSERT INTO states (seq, version, uid, status, document) VALUES {rows}");
        let mut query = sqlx::query(AssertSqlSafe(text));
        for (index, state) in states.iter().enumerate() {
            let seq = (first + part * ROWS + index) as i64;
            let version: i64 = state.resource_version.as_str().parse()?;
            query = query.bind(seq).bind(version).bind(&state.object.uid);
            query = query.bind(serde_json::to_string(&*state.status)?).bind(&state.document[..]);
        }
        query.execute(&mut *transaction).await?;
    }
    Ok(transaction.commit().await?)
}

async fn lived_in() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("journal.db");
    let journal = Journal::open(&path, JournalOptions::default()).await?;
    let rules = Rules::builtin();
    let mut versions = 0;
    for step in 0..VERSIONS {
        // The first objects have few versions, the last have all.
        let living = OBJECTS * step / VERSIONS..OBJECTS;
        let indexes: Vec<usize> = living.map(|number| step * OBJECTS + number).collect();
        for part in indexes.chunks(1024) {
            let states = part.iter().map(|index| state(&rules, OBJECTS, *index)).collect();
            journal.append(append(states)).await?;
        }
        versions += indexes.len();
    }
    journal.close().await?;
    println!("  {OBJECTS} objects, {versions} versions, the document of each from its last few:");
    let opening = Instant::now();
    let journal = Journal::open(&path, JournalOptions::default()).await?;
    println!("  opening {:>8.0} ms", opening.elapsed().as_secs_f64() * 1000.0);
    let reading = Instant::now();
    let warm = journal.warm("jobs").await?;
    println!("  reading {:>8.0} ms", reading.elapsed().as_secs_f64() * 1000.0);
    ensure!(warm.objects.len() == OBJECTS, "{} objects are warm", warm.objects.len());
    Ok(journal.close().await?)
}
