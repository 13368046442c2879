//! Tests of filters: what they accept, what they refuse, and what they cost.

use std::sync::Arc;

use kubewitness_core::state::{Change, ObjectRef, StateId, Status};
use kubewitness_core::version::Version;
use proptest::prelude::*;

use super::*;

const DOCUMENT: &str = r#"{
    "metadata": {"labels": {"team": "vision"}, "annotations": {"a/b": "c"}},
    "spec": {"parallelism": 4, "ratio": 0.5, "suspend": false, "items": [{"n": 1}, {"n": 2}]}
}"#;

fn state() -> State {
    let status = |phase: &str| Arc::new(Status { phase: phase.into(), attempt: 2, ..Status::default() });
    State {
        id: StateId::parse("x"),
        seq: 1,
        source: "jobs".into(),
        epoch: 0,
        change: Change::Present,
        object: Arc::new(ObjectRef {
            group: "batch".into(),
            version: "v1".into(),
            kind: "Job".into(),
            namespace: "team-vision".into(),
            name: "train-7".into(),
            uid: "u".into(),
        }),
        owner: None,
        resource_version: Version::new("7"),
        status: status("Failed"),
        previous: Some(status("Running")),
        observed_ms: 0,
        late: false,
        quotes_none_under: None,
    }
}

fn wants(text: &str) -> Result<bool, String> {
    judge(&CelFilter::compile_filter(text).unwrap(), DOCUMENT.as_bytes())
}

fn judge(filter: &CelFilter, document: &[u8]) -> Result<bool, String> {
    filter.wants_state(&state(), Some(document)).map_err(|error| error.to_string())
}

#[test]
fn expressions_see_the_envelope_and_the_document() {
    for text in [
        "state.phase == 'Failed' && state.previous.phase != state.phase",
        "state.namespace.startsWith('team-') && state.name.matches('^train-[0-9]+$')",
        "state.attempt >= 2 && state.exitCode == null && !state.terminal && state.transition",
        "state.change == 'present' && state.apiVersion == 'batch/v1' && state.kind in ['Job', 'Pod']",
        "state.labels['team'] == 'vision' && state.labels.team == 'vision' && !('x' in state.labels)",
        "has(object.spec.parallelism) && object.spec.parallelism > 3 && object.spec.ratio < 1.0",
        "object.spec.items.exists(item, item.n == 2) && object.spec.items.all(i, i.n < 3)",
        "size(object.spec.items) == 2 && object.metadata.annotations['a/b'] == 'c'",
        "state.owner == null",
    ] {
        assert_eq!(wants(text), Ok(true), "{text}");
        assert_eq!(wants(&format!("!({text})")), Ok(false), "{text}");
    }
}

#[test]
fn a_document_is_asked_for_only_where_it_is_looked_at() {
    let needs = |text: &str| CelFilter::compile_filter(text).unwrap().needs_document();
    assert!(!needs("state.phase == 'Failed'") && !needs("['object'].exists(x, x == state.name)"));
    assert!(needs("has(object.spec)") && needs("state.labels.team == 'a'"));
}

#[test]
fn a_fault_says_where_it_is_and_what_there_is() {
    let fault = |text: &str| CelFilter::compile_filter(text).unwrap_err();
    let unknown = fault("state.kind == 'Job' &&\n  state.phaze == 'Failed'");
    assert_eq!((unknown.line, unknown.column), (2, 9));
    assert!(unknown.message.contains("no `phaze`: is `phase` meant?"), "{unknown}");
    assert!(fault("state.previous.kind == 'x'").message.contains("no `kind`"));
    assert!(fault("status.phase == 'x'").message.contains("`status` is not known: use `state` or `object`"));
    assert!(fault("launch(state)").message.contains("no function `launch`"));
    assert_eq!(fault("state.phase == ").line, 1);
    assert!(fault(" ").message.contains("is empty"));
    assert!(fault(&"a".repeat(5000)).message.contains("5000 bytes"));
    assert!(fault(&format!("{}true{}", "(".repeat(1000), ")".repeat(1000))).message.len() < 400);
    let nested = "[1].all(a, [1].all(b, [1].all(c, true)))";
    assert!(fault(nested).message.contains("3 loops"));
}

