//! Whether the history is the one that its landmarks are of.
//!
//! A server that was restored from a backup counts on from where the backup was, and may have
//! passed the checkpoint by the time it is asked: numbers alone don't tell. But what was witnessed
//! at a version can be asked for by that version. Nobody there, or another content, is another
//! history. What compaction removed, or a server can't read, proves nothing.
//!
//! One landmark may be the same in both histories by chance, or because a controller writes the
//! same again; so older ones are kept, too, each before a round number of versions.
//!
//! Nobody comes back: an object whose end was witnessed and that is there is another history, too.
//!
//! Where bookmarks have moved the checkpoint beyond the newest, the [census](crate::repair::history::census) tells.

use bytes::Bytes;
use kubewitness_core::Version;
use kubewitness_core::project;
use serde_json::Value;
use tokio::time::sleep;

use crate::connect::backoff::{Backoff, Dice};
use crate::connect::request::Address;
use crate::connect::resource::Resource;
use crate::source::landmarks::{Landmark, Landmarks};
use crate::source::parts::Parts;

/// A server that is busy for a moment is asked so often before the watch is resumed without an
/// answer. One that never answers such questions must not keep a source from watching.
const TRIES: u32 = 4;

/// What the server has at a landmark's place.
#[derive(Debug, PartialEq, Eq)]
enum Found {
    Same,
    Other,
    /// It can't tell.
    Untold,
}

/// Whether the server has something else at the place of one of them.
pub(crate) async fn are_elsewhere(landmarks: &Landmarks, parts: &Parts, resource: &Resource) -> bool {
    if landmarks.contradicted {
        return true;
    }
    for landmark in landmarks.all() {
        match found(landmark, parts, resource).await {
            Found::Other => return true,
            Found::Same => {}
            // Older ones are compacted, too, and a server that can't tell can't tell of them.
            Found::Untold => return false,
        }
    }
    false
}

async fn found(landmark: &Landmark, parts: &Parts, resource: &Resource) -> Found {
    let address = resource.of_name_at(&landmark.object, &landmark.version);
    match ask(parts, &address, &landmark.version).await {
        Some(answer) => compared(landmark, &answer, &parts.spec.api_version),
        None => Found::Untold,
    }
}

/// `api_version` is what was asked for.
fn compared(landmark: &Landmark, answer: &[u8], api_version: &str) -> Found {
    let Ok(page) = project::list_page(answer) else { return Found::Untold };
    // A server that doesn't know the parameters answers with what is there now.
    if page.resource_version != landmark.version.as_str() {
        return Found::Untold;
    }
    let Some(item) = page.items.first() else { return Found::Other };
    let Ok(found) = project::envelope(item) else { return Found::Untold };
    if found.name != *landmark.object.name || found.namespace != *landmark.object.namespace {
        return Found::Untold;
    }
    if found.uid != *landmark.object.uid || found.resource_version != landmark.version.as_str() {
        return Found::Other;
    }
    let read = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).ok();
    let (Some(found), Some(held)) = (read(item), read(&landmark.document)) else { return Found::Untold };
    // The items of a list may not say what they are; then they are what was asked for.
    let held_as = held.get("apiVersion").and_then(Value::as_str).unwrap_or(api_version);
    if held_as != api_version {
        // The same version of it, converted: the source asks for another version of the API now.
        return Found::Same;
    }
    // Maps without a schema: nothing adds defaults to them.
    let marks = ["/metadata/labels", "/metadata/annotations", "/data", "/binaryData"];
    let is_other =
        marks.iter().any(|mark| found.pointer(mark) != held.pointer(mark)) || differ(&found, &held);
    if is_other { Found::Other } else { Found::Same }
}

/// What the server answers about an old version; `None` where it can't tell.
pub(crate) async fn ask(parts: &Parts, address: &Address, version: &Version) -> Option<Bytes> {
    let tuning = &parts.tuning;
    let mut backoff = Backoff::new(tuning.first_pause, tuning.longest_pause);
    let mut dice = Dice::new(tuning.seed);
    let mut tries = 1;
    loop {
        let failure = match parts.api.get_within(address.as_str(), tuning.one_answer).await {
            Ok(answer) => return Some(answer),
            Err(failure) => failure,
        };
        let source = &parts.spec.name;
        if !failure.is_passing() || failure.code() == Some(501) {
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

/// Whether two documents say different things. A field that one of them lacks is no difference: an
/// upgraded server adds defaults to versions of old.
fn differ(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Object(one), Value::Object(other)) => {
            let mut common = one.iter().filter(|(key, _)| *key != "managedFields");
            common.any(|(key, value)| other.get(key).is_some_and(|there| differ(value, there)))
        }
        (Value::Array(one), Value::Array(other)) => {
            one.len() != other.len() || one.iter().zip(other).any(|(one, other)| differ(one, other))
        }
        (one, other) => one != other,
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
                "annotations": {"note": note}, "managedFields": [{"time": version}]},
            "status": {"failed": failed},
        })
    }

    fn contradicted(at: &str, items: &[Value]) -> bool {
        compared(at, items) == Found::Other
    }

    fn compared(at: &str, items: &[Value]) -> Found {
        let object =
            ObjectRef { namespace: "n".into(), name: "a".into(), uid: "u".into(), ..ObjectRef::default() };
        let held = job("u", "7", "x", 1).to_string();
        let landmark = Landmark::new(&Arc::new(object), &Version::new("7"), held.as_bytes()).unwrap();
        let answer = json!({"kind": "JobList", "metadata": {"resourceVersion": at}, "items": items});
        super::compared(&landmark, answer.to_string().as_bytes(), "batch/v1")
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
        let landmark = Landmark::new(&Arc::new(object), &Version::new("7"), held.as_bytes()).unwrap();
        let compared = |item: Value| {
            let answer = json!({"metadata": {"resourceVersion": "7"}, "items": [item]});
            super::compared(&landmark, answer.to_string().as_bytes(), "v1")
        };
        assert_eq!(compared(map("n")), Found::Same);
        assert_eq!(compared(map("m")), Found::Other);
    }

    #[test]
    fn what_is_served_in_another_version_of_the_api_is_the_same_object() {
        let object =
            ObjectRef { namespace: "n".into(), name: "a".into(), uid: "u".into(), ..ObjectRef::default() };
        let mut held = job("u", "7", "x", 1);
        held["apiVersion"] = json!("example.com/v1beta1");
        let document = held.to_string();
        let landmark = Landmark::new(&Arc::new(object), &Version::new("7"), document.as_bytes()).unwrap();
        let answer = json!({"metadata": {"resourceVersion": "7"}, "items": [job("u", "7", "x", 2)]});
        let compared = |as_what: &str| super::compared(&landmark, answer.to_string().as_bytes(), as_what);
        assert_eq!(compared("example.com/v1"), Found::Same);
        assert_eq!(compared("example.com/v1beta1"), Found::Other);
    }

    #[test]
    fn what_a_server_adds_or_does_not_answer_proves_nothing() {
        let mut upgraded = job("u", "7", "x", 1);
        upgraded["status"]["ready"] = json!(0);
        upgraded["metadata"]["managedFields"] = json!([]);
        assert!(!contradicted("7", &[upgraded]));
        // The parameters were ignored.
        assert!(!contradicted("12", &[job("u", "12", "z", 3)]));
        assert!(!contradicted(
            "7",
            &[json!({"metadata": {"name": "another", "namespace": "n", "uid": "w"}})]
        ));
    }
}
