//! What it costs to ask who somebody is and what they may see: a list with `--auth kubernetes`, where the decisions are
//! kept for seconds, and the same list with `--auth none`. Both hosts are the real binary, and take turns.

mod host;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use host::{Host, Lab, settings};
use kubewitness_bench::{PATIENCE, wanted};
use kubewitness_harness::{Simulator, SimulatorOptions};
use reqwest::Method;
use serde_json::{Value, json};

const OBJECTS: usize = 500;
const LIMIT: usize = 100;
const CLIENTS: usize = 8;
/// The best of them counts: nothing makes a machine faster than it is.
const ROUNDS: usize = 7;
const ROUND: Duration = Duration::from_secs(2);
const SETTINGS: &str = "sources: [{name: jobs, apiVersion: batch/v1, kind: Job}]";

fn main() -> Result<()> {
    if !wanted("access") {
        return Ok(());
    }
    rustls::crypto::ring::default_provider().install_default().ok();
    tokio::runtime::Runtime::new()?.block_on(run())
}

/// One of the two hosts, and what is asked of it.
struct Asked {
    name: &'static str,
    host: Host,
    token: Option<String>,
    best: Figures,
}

#[derive(Clone, Copy, Default)]
struct Figures {
    per_second: f64,
    p99: Duration,
}

async fn run() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let simulator = Simulator::start(folder.path(), &SimulatorOptions::default()).await?;
    for number in 0..OBJECTS {
        create(&simulator, number).await?;
    }
    let token = Some(simulator.token().to_owned());
    let mut both = [
        start(folder.path(), &simulator, "none", None).await?,
        start(folder.path(), &simulator, "kubernetes", token).await?,
    ];
    println!("access: a list of {LIMIT} of {OBJECTS} jobs, {CLIENTS} clients, the best of {ROUNDS} rounds");
    for _ in 0..ROUNDS {
        for asked in &mut both {
            asked.host.runs()?;
            let figures = round(&asked.host.url(), asked.token.as_deref()).await?;
            if figures.per_second > asked.best.per_second {
                asked.best = figures;
            }
        }
    }
    let [none, kubernetes] = both;
    for Asked { name, best: Figures { per_second, p99 }, .. } in [&none, &kubernetes] {
        println!(
            "  --auth {name:<10} {per_second:>8.0} requests/s   p99 {:>6.2} ms",
            p99.as_secs_f64() * 1000.0
        );
    }
    let share = 100.0 * kubernetes.best.per_second / none.best.per_second;
    println!("  --auth kubernetes has {share:.0} % of the requests of --auth none (goal: 80 %)");
    Ok(())
}

async fn create(simulator: &Simulator, number: usize) -> Result<()> {
    let template = json!({"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}});
    let job = json!({"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": template},
        "metadata": {"name": format!("train-{number:05}"), "namespace": "default"}});
    let path = "/apis/batch/v1/namespaces/default/jobs";
    let (status, answer) = simulator.request(Method::POST, path, Some(&job)).await?;
    ensure!(status == 201, "creating job {number} answered {status}: {answer}");
    Ok(())
}

/// Ready once it lists as many as are measured.
async fn start(
    folder: &Path,
    simulator: &Simulator,
    name: &'static str,
    token: Option<String>,
) -> Result<Asked> {
    let lab = Lab::new(&folder.join(name), &[settings(SETTINGS)])?;
    let mut host = lab.start_with(simulator.kubeconfig(), &["--auth", name])?;
    let client = kubewitness_harness::http();
    let started = Instant::now();
    loop {
        host.runs()?;
        match list(&client, &host.url(), token.as_deref()).await {
            Ok(LIMIT) => return Ok(Asked { name, host, token, best: Figures::default() }),
            answer => ensure!(started.elapsed() < PATIENCE, "--auth {name} is not ready: {answer:?}"),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// How many jobs an answer has.
async fn list(client: &reqwest::Client, url: &str, token: Option<&str>) -> Result<usize> {
    let request = client.get(format!("{url}/api/v1/objects?kind=Job&limit={LIMIT}"));
    let request = match token {
        Some(token) => request.bearer_auth(token),
        None => request,
    };
    let body = request.send().await?.error_for_status()?.bytes().await?;
    let jobs: Vec<Value> = serde_json::from_slice(&body)?;
    Ok(jobs.len())
}

/// Each client asks again as soon as it has its answer. Answers are not read: that would be measured, too.
#[allow(clippy::disallowed_methods)]
async fn round(url: &str, token: Option<&str>) -> Result<Figures> {
    let url: Arc<str> = format!("{url}/api/v1/objects?kind=Job&limit={LIMIT}").into();
    let (started, token) = (Instant::now(), token.map(str::to_owned));
    let clients: Vec<_> =
        (0..CLIENTS).map(|_| tokio::spawn(ask(Arc::clone(&url), token.clone(), started + ROUND))).collect();
    let mut taken = Vec::new();
    for client in clients {
        taken.extend(client.await??);
    }
    let elapsed = started.elapsed();
    taken.sort_unstable();
    let p99 = *taken.get(taken.len() * 99 / 100).context("no answer came")?;
    Ok(Figures { per_second: taken.len() as f64 / elapsed.as_secs_f64(), p99 })
}

async fn ask(url: Arc<str>, token: Option<String>, until: Instant) -> Result<Vec<Duration>> {
    let client = kubewitness_harness::http();
    let mut taken = Vec::new();
    while Instant::now() < until {
        let began = Instant::now();
        let request = client.get(&*url);
        let request = match &token {
            Some(token) => request.bearer_auth(token),
            None => request,
        };
        request.send().await?.error_for_status()?.bytes().await?;
        taken.push(began.elapsed());
    }
    Ok(taken)
}
