//! Tests of texts that hide the end of a secret.

use std::time::Duration;

use proptest::prelude::*;
use serde_json::{Value, json};

#[cfg(target_os = "linux")]
use super::computed;
use crate::config::RedactionSpec;
use crate::redact::{SecretDigests, WithheldDocument};

/// The text as an argument and as an annotation, after redaction by the default rules.
fn shown(text: &str) -> (String, String) {
    let rules = RedactionSpec::default().compile_redaction_rules().unwrap();
    let document = json!({"metadata": {"annotations": {"a": text}}, "spec": {"args": [text]}}).to_string();
    let digest = |value: &[u8]| format!("{:016x}", value.len());
    let once = rules.redact_document(document.as_bytes(), digest).unwrap();
    let bytes = once.clone().unwrap_or_else(|| document.into_bytes());
    assert_eq!(
        rules.redact_document(&bytes, digest).unwrap(),
        None,
        "what is redacted stays as it is: {text}"
    );
    let value: Value = serde_json::from_slice(&bytes).unwrap();
    let text = |pointer: &str| value.pointer(pointer).and_then(Value::as_str).unwrap().to_owned();
    (text("/spec/args/0"), text("/metadata/annotations/a"))
}

#[test]
fn no_part_of_a_secret_stays_in_an_argument_whatever_its_quotes() {
    for text in [
        r#"{"token":"hush1","password":"hush2"}"#,
        r#"--config={"apiKey":"hush1","password":"hush2"}"#,
        r#"token="hush1",password="hush2""#,
        r#"PASSWORD="hush1\"hush2""#,
        r#"PASSWORD="hush1\" hush2" train"#,
        r"PASSWORD='hush1'\''hush2'",
        r"PASSWORD='hush1'\'' hush2'",
        r#"PASSWORD="hush1"hush2"#,
        r#"PASSWORD="hush1"'hush2 hush3'"#,
        r#"PASSWORD=hush1" hush2""#,
        r#"{"a":1,"password":["hush1"]}"#,
        r#"{"a":1,"password":["x]","hush1"],"token":{"b":"hush2"}}"#,
        r#"{"a":1,"password":{"b":["hush1"#,
        r#"{"password" : "hush1"}"#,
        "{\"password\":\n  \"hush1\"}",
        r#"{"password":"hush1, \"hush2"}"#,
        r#"{"password":12hush1,"token":"hush2"}"#,
        r"{'password': 'hush1\', hush2'}",
        r#"curl -d "{\"password\":\"hush1 hush2\",\"token\": \"hush3\"}""#,
        r#"run "{\"password\":[\"hush1]\",\"hush2\"]}""#,
        r"--password --hush1",
        r"train --password '--hush1 hush2'",
        r"train --token --password hush1",
        r"PASSWORD=$'ansi hush1' train",
        r"PASSWORD=$(printf %s hush1) train",
        r"PASSWORD=${X:-some hush1} train",
        r"PASSWORD=a\ hush1 train",
        r#"sh -c "run --password=\"a hush1\" x""#,
        r#"sh -c 'TOKEN="a hush1" x'"#,
        "PASSWORD=//hush1",
        "PASSWORD+=hush1",
        "password = \"hush1\"",
        "password = hush1",
        "password: |\n  hush1\n  hush2",
        r#"Cookie: a="hush1"; b="hush2""#,
        r#"curl -H "Cookie: a=\"hush1\"; b=hush2" http://h"#,
        r#"curl -H 'Cookie: a="hush1"; b=hush2' http://h"#,
        "TOKEN=`echo hush1` train",
        "TOKEN=a`echo hush1`b train",
        r#"logstash -e 'output { elasticsearch { password => "hush1" } }'"#,
        "'password'=>'hush1'",
        "token:\n  hush1",
        "token:\r\n  hush1\r\n  hush2",
        "token:\n- hush1\n- hush2\n",
        "os.environ['TOKEN']='hush1'",
        "os.environ[\"TOKEN\"] = \"hush1\"",
        r#"[{"name": "DB_PASSWORD", "value": "hush1"}]"#,
        r#"{"env":[{"value": "hush1", "name": "DB_PASSWORD"}]}"#,
        "train --token \\\n  hush1 --epochs 3",
        "TOKEN: \\\nhush1",
        "TOKEN: a \\\nhush1",
        "Authorization=Bearer hush1",
        "curl Authorization=Basic hush1 x",
        "--header=Authorization=Bearer hush1",
        "train TOKEN=Bearer \\\n hush1",
        "curl -H \"Authorization: Bearer\n hush1\" http://h",
        "curl -H 'Authorization: Bearer\nhush1' http://h",
        "PASSWORD=correct hush1",
        "PASSWORD=-----BEGIN\nhush1",
        "train '--token' 'hush1'",
        "train \"--token\" hush1",
        r#"sh -c "train \"--token\" hush1""#,
        r#"x ["--token", "hush1"]"#,
        r#"{"name":"DB_PASSWORD","value":"hush1"}"#,
        r#"{"env":{"name":"DB_PASSWORD","value":"hush1"}}"#,
        r#"--env='[{"name":"DB_PASSWORD","value":"hush1"}]'"#,
        r#"x [{"value":"hush1", "name":"DB_PASSWORD"}] y"#,
        r#"x "[{\"name\":\"DB_PASSWORD\",\"value\":\"hush1\"}]" y"#,
        "run --set env[0].name=DB_PASSWORD,env[0].value=hush1",
        "token:\n\n  hush1\n\n  hush2",
        "token: # why\n  hush1",
        "password: a\n  hush1\n\n  hush2\nepochs: 3",
        "- password: a\n   hush1",
        "- name: TOKEN\n  value: hush1",
        "- value: hush1\n  name: TOKEN",
        "{name: TOKEN, value: hush1}",
        r"TOKEN=`a \` hush1`",
        r#"sh -c "export TOKEN=$'it\'s hush1'; run""#,
        r"TOKEN=$'it\'s hush1' run",
        r#"TOKEN="`echo "a b" hush1`""#,
        r#"TOKEN="$(echo "a b" hush1)" run"#,
        r#"TOKEN="$(echo ")" hush1)" run"#,
        r#"sh -c 'TOKEN="$(echo "a (b)" hush1)" run'"#,
        "TOKEN[0]=hush1",
        "export TOKEN[12]=hush1 run",
        r#"{"a":"{\"b\":\"{\\\"password\\\":\\\"hush1\\\"}\"}"}"#,
        r#"{"cfg":"--token hush1"}"#,
        r#"ARGS="--token hush1" run"#,
        "--token\\\n=hush1",
        "run --token\\\r\n=hush1 x",
        r#"--config={"args":["--token","hush1"]}"#,
        r#"x ["--token","hush1"] y"#,
        r#"x ["Authorization: Bearer","hush1"] y"#,
        r#"sh -c "x [\"--token\",\"hush1\"]""#,
        r#"TOKEN="${X:-"a b" hush1}""#,
        r#"TOKEN="${A:-"}"}hush1" run"#,
        r#"TOKEN="$(echo "$(echo "b ) c") hush1")" run"#,
        r#"TOKEN="$(echo "a ${X:-"b )"} c" hush1)" run"#,
        r#"curl -H "Authorization: Bearer" hush1"#,
        r#"sh -c "curl -H \"Authorization: Bearer\" hush1""#,
        "TOKEN[k]=hush1 run",
        "TOKEN[$i]=hush1 run",
        "export TOKEN[\"k\"]=hush1 run",
        "declare -A T; T[TOKEN]=hush1",
        r#"{"cfg":"-e TOKEN=a hush1"}"#,
        r#"{"cfg":["-e TOKEN=a hush1"],"b":"TOKEN=a hush2"}"#,
        "-e TOKEN=a hush1",
        r#"run {"c":"{\"url\":\"postgres:\\/\\/u:hush1@h\"}"}"#,
        r#"cfg={"tok\u0065n":"hush1"}"#,
        r#"sh -c "cfg={\"tok\\u0065n\":\"hush1\"}""#,
        "TOKEN=a\u{c}hush1",
        "TOKEN=a\rhush1 x",
        "TOKEN=\"a\"\u{c}hush1",
    ] {
        let (argument, _) = shown(text);
        assert!(!argument.contains("hush"), "{text}: {argument}");
    }
}

