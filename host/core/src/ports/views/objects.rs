//! Queries for objects and their results: existing objects, ended ones, and those of a past moment.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::calendar;
use crate::ports::VisibleObjects;
use crate::state::{Change, ObjectRef, Seq, State, Status};
use crate::status::story::events::EventView;
use crate::status::story::why::CauseKind;

/// One object as it is now, as it was last seen, or as it was at the moment that was asked for.
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
    /// When the object ended, or left its source; left out while it is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("format" = "date-time")))]
    pub ended_at: Option<String>,
    /// The reason that the status of a deleted object had before, such as `BackoffLimitExceeded`. The reason
    /// of its status is the phase before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_reason: Option<String>,
    /// With `at`: how well the state at that moment is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub then: Option<ThenView>,
    /// With `was`: when it was in the phase, the last time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub was: Option<WasView>,
    /// With `details` or `cause`: why it ended badly, in one word. Known some seconds after its end; left out for pods,
    /// whose job has it, and for whoever may not get pods. The timeline's `why` says more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<CauseKind>,
    /// With `details`: what the object's states tell.
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

/// How well the state of an object at a moment is known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Then"))]
pub struct ThenView {
    /// `exact`; `missing`: versions around the moment are missing; `read-back`: versions around the moment were read
    /// back later, and when each of them came is not known; `taken`: the object was there, and retention took its
    /// states from then, so its status is empty.
    #[cfg_attr(feature = "schema", schemars(extend("enum" = ["exact", "missing", "read-back", "taken"])))]
    pub known: String,
    /// When the next version was witnessed; left out where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("format" = "date-time")))]
    pub until: Option<String>,
    /// The part that is not known, for people; left out where the state is exact.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// When an object was in a phase.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Was"))]
pub struct WasView {
    /// When the first state with the phase was observed; left out where retention took that state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("format" = "date-time")))]
    pub from: Option<String>,
    /// When the state was observed with which the object left the phase; left out while it is in the phase.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("format" = "date-time")))]
    pub until: Option<String>,
}

/// The facts that the states of an object tell.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Details"))]
pub struct DetailsView {
    /// When it was created; left out where its document does not say so, or hides it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("format" = "date-time")))]
    pub created_at: Option<String>,
    /// How long it waited before it first ran, in milliseconds; up to now while it waits.
    pub queued_ms: u64,
    /// How long it ran, in milliseconds; up to now while it runs.
    pub running_ms: u64,
    /// How often it was started again.
    pub restarts: u32,
    /// Who submitted it, as its annotation `kubewitness.dev/submitter` says; left out where it says nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub submitter: Option<String>,
    /// The first states are not there: retention took them, or the object has more states than are read for a list.
    #[serde(default, skip_serializing_if = "is_false")]
    pub cut: bool,
    /// By plugin, for those that are subscribed to the source. `delivered`: all states were handed over, or not wanted
    /// by the plugin's filter; `waiting`: some are still to be handed over; `dead`: some are dead letters.
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
    /// More exist than were counted.
    pub more: bool,
    /// With `was`: the number of objects that were in the phase. Absent if they are too many to count, or if
    /// counting would have to read each of them.
    pub was: Option<u64>,
}

/// Namespaces that a person can choose from in a list.
pub const NAMESPACES: usize = 1_000;

/// Whether objects that are gone are asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(inline))]
pub enum GoneFilter {
    /// Only objects that are there.
    #[default]
    #[serde(rename = "false")]
    No,
    /// Those that are gone, too.
    #[serde(rename = "true")]
    Too,
    /// Only those that are gone.
    #[serde(rename = "only")]
    Only,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ObjectQuery {
    /// A source by name; one that is not there is refused.
    pub source: Option<String>,
    /// A kind as people write it: `Job`, `job`, `jobs`, `jobs.batch`, `po`. `all` is every kind but Events; left out, it
    /// is every kind. One that no source witnesses is refused.
    pub kind: Option<String>,
    /// A namespace by name.
    pub namespace: Option<String>,
    /// A phase; the case of its letters does not matter.
    #[cfg_attr(feature = "schema", schemars(extend("enum" = crate::model::phases::PHASES)))]
    pub phase: Option<String>,
    /// Objects that were in this phase between `since` and `until`, by the states that the journal has; the case of its
    /// letters does not matter. Those that are still in the phase come first, then those that left it last. Each object
    /// is there once. With `gone`, objects that are gone are found, too.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(extend("enum" = crate::model::phases::PHASES)))]
    pub was: Option<String>,
    /// Objects that ended badly for this cause between `since` and `until`, the newest end first. With `gone`, objects
    /// that are gone are found, too. It takes the right to get pods.
    #[serde(default)]
    pub cause: Option<CauseKind>,
    /// An object by name.
    pub name: Option<String>,
    /// As kubectl takes it: `team=a,tier in (x, y),!old`.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(rename = "labelSelector"))]
    pub label_selector: Option<String>,
    /// `NAME=KEY`: an index of the source (`owner`, `node`, or one of its own) and what to look up. Only of objects that
    /// are there.
    #[serde(default)]
    pub index: Option<String>,
    pub limit: Option<usize>,
    /// `true`: objects that are gone, too, by the time of their end; `only`: no others.
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
    /// A part of the name, the uid, the submitter or a label's value; the case of letters does not matter.
    #[serde(default)]
    pub search: Option<String>,
    /// The objects that were there at this time, each with the state that it had then. RFC 3339. The objects
    /// that have ended since come first, by their ends.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(extend("format" = "date-time")))]
    pub at: Option<String>,
    /// The order of all pages. `changed`: the newest change, or end, first; `created`: the newest object first; `name`;
    /// `namespace`; `phase`: by its name; `restarts`: the most attempts first. A `-` before it turns it around. Of what is
    /// gone, `created`, `phase` and `restarts` have the 2,000 objects that ended last. With `at`, `was` and `cause` there is none.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(extend("enum" = crate::order::ORDERS)))]
    pub sort: Option<String>,
    /// `true`: each object with what its states tell, for at most 500 objects.
    #[serde(default)]
    pub details: bool,
    /// Where the page begins, as the link to it in the header `Link` says.
    #[serde(default)]
    pub cursor: Option<String>,
    /// The set of objects that may be found; left out: all. It is not asked for, but decided.
    #[serde(skip)]
    #[cfg_attr(feature = "schema", schemars(skip))]
    pub within: Option<VisibleObjects>,
}
