//! The progress of a plugin through the states of its sources.
//!
//! A plugin has one cursor for all of its sources. A source that is added later may begin before that cursor.
//! Then the cursor moves back to the start of the new source, and [`FormerCursor`] records what was finished
//! by then. A state between the two positions is delivered if it belongs to the new source or was not
//! finished before. The order within an object stays the order of positions. A second cursor for the new
//! source was rejected: receipts, retention and `verify` rely on one position up to which everything is
//! finished.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::state::{Seq, State};

/// The progress of a plugin. It is written in one transaction.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PluginProgress {
    /// Everything after this position belongs to the subscription.
    pub start: Seq,
    /// Every state up to here is finished (delivered, filtered or dead).
    pub cursor: Seq,
    /// Finished states above the cursor, as inclusive ranges in order.
    pub above: Vec<(Seq, Seq)>,
    pub delivered: u64,
    /// States that the subscription does not want, and states that `mode: latest` replaced.
    pub filtered: u64,
    /// The filtered states that a newer state of their object replaced.
    #[serde(default)]
    pub superseded: u64,
    /// Dead letters that are parked now, and those that an operator dropped.
    pub dead: u64,
    /// Dropped dead letters that retention has removed together with their states. The journal counts them,
    /// and no save changes that.
    #[serde(skip)]
    pub removed_letters: u64,
    /// The start of each subscribed source. It is saved, so that `now` means the same moment after a restart.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<SourceStart>,
    /// The last position of each source's backfill, which is delivered at its own rate. It is saved, so that
    /// it means the same moment after a restart.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pasts: Vec<(Arc<str>, Seq)>,
    /// Earlier positions of the plugin, one for each time that a source with an earlier start was added. Each
    /// stays until the cursor reaches it again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub former_cursors: Vec<FormerCursor>,
    /// When the plugin was found to be removed. The next start of the plugin first clears this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retired_ms: Option<u64>,
    /// The plugin waits for its first start, which decides anew where its sources begin. Until then the journal keeps
    /// the states of the sources that are named here.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_unstarted: bool,
}

impl PluginProgress {
    /// Whether the state of this source at this position is delivered, filtered or dead.
    pub fn has_finished(&self, source: &str, seq: Seq) -> bool {
        is_within(self.cursor, &self.above, seq)
            || self.former_cursors.iter().any(|former| former.has_finished(source, seq))
    }

    /// The last position that was read since the cursor last moved back.
    pub fn read_through(&self) -> Seq {
        last_of(self.cursor, &self.above)
    }

    /// The last position that was ever read.
    pub fn furthest_position(&self) -> Seq {
        self.former_cursors.iter().map(FormerCursor::last_finished).fold(self.read_through(), Seq::max)
    }

    /// The furthest cursor that there ever was. Positions above it may be finished.
    pub fn furthest_cursor(&self) -> Seq {
        self.former_cursors.iter().map(|former| former.cursor).fold(self.cursor, Seq::max)
    }

    /// Whether new states of this source belong to the subscription.
    pub fn is_subscribed(&self, source: &str) -> bool {
        self.sources.iter().any(|start| &*start.source == source && start.until.is_none())
    }

    /// Ends the subscription to sources for which `kept` is false, each at its last position that was read. A
    /// source of which nothing was read leaves no entry.
    pub fn end_sources(&mut self, kept: impl Fn(&str) -> bool) {
        let read_through = self.read_through();
        let former_cursors = &self.former_cursors;
        for start in self.sources.iter_mut().filter(|start| start.until.is_none() && !kept(&start.source)) {
            let before =
                former_cursors.iter().filter(|former| former.concerns_source(&start.source, start.after + 1));
            start.until = Some(before.map(FormerCursor::last_finished).fold(read_through, Seq::max));
        }
        self.sources.retain(|start| start.until.is_none_or(|until| until > start.after));
    }

    /// The earliest possible start of a source: what an earlier subscription to it has read is not read
    /// again.
    pub fn first_beginning(&self, source: &str) -> Seq {
        let ended = self.sources.iter().filter(|start| &*start.source == source);
        ended.filter_map(|start| start.until).max().unwrap_or(0)
    }

