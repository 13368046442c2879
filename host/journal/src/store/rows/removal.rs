//! Describes one transaction of retention: the rows that it removes, and its changes to the rows that stay.

use std::collections::{BTreeMap, BTreeSet};

use kubewitness_core::{Change, Seq, Version};

use crate::store::rows::{GapRow, ROW_BYTES, RowFlags, SEGMENT, StateKey, StateRow};

/// A source's states in one segment of positions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SegmentTally {
    pub segment: u64,
    pub states: u64,
    pub bytes: u64,
}

/// One state, as far as retention needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StateLink {
    pub seq: Seq,
    /// The previous state of the same object; 0 for the first that is kept.
    pub before: Seq,
    pub object: i64,
    pub stream: i64,
    pub observed_ms: u64,
    pub bytes: u64,
    /// Whether its version is before the one from which its source's watch would resume.
    pub settled: bool,
    pub end: ObjectEnd,
}

/// The end of an object's chain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ObjectEnd {
    pub live: bool,
    /// 0 if it has none.
    pub newest: Seq,
    /// Its last state, if it has ended.
    pub tail: Seq,
}

/// A state as found, before it is known whether its source's watch could resume before it.
#[derive(Clone, Debug)]
pub(crate) struct LinkRow {
    pub seq: Seq,
    pub before: Seq,
    pub object: i64,
    pub stream: i64,
    pub observed_ms: u64,
    pub document_bytes: u64,
    pub flags: i64,
    pub key: Option<StateKey>,
    /// The version, if the key is not one.
    pub version: Option<StateKey>,
    pub end: ObjectEnd,
}

impl LinkRow {
    pub fn version(&self) -> Option<Version> {
        match RowFlags::unpack_bits(self.flags)?.change {
            Change::Present | Change::Left => self.key.as_ref()?.version(),
            Change::Gone | Change::Gap => self.version.as_ref()?.version(),
        }
    }

    pub fn as_link(&self, settled: bool) -> StateLink {
        let Self { seq, before, object, stream, observed_ms, end, .. } = *self;
        StateLink {
            seq,
            before,
            object,
            stream,
            observed_ms,
            bytes: self.document_bytes + ROW_BYTES,
            settled,
            end,
        }
    }
}

/// The number of states that retention removed, for one plugin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TakenStates {
    /// States that it had finished.
    pub finished: u64,
    /// States that it never received.
    pub untold: u64,
}

/// Precedes a plugin's name in the key of the row that counts its removed letters, and is the whole key of
/// the row that counts removed records. No plugin's name begins with it, and a key has room for no more.
const OTHER_ROWS: &str = ".";

/// The number of rows that retention removed, from the table `taken`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RemovedCounts {
    /// States, for each plugin.
    pub states: BTreeMap<String, TakenStates>,
    /// Dropped dead letters, for each plugin.
    pub letters: BTreeMap<String, u64>,
    /// Records of operators' acts.
    pub records: u64,
}

impl RemovedCounts {
    /// `rows` have a key and two numbers. Rows of other things than states have them in the first number.
    pub fn of(rows: impl IntoIterator<Item = (String, i64, i64)>) -> Self {
        let mut counts = Self::default();
        for (key, finished, untold) in rows {
            let (finished, untold) = (finished as u64, untold as u64);
            match key.strip_prefix(OTHER_ROWS) {
                None => drop(counts.states.insert(key, TakenStates { finished, untold })),
                Some("") => counts.records = finished,
                Some(plugin) => drop(counts.letters.insert(plugin.to_owned(), finished)),
            }
        }
        counts
    }

    pub fn letters_key(plugin: &str) -> String {
        format!("{OTHER_ROWS}{plugin}")
    }

    /// The row that adds removed records, if there are any.
    pub fn records_row(records: &[i64]) -> Option<(String, i64, i64)> {
        (!records.is_empty()).then(|| (OTHER_ROWS.to_owned(), records.len() as i64, 0))
    }
}

/// Rows that no remaining row refers to.
#[derive(Clone, Debug, Default)]
pub(crate) struct UnusedRows {
    /// References are known up to this position; later ones are read again. This applies only to statuses and
    /// anchors.
    pub through: Seq,
    pub statuses: Vec<i64>,
    pub anchors: Vec<i64>,
    /// Owners and objects that are gone.
    pub owned: Vec<(i64, i64)>,
    /// Owners without objects.
    pub owners: Vec<i64>,
    pub poison: Vec<i64>,
    /// Records of states that retention removed before plugins received them.
    pub gaps: Vec<i64>,
    /// Plugins, and keys of their reports about objects that are gone.
    pub reports: Vec<(String, String)>,
    /// Old records of operators' acts.
    pub records: Vec<i64>,
}

