//! Random histories, bounds and holds, compared with a model that reads everything at once.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

/// A state of the model: its object, its age and whether anything holds it.
#[derive(Clone, Debug)]
struct ModelState {
    object: usize,
    expired: bool,
    held: bool,
}

#[derive(Clone, Debug)]
struct RetentionWorld {
    states: Vec<ModelState>,
    /// By object: live or not, and which of its states (counted from its last) is the newest.
    objects: Vec<(bool, usize)>,
}

const OBJECTS: usize = 4;

fn world() -> impl Strategy<Value = RetentionWorld> {
    let state = (0..OBJECTS, any::<bool>(), 0..6u8).prop_map(|(object, expired, held)| ModelState {
        object,
        expired,
        held: held == 0,
    });
    let objects = proptest::collection::vec((any::<bool>(), 0..3usize), OBJECTS);
    (proptest::collection::vec(state, 0..40), objects)
        .prop_map(|(states, objects)| RetentionWorld { states, objects })
}

impl RetentionWorld {
    fn chain(&self, object: usize) -> Vec<Seq> {
        (1..).zip(&self.states).filter(|(_, one)| one.object == object).map(|(seq, _)| seq).collect()
    }

    fn end(&self, object: usize) -> ObjectEnd {
        let chain = self.chain(object);
        let (live, from_end) = self.objects[object];
        let newest = chain.iter().rev().nth(from_end).or(chain.first()).copied().unwrap_or_default();
        let tail = if live { 0 } else { chain.last().copied().unwrap_or_default() };
        ObjectEnd { live, newest, tail }
    }

    fn may_go(&self, seq: Seq) -> bool {
        let state = &self.states[seq as usize - 1];
        state.expired && !state.held
    }

    /// The states that are removed according to the written rules.
    fn model(&self) -> BTreeSet<Seq> {
        let mut gone = BTreeSet::new();
        for object in 0..OBJECTS {
            let (chain, end) = (self.chain(object), self.end(object));
            let free = chain.iter().take_while(|seq| self.may_go(**seq)).count();
            let before_newest = chain.iter().filter(|seq| **seq < end.newest).count();
            let takes_all = !end.live && free == chain.len();
            gone.extend(&chain[..if takes_all { free } else { free.min(before_newest) }]);
        }
        gone
    }

    fn links(&self, gone: &BTreeSet<Seq>) -> Vec<StateLink> {
        let mut last: BTreeMap<usize, Seq> = BTreeMap::new();
        let mut links = Vec::new();
        for (seq, one) in (1..).zip(&self.states).filter(|(seq, _)| !gone.contains(seq)) {
            let before = last.insert(one.object, seq).unwrap_or_default();
            let (object, end) = (one.object as i64, self.end(one.object));
            links.push(StateLink {
                seq,
                before,
                object,
                stream: 1,
                observed_ms: 0,
                bytes: 1,
                settled: true,
                end,
            });
        }
        links
    }
}

proptest! {
    #[test]
    fn in_batches_of_any_size_exactly_that_goes_which_the_rules_let_go(world in world(), most in 1..9usize) {
        let mut gone = BTreeSet::new();
        loop {
            let states = world.links(&gone);
            let may_go: Vec<bool> = states.iter().map(|link| world.may_go(link.seq)).collect();
            let runs = fit_in_transaction(select_runs(&states, &may_go, |_| false), most);
            if runs.is_empty() {
                break;
            }
            for run in runs {
                let object = run.links[0].object as usize;
                gone.extend(run.links.iter().map(|link| link.seq));
                // After each transaction, the kept states of an object are the end of its chain.
                let chain = world.chain(object);
                let taken = chain.iter().take_while(|seq| gone.contains(seq)).count();
                prop_assert!(chain[taken..].iter().all(|seq| !gone.contains(seq)));
                prop_assert_eq!(run.is_all(), taken == chain.len());
                let end = world.end(object);
                prop_assert!(taken == chain.len() || !gone.contains(&end.newest), "its newest is kept");
            }
        }
        prop_assert_eq!(gone, world.model());
    }

    #[test]
    fn count_and_size_keep_the_newest_that_fit(
        sizes in proptest::collection::vec((0..4u64, 1..50u64), 0..60),
        count in 1..80u64,
        bytes in 1..1500u64,
    ) {
        // Positions with holes between them.
        let mut seq = 0;
        let mut links = Vec::new();
        for (hole, bytes) in sizes {
            seq += 1 + hole * 400;
            let end = ObjectEnd::default();
            links.push(StateLink { seq, before: 0, object: 1, stream: 1, observed_ms: 0, bytes, settled: true, end });
        }
        let mut segments: BTreeMap<u64, Vec<StateLink>> = BTreeMap::new();
        for link in &links {
            segments.entry(link.seq / SEGMENT).or_default().push(link.clone());
        }
        let tallies: Vec<SegmentTally> = segments
            .iter()
            .map(|(segment, links)| SegmentTally {
                segment: *segment,
                states: links.len() as u64,
                bytes: links.iter().map(|link| link.bytes).sum(),
            })
            .collect();
        let cut = RetentionCut::of(RetentionBounds { count: Some(count), bytes: Some(bytes), ..RetentionBounds::default() }, &tallies);
        let mut kept = Vec::new();
        let mut reached = true;
        for (segment, links) in &segments {
            let expired = cut.expired_states(*segment, links);
            prop_assert!(reached || expired.iter().all(|expired| !expired), "nothing is behind the end");
            reached &= cut.needs_later_segment(*segment, links, &expired);
            for (link, expired) in links.iter().zip(&expired) {
                prop_assert!(*expired || !cut.is_certain(*segment, link));
                if !expired {
                    kept.push(link.seq);
                }
            }
        }
        let mut left = bytes;
        let fits = |link: &&StateLink| match left.checked_sub(link.bytes) {
            Some(rest) => {
                left = rest;
                true
            }
            None => false,
        };
        let mut model: Vec<Seq> =
            links.iter().rev().take(count as usize).take_while(fits).map(|link| link.seq).collect();
        model.reverse();
        prop_assert_eq!(kept, model);
    }
}

