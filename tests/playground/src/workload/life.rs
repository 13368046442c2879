//! The life of one training job, as a pure machine. It produces the writes of the queue, the Job controller,
//! the scheduler, the kubelets and the user, in order. It knows no server and no document. The caller passes
//! the time, and the seed decides what happens.
//!
//! ```text
//! New ─▶ Queued ─▶ Pending ─▶ Running ─▶ Finished ─▶ Deleted
//!          ▲          │ ▲        │
//!          │          │ └────────┤ a pod failed, another takes its place
//!          └──────────┴──────────┘ preempted: suspended again       (any) ─▶ Deleted by the user
//! ```

use std::collections::VecDeque;

use super::plan::WorkloadPlan;
use super::rng::SplitMix;

mod fate;
#[cfg(test)]
mod tests;

/// A pod of this job, numbered in the order of creation.
pub type PodIndex = usize;

/// How often a job may be preempted, so that every life ends.
const MAX_PREEMPTIONS: u32 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobPhase {
    New,
    Queued,
    Pending,
    Running,
    Restarting,
    Preempted,
    Succeeded,
    Failed,
    Deleted,
}

impl JobPhase {
    pub fn is_finished(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }
}

/// One write, with its whole content but not as JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LifeAction {
    CreateJob,
    /// The queue (or the user) changes `spec.suspend`.
    Suspend(bool),
    /// The Job controller writes the Job's status.
    WriteJob(JobState),
    CreatePod(PodIndex),
    /// The scheduler or a kubelet writes a Pod's status.
    WritePod(PodIndex, PodState),
    /// The Job controller has counted the pod and removes its finalizer.
    ReleasePod(PodIndex),
    DeletePod(PodIndex),
    DeleteJob,
    /// Nothing is written. The next step is decided after the pause before this one.
    Rest,
}

/// An action, and the number of ticks before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LifeStep {
    pub pause: u64,
    pub action: LifeAction,
    /// The phase of the job after this write.
    pub phase: JobPhase,
}

/// A Job's status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobState {
    pub conditions: Vec<JobCondition>,
    pub start: Option<u64>,
    pub completion: Option<u64>,
    pub active: usize,
    pub ready: usize,
    pub succeeded: usize,
    pub failed: usize,
    pub terminating: usize,
    pub uncounted_succeeded: Vec<PodIndex>,
    pub uncounted_failed: Vec<PodIndex>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobCondition {
    pub kind: &'static str,
    pub status: bool,
    pub reason: &'static str,
    pub message: &'static str,
    pub at: u64,
}

