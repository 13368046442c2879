//! Values that describe the versions of an object that were read back.

use bytes::Bytes;
use kubewitness_core::Version;
use kubewitness_core::state::ObjectRef;

use crate::source::missing::MissingVersions;
use crate::version::version_number;

/// The result of walking back.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct WalkResult {
    /// The missed versions, oldest first.
    pub found: Vec<(Version, Bytes)>,
    /// The gap before these versions.
    pub hole: Option<MissingVersions>,
    /// Whether a lost version was found where the watch counted as complete.
    pub lost: bool,
}

/// An object of which nothing was witnessed.
#[derive(Debug)]
pub(crate) struct UnwitnessedLife {
    pub object: ObjectRef,
    /// In order, each with the gap below it.
    pub walked: Vec<WalkResult>,
    /// `None` if it still exists, or if the version of its deletion is not known.
    pub died: Option<Version>,
    /// Whether it existed when everything was listed.
    pub survives: bool,
}

impl UnwitnessedLife {
    pub fn is_torn(&self) -> bool {
        self.walked.iter().any(|walked| walked.hole.is_some()) || (self.died.is_none() && !self.survives)
    }

    /// Whether nothing is missing below its oldest known version.
    pub fn is_whole(&self) -> bool {
        self.walked.first().is_some_and(|below| below.hole.is_none())
    }

    /// Its oldest known version.
    pub fn first_version(&self) -> u128 {
        let mut found = self.walked.iter().flat_map(|walked| &walked.found);
        found.next().and_then(|(version, _)| version_number(version)).unwrap_or_default()
    }

    /// The most states that it makes.
    pub fn most_states(&self) -> usize {
        self.walked.iter().map(|walked| walked.found.len() + 1).sum::<usize>() + 1
    }
}
