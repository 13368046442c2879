//! Decides which life writes next. Pauses between writes are counted in ticks of a clock that only moves when
//! something is due. So the rate alone decides how fast it moves.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use super::drive::DrivenLife;
use super::life::{JobLife, LifeAction, LifeStep};
use super::plan::WorkloadPlan;
use super::rng::SplitMix;
use super::{WorkloadOptions, time};

/// The approximate number of ticks in a life. New lives are spread over that time, so that all phases occur
/// at once.
const LIFE_TICKS: u64 = 400;

/// The fates of Jobs of others are drawn from numbers that no own job has.
const ADOPTED: u64 = 1 << 40;

pub struct LifeSchedule {
    seed: u64,
    jobs: u64,
    namespaces: Vec<String>,
    keep: Duration,
    most_active: usize,
    /// Whether lives write Events.
    tells: bool,
    active: usize,
    clock: u64,
    serial: u64,
    submitted: u64,
    next_submission: u64,
    rng: SplitMix,
    due: BTreeMap<(u64, u64), (Box<DrivenLife>, LifeStep)>,
    /// Finished jobs that are still shown, oldest first.
    finished: VecDeque<(Instant, Box<DrivenLife>)>,
    /// The Jobs of others that existed at the last look, by uid.
    adopted: BTreeSet<String>,
    adoptions: u64,
}

impl LifeSchedule {
    pub fn new(options: &WorkloadOptions) -> Self {
        Self {
            seed: options.seed,
            jobs: options.jobs,
            namespaces: options.namespaces.clone(),
            keep: options.keep_finished,
            most_active: options.most_active(),
            tells: options.events,
            active: 0,
            clock: 0,
            serial: 0,
            submitted: 0,
            next_submission: 0,
            rng: SplitMix::new(options.seed, u64::MAX),
            due: BTreeMap::new(),
            finished: VecDeque::new(),
            adopted: BTreeSet::new(),
            adoptions: 0,
        }
    }

    fn may_submit(&self) -> bool {
        self.active < self.most_active && (self.jobs == 0 || self.submitted < self.jobs)
    }

    /// Whether anything could be written now.
    pub fn has_next(&self) -> bool {
        !self.due.is_empty() || self.may_submit()
    }

    /// Whether every job was submitted and is gone.
    pub fn is_over(&self) -> bool {
        !self.has_next() && self.finished.is_empty() && self.active == 0
    }

    pub fn next(&mut self) -> Option<(Box<DrivenLife>, LifeStep)> {
        loop {
            let first = self.due.first_key_value().map(|((due, _), _)| *due);
            if self.may_submit() && first.is_none_or(|due| self.next_submission <= due) {
                return self.submit();
            }
            let ((due, _), (driven, step)) = self.due.pop_first()?;
            self.clock = self.clock.max(due);
            if step.action != LifeAction::Rest {
                return Some((driven, step));
            }
            self.put_back(driven);
        }
    }

    fn submit(&mut self) -> Option<(Box<DrivenLife>, LifeStep)> {
        let index = self.submitted;
        self.submitted += 1;
        self.active += 1;
        self.clock = self.clock.max(self.next_submission);
        let gap = LIFE_TICKS / self.most_active as u64;
        self.next_submission = self.clock + self.rng.between(0, gap * 2);
        let life = JobLife::new(self.seed, index, WorkloadPlan::draw(self.seed, index, &self.namespaces));
        // The names of pods come from a separate stream, so that they do not change the fates.
        let mut driven = Box::new(DrivenLife::new(life, SplitMix::new(!self.seed, index), self.tells));
        let step = driven.life.next(time::now())?;
        Some((driven, step))
    }

    /// Drives the Jobs of others that are new since the last look.
    pub fn adopt(&mut self, jobs: Vec<Value>) {
        let mut there = BTreeSet::new();
        for job in jobs {
            let uid = job["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
            if !self.adopted.contains(&uid) {
                self.drive(job);
            }
            there.insert(uid);
        }
        self.adopted = there;
    }

    fn drive(&mut self, job: Value) {
        let index = ADOPTED + self.adoptions;
        self.adoptions += 1;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let container = &job["spec"]["template"]["spec"]["containers"][0];
        let plan = WorkloadPlan {
            name: text(&job["metadata"]["name"]),
            namespace: text(&job["metadata"]["namespace"]),
            image: text(&container["image"]),
            container: text(&container["name"]),
            workers: job["spec"]["parallelism"].as_u64().unwrap_or(1).max(1) as usize,
            queued: job["spec"]["suspend"] == true,
            ..WorkloadPlan::draw(self.seed, index, &self.namespaces)
        };
        let life = JobLife::new(self.seed, index, plan);
        let mut driven =
            Box::new(DrivenLife::adopted(life, SplitMix::new(!self.seed, index), self.tells, job));
        if let Some(step) = driven.life.next(time::now()) {
            self.active += 1;
            self.serial += 1;
            self.due.insert((self.clock, self.serial), (driven, step));
        }
    }

    /// Takes a life back after its write: it continues, waits for its deletion, or has ended.
    pub fn put_back(&mut self, mut driven: Box<DrivenLife>) -> LifeReturn {
        if let Some(step) = driven.life.next(time::now()) {
            self.serial += 1;
            self.due.insert((self.clock + step.pause, self.serial), (driven, step));
            return LifeReturn::Goes;
        }
        if driven.life.phase().is_finished() {
            driven.forget_documents();
            self.active -= 1;
            self.finished.push_back((Instant::now() + self.keep, driven));
            return LifeReturn::Finished;
        }
        self.active -= 1;
        LifeReturn::Gone
    }

    /// When the oldest finished job is to be deleted.
    pub fn next_expiry(&self) -> Option<Instant> {
        self.finished.front().map(|(at, _)| *at)
    }

    /// Deletes the jobs that were kept long enough.
    pub fn expire(&mut self, now: Instant) {
        while self.finished.front().is_some_and(|(at, _)| *at <= now) {
            let Some((_, mut driven)) = self.finished.pop_front() else { return };
            driven.life.expire();
            self.active += 1;
            self.put_back(driven);
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LifeReturn {
    Goes,
    Finished,
    Gone,
}
