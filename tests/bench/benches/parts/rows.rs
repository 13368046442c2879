//! The plugin `persistence`: states a second into each database, each as a row of two tables and with its changes of
//! phase in a third, beside that database's own bulk insert of the same states as one short row.

#[path = "../fixtures/bulk.rs"]
mod bulk;
#[path = "../fixtures/granted.rs"]
mod granted;
#[path = "../fixtures/servers.rs"]
mod servers;
#[allow(dead_code, reason = "each benchmark uses its part")]
#[path = "../fixtures/support.rs"]
mod support;

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, anyhow, ensure};
use bytes::Bytes;
use kubewitness_bench::{ratio, wanted};
use kubewitness_capability::OpenCapabilities;
use kubewitness_core::State;
use kubewitness_core::config::{ComponentsSpec, HostSpec, LimitsSpec, PluginSpec};
use kubewitness_core::ports::{PluginHandler, StateDelivery, Verdict, WitnessedState};
use kubewitness_harness::SqlService;
use kubewitness_sandbox::{ComponentCompiler, EngineOptions, SandboxEngine};
use serde_json::{Value, json};

use bulk::Bulk;
use granted::backing;
use support::{component, deliveries, witnessed};

/// As `delivery.batch` of the examples says.
const BATCH: usize = 256;
const JOBS: usize = 2_000;
/// Fewer for a first look: `KUBEWITNESS_BENCH_STATES`.
const STATES: usize = 64 * 1024;

fn main() -> Result<()> {
    if !wanted("rows") {
        return Ok(());
    }
    rustls::crypto::ring::default_provider().install_default().ok();
    tokio::runtime::Runtime::new()?.block_on(run())
}

async fn run() -> Result<()> {
    let states = std::env::var("KUBEWITNESS_BENCH_STATES").map_or(Ok(STATES), |text| text.parse())?;
    println!("rows: {states} states of {JOBS} Jobs, batch {BATCH}, without documents");
    let folder = tempfile::tempdir()?;
    let ours = ours(folder.path(), json!({"sqlite": {"path": "platform.db"}}), states).await?;
    print_figures("SQLite", ours, peer(Bulk::sqlite(&folder.path().join("peer.db")).await?, states).await?);
    for service in SqlService::ALL {
        let Some(server) = servers::start(service)? else { continue };
        let folder = tempfile::tempdir()?;
        let address = folder.path().join("address");
        std::fs::write(&address, server.create_database()?)?;
        let database = json!({service.scheme(): {"urlFrom": {"file": address}}});
        let ours = self::ours(folder.path(), database, states).await?;
        let bulk = Bulk::server(service, &server.create_database()?).await?;
        print_figures(&service.to_string(), ours, peer(bulk, states).await?);
    }
    Ok(())
}

fn print_figures(database: &str, ours: f64, peer: f64) {
    println!(
        "  {database:<10} {ours:>8.0} states/s  its bulk insert {peer:>8.0} states/s  {}",
        ratio(ours, peer)
    );
}

/// States a second through the component, each batch a transaction with its receipt.
async fn ours(folder: &Path, mut database: Value, states: usize) -> Result<f64> {
    database["name"] = "platform".into();
    let host: HostSpec = serde_json::from_value(json!({
        "sources": [{"name": "jobs", "apiVersion": "batch/v1", "kind": "Job"}],
        "databases": [database],
    }))?;
    let spec: PluginSpec = serde_json::from_value(json!({
        "module": {"file": "p.wasm"},
        "subscribe": [{"source": "jobs"}],
        "grants": {"sql": [{"name": "main", "database": "platform"}]},
    }))?;
    let capabilities = OpenCapabilities::open(&host, folder).await.map_err(|faults| anyhow!("{faults:?}"))?;
    let grants = capabilities.grant_plugin("persistence", &spec, backing()).await?;
    let engine = SandboxEngine::new(EngineOptions {
        cache: None,
        compiler: ComponentCompiler::InProcess,
        is_unattended: false,
    })?;
    let component = engine.load(&component("persistence").into(), &ComponentsSpec::default()).await?;
    let plugin = component.make_plugin("persistence", &LimitsSpec::default(), grants)?;
    let all: Vec<_> = deliveries(states, JOBS).iter().map(with_previous).collect();
    let begun = Instant::now();
    for batch in all.chunks(BATCH) {
        let outcome = plugin.handle_batch(batch).await?;
        let is_done = outcome.verdicts.iter().all(|verdict| *verdict == Verdict::Done);
        ensure!(is_done, "{:?}", outcome.verdicts.first());
    }
    Ok(states as f64 / begun.elapsed().as_secs_f64())
}

/// The first state of an object changes its phase, and the others do not.
fn with_previous(delivery: &StateDelivery) -> StateDelivery {
    let state = &*delivery.state;
    let previous = (state.seq as usize > JOBS).then(|| state.status.clone());
    StateDelivery { state: Arc::new(State { previous, ..state.clone() }), ..delivery.clone() }
}

async fn peer(mut bulk: Bulk, states: usize) -> Result<f64> {
    let short =
        |state: WitnessedState| WitnessedState { document: Bytes::from_static(b"{}"), base: None, ..state };
    let all: Vec<WitnessedState> = witnessed(0, states).states.into_iter().map(short).collect();
    let begun = Instant::now();
    for (number, batch) in all.chunks(BATCH).enumerate() {
        bulk.insert(number * BATCH, batch).await?;
    }
    let rate = states as f64 / begun.elapsed().as_secs_f64();
    bulk.close().await?;
    Ok(rate)
}
