//! Many plugins in the real binary: how long a start takes with ten whose code is cached, and what two hundred hold.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use kubewitness_bench::PATIENCE;

use crate::canned::CannedServer;
use crate::host::{BenchHost, HostLab, MemoryUse, mib, plugin, settings};
use crate::instances::{BareWasmtime, plain};
use crate::support::component;

const STARTS: usize = 7;
const TEN: usize = 10;
const MANY: usize = 200;
/// So many different components beside the many plugins of one.
const DIFFERENT: usize = 20;
pub const JOBS: usize = 10;
const START_GOAL_MS: f64 = 300.0;
const MEMORY_GOAL_MIB: f64 = 400.0;
const EACH_GOAL_MIB: f64 = 1.0;
/// At rest is what didn't move by more than this many KiB in a while.
const STILL: u64 = 512;
const WHILE: Duration = Duration::from_secs(3);

/// Ten plugins of ten components.
pub async fn start() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let canned = CannedServer::start(JOBS, 0).await?;
    let kubeconfig = canned.kubeconfig(folder.path())?;
    let none = lab(&folder.path().join("none"), 0, 0)?;
    let ten = lab(&folder.path().join("ten"), TEN, TEN)?;
    let mut medians = Vec::new();
    println!("plugins: a start until all are active, the median of {STARTS}");
    for (what, lab, plugins) in [("peer: no plugin", &none, 0), ("ten, cached", &ten, TEN)] {
        // The first start compiles.
        let (first, host) = until_active(lab, &kubeconfig, plugins).await?;
        drop(host);
        let mut times = Vec::new();
        for _ in 0..STARTS {
            times.push(until_active(lab, &kubeconfig, plugins).await?.0);
        }
        times.sort_unstable();
        let median = ms(times[STARTS / 2]);
        println!("  {what:<16} {median:>8.0} ms (first, not cached: {:.0} ms)", ms(first));
        medians.push(median);
    }
    let more = medians[1] - medians[0];
    println!(
        "  ten plugins add  {more:>8.0} ms; goal: at most {START_GOAL_MS} ms with ten: {}",
        goal_text(medians[1], START_GOAL_MS)
    );
    Ok(())
}

pub async fn memory() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let canned = CannedServer::start(JOBS, 0).await?;
    let kubeconfig = canned.kubeconfig(folder.path())?;
    println!("plugins: memory at rest, each plugin has handled {JOBS} states and has an instance");
    let mut resident = Vec::new();
    for (what, plugins, different) in [
        ("none", 0, 0),
        ("one", 1, 1),
        ("many of one component", MANY, 1),
        ("of as many components", 1 + DIFFERENT, 1 + DIFFERENT),
    ] {
        let lab = lab(&folder.path().join(what.replace(' ', "-")), plugins, different)?;
        // Memory that compiling took is not what plugins hold.
        drop(until_active(&lab, &kubeconfig, plugins).await?);
        let (_, host) = until_active(&lab, &kubeconfig, plugins).await?;
        let memory = rest(&host).await?;
        resident.push(mib(memory.resident));
        println!(
            "  {plugins:>3} plugins, {what:<22} {:>7.1} MiB ({:.1} at most)",
            mib(memory.resident),
            mib(memory.peak)
        );
    }
    // What the first one adds serves all.
    let each = |place: usize, more: usize| (resident[place] - resident[1]) / more as f64;
    let (same, other) = (each(2, MANY - 1), each(3, DIFFERENT));
    println!("  one more of the same component {same:>7.2} MiB");
    println!("  one more of another component  {other:>7.2} MiB");
    println!("  peer: wasmtime alone, one more component with an instance {:>6.2} MiB", peer().await?);
    println!("  goal: {MANY} in at most {MEMORY_GOAL_MIB} MiB: {}", goal_text(resident[2], MEMORY_GOAL_MIB));
    println!("  goal: at most {EACH_GOAL_MIB} MiB an idle plugin: {}", goal_text(other, EACH_GOAL_MIB));
    Ok(())
}

pub fn goal_text(figure: f64, goal: f64) -> &'static str {
    if figure <= goal { "held" } else { "NOT held" }
}

/// One more component with an instance, in this process.
async fn peer() -> Result<f64> {
    let alone = BareWasmtime::new(&component("audit")).map_err(plain)?;
    let mut all = Vec::with_capacity(DIFFERENT);
    let before = MemoryUse::of(std::process::id())?.resident;
    for _ in 0..DIFFERENT {
        let another = alone.once_more().map_err(plain)?;
        let instance = another.instance().await.map_err(plain)?;
        all.push((another, instance));
    }
    let after = MemoryUse::of(std::process::id())?.resident;
    Ok(mib(after.saturating_sub(before)) / all.len() as f64)
}

/// The plugins take turns with these many components, which differ by a custom section at their end.
fn lab(folder: &Path, plugins: usize, different: usize) -> Result<HostLab> {
    let names: Vec<_> = (0..plugins).map(|number| format!("plugin-{number:03}")).collect();
    let ledgers: Vec<_> = names.iter().map(|name| format!("{{name: {name}, path: {name}.jsonl}}")).collect();
    let sources = "sources: [{name: jobs, apiVersion: batch/v1, kind: Job}]";
    let mut manifests = vec![settings(&format!("{sources}\nledgers: [{}]", ledgers.join(", ")))];
    for (number, name) in names.iter().enumerate() {
        let spec = format!(
            "subscribe: [{{source: jobs, mode: every, start: beginning}}]\ngrants: {{ledger: [{{name: trail, ledger: {name}}}]}}"
        );
        manifests.push(plugin(name, &format!("audit-{}", number % different), &spec));
    }
    let lab = HostLab::new(folder, &manifests)?;
    for number in 0..different {
        let file = folder.join("config").join(format!("audit-{number}.wasm"));
        std::fs::write(file, another(component("audit"), number))?;
    }
    Ok(lab)
}

/// The same component with other bytes.
pub fn another(mut component: Vec<u8>, number: usize) -> Vec<u8> {
    let name = format!("number-{number}");
    let length = u8::try_from(name.len()).unwrap_or(u8::MAX);
    component.extend([0, length + 1, length]);
    component.extend(name.as_bytes());
    component
}

pub async fn until_active(lab: &HostLab, kubeconfig: &Path, plugins: usize) -> Result<(Duration, BenchHost)> {
    let started = Instant::now();
    let mut host = lab.start(kubeconfig)?;
    loop {
        ensure!(started.elapsed() < PATIENCE, "not active after {PATIENCE:?}");
        host.runs()?;
        tokio::time::sleep(Duration::from_millis(1)).await;
        // It may not listen yet.
        let Ok(status) = host.status().await else { continue };
        let is_active =
            |it: &serde_json::Value| it["state"] == "active" && it["delivered"].as_u64() == Some(JOBS as u64);
        let all = status["plugins"].as_array().map(Vec::as_slice).unwrap_or_default();
        if status["sources"][0]["synced"] == true && all.len() == plugins && all.iter().all(is_active) {
            return Ok((started.elapsed(), host));
        }
    }
}

pub async fn rest(host: &BenchHost) -> Result<MemoryUse> {
    let started = Instant::now();
    let mut before = host.memory()?;
    loop {
        ensure!(started.elapsed() < PATIENCE, "never at rest in {PATIENCE:?}");
        tokio::time::sleep(WHILE).await;
        let now = host.memory()?;
        if now.resident.abs_diff(before.resident) <= STILL {
            return Ok(now);
        }
        before = now;
    }
}

pub fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}
