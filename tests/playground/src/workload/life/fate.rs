//! Decides how a running job ends or is interrupted, write by write as the Job controller does it: pods end,
//! the status lists them as uncounted, their finalizers are removed, and the status counts them.

use super::{JobLife, JobPhase, LifeAction, MAX_PREEMPTIONS, PodIndex, PodState};

#[derive(Clone, Copy)]
enum JobFate {
    Success,
    PodFails,
    PodLosesItsPlace,
    Preemption,
    Deadline,
    UserDeletes,
}

impl JobLife {
    pub(super) fn meet_fate(&mut self, now: u64) {
        let preemption = if self.preemptions < MAX_PREEMPTIONS { 12 } else { 0 };
        let fate = *self.rng.weighted(&[
            (48, JobFate::Success),
            (22, JobFate::PodFails),
            (5, JobFate::PodLosesItsPlace),
            (preemption, JobFate::Preemption),
            (4, JobFate::Deadline),
            (9, JobFate::UserDeletes),
        ]);
        match fate {
            JobFate::Success => self.succeed(now),
            JobFate::PodFails => {
                let end = self.rng.weighted(&[
                    (55, PodState::Ended { exit_code: 1, reason: "Error" }),
                    (30, PodState::Ended { exit_code: 137, reason: "OOMKilled" }),
                    (15, PodState::Evicted),
                ]);
                let end = end.clone();
                self.lose_pod(end, now);
            }
            JobFate::PodLosesItsPlace => self.lose_pod(PodState::Disrupted("PreemptionByScheduler"), now),
            JobFate::Preemption => self.preempt(now),
            JobFate::Deadline => self.pass_deadline(1, now),
            JobFate::UserDeletes => self.user_deletes(1),
        }
    }

    fn succeed(&mut self, now: u64) {
        let pods = self.active_pods();
        for pod in &pods {
            self.push(1, LifeAction::WritePod(*pod, PodState::Ended { exit_code: 0, reason: "Completed" }));
            self.pods[*pod].active = false;
        }
        const REACHED: &str = "Reached expected number of succeeded pods";
        (self.job.active, self.job.ready) = (0, 0);
        self.job.uncounted_succeeded = pods.clone();
        self.condition("SuccessCriteriaMet", true, "CompletionsReached", REACHED, now);
        self.push_job(1);
        self.release(&pods);
        self.phase = JobPhase::Succeeded;
        self.job.uncounted_succeeded.clear();
        self.job.succeeded = pods.len();
        self.job.completion = Some(now);
        self.condition("Complete", true, "CompletionsReached", REACHED, now);
        self.push_job(1);
    }

    /// One pod fails. Another one replaces it, or the job has failed too often.
    fn lose_pod(&mut self, end: PodState, now: u64) {
        let pods = self.active_pods();
        let lost = self.rng.pick(&pods);
        let disrupted = matches!(end, PodState::Disrupted(_));
        self.push(1, LifeAction::WritePod(lost, end));
        if disrupted {
            self.push(1, LifeAction::DeletePod(lost));
            self.push(1, LifeAction::WritePod(lost, PodState::Killed));
        }
        self.pods[lost].active = false;
        if self.job.failed as u32 >= self.plan.backoff_limit {
            const LIMIT: &str = "Job has reached the specified backoff limit";
            return self.fail(1, &[lost], "BackoffLimitExceeded", LIMIT, now);
        }
        self.phase = JobPhase::Restarting;
        self.job.active = pods.len() - 1;
        self.job.ready = pods.len() - 1;
        self.job.uncounted_failed = vec![lost];
        self.push_job(1);
        self.release(&[lost]);
        self.job.uncounted_failed.clear();
        self.job.failed += 1;
        self.push_job(1);
        // The controller waits before it retries.
        let back_off = self.rng.between(8, 30);
        self.create_pod(back_off);
        self.job.active = self.plan.workers;
        self.push_job(1);
    }

    pub(super) fn pass_deadline(&mut self, pause: u64, now: u64) {
        self.fail(pause, &[], "DeadlineExceeded", "Job was active longer than specified deadline", now);
    }

    /// Fails the job: `FailureTarget` comes first, and `Failed` once the last pod has ended and was counted.
    fn fail(&mut self, pause: u64, lost: &[PodIndex], reason: &'static str, message: &'static str, now: u64) {
        let killed = self.active_pods();
        self.condition("FailureTarget", true, reason, message, now);
        (self.job.active, self.job.ready, self.job.terminating) = (0, 0, killed.len());
        self.job.uncounted_failed = lost.iter().chain(&killed).copied().collect();
        self.push_job(pause);
        self.kill(&killed, None);
        self.release(lost);
        self.phase = JobPhase::Failed;
        self.job.terminating = 0;
        self.job.failed += lost.len() + killed.len();
        self.job.uncounted_failed.clear();
        self.condition("Failed", true, reason, message, now);
        self.push_job(1);
    }

    /// Preempts the job: it is suspended, and its pods are removed.
    fn preempt(&mut self, now: u64) {
        self.preemptions += 1;
        self.phase = JobPhase::Preempted;
        let pods = self.active_pods();
        self.push(1, LifeAction::Suspend(true));
        self.condition("Suspended", true, "JobSuspended", "Job suspended", now);
        (self.job.active, self.job.ready, self.job.terminating) = (0, 0, pods.len());
        self.push_job(1);
        self.kill(&pods, Some("DeletionByQueue"));
        self.job.terminating = 0;
        self.push_job(1);
        self.rest(20, 120);
    }

    pub(super) fn user_deletes(&mut self, pause: u64) {
        self.phase = JobPhase::Deleted;
        self.push(pause, LifeAction::DeleteJob);
        self.collect_pods();
    }

    pub(super) fn delete(&mut self) {
        self.user_deletes(0);
    }

    /// Does what the garbage collector does after the owner is deleted.
    pub(super) fn collect_pods(&mut self) {
        for index in 0..self.pods.len() {
            let pod = self.pods[index];
            if pod.created && !pod.deleted {
                self.push(1, LifeAction::DeletePod(index));
            }
            if pod.created && !pod.released {
                self.push(1, LifeAction::ReleasePod(index));
            }
            self.pods[index].active = false;
        }
    }

    /// Kills pods. A pod that still has its finalizer stays, marked as deleted, until it is released.
    fn kill(&mut self, pods: &[PodIndex], disruption: Option<&'static str>) {
        for pod in pods {
            if let Some(reason) = disruption {
                self.push(1, LifeAction::WritePod(*pod, PodState::Disrupted(reason)));
            }
            self.push(1, LifeAction::DeletePod(*pod));
            self.push(1, LifeAction::WritePod(*pod, PodState::Killed));
            self.pods[*pod].active = false;
        }
        self.release(pods);
    }

    fn release(&mut self, pods: &[PodIndex]) {
        for pod in pods {
            self.push(1, LifeAction::ReleasePod(*pod));
        }
    }
}
