//! `kubewitness-real --servers FOLDER --minor 1.36 [--faults 12]`: runs the promises against a real API server, and prints
//! a line of JSON. With `--record FOLDER [--case NAME]` it records labelled histories into the folder instead.
//! `cargo xtask real` calls it.

use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use kubewitness_harness::{Scratch, seed};
use kubewitness_real::{ServerPrograms, record_histories, survives_kills};

/// Faults of a short run: it takes less than a minute.
const FAULTS: u64 = 12;

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("real: {error:#}\nrepeat with KUBEWITNESS_SEED={}", seed());
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<()> {
    let (mut servers, mut minors, mut faults) = (None, Vec::new(), FAULTS);
    let (mut record, mut cases) = (None, Vec::new());
    let mut args = std::env::args().skip(1);
    while let Some(flag) = args.next() {
        let value = args.next().with_context(|| format!("{flag} needs a value"))?;
        match flag.as_str() {
            "--servers" => servers = Some(value.into()),
            "--minor" => minors.push(value),
            "--faults" => faults = value.parse().context("--faults takes a number")?,
            "--record" => record = Some(std::path::PathBuf::from(value)),
            "--case" => cases.push(value),
            _ => bail!("there is no flag {flag}"),
        }
    }
    let folder: std::path::PathBuf = servers.context("--servers names the folder of the servers")?;
    for minor in minors {
        let scratch = Scratch::new(&format!("real-{minor}"))?;
        let programs = ServerPrograms { folder: folder.clone(), minor };
        if let Some(histories) = &record {
            record_histories(&programs, &scratch, histories, &cases).await?;
            continue;
        }
        let report = survives_kills(&programs, &scratch, seed(), faults).await;
        let report = report.with_context(|| format!("against {}", programs.minor))?;
        println!("{}", serde_json::to_string(&report)?);
    }
    Ok(())
}
