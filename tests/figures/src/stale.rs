//! Whether the code that a figure measures has changed since it was measured.

use std::collections::BTreeMap;

use anyhow::{Result, bail};

use crate::catalog::{BENCHMARKS, Benchmark};
use crate::machine::{MeasuredRun, git};
use crate::store::FigureStore;

/// A benchmark whose figures say nothing about the code of today.
#[derive(Debug, PartialEq)]
pub struct StaleBenchmark {
    pub benchmark: &'static str,
    pub why: String,
}

/// The knowledge that git has of a repository. A test has one of its own.
pub trait GitHistory {
    fn has(&self, commit: &str) -> bool;
    /// The newest commit after `commit` that touches one of the paths.
    fn touched_since(&self, commit: &str, code: &[&str]) -> Result<Option<String>>;
    /// Whether files of these paths differ from the newest commit.
    fn is_changed(&self, code: &[&str]) -> Result<bool>;
}

/// The clone in which this program was built.
pub struct GitClone;

impl GitClone {
    pub fn open() -> Result<Self> {
        if git(&["rev-parse", "--is-shallow-repository"])? == "true" {
            bail!(
                "this clone is shallow, so git can't say what changed since a figure was measured: run \
                 `git fetch --unshallow` first"
            );
        }
        Ok(Self)
    }
}

impl GitHistory for GitClone {
    fn has(&self, commit: &str) -> bool {
        git(&["cat-file", "-e", &format!("{commit}^{{commit}}")]).is_ok()
            && git(&["merge-base", "--is-ancestor", commit, "HEAD"]).is_ok()
    }

    fn touched_since(&self, commit: &str, code: &[&str]) -> Result<Option<String>> {
        let range = format!("{commit}..HEAD");
        let newest = git(&[&["log", "-1", "--format=%h %s", &range, "--"], code].concat())?;
        Ok((!newest.is_empty()).then_some(newest))
    }

    fn is_changed(&self, code: &[&str]) -> Result<bool> {
        Ok(!git(&[&["status", "--porcelain", "--"], code].concat())?.is_empty())
    }
}

/// All benchmarks with a figure that is stale or was never measured.
pub fn stale(store: &FigureStore, history: &dyn GitHistory) -> Result<Vec<StaleBenchmark>> {
    let mut all = Vec::new();
    for benchmark in BENCHMARKS {
        if let Some(why) = reason(benchmark, store, history)? {
            all.push(StaleBenchmark { benchmark: benchmark.name, why });
        }
    }
    Ok(all)
}

fn reason(benchmark: &Benchmark, store: &FigureStore, history: &dyn GitHistory) -> Result<Option<String>> {
    let mut runs: BTreeMap<&str, &MeasuredRun> = BTreeMap::new();
    for figure in benchmark.figures {
        let Some(measured) = store.figures.get(figure.name) else {
            return Ok(Some(format!("`{}` was never measured", figure.name)));
        };
        if benchmark.code.is_empty() {
            continue;
        }
        runs.extend(store.runs.get_key_value(&measured.run).map(|(begun, run)| (begun.as_str(), run)));
    }
    for (begun, MeasuredRun { commit, is_dirty, .. }) in runs {
        let short = commit.get(..8).unwrap_or(commit);
        if *is_dirty {
            return Ok(Some(format!("the run of {begun} had uncommitted changes over {short}")));
        }
        if !history.has(commit) {
            return Ok(Some(format!("{short}, which the run of {begun} measured, is not in this branch")));
        }
        if let Some(newest) = history.touched_since(commit, benchmark.code)? {
            return Ok(Some(format!("its code changed after {short}: {newest}")));
        }
    }
    let is_changed = !benchmark.code.is_empty() && history.is_changed(benchmark.code)?;
    Ok(is_changed.then(|| "its code has uncommitted changes".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::RunRecords;

    struct ScriptedHistory {
        has: bool,
        touched: Option<&'static str>,
        is_changed: bool,
    }

    impl GitHistory for ScriptedHistory {
        fn has(&self, _: &str) -> bool {
            self.has
        }
        fn touched_since(&self, _: &str, _: &[&str]) -> Result<Option<String>> {
            Ok(self.touched.map(str::to_owned))
        }
        fn is_changed(&self, _: &[&str]) -> Result<bool> {
            Ok(self.is_changed)
        }
    }

    const FRESH: ScriptedHistory = ScriptedHistory { has: true, touched: None, is_changed: false };

    fn of_restart(is_dirty: bool, history: &ScriptedHistory) -> Option<String> {
        let mut store = FigureStore::default();
        let run = MeasuredRun {
            begun: "monday".into(),
            commit: "0123456789".into(),
            is_dirty,
            ..MeasuredRun::default()
        };
        store.take(&RunRecords { run, figures: [("restart.warm".to_owned(), 1.0)].into() });
        let all = stale(&store, history).unwrap();
        all.into_iter().find(|one| one.benchmark == "restart").map(|one| one.why)
    }

    #[test]
    fn a_figure_is_fresh_until_a_commit_or_a_change_touches_its_code() {
        assert_eq!(of_restart(false, &FRESH), None);
        let touched = ScriptedHistory { touched: Some("abc Journals read in blocks"), ..FRESH };
        assert_eq!(
            of_restart(false, &touched).unwrap(),
            "its code changed after 01234567: abc Journals read in blocks"
        );
        let changed = ScriptedHistory { is_changed: true, ..FRESH };
        assert_eq!(of_restart(false, &changed).unwrap(), "its code has uncommitted changes");
    }

    #[test]
    fn a_figure_of_a_dirty_tree_or_of_a_commit_elsewhere_is_stale() {
        assert!(of_restart(true, &FRESH).unwrap().contains("uncommitted changes over 01234567"));
        assert!(
            of_restart(false, &ScriptedHistory { has: false, ..FRESH })
                .unwrap()
                .contains("is not in this branch")
        );
    }

    #[test]
    fn a_figure_that_was_never_measured_is_stale() {
        let all = stale(&FigureStore::default(), &FRESH).unwrap();
        assert_eq!(all.len(), BENCHMARKS.len());
        assert!(all.iter().all(|one| one.why.ends_with("was never measured")), "{all:?}");
    }
}
