//! Tests of resyncs: what is handed over again, and what it costs.

use super::*;

fn finished_lanes() -> Lanes {
    let mut lanes = lanes_with(OnDeadLetter::Continue, &[(1, 1), (2, 2)]);
    for seq in take(&mut lanes, 0, 5) {
        lanes.apply_verdict(seq, Verdict::Done, at(0));
    }
    lanes
}

fn resyncs(lanes: &Lanes) -> (u64, u64, u64) {
    let stats = lanes.lane_stats();
    (stats.resynced, stats.resync_skipped, stats.resync_failed)
}

#[test]
fn a_resync_hands_a_state_over_again_and_is_in_no_account() {
    let mut lanes = finished_lanes();
    let before = (lanes.lane_stats(), lanes.progress_to_save());
    assert!(lanes.resync_state(state(1, 1), Duration::ZERO));
    assert!(!lanes.resync_state(state(1, 1), Duration::ZERO), "once at a time");
    let batch = lanes.take(Duration::ZERO, 5);
    assert_eq!((batch[0].state.seq, batch[0].attempt, batch[0].resync), (1, 1, true));
    assert_eq!(lanes.apply_verdict(1, Verdict::Done, at(0)), SettledAs::Resynced);
    let stats = LaneStats { resynced: 1, resync_skipped: 1, ..before.0 };
    assert_eq!((lanes.lane_stats(), lanes.progress_to_save()), (stats, before.1));
    assert_eq!(lanes.take_letters(), LetterChanges::default());
}

#[test]
fn what_is_still_to_be_handed_over_is_not_resynced() {
    let mut lanes = finished_lanes();
    assert!(!lanes.resync_state(state(3, 1), Duration::ZERO), "it was not read yet");
    lanes.push(state(3, 1), Duration::ZERO);
    assert!(!lanes.resync_state(state(3, 1), Duration::ZERO), "it waits");
    assert_eq!(take(&mut lanes, 0, 5), [3]);
    assert!(!lanes.resync_state(state(3, 1), Duration::ZERO), "it is in flight");
    lanes.apply_verdict(3, Verdict::Reject("never".into()), at(0));
    assert!(!lanes.resync_state(state(3, 1), Duration::ZERO), "it is parked: an operator decides about it");
    let letter = lanes.take_letters().parked.remove(0);
    lanes.replay_letter(&letter);
    assert!(!lanes.resync_state(state(3, 1), Duration::ZERO), "and is taken back");
    assert_eq!(resyncs(&lanes), (0, 5, 0));
}

#[test]
fn nothing_is_resynced_past_a_letter_that_is_not_durable() {
    let mut lanes = finished_lanes();
    lanes.push(state(3, 1), Duration::ZERO);
    take(&mut lanes, 0, 5);
    lanes.apply_verdict(3, Verdict::Reject("never".into()), at(0));
    lanes.read(vec![(state(4, 1), SubscriptionFit::Filtered)], 4, Duration::ZERO);
    assert!(!lanes.resync_state(state(4, 1), Duration::ZERO), "killed now, it would come before the letter");
    let letters = lanes.take_letters();
    lanes.letters_saved(letters.parked.iter().map(|letter| letter.seq));
    assert!(lanes.resync_state(state(4, 1), Duration::ZERO));
}

#[test]
fn a_newer_state_takes_the_place_of_a_resync_that_has_not_begun_or_failed() {
    let mut lanes = finished_lanes();
    lanes.resync_state(state(1, 1), Duration::ZERO);
    lanes.push(state(3, 1), Duration::ZERO);
    assert_eq!(take(&mut lanes, 0, 5), [3]);
    lanes.apply_verdict(3, Verdict::Done, at(0));

    lanes.resync_state(state(3, 1), Duration::ZERO);
    assert_eq!(take(&mut lanes, 0, 5), [3]);
    lanes.push(state(4, 1), Duration::ZERO);
    assert_eq!(take(&mut lanes, 0, 5), [0; 0], "one at a time, also of a resync");
    assert_eq!(lanes.apply_verdict(3, retry(), at(0)), SettledAs::Superseded);
    assert_eq!(take(&mut lanes, 0, 5), [4]);
    lanes.apply_verdict(4, Verdict::Done, at(0));

    lanes.resync_state(state(4, 1), Duration::ZERO);
    take(&mut lanes, 0, 5);
    assert!(matches!(lanes.apply_verdict(4, retry(), at(0)), SettledAs::Retried(_)));
    lanes.push(state(5, 1), Duration::ZERO);
    assert_eq!(take(&mut lanes, 0, 5), [5], "without the pause of the resync");
    assert_eq!((resyncs(&lanes), lanes.lane_stats().retrying), ((0, 3, 0), 0));
}

#[test]
fn a_resync_that_fails_to_the_last_is_dropped_and_no_dead_letter() {
    let mut lanes = finished_lanes();
    lanes.resync_state(state(1, 1), Duration::ZERO);
    for ms in [0, 1000] {
        assert_eq!(take(&mut lanes, ms, 5), [1]);
        assert!(matches!(lanes.apply_verdict(1, retry(), at(ms)), SettledAs::Retried(_)));
        assert_eq!((lanes.lane_stats().retrying, lanes.lane_stats().waiting), (0, 0));
    }
    take(&mut lanes, 2000, 5);
    assert_eq!(lanes.apply_verdict(1, retry(), at(2000)), SettledAs::Dropped);
    assert_eq!(lanes.take_letters(), LetterChanges::default());
    assert_eq!((resyncs(&lanes), lanes.lane_stats().dead), ((0, 0, 1), 0));
}

#[test]
fn a_resync_takes_a_share_of_the_window_only() {
    let mut lanes = Lanes::new(
        options(OnDeadLetter::Continue),
        &PluginProgress { cursor: 9, ..PluginProgress::default() },
    );
    let taken = (1..=9).filter(|seq| lanes.resync_state(state(*seq, *seq as u8), Duration::ZERO)).count();
    assert_eq!((taken, lanes.resync_room(), lanes.room_for_states()), (2, 0, 2));
}
