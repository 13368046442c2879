//! Decides which states of a source retention may remove. Pure: no I/O, no SQL, no clock.
//!
//! **Expired states.** A state is expired once it is beyond the age, the count or the size that the operator
//! set. An expired state is removed unless something holds it: a plugin that has yet to finish it, a dead
//! letter that could be replayed, or a watch that could resume before it.
//!
//! **From the front of each chain.** A state of an object is removed only after all earlier states of that
//! object. So the remaining chain has no hole, and only its new first state has to be stored anew.
//!
//! **Past cursors**, if the operator allows it, states that a plugin may be working on stay, but later states
//! may be removed. The first remaining state after such a hole follows the last state before it, and the hole
//! is recorded as a gap.
//!
//! **Never the newest.** The newest state of an existing object stays, with all states journaled after it.
//! The journal knows an ended object as long as it has the object's newest state. So that state is removed
//! together with all states after it, and the object with them.

#[cfg(test)]
mod model_tests;

use std::collections::{HashMap, HashSet};

use kubewitness_core::Seq;
use kubewitness_core::config::RetentionSpec;
use kubewitness_core::limits;
use kubewitness_core::ports::PluginProgress;

use crate::store::rows::SEGMENT;
use crate::store::rows::removal::{ObjectEnd, SegmentTally, StateLink};

/// The most states after its saved progress that a plugin may have read: the content of its lanes, the states
/// that it reads before it saves, and the read in progress.
pub(crate) const IN_HAND: u64 =
    (limits::LANE_WINDOW + limits::LANE_DEFERRED + limits::READ_AHEAD + 1024) as u64;

/// The most states that one transaction removes. Its commit takes a few milliseconds, for which appends wait.
pub(crate) const BATCH: usize = 256;

/// How far in the future a state's time may be. A later time was stamped while the clock was wrong, so it
/// does not show the state's age.
const AHEAD_MS: u64 = 60 * 60 * 1000;

/// The limits of a source at one moment.
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

/// The segment in which a limit is reached. Of this segment, the newest states stay up to `left` (a count or
/// bytes); all earlier segments are beyond the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SegmentEdge {
    segment: u64,
    left: u64,
}

/// The limits of a source, translated into segments.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RetentionCut {
    before_ms: Option<u64>,
    /// A later time of a state counts as unknown.
    known_ms: u64,
    /// Before this segment, states with an unknown time are too old, because later states are.
    aged_below: u64,
    count: Option<SegmentEdge>,
    bytes: Option<SegmentEdge>,
}

impl RetentionCut {
    /// `tallies` must be in order.
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

    /// The last segment that can have states beyond the count or the size.
    fn last_segment(&self) -> Option<u64> {
        self.count.iter().chain(&self.bytes).map(|edge| edge.segment).max()
    }

    /// Marks the expired states of a segment. `states` are all states of the source in it, in order.
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

    /// Whether a state is expired whatever else is in its segment.
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

    /// Whether the ages of all these states are unknown, so that only later states show them.
    pub fn is_timeless(&self, states: &[StateLink]) -> bool {
        self.before_ms.is_some() && !states.is_empty() && !states.iter().any(|link| self.has_time(link))
    }

    /// Notes that this segment has states beyond the age.
    pub fn note_aged_states(&mut self, segment: u64, states: &[StateLink]) {
        if states.iter().any(|link| self.has_time(link) && self.is_old(segment, link)) {
            self.aged_below = self.aged_below.max(segment);
        }
    }

    /// The newest known time of an expired state; 0 if there is none. Under a limit by count or size, rows
    /// that have a time but no position are removed up to this time.
    pub fn newest_expired(&self, states: &[StateLink], expired: &[bool]) -> u64 {
        let expired = states.iter().zip(expired).filter(|(link, expired)| **expired && self.has_time(link));
        expired.map(|(link, _)| link.observed_ms).max().unwrap_or_default()
    }

    /// Whether the next segment has to be examined, given which states of this one are expired. States are
    /// observed nearly in the order of their positions.
    pub fn needs_later_segment(&self, segment: u64, states: &[StateLink], expired: &[bool]) -> bool {
        let by_figure = self.last_segment().is_some_and(|through| segment < through);
        let by_age = self.before_ms.is_some() && expired.iter().any(|expired| *expired);
        by_figure || by_age || self.is_timeless(states)
    }
}

