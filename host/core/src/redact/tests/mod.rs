//! Tests of redaction, also with hostile documents.

mod elements;
mod forms;
mod hostile;
mod kinds;
mod marked;
#[cfg(target_os = "linux")]
mod nested;
mod repeats;

#[cfg(target_os = "linux")]
use std::time::Duration;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::config::{HostSpec, RedactedField, RedactionSpec};
use crate::project::JsonPointer;

/// The processor time of this thread, which does not depend on other load.
#[cfg(target_os = "linux")]
pub(crate) fn computed() -> Duration {
    let statistics = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(statistics.split(' ').next().unwrap().parse().unwrap())
}

/// The default rules, with additional fields of any kind.
pub(crate) fn hiding(pointers: &[&str]) -> RedactionRules {
    let mut redaction = RedactionSpec::default();
    let field = |pointer: &&str| RedactedField { kind: None, pointer: (*pointer).to_owned() };
    redaction.fields.extend(pointers.iter().map(field));
    HostSpec { redaction, ..HostSpec::default() }.compile_redaction_rules().unwrap()
}

fn of(variables: &[&str], fields: &[(Option<&str>, &str)]) -> RedactionRules {
    let field = |(kind, path): &(Option<&str>, &str)| SecretField {
        kind: kind.map(str::to_owned),
        path: JsonPointer::parse(path).expect("the test's fields are right"),
    };
    let variables: Vec<_> = variables.iter().map(ToString::to_string).collect();
    RedactionRules::new(&variables, fields.iter().map(field).collect())
}

fn redactor() -> RedactionRules {
    let applied = "/metadata/annotations/kubectl.kubernetes.io~1last-applied-configuration";
    let fields = [(Some("Secret"), "/data/*"), (Some("Secret"), "/stringData/*"), (None, applied)];
    of(&["*TOKEN*", "*PASSWORD*", "*API_KEY*"], &fields)
}

/// Redacts with the value's length as its digest, so that tests can predict it.
fn redacted(redactor: &RedactionRules, document: &str) -> String {
    let found = redactor.redact_document(document.as_bytes(), |value| value.len().to_string()).unwrap();
    found.map_or_else(|| document.to_owned(), |bytes| String::from_utf8(bytes).unwrap())
}

