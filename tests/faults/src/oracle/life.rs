//! Judges one object: each of its versions is there once, in order, or in one gap, and no other version is.

use kubewitness_core::{Change, State};

use super::faults::{OracleFaults, OracleRule};
use super::gaps::{SourceHole, stretch};
use super::objects::ObjectLife;
use crate::truth::{TruthEvent, WrittenEntry};

pub(super) fn judge(life: &ObjectLife<'_>, wide: &[SourceHole], faults: &mut OracleFaults) {
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
fn entry<'a>(life: &ObjectLife<'a>, state: &State) -> Option<&'a WrittenEntry> {
    let at = version(state)?;
    life.entries.iter().find(|entry| entry.version == at).copied()
}

fn exists(life: &ObjectLife<'_>, wide: &[SourceHole<'_>], state: &State, faults: &mut OracleFaults) {
    if state.change == Change::Gone {
        return ended(life, wide, state, faults);
    }
    let Some(entry) = entry(life, state) else {
        return faults.add(OracleRule::Invented, format!("{} was never written", state.id));
    };
    let wanted = if entry.in_scope { Change::Present } else { Change::Left };
    if entry.event == TruthEvent::Deleted || state.change != wanted {
        let (was, scope) = (entry.event, if entry.in_scope { "in" } else { "out of" });
        let told = state.change.as_str();
        faults.add(OracleRule::Invented, format!("{} is {told}, and was {was:?} {scope} scope", state.id));
    }
    if let (Some(told), Some(written)) = (life.told.documents.get(&state.seq), &entry.document)
        && told.as_ref() != Some(&**written)
    {
        faults.add(OracleRule::Content, format!("{}: {told:?} instead of {written}", state.id));
    }
}

fn ended(life: &ObjectLife<'_>, wide: &[SourceHole<'_>], state: &State, faults: &mut OracleFaults) {
    if life.entries.is_empty() && !life.before.is_empty() {
        // The history that took the place of its own never had it.
        return;
    }
    let Some(end) = life.entries.iter().find(|entry| entry.event == TruthEvent::Deleted) else {
        return faults.add(OracleRule::FalseGone, format!("{} is still there", state.id));
    };
    let floor = life.history.floor_at(state.observed_ms);
    let unknown = end.version <= floor || life.told.unread_allowed;
    match version(state) {
        Some(told) if told != end.version => {
            faults.add(OracleRule::Bounds, format!("{} at {told}, and not at {}", state.id, end.version));
        }
        // It could have been found: there is a version before its deletion that could be read.
        None if !unknown && !wide.iter().any(|wide| wide.ends(end.version)) => {
            let about = format!("{} without a version, although {} is above {floor}", state.id, end.version);
            faults.add(OracleRule::Bounds, about);
        }
        _ => {}
    }
}

fn ordered(life: &ObjectLife<'_>, faults: &mut OracleFaults) {
    let mut newest = 0;
    let mut end: Option<&State> = None;
    for state in &life.states {
        if life.told.unordered && state.late {
            continue;
        }
        if let Some(end) = end {
            let rule = if state.change == Change::Gone { OracleRule::Twice } else { OracleRule::Order };
            faults.add(rule, format!("{} at {} after the end at {}", state.id, state.seq, end.seq));
            continue;
        }
        match version(state) {
            Some(at) if at == newest => {
                faults.add(OracleRule::Twice, format!("{} again at {}", state.id, state.seq));
            }
            Some(at) if at < newest => {
                faults.add(OracleRule::Order, format!("{} at {} after {newest}", state.id, state.seq));
            }
            Some(at) => newest = at,
            None => {}
        }
        if state.change == Change::Gone {
            end = Some(state);
        }
    }
}

/// Returns the change that must be told of a version, given the last one that was.
fn expected(entry: &WrittenEntry, last: Option<Change>) -> Option<Change> {
    match (entry.event, entry.in_scope) {
        (TruthEvent::Written, true) => Some(Change::Present),
        (TruthEvent::Written, false) => (last == Some(Change::Present)).then_some(Change::Left),
        (TruthEvent::Deleted, _) => (last == Some(Change::Present)).then_some(Change::Gone),
    }
}

fn complete(life: &ObjectLife<'_>, wide: &[SourceHole], faults: &mut OracleFaults) {
    let gone = life.states.iter().any(|state| state.change == Change::Gone);
    let mut last = life.before.last().map(|state| state.change).filter(|change| *change == Change::Present);
    for (place, entry) in life.entries.iter().enumerate() {
        let told = expected_change(life, entry, gone);
        let holes = life.holes.iter().filter(|hole| hole.covers(entry.version)).count();
        if told.is_some() && holes > 0 && entry.event == TruthEvent::Written {
            faults.add(OracleRule::FalseGap, format!("{} of {} lies in a gap", entry.version, life.uid));
        }
        if holes > 1 {
            faults
                .add(OracleRule::Overlap, format!("{} of {} lies in {holes} gaps", entry.version, life.uid));
        }
        let due = entry.version <= life.up_to && !unseen(life, place, entry);
        let ended = wide.iter().any(|wide| wide.ends(entry.version));
        let is_known = told.is_some() || carried(life, entry);
        let excused = is_known || holes > 0 || poisoned(life, entry) || ended || brief(life, wide, place);
        if let Some(expected) = expected(entry, last).filter(|_| due && !excused) {
            faults.add(OracleRule::Lost, lost(life, entry, expected));
        }
        last = told.or(last);
    }
}

fn expected_change(life: &ObjectLife<'_>, entry: &WrittenEntry, gone: bool) -> Option<Change> {
    if entry.event == TruthEvent::Deleted {
        return gone.then_some(Change::Gone);
    }
    let of = |state: &&&State| state.change != Change::Gone && version(state) == Some(entry.version);
    life.states.iter().find(of).map(|state| state.change)
}

/// A version that a new history has in common with the one before it need not be told again.
fn carried(life: &ObjectLife<'_>, entry: &WrittenEntry) -> bool {
    let of = |state: &&State| state.change != Change::Gone && version(state) == Some(entry.version);
    let is_common = entry.version <= life.history.listed && entry.event == TruthEvent::Written;
    is_common && life.before.iter().any(of)
}

/// Nobody can have witnessed it: it was overwritten before the first list had come to it.
fn unseen(life: &ObjectLife<'_>, place: usize, entry: &WrittenEntry) -> bool {
    let overwritten =
        life.entries.get(place + 1).is_some_and(|next| next.version <= life.history.listed_until);
    entry.version <= life.history.listed && (overwritten || entry.event == TruthEvent::Deleted)
}

fn poisoned(life: &ObjectLife<'_>, entry: &WrittenEntry) -> bool {
    life.told.poisoned.contains(&(life.uid.to_string(), entry.version))
}

/// Nothing was witnessed of a time in which it was there, and that lies in a hole of the source from its
/// beginning, or that of this history, to its end.
fn brief(life: &ObjectLife<'_>, wide: &[SourceHole], place: usize) -> bool {
    let Some(stretch) = stretch(life, place) else { return false };
    let is_told =
        |entry: &&&WrittenEntry| life.states.iter().any(|state| version(state) == Some(entry.version));
    let had_ended = life.before.last().is_none_or(|last| last.change != Change::Present);
    had_ended
        && !stretch.entries.iter().any(|entry| is_told(&entry))
        && wide.iter().any(|wide| wide.swallows(&stretch))
}

fn lost(life: &ObjectLife<'_>, entry: &WrittenEntry, expected: Change) -> String {
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