    /// Marks everything after a position as unfinished, except single positions such as those of dead
    /// letters. These states are delivered again.
    pub fn take_back(&mut self, after: Seq, except: &BTreeSet<Seq>) {
        let after = after.max(self.start);
        let finished: Vec<Seq> =
            except.iter().copied().filter(|seq| self.is_finished_for_any(*seq)).collect();
        self.cursor = self.cursor.min(after);
        clip_after(&mut self.above, after);
        for seq in finished.into_iter().filter(|seq| *seq > after) {
            match self.above.last_mut() {
                Some((_, last)) if *last + 1 == seq => *last = seq,
                _ => self.above.push((seq, seq)),
            }
        }
        for former in &mut self.former_cursors {
            former.cursor = former.cursor.min(after);
            clip_after(&mut former.above, after);
        }
        let cursor = self.cursor;
        self.former_cursors.retain(|former| former.last_finished() > cursor);
    }

    /// Whether the position is finished for any source.
    fn is_finished_for_any(&self, seq: Seq) -> bool {
        let former = |former: &FormerCursor| is_within(former.cursor, &former.above, seq);
        is_within(self.cursor, &self.above, seq) || self.former_cursors.iter().any(former)
    }

    /// Subscribes to more sources, each after a position. If one of them begins before the positions that
    /// were read, the cursor moves back to it.
    pub fn add_sources(&mut self, added: Vec<(Arc<str>, Seq)>) {
        self.sources.extend(added.iter().map(|(source, after)| SourceStart {
            source: Arc::clone(source),
            after: *after,
            until: None,
        }));
        for former in &mut self.former_cursors {
            let last = former.last_finished();
            former.added.extend(added.iter().filter(|(_, after)| *after < last).cloned());
        }
        let first = added.iter().map(|(_, after)| *after).min();
        if let Some(first) = first.filter(|first| *first < self.read_through()) {
            let (cursor, above) = (self.cursor, std::mem::take(&mut self.above));
            self.former_cursors.push(FormerCursor { cursor, above, added });
            self.cursor = cursor.min(first);
        }
    }
}

/// The position up to which receipts are no longer needed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DurableCursor {
    /// Every state up to here is finished, and the journal has recorded that, except for states that it owes
    /// the plugin.
    pub cursor: Seq,
    /// The first state below the cursor that may have been applied, and that the journal does not know to be
    /// finished. States in flight are not among these, nor are the newest that are finished: the newest
    /// commits keep their receipts.
    pub receipts_from: Option<Seq>,
}

impl From<Seq> for DurableCursor {
    fn from(cursor: Seq) -> Self {
        Self { cursor, receipts_from: None }
    }
}

/// A subscription to a source: its states after this position belong to it. An unsubscribed source keeps its
/// end, so that its delivered states stay accounted for. If it is subscribed again, it gets a second entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceStart {
    pub source: Arc<str>,
    pub after: Seq,
    /// The last position that belongs to the subscription; `None` while the source is subscribed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Seq>,
}

impl SourceStart {
    pub fn covers_state(&self, state: &State) -> bool {
        self.source == state.source
            && state.seq > self.after
            && self.until.is_none_or(|until| state.seq <= until)
    }
}

/// The progress of a plugin when its cursor moved back for added sources.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FormerCursor {
    pub cursor: Seq,
    /// Finished ranges above that cursor, inclusive and in order.
    pub above: Vec<(Seq, Seq)>,
    /// Sources that were added then or later. States of a source after its position were not finished.
    pub added: Vec<(Arc<str>, Seq)>,
}

impl FormerCursor {
    /// The last position that was finished.
    pub fn last_finished(&self) -> Seq {
        last_of(self.cursor, &self.above)
    }

    /// Whether this source was subscribed at this position when the cursor moved back.
    fn concerns_source(&self, source: &str, seq: Seq) -> bool {
        !self.added.iter().any(|(added, after)| **added == *source && seq > *after)
    }

    pub fn has_finished(&self, source: &str, seq: Seq) -> bool {
        seq <= self.last_finished()
            && is_within(self.cursor, &self.above, seq)
            && self.concerns_source(source, seq)
    }

