//! Says where a journal lies about a server's history.
//!
//! Every version of every object is witnessed once and in order, or lies in exactly one gap; no
//! gap covers what was witnessed or could have been read; its bounds are exact.

mod gaps;
mod life;
mod names;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use kubewitness_core::{Change, Gap, State};

use crate::truth::{Entry, History, Told, Truth};

/// What is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// A version is neither witnessed nor in a gap.
    Lost,
    /// A version, an end or an id is there twice.
    Twice,
    /// A version comes after a newer one, or after the end of its object.
    Order,
    /// A state that the server never had.
    Invented,
    /// An object is gone that was not deleted.
    FalseGone,
    /// A gap covers what was witnessed, or could have been read.
    FalseGap,
    /// A version lies in two gaps.
    Overlap,
    /// A bound is not where the hole begins or ends.
    Bounds,
    /// The current objects are not the server's.
    Current,
    /// A document is not what was written.
    Content,
}

/// One lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub rule: Rule,
    pub about: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.rule, self.about)
    }
}

#[derive(Default)]
struct Faults(Vec<Fault>);

impl Faults {
    fn add(&mut self, rule: Rule, about: impl Into<String>) {
        self.0.push(Fault { rule, about: about.into() });
    }
}

/// One object's hole, with its place in the order of states.
struct Hole<'a> {
    after: u64,
    before: u64,
    gap: &'a Gap,
    seq: u64,
}

impl Hole<'_> {
    fn covers(&self, version: u64) -> bool {
        self.after < version && version < self.before
    }
}

/// One object in one history.
struct Life<'a> {
    history: &'a History,
    told: &'a Told,
    /// Of the last history, what must be there; of an earlier one, everything.
    up_to: u64,
    uid: &'a str,
    entries: Vec<&'a Entry>,
    /// Without gaps, by position.
    states: Vec<&'a State>,
    holes: Vec<Hole<'a>>,
    /// Its states in the histories before.
    before: Vec<&'a State>,
}

/// Everything that is wrong.
pub fn judge(truth: &Truth, told: &Told) -> Vec<Fault> {
    let mut faults = Faults::default();
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
        faults.add(Rule::Invented, format!("{} is of an epoch that never was", state.id));
    }
    if let (Some(current), Some(history)) = (&told.current, truth.histories.last()) {
        present(current, &history.live(), &mut faults);
    }
    faults.0
}

fn ids(told: &Told, faults: &mut Faults) {
    let mut seen = HashMap::new();
    for state in &told.states {
        if let Some(earlier) = seen.insert(state.id.as_str(), state.seq) {
            faults.add(Rule::Twice, format!("{} is at {earlier} and at {}", state.id, state.seq));
        }
    }
}

fn present(told: &BTreeMap<String, String>, live: &BTreeMap<String, String>, faults: &mut Faults) {
    if told == live {
        return;
    }
    for (uid, version) in live.iter().filter(|(uid, version)| told.get(*uid) != Some(*version)) {
        faults.add(Rule::Current, format!("{uid} is at {version}, the journal has {:?}", told.get(uid)));
    }
    for uid in told.keys().filter(|uid| !live.contains_key(*uid)) {
        faults.add(Rule::Current, format!("{uid} is no longer there, the journal still has it"));
    }
}

fn lives<'a>(
    history: &'a History,
    told: &'a Told,
    epoch: u32,
    up_to: u64,
    before: &HashMap<&str, Vec<&'a State>>,
    faults: &mut Faults,
) -> BTreeMap<&'a str, Life<'a>> {
    let mut lives: BTreeMap<&str, Life<'_>> = BTreeMap::new();
    let empty = |uid: &'a str| Life {
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

fn hole<'a>(told: &'a Told, state: &Arc<State>, faults: &mut Faults) -> Option<Hole<'a>> {
    let named = state.id.as_str().rsplit_once("/gap:").map(|(_, bounds)| bounds);
    let of_state = |gap: &&Gap| {
        gap.epoch == state.epoch
            && gap.object.as_ref().is_some_and(|object| object.uid == state.object.uid)
            && named.is_some_and(|named| named == format!("{}-{}", gap.after, gap.before))
    };
    let Some(gap) = told.gaps.iter().find(of_state) else {
        faults.add(Rule::Bounds, format!("{} is no gap that is known", state.id));
        return None;
    };
    match (gap.after.parse(), gap.before.parse()) {
        (Ok(after), Ok(before)) => Some(Hole { after, before, gap, seq: state.seq }),
        _ => {
            faults.add(Rule::Bounds, format!("{} has no bounds", state.id));
            None
        }
    }
}
