//! Decides which states of a source may go. Pure: no I/O, no SQL, no clock.
//!
//! **Which states.** A state is expired once it is beyond the age, the count or the size that the
//! operator set. It goes if nothing holds it: no plugin that has yet to finish it, no dead letter
//! that could be replayed, no watch that could be resumed before it.
//!
//! **From the front of each chain.** Of one object, a state goes only after all that were
//! journaled before it: what is kept of an object has no hole, and only one state of it, the
//! first that stays, has to be stored anew.
//!
//! **Beyond cursors** the states stay that a plugin may be working on, and later states go. The first state
//! that stays after such a hole follows the last state before it, and the hole is recorded as a gap.
//!
//! **Never the newest.** The newest state of an existing object stays, with all states journaled after it. An
//! ended object is known as long as its newest state is kept. So that state goes together with all states
//! after it, and the object goes with them.

#[cfg(test)]
mod model_tests;

use std::collections::{HashMap, HashSet};

use kubewitness_core::Seq;
use kubewitness_core::config::RetentionSpec;
use kubewitness_core::limits;
use kubewitness_core::ports::PluginProgress;

use crate::store::rows::SEGMENT;
use crate::store::rows::removal::{ObjectEnd, SegmentTally, StateLink};

/// States behind those that a plugin saved as finished that it may have read: what its lanes hold,
/// what it may read before it saves, and the reading on its way. It has never seen what is further.
pub(crate) const IN_HAND: u64 =
    (limits::LANE_WINDOW + limits::LANE_DEFERRED + limits::READ_AHEAD + 1024) as u64;

/// States of one transaction. A commit of so many takes a few milliseconds, for which appends wait.
pub(crate) const BATCH: usize = 256;

/// How far a state's time may lie in the future. A later one was stamped while the clock was wrong, and says nothing
/// about the state's age.
const AHEAD_MS: u64 = 60 * 60 * 1000;

/// A source's bounds at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RetentionBounds {
    pub before_ms: Option<u64>,
    pub now_ms: u64,
    pub count: Option<u64>,
    pub bytes: Option<u64>,
}

impl RetentionBounds {
    pub fn of(spec: &RetentionSpec, now_ms: u64) -> Self {
        let age = spec.age.map(|age| u64::try_from(age.0.as_millis()).unwrap_or(u64::MAX));
        Self {
            before_ms: age.map(|age| now_ms.saturating_sub(age)),
            now_ms,
            count: spec.count,
            bytes: spec.size.map(|size| size.0),
        }
    }
}

/// In this segment only so much of the newest stays; below it, nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SegmentEdge {
    segment: u64,
    left: u64,
}

/// Where a source's bounds lie.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RetentionCut {
    before_ms: Option<u64>,
    /// States with a later time have no known time.
    known_ms: u64,
    /// States without a known time before this segment are too old, because later states are.
    aged_below: u64,
    count: Option<SegmentEdge>,
    bytes: Option<SegmentEdge>,
}

impl RetentionCut {
    /// `tallies` in order.
    pub fn of(bounds: RetentionBounds, tallies: &[SegmentTally]) -> Self {
        let edge = |bound: Option<u64>, figure: fn(&SegmentTally) -> u64| {
            let mut left = bound?;
            for tally in tallies.iter().rev() {
                match left.checked_sub(figure(tally)) {
                    Some(rest) => left = rest,
                    None => return Some(SegmentEdge { segment: tally.segment, left }),
                }
            }
            None
        };
        Self {
            before_ms: bounds.before_ms,
            known_ms: bounds.now_ms.saturating_add(AHEAD_MS),
            aged_below: 0,
            count: edge(bounds.count, |tally| tally.states),
            bytes: edge(bounds.bytes, |tally| tally.bytes),
        }
    }

    /// The last segment in which something can be beyond the count or the size.
    fn last_segment(&self) -> Option<u64> {
        self.count.iter().chain(&self.bytes).map(|edge| edge.segment).max()
    }

    /// Which of a segment's states of the source are expired; `states` are all of them, in order.
    pub fn expired_states(&self, segment: u64, states: &[StateLink]) -> Vec<bool> {
        let mut expired: Vec<bool> = states.iter().map(|link| self.is_old(segment, link)).collect();
        // A state without a known time is at least as old as the states after it.
        let mut is_next_old = false;
        for (link, expired) in states.iter().zip(&mut expired).rev() {
            *expired |= is_next_old && !self.has_time(link);
            is_next_old = *expired;
        }
        for (edge, is_count) in [(self.count, true), (self.bytes, false)] {
            let Some(edge) = edge.filter(|edge| segment <= edge.segment) else { continue };
            let mut left = if segment == edge.segment { edge.left } else { 0 };
            for (link, expired) in states.iter().zip(&mut expired).rev() {
                let figure = if is_count { 1 } else { link.bytes };
                match left.checked_sub(figure) {
                    Some(rest) => left = rest,
                    None => {
                        left = 0;
                        *expired = true;
                    }
                }
            }
        }
        expired
    }

