//! Queries about what was witnessed (stories, gaps and poison messages), and their answers.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{EventView, ExplainedStates, PodCoverage, ReportView, WhyView};
use crate::cursor::StoryCursor;
use crate::state::{ObjectRef, State};

/// Selects an object by uid, or by kind, namespace and name (then every uid that had the name).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TimelineQuery {
    /// The object by uid; or else by kind, namespace and name, which gives every uid that had the name.
    pub uid: Option<String>,
    /// With `name`, instead of `uid`.
    pub kind: Option<String>,
    /// Absent for cluster-scoped objects.
    pub namespace: Option<String>,
    /// With `kind`, instead of `uid`.
    pub name: Option<String>,
    /// The start of the part, from the link to it in the header `Link`. Only the first part has Events and
    /// reports, and it has all of them.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub cursor: Option<StoryCursor>,
    pub limit: Option<usize>,
    /// Whether to read Events and reports as well: each Event has a document.
    #[serde(skip)]
    pub events: bool,
    /// For a query by name, the kinds of objects to find; `None` for all.
    #[serde(skip)]
    pub kinds: Option<Vec<KindWithin>>,
    /// The most states of one object that are read; `None` for the most that every store can read.
    #[serde(skip)]
    pub walked: Option<i64>,
}

impl TimelineQuery {
    /// The newest state of an object, without the objects that it owns.
    pub fn newest_of(uid: &str) -> Self {
        let cursor = StoryCursor { related: 0, ..StoryCursor::NEWEST };
        Self { uid: Some(uid.into()), cursor: Some(cursor), limit: Some(1), ..Self::default() }
    }
}

/// Objects of one kind, in all namespaces or in some.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KindWithin {
    pub group: String,
    pub kind: String,
    pub namespaces: Option<BTreeSet<String>>,
}

impl KindWithin {
    pub fn contains_object(&self, object: &ObjectRef) -> bool {
        let is_in = |all: &BTreeSet<String>| all.contains(&object.namespace);
        self.group == object.group && self.kind == object.kind && self.namespaces.as_ref().is_none_or(is_in)
    }
}

/// Selects gaps by their subject. Omitted fields match every gap.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GapQuery {
    /// A source by name; an unknown one is refused.
    pub source: Option<String>,
    /// Gaps of the object with this uid.
    pub uid: Option<String>,
    /// Gaps of objects of this kind, as people write it. A gap of a whole source has no kind.
    pub kind: Option<String>,
    /// Gaps of objects in this namespace.
    pub namespace: Option<String>,
    /// Gaps of objects with this name.
    pub name: Option<String>,
    /// The start of the part, from the link to it in the header `Link`.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub cursor: Option<u64>,
    pub limit: Option<usize>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PoisonQuery {
    /// A source by name; an unknown one is refused.
    pub source: Option<String>,
    /// The start of the part, from the link to it in the header `Link`.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub cursor: Option<u64>,
    pub limit: Option<usize>,
}

/// A poison message: bytes that are not an object of their source's kind. Another request returns the bytes
/// by number.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Poison"))]
pub struct PoisonView {
    /// Increases in the order of arrival.
    pub number: u64,
    pub source: String,
    pub epoch: u32,
    pub error: String,
    pub observed_ms: u64,
    pub bytes: u64,
    /// The beginning of the bytes, as far as that is text.
    pub excerpt: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Timeline"))]
pub struct TimelineView {
    /// Oldest first.
    pub states: Vec<Arc<State>>,
    /// States of objects that this one owns (a Job's pods), oldest first.
    pub related: Vec<Arc<State>>,
    /// Events of Kubernetes about this object and those that it owns, oldest first. Equal ones are combined,
    /// with a count. If this object is an Event, its own content.
    #[serde(default)]
    pub events: Vec<EventView>,
    /// Plugins' reports about these objects, such as the recipients of a notification; oldest first.
    #[cfg_attr(feature = "schema", schemars(extend("maxItems" = crate::reports::SHOWN)))]
    #[serde(default)]
    pub reports: Vec<ReportView>,
    /// Why the object failed, or what it waits for. Absent in a part with a cursor, and in an answer about
    /// several objects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<WhyView>,
    /// The objects for which this one made room, as far as the viewer may see them. `why` names them.
    #[serde(skip)]
    pub preemptors: Vec<ObjectRef>,
    /// How far pods are among the related states.
    #[serde(skip)]
    pub pods: PodCoverage,
    /// Older states exist: the number is limited by `limit`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cut: bool,
    /// The object owns more objects than an answer covers, and this answer covers the newest of them. The
    /// next parts have the others. States of such an object beyond that are in its own timeline.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub owns_more: bool,
    /// The start of the part with the older states. The header `Link` has it.
    #[serde(skip)]
    pub next: Option<StoryCursor>,
}

impl TimelineView {
    /// The part that an explanation uses.
    pub fn explained_states(&self) -> ExplainedStates<'_> {
        ExplainedStates {
            states: &self.states,
            related: &self.related,
            events: &self.events,
            preemptors: &self.preemptors,
            pods: self.pods,
            is_cut: self.cut,
        }
    }
}
