//! The order of an object's states. It differs from the order of positions if a state arrives late.

use std::cmp::Ordering;

use super::note::PendingNote;
use super::outbox::DELETED;
use crate::config::Config;
use crate::decide::is_own;
use crate::facts::{is_set, text};

/// Successive states of a group delay a message by at most this many settle times.
const SETTLES: u64 = 6;

pub fn is_settled(config: &Config, now_ms: u64, notes: &[(String, PendingNote)]) -> bool {
    // A note from a clock that ran ahead counts as settled.
    let heard = || notes.iter().map(|(_, note)| if note.heard_ms > now_ms { 0 } else { note.heard_ms });
    let (first, last) = (heard().min().unwrap_or_default(), heard().max().unwrap_or_default());
    now_ms >= last.saturating_add(config.settle.ms).min(first.saturating_add(config.settle.ms * SETTLES))
}

/// The note whose recipients are notified: the object's own last one, or else the last one of its parts that
/// is reported by itself.
pub fn leading_note<'a>(group: &str, notes: &[&'a PendingNote]) -> Option<&'a PendingNote> {
    let addressed = notes.iter().copied().filter(|note| !note.to.is_empty());
    let own = |note: &PendingNote| is_own(&note.facts, group);
    addressed.max_by(|one, other| {
        own(one).cmp(&own(other)).then_with(|| match own(one) {
            true => in_time(one, other),
            false => one.seq.cmp(&other.seq),
        })
    })
}
pub fn version(note: &PendingNote) -> &str {
    text(&note.facts, "resourceVersion")
}

/// Compares versions of one object. Versions that are no numbers are not ordered.
pub fn by_version(one: &str, other: &str) -> Ordering {
    let is_number = |version: &str| !version.is_empty() && version.bytes().all(|byte| byte.is_ascii_digit());
    match is_number(one) && is_number(other) {
        true => (one.len(), one).cmp(&(other.len(), other)),
        false => Ordering::Equal,
    }
}

/// The order of two states of an object. A late state is older than its position. An outcome that is found
/// late follows the deletion, which then counts as its cleanup.
pub fn in_time(one: &PendingNote, other: &PendingNote) -> Ordering {
    let by_position = one.seq.cmp(&other.seq);
    let is_late = |note: &PendingNote| is_set(&note.facts, "late");
    if !is_late(one) && !is_late(other) {
        return by_position;
    }
    let is_end = |note: &PendingNote| text(&note.facts, "phase") == DELETED;
    let is_outcome = |note: &PendingNote| is_set(&note.facts, "terminal") && !is_end(note);
    match (is_end(one) && is_outcome(other), is_end(other) && is_outcome(one)) {
        (true, _) => Ordering::Less,
        (_, true) => Ordering::Greater,
        _ => by_version(version(one), version(other))
            .then_with(|| is_late(other).cmp(&is_late(one)))
            .then(by_position),
    }
}
