//! Keeps landmarks: a few complete witnessed versions by which a history is recognized.
//!
//! One landmark may be equal in two histories by chance, or because a controller repeats a write. So older
//! ones are kept as well, each the last before a round number of versions.

use std::sync::Arc;

use bytes::Bytes;
use kubewitness_core::Version;
use kubewitness_core::state::ObjectRef;

use crate::version::version_number;

/// A larger document is no landmark, because each source holds a few of them.
const LANDMARK_BYTES: usize = 64 * 1024;
/// Beside the newest one, the last version before the latest multiple of each of these is kept.
const ROUND: [u128; 3] = [1 << 6, 1 << 12, 1 << 18];

#[derive(Clone, Default)]
pub(crate) struct LandmarkSet {
    newest: Option<VersionLandmark>,
    older: [Option<VersionLandmark>; ROUND.len()],
    /// Whether something contradicts this history: an object exists whose end was witnessed.
    pub contradicted: bool,
}

impl LandmarkSet {
    /// Whether a version is newer than the newest landmark and would replace it.
    pub fn is_news(&self, version: &Version) -> bool {
        let Some(number) = version_number(version) else { return false };
        self.newest.as_ref().is_none_or(|held| held.number < number)
    }

    /// The version up to which all witnessed states can be recognized.
    pub fn newest_version(&self) -> Option<Version> {
        self.newest.as_ref().map(|landmark| landmark.version.clone())
    }

    pub fn note_landmark(&mut self, landmark: &VersionLandmark) {
        let Some(before) = self.newest.replace(landmark.clone()) else { return };
        for (older, round) in self.older.iter_mut().zip(ROUND) {
            if before.number / round != landmark.number / round {
                *older = Some(before.clone());
            }
        }
    }

    /// Chooses the landmarks among the known versions, which come in any order. Returns them oldest first.
    pub fn choose_versions(versions: &(impl Iterator<Item = u128> + Clone)) -> Vec<u128> {
        let Some(newest) = versions.clone().max() else { return Vec::new() };
        let before = |round: u128| versions.clone().filter(|version| *version < newest / round * round).max();
        let mut chosen: Vec<u128> = ROUND.iter().filter_map(|round| before(*round)).chain([newest]).collect();
        chosen.sort_unstable();
        chosen.dedup();
        chosen
    }

    /// Each landmark once, the newest first.
    pub fn all_landmarks(&self) -> Vec<&VersionLandmark> {
        let mut landmarks: Vec<_> = self.newest.iter().chain(self.older.iter().flatten()).collect();
        landmarks.dedup_by_key(|landmark| landmark.number);
        landmarks
    }
}

#[derive(Clone)]
pub(crate) struct VersionLandmark {
    pub object: Arc<ObjectRef>,
    pub version: Version,
    pub number: u128,
    pub document: Bytes,
}

impl VersionLandmark {
    pub fn new(object: &Arc<ObjectRef>, version: &Version, document: &[u8]) -> Option<Self> {
        let number = version_number(version).filter(|_| document.len() <= LANDMARK_BYTES)?;
        // This is a copy. A slice would keep the whole chunk or page in memory.
        let document = Bytes::copy_from_slice(document);
        Some(Self { object: Arc::clone(object), version: version.clone(), number, document })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn landmark(version: u128) -> VersionLandmark {
        let document = version.to_string();
        let version = Version::new(&document);
        VersionLandmark::new(&Arc::default(), &version, document.as_bytes()).unwrap()
    }

    fn kept(landmarks: &LandmarkSet) -> Vec<u128> {
        landmarks.all_landmarks().into_iter().map(|landmark| landmark.number).collect()
    }

    #[test]
    fn beside_the_newest_a_few_older_ones_are_kept() {
        let mut landmarks = LandmarkSet::default();
        for version in (1..=300_000).step_by(7) {
            assert!(landmarks.is_news(&Version::new(&version.to_string())));
            landmarks.note_landmark(&landmark(version));
        }
        let numbers = kept(&landmarks);
        assert_eq!(numbers[0], 300_000);
        assert_eq!(numbers.len(), 1 + ROUND.len(), "{numbers:?}");
        for (number, round) in numbers[1..].iter().zip(ROUND) {
            let bound = numbers[0] / round * round;
            assert!(*number < bound && *number + 7 >= bound, "{numbers:?}");
        }
        assert!(!landmarks.is_news(&Version::new("5")) && !landmarks.is_news(&Version::new("b")));
    }

    #[test]
    fn what_a_journal_has_gives_the_same_ones() {
        let versions: Vec<u128> = (1..=300_000).step_by(7).collect();
        let mut watched = LandmarkSet::default();
        versions.iter().for_each(|version| watched.note_landmark(&landmark(*version)));
        let mut chosen = LandmarkSet::choose_versions(&versions.iter().copied());
        let mut warm = LandmarkSet::default();
        chosen.iter().for_each(|version| warm.note_landmark(&landmark(*version)));
        assert_eq!(kept(&warm), kept(&watched));
        chosen.reverse();
        assert_eq!(chosen, kept(&watched));
        assert_eq!(LandmarkSet::choose_versions(&std::iter::empty()), Vec::<u128>::new());
        assert_eq!(LandmarkSet::choose_versions(&[9].into_iter()), [9]);
    }
}
