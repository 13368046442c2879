//! Judges gaps: none is false, none overlaps another, and their bounds are exact.

use std::collections::BTreeMap;

use kubewitness_core::Gap;

use super::faults::{OracleFaults, OracleRule};
use super::life::version;
use super::objects::{ObjectHole, ObjectLife};
use crate::truth::{JournalRecord, ResourceHistory, TruthEvent, WrittenEntry};

/// A hole of the source: of lives that began and ended in it.
pub(super) struct SourceHole<'a> {
    after: u64,
    before: u64,
    gap: &'a Gap,
    /// The end of a history that another one took the place of: it can't be asked any more.
    ends: bool,
}

impl SourceHole<'_> {
    fn covers(&self, version: u64) -> bool {
        self.after < version && version < self.before
    }

    /// True of versions that the old history still had to tell.
    pub fn ends(&self, version: u64) -> bool {
        self.ends && self.covers(version)
    }

    /// Whether all of it lies in this hole, with its end.
    pub fn swallows(&self, stretch: &ScopeStretch<'_>) -> bool {
        self.covers(stretch.end) && stretch.entries.iter().all(|entry| self.covers(entry.version))
    }
}

/// The stretch of time in which one object was there, in scope, without a break.
pub(super) struct ScopeStretch<'a> {
    pub entries: &'a [&'a WrittenEntry],
    /// Where it was deleted, or left the scope.
    end: u64,
}

/// The one around an entry, where it has an end. Of one whom the history before had, what this one
/// did with it.
pub(super) fn stretch<'a>(life: &'a ObjectLife<'_>, place: usize) -> Option<ScopeStretch<'a>> {
    let is_there = |entry: &&WrittenEntry| {
        let is_own = life.before.is_empty() || entry.version > life.history.listed;
        is_own && entry.event == TruthEvent::Written && entry.in_scope
    };
    let from = life.entries[..place].iter().rposition(|entry| !is_there(entry)).map_or(0, |last| last + 1);
    let to = place + life.entries[place..].iter().position(|entry| !is_there(entry))?;
    Some(ScopeStretch { entries: &life.entries[from..to], end: life.entries[to].version })
}

/// The source's own holes in one epoch.
pub(super) fn of_source<'a>(
    history: &ResourceHistory,
    told: &'a JournalRecord,
    epoch: u32,
    faults: &mut OracleFaults,
) -> Vec<SourceHole<'a>> {
    let mut wide: Vec<SourceHole<'_>> = Vec::new();
    for gap in told.gaps.iter().filter(|gap| gap.object.is_none() && gap.epoch == epoch) {
        let bound =
            |text: &str, open: u64| if text.is_empty() { Some(open) } else { text.parse::<u64>().ok() };
        let (Some(after), Some(before)) = (bound(&gap.after, 0), bound(&gap.before, u64::MAX)) else {
            faults.add(OracleRule::Bounds, format!("{gap:?} has no bounds"));
            continue;
        };
        let name = format!("the source's gap {}–{} ({})", gap.after, gap.before, gap.reason);
        if after.saturating_add(1) >= before && !told.unread_allowed {
            faults.add(OracleRule::Bounds, format!("{name} is empty"));
        }
        if wide.iter().any(|other| other.after.max(after).saturating_add(1) < other.before.min(before)) {
            faults.add(OracleRule::Overlap, format!("{name} lies on another one"));
        }
        let (floor, hole) = (
            history.floor_at(gap.recorded_ms),
            SourceHole { after, before, gap, ends: history.over && before == u64::MAX },
        );
        if floor.saturating_add(1) < before && !hole.ends && !told.unread_allowed {
            faults.add(OracleRule::FalseGap, format!("{name} could be read from {floor} on"));
        }
        wide.push(hole);
    }
    wide
}

