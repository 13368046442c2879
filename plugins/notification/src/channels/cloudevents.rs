//! CloudEvents 1.0 in structured mode: the envelope, with the facts about the state as `data`.

use kubewitness_sdk::time;
use serde_json::{Value, json};

use super::Message;
use crate::facts::text;

const SOURCE: &str = "kubewitness";

pub fn body(source: &str, message: &Message) -> Value {
    let of = |name| text(&message.facts, name);
    let mut data = message.facts.clone();
    for (name, value) in [("title", &message.title), ("text", &message.text), ("link", &message.link)] {
        data.insert(name.to_string(), value.clone().into());
    }
    json!({
        "specversion": "1.0",
        "id": message.id,
        "source": if source.is_empty() { SOURCE } else { source },
        "type": "dev.kubewitness.outcome.v1",
        "subject": format!("{}/{}/{}", of("namespace"), of("kind"), of("name")),
        "time": time::rfc3339(message.at_ms),
        "datacontenttype": "application/json",
        "data": data,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channels::tests::sample;

    #[test]
    fn the_envelope_has_what_the_standard_demands_and_the_data_has_the_facts() {
        let event = body("", &sample());
        let mut data = json!(sample().facts);
        data["title"] = "Job vision/train: Failed".into();
        data["text"] = sample().text.into();
        data["link"] = sample().link.into();
        let expected = json!({
            "specversion": "1.0",
            "id": "jobs/0/batch/Job/uid-train/7",
            "source": "kubewitness",
            "type": "dev.kubewitness.outcome.v1",
            "subject": "vision/Job/train",
            "time": "2026-12-31T23:59:59.000Z",
            "datacontenttype": "application/json",
            "data": data,
        });
        assert_eq!(event, expected);
        assert_eq!(body("/clusters/a", &sample())["source"], "/clusters/a");
    }
}
