//! Tracks which positions are finished: a cursor, and the finished ranges above it.

use std::collections::{BTreeMap, VecDeque};

use crate::ports::PluginProgress;
use crate::state::{LaneKey, Seq};

/// An unfinished position.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenPosition {
    pub lane: LaneKey,
    pub observed_ms: u64,
}

/// Everything up to `through` was read. All of it is finished, except what is `open` or was `left`. Positions
/// that hold no state, or a state of a source without a subscription, count as finished.
#[derive(Debug, Default)]
pub(super) struct PositionTracker {
    through: Seq,
    open: BTreeMap<Seq, OpenPosition>,
    left: DeferredRuns,
    /// Ranges above `through` that were finished before the start. They are not read again.
    ahead: VecDeque<(Seq, Seq)>,
}

/// Runs of positions that were read past. Each has its first and last position, and when its first state was
/// observed, if that is known. Nothing in a run was taken in.
#[derive(Debug, Default)]
pub(super) struct DeferredRuns {
    runs: BTreeMap<Seq, (Seq, u64)>,
    /// The end of the last run, if nothing was taken in after it. The next run that is added continues it.
    goes_on: Option<Seq>,
}

impl DeferredRuns {
    fn add(&mut self, from: Seq, to: Seq, observed_ms: u64) {
        match self.runs.last_entry() {
            Some(mut last) if self.goes_on == Some(last.get().0) || last.get().0 + 1 == from => {
                last.get_mut().0 = to;
            }
            _ => {
                self.runs.insert(from, (to, observed_ms));
            }
        }
        self.goes_on = Some(to);
    }

    /// Notes that something was taken in here.
    fn end_current_run(&mut self) {
        self.goes_on = None;
    }

    fn contains(&self, seq: Seq) -> bool {
        self.runs.range(..=seq).next_back().is_some_and(|(_, (to, _))| seq <= *to)
    }

    /// The first position in a run at or after this one.
    fn next(&self, seq: Seq) -> Option<Seq> {
        if self.contains(seq) {
            return Some(seq);
        }
        self.runs.range(seq..).next().map(|(from, _)| *from)
    }

    fn first_position(&self) -> Option<(Seq, u64)> {
        self.runs.first_key_value().map(|(from, (_, observed_ms))| (*from, *observed_ms))
    }

    /// Removes what lies between two positions.
    fn remove_between(&mut self, from: Seq, end: Seq) -> DeferredRuns {
        let mut lifted = DeferredRuns::default();
        let before = self.runs.range(..from).next_back().filter(|(_, (to, _))| *to >= from);
        let first = before.map_or(from, |(first, _)| *first);
        let touched: Vec<Seq> = self.runs.range(first..=end).map(|(first, _)| *first).collect();
        for first in touched {
            let Some((to, observed_ms)) = self.runs.remove(&first) else { continue };
            if first < from {
                self.runs.insert(first, (from - 1, observed_ms));
            }
            if to > end {
                self.runs.insert(end + 1, (to, observed_ms));
            }
            lifted.runs.insert(first.max(from), (to.min(end), observed_ms));
        }
        lifted
    }
}

/// A stretch of left positions while the lanes go through it again.
#[derive(Debug)]
pub(super) struct DeferredStretch {
    was: DeferredRuns,
    stays: DeferredRuns,
}

impl DeferredStretch {
    pub fn contains(&self, seq: Seq) -> bool {
        self.was.contains(seq)
    }

    pub fn keep_deferred(&mut self, seq: Seq, observed_ms: u64) {
        self.stays.add(seq, seq, observed_ms);
    }

    pub fn end_current_run(&mut self) {
        self.stays.end_current_run();
    }

    /// The number of runs that stay so far.
    pub fn count_kept_runs(&self) -> usize {
        self.stays.runs.len()
    }
}

impl PositionTracker {
    /// Begins from a saved progress. What it calls finished above its cursor is not read again.
    pub fn new(progress: &PluginProgress) -> Self {
        let ahead = progress.above.iter().copied().collect();
        let mut positions = Self { through: progress.cursor, ahead, ..Self::default() };
        positions.advance_to(progress.cursor);
        positions
    }

    pub fn last_read(&self) -> Seq {
        self.through
    }

    fn advance_to(&mut self, seq: Seq) {
        self.through = self.through.max(seq);
        while let Some((_, to)) = self.ahead.front().copied().filter(|(from, _)| *from <= self.through + 1) {
            self.left.end_current_run();
            self.through = self.through.max(to);
            self.ahead.pop_front();
        }
    }

    /// Notes that every position up to here is finished, open or left.
    pub fn read_through(&mut self, seq: Seq) {
        self.advance_to(seq);
    }

    pub fn open(&mut self, seq: Seq, open: OpenPosition) {
        self.end_run_before(seq);
        self.advance_to(seq);
        self.open.insert(seq, open);
    }