/// The clock was a year ahead for a while. States with such times are not kept longer, nor are those after
/// them.
#[test]
fn states_of_a_time_that_is_yet_to_come_are_as_old_as_the_next_ones() {
    const YEAR: u64 = 365 * 24 * 60 * 60 * 1000;
    let now_ms = 10 * YEAR;
    let links = |times: &[u64]| -> Vec<StateLink> {
        let link = |(seq, observed_ms): (Seq, &u64)| StateLink {
            seq,
            before: 0,
            object: 1,
            stream: 1,
            observed_ms: *observed_ms,
            bytes: 1,
            settled: true,
            end: ObjectEnd::default(),
        };
        (1..).zip(times).map(link).collect()
    };
    let (old, new, ahead) = (8 * YEAR, now_ms - 1, 11 * YEAR);
    let mut cut = RetentionCut::of(
        RetentionBounds { before_ms: Some(9 * YEAR), now_ms, ..RetentionBounds::default() },
        &[],
    );
    let of = |cut: &RetentionCut, times: &[u64]| cut.expired_states(5, &links(times));
    assert_eq!(of(&cut, &[ahead, old, ahead, new, ahead]), [true, true, false, false, false]);
    let timeless = links(&[ahead, ahead]);
    assert_eq!(cut.expired_states(5, &timeless), [false, false]);
    assert!(cut.is_timeless(&timeless) && cut.needs_later_segment(5, &timeless, &[false, false]));
    assert!(!cut.is_timeless(&links(&[ahead, new])));
    cut.note_aged_states(6, &links(&[new, ahead]));
    assert_eq!(cut.expired_states(5, &timeless), [false, false]);
    cut.note_aged_states(6, &links(&[old, new]));
    assert_eq!(cut.expired_states(5, &timeless), [true, true]);
    assert_eq!(cut.expired_states(6, &timeless), [false, false]);
    assert!(
        !RetentionCut::of(RetentionBounds::default(), &[]).is_timeless(&timeless),
        "without an age, times say nothing"
    );
}

fn progress(cursor: Seq, above: &[(Seq, Seq)], starts: &[(&str, Seq, Option<Seq>)]) -> PluginProgress {
    let sources = starts
        .iter()
        .map(|(source, after, until)| kubewitness_core::ports::SourceStart {
            source: (*source).into(),
            after: *after,
            until: *until,
        })
        .collect();
    PluginProgress { cursor, above: above.to_vec(), sources, ..PluginProgress::default() }
}

fn held(progress: &PluginProgress, in_hand: Option<u64>) -> Vec<(Seq, Seq)> {
    let tally = |segment| SegmentTally { segment, states: 1000, bytes: 0 };
    let tallies: Vec<_> = (0..10).map(tally).collect();
    let holds = holds_of_plugin("p", progress, "jobs", &tallies, in_hand, 0);
    holds.into_iter().map(|hold| (hold.after, hold.through)).collect()
}

#[test]
fn a_plugin_holds_what_it_has_not_finished_of_the_sources_that_it_wants() {
    assert_eq!(held(&progress(50, &[], &[("jobs", 10, None)]), None), [(50, Seq::MAX)]);
    assert_eq!(held(&progress(5, &[(7, 90)], &[("jobs", 10, None)]), None), [(10, Seq::MAX)]);
    assert_eq!(held(&progress(50, &[], &[("jobs", 0, Some(80))]), None), [(50, 80)]);
    assert_eq!(held(&progress(90, &[], &[("jobs", 0, Some(80)), ("pods", 0, None)]), None), []);
    assert_eq!(held(&progress(50, &[], &[]), None), [(50, Seq::MAX)], "it named no source: it may want any");
}

#[test]
fn told_to_go_past_cursors_a_plugin_still_holds_what_may_be_in_its_hands() {
    let wants = [("jobs", 0, None)];
    // The last segment that was read does not count, because the position within it is unknown.
    assert_eq!(held(&progress(50, &[], &wants), Some(1500)), [(50, 3 * SEGMENT - 1)]);
    assert_eq!(held(&progress(50, &[(60, 2 * SEGMENT)], &wants), Some(1500)), [(50, 5 * SEGMENT - 1)]);
    assert_eq!(held(&progress(50, &[], &wants), Some(9000)), [(50, Seq::MAX)]);
}
