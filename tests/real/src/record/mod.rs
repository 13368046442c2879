//! Records histories of real Jobs, each labelled with the cause of its outcome, for `tests/causes`.
//!
//! The API server, the controller manager and the scheduler are Kubernetes' own; the kubelets are not ([`kubelet`]). Each
//! case has a namespace whose name says nothing, and all run at once. The label says what the case did to its Job. Before
//! a history is written, `kubewitness_causes::check_label` looks in it for the facts of its label. Nothing of the product
//! has a part in this.

mod capture;
mod case;
mod cases;
mod controllers;
mod dashboards;
mod kubelet;
mod lab;
mod manifests;
mod operators;
mod play;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use kubewitness_causes::{HistoryHeader, RecordedHistory, check_label, is_held_out, write_history};
use kubewitness_harness::Scratch;

use crate::cluster::ServerPrograms;
use case::Case;
use cases::CaseGroup;
use controllers::ControlledCluster;
use lab::{RecordLab, Recording};
use operators::{OperatorKind, RunningOperators};
pub use play::{PlayOptions, play};

/// A file that is larger is no test that a person reads.
const LARGEST: usize = 140_000;

/// The names of the controllers of other projects that these cases need.
pub fn needed_operators(only: &[String]) -> Result<Vec<&'static str>> {
    let needed: BTreeSet<_> = chosen(only)?.iter().flat_map(|group| group.needs).copied().collect();
    Ok(needed.into_iter().map(OperatorKind::name).collect())
}

/// The cases whose names contain one of `only`, or all.
fn chosen(only: &[String]) -> Result<Vec<CaseGroup>> {
    let is_wanted =
        |case: &Case| only.is_empty() || only.iter().any(|part| case.name.contains(part.as_str()));
    let mut groups = cases::groups();
    for group in &mut groups {
        group.cases.retain(is_wanted);
    }
    groups.retain(|group| !group.cases.is_empty());
    ensure!(!groups.is_empty(), "no case has a name with {}", only.join(" or "));
    Ok(groups)
}

/// Runs the cases whose names contain one of `only`, or all, and writes their histories into the folder. A case that
/// fails leaves the file of an earlier recording as it is, and fails the run.
pub async fn record_histories(
    programs: &ServerPrograms,
    scratch: &Scratch,
    folder: &Path,
    only: &[String],
) -> Result<()> {
    let begun = Instant::now();
    let groups = chosen(only)?;
    let needed = groups.iter().flat_map(|group| group.needs).copied().collect();
    let cluster = ControlledCluster::start(programs, scratch).await?;
    let mut operators = RunningOperators::start(&needed, &cluster, programs).await?;
    let (later, first): (Vec<_>, Vec<_>) = groups.into_iter().partition(|group| group.has_pods_deadline);
    let mut recorder = HistoryRecorder { cluster: &cluster, folder, begun, recorded: 0, failed: Vec::new() };
    recorder.record_all(&first).await;
    if !later.is_empty() {
        operators.set_pods_deadline().await?;
        recorder.record_all(&later).await;
    }
    let HistoryRecorder { recorded, failed, .. } = recorder;
    let refused = cluster.fleet.refused();
    operators.stop().await?;
    cluster.stop().await?;
    eprintln!("real: {recorded} histories in {} s", begun.elapsed().as_secs());
    ensure!(refused.is_empty(), "writes of kubelets were refused: {}", refused.join("; "));
    if !failed.is_empty() {
        bail!("{} cases were not recorded: {}", failed.len(), failed.join(", "));
    }
    Ok(())
}

/// The progress of one recording.
struct HistoryRecorder<'a> {
    cluster: &'a ControlledCluster,
    folder: &'a Path,
    begun: Instant,
    recorded: usize,
    failed: Vec<&'static str>,
}

impl HistoryRecorder<'_> {
    /// All at once: each has a namespace of its own.
    async fn record_all(&mut self, groups: &[CaseGroup]) {
        let cases = groups.iter().flat_map(|group| &group.cases);
        let mut runs: FuturesUnordered<_> =
            cases.map(|case| async { (case.name, record(case, self.cluster, self.folder).await) }).collect();
        while let Some((name, result)) = runs.next().await {
            match result {
                Ok(size) => {
                    self.recorded += 1;
                    eprintln!("real: {name}: {size} bytes after {} s", self.begun.elapsed().as_secs());
                }
                Err(error) => {
                    eprintln!("real: {name} FAILED: {error:#}");
                    self.failed.push(name);
                }
            }
        }
    }
}

async fn record(case: &Case, cluster: &ControlledCluster, folder: &Path) -> Result<usize> {
    let lab = RecordLab::open(case.name, cluster).await?;
    let expected = (case.run)(&lab).await?;
    let Recording { object, expected, changes } = lab.close(expected).await?;
    let header = HistoryHeader {
        name: case.name.to_owned(),
        kubernetes: cluster.kubernetes.clone(),
        object,
        held_out: is_held_out(case.name),
        scenario: case.scenario.to_owned(),
        expected,
    };
    let history = RecordedHistory { header, changes };
    let text = write_history(&history)?;
    let checked = RecordedHistory::parse(&text).and_then(|read| check_label(&read));
    if let Err(error) = checked {
        let failed = std::env::temp_dir().join(format!("{}.failed.jsonl", case.name));
        fs::write(&failed, &text)?;
        return Err(error.context(format!("the label does not hold in {}", failed.display())));
    }
    ensure!(text.len() <= LARGEST, "{} bytes are too many", text.len());
    let file = folder.join(format!("{}.jsonl", case.name));
    fs::write(&file, &text).with_context(|| format!("writing {}", file.display()))?;
    Ok(text.len())
}
