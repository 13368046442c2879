//! A scripted plugin that checks what it is handed.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use kubewitness_core::Seq;
use kubewitness_core::ports::{CallError, Delivery, Handler, KvWrite, Outcome, Tick, Verdict};

use crate::journal::Journal;

/// What a call does: how long it takes, and its answer.
pub type Script = dyn Fn(&[Delivery]) -> (u64, Result<Vec<Verdict>, CallError>) + Send + Sync;

#[derive(Default)]
pub struct Seen {
    pub calls: usize,
    /// Every hand-over, in the order in which calls began.
    pub handed: Vec<(Seq, u32)>,
    /// The states that took effect, for each object, with repeats.
    pub applied: HashMap<String, Vec<Seq>>,
    /// The states that a resync handed over and that are done, with their ids.
    pub resynced: Vec<(Seq, String)>,
    newest: HashMap<String, Seq>,
    pub most_in_flight: usize,
    /// When each tick was due.
    pub ticks: Vec<u64>,
    in_flight: HashSet<String>,
    calls_in_flight: usize,
    is_ticking: bool,
}

pub struct Plugin {
    pub name: String,
    pub seen: Mutex<Seen>,
    /// What a tick does: how long it takes, and its answer.
    pub tick: Mutex<(u64, Result<(), CallError>)>,
    journal: Arc<Journal>,
    script: Box<Script>,
}

impl Plugin {
    pub fn new(
        name: &str,
        journal: &Arc<Journal>,
        script: impl Fn(&[Delivery]) -> (u64, Result<Vec<Verdict>, CallError>) + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self {
            name: name.into(),
            seen: Mutex::default(),
            tick: Mutex::new((1, Ok(()))),
            journal: journal.clone(),
            script: Box::new(script),
        })
    }

    pub fn with<T>(&self, look: impl FnOnce(&mut Seen) -> T) -> T {
        look(&mut self.seen.lock().unwrap())
    }

    /// How often each state took effect.
    pub fn effects(&self) -> BTreeMap<Seq, usize> {
        let mut effects = BTreeMap::new();
        self.with(|seen| {
            for seq in seen.applied.values().flatten() {
                *effects.entry(*seq).or_default() += 1;
            }
        });
        effects
    }

    pub fn applied(&self) -> Vec<Seq> {
        self.effects().into_keys().collect()
    }

    fn begin(&self, batch: &[Delivery]) {
        for delivery in batch.iter().filter(|delivery| !delivery.resync) {
            let finished = self.journal.is_finished(&self.name, delivery.state.seq);
            assert!(!finished, "{} was handed over after its end was durable", delivery.state.seq);
        }
        self.with(|seen| {
            assert!(!seen.is_ticking, "a state was handed over during a tick");
            seen.calls += 1;
            seen.calls_in_flight += 1;
            seen.most_in_flight = seen.most_in_flight.max(seen.calls_in_flight);
            for Delivery { state, attempt, resync } in batch {
                seen.handed.push((state.seq, *attempt));
                let newest = seen.newest.entry(object(&state.source, &state.object.name)).or_default();
                assert!(!resync || state.seq >= *newest, "{} was resynced after {newest}", state.seq);
                *newest = state.seq.max(*newest);
                assert!(
                    seen.in_flight.insert(object(&state.source, &state.object.name)),
                    "two calls for one object"
                );
            }
        });
    }

    fn apply(&self, batch: &[Delivery], verdicts: &[Verdict]) {
        self.with(|seen| {
            for (Delivery { state, resync, .. }, verdict) in batch.iter().zip(verdicts) {
                if *resync && *verdict == Verdict::Done {
                    seen.resynced.push((state.seq, state.id.to_string()));
                } else if *verdict == Verdict::Done {
                    let applied = seen.applied.entry(object(&state.source, &state.object.name)).or_default();
                    applied.push(state.seq);
                }
            }
        });
    }
}

fn object(source: &str, name: &str) -> String {
    format!("{source}/{name}")
}

/// Ends the tick in the records, also if its future is dropped.
struct Ticking<'a>(&'a Plugin);

impl Drop for Ticking<'_> {
    fn drop(&mut self) {
        self.0.with(|seen| seen.is_ticking = false);
    }
}

/// Ends the call in the records, also if its future is dropped.
struct InFlight<'a>(&'a Plugin, Vec<String>);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.with(|seen| {
            seen.calls_in_flight -= 1;
            for object in &self.1 {
                seen.in_flight.remove(object);
            }
        });
    }
}

#[async_trait]
impl Handler for Plugin {
    async fn handle(&self, batch: &[Delivery]) -> Result<Outcome, CallError> {
        assert!(!batch.is_empty());
        self.begin(batch);
        let objects = batch.iter().map(|d| object(&d.state.source, &d.state.object.name)).collect();
        let _books = InFlight(self, objects);
        let (takes_ms, answer) = (self.script)(batch);
        if takes_ms > 0 {
            tokio::time::sleep(Duration::from_millis(takes_ms)).await;
        }
        tokio::task::yield_now().await;
        let verdicts = answer?;
        self.apply(batch, &verdicts);
        // The effect exists and the verdict is not known yet. A kill may come in between.
        tokio::task::yield_now().await;
        let last = batch.last().map_or(0, |delivery| delivery.state.seq);
        let kv = vec![KvWrite { key: "last".into(), value: Some(last.to_string().into_bytes()) }];
        Ok(Outcome { verdicts, kv })
    }

    async fn tick(&self, tick: Tick) -> Result<Vec<KvWrite>, CallError> {
        self.with(|seen| {
            assert!(!seen.is_ticking && seen.calls_in_flight == 0, "a tick began beside another call");
            seen.is_ticking = true;
            seen.ticks.push(tick.due_ms);
        });
        let _ticking = Ticking(self);
        let (takes_ms, answer) = self.tick.lock().unwrap().clone();
        tokio::time::sleep(Duration::from_millis(takes_ms)).await;
        answer?;
        let due = tick.due_ms.to_string().into_bytes();
        Ok(vec![KvWrite { key: "ticked".into(), value: Some(due) }])
    }
}

pub fn done(batch: &[Delivery]) -> (u64, Result<Vec<Verdict>, CallError>) {
    (1, Ok(vec![Verdict::Done; batch.len()]))
}
