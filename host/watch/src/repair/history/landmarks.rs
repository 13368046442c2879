//! Checks landmarks: whether the server still has the history that they belong to.
//!
//! A restored server counts on from the backup's version, and may have passed the checkpoint before it is
//! asked. So comparing version numbers was rejected. But a witnessed object can be read back at its version.
//! If the server has no object, another object, or another write there, the history is another one. If
//! compaction or the server prevents an answer, nothing is proven.
//!
//! A write is identified by the fields that only the server sets: uid, version, generation, and the times of
//! its creation and of its managers. No conversion between versions of a custom resource can change these. A
//! conversion is an operator's program, and after an update it may render an old version differently. So the
//! content counts only for kinds that no CustomResourceDefinition can define.
//!
//! One landmark may be equal in both histories by chance, or because a controller repeats a write. So older
//! ones are kept, too, each the last before a round number of versions.
//!
//! An object whose end was witnessed can't exist again. If it does, the history is another one, too.
//!
//! If bookmarks have moved the checkpoint beyond the newest landmark, the
//! [census](crate::repair::history::census) decides.

use bytes::Bytes;
use kubewitness_core::Version;
use kubewitness_core::project;
use serde_json::Value;
use tokio::time::sleep;

use crate::connect::backoff::{Backoff, JitterDice};
use crate::connect::request::RequestAddress;
use crate::connect::resource::{SourceResource, group_version};
use crate::repair::history::newest_common::write_times;
use crate::source::landmarks::{LandmarkSet, VersionLandmark};
use crate::source::parts::SourceParts;

/// How often a busy server is asked before the watch continues without an answer. A server that never answers
/// must not keep a source from watching.
const TRIES: u32 = 4;

/// The server's version at a landmark, compared with the witnessed one.
#[derive(Debug, PartialEq, Eq)]
enum LandmarkMatch {
    Same,
    Other,
    /// The server can't answer.
    Unanswered,
}

/// Whether the server has something else at the version of a landmark.
pub(crate) async fn are_elsewhere(
    landmarks: &LandmarkSet,
    parts: &SourceParts,
    resource: &SourceResource,
) -> bool {
    if landmarks.contradicted {
        return true;
    }
    for landmark in landmarks.all_landmarks() {
        match match_landmark(landmark, parts, resource).await {
            LandmarkMatch::Other => return true,
            LandmarkMatch::Same => {}
            // Older versions are compacted, too, and a server that can't answer for one can't answer for the
            // others.
            LandmarkMatch::Unanswered => return false,
        }
    }
    false
}

async fn match_landmark(
    landmark: &VersionLandmark,
    parts: &SourceParts,
    resource: &SourceResource,
) -> LandmarkMatch {
    let address = resource.of_name_at(&landmark.object, &landmark.version);
    match fetch_at_version(parts, &address, &landmark.version).await {
        Some(answer) => compare_answer(landmark, &answer, &parts.spec.api_version),
        None => LandmarkMatch::Unanswered,
    }
}

/// `api_version` is the requested version of the API.
fn compare_answer(landmark: &VersionLandmark, answer: &[u8], api_version: &str) -> LandmarkMatch {
    let Ok(page) = project::list_page(answer) else { return LandmarkMatch::Unanswered };
    // A server that does not know the parameters answers with the present objects.
    if page.resource_version != landmark.version.as_str() {
        return LandmarkMatch::Unanswered;
    }
    let Some(item) = page.items.first() else { return LandmarkMatch::Other };
    let Ok(found) = project::read_envelope(item) else { return LandmarkMatch::Unanswered };
    if found.name != *landmark.object.name || found.namespace != *landmark.object.namespace {
        return LandmarkMatch::Unanswered;
    }
    if found.uid != *landmark.object.uid || found.resource_version != landmark.version.as_str() {
        return LandmarkMatch::Other;
    }
    let read = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).ok();
    let (Some(found), Some(held)) = (read(item), read(&landmark.document)) else {
        return LandmarkMatch::Unanswered;
    };
    if is_another_write(&found, &held) {
        return LandmarkMatch::Other;
    }
    // The items of a list may lack their type. Then they have the requested one.
    let held_as = held.get("apiVersion").and_then(Value::as_str).unwrap_or(api_version);
    if held_as != api_version || may_be_converted(api_version) {
        // It is the same version, perhaps in another form.
        return LandmarkMatch::Same;
    }
    // These maps have no schema, so no server adds defaults to them.
    let marks = ["/metadata/labels", "/metadata/annotations", "/data", "/binaryData"];
    let is_other = marks.iter().any(|mark| found.pointer(mark) != held.pointer(mark))
        || contradict_each_other(&found, &held);
    if is_other { LandmarkMatch::Other } else { LandmarkMatch::Same }
}

