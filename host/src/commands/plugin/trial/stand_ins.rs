//! Stands in for the journal, the cache and the clock: the objects of a file, one state each, or states of a
//! journal.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Result;
use async_trait::async_trait;
use bytes::Bytes;
use kubewitness_capability::SubscribedKinds;
use kubewitness_core::calendar;
use kubewitness_core::clock::Clock;
use kubewitness_core::config::PluginSpec;
use kubewitness_core::document::pack_quickly;
use kubewitness_core::index::{IndexKey, IndexSet};
use kubewitness_core::ports::{
    CurrentObject, DocumentReader, JournalError, ObjectLister, ObjectSelection, SelectError, SelectedObjects,
};
use kubewitness_core::status::StatusRules;
use kubewitness_core::views::ObjectCounts;
use kubewitness_core::{Change, ObjectRef, Seq, State, StateId, Version};
use serde_json::Value;

use super::steps::{NEXT, TrialStep, tick_of, tick_step};
use crate::commands::object_files::{NamedFile, ObservedObject, text};

/// When the first state is observed that has no time of its own: 2026-01-01. Each further one is observed a
/// second after the previous state or tick.
const BEGIN_MS: u64 = 1_767_225_600_000;
const PAUSE_MS: u64 = 1000;

/// When the states of a file are observed.
#[derive(Clone, Copy)]
pub enum ObservedTimes {
    /// Begins at 2026-01-01, whatever times the objects have, because expected results contain times.
    Fixed,
    /// When each object last changed, by the times in it. Times after `now_ms` are plans.
    Own { now_ms: u64 },
}

impl ObservedTimes {
    /// Each state is later than the previous one.
    fn of(self, object: &Value, before_ms: Option<u64>) -> u64 {
        let own_ms = match self {
            Self::Fixed => None,
            Self::Own { now_ms } => changed_ms(object, now_ms),
        };
        match before_ms.map(|before_ms| before_ms + PAUSE_MS) {
            Some(next_ms) => own_ms.map_or(next_ms, |own_ms| own_ms.max(next_ms)),
            None => own_ms.unwrap_or(BEGIN_MS),
        }
    }
}

/// The newest time in the object's status, or its creation or deletion.
fn changed_ms(object: &Value, now_ms: u64) -> Option<u64> {
    let places = ["/metadata/creationTimestamp", "/metadata/deletionTimestamp", "/status"];
    let mut left: Vec<&Value> = places.iter().filter_map(|place| object.pointer(place)).collect();
    let mut newest = None;
    while let Some(value) = left.pop() {
        match value {
            Value::String(text) => {
                newest = newest.max(calendar::parse_rfc3339_ms(text).filter(|ms| *ms <= now_ms));
            }
            Value::Array(list) => left.extend(list),
            Value::Object(fields) => left.extend(fields.values()),
            _ => {}
        }
    }
    newest
}

/// A state with its document.
pub type RecordedState = (Arc<State>, Bytes);

pub struct StandIns {
    /// By position.
    states: Vec<RecordedState>,
    steps: Vec<TrialStep>,
    is_recorded: bool,
    /// The position of the state that was delivered last.
    shown: AtomicU64,
    now_ms: AtomicU64,
}

