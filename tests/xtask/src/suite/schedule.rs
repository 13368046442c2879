//! Decides which job begins next, without processes or clocks.

use super::job::TestJob;

/// The most concurrent jobs, however idle they are: each may hold a browser, a controller and a database.
const MOST_JOBS: usize = 8;
/// How far the shares of running jobs may exceed the processors. Shares are estimates, and the servers of two
/// computing tests need more than two processors together with them.
const SLACK: f64 = 0.5;
/// How many threads may want each processor before no further job begins. Shares come from other machines and times, and
/// do not know what else runs here; beside too many others, tests fail for time alone.
const MOST_WANTED: f64 = 2.5;
/// Tests that measure processor time, memory or delay. They run alone.
const EXCLUSIVE: [&str; 1] = ["tests/e2e: it limits::processors::"];

pub struct JobSchedule {
    /// The longest is at the end.
    waiting: Vec<TestJob>,
    /// They run after all the others.
    exclusive: Vec<TestJob>,
    processors: f64,
}

impl JobSchedule {
    pub fn new(jobs: Vec<TestJob>, processors: usize) -> Self {
        let is_exclusive = |job: &TestJob| EXCLUSIVE.iter().any(|name| job.name.starts_with(name));
        let (exclusive, mut waiting): (Vec<_>, Vec<_>) = jobs.into_iter().partition(is_exclusive);
        waiting.sort_by(|one, other| one.expected.total_cmp(&other.expected));
        Self { waiting, exclusive, processors: processors as f64 }
    }

    /// The longest job that fits beside the running ones; `running` has their shares, and `load` is the number of threads
    /// that have or want a processor.
    pub fn next(&mut self, running: &[f64], load: f64) -> Option<TestJob> {
        let is_busy = !running.is_empty() && load >= self.processors * MOST_WANTED;
        if running.len() >= MOST_JOBS || is_busy {
            return None;
        }
        if self.waiting.is_empty() {
            return if running.is_empty() { self.exclusive.pop() } else { None };
        }
        let free = self.processors - running.iter().sum::<f64>();
        let fits = |job: &TestJob| running.is_empty() || job.share <= free + SLACK;
        let index = self.waiting.iter().rposition(fits)?;
        Some(self.waiting.remove(index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(name: &str, expected: f64, share: f64) -> TestJob {
        TestJob { program: 0, tests: vec![name.to_owned()], name: name.to_owned(), expected, share }
    }

    fn name(job: Option<TestJob>) -> Option<String> {
        job.map(|job| job.name)
    }

    #[test]
    fn the_longest_job_that_fits_begins_first() {
        let jobs = vec![job("short", 1.0, 0.1), job("long", 60.0, 1.5), job("middle", 30.0, 2.0)];
        let mut schedule = JobSchedule::new(jobs, 2);
        assert_eq!(name(schedule.next(&[], 0.0)).as_deref(), Some("long"));
        assert_eq!(name(schedule.next(&[1.5], 0.0)).as_deref(), Some("short"), "the middle one does not fit");
        assert_eq!(name(schedule.next(&[1.5, 0.1], 0.0)), None);
        assert_eq!(name(schedule.next(&[], 0.0)).as_deref(), Some("middle"));
    }

    #[test]
    fn two_jobs_that_compute_alone_run_beside_each_other() {
        let mut schedule = JobSchedule::new(vec![job("one", 2.0, 1.1), job("other", 1.0, 1.1)], 2);
        assert_eq!(name(schedule.next(&[], 0.0)).as_deref(), Some("one"));
        assert_eq!(name(schedule.next(&[1.1], 0.0)).as_deref(), Some("other"));
    }

    #[test]
    fn a_job_that_never_fits_runs_alone() {
        let mut schedule = JobSchedule::new(vec![job("wide", 1.0, 9.0)], 2);
        assert_eq!(name(schedule.next(&[0.1], 0.0)), None);
        assert_eq!(name(schedule.next(&[], 0.0)).as_deref(), Some("wide"));
    }

    #[test]
    fn no_job_begins_beside_others_while_the_machine_is_busy() {
        let mut schedule = JobSchedule::new(vec![job("one", 2.0, 0.1), job("other", 1.0, 0.1)], 2);
        assert_eq!(name(schedule.next(&[0.1], 5.0)), None);
        assert_eq!(name(schedule.next(&[0.1], 4.9)).as_deref(), Some("one"));
        assert_eq!(name(schedule.next(&[], 99.0)).as_deref(), Some("other"), "one always runs");
    }

    #[test]
    fn what_measures_the_machine_runs_at_the_end_with_nothing_beside_it() {
        let measures = format!("{}a", EXCLUSIVE[0]);
        let mut schedule = JobSchedule::new(vec![job(&measures, 99.0, 1.0), job("other", 1.0, 0.1)], 2);
        assert_eq!(name(schedule.next(&[], 0.0)).as_deref(), Some("other"));
        assert_eq!(name(schedule.next(&[0.1], 0.0)), None);
        assert_eq!(name(schedule.next(&[], 0.0)), Some(measures));
        assert_eq!(name(schedule.next(&[], 0.0)), None);
    }

    #[test]
    fn no_more_jobs_than_the_machine_has_memory_for() {
        let mut schedule = JobSchedule::new(vec![job("idle", 1.0, 0.0)], 2);
        assert_eq!(name(schedule.next(&[0.0; MOST_JOBS], 0.0)), None);
    }
}
