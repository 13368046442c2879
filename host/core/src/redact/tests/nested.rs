//! Tests of nested JSON texts in which each level adds few bytes. A tenant may put one into a Job.

use std::time::Duration;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::computed;
use crate::config::RedactionSpec;
use crate::redact::{RedactionRules, SecretDigests, WithheldDocument};

const COPY: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// A quarter of the stack of the controller's threads.
const STACK: usize = 512 << 10;

/// A JSON string without its quotes. Escapes of this form grow by five bytes a level; the usual ones double.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\u005c").replace('"', "\\u0022"))
}

fn nested(levels: usize, brackets: usize, filling: &str) -> String {
    let wrap = |text: String, _| format!("{}{}{}", "[".repeat(brackets), quoted(&text), "]".repeat(brackets));
    (0..levels).fold(filling.to_owned(), wrap)
}

/// A document with the text in each place that redaction reads, and a status that may quote it.
fn document(text: &str) -> String {
    json!({
        "kind": "Job",
        "metadata": {"annotations": {COPY: text, "a": text}},
        "spec": {"args": [text], "command": text, "env": [{"name": "TOKEN", "value": text}, text]},
        "status": {"message": "it quotes nothing", "list": [text]},
    })
    .to_string()
}

fn digest(value: &[u8]) -> String {
    format!("{:016x}", value.len())
}

/// Calls everything that a redactor offers. Returns the document without secrets.
fn ask_all(rules: &RedactionRules, document: &str) -> String {
    let mut secrets = SecretDigests::default();
    rules
        .add_secrets(document.as_bytes(), |value| Ok::<_, WithheldDocument>(digest(value)), &mut secrets)
        .unwrap();
    rules.redact_event(document.as_bytes(), &secrets, digest).unwrap();
    rules.redact_settings(document.as_bytes(), digest).unwrap();
    let redacted = rules.redact_document(document.as_bytes(), digest).unwrap();
    redacted.map_or_else(|| document.to_owned(), |redacted| String::from_utf8(redacted).unwrap())
}

/// Runs on a small stack. An overflow aborts the test's process.
fn on_a_small_stack<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, work).unwrap();
        thread.join().unwrap()
    })
}

#[test]
fn texts_within_each_other_overflow_no_stack_and_what_lies_too_deep_is_hidden_whole() {
    let rules = RedactionSpec::default().compile_redaction_rules().unwrap();
    for (levels, brackets) in [(150, 100), (20, 120), (40, 3), (3, 1), (1, 126)] {
        let secret = r#"{"token":"hush-hush"}"#;
        let document = document(&nested(levels, brackets, secret));
        let redacted = on_a_small_stack(|| ask_all(&rules, &document));
        let redacted: Value = serde_json::from_str(&redacted).unwrap();
        for place in ["/spec/args/0", "/spec/command", "/spec/env/0/value", "/spec/env/1"] {
            let shown = redacted.pointer(place).unwrap().as_str().unwrap();
            assert!(!shown.contains("hush-hush") && shown.contains("redacted:"), "{levels}: {shown}");
        }
    }
}

#[test]
fn texts_within_each_other_take_as_long_as_a_text_of_that_length() {
    let rules = RedactionSpec::default().compile_redaction_rules().unwrap();
    let time = |text: &str| {
        let variables = json!([{"name": "TOKEN", "value": text}]);
        let document =
            json!({"args": [text], "env": variables, "status": {"message": "nothing"}}).to_string();
        let begun = computed();
        rules.redact_document(document.as_bytes(), digest).unwrap();
        computed() - begun
    };
    let deep = nested(300, 0, &"x ".repeat(20 << 10));
    let flat = format!("[{}]", quoted(&"x ".repeat(deep.len() / 2)));
    let (deep, flat) = (time(&deep), time(&flat));
    // A deeply nested text is decoded a few times, and not once for each level.
    assert!(deep < flat * 24, "{deep:?}, {flat:?}");
}

