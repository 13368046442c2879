//! The whole way of a state, with the real binary: a canned watch stream of updates of Jobs,
//! served as fast as it is read, through journal, lanes, the persistence plugin and SQLite.
//! Prints states a second, bytes on disk a state and peak memory.

mod canned;

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use canned::Canned;

const JOBS: usize = 5_000;
const UPDATES: usize = 200_000;
/// Far more than the slowest machine needs; it only ends what hangs.
const PATIENCE: Duration = Duration::from_secs(600);

const HOST: &str = r#"kind: ConfigMap
metadata: {name: host, labels: {kubewitness.dev/host: "true"}}
data:
  host.yaml: |
    apiVersion: kubewitness.dev/v1alpha1
    kind: Host
    metadata: {name: host}
    spec:
      sources: [{name: jobs, apiVersion: batch/v1, kind: Job}]
      databases: [{name: platform, sqlite: {path: platform.db}}]
---
kind: ConfigMap
metadata: {name: persistence, labels: {kubewitness.dev/plugin: "true"}}
data:
  plugin.yaml: |
    apiVersion: kubewitness.dev/v1alpha1
    kind: Plugin
    metadata: {name: persistence}
    spec:
      module: {file: persistence.wasm}
      subscribe: [{source: jobs, mode: every, start: beginning}]
      grants: {sql: [{name: main, database: platform}]}
      delivery: {batch: 256}
"#;

fn main() -> Result<()> {
    // `cargo bench -- FILTER` names other benchmarks; this one has one name.
    let filter = std::env::args().skip(1).find(|arg| !arg.starts_with('-'));
    if filter.is_some_and(|filter| !"pipeline".contains(&filter)) {
        return Ok(());
    }
    let scale: usize = std::env::var("KUBEWITNESS_BENCH_UPDATES").map_or(Ok(UPDATES), |text| text.parse())?;
    // Any HTTP client asks for one; installing it twice would be harmless.
    rustls::crypto::ring::default_provider().install_default().ok();
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(run(scale))
}

async fn run(updates: usize) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let canned = Canned::start(JOBS, updates).await?;
    let config = folder.path().join("config");
    std::fs::create_dir(&config)?;
    std::fs::write(config.join("all.yaml"), HOST)?;
    let kubeconfig = folder.path().join("kubeconfig");
    std::fs::write(&kubeconfig, canned.kubeconfig())?;
    let data = folder.path().join("data");
    let mut host = Host(start(&kubeconfig, &config, &data)?);

    let total = (JOBS + updates) as u64;
    let started = canned.first_watch(PATIENCE).await.context("the host never watched: see its log above")?;
    let mut witnessed = None;
    let status = loop {
        ensure!(started.elapsed() < PATIENCE, "not done after {PATIENCE:?}");
        if let Some(code) = host.0.try_wait()? {
            bail!("the host ended with {code}");
        }
        let Ok(status) = status().await else {
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
    let peak = peak_memory(host.0.id())?;
    let rate = |time: Duration| updates as f64 / time.as_secs_f64();
    println!("pipeline: {updates} updates of {JOBS} Jobs of {} bytes", kubewitness_bench::job(1, 1, 1).len());
    println!("  journaled    {:>10.0} states/s", rate(witnessed.unwrap_or(elapsed)));
    println!("  in SQLite    {:>10.0} states/s (watch → journal → Wasm persistence → SQLite)", rate(elapsed));
    println!(
        "  journal      {:>10.0} bytes on disk a state",
        status["journal"]["bytes"].as_f64().unwrap_or(0.0) / total as f64
    );
    println!(
        "  platform.db  {:>10.0} bytes on disk a state",
        size(&data.join("platform.db"))? as f64 / total as f64
    );
    println!("  peak memory  {:>10.1} MiB", peak as f64 / 1024.0);
    Ok(())
}

/// Ended whatever happens.
struct Host(Child);

impl Drop for Host {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

fn start(kubeconfig: &Path, config: &Path, data: &Path) -> Result<Child> {
    let binary = std::env::var_os("KUBEWITNESS_BIN_DIR").context("run it with `cargo xtask bench`")?;
    let listening = format!("127.0.0.1:{PORT}");
    Command::new(Path::new(&binary).join("kubewitness"))
        .args(["run", "--log", "warn", "--listen", &listening, "--kubeconfig"])
        .arg(kubeconfig)
        .arg("--config")
        .arg(config)
        .arg("--data")
        .arg(data)
        .stdout(Stdio::null())
        .spawn()
        .context("starting kubewitness")
}

/// Not the default, so that a playground beside the benchmark is not asked instead.
const PORT: u16 = 18_787;

async fn status() -> Result<serde_json::Value> {
    let answer = reqwest::get(format!("http://127.0.0.1:{PORT}/api/v1/status")).await?;
    Ok(answer.json().await?)
}

/// KiB, as the kernel counted it.
fn peak_memory(pid: u32) -> Result<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM")?;
    Ok(line.trim().trim_end_matches(" kB").trim().parse()?)
}

fn size(path: &Path) -> Result<u64> {
    let wal = path.with_extension("db-wal").metadata().map_or(0, |m| m.len());
    Ok(path.metadata()?.len() + wal)
}
