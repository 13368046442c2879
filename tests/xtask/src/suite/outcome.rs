//! The outcome of a job, read from its output.

use anyhow::{Context, Result, bail};

use super::job::{JobEnd, TestJob};
use super::waits::{self, RecordedWait};
use crate::build::print_text;

/// How many lines of each failed test, and of each failed job, are repeated at the end.
const LINES_OF_A_TEST: usize = 25;
const LINES_OF_A_JOB: usize = 60;
const LONGEST_LINE: usize = 500;

#[derive(Default)]
pub struct JobOutcome {
    pub program: String,
    /// The name in the output.
    pub name: String,
    pub tests: Vec<TestOutcome>,
    pub counts: TestCounts,
    pub wall: f64,
    pub processor: f64,
    pub waits: Vec<RecordedWait>,
    /// The reason for its failure.
    pub failure: Option<String>,
    /// The reason for its failure beside other jobs, where it then passed with nothing beside it.
    pub failure_beside_others: Option<String>,
}

pub struct TestOutcome {
    pub name: String,
    /// `None` if the test harness did not print it.
    pub seconds: Option<f64>,
}

#[derive(Clone, Copy, Default, Debug, PartialEq)]
pub struct TestCounts {
    pub passed: usize,
    pub failed: usize,
    pub ignored: usize,
}

impl TestCounts {
    fn sum(self) -> usize {
        self.passed + self.failed + self.ignored
    }
}

impl JobOutcome {
    pub fn new(program: &str, job: &TestJob, end: &JobEnd) -> Result<Self> {
        let log = std::fs::read(&end.log).with_context(|| format!("reading {}", end.log.display()))?;
        let log = String::from_utf8_lossy(&log);
        let mut counts = counts(&log).unwrap_or_default();
        let missing = job.tests.len().saturating_sub(counts.sum());
        let why = match () {
            () if end.is_late => Some("was killed at its deadline".to_owned()),
            () if !end.process.status.success() => Some(end.process.status.to_string()),
            () if missing > 0 => Some(format!("{missing} of its tests did not run")),
            () => None,
        };
        counts.failed += missing;
        let failure = why.map(|why| format!("{}: {why}\n{}", job.name, reasons(&log)));
        let seconds = |test: &str| report_time(&log, test);
        let outcome = |name: &String| TestOutcome { seconds: seconds(name), name: name.clone() };
        Ok(Self {
            program: program.to_owned(),
            name: job.name.clone(),
            tests: job.tests.iter().map(outcome).collect(),
            counts,
            wall: end.process.wall,
            processor: end.process.processor,
            waits: waits::read(&end.waits),
            failure,
            failure_beside_others: None,
        })
    }

    /// Takes the outcome of the same job, run again with nothing beside it.
    pub fn take_repeat(&mut self, again: Self) {
        let before = std::mem::replace(self, again);
        if self.failure.is_none() {
            self.failure_beside_others = before.failure;
        }
    }

    /// Prints one line, or for a failed job its whole output.
    pub fn show(&self) {
        let word = if self.failure.is_some() { "\x1b[31mFAILED\x1b[0m" } else { "ok" };
        eprintln!("{word:>6} {:7.1}s  {}", self.wall, self.name);
        if let Some(failure) = &self.failure {
            eprintln!("{failure}");
        }
    }
}

/// Prints the sum. It is an error if a test failed.
pub fn summary(outcomes: &[JobOutcome]) -> Result<()> {
    for failure in outcomes.iter().filter_map(|outcome| outcome.failure_beside_others.as_deref()) {
        eprintln!("\n\x1b[33mUNSTEADY\x1b[0m (passed when nothing ran beside it): {failure}");
    }
    let failures: Vec<_> = outcomes.iter().filter_map(|outcome| outcome.failure.as_deref()).collect();
    if !failures.is_empty() {
        eprintln!("\n{}", failures.join("\n\n"));
    }
    print_text(&sum_line(outcomes))?;
    if !failures.is_empty() {
        let jobs = if failures.len() == 1 { "1 job".to_owned() } else { format!("{} jobs", failures.len()) };
        bail!("{jobs} failed; target/test-output has all that they printed");
    }
    Ok(())
}

/// `3800 passed, 0 failed, 3 ignored, 1 unsteady`.
fn sum_line(outcomes: &[JobOutcome]) -> String {
    let sum = |count: fn(&JobOutcome) -> usize| outcomes.iter().map(count).sum::<usize>();
    let more = |count: usize, what: &str| match count {
        0 => String::new(),
        count => format!(", {count} {what}"),
    };
    format!(
        "{} passed, {} failed{}{}\n",
        sum(|outcome| outcome.counts.passed),
        sum(|outcome| outcome.counts.failed),
        more(sum(|outcome| outcome.counts.ignored), "ignored"),
        more(sum(|outcome| usize::from(outcome.failure_beside_others.is_some())), "unsteady"),
    )
}

