//! The durations of tests in earlier runs. They decide the order of tests and which run concurrently, never
//! whether a test passes.
//!
//! `target/test-durations.tsv` is from this machine. `tests/durations.tsv` is for fresh machines, such as
//! those of CI:
//! `cargo xtask test --timings` writes it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, Result};

use super::outcome::JobOutcome;
use crate::build::{root, target};

/// A test that takes longer is a separate job.
const LONG_TEST: f64 = 2.0;
/// The shortest recorded duration.
const SHORTEST_RECORDED: f64 = 0.5;
/// The share of a processor that a test without measurement is assumed to use.
const USUAL_SHARE: f64 = 0.75;
/// The share of a processor that shared servers use for a test. No measurement of the test contains it.
const SERVERS_SHARE: f64 = 0.1;
/// If a test's processor time grew by no more than this factor, it does the same work as before.
const SAME_WORK: f64 = 1.5;
/// The name of the job that has all the short tests of a program.
const SHORT_TESTS: &str = "(short tests)";
/// The estimates for tests without measurement: one with servers, and one without.
const UNKNOWN_LONG: TestEstimate = TestEstimate { wall: 8.0, processor: 8.0 * USUAL_SHARE };
const UNKNOWN_SHORT: TestEstimate = TestEstimate { wall: 0.03, processor: 0.03 };

#[derive(Clone, Copy)]
pub struct TestEstimate {
    pub wall: f64,
    pub processor: f64,
}

impl TestEstimate {
    /// How many processors the test's own processes use.
    fn own_share(self) -> f64 {
        if self.wall > 0.0 { self.processor / self.wall } else { 1.0 }
    }

    /// How many processors the test uses, including shared servers.
    pub fn share(self) -> f64 {
        self.own_share() + SERVERS_SHARE
    }

    /// The estimate after one more run. A test beside many others waits for a processor, and then seems to
    /// need a smaller share. If that counted, each run would start more tests concurrently than the last. So
    /// the quickest run counts, until the test has more work.
    fn after(self, measured: Self) -> Self {
        let does_more = measured.processor > self.processor * SAME_WORK + SHORTEST_RECORDED;
        let wall = if does_more { measured.wall } else { measured.wall.min(self.wall) };
        Self { wall, ..measured }
    }
}

#[derive(Clone, Default)]
pub struct TestDurations {
    /// By program and test.
    known: BTreeMap<(String, String), TestEstimate>,
}

impl TestDurations {
    /// The durations of this machine, or else those of the repository.
    pub fn load() -> Self {
        let mut durations = Self::default();
        for file in [for_fresh_machines(), local()] {
            // Without the file, only the order of the tests differs.
            durations.known.extend(parse(&std::fs::read_to_string(file).unwrap_or_default()));
        }
        durations
    }

    fn get(&self, program: &str, test: &str) -> Option<TestEstimate> {
        self.known.get(&(program.to_owned(), test.to_owned())).copied()
    }

    pub fn is_long(&self, program: &str, test: &str) -> bool {
        self.get(program, test).is_some_and(|known| known.wall >= LONG_TEST)
    }

    /// The estimate for a job of these tests.
    pub fn estimate(&self, program: &str, tests: &[String]) -> TestEstimate {
        if let [test] = tests {
            return self.get(program, test).unwrap_or(UNKNOWN_LONG);
        }
        let count = tests.len() as f64;
        let unknown =
            TestEstimate { wall: UNKNOWN_SHORT.wall * count, processor: UNKNOWN_SHORT.processor * count };
        self.get(program, SHORT_TESTS).unwrap_or(unknown)
    }

    /// The estimates including these measurements.
    pub fn updated(&self, outcomes: &[JobOutcome]) -> Self {
        let mut durations = self.clone();
        let is_steady =
            |outcome: &&JobOutcome| outcome.failure.is_none() && outcome.failure_beside_others.is_none();
        for outcome in outcomes.iter().filter(is_steady) {
            let measured = TestEstimate { wall: outcome.wall, processor: outcome.processor };
            match &outcome.tests[..] {
                [test] => durations.remember(&outcome.program, &test.name, measured),
                tests => {
                    durations.remember(&outcome.program, SHORT_TESTS, measured);
                    // The processor time of a job can't be attributed to its tests.
                    let alone = |seconds| TestEstimate {
                        wall: seconds,
                        processor: seconds * measured.own_share().min(1.0),
                    };
                    for test in tests {
                        if let Some(seconds) = test.seconds {
                            durations.remember(&outcome.program, &test.name, alone(seconds));
                        }
                    }
                }
            }
        }
        durations
    }

