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
/// The part of a new look at the machine that counts: what was seen two seconds ago counts little.
const NEWEST_LOOK: f64 = 0.02;

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
    let mut pool = JobPool { running: Vec::new(), outcomes: Vec::with_capacity(all), load: 0.0 };
    let mut schedule = JobSchedule::new(jobs, processors);
    let mut number = 0;
    while pool.outcomes.len() < all {
        let shares: Vec<_> = pool.running.iter().map(|running| running.job.share).collect();
        if let Some(job) = schedule.next(&shares, pool.load) {
            number += 1;
            // Its own processes are not there yet.
            pool.load += job.share;
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
        pool.look_at_machine();
    }
    Ok(std::mem::take(&mut pool.outcomes))
}

struct JobPool {
    running: Vec<RunningJob>,
    outcomes: Vec<JobOutcome>,
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