/// No hole of the source holds a life of which something could still be read.
pub(super) fn readable_lives(
    lives: &BTreeMap<&str, ObjectLife<'_>>,
    wide: &[SourceHole<'_>],
    faults: &mut OracleFaults,
) {
    for life in lives.values().filter(|life| life.states.is_empty() && !life.told.unread_allowed) {
        let mut stretches = (0..life.entries.len()).filter_map(|place| stretch(life, place));
        let Some(last) = stretches.rfind(|stretch| !stretch.entries.is_empty()) else { continue };
        for wide in wide.iter().filter(|wide| !wide.ends && wide.swallows(&last)) {
            let floor = life.history.floor_at(wide.gap.recorded_ms);
            if last.end > floor {
                let about = format!("the life of {} in {:?} could be read above {floor}", life.uid, wide.gap);
                faults.add(OracleRule::FalseGap, about);
            }
        }
    }
}

pub(super) fn of_object(life: &ObjectLife<'_>, faults: &mut OracleFaults) {
    for (place, hole) in life.holes.iter().enumerate() {
        let name = format!("gap {}–{} of {}", hole.after, hole.before, life.uid);
        // Whether this history ever had one of the history before, nobody can tell there.
        let floor = life.history.floor_at(hole.gap.recorded_ms);
        let is_hidden = !life.before.is_empty() && hole.before <= floor + 1;
        if life.entries.is_empty() && !is_hidden {
            faults.add(OracleRule::FalseGap, format!("{name}, which never was"));
        }
        if hole.after + 1 >= hole.before && !life.told.unread_allowed {
            faults.add(OracleRule::Bounds, format!("{name} is empty"));
        }
        let touches =
            |other: &ObjectHole<'_>| other.after.max(hole.after) + 1 < other.before.min(hole.before);
        if life.holes[..place].iter().any(touches) {
            faults.add(OracleRule::Overlap, format!("{name} lies on another one"));
        }
        readable(life, hole, &name, faults);
        bounds(life, hole, &name, faults);
    }
}

/// At the compacted version itself, each object can still be read as it was then.
fn readable(life: &ObjectLife<'_>, hole: &ObjectHole<'_>, name: &str, faults: &mut OracleFaults) {
    if life.told.unread_allowed {
        return;
    }
    let floor = life.history.floor_at(hole.gap.recorded_ms);
    for (place, entry) in life.entries.iter().enumerate() {
        let next = life.entries.get(place + 1).map_or(u64::MAX, |next| next.version);
        if entry.event == TruthEvent::Written && hole.covers(entry.version) && next > floor {
            faults.add(OracleRule::FalseGap, format!("{name} covers {}, readable at {floor}", entry.version));
        }
    }
}

/// It ends where the next thing that is told of the object begins, and begins no earlier than
/// where the last one was.
fn bounds(life: &ObjectLife<'_>, hole: &ObjectHole<'_>, name: &str, faults: &mut OracleFaults) {
    let below = life.states.iter().rev().find(|state| state.seq < hole.seq);
    if let Some(below) = below.and_then(|state| version(state)).filter(|below| *below > hole.after) {
        faults.add(OracleRule::Bounds, format!("{name} begins before {below}, which was told"));
    }
    // What isn't in the selector is not told, but may have been in it before.
    if life.entries.iter().any(|entry| entry.version == hole.before && !entry.in_scope) {
        return;
    }
    let Some(next) = life.states.iter().find(|state| state.seq > hole.seq) else {
        // A journal that was left in the middle may not have come to it.
        if life.told.up_to.is_none() {
            let told =
                life.states.iter().map(|state| (state.seq, state.change, state.resource_version.as_str()));
            let told: Vec<_> = told.collect();
            faults.add(
                OracleRule::Bounds,
                format!("{name} at {} ends with nothing; told is {told:?}", hole.seq),
            );
        }
        return;
    };
    let floor = life.history.floor_at(hole.gap.recorded_ms);
    let exact = match version(next) {
        Some(version) => hole.before == version,
        // Nobody can tell when it was deleted: it was no longer there at the oldest version that
        // can be read.
        None => life.told.unread_allowed || hole.before <= floor + 1,
    };
    if !exact {
        let next = (next.change, next.resource_version.as_str());
        faults.add(OracleRule::Bounds, format!("{name} is followed by {next:?}; {floor} could be read"));
    }
}