    fn remember(&mut self, program: &str, test: &str, measured: TestEstimate) {
        let key = (program.to_owned(), test.to_owned());
        let known = self.known.get(&key).copied();
        // A recorded test stays recorded although it is short now, because the file for fresh machines may
        // count it as long.
        if known.is_some() || measured.wall >= SHORTEST_RECORDED || test == SHORT_TESTS {
            self.known.insert(key, known.map_or(measured, |known| known.after(measured)));
        }
    }

    pub fn save_local(&self) -> Result<()> {
        write(&local(), &self.table())
    }

    pub fn save_for_fresh_machines(&self) -> Result<()> {
        write(&for_fresh_machines(), &self.table())
    }

    fn table(&self) -> String {
        let line = |((program, test), known): (&(String, String), &TestEstimate)| {
            format!("{program}\t{test}\t{:.1}\t{:.1}\n", known.wall, known.processor)
        };
        let head = "# Written by `cargo xtask test --timings`: program, test, wall seconds, processor seconds where they are known.\n";
        head.to_owned() + &self.known.iter().map(line).collect::<String>()
    }
}

fn local() -> PathBuf {
    target().join("test-durations.tsv")
}

fn for_fresh_machines() -> PathBuf {
    root().join("tests").join("durations.tsv")
}

fn write(file: &std::path::Path, text: &str) -> Result<()> {
    std::fs::write(file, text).with_context(|| format!("writing {}", file.display()))
}

/// Invalid lines are skipped, because the file only decides the order.
fn parse(text: &str) -> BTreeMap<(String, String), TestEstimate> {
    let entry = |line: &str| {
        let mut columns = line.split('\t');
        let key = (columns.next()?.to_owned(), columns.next()?.to_owned());
        let wall: f64 = columns.next()?.parse().ok()?;
        let processor = match columns.next() {
            Some(seconds) => seconds.parse().ok()?,
            None => wall * USUAL_SHARE,
        };
        Some((key, TestEstimate { wall, processor }))
    };
    text.lines().filter(|line| !line.starts_with('#')).filter_map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::outcome::TestOutcome;

    fn outcome(tests: &[(&str, Option<f64>)], wall: f64) -> JobOutcome {
        let tests =
            tests.iter().map(|(name, seconds)| TestOutcome { name: (*name).to_owned(), seconds: *seconds });
        JobOutcome {
            program: "p".into(),
            tests: tests.collect(),
            wall,
            processor: wall / 2.0,
            ..JobOutcome::default()
        }
    }

    #[test]
    fn a_test_that_took_seconds_is_a_job_of_its_own_at_the_next_run() {
        let run = outcome(&[("slow", Some(3.0)), ("quick", Some(0.1))], 3.1);
        let durations = TestDurations { known: parse(&TestDurations::default().updated(&[run]).table()) };
        assert!(durations.is_long("p", "slow"));
        assert!(!durations.is_long("p", "quick"));
        let quicker = durations.updated(&[outcome(&[("slow", None)], 0.2)]);
        assert!(!quicker.is_long("p", "slow"));
    }

    #[test]
    fn a_failed_job_changes_nothing() {
        let failed = JobOutcome { failure: Some("why".into()), ..outcome(&[("slow", None)], 900.0) };
        assert!(!TestDurations::default().updated(&[failed]).is_long("p", "slow"));
    }

    #[test]
    fn a_test_takes_the_processors_that_it_computed_on_and_its_part_of_the_servers() {
        let share = |processor| TestEstimate { wall: 10.0, processor }.share();
        assert_eq!((share(0.0), share(4.0), share(15.0)), (SERVERS_SHARE, 0.5, 1.6));
    }

    #[test]
    fn a_test_that_was_kept_waiting_seems_no_idler_than_before_and_one_with_more_to_do_is_believed() {
        let known = TestEstimate { wall: 10.0, processor: 8.0 };
        let after = |wall, processor| known.after(TestEstimate { wall, processor }).wall;
        for (wall, processor, expected) in [(20.0, 8.0, 10.0), (4.0, 3.0, 4.0), (30.0, 20.0, 30.0)] {
            assert!((after(wall, processor) - expected).abs() < 1e-9, "{wall}");
        }
    }

    #[test]
    fn a_damaged_file_is_as_good_as_none() {
        assert!(parse("# comment\np\tt\tsoon\t1\nnothing\n").is_empty());
    }
}
