//! Reports the result of a configuration in a status ConfigMap and in Events. The user's own ConfigMap is
//! never written.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use http::Method;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::jiff::Timestamp;
use kubewitness_core::config::STATUS_LABEL;
use serde_json::{Value, json};
use thiserror::Error;

use super::ConfigMapDoc;
use crate::connect::request::{ApiClient, RequestFailure};

/// The API server refuses longer messages of an Event.
const EVENT_MESSAGE: usize = 1024;
/// People read a status; longer texts belong in the log.
const STATUS_VALUE: usize = 16 * 1024;

const JSON: &str = "application/json";
const MERGE: &str = "application/merge-patch+json";

/// The type of an Event, by which `kubectl describe` sorts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventType {
    Normal,
    Warning,
}

#[derive(Debug, Error)]
pub enum WriteError {
    /// The right is missing, or the names are wrong. A retry does not help.
    #[error("{what} was refused: {why}")]
    Refused { what: String, why: String },
    /// Temporary: a retry may succeed.
    #[error("{what} can't be written now: {why}")]
    Unavailable { what: String, why: String },
}

fn error(what: &str, failure: &RequestFailure) -> WriteError {
    let (what, why) = (what.to_string(), failure.to_string());
    if failure.is_passing() {
        WriteError::Unavailable { what, why }
    } else {
        WriteError::Refused { what, why }
    }
}

/// The status ConfigMap, if it exists. An object with that name that the controller did not write is an
/// error.
async fn find_status_map(
    api: &ApiClient,
    address: &str,
    what: &str,
) -> Result<Option<ConfigMap>, WriteError> {
    let body = match api.get(address).await {
        Ok(body) => body,
        Err(failure) if failure.status_code() == Some(404) => return Ok(None),
        Err(failure) => return Err(error(what, &failure)),
    };
    let held: ConfigMap = serde_json::from_slice(&body)
        .map_err(|fault| error(what, &RequestFailure::Answer(fault.to_string())))?;
    let label = held.metadata.labels.as_ref().and_then(|labels| labels.get(STATUS_LABEL));
    if label.is_none_or(|value| value != "true") {
        let why = format!(
            "it is somebody else's, since it has no label {STATUS_LABEL}: \"true\". Delete it, or give it another name"
        );
        return Err(WriteError::Refused { what: what.to_owned(), why });
    }
    Ok(Some(held))
}

/// Gives a ConfigMap these labels and exactly this data. Returns `false` if nothing had to change.
pub async fn write_status(
    client: &kube::Client,
    namespace: &str,
    name: &str,
    labels: &BTreeMap<String, String>,
    data: &BTreeMap<String, String>,
) -> Result<bool, WriteError> {
    let api = ApiClient::new(client.clone());
    let what = format!("the status ConfigMap {namespace}/{name}");
    let data: BTreeMap<String, String> =
        data.iter().map(|(key, value)| (key.clone(), cut_text(value, STATUS_VALUE).to_string())).collect();
    let collection = format!("/api/v1/namespaces/{namespace}/configmaps");
    let address = format!("{collection}/{name}");
    // Another replica may create it in between. Then it exists, and is patched.
    for _ in 0..2 {
        let Some(held) = find_status_map(&api, &address, &what).await? else {
            let body = json!({
                "apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {"name": name, "namespace": namespace, "labels": labels}, "data": data,
            });
            match api
                .send_request(Method::POST, &collection, Some((JSON, body.to_string().into_bytes())))
                .await
            {
                Ok(_) => return Ok(true),
                Err(failure) if failure.status_code() == Some(409) => continue,
                Err(failure) => return Err(error(&what, &failure)),
            }
        };
        let Some(patch) = merge_patch(&held, labels, &data) else { return Ok(false) };
        let patched =
            api.send_request(Method::PATCH, &address, Some((MERGE, patch.to_string().into_bytes()))).await;
        return patched.map(|_| true).map_err(|failure| error(&what, &failure));
    }
    Err(WriteError::Unavailable { what, why: "it is created and deleted by someone else".to_string() })
}

/// A merge patch; `None` if nothing differs.
fn merge_patch(
    held: &ConfigMap,
    labels: &BTreeMap<String, String>,
    data: &BTreeMap<String, String>,
) -> Option<Value> {
    let empty = BTreeMap::new();
    let (had_labels, had_data) =
        (held.metadata.labels.as_ref().unwrap_or(&empty), held.data.as_ref().unwrap_or(&empty));
    let changed = |had: &BTreeMap<String, String>, want: &BTreeMap<String, String>| {
        let changed = want.iter().filter(|(key, value)| had.get(*key) != Some(*value));
        changed.map(|(key, value)| (key.clone(), json!(value))).collect::<serde_json::Map<_, _>>()
    };
    let new_labels = changed(had_labels, labels);
    let mut new_data = changed(had_data, data);
    for key in had_data.keys().filter(|key| !data.contains_key(*key)) {
        new_data.insert(key.clone(), Value::Null);
    }
    if new_labels.is_empty() && new_data.is_empty() {
        return None;
    }
    Some(json!({"metadata": {"labels": new_labels}, "data": new_data}))
}

