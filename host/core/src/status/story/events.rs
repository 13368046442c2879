//! Reads Kubernetes Events: which object an Event is about, and how a story summarizes the Events of an
//! object.
//!
//! The API server deletes an Event after an hour. If Events are watched as a source, they are journaled like
//! any other object. A story finds them by the uid of the object that they are about.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::duration_text;
use crate::calendar;
use crate::model::fault::shorten_text;
use crate::state::{ObjectRef, Seq};

/// The most bytes of a message, as many as a status has. The API server accepts longer ones in the older form
/// of an Event.
const MESSAGE_BYTES: usize = 1024;
/// The most bytes of an Event's text that a story reads. It is longer than the shown text, because secrets in
/// it are replaced by digests.
const TEXT_BYTES: usize = 4 * MESSAGE_BYTES;

/// The most Events of one story. A reader who needs more reads the Events themselves.
pub const SHOWN: usize = 200;

/// One event, or several that say the same of the same object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Event"))]
pub struct EventView {
    /// The Event itself; the newest where several say the same.
    pub object: ObjectRef,
    /// The object that it is about.
    pub about: ObjectRef,
    /// `Normal` or `Warning`.
    #[serde(rename = "type")]
    pub kind: String,
    pub reason: String,
    pub message: String,
    /// How often it happened.
    pub count: u64,
    pub first_ms: u64,
    pub last_ms: u64,
    /// Who reported it, such as `kubelet`.
    pub from: String,
    /// The position of its newest state.
    pub seq: Seq,
}

pub use crate::kinds::is_event;

