//! A new object under an old name comes after the end of the old one.

use std::collections::HashMap;

use kubewitness_core::Change;

use super::{Faults, Rule};
use crate::truth::{Event, History, Told};

pub(super) fn judge(history: &History, told: &Told, epoch: u32, faults: &mut Faults) {
    // The first version of each uid says who came first under a name.
    let mut born: HashMap<&str, u64> = HashMap::new();
    for entry in history.entries.iter().filter(|entry| entry.event == Event::Written) {
        born.entry(&entry.uid).or_insert(entry.version);
    }
    let mut holders: HashMap<(&str, &str), (&str, bool)> = HashMap::new();
    let states = told.states.iter().filter(|state| state.epoch == epoch && state.change != Change::Gap);
    for state in states {
        let object = &*state.object;
        let name = (object.namespace.as_str(), object.name.as_str());
        let ended = matches!(state.change, Change::Gone | Change::Left);
        if let Some((holder, over)) = holders.get(&name).filter(|(holder, _)| *holder != object.uid) {
            if born.get(object.uid.as_str()) < born.get(holder) {
                faults.add(Rule::Order, format!("{} comes after {holder}, its name's next bearer", state.id));
            } else if !over {
                faults.add(Rule::Order, format!("{} comes before the end of {holder}", state.id));
            }
        }
        holders.insert(name, (&object.uid, ended));
    }
}
