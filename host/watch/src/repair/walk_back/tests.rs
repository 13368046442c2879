//! Tests of walks, searches and compaction without a server.

use bytes::Bytes;
use kubewitness_core::Version;
use proptest::prelude::*;

use super::versions::*;
use crate::source::missing::{MissingVersions, reason};
use crate::source::round::CompleteSince;

fn v(number: u64) -> Version {
    Version::new(&number.to_string())
}

/// Walks over a history of one object. Nothing below `compacted` can be read.
fn walked(
    history: &[u64],
    floor: u64,
    newest: u64,
    compacted: u64,
    budget: u32,
) -> (Vec<u64>, Option<(u64, u64)>, u32) {
    walked_knowing(history, floor, newest, compacted, budget, 0)
}

/// Does the same where everything up to `gone` is known to be compacted.
fn walked_knowing(
    history: &[u64],
    floor: u64,
    newest: u64,
    compacted: u64,
    budget: u32,
    gone: u128,
) -> (Vec<u64>, Option<(u64, u64)>, u32) {
    let mut walk = VersionWalk::new("u", CompleteSince::since_floor(v(floor)), v(newest), budget);
    let mut asked = 0;
    let walked = loop {
        let at = match walk.next(gone) {
            NextQuestion::Ask(at) => at.as_str().parse::<u64>().unwrap(),
            NextQuestion::Done(walked) => break walked,
        };
        asked += 1;
        let answer = match history.iter().rev().find(|version| **version <= at) {
            _ if at < compacted => ExactAnswer::Compacted,
            Some(version) => ExactAnswer::Item {
                uid: "u".into(),
                version: v(*version),
                document: version.to_string().into(),
            },
            None => ExactAnswer::Nobody,
        };
        if let Some(walked) = walk.take_answer(answer) {
            break walked;
        }
    };
    let found =
        walked.found.iter().map(|(_, bytes)| String::from_utf8_lossy(bytes).parse().unwrap()).collect();
    let bounds = |hole: MissingVersions| (hole.after.parse().unwrap(), hole.before.parse().unwrap());
    (found, walked.hole.map(bounds), asked)
}

#[test]
fn everything_between_is_found_and_nothing_is_missing() {
    assert_eq!(walked(&[5, 7, 9, 12], 5, 12, 0, 100), (vec![7, 9], None, 3));
}

#[test]
fn an_object_that_began_meanwhile_is_walked_to_its_beginning() {
    assert_eq!(walked(&[7, 9, 12], 5, 12, 0, 100), (vec![7, 9], None, 3));
}

fn ended(
    versions: &[u64],
    deleted: u64,
    there: u64,
    absent: u64,
    compacted: u64,
) -> (Option<u64>, Option<u64>) {
    let mut search = EndSearch::new("u", &v(there), &v(absent)).unwrap();
    loop {
        match search.next(0) {
            SearchStep::Ended { version, last } => {
                let number = |version: Version| version.as_str().parse().unwrap();
                return (version.map(number), last.map(|(version, _)| number(version)));
            }
            SearchStep::Ask(ask) => {
                let at: u64 = ask.as_str().parse().unwrap();
                let answer = match versions.iter().rev().find(|version| **version <= at) {
                    _ if at < compacted => ExactAnswer::Compacted,
                    Some(version) if at < deleted => {
                        ExactAnswer::Item { uid: "u".into(), version: v(*version), document: Bytes::new() }
                    }
                    _ => ExactAnswer::Nobody,
                };
                search.take_answer(&ask, answer).unwrap();
            }
        }
    }
}

#[test]
fn the_end_of_an_object_is_found_by_halving() {
    assert_eq!(ended(&[5, 7, 9], 13, 5, 40, 0), (Some(13), Some(9)));
    assert_eq!(ended(&[5], 6, 5, 7, 0), (Some(6), None));
    assert_eq!(ended(&[5], 6, 5, 6, 0), (Some(6), None));
}

#[test]
fn another_bearer_of_the_name_is_met_on_the_way() {
    let mut search = EndSearch::new("u", &v(5), &v(9)).unwrap();
    let other = ExactAnswer::Item { uid: "w".into(), version: v(7), document: Bytes::new() };
    search.take_answer(&v(7), other).unwrap();
    search.take_answer(&v(6), ExactAnswer::Nobody).unwrap();
    assert_eq!(search.next(0), SearchStep::Ended { version: Some(v(6)), last: None });
    let met = search.into_met();
    assert_eq!(met.iter().map(|met| (met.uid.as_str(), &met.at)).collect::<Vec<_>>(), [("w", &v(7))]);
}

#[test]
fn an_end_that_compaction_hides_is_not_guessed() {
    assert_eq!(ended(&[5, 7, 9], 13, 5, 40, 20), (None, None));
    assert_eq!(ended(&[5, 7, 9], 13, 5, 40, 12), (Some(13), Some(9)));
}

#[test]
fn neighbours_are_not_asked_for() {
    assert_eq!(walked(&[11, 12], 11, 12, 0, 100), (vec![], None, 0));
}

#[test]
fn what_compaction_took_is_a_hole_with_exact_bounds() {
    assert_eq!(walked(&[5, 7, 9, 12], 5, 12, 9, 100), (vec![9], Some((5, 9)), 2));
}

