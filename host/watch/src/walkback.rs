//! Which versions of one object were missed, read back one by one. Pure: it says what to ask for
//! next and takes the answer; the relist carries the requests.
//!
//! An exact list at version N shows the object as it was then, by whatever version it had. So
//! from a known version, N is the one before it; the answer's version is the next known one, and
//! so on down to the last version that was witnessed, or to where compaction has been.

use std::cmp::Ordering;

use bytes::Bytes;
use kubewitness_core::Version;

use crate::input::{Hole, reason};
use crate::round::Since;
use crate::sweep::number;

const COMPACTED: &str = "compaction has removed them";

/// What an exact list of one name showed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Item {
        uid: String,
        version: Version,
        document: Bytes,
    },
    /// Nobody had this name then.
    Nobody,
    Compacted,
    /// The server doesn't read old versions, or the request failed for good.
    Refused(String),
}

/// The whole of what walking back gave.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Walked {
    /// The missed versions, oldest first.
    pub found: Vec<(Version, Bytes)>,
    /// What is missing below them.
    pub hole: Option<Hole>,
    /// Something came to light where the watch was taken to be complete.
    pub lost: bool,
}

#[derive(Debug)]
pub(crate) struct Walk {
    uid: String,
    since: Since,
    lost: bool,
    /// The oldest version that is known above the floor.
    oldest: Version,
    found: Vec<(Version, Bytes)>,
    budget: u32,
}

/// What to do next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Ask(Version),
    Done(Walked),
}

impl Walk {
    pub fn new(uid: &str, since: Since, newest: Version, budget: u32) -> Self {
        let since = since.settle();
        let mut walk =
            Self { uid: uid.to_string(), since, lost: false, oldest: newest, found: Vec::new(), budget };
        walk.doubt();
        walk
    }

    /// What came to light may show that the floor is none.
    fn doubt(&mut self) {
        if self.since.lost(&self.oldest) {
            self.since.sink();
            self.lost = true;
        }
    }

    /// Everything up to `gone` is known to be compacted, and isn't asked for.
    pub fn next(&mut self, gone: u128) -> Next {
        let Some(ask) = self.oldest.before() else {
            // Versions without order can't be counted back; version 1 has none before it.
            let ordered = self.oldest.is_comparable() && self.since.floor.is_comparable();
            return self
                .done((!ordered).then_some((reason::UNREADABLE, "the server's versions have no order")));
        };
        // Right above the floor, what was there at the floor itself still tells whether it is one.
        let is_doubtful = ask == self.since.floor && self.since.last.is_some();
        if !is_doubtful && ask.compare(&self.since.floor).is_none_or(Ordering::is_le) {
            return self.done(None);
        }
        if number(&ask).is_some_and(|ask| ask <= gone) {
            return self.done(Some((reason::COMPACTED, COMPACTED)));
        }
        if self.budget == 0 {
            return self.done(Some((reason::BUDGET, "reading them back would have taken too many requests")));
        }
        self.budget -= 1;
        Next::Ask(ask)
    }

    pub fn answered(&mut self, answer: Answer) -> Option<Walked> {
        match answer {
            Answer::Item { uid, version, document } if uid == self.uid => {
                // An answer that doesn't go back would be asked for for ever.
                if version.compare(&self.oldest) != Some(Ordering::Less) {
                    return Some(
                        self.end(Some((reason::UNREADABLE, "an exact list showed a newer version"))),
                    );
                }
                self.oldest = version.clone();
                self.doubt();
                if version.compare(&self.since.floor).is_none_or(Ordering::is_le) {
                    return Some(self.end(None));
                }
                self.found.push((version, document));
                None
            }
            // The object's life begins above.
            Answer::Item { .. } | Answer::Nobody => Some(self.end(None)),
            Answer::Compacted => Some(self.end(Some((reason::COMPACTED, COMPACTED)))),
            Answer::Refused(why) => Some(self.end(Some((reason::UNREADABLE, &why)))),
        }
    }

    fn done(&mut self, hole: Option<(&'static str, &str)>) -> Next {
        Next::Done(self.end(hole))
    }

    /// Gives up for a reason of its own.
    pub fn end(&mut self, hole: Option<(&'static str, &str)>) -> Walked {
        let mut found = std::mem::take(&mut self.found);
        found.reverse();
        let hole = hole.and_then(|(reason, why)| between(&self.since.floor, &self.oldest, reason, why));
        Walked { found, hole, lost: self.lost }
    }
}

/// The search for the end of an object that was there at one version and no longer at another.
/// A uid lives once, without a break, so that halving finds the version at which it was deleted.
#[derive(Debug)]
pub(crate) struct Search {
    uid: String,
    /// It was there, or nobody can tell any more.
    there: u128,
    /// It was not.
    absent: u128,
    last: Option<(Version, Bytes)>,
    /// Whether `there` is where compaction has been.
    compacted: bool,
    /// Others that had its name in between.
    met: Vec<Met>,
}

/// Another bearer of a name, as it was at one version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Met {
    pub uid: String,
    pub at: Version,
    pub version: Version,
    pub document: Bytes,
}

/// Where the search is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Sought {
    Ask(Version),
    /// The version of the deletion, `None` where compaction hides it, and the last content that
    /// was found above the floor; both where compaction came while it was looked for.
    Ended {
        version: Option<Version>,
        last: Option<(Version, Bytes)>,
    },
}

