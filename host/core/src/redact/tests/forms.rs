//! Tests of secrets in quotes that begin before their names, in escaped JSON, and in formats of some
//! programs.

use serde_json::{Value, json};

use crate::config::RedactionSpec;

fn shown(elements: &[&str]) -> String {
    let rules = RedactionSpec::default().compile_redaction_rules().unwrap();
    let document = json!({"args": elements}).to_string();
    let digest = |value: &[u8]| format!("{:016x}", value.len());
    let once = rules.redact_document(document.as_bytes(), digest).unwrap().unwrap_or(document.into_bytes());
    assert_eq!(rules.redact_document(&once, digest).unwrap(), None, "{elements:?}");
    serde_json::from_slice::<Value>(&once).unwrap()["args"].to_string()
}

fn assert_hidden(command_lines: &[&[&str]]) {
    let revealed =
        command_lines.iter().map(|elements| shown(elements)).filter(|shown| shown.contains("hush"));
    assert_eq!(revealed.collect::<Vec<_>>(), [""; 0]);
}

#[test]
fn in_a_quote_that_opens_before_its_name_a_secret_ends_where_the_quote_does() {
    assert_hidden(&[
        &["sh", "-c", "env 'TOKEN=a hush1' run"][..],
        &["sh", "-c", "env \"TOKEN=a hush1\" run"],
        &["sh", "-c", "export 'TOKEN=a hush1'"],
        &["sh", "-c", "export \"TOKEN=a hush1\""],
        &["sh", "-c", "run --env=\"TOKEN=a hush1\""],
        &["sh", "-c", "run \"--token=a hush1\""],
        &["sh", "-c", "run '--token=a hush1'"],
        &["sh", "-c", "run '--token' 'a hush1'"],
        &["sh", "-c", "run '--token a hush1'"],
        &["sh", "-c", "java \"-Dtoken=a hush1\" x"],
        &["sh", "-c", "declare \"TOKEN=a hush1\""],
        &["sh", "-c", "declare -x TOKEN='a hush1'"],
        &["sh", "-c", "sudo env \"PASSWORD=$P and hush1\" x"],
        &["sh", "-c", "ssh h \"TOKEN='a hush1' run\""],
        &["sh", "-c", "ssh h 'TOKEN=\"a hush1\" run'"],
        &["sh", "-c", "bash -c 'export \"TOKEN=a hush1\"'"],
        &["sh", "-c", "echo 'TOKEN=a hush1' >> .env"],
        &["sh", "-c", "echo \"TOKEN=a hush1\" >> .env"],
        &["sh", "-c", "printf 'TOKEN=a hush1\\n' > .env"],
        &["sh", "-c", "psql \"host=h password=a hush1\""],
        &["sh", "-c", "curl -d 'token=a hush1'"],
        &["sh", "-c", "curl --data \"password=correct hush1\" x"],
        &["sh", "-c", "curl -F 'token=a hush1' x"],
        &["sh", "-c", "curl -H 'Cookie: a=b hush1' x"],
        &["sh", "-c", "curl -H \"X-Api-Key: a hush1\""],
        &["sh", "-c", "kubectl create secret generic x \"--from-literal=password=a hush1\""],
        &["sh", "-c", "kubectl create secret generic x --from-literal='password=a hush1'"],
        &["sh", "-c", "kubectl create secret generic x --from-literal=\"password=a hush1\""],
        &["sh", "-c", "helm install x --set 'auth.password=a hush1'"],
        &["sh", "-c", "helm install x --set \"auth.password=a hush1\""],
        &["sh", "-c", "docker run --env 'PASSWORD=correct hush1' x"],
        &["sh", "-c", "docker run -e \"PASSWORD=a 'b' hush1\" x"],
        &["bash", "-lc", "docker run -e 'TOKEN=a hush1' x"],
        &["docker run -e 'TOKEN=a hush1' x"],
        &["x -e \"TOKEN=a hush1\""],
        &["{\"cmd\":\"docker run -e 'TOKEN=a hush1' x\"}"],
        &["python", "-c", "os.system(\"TOKEN='a hush1' x\")"],
        &["python", "-c", "d={'token':'a hush1'}"],
        &["python", "-c", "d=dict(token='a hush1')"],
        &["python", "-c", "subprocess.run(['x','--token','a hush1'])"],
        &["python", "-c", "subprocess.run([\"x\",\"--token=a hush1\"])"],
        &["python", "-c", "subprocess.run(['x','--token=a hush1'])"],
        &["python", "-c", "subprocess.run(['env','TOKEN=a hush1'])"],
        &["python", "-c", "requests.get(u, headers={'Authorization': 'Bearer hush1'})"],
        &["python", "-c", "requests.get(u, headers={'Authorization': f'Bearer {x} hush1'})"],
        &["python", "-c", "requests.get(u, auth=('u','hush1'))"],
        &["python", "-c", "psycopg2.connect('host=h password=a hush1')"],
        &["python", "-c", "os.environ['TOKEN'] = 'a hush1'"],
        &["python", "-c", "os.environ[\"TOKEN\"]=\"a hush1\""],
        &["python", "-c", "token = ('a '\n 'hush1')"],
        &["python", "-c", "token = \"a \\\n hush1\""],
        &["python", "-c", "x = {\"token\": (\"a\" \"hush1\")}"],
        &["python", "-c", "token=b'a hush1'"],
        &["python", "-c", "token='''a\nhush1'''"],
        &["python", "-c", "TOKEN: Final[str] = 'hush1'"],
    ]);
}