#[test]
fn the_value_of_a_variable_with_a_secrets_name_is_replaced_wherever_it_stands() {
    let pod = r#"{"kind":"Job","spec":{"template":{"spec":{"containers":[{"env":[
        {"name":"HF_TOKEN","value":"hf_abc"},{"value":"x","name":"db_password"},{"name":"EPOCHS","value":"3"},
        {"name":"API_KEY","valueFrom":{"secretKeyRef":{"name":"s","key":"k"}}}]}]}}}}"#;
    let expected = pod.replace(r#""hf_abc""#, r#""redacted:6""#).replace(r#""x""#, r#""redacted:1""#);
    assert_eq!(redacted(&redactor(), pod), expected);
    let one = r#"{"kind":"Whatever","env":[{"value":{"a":1},"name":"A\u0050I_KEY"}]}"#;
    assert_eq!(redacted(&redactor(), one), one.replace(r#"{"a":1}"#, r#""redacted:7""#));
}

#[test]
fn in_settings_a_secret_is_found_under_its_name_at_any_depth() {
    let settings = r#"{"table":"t","channels":[{"name":"ops","url":"https://a:pa55word@h/x","apiKey":"k1"},
        {"name":"API_KEY","value":"k2"},["a_token=k3"],{"key":"A_TOKEN","value":"k7"}],"db":{"password":{"text":"k4"},"tokens":["k5"]},"args":["--token","k6"]}"#;
    let out =
        redactor().redact_settings(settings.as_bytes(), |value| value.len().to_string()).unwrap().unwrap();
    let out = String::from_utf8(out).unwrap();
    for (secret, place) in [
        ("pa55word", "https://redacted:10@h/x"),
        ("k1", r#""apiKey":"redacted:2""#),
        ("k2", r#""value":"redacted:2""#),
        ("k3", "a_token=redacted:2"),
        ("k4", r#""password":"redacted:13""#),
        ("k5", r#""tokens":"redacted:6""#),
        ("k6", r#"["--token","redacted:2"]"#),
        ("k7", r#""value":"redacted:2"}]"#),
    ] {
        assert!(!out.contains(secret) && out.contains(place), "{secret}: {out}");
    }
    assert!(out.contains(r#""table":"t""#) && out.contains(r#""name":"ops""#), "{out}");
    assert_eq!(redactor().redact_settings(b"{}", |_| String::new()), Ok(None));
    assert!(redactor().redact_settings(b"{", |_| String::new()).is_err());
}

#[test]
fn data_of_a_secret_and_what_kubectl_applied_are_replaced_and_other_kinds_data_stays() {
    let secret = r#"{"data":{"a":"eA==","b":"eQ=="},"kind":"Secret","stringData":{"c":"z"},"type":"Opaque"}"#;
    let out = redacted(&redactor(), secret);
    assert_eq!(
        out,
        r#"{"data":{"a":"redacted:4","b":"redacted:4"},"kind":"Secret","stringData":{"c":"redacted:1"},"type":"Opaque"}"#
    );
    let map = secret.replace("Secret", "ConfigMap");
    assert_eq!(redacted(&redactor(), &map), map);
    let nameless = secret.replace(r#""kind":"Secret","#, "");
    assert!(
        !redacted(&redactor(), &nameless).contains("eA=="),
        "no kind: every kind's fields are looked for"
    );
    let applied = r#"{"metadata":{"annotations":{"kubectl.kubernetes.io/last-applied-configuration":"{\"env\":1}","a":"b"}}}"#;
    let out = redacted(&redactor(), applied);
    assert!(!out.contains("env") && out.contains(r#""a":"b""#), "{out}");
}

#[test]
fn operators_fields_take_stars_and_places_and_the_outer_of_two_wins() {
    let rules = of(&[], &[(None, "/spec/*/key"), (Some("Job"), "/list/1"), (None, "/a"), (None, "/a/b")]);
    let document =
        r#"{"kind":"Job","spec":{"x":{"key":1},"y":{"key":[2]},"key":3},"list":[1,2,3],"a":{"b":4}}"#;
    assert_eq!(
        redacted(&rules, document),
        r#"{"kind":"Job","spec":{"x":{"key":"redacted:1"},"y":{"key":"redacted:3"},"key":3},"list":[1,"redacted:1",3],"a":"redacted:7"}"#
    );
}

#[test]
fn what_is_no_json_or_too_deep_is_withheld() {
    let deep = format!("{}1{}", "[".repeat(200), "]".repeat(200));
    for wrong in ["", "{", r#"{"a":}"#, r#"{"a":1} x"#, &deep] {
        let error = redactor().redact_document(wrong.as_bytes(), |_| String::new()).unwrap_err().to_string();
        assert!(error.contains("withheld"), "{error}");
    }
    assert!(redactor().redact_document(b"\xff", |_| String::new()).is_err());
}

#[test]
fn patterns_take_stars_and_any_case_and_end_where_they_end() {
    let is_secret = |pattern: &str, name: &str| of(&[pattern], &[]).is_secret_name(name);
    for (pattern, name) in [("*TOKEN*", "hf_token"), ("a*b*c", "AxxBxbC"), ("exact", "EXACT"), ("*", "")] {
        assert!(is_secret(pattern, name), "{pattern} {name}");
    }
    for (pattern, name) in [("token", "my_token"), ("a*b", "abc"), ("a*b*c", "acb")] {
        assert!(!is_secret(pattern, name), "{pattern} {name}");
    }
    let stars = "*A".repeat(100);
    assert!(!is_secret(&stars, &"A".repeat(99)));
}

/// Redacts with the rules that apply without settings.
fn by_default(document: &str) -> String {
    redacted(&RedactionSpec::default().compile_redaction_rules().unwrap(), document)
}

#[test]
fn names_are_secrets_however_their_words_are_joined_and_common_names_are_none() {
    let rules = RedactionSpec::default().compile_redaction_rules().unwrap();
    for name in [
        "my-api.key",
        "api-key",
        "apiKey",
        "APIKey",
        "privateKey",
        "private_key",
        "BEARER",
        "PassWord",
        "tls.key",
        "X-Auth-Token",
        "authorization",
        "Proxy-Authorization",
        "Set-Cookie",
        ".dockerconfigjson",
        "db.password",
        "HF_TOKEN",
        "awsSecretAccessKey",
        "id_rsa",
        "SLACK_WEBHOOK_URL",
        "dbPass",
        "DBPASS",
        "PASS",
        "pwd",
        "KEY",
        "SIGNING_KEYS",
        "ENCRYPTION_KEY_BASE64",
        "TOKENIZER_API_KEY",
        "HF_TOKENIZER_TOKEN",
        "MAXIM_REFRESH_TOKENS",
        &"x".repeat(2000),
    ] {
        assert!(rules.is_secret_name(name), "{name}");
    }
    for name in [
        "MONKEY",
        "EPOCHS",
        "TOKENIZER_PATH",
        "TOKENIZERS_PARALLELISM",
        "max-num-batched-tokens",
        "KEY_COUNT",
        "COMPASS",
        "PATH",
        "",
    ] {
        assert!(!rules.is_secret_name(name), "{name}");
    }
}

/// A tenant's text. A search that reads the rest of it repeatedly would take minutes.
#[test]
fn a_long_text_is_searched_once_whatever_it_repeats() {
    for part in ["://", "://a:b/", "http://a@", "://a:b@c", "TOKEN=abcdef\\n", "a=b:", "\\u00e9 --token x "] {
        let text = part.repeat((256 << 10) / part.len());
        let document =
            format!(r#"{{"kind":"Pod","metadata":{{"annotations":{{"a":"{text}"}}}},"args":["{text}"]}}"#);
        let redacted: serde_json::Value = serde_json::from_str(&by_default(&document)).unwrap();
        assert_eq!(redacted["kind"], "Pod", "{part}");
    }
}

#[test]
fn headers_of_probes_and_objects_of_variables_are_searched_as_the_environment_is() {
    let probe = r#"{"kind":"Pod","spec":{"containers":[{"livenessProbe":{"httpGet":{"httpHeaders":[
        {"name":"Authorization","value":"Bearer a"},{"name":"X-Auth-Token","value":"b"},{"name":"Accept","value":"c"}]}},
        "lifecycle":{"preStop":{"httpGet":{"httpHeaders":[{"value":"dd","name":"x-api-key"}]}}}}]}}"#;
    let expected = probe.replace(r#""Bearer a""#, r#""redacted:8""#).replace(r#""b""#, r#""redacted:1""#);
    assert_eq!(by_default(probe), expected.replace(r#""dd""#, r#""redacted:2""#));
    let object =
        r#"{"kind":"Run","spec":{"env":{"HF_TOKEN":"abc","EPOCHS":"3","API_KEY":{"valueFrom":"s"}}}}"#;
    assert_eq!(by_default(object), object.replace(r#""abc""#, r#""redacted:3""#));
    let texts =
        r#"{"spec":{"env":["TOKEN=abc","EPOCHS=3"],"headers":["Authorization: Bearer abc","Accept: x"]}}"#;
    let expected = texts.replace("TOKEN=abc", "TOKEN=redacted:3").replace("Bearer abc", "redacted:10");
    assert_eq!(by_default(texts), expected);
    let keyed = r#"{"spec":{"env":[{"key":"API_TOKEN","value":"abc"}]}}"#;
    assert_eq!(by_default(keyed), keyed.replace(r#""abc""#, r#""redacted:3""#));
    let valued = r#"{"spec":{"env":{"API_TOKEN":{"value":"abc","x":"y"},"EPOCHS":{"value":"3"}}}}"#;
    assert_eq!(by_default(valued), valued.replace(r#""abc""#, r#""redacted:3""#));
    let map = r#"{"kind":"ConfigMap","data":{"api-key":"abc","url":"x"},"binaryData":{"tls.key":"eA=="}}"#;
    let expected = map.replace(r#""abc""#, r#""redacted:3""#).replace(r#""eA==""#, r#""redacted:4""#);
    assert_eq!(by_default(map), expected);
    let other = r#"{"kind":"Run","data":{"api-key":"abc"},"spec":{"data":{"api-key":"abc"}}}"#;
    assert_eq!(by_default(other), other);
}

#[test]
fn what_kubectl_applied_is_hidden_at_any_depth() {
    let key = "kubectl.kubernetes.io/last-applied-configuration";
    let run = format!(
        r#"{{"metadata":{{"annotations":{{"{key}":"ab","x":"y"}}}},"spec":{{"list":[{{"annotations":{{"{key}":"abc"}}}}],"{key}":"ab"}}}}"#
    );
    let expected = run.replacen(r#""ab""#, r#""redacted:2""#, 1).replace(r#""abc""#, r#""redacted:3""#);
    assert_eq!(by_default(&run), expected);
}

#[test]
fn command_lines_lose_the_values_of_flags_assignments_and_headers_and_nothing_else() {
    for (line, expected) in [
        (r#"["--password=abc def","--epochs=3"]"#, r#"["--password=redacted:7","--epochs=3"]"#),
        (r#"["--token","abc d","--epochs","3"]"#, r#"["--token","redacted:5","--epochs","3"]"#),
        (r#"["--use-token","--epochs"]"#, r#"["--use-token","redacted:8"]"#),
        (r#"["--api-key=$(API_KEY)","--token","${T}"]"#, ""),
        (
            r#"["sh","-c","TOKEN=abc train --password 'a b' --x"]"#,
            r#"["sh","-c","TOKEN=redacted:3 train --password 'redacted:3' --x"]"#,
        ),
        (r#"["train\n  --token abc\n  --epochs 3"]"#, r#"["train\n  --token redacted:3\n  --epochs 3"]"#),
        (
            r#"["curl -H \"Authorization: Bearer abc\" http://x"]"#,
            r#"["curl -H \"Authorization: redacted:10\" http://x"]"#,
        ),
        (r#"["--header=Authorization: Bearer abc"]"#, r#"["--header=Authorization: redacted:10"]"#),
        (r#"["-H","X-Api-Key:abc"]"#, r#"["-H","X-Api-Key:redacted:3"]"#),
        (r#"["--from-literal=password=abc"]"#, r#"["--from-literal=password=redacted:3"]"#),
        (r#"["{\"password\":\"abc\",\"a\":1}"]"#, r#"["{\"password\":\"redacted:3\",\"a\":1}"]"#),
        (
            r#"["\u00e9\u00e9 --token=\u00e9b \ud83d\ude00"]"#,
            r#"["\u00e9\u00e9 --token=redacted:7 \ud83d\ude00"]"#,
        ),
        (r#"["--image","registry/auth-token:v1","--tokenizer=gpt2","--max-tokens","4096"]"#, ""),
        (r#"["a=b","=","--","-","--=x",":", "", "é=ü"]"#, ""),
        (r#"[["--token","abc"],["--epochs","3"]]"#, r#"[["--token","redacted:3"],["--epochs","3"]]"#),
        (r#"{"token":"abc","epochs":"3"}"#, r#"{"token":"redacted:3","epochs":"3"}"#),
        (
            r#"[{"name":"token","value":"abc"},{"name":"epochs","value":"3"}]"#,
            r#"[{"name":"token","value":"redacted:3"},{"name":"epochs","value":"3"}]"#,
        ),
        (r#""--password=abc""#, r#""--password=redacted:3""#),
    ] {
        let of = |line: &str| format!(r#"{{"spec":{{"containers":[{{"args":{line}}}]}}}}"#);
        let expected = if expected.is_empty() { line } else { expected };
        assert_eq!(by_default(&of(line)), of(expected));
    }
    let probe = r#"{"readinessProbe":{"exec":{"command":["mysqladmin","--password=abc","ping"]}}}"#;
    assert_eq!(by_default(probe), probe.replace("abc", "redacted:3"));
}

#[test]
fn addresses_lose_their_passwords_wherever_they_stand() {
    for (text, expected) in [
        ("postgres://u:abc@h/db", "postgres://u:redacted:3@h/db"),
        ("redis://:abc@h, mongodb://u:d@h1,h2", "redis://:redacted:3@h, mongodb://u:redacted:1@h1,h2"),
        (r"redis:\\/\\/:abc@h\\/1", r"redis:\\/\\/:redacted:3@h\\/1"),
        ("https://ghp_abc@github.com/x", "https://redacted:7@github.com/x"),
        ("x HTTP://u:abc@h?a@b", "x HTTP://redacted:9@b"),
        ("amqp://u:a/b@h/v", "amqp://u:redacted:3@h/v"),
        (r"postgres:\/\/u:abc@h", r"postgres:\/\/u:redacted:3@h"),
        ("ssh://git@h/x http://h:80/a@b http://[::1]:80/a@b redis://h a@b://", ""),
    ] {
        let of = |text: &str| format!(r#"{{"spec":{{"a":["{text}"],"b":{{"url":"{text}"}}}}}}"#);
        let expected = if expected.is_empty() { text } else { expected };
        assert_eq!(by_default(&of(text)), of(expected));
    }
    let lone = r#"{"a":"\ud800 http://"}"#;
    assert_eq!(by_default(lone), r#"{"a":"redacted:14"}"#, "what means no characters is hidden");
}

fn documents() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        "[a-z\"\\\\é]{0,6}".prop_map(Value::from),
    ];
    let key = prop_oneof![Just("env"), Just("name"), Just("value"), Just("data"), Just("kind"), Just("a")];
    leaf.prop_recursive(6, 64, 5, move |inner| {
        let variable = ("(TOKEN|EPOCHS)", inner.clone()).prop_map(|(n, v)| json!({"name": n, "value": v}));
        prop_oneof![
            3 => prop::collection::vec((key.clone(), inner.clone()), 0..5).prop_map(|members| {
                members.into_iter().map(|(key, value)| (key.to_owned(), value)).collect::<Value>()
            }),
            1 => prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            2 => prop::collection::vec(variable, 0..4).prop_map(|list| json!({"env": list})),
        ]
    })
}

/// The texts between digests.
fn between_digests(text: &str) -> impl Iterator<Item = &str> {
    text.split(MARK).enumerate().map(|(place, part)| {
        let part = if place == 0 { part } else { part.get(DIGEST_CHARS..).unwrap_or_default() };
        part.trim_matches('"')
    })
}

/// The same, computed from parsed values.
fn model(value: &mut Value, path: &str, is_secret: bool, is_environment: bool) {
    match value {
        Value::Object(members) => {
            for (key, member) in members {
                let at = format!("{path}/{key}");
                match is_secret && path == "/data" {
                    true => *member = "redacted:".into(),
                    false => model(member, &at, is_secret, key == "env"),
                }
            }
        }
        Value::Array(list) => {
            for (place, element) in list.iter_mut().enumerate() {
                if is_secret && path == "/data" {
                    *element = "redacted:".into();
                    continue;
                }
                let is_named = is_environment && element["name"].as_str() == Some("TOKEN");
                model(element, &format!("{path}/{place}"), is_secret, false);
                if is_named && let Some(value) = element.get_mut("value") {
                    *value = "redacted:".into();
                }
            }
        }
        _ => {}
    }
}

proptest! {
    #[test]
    fn the_bytes_say_what_a_redaction_of_the_values_says(document in documents()) {
        let text = document.to_string();
        let out = redactor().redact_document(text.as_bytes(), |_| String::new()).unwrap();
        let out: Value = serde_json::from_slice(out.as_deref().unwrap_or(text.as_bytes())).unwrap();
        let is_secret = document.is_object() && document["kind"].as_str().is_none_or(|kind| kind == "Secret");
        let mut expected = document;
        model(&mut expected, "", is_secret, false);
        prop_assert_eq!(out, expected);
    }

    #[test]
    fn redaction_leaves_json_is_idempotent_and_keeps_everything_else_byte_for_byte(
        document in documents(),
        words in prop::collection::vec(
            r#"(--)?(token|PASSWORD|a)(=| |: ?)[a-z"'é\\]{0,4}|https?://[a:@/]{0,6}|\\PC{0,4}| "#, 0..6),
        is_spaced in any::<bool>(),
    ) {
        let document = json!({"kind": "Job", "args": words, "command": words.concat(), "rest": document,
            "status": {"conditions": [{"message": words.concat()}, {"message": words}], "rest": document}});
        let text = if is_spaced { format!("{document:#}") } else { document.to_string() };
        let rules = RedactionSpec::default().compile_redaction_rules().unwrap();
        let digest = |value: &[u8]| format!("{:016x}", value.len());
        let Some(out) = rules.redact_document(text.as_bytes(), digest).unwrap() else { return Ok(()) };
        prop_assert!(serde_json::from_slice::<Value>(&out).is_ok());
        prop_assert_eq!(rules.redact_document(&out, digest).unwrap(), None);
        let out = String::from_utf8(out).unwrap();
        let mut rest = text.as_str();
        for part in between_digests(&out) {
            let at = rest.find(part);
            prop_assert!(at.is_some(), "{} is not in {}", part, rest);
            rest = &rest[at.unwrap_or_default() + part.len()..];
        }
    }
}