impl Search {
    /// `None` where versions can't be halved.
    pub fn new(uid: &str, there: &Version, absent: &Version) -> Option<Self> {
        let (there, absent) = (number(there)?, number(absent)?);
        Some(Self { uid: uid.to_string(), there, absent, last: None, compacted: false, met: Vec::new() })
    }

    /// Everything up to `gone` is known to be compacted, and isn't asked for.
    pub fn next(&mut self, gone: u128) -> Sought {
        let hidden = gone.min(self.absent.saturating_sub(1));
        if self.there < hidden {
            (self.there, self.compacted) = (hidden, true);
        }
        if self.there + 1 < self.absent {
            let middle = self.there + (self.absent - self.there) / 2;
            return Sought::Ask(Version::new(&middle.to_string()));
        }
        let version = (!self.compacted).then(|| Version::new(&self.absent.to_string()));
        Sought::Ended { version, last: self.last.clone() }
    }

    /// `Err`: the server can't be asked.
    pub fn answered(&mut self, at: &Version, answer: Answer) -> Result<(), String> {
        let at: u128 = at.as_str().parse().map_err(|_| format!("`{at}` is not a number"))?;
        match answer {
            Answer::Item { uid, version, document } if uid == self.uid => {
                (self.there, self.compacted, self.last) = (at, false, Some((version, document)));
            }
            Answer::Item { uid, version, document } => {
                if self.met.iter().all(|met| met.uid != uid) {
                    let at = Version::new(&at.to_string());
                    self.met.push(Met { uid, at, version, document });
                }
                self.absent = at;
            }
            Answer::Nobody => self.absent = at,
            Answer::Compacted => (self.there, self.compacted) = (at, true),
            Answer::Refused(why) => return Err(why),
        }
        Ok(())
    }

    /// Here, or before, it was no longer there.
    pub fn absent(&self) -> Version {
        Version::new(&self.absent.to_string())
    }

    /// Those who were met on the way, each once.
    pub fn into_met(self) -> Vec<Met> {
        self.met
    }
}

/// The hole strictly between two versions; `None` where there can be nothing.
pub(crate) fn between(after: &Version, before: &Version, reason: &'static str, why: &str) -> Option<Hole> {
    if before.before().is_some_and(|last| last.compare(after).is_some_and(Ordering::is_le)) {
        return None;
    }
    let which = match (after.as_str(), before.as_str()) {
        ("", "") => "versions".to_string(),
        ("", before) => format!("versions before {before}"),
        (after, "") => format!("versions after {after}"),
        (after, before) => format!("versions between {after} and {before}"),
    };
    let message = format!("{which} are missing: {why}");
    Some(Hole { after: after.to_string(), before: before.to_string(), reason, message })
}