/// Whether two documents of one version can't be the same write. A value that one of them lacks proves
/// nothing.
fn is_another_write(witnessed: &Value, answered: &Value) -> bool {
    let differ = |mark: &str| matches!((witnessed.pointer(mark), answered.pointer(mark)), (Some(witnessed), Some(answered)) if witnessed != answered);
    let (mine, others) = (write_times(witnessed), write_times(answered));
    let other_time = !mine.is_empty() && !others.is_empty() && mine != others;
    other_time || ["/metadata/creationTimestamp", "/metadata/generation"].into_iter().any(differ)
}

/// Whether an operator's conversion may be between the store and the answer. The group of a
/// CustomResourceDefinition has a dot; groups without one are built in.
fn may_be_converted(api_version: &str) -> bool {
    group_version(api_version).0.contains('.')
}

/// The server's answer about an old version; `None` if it can't answer.
pub(crate) async fn fetch_at_version(
    parts: &SourceParts,
    address: &RequestAddress,
    version: &Version,
) -> Option<Bytes> {
    let tuning = &parts.tuning;
    let mut backoff = Backoff::new(tuning.first_pause, tuning.longest_pause);
    let mut dice = JitterDice::new(tuning.seed);
    let mut tries = 1;
    loop {
        parts.repairs.await_turn(&tuning.walk).await;
        let failure = match parts.api.get_within(address.as_str(), tuning.one_answer).await {
            Ok(answer) => {
                parts.repairs.count_received(answer.len(), &tuning.walk);
                return Some(answer);
            }
            Err(failure) => failure,
        };
        let source = &parts.spec.name;
        if !failure.is_passing() || failure.status_code() == Some(501) {
            tracing::debug!(%source, %version, "the history can't be compared: {failure}");
            return None;
        }
        if tries >= TRIES {
            tracing::warn!(%source, %version, tries, "the history could not be compared: {failure}");
            return None;
        }
        let asked = failure.retry_after().map(|pause| pause.min(tuning.longest_pause));
        sleep(backoff.next(&mut dice, asked)).await;
        tries += 1;
    }
}

