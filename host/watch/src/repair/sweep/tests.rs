//! Compares the sweep with a store that is counted by brute force.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::counts::*;
use crate::source::missing::{MissingVersions, reason};

/// One object of a random store.
#[derive(Clone, Debug)]
struct StoreObject {
    versions: Vec<u128>,
    died: Option<u128>,
}

impl StoreObject {
    fn lives_at(&self, at: u128) -> bool {
        self.versions[0] <= at && self.died.is_none_or(|died| died > at)
    }

    fn known_versions(&self, after: u128) -> KnownVersions {
        KnownVersions {
            versions: self.versions.clone(),
            born: Some(self.versions[0]).filter(|v| *v > after),
            died: self.died,
            unsure: None,
        }
    }
}

#[derive(Debug, Default)]
struct RandomStore {
    objects: Vec<StoreObject>,
    version: u128,
}

impl RandomStore {
    /// Each step is one write: 0 creates, 1 updates, 2 deletes one, 3 deletes several at one version, others
    /// write to another resource.
    fn write(&mut self, step: u8, pick: usize) {
        self.version += 1;
        let living: Vec<usize> =
            (0..self.objects.len()).filter(|i| self.objects[*i].died.is_none()).collect();
        let picked = (!living.is_empty()).then(|| living[pick % living.len()]);
        match (step, picked) {
            (0, _) => self.objects.push(StoreObject { versions: vec![self.version], died: None }),
            (1, Some(picked)) => self.objects[picked].versions.push(self.version),
            (2, Some(picked)) => self.objects[picked].died = Some(self.version),
            (3, Some(_)) => {
                for living in living.into_iter().take(1 + pick % 3) {
                    self.objects[living].died = Some(self.version);
                }
            }
            _ => {}
        }
    }

    fn count(&self, at: u128) -> u64 {
        self.objects.iter().filter(|object| object.lives_at(at)).count() as u64
    }
}

/// Sweeps. Returns the objects found, the holes, and how often all names were listed.
fn swept(store: &RandomStore, after: u128, compacted: u128) -> (BTreeSet<usize>, Vec<(u128, u128)>, u32) {
    swept_with(store, after, compacted, |_| true)
}

/// `certain` says whose creation and deletion are known.
fn swept_with(
    store: &RandomStore,
    after: u128,
    compacted: u128,
    certain: impl Fn(usize) -> bool,
) -> (BTreeSet<usize>, Vec<(u128, u128)>, u32) {
    let listed = store.version;
    let is_known = |object: &StoreObject| object.lives_at(after) || object.lives_at(listed);
    let known: Vec<usize> = (0..store.objects.len()).filter(|i| is_known(&store.objects[*i])).collect();
    let mut sweep = SweepCounts::new(after, listed, Some(store.count(after)));
    sweep.learn_versions(known.iter().map(|i| {
        let versions = store.objects[*i].known_versions(after);
        if certain(*i) {
            versions
        } else {
            KnownVersions {
                unsure: Some(versions.versions[0]),
                versions: versions.versions,
                ..KnownVersions::default()
            }
        }
    }));
    let (mut found, mut looks) = (BTreeSet::new(), 0);
    let mut look = |sweep: &mut SweepCounts, at: u128, found: &mut BTreeSet<usize>| {
        looks += 1;
        for (i, object) in store.objects.iter().enumerate() {
            if object.lives_at(at) && !known.contains(&i) && found.insert(i) {
                sweep.learn_versions([object.known_versions(after)]);
            }
        }
        sweep.note_looked();
    };
    while let Some(at) = sweep.next_sample() {
        if at < compacted {
            sweep.note_compacted(Some(compacted));
            continue;
        }
        while let NextCount::ListNames(version, _) = sweep.take_count(at, store.count(at)) {
            look(&mut sweep, version, &mut found);
        }
    }
    if let NextCount::ListNames(version, _) = sweep.list_the_rest() {
        look(&mut sweep, version, &mut found);
    }
    let bounds = |hole: MissingVersions| (hole.after.parse().unwrap(), hole.before.parse().unwrap());
    (found, sweep.into_holes().into_iter().map(bounds).collect(), looks)
}

