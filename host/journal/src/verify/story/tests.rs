//! The judge of stories, state by state.

use std::sync::Arc;

use kubewitness_core::{Change, ObjectRef, State, Status, Version};

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

/// What is said of the last of these; those before it have to fit.
fn judged_where(states: &[State], is_whole: bool) -> Result<(), String> {
    let mut life = Life::default();
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
    // Found by a comparison, beside a replica that is ahead.
    judged(&[present("5"), gone(""), present("6")]).unwrap();
    let text = judged(&[present("5"), gone("6"), present("7")]).unwrap_err();
    assert_eq!(text, "version 7 of u follows its end at version 6");
    assert!(judged(&[present("5"), gone("6"), present("6"), state(Change::Left, "7")]).is_err());
    let text = judged(&[gone("6"), gone("")]).unwrap_err();
    assert_eq!(text, "u ends twice");
}

/// As one that was outrun: its own version is behind what was told since.
#[test]
fn an_end_behind_newer_versions_forbids_nothing() {
    judged(&[present("8"), gone("6"), present("9")]).unwrap();
}

fn hole(after: &str, before: &str) -> (State, Gap) {
    let mut state = state(Change::Gap, before);
    let gap = Gap {
        source: "another".into(),
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

fn told(state: &State, said: &Gap) -> Result<(), String> {
    let document = serde_json::to_vec(said).unwrap();
    gap(state, &document).map(drop).map_err(|contradiction| contradiction.text)
}

#[test]
fn a_gap_says_what_its_id_says_and_does_not_run_backwards() {
    for (after, before) in [("5", "9"), ("", "9"), ("5", ""), ("", ""), ("x", "x"), ("5", "x")] {
        let (state, gap) = hole(after, before);
        told(&state, &gap).unwrap();
    }
    let (state, gap) = hole("5", "9");
    assert!(told(&state, &Gap { after: "4".into(), ..gap.clone() }).unwrap_err().contains("other bounds"));
    let other = ObjectRef { uid: "v".into(), ..(*state.object).clone() };
    assert!(told(&state, &Gap { object: Some(other), ..gap }).is_err());
    for (after, before) in [("9", "5"), ("9", "9")] {
        let (state, gap) = hole(after, before);
        let text = told(&state, &gap).unwrap_err();
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
        let mut life = Life::default();
        states.iter().for_each(|state| life.next(state, true).unwrap());
        life
    };
    let one = life(&[present("5")]);
    assert!(!one.may_be_told(&present("6")) && !one.may_be_told(&gone("6")));
    assert!(one.may_be_told(&present("5")) && one.may_be_told(&late("4")) && one.may_be_told(&present("x")));
    assert!(one.may_be_told(&hole("5", "9").0));
    assert!(!Life::default().may_be_told(&present("5")));
    let ended = life(&[present("5"), gone("6")]);
    assert!(!ended.may_be_told(&present("6")) && ended.may_be_told(&gone("6")));
    let told = life(&[present("5"), gone("5")]);
    assert!(told.may_be_told(&present("5")));
}
