//! Which positions are finished, as one number and what lies above it.

use std::collections::BTreeMap;

use crate::ports::Progress;
use crate::state::{LaneKey, Seq};

/// A position that isn't finished.
#[derive(Clone, Copy, Debug)]
pub(super) struct Open {
    pub lane: LaneKey,
    pub observed_ms: u64,
}

/// Everything up to `through` was read; of that, all is finished but what is `open`. Positions
/// that hold no state, or one of a source that isn't subscribed, count as finished.
#[derive(Debug, Default)]
pub(super) struct Positions {
    through: Seq,
    open: BTreeMap<Seq, Open>,
}

impl Positions {
    pub fn new(through: Seq) -> Self {
        Self { through, open: BTreeMap::new() }
    }

    pub fn through(&self) -> Seq {
        self.through
    }

    pub fn read_through(&mut self, seq: Seq) {
        self.through = self.through.max(seq);
    }

    pub fn open(&mut self, seq: Seq, open: Open) {
        self.open.insert(seq, open);
        self.read_through(seq);
    }

    pub fn get(&self, seq: Seq) -> Option<Open> {
        self.open.get(&seq).copied()
    }

    pub fn finish(&mut self, seq: Seq) {
        self.open.remove(&seq);
    }

    pub fn open_count(&self) -> usize {
        self.open.len()
    }

    pub fn oldest(&self) -> Option<Open> {
        self.open.values().next().copied()
    }

    pub fn cursor(&self) -> Seq {
        self.open.keys().next().map_or(self.through, |first| first.saturating_sub(1))
    }

    /// The finished ranges above the cursor.
    pub fn above(&self) -> Vec<(Seq, Seq)> {
        let mut ranges = Vec::new();
        let mut open = self.open.keys().copied();
        let Some(mut before) = open.next() else { return ranges };
        for seq in open.chain([self.through + 1]) {
            if seq > before + 1 {
                ranges.push((before + 1, seq - 1));
            }
            before = seq;
        }
        ranges
    }
}

/// The last position up to which a progress says anything.
pub(super) fn known_through(progress: &Progress) -> Seq {
    progress.above.last().map_or(progress.cursor, |&(_, last)| last.max(progress.cursor))
}

/// The positions between the cursor and the last finished range that aren't finished: what has to
/// be taken up again after a restart before anything newer is read.
pub fn holes(progress: &Progress) -> impl Iterator<Item = Seq> + '_ {
    let starts = std::iter::once(progress.cursor).chain(progress.above.iter().map(|&(_, last)| last));
    starts.zip(&progress.above).flat_map(|(before, &(first, _))| before + 1..first)
}
