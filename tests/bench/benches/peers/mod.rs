//! The controller in Go that the goals are set against, as a process of its own.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::canned::Canned;

/// Set by `cargo xtask bench` where the machine has Go and client-go.
const CLIENT_GO: &str = "KUBEWITNESS_CLIENT_GO";

/// States a second through client-go's shared informer and workqueue; `None` where it is not built.
pub async fn client_go(jobs: usize, updates: usize, patience: Duration) -> Result<Option<f64>> {
    let Some(program) = std::env::var_os(CLIENT_GO).map(PathBuf::from) else {
        println!(
            "  client-go    skipped: it was not built; `cargo xtask bench` does that where Debian's Go is"
        );
        return Ok(None);
    };
    let canned = Canned::start(jobs, updates).await?;
    let mut peer = tokio::process::Command::new(&program)
        .args([canned.url(), (jobs + updates).to_string()])
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("starting {}", program.display()))?;
    let started = canned.first_watch(patience).await.context("client-go never watched")?;
    let status = tokio::time::timeout(patience, peer.wait()).await.context("client-go is not done")??;
    ensure!(status.success(), "the peer on client-go ended with {status}");
    Ok(Some(updates as f64 / started.elapsed().as_secs_f64()))
}
