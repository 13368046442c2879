//! Tests of label selectors.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn matches(selector: &str, labels: &[(&str, &str)]) -> bool {
    let labels: BTreeMap<_, _> = labels.iter().copied().collect();
    LabelSelector::parse(selector).unwrap().matches(|key| labels.get(key).copied())
}

#[test]
fn every_form_that_kubectl_takes_means_what_it_means_there() {
    let labels = [("team", "vision"), ("tier", "gold"), ("kueue.x-k8s.io/queue-name", "gpu"), ("empty", "")];
    for yes in [
        "",
        "  ",
        "team=vision",
        "team==vision",
        "team = vision , tier=gold",
        "team!=nlp",
        "absent!=x",
        "team in (nlp, vision)",
        "team notin (nlp,speech)",
        "absent notin (x)",
        "team",
        "!absent",
        "! absent",
        "kueue.x-k8s.io/queue-name=gpu",
        "empty=",
        "empty in (,x)",
        "in in (x),in=y,!notin",
    ] {
        let own = [("in", "x")];
        let labels = if yes.starts_with("in ") { &own[..] } else { &labels[..] };
        let expected = yes != "in in (x),in=y,!notin";
        assert_eq!(matches(yes, labels), expected, "{yes}");
    }
    for no in [
        "team=nlp",
        "team!=vision",
        "absent=x",
        "absent",
        "!team",
        "team notin (vision)",
        "team=vision,tier=x",
    ] {
        assert!(!matches(no, &labels), "{no}");
    }
}

#[test]
fn an_error_says_where_and_what() {
    for (text, at, message) in [
        ("a=b,", 4, "the key of a label"),
        (",a", 0, "the key of a label"),
        ("a=b c", 4, "a comma or the end"),
        ("a in x", 5, "`(`"),
        ("a in (x", 7, "`)`"),
        ("a is b", 2, "`notin`"),
        ("a>1", 1, "not supported"),
        ("a=-x", 2, "`-x`"),
        ("ä=x", 0, "`ä`"),
        ("a=ü,b", 2, "`ü`"),
        ("A.B/c=x", 0, "`A.B`"),
        ("a!b", 1, "`notin`"),
        ("!a=b", 2, "a comma or the end"),
    ] {
        let error = LabelSelector::parse(text).unwrap_err();
        assert_eq!(error.at, at, "{text}: {error}");
        assert!(error.message.contains(message), "{text}: {error}");
    }
    let error = LabelSelector::parse("a=b,c in x").unwrap_err().to_string();
    assert_eq!(error, "at character 10: expected `(` with the values after `in`");
}

#[test]
fn equalities_are_what_an_index_can_be_asked_for() {
    let selector = LabelSelector::parse("a=b,c in (d),e in (f,g),!h,i!=j,k").unwrap();
    assert_eq!(selector.required_equalities().collect::<Vec<_>>(), [("a", "b"), ("c", "d")]);
}

fn requirement() -> impl Strategy<Value = LabelRequirement> {
    let values = prop::collection::vec("[a-c]{0,2}", 1..4);
    let test = (0u8..4, values).prop_map(|(kind, values)| match kind {
        0 => RequirementTest::Exists,
        1 => RequirementTest::Missing,
        2 => RequirementTest::In(values),
        _ => RequirementTest::NotIn(values),
    });
    ("(x\\.io/)?[a-d]", test).prop_map(|(key, test)| LabelRequirement { key, test })
}

proptest! {
    #[test]
    fn what_is_written_is_read_back(requirements in prop::collection::vec(requirement(), 0..5)) {
        let selector = LabelSelector { requirements };
        prop_assert_eq!(LabelSelector::parse(&selector.to_string()).unwrap(), selector);
    }

    #[test]
    fn it_agrees_with_the_definition(
        requirements in prop::collection::vec(requirement(), 0..4),
        labels in prop::collection::btree_map("(x\\.io/)?[a-d]", "[a-c]{0,2}", 0..4),
    ) {
        let expected = requirements.iter().all(|r| {
            let value = labels.get(&r.key);
            match &r.test {
                RequirementTest::Exists => labels.contains_key(&r.key),
                RequirementTest::Missing => !labels.contains_key(&r.key),
                RequirementTest::In(values) => value.is_some() && values.contains(value.unwrap()),
                RequirementTest::NotIn(values) => value.is_none() || !values.contains(value.unwrap()),
            }
        });
        let selector = LabelSelector { requirements };
        prop_assert_eq!(selector.matches(|key| labels.get(key).map(String::as_str)), expected);
        if expected {
            for (key, value) in selector.required_equalities() {
                prop_assert_eq!(labels.get(key).map(String::as_str), Some(value));
            }
        }
    }

    #[test]
    fn no_text_makes_it_panic(text in "\\PC{0,40}") {
        if let Err(error) = LabelSelector::parse(&text) {
            prop_assert!(error.at <= text.chars().count());
        }
    }

    #[test]
    fn nearly_right_text_makes_it_neither(text in "[a-c=!,() /.in]{0,24}") {
        if let Ok(selector) = LabelSelector::parse(&text) {
            prop_assert_eq!(LabelSelector::parse(&selector.to_string()).unwrap(), selector);
        }
    }
}
