//! The pause while one version of a plugin replaces another, twice: how long the controller lets a call wait that begins
//! at that moment, by its own clock; and the longest time in which the plugin's receiver gets no request, at full rate,
//! beside the longest such time while nothing changes.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use kubewitness_bench::PATIENCE;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::canned::CannedServer;
use crate::crowd::another;
use crate::host::{BenchHost, HostLab, plugin, plugin_of, settings};
use crate::support::component;

/// Each is news once.
const JOBS: usize = 50_000;
const SWAPS: usize = 25;
/// A change of the configuration is seen and taken within this.
const WINDOW: Duration = Duration::from_millis(1000);
/// The receiver takes so long, so that the backlog lasts for all changes: four requests at once are 1,000 a second.
const TAKES: Duration = Duration::from_millis(4);
const GOAL_MICROS: f64 = 50.0;
const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
/// The room for a request's body, which has a few hundred bytes.
const BODY: usize = 64 * 1024;

/// When requests came.
type Times = Arc<Mutex<Vec<Instant>>>;

#[allow(clippy::disallowed_methods)]
async fn receiver(times: Times) -> Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let times = times.clone();
            // A client that hangs up ends its connection and nothing else.
            tokio::spawn(async move { drop(answer(socket, &times).await) });
        }
    });
    Ok(url)
}

async fn answer(socket: TcpStream, times: &Times) -> Result<()> {
    socket.set_nodelay(true)?;
    let mut socket = BufReader::new(socket);
    let (mut line, mut body) = (String::new(), Vec::new());
    loop {
        let mut length = 0;
        loop {
            line.clear();
            if socket.read_line(&mut line).await? == 0 {
                return Ok(());
            }
            if line == "\r\n" {
                break;
            }
            if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse()?;
            }
        }
        ensure!(length <= BODY, "a body of {length} bytes");
        body.resize(length, 0);
        socket.read_exact(&mut body).await?;
        times.lock().unwrap_or_else(PoisonError::into_inner).push(Instant::now());
        tokio::time::sleep(TAKES).await;
        socket.write_all(ANSWER).await?;
    }
}

fn version(number: usize) -> String {
    let spec = "subscribe: [{source: jobs, mode: every, start: beginning}]\ngrants: {http: [{name: people, destination: people}]}";
    plugin("notification", &format!("notification-{number}"), spec)
}

fn host_manifest(url: &str) -> String {
    let sources = "sources: [{name: jobs, apiVersion: batch/v1, kind: Job}]";
    settings(&format!("{sources}\ndestinations: [{{name: people, url: \"{url}\"}}]"))
}

fn change(folder: &Path, url: &str, number: usize) -> Result<()> {
    // Written whole, as an editor does it: half a document is no change.
    let (new, all) = (folder.join("config/.new"), folder.join("config/all.yaml"));
    std::fs::write(&new, host_manifest(url) + &version(number))?;
    Ok(std::fs::rename(new, all)?)
}

async fn digest(host: &BenchHost) -> Result<String> {
    let status = host.status().await?;
    let plugin = plugin_of(&status, "notification").context("no plugin")?;
    Ok(plugin["digest"].as_str().unwrap_or_default().to_owned())
}

/// The longest time without a request in a window, and how many came.
fn longest(times: &Times, from: Instant) -> (Duration, usize) {
    let times = times.lock().unwrap_or_else(PoisonError::into_inner);
    let within: Vec<_> = times.iter().filter(|at| **at >= from).collect();
    let gaps = within.windows(2).map(|pair| pair[1].duration_since(*pair[0]));
    (gaps.max().unwrap_or_default(), within.len())
}

