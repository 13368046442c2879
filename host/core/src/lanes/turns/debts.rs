//! The owed states of a lane, and of all lanes as far as these are known by their keys.

use std::collections::{BTreeMap, BTreeSet};

use hashbrown::{HashMap, HashSet};

use super::latest::LatestKey;
use crate::state::{LaneKey, Seq};

/// The states that a lane is owed beyond those that it holds. Rows from `next` on have not been read back;
/// those before are in the lane, or finished.
#[derive(Debug, Default)]
pub(in crate::lanes) struct LaneDebt {
    pub next: Seq,
    pub rows: usize,
    /// The rows among these that may not be durable.
    pub unsaved: usize,
    /// When the first of them was observed, or earlier.
    pub observed_ms: u64,
    /// The last of them, if it is of `latest` and was made since the start.
    pub last: Option<(Seq, LatestKey)>,
    /// As it stands among the lanes that go on, and among the oldest.
    pub listed: Option<Seq>,
    pub oldest_ms: Option<u64>,
}

impl LaneDebt {
    pub fn add(&mut self, seq: Seq, observed_ms: u64, latest: Option<LatestKey>) {
        if self.rows == 0 || self.last.is_none_or(|(last, _)| last < seq) && seq > self.next {
            self.last = latest.map(|latest| (seq, latest));
        }
        if self.rows == 0 || seq < self.next {
            (self.next, self.observed_ms) = (seq, observed_ms);
        }
        self.rows += 1;
    }

    /// The last row, if this newer state takes its place.
    pub fn find_superseded(&self, newer: LatestKey) -> Option<Seq> {
        let (seq, latest) = self.last?;
        (self.rows > 0 && seq >= self.next && latest.is_superseded_by(newer)).then_some(seq)
    }
}

#[derive(Debug, Default)]
pub(in crate::lanes) struct OwedStates {
    /// How many there are, in lanes and as rows alone.
    pub states: usize,
    /// Rows that may not be durable.
    pub unsaved: BTreeMap<Seq, LaneKey>,
    /// Rows that are finished, and that the journal may still have.
    pub finished: HashSet<Seq>,
    pub returning: ReturningLanes,
    /// Lanes by when their first owed state was observed.
    pub oldest: BTreeSet<(u64, LaneKey)>,
    /// States below the cursor that may have been applied, and whose receipts are needed until their end is saved.
    pub needed_receipts: BTreeSet<Seq>,
    /// States up to here may have been handed over before the start, and nobody noted their end.
    pub before_start: Seq,
    /// Rows that may have been applied, and whose receipts are looked for.
    pub doubts: BTreeMap<Seq, LaneKey>,
    /// The states that keep their namespaces behind, because there are too many rows.
    pub crowded: HashMap<u64, (LaneKey, Seq)>,
}

impl OwedStates {
    /// Nothing is owed, and no lane is listed.
    pub fn is_clear(&self) -> bool {
        self.states == 0 && self.oldest.is_empty() && self.returning.is_empty()
    }

    pub fn is_from_before(&self, seq: Seq) -> bool {
        seq <= self.before_start
    }

    /// Moves a lane to another place among the oldest.
    pub fn relist_oldest(&mut self, before: Option<u64>, now: Option<u64>, key: LaneKey) {
        relist(&mut self.oldest, before, now, key);
    }
}

/// Lanes that move and have room, by their first row. They are kept apart by namespace, so that the lanes of one without
/// room are not looked through for those of another.
#[derive(Debug, Default)]
pub(in crate::lanes) struct ReturningLanes(BTreeMap<u64, BTreeSet<(Seq, LaneKey)>>);

impl ReturningLanes {
    pub fn relist(&mut self, before: Option<Seq>, now: Option<Seq>, key: LaneKey) {
        let lanes = self.0.entry(key.namespace).or_default();
        relist(lanes, before, now, key);
        if lanes.is_empty() {
            self.0.remove(&key.namespace);
        }
    }

    /// The first row of all lanes in namespaces that fit.
    pub fn first_where(&self, fits: impl Fn(u64) -> bool) -> Option<Seq> {
        let fitting = self.0.iter().filter(|(namespace, _)| fits(**namespace));
        fitting.filter_map(|(_, lanes)| lanes.first().map(|(seq, _)| *seq)).min()
    }

    /// The lanes whose first row lies between these positions.
    pub fn listed_within(&self, from: Seq, through: Seq) -> Vec<LaneKey> {
        let listed = |lanes: &BTreeSet<(Seq, LaneKey)>| {
            let following = lanes.range((from, LaneKey::default())..);
            following.take_while(|(seq, _)| *seq <= through).map(|(_, key)| *key).collect::<Vec<_>>()
        };
        self.0.values().flat_map(listed).collect()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Moves a lane to another place in an index.
fn relist(index: &mut BTreeSet<(u64, LaneKey)>, before: Option<u64>, now: Option<u64>, key: LaneKey) {
    if let Some(before) = before {
        index.remove(&(before, key));
    }
    index.extend(now.map(|now| (now, key)));
}
