//! The oracle finds each bug that is planted. One that finds nothing proves nothing.

use std::collections::BTreeSet;

use kubewitness_faults::Marks;
use kubewitness_faults::delivery::DeliveryBreach;

use crate::bugs::PlantedBug;
use crate::seeds::run;

/// A bug that is real shows within so many seeds.
const SEEDS: u64 = 400;

fn found(bug: PlantedBug, breach: DeliveryBreach) {
    let mut others = BTreeSet::new();
    for seed in 1..=SEEDS {
        let found = run(seed, &Marks::default(), bug).found;
        if found.iter().any(|found| found.breach == breach) {
            return;
        }
        others.extend(found.into_iter().map(|found| found.breach));
    }
    panic!("{bug:?} was never found as {breach:?}, only as {others:?}");
}

#[test]
fn a_sink_that_forgets_its_receipts_is_found() {
    found(PlantedBug::ForgetsReceipts, DeliveryBreach::Twice);
}

#[test]
fn a_sink_whose_rows_are_there_before_their_receipt_is_found() {
    found(PlantedBug::ReceiptsApart, DeliveryBreach::Twice);
}

#[test]
fn two_states_in_each_others_place_are_found() {
    found(PlantedBug::SwapsStates, DeliveryBreach::Order);
}

#[test]
fn a_state_that_is_left_out_is_found() {
    found(PlantedBug::SkipsStates, DeliveryBreach::Ahead);
}

#[test]
fn a_cursor_that_runs_ahead_is_found() {
    found(PlantedBug::CursorAhead, DeliveryBreach::Ahead);
}

#[test]
fn letters_that_are_kept_apart_from_the_progress_are_found() {
    found(PlantedBug::LettersApart, DeliveryBreach::Ahead);
}

#[test]
fn letters_that_are_forgotten_when_they_are_taken_back_are_found() {
    found(PlantedBug::LettersForgotten, DeliveryBreach::Ahead);
}

#[test]
fn states_that_are_owed_and_forgotten_are_found() {
    found(PlantedBug::OwedForgotten, DeliveryBreach::Ahead);
}

#[test]
fn a_checkpoint_that_is_there_before_its_states_is_found() {
    found(PlantedBug::CheckpointFirst, DeliveryBreach::Lost);
}

#[test]
fn a_state_that_is_not_counted_is_found() {
    found(PlantedBug::Miscounts, DeliveryBreach::Sum);
}

#[test]
fn a_state_that_nobody_asked_for_is_found() {
    found(PlantedBug::IgnoresMode, DeliveryBreach::Uncalled);
}

#[test]
fn a_plugin_that_never_answers_is_found() {
    found(PlantedBug::NeverAnswers, DeliveryBreach::Late);
}

#[test]
fn a_dispatcher_that_begins_before_the_last_save_of_another_is_done_is_found() {
    found(PlantedBug::NeverSettles, DeliveryBreach::Sum);
}

#[test]
fn a_handle_that_goes_on_after_a_failed_sync_is_found() {
    found(PlantedBug::TriesAgain, DeliveryBreach::Doubted);
}
