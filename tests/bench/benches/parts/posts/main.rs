//! The cost of notes: a plugin's request is noted in the journal before it is sent, and its answer after
//! that. The same requests without notes are the peer.
//!
//! Receivers answer at once, which only loopback does, or after a few milliseconds as real ones do; the notes
//! cost most, relative to the whole, in the first case.
//!
//! The first part measures the way of a state from the journal through the dispatcher and the notification
//! plugin to the receiver, the second part the requests of calls alone.

#[path = "../../fixtures/granted.rs"]
mod granted;
mod plugin;
#[path = "../../fixtures/subscribed.rs"]
mod subscribed;
#[allow(dead_code, reason = "each benchmark uses its part")]
#[path = "../../fixtures/support.rs"]
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use futures::future::{try_join, try_join_all};
use granted::{NoJournal, backing, delivery};
use kubewitness_bench::wanted;
use kubewitness_capability::PluginServices;
use kubewitness_core::Seq;
use kubewitness_core::ports::{
    Backlog, GrantProvider, HttpRequest, KvWrite, NoteStore, PluginProgress, ProgressSave, StateDelivery,
};
use kubewitness_journal::{Journal, JournalOptions};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Mutex;

/// States of one call, each with a request of its own, as the notification plugin makes them.
const BATCH: u64 = 16;
/// Calls at once: what a manifest has that says nothing.
const CALLS: u64 = 4;
const ROUND: Duration = Duration::from_secs(3);
/// As often as a busy plugin's progress is saved.
const SAVE_EVERY: Duration = Duration::from_millis(50);
/// How long receivers take.
const ANSWERS: [u64; 4] = [0, 2, 10, 50];

fn main() -> Result<()> {
    if !wanted("posts") {
        return Ok(());
    }
    rustls::crypto::ring::default_provider().install_default().ok();
    tokio::runtime::Runtime::new()?.block_on(run())
}

async fn run() -> Result<()> {
    let plugin = plugin::PostPlugin::load().await?;
    println!("posts: the notification plugin with {} new Jobs, journal in SQLite", plugin::JOBS);
    // With slower receivers, a round would take minutes.
    for millis in ANSWERS.into_iter().take_while(|millis| *millis <= 10) {
        // In turn, since machines are noisy.
        let (mut noted, mut bare) = (0.0_f64, 0.0_f64);
        for _ in 0..plugin::ROUNDS {
            noted = noted.max(plugin.rate(millis, true).await?);
            bare = bare.max(plugin.rate(millis, false).await?);
        }
        report(millis, noted, bare, " (goal: 80)");
    }
    println!("posts: requests alone, {CALLS} calls at once, {BATCH} requests each");
    for millis in ANSWERS {
        report(millis, rate(millis, true).await?, rate(millis, false).await?, "");
    }
    Ok(())
}

fn report(millis: u64, noted: f64, bare: f64, goal: &str) {
    let share = 100.0 * noted / bare;
    println!(
        "  answer after {millis:>2} ms  noted {noted:>6.0} posts/s  not noted {bare:>6.0} posts/s  {share:>4.0} %{goal}"
    );
}

/// Posts a second.
async fn rate(millis: u64, is_noted: bool) -> Result<f64> {
    let folder = tempfile::tempdir()?;
    let journal = Journal::open(&folder.path().join("journal.db"), JournalOptions::default()).await?;
    let notes: Arc<dyn NoteStore> = if is_noted { Arc::new(journal.clone()) } else { Arc::new(NoJournal) };
    let url = receive(Duration::from_millis(millis), Arc::default()).await?;
    let destinations = json!({"destinations": [{"name": "people", "url": url}]});
    let plugin = json!({"grants": {"http": [{"name": "people", "destination": "people"}]}});
    let backing = PluginServices { notes, ..backing() };
    let grants = granted::grants(&destinations, &plugin, folder.path(), backing).await?;
    let owed = Mutex::new(Vec::new());
    let until = Instant::now() + ROUND;
    let calls = try_join_all((0..CALLS).map(|call| call_until(until, call, &*grants, &owed)));
    let (posts, ()) = try_join(calls, save_until(until, &journal, &owed)).await?;
    journal.close().await?;
    Ok(posts.iter().sum::<u64>() as f64 / ROUND.as_secs_f64())
}

/// One call after the other; answers how many requests they made.
async fn call_until(
    until: Instant,
    call: u64,
    grants: &dyn GrantProvider,
    owed: &Mutex<Vec<KvWrite>>,
) -> Result<u64> {
    let (mut posts, mut seq) = (0, call * 1_000_000);
    while Instant::now() < until {
        let batch: Vec<StateDelivery> = (seq + 1..=seq + BATCH).map(delivery).collect();
        seq += BATCH;
        let mut session = grants.open(&batch).await?;
        for StateDelivery { state, .. } in &batch {
            let headers = vec![("idempotency-key".to_owned(), state.id.as_str().to_owned())];
            let body = vec![b'x'; 400];
            session
                .http_send(
                    "people",
                    HttpRequest { method: "POST".into(), path: String::new(), headers, body },
                )
                .await?;
            posts += 1;
        }
        let done: Vec<Seq> = batch.iter().map(|one| one.state.seq).collect();
        let writes = session.commit_effects(&done).await?;
        owed.lock().await.extend(writes.take());
    }
    Ok(posts)
}

/// As the dispatcher saves a plugin's progress.
async fn save_until(until: Instant, journal: &Journal, owed: &Mutex<Vec<KvWrite>>) -> Result<()> {
    while Instant::now() < until {
        tokio::time::sleep(SAVE_EVERY).await;
        let kv = std::mem::take(&mut *owed.lock().await);
        journal
            .save(
                "bench",
                ProgressSave { progress: PluginProgress::default(), kv, ..ProgressSave::default() },
            )
            .await?;
    }
    Ok(())
}

/// A receiver of HTTP/1.1 that does nothing but count and answer.
#[allow(clippy::disallowed_methods)]
async fn receive(after: Duration, count: Arc<AtomicUsize>) -> Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(answer(stream, after, count.clone()));
        }
    });
    Ok(format!("http://{address}"))
}

async fn answer(mut stream: TcpStream, after: Duration, count: Arc<AtomicUsize>) -> Result<()> {
    stream.set_nodelay(true)?;
    let mut read = Vec::new();
    loop {
        let Some(head) = read.windows(4).position(|end| end == b"\r\n\r\n") else {
            if stream.read_buf(&mut read).await? == 0 {
                return Ok(());
            }
            continue;
        };
        let text = std::str::from_utf8(&read[..head])?.to_ascii_lowercase();
        let length = text.lines().find_map(|line| line.strip_prefix("content-length:"));
        let length: usize = length.context("a request without a length")?.trim().parse()?;
        while read.len() < head + 4 + length {
            stream.read_buf(&mut read).await?;
        }
        read.drain(..head + 4 + length);
        count.fetch_add(1, Ordering::SeqCst);
        if !after.is_zero() {
            tokio::time::sleep(after).await;
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await?;
    }
}