/// A Pod's status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodState {
    Unschedulable,
    Creating,
    /// The container waits: `ErrImagePull` or `ImagePullBackOff`.
    Waiting(&'static str),
    Running,
    /// The container ended by itself or was killed.
    Ended {
        exit_code: i32,
        reason: &'static str,
    },
    Evicted,
    /// The pod is marked before it is removed, with the reason of `DisruptionTarget`.
    Disrupted(&'static str),
    /// The pod was killed because its job was suspended, exceeded its deadline or was preempted.
    Killed,
}

/// The plan of a pod, and which part of it became steps.
#[derive(Clone, Copy, Debug, Default)]
struct PodPlan {
    active: bool,
    created: bool,
    deleted: bool,
    released: bool,
}

#[derive(Clone, Debug)]
pub struct JobLife {
    plan: WorkloadPlan,
    rng: SplitMix,
    phase: JobPhase,
    job: JobState,
    pods: Vec<PodPlan>,
    preemptions: u32,
    todo: VecDeque<LifeStep>,
}

impl JobLife {
    pub fn new(seed: u64, index: u64, plan: WorkloadPlan) -> Self {
        Self {
            plan,
            rng: SplitMix::new(seed, index.wrapping_mul(2).wrapping_add(1)),
            phase: JobPhase::New,
            job: JobState::default(),
            pods: Vec::new(),
            preemptions: 0,
            todo: VecDeque::new(),
        }
    }

    pub fn plan(&self) -> &WorkloadPlan {
        &self.plan
    }

    pub fn phase(&self) -> JobPhase {
        self.phase
    }

    /// The next write; `None` once the job has finished or is gone. Statuses record the time `now`, in
    /// seconds.
    pub fn next(&mut self, now: u64) -> Option<LifeStep> {
        if self.todo.is_empty() {
            self.advance(now);
        }
        let step = self.todo.pop_front()?;
        match step.action {
            LifeAction::CreatePod(pod) => self.pods[pod].created = true,
            LifeAction::DeletePod(pod) => self.pods[pod].deleted = true,
            LifeAction::ReleasePod(pod) => self.pods[pod].released = true,
            _ => {}
        }
        Some(step)
    }

    /// The name is in use, so the job is created under another one.
    pub fn rename(&mut self) {
        self.plan.rename(&mut self.rng);
    }

    /// The finished job was kept long enough, so it and its pods are deleted.
    pub fn expire(&mut self) {
        if self.phase.is_finished() {
            self.delete();
        }
    }

    /// Somebody else deleted the Job. The rest of it is cleaned up.
    pub fn vanished(&mut self) {
        self.todo.clear();
        if self.phase != JobPhase::Deleted {
            self.phase = JobPhase::Deleted;
            self.collect_pods();
        }
    }

    /// Somebody else deleted a pod. Nothing more is written to it.
    pub fn pod_vanished(&mut self, pod: PodIndex) {
        if let Some(there) = self.pods.get_mut(pod) {
            if std::mem::take(&mut there.active) {
                self.job.ready = self.job.ready.saturating_sub(1);
            }
            (there.deleted, there.released) = (true, true);
        }
        self.todo.retain(|step| match step.action {
            LifeAction::WritePod(index, _) | LifeAction::ReleasePod(index) | LifeAction::DeletePod(index) => {
                index != pod
            }
            _ => true,
        });
    }

    fn advance(&mut self, now: u64) {
        let needs_pods = matches!(self.phase, JobPhase::Pending | JobPhase::Running | JobPhase::Restarting);
        if needs_pods && self.active_pods().len() < self.plan.workers {
            return self.replace_pods();
        }
        match self.phase {
            JobPhase::New => self.submit(now),
            JobPhase::Queued | JobPhase::Preempted => self.leave_queue(now),
            JobPhase::Pending | JobPhase::Restarting => self.start_pods(now),
            JobPhase::Running => self.meet_fate(now),
            JobPhase::Succeeded | JobPhase::Failed | JobPhase::Deleted => {}
        }
    }

    fn push(&mut self, pause: u64, action: LifeAction) {
        let phase = self.phase;
        self.todo.push_back(LifeStep { pause, action, phase });
    }

    fn rest(&mut self, low: u64, high: u64) {
        let pause = self.rng.between(low, high);
        self.push(pause, LifeAction::Rest);
    }

    fn push_job(&mut self, pause: u64) {
        self.push(pause, LifeAction::WriteJob(self.job.clone()));
    }

    fn active_pods(&self) -> Vec<PodIndex> {
        (0..self.pods.len()).filter(|index| self.pods[*index].active).collect()
    }

    fn submit(&mut self, now: u64) {
        self.phase = if self.plan.queued { JobPhase::Queued } else { JobPhase::Pending };
        self.push(0, LifeAction::CreateJob);
        if self.plan.queued {
            self.condition("Suspended", true, "JobSuspended", "Job suspended", now);
            self.push_job(1);
            self.rest(20, 120);
        } else {
            self.job.start = Some(now);
            self.create_pods();
        }
    }

    fn leave_queue(&mut self, now: u64) {
        if self.rng.percent(4) {
            return self.user_deletes(1);
        }
        self.phase = JobPhase::Pending;
        self.push(1, LifeAction::Suspend(false));
        self.condition("Suspended", false, "JobResumed", "Job resumed", now);
        // A resumed job starts over: its deadline does not run while it is suspended.
        self.job.start = Some(now);
        self.create_pods();
    }

    /// Replaces pods that somebody removed. They count as failed.
    fn replace_pods(&mut self) {
        self.phase = JobPhase::Restarting;
        self.job.failed += self.plan.workers - self.active_pods().len();
        self.create_pods();
    }

    /// Creates pods up to the job's number of workers.
    fn create_pods(&mut self) {
        while self.active_pods().len() < self.plan.workers {
            self.create_pod(1);
        }
        self.job.active = self.plan.workers;
        self.push_job(1);
    }

    fn create_pod(&mut self, pause: u64) {
        self.pods.push(PodPlan { active: true, ..PodPlan::default() });
        self.push(pause, LifeAction::CreatePod(self.pods.len() - 1));
    }

    /// Brings every waiting pod to Running, with the usual problems on the way.
    fn start_pods(&mut self, now: u64) {
        let fresh = self.active_pods().split_off(self.job.ready.min(self.plan.workers));
        let unschedulable = self.rng.percent(15);
        let bad_image = self.rng.percent(8);
        for pod in fresh {
            if unschedulable {
                self.push(2, LifeAction::WritePod(pod, PodState::Unschedulable));
            }
            let pause = if unschedulable { self.rng.between(10, 60) } else { 2 };
            self.push(pause, LifeAction::WritePod(pod, PodState::Creating));
            if bad_image {
                self.push(4, LifeAction::WritePod(pod, PodState::Waiting("ErrImagePull")));
                self.push(6, LifeAction::WritePod(pod, PodState::Waiting("ImagePullBackOff")));
            }
        }
        if bad_image && self.rng.percent(50) {
            let pause = self.rng.between(10, 40);
            return if self.rng.percent(50) {
                self.user_deletes(pause);
            } else {
                self.pass_deadline(pause, now);
            };
        }
        self.phase = JobPhase::Running;
        for pod in self.active_pods().split_off(self.job.ready.min(self.plan.workers)) {
            let pause = self.rng.between(3, 12);
            self.push(pause, LifeAction::WritePod(pod, PodState::Running));
        }
        self.job.ready = self.plan.workers;
        self.push_job(1);
        self.rest(30, 250);
    }

    fn condition(
        &mut self,
        kind: &'static str,
        status: bool,
        reason: &'static str,
        message: &'static str,
        at: u64,
    ) {
        let condition = JobCondition { kind, status, reason, message, at };
        match self.job.conditions.iter_mut().find(|there| there.kind == kind) {
            Some(there) => *there = condition,
            None => self.job.conditions.push(condition),
        }
    }
}
