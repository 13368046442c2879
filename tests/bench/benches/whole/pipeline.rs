//! The whole way of a state, with the real binary: a canned watch stream of updates of Jobs,
//! served as fast as it is read, through journal, lanes, the persistence plugin and a database:
//! SQLite, PostgreSQL, MariaDB and MySQL, each at durable settings. Prints states a second, bytes on disk a
//! state, processor time a state and peak memory, and what client-go does with an insert for each state into
//! the same kind of database. By turns with SQLite: what client-go does with the same stream and no sink at
//! all.

#[path = "../fixtures/canned.rs"]
mod canned;
#[path = "../fixtures/host.rs"]
mod host;
#[path = "../fixtures/peers.rs"]
mod peers;
#[path = "../fixtures/servers.rs"]
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

/// Of what the goal is about.
const TURNS: usize = 5;

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
    let (ours, peer) = by_turns(updates).await?;
    let mut rates = vec![(format!("{} (goal: 5)", Sink::Sqlite.name()), ours)];
    for service in Service::ALL {
        if let Some(server) = servers::start(service)? {
            let sink = Sink::Server(server);
            let measured = measure(&sink, updates).await?;
            measured.tell(&sink);
            beside(&sink, measured.rate, updates).await?;
            rates.push((sink.name(), measured.rate));
        }
    }
    let Some(peer) = peer else { return Ok(()) };
    println!("  client-go without a sink {peer:>8.0} states/s");
    for (name, rate) in rates {
        println!("    {:<6} ours in {name}", ratio(rate, peer));
    }
    Ok(())
}

/// What a shared machine gives changes from one minute to the next, and with it what either reaches:
/// the medians of both.
async fn by_turns(updates: usize) -> Result<(f64, Option<f64>)> {
    let (mut ours, mut peers) = (Vec::new(), Vec::new());
    for turn in 1..=TURNS {
        let measured = measure(&Sink::Sqlite, updates).await?;
        if ours.is_empty() {
            measured.tell(&Sink::Sqlite);
            beside(&Sink::Sqlite, measured.rate, updates).await?;
        }
        ours.push(measured.rate);
        let Some(peer) = peers::client_go(JOBS, updates, PATIENCE).await? else {
            return Ok((measured.rate, None));
        };
        let ratio = ratio(measured.rate, peer);
        println!(
            "  turn {turn}: ours in SQLite {:>6.0}, client-go {peer:>6.0} states/s  {ratio}",
            measured.rate
        );
        peers.push(peer);
    }
    Ok((median(ours), Some(median(peers))))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// All the way of a stream.
struct Measured {
    /// States a second until they are in the sink, and until they are journaled.
    rate: f64,
    journaled: f64,
    /// Of each state, on disk.
    journal: f64,
    database: Option<f64>,
    busy: Duration,
    peak: u64,
}

async fn measure(sink: &Sink, updates: usize) -> Result<Measured> {
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
    let database = match sink {
        Sink::Sqlite => Some(size(&lab.data().join("platform.db"))? as f64 / total as f64),
        Sink::Server(_) => None,
    };
    let rate = |time: Duration| updates as f64 / time.as_secs_f64();
    Ok(Measured {
        rate: rate(elapsed),
        journaled: rate(witnessed.unwrap_or(elapsed)),
        journal: status["journal"]["bytes"].as_f64().unwrap_or(0.0) / total as f64,
        database,
        busy: busy / u32::try_from(total)?,
        peak,
    })
}

impl Measured {
    fn tell(&self, sink: &Sink) {
        let name = sink.name();
        println!("  in {name} (watch → journal → Wasm persistence → {name})");
        println!("    all the way  {:>10.0} states/s", self.rate);
        println!("    journaled    {:>10.0} states/s", self.journaled);
        println!("    journal      {:>10.0} bytes on disk a state", self.journal);
        if let Some(bytes) = self.database {
            println!("    platform.db  {bytes:>10.0} bytes on disk a state");
        }
        let busy = self.busy.as_secs_f64() * 1e6;
        println!("    processor    {busy:>10.1} µs a state, all threads of ours");
        println!("    peak memory  {:>10.1} MiB", mib(self.peak));
    }
}

/// The design that the field uses, into the same kind of database.
async fn beside(sink: &Sink, ours: f64, updates: usize) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let database = sink.of_peer(folder.path())?;
    if let Some(peer) = peers::client_go_into(FEW_JOBS, updates.min(SYNCED), &database, PATIENCE).await {
        let (name, ratio) = (sink.name(), ratio(ours, peer));
        println!("    client-go → {name} {peer:>4.0} states/s  {ratio} (one insert a state, as durable)");
    }
    Ok(())
}

fn size(path: &Path) -> Result<u64> {
    let wal = path.with_extension("db-wal").metadata().map_or(0, |m| m.len());
    Ok(path.metadata()?.len() + wal)
}
