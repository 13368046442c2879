//! Any receiver of JSON: the operator's template, or all known facts.

use serde_json::Value;

use super::Message;
use crate::template;

/// The names that a webhook's template may use in addition to the facts of the state.
pub const OWN: [&str; 3] = ["title", "text", "link"];

pub fn body(template: Option<&Value>, message: &Message) -> Value {
    let mut facts = message.facts.clone();
    for (name, value) in OWN.into_iter().zip([&message.title, &message.text, &message.link]) {
        facts.insert(name.to_string(), value.clone().into());
    }
    match template {
        Some(template) => template::fill(template, &facts),
        None => Value::Object(facts),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::channels::tests::sample;

    #[test]
    fn the_body_is_the_template_or_everything() {
        let template = json!({"summary": "{{title}}", "code": "{{exitCode}}", "at": ["{{link}}"]});
        let expected = json!({
            "summary": "Job vision/train: Failed", "code": 137,
            "at": ["https://kw.example.com/objects/uid-train?state=7"],
        });
        assert_eq!(body(Some(&template), &sample()), expected);
        let all = body(None, &sample());
        assert_eq!((&all["phase"], &all["title"]), (&json!("Failed"), &json!("Job vision/train: Failed")));
    }
}
