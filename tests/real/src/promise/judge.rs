//! The verdict: what the controller journaled and what its gaps name is etcd's history, each version once and in order,
//! and the granted database has each state of the journal once.
//!
//! Nothing of the product takes part but its command line, its API and its plugin's tables, which say what it witnessed.

use std::collections::HashMap;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use kubewitness_core::{Change, Gap, Seq, State};
use kubewitness_faults::{JournalRecord, ServerTruth, judge};
use kubewitness_harness::{Kubewitness, Platform, RunOptions, command_in, command_json, compare_newest};
use serde_json::Value;

use super::SOURCE;
use super::history::content;

const SHOWN: usize = 12;
/// More than any run has.
const GAPS: usize = 10_000;

/// The counts of what was found to be right.
pub(crate) struct JudgedRun {
    pub states: Vec<Arc<State>>,
    pub gaps: Vec<Gap>,
}

/// The gaps of the source and of its objects.
pub(crate) async fn gaps(run: &Kubewitness) -> Result<Vec<Gap>> {
    let (code, text) = run.get(&format!("/api/v1/gaps?source={SOURCE}&limit={GAPS}")).await?;
    ensure!(code == 200, "the gaps were answered with {code}: {text}");
    serde_json::from_str(&text).with_context(|| format!("the gaps {text}"))
}

/// Judges a controller that has ended.
pub(crate) async fn verdict(truth: &ServerTruth, options: &RunOptions, gaps: Vec<Gap>) -> Result<JudgedRun> {
    let data = options.data.to_string_lossy();
    // Where the journal is, if it is not in the data folder.
    let journal: Vec<_> = options.args.iter().map(String::as_str).collect();
    let verify = ["journal", "verify", "--data", &data, "-o", "json"];
    let verified = command_json(&[&verify[..], &journal].concat()).await?;
    ensure!(verified["ok"] == true, "journal verify said {verified}");
    let JournalExport { states, documents } = exported(&data, &journal).await?;
    let told = JournalRecord {
        states: states.clone(),
        documents,
        gaps: gaps.clone(),
        late_allowed: true,
        ..JournalRecord::default()
    };
    let faults = judge(truth, &told);
    if !faults.is_empty() {
        let lines: Vec<_> = faults.iter().take(SHOWN).map(|fault| format!("  {fault}")).collect();
        bail!("{} differences between etcd's history and the journal:\n{}", faults.len(), lines.join("\n"));
    }
    let mut platform = Platform::open(&options.data.join("platform.db")).await?;
    let rows = platform.history(SOURCE).await?;
    let journaled: Vec<_> = states.iter().map(|state| (state.seq, state.id.as_str())).collect();
    let mut granted = Vec::new();
    for row in &rows {
        granted.push((u64::try_from(row.seq)?, row.id.as_str()));
    }
    each_once(&journaled, &granted)?;
    compare_newest(&rows, &platform.status(SOURCE).await?).context("the newest states")?;
    Ok(JudgedRun { states, gaps })
}

/// The granted database has what the journal has, in the same order.
fn each_once(journaled: &[(u64, &str)], granted: &[(u64, &str)]) -> Result<()> {
    if let Some((ours, other)) = journaled.iter().zip(granted).find(|(ours, other)| ours != other) {
        bail!("the journal has {ours:?} where the granted database has {other:?}");
    }
    let (many, other) = (journaled.len(), granted.len());
    ensure!(many == other, "{many} states are in the journal, and {other} in the granted database");
    Ok(())
}

/// Without those that it has in common with the history before.
pub(super) fn own_entries(
    history: &kubewitness_faults::ResourceHistory,
) -> impl Iterator<Item = &kubewitness_faults::WrittenEntry> {
    history.entries.iter().filter(|entry| entry.version > history.listed)
}

struct JournalExport {
    /// By position.
    states: Vec<Arc<State>>,
    /// The content that is compared of each object that was present.
    documents: HashMap<Seq, Option<Value>>,
}

/// All that the journal has of the source.
async fn exported(data: &str, journal: &[&str]) -> Result<JournalExport> {
    let export = ["journal", "export", "--documents", "--data", data, "--source", SOURCE];
    let (code, lines, said) = command_in(&[&export[..], journal].concat(), &[]).await?;
    ensure!(code == Some(0), "journal export ended with {code:?}: {said}");
    let mut export = JournalExport { states: Vec::new(), documents: HashMap::new() };
    for line in lines.lines() {
        let mut line: Value = serde_json::from_str(line).with_context(|| format!("the line {line}"))?;
        if !line["state"].is_object() {
            continue;
        }
        let state: State = serde_json::from_value(line["state"].take()).context("a state")?;
        if state.change == Change::Present {
            export.documents.insert(state.seq, told_content(&line)?);
        }
        export.states.push(Arc::new(state));
    }
    Ok(export)
}

/// `None`: the line has no document, which etcd's value never equals.
fn told_content(line: &Value) -> Result<Option<Value>> {
    let Some(document) = line["document"].as_str() else { return Ok(None) };
    let object = serde_json::from_str(document).with_context(|| format!("the document {document}"))?;
    Ok(Some(content(&object)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_that_is_missing_doubled_swapped_or_invented_is_found() {
        let journaled = [(1, "a"), (2, "b"), (3, "c")];
        each_once(&journaled, &journaled).expect("the same");
        each_once(&journaled, &journaled[..2]).expect_err("the last one is missing");
        each_once(&journaled, &[(1, "a"), (3, "c")]).expect_err("one is missing");
        each_once(&journaled, &[(1, "a"), (2, "b"), (2, "b"), (3, "c")]).expect_err("doubled");
        each_once(&journaled, &[(1, "a"), (3, "c"), (2, "b")]).expect_err("swapped");
        each_once(&journaled, &[(1, "a"), (2, "b"), (3, "c"), (4, "d")]).expect_err("invented");
    }
}