    /// The parts of `(after, through]` in which states of this source were not finished, as ranges of the
    /// same form.
    pub fn unfinished_parts(&self, source: &str, (after, through): (Seq, Seq)) -> Vec<(Seq, Seq)> {
        if after >= self.last_finished() {
            return vec![(after, through)];
        }
        let added = self.added.iter().filter(|(added, _)| **added == *source);
        let added = added.map(|(_, after)| *after).min().unwrap_or(Seq::MAX);
        let starts = std::iter::once(self.cursor).chain(self.above.iter().map(|(_, last)| *last));
        let ends = self.above.iter().map(|(first, _)| first - 1).chain([Seq::MAX]);
        let holes = starts.zip(ends).map(|(start, end)| (start.min(added), end.min(added)));
        let clipped =
            holes.chain([(added, Seq::MAX)]).map(|(start, end)| (start.max(after), end.min(through)));
        clipped.filter(|(start, end)| start < end).collect()
    }
}

/// Removes everything after a position.
fn clip_after(above: &mut Vec<(Seq, Seq)>, after: Seq) {
    above.retain(|(first, _)| *first <= after);
    if let Some((_, last)) = above.last_mut() {
        *last = after.min(*last);
    }
}

fn is_within(cursor: Seq, above: &[(Seq, Seq)], seq: Seq) -> bool {
    let next = above.partition_point(|(_, last)| *last < seq);
    seq <= cursor || above.get(next).is_some_and(|(first, _)| *first <= seq)
}

