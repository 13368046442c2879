//! Starts jobs in the order of the schedule, and prints their outcomes.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use super::TestSelection;
use super::job::{JobEnd, RunningJob, TestJob};
use super::outcome::JobOutcome;
use super::programs::TestProgram;
use super::schedule::JobSchedule;
use crate::build::step;

/// The pause between two checks for ended jobs.
const PAUSE: Duration = Duration::from_millis(20);
/// The part of a new look at the machine that counts: what was seen two seconds ago counts little.
const NEWEST_LOOK: f64 = 0.02;
/// The most failed jobs of a run that are repeated. More have one cause, and a repeat takes time.
const REPEATS: usize = 3;

pub fn run_all(
    programs: &[TestProgram],
    jobs: Vec<TestJob>,
    logs: &Path,
    selection: &TestSelection,
    prepare: &dyn Fn(&mut Command),
) -> Result<Vec<JobOutcome>> {
    std::fs::create_dir_all(logs).with_context(|| format!("making {}", logs.display()))?;
    let all = jobs.len();
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let mut pool =
        JobPool { running: Vec::new(), outcomes: Vec::with_capacity(all), failed: Vec::new(), load: 0.0 };
    let mut schedule = JobSchedule::new(jobs, processors);
    let mut number = 0;
    while pool.outcomes.len() < all {
        let shares: Vec<_> = pool.running.iter().map(|running| running.job.share).collect();
        if let Some(job) = schedule.next(&shares, pool.load) {
            number += 1;
            // Its own processes are not there yet.
            pool.load += job.share;
            let command = programs[job.program].command(prepare);
            pool.running.push(RunningJob::start(job, command, &log_of(logs, number), selection)?);
            continue;
        }
        pool.collect(programs)?;
        std::thread::sleep(PAUSE);
        pool.look_at_machine();
    }
    if selection.is_everything() {
        for (index, job) in pool.jobs_to_repeat() {
            number += 1;
            let command = programs[job.program].command(prepare);
            pool.running.push(RunningJob::start(job, command, &log_of(logs, number), selection)?);
            let (job, end) = pool.wait_for_one()?;
            let again = JobOutcome::new(&programs[job.program].name, &job, &end)?;
            again.show();
            pool.outcomes[index].take_repeat(again);
        }
    }
    Ok(std::mem::take(&mut pool.outcomes))
}

fn log_of(logs: &Path, number: usize) -> PathBuf {
    logs.join(format!("{number:04}.log"))
}

struct JobPool {
    running: Vec<RunningJob>,
    outcomes: Vec<JobOutcome>,
    /// The jobs that failed, with the index of their outcome; `None` for one that was killed at its deadline.
    failed: Vec<Option<(usize, TestJob)>>,
    /// How many threads of the machine lately had or wanted a processor.
    load: f64,
}

impl JobPool {
    fn look_at_machine(&mut self) {
        if let Some(wanting) = count_runnable() {
            self.load += (wanting - self.load) * NEWEST_LOOK;
        }
    }

    /// Collects the outcomes of ended jobs.
    fn collect(&mut self, programs: &[TestProgram]) -> Result<()> {
        while let Some((job, end)) = self.take_ended()? {
            let outcome = JobOutcome::new(&programs[job.program].name, &job, &end)?;
            outcome.show();
            if outcome.failure.is_some() {
                self.failed.push((!end.is_late).then_some((self.outcomes.len(), job)));
            }
            self.outcomes.push(outcome);
        }
        Ok(())
    }

    fn take_ended(&mut self) -> Result<Option<(TestJob, JobEnd)>> {
        for index in 0..self.running.len() {
            if let Some(end) = self.running[index].poll()? {
                return Ok(Some((self.running.swap_remove(index).job, end)));
            }
        }
        Ok(None)
    }

    fn wait_for_one(&mut self) -> Result<(TestJob, JobEnd)> {
        loop {
            if let Some(ended) = self.take_ended()? {
                return Ok(ended);
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// The failed jobs that ended by themselves, unless too many have failed.
    fn jobs_to_repeat(&mut self) -> Vec<(usize, TestJob)> {
        let failed = std::mem::take(&mut self.failed);
        if failed.len() > REPEATS {
            return Vec::new();
        }
        let failed: Vec<_> = failed.into_iter().flatten().collect();
        if !failed.is_empty() {
            step(&format!("repeating what failed with nothing beside it: {}", failed.len()));
        }
        failed
    }
}

/// The threads of the machine that have or want a processor, without this one. `None` on machines that do not say.
fn count_runnable() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/loadavg").ok()?;
    let (runnable, _) = text.split_whitespace().nth(3)?.split_once('/')?;
    Some((runnable.parse::<f64>().ok()? - 1.0).max(0.0))
}

impl Drop for JobPool {
    fn drop(&mut self) {
        self.running.iter().for_each(RunningJob::kill);
    }
}