impl UnusedRows {
    /// Whether it removes rows to which new states may refer again.
    pub fn has_referenced(&self) -> bool {
        !self.statuses.is_empty() || !self.anchors.is_empty()
    }
}

/// The shared rows to which states refer.
#[derive(Clone, Debug, Default)]
pub(crate) struct StateReferences {
    /// The position of the last of them.
    pub last: Option<Seq>,
    pub statuses: Vec<i64>,
    pub anchors: Vec<i64>,
}

/// Position, status, previous status, anchor.
pub(crate) type StateReference = (i64, i64, Option<i64>, Option<i64>);

impl StateReferences {
    /// `rows` are in the order of their positions.
    pub fn of(rows: Vec<StateReference>) -> Self {
        let mut found = Self { last: rows.last().map(|(seq, ..)| *seq as Seq), ..Self::default() };
        for (_, status, previous, anchor) in rows {
            found.statuses.push(status);
            found.statuses.extend(previous);
            found.anchors.extend(anchor);
        }
        for numbers in [&mut found.statuses, &mut found.anchors] {
            numbers.sort_unstable();
            numbers.dedup();
        }
        found
    }
}

/// The kinds of shared rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SharedRows {
    Statuses,
    /// Anchors, except the newest of each stream, on which the next states are based.
    Anchors,
    /// Owners without objects.
    Owners,
}

/// The changes of one transaction of retention, and their conditions.
#[derive(Clone, Debug, Default)]
pub(crate) struct RemovalPlan {
    pub source: String,
    pub streams: Vec<i64>,
    /// Set if states may be removed that plugins have not finished.
    pub in_hand: Option<u64>,
    /// When it was decided.
    pub now_ms: u64,
    pub taken: Vec<StateLink>,
    /// Objects of which nothing stays, their last states, and whether an object of a later epoch is known to
    /// continue them.
    pub ends: Vec<(i64, Seq, bool)>,
    pub objects: Vec<i64>,
    /// The states that become the first ones of their objects, in their new stored form, with the growth of
    /// each in bytes.
    pub rebased: Vec<StateRow>,
    pub growth: Vec<(Seq, i64, i64)>,
    /// The number of removed states for each plugin.
    pub plugins: BTreeMap<String, TakenStates>,
    /// The states among these that plugins were owed. Their rows go with them.
    pub owed: BTreeSet<(String, Seq)>,
    /// The dropped dead letters of these states. Their rows go with them, too.
    pub dropped: BTreeSet<(String, Seq)>,
    pub gaps: Vec<GapRow>,
}

impl RemovalPlan {
    /// By how much the counts of segments and streams shrink.
    pub fn tallies_taken(&self) -> BTreeMap<(u64, i64), (u64, i64)> {
        let mut tallies: BTreeMap<(u64, i64), (u64, i64)> = BTreeMap::new();
        for link in &self.taken {
            let tally = tallies.entry((link.seq / SEGMENT, link.stream)).or_default();
            tally.0 += 1;
            tally.1 += link.bytes as i64;
        }
        for (seq, stream, bytes) in &self.growth {
            tallies.entry((seq / SEGMENT, *stream)).or_default().1 -= bytes;
        }
        tallies
    }

    /// The rows of letters and of owed states that go.
    pub fn letters(&self) -> impl Iterator<Item = &(String, Seq)> {
        self.owed.iter().chain(&self.dropped)
    }

    /// The rows of the table `taken` that add to the counts of removed rows.
    pub fn counts_taken(&self) -> Vec<(String, i64, i64)> {
        let states = self
            .plugins
            .iter()
            .map(|(name, taken)| (name.clone(), taken.finished as i64, taken.untold as i64));
        let mut letters: BTreeMap<&str, i64> = BTreeMap::new();
        for (plugin, _) in &self.dropped {
            *letters.entry(plugin).or_default() += 1;
        }
        let letters = letters.into_iter().map(|(plugin, many)| (RemovedCounts::letters_key(plugin), many, 0));
        states.chain(letters).collect()
    }

    pub fn bytes_taken(&self) -> u64 {
        self.taken.iter().map(|link| link.bytes).sum()
    }

    pub fn by_stream(&self) -> BTreeMap<i64, u64> {
        let mut streams = BTreeMap::new();
        for link in &self.taken {
            *streams.entry(link.stream).or_default() += 1;
        }
        streams
    }
}
