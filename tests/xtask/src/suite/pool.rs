//! Starts jobs in the order of the schedule, and prints their outcomes.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use super::TestSelection;
use super::job::{RunningJob, TestJob};
use super::outcome::JobOutcome;
use super::programs::TestProgram;
use super::schedule::JobSchedule;

/// The pause between two checks for ended jobs.
const PAUSE: Duration = Duration::from_millis(20);

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
    let mut pool = JobPool { running: Vec::new(), outcomes: Vec::with_capacity(all) };
    let mut schedule = JobSchedule::new(jobs, processors);
    let mut number = 0;
    while pool.outcomes.len() < all {
        let shares: Vec<_> = pool.running.iter().map(|running| running.job.share).collect();
        if let Some(job) = schedule.next(&shares) {
            number += 1;
            let command = programs[job.program].command(prepare);
            pool.running.push(RunningJob::start(
                job,
                command,
                &logs.join(format!("{number:04}.log")),
                selection,
            )?);
            continue;
        }
        pool.collect(programs)?;
        std::thread::sleep(PAUSE);
    }
    Ok(std::mem::take(&mut pool.outcomes))
}

struct JobPool {
    running: Vec<RunningJob>,
    outcomes: Vec<JobOutcome>,
}

impl JobPool {
    /// Collects the outcomes of ended jobs.
    fn collect(&mut self, programs: &[TestProgram]) -> Result<()> {
        let mut index = 0;
        while index < self.running.len() {
            let Some(end) = self.running[index].poll()? else {
                index += 1;
                continue;
            };
            let job = self.running.swap_remove(index).job;
            let outcome = JobOutcome::new(&programs[job.program].name, job, &end)?;
            outcome.show();
            self.outcomes.push(outcome);
        }
        Ok(())
    }
}

impl Drop for JobPool {
    fn drop(&mut self) {
        self.running.iter().for_each(RunningJob::kill);
    }
}
