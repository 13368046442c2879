//! Judges names: a new object under an old name comes after the end of the old one.

use std::collections::HashMap;

use kubewitness_core::Change;

use super::faults::{OracleFaults, OracleRule};
use crate::truth::{JournalRecord, ResourceHistory, TruthEvent};

/// One bearer of a name, as it was told.
struct NameBearer<'a> {
    uid: &'a str,
    /// The first version; `None` for a bearer of another history.
    born: Option<u64>,
    first: u64,
    last: u64,
    over: bool,
}

pub(super) fn judge(history: &ResourceHistory, told: &JournalRecord, epoch: u32, faults: &mut OracleFaults) {
    let mut born: HashMap<&str, u64> = HashMap::new();
    for entry in history.entries.iter().filter(|entry| entry.event == TruthEvent::Written) {
        born.entry(&entry.uid).or_insert(entry.version);
    }
    let mut names: HashMap<(&str, &str), Vec<NameBearer<'_>>> = HashMap::new();
    for state in told.states.iter().filter(|state| state.epoch == epoch && state.change != Change::Gap) {
        if told.unordered && state.late {
            continue;
        }
        let object = &*state.object;
        let bearers = names.entry((&object.namespace, &object.name)).or_default();
        let over = matches!(state.change, Change::Gone | Change::Left);
        match bearers.iter_mut().find(|bearer| bearer.uid == object.uid) {
            Some(bearer) => (bearer.last, bearer.over) = (state.seq, over),
            None => {
                let born = born.get(object.uid.as_str()).copied();
                bearers.push(NameBearer { uid: &object.uid, born, first: state.seq, last: state.seq, over });
            }
        }
    }
    for ((_, name), bearers) in &mut names {
        bearers.sort_by_key(|bearer| bearer.born);
        for (place, old) in bearers.iter().enumerate() {
            for new in &bearers[place + 1..] {
                pair(name, old, new, told.late_allowed, faults);
            }
        }
    }
}

fn pair(
    name: &str,
    old: &NameBearer<'_>,
    new: &NameBearer<'_>,
    late_allowed: bool,
    faults: &mut OracleFaults,
) {
    let late = late_allowed && old.first > new.first;
    if !old.over {
        let about = format!("{} bears {name} after {}, of which no end is told", new.uid, old.uid);
        faults.add(OracleRule::Order, about);
    } else if old.last > new.first && !late {
        let about = format!("{} at {} comes before the end of {name} as {}", new.uid, new.first, old.uid);
        faults.add(OracleRule::Order, about);
    }
}
