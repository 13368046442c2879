//! Judges one object: each of its versions is there once, in order, or in one gap, and no other version is.

use kubewitness_core::{Change, State};

use super::faults::{Faults, Rule};
use super::gaps::{Wide, stretch};
use super::objects::Life;
use crate::truth::{Entry, Event};

pub(super) fn judge(life: &Life<'_>, wide: &[Wide], faults: &mut Faults) {
    for state in &life.states {
        exists(life, wide, state, faults);
    }
    ordered(life, faults);
    complete(life, wide, faults);
}

pub(super) fn version(state: &State) -> Option<u64> {
    state.resource_version.as_str().parse().ok()
}

/// The entry that a state is of.
fn entry<'a>(life: &Life<'a>, state: &State) -> Option<&'a Entry> {
    let at = version(state)?;
    life.entries.iter().find(|entry| entry.version == at).copied()
}

fn exists(life: &Life<'_>, wide: &[Wide<'_>], state: &State, faults: &mut Faults) {
    if state.change == Change::Gone {
        return ended(life, wide, state, faults);
    }
    let Some(entry) = entry(life, state) else {
        return faults.add(Rule::Invented, format!("{} was never written", state.id));
    };
    let wanted = if entry.in_scope { Change::Present } else { Change::Left };
    if entry.event == Event::Deleted || state.change != wanted {
        let (was, scope) = (entry.event, if entry.in_scope { "in" } else { "out of" });
        let told = state.change.as_str();
        faults.add(Rule::Invented, format!("{} is {told}, and was {was:?} {scope} scope", state.id));
    }
    if let (Some(told), Some(written)) = (life.told.documents.get(&state.seq), &entry.document)
        && told.as_ref() != Some(&**written)
    {
        faults.add(Rule::Content, format!("{}: {told:?} instead of {written}", state.id));
    }
}

fn ended(life: &Life<'_>, wide: &[Wide<'_>], state: &State, faults: &mut Faults) {
    if life.entries.is_empty() && !life.before.is_empty() {
        // The history that took the place of its own never had it.
        return;
    }
    let Some(end) = life.entries.iter().find(|entry| entry.event == Event::Deleted) else {
        return faults.add(Rule::FalseGone, format!("{} is still there", state.id));
    };
    let floor = life.history.floor_at(state.observed_ms);
    let unknown = end.version <= floor || life.told.unread_allowed;
    match version(state) {
        Some(told) if told != end.version => {
            faults.add(Rule::Bounds, format!("{} at {told}, and not at {}", state.id, end.version));
        }
        // It could have been found: there is a version before its deletion that could be read.
        None if !unknown && !wide.iter().any(|wide| wide.ends(end.version)) => {
            let about = format!("{} without a version, although {} is above {floor}", state.id, end.version);
            faults.add(Rule::Bounds, about);
        }
        _ => {}
    }
}

fn ordered(life: &Life<'_>, faults: &mut Faults) {
    let mut newest = 0;
    let mut end: Option<&State> = None;
    for state in &life.states {
        if life.told.unordered && state.late {
            continue;
        }
        if let Some(end) = end {
            let rule = if state.change == Change::Gone { Rule::Twice } else { Rule::Order };
            faults.add(rule, format!("{} at {} after the end at {}", state.id, state.seq, end.seq));
            continue;
        }
        match version(state) {
            Some(at) if at == newest => {
                faults.add(Rule::Twice, format!("{} again at {}", state.id, state.seq));
            }
            Some(at) if at < newest => {
                faults.add(Rule::Order, format!("{} at {} after {newest}", state.id, state.seq));
            }
            Some(at) => newest = at,
            None => {}
        }
        if state.change == Change::Gone {
            end = Some(state);
        }
    }
}

/// What must be told of a version, given the last thing that was.
fn expected(entry: &Entry, last: Option<Change>) -> Option<Change> {
    match (entry.event, entry.in_scope) {
        (Event::Written, true) => Some(Change::Present),
        (Event::Written, false) => (last == Some(Change::Present)).then_some(Change::Left),
        (Event::Deleted, _) => (last == Some(Change::Present)).then_some(Change::Gone),
    }
}

