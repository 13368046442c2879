//! Walks one object back, version by version. Pure: it decides which version to request next and takes the
//! answer; the caller sends the requests.
//!
//! An exact list at version N shows the object as it was then, with the version that it had. So below a known
//! version the walk requests the number before it, and the answer's version is the next known one. It
//! continues down to the last witnessed version, or to compaction.

use std::cmp::Ordering;

use bytes::Bytes;
use kubewitness_core::Version;
use thiserror::Error;

use super::requests::ExactListError;
use crate::source::life::WalkResult;
use crate::source::missing::{MissingVersions, reason};
use crate::source::round::CompleteSince;
use crate::version::version_number;

const COMPACTED: &str = "compaction has removed them";

/// The result of an exact list of one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ExactAnswer {
    Item {
        uid: String,
        version: Version,
        document: Bytes,
    },
    /// No object had this name then.
    Nobody,
    Compacted,
    /// The server does not read old versions, or the request failed permanently.
    Refused(ReadRefusal),
}

/// Why a version can't be read. The text stands in gaps.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum ReadRefusal {
    #[error("`{0}` is not a number")]
    NoNumber(Version),
    #[error("version {0} is reported as compacted, but can be read")]
    Contradicted(Version),
    #[error(transparent)]
    List(#[from] ExactListError),
}

#[derive(Debug)]
pub(crate) struct VersionWalk {
    uid: String,
    since: CompleteSince,
    lost: bool,
    /// The oldest known version above the floor.
    oldest: Version,
    found: Vec<(Version, Bytes)>,
    budget: u32,
}

/// The next step of the search.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NextQuestion {
    Ask(Version),
    Done(WalkResult),
}

impl VersionWalk {
    pub fn new(uid: &str, since: CompleteSince, newest: Version, budget: u32) -> Self {
        let since = since.forget_last();
        let mut walk =
            Self { uid: uid.to_string(), since, lost: false, oldest: newest, found: Vec::new(), budget };
        walk.doubt_floor();
        walk
    }

    /// Marks the floor as doubtful if an answer contradicts it.
    fn doubt_floor(&mut self) {
        if self.since.has_lost(&self.oldest) {
            self.since.lower_floor();
            self.lost = true;
        }
    }

    /// Everything up to `gone` is known to be compacted and is not requested.
    pub fn next(&mut self, gone: u128) -> NextQuestion {
        let Some(ask) = self.oldest.directly_before() else {
            // Versions without order can't be counted back, and nothing comes before version 1.
            let ordered = self.oldest.is_comparable() && self.since.floor.is_comparable();
            return self.finish_walk(
                (!ordered).then_some((reason::UNREADABLE, "the server's versions have no order")),
            );
        };
        // Directly above the floor, the content at the floor still shows whether the floor is right.
        let is_doubtful = ask == self.since.floor && self.since.last.is_some();
        if !is_doubtful && ask.compare_to(&self.since.floor).is_none_or(Ordering::is_le) {
            return self.finish_walk(None);
        }
        if version_number(&ask).is_some_and(|ask| ask <= gone) {
            return self.finish_walk(Some((reason::COMPACTED, COMPACTED)));
        }
        if self.budget == 0 {
            return self
                .finish_walk(Some((reason::BUDGET, "reading them back would have taken too many requests")));
        }
        self.budget -= 1;
        NextQuestion::Ask(ask)
    }

    pub fn take_answer(&mut self, answer: ExactAnswer) -> Option<WalkResult> {
        match answer {
            ExactAnswer::Item { uid, version, document } if uid == self.uid => {
                // An answer that does not go back would be requested endlessly.
                if version.compare_to(&self.oldest) != Some(Ordering::Less) {
                    return Some(
                        self.take_result(Some((reason::UNREADABLE, "an exact list showed a newer version"))),
                    );
                }
                self.oldest = version.clone();
                self.doubt_floor();
                if version.compare_to(&self.since.floor).is_none_or(Ordering::is_le) {
                    return Some(self.take_result(None));
                }
                self.found.push((version, document));
                None
            }
            // The object's life begins above this version.
            ExactAnswer::Item { .. } | ExactAnswer::Nobody => Some(self.take_result(None)),
            ExactAnswer::Compacted => Some(self.take_result(Some((reason::COMPACTED, COMPACTED)))),
            ExactAnswer::Refused(why) => Some(self.take_result(Some((reason::UNREADABLE, &why.to_string())))),
        }
    }

