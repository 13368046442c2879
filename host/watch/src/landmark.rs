//! A landmark: one witnessed version, kept whole, by which a history is known again.
//!
//! A server that was restored from a backup counts on from where the backup was, and may have
//! passed the checkpoint by the time it is asked: numbers alone don't tell. But what was witnessed
//! at a version can be asked for by that version. Nobody there, or another content, is another
//! history. What compaction removed, or a server can't read, proves nothing.

use std::sync::Arc;

use bytes::Bytes;
use kubewitness_core::Version;
use kubewitness_core::project;
use kubewitness_core::state::ObjectRef;
use serde_json::Value;

use crate::discovery::Resource;
use crate::exact::ONE_ANSWER;
use crate::request::Api;

/// A larger document is no landmark: one is held for each source.
const LANDMARK_BYTES: usize = 64 * 1024;

#[derive(Clone)]
pub(crate) struct Landmark {
    object: Arc<ObjectRef>,
    version: Version,
    document: Bytes,
}

impl Landmark {
    pub fn new(object: &Arc<ObjectRef>, version: &Version, document: &[u8]) -> Option<Self> {
        let fits = version.is_comparable() && document.len() <= LANDMARK_BYTES;
        // Copied: a slice would hold on to the whole chunk or page that it came in.
        let document = fits.then(|| Bytes::copy_from_slice(document))?;
        Some(Self { object: Arc::clone(object), version: version.clone(), document })
    }

    pub fn version(&self) -> &Version {
        &self.version
    }

    /// Whether the server has something else at the landmark's place; `false` where it can't tell.
    pub async fn is_elsewhere(&self, api: &Api, resource: &Resource) -> bool {
        let address = resource.of_name_at(&self.object, &self.version);
        match api.get_within(address.as_str(), ONE_ANSWER).await {
            Ok(answer) => self.contradicts(&answer),
            Err(failure) => {
                tracing::debug!(version = %self.version, "the history can't be compared: {failure}");
                false
            }
        }
    }

    fn contradicts(&self, answer: &[u8]) -> bool {
        let Ok(page) = project::list_page(answer) else { return false };
        // A server that doesn't know the parameters answers with what is there now.
        if page.resource_version != self.version.as_str() {
            return false;
        }
        let Some(item) = page.items.first() else { return true };
        let Ok(found) = project::envelope(item) else { return false };
        if found.name != *self.object.name || found.namespace != *self.object.namespace {
            return false;
        }
        if found.uid != *self.object.uid || found.resource_version != self.version.as_str() {
            return true;
        }
        let read = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).ok();
        let (Some(found), Some(held)) = (read(item), read(&self.document)) else { return false };
        let marks = ["/metadata/labels", "/metadata/annotations"];
        marks.iter().any(|mark| found.pointer(mark) != held.pointer(mark)) || differ(&found, &held)
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
        let object =
            ObjectRef { namespace: "n".into(), name: "a".into(), uid: "u".into(), ..ObjectRef::default() };
        let held = job("u", "7", "x", 1).to_string();
        let landmark = Landmark::new(&Arc::new(object), &Version::new("7"), held.as_bytes()).unwrap();
        let answer = json!({"kind": "JobList", "metadata": {"resourceVersion": at}, "items": items});
        landmark.contradicts(answer.to_string().as_bytes())
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
