//! `kubewitness-real --servers FOLDER --minor 1.36`: runs the promises against a real API server, and prints a line of JSON.
//! `cargo xtask real` calls it.
//!
//! | flag | |
//! |---|---|
//! | `--faults 12` | so many faults, in an order of the seed; without it: each fault once |
//! | `--fault NAME,NAME` | these faults in this order |
//! | `--seeds 3` | so many runs, from the seed on |
//! | `--page FILE` | runs the peers beside the controller, and writes what they missed into the file |
//! | `--record FOLDER`, `--case NAME` | records labelled histories into the folder instead |
//! | `--peer NAME --kubeconfig FILE --file FILE` | is a peer until it is killed |

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use kubewitness_harness::{Scratch, seed};
use kubewitness_real::{
    PEERS, PLANS, PromiseReport, ServerPrograms, TrialOptions, known_failures, named, record_histories,
    run_peer, survives_faults, write_page,
};

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("real: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[derive(Default)]
struct Flags {
    servers: Option<PathBuf>,
    minors: Vec<String>,
    faults: Option<u64>,
    fault: Vec<String>,
    seeds: Option<u64>,
    page: Option<PathBuf>,
    record: Option<PathBuf>,
    cases: Vec<String>,
    peer: Option<String>,
    kubeconfig: Option<PathBuf>,
    file: Option<PathBuf>,
}

fn flags() -> Result<Flags> {
    let mut flags = Flags::default();
    let mut args = std::env::args().skip(1);
    while let Some(flag) = args.next() {
        let value = args.next().with_context(|| format!("{flag} needs a value"))?;
        let number = || value.parse().with_context(|| format!("{flag} takes a number"));
        match flag.as_str() {
            "--servers" => flags.servers = Some(value.into()),
            "--minor" => flags.minors.push(value),
            "--faults" => flags.faults = Some(number()?),
            "--fault" => flags.fault.extend(value.split(',').map(str::to_owned)),
            "--seeds" => flags.seeds = Some(number()?),
            "--page" => flags.page = Some(value.into()),
            "--record" => flags.record = Some(value.into()),
            "--case" => flags.cases.push(value),
            "--peer" => flags.peer = Some(value),
            "--kubeconfig" => flags.kubeconfig = Some(value.into()),
            "--file" => flags.file = Some(value.into()),
            _ => bail!("there is no flag {flag}"),
        }
    }
    Ok(flags)
}

async fn run() -> Result<()> {
    let flags = flags()?;
    if let Some(peer) = &flags.peer {
        let kubeconfig = flags.kubeconfig.as_deref().context("a peer needs --kubeconfig")?;
        return run_peer(peer, kubeconfig, flags.file.as_deref().context("a peer needs --file")?).await;
    }
    let folder = flags.servers.clone().context("--servers names the folder of the servers")?;
    let mut reports = Vec::new();
    for minor in &flags.minors {
        let programs = ServerPrograms { folder: folder.clone(), minor: minor.clone() };
        if let Some(histories) = &flags.record {
            let scratch = Scratch::new(&format!("real-{minor}"))?;
            record_histories(&programs, &scratch, histories, &flags.cases).await?;
            continue;
        }
        for options in trials(&flags, &programs)? {
            reports.push(promise(&options).await?);
        }
    }
    match &flags.page {
        Some(page) => {
            let seeds = flags.seeds.unwrap_or(1);
            write_page(
                page,
                &format!("KUBEWITNESS_SEED={} cargo xtask real --peers --seeds {seeds}", seed()),
                &reports,
            )
        }
        None => Ok(()),
    }
}

/// The runs of a minor: those that once failed, unless certain faults were asked for, and then the new ones.
fn trials(flags: &Flags, programs: &ServerPrograms) -> Result<Vec<TrialOptions>> {
    let others = flags.minors.iter().filter(|minor| **minor != programs.minor).cloned();
    let others: Vec<_> = others.collect();
    let peers: Vec<_> = if flags.page.is_some() { PEERS.iter().collect() } else { Vec::new() };
    let options = |seed, plans| TrialOptions {
        programs: programs.clone(),
        other_minors: others.clone(),
        seed,
        faults: flags.faults.unwrap_or(PLANS.len() as u64),
        plans,
        peers: peers.clone(),
    };
    let mut trials = Vec::new();
    if flags.fault.is_empty() && flags.page.is_none() {
        let known = known_failures()?.into_iter().filter(|known| known.minor == programs.minor);
        trials.extend(known.map(|known| options(known.seed, known.plans)));
    }
    for more in 0..flags.seeds.unwrap_or(1) {
        trials.push(options(seed().wrapping_add(more), named(&flags.fault)?));
    }
    Ok(trials)
}

async fn promise(options: &TrialOptions) -> Result<PromiseReport> {
    let minor = &options.programs.minor;
    let scratch = Scratch::new(&format!("real-{minor}"))?;
    let report = survives_faults(options, &scratch).await.with_context(|| {
        format!("against Kubernetes {minor}; repeat with KUBEWITNESS_SEED={}", options.seed)
    })?;
    println!("{}", serde_json::to_string(&report)?);
    Ok(report)
}