    /// Whether a state is expired whatever else lies in its segment.
    pub fn is_certain(&self, segment: u64, link: &StateLink) -> bool {
        let mut edges = self.count.iter().chain(&self.bytes);
        self.is_old(segment, link) || edges.any(|edge| segment < edge.segment)
    }

    fn has_time(&self, link: &StateLink) -> bool {
        link.observed_ms <= self.known_ms
    }

    fn is_old(&self, segment: u64, link: &StateLink) -> bool {
        let is_old =
            |before| link.observed_ms < before || (!self.has_time(link) && segment < self.aged_below);
        self.before_ms.is_some_and(is_old)
    }

    /// Whether the age of none of these states is known, so that only later ones tell it.
    pub fn is_timeless(&self, states: &[StateLink]) -> bool {
        self.before_ms.is_some() && !states.is_empty() && !states.iter().any(|link| self.has_time(link))
    }

    /// Notes that states of this segment are beyond the age.
    pub fn note_aged_states(&mut self, segment: u64, states: &[StateLink]) {
        if states.iter().any(|link| self.has_time(link) && self.is_old(segment, link)) {
            self.aged_below = self.aged_below.max(segment);
        }
    }

    /// The newest known time among the states that are expired; 0 for none. A count or a size bounds by it what has a time
    /// and no place among the states.
    pub fn newest_expired(&self, states: &[StateLink], expired: &[bool]) -> u64 {
        let expired = states.iter().zip(expired).filter(|(link, expired)| **expired && self.has_time(link));
        expired.map(|(link, _)| link.observed_ms).max().unwrap_or_default()
    }

    /// Whether a later segment than this one, of which these states are expired, has to be looked
    /// at. States are observed nearly in the order of their positions.
    pub fn needs_later_segment(&self, segment: u64, states: &[StateLink], expired: &[bool]) -> bool {
        let by_figure = self.last_segment().is_some_and(|through| segment < through);
        let by_age = self.before_ms.is_some() && expired.iter().any(|expired| *expired);
        by_figure || by_age || self.is_timeless(states)
    }
}

/// Positions of one source that a plugin has yet to finish, or may have in its hands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PluginHold {
    pub plugin: String,
    pub after: Seq,
    pub through: Seq,
}

impl PluginHold {
    pub fn covers(&self, seq: Seq) -> bool {
        seq > self.after && seq <= self.through
    }
}

/// A plugin that was taken out holds what it has not finished for so long, so that what was taken out
/// by mistake goes on without a hole; after that, nothing.
pub(crate) const RETIRED_MS: u64 = 24 * 60 * 60 * 1000;

/// A plugin that was taken out long ago holds nothing more. It has nothing in its hands, and takes up
/// nothing without taking this back.
pub(crate) fn is_gone(progress: &PluginProgress, now_ms: u64) -> bool {
    progress.retired_ms.is_some_and(|retired| retired.saturating_add(RETIRED_MS) <= now_ms)
}

/// The states of a source that a plugin holds. `in_hand` is given where states may go that it has not
/// finished: then it holds only what it may have read.
pub(crate) fn holds_of_plugin(
    plugin: &str,
    progress: &PluginProgress,
    source: &str,
    tallies: &[SegmentTally],
    in_hand: Option<u64>,
    now_ms: u64,
) -> Vec<PluginHold> {
    if is_gone(progress, now_ms) {
        return Vec::new();
    }
    let read = progress.above.last().map_or(progress.cursor, |last| last.1.max(progress.cursor));
    let most = in_hand.map_or(Seq::MAX, |in_hand| after_so_many(read, tallies, in_hand));
    // One without named starts is of the time before they were kept: it may want anything.
    let all = [(progress.start, Seq::MAX)];
    let named = progress.sources.iter().filter(|start| &*start.source == source);
    let named: Vec<_> = named.map(|start| (start.after, start.until.unwrap_or(Seq::MAX))).collect();
    let is_unnamed = progress.sources.is_empty() && !progress.is_unstarted;
    let ranges = if is_unnamed { &all[..] } else { &named };
    ranges
        .iter()
        .map(|(after, until)| PluginHold {
            plugin: plugin.to_owned(),
            after: progress.cursor.max(*after),
            through: most.min(*until),
        })
        .filter(|hold| hold.after < hold.through)
        .collect()
}

