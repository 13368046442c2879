//! Runs that once failed. They run each time, before any other.
//!
//! A line of the file is a minor, a seed, and the faults in their order: a seed alone would mean other faults as soon as a
//! fault is added.

use std::fs;
use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result};
use kubewitness_harness::project_root;

use super::plans::{self, FaultPlan};

const FILE: &str = "tests/real/known_failures.txt";

#[derive(Debug, PartialEq, Eq)]
pub struct KnownFailure {
    pub minor: String,
    pub seed: u64,
    pub plans: Vec<&'static FaultPlan>,
}

fn file() -> PathBuf {
    project_root().join(FILE)
}

/// Those of all minors.
pub fn known_failures() -> Result<Vec<KnownFailure>> {
    let text = fs::read_to_string(file()).with_context(|| format!("reading {FILE}"))?;
    text.lines().filter(|line| !line.starts_with('#')).map(parse).collect()
}

fn parse(line: &str) -> Result<KnownFailure> {
    let parts: Vec<_> = line.split(' ').collect();
    let [minor, seed, names] = parts[..] else {
        anyhow::bail!("`{line}` of {FILE} is not a minor, a seed and faults");
    };
    let names: Vec<_> = names.split(',').map(str::to_owned).collect();
    let seed = seed.parse().with_context(|| format!("the seed of `{line}` in {FILE}"))?;
    let plans = plans::named(&names).with_context(|| format!("`{line}` of {FILE}"))?;
    Ok(KnownFailure { minor: minor.to_owned(), seed, plans })
}

/// Adds a run that failed. In CI nobody commits the file, so it is only printed there.
pub(super) fn keep(minor: &str, seed: u64, plans: &[&FaultPlan]) -> Result<()> {
    let names: Vec<_> = plans.iter().map(|plan| plan.name).collect();
    let line = format!("{minor} {seed} {}", names.join(","));
    eprintln!("real: FAILED, for {FILE}: {line}");
    let is_known = fs::read_to_string(file()).is_ok_and(|text| text.lines().any(|known| known == line));
    if is_known || kubewitness_harness::nothing_may_be_skipped() {
        return Ok(());
    }
    let mut file =
        fs::File::options().append(true).open(file()).with_context(|| format!("opening {FILE}"))?;
    writeln!(file, "{line}").with_context(|| format!("writing {FILE}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kept_failure_can_be_run() {
        known_failures().expect("a minor, a seed and faults in each line");
    }

    #[test]
    fn a_line_names_the_minor_the_seed_and_the_faults_in_their_order() {
        let failure = parse("1.36 7 restore,etcd-kill").expect("a line");
        let names: Vec<_> = failure.plans.iter().map(|plan| plan.name).collect();
        assert_eq!(
            (failure.minor.as_str(), failure.seed, &names[..]),
            ("1.36", 7, &["restore", "etcd-kill"][..])
        );
        parse("1.36 7").expect_err("no faults");
        parse("1.36 seven restore").expect_err("no seed");
        parse("1.36 7 moon").expect_err("no such fault");
    }
}