#[test]
fn what_shows_at_or_below_the_floor_is_read_back_down_to_what_was_witnessed() {
    let walk = |newest, last| {
        let since = CompleteSince { floor: v(9), last };
        let mut walk = VersionWalk::new("u", since, v(newest), 100);
        let mut asked = Vec::new();
        loop {
            let at = match walk.next(0) {
                NextQuestion::Ask(at) => at,
                NextQuestion::Done(walked) => return (asked, walked.found.len(), walked.lost),
            };
            asked.push(at.to_string().parse::<u64>().unwrap());
            let version = [3, 5, 8].into_iter().rfind(|version| !v(*version).is_newer_than(&at)).unwrap();
            let answer = ExactAnswer::Item { uid: "u".into(), version: v(version), document: Bytes::new() };
            if let Some(walked) = walk.take_answer(answer) {
                return (asked, walked.found.len(), walked.lost);
            }
        }
    };
    assert_eq!(walk(12, Some(v(3))), (vec![11, 7, 4], 2, true), "5 and 8 were lost");
    assert_eq!(walk(12, Some(v(8))), (vec![11], 0, false));
    assert_eq!(walk(12, None), (vec![11], 0, false));
    assert_eq!(walk(10, Some(v(5))), (vec![9, 7], 1, true), "the neighbour is asked for");
    assert_eq!(walk(10, Some(v(8))), (vec![9], 0, false));
    assert_eq!(walk(10, Some(v(9))), (vec![], 0, false));
    assert_eq!(walk(9, Some(v(5))), (vec![8, 7], 1, true), "it was listed as of before the floor");
}

#[test]
fn what_is_known_to_be_compacted_is_not_asked_for_and_says_so_whatever_the_budget() {
    assert_eq!(walked_knowing(&[5, 7, 9, 12], 5, 12, 9, 100, 8), (vec![9], Some((5, 9)), 1));
    assert_eq!(walked_knowing(&[12], 5, 12, 12, 100, 11), (vec![], Some((5, 12)), 0));
    let mut walk = VersionWalk::new("u", CompleteSince::since_floor(v(5)), v(12), 0);
    let NextQuestion::Done(walked) = walk.next(11) else { panic!("it is known") };
    assert_eq!(walked.hole.unwrap().reason, reason::COMPACTED);
}

#[test]
fn an_end_below_known_compaction_is_not_looked_for() {
    let mut search = EndSearch::new("u", &v(5), &v(40)).unwrap();
    assert_eq!(search.next(19), SearchStep::Ask(v(29)));
    search.take_answer(&v(29), ExactAnswer::Nobody).unwrap();
    assert_eq!(search.next(28), SearchStep::Ended { version: None, last: None });
    assert_eq!(search.absent_version(), v(29));
    let mut search = EndSearch::new("u", &v(5), &v(7)).unwrap();
    assert_eq!(search.next(40), SearchStep::Ended { version: None, last: None });
    assert_eq!(search.absent_version(), v(7));
}

#[test]
fn a_spent_budget_leaves_a_hole() {
    assert_eq!(walked(&[1, 2, 3, 4, 5, 6], 1, 6, 0, 2), (vec![4, 5], Some((1, 4)), 2));
}

#[test]
fn an_answer_that_does_not_go_back_ends_the_walk() {
    let mut walk = VersionWalk::new("u", CompleteSince::since_floor(v(1)), v(9), 100);
    assert_eq!(walk.next(0), NextQuestion::Ask(v(8)));
    let same = ExactAnswer::Item { uid: "u".into(), version: v(9), document: Bytes::new() };
    assert_eq!(walk.take_answer(same).unwrap().hole.unwrap().reason, reason::UNREADABLE);
}

#[test]
fn versions_without_order_are_a_hole_at_once() {
    let mut walk =
        VersionWalk::new("u", CompleteSince::since_floor(Version::new("abc")), Version::new("xyz"), 100);
    let NextQuestion::Done(walked) = walk.next(0) else { panic!("nothing can be asked for") };
    assert_eq!(walked.hole.unwrap().after, "abc");
}

#[test]
fn the_version_after_carries_across_digits() {
    assert_eq!(bound_after(&v(41)), "42");
    assert_eq!(bound_after(&v(1299)), "1300");
    assert_eq!(bound_after(&v(999)), "1000");
    assert_eq!(bound_after(&Version::new("abc")), "");
}

proptest! {
    /// Every version above the floor is found or lies in the hole, and none is in both.
    #[test]
    fn a_walk_accounts_for_every_version(
        steps in prop::collection::vec(1u64..5, 1..30), floor in 0usize..30, compacted in 0u64..120, budget in 0u32..40,
    ) {
        let mut at = 1;
        let history: Vec<u64> = steps.iter().map(|step| { at += step; at }).collect();
        let newest = *history.last().unwrap();
        let floor = history[floor % history.len()];
        let (found, hole, _) = walked(&history, floor, newest, compacted, budget);
        prop_assert!(found.is_sorted());
        for version in history.iter().filter(|version| **version > floor && **version < newest) {
            let in_hole = hole.is_some_and(|(after, before)| *version > after && *version < before);
            prop_assert!(found.contains(version) != in_hole, "{version}: {found:?} {hole:?}");
        }
    }
}