/// A range of a source's positions that a plugin has yet to finish, or may be working on.
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

/// How long a removed plugin still holds the states that it has not finished. A plugin that was removed by
/// mistake continues without a gap if it comes back within this time.
pub(crate) const RETIRED_MS: u64 = 24 * 60 * 60 * 1000;

/// Whether a plugin was removed so long ago that it holds nothing. It works on nothing, and can't return
/// without ending its retirement.
pub(crate) fn is_gone(progress: &PluginProgress, now_ms: u64) -> bool {
    progress.retired_ms.is_some_and(|retired| retired.saturating_add(RETIRED_MS) <= now_ms)
}

/// The states of a source that a plugin holds. If `in_hand` is given, unfinished states may be removed, and
/// the plugin holds only as many as it may have read.
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
    let most = in_hand.map_or(Seq::MAX, |in_hand| position_beyond(read, tallies, in_hand));
    // A progress without named starts is older than their introduction. The plugin may want every source.
    let everything = [(progress.start, Seq::MAX)];
    let named = progress.sources.iter().filter(|start| &*start.source == source);
    let named: Vec<_> = named.map(|start| (start.after, start.until.unwrap_or(Seq::MAX))).collect();
    let is_unnamed = progress.sources.is_empty() && !progress.is_unstarted;
    let ranges = if is_unnamed { &everything[..] } else { &named };
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

/// A position with at least `many` states between `read` and itself.
fn position_beyond(read: Seq, tallies: &[SegmentTally], many: u64) -> Seq {
    let mut left = many;
    // The states in the segment of `read` may all be before it, so they don't count.
    for tally in tallies.iter().filter(|tally| tally.segment > read / SEGMENT) {
        match left.checked_sub(tally.states) {
            Some(rest) => left = rest,
            None => return (tally.segment + 1) * SEGMENT - 1,
        }
    }
    Seq::MAX
}

/// The states of one object to remove: the first ones of its chain, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RemovableRun {
    pub links: Vec<StateLink>,
    /// The remaining state before them; 0 if there is none.
    pub root: Seq,
    /// The states from this index on are removed together or not at all.
    whole_from: usize,
}

impl RemovableRun {
    /// Whether the object itself is removed with its states.
    pub fn is_all(&self) -> bool {
        self.whole_from < self.links.len()
    }

    /// Truncates the run to `most` states, unless they must be removed together.
    fn shorten_run(&mut self, most: usize) {
        if self.links.len() > most && self.whole_from > 0 {
            self.links.truncate(most.min(self.whole_from));
            self.whole_from = self.links.len();
        }
    }
}

/// Selects the states to remove. `states` are in order. For an ended object, they contain either all states
/// after its newest one, or none. `passes` decides for a remaining state whether later states may be removed.
pub(crate) fn select_runs(
    states: &[StateLink],
    may_go: &[bool],
    passes: impl Fn(Seq) -> bool,
) -> Vec<RemovableRun> {
    let rest = |first: &StateLink| -> Option<Vec<usize>> {
        // The indexes of the object's states from here to its end, if they are complete and all may be
        // removed.
        let remaining = (0..states.len()).filter(|at| {
            let link = &states[*at];
            link.object == first.object && link.seq >= first.seq
        });
        let remaining: Vec<usize> = remaining.collect();
        let is_whole = remaining.windows(2).all(|pair| states[pair[1]].before == states[pair[0]].seq)
            && remaining.last().is_some_and(|last| states[*last].seq == first.end.tail)
            && remaining.iter().all(|at| may_go[*at]);
        is_whole.then_some(remaining)
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
            // The state before it stays, so its object stays.
            false if root != 0 => continue,
            false => match rest(link) {
                Some(rest) => (rest.into_iter().map(|at| states[at].clone()).collect(), true),
                None => continue,
            },
        };
        taken.extend(links.iter().map(|link| link.seq));
        // The end of a removed object ends its run: the next state belongs to a later epoch.
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

/// Takes as many of the runs as fit into one transaction. The others are found again.
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