    /// Notes a position that was finished when it was read.
    pub fn close(&mut self, seq: Seq) {
        self.end_run_before(seq);
        self.advance_to(seq);
    }

    fn end_run_before(&mut self, seq: Seq) {
        if seq > self.through {
            self.left.end_current_run();
        }
    }

    /// Whether the position was finished before the start, although earlier ones are not yet read.
    pub fn is_ahead(&self, seq: Seq) -> bool {
        let index = self.ahead.partition_point(|(_, to)| *to < seq);
        self.ahead.get(index).is_some_and(|(from, _)| *from <= seq)
    }

    /// Reads past these positions, which come next.
    pub fn defer_positions(&mut self, from: Seq, to: Seq, observed_ms: u64) {
        let mut from = from.max(self.through + 1);
        while let Some((first, last)) = self.ahead.front().copied().filter(|(first, _)| *first <= to) {
            if from < first {
                self.left.add(from, first - 1, observed_ms);
            }
            self.left.end_current_run();
            self.ahead.pop_front();
            self.through = self.through.max(last);
            from = last + 1;
        }
        if from <= to {
            self.left.add(from, to, observed_ms);
        }
        self.advance_to(to);
    }

    pub fn is_left(&self, seq: Seq) -> bool {
        self.left.contains(seq)
    }

    /// The first left position at or after this one.
    pub fn next_left(&self, seq: Seq) -> Option<Seq> {
        self.left.next(seq)
    }

    pub fn first_left(&self) -> Option<Seq> {
        self.left.first_position().map(|(seq, _)| seq)
    }

    /// Whether everything below the reading position was taken in, and nothing above it.
    pub fn is_one_piece(&self) -> bool {
        self.left.runs.is_empty() && self.ahead.is_empty()
    }

    /// The number of runs that were read past.
    pub fn count_deferred_runs(&self) -> usize {
        self.left.runs.len()
    }

    /// Begins to go through a stretch of deferred positions. Positions that no call keeps are deferred no
    /// longer.
    pub fn begin_stretch(&mut self, from: Seq, end: Seq) -> DeferredStretch {
        DeferredStretch { was: self.left.remove_between(from, end), stays: DeferredRuns::default() }
    }

    pub fn end_stretch(&mut self, stretch: DeferredStretch) {
        self.left.runs.extend(stretch.stays.runs);
    }

    pub fn get(&self, seq: Seq) -> Option<OpenPosition> {
        self.open.get(&seq).copied()
    }

    pub fn finish_position(&mut self, seq: Seq) {
        self.open.remove(&seq);
    }

    pub fn open_count(&self) -> usize {
        self.open.len()
    }

    /// When the oldest unfinished position was observed.
    pub fn oldest_ms(&self) -> Option<u64> {
        let open = self.open.first_key_value().map(|(seq, open)| (*seq, open.observed_ms));
        open.into_iter().chain(self.left.first_position()).min().map(|(_, observed_ms)| observed_ms)
    }

    pub fn cursor(&self) -> Seq {
        let open = self.open.keys().next().copied();
        open.into_iter().chain(self.first_left()).min().map_or(self.through, |first| first.saturating_sub(1))
    }

    /// The finished ranges above the cursor.
    pub fn finished_above_cursor(&self) -> Vec<(Seq, Seq)> {
        let mut open = self.open.keys().map(|seq| (*seq, *seq)).peekable();
        let mut left = self.left.runs.iter().map(|(from, (to, _))| (*from, *to)).peekable();
        let mut ranges = Vec::new();
        let mut before: Option<Seq> = None;
        loop {
            let next = match (open.peek(), left.peek()) {
                (Some(one), Some(run)) if one < run => open.next(),
                (_, Some(_)) => left.next(),
                (_, None) => open.next(),
            };
            let (from, to) = next.unwrap_or((self.through + 1, self.through));
            if let Some(before) = before.filter(|before| from > before + 1) {
                ranges.push((before + 1, from - 1));
            }
            if next.is_none() {
                break;
            }
            before = Some(to);
        }
        ranges.extend(&self.ahead);
        ranges
    }
}

