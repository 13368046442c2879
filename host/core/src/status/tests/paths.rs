//! Tests of the results of paths.

use serde_json::json;

use super::super::path::{MemberCut, MemberSlots, RulePath};
use crate::project::ObjectOutline;

fn found(path: &str) -> Vec<String> {
    let object = json!({
        "metadata": {"labels": {"a.b/c": "x", "plain": "y"}},
        "spec": {"groups": {"head": {"replicas": 1}, "worker": {"replicas": 4}, "odd": {}}},
        "status": {"list": [{"name": "a", "n": 1}, {"name": "b", "n": null}, {"name": "c"}, 7],
            "states": {"p1": "RUNNING", "p2": "PENDING", "p3": "RUNNING"}},
    });
    let mut slots = MemberSlots::default();
    let path = RulePath::parse(path, &mut slots).unwrap();
    let (bytes, mut values) = (object.to_string(), Vec::new());
    let cut = MemberCut::new(&slots, bytes.as_bytes(), &ObjectOutline::of(bytes.as_bytes()).unwrap());
    path.any_value(&cut, |value| {
        values.push(value.to_string());
        false
    });
    values
}

#[test]
fn a_path_finds_elements_of_lists_and_values_of_maps() {
    for (path, wanted) in [
        ("status.list[*].name", &["\"a\"", "\"b\"", "\"c\""][..]),
        ("status.list[name=b].name", &["\"b\""]),
        ("status.list[name!=b].name", &["\"a\"", "\"c\""]),
        ("status.list[n].name", &["\"a\""]),
        ("status.list[!n].name", &["\"b\"", "\"c\""]),
        ("status.list[=7]", &["7"]),
        ("status.list.name", &[]),
        ("status.states[=RUNNING]", &["\"RUNNING\"", "\"RUNNING\""]),
        ("status.states[!=RUNNING]", &["\"PENDING\""]),
        ("spec.groups[*].replicas", &["1", "4"]),
        ("spec.groups[replicas=4].replicas", &["4"]),
        ("spec.groups[!replicas]", &["{}"]),
        (r#"metadata.labels["a.b/c"]"#, &["\"x\""]),
        (r#"metadata.labels["plain"]"#, &["\"y\""]),
        ("metadata.labels.none", &[]),
    ] {
        assert_eq!(found(path), wanted, "{path}");
    }
}