    fn finish_walk(&mut self, hole: Option<(&'static str, &str)>) -> NextQuestion {
        NextQuestion::Done(self.take_result(hole))
    }

    /// Gives up for a reason that the caller passes.
    pub fn take_result(&mut self, hole: Option<(&'static str, &str)>) -> WalkResult {
        let mut found = std::mem::take(&mut self.found);
        found.reverse();
        let hole =
            hole.and_then(|(reason, why)| missing_between(&self.since.floor, &self.oldest, reason, why));
        WalkResult { found, hole, lost: self.lost }
    }
}

/// Searches for the end of an object that existed at one version and not at a later one. A uid lives once and
/// without a break, so halving finds the version of the deletion.
#[derive(Debug)]
pub(crate) struct EndSearch {
    uid: String,
    /// It existed here, or that is unknown by now.
    present: u128,
    /// It did not exist here.
    absent: u128,
    last: Option<(Version, Bytes)>,
    /// Whether `present` is the limit of compaction.
    compacted: bool,
    /// Other objects that had its name in between.
    met: Vec<MetObject>,
}

/// Another object of a name, as it was at one version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MetObject {
    pub uid: String,
    pub at: Version,
    pub version: Version,
    pub document: Bytes,
}

/// The state of the search.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SearchStep {
    Ask(Version),
    /// The version of the deletion (`None` if compaction hides it), and the last content that was found above
    /// the floor. Both are `None` if compaction came during the search.
    Ended {
        version: Option<Version>,
        last: Option<(Version, Bytes)>,
    },
}

impl EndSearch {
    /// Returns `None` if the versions have no order and can't be halved.
    pub fn new(uid: &str, present: &Version, absent: &Version) -> Option<Self> {
        let (present, absent) = (version_number(present)?, version_number(absent)?);
        Some(Self { uid: uid.to_string(), present, absent, last: None, compacted: false, met: Vec::new() })
    }

    /// Everything up to `gone` is known to be compacted and is not requested.
    pub fn next(&mut self, gone: u128) -> SearchStep {
        let hidden = gone.min(self.absent.saturating_sub(1));
        if self.present < hidden {
            (self.present, self.compacted) = (hidden, true);
        }
        if self.present + 1 < self.absent {
            let middle = self.present + (self.absent - self.present) / 2;
            return SearchStep::Ask(Version::new(&middle.to_string()));
        }
        let version = (!self.compacted).then(|| Version::new(&self.absent.to_string()));
        SearchStep::Ended { version, last: self.last.clone() }
    }

    /// Returns an error if the server can't be queried.
    pub fn take_answer(&mut self, at: &Version, answer: ExactAnswer) -> Result<(), ReadRefusal> {
        let at: u128 = at.as_str().parse().map_err(|_| ReadRefusal::NoNumber(at.clone()))?;
        match answer {
            ExactAnswer::Item { uid, version, document } if uid == self.uid => {
                (self.present, self.compacted, self.last) = (at, false, Some((version, document)));
            }
            ExactAnswer::Item { uid, version, document } => {
                if self.met.iter().all(|met| met.uid != uid) {
                    let at = Version::new(&at.to_string());
                    self.met.push(MetObject { uid, at, version, document });
                }
                self.absent = at;
            }
            ExactAnswer::Nobody => self.absent = at,
            ExactAnswer::Compacted => (self.present, self.compacted) = (at, true),
            ExactAnswer::Refused(why) => return Err(why),
        }
        Ok(())
    }

    /// It no longer existed here.
    pub fn absent_version(&self) -> Version {
        Version::new(&self.absent.to_string())
    }

    /// The objects that were met, each once.
    pub fn into_met(self) -> Vec<MetObject> {
        self.met
    }
}

/// The hole strictly between two versions; `None` if nothing can be between them.
pub(crate) fn missing_between(
    after: &Version,
    before: &Version,
    reason: &'static str,
    why: &str,
) -> Option<MissingVersions> {
    if before.directly_before().is_some_and(|last| last.compare_to(after).is_some_and(Ordering::is_le)) {
        return None;
    }
    let which = match (after.as_str(), before.as_str()) {
        ("", "") => "versions".to_string(),
        ("", before) => format!("versions before {before}"),
        (after, "") => format!("versions after {after}"),
        (after, before) => format!("versions between {after} and {before}"),
    };
    let message = format!("{which} are missing: {why}");
    Some(MissingVersions { after: after.to_string(), before: before.to_string(), reason, message })
}

/// The number after a version: the bound of a hole that includes the version. A version without order has
/// none; then the bound is empty, which means "until now".
pub(crate) fn bound_after(version: &Version) -> String {
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
