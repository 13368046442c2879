use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::find::index::Pointer;

fn of(variables: &[&str], fields: &[(Option<&str>, &str)]) -> Redactor {
    let field = |(kind, path): &(Option<&str>, &str)| Field {
        kind: kind.map(str::to_owned),
        path: Pointer::parse(path).expect("the test's fields are right"),
    };
    let variables: Vec<_> = variables.iter().map(ToString::to_string).collect();
    Redactor::new(&variables, fields.iter().map(field).collect())
}

fn redactor() -> Redactor {
    let applied = "/metadata/annotations/kubectl.kubernetes.io~1last-applied-configuration";
    let fields = [(Some("Secret"), "/data/*"), (Some("Secret"), "/stringData/*"), (None, applied)];
    of(&["*TOKEN*", "*PASSWORD*", "*API_KEY*"], &fields)
}

/// The digest is the value's length, so that a test can say it.
fn redacted(redactor: &Redactor, document: &str) -> String {
    let found = redactor.redact(document.as_bytes(), |value| value.len().to_string()).unwrap();
    found.map_or_else(|| document.to_owned(), |bytes| String::from_utf8(bytes).unwrap())
}

#[test]
fn the_value_of_a_variable_with_a_secrets_name_is_replaced_wherever_it_stands() {
    let pod = r#"{"kind":"Job","spec":{"template":{"spec":{"containers":[{"env":[
        {"name":"HF_TOKEN","value":"hf_abc"},{"value":"x","name":"db_password"},{"name":"EPOCHS","value":"3"},
        {"name":"API_KEY","valueFrom":{"secretKeyRef":{"name":"s","key":"k"}}}]}]}}}}"#;
    let expected = pod.replace(r#""hf_abc""#, r#""redacted:8""#).replace(r#""x""#, r#""redacted:3""#);
    assert_eq!(redacted(&redactor(), pod), expected);
    let one = r#"{"kind":"Whatever","env":[{"value":{"a":1},"name":"A\u0050I_KEY"}]}"#;
    assert_eq!(redacted(&redactor(), one), one.replace(r#"{"a":1}"#, r#""redacted:7""#));
}

#[test]
fn data_of_a_secret_and_what_kubectl_applied_are_replaced_and_other_kinds_data_stays() {
    let secret = r#"{"data":{"a":"eA==","b":"eQ=="},"kind":"Secret","stringData":{"c":"z"},"type":"Opaque"}"#;
    let out = redacted(&redactor(), secret);
    assert_eq!(
        out,
        r#"{"data":{"a":"redacted:6","b":"redacted:6"},"kind":"Secret","stringData":{"c":"redacted:3"},"type":"Opaque"}"#
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
        let told = redactor().redact(wrong.as_bytes(), |_| String::new()).unwrap_err().to_string();
        assert!(told.contains("withheld"), "{told}");
    }
    assert!(redactor().redact(b"\xff", |_| String::new()).is_err());
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

/// The same by the values themselves.
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
        let out = redactor().redact(text.as_bytes(), |_| String::new()).unwrap();
        let out: Value = serde_json::from_slice(out.as_deref().unwrap_or(text.as_bytes())).unwrap();
        let is_secret = document.is_object() && document["kind"].as_str().is_none_or(|kind| kind == "Secret");
        let mut expected = document;
        model(&mut expected, "", is_secret, false);
        prop_assert_eq!(out, expected);
    }
}