/// The line `test result: ok. 3 passed; 0 failed; 1 ignored; …`.
fn counts(log: &str) -> Option<TestCounts> {
    let line = log.lines().rev().find(|line| line.starts_with("test result: "))?;
    let number = |what: &str| {
        line.split([';', '.']).find_map(|part| part.trim().strip_suffix(what)?.trim().parse().ok())
    };
    Some(TestCounts { passed: number("passed")?, failed: number("failed")?, ignored: number("ignored")? })
}

/// The seconds in a line such as `test NAME ... ok <0.123s>`.
fn report_time(log: &str, test: &str) -> Option<f64> {
    let begin = format!("test {test} ... ");
    let line = log.lines().find(|line| line.starts_with(&begin))?;
    line.rsplit_once('<')?.1.strip_suffix("s>")?.parse().ok()
}

/// The beginning of each failed test's output. If the program ended before it could list them, the end of its
/// output.
fn reasons(printed: &str) -> String {
    let cut = |line: &str| line.chars().take(LONGEST_LINE).collect::<String>();
    let Some((_, listed)) = printed.split_once("\nfailures:\n") else {
        let lines: Vec<_> = printed.lines().map(cut).collect();
        return lines[lines.len().saturating_sub(LINES_OF_A_TEST)..].join("\n");
    };
    let mut of_this_test = 0;
    let is_shown = |line: &&str| {
        of_this_test = if line.starts_with("---- ") { 0 } else { of_this_test + 1 };
        of_this_test <= LINES_OF_A_TEST
    };
    listed.lines().filter(is_shown).take(LINES_OF_A_JOB).map(cut).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_times_are_read_from_what_the_test_harness_prints() {
        let log = "running 2 tests\ntest a::b ... ok <1.250s>\ntest c ... ignored\n\ntest result: ok. 1 passed; 0 failed; 1 ignored; 0 measured; 7 filtered out; finished in 1.25s\n";
        assert_eq!(counts(log), Some(TestCounts { passed: 1, failed: 0, ignored: 1 }));
        assert_eq!(report_time(log, "a::b"), Some(1.25));
        assert_eq!(report_time(log, "c"), None);
        assert_eq!(counts("killed"), None);
    }

    #[test]
    fn why_tests_failed_is_cut_at_a_bound() {
        let long = "x".repeat(2 * LONGEST_LINE);
        let test = |name: &str| format!("---- {name} stdout ----\n{}", format!("{long}\n").repeat(99));
        let reasons = reasons(&format!("running 2\n\nfailures:\n{}{}", test("one"), test("two")));
        assert!(reasons.contains("---- one") && reasons.contains("---- two"), "{reasons}");
        assert_eq!(reasons.lines().count(), 2 * (LINES_OF_A_TEST + 1));
        assert!(reasons.lines().all(|line| line.len() <= LONGEST_LINE));
    }

    #[test]
    fn the_end_of_a_program_that_crashed_is_shown() {
        let printed: String = (0..99).map(|n| format!("line {n}\n")).collect();
        let reasons = reasons(&printed);
        assert!(reasons.ends_with("line 98"), "{reasons}");
        assert_eq!(reasons.lines().count(), LINES_OF_A_TEST);
    }

    #[test]
    fn a_job_that_passes_alone_is_unsteady_and_one_that_fails_again_has_failed() {
        let outcome = |passed, failed, failure: Option<&str>| JobOutcome {
            counts: TestCounts { passed, failed, ignored: 0 },
            failure: failure.map(str::to_owned),
            ..JobOutcome::default()
        };
        let mut unsteady = outcome(2, 1, Some("late"));
        unsteady.take_repeat(outcome(3, 0, None));
        assert_eq!(
            (unsteady.failure.as_deref(), unsteady.failure_beside_others.as_deref()),
            (None, Some("late"))
        );
        assert_eq!(sum_line(&[unsteady]), "3 passed, 0 failed, 1 unsteady\n");
        let mut broken = outcome(2, 1, Some("late"));
        broken.take_repeat(outcome(2, 1, Some("wrong")));
        assert_eq!(
            (broken.failure.as_deref(), broken.failure_beside_others.as_deref()),
            (Some("wrong"), None)
        );
        assert_eq!(sum_line(&[broken]), "2 passed, 1 failed\n");
    }
}
