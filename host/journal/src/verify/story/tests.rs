//! Tests of the judge of stories, state by state.

use std::collections::HashMap;
use std::sync::Arc;

use kubewitness_core::{Change, ObjectRef, State, StateId, Status, Version};

use super::check_document as document_of;
use super::*;

fn state(change: Change, version: &str) -> State {
    let object = ObjectRef { kind: "Job".into(), uid: "u".into(), ..ObjectRef::default() };
    let version = Version::new(version);
    State {
        id: StateId::of("jobs", 0, &object, change, &version, None),
        seq: 1,
        source: "jobs".into(),
        epoch: 0,
        change,
        object: Arc::new(object),
        owner: None,
        resource_version: version,
        status: Arc::default(),
        previous: None,
        observed_ms: 0,
        late: false,
        quotes_none_under: None,
    }
}

fn present(version: &str) -> State {
    state(Change::Present, version)
}

fn late(version: &str) -> State {
    State { late: true, ..present(version) }
}

fn gone(version: &str) -> State {
    state(Change::Gone, version)
}

/// The verdict on the last state. The earlier ones must be valid.
fn judged_where(states: &[State], is_whole: bool) -> Result<(), String> {
    let mut life = ObjectLife::default();
    let (last, before) = states.split_last().unwrap();
    for state in before {
        life.next(state, is_whole).unwrap();
    }
    life.next(last, is_whole).map_err(|contradiction| contradiction.text)
}

fn judged(states: &[State]) -> Result<(), String> {
    judged_where(states, true)
}

#[test]
fn versions_grow_or_are_marked_late() {
    judged(&[present("9"), present("10"), late("3"), state(Change::Left, "11"), present("12")]).unwrap();
    let text = judged(&[present("10"), present("9")]).unwrap_err();
    assert_eq!(text, "version 9 of u is not marked late, and the newest before it is 10");
    let text = judged(&[present("9"), late("10")]).unwrap_err();
    assert_eq!(text, "version 10 of u is marked late, and the newest before it is 9");
    assert!(judged(&[late("1")]).is_err(), "it is late behind nothing");
    assert!(judged(&[present("5"), State { late: true, ..gone("4") }]).is_err(), "it is no version");
}

#[test]
fn what_a_version_is_late_for_may_be_missing_where_the_beginning_is() {
    judged_where(&[late("9"), present("10")], false).unwrap();
    assert!(judged_where(&[present("10"), present("9")], false).is_err(), "both are there");
}

#[test]
fn versions_without_an_order_are_not_judged() {
    judged(&[present("b"), present("a"), present("7"), present("b")]).unwrap();
}

#[test]
fn nothing_newer_follows_an_end_that_has_a_version() {
    judged(&[present("5"), gone("6"), late("4")]).unwrap();
    judged(&[present("5"), gone("6"), present("6")]).unwrap();
    // A comparison found the end, next to a replica that is ahead.
    judged(&[present("5"), gone(""), present("6")]).unwrap();
    let text = judged(&[present("5"), gone("6"), present("7")]).unwrap_err();
    assert_eq!(text, "version 7 of u follows its end at version 6");
    assert!(judged(&[present("5"), gone("6"), present("6"), state(Change::Left, "7")]).is_err());
    let text = judged(&[gone("6"), gone("")]).unwrap_err();
    assert_eq!(text, "u ends twice");
}

#[test]
fn an_object_does_not_end_below_a_version_that_it_had() {
    let text = judged(&[present("100"), gone("5")]).unwrap_err();
    assert_eq!(text, "u ends at version 5, below a version that it had");
    assert!(judged(&[present("100"), present("x"), gone("5")]).is_err());
    judged(&[present("100"), gone("100")]).unwrap();
    judged(&[present("100"), gone("x")]).unwrap();
    judged(&[present("x"), gone("5")]).unwrap();
}

#[test]
fn a_version_without_an_order_lets_no_number_run_backwards() {
    let text = judged(&[present("500"), present("-"), present("400")]).unwrap_err();
    assert_eq!(text, "version 400 of u follows version 500");
    judged(&[present("500"), present("-"), present("501"), present("-1"), present("502")]).unwrap();
}