#[test]
fn what_can_not_be_told_is_an_error_and_no_answer() {
    assert!(wants("object.spec.nothing == 1").unwrap_err().contains("nothing"));
    assert!(wants("object.spec.parallelism").unwrap_err().contains("neither true nor false"));
    let looks = CelFilter::compile_filter("object.spec.parallelism > 3").unwrap();
    assert!(looks.wants_state(&state(), None).is_err(), "a deletion that was found may have no document");
    assert!(judge(&looks, b"{").unwrap_err().contains("does not decode"));
    assert!(judge(&looks, &vec![b' '; DOCUMENT_BYTES + 1]).unwrap_err().contains("bytes"));
}

#[test]
fn what_would_take_too_long_is_not_begun() {
    let long = format!("{{\"a\": [{}1]}}", "1,".repeat(20_000));
    let twice = CelFilter::compile_filter("object.a.all(x, object.a.exists(y, x == y))").unwrap();
    assert!(judge(&twice, long.as_bytes()).unwrap_err().contains("too much"));
    let once = CelFilter::compile_filter("object.a.all(x, x == 1)").unwrap();
    assert_eq!(judge(&once, long.as_bytes()), Ok(true));
}

#[test]
fn what_would_take_too_much_memory_is_refused_before_it_begins() {
    let nested = |levels: usize| {
        (0..levels)
            .fold("'aaaaaaaaaaaaaaaa'".to_owned(), |inner, _| format!("[{inner}].map(x,x+x+x+x+x+x+x+x)[0]"))
    };
    assert_eq!(wants(&format!("{} != ''", nested(2))), Ok(true));
    assert!(
        CelFilter::compile_filter(&format!("{} != ''", nested(9))).unwrap_err().message.contains("too much")
    );
    let lists = (0..12).fold("'a'".to_owned(), |inner, _| format!("[{inner}].map(x,[x,x,x,x,x,x,x,x])[0]"));
    assert!(CelFilter::compile_filter(&format!("{lists} == ''")).unwrap_err().message.contains("too much"));

    let large = format!("{{\"a\": [{}1], \"b\": \"{}\"}}", "1,".repeat(400), "x".repeat(500_000));
    for copies in [
        "object.a.map(x, object) == []",
        "object.a.all(x, object == object)",
        "object.a.map(x, [x, object.b]).all(y, y[1] == '')",
        "object.a.all(x, size(object.b + object.b) > x)",
        "[object].all(state, object.a.all(x, [state.name] == []))",
        "state.previous.all(k, object.a.all(x, object == object))",
    ] {
        let filter = CelFilter::compile_filter(copies).unwrap();
        assert!(judge(&filter, large.as_bytes()).unwrap_err().contains("too much"), "{copies}");
    }
    for cheap in ["object.a.map(x, x + 1).exists(y, y == 2)", "object.a.filter(x, x > 0).all(x, x < 5)"] {
        assert_eq!(judge(&CelFilter::compile_filter(cheap).unwrap(), large.as_bytes()), Ok(true), "{cheap}");
    }
}

#[test]
fn a_pattern_is_written_in_the_filter_and_compiled_once_within_a_bound() {
    let fault = |text: &str| CelFilter::compile_filter(text).unwrap_err().message;
    assert!(fault("state.name.matches(state.kind)").contains("written there, in quotes"));
    assert!(fault("state.name.matches('(?i)[\\\\pL\\\\pN]{300}zz')").contains("can't use this pattern"));
    assert!(fault("state.name.matches('(')").contains("can't use this pattern"));
    let many = format!("[{}0].all(x, state.name.matches('^train-[0-9]+$'))", "0,".repeat(480));
    assert_eq!(wants(&many), Ok(true));
    assert_eq!(wants("matches(state.name, 'train') && !state.name.matches('^TRAIN')"), Ok(true));
    let long = format!("{{\"a\": \"{}\"}}", "x".repeat(1_000_000));
    let dear = CelFilter::compile_filter("object.a.matches('([a-z0-9]{1,20}x){20}')").unwrap();
    assert!(judge(&dear, long.as_bytes()).unwrap_err().contains("too much"));
}

