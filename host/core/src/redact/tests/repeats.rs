//! Tests that a hidden value is also hidden in other places of its document.

use super::*;

const LONG: &str = "hf4Tq9xZb2LmN7kQ";

fn pod(variable: (&str, &str), rest: &Value) -> Value {
    let (name, value) = variable;
    let mut pod = json!({"kind": "Pod", "metadata": {"name": "postgres-0", "labels": {"app": "postgres"}},
        "spec": {"containers": [{"name": "postgres", "image": "postgres:16", "env": [{"name": name, "value": value}]}]}});
    pod.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
    pod
}

fn shown(document: &Value) -> Value {
    serde_json::from_str(&by_default(&document.to_string())).unwrap()
}

#[test]
fn a_long_secret_is_hidden_wherever_it_stands() {
    let document = pod(
        ("HF_TOKEN", LONG),
        &json!({
            "note": format!("it is {LONG}, twice {LONG}"), "list": [format!("{{\"x\":\"{LONG}\"}}")],
            "status": {"message": format!("got {LONG}")},
        }),
    );
    let shown = shown(&document);
    assert_eq!(shown["note"], "it is redacted:16, twice redacted:16");
    assert_eq!(shown["list"][0], "{\"x\":\"redacted:16\"}");
    assert_eq!(shown["status"]["message"], "got redacted:16");
}

#[test]
fn a_weak_secret_makes_no_name_image_or_message_unreadable() {
    let status = json!({"message": "postgres exited", "containerStatuses": [
        {"name": "postgres", "image": "docker.io/library/postgres:16", "state": {"waiting": {"message": "no postgres"}}},
    ]});
    let document = pod(("POSTGRES_PASSWORD", "postgres"), &json!({"status": status}));
    let mut expected = document.clone();
    expected["spec"]["containers"][0]["env"][0]["value"] = json!("redacted:8");
    assert_eq!(shown(&document), expected);
    // As a part of a longer word it stays.
    let document = pod(("PASSWORD", "postg"), &json!({"status": {"message": "it is postgr"}}));
    assert_eq!(shown(&document)["status"]["message"], "it is postgr", "too short to be looked for");
    let document = pod(("PASSWORD", "postgr"), &json!({"status": {"message": "it is postgr"}}));
    assert_eq!(shown(&document)["status"]["message"], "it is redacted:6");
}

#[test]
fn names_labels_and_references_stay_whatever_the_secrets_are() {
    let name = "training-credentials-v2";
    let mut document =
        pod(("MY_SECRET", name), &json!({"note": name, "status": {"message": format!("no {name}")}}));
    document["metadata"]["name"] = json!(name);
    document["metadata"]["labels"] = json!({"job": name});
    document["spec"]["volumes"] = json!([{"name": "v", "secret": {"secretName": name}}]);
    let shown = shown(&document);
    assert_eq!(shown["metadata"], document["metadata"]);
    assert_eq!(shown["spec"]["volumes"], document["spec"]["volumes"]);
    assert_eq!(shown["note"], "redacted:23");
    assert_eq!(shown["status"], document["status"], "who sees the name sees what it says");
}

#[test]
fn the_texts_of_events_and_statuses_keep_words_that_the_object_shows() {
    let rules = RedactionSpec::default().compile_redaction_rules().unwrap();
    let words = |document: &Value| {
        let mut secrets = SecretDigests::default();
        let digest = |value: &[u8]| Ok::<_, WithheldDocument>(value.len().to_string());
        rules.add_secrets(document.to_string().as_bytes(), digest, &mut secrets).unwrap();
        secrets
    };
    assert!(words(&pod(("POSTGRES_PASSWORD", "postgres"), &json!({}))).is_empty());
    assert!(!words(&pod(("POSTGRES_PASSWORD", "hush-hush"), &json!({}))).is_empty());
}

#[cfg(target_os = "linux")]
#[test]
fn a_document_with_many_long_secrets_is_searched_in_bounded_time() {
    let secrets: Vec<_> =
        (0..SECRETS_MANY).map(|n| json!({"name": "TOKEN", "value": format!("{LONG}{n:06}")})).collect();
    let noise = format!("{LONG} ").repeat((1 << 20) / LONG.len());
    let document = json!({"env": secrets, "note": noise, "status": {"message": noise}}).to_string();
    let before = computed();
    by_default(&document);
    assert!(computed() - before < Duration::from_secs(20));
}

#[cfg(target_os = "linux")]
const SECRETS_MANY: usize = 250;