fn bearing(states: &[(&str, &str)]) -> Result<(), String> {
    let (mut holders, mut lives) = (NameHolders::default(), HashMap::new());
    for (uid, version) in states {
        let mut state = present(version);
        state.object = Arc::new(ObjectRef { uid: (*uid).into(), ..(*state.object).clone() });
        let life: &mut ObjectLife = lives.entry(*uid).or_default();
        holders.next(&state, life).map_err(|contradiction| contradiction.text)?;
        state.late =
            life.newest_version().is_some_and(|newest| newest.is_newer_than(&state.resource_version));
        life.next(&state, true).unwrap();
    }
    Ok(())
}

#[test]
fn a_name_does_not_go_back_to_an_object_that_had_it_before_another_one() {
    let text = bearing(&[("a", "7"), ("b", "8"), ("a", "9")]).unwrap_err();
    assert_eq!(text, "version 9 of a comes after another object took its name, /, at version 8");
    assert!(bearing(&[("a", "7"), ("b", "8"), ("c", "9"), ("b", "10")]).is_err());
    bearing(&[("a", "7"), ("b", "8"), ("b", "9"), ("c", "10")]).unwrap();
    // These versions were read back. The name belonged to this uid before.
    bearing(&[("a", "5"), ("b", "8"), ("a", "7"), ("a", "6"), ("b", "9")]).unwrap();
    bearing(&[("b", "8"), ("a", "5"), ("a", "7")]).unwrap();
    bearing(&[("a", "x"), ("b", "8"), ("a", "y")]).unwrap();
}

#[test]
fn a_gap_that_begins_at_a_version_lacks_no_version_that_was_told_since() {
    let lacks = |versions: &[&str], after: &str, before: &str| {
        let mut life = ObjectLife::default();
        versions.iter().for_each(|version| life.next(&present(version), true).unwrap());
        life.note_gap(&hole(after, before).1).map_err(|contradiction| contradiction.text)
    };
    let text = lacks(&["30", "35", "40"], "30", "40").unwrap_err();
    assert_eq!(text, "version 35 lies in a gap from 30 to 40 and was told before it");
    assert!(lacks(&["30", "35"], "30", "40").is_err());
    lacks(&["30"], "30", "40").unwrap();
    lacks(&["30", "40"], "30", "40").unwrap();
    // A witness that began further below has not seen these versions.
    lacks(&["30", "35"], "1", "40").unwrap();
    lacks(&["30", "35"], "30", "").unwrap();
}

fn documented(state: &State, document: &str) -> Result<(), String> {
    document_of(state, document.as_bytes()).map_err(|contradiction| contradiction.text)
}

#[test]
fn a_document_is_of_the_object_and_the_version_of_its_state() {
    let mut state = present("7");
    state.object = Arc::new(ObjectRef { name: "a".into(), namespace: "n".into(), ..(*state.object).clone() });
    let text = |uid: &str, version: &str| {
        format!(
            "{{\"kind\":\"Job\",\"metadata\":{{\"name\":\"a\",\"namespace\":\"n\",\"uid\":\"{uid}\",\
             \"resourceVersion\":\"{version}\"}}}}"
        )
    };
    documented(&state, &text("u", "7")).unwrap();
    let contradiction = documented(&state, &text("u", "9")).unwrap_err();
    assert_eq!(
        contradiction,
        "the document of version 7 of u has the resourceVersion `9`, and its state says `7`"
    );
    assert!(documented(&state, &text("v", "7")).is_err() && documented(&state, "hello").is_err());
    assert!(documented(&state, "").is_err());
    let end = State { change: Change::Gone, ..state };
    documented(&end, "").unwrap();
    documented(&end, &text("u", "7")).unwrap();
    assert!(documented(&end, &text("u", "6")).is_err());
}