/// The unfinished positions up to `newest`, as ranges `(after, through]`.
pub fn unfinished_ranges(progress: &PluginProgress, newest: Seq) -> impl Iterator<Item = (Seq, Seq)> + '_ {
    let starts = std::iter::once(progress.cursor).chain(progress.above.iter().map(|&(_, last)| last));
    let ends = progress.above.iter().map(|&(first, _)| first - 1).chain([newest]);
    starts.zip(ends).filter(|(after, through)| after < through)
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    fn open() -> OpenPosition {
        OpenPosition { lane: LaneKey::default(), observed_ms: 1 }
    }

    #[test]
    fn what_was_left_is_not_finished_until_it_is_gone_through() {
        let mut positions = PositionTracker::default();
        positions.defer_positions(1, 3, 10);
        positions.open(4, open());
        positions.defer_positions(5, 5, 50);
        positions.read_through(6);
        positions.defer_positions(7, 9, 70);
        assert_eq!(
            (positions.cursor(), positions.finished_above_cursor(), positions.count_deferred_runs()),
            (0, vec![], 2)
        );
        positions.finish_position(4);
        assert_eq!(positions.finished_above_cursor(), [(4, 4)]);
        let mut stretch = positions.begin_stretch(2, 6);
        assert!(stretch.contains(2) && stretch.contains(6) && !stretch.contains(1) && !stretch.contains(4));
        stretch.keep_deferred(5, 50);
        positions.end_stretch(stretch);
        assert_eq!((positions.cursor(), positions.finished_above_cursor()), (0, vec![(2, 4), (6, 6)]));
        assert!(
            positions.is_left(1) && positions.is_left(5) && positions.is_left(8) && !positions.is_left(3)
        );
    }

    #[test]
    fn what_was_finished_before_the_start_is_neither_read_nor_left() {
        let progress =
            PluginProgress { cursor: 2, above: vec![(3, 4), (7, 8), (10, 12)], ..PluginProgress::default() };
        let mut positions = PositionTracker::new(&progress);
        assert_eq!(positions.last_read(), 4);
        assert!(positions.is_ahead(8) && !positions.is_ahead(9));
        positions.defer_positions(5, 11, 0);
        assert_eq!((positions.last_read(), positions.cursor()), (12, 4));
        assert_eq!(positions.finished_above_cursor(), [(7, 8), (10, 12)]);
        let ranges: Vec<_> = unfinished_ranges(&progress, 20).collect();
        assert_eq!(ranges, [(4, 6), (8, 9), (12, 20)]);
    }

    proptest! {
        /// The model is a map of single positions. Progress is saved and loaded all the while.
        #[test]
        fn runs_say_what_single_positions_say(steps in proptest::collection::vec((0u8..6, 1u64..6, any::<u64>()), 1..80)) {
            let mut positions = PositionTracker::default();
            // For each unfinished position: whether it is left. A finished position may or may not be part of
            // the run that it lies in.
            let mut model: BTreeMap<Seq, bool> = BTreeMap::new();
            let mut foreign: BTreeSet<Seq> = BTreeSet::new();
            for (step, count, pick) in steps {
                let next = positions.last_read() + 1;
                let any_open = model.iter().filter(|(_, left)| !**left).map(|(seq, _)| *seq).nth(pick as usize % 7);
                match step {
                    0 => {
                        positions.defer_positions(next, next + count, 0);
                        model.extend((next..=next + count).filter(|seq| !positions.is_ahead(*seq)).map(|seq| (seq, true)));
                    }
                    1 => { positions.open(next, open()); model.insert(next, false); }
                    2 => {
                        foreign.extend((next..=next + count).filter(|seq| !positions.is_ahead(*seq)));
                        positions.read_through(next + count);
                    }
                    3 => if let Some(seq) = any_open { positions.finish_position(seq); model.remove(&seq); },
                    4 => {
                        let from = pick % next;
                        let end = (from + count * 3).min(next - 1);
                        let mut stretch = positions.begin_stretch(from, end);
                        for seq in from..=end {
                            let stays = seq % count != 0;
                            match (stretch.contains(seq), stays) {
                                (true, true) => stretch.keep_deferred(seq, 0),
                                (true, false) => { stretch.end_current_run(); positions.close(seq); model.remove(&seq); }
                                (false, _) => stretch.end_current_run(),
                            }
                        }
                        positions.end_stretch(stretch);
                    }
                    _ => {
                        let progress = PluginProgress { cursor: positions.cursor(), above: positions.finished_above_cursor(), ..PluginProgress::default() };
                        let known = progress.above.last().map_or(progress.cursor, |last| last.1);
                        positions = PositionTracker::new(&progress);
                        model.retain(|seq, _| *seq > positions.last_read() && *seq <= known);
                        while positions.last_read() < known {
                            let next = positions.last_read() + 1;
                            let was_open = model.insert(next, false).is_some() || foreign.remove(&next);
                            prop_assert!(was_open, "{} was finished", next);
                            positions.open(next, open());
                        }
                    }
                }
                let expected = model.keys().next().map_or(positions.last_read(), |first| first - 1);
                prop_assert!(positions.cursor() <= expected);
                for seq in (positions.cursor() + 1..=positions.last_read()).filter(|seq| !foreign.contains(seq)) {
                    let above = positions.finished_above_cursor().iter().any(|(from, to)| (from..=to).contains(&&seq));
                    prop_assert_eq!(above, !model.contains_key(&seq), "{}", seq);
                    prop_assert_eq!(positions.is_left(seq), model.get(&seq).copied().unwrap_or(false), "{}", seq);
                }
            }
        }
    }
}
