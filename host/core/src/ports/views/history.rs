//! Queries about what was witnessed (stories, gaps and poison messages), and their answers.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{EventView, ExplainedStates, ReportView, WhyView};
use crate::cursor::StoryCursor;
use crate::state::{ObjectRef, State};

/// An object is named by uid, or by kind, namespace and name (then every uid that had the name).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TimelineQuery {
    /// The object by uid; or else by kind, namespace and name, which gives every uid that had the name.
    pub uid: Option<String>,
    /// With `name`, instead of `uid`.
    pub kind: Option<String>,
    /// Left out for cluster-scoped objects.
    pub namespace: Option<String>,
    /// With `kind`, instead of `uid`.
    pub name: Option<String>,
    /// Where the part begins, as the link to it in the header `Link` says. A part with a cursor has no Events and no
    /// reports: the first part has them all.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub cursor: Option<StoryCursor>,
    pub limit: Option<usize>,
    /// Whether Events and reports are read as well: each Event has a document.
    #[serde(skip)]
    pub events: bool,
    /// By name: only objects of these kinds. `None`: of all of them.
    #[serde(skip)]
    pub kinds: Option<Vec<KindWithin>>,
    /// States of one object that are walked over. `None`: as many as every store can.
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

/// Gaps are found by what they are about; everything that is left out fits all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GapQuery {
    /// A source by name; one that is not there is refused.
    pub source: Option<String>,
    /// Gaps of the object with this uid.
    pub uid: Option<String>,
    /// Gaps of objects of this kind, as people write it; a gap of a whole source is of no kind.
    pub kind: Option<String>,
    /// Gaps of objects in this namespace.
    pub namespace: Option<String>,
    /// Gaps of objects with this name.
    pub name: Option<String>,
    /// Where the part begins, as the link to it in the header `Link` says.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub cursor: Option<u64>,
    pub limit: Option<usize>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PoisonQuery {
    /// A source by name; one that is not there is refused.
    pub source: Option<String>,
    /// Where the part begins, as the link to it in the header `Link` says.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub cursor: Option<u64>,
    pub limit: Option<usize>,
}

/// A poison message: bytes that are no object of their source's kind. The bytes themselves are asked for by number.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Poison"))]
pub struct PoisonView {
    /// Ascends in the order of arrival.
    pub number: u64,
    pub source: String,
    pub epoch: u32,
    pub error: String,
    pub observed_ms: u64,
    pub bytes: u64,
    /// How it begins, as far as that is text.
    pub excerpt: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Timeline"))]
pub struct TimelineView {
    /// Oldest first.
    pub states: Vec<Arc<State>>,
    /// States of objects that this one owns (a Job's pods), oldest first.
    pub related: Vec<Arc<State>>,
    /// Events of Kubernetes about this object and those that it owns, oldest first. Those that say the same are
    /// one, with a count. If this object is an Event: what it says itself.
    #[serde(default)]
    pub events: Vec<EventView>,
    /// Reports of plugins about these objects, such as who was told; oldest first.
    #[cfg_attr(feature = "schema", schemars(extend("maxItems" = crate::reports::SHOWN)))]
    #[serde(default)]
    pub reports: Vec<ReportView>,
    /// Why the object failed, or what it waits for. A part with a cursor has none, nor has an answer about several objects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<WhyView>,
    /// There are older states than these: `limit` was reached.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cut: bool,
    /// It owns more objects than an answer is about, and this one is about the newest of them. Those that it owns itself
    /// follow in the next parts. What belongs to one of them beyond that is in the timeline of that one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub owns_more: bool,
    /// Where the part with the older ones begins. It stands in the header `Link`.
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
            is_cut: self.cut,
        }
    }
}