fn hole(after: &str, before: &str) -> (State, Gap) {
    let mut state = state(Change::Gap, before);
    let gap = Gap {
        source: "jobs".into(),
        object: Some((*state.object).clone()),
        epoch: 0,
        after: after.into(),
        before: before.into(),
        reason: "Compacted".into(),
        message: String::new(),
        recorded_ms: 0,
    };
    state.id = StateId::of("jobs", 0, &state.object, Change::Gap, &state.resource_version, Some(&gap));
    (state, gap)
}

fn gap_verdict(state: &State, gap: &Gap) -> Result<(), String> {
    let document = serde_json::to_vec(gap).unwrap();
    check_gap(state, &document).map(drop).map_err(|contradiction| contradiction.text)
}

#[test]
fn a_gap_says_what_its_id_says_and_does_not_run_backwards() {
    for (after, before) in [("5", "9"), ("", "9"), ("5", ""), ("x", "x"), ("5", "x")] {
        let (state, gap) = hole(after, before);
        gap_verdict(&state, &gap).unwrap();
    }
    let (state, gap) = hole("5", "9");
    assert!(
        gap_verdict(&state, &Gap { after: "4".into(), ..gap.clone() }).unwrap_err().contains("other bounds")
    );
    let other = ObjectRef { uid: "v".into(), ..(*state.object).clone() };
    for (other, message) in [
        (Gap { object: Some(other), ..gap.clone() }, "is of another object"),
        (Gap { object: None, ..gap.clone() }, "is of another object"),
        (Gap { source: "pods".into(), ..gap.clone() }, "is of another source or epoch"),
        (Gap { epoch: 3, ..gap.clone() }, "is of another source or epoch"),
        (Gap { reason: "no-such-reason".into(), ..gap.clone() }, "has no word for a reason"),
        (Gap { reason: String::new(), ..gap.clone() }, "has no word for a reason"),
    ] {
        let text = gap_verdict(&state, &other).unwrap_err();
        assert!(text.contains(message), "{text}");
    }
    let (state, gap) = hole("", "");
    assert!(gap_verdict(&state, &gap).unwrap_err().contains("has no bounds"));
    let (state, gap) = hole("5", "9");
    let state = State { resource_version: Version::new("99"), ..state };
    assert!(gap_verdict(&state, &gap).unwrap_err().contains("has other bounds"));
    for (after, before) in [("9", "5"), ("9", "9")] {
        let (state, gap) = hole(after, before);
        let text = gap_verdict(&state, &gap).unwrap_err();
        assert_eq!(text, format!("the gap of u ends at {before}, and begins at {after}"));
    }
}

#[test]
fn a_gap_leaves_the_status_as_it_was() {
    let (gap, _) = hole("5", "9");
    judged(&[present("5"), State { previous: Some(gap.status.clone()), ..gap.clone() }]).unwrap();
    let other = Status { phase: "Running".into(), ..Status::default() };
    assert!(judged(&[present("5"), State { previous: Some(Arc::new(other)), ..gap }]).is_err());
}

#[test]
fn only_what_the_store_may_know_is_said_to_be_perhaps_known() {
    let life = |states: &[State]| {
        let mut life = ObjectLife::default();
        states.iter().for_each(|state| life.next(state, true).unwrap());
        life
    };
    let newest_5 = life(&[present("5")]);
    assert!(!newest_5.needs_lookup(&present("6")) && !newest_5.needs_lookup(&gone("6")));
    assert!(
        newest_5.needs_lookup(&present("5"))
            && newest_5.needs_lookup(&late("4"))
            && newest_5.needs_lookup(&present("x"))
    );
    assert!(newest_5.needs_lookup(&hole("5", "9").0));
    assert!(!ObjectLife::default().needs_lookup(&present("5")));
    let ended = life(&[present("5"), gone("6")]);
    assert!(!ended.needs_lookup(&present("6")) && ended.needs_lookup(&gone("6")));
    let ended_at_5 = life(&[present("5"), gone("5")]);
    assert!(ended_at_5.needs_lookup(&present("5")));
}
