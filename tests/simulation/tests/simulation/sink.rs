//! Where a plugin's effects go: rows that commit with their receipts, or requests that can't be
//! taken back.

use std::collections::{BTreeSet, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use kubewitness_core::StateId;
use kubewitness_core::ports::StateDelivery;
use kubewitness_faults::delivery::SinkEffect;

use crate::bugs::PlantedBug;
use crate::steps::StepClock;

#[derive(Default)]
struct SinkInner {
    effects: Vec<SinkEffect>,
    receipts: HashSet<StateId>,
    /// Commits that were asked for, of which nobody knows yet.
    pending: VecDeque<(u64, Vec<SinkEffect>)>,
    asked: u64,
    down: bool,
}

pub struct SimulatedSink {
    steps: Arc<StepClock>,
    /// Rows and their receipts in one transaction.
    pub once: bool,
    inner: Mutex<SinkInner>,
}

/// Why a commit did not say that it was done.
pub enum RefusedCommit {
    /// It was not done, or nobody knows.
    Unavailable(&'static str),
}

impl SimulatedSink {
    pub fn new(steps: &Arc<StepClock>, once: bool) -> Arc<Self> {
        Arc::new(Self { steps: Arc::clone(steps), once, inner: Mutex::default() })
    }

    fn inner(&self) -> MutexGuard<'_, SinkInner> {
        self.inner.lock().unwrap()
    }

    pub fn down(&self, down: bool) {
        self.inner().down = down;
    }

    pub fn is_down(&self) -> bool {
        self.inner().down
    }

    pub fn count(&self) -> usize {
        self.inner().effects.len()
    }

    pub fn effects(&self) -> Vec<SinkEffect> {
        self.inner().effects.clone()
    }

    /// Returns those of these that have a receipt.
    pub fn applied(&self, batch: &[StateDelivery]) -> BTreeSet<StateId> {
        let inner = self.inner();
        let ids = batch.iter().map(|delivery| &delivery.state.id);
        ids.filter(|id| inner.receipts.contains(*id)).cloned().collect()
    }

    /// A request: there the moment that it is sent.
    pub fn send(&self, effect: SinkEffect) {
        self.inner().effects.push(effect);
    }

    pub async fn commit(&self, effects: Vec<SinkEffect>) -> Result<(), RefusedCommit> {
        self.steps.step("sink: asked").await;
        if self.is_down() {
            return Err(RefusedCommit::Unavailable("the database is down"));
        }
        let number = {
            let mut inner = self.inner();
            inner.asked += 1;
            let number = inner.asked;
            inner.pending.push_back((number, effects));
            number
        };
        let _abandoned = AbandonedCommit(self, number);
        self.steps.step("sink: committing").await;
        self.steps.pass(3).await;
        self.settle(number, true);
        self.steps.step("sink: committed").await;
        if self.steps.dice(|dice| dice.one_in(40)) {
            self.steps.marks.when(true, "a commit was done and in doubt");
            return Err(RefusedCommit::Unavailable("the commit is in doubt"));
        }
        self.steps.step("sink: answered").await;
        Ok(())
    }

    fn settle(&self, number: u64, done: bool) {
        let mut inner = self.inner();
        let Some(place) = inner.pending.iter().position(|(other, _)| *other == number) else { return };
        let Some((_, effects)) = inner.pending.remove(place) else { return };
        if done {
            inner.receipts.extend(effects.iter().map(|effect| effect.id.clone()));
            inner.effects.extend(effects);
        } else if self.steps.bug == PlantedBug::ReceiptsApart {
            inner.effects.extend(effects);
        }
    }

    /// The process is gone. What became of its commits was decided when they were let go of.
    pub fn crash(&self) {
        if self.steps.bug == PlantedBug::ForgetsReceipts {
            self.inner().receipts.clear();
        }
    }
}

/// One that lets go of its commit doesn't know whether it was done.
struct AbandonedCommit<'a>(&'a SimulatedSink, u64);

impl Drop for AbandonedCommit<'_> {
    fn drop(&mut self) {
        let Self(sink, number) = self;
        if sink.inner().pending.iter().any(|(other, _)| other == number) {
            let done = sink.steps.dice(|dice| dice.one_in(2));
            let what = if done { "a commit was done unheard" } else { "a commit was rolled back unheard" };
            sink.steps.marks.when(true, what);
            sink.settle(*number, done);
        }
    }
}
