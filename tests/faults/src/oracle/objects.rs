//! One object in one history: what the server had of it, and what the journal tells of it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use kubewitness_core::{Change, Gap, State};

use super::faults::{OracleFaults, OracleRule};
use crate::truth::{JournalRecord, ResourceHistory, WrittenEntry};

/// One object's hole, with its place in the order of states.
pub struct ObjectHole<'a> {
    pub after: u64,
    pub before: u64,
    pub gap: &'a Gap,
    pub seq: u64,
}

impl ObjectHole<'_> {
    pub fn covers(&self, version: u64) -> bool {
        self.after < version && version < self.before
    }
}

/// One object in one history.
pub struct ObjectLife<'a> {
    pub history: &'a ResourceHistory,
    pub told: &'a JournalRecord,
    /// The version up to which everything must be there; without bound in a history before the last.
    pub up_to: u64,
    pub uid: &'a str,
    pub entries: Vec<&'a WrittenEntry>,
    /// Without gaps, by position.
    pub states: Vec<&'a State>,
    pub holes: Vec<ObjectHole<'a>>,
    /// Its states in the histories before.
    pub before: Vec<&'a State>,
}

/// The objects of one history, by uid, each with what the server had and what the journal tells.
pub fn lives<'a>(
    history: &'a ResourceHistory,
    told: &'a JournalRecord,
    epoch: u32,
    up_to: u64,
    before: &HashMap<&str, Vec<&'a State>>,
    faults: &mut OracleFaults,
) -> BTreeMap<&'a str, ObjectLife<'a>> {
    let mut lives: BTreeMap<&str, ObjectLife<'_>> = BTreeMap::new();
    let empty = |uid: &'a str| ObjectLife {
        history,
        told,
        up_to,
        uid,
        entries: Vec::new(),
        states: Vec::new(),
        holes: Vec::new(),
        before: before.get(uid).cloned().unwrap_or_default(),
    };
    for entry in &history.entries {
        lives.entry(&entry.uid).or_insert_with(|| empty(&entry.uid)).entries.push(entry);
    }
    for state in told.states.iter().filter(|state| state.epoch == epoch) {
        let uid = state.object.uid.as_str();
        let life = lives.entry(uid).or_insert_with(|| empty(uid));
        if state.change != Change::Gap {
            life.states.push(state);
        } else if let Some(hole) = hole(told, state, faults) {
            life.holes.push(hole);
        }
    }
    lives
}

fn hole<'a>(
    told: &'a JournalRecord,
    state: &Arc<State>,
    faults: &mut OracleFaults,
) -> Option<ObjectHole<'a>> {
    let named = state.id.as_str().rsplit_once("/gap:").map(|(_, bounds)| bounds);
    let of_state = |gap: &&Gap| {
        gap.epoch == state.epoch
            && gap.object.as_ref().is_some_and(|object| object.uid == state.object.uid)
            && named.is_some_and(|named| named == format!("{}-{}", gap.after, gap.before))
    };
    let Some(gap) = told.gaps.iter().find(of_state) else {
        faults.add(OracleRule::Bounds, format!("{} is no gap that is known", state.id));
        return None;
    };
    match (gap.after.parse(), gap.before.parse()) {
        (Ok(after), Ok(before)) => Some(ObjectHole { after, before, gap, seq: state.seq }),
        _ => {
            faults.add(OracleRule::Bounds, format!("{} has no bounds", state.id));
            None
        }
    }
}
