//! Queries for objects and their results: existing objects, ended ones, and those of a past moment.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::calendar;
use crate::ports::VisibleObjects;
use crate::state::{Change, ObjectRef, Seq, State, Status};
use crate::status::story::events::EventView;
use crate::status::story::why::CauseKind;

/// One object in its present state, its last one, or that of the requested moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Object"))]
pub struct ObjectView {
    pub source: String,
    pub object: ObjectRef,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<ObjectRef>,
    pub resource_version: String,
    pub status: Status,
    pub seq: Seq,
    #[cfg_attr(feature = "schema", schemars(extend("format" = "date-time")))]
    pub observed_at: String,
    /// When the object ended, or left its source; absent while it exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("format" = "date-time")))]
    pub ended_at: Option<String>,
    /// The reason in the status of an object before it was deleted, such as `BackoffLimitExceeded`. The
    /// reason of its present status is the previous phase.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_reason: Option<String>,
    /// With `at`: how certain the state at that moment is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub then: Option<ThenView>,
    /// With `was`: when it was in the phase, the last time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub was: Option<WasView>,
    /// With `details` or `cause`: why it ended badly, in one word. Known some seconds after its end; absent
    /// for pods, whose job has it, and for people who may not get pods. The timeline's `why` has more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<CauseKind>,
    /// With `details`: facts from the object's states.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<DetailsView>,
}

/// Describes an object by one of its states.
impl From<&State> for ObjectView {
    fn from(state: &State) -> Self {
        Self {
            source: state.source.to_string(),
            object: (*state.object).clone(),
            owner: state.owner.as_deref().cloned(),
            resource_version: state.resource_version.to_string(),
            status: (*state.status).clone(),
            seq: state.seq,
            observed_at: calendar::format_rfc3339(state.observed_ms),
            ended_reason: ended_reason(state),
            ..Self::default()
        }
    }
}

fn ended_reason(state: &State) -> Option<String> {
    let before = state.previous.as_ref().filter(|_| state.change == Change::Gone)?;
    Some(before.reason.clone()).filter(|reason| !reason.is_empty())
}

/// How certain the state of an object at a moment is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Then"))]
pub struct ThenView {
    /// `exact`; `missing`: versions around the moment are missing; `read-back`: versions around the moment
    /// were read back later, and their times are unknown; `taken`: the object existed, but retention has
    /// removed its states of that time, so its status is empty.
    #[cfg_attr(feature = "schema", schemars(extend("enum" = ["exact", "missing", "read-back", "taken"])))]
    pub known: String,
    /// When the next version was witnessed; absent if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("format" = "date-time")))]
    pub until: Option<String>,
    /// The uncertainty, for people; absent if the state is exact.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// When an object was in a phase.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Was"))]
pub struct WasView {
    /// When the first state with the phase was observed; absent if retention has removed that state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("format" = "date-time")))]
    pub from: Option<String>,
    /// When the state was observed with which the object left the phase; absent while it is in the phase.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("format" = "date-time")))]
    pub until: Option<String>,
}

/// Facts from the states of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Details"))]
pub struct DetailsView {
    /// When it was created; absent if its document lacks or hides that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("format" = "date-time")))]
    pub created_at: Option<String>,
    /// How long it waited before it first ran, in milliseconds, or has waited until now. 0 for a TrainJob whose status does
    /// not say when it runs.
    pub queued_ms: u64,
    /// How long it ran, in milliseconds, or has run until now.
    pub running_ms: u64,
    /// How often it was started again.
    pub restarts: u32,
    /// The submitter, from its annotation `kubewitness.dev/submitter`; absent without the annotation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub submitter: Option<String>,
    /// The first states are missing: retention has removed them, or the object has more states than a list
    /// reads.
    #[serde(default, skip_serializing_if = "is_false")]
    pub cut: bool,
    /// By plugin, for those that are subscribed to the source. `delivered`: all states were delivered, or
    /// excluded by the plugin's filter; `waiting`: some are still to be delivered; `dead`: some are dead
    /// letters.
    pub plugins: BTreeMap<String, String>,
    /// The content of an Event of Kubernetes. It has no phase, and neither waits nor runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event: Option<EventView>,
}

fn is_false(it: &bool) -> bool {
    !it
}

/// The stage of a state in a plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DeliveryStage {
    /// Delivered, or excluded by its filter.
    Delivered,
    /// Not delivered yet, or to be delivered again.
    Waiting,
    /// A dead letter.
    Dead,
}

impl DeliveryStage {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Delivered => "delivered",
            Self::Waiting => "waiting",
            Self::Dead => "dead",
        }
    }
}

/// By plugin and position, for states to which the plugin is subscribed.
pub type DeliveryMap = BTreeMap<String, BTreeMap<Seq, DeliveryStage>>;

