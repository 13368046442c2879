//! The whole way of a state, with the real binary and the configuration of `deploy/examples`: updates of Jobs over
//! loopback HTTP, as fast as they are read, through the durable journal and the persistence plugin into a database.
//!
//! Each update changes the phase of its Job, and the updates go round all Jobs. So each one writes a row of
//! transitions, and half of them have a status with a reason and a message, in which the controller looks for secrets.
//! With updates that change no phase and say nothing, the same program is several times faster: the figures would be
//! those of a cluster in which nothing happens.
//!
//! | name | measures |
//! |---|---|
//! | `pipeline-sqlite` | SQLite with 5,000, 20,000 and 50,000 Jobs, by turns with client-go, which writes nothing |
//! | `pipeline-servers` | PostgreSQL, MariaDB and MySQL, and client-go with an insert for each state into the same kind |
//! | `pipeline-gate` | SQLite and client-go on a load of seconds; CI compares the ratio of an unoptimised build with the kept one |
//!
//! Time counts from the moment at which the server sends the first update. Before that, all Jobs were listed and
//! delivered, so neither the list nor the compilation of the plugin is in it.

#[path = "../fixtures/canned.rs"]
mod canned;
#[path = "../fixtures/host.rs"]
mod host;
#[path = "../fixtures/peers.rs"]
mod peers;
#[path = "../fixtures/servers.rs"]
mod servers;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use canned::CannedServer;
use host::{BenchHost, HostLab, mib};
use kubewitness_bench::{JOBS, PATIENCE, is_named, median, ratio, updates, wanted};
use kubewitness_figures::record;
use kubewitness_harness::{DatabaseServer, SqlService};
use peers::PeerRun;

/// Jobs that the updates go round. What a state costs grows with them: caches miss, and tables are deeper.
const OBJECTS: [usize; 3] = [JOBS, 20_000, 50_000];
/// A shared machine gives more in one minute than in the next, so each way takes turns with the other.
const TURNS: usize = 3;

/// Few enough for seconds, and enough that the plugin falls behind the states that the journal holds in memory.
const GATE_UPDATES: usize = 12_000;
const GATE_TURNS: usize = 5;

/// Updates of the peer with a database: it syncs for each of them, which takes milliseconds.
const SYNCED: usize = 2_000;
/// Each Job of its list costs as much.
const FEW_JOBS: usize = 100;

/// The variable of the examples with a database server.
const ADDRESS: &str = "PLATFORM_DATABASE";

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

    /// The example for this sink, with a new database.
    fn lab(&self, folder: &Path) -> Result<HostLab> {
        Ok(match self {
            Self::Sqlite => HostLab::example(folder, "jobs-to-sqlite"),
            Self::Server(server) => {
                let example = match server.service() {
                    SqlService::Postgres => "jobs-to-postgres",
                    SqlService::MariaDb | SqlService::MySql => "jobs-to-mysql",
                };
                HostLab::example(folder, example).with_variable(ADDRESS, server.create_database()?)
            }
        })
    }

    /// A new database, as the peer takes its address.
    fn peers_address(&self, folder: &Path) -> Result<String> {
        let Self::Server(server) = self else {
            return Ok(format!("sqlite3:{}", folder.join("peer.db").display()));
        };
        let address = server.create_database()?;
        Ok(match server.service() {
            SqlService::Postgres => format!("postgres:{address}?sslmode=disable"),
            // Its driver writes addresses in a way of its own.
            SqlService::MariaDb | SqlService::MySql => {
                let rest = address.trim_start_matches("mysql://");
                let (user, place) = rest.split_once('@').context("an address with a user")?;
                let (place, database) = place.split_once('/').context("an address with a database")?;
                format!("mysql:{user}@tcp({place})/{database}")
            }
        })
    }
}

fn main() -> Result<()> {
    // Any HTTP client asks for one; installing it twice would be harmless.
    rustls::crypto::ring::default_provider().install_default().ok();
    let runtime = tokio::runtime::Runtime::new()?;
    if is_named("pipeline-gate") {
        return runtime.block_on(gate());
    }
    if wanted("pipeline-sqlite") {
        for objects in OBJECTS {
            runtime.block_on(sqlite(objects, updates()?))?;
        }
    }
    if wanted("pipeline-servers") {
        runtime.block_on(in_servers(updates()?))?;
    }
    Ok(())
}

async fn gate() -> Result<()> {
    println!("pipeline-gate: {GATE_UPDATES} updates of {JOBS} Jobs, {GATE_TURNS} turns");
    let Some(turns) = by_turns(JOBS, GATE_UPDATES, GATE_TURNS).await? else { return Ok(()) };
    record("pipeline.gate.ratio", turns.ratio)
}

async fn sqlite(objects: usize, updates: usize) -> Result<()> {
    let bytes = kubewitness_bench::job(1, 1, 1).len();
    println!(
        "pipeline-sqlite: {updates} updates of {objects} Jobs of {bytes} bytes, deploy/examples/jobs-to-sqlite"
    );
    let Some(turns) = by_turns(objects, updates, TURNS).await? else { return Ok(()) };
    let name = |figure: &str| format!("pipeline.{objects}.{figure}");
    record(&name("rate"), turns.ours)?;
    record(&name("peak"), mib(turns.peak))?;
    record(&name("peer.rate"), turns.peer)?;
    record(&name("peer.peak"), mib(turns.peers_peak))?;
    record(&name("ratio"), turns.ratio)
}

