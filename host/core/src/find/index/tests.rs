//! Tests of pointers and indexes, against the pointers of `serde_json`.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn spec(name: &str, pointer: &str) -> IndexSpec {
    IndexSpec { name: name.into(), pointer: pointer.into() }
}

fn read(indexes: &IndexSet, document: &str) -> Vec<String> {
    let mut keys = Vec::new();
    indexes.for_each_key(document.as_bytes(), |key| keys.push(format!("{key:?}"))).unwrap();
    keys.sort();
    keys
}

fn named(pointer: &str, document: &Value) -> Vec<String> {
    let indexes = IndexSet::new(&[spec("it", pointer)]);
    let mut keys = Vec::new();
    let take = |key: IndexKey<'_>| {
        if let IndexKey::Named(0, text) = key {
            keys.push(text.to_owned());
        }
    };
    indexes.for_each_key(document.to_string().as_bytes(), take).unwrap();
    keys
}

#[test]
fn owners_node_and_labels_are_read_wherever_they_stand() {
    let indexes = IndexSet::new(&[]);
    let document = r#"{"spec":{"a":[1,{}],"nodeName":"n1"},"kind":"Pod","metadata":{"ownerReferences":[
        {"uid":"o1","controller":true},{"kind":"X","uid":"o2"}],"labels":{"team":"a","x\u0041":"b\"c"},"name":"p"}}"#;
    assert_eq!(
        read(&indexes, document),
        [
            r#"Label("team", "a")"#,
            r#"Label("xA", "b\"c")"#,
            r#"Node("n1")"#,
            r#"Owner("o1")"#,
            r#"Owner("o2")"#
        ]
    );
}

#[test]
fn what_is_null_missing_or_of_another_shape_has_no_key() {
    let indexes = IndexSet::new(&[spec("it", "/spec/a/b")]);
    for document in [
        "{}",
        r#"{"metadata":null,"spec":null}"#,
        r#"{"metadata":{"labels":null,"ownerReferences":null},"spec":{"nodeName":null,"a":7}}"#,
        r#"{"metadata":{"labels":[1],"ownerReferences":{"uid":"x"}},"spec":{"a":{"b":{"c":1}},"nodeName":{}}}"#,
    ] {
        assert_eq!(read(&indexes, document), [""; 0], "{document}");
    }
}

#[test]
fn a_pointer_names_scalars_arrays_of_them_and_places_in_arrays() {
    let document = json!({
        "spec": {"queue": "gpu", "retries": 3, "ratio": 1.5, "on": true, "none": null,
            "zones": ["a", "b", 7, null, {"x": 1}], "a/b": {"m~n": "odd"},
            "containers": [{"image": "one"}, {"image": "two"}]},
    });
    for (pointer, expected) in [
        ("/spec/queue", &["gpu"][..]),
        ("/spec/retries", &["3"]),
        ("/spec/ratio", &["1.5"]),
        ("/spec/on", &["true"]),
        ("/spec/none", &[]),
        ("/spec/zones", &["a", "b", "7"]),
        ("/spec/zones/1", &["b"]),
        ("/spec/zones/01", &[]),
        ("/spec/a~1b/m~0n", &["odd"]),
        ("/spec/containers/1/image", &["two"]),
        ("/spec/containers/2/image", &[]),
        ("/spec", &[]),
    ] {
        assert_eq!(named(pointer, &document), expected, "{pointer}");
    }
}

#[test]
fn a_pointer_into_what_another_index_reads_is_read_too() {
    let indexes = IndexSet::new(&[spec("team", "/metadata/labels/team"), spec("node", "/spec/nodeName")]);
    let document = r#"{"metadata":{"labels":{"team":"a"}},"spec":{"nodeName":"n"}}"#;
    assert_eq!(
        read(&indexes, document),
        [r#"Label("team", "a")"#, r#"Named(0, "a")"#, r#"Named(1, "n")"#, r#"Node("n")"#]
    );
}

#[test]
fn what_is_no_pointer_says_so() {
    for (text, message) in
        [("", "is empty"), ("spec/x", "begins with `/`"), ("/a~2", "after `~`"), ("/a~", "after `~`")]
    {
        assert!(JsonPointer::parse(text).unwrap_err().to_string().contains(message), "{text}");
    }
    assert!(JsonPointer::parse(&"/a".repeat(65)).unwrap_err().to_string().contains("65 levels"));
    assert_eq!(JsonPointer::parse("/a~1b/m~0n").unwrap().to_string(), "/a~1b/m~0n");
}

#[test]
fn an_unknown_index_is_told_which_there_are() {
    let indexes = IndexSet::new(&[spec("queue", "/spec/queue")]);
    assert_eq!(indexes.key("queue", "gpu"), Ok(IndexKey::Named(0, "gpu")));
    assert_eq!(indexes.key("label", "a=b=c"), Ok(IndexKey::Label("a", "b=c")));
    assert!(indexes.key("label", "a").unwrap_err().to_string().contains("`key=value`"));
    let error = indexes.key("byNode", "n").unwrap_err().to_string();
    assert_eq!(error, "there is no index `byNode`; this source has namespace, owner, node, label, queue");
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        "[a-c\"\\\\é]{0,3}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 40, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("[a-c/~]|spec", inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    /// The model is `serde_json`'s own pointers.
    #[test]
    fn a_pointer_finds_what_the_standard_says(
        inner in value(),
        tokens in prop::collection::vec("[a-c]|~0|~1|0|1|spec", 0..4),
    ) {
        let document = json!({"metadata": {"name": "x"}, "spec": inner});
        let pointer = std::iter::once("spec".to_string()).chain(tokens).fold(String::new(), |all, token| all + "/" + &token);
        let text = |value: &Value| match value {
            Value::String(text) => Some(text.clone()),
            Value::Bool(_) | Value::Number(_) => Some(value.to_string()),
            _ => None,
        };
        let expected: Vec<String> = match document.pointer(&pointer) {
            Some(Value::Array(values)) => values.iter().filter_map(text).collect(),
            Some(value) => text(value).into_iter().collect(),
            None => Vec::new(),
        };
        prop_assert_eq!(named(&pointer, &document), expected);
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in "[{}\\[\\]:,\"a-c0-9nul]{0,40}") {
        let found = IndexSet::new(&[spec("it", "/a/b")]).for_each_key(bytes.as_bytes(), |_| {});
        prop_assert!(found.is_ok() || found.is_err());
    }
}