fn complete(life: &Life<'_>, wide: &[Wide], faults: &mut Faults) {
    let gone = life.states.iter().any(|state| state.change == Change::Gone);
    let mut last = life.before.last().map(|state| state.change).filter(|change| *change == Change::Present);
    for (place, entry) in life.entries.iter().enumerate() {
        let told = told(life, entry, gone);
        let holes = life.holes.iter().filter(|hole| hole.covers(entry.version)).count();
        if told.is_some() && holes > 0 && entry.event == Event::Written {
            faults.add(Rule::FalseGap, format!("{} of {} lies in a gap", entry.version, life.uid));
        }
        if holes > 1 {
            faults.add(Rule::Overlap, format!("{} of {} lies in {holes} gaps", entry.version, life.uid));
        }
        let due = entry.version <= life.up_to && !unseen(life, place, entry);
        let ended = wide.iter().any(|wide| wide.ends(entry.version));
        let is_known = told.is_some() || carried(life, entry);
        let excused = is_known || holes > 0 || poisoned(life, entry) || ended || brief(life, wide, place);
        if let Some(expected) = expected(entry, last).filter(|_| due && !excused) {
            faults.add(Rule::Lost, lost(life, entry, expected));
        }
        last = told.or(last);
    }
}

fn told(life: &Life<'_>, entry: &Entry, gone: bool) -> Option<Change> {
    if entry.event == Event::Deleted {
        return gone.then_some(Change::Gone);
    }
    let of = |state: &&&State| state.change != Change::Gone && version(state) == Some(entry.version);
    life.states.iter().find(of).map(|state| state.change)
}

/// What a new history has in common with the one before it need not be told again.
fn carried(life: &Life<'_>, entry: &Entry) -> bool {
    let of = |state: &&State| state.change != Change::Gone && version(state) == Some(entry.version);
    let is_common = entry.version <= life.history.listed && entry.event == Event::Written;
    is_common && life.before.iter().any(of)
}

/// Nobody can have witnessed it: it was overwritten before the first list had come to it.
fn unseen(life: &Life<'_>, place: usize, entry: &Entry) -> bool {
    let overwritten =
        life.entries.get(place + 1).is_some_and(|next| next.version <= life.history.listed_until);
    entry.version <= life.history.listed && (overwritten || entry.event == Event::Deleted)
}

fn poisoned(life: &Life<'_>, entry: &Entry) -> bool {
    life.told.poisoned.contains(&(life.uid.to_string(), entry.version))
}

/// Of a time in which it was there nothing was witnessed, and that lies in a hole of the source from
/// its beginning, or that of this history, to its end.
fn brief(life: &Life<'_>, wide: &[Wide], place: usize) -> bool {
    let Some(stretch) = stretch(life, place) else { return false };
    let is_told = |entry: &&&Entry| life.states.iter().any(|state| version(state) == Some(entry.version));
    let had_ended = life.before.last().is_none_or(|last| last.change != Change::Present);
    had_ended
        && !stretch.entries.iter().any(|entry| is_told(&entry))
        && wide.iter().any(|wide| wide.swallows(&stretch))
}

fn lost(life: &Life<'_>, entry: &Entry, expected: Change) -> String {
    let story: Vec<_> =
        life.entries.iter().map(|entry| format!("{:?} {}", entry.event, entry.version)).collect();
    let told: Vec<_> = life
        .states
        .iter()
        .map(|state| format!("{} {}", state.change.as_str(), state.resource_version))
        .collect();
    let holes: Vec<_> = life.holes.iter().map(|hole| (hole.after, hole.before)).collect();
    format!(
        "{} at {} of {} ({}): it was {story:?}, told is {told:?} with gaps {holes:?}",
        expected.as_str(),
        entry.version,
        life.uid,
        entry.name,
    )
}