#[derive(Clone, Copy, Debug)]
enum NestedIn {
    Brackets(usize),
    List(usize),
    Member(&'static str),
    Variable,
    Copy,
    Words(&'static str, &'static str),
}

impl NestedIn {
    fn wrap(self, text: &str) -> String {
        match self {
            Self::Brackets(number) => format!("{}{text}{}", "[".repeat(number), "]".repeat(number)),
            Self::List(number) => format!("{}{}{}", "[".repeat(number), quoted(text), "]".repeat(number)),
            Self::Member(key) => format!(r#"{{"{key}":{}}}"#, quoted(text)),
            Self::Variable => format!(r#"[{{"value":{},"name":"TOKEN"}}]"#, quoted(text)),
            Self::Copy => {
                format!(r#"{{"kind":"Job","metadata":{{"annotations":{{"{COPY}":{}}}}}}}"#, quoted(text))
            }
            Self::Words(before, after) => format!("{before}{text}{after}"),
        }
    }
}

fn around() -> impl Strategy<Value = NestedIn> {
    let words = |before, after| Just(NestedIn::Words(before, after));
    let member = |key| Just(NestedIn::Member(key));
    prop_oneof![
        (1..127_usize).prop_map(NestedIn::Brackets),
        (1..127_usize).prop_map(NestedIn::List),
        prop_oneof![member("a"), member("token"), member("args"), member("env"), member("value")],
        Just(NestedIn::Variable),
        Just(NestedIn::Copy),
        prop_oneof![
            words("TOKEN=\"$(echo ", ")\" "),
            words("TOKEN=\"${X:-\"", "\"}\" "),
            words("\"${", ""),
            words("\"$(", ""),
            words("`", "` "),
            words("--token ", " "),
            words("x {\"token\":", "}"),
            words("value: ", " name: TOKEN"),
            words("a://u:", "@"),
            words("", "]"),
        ],
    ]
}

/// Nests these repeatedly until the text has this length.
fn repeated(around: &[NestedIn], bytes: usize) -> String {
    let mut text = String::new();
    let mut around = around.iter().cycle();
    while text.len() < bytes {
        text = around.next().unwrap().wrap(&text);
    }
    text
}

/// Compares the time for a text of 2 KiB with the time for one of 32 KiB.
fn check_growth(text: impl Fn(usize) -> String + Sync) -> Result<(), String> {
    let rules = RedactionSpec::default().compile_redaction_rules().unwrap();
    let time = |bytes: usize| {
        let document = document(&text(bytes));
        on_a_small_stack(|| {
            let begun = computed();
            let redacted = ask_all(&rules, &document);
            let took = computed() - begun;
            assert!(serde_json::from_str::<Value>(&redacted).is_ok(), "{redacted}");
            (took, document.len())
        })
    };
    let ((short, fewer), (long, more)) = (time(2 << 10), time(32 << 10));
    // A short text may have fewer levels than the limit, which allows a factor of five. Quadratic time would
    // be 16 times.
    let longest = short.max(Duration::from_millis(2)).mul_f64(more as f64 / fewer as f64 * 10.0);
    match long < longest {
        true => Ok(()),
        false => Err(format!("{fewer} bytes {short:?}, {more} bytes {long:?}")),
    }
}

#[test]
fn words_that_are_hidden_here_and_shown_there_are_searched_for_within_a_bound() {
    assert_eq!(check_growth(|bytes| repeated(&[NestedIn::Words("--token ", " ")], bytes)), Ok(()));
    let different = |bytes: usize| {
        (0..bytes / 24).map(|number| format!("--token w{number:06} w{number:06} ")).collect::<String>()
    };
    assert_eq!(check_growth(different), Ok(()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    #[test]
    fn whatever_lies_within_each_other_overflows_no_stack_and_takes_as_long_as_it_is(
        around in prop::collection::vec(around(), 1..8),
    ) {
        prop_assert_eq!(check_growth(|bytes| repeated(&around, bytes)), Ok(()));
    }
}
