//! The peer: kube-runtime's reflector with a store of typed Jobs, in a process of its own. That is
//! this very program, started again, so that its memory is its own and nobody else's.

use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use futures::{StreamExt, pin_mut};
use k8s_openapi::api::batch::v1::Job;
use kube_runtime::watcher::Event;
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::PATIENCE;

/// Names the server to the process that is the peer.
const SERVER: &str = "KUBEWITNESS_BENCH_PEER_OF";

/// Returns the task of the peer, if this process is it.
pub fn server() -> Option<String> {
    std::env::var(SERVER).ok()
}

/// Lists and watches for as long as anybody reads what it prints: how much its store holds.
pub async fn run(server: &str) -> Result<()> {
    let client = kube::Client::try_from(kube::Config::new(server.parse()?))?;
    let (store, writer) = kube_runtime::reflector::store::<Job>();
    let watcher = kube_runtime::watcher(kube::Api::all(client), kube_runtime::watcher::Config::default());
    let changes = kube_runtime::reflector(writer, watcher);
    pin_mut!(changes);
    while let Some(event) = changes.next().await {
        if let Event::InitDone = event? {
            println!("{}", store.state().len());
        }
    }
    bail!("the peer's stream ended")
}

/// The peer with everything in its store.
pub async fn start(address: SocketAddr, jobs: usize) -> Result<Child> {
    let mut peer = Command::new(std::env::current_exe()?)
        .env(SERVER, format!("http://{address}"))
        .stdout(Stdio::piped())
        .spawn()
        .context("starting the peer")?;
    let output = peer.stdout.take().context("the peer's output")?;
    let mut lines = BufReader::new(tokio::process::ChildStdout::from_std(output)?).lines();
    let told = tokio::time::timeout(PATIENCE, lines.next_line()).await;
    let told = told.context("the peer hangs").and_then(|line| line?.context("the peer said nothing"));
    let held = told.and_then(|line| Ok(line.parse::<usize>()?));
    let held = held.inspect_err(|_| {
        peer.kill().ok();
    })?;
    ensure!(held == jobs, "the peer holds {held} of {jobs} Jobs");
    Ok(peer)
}
