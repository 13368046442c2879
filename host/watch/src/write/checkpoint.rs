//! Tracks the checkpoint: the version from which a watch can be resumed without loss. Pure.
//!
//! Versions are not unique: twelve expired leases are deleted at the same version. So a version is complete
//! only once a greater one, or a bookmark at or after it, has arrived. Until then the safe version is the one
//! before. If versions are decimal, that is the newest version minus one: a watch is in order, so every event
//! below it has arrived. Otherwise it is the previously seen version.

use std::cmp::Ordering;

use kubewitness_core::Version;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CheckpointTracker {
    safe: Option<Version>,
    newest: Option<Version>,
}

impl CheckpointTracker {
    /// Begins after a list or a restart that is complete up to this version.
    pub fn complete_up_to(version: Option<Version>) -> Self {
        let version = version.filter(|version| !version.as_str().is_empty());
        Self { safe: version.clone(), newest: version }
    }

    pub fn safe_version(&self) -> Option<&Version> {
        self.safe.as_ref()
    }

    /// The newest version seen, complete or not.
    pub fn newest_seen(&self) -> Option<&Version> {
        self.newest.as_ref()
    }

    /// Takes an event of this version.
    pub fn take_event(&mut self, version: &Version) {
        let Some(newest) = &self.newest else {
            self.safe = version.directly_before();
            self.newest = Some(version.clone());
            return;
        };
        match version.compare_to(newest) {
            Some(Ordering::Greater) => {
                let before = version.directly_before();
                self.safe = before.or_else(|| Some(newest.clone()));
                self.newest = Some(version.clone());
            }
            // It shares the newest version, or is a repeat from before it.
            Some(Ordering::Equal | Ordering::Less) => {}
            None => {
                self.safe = Some(newest.clone());
                self.newest = Some(version.clone());
            }
        }
    }

    /// Takes a bookmark: everything up to this version has come.
    pub fn take_bookmark(&mut self, version: &Version) {
        // The bookmark says nothing.
        if version.as_str().is_empty() {
            return;
        }
        let raised = |held: &Option<Version>| {
            held.as_ref()
                .is_none_or(|held| version.compare_to(held).is_none_or(|order| order != Ordering::Less))
        };
        if raised(&self.safe) {
            self.safe = Some(version.clone());
        }
        if raised(&self.newest) {
            self.newest = Some(version.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn version(text: &str) -> Version {
        Version::new(text)
    }

    fn safe(checkpoint: &CheckpointTracker) -> &str {
        checkpoint.safe_version().map_or("", Version::as_str)
    }

    #[test]
    fn a_shared_version_is_not_safe_until_a_greater_one_comes() {
        let mut checkpoint = CheckpointTracker::complete_up_to(Some(version("100")));
        for _ in 0..5 {
            checkpoint.take_event(&version("117"));
            assert_eq!(safe(&checkpoint), "116");
        }
        checkpoint.take_event(&version("130"));
        assert_eq!(safe(&checkpoint), "129");
    }

    #[test]
    fn a_bookmark_at_the_newest_version_makes_it_safe() {
        let mut checkpoint = CheckpointTracker::complete_up_to(Some(version("9")));
        checkpoint.take_event(&version("117"));
        checkpoint.take_bookmark(&version("117"));
        assert_eq!(safe(&checkpoint), "117");
        checkpoint.take_bookmark(&version("99"));
        assert_eq!(safe(&checkpoint), "117");
        checkpoint.take_event(&version("117"));
        assert_eq!(safe(&checkpoint), "117");
    }

    #[test]
    fn a_replayed_event_takes_nothing_back() {
        let mut checkpoint = CheckpointTracker::complete_up_to(Some(version("20")));
        checkpoint.take_event(&version("30"));
        checkpoint.take_event(&version("25"));
        assert_eq!(safe(&checkpoint), "29");
    }

    #[test]
    fn versions_without_order_are_safe_one_late() {
        let mut checkpoint = CheckpointTracker::complete_up_to(Some(version("a")));
        checkpoint.take_event(&version("b"));
        assert_eq!(safe(&checkpoint), "a");
        checkpoint.take_event(&version("b"));
        assert_eq!(safe(&checkpoint), "a");
        checkpoint.take_event(&version("c"));
        assert_eq!(safe(&checkpoint), "b");
        checkpoint.take_bookmark(&version("d"));
        assert_eq!(safe(&checkpoint), "d");
    }

    #[test]
    fn an_empty_version_is_no_checkpoint() {
        assert_eq!(CheckpointTracker::complete_up_to(Some(version(""))).safe_version(), None);
        let mut checkpoint = CheckpointTracker::complete_up_to(Some(version("20")));
        checkpoint.take_bookmark(&version(""));
        assert_eq!(safe(&checkpoint), "20");
    }

    proptest! {
        /// The stream may be cut anywhere. Whatever was not received lies above the safe version.
        #[test]
        fn nothing_unseen_is_at_or_below_the_safe_version(
            steps in prop::collection::vec((0u64..3, any::<bool>()), 1..60),
            cut in 0usize..60,
        ) {
            let mut at = 100u64;
            let events: Vec<(u64, bool)> = steps.iter().map(|(step, bookmark)| { at += step; (at, *bookmark) }).collect();
            // A bookmark is only true if no event at or below its version follows.
            let last_of = |index: usize| events[index + 1..].iter().all(|(later, b)| *b || *later > events[index].0);
            let cut = cut.min(events.len());
            let mut checkpoint = CheckpointTracker::complete_up_to(Some(version("100")));
            for (index, (at, bookmark)) in events[..cut].iter().enumerate() {
                if *bookmark {
                    if last_of(index) { checkpoint.take_bookmark(&version(&at.to_string())); }
                } else {
                    checkpoint.take_event(&version(&at.to_string()));
                }
            }
            let safe: u64 = safe(&checkpoint).parse().unwrap();
            for (at, bookmark) in &events[cut..] {
                // The list that gave version 100 was complete up to it.
                prop_assert!(*bookmark || *at > safe || *at == 100, "{at} is lost after {safe}");
            }
        }
    }
}