impl StandIns {
    /// A later object of the same name is a later version of the same object, unless it has another uid.
    pub fn of(spec: &PluginSpec, seen: &[ObservedObject], times: ObservedTimes) -> Result<Self> {
        let rules = StatusRules::builtin();
        let mut states: Vec<RecordedState> = Vec::new();
        let mut steps = Vec::with_capacity(seen.len());
        let mut newest = HashMap::new();
        let mut before_ms = None;
        for ObservedObject { object, is_gone } in seen {
            if let Some(when) = tick_of(object) {
                let step = tick_step(spec, when, before_ms.unwrap_or(BEGIN_MS))?;
                before_ms = Some(step.at_ms());
                steps.push(step);
                continue;
            }
            let now_ms = times.of(object, before_ms);
            before_ms = Some(now_ms);
            let seq = states.len() as Seq + 1;
            let named = NamedFile::of_whole(object)?;
            let document = Bytes::from(object.to_string());
            let mut reference = named.object_reference(object);
            if reference.uid.is_empty() {
                reference.uid = format!("uid-of-{}-{}", reference.namespace, reference.name);
            }
            let before = newest.get(&reference).map(|place: &usize| &states[*place].0);
            let change = if *is_gone { Change::Gone } else { Change::Present };
            let found = rules.status_of(&reference.group, &reference.kind, &document);
            let status = if *is_gone { StatusRules::deleted_status(&found) } else { found };
            let source = source(spec, &named.kind);
            let resource_version = version(object, seq);
            let state = State {
                id: StateId::of(&source, 0, &reference, change, &resource_version, None),
                seq,
                source: source.into(),
                epoch: 0,
                change,
                owner: owner(object, &reference.namespace).map(Arc::new),
                object: Arc::new(reference),
                resource_version,
                status: Arc::new(status),
                previous: before.map(|state| state.status.clone()),
                observed_ms: now_ms,
                late: false,
                quotes_none_under: None,
            };
            let state = Arc::new(state);
            newest.insert((*state.object).clone(), states.len());
            steps.push(TrialStep::State(state.clone()));
            states.push((state, document));
        }
        Ok(Self { states, steps, is_recorded: false, shown: AtomicU64::default(), now_ms: BEGIN_MS.into() })
    }

    /// States of a journal, in their order.
    pub fn from_journal(states: Vec<RecordedState>) -> Self {
        let steps = states.iter().map(|(state, _)| TrialStep::State(state.clone())).collect();
        Self { states, steps, is_recorded: true, shown: AtomicU64::default(), now_ms: BEGIN_MS.into() }
    }

    /// Adds a tick at the first moment of the schedule that is this long after the last state.
    pub fn then_tick(mut self, spec: &PluginSpec, after: Duration) -> Result<Self> {
        let after_ms = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
        let last_ms = self.steps.last().map_or(BEGIN_MS, TrialStep::at_ms);
        self.steps.push(tick_step(spec, &NEXT.into(), last_ms.saturating_add(after_ms))?);
        Ok(self)
    }

    /// The kinds of the delivered objects. For a source without any, the kind that its name usually means.
    pub fn subscribed_kinds(&self, spec: &PluginSpec) -> SubscribedKinds {
        let names: HashSet<&str> = spec.subscribe.iter().map(|it| it.source.as_str()).collect();
        let subscribed = self.states.iter().flat_map(|(state, _)| {
            let object = names.contains(&*state.source).then_some(&state.object);
            let owner =
                state.owner.iter().filter(|owner| names.contains(usual_source_name(&owner.kind).as_str()));
            object.into_iter().chain(owner).map(|it| (it.group.clone(), it.kind.clone()))
        });
        SubscribedKinds::of(subscribed.collect::<HashSet<_>>().into_iter().map(Some))
    }

    pub fn is_recorded(&self) -> bool {
        self.is_recorded
    }

    pub fn newest_position(&self) -> Seq {
        self.states.last().map_or(0, |(state, _)| state.seq)
    }

    pub fn steps(&self) -> &[TrialStep] {
        &self.steps
    }

    /// From now on the clock has this step's time, and the cache has its state.
    pub fn show_step(&self, step: &TrialStep) {
        if let TrialStep::State(state) = step {
            self.shown.store(state.seq, Ordering::Relaxed);
        }
        self.now_ms.store(step.at_ms(), Ordering::Relaxed);
    }

    fn state_at(&self, seq: Seq) -> Option<&RecordedState> {
        self.states.binary_search_by_key(&seq, |(state, _)| state.seq).ok().map(|place| &self.states[place])
    }

    /// The objects of a source that exist now.
    fn existing_objects(&self, source: &str) -> Vec<&RecordedState> {
        let shown = self.shown.load(Ordering::Relaxed);
        let so_far = self.states.iter().filter(|(state, _)| state.seq <= shown && *state.source == *source);
        let mut names = HashSet::new();
        let mut newest: Vec<&RecordedState> = so_far
            .rev()
            .filter(|(state, _)| {
                names.insert((&state.object.kind, &state.object.namespace, &state.object.name))
            })
            .filter(|(state, _)| state.change == Change::Present)
            .collect();
        newest.reverse();
        newest
    }
}

