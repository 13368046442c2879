//! Alertmanager: a bad outcome is a firing alert, and any other outcome of the same object resolves it. The
//! labels of both are equal, because they identify the alert. An alert without an end would be resolved after
//! Alertmanager's own `resolve_timeout`, usually five minutes, because nothing sends it again.

use kubewitness_sdk::time;
use serde_json::{Value, json};

use super::{Message, Tone};
use crate::facts::{outcomes, text};

pub const PATH: &str = "api/v2/alerts";

/// How long a failure fires if no other outcome resolves it.
const FIRES_MS: u64 = 24 * 3_600_000;

pub fn body(message: &Message) -> Value {
    let of = |name| text(&message.facts, name);
    let fires_ms = if message.tone == Tone::Bad { FIRES_MS } else { 0 };
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
        "startsAt": time::rfc3339(message.at_ms),
        "endsAt": time::rfc3339(message.at_ms.saturating_add(fires_ms)),
    });
    if !of(outcomes::CAUSE).is_empty() {
        alert["annotations"][outcomes::CAUSE] = of(outcomes::CAUSE).into();
    }
    if !message.link.is_empty() {
        alert["generatorURL"] = message.link.clone().into();
    }
    json!([alert])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channels::tests::sample;

    #[test]
    fn a_failure_fires_for_a_day_and_any_other_outcome_of_the_same_object_resolves_it() {
        let expected = json!([{
            "labels": {"alertname": "KubewitnessOutcome", "kind": "Job", "namespace": "vision", "name": "train", "uid": "uid-train"},
            "annotations": {
                "summary": "Job vision/train: Failed",
                "description": "OOMKilled: <2 of 8> pods & *all*\nExit code 137",
                "phase": "Failed",
                "reason": "OOMKilled",
            },
            "startsAt": "2026-12-31T23:59:59.000Z",
            "endsAt": "2027-01-01T23:59:59.000Z",
            "generatorURL": "https://kw.example.com/objects/uid-train?state=7",
        }]);
        assert_eq!(body(&sample()), expected);
        for tone in [Tone::Good, Tone::Neutral] {
            let over = body(&Message { tone, ..sample() });
            assert_eq!(
                (&over[0]["labels"], &over[0]["endsAt"]),
                (&expected[0]["labels"], &over[0]["startsAt"])
            );
        }
    }
}
