//! The durable state, and what one transaction makes of it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use kubewitness_core::ports::{
    AppendBatch, AppendResult, CurrentObject, DeadLetter, KvWrite, PluginProgress, ProgressSave,
    WitnessedState,
};
use kubewitness_core::{Change, Gap, Seq, State, StateId, Version};

use crate::bugs::PlantedBug;

/// A transaction.
#[derive(Clone)]
pub enum DiskWrite {
    Append(AppendBatch),
    Save(String, ProgressSave),
    Replaying(String, Vec<Seq>),
}

/// Everything that is kept of one plugin.
#[derive(Clone, Default)]
pub struct KeptProgress {
    pub progress: Option<PluginProgress>,
    pub letters: BTreeMap<Seq, DeadLetter>,
    pub owed: BTreeSet<Seq>,
    pub ever_parked: BTreeSet<Seq>,
    pub kv: BTreeMap<String, Vec<u8>>,
}

/// An object that is there, as it was witnessed last.
pub struct LiveObject {
    pub version: Version,
    pub seq: Seq,
}

#[derive(Default)]
pub struct SimulatedDisk {
    pub states: BTreeMap<Seq, Arc<State>>,
    ids: HashMap<StateId, Seq>,
    /// By source and uid.
    pub live: BTreeMap<(Arc<str>, String), LiveObject>,
    pub checkpoints: BTreeMap<Arc<str>, Version>,
    pub gaps: Vec<Gap>,
    pub kept: BTreeMap<String, KeptProgress>,
}

impl SimulatedDisk {
    pub fn newest(&self) -> Seq {
        self.states.last_key_value().map_or(0, |(seq, _)| *seq)
    }

    /// 0 where there is none.
    pub fn seq(&self, id: &StateId) -> Seq {
        self.ids.get(id).copied().unwrap_or_default()
    }

    pub fn has_ended(&self, source: &str, uid: &str) -> bool {
        let ends = |state: &&Arc<State>| state.change == Change::Gone && state.object.uid == uid;
        self.states.values().filter(|state| &*state.source == source).any(|state| ends(&state))
    }

    pub fn kept_progress(&self, plugin: &str) -> KeptProgress {
        self.kept.get(plugin).cloned().unwrap_or_default()
    }

    pub fn current(&self, source: &str) -> impl Iterator<Item = (&String, &LiveObject)> {
        self.live.iter().filter(move |((of, _), _)| &**of == source).map(|((_, uid), live)| (uid, live))
    }

    pub fn warm(&self, source: &str) -> Vec<CurrentObject> {
        let current = |live: &LiveObject| {
            let state = &self.states[&live.seq];
            CurrentObject {
                object: Arc::clone(&state.object),
                owner: None,
                resource_version: live.version.clone(),
                status: Arc::clone(&state.status),
                seq: live.seq,
                observed_ms: state.observed_ms,
                packed: kubewitness_core::document::pack_document(b"{}"),
            }
        };
        self.current(source).map(|(_, live)| current(live)).collect()
    }

    /// All of it, unless a bug lets it stop in the middle. `None`: it is refused.
    pub fn apply(&mut self, write: &DiskWrite, whole: bool, bug: PlantedBug) -> Option<AppendResult> {
        Some(match write {
            DiskWrite::Append(append) if self.is_further(append) => return None,
            DiskWrite::Append(append) => self.append(append, whole || bug != PlantedBug::CheckpointFirst),
            DiskWrite::Save(plugin, save) => {
                self.save(plugin, save, whole || bug != PlantedBug::LettersApart, bug);
                AppendResult::default()
            }
            DiskWrite::Replaying(plugin, seqs) => {
                let kept = self.kept.entry(plugin.clone()).or_default();
                for seq in seqs {
                    if bug == PlantedBug::LettersForgotten {
                        kept.letters.remove(seq);
                    } else if let Some(letter) = kept.letters.get_mut(seq) {
                        letter.replaying = true;
                    }
                }
                AppendResult::default()
            }
        })
    }

    /// Another witness has told what is a gap here.
    fn is_further(&self, append: &AppendBatch) -> bool {
        let gaps = !append.gaps.is_empty() || append.states.iter().any(|state| state.change == Change::Gap);
        let held = self.checkpoints.get(&append.source);
        gaps && append.since.as_ref().zip(held).is_some_and(|(since, held)| held.is_newer_than(since))
    }

    fn append(&mut self, append: &AppendBatch, whole: bool) -> AppendResult {
        if let Some(checkpoint) = &append.checkpoint {
            let held = self.checkpoints.entry(Arc::clone(&append.source)).or_insert(checkpoint.clone());
            // Another witness may be further.
            if !held.is_newer_than(checkpoint) {
                *held = checkpoint.clone();
            }
        }
        if !whole {
            return AppendResult::default();
        }
        let seqs = append.states.iter().map(|state| self.state(append, state)).collect();
        for gap in &append.gaps {
            if !self.gaps.contains(gap) {
                self.gaps.push(gap.clone());
            }
        }
        let through = append.states.iter().filter_map(|state| self.ids.get(&state.id)).max();
        AppendResult { seqs, through: through.copied().unwrap_or_default(), newest: self.newest() }
    }

    fn state(&mut self, append: &AppendBatch, state: &WitnessedState) -> Option<Seq> {
        if self.ids.contains_key(&state.id) {
            return None;
        }
        let seq = self.newest() + 1;
        self.ids.insert(state.id.clone(), seq);
        self.states.insert(
            seq,
            Arc::new(State {
                id: state.id.clone(),
                seq,
                source: Arc::clone(&append.source),
                epoch: append.epoch,
                change: state.change,
                object: Arc::clone(&state.object),
                owner: None,
                resource_version: state.resource_version.clone(),
                status: Arc::clone(&state.status),
                previous: state.previous.clone(),
                observed_ms: state.observed_ms,
                late: false,
                quotes_none_under: None,
            }),
        );
        let key = (Arc::clone(&append.source), state.object.uid.clone());
        match state.change {
            Change::Present => {
                let version = state.resource_version.clone();
                drop(self.live.insert(key, LiveObject { version, seq }));
            }
            Change::Gone | Change::Left => drop(self.live.remove(&key)),
            Change::Gap => self.gaps.push(serde_json::from_slice(&state.document).unwrap()),
        }
        Some(seq)
    }

    fn save(&mut self, plugin: &str, save: &ProgressSave, whole: bool, bug: PlantedBug) {
        let kept = self.kept.entry(plugin.to_owned()).or_default();
        let mut progress = save.progress.clone();
        if bug == PlantedBug::CursorAhead && !progress.above.is_empty() {
            progress.cursor += 1;
        }
        if bug == PlantedBug::Miscounts && progress.delivered > 20 {
            progress.delivered -= 1;
        }
        kept.progress = Some(progress);
        if !whole {
            return;
        }
        for seq in &save.revived {
            kept.owed.remove(seq);
            kept.letters.remove(seq);
        }
        if bug != PlantedBug::OwedForgotten {
            kept.owed.extend(&save.owed);
        }
        for letter in &save.parked {
            kept.owed.remove(&letter.seq);
            kept.ever_parked.insert(letter.seq);
            kept.letters.insert(letter.seq, letter.clone());
        }
        for KvWrite { key, value } in &save.kv {
            match value {
                Some(value) => drop(kept.kv.insert(key.clone(), value.clone())),
                None => drop(kept.kv.remove(key)),
            }
        }
    }
}
