//! Tests of secrets whose name is the previous element of a command line, and of names that are secret by
//! default.

use serde_json::{Value, json};

use crate::config::RedactionSpec;

fn shown(elements: &[&str]) -> Value {
    let rules = RedactionSpec::default().compile_redaction_rules().unwrap();
    let document = json!({"args": elements}).to_string();
    let digest = |value: &[u8]| format!("{:016x}", value.len());
    let once = rules.redact_document(document.as_bytes(), digest).unwrap().unwrap_or(document.into_bytes());
    assert_eq!(rules.redact_document(&once, digest).unwrap(), None, "{elements:?}");
    serde_json::from_slice::<Value>(&once).unwrap()["args"].clone()
}

#[test]
fn a_name_or_a_scheme_at_the_end_of_an_element_says_that_the_next_one_is_a_secret() {
    for elements in [
        &["-H", "Authorization: Bearer", "hush"][..],
        &["-H", "Authorization:", "hush"],
        &["-H", "Authorization:", "Bearer", "hush"],
        &["--token", "Bearer", "hush"],
        &["TOKEN=", "hush"],
        &["TOKEN=Bearer", "hush"],
        &["--token=", "hush"],
        &["--token", "=", "hush"],
        &["sh", "-c", "curl -H \"Authorization: Bearer\" hush"],
    ] {
        let shown = shown(&[elements, &["--epochs", "3"]].concat());
        assert!(!shown.to_string().contains("hush"), "{shown}");
        assert_eq!(shown[elements.len()], "--epochs", "{shown}");
    }
    for elements in [&["--token=\"\"", "run"][..], &["--token", "", "run"], &["--epochs=", "run"]] {
        assert_eq!(shown(elements), json!(elements));
    }
}

#[test]
fn the_arguments_of_a_container_go_on_where_its_command_ends_whichever_the_document_has_first() {
    let rules = RedactionSpec::default().compile_redaction_rules().unwrap();
    let shown = |command: &[&str], args: &[&str], has_args_first: bool| {
        let (command, args) = (json!(command), json!(args));
        let document = match has_args_first {
            true => format!(r#"{{"args":{args},"command":{command}}}"#),
            false => format!(r#"{{"command":{command},"args":{args}}}"#),
        };
        let shown = rules.redact_document(document.as_bytes(), |_| "0".into()).unwrap();
        shown.map_or(document, |shown| String::from_utf8(shown).unwrap())
    };
    for has_args_first in [true, false] {
        let script = shown(&["/bin/sh", "-c"], &["TOKEN=hush run --epochs 3"], has_args_first);
        assert!(!script.contains("hush") && script.contains("run --epochs 3"), "{script}");
        let flag = shown(&["run", "--token"], &["hush", "--epochs"], has_args_first);
        assert!(!flag.contains("hush") && flag.contains("--epochs"), "{flag}");
    }
    let twice = r#"{"args":["--token=hush1"],"args":["--token=hush2"]}"#;
    let twice = rules.redact_document(twice.as_bytes(), |_| "0".into()).unwrap().unwrap();
    assert!(!String::from_utf8(twice).unwrap().contains("hush"));
}

#[test]
fn words_of_one_time_passwords_and_signatures_are_secrets_by_default() {
    let rules = RedactionSpec::default().compile_redaction_rules().unwrap();
    for name in [
        "JWT",
        "jwtSigning",
        "SESSION_JWT",
        "OTP",
        "ADMIN_OTP",
        "totp",
        "PIN",
        "card-pin",
        "SALT",
        "hashSalt",
    ] {
        assert!(rules.is_secret_name(name), "{name}");
    }
    for name in ["PIN_MEMORY", "SPIN", "PINNED", "BASALT", "OPT"] {
        assert!(!rules.is_secret_name(name), "{name}");
    }
}

#[test]
fn options_of_volumes_are_searched_as_the_environment_is() {
    let rules = RedactionSpec::default().compile_redaction_rules().unwrap();
    for place in ["csi\":{\"volumeAttributes", "flexVolume\":{\"options"] {
        let volume = format!(r#"{{"volumes":[{{"{place}":{{"password":"hush","share":"a"}}}}}}]}}"#);
        let shown =
            rules.redact_document(volume.as_bytes(), |value| value.len().to_string()).unwrap().unwrap();
        let expected = volume.replace(r#""hush""#, r#""redacted:4""#);
        assert_eq!(String::from_utf8(shown).unwrap(), expected);
    }
}