/// A missing object counts as deleted.
pub async fn delete_status(client: &kube::Client, namespace: &str, name: &str) -> Result<(), WriteError> {
    let api = ApiClient::new(client.clone());
    let what = format!("the status ConfigMap {namespace}/{name}");
    let address = format!("/api/v1/namespaces/{namespace}/configmaps/{name}");
    let Some(held) = find_status_map(&api, &address, &what).await? else { return Ok(()) };
    // A new object with the same name is not deleted.
    let options = json!({"preconditions": {"uid": held.metadata.uid}});
    match api.send_request(Method::DELETE, &address, Some((JSON, options.to_string().into_bytes()))).await {
        Ok(_) => Ok(()),
        Err(failure) if failure.status_code() == Some(404) => Ok(()),
        Err(failure) => Err(error(&what, &failure)),
    }
}

/// Emits an Event about a ConfigMap, which `kubectl describe` shows. The same message about the same version
/// is emitted once.
pub async fn emit_event(
    client: &kube::Client,
    namespace: &str,
    about: &ConfigMapDoc,
    type_: EventType,
    reason: &str,
    message: &str,
) -> Result<(), WriteError> {
    let event = event_manifest(namespace, about, type_, reason, message, Timestamp::now());
    let address = format!("/api/v1/namespaces/{namespace}/events");
    match ApiClient::new(client.clone())
        .send_request(Method::POST, &address, Some((JSON, event.to_string().into_bytes())))
        .await
    {
        Ok(_) => Ok(()),
        Err(failure) if failure.status_code() == Some(409) => Ok(()),
        Err(failure) => Err(error(&format!("an Event about {namespace}/{}", about.name), &failure)),
    }
}

fn event_manifest(
    namespace: &str,
    about: &ConfigMapDoc,
    type_: EventType,
    reason: &str,
    message: &str,
    now: Timestamp,
) -> Value {
    let mut hasher = DefaultHasher::new();
    (&about.uid, &about.resource_version, reason, message).hash(&mut hasher);
    // Names have at most 253 characters; the hash alone makes them unique.
    let name =
        format!("{}.{:016x}", cut_text(&about.name, 200).trim_end_matches(['.', '-']), hasher.finish());
    let type_ = match type_ {
        EventType::Normal => "Normal",
        EventType::Warning => "Warning",
    };
    let now = now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    json!({
        "apiVersion": "v1", "kind": "Event",
        "metadata": {"name": name, "namespace": namespace},
        "involvedObject": {
            "apiVersion": "v1", "kind": "ConfigMap", "namespace": namespace,
            "name": about.name, "uid": about.uid, "resourceVersion": about.resource_version,
        },
        "type": type_, "reason": reason, "message": cut_text(message, EVENT_MESSAGE),
        "source": {"component": "kubewitness"}, "reportingComponent": "kubewitness",
        "firstTimestamp": now, "lastTimestamp": now, "count": 1,
    })
}

fn cut_text(text: &str, limit: usize) -> &str {
    let mut end = text.len().min(limit);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
    }

    #[test]
    fn only_what_differs_is_patched_and_what_is_gone_is_taken_out() {
        let mut held = ConfigMap { data: Some(map(&[("a", "1"), ("b", "2")])), ..ConfigMap::default() };
        held.metadata.labels = Some(map(&[("mine", "x"), ("theirs", "y")]));
        assert_eq!(merge_patch(&held, &map(&[("mine", "x")]), &map(&[("a", "1"), ("b", "2")])), None);
        let patch = merge_patch(&held, &map(&[("mine", "z")]), &map(&[("a", "1")])).unwrap();
        assert_eq!(patch, json!({"metadata": {"labels": {"mine": "z"}}, "data": {"b": null}}));
    }

    #[test]
    fn the_same_said_about_the_same_version_has_one_name() {
        let about =
            ConfigMapDoc { name: "p".into(), resource_version: "7".into(), ..ConfigMapDoc::default() };
        let say = |about: &ConfigMapDoc, message: &str| {
            let name_of =
                event_manifest("ns", about, EventType::Warning, "Refused", message, Timestamp::UNIX_EPOCH);
            (name_of["metadata"]["name"].clone(), name_of["message"].as_str().unwrap_or_default().len())
        };
        assert_eq!(say(&about, "m"), say(&about, "m"));
        let changed = ConfigMapDoc { resource_version: "8".into(), ..about.clone() };
        assert_ne!(say(&about, "m").0, say(&changed, "m").0);
        assert!(say(&about, &"é".repeat(2_000)).1 <= EVENT_MESSAGE);
    }
}