#[test]
fn what_stands_beside_a_secret_stays() {
    for (text, kept) in [
        (r#"{"token":"hush","epochs":3,"rate":0.1}"#, r#","epochs":3,"rate":0.1}"#),
        (r#"{"token":null,"epochs":3}"#, r#","epochs":3}"#),
        (r#"sh -c "TOKEN=hush" && train --epochs 3"#, r#"" && train --epochs 3"#),
        (r#"sh -c "TOKEN='hush' train" --epochs 3"#, r#"' train" --epochs 3"#),
        (r"echo it's; TOKEN='hush' train", "' train"),
        (r#"curl -H "X-Token: hush" http://h"#, r#"" http://h"#),
        (r#"sh -c "curl -H \"X-Token: hush\" http://h""#, r#"" http://h""#),
        ("`curl -H TOKEN=hush` --epochs 3", "` --epochs 3"),
        ("token:\n  hush\nepochs: 3", "\nepochs: 3"),
        ("token:\nepochs: 3, hash", "token:\nepochs: 3, hash"),
        (r#"[{"name":"A_TOKEN","value":"hush"},{"name":"EPOCHS","value":"3"}]"#, r#","value":"3"}]"#),
        ("- name: A_TOKEN\n  value: hush\n- name: EPOCHS\n  value: 3", "\n- name: EPOCHS\n  value: 3"),
        ("- value: 3\n  name: EPOCHS\n- value: hush\n  name: A_TOKEN", "\n  name: A_TOKEN"),
        ("- password: hush\n  epochs: 3", "\n  epochs: 3"),
        ("run Authorization=Bearer hush --epochs 3", " --epochs 3"),
        ("run --token \\\n hush --epochs 3", " --epochs 3"),
        ("run TOKEN=hush\r\nrun --epochs 3", "\r\nrun --epochs 3"),
        (r#"x ["--token","hush","--epochs","3"]"#, r#"","--epochs","3"]"#),
        (r#"run TOKEN="${X:-"a hush"}" --epochs 3"#, r#"" --epochs 3"#),
        ("auth: basic\nepochs: 3", "epochs: 3"),
    ] {
        let (argument, _) = shown(text);
        assert!(argument.ends_with(kept) && !argument.contains("hush"), "{text}: {argument}");
    }
}

#[test]
fn the_password_of_an_address_is_hidden_whole_whatever_is_in_it() {
    for text in [
        "postgres://u:p@ss/hush@h/db",
        "mysql://root:pa hush@h",
        "mysql://root:p@ss hush@h",
        "mysql://root: hush@h",
        "dial mysql://root:pa hush@h failed",
        "amqp://u:'hush'@h",
        "at amqp://u:'a hush'@h",
        r#"{"url":"postgres://u:p@'hush'@h","b":1}"#,
        "postgres://u:p?hush#hush@h",
        "postgres://u:/hush@h",
        "postgres://u:123456/hush@h",
        "postgres://u:1/hush@h",
        "postgres://u:1/hush@shard-0.db",
        "dial postgres://u:1?hush@h:5432/db failed",
        "smtp://me@example.com:hush@h",
        "https://me@example.com:p@ss/hush@h",
        "postgres://u:a://hush@h",
        "postgres://u:80/a hush@h",
        r"postgres:\\/\\/u:hush@h",
        "redis://:a@b,hush@h, mongodb://u:hush@h1,h2",
    ] {
        let (argument, annotation) = shown(text);
        assert!(
            !argument.contains("hush") && !annotation.contains("hush"),
            "{text}: {argument}, {annotation}"
        );
    }
    for text in [
        "http://h:80/a@b",
        "see http://h:8080, or mail a@b",
        "see redis://h:6379/0 or mail a@b",
        "docker://registry:5000/image@sha256:abc",
        "amqp://h:5672/vhost, or mail a@b",
        "https://registry.example.com/@scope/package",
        "ssh://git@h:22/x@y",
        "http://h: a@b",
    ] {
        assert_eq!(shown(text).1, text);
    }
    let (argument, _) = shown("http://token=''token http://@");
    assert!(argument.starts_with("http://token=redacted:"), "{argument}");
    let (_, text) = shown("git+https://hush@h/x@v1 and {\"url\":\"redis://:hush@h\",\"mail\":\"a@b\"}");
    assert!(text.contains("@h/x@v1 and") && text.ends_with("@h\",\"mail\":\"a@b\"}"), "{text}");
}

/// A tenant's text. A search that reads the rest of it repeatedly would take four billion steps for each
/// part.
#[test]
fn a_long_text_of_quotes_and_brackets_is_searched_once() {
    for part in [
        "TOKEN=\"a\",",
        "TOKEN='",
        "TOKEN=\"\\\"",
        "token:\"a\\n",
        "{\"token\":\"a\",",
        "\"token\":[\"",
        "\"token\" : ",
        "token = ",
        "TOKEN=\\\"",
        "TOKEN=a\"\"\"\"",
        "\"TOKEN=a\"))",
        "X-Token: a' \"",
        "|token:'a\"",
        "u:p://",
        "\"a://u:p",
        "a://u:p@ ",
        "TOKEN=`",
        "token:\n ",
        "['TOKEN']=",
        "token=>",
        "[{\"name\":\"TOKEN\",\"value\":\"a\"},",
        ",a://u:p",
        "\"Token: a\" ",
        "Token: a\n",
        "token:\n\n",
        "token: \\\n",
        "value: a, name: TOKEN, ",
        "{\"value\":\"a\",",
        "- name: TOKEN\n  value: a\n",
        "<a://u:p ",
        "value: name: TOKEN name: x ",
        "value={ name=TOKEN name=y ",
        "value: \"x name: TOKEN name: y ",
        "a://u:1/",
        "TOKEN=\"$( ",
        "TOKEN=\"`",
        "TOKEN=$'",
        "TOKEN[1]",
        "TOKEN=\\\n",
        "TOKEN=\"${",
        "TOKEN=\"$(\"",
        "[\"--token\",",
        "TOKEN[a]=",
        "]=",
        "\"a\\u0061\":",
        "a:\\\\/",
        "a://u:1/ b",
        "TOKEN=Bearer\"",
        "'TOKEN=a ",
        "'TOKEN=",
        "'a=TOKEN=",
        "'--token ",
        "\\u003d",
        "TOKEN\\u003d",
        "\\\\u0022TOKEN=",
    ] {
        let text = part.repeat((64 << 10) / part.len());
        let (argument, annotation) = shown(&text);
        assert!(!argument.is_empty() && !annotation.is_empty(), "{part}");
    }
}

/// For a text of eight times the length, eight times the time is allowed. Quadratic time would be 64 times.
#[cfg(target_os = "linux")]
fn assert_takes_as_long_as_it_is(before: &str, repeated: &str) {
    let rules = RedactionSpec::default().compile_redaction_rules().unwrap();
    let time = |bytes: usize| {
        let text = format!("{before}{}x", repeated.repeat(bytes / repeated.len()));
        let document = json!({"args": [text]}).to_string();
        let begun = computed();
        rules.redact_document(document.as_bytes(), |_| "0".repeat(16)).unwrap();
        computed() - begun
    };
    let (short, long) = (time(1 << 10), time(8 << 10));
    assert!(
        long < short.max(Duration::from_millis(4)) * 24,
        "{before:?}, then {repeated:?} again and again: {short:?}, {long:?}"
    );
}

#[test]
#[cfg(target_os = "linux")]
fn whatever_repeats_in_a_text_the_search_takes_as_long_as_the_text_is() {
    let signs = [
        "TOKEN=", "token:", "--token ", "name:", "value:", "a", "\"", "'", "`", "\\", ",", "(", "[", "{",
        "}", "|", "=", "@", "://", " ", "\n", "\n ", "$", "${", "]=", "\",", "/", "\\u0061",
    ];
    for (first, second) in signs.iter().flat_map(|first| signs.map(|second| (first, second))) {
        for before in ["TOKEN=", "x \"token: "] {
            assert_takes_as_long_as_it_is(before, &[*first, second].concat());
        }
    }
    // Some forms begin only with three of these.
    let words = ["<", "\"", "@", "pg://a:b ", "name: x ", "name: TOKEN ", "value: "];
    for (first, second) in words.iter().flat_map(|first| words.map(|second| (first, second))) {
        for third in words {
            assert_takes_as_long_as_it_is("", &[*first, second, third].concat());
        }
    }
}

#[test]
fn many_texts_are_searched_for_a_long_secret_that_none_of_them_can_hold() {
    let rules = RedactionSpec::default().compile_redaction_rules().unwrap();
    let (secret, texts) = ("ab".repeat(100 << 10), vec![""; 20_000]);
    let job = json!({"env": [{"name": "TOKEN", "value": secret}], "status": {"list": texts}}).to_string();
    let event = json!({"kind": "Event", "involvedObject": {"uid": "u"}, "message": texts}).to_string();
    let begun = std::time::Instant::now();
    assert!(rules.redact_document(job.as_bytes(), |_| "0".repeat(16)).unwrap().is_some());
    let mut secrets = SecretDigests::default();
    let digest = |_: &[u8]| Ok::<_, WithheldDocument>("0".repeat(16));
    rules.add_secrets(job.as_bytes(), digest, &mut secrets).unwrap();
    assert_eq!(rules.redact_event(event.as_bytes(), &secrets, |_| String::new()), Ok(None));
    // A search that is prepared anew for each text would take four billion steps, three times.
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
}

proptest! {
    #[test]
    fn what_is_redacted_stays_as_it_is_whatever_the_quotes(
        text in r#"((--)?token|PASSWORD|a|=|:|: | |"|'|\\|\\"|\{|\[|\(|\)|\]|\}|,|x|hush|é|@|/|://|\n|`|\\u003d|\\u0022|\\\\u0061){0,14}"#,
    ) {
        // The function asserts it.
        shown(&text);
    }

    #[test]
    fn a_word_of_a_shell_is_hidden_whole(
        parts in prop::collection::vec(
            prop_oneof![
                r#"'hush[ a"=:,]{0,4}hush'"#,
                r#""hush( |a|'|\\"|=|:|,){0,4}hush""#,
                r#"hush(\\ |a|,|:){0,4}hush"#,
            ],
            1..4,
        ),
        name in "(TOKEN=|train --token |train --token=|x,token=|-e TOKEN=)",
    ) {
        let (argument, _) = shown(&format!("{name}{} --epochs 3", parts.concat()));
        prop_assert!(!argument.contains("hush"), "{}", argument);
    }

    #[test]
    fn a_member_of_json_is_hidden_whole(
        value in r#"(hush|[ "'\\,:\]\}a@/]){1,8}"#,
        is_spaced in any::<bool>(),
        times in 0..2_usize,
    ) {
        let of = |value: Value| json!({"a": 1, "password": value, "token": [value], "z": {"apiKey": value}});
        let value = of(format!("{value}hush").into());
        let mut text = if is_spaced { format!("{value:#}") } else { value.to_string() };
        (0..times).for_each(|_| text = format!("curl -d {} http://h", Value::from(text.clone())));
        let (argument, _) = shown(&text);
        prop_assert!(!argument.contains("hush"), "{}", argument);
    }
}