/// Whether two documents contradict each other. A field that one of them lacks is not a difference: an
/// upgraded server adds defaults to old versions.
fn contradict_each_other(witnessed: &Value, answered: &Value) -> bool {
    match (witnessed, answered) {
        (Value::Object(witnessed), Value::Object(answered)) => {
            let mut common = witnessed.iter().filter(|(key, _)| *key != "managedFields");
            common.any(|(key, value)| {
                answered.get(key).is_some_and(|there| contradict_each_other(value, there))
            })
        }
        (Value::Array(witnessed), Value::Array(answered)) => {
            witnessed.len() != answered.len()
                || witnessed
                    .iter()
                    .zip(answered)
                    .any(|(witnessed, answered)| contradict_each_other(witnessed, answered))
        }
        (witnessed, answered) => witnessed != answered,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use kubewitness_core::state::ObjectRef;
    use serde_json::json;

    use super::*;

    fn job(uid: &str, version: &str, note: &str, failed: u32) -> Value {
        json!({
            "metadata": {"name": "a", "namespace": "n", "uid": uid, "resourceVersion": version,
                "generation": 1, "annotations": {"note": note}, "managedFields": [{"time": version}]},
            "status": {"failed": failed},
        })
    }

    fn contradicted(at: &str, items: &[Value]) -> bool {
        compared(at, items) == LandmarkMatch::Other
    }

    fn compared(at: &str, items: &[Value]) -> LandmarkMatch {
        let object =
            ObjectRef { namespace: "n".into(), name: "a".into(), uid: "u".into(), ..ObjectRef::default() };
        let held = job("u", "7", "x", 1).to_string();
        let landmark = VersionLandmark::new(&Arc::new(object), &Version::new("7"), held.as_bytes()).unwrap();
        let answer = json!({"kind": "JobList", "metadata": {"resourceVersion": at}, "items": items});
        super::compare_answer(&landmark, answer.to_string().as_bytes(), "batch/v1")
    }

    #[test]
    fn what_was_witnessed_at_a_version_and_is_not_there_is_another_history() {
        assert!(!contradicted("7", &[job("u", "7", "x", 1)]));
        assert!(contradicted("7", &[]));
        assert!(contradicted("7", &[job("v", "7", "x", 1)]));
        assert!(contradicted("7", &[job("u", "5", "x", 1)]));
        assert!(contradicted("7", &[job("u", "7", "y", 1)]));
        assert!(contradicted("7", &[job("u", "7", "x", 2)]));
    }

    #[test]
    fn another_key_in_a_map_without_a_schema_is_another_content() {
        let map = |key: &str| {
            let mut map = job("u", "7", "x", 1);
            map["data"] = json!({key: "1"});
            map
        };
        let object =
            ObjectRef { namespace: "n".into(), name: "a".into(), uid: "u".into(), ..ObjectRef::default() };
        let held = map("n").to_string();
        let landmark = VersionLandmark::new(&Arc::new(object), &Version::new("7"), held.as_bytes()).unwrap();
        let compared = |item: Value| {
            let answer = json!({"metadata": {"resourceVersion": "7"}, "items": [item]});
            super::compare_answer(&landmark, answer.to_string().as_bytes(), "v1")
        };
        assert_eq!(compared(map("n")), LandmarkMatch::Same);
        assert_eq!(compared(map("m")), LandmarkMatch::Other);
    }

    #[test]
    fn what_is_served_in_another_version_of_the_api_is_the_same_object() {
        let object =
            ObjectRef { namespace: "n".into(), name: "a".into(), uid: "u".into(), ..ObjectRef::default() };
        let mut held = job("u", "7", "x", 1);
        held["apiVersion"] = json!("example.com/v1beta1");
        let document = held.to_string();
        let landmark =
            VersionLandmark::new(&Arc::new(object), &Version::new("7"), document.as_bytes()).unwrap();
        let answer = json!({"metadata": {"resourceVersion": "7"}, "items": [job("u", "7", "x", 2)]});
        let compared =
            |as_what: &str| super::compare_answer(&landmark, answer.to_string().as_bytes(), as_what);
        assert_eq!(compared("example.com/v1"), LandmarkMatch::Same);
    }

    #[test]
    fn what_a_conversion_renders_differently_is_the_same_write_and_what_it_can_not_change_tells() {
        let object =
            ObjectRef { namespace: "n".into(), name: "a".into(), uid: "u".into(), ..ObjectRef::default() };
        let mut held = job("u", "7", "x", 1);
        held["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
        let document = held.to_string();
        let landmark =
            VersionLandmark::new(&Arc::new(object), &Version::new("7"), document.as_bytes()).unwrap();
        let compared = |path: &str, value: Value| {
            let mut item = held.clone();
            *item.pointer_mut(path).unwrap() = value;
            let answer = json!({"metadata": {"resourceVersion": "7"}, "items": [item]});
            super::compare_answer(&landmark, answer.to_string().as_bytes(), "example.com/v1")
        };
        assert_eq!(compared("/status/failed", json!("one")), LandmarkMatch::Same);
        assert_eq!(compared("/metadata/annotations/note", json!("y")), LandmarkMatch::Same);
        assert_eq!(
            compared("/metadata/creationTimestamp", json!("2026-01-01T00:00:01Z")),
            LandmarkMatch::Other
        );
        assert_eq!(compared("/metadata/generation", json!(2)), LandmarkMatch::Other);
        assert_eq!(compared("/metadata/managedFields/0/time", json!("8")), LandmarkMatch::Other);
        assert_eq!(compared("/metadata/managedFields", json!([])), LandmarkMatch::Same);
        assert_eq!(compared("/metadata/uid", json!("v")), LandmarkMatch::Other);
    }

    #[test]
    fn what_a_server_adds_or_does_not_answer_proves_nothing() {
        let mut upgraded = job("u", "7", "x", 1);
        upgraded["status"]["ready"] = json!(0);
        upgraded["metadata"]["managedFields"] = json!([]);
        assert!(!contradicted("7", &[upgraded]));
        // The server ignored the parameters.
        assert!(!contradicted("12", &[job("u", "12", "z", 3)]));
        assert!(!contradicted(
            "7",
            &[json!({"metadata": {"name": "another", "namespace": "n", "uid": "w"}})]
        ));
    }
}