pub async fn run() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let canned = CannedServer::start(JOBS, 0).await?;
    let kubeconfig = canned.kubeconfig(folder.path())?;
    let times = Times::default();
    let url = receiver(times.clone()).await?;
    let lab = HostLab::new(folder.path(), &[host_manifest(&url)])?;
    for number in 0..2 {
        let file = folder.path().join("config").join(format!("notification-{number}.wasm"));
        std::fs::write(file, another(component("notification"), number))?;
    }
    let log = folder.path().join("host.log");
    let host = lab.start_told(&kubeconfig, &log)?;
    // The plugin comes once all is journaled, and has a backlog to work off at full speed.
    canned.first_watch(PATIENCE).await.context("it never watched")?;
    change(folder.path(), &url, 0)?;
    let started = Instant::now();
    while times.lock().unwrap_or_else(PoisonError::into_inner).is_empty() {
        ensure!(started.elapsed() < PATIENCE, "no request after {PATIENCE:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // Both versions are compiled, and one is there.
    swap(&host, &times, folder.path(), &url, 1).await?;
    let (mut calm, mut swapped) = (Vec::new(), Vec::new());
    let mut requests = 0;
    for number in 0..SWAPS {
        let from = Instant::now();
        tokio::time::sleep(WINDOW).await;
        let (gap, came) = longest(&times, from);
        calm.push(gap);
        requests += came;
        swapped.push(swap(&host, &times, folder.path(), &url, number % 2).await?);
    }
    let sent = times.lock().unwrap_or_else(PoisonError::into_inner).len();
    ensure!(sent < JOBS, "everything was sent before the last change: the figures say nothing");
    waits(&log)?;
    report(&calm, &swapped, requests);
    Ok(())
}

/// Reads the controller's lines about each replacement. What else a first call needs is an instance, which
/// another benchmark measures.
fn waits(log: &Path) -> Result<()> {
    let log = std::fs::read_to_string(log)?;
    let replaced = log.lines().filter(|line| line.contains("replaced: calls from now on"));
    let mut waits = replaced.map(took_micros).collect::<Result<Vec<_>>>()?;
    waits.sort_by(f64::total_cmp);
    let longest = waits.last().context("nothing was replaced")?;
    let held = if *longest <= GOAL_MICROS { "held" } else { "NOT held" };
    println!(
        "plugins: a call that begins while a cached version comes waits for {:.2} µs, the median of {}; at most {longest:.2} \
         µs; goal: at most {GOAL_MICROS} µs: {held}",
        waits[waits.len() / 2],
        waits.len()
    );
    Ok(())
}

/// The field `took` of a line.
fn took_micros(line: &str) -> Result<f64> {
    let told = line.split_once("took=").and_then(|(_, rest)| rest.split_whitespace().next());
    let told = told.with_context(|| format!("no time in `{line}`"))?;
    let (number, unit) = told.split_at(told.find(|c: char| c.is_alphabetic()).unwrap_or(told.len()));
    let scale = match unit {
        "ns" => 1e-3,
        "µs" => 1.0,
        "ms" => 1e3,
        "s" => 1e6,
        _ => bail!("`{told}` is no time"),
    };
    Ok(number.parse::<f64>()? * scale)
}

/// Changes the version. Answers the longest time without a request around it.
async fn swap(host: &BenchHost, times: &Times, folder: &Path, url: &str, number: usize) -> Result<Duration> {
    let (before, from) = (digest(host).await?, Instant::now());
    change(folder, url, number)?;
    while digest(host).await? == before {
        ensure!(from.elapsed() < PATIENCE, "the change is not taken after {PATIENCE:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    tokio::time::sleep(WINDOW.saturating_sub(from.elapsed())).await;
    Ok(longest(times, from).0)
}

fn report(calm: &[Duration], swapped: &[Duration], requests: usize) {
    let micros = |gaps: &[Duration]| gaps.iter().map(|gap| gap.as_secs_f64() * 1e6).collect::<Vec<_>>();
    let ((calm, off), (swapped, more_off)) = (mean(&micros(calm)), mean(&micros(swapped)));
    let rate = requests as f64 / (WINDOW.as_secs_f64() * SWAPS as f64);
    println!(
        "plugins: the longest time without a request, of {rate:.0} a second, the mean of {SWAPS} and its standard error"
    );
    println!("  peer: nothing changes   {calm:>8.0} ± {off:.0} µs");
    println!("  a cached version comes  {swapped:>8.0} ± {more_off:.0} µs");
    let (pause, off) = (swapped - calm, off.hypot(more_off));
    let held = match () {
        () if pause + 2.0 * off <= GOAL_MICROS => "held",
        () if pause - 2.0 * off <= GOAL_MICROS => "not told apart from it by this measurement",
        () => "NOT held",
    };
    println!("  so the pause            {pause:>8.0} ± {off:.0} µs; goal: at most {GOAL_MICROS} µs: {held}");
}

/// The mean, and its standard error.
fn mean(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0);
    (mean, (variance / count).sqrt())
}
