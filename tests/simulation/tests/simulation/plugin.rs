//! A plugin that is slow, traps, refuses, waits or answers wrongly, as its seed says.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use kubewitness_core::StateId;
use kubewitness_core::ports::{
    AppliedStates, CallError, CallOutcome, KvWrite, KvWrites, PluginHandler, StateDelivery, Verdict,
    WritesFate,
};
use kubewitness_faults::delivery::{DeliveryBreach, SinkEffect};

use crate::bugs::PlantedBug;
use crate::sink::{RefusedCommit, SimulatedSink};
use crate::steps::StepClock;

/// The habits of one plugin.
#[derive(Clone, Copy, Debug)]
pub struct PluginNature {
    /// One state in so many is poison, in one of several ways.
    pub poison: u64,
    /// Percent of calls that fail for no reason of theirs.
    pub trouble: u64,
    /// Milliseconds that a call takes at most.
    pub slow: u64,
    /// While its sink is down it answers `retry` to everything, instead of failing.
    pub polite: bool,
}

/// How a poison state is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PoisonKind {
    Traps,
    Loops,
    Eats,
    Rejected,
    /// The number of verdicts is wrong.
    Miscounts,
    /// Done at the third try.
    Later,
}

pub struct SimulatedPlugin {
    pub name: String,
    pub nature: PluginNature,
    pub sink: Arc<SimulatedSink>,
    steps: Arc<StepClock>,
    /// An operator has mended what made its states fail.
    pub healed: AtomicBool,
    /// Trouble that passes is over.
    pub calm: AtomicBool,
    pub life: AtomicU32,
    /// Whether its breaker was seen open.
    pub open: AtomicBool,
    calls: Mutex<PluginCalls>,
}

#[derive(Default)]
struct PluginCalls {
    /// Names of objects in calls.
    lanes: BTreeSet<String>,
    now: u32,
    /// The batch of the last call that failed.
    failed: Vec<u64>,
}

pub fn lane(delivery: &StateDelivery) -> String {
    let state = &delivery.state;
    format!("{}/{}/{}", state.source, state.object.namespace, state.object.name)
}

impl SimulatedPlugin {
    pub fn new(
        name: &str,
        nature: PluginNature,
        sink: Arc<SimulatedSink>,
        steps: &Arc<StepClock>,
    ) -> Arc<Self> {
        Arc::new(Self {
            name: name.to_owned(),
            nature,
            sink,
            steps: Arc::clone(steps),
            healed: AtomicBool::new(false),
            calm: AtomicBool::new(false),
            life: AtomicU32::new(0),
            open: AtomicBool::new(false),
            calls: Mutex::default(),
        })
    }

    pub fn in_flight(&self) -> u32 {
        self.calls.lock().unwrap().now
    }

    fn poison(&self, id: &StateId) -> Option<PoisonKind> {
        if self.healed.load(Ordering::Relaxed) {
            return None;
        }
        let mut hasher = DefaultHasher::new();
        (&self.name, id.as_str()).hash(&mut hasher);
        let hash = hasher.finish();
        let kinds = [
            PoisonKind::Traps,
            PoisonKind::Loops,
            PoisonKind::Eats,
            PoisonKind::Rejected,
            PoisonKind::Miscounts,
            PoisonKind::Later,
        ];
        hash.is_multiple_of(self.nature.poison).then(|| kinds[(hash / 1000 % 6) as usize])
    }

    fn begin(&self, batch: &[StateDelivery]) {
        let mut calls = self.calls.lock().unwrap();
        calls.now += 1;
        let marks = &self.steps.marks;
        marks.when(calls.now > 1, "several calls at once");
        for delivery in batch {
            if !calls.lanes.insert(lane(delivery)) {
                self.steps.find(DeliveryBreach::Together, format!("{}: {}", self.name, lane(delivery)));
            }
            marks.when(delivery.attempt > 1, "a retry");
            marks.when(delivery.resync, "a resync was handed over");
        }
        let seqs: Vec<u64> = batch.iter().map(|delivery| delivery.state.seq).collect();
        let half = seqs.len() < calls.failed.len() && seqs.iter().all(|seq| calls.failed.contains(seq));
        marks.when(half, "a batch was split");
        marks.when(half && seqs.len() == 1 && calls.failed.len() == 2, "split until one stood alone");
        let open = self.open.load(Ordering::Relaxed);
        marks.when(open, "an open breaker was probed");
        self.steps.write_down(|| {
            let tries: Vec<_> = batch.iter().map(|d| format!("{}#{}", d.state.seq, d.attempt)).collect();
            format!("{} is called with {}", self.name, tries.join(" "))
        });
    }

    fn ended(&self, batch: &[StateDelivery], result: &Result<CallOutcome, CallError>) {
        if let Err(error) = result {
            self.steps.write_down(|| format!("{}: {error}", self.name));
            let open = self.open.load(Ordering::Relaxed);
            self.steps.marks.when(open, "a probe failed");
            self.calls.lock().unwrap().failed = batch.iter().map(|delivery| delivery.state.seq).collect();
        }
    }

