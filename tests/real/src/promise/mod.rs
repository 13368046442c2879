//! The promise: what the controller witnessed is etcd's history, each version once and in order or in a gap with exact
//! bounds, whatever happens to the servers, to the network and to the controller itself.
//!
//! [`plans`] says what can happen, [`choices`] what happens in a run, [`trial`] does it, [`history`] reads what etcd had, and [`judge`] compares.

mod choices;
mod failures;
mod history;
mod journal;
mod judge;
pub mod plans;
mod trial;
mod workload;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use kubewitness_core::{Change, Gap};
use kubewitness_faults::WrittenEntry;
use kubewitness_harness::{Scratch, SmallDisk, nothing_may_be_skipped, skip};
use serde::Serialize;

use crate::cluster::{ServerPrograms, copy_folder};
use crate::peers::{PeerFigures, PeerKind, compare};
use choices::{RunAbilities, RunChoices};
pub use failures::known_failures;
pub(crate) use history::EtcdHistory;
use judge::JudgedRun;
pub(crate) use judge::{gaps, verdict};
use plans::FaultPlan;
use trial::PromiseTrial;

/// The example's source, and its resource in etcd.
pub(crate) const SOURCE: &str = "jobs";

/// The folder of the controller's data in that of the run.
pub const DATA: &str = "data";
/// Compiled plugins, journal and granted database of a run fit several times.
const SMALL_DISK: &str = "512m";

/// The choices for a trial.
#[derive(Default)]
pub struct TrialOptions {
    pub programs: ServerPrograms,
    /// Minors that were built beside that of `programs`.
    pub other_minors: Vec<String>,
    pub seed: u64,
    /// So many are dealt. `None`: each possible one once.
    pub faults: Option<u64>,
    /// In this order, instead of `faults` that are dealt.
    pub plans: Vec<&'static FaultPlan>,
    /// The peers that watch beside the controller.
    pub peers: Vec<&'static PeerKind>,
    /// Whether the journal is in PostgreSQL. Otherwise it is a file.
    pub has_journal_server: bool,
    /// Whether it is a known failure, which a machine that can't repeat it skips.
    pub is_known: bool,
}