/// Medians, and the most memory of all turns.
struct TurnMedians {
    ours: f64,
    peak: u64,
    peer: f64,
    peers_peak: u64,
    /// The median of the ratio within each turn: whatever else the machine does slows both.
    ratio: f64,
}

/// `None` where there is no client-go.
async fn by_turns(objects: usize, updates: usize, turns: usize) -> Result<Option<TurnMedians>> {
    let mut both = Vec::new();
    for turn in 1..=turns {
        let ours = measure(&Sink::Sqlite, objects, updates).await?;
        if turn == 1 {
            ours.report(&Sink::Sqlite);
        }
        let Some(peer) = peers::client_go(objects, updates, PATIENCE).await? else { return Ok(None) };
        println!(
            "  turn {turn}: ours {:>6.0} states/s, {:>4.0} MiB; client-go {:>6.0} states/s, {:>4.0} MiB  {}",
            ours.rate,
            mib(ours.peak),
            peer.rate,
            mib(peer.peak),
            ratio(ours.rate, peer.rate)
        );
        both.push((ours, peer));
    }
    let of = |figure: fn(&(MeasuredRun, PeerRun)) -> f64| median(both.iter().map(figure).collect());
    let most = |peak: fn(&(MeasuredRun, PeerRun)) -> u64| both.iter().map(peak).max().unwrap_or_default();
    let turns = TurnMedians {
        ours: of(|(ours, _)| ours.rate),
        peak: most(|(ours, _)| ours.peak),
        peer: of(|(_, peer)| peer.rate),
        peers_peak: most(|(_, peer)| peer.peak),
        ratio: of(|(ours, peer)| ours.rate / peer.rate),
    };
    println!("  medians: ours {:.0}, client-go {:.0} states/s  × {:.2}", turns.ours, turns.peer, turns.ratio);
    Ok(Some(turns))
}

async fn in_servers(updates: usize) -> Result<()> {
    println!(
        "pipeline-servers: {updates} updates of {JOBS} Jobs; client-go inserts {SYNCED} updates one by one"
    );
    for service in SqlService::ALL {
        let Some(server) = servers::start(service)? else { continue };
        let sink = Sink::Server(server);
        let ours = measure(&sink, JOBS, updates).await?;
        ours.report(&sink);
        record(&format!("pipeline.{}.rate", service.to_string().to_lowercase()), ours.rate)?;
        let folder = tempfile::tempdir()?;
        let database = sink.peers_address(folder.path())?;
        let synced = updates.min(SYNCED);
        if let Some(peer) = peers::client_go_into(FEW_JOBS, synced, &database, PATIENCE).await? {
            println!("    client-go    {:>10.0} states/s  {}", peer.rate, ratio(ours.rate, peer.rate));
        }
    }
    Ok(())
}

/// One run of the real binary.
struct MeasuredRun {
    /// Updates a second until they are in the sink, and until they are journaled.
    rate: f64,
    journaled: f64,
    /// Bytes on disk for each state.
    journal: f64,
    database: Option<f64>,
    /// Processor time of all threads for each state, the list included.
    busy: Duration,
    /// KiB.
    peak: u64,
}

async fn measure(sink: &Sink, objects: usize, updates: usize) -> Result<MeasuredRun> {
    let folder = tempfile::tempdir()?;
    let canned = CannedServer::with_held_updates(objects, updates).await?;
    let lab = sink.lab(folder.path())?;
    let mut host = lab.start(&canned.kubeconfig(folder.path())?)?;
    until(&mut host, "the list was delivered", |status| delivered(status) >= Some(objects as u64)).await?;
    canned.first_watch(PATIENCE).await?;

    let total = (objects + updates) as u64;
    let begun = canned.release();
    let mut journaled = None;
    let status = until(&mut host, "all updates were delivered", |status| {
        if journaled.is_none() && status["journal"]["states"].as_u64() >= Some(total) {
            journaled = Some(begun.elapsed());
        }
        delivered(status) >= Some(total)
    })
    .await?;
    let elapsed = begun.elapsed();
    let (peak, busy) = (host.memory()?.peak, host.processor_time()?);
    drop(host);
    let database = match sink {
        Sink::Sqlite => Some(size(&lab.data().join("platform.db"))? as f64 / total as f64),
        Sink::Server(_) => None,
    };
    let rate = |time: Duration| updates as f64 / time.as_secs_f64();
    Ok(MeasuredRun {
        rate: rate(elapsed),
        journaled: rate(journaled.unwrap_or(elapsed)),
        journal: status["journal"]["bytes"].as_f64().unwrap_or(0.0) / total as f64,
        database,
        busy: busy / u32::try_from(total)?,
        peak,
    })
}

fn delivered(status: &serde_json::Value) -> Option<u64> {
    status["plugins"][0]["delivered"].as_u64()
}

async fn until(
    host: &mut BenchHost,
    what: &str,
    mut is_so: impl FnMut(&serde_json::Value) -> bool,
) -> Result<serde_json::Value> {
    const PAUSE: Duration = Duration::from_millis(20);
    let begun = Instant::now();
    loop {
        ensure!(begun.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        host.runs()?;
        // It may not listen yet.
        if let Ok(status) = host.status().await
            && is_so(&status)
        {
            return Ok(status);
        }
        tokio::time::sleep(PAUSE).await;
    }
}

impl MeasuredRun {
    fn report(&self, sink: &Sink) {
        println!("  into {}", sink.name());
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

fn size(path: &Path) -> Result<u64> {
    let wal = path.with_extension("db-wal").metadata().map_or(0, |m| m.len());
    Ok(path.metadata()?.len() + wal)
}