/// The number after a version: the bound of a hole that includes it. One without order has none,
/// which reads as "until now".
pub(crate) fn after(version: &Version) -> String {
    if !version.is_comparable() {
        return String::new();
    }
    let mut digits = version.as_str().as_bytes().to_vec();
    for digit in digits.iter_mut().rev() {
        if *digit == b'9' {
            *digit = b'0';
        } else {
            *digit += 1;
            return String::from_utf8_lossy(&digits).into_owned();
        }
    }
    format!("1{}", String::from_utf8_lossy(&digits))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn v(number: u64) -> Version {
        Version::new(&number.to_string())
    }

    /// Walks over a history of one object, of which nothing below `compacted` can be read.
    fn walked(
        history: &[u64],
        floor: u64,
        newest: u64,
        compacted: u64,
        budget: u32,
    ) -> (Vec<u64>, Option<(u64, u64)>, u32) {
        walked_knowing(history, floor, newest, compacted, budget, 0)
    }

    /// The same where it is known that everything up to `gone` can't be read.
    fn walked_knowing(
        history: &[u64],
        floor: u64,
        newest: u64,
        compacted: u64,
        budget: u32,
        gone: u128,
    ) -> (Vec<u64>, Option<(u64, u64)>, u32) {
        let mut walk = Walk::new("u", Since::at(v(floor)), v(newest), budget);
        let mut asked = 0;
        let walked = loop {
            let at = match walk.next(gone) {
                Next::Ask(at) => at.as_str().parse::<u64>().unwrap(),
                Next::Done(walked) => break walked,
            };
            asked += 1;
            let answer = match history.iter().rev().find(|version| **version <= at) {
                _ if at < compacted => Answer::Compacted,
                Some(version) => Answer::Item {
                    uid: "u".into(),
                    version: v(*version),
                    document: version.to_string().into(),
                },
                None => Answer::Nobody,
            };
            if let Some(walked) = walk.answered(answer) {
                break walked;
            }
        };
        let found =
            walked.found.iter().map(|(_, bytes)| String::from_utf8_lossy(bytes).parse().unwrap()).collect();
        let bounds = |hole: Hole| (hole.after.parse().unwrap(), hole.before.parse().unwrap());
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
        let mut search = Search::new("u", &v(there), &v(absent)).unwrap();
        loop {
            match search.next(0) {
                Sought::Ended { version, last } => {
                    let number = |version: Version| version.as_str().parse().unwrap();
                    return (version.map(number), last.map(|(version, _)| number(version)));
                }
                Sought::Ask(ask) => {
                    let at: u64 = ask.as_str().parse().unwrap();
                    let answer = match versions.iter().rev().find(|version| **version <= at) {
                        _ if at < compacted => Answer::Compacted,
                        Some(version) if at < deleted => {
                            Answer::Item { uid: "u".into(), version: v(*version), document: Bytes::new() }
                        }
                        _ => Answer::Nobody,
                    };
                    search.answered(&ask, answer).unwrap();
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
        let mut search = Search::new("u", &v(5), &v(9)).unwrap();
        let other = Answer::Item { uid: "w".into(), version: v(7), document: Bytes::new() };
        search.answered(&v(7), other).unwrap();
        search.answered(&v(6), Answer::Nobody).unwrap();
        assert_eq!(search.next(0), Sought::Ended { version: Some(v(6)), last: None });
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
            let since = Since { floor: v(9), last };
            let mut walk = Walk::new("u", since, v(newest), 100);
            let mut asked = Vec::new();
            loop {
                let at = match walk.next(0) {
                    Next::Ask(at) => at,
                    Next::Done(walked) => return (asked, walked.found.len(), walked.lost),
                };
                asked.push(at.to_string().parse::<u64>().unwrap());
                let version = [3, 5, 8].into_iter().rfind(|version| !v(*version).is_newer_than(&at)).unwrap();
                let answer = Answer::Item { uid: "u".into(), version: v(version), document: Bytes::new() };
                if let Some(walked) = walk.answered(answer) {
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
        let mut walk = Walk::new("u", Since::at(v(5)), v(12), 0);
        let Next::Done(walked) = walk.next(11) else { panic!("it is known") };
        assert_eq!(walked.hole.unwrap().reason, reason::COMPACTED);
    }

    #[test]
    fn the_end_is_not_looked_for_whichcompaction_is_known_to_have_been() {
        let mut search = Search::new("u", &v(5), &v(40)).unwrap();
        assert_eq!(search.next(19), Sought::Ask(v(29)));
        search.answered(&v(29), Answer::Nobody).unwrap();
        assert_eq!(search.next(28), Sought::Ended { version: None, last: None });
        assert_eq!(search.absent(), v(29));
        let mut search = Search::new("u", &v(5), &v(7)).unwrap();
        assert_eq!(search.next(40), Sought::Ended { version: None, last: None });
        assert_eq!(search.absent(), v(7));
    }

    #[test]
    fn a_spent_budget_leaves_a_hole() {
        assert_eq!(walked(&[1, 2, 3, 4, 5, 6], 1, 6, 0, 2), (vec![4, 5], Some((1, 4)), 2));
    }

    #[test]
    fn an_answer_that_does_not_go_back_ends_the_walk() {
        let mut walk = Walk::new("u", Since::at(v(1)), v(9), 100);
        assert_eq!(walk.next(0), Next::Ask(v(8)));
        let same = Answer::Item { uid: "u".into(), version: v(9), document: Bytes::new() };
        assert_eq!(walk.answered(same).unwrap().hole.unwrap().reason, reason::UNREADABLE);
    }

    #[test]
    fn versions_without_order_are_a_hole_at_once() {
        let mut walk = Walk::new("u", Since::at(Version::new("abc")), Version::new("xyz"), 100);
        let Next::Done(walked) = walk.next(0) else { panic!("nothing can be asked for") };
        assert_eq!(walked.hole.unwrap().after, "abc");
    }

    #[test]
    fn the_version_after_carries_across_digits() {
        assert_eq!(after(&v(41)), "42");
        assert_eq!(after(&v(1299)), "1300");
        assert_eq!(after(&v(999)), "1000");
        assert_eq!(after(&Version::new("abc")), "");
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
}