/// A position after which lie all but so many of the states behind `read`, or later.
fn after_so_many(read: Seq, tallies: &[SegmentTally], many: u64) -> Seq {
    let mut left = many;
    // The segment of `read` itself may lie before it: it does not count.
    for tally in tallies.iter().filter(|tally| tally.segment > read / SEGMENT) {
        match left.checked_sub(tally.states) {
            Some(rest) => left = rest,
            None => return (tally.segment + 1) * SEGMENT - 1,
        }
    }
    Seq::MAX
}

/// The states that go of one object: the first of what is kept of it, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RemovableRun {
    pub links: Vec<StateLink>,
    /// The state before them, which stays; 0 if there is none.
    pub root: Seq,
    /// From here on they go together or not at all.
    whole_from: usize,
}

impl RemovableRun {
    /// Whether the object goes with them.
    pub fn is_all(&self) -> bool {
        self.whole_from < self.links.len()
    }

    /// Leaves no more than so many, unless they go together.
    fn shorten_run(&mut self, most: usize) {
        if self.links.len() > most && self.whole_from > 0 {
            self.links.truncate(most.min(self.whole_from));
            self.whole_from = self.links.len();
        }
    }
}

/// Decides which of these states go. They are in order. Of an object that has ended they hold all or none
/// behind its newest state. `passes` says, for a state that stays, whether later states may go.
pub(crate) fn select_runs(
    states: &[StateLink],
    may_go: &[bool],
    passes: impl Fn(Seq) -> bool,
) -> Vec<RemovableRun> {
    let rest = |first: &StateLink| -> Option<Vec<usize>> {
        // All of the object's from here on, without a hole and up to its end.
        let of_it = (0..states.len()).filter(|at| {
            let link = &states[*at];
            link.object == first.object && link.seq >= first.seq
        });
        let of_it: Vec<usize> = of_it.collect();
        let is_whole = of_it.windows(2).all(|pair| states[pair[1]].before == states[pair[0]].seq)
            && of_it.last().is_some_and(|last| states[*last].seq == first.end.tail)
            && of_it.iter().all(|at| may_go[*at]);
        is_whole.then_some(of_it)
    };
    let mut runs: Vec<RemovableRun> = Vec::new();
    let mut by_end: HashMap<Seq, usize> = HashMap::new();
    let mut taken: HashSet<Seq> = HashSet::new();
    for (at, link) in states.iter().enumerate() {
        let follows = link.before == 0 || taken.contains(&link.before);
        if !may_go[at] || taken.contains(&link.seq) || !(follows || passes(link.before)) {
            continue;
        }
        let run = by_end.remove(&link.before).filter(|run| !runs[*run].is_all());
        let root = match run {
            Some(run) => runs[run].root,
            None if follows => 0,
            None => link.before,
        };
        let ObjectEnd { live, newest, .. } = link.end;
        let (links, is_whole) = match live || (newest != 0 && link.seq < newest) {
            true if link.seq < newest => (vec![link.clone()], false),
            true => continue,
            // What it follows stays, and the object with it.
            false if root != 0 => continue,
            false => match rest(link) {
                Some(rest) => (rest.into_iter().map(|at| states[at].clone()).collect(), true),
                None => continue,
            },
        };
        taken.extend(links.iter().map(|link| link.seq));
        // An object that goes ends its run: what follows it is of a later epoch.
        let run = match run {
            Some(run) => run,
            None => {
                runs.push(RemovableRun { links: Vec::new(), root, whole_from: 0 });
                runs.len() - 1
            }
        };
        if let Some(last) = links.last() {
            by_end.insert(last.seq, run);
        }
        let run = &mut runs[run];
        if !is_whole {
            run.whole_from += links.len();
        }
        run.links.extend(links);
    }
    runs
}

/// As many of the runs as one transaction may take; the others are found again.
pub(crate) fn fit_in_transaction(runs: Vec<RemovableRun>, most: usize) -> Vec<RemovableRun> {
    let mut left = most;
    let mut chosen = Vec::new();
    for mut run in runs {
        run.shorten_run(left.max(1));
        left = left.saturating_sub(run.links.len());
        chosen.push(run);
        if left == 0 {
            break;
        }
    }
    chosen
}