fn version(object: &Value, seq: Seq) -> Version {
    match text(object, "/metadata/resourceVersion") {
        "" => Version::new(&seq.to_string()),
        version => Version::new(version),
    }
}

/// The source that a manifest subscribes to, by its usual name, such as `jobs`; or the only one.
fn source(spec: &PluginSpec, kind: &str) -> String {
    let usual = usual_source_name(kind);
    let mut names = spec.subscribe.iter().map(|subscription| &subscription.source);
    match spec.subscribe.as_slice() {
        [only] => only.source.clone(),
        _ => names.find(|name| **name == usual).cloned().unwrap_or(usual),
    }
}

fn usual_source_name(kind: &str) -> String {
    format!("{}s", kind.to_ascii_lowercase())
}

/// The owner that controls it, as its document names it.
fn owner(object: &Value, namespace: &str) -> Option<ObjectRef> {
    let owners = object.pointer("/metadata/ownerReferences")?.as_array()?;
    let owner = owners.iter().find(|owner| owner["controller"] == true)?;
    let named = NamedFile::of(owner).ok()?;
    let version = text(owner, "/apiVersion").rsplit('/').next().unwrap_or_default().to_owned();
    let [name, uid] = ["/name", "/uid"].map(|pointer| text(owner, pointer).to_owned());
    Some(ObjectRef {
        group: named.group,
        version,
        kind: named.kind,
        namespace: namespace.to_owned(),
        name,
        uid,
    })
}

#[async_trait]
impl DocumentReader for StandIns {
    async fn document_at(&self, seq: Seq) -> Result<Option<Bytes>, JournalError> {
        Ok(self.state_at(seq).map(|(_, document)| document.clone()))
    }

    async fn document_before(&self, seq: Seq) -> Result<Option<Bytes>, JournalError> {
        let Some((state, _)) = self.state_at(seq) else { return Ok(None) };
        let before =
            self.states.iter().rev().find(|(other, _)| other.seq < seq && other.object == state.object);
        Ok(before.map(|(_, document)| document.clone()))
    }

    async fn newest_of(&self, object: &ObjectRef) -> Result<Vec<Seq>, JournalError> {
        let is_it = |named: &ObjectRef| named.uid == object.uid && named.namespace == object.namespace;
        let states = self.states.iter().rev().filter(|(state, _)| is_it(&state.object));
        Ok(states.take(3).map(|(state, _)| state.seq).collect())
    }
}

fn current((state, document): &RecordedState) -> CurrentObject {
    CurrentObject {
        object: state.object.clone(),
        owner: state.owner.clone(),
        resource_version: state.resource_version.clone(),
        status: state.status.clone(),
        seq: state.seq,
        observed_ms: state.observed_ms,
        packed: pack_quickly(document),
    }
}

#[async_trait]
impl ObjectLister for StandIns {
    fn get(&self, source: &str, namespace: &str, name: &str) -> Result<Option<CurrentObject>, SelectError> {
        let is_asked =
            |(state, _): &&&RecordedState| state.object.namespace == namespace && state.object.name == name;
        Ok(self.existing_objects(source).iter().find(is_asked).map(|found| current(found)))
    }

    fn select_objects(
        &self,
        source: &str,
        selection: &ObjectSelection,
    ) -> Result<SelectedObjects, SelectError> {
        let indexes = IndexSet::new(&[]);
        let asked = selection.index.as_ref().map(|(index, key)| indexes.key(index, key)).transpose()?;
        let has = |(state, document): &&RecordedState| match asked {
            None => true,
            Some(IndexKey::Namespace(namespace)) => state.object.namespace == namespace,
            Some(key) => {
                let mut is_found = false;
                let read = indexes.for_each_key(document, |found| is_found |= found == key);
                read.is_ok() && is_found
            }
        };
        let there = self.existing_objects(source).into_iter().filter(has).take(selection.limit);
        Ok(SelectedObjects { objects: there.map(current).collect(), ..SelectedObjects::default() })
    }

    fn tally_objects(&self, _: &str, _: &ObjectSelection, _: &mut ObjectCounts) -> Result<(), SelectError> {
        Ok(())
    }