fn last_of(cursor: Seq, above: &[(Seq, Seq)]) -> Seq {
    above.last().map_or(cursor, |(_, last)| cursor.max(*last))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_position_is_finished_up_to_the_cursor_and_in_the_ranges_above_it() {
        let progress = PluginProgress { cursor: 2, above: vec![(4, 5), (8, 8)], ..PluginProgress::default() };
        let finished: Vec<_> = (0..=9).filter(|seq| progress.has_finished("jobs", *seq)).collect();
        assert_eq!(finished, [0, 1, 2, 4, 5, 8]);
    }

    #[test]
    fn a_source_that_begins_before_the_cursor_takes_it_back_and_what_was_finished_stays_so() {
        let start = SourceStart { source: "jobs".into(), after: 0, until: None };
        let mut progress = PluginProgress {
            cursor: 20,
            above: vec![(25, 30)],
            sources: vec![start],
            ..PluginProgress::default()
        };
        progress.add_sources(vec![("pods".into(), 10), ("nodes".into(), 50)]);
        assert_eq!((progress.cursor, &*progress.above, progress.furthest_position()), (10, &[][..], 30));
        let finished = |source: &str| (1..=60).filter(|seq| progress.has_finished(source, *seq)).count();
        assert_eq!((finished("jobs"), finished("pods"), finished("nodes")), (26, 10, 26));
        let former = &progress.former_cursors[0];
        assert_eq!(former.unfinished_parts("jobs", (0, 60)), [(20, 24), (30, 60)]);
        assert_eq!(former.unfinished_parts("pods", (0, 60)), [(10, 60)]);
    }

    #[test]
    fn a_source_that_begins_behind_what_was_read_moves_nothing() {
        let mut progress = PluginProgress { cursor: 20, above: vec![(25, 30)], ..PluginProgress::default() };
        progress.add_sources(vec![("pods".into(), 30)]);
        assert_eq!((progress.cursor, progress.former_cursors.len()), (20, 0));
        progress.add_sources(vec![("nodes".into(), 29)]);
        assert_eq!((progress.cursor, progress.former_cursors.len()), (20, 1));
    }

    #[test]
    fn a_source_that_ends_while_the_cursor_is_back_ends_at_what_was_read_of_it() {
        let mut progress = PluginProgress { cursor: 30, ..PluginProgress::default() };
        progress.sources.push(SourceStart { source: "jobs".into(), after: 0, until: None });
        progress.add_sources(vec![("pods".into(), 0)]);
        progress.cursor = 12;
        progress.end_sources(|_| false);
        let ends: Vec<_> = progress.sources.iter().map(|start| start.until).collect();
        assert_eq!(ends, [Some(30), Some(12)]);
        assert_eq!(progress.first_beginning("pods"), 12);
    }

    #[test]
    fn what_is_taken_back_lies_behind_a_position_and_leaves_single_positions_out() {
        let mut progress = PluginProgress { cursor: 20, above: vec![(25, 30)], ..PluginProgress::default() };
        progress.add_sources(vec![("pods".into(), 10)]);
        progress.take_back(15, &BTreeSet::from([5, 17, 18, 26, 40]));
        assert_eq!((progress.cursor, &*progress.above), (10, &[(17, 18), (26, 26)][..]));
        let finished: Vec<_> = (1..=40).filter(|seq| progress.has_finished("jobs", *seq)).collect();
        let expected: Vec<_> = (1..=15).chain([17, 18, 26]).collect();
        assert_eq!(finished, expected);
        progress.take_back(0, &BTreeSet::new());
        assert_eq!((progress.furthest_position(), progress.former_cursors.len()), (0, 0));
    }

    const SOURCES: [&str; 3] = ["a", "b", "c"];

    #[derive(Clone, Debug)]
    enum ProgressStep {
        /// Finishes everything up to this position, and a range above it.
        Read(Seq, Seq, Seq),
        Add(usize, Seq),
        End(usize),
    }

    fn step() -> impl Strategy<Value = ProgressStep> {
        prop_oneof![
            4 => (0u64..12, 1u64..6, 0u64..6).prop_map(|(on, hole, length)| ProgressStep::Read(on, hole, length)),
            2 => (0usize..3, 0u64..60).prop_map(|(source, after)| ProgressStep::Add(source, after)),
            1 => (0usize..3).prop_map(ProgressStep::End),
        ]
    }

    proptest! {
        /// The model is a set of finished states, identified by source and position.
        #[test]
        fn no_state_is_finished_before_it_was_passed_and_none_twice(
            steps in proptest::collection::vec(step(), 1..40),
        ) {
            let mut progress = PluginProgress::default();
            let mut model: BTreeSet<(usize, Seq)> = BTreeSet::new();
            let subscribed = |progress: &PluginProgress, source: usize, seq: Seq| {
                let mut starts = progress.sources.iter().filter(|start| &*start.source == SOURCES[source]);
                starts.any(|start| seq > start.after && start.until.is_none_or(|until| seq <= until))
            };
            for step in steps {
                match step {
                    ProgressStep::Read(on, hole, length) => {
                        let cursor = progress.read_through() + on;
                        let above = (cursor + 1 + hole, cursor + 1 + hole + length);
                        let passed = (progress.cursor + 1..=cursor).chain(above.0..=above.1);
                        for (seq, source) in passed.flat_map(|seq| (0..3).map(move |source| (seq, source))) {
                            let is_done = progress.has_finished(SOURCES[source], seq);
                            if subscribed(&progress, source, seq) && !is_done {
                                prop_assert!(model.insert((source, seq)), "{} at {} twice", source, seq);
                            }
                        }
                        (progress.cursor, progress.above) = (cursor, vec![above]);
                        progress.former_cursors.retain(|former| former.last_finished() > cursor);
                    }
                    ProgressStep::Add(source, after) if !progress.is_subscribed(SOURCES[source]) => {
                        let after = after.max(progress.first_beginning(SOURCES[source]));
                        progress.add_sources(vec![(SOURCES[source].into(), after)]);
                    }
                    ProgressStep::End(source) => progress.end_sources(|name| name != SOURCES[source]),
                    ProgressStep::Add(..) => {}
                }
                let end = progress.furthest_position() + 1;
                for (source, name) in SOURCES.iter().enumerate() {
                    for seq in 1..=end {
                        if subscribed(&progress, source, seq) {
                            let is_done = progress.has_finished(name, seq);
                            prop_assert_eq!(is_done, model.contains(&(source, seq)), "{} at {}", name, seq);
                        }
                    }
                    for former in &progress.former_cursors {
                        let open = former.unfinished_parts(name, (3, end));
                        let is_open = |seq: Seq| open.iter().any(|(start, last)| seq > *start && seq <= *last);
                        prop_assert!(open.is_sorted());
                        for seq in 4..=end {
                            prop_assert_eq!(is_open(seq), !former.has_finished(name, seq), "{} at {}", name, seq);
                        }
                    }
                }
            }
        }
    }
}
