//! `tests/figures/figures.json`: what was measured, when, where and from which commit.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::catalog::figure_of;
use crate::machine::MeasuredRun;
use crate::root;

const FILE: &str = "tests/figures/figures.json";

#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq)]
pub struct FigureStore {
    /// By the time at which they began.
    pub runs: BTreeMap<String, MeasuredRun>,
    /// By their names in the catalog.
    pub figures: BTreeMap<String, KeptFigure>,
}

#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct KeptFigure {
    pub value: f64,
    /// Which of the runs measured it.
    pub run: String,
}

/// A line of the file to which benchmarks append.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RecordLine {
    /// The first line: where and from what the others come.
    Run(Box<MeasuredRun>),
    Figure {
        name: String,
        value: f64,
    },
}

/// The figures that one run recorded.
#[derive(Debug, PartialEq)]
pub struct RunRecords {
    pub run: MeasuredRun,
    pub figures: BTreeMap<String, f64>,
}

impl FigureStore {
    pub fn path() -> PathBuf {
        root().join(FILE)
    }

    pub fn read() -> Result<Self> {
        let text = std::fs::read_to_string(Self::path()).with_context(|| format!("reading {FILE}"))?;
        let store: Self = serde_json::from_str(&text).with_context(|| format!("reading {FILE}"))?;
        for (name, measured) in &store.figures {
            if figure_of(name).is_none() {
                bail!("{FILE} has `{name}`, which the catalog does not know");
            }
            if !store.runs.contains_key(&measured.run) {
                bail!("{FILE} has no run {}, which measured `{name}`", measured.run);
            }
        }
        Ok(store)
    }

    pub fn write(&self) -> Result<()> {
        let text = serde_json::to_string_pretty(self)? + "\n";
        std::fs::write(Self::path(), text).with_context(|| format!("writing {FILE}"))
    }

    /// The values of a run replace those of the same names. A run whose figures were all replaced goes.
    pub fn take(&mut self, recorded: &RunRecords) {
        let begun = recorded.run.begun.clone();
        for (name, value) in &recorded.figures {
            self.figures.insert(name.clone(), KeptFigure { value: rounded(*value), run: begun.clone() });
        }
        self.runs.insert(begun, recorded.run.clone());
        let Self { runs, figures } = self;
        runs.retain(|begun, _| figures.values().any(|measured| measured.run == *begun));
    }

    pub fn value(&self, name: &str) -> Option<f64> {
        self.figures.get(name).map(|measured| measured.value)
    }
}

/// More digits than any unit shows, and fewer than a machine repeats.
fn rounded(value: f64) -> f64 {
    (value * 1_000.0).round() / 1_000.0
}

/// Reads what benchmarks appended. A name that comes twice has its last value.
pub fn recorded(path: &Path) -> Result<RunRecords> {
    let text = std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    let (mut run, mut figures) = (None, BTreeMap::new());
    for line in text.lines() {
        match serde_json::from_str(line).with_context(|| format!("{}: {line}", path.display()))? {
            RecordLine::Run(begun) => run = Some(*begun),
            RecordLine::Figure { name, value } => {
                figures.insert(name, value);
            }
        }
    }
    let run = run.with_context(|| format!("{} does not begin with a run", path.display()))?;
    Ok(RunRecords { run, figures })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded(begun: &str, values: &[(&str, f64)]) -> RunRecords {
        let run = MeasuredRun { begun: begun.into(), ..MeasuredRun::default() };
        RunRecords { run, figures: values.iter().map(|(name, value)| ((*name).into(), *value)).collect() }
    }

    #[test]
    fn a_new_value_replaces_the_old_one_and_a_run_without_figures_goes() {
        let mut store = FigureStore::default();
        store.take(&recorded("monday", &[("latency.p50", 1.0), ("latency.p99", 2.0)]));
        store.take(&recorded("tuesday", &[("latency.p99", 2.123_456)]));
        assert_eq!(store.value("latency.p99"), Some(2.123));
        assert_eq!(Vec::from_iter(store.runs.keys()), ["monday", "tuesday"]);
        store.take(&recorded("wednesday", &[("latency.p50", 1.5)]));
        assert_eq!(Vec::from_iter(store.runs.keys()), ["tuesday", "wednesday"]);
    }

    #[test]
    fn the_repositorys_file_is_of_figures_that_the_catalog_knows() {
        assert!(!FigureStore::read().unwrap().figures.is_empty());
    }
}
