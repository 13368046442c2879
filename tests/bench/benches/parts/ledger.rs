//! Records of an audit trail into a ledger of the host, a batch a call: signed, not signed, and beside them a plain append
//! of the same bytes with a sync for each batch.

#[path = "../fixtures/granted.rs"]
mod granted;

use std::fs::File;
use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use granted::{backing, delivery};
use kubewitness_bench::{ratio, wanted};
use kubewitness_core::Seq;
use kubewitness_core::ports::StateDelivery;
use serde_json::{Value, json};

/// States of one call, as many as a manifest has that says nothing.
const BATCH: u64 = 64;
const ROUND: Duration = Duration::from_secs(2);
/// Each way takes turns with the others, so that a busy disk meets them all.
const ROUNDS: u32 = 5;
/// The example key of RFC 8410.
const KEY: &str = "MC4CAQAwBQYDK2VwBCIEINTuctv5E1hK1bbY8fdp+K06/nwoy/HU++CXqI9EdVhC";

fn main() -> Result<()> {
    if !wanted("ledger") {
        return Ok(());
    }
    rustls::crypto::ring::default_provider().install_default().ok();
    tokio::runtime::Runtime::new()?.block_on(run())
}

async fn run() -> Result<()> {
    println!("ledger: batches of {BATCH} records of {} bytes, each batch synced", record(1).len());
    let (mut signed, mut unsigned, mut plain): (f64, f64, f64) = (0.0, 0.0, 0.0);
    for _ in 0..ROUNDS {
        signed = signed.max(ledger(true).await?);
        unsigned = unsigned.max(ledger(false).await?);
        plain = plain.max(append()?);
    }
    println!("  signed        {signed:>8.0} records/s");
    println!("  not signed    {unsigned:>8.0} records/s  {}", ratio(signed, unsigned));
    println!("  append, fsync {plain:>8.0} records/s  {}", ratio(signed, plain));
    Ok(())
}

/// As long as a line of the audit plugin.
fn record(n: Seq) -> Vec<u8> {
    let hash = format!("{n:064x}");
    let record = json!({"n": n, "prev": hash, "id": format!("jobs/0/batch/Job/00000000-0000-4000-8000-{n:012}/{n}"),
        "seq": n, "source": "jobs", "change": "present", "api_group": "batch", "kind": "Job", "namespace": "team-vision",
        "name": "train-resnet", "uid": "00000000-0000-4000-8000-000000000000", "resource_version": "1", "phase": "Running",
        "reason": "", "observed_at": "2026-11-20T10:00:00.000Z", "document_sha256": hash, "manager": "kubectl",
        "operation": "Apply", "hash": hash});
    record.to_string().into_bytes()
}

/// Records a second.
async fn ledger(is_signed: bool) -> Result<f64> {
    let folder = tempfile::tempdir()?;
    let key = folder.path().join("key");
    std::fs::write(&key, KEY)?;
    let mut trail = json!({"name": "trail", "path": "trail.jsonl"});
    if is_signed {
        trail["signing"] = json!({"key": "seal"});
    }
    let settings = json!({"ledgers": [trail], "keys": [{"name": "seal", "valueFrom": {"file": key}}]});
    let plugin: Value = json!({"grants": {"ledger": [{"name": "trail", "ledger": "trail"}]}});
    let grants = granted::grants(&settings, &plugin, folder.path(), backing()).await?;
    let (began, mut seq) = (Instant::now(), 0);
    while began.elapsed() < ROUND {
        let batch: Vec<StateDelivery> = (seq + 1..=seq + BATCH).map(delivery).collect();
        let mut session = grants.open(&batch).await?;
        session.ledger_last("trail").await?;
        session.ledger_append("trail", (seq + 1..=seq + BATCH).map(record).collect()).await?;
        session.commit_effects(&batch.iter().map(|one| one.state.seq).collect::<Vec<_>>()).await?;
        seq += BATCH;
    }
    let rate = seq as f64 / began.elapsed().as_secs_f64();
    let text = std::fs::read_to_string(folder.path().join("trail.jsonl"))?;
    ensure!(is_signed == text.contains("\"signature\""), "roots stand in a signed ledger alone");
    Ok(rate)
}

fn append() -> Result<f64> {
    let folder = tempfile::tempdir()?;
    let mut file = File::options().append(true).create(true).open(folder.path().join("plain"))?;
    let (began, mut seq) = (Instant::now(), 0);
    while began.elapsed() < ROUND {
        let mut bytes = Vec::new();
        for n in seq + 1..=seq + BATCH {
            bytes.extend(record(n));
            bytes.push(b'\n');
        }
        file.write_all(&bytes)?;
        file.sync_data()?;
        seq += BATCH;
    }
    Ok(seq as f64 / began.elapsed().as_secs_f64())
}