/// A page of objects.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ObjectPage {
    pub objects: Vec<ObjectView>,
    /// The cursor of the next page, if more may exist.
    pub next: Option<String>,
    /// Notices about the whole answer, for example that the moment is before the beginning of the journal.
    pub notices: Vec<String>,
}

/// The existing objects, counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectCounts {
    pub phases: BTreeMap<String, u64>,
    /// The namespaces that have objects, at most [`NAMESPACES`].
    pub namespaces: BTreeSet<String>,
    /// Whether more exist than were counted.
    pub more: bool,
    /// With `was`: the number of objects that were in the phase. Absent if there are too many to count, or if
    /// counting would read each of them.
    pub was: Option<u64>,
}

/// Namespaces that a person can choose from in a list.
pub const NAMESPACES: usize = 1_000;

/// Which objects a query finds, existing or gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(inline))]
pub enum GoneFilter {
    /// Only existing objects.
    #[default]
    #[serde(rename = "false")]
    No,
    /// Also objects that are gone.
    #[serde(rename = "true")]
    Too,
    /// Only objects that are gone.
    #[serde(rename = "only")]
    Only,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ObjectQuery {
    /// A source by name; an unknown one is refused.
    pub source: Option<String>,
    /// A kind as people write it: `Job`, `job`, `jobs`, `jobs.batch`, `po`. `all` is every kind except
    /// Events. By default every kind. One that no source witnesses is refused.
    pub kind: Option<String>,
    /// A namespace by name.
    pub namespace: Option<String>,
    /// A phase, in upper or lower case.
    #[cfg_attr(feature = "schema", schemars(extend("enum" = crate::model::phases::PHASES)))]
    pub phase: Option<String>,
    /// Objects that were in this phase between `since` and `until`, according to the journal's states; in
    /// upper or lower case. Those that are still in the phase come first, then those that left it last. Each
    /// object occurs once. With `gone`, objects that are gone are included.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(extend("enum" = crate::model::phases::PHASES)))]
    pub was: Option<String>,
    /// Objects that ended badly for this cause between `since` and `until`, the newest end first. With
    /// `gone`, objects that are gone are included. Requires the right to get pods.
    #[serde(default)]
    pub cause: Option<CauseKind>,
    /// An object by name.
    pub name: Option<String>,
    /// In the syntax of kubectl: `team=a,tier in (x, y),!old`.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(rename = "labelSelector"))]
    pub label_selector: Option<String>,
    /// `NAME=KEY`: an index of the source (`owner`, `node`, or one of its own), and the key to look up. Only
    /// for existing objects.
    #[serde(default)]
    pub index: Option<String>,
    pub limit: Option<usize>,
    /// `true`: include objects that are gone, by the time of their end; `only`: find no others.
    #[serde(default)]
    pub gone: GoneFilter,
    /// Limits the objects that are gone to those that ended at this time or later; with `was`, the objects to
    /// those that were in the phase at this time or later; with `cause`, to those that ended badly at this
    /// time or later. RFC 3339.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(extend("format" = "date-time")))]
    pub since: Option<String>,
    /// Limits the objects that are gone to those that ended before this time; with `was`, the objects to
    /// those that were in the phase before this time; with `cause`, to those that ended badly before this
    /// time. RFC 3339.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(extend("format" = "date-time")))]
    pub until: Option<String>,
    /// A part of the name, the uid, the submitter or a label's value, in upper or lower case.
    #[serde(default)]
    pub search: Option<String>,
    /// The objects that existed at this time, each with its state of that time. RFC 3339. Objects that have
    /// ended since come first, by their ends.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(extend("format" = "date-time")))]
    pub at: Option<String>,
    /// The order of all pages. `changed`: the newest change, or end, first; `created`: the newest object
    /// first; `name`; `namespace`; `phase`: alphabetically; `restarts`: the most attempts first. A leading
    /// `-` reverses the order. Of objects that are gone, `created`, `phase` and `restarts` include the 2,000
    /// that ended last. Not available with `at`, `was` and `cause`.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(extend("enum" = crate::order::ORDERS)))]
    pub sort: Option<String>,
    /// `true`: each object with facts from its states, for at most 500 objects.
    #[serde(default)]
    pub details: bool,
    /// The start of the page, from the link to it in the header `Link`.
    #[serde(default)]
    pub cursor: Option<String>,
    /// Objects that are gone and whose names end so. It is for the controller's own questions: names are
    /// compared without their documents, so one page looks at thousands.
    #[serde(skip)]
    #[cfg_attr(feature = "schema", schemars(skip))]
    pub gone_name_end: Option<String>,
    /// The objects that may be found; `None` for all. The viewer's rights determine them, and not the
    /// request.
    #[serde(skip)]
    #[cfg_attr(feature = "schema", schemars(skip))]
    pub within: Option<VisibleObjects>,
    /// The progress of plugins is for operators: `details` leave it out for others, and it is not looked up.
    #[serde(skip)]
    #[cfg_attr(feature = "schema", schemars(skip))]
    pub hides_plugins: bool,
}
