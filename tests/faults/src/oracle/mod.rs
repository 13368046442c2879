//! Finds every place where a journal contradicts a server's history.
//!
//! Every version of every object is witnessed once and in order, or lies in exactly one gap. No
//! gap covers a version that was witnessed or could have been read. The bounds of gaps are exact.

mod faults;
mod gaps;
mod life;
mod names;
mod objects;

use std::collections::{BTreeMap, HashMap};

use kubewitness_core::State;

use crate::truth::{JournalRecord, ServerTruth};
use faults::OracleFaults;
pub use faults::{OracleFault, OracleRule};
use objects::lives;

/// Everything that is wrong.
pub fn judge(truth: &ServerTruth, told: &JournalRecord) -> Vec<OracleFault> {
    let mut faults = OracleFaults::default();
    ids(told, &mut faults);
    let mut before: HashMap<&str, Vec<&State>> = HashMap::new();
    for (epoch, history) in truth.histories.iter().enumerate() {
        let last = epoch + 1 == truth.histories.len();
        let up_to = told.up_to.filter(|_| last).unwrap_or(u64::MAX);
        let epoch = u32::try_from(epoch).unwrap_or(u32::MAX);
        let wide = gaps::of_source(history, told, epoch, &mut faults);
        let lives = lives(history, told, epoch, up_to, &before, &mut faults);
        for life in lives.values() {
            life::judge(life, &wide, &mut faults);
            gaps::of_object(life, &mut faults);
        }
        gaps::readable_lives(&lives, &wide, &mut faults);
        names::judge(history, told, epoch, &mut faults);
        for life in lives.values() {
            before.entry(life.uid).or_default().extend(&life.states);
        }
    }
    let epochs = truth.histories.len();
    for state in told.states.iter().filter(|state| state.epoch as usize >= epochs) {
        faults.add(OracleRule::Invented, format!("{} is of an epoch that never was", state.id));
    }
    if let (Some(current), Some(history)) = (&told.current, truth.histories.last()) {
        present(current, &history.live(), &mut faults);
    }
    faults.0
}

fn ids(told: &JournalRecord, faults: &mut OracleFaults) {
    let mut seen = HashMap::new();
    for state in &told.states {
        if let Some(earlier) = seen.insert(state.id.as_str(), state.seq) {
            faults.add(OracleRule::Twice, format!("{} is at {earlier} and at {}", state.id, state.seq));
        }
    }
}

fn present(told: &BTreeMap<String, String>, live: &BTreeMap<String, String>, faults: &mut OracleFaults) {
    if told == live {
        return;
    }
    for (uid, version) in live.iter().filter(|(uid, version)| told.get(*uid) != Some(*version)) {
        faults
            .add(OracleRule::Current, format!("{uid} is at {version}, the journal has {:?}", told.get(uid)));
    }
    for uid in told.keys().filter(|uid| !live.contains_key(*uid)) {
        faults.add(OracleRule::Current, format!("{uid} is no longer there, the journal still has it"));
    }
}
