//! Runs the tests of the workspace in one pool of processes.
//!
//! The problem: 3,300 tests on two cores. Most of them compute for milliseconds, some hundred start servers
//! and wait.
//! `cargo test` runs one program after the other, so a core is idle whenever the last test of a program
//! waits.
//!
//! The choice: a job is a process. A test that takes seconds is a job of its own, and the short tests of a
//! program are one job. The pool starts the longest job first, and as many concurrently as the processors
//! allow, according to the processor time and wall time of each job in earlier runs ([`durations`]). A test
//! runner from a registry was rejected: it takes minutes to compile before the first test can begin.
//!
//! A job of a whole run that fails is repeated with nothing beside it. If it passes then, the run passes too, and names
//! it as unsteady: it depends on the load of the machine, or on chance, and its first output tells how.
//!
//! The invariant: each listed test counts once, and each job ends, by itself or by its deadline.

mod durations;
mod job;
mod outcome;
pub mod packages;
mod pairs;
mod pool;
mod programs;
mod schedule;
mod timings;
mod waits;

use std::process::Command;
use std::time::Instant;

use anyhow::{Result, bail};

use crate::build::{BuildTimes, step, target};
use durations::TestDurations;
use job::TestJob;
use programs::TestProgram;

/// The requested tests.
#[derive(Default)]
pub struct TestSelection {
    /// The names of packages; empty for all.
    pub packages: Vec<String>,
    /// Parts of test names, one of which must match; empty for all.
    pub filters: Vec<String>,
    /// Whether to run ignored tests. They do something useful for a person, and prove nothing.
    pub ignored: bool,
    /// Whether to run all tests instead of one of each [pair](pairs).
    pub complete: bool,
    /// Whether a skipped test is a failure, as in CI.
    pub skips_nothing: bool,
    /// Whether to print tables of durations, and to update the repository's durations.
    pub timings: bool,
}

impl TestSelection {
    /// Whether no particular tests were requested.
    pub fn is_everything(&self) -> bool {
        self.packages.is_empty() && self.filters.is_empty()
    }
}

/// Runs the selected tests. A failure does not stop the others. `prepare` sets the variables that they need.
pub fn run(
    selection: &TestSelection,
    artifacts: &str,
    builds: &BuildTimes,
    seed: &str,
    prepare: &dyn Fn(&mut Command),
) -> Result<()> {
    let mut programs = programs::of_messages(artifacts, prepare)?;
    if selection.filters.is_empty() && !selection.complete {
        let mut tests: Vec<_> = programs.iter_mut().map(|program| &mut program.tests).collect();
        let left_out = pairs::take_one_of_each(&mut tests, seed);
        step(&format!("{left_out} tests are left to seed + 1, or to --complete: {}", pairs::LEFT_OUT));
    }
    let durations = TestDurations::load();
    let jobs = plan(&programs, selection, &durations);
    let is_without_test = |filter: &&String| {
        !programs.iter().flat_map(|program| &program.tests).any(|test| test.contains(filter.as_str()))
    };
    // A filter without matches is misspelt, or its test was removed.
    let without: Vec<_> = selection.filters.iter().filter(is_without_test).map(String::as_str).collect();
    if jobs.is_empty() || !without.is_empty() {
        bail!("no test has a name with {}", without.join(", nor one with "));
    }
    let tests: usize = jobs.iter().map(|job| job.tests.len()).sum();
    step(&format!("running {tests} tests in {} jobs", jobs.len()));
    let begin = Instant::now();
    let logs = target().join("test-output");
    if logs.is_dir() {
        std::fs::remove_dir_all(&logs)?;
    }
    let outcomes = pool::run_all(&programs, jobs, &logs, selection, prepare)?;
    let measured = durations.updated(&outcomes);
    measured.save_local()?;
    if selection.timings {
        timings::print(&outcomes, builds, begin.elapsed())?;
        if selection.is_everything() {
            measured.save_for_fresh_machines()?;
        }
    }
    outcome::summary(&outcomes)
}

/// Splits the tests of each program into jobs.
fn plan(programs: &[TestProgram], selection: &TestSelection, durations: &TestDurations) -> Vec<TestJob> {
    let is_selected = |test: &String| {
        selection.filters.is_empty() || selection.filters.iter().any(|filter| test.contains(filter.as_str()))
    };
    let mut jobs = Vec::new();
    for (index, program) in programs.iter().enumerate() {
        let selected: Vec<_> = program.tests.iter().filter(|test| is_selected(test)).cloned().collect();
        let is_long = |test: &String| program.one_job_a_test() || durations.is_long(&program.name, test);
        let (long, short): (Vec<_>, Vec<_>) = selected.into_iter().partition(is_long);
        let alone = long.into_iter().map(|test| vec![test]);
        let together = Some(short).filter(|tests| !tests.is_empty());
        jobs.extend(alone.chain(together).map(|tests| TestJob::new(index, program, tests, durations)));
    }
    jobs
}
