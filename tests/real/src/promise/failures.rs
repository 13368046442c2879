//! Runs that once failed. They run each time, before any other.
//!
//! A line of the file is a minor, a seed, and the faults in their order: a seed alone would mean other faults as soon as a
//! fault is added. Behind them stands `postgres` if the journal was there.

use std::fs;
use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result};
use kubewitness_harness::project_root;

use super::TrialOptions;
use super::plans::{self, FaultPlan, NO_FAULT};

const FILE: &str = "tests/real/known_failures.txt";
/// The end of the line of a run whose journal was in PostgreSQL.
const ON_A_SERVER: &str = " postgres";

#[derive(Debug, PartialEq, Eq)]
pub struct KnownFailure {
    pub minor: String,
    pub seed: u64,
    pub plans: Vec<&'static FaultPlan>,
    pub has_journal_server: bool,
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
    let (run, has_journal_server) = match line.strip_suffix(ON_A_SERVER) {
        Some(run) => (run, true),
        None => (line, false),
    };
    let parts: Vec<_> = run.split(' ').collect();
    let [minor, seed, names] = parts[..] else {
        anyhow::bail!("`{line}` of {FILE} is not a minor, a seed and faults");
    };
    let names: Vec<_> = names.split(',').map(str::to_owned).collect();
    let seed = seed.parse().with_context(|| format!("the seed of `{line}` in {FILE}"))?;
    let plans = plans::named(&names).with_context(|| format!("`{line}` of {FILE}"))?;
    Ok(KnownFailure { minor: minor.to_owned(), seed, plans, has_journal_server })
}

/// Adds a run that failed. In CI nobody commits the file, so it is only printed there.
pub(super) fn keep(options: &TrialOptions, plans: &[&FaultPlan]) -> Result<()> {
    let Some(line) = line(options, plans) else { return Ok(()) };
    eprintln!("real: FAILED, for {FILE}: {line}");
    let is_known = fs::read_to_string(file()).is_ok_and(|text| text.lines().any(|known| known == line));
    if is_known || kubewitness_harness::nothing_may_be_skipped() {
        return Ok(());
    }
    let mut file =
        fs::File::options().append(true).open(file()).with_context(|| format!("opening {FILE}"))?;
    writeln!(file, "{line}").with_context(|| format!("writing {FILE}"))
}

/// The whole command of this run alone.
pub(super) fn repeat_command(options: &TrialOptions, plans: &[&'static FaultPlan]) -> String {
    let minors: Vec<_> =
        [&options.programs.minor].into_iter().chain(&options.other_minors).cloned().collect();
    let peers = if options.peers.is_empty() { "" } else { " --peers" };
    let journal = if options.has_journal_server { " --postgres" } else { "" };
    let faults = match plans {
        [] => " --faults 0".to_owned(),
        // It comes before each run with peers.
        [plan] if *plan == &NO_FAULT => String::new(),
        plans => format!(" --fault {}", plans::names(plans)),
    };
    format!("KUBEWITNESS_SEED={} cargo xtask real {}{peers}{journal}{faults}", options.seed, minors.join(" "))
}

/// `None` for a run that a line can't repeat: one without faults, or one with peers.
fn line(options: &TrialOptions, plans: &[&FaultPlan]) -> Option<String> {
    let can_be_repeated = options.peers.is_empty() && !plans.is_empty();
    let journal = if options.has_journal_server { ON_A_SERVER } else { "" };
    can_be_repeated
        .then(|| format!("{} {} {}{journal}", options.programs.minor, options.seed, plans::names(plans)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::PEERS;

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
        assert!(!failure.has_journal_server);
        assert!(parse("1.36 7 journal-fail-over postgres").expect("a line").has_journal_server);
        parse("1.36 7").expect_err("no faults");
        parse("1.36 seven restore").expect_err("no seed");
        parse("1.36 7 moon").expect_err("no such fault");
    }

    #[test]
    fn a_run_without_faults_or_with_peers_is_not_kept() {
        let plans = plans::named(&["restore".into(), "etcd-kill".into()]).expect("faults");
        let mut options = TrialOptions { seed: 7, ..TrialOptions::default() };
        options.programs.minor = "1.36".into();
        let kept = line(&options, &plans).expect("a line");
        let failure = parse(&kept).expect("a line that can be read");
        assert_eq!((failure.minor.as_str(), failure.seed, failure.plans), ("1.36", 7, plans.clone()));
        assert_eq!(line(&options, &[]), None);
        options.has_journal_server = true;
        let kept = line(&options, &plans).expect("a line");
        assert!(parse(&kept).expect("a line that can be read").has_journal_server);
        options.peers = PEERS.iter().collect();
        assert_eq!(line(&options, &plans), None);
    }

    #[test]
    fn the_command_to_repeat_a_run_names_its_seed_its_minors_and_its_faults() {
        let plans = plans::named(&["minor-switch".into(), "etcd-kill".into()]).expect("faults");
        let mut options =
            TrialOptions { seed: 7, other_minors: vec!["1.37".into()], ..TrialOptions::default() };
        options.programs.minor = "1.36".into();
        let command = "KUBEWITNESS_SEED=7 cargo xtask real 1.36 1.37";
        let faults = "--fault minor-switch,etcd-kill";
        assert_eq!(repeat_command(&options, &plans), format!("{command} {faults}"));
        assert_eq!(repeat_command(&options, &[]), format!("{command} --faults 0"));
        options.has_journal_server = true;
        assert_eq!(repeat_command(&options, &plans), format!("{command} --postgres {faults}"));
        options.has_journal_server = false;
        options.peers = PEERS.iter().collect();
        assert_eq!(repeat_command(&options, &plans), format!("{command} --peers {faults}"));
        assert_eq!(repeat_command(&options, &[&NO_FAULT]), format!("{command} --peers"));
    }
}
