//! One job of the pool: some tests of one program, run in one process.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};

use super::TestSelection;
use super::durations::TestDurations;

use super::programs::TestProgram;
use crate::build::process::{MeasuredChild, MeasuredEnd};

/// A job that takes longer hangs, unless it is expected to be one of the longest.
const DEADLINE: Duration = Duration::from_secs(15 * 60);
/// How many times slower than expected a job may be: other machines are slower, and others run beside it.
const SLOWEST: f64 = 8.0;
/// Some of a program's short tests wait, so two of them share one processor.
const THREADS_OF_SHORT_TESTS: &str = "2";

pub struct TestJob {
    /// The index of its program.
    pub program: usize,
    pub tests: Vec<String>,
    /// The name in the output.
    pub name: String,
    /// The expected duration in seconds.
    pub expected: f64,
    /// How many processors it is expected to use.
    pub share: f64,
}

impl TestJob {
    pub fn new(index: usize, program: &TestProgram, tests: Vec<String>, durations: &TestDurations) -> Self {
        let name = match &tests[..] {
            [test] => format!("{} {test}", program.name),
            tests => format!("{} ({} tests)", program.name, tests.len()),
        };
        let estimate = durations.estimate(&program.name, &tests);
        Self { program: index, tests, name, expected: estimate.wall, share: estimate.share() }
    }
}

/// A job whose process runs.
pub struct RunningJob {
    pub job: TestJob,
    child: MeasuredChild,
    log: PathBuf,
    waits: PathBuf,
}

/// How a job ended.
pub struct JobEnd {
    pub process: MeasuredEnd,
    pub is_late: bool,
    pub log: PathBuf,
    pub waits: PathBuf,
}

impl RunningJob {
    /// Starts the job, which writes its output to `log`.
    pub fn start(job: TestJob, mut command: Command, log: &Path, selection: &TestSelection) -> Result<Self> {
        let waits = log.with_extension("waits");
        let output = File::create(log).with_context(|| format!("making {}", log.display()))?;
        if job.tests.len() > 1 {
            command.env("RUST_TEST_THREADS", THREADS_OF_SHORT_TESTS);
        }
        if selection.ignored {
            command.arg("--ignored");
        }
        if selection.timings {
            // The test harness prints the seconds of a test only if unstable options are allowed.
            command.env("RUSTC_BOOTSTRAP", "1").args(["-Zunstable-options", "--report-time"]);
        }
        command.arg("--exact").args(&job.tests).env("KUBEWITNESS_WAITS", &waits);
        command.stdin(Stdio::null()).stderr(output.try_clone()?).stdout(output);
        let child = MeasuredChild::spawn(&mut command)?;
        Ok(Self { job, child, log: log.to_owned(), waits })
    }

    /// The end of the job, or `None` while it runs. A job past its deadline is killed with its children.
    pub fn poll(&mut self) -> Result<Option<JobEnd>> {
        let is_late =
            self.child.running_for() > DEADLINE.max(Duration::from_secs_f64(self.job.expected * SLOWEST));
        if is_late {
            self.kill();
        }
        let end = |process| JobEnd { process, is_late, log: self.log.clone(), waits: self.waits.clone() };
        Ok(self.child.poll()?.map(end))
    }

    /// Sends SIGKILL to the job's process and to all its descendants.
    pub fn kill(&self) {
        let mut family = vec![self.child.id()];
        let mut next = 0;
        while let Some(parent) = family.get(next).copied() {
            family.extend(children(parent));
            next += 1;
        }
        let pids = family.iter().map(ToString::to_string);
        if let Err(error) = Command::new("kill").arg("-KILL").args(pids).stderr(Stdio::null()).status() {
            eprintln!("xtask: {} can't be ended: {error}", self.job.name);
        }
    }
}

/// The children of a process.
fn children(pid: u32) -> Vec<u32> {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let of_thread = |thread: std::fs::DirEntry| std::fs::read_to_string(thread.path().join("children")).ok();
    let lists: Vec<_> = threads.flatten().filter_map(of_thread).collect();
    lists.iter().flat_map(|list| list.split_whitespace()).filter_map(|pid| pid.parse().ok()).collect()
}
