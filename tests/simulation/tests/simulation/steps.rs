//! The steps of everything that is simulated: where the process can die, and what is written down
//! of a run.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use kubewitness_core::clock::Clock;
use kubewitness_faults::delivery::{DeliveryBreach, FoundBreach};
use kubewitness_faults::{Dice, Marks};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::bugs::PlantedBug;

/// Milliseconds since 1970 at the start of every run.
const BEGINNING: u64 = 1_800_000_000_000;

/// The wall may jump; `elapsed` doesn't.
pub struct SimulatedClock {
    start: Instant,
    wall_ahead_ms: Mutex<i64>,
}

impl SimulatedClock {
    pub fn elapsed_now(&self) -> Duration {
        self.start.elapsed()
    }
}

impl Clock for SimulatedClock {
    fn now_ms(&self) -> u64 {
        let now = BEGINNING + self.start.elapsed().as_millis() as u64;
        now.saturating_add_signed(*self.wall_ahead_ms.lock().unwrap())
    }

    fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }
}

struct StepsInner {
    dice: Dice,
    trace: Vec<String>,
    found: Vec<FoundBreach>,
    /// Steps until the process dies.
    left: Option<u32>,
    /// Or the name of a step, and how often it is still survived.
    at: Option<(&'static str, u32)>,
    dead: bool,
    ticks: u64,
}

/// The state that everything simulated shares. All of it runs on one thread, so that the order in which the
/// dice are thrown is always the same.
pub struct StepClock {
    inner: Mutex<StepsInner>,
    pub clock: Arc<SimulatedClock>,
    pub marks: Marks,
    pub bug: PlantedBug,
    died: Notify,
}

impl StepsInner {
    /// Whether the process dies of this step.
    fn comes_to(&mut self, name: &str) -> bool {
        if self.dead {
            return false;
        }
        let survived = match (&mut self.at, &mut self.left) {
            (Some((at, left)), _) if *at == name => left,
            (_, Some(left)) => left,
            _ => return false,
        };
        match survived.checked_sub(1) {
            Some(left) => *survived = left,
            None => self.dead = true,
        }
        self.dead
    }
}

impl StepClock {
    pub fn new(seed: u64, marks: Marks, bug: PlantedBug) -> Arc<Self> {
        let (trace, found) = (Vec::new(), Vec::new());
        let inner =
            StepsInner { dice: Dice::new(seed), trace, found, left: None, at: None, dead: false, ticks: 0 };
        let clock = Arc::new(SimulatedClock { start: Instant::now(), wall_ahead_ms: Mutex::default() });
        Arc::new(Self { inner: Mutex::new(inner), clock, marks, bug, died: Notify::new() })
    }

    fn inner(&self) -> MutexGuard<'_, StepsInner> {
        self.inner.lock().unwrap()
    }

    pub fn dice<T>(&self, throw: impl FnOnce(&mut Dice) -> T) -> T {
        throw(&mut self.inner().dice)
    }

    /// Time in which no two moments are the same.
    pub fn tick(&self) -> u64 {
        let mut inner = self.inner();
        inner.ticks += 1;
        inner.ticks
    }

    pub fn write_down(&self, what: impl FnOnce() -> String) {
        let at = self.clock.elapsed().as_millis();
        let line = format!("{at:>7} {}", what());
        self.inner().trace.push(line);
    }

    pub fn trace(&self) -> Vec<String> {
        self.inner().trace.clone()
    }

    pub fn find(&self, breach: DeliveryBreach, about: String) {
        self.find_all(vec![FoundBreach { breach, about }]);
    }

    pub fn find_all(&self, found: Vec<FoundBreach>) {
        self.inner().found.extend(found);
    }

    pub fn found_faults(&self) -> Vec<FoundBreach> {
        self.inner().found.clone()
    }

    pub fn jump(&self, milliseconds: i64) {
        *self.clock.wall_ahead_ms.lock().unwrap() += milliseconds;
    }

    // ---- death ---------------------------------------------------------------------------

    /// It dies at one of its next steps.
    pub fn dies_after(&self, steps: u32) {
        self.inner().left = Some(steps);
    }

    /// It dies when it has come to a step of this name so often and once more.
    pub fn dies_at(&self, name: &'static str, survived: u32) {
        self.inner().at = Some((name, survived));
    }

    /// A new process.
    pub fn lives(&self) {
        let mut inner = self.inner();
        (inner.left, inner.at, inner.dead) = (None, None, false);
    }

    pub fn is_dead(&self) -> bool {
        self.inner().dead
    }

    pub async fn died(&self) {
        while !self.is_dead() {
            self.died.notified().await;
        }
    }

    /// Whatever was the reason: nothing of this process moves from now on.
    pub fn dies(&self) {
        self.inner().dead = true;
        self.died.notify_one();
    }

    /// One thing was done. The process may have died at it: then nothing ever comes after.
    pub async fn step(&self, name: &str) {
        {
            let mut inner = self.inner();
            if inner.comes_to(name) {
                self.marks.when(true, &format!("died at: {name}"));
                let at = self.clock.elapsed().as_millis();
                inner.trace.push(format!("{at:>7} died at {name}"));
                self.died.notify_one();
            }
        }
        if self.is_dead() {
            std::future::pending::<()>().await;
        }
        tokio::task::yield_now().await;
    }

    /// Takes up to so many milliseconds.
    pub async fn pass(&self, most: u64) {
        let wait = self.dice(|dice| dice.below(most + 1));
        if wait > 0 {
            tokio::time::sleep(Duration::from_millis(wait)).await;
        }
    }
}
