//! Killed at any moment and started again, it has every version that the API server had, once
//! and in order, and did not list to get there.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kubewitness_harness::{
    Dice, Kubewitness, Platform, Requests, RunOptions, Scratch, Simulator, SimulatorOptions, in_scratch,
    kills, seed, until,
};

use crate::support::{AUDIT, Load, SOURCES, plugin_manifest, proofs, same_story, signed_example_copy, write};

/// Hundreds are tried with `KUBEWITNESS_KILLS=300 cargo xtask test restart`.
const KILLS: u64 = 20;

/// Every fourth kill comes while it still starts.
const EARLY: u64 = 4;
const RATE: f64 = 60.0;
/// How fast it is, benchmarks say: with its journal on a server, on a busy machine, plugins read thousands of documents.
const CATCH_UP: Duration = Duration::from_secs(360);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_version_is_there_exactly_once_in_order_after_kills_at_twenty_moments_under_load() {
    in_scratch("restart", async |scratch| {
        let options = SimulatorOptions {
            bookmark_every: Some("1s".to_owned()),
            // However slow the machine is: nothing is compacted that a restart still needs.
            args: vec!["--history-age".to_owned(), "0s".to_owned()],
            ..SimulatorOptions::default()
        };
        let simulator = Simulator::start(scratch.path(), &options).await?;
        let told = crown(scratch, &simulator).await;
        told.with_context(|| format!("again with `KUBEWITNESS_SEED={} cargo xtask test restart`", seed()))
    })
    .await;
}

async fn crown(scratch: &Scratch, simulator: &Simulator) -> Result<()> {
    let config = signed_example_copy(scratch)?;
    write(&config, "audit.yaml", &plugin_manifest("audit", AUDIT))?;
    let options = RunOptions {
        kubeconfig: simulator.kubeconfig().to_path_buf(),
        config: Some(config),
        data: scratch.folder("data")?,
        ..RunOptions::default()
    };
    let (warm, load) = first_sync(&options, scratch.path(), simulator).await?;
    let mut dice = Dice::new(seed());
    for round in 0..kills(KILLS) {
        let mut kubewitness = Kubewitness::start(&format!("run-{round:02}"), &options, scratch.path())?;
        if round % EARLY == 0 {
            dice.pause(1500).await;
        } else {
            grows(&mut kubewitness, &options.data).await.with_context(|| format!("round {round}"))?;
            dice.pause(700).await;
        }
        kubewitness.kill().await?;
    }
    let mut last = Kubewitness::start("run-last", &options, scratch.path())?;
    grows(&mut last, &options.data).await?;
    let report = load.stop().await?;
    ensure!(report.errors == 0, "the workload met {} errors", report.errors);
    everything_arrives(&mut last, simulator, &options.data).await?;
    no_lists(&warm, &simulator.requests().await?)?;
    last.stop().await?;
    same_story(simulator, &options.data).await?;
    proofs(&options.data).await
}

/// The first start may list, once; gives the counts of requests from then on. What was before the
/// first list nobody can witness, so that the load begins after it.
pub async fn first_sync(
    options: &RunOptions,
    logs: &Path,
    simulator: &Simulator,
) -> Result<(Requests, Load)> {
    let mut first = Kubewitness::start("run-first", options, logs)?;
    first.answers().await?;
    first.listed(SOURCES.len(), CATCH_UP).await?;
    let load = Load::start(simulator, seed(), RATE);
    grows(&mut first, &options.data).await?;
    first.kill().await?;
    Ok((simulator.requests().await?, load))
}

/// Waits until more is in the history than when it was asked.
pub async fn grows(kubewitness: &mut Kubewitness, data: &Path) -> Result<()> {
    let path = data.join("platform.db");
    let count = async || match Platform::open(&path).await {
        Ok(mut platform) => platform.count().await.unwrap_or(0),
        Err(_) => 0,
    };
    let before = count().await;
    let grown = until(CATCH_UP, "the history to grow", async || {
        if let Some(ended) = kubewitness.process().ended()? {
            anyhow::bail!("it ended with {ended:?}");
        }
        Ok((count().await > before).then_some(()))
    });
    let grown = grown.await;
    grown.with_context(|| kubewitness.process().say())
}

/// Waits until the journal has as many states as the API server has versions, all delivered.
pub async fn everything_arrives(
    kubewitness: &mut Kubewitness,
    simulator: &Simulator,
    data: &Path,
) -> Result<()> {
    let mut versions = 0;
    for (_, group, resource) in SOURCES {
        versions += simulator.truth(group, resource).await?.entries.len() as u64;
    }
    let what = format!("{versions} states to be delivered");
    let delivered = kubewitness.status_when(CATCH_UP, &what, |status| {
        status.plugins.len() == 2
            && status.plugins.iter().all(|plugin| plugin.waiting == 0 && plugin.delivered == versions)
    });
    if let Err(error) = delivered.await {
        // What is missing says more than how many.
        let story = same_story(simulator, data).await;
        return Err(error.context(format!("{story:?}")));
    }
    Ok(())
}

fn no_lists(warm: &Requests, now: &Requests) -> Result<()> {
    for (_, group, resource) in SOURCES {
        let suffix = if group.is_empty() { String::new() } else { format!(".{group}") };
        let of = |requests: &Requests, verb: &str| {
            requests.get(&format!("{verb} {resource}{suffix}")).copied().unwrap_or(0)
        };
        let count = |requests: &Requests| of(requests, "list") + of(requests, "list-stream");
        ensure!(count(warm) >= 1, "no list of {resource} was ever counted: {warm:?}");
        ensure!(
            count(now) == count(warm),
            "a warm restart listed {resource}: {} lists, then {}",
            count(warm),
            count(now)
        );
        let watches = of(now, "watch");
        ensure!(watches > kills(KILLS) / 2, "only {watches} watches of {resource} were started");
    }
    Ok(())
}
