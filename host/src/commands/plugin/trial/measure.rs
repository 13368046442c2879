//! Measures the cost of a trial's calls, by the controller's own figures.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use kubewitness_core::State;
use kubewitness_core::ports::{PluginHandler, StateDelivery, Verdict};
use kubewitness_core::views::CallsView;

use super::{PluginTrial, TrialStage, TrialStep};
use crate::commands::plugin::subject::TrialSubject;

/// How long one plugin gets states in one round. A slow one is measured with fewer.
const ROUND: Duration = Duration::from_secs(10);

/// The cost of the counted states, without the first call, which creates the instance.
#[derive(Clone, Debug, PartialEq)]
pub struct CallCost {
    pub states: u64,
    pub not_done: u64,
    /// From the beginning of a call to its commit.
    pub took: Duration,
    pub guest: Duration,
    pub host: Duration,
    /// The peak memory of one instance.
    pub memory: u64,
    pub host_calls: BTreeMap<String, u64>,
}

/// Delivers batches as the controller does: no batch has two states of one object. The first state has a
/// separate call, which is not counted: it creates the instance and opens the database.
pub async fn measure(subject: &TrialSubject, trial: PluginTrial, batch: usize) -> Result<CallCost> {
    let TrialStage { stage, stand_ins } = &TrialStage::open(subject, trial).await?;
    let plugin = &stage.plugin;
    let (first, rest) = stand_ins.steps().split_at(1.min(stand_ins.steps().len()));
    let batches = [split_into_batches(first, 1), split_into_batches(rest, batch)].concat();
    let begun = Instant::now();
    let mut cost = CostSum::default();
    let mut before = CallsView::default();
    for (place, batch) in batches.iter().enumerate() {
        if cost.is_enough(begun.elapsed()) {
            break;
        }
        if let Some(last) = batch.last() {
            stand_ins.show_step(&TrialStep::State(last.clone()));
        }
        let deliveries: Vec<_> = batch.iter().map(first_delivery).collect();
        let called = Instant::now();
        let outcome = plugin.handle_batch(&deliveries).await;
        let took = called.elapsed();
        if place == 0 && batches.len() > 1 {
            before = plugin.plugin_tally().calls_view();
            continue;
        }
        let done = outcome.map_or(0, |it| it.verdicts.iter().filter(|it| **it == Verdict::Done).count());
        cost.add(batch.len(), done, took);
    }
    Ok(cost.with(&before, plugin.plugin_tally().calls_view()))
}

fn first_delivery(state: &Arc<State>) -> StateDelivery {
    StateDelivery { state: state.clone(), attempt: 1, resync: false }
}

/// In the order of the states. A batch ends before an object repeats.
fn split_into_batches(steps: &[TrialStep], most: usize) -> Vec<Vec<Arc<State>>> {
    let mut batches = Vec::new();
    let (mut batch, mut objects) = (Vec::new(), HashSet::new());
    for step in steps {
        let TrialStep::State(state) = step else { continue };
        if batch.len() == most || !objects.insert(&*state.object) {
            batches.push(std::mem::take(&mut batch));
            objects.clear();
            objects.insert(&*state.object);
        }
        batch.push(state.clone());
    }
    batches.extend(Some(batch).filter(|batch| !batch.is_empty()));
    batches
}

#[derive(Default)]
struct CostSum {
    states: u64,
    done: u64,
    took: Duration,
}

impl CostSum {
    fn is_enough(&self, elapsed: Duration) -> bool {
        elapsed >= ROUND && self.states > 0
    }

    fn add(&mut self, states: usize, done: usize, took: Duration) {
        self.states += states as u64;
        self.done += done as u64;
        self.took += took;
    }

    fn with(self, before: &CallsView, after: CallsView) -> CallCost {
        let Self { states, done, took } = self;
        let seconds = |after: f64, before: f64| Duration::from_secs_f64((after - before).max(0.0));
        let calls = after.host_calls.into_iter().map(|(name, calls)| {
            let earlier = before.host_calls.get(&name).copied().unwrap_or_default();
            (name, calls - earlier)
        });
        CallCost {
            states,
            not_done: states - done,
            took,
            guest: seconds(after.guest_seconds, before.guest_seconds),
            host: seconds(after.host_seconds, before.host_seconds),
            memory: after.peak_memory,
            host_calls: calls.filter(|(_, calls)| *calls > 0).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use kubewitness_core::config::PluginSpec;
    use serde_json::json;

    use super::*;
    use crate::commands::object_files::ObservedObject;
    use crate::commands::plugin::trial::{ObservedTimes, StandIns};

    #[test]
    fn a_batch_has_no_object_twice_and_no_more_states_than_asked_for() {
        let spec: PluginSpec =
            serde_json::from_value(json!({"module": {"file": "p.wasm"}, "subscribe": []})).unwrap();
        let job = |name| json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}});
        let seen =
            ["a", "b", "a", "c", "d", "e"].map(|name| ObservedObject { object: job(name), is_gone: false });
        let stand_ins = StandIns::of(&spec, &seen, ObservedTimes::Fixed).unwrap();
        let names: Vec<Vec<_>> = split_into_batches(stand_ins.steps(), 3)
            .iter()
            .map(|batch| batch.iter().map(|state| state.object.name.clone()).collect())
            .collect();
        assert_eq!(names, [vec!["a", "b"], vec!["a", "c", "d"], vec!["e"]]);
    }

    #[test]
    fn a_slow_plugin_is_measured_over_fewer_states() {
        let mut sum = CostSum::default();
        assert!(!sum.is_enough(ROUND), "nothing is measured yet");
        sum.add(1, 1, ROUND);
        assert!(sum.is_enough(ROUND) && !sum.is_enough(ROUND - Duration::from_millis(1)));
    }

    #[test]
    fn what_the_first_call_did_is_not_counted() {
        let calls = |calls: u64, guest_seconds: f64| CallsView {
            host_calls: [("log".to_owned(), calls), ("kv".to_owned(), 1)].into(),
            guest_seconds,
            peak_memory: 7,
            ..CallsView::default()
        };
        let mut sum = CostSum::default();
        sum.add(10, 9, Duration::from_millis(3));
        let cost = sum.with(&calls(4, 1.0), calls(24, 1.5));
        assert_eq!((cost.states, cost.not_done, cost.memory), (10, 1, 7));
        assert_eq!(cost.host_calls, [("log".to_owned(), 20)].into());
        assert_eq!(cost.guest, Duration::from_millis(500));
    }
}
