//! Defines a state: one witnessed version of one object.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::num::NonZeroU32;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::version::Version;

/// A position in the journal. The first state has position 1; 0 means "before the beginning".
pub type Seq = u64;

/// Why a state exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(inline))]
#[serde(rename_all = "lowercase")]
pub enum Change {
    /// The object has this version.
    Present,
    /// The object no longer exists.
    Gone,
    /// The object still exists but no longer matches its source.
    Left,
    /// Versions of this object are known to be missing here.
    Gap,
}

impl Change {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Present => "present",
            Self::Gone => "gone",
            Self::Left => "left",
            Self::Gap => "gap",
        }
    }
}

/// Identifies an object. `group` is empty for the core group, `namespace` for cluster-scoped kinds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ObjectRef {
    pub group: String,
    pub version: String,
    pub kind: String,
    pub namespace: String,
    pub name: String,
    pub uid: String,
}

/// The summary of an object's progress. It is a pure function of the object, never of the clock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "StatusOfObject"))]
pub struct Status {
    #[cfg_attr(feature = "schema", schemars(extend("enum" = crate::model::phases::PHASES)))]
    pub phase: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    #[serde(default)]
    pub attempt: u32,
    #[serde(default)]
    pub ready: u32,
    #[serde(default)]
    pub total: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    #[serde(default)]
    pub terminal: bool,
}

/// The idempotency key of a state: the same state always has the same id.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(inline))]
#[serde(transparent)]
pub struct StateId(Arc<str>);

impl StateId {
    pub fn parse(text: &str) -> Self {
        Self(text.into())
    }

    /// A version identifies a `present` or `left` state. `gone` has no version: a uid ends only once, and a
    /// deletion that a relist found has no version. A gap is identified by its bounds.
    pub fn of(
        source: &str,
        epoch: u32,
        object: &ObjectRef,
        change: Change,
        version: &Version,
        gap: Option<&Gap>,
    ) -> Self {
        let which = match (change, gap) {
            (Change::Gone, _) => ["gone", "", "", ""],
            (Change::Gap, Some(gap)) => ["gap:", &gap.after, "-", &gap.before],
            _ => [version.as_str(), "", "", ""],
        };
        let (group, kind, uid) = (&object.group, &object.kind, &object.uid);
        let [a, b, c, d] = which;
        // This runs for each state, so it joins the parts and avoids the formatter.
        let parts = [source, "/", &epoch.to_string(), "/", group, "/", kind, "/", uid, "/", a, b, c, d];
        Self(parts.concat().into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for StateId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for StateId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Versions that are known to be missing: those strictly between `after` and `before`. It is the document of
/// a state whose change is `gap`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Gap {
    pub source: String,
    /// The object; left out if the whole source has the gap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object: Option<ObjectRef>,
    pub epoch: u32,
    /// The last version below the gap; empty if it is not known (a source that was never seen).
    pub after: String,
    /// The first version above the gap; empty if it is not known ("until now").
    pub before: String,
    /// A word for programs.
    #[cfg_attr(feature = "schema", schemars(extend("examples" = crate::words::names_of_words(&gap_reason::ALL))))]
    pub reason: String,
    /// A sentence for people.
    pub message: String,
    pub recorded_ms: u64,
}

/// Why versions are missing: the words that programs read in a [`Gap`].
pub mod gap_reason {
    crate::words! {
        /// The API server has removed the missing versions by compaction.
        COMPACTED = "Compacted";
        /// Reading the missing versions back would take more requests or more time than the budget allows.
        BUDGET = "BudgetSpent";
        /// The API server does not answer requests for old versions, or its versions have no order.
        UNREADABLE = "ExactListRefused";
        /// The history of the API server was replaced, as by a restore from a backup. The source starts a
        /// new epoch.
        REPLACED = "HistoryReplaced";
        /// Retention removed states that a plugin had not finished, because the source's `retention` says
        /// `pastCursors: true`.
        RETENTION = "Retention";
        /// A stream lost states between two controllers. The controller that carries the stream may still have them.
        LOST = "LostOnTheWay";
    }
}

/// Identifies the redaction rules together with the version of the search. A result under one print is
/// invalid under another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RulesPrint(NonZeroU32);

impl RulesPrint {
    /// Makes a print of the first bytes of a digest.
    pub fn of(digest: [u8; 4]) -> Self {
        Self(NonZeroU32::new(u32::from_le_bytes(digest)).unwrap_or(NonZeroU32::MIN))
    }

    /// `None` for 0, which means "not searched" in stored prints.
    pub fn from_bits(bits: u32) -> Option<Self> {
        NonZeroU32::new(bits).map(Self)
    }

    pub fn bits(self) -> u32 {
        self.0.get()
    }
}

/// A journaled state without its document. Documents are read by `seq` when they are needed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct State {
    pub id: StateId,
    pub seq: Seq,
    pub source: Arc<str>,
    pub epoch: u32,
    pub change: Change,
    pub object: Arc<ObjectRef>,
    /// The outermost owner that is known. Pages group by it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Arc<ObjectRef>>,
    pub resource_version: Version,
    pub status: Arc<Status>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<Arc<Status>>,
    pub observed_ms: u64,
    /// Whether it arrived after a newer version of the same object had been journaled.
    #[serde(default)]
    pub late: bool,
    /// The rules under which its texts were found to quote no secret. None: nobody has looked, or they may quote one.
    #[serde(skip)]
    pub quotes_none_under: Option<RulesPrint>,
}

/// The key of an object's lane. It is made from the name and not from the uid, so a recreated object shares
/// the lane of the old one. Two names with the same hash share a lane, which costs only parallelism. The key
/// is stable within a process and never stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LaneKey {
    /// The hash of the lane's namespace, for fair shares. Two namespaces with the same hash get one share.
    pub namespace: u64,
    pub lane: u64,
}

impl LaneKey {
    pub fn of(source: &str, object: &ObjectRef) -> Self {
        Self {
            namespace: hash_value(&object.namespace),
            lane: hash_value((source, &object.namespace, &object.name)),
        }
    }
}

fn hash_value(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

impl State {
    pub fn lane_key(&self) -> LaneKey {
        LaneKey::of(&self.source, &self.object)
    }

    /// Whether the status changed in a way that people care about. Messages don't count, because some
    /// controllers put a clock into them.
    pub fn is_transition(&self) -> bool {
        let Some(previous) = &self.previous else { return true };
        let now = &self.status;
        self.change != Change::Present
            || (&previous.phase, &previous.reason, previous.attempt, previous.exit_code, previous.terminal)
                != (&now.phase, &now.reason, now.attempt, now.exit_code, now.terminal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object() -> ObjectRef {
        ObjectRef { group: "batch".into(), kind: "Job".into(), uid: "u1".into(), ..ObjectRef::default() }
    }

    #[test]
    fn the_kind_of_event_is_not_part_of_the_id() {
        let version = Version::new("7");
        let present = StateId::of("jobs", 0, &object(), Change::Present, &version, None);
        let left = StateId::of("jobs", 0, &object(), Change::Left, &version, None);
        assert_eq!(present, left);
        assert_eq!(present.as_str(), "jobs/0/batch/Job/u1/7");
    }

    #[test]
    fn a_uid_dies_once_whatever_version_its_deletion_had() {
        let one = StateId::of("jobs", 0, &object(), Change::Gone, &Version::new("8"), None);
        let other = StateId::of("jobs", 0, &object(), Change::Gone, &Version::new(""), None);
        assert_eq!(one, other);
    }
}
