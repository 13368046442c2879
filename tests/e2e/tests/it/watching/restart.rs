//! Killed at any moment and started again, it has every version that the API server had, once
//! and in order, and did not list to get there.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use kubewitness_harness::{
    Dice, Kubewitness, RequestCounts, RunOptions, Scratch, Simulator, SimulatorOptions, in_scratch, kills,
    seed,
};

use crate::support::{
    AUDIT, BackgroundLoad, CATCH_UP, SOURCES, everything_arrives, lists, platform_file, plugin_manifest,
    proofs, requests_of, same_story, signed_example_copy, write,
};

/// Hundreds are tried with `KUBEWITNESS_KILLS=300 cargo xtask test restart`.
const KILLS: u64 = 8;

/// Every fourth kill comes while it still starts.
const EARLY: u64 = 4;
const RATE: f64 = 60.0;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_version_is_there_exactly_once_in_order_after_kills_at_random_moments_under_load() {
    in_scratch("restart", async |scratch| {
        let options = SimulatorOptions::keeping_history();
        let simulator = Simulator::start(scratch.path(), &options).await?;
        crown(scratch, &simulator).await
    })
    .await;
}

async fn crown(scratch: &Scratch, simulator: &Simulator) -> Result<()> {
    let config = signed_example_copy(scratch)?;
    write(&config, "audit.yaml", &plugin_manifest("audit", AUDIT))?;
    let options = simulator.run_options(scratch, config)?;
    let (warm, load) = first_sync(&options, scratch.path(), simulator).await?;
    let (platform, mut dice) = (platform_file(&options.data), Dice::new(seed()));
    for round in 0..kills(KILLS) {
        let mut kubewitness = Kubewitness::start(&format!("run-{round:02}"), &options, scratch.path())?;
        if round % EARLY == 0 {
            dice.pause(1500).await;
        } else {
            let grown = platform.grows_by(&mut kubewitness, CATCH_UP).await;
            grown.with_context(|| format!("round {round}"))?;
            dice.pause(700).await;
        }
        kubewitness.kill().await?;
    }
    let mut last = Kubewitness::start("run-last", &options, scratch.path())?;
    platform.grows_by(&mut last, CATCH_UP).await?;
    let report = load.stop().await?;
    ensure!(report.errors == 0, "the workload met {} errors", report.errors);
    everything_arrives(&mut last, simulator, &platform, 2).await?;
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
) -> Result<(RequestCounts, BackgroundLoad)> {
    let mut first = Kubewitness::start("run-first", options, logs)?;
    first.answers().await?;
    first.listed(SOURCES.len(), CATCH_UP).await?;
    let load = BackgroundLoad::start(simulator, seed(), RATE);
    platform_file(&options.data).grows_by(&mut first, CATCH_UP).await?;
    first.kill().await?;
    Ok((simulator.requests().await?, load))
}

fn no_lists(warm: &RequestCounts, now: &RequestCounts) -> Result<()> {
    for (_, group, resource) in SOURCES {
        let count = |requests: &RequestCounts| lists(requests, group, resource);
        ensure!(count(warm) >= 1, "no list of {resource} was ever counted: {warm:?}");
        ensure!(
            count(now) == count(warm),
            "a warm restart listed {resource}: {} lists, then {}",
            count(warm),
            count(now)
        );
        let watches = requests_of("watch", now, group, resource);
        ensure!(watches > kills(KILLS) / 2, "only {watches} watches of {resource} were started");
    }
    Ok(())
}
