//! The promise: what the controller witnessed is etcd's history, each version once and in order or in a gap with exact
//! bounds, whatever happens to the servers, to the network and to the controller itself.
//!
//! [`plans`] says what happens, [`trial`] does it, [`history`] reads what etcd had, and [`judge`] compares.

mod failures;
mod history;
mod judge;
pub mod plans;
mod trial;
mod workload;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use anyhow::Result;
use kubewitness_core::{Change, Gap};
use kubewitness_faults::WrittenEntry;
use kubewitness_harness::Scratch;
use serde::Serialize;

use crate::cluster::{ServerPrograms, copy_folder};
use crate::peers::{PeerFigures, PeerKind, compare};
pub use failures::known_failures;
use judge::Verdict;
use plans::FaultPlan;
use trial::PromiseTrial;

/// The example's source, and its resource in etcd.
const SOURCE: &str = "jobs";

/// What is run.
pub struct TrialOptions {
    pub programs: ServerPrograms,
    /// Minors that were built beside that of `programs`.
    pub other_minors: Vec<String>,
    pub seed: u64,
    pub faults: u64,
    /// In this order, instead of `faults` that are dealt.
    pub plans: Vec<&'static FaultPlan>,
    /// What watches beside the controller.
    pub peers: Vec<&'static PeerKind>,
}

/// The figures of a run that held.
#[derive(Debug, Default, Serialize)]
pub struct PromiseReport {
    pub minor: String,
    pub seed: u64,
    pub faults: BTreeMap<&'static str, u64>,
    /// What etcd had: writes and deletions.
    pub history: usize,
    pub objects: usize,
    pub states: usize,
    /// Of objects, and of the whole source.
    pub object_gaps: usize,
    pub source_gaps: usize,
    pub in_gaps: usize,
    pub gap_reasons: BTreeMap<String, usize>,
    pub epochs: u32,
    pub ready_seconds: f64,
    pub seconds: f64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub peers: Vec<PeerFigures>,
}

/// Changes Jobs while faults happen, and proves that nothing was lost, doubled, invented or out of order. A run that fails
/// is kept among the known failures.
pub async fn survives_faults(options: &TrialOptions, scratch: &Scratch) -> Result<PromiseReport> {
    let begun = Instant::now();
    let mut trial = PromiseTrial::start(options, scratch).await?;
    let plans = trial.plans();
    let report = suffer_all(&mut trial, options, &plans).await;
    if report.is_err() {
        let (minor, seed) = (&options.programs.minor, options.seed);
        failures::keep(minor, seed, &plans)?;
        let kept = options.programs.folder.join("failed").join(format!("{minor}-{seed}"));
        copy_folder(scratch.path(), &kept)?;
        eprintln!("real: what the run left is in {}", kept.display());
    }
    let report = report?;
    let ready_seconds = trial.ready_after().as_secs_f64();
    trial.stop_servers().await?;
    Ok(PromiseReport { ready_seconds, seconds: begun.elapsed().as_secs_f64(), ..report })
}

async fn suffer_all(
    trial: &mut PromiseTrial<'_>,
    options: &TrialOptions,
    plans: &[&'static FaultPlan],
) -> Result<PromiseReport> {
    for plan in plans {
        let begun = Instant::now();
        trial.suffer(plan).await?;
        let (minor, seed) = (&options.programs.minor, options.seed);
        eprintln!("real: {minor}, seed {seed}: {} took {:.1} s", plan.name, begun.elapsed().as_secs_f64());
    }
    trial.settle().await?;
    let gaps = trial.gaps().await?;
    trial.stop_watchers().await?;
    let truth = trial.history.truth()?;
    let verdict = judge::verdict(&truth, &trial.run_options, gaps).await?;
    let entries: Vec<_> = truth.histories.iter().flat_map(judge::own_entries).collect();
    let is_of_object = |gap: &&Gap| gap.object.is_some();
    let object_gaps = verdict.gaps.iter().filter(is_of_object).count();
    let mut gap_reasons = BTreeMap::new();
    for gap in &verdict.gaps {
        *gap_reasons.entry(gap.reason.clone()).or_default() += 1;
    }
    let own = own_figures(&verdict, &entries, trial.peak_kibibytes)?;
    let mut peers = vec![own.clone()];
    peers.extend(trial.peers.figures(&entries)?);
    Ok(PromiseReport {
        minor: options.programs.minor.clone(),
        seed: options.seed,
        faults: trial.done.clone(),
        history: entries.len(),
        objects: entries.iter().map(|entry| &*entry.uid).collect::<BTreeSet<_>>().len(),
        states: verdict.states.iter().filter(|state| state.change != Change::Gap).count(),
        object_gaps,
        source_gaps: verdict.gaps.len() - object_gaps,
        in_gaps: own.named,
        gap_reasons,
        epochs: trial.history.restores() + 1,
        peers: if trial.peers.is_empty() { Vec::new() } else { peers },
        ..PromiseReport::default()
    })
}

/// The controller's own, counted as those of peers are. The verdict holds, so all that is missing lies in gaps.
fn own_figures(verdict: &Verdict, entries: &[&WrittenEntry], peak_kibibytes: u64) -> Result<PeerFigures> {
    let mut notes = String::new();
    for state in &verdict.states {
        let (name, version) = (&state.object.name, &state.resource_version);
        match state.change {
            Change::Present => notes += &format!("present {name} {}\n", version.as_str()),
            Change::Gone => notes += &format!("gone {name}\n"),
            Change::Left | Change::Gap => {}
        }
    }
    let figures = compare(&notes, entries)?;
    let named = figures.missed_versions + figures.missed_ends;
    let peak_megabytes = peak_kibibytes.div_ceil(1024);
    Ok(PeerFigures { name: "kubewitness".into(), named, peak_megabytes, ..figures })
}
