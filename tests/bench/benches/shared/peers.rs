//! The controller in Go that the goals are set against, as a process of its own.
#![allow(dead_code, reason = "each benchmark uses its part")]

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::canned::Canned;

/// Set by `cargo xtask bench` where the machine has Go and client-go.
const CLIENT_GO: &str = "KUBEWITNESS_CLIENT_GO";

/// States a second through client-go's shared informer and workqueue; `None` where it is not built.
pub async fn client_go(jobs: usize, updates: usize, patience: Duration) -> Result<Option<f64>> {
    match program() {
        Some(program) => run(&program, jobs, updates, None, patience).await.map(Some),
        None => {
            println!(
                "  client-go    skipped: it was not built; `cargo xtask bench` does that where Debian's Go is"
            );
            Ok(None)
        }
    }
}

/// The same with an insert for each state into a database, `DRIVER:ADDRESS`, as durable as ours;
/// `None` where it is not built or ends, as it does without Debian's driver.
pub async fn client_go_into(jobs: usize, updates: usize, database: &str, patience: Duration) -> Option<f64> {
    let run = run(&program()?, jobs, updates, Some(database), patience).await;
    run.inspect_err(|error| println!("    client-go with a database skipped: {error:#}")).ok()
}

fn program() -> Option<PathBuf> {
    std::env::var_os(CLIENT_GO).map(PathBuf::from)
}

async fn run(
    program: &Path,
    jobs: usize,
    updates: usize,
    database: Option<&str>,
    patience: Duration,
) -> Result<f64> {
    let canned = Canned::start(jobs, updates).await?;
    let mut peer = tokio::process::Command::new(program)
        .args([canned.url(), (jobs + updates).to_string()])
        .args(database)
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("starting {}", program.display()))?;
    let ended = async {
        let status = peer.wait().await?;
        ensure!(status.success(), "the peer on client-go ended with {status}");
        Ok(())
    };
    let watched = canned.first_watch(patience);
    // One that ends at once never watches.
    let (watched, ()) = tokio::time::timeout(patience, async { tokio::try_join!(watched, ended) })
        .await
        .context("client-go is not done")??;
    Ok(updates as f64 / watched.elapsed().as_secs_f64())
}