    async fn call(&self, batch: &[StateDelivery]) -> Result<CallOutcome, CallError> {
        self.steps.step("call: begun").await;
        if self.sink.is_down() && self.nature.polite {
            let retry = |_: &StateDelivery| Verdict::Retry { after_ms: None, reason: "it is away".into() };
            return Ok(CallOutcome {
                verdicts: batch.iter().map(retry).collect(),
                kv: KvWrites::default(),
                is_apart: false,
            });
        }
        if self.sink.is_down() {
            return Err(CallError::Unavailable("the sink is away".into()));
        }
        let calm = self.calm.load(Ordering::Relaxed);
        if !calm && self.steps.dice(|dice| dice.percent(self.nature.trouble)) {
            return Err(match self.steps.dice(|dice| dice.below(3)) {
                0 => CallError::Unavailable("the database does not answer".into()),
                1 => CallError::Timeout { limit_ms: self.nature.slow },
                _ => CallError::Trap("now and then".into()),
            });
        }
        let applied = if self.sink.once { self.sink.applied(batch) } else { BTreeSet::new() };
        let is_fresh = |delivery: &&StateDelivery| delivery.resync || !applied.contains(&delivery.state.id);
        let fresh: Vec<&StateDelivery> = batch.iter().filter(is_fresh).collect();
        self.steps.marks.when(fresh.len() < batch.len(), "a receipt stopped a second effect");
        self.steps.pass(self.nature.slow).await;
        let verdicts = self.guest(&fresh)?;
        let life = self.life.load(Ordering::Relaxed);
        let keeping = WritesFate::of(&verdicts);
        let is_apart = keeping == WritesFate::Apart;
        self.steps.marks.when(is_apart, "a batch was taken apart by its verdicts");
        let done =
            |(delivery, _): &(&&StateDelivery, &Verdict)| !delivery.resync && keeping == WritesFate::Commit;
        let effects: Vec<SinkEffect> = fresh
            .iter()
            .zip(&verdicts)
            .filter(done)
            .map(|(delivery, _)| SinkEffect { id: delivery.state.id.clone(), life })
            .collect();
        if self.sink.once {
            let committed = self.sink.commit(effects).await;
            committed.map_err(|RefusedCommit::Unavailable(why)| CallError::Unavailable(why.into()))?;
        } else {
            for effect in effects {
                self.sink.send(effect);
                self.steps.step("sink: sent").await;
            }
        }
        self.steps.step("call: answered").await;
        let mut verdicts = verdicts.into_iter();
        let all = batch.iter().map(|delivery| match is_fresh(&delivery) {
            true => verdicts.next().unwrap_or(Verdict::Done),
            false => Verdict::Done,
        });
        let last = batch.last().map_or(0, |delivery| delivery.state.seq).to_string().into_bytes();
        let wrote = KvWrite { key: "last".into(), value: Some(last) };
        let kv: Vec<_> = (keeping == WritesFate::Commit).then_some(wrote).into_iter().collect();
        Ok(CallOutcome { verdicts: all.collect(), kv: kv.into(), is_apart })
    }

    /// Returns the answer that the component would give.
    fn guest(&self, fresh: &[&StateDelivery]) -> Result<Vec<Verdict>, CallError> {
        let mut verdicts = Vec::new();
        for delivery in fresh {
            let poison = self.poison(&delivery.state.id);
            verdicts.push(match poison {
                Some(PoisonKind::Traps) => return Err(CallError::Trap("poison".into())),
                Some(PoisonKind::Loops) => return Err(CallError::Timeout { limit_ms: self.nature.slow }),
                Some(PoisonKind::Eats) => return Err(CallError::Memory { limit_bytes: 1 << 26 }),
                Some(PoisonKind::Miscounts) => {
                    let text = format!("{} verdicts for {} states", fresh.len() - 1, fresh.len());
                    return Err(CallError::Protocol(text));
                }
                Some(PoisonKind::Rejected) => {
                    self.steps.marks.when(true, "a state was rejected");
                    Verdict::Reject("never".into())
                }
                Some(PoisonKind::Later) if delivery.attempt < 3 => {
                    self.steps.marks.when(true, "a plugin chose its own delay");
                    Verdict::Retry { after_ms: Some(300), reason: "in a moment".into() }
                }
                Some(PoisonKind::Later) | None => Verdict::Done,
            });
        }
        Ok(verdicts)
    }
}

/// Ends the call in the books, also where it is let go of.
struct InCall<'a>(&'a SimulatedPlugin, Vec<String>);

impl Drop for InCall<'_> {
    fn drop(&mut self) {
        let mut calls = self.0.calls.lock().unwrap();
        calls.now -= 1;
        for lane in &self.1 {
            calls.lanes.remove(lane);
        }
    }
}

#[async_trait]
impl PluginHandler for SimulatedPlugin {
    async fn handle_batch(&self, batch: &[StateDelivery]) -> Result<CallOutcome, CallError> {
        self.begin(batch);
        let _in_call = InCall(self, batch.iter().map(lane).collect());
        if self.steps.bug == PlantedBug::NeverAnswers && self.steps.dice(|dice| dice.one_in(60)) {
            return std::future::pending().await;
        }
        let result = self.call(batch).await;
        self.ended(batch, &result);
        result
    }

    async fn find_applied(&self, batch: &[StateDelivery]) -> Result<AppliedStates, CallError> {
        self.steps.step("receipts: looked for").await;
        if self.sink.is_down() {
            return Err(CallError::Unavailable("the sink is away".into()));
        }
        let applied = if self.sink.once { self.sink.applied(batch) } else { BTreeSet::new() };
        let is_applied = |one: &&StateDelivery| applied.contains(&one.state.id);
        let seqs = batch.iter().filter(is_applied).map(|one| one.state.seq).collect();
        Ok(AppliedStates { seqs, ..AppliedStates::default() })
    }
}
