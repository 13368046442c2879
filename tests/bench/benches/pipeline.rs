//! The whole way of a state, with the real binary: a canned watch stream of updates of Jobs,
//! served as fast as it is read, through journal, lanes, the persistence plugin and a database:
//! SQLite, PostgreSQL, MariaDB and MySQL, each at durable settings. Prints states a second, bytes on disk a
//! state, processor time a state and peak memory; then what client-go does with the same stream and
//! no sink at all, and with an insert for each state into the same kind of database.

mod canned;
mod host;
mod peers;
mod servers;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use canned::Canned;
use host::{Lab, mib, plugin, settings};
use kubewitness_bench::{JOBS, PATIENCE, ratio, updates, wanted};
use kubewitness_harness::{DatabaseServer, Service};

const PERSISTENCE: &str = "subscribe: [{source: jobs, mode: every, start: beginning}]
grants: {sql: [{name: main, database: platform}]}
delivery: {batch: 1024}";

/// Updates of the peer that syncs each state: it takes milliseconds for each.
const SYNCED: usize = 2_000;
/// And few Jobs: each of the list costs it as much.
const FEW_JOBS: usize = 100;

/// Where states go.
enum Sink {
    Sqlite,
    Server(DatabaseServer),
}

impl Sink {
    fn name(&self) -> String {
        match self {
            Self::Sqlite => "SQLite".into(),
            Self::Server(server) => server.service().to_string(),
        }
    }

    /// The host's settings, with a new database.
    fn settings(&self, folder: &Path) -> Result<String> {
        let database = match self {
            Self::Sqlite => "sqlite: {path: platform.db}".to_owned(),
            Self::Server(server) => {
                let address = folder.join("address");
                std::fs::write(&address, server.create_database()?)?;
                let kind = server.service().scheme();
                format!("{kind}: {{urlFrom: {{file: {}}}}}", address.display())
            }
        };
        let sources = "sources: [{name: jobs, apiVersion: batch/v1, kind: Job}]";
        Ok(settings(&format!("{sources}\ndatabases: [{{name: platform, {database}}}]")))
    }

    /// A new database as the peer is told of it.
    fn of_peer(&self, folder: &Path) -> Result<String> {
        Ok(match self {
            Self::Sqlite => format!("sqlite3:{}", folder.join("peer.db").display()),
            Self::Server(server) => {
                let address = server.create_database()?;
                match server.service() {
                    Service::Postgres => format!("postgres:{address}?sslmode=disable"),
                    // The driver has an address of its own kind.
                    Service::MariaDb | Service::MySql => {
                        let rest = address.trim_start_matches("mysql://");
                        let (user, place) = rest.split_once('@').context("an address with a user")?;
                        let (place, database) =
                            place.split_once('/').context("an address with a database")?;
                        format!("mysql:{user}@tcp({place})/{database}")
                    }
                }
            }
        })
    }
}

fn main() -> Result<()> {
    if !wanted("pipeline") {
        return Ok(());
    }
    // Any HTTP client asks for one; installing it twice would be harmless.
    rustls::crypto::ring::default_provider().install_default().ok();
    tokio::runtime::Runtime::new()?.block_on(run(updates()?))
}

async fn run(updates: usize) -> Result<()> {
    println!("pipeline: {updates} updates of {JOBS} Jobs of {} bytes", kubewitness_bench::job(1, 1, 1).len());
    let mut rates = vec![measure(&Sink::Sqlite, updates).await?];
    for service in Service::ALL {
        if let Some(server) = servers::start(service)? {
            rates.push(measure(&Sink::Server(server), updates).await?);
        }
    }
    if let Some(peer) = peers::client_go(JOBS, updates, PATIENCE).await? {
        println!("  client-go without a sink {peer:>8.0} states/s");
        for (name, rate) in rates {
            let goal = if name == "SQLite" { " (goal: 5)" } else { "" };
            println!("    ours in {name:<10} {}{goal}", ratio(rate, peer));
        }
    }
    Ok(())
}

/// States a second until they are in the sink.
async fn measure(sink: &Sink, updates: usize) -> Result<(String, f64)> {
    let folder = tempfile::tempdir()?;
    let canned = Canned::start(JOBS, updates).await?;
    let manifests = [sink.settings(folder.path())?, plugin("persistence", "persistence", PERSISTENCE)];
    let lab = Lab::new(folder.path(), &manifests)?;
    let mut host = lab.start(&canned.kubeconfig(folder.path())?)?;

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
    let (peak, busy) = (host.memory()?.peak, host.processor_time()?);
    drop(host);
    let (name, rate) = (sink.name(), |time: Duration| updates as f64 / time.as_secs_f64());
    println!("  in {name} (watch → journal → Wasm persistence → {name})");
    println!("    all the way  {:>10.0} states/s", rate(elapsed));
    println!("    journaled    {:>10.0} states/s", rate(witnessed.unwrap_or(elapsed)));
    println!(
        "    journal      {:>10.0} bytes on disk a state",
        status["journal"]["bytes"].as_f64().unwrap_or(0.0) / total as f64
    );
    if let Sink::Sqlite = sink {
        let bytes = size(&lab.data().join("platform.db"))?;
        println!("    platform.db  {:>10.0} bytes on disk a state", bytes as f64 / total as f64);
    }
    println!(
        "    processor    {:>10.1} µs a state, all threads of ours",
        busy.as_secs_f64() * 1e6 / total as f64
    );
    println!("    peak memory  {:>10.1} MiB", mib(peak));
    let database = sink.of_peer(folder.path())?;
    if let Some(peer) = peers::client_go_into(FEW_JOBS, updates.min(SYNCED), &database, PATIENCE).await {
        let ratio = ratio(rate(elapsed), peer);
        println!("    client-go → {name} {peer:>4.0} states/s  {ratio} (one insert a state, as durable)");
    }
    Ok((name, rate(elapsed)))
}

fn size(path: &Path) -> Result<u64> {
    let wal = path.with_extension("db-wal").metadata().map_or(0, |m| m.len());
    Ok(path.metadata()?.len() + wal)
}
