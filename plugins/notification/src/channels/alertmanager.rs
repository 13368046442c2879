//! Alertmanager: a bad outcome is a firing alert, a good one of the same object resolves it. The labels are the same for
//! both, since they are the alert's identity.

use kubewitness_sdk::time;
use serde_json::{Value, json};

use super::{Message, Tone};
use crate::facts::text;

pub const PATH: &str = "api/v2/alerts";

pub fn body(message: &Message) -> Value {
    let of = |name| text(&message.facts, name);
    let at = time::rfc3339(message.at_ms);
    let mut alert = json!({
        "labels": {
            "alertname": "KubewitnessOutcome",
            "kind": of("kind"),
            "namespace": of("namespace"),
            "name": of("name"),
            "uid": of("uid"),
        },
        "annotations": {
            "summary": message.title,
            "description": message.text,
            "phase": of("phase"),
            "reason": of("reason"),
        },
        "startsAt": at,
    });
    if !message.link.is_empty() {
        alert["generatorURL"] = message.link.clone().into();
    }
    if message.tone == Tone::Good {
        alert["endsAt"] = at.into();
    }
    json!([alert])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channels::tests::sample;

    #[test]
    fn a_failure_fires_and_a_success_of_the_same_object_resolves_it() {
        let expected = json!([{
            "labels": {"alertname": "KubewitnessOutcome", "kind": "Job", "namespace": "vision", "name": "train", "uid": "uid-train"},
            "annotations": {
                "summary": "Job vision/train: Failed",
                "description": "OOMKilled: <2 of 8> pods & *all*\nExit code 137",
                "phase": "Failed",
                "reason": "OOMKilled",
            },
            "startsAt": "2026-12-31T23:59:59.000Z",
            "generatorURL": "https://kw.example.com/objects/uid-train?state=7",
        }]);
        assert_eq!(body(&sample()), expected);
        let good = body(&Message { tone: Tone::Good, ..sample() });
        assert_eq!((&good[0]["labels"], &good[0]["endsAt"]), (&expected[0]["labels"], &good[0]["startsAt"]));
    }
}