fn store(steps: &[(u8, usize)]) -> RandomStore {
    let mut store = RandomStore::default();
    for (step, pick) in steps {
        store.write(*step, *pick);
    }
    store
}

#[test]
fn an_object_that_lived_for_one_version_is_found() {
    // One object before the outage; then a short-lived one, and a write elsewhere.
    let store = store(&[(0, 0), (0, 0), (2, 1), (9, 0)]);
    assert_eq!(swept(&store, 1, 0), (BTreeSet::from([1]), vec![], 1));
}

#[test]
fn one_look_finds_all_who_live_at_the_same_time() {
    let store = store(&[(0, 0), (0, 0), (0, 0), (0, 0), (2, 1), (2, 1), (2, 1)]);
    assert_eq!(swept(&store, 1, 0), (BTreeSet::from([1, 2, 3]), vec![], 1));
}

#[test]
fn an_end_that_shares_its_version_with_a_known_one_hides_nobody() {
    // A known and an unknown object are deleted at one version, and another is created at the next.
    let store = store(&[(0, 0), (0, 0), (0, 0), (3, 1), (0, 0), (2, 0), (9, 0)]);
    let (found, holes, _) = swept(&store, 1, 0);
    let brief = (0..store.objects.len()).filter(|i| {
        let object = &store.objects[*i];
        !object.lives_at(1) && !object.lives_at(store.version)
    });
    assert_eq!((found, holes), (brief.collect(), vec![]));
}

#[test]
fn nothing_is_asked_where_every_version_is_accounted_for() {
    let store = store(&[(0, 0), (1, 0), (1, 0), (1, 0)]);
    let mut sweep = SweepCounts::new(1, 4, Some(1));
    sweep.learn_versions([KnownVersions { versions: vec![2, 3, 4], ..KnownVersions::default() }]);
    assert!(!sweep.is_needed());
    assert_eq!((sweep.next_sample(), sweep.next_sample()), (Some(1), None), "only the baseline");
    assert_eq!(swept(&store, 1, 0).2, 0);
}

#[test]
fn giving_up_is_one_hole_from_the_last_version_that_is_clean() {
    let mut sweep = SweepCounts::new(10, 20, Some(4));
    sweep.learn_versions([KnownVersions { versions: vec![12, 13], ..KnownVersions::default() }]);
    assert_eq!(sweep.take_count(10, 4), NextCount::Continue);
    assert_eq!(sweep.take_count(11, 4), NextCount::Continue);
    assert_eq!(sweep.take_count(14, 5), NextCount::Continue);
    sweep.end_search(reason::BUDGET, "enough");
    let holes = sweep.into_holes();
    assert_eq!((holes.len(), holes[0].after.as_str(), holes[0].before.as_str()), (1, "11", "21"));
}

proptest! {
    /// Every object that came and went is found or lies in a hole. Holes cover nothing that can be read.
    #[test]
    fn nobody_who_came_and_went_is_missed(
        steps in prop::collection::vec((0u8..6, 0usize..50), 2..120), after in 0usize..120, compacted in 0u128..140,
        uncertain in 0usize..64,
    ) {
        let store = store(&steps);
        let after = (after % steps.len()) as u128;
        let compacted = if compacted > store.version { 0 } else { compacted };
        // In a round after a kill it is not known of every object when it was created.
        let certain = |i: usize| uncertain >> (i % 6) & 1 == 0;
        let (found, holes, _) = swept_with(&store, after, compacted, certain);
        prop_assert!(holes.len() <= 1);
        let hidden = |version: u128| holes.iter().any(|(from, to)| version > *from && version < *to);
        for (i, object) in store.objects.iter().enumerate() {
            if object.lives_at(after) || object.lives_at(store.version) || object.versions[0] <= after {
                prop_assert!(!found.contains(&i));
                continue;
            }
            let readable = object.died.is_some_and(|died| died > compacted);
            prop_assert_eq!(found.contains(&i), readable, "{:?} {:?}", object, holes);
            if !readable {
                prop_assert!(object.versions.iter().all(|version| hidden(*version)), "{:?} {:?}", object, holes);
            }
        }
        if compacted <= after + 1 {
            prop_assert_eq!(&holes, &vec![]);
        }
        for (_, before) in &holes {
            prop_assert!(*before <= compacted + 1);
        }
    }
}