    fn count(&self, source: &str) -> usize {
        self.existing_objects(source).len()
    }

    async fn await_shown(&self, _: &str, _: Seq) {}
}

impl Clock for StandIns {
    fn now_ms(&self) -> u64 {
        self.now_ms.load(Ordering::Relaxed)
    }

    fn elapsed(&self) -> Duration {
        Duration::from_millis(self.now_ms().saturating_sub(BEGIN_MS))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn spec() -> PluginSpec {
        let subscribe = json!([{"source": "jobs"}, {"source": "pods"}]);
        serde_json::from_value(json!({
            "module": {"file": "p.wasm"}, "subscribe": subscribe, "tick": {"every": "10s"},
        }))
        .unwrap()
    }

    fn job(name: &str, status: &Value) -> ObservedObject {
        let metadata = json!({
            "name": name, "namespace": "team", "creationTimestamp": "2026-11-25T07:00:00Z",
            "ownerReferences": [{"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "name": "set", "uid": "s", "controller": true}],
        });
        let object = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "status": status});
        ObservedObject { object, is_gone: false }
    }

    fn observed(times: ObservedTimes, seen: &[ObservedObject]) -> Vec<String> {
        let stand_ins = StandIns::of(&spec(), seen, times).unwrap();
        stand_ins.steps().iter().map(|step| calendar::format_rfc3339(step.at_ms())).collect()
    }

    #[test]
    fn a_state_is_observed_when_its_object_changed_last_unless_a_test_expects_times() {
        let failed = |at: &str, deadline: &str| {
            job(
                "a",
                &json!({"conditions": [{"lastTransitionTime": at, "message": "x"}], "deadline": deadline}),
            )
        };
        let seen = [
            failed("2026-11-25T08:00:00Z", "2027-01-01T00:00:00Z"),
            job("b", &json!({})),
            ObservedObject { object: json!({"tick": "2026-11-25T08:00:10Z"}), is_gone: false },
            failed("2026-11-25T09:00:00Z", "never"),
        ];
        let now_ms = calendar::parse_rfc3339_ms("2026-11-26T00:00:00Z").unwrap();
        let own = ["08:00:00", "08:00:01", "08:00:10", "09:00:00"].map(|at| format!("2026-11-25T{at}.000Z"));
        assert_eq!(observed(ObservedTimes::Own { now_ms }, &seen), own);
        let fixed = ["00:00:00", "00:00:01"].map(|at| format!("2026-01-01T{at}.000Z"));
        assert_eq!(observed(ObservedTimes::Fixed, &seen[..2]), fixed);
        let bare = ObservedObject {
            object: json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}}),
            is_gone: false,
        };
        assert_eq!(observed(ObservedTimes::Own { now_ms }, &[bare]), fixed[..1], "it says no time");
    }

    #[test]
    fn a_tick_behind_recorded_states_is_at_a_moment_of_the_schedule() {
        let seen = [job("a", &json!({"startTime": "2026-11-25T08:00:03Z"}))];
        let states = StandIns::of(&spec(), &seen, ObservedTimes::Own { now_ms: u64::MAX }).unwrap().states;
        let recorded = StandIns::from_journal(states).then_tick(&spec(), Duration::from_secs(60)).unwrap();
        let last = recorded.steps().last().map(TrialStep::at_ms).unwrap();
        assert_eq!(calendar::format_rfc3339(last), "2026-11-25T08:01:10.000Z");
    }

    #[test]
    fn an_owner_is_subscribed_to_where_a_source_has_its_usual_name() {
        let seen = [job("a", &json!({}))];
        let stand_ins = StandIns::of(&spec(), &seen, ObservedTimes::Fixed).unwrap();
        let set = stand_ins.states[0].0.owner.clone().unwrap();
        assert!(stand_ins.subscribed_kinds(&spec()).leaves_out(&set));
        let mut with = spec();
        with.subscribe[1].source = "jobsets".into();
        assert!(!stand_ins.subscribed_kinds(&with).leaves_out(&set));
        with.subscribe.clear();
        assert!(
            !stand_ins.subscribed_kinds(&with).leaves_out(&set),
            "a component alone has no subscriptions"
        );
    }
}
