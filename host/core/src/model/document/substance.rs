//! Compares documents without the fields that every write changes, and without heartbeats.

use serde_json::Value;

/// The metadata members that record who wrote which field, and the write counters.
const BOOKKEEPING: [&str; 3] = ["managedFields", "resourceVersion", "generation"];
/// The annotation in which leaders renewed their term before Leases existed.
const LEADER: &str = "control-plane.alpha.kubernetes.io/leader";
/// The members of each condition with the time of its last probe. The time of its last change stays.
const LOOKED: [&str; 2] = ["lastHeartbeatTime", "lastProbeTime"];

/// Two versions with equal substance differ in nothing that people care about. `None` if the document is not
/// a JSON object.
pub fn compare_form(document: &[u8]) -> Option<Value> {
    let mut document: Value = serde_json::from_slice(document).ok().filter(Value::is_object)?;
    let is_lease = document["kind"] == "Lease";
    if let Some(metadata) = document.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.retain(|name, _| !BOOKKEEPING.contains(&name.as_str()));
        if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
            annotations.remove(LEADER);
        }
    }
    if let Some(conditions) = document.pointer_mut("/status/conditions").and_then(Value::as_array_mut) {
        for condition in conditions.iter_mut().filter_map(Value::as_object_mut) {
            condition.retain(|name, _| !LOOKED.contains(&name.as_str()));
        }
    }
    if let Some(spec) = document.get_mut("spec").and_then(Value::as_object_mut).filter(|_| is_lease) {
        spec.remove("renewTime");
    }
    Some(document)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn is_same(first: &Value, other: &Value) -> bool {
        let of = |value: &Value| compare_form(value.to_string().as_bytes()).unwrap();
        of(first) == of(other)
    }

    #[test]
    fn a_heartbeat_and_bookkeeping_say_nothing_and_everything_else_does() {
        let node = json!({
            "kind": "Node",
            "metadata": {"name": "a", "resourceVersion": "1", "generation": 1, "managedFields": [{"time": 1}],
                "annotations": {LEADER: "{\"renewTime\":1}", "note": "x"}, "labels": {"team": "a"}},
            "spec": {"renewTime": 1},
            "status": {"conditions": [{"type": "Ready", "lastHeartbeatTime": 1, "lastProbeTime": 1,
                "lastTransitionTime": 1}]},
        });
        let with = |place: &str, value: Value| {
            let mut changed = node.clone();
            *changed.pointer_mut(place).unwrap() = value;
            changed
        };
        let leader = "/metadata/annotations/control-plane.alpha.kubernetes.io~1leader";
        for quiet in [
            "/metadata/resourceVersion",
            "/metadata/generation",
            "/metadata/managedFields",
            leader,
            "/status/conditions/0/lastHeartbeatTime",
            "/status/conditions/0/lastProbeTime",
        ] {
            assert!(is_same(&node, &with(quiet, json!("2"))), "{quiet}");
        }
        for loud in [
            "/metadata/labels/team",
            "/metadata/annotations/note",
            "/spec/renewTime",
            "/status/conditions/0/lastTransitionTime",
        ] {
            assert!(!is_same(&node, &with(loud, json!("2"))), "{loud}");
        }
        let lease = |renewed, holder| json!({"kind": "Lease", "spec": {"renewTime": renewed, "holderIdentity": holder}});
        assert!(is_same(&lease(1, "a"), &lease(2, "a")) && !is_same(&lease(1, "a"), &lease(1, "b")));
    }

    #[test]
    fn of_what_is_no_object_nothing_is_said() {
        for text in ["", "[]", "{\"cut", "7"] {
            assert_eq!(compare_form(text.as_bytes()), None, "{text}");
        }
    }
}