/// The figures of a run that held.
#[derive(Debug, Default, Serialize)]
pub struct PromiseReport {
    pub minor: String,
    pub seed: u64,
    /// Whether the journal was in PostgreSQL.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub has_journal_server: bool,
    pub faults: BTreeMap<&'static str, u64>,
    /// The entries that etcd had: writes and deletions.
    pub history: usize,
    pub objects: usize,
    pub states: usize,
    /// The gaps of objects, and of the whole source.
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
/// is kept among the known failures. `None`: a known failure was skipped, because this machine can't repeat it.
pub async fn survives_faults(options: &TrialOptions, scratch: &Scratch) -> Result<Option<PromiseReport>> {
    // It is unmounted last: what a failure left is in it.
    let disk = SmallDisk::mount(&scratch.folder(DATA)?, SMALL_DISK);
    let means = RunAbilities {
        has_other_minor: !options.other_minors.is_empty(),
        has_small_disk: disk.is_some(),
        has_peers: !options.peers.is_empty(),
        has_journal_server: options.has_journal_server,
    };
    let choices = match choices::choose(options, means) {
        Err(why) if options.is_known => {
            let known = "a known failure of tests/real/known_failures.txt";
            ensure!(!nothing_may_be_skipped(), "{known} can't be repeated here: {why}");
            skip(known, &why.to_string());
            return Ok(None);
        }
        chosen => chosen?,
    };
    if options.plans.is_empty() {
        for (name, needed) in choices::left_out(means) {
            eprintln!("real: the fault {name} is left out: it needs {needed}");
        }
    }
    let plans = choices.plans.clone();
    let report = run(options, scratch, disk.as_ref(), choices).await;
    let report = report.with_context(|| {
        let (minor, command) = (&options.programs.minor, failures::repeat_command(options, &plans));
        format!("against Kubernetes {minor}; repeat with `{command}`")
    });
    report.map(Some)
}

async fn run(
    options: &TrialOptions,
    scratch: &Scratch,
    disk: Option<&SmallDisk>,
    choices: RunChoices,
) -> Result<PromiseReport> {
    let begun = Instant::now();
    let trial = PromiseTrial::start(options, scratch, disk, choices.dice).await;
    // No fault has happened: what is left is kept, but there is no line to repeat it with.
    let mut trial = trial.inspect_err(|_| keep_folder(options, scratch))?;
    match suffer_all(&mut trial, options, &choices.plans).await {
        Ok(report) => {
            let ready_seconds = trial.ready_after().as_secs_f64();
            trial.stop_servers().await?;
            Ok(PromiseReport { ready_seconds, seconds: begun.elapsed().as_secs_f64(), ..report })
        }
        Err(error) => {
            trial.kill_all().await;
            if let Err(of_keeping) = failures::keep(options, &choices.plans) {
                eprintln!("real: the failure is not in the list of known ones: {of_keeping:#}");
            }
            keep_folder(options, scratch);
            Err(error)
        }
    }
}

/// An error of keeping is only printed: the verdict matters more.
fn keep_folder(options: &TrialOptions, scratch: &Scratch) {
    let name = format!("{}-{}", options.programs.minor, options.seed);
    let kept = options.programs.folder.join("failed").join(name);
    match replace_folder(scratch.path(), &kept) {
        Ok(()) => eprintln!("real: what the run left is in {}", kept.display()),
        Err(error) => eprintln!("real: what the run left could not be kept: {error:#}"),
    }
}

/// Nothing of an earlier failure stays beside the new one.
fn replace_folder(from: &Path, to: &Path) -> Result<()> {
    if to.exists() {
        fs::remove_dir_all(to).with_context(|| format!("removing {}", to.display()))?;
    }
    copy_folder(from, to)
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
    let in_gaps = own.missed_versions + own.missed_ends;
    let mut peers = vec![own];
    peers.extend(trial.peers.figures(&entries)?);
    Ok(PromiseReport {
        minor: options.programs.minor.clone(),
        seed: options.seed,
        has_journal_server: options.has_journal_server,
        faults: trial.done.clone(),
        history: entries.len(),
        objects: entries.iter().map(|entry| &*entry.uid).collect::<BTreeSet<_>>().len(),
        states: verdict.states.iter().filter(|state| state.change != Change::Gap).count(),
        object_gaps,
        source_gaps: verdict.gaps.len() - object_gaps,
        in_gaps,
        gap_reasons,
        epochs: trial.history.restores() + 1,
        peers: if trial.peers.is_empty() { Vec::new() } else { peers },
        ..PromiseReport::default()
    })
}

/// The controller's own, counted as those of peers are. The verdict holds, so all that is missing lies in gaps.
fn own_figures(verdict: &JudgedRun, entries: &[&WrittenEntry], peak_kibibytes: u64) -> Result<PeerFigures> {
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
    let peak_megabytes = peak_kibibytes.div_ceil(1024);
    Ok(PeerFigures { name: "kubewitness".into(), peak_megabytes, ..figures })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_failure_of_a_seed_takes_the_place_of_the_first() {
        let scratch = Scratch::new("failed").expect("a folder");
        let (from, to) =
            (scratch.folder("from").expect("a folder"), scratch.folder("to/1.36-7").expect("a folder"));
        fs::write(to.join("run-05.err"), "old").expect("written");
        fs::write(from.join("run-00.err"), "new").expect("written");
        replace_folder(&from, &to).expect("replaced");
        let names: Vec<_> =
            fs::read_dir(&to).expect("kept").map(|it| it.expect("a file").file_name()).collect();
        assert_eq!(names, ["run-00.err"]);
    }
}