/// Both forms of an Event: that of `v1`, and that of `events.k8s.io/v1`.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct EventDocument {
    metadata: EventMetadata,
    involved_object: Option<EventReference>,
    regarding: Option<EventReference>,
    #[serde(rename = "type")]
    kind: Option<String>,
    reason: Option<String>,
    message: Option<String>,
    note: Option<String>,
    count: Option<u64>,
    deprecated_count: Option<u64>,
    series: Option<EventSeries>,
    first_timestamp: Option<String>,
    deprecated_first_timestamp: Option<String>,
    last_timestamp: Option<String>,
    deprecated_last_timestamp: Option<String>,
    event_time: Option<String>,
    reporting_component: Option<String>,
    reporting_controller: Option<String>,
    source: Option<EventReporter>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct EventMetadata {
    namespace: Option<String>,
    creation_timestamp: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct EventReference {
    api_version: Option<String>,
    kind: Option<String>,
    namespace: Option<String>,
    name: Option<String>,
    uid: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct EventSeries {
    count: Option<u64>,
    last_observed_time: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct EventReporter {
    component: Option<String>,
}

impl EventDocument {
    fn event_subject(&mut self) -> Option<ObjectRef> {
        let reference = self.involved_object.take().or(self.regarding.take())?;
        let api_version = reference.api_version.unwrap_or_default();
        let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
        Some(ObjectRef {
            group: group.to_owned(),
            version: version.to_owned(),
            kind: reference.kind?,
            namespace: reference.namespace.unwrap_or_default(),
            name: reference.name?,
            uid: reference.uid.filter(|uid| !uid.is_empty())?,
        })
    }
}

/// The object that an Event is about; `None` if the Event names no object, or no uid.
pub fn event_subject(document: &[u8]) -> Option<ObjectRef> {
    serde_json::from_slice::<EventDocument>(document).ok()?.event_subject()
}

/// Reads the content of an Event. If the Event has no time, `observed_ms` is used.
pub fn read(document: &[u8], object: &ObjectRef, seq: Seq, observed_ms: u64) -> Option<EventView> {
    let mut event: EventDocument = serde_json::from_slice(document).ok()?;
    let about = event.event_subject()?;
    let time = |texts: [&Option<String>; 4]| {
        texts.into_iter().flatten().find_map(|text| calendar::parse_rfc3339_ms(text)).unwrap_or(observed_ms)
    };
    let created = &event.metadata.creation_timestamp;
    let first_ms =
        time([&event.first_timestamp, &event.deprecated_first_timestamp, &event.event_time, created]);
    let in_series = event.series.as_ref().and_then(|series| series.last_observed_time.clone());
    let last_ms =
        time([&in_series, &event.last_timestamp, &event.deprecated_last_timestamp, &event.event_time]);
    let counted = event.series.and_then(|series| series.count).or(event.count).or(event.deprecated_count);
    let from = event.source.and_then(|source| source.component).filter(|name| !name.is_empty());
    Some(EventView {
        object: object.clone(),
        about,
        kind: event.kind.unwrap_or_default(),
        reason: event.reason.unwrap_or_default(),
        message: shorten_text(&event.message.or(event.note).unwrap_or_default(), MESSAGE_BYTES).into_owned(),
        count: counted.unwrap_or(1).max(1),
        first_ms,
        last_ms: last_ms.max(first_ms),
        from: from.or(event.reporting_component).or(event.reporting_controller).unwrap_or_default(),
        seq,
    })
}

/// Removes the parts of an Event that a story does not show, so that they need not be searched for secrets.
/// `None` if the Event is short.
pub fn cut_event(document: &[u8]) -> Option<Vec<u8>> {
    if document.len() <= TEXT_BYTES {
        return None;
    }
    let mut event: Map<String, Value> = serde_json::from_slice(document).ok()?;
    for text in ["message", "note", "reason", "action"] {
        if let Some(Value::String(text)) = event.get_mut(text) {
            text.truncate(text.floor_char_boundary(TEXT_BYTES));
        }
    }
    if let Some(Value::Object(metadata)) = event.get_mut("metadata") {
        metadata.retain(|member, _| !matches!(member.as_str(), "annotations" | "managedFields"));
    }
    serde_json::to_vec(&event).ok()
}

/// Merges Events with the same text about the same object. The result is ordered by the last occurrence.
/// Beyond [`SHOWN`], the oldest are left out.
pub fn fold_repeated(events: Vec<EventView>) -> Vec<EventView> {
    let mut folded: BTreeMap<[String; 5], EventView> = BTreeMap::new();
    for event in events {
        let key =
            [&event.about.uid, &event.kind, &event.reason, &event.message, &event.from].map(Clone::clone);
        match folded.get_mut(&key) {
            None => drop(folded.insert(key, event)),
            Some(kept) => {
                let newest = if event.seq > kept.seq { &event } else { &*kept };
                *kept = EventView {
                    count: kept.count.saturating_add(event.count),
                    first_ms: kept.first_ms.min(event.first_ms),
                    last_ms: kept.last_ms.max(event.last_ms),
                    ..newest.clone()
                };
            }
        }
    }
    let mut folded: Vec<_> = folded.into_values().collect();
    folded.sort_by_key(|event| (event.last_ms, event.seq));
    folded.drain(..folded.len().saturating_sub(SHOWN));
    folded
}

impl EventView {
    /// The repetition in kubectl's form: `x3 over 2 min`; empty for a single occurrence.
    pub fn repetition_text(&self) -> String {
        match self.count {
            0 | 1 => String::new(),
            count => format!("x{count} over {}", duration_text(self.last_ms.saturating_sub(self.first_ms))),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(document: &Value) -> EventView {
        read(document.to_string().as_bytes(), &ObjectRef::default(), 7, 1_000).unwrap()
    }

    fn core(count: u64, first: &str, last: &str) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Event",
            "metadata": {"name": "p.1", "namespace": "team", "creationTimestamp": first},
            "involvedObject": {"apiVersion": "v1", "kind": "Pod", "namespace": "team", "name": "p", "uid": "u-p"},
            "type": "Warning", "reason": "BackOff", "message": "Back-off restarting failed container",
            "count": count, "firstTimestamp": first, "lastTimestamp": last, "source": {"component": "kubelet"},
        })
    }

    #[test]
    fn an_event_of_the_core_group_tells_its_object_count_and_times() {
        let event = of(&core(3, "2026-11-20T10:00:00Z", "2026-11-20T10:02:00Z"));
        assert_eq!((event.about.kind.as_str(), event.about.uid.as_str()), ("Pod", "u-p"));
        assert_eq!(
            (event.kind.as_str(), event.reason.as_str(), event.from.as_str()),
            ("Warning", "BackOff", "kubelet")
        );
        assert_eq!(event.repetition_text(), "x3 over 2 min");
        assert_eq!(event.last_ms - event.first_ms, 120_000);
    }

    #[test]
    fn an_event_of_the_newer_group_tells_the_same() {
        let event = of(&json!({
            "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "j.1", "namespace": "team"},
            "regarding": {"apiVersion": "batch/v1", "kind": "Job", "namespace": "team", "name": "j", "uid": "u-j"},
            "type": "Normal", "reason": "Started", "note": "It runs", "eventTime": "2026-11-20T10:00:00.000000Z",
            "series": {"count": 5, "lastObservedTime": "2026-11-20T10:00:40.000000Z"},
            "reportingController": "job-controller",
        }));
        assert_eq!((event.about.group.as_str(), event.about.version.as_str()), ("batch", "v1"));
        assert_eq!((event.message.as_str(), event.from.as_str()), ("It runs", "job-controller"));
        assert_eq!(event.repetition_text(), "x5 over 40 s");
    }

    #[test]
    fn of_a_long_event_only_what_a_story_shows_is_kept() {
        let mut event = core(3, "2026-11-20T10:00:00Z", "2026-11-20T10:02:00Z");
        let short = event.to_string();
        assert_eq!(cut_event(short.as_bytes()), None);
        event["message"] = "é".repeat(1 << 20).into();
        event["metadata"]["annotations"] = json!({"a": "x".repeat(1 << 20)});
        let document = cut_event(event.to_string().as_bytes()).unwrap();
        assert!(document.len() < TEXT_BYTES + short.len());
        assert_eq!(read(&document, &ObjectRef::default(), 7, 1_000), Some(of(&event)));
    }

    #[test]
    fn an_event_that_says_nothing_of_when_happened_when_it_was_observed() {
        let about = json!({"kind": "Pod", "name": "p", "uid": "u"});
        let event = of(&json!({"involvedObject": about, "count": null, "eventTime": null}));
        assert_eq!((event.count, event.first_ms, event.last_ms), (1, 1_000, 1_000));
        assert_eq!(event.repetition_text(), "");
    }

    #[test]
    fn an_event_without_the_uid_of_an_object_belongs_to_none() {
        for reference in [
            json!(null),
            json!({"kind": "Node", "name": "n"}),
            json!({"kind": "Node", "name": "n", "uid": ""}),
        ] {
            assert_eq!(event_subject(json!({"involvedObject": reference}).to_string().as_bytes()), None);
        }
        assert_eq!(event_subject(b"no json"), None);
        assert!(is_event("", "Event") && is_event("events.k8s.io", "Event"));
        assert!(!is_event("batch", "Event") && !is_event("", "Pod"));
    }

    #[test]
    fn events_that_say_the_same_of_an_object_are_one_and_the_last_one_comes_last() {
        let early = EventView { seq: 1, ..of(&core(2, "2026-11-20T10:00:00Z", "2026-11-20T10:01:00Z")) };
        let late = EventView { seq: 9, ..of(&core(3, "2026-11-20T11:00:00Z", "2026-11-20T11:05:00Z")) };
        let other = EventView { reason: "Pulled".into(), ..early.clone() };
        let folded = fold_repeated(vec![late, other, early]);
        let events: Vec<_> =
            folded.iter().map(|event| (event.reason.as_str(), event.count, event.seq)).collect();
        assert_eq!(events, [("Pulled", 2, 1), ("BackOff", 5, 9)]);
        assert_eq!(folded[1].repetition_text(), "x5 over 1 h 5 min");
    }

    #[test]
    fn no_more_events_are_told_than_fit_and_the_last_ones_stay() {
        let event =
            |number: u64| EventView { reason: format!("r{number}"), last_ms: number, ..EventView::default() };
        let folded = fold_repeated((0..SHOWN as u64 + 5).map(event).collect());
        assert_eq!((folded.len(), folded[0].last_ms), (SHOWN, 5));
    }

    #[test]
    fn a_long_message_of_an_event_is_cut() {
        let document = format!(
            r#"{{"involvedObject":{{"kind":"Job","name":"j","uid":"u"}},"message":"{}"}}"#,
            "m".repeat(MESSAGE_BYTES + 1)
        );
        let event = read(document.as_bytes(), &ObjectRef::default(), 1, 0).unwrap();
        assert_eq!(event.message, format!("{}…", "m".repeat(MESSAGE_BYTES)));
    }
}
