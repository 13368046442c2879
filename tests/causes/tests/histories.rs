//! Each recorded history can be read, and shows what its label says.

use kubewitness_causes::{Selection, check_label, recorded};

#[test]
fn every_recorded_history_shows_the_facts_of_its_label() {
    let histories = [Selection::All, Selection::ByHand].map(|of| recorded(of).expect("histories"));
    assert!(histories.iter().all(|histories| !histories.is_empty()));
    for history in histories.iter().flatten() {
        if let Err(error) = check_label(history) {
            panic!("{}: {error:#}", history.header.name);
        }
    }
}

#[test]
fn both_halves_have_histories() {
    for half in [Selection::Open, Selection::HeldOut] {
        assert!(!recorded(half).expect("histories").is_empty(), "{half:?}");
    }
}