#[test]
fn what_follows_the_quote_of_a_secret_stays() {
    for (line, kept) in [
        ("docker run -e 'TOKEN=a hush' x --epochs 3", "' x --epochs 3\""),
        ("run --set \"auth.password=a hush\" --epochs 3", "\\\" --epochs 3\""),
        ("run '--token a hush' --epochs 3", "' --epochs 3\""),
        ("echo it's x; run 'TOKEN=a hush' >> .env", "' >> .env\""),
        ("x ['a','--token=a hush'])", "'])\""),
    ] {
        let shown = shown(&["sh", "-c", line]);
        assert!(shown.ends_with(&format!("{kept}]")) && !shown.contains("hush"), "{shown}");
    }
}

#[test]
fn a_secret_is_hidden_in_json_among_other_words_whatever_is_escaped() {
    assert_hidden(&[
        &[r#"cfg={"name":"TOKEN","v\u0061lue":"hush1"}"#][..],
        &[r#"cfg={"name":"TOK\u0045N","value":"hush1"}"#],
        &[r#"cfg={"args":["--tok\u0065n","hush1"]}"#],
        &[r#"--conf={"args":"--token\u003dhush1"}"#],
        &[r#"cfg={"c":"TOKEN\u003dhush1"}"#],
        &[r#"cfg={"c":"postgres://u:hush1\u0040h"}"#],
        &[r#"cfg={"c":"postgres\u003a//u:hush1@h"}"#],
        &[r#"cfg={"c":"postgres://u\u003ahush1@h"}"#],
        &[r#"x "{\"c\":\"TOKEN\\u003dhush1\"}" y"#],
        &[r#"[x] cfg={"c":"TOKEN\u003dhush1"}"#],
        &["sh", "-c", r#"run 'cfg={"c":"TOKEN\u003dhush1"}' x"#],
    ]);
    let line = shown(&["-c", r#"run --conf={"c":"TOKEN\u003dhush1"} --caf\u00e9 \u0061 --epochs 3"#]);
    assert!(line.ends_with(r#"--caf\\u00e9 \\u0061 --epochs 3"]"#), "{line}");
}

#[test]
fn flags_of_one_letter_files_of_settings_and_names_in_capitals_lose_their_secrets() {
    assert_hidden(&[
        &["java", "-Dpass=hush1", "-Dkey=hush2", "-Dauth=hush3", "-PAUTH=hush4"][..],
        &["--token", "Bearer ", "hush1"],
        &["--token", "--token=", "hush1"],
        &["printf '[db]\npassword = a hush1\nport = 3' > x"],
        &["psql 'password=\\'a hush1\\''"],
        &[r#"{"NAME":"TOKEN","VALUE":"hush1"}"#],
        &[r#"x [{"VALUE":"hush1","NAME":"TOKEN"}] y"#],
        &[r#"{"Name":"TOKEN","Value":"hush1"}"#],
    ]);
    let kept = shown(&["-verbose=3", "-Dfile=a", "-Xmx=2"]);
    assert_eq!(kept, r#"["-verbose=3","-Dfile=a","-Xmx=2"]"#);
}

#[test]
fn what_tools_note_in_annotations_loses_its_secrets() {
    let rules = RedactionSpec::default().compile_redaction_rules().unwrap();
    let annotations = json!({
        "kubernetes.io/change-cause": "kubectl create secret x --from-literal=password=hush1 --record=true",
        "kopf.zalando.org/last-handled-configuration": "{\"spec\":\"hush2\"}",
        "banzaicloud.com/last-applied": "UEsDBBhush3",
    });
    let document = json!({"metadata": {"annotations": annotations}}).to_string();
    let shown = rules.redact_document(document.as_bytes(), |_| "0".repeat(16)).unwrap().unwrap();
    let shown = String::from_utf8(shown).unwrap();
    assert!(!shown.contains("hush") && shown.contains("--record=true"), "{shown}");
}

#[test]
fn more_names_that_programs_give_to_secrets_are_hidden_by_default() {
    let rules = RedactionSpec::default().compile_redaction_rules().unwrap();
    for name in [
        "SSHPASS",
        "requirepass",
        "KEYPASS",
        "storepass",
        "DOCKER_AUTH_CONFIG",
        "SLACK_WEBHOOK",
        "CONN_STR",
        "CONNECTIONSTRING",
        "PSK",
        "wifi-psk",
        "MNEMONIC",
        "PASSCODE",
        "CREDS",
        "AWS_CREDS",
        "MASTERKEY",
    ] {
        assert!(rules.is_secret_name(name), "{name}");
    }
    for name in ["BYPASS", "COMPASS", "CREDSTASH", "WEBHOOK", "CONN"] {
        assert!(!rules.is_secret_name(name), "{name}");
    }
}
