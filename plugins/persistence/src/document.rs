//! The part of a state's document that object_history stores.

use kubewitness_sdk::log;
use kubewitness_sdk::sql::Value;
use serde_json::{Map, Value as Json, json};

use crate::config::Documents;

/// A larger document usually contains data, as in a ConfigMap, which does not belong into a table. etcd
/// accepts 1.5 MiB.
const DOCUMENT_BYTES: usize = 256 * 1024;
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// Fields of conditions that change although nothing happens.
const HEARTBEATS: [&str; 2] = ["lastProbeTime", "lastHeartbeatTime"];

/// The text for the column. A document that is too large is replaced by a small one with its size, because a
/// truncated document is no JSON.
pub fn document_column(kept: Documents, text: &str, object: &str) -> Value {
    let text = match kept {
        Documents::None => return Value::Null,
        Documents::Whole => text.to_string(),
        Documents::Pruned => match serde_json::from_str(text) {
            Ok(document) => prune_document(document).to_string(),
            // The text from the host is stored unchanged, as the API server wrote it.
            Err(_) => text.to_string(),
        },
    };
    if text.len() <= DOCUMENT_BYTES {
        return text.into();
    }
    let bytes = text.len().to_string();
    log::warn(
        "a document is over 256 KiB, and object_history keeps its size alone",
        &[("object", object), ("bytes", &bytes)],
    );
    json!({"cut": {"bytes": text.len(), "most": DOCUMENT_BYTES}}).to_string().into()
}

/// Removes the managed fields, the copy that kubectl keeps, and heartbeats.
fn prune_document(mut document: Json) -> Json {
    if let Some(metadata) = object_member(&mut document, "metadata") {
        metadata.remove("managedFields");
        if let Some(annotations) = metadata.get_mut("annotations").and_then(Json::as_object_mut) {
            annotations.remove(LAST_APPLIED);
        }
    }
    let conditions = object_member(&mut document, "status").and_then(|status| status.get_mut("conditions"));
    for condition in conditions.and_then(Json::as_array_mut).into_iter().flatten() {
        if let Some(condition) = condition.as_object_mut() {
            condition.retain(|field, _| !HEARTBEATS.contains(&field.as_str()));
        }
    }
    document
}

fn object_member<'d>(document: &'d mut Json, name: &str) -> Option<&'d mut Map<String, Json>> {
    document.get_mut(name)?.as_object_mut()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(value: Value) -> String {
        match value {
            Value::Text(text) => text,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_pruned_document_has_what_somebody_would_look_for() {
        let document = r#"{"metadata": {"name": "a", "managedFields": [{}], "annotations":
            {"kubectl.kubernetes.io/last-applied-configuration": "{}", "team": "b"}}, "spec": {"n": 1},
            "status": {"conditions": [{"type": "Ready", "lastProbeTime": "x", "lastHeartbeatTime": "y"}]}}"#;
        let expected = r#"{"metadata":{"annotations":{"team":"b"},"name":"a"},"spec":{"n":1},"status":{"conditions":[{"type":"Ready"}]}}"#;
        assert_eq!(text(document_column(Documents::Pruned, document, "a")), expected);
        assert_eq!(text(document_column(Documents::Whole, document, "a")), document);
        assert_eq!(document_column(Documents::None, document, "a"), Value::Null);
        for odd in [
            "[]",
            r#"{"metadata":[],"status":{"conditions":{}}}"#,
            r#"{"status":{"conditions":[1]}}"#,
            "no JSON",
        ] {
            assert_eq!(text(document_column(Documents::Pruned, odd, "a")), odd);
        }
    }

    #[test]
    fn a_document_over_the_bound_is_a_document_that_says_so() {
        let fits = format!("\"{}\"", "a".repeat(DOCUMENT_BYTES - 2));
        assert_eq!(text(document_column(Documents::Whole, &fits, "a")), fits);
        let large = format!("\"{}\"", "a".repeat(DOCUMENT_BYTES - 1));
        for kept in [Documents::Whole, Documents::Pruned] {
            let cut = r#"{"cut":{"bytes":262145,"most":262144}}"#;
            assert_eq!(text(document_column(kept, &large, "a")), cut);
        }
    }
}
