//! A sink that is down behind 100,000 states, with the real binary: what memory does meanwhile, how
//! far the other plugin is behind, and how fast the backlog drains once the sink is back, beside the
//! speed at which the same sink is fed while it is there.

#[path = "../fixtures/canned.rs"]
mod canned;
#[path = "../fixtures/host.rs"]
mod host;
#[path = "../fixtures/servers.rs"]
mod servers;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use canned::CannedServer;
use host::{BenchHost, HostLab, mib, plugin, plugin_of, settings};
use kubewitness_bench::{PATIENCE, ratio, wanted};
use kubewitness_harness::{DatabaseServer, SqlService};

const JOBS: usize = 1_000;
/// While the sink is down, and again while it is there. Fewer for a first look:
/// `KUBEWITNESS_BENCH_BACKLOG`.
const BACKLOG: usize = 100_000;
/// The slices of the backlog that come at once, and how far apart they come: some thousand states a second,
/// which no plugin is overrun by.
const SLICES: usize = 100;
const APART: Duration = Duration::from_millis(200);
/// Lines that are printed of it.
const LINES: usize = 10;
/// Memory may move by this much, and is flat.
const FLAT: u64 = 16 * 1024;

const SINK: &str = "subscribe: [{source: jobs, mode: every, start: beginning}]
grants: {sql: [{name: main, database: platform}]}
delivery: {batch: 1024}";
const OTHER: &str = "subscribe: [{source: jobs, mode: every, start: beginning}]
grants: {ledger: [{name: trail, ledger: trail}]}
delivery: {batch: 1024}";

fn main() -> Result<()> {
    if !wanted("sinkdown") {
        return Ok(());
    }
    // Any HTTP client asks for one; installing it twice would be harmless.
    rustls::crypto::ring::default_provider().install_default().ok();
    let backlog = std::env::var("KUBEWITNESS_BENCH_BACKLOG").map_or(Ok(BACKLOG), |text| text.parse())?;
    tokio::runtime::Runtime::new()?.block_on(async {
        for service in SqlService::ALL {
            println!("sinkdown: {backlog} updates of {JOBS} Jobs while {service} is down");
            if let Some(server) = servers::start(service)? {
                run(server, backlog).await?;
            }
        }
        Ok(())
    })
}

async fn run(mut server: DatabaseServer, backlog: usize) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let address = folder.path().join("address");
    std::fs::write(&address, server.create_database()?)?;
    let kind = server.service().scheme();
    let spec = format!(
        "sources: [{{name: jobs, apiVersion: batch/v1, kind: Job}}]\n\
         databases: [{{name: platform, {kind}: {{urlFrom: {{file: {}}}}}}}]\n\
         ledgers: [{{name: trail, path: trail.jsonl}}]",
        address.display()
    );
    let manifests = [settings(&spec), plugin("sink", "persistence", SINK), plugin("other", "audit", OTHER)];
    let lab = HostLab::new(folder.path(), &manifests)?;
    let canned = CannedServer::paced(JOBS, 2 * backlog).await?;
    let host = lab.start(&canned.kubeconfig(folder.path())?)?;
    until(&host, "the list is delivered", |state| state.sink >= JOBS && state.other >= JOBS).await?;

    server.stop_at_once()?;
    let down = while_down(&host, &canned, backlog).await?;
    server.start_again()?;
    let all = JOBS + backlog;
    let begun = Instant::now();
    let first = until(&host, "the sink takes states again", |state| state.sink > JOBS).await?;
    let (heard, since) = (begun.elapsed(), Instant::now());
    until(&host, "the backlog is drained", |state| state.sink >= all).await?;
    let drained = (all - first.sink) as f64 / since.elapsed().as_secs_f64();
    println!(
        "  the sink is back: heard of within {:.1} s, drained at {drained:.0} states/s",
        heard.as_secs_f64()
    );

    canned.send(backlog);
    let begun = Instant::now();
    let end = until(&host, "all is delivered", |state| state.sink >= all + backlog).await?;
    let there = backlog as f64 / begun.elapsed().as_secs_f64();
    println!(
        "  with the sink there, the same from the server: {there:.0} states/s; draining {}",
        ratio(drained, there)
    );
    println!("  dead letters {}, peak memory {:.1} MiB", end.dead, mib(host.memory()?.peak));
    let verdict = if down.grown <= FLAT { "flat" } else { "NOT flat" };
    println!(
        "  memory while it was down: {verdict} ({:.1} MiB between the first tenth and the most)",
        mib(down.grown)
    );
    ensure!(end.dead == 0, "a sink that is down costs no state a try");
    Ok(())
}

/// The status at one moment.
#[derive(Clone, Copy, Debug, Default)]
struct StatusMoment {
    sink: usize,
    other: usize,
    dead: usize,
    /// The lag of the other plugin, in positions and seconds.
    lag: usize,
    lag_seconds: f64,
}

async fn look(host: &BenchHost) -> Result<StatusMoment> {
    let status = host.status().await?;
    let count = |name: &str, figure: &str| {
        plugin_of(&status, name).and_then(|plugin| plugin[figure].as_u64()).unwrap_or_default() as usize
    };
    Ok(StatusMoment {
        sink: count("sink", "delivered"),
        other: count("other", "delivered"),
        dead: count("sink", "dead") + count("other", "dead"),
        lag: count("other", "lag_seq"),
        lag_seconds: plugin_of(&status, "other")
            .and_then(|plugin| plugin["lag_seconds"].as_f64())
            .unwrap_or_default(),
    })
}

async fn until(host: &BenchHost, what: &str, is_so: impl Fn(&StatusMoment) -> bool) -> Result<StatusMoment> {
    let begun = Instant::now();
    loop {
        // It may not listen yet.
        let moment = look(host).await.unwrap_or_default();
        if is_so(&moment) {
            return Ok(moment);
        }
        ensure!(begun.elapsed() < PATIENCE, "never in {PATIENCE:?}: {what} ({moment:?})");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The change of memory while the sink was down.
struct DownMemory {
    /// KiB, from when a tenth of the backlog was there.
    grown: u64,
}

async fn while_down(host: &BenchHost, canned: &CannedServer, backlog: usize) -> Result<DownMemory> {
    println!("  {:>9}  {:>12}  {:>22}", "backlog", "memory", "the other plugin's lag");
    let (mut first, mut most, mut sent) = (None, 0, 0);
    for slice in 1..=SLICES {
        let more = backlog * slice / SLICES - sent;
        canned.send(more);
        sent += more;
        tokio::time::sleep(APART).await;
        let (memory, moment) = (host.memory()?.resident, look(host).await?);
        if slice.is_multiple_of(SLICES / LINES) {
            println!(
                "  {sent:>9}  {:>8.1} MiB  {:>9} / {:>7.3} s",
                mib(memory),
                moment.lag,
                moment.lag_seconds
            );
        }
        if slice >= SLICES / LINES {
            first.get_or_insert(memory);
            most = most.max(memory);
        }
    }
    let begun = Instant::now();
    let end = until(host, "the other plugin is through", |state| state.other >= JOBS + backlog).await?;
    println!("  the other plugin was through {:.2} s after the last state", begun.elapsed().as_secs_f64());
    ensure!(end.sink < JOBS + backlog, "the sink was down, and yet it took everything");
    Ok(DownMemory { grown: most.saturating_sub(first.context("a tenth of it")?) })
}