/// Comparisons whose answers are known for the state and the document of these tests.
const COMPARISONS: [(&str, bool); 16] = [
    ("state.phase == 'Failed'", true),
    ("state.phase != 'Failed'", false),
    ("state.previous.phase == 'Running'", true),
    ("state.attempt > 2", false),
    ("state.attempt + 1 >= 3", true),
    ("state.owner == null", true),
    ("state.exitCode == 1", false),
    ("state.terminal", false),
    ("state.kind in ['Pod', 'Job']", true),
    ("state.labels.team == 'vision'", true),
    ("'x' in state.annotations", false),
    ("size(object.spec.items) == 2", true),
    ("object.spec.parallelism * 2 < 8", false),
    ("object.spec.items.exists(item, item.n == 2)", true),
    ("object.spec.items.all(item, item.n == 2)", false),
    ("state.name.matches('^train-[0-9]+$')", true),
];

/// Filters with their answers.
fn filters() -> impl Strategy<Value = (String, bool)> {
    let comparison = proptest::sample::select(COMPARISONS.to_vec());
    comparison.prop_map(|(text, wanted)| (text.to_owned(), wanted)).prop_recursive(4, 12, 3, |inner| {
        prop_oneof![
            inner.clone().prop_map(|(text, wanted)| (format!("!({text})"), !wanted)),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| (format!("({} && {})", a.0, b.0), a.1 && b.1)),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| (format!("({} || {})", a.0, b.0), a.1 || b.1)),
            (inner.clone(), inner.clone(), inner).prop_map(|(c, a, b)| {
                (format!("({} ? {} : {})", c.0, a.0, b.0), if c.1 { a.1 } else { b.1 })
            }),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_filter_answers_as_its_parts_do((text, wanted) in filters()) {
        prop_assert_eq!(wants(&text), Ok(wanted), "{}", text);
    }

    /// A filter with a slip of the pen is judged all the same, and a fault lies within its text.
    #[test]
    fn a_filter_that_was_mistyped_is_a_filter_or_has_a_fault_within_its_text(
        (text, _) in filters(),
        at in any::<prop::sample::Index>(),
        removed in 0usize..4,
        typed in proptest::sample::select(vec!["", "(", ")", "'", ".", "=", "&&", "1", "x", "[", "?", "in ", "\n"]),
    ) {
        let start = at.index(text.len());
        let mut mistyped = text.clone();
        mistyped.replace_range(start..text.len().min(start + removed), typed);
        match CelFilter::compile_filter(&mistyped) {
            // It answers or says why it does not: both are right here.
            Ok(filter) => drop(filter.wants_state(&state(), Some(DOCUMENT.as_bytes()))),
            Err(fault) => {
                let lines: Vec<_> = mistyped.split('\n').collect();
                let line = lines.get(fault.line - 1).copied().unwrap_or_default();
                prop_assert!(fault.line <= lines.len(), "{}: {:?}", mistyped, fault);
                prop_assert!(fault.column <= line.chars().count() + 1, "{}: {:?}", mistyped, fault);
                prop_assert!(!fault.message.is_empty(), "{}", mistyped);
            }
        }
    }

    /// Whatever a manifest has in the place of a filter: no panic.
    #[test]
    fn any_text_is_judged(text in "[ -~\n]{0,60}") {
        if let Ok(filter) = CelFilter::compile_filter(&text) {
            filter.wants_state(&state(), Some(DOCUMENT.as_bytes())).ok();
        }
    }
}
