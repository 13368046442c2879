//! Tests of states that are owed by rows of the journal.

use super::*;

/// A lane that its first state holds, and how far it was saved.
fn held_lane() -> Lanes {
    let mut lanes = lanes_with(OnDeadLetter::Hold, &[(1, 1)]);
    take(&mut lanes, 0, 5);
    lanes.apply_verdict(1, Verdict::Reject("never".into()), at(0));
    saved(&mut lanes);
    lanes
}

fn parked_letter() -> DeadLetter {
    DeadLetter {
        plugin: "probe".into(),
        seq: 1,
        id: StateId::parse("jobs/0/1/1"),
        attempts: 1,
        error: "never".into(),
        first_ms: 1,
        last_ms: 1,
        replaying: false,
        dropped: false,
        tries: Vec::new(),
    }
}

#[test]
fn the_cursor_passes_a_held_lane_which_goes_on_in_order_once_it_may() {
    let mut lanes = held_lane();
    for (seq, lane) in [(2, 1), (3, 2), (4, 1)] {
        lanes.push(state(seq, lane), Duration::ZERO);
    }
    assert_eq!(take(&mut lanes, 0, 5), [3]);
    lanes.apply_verdict(3, Verdict::Done, at(0));
    assert_eq!((lanes.cursor(), lanes.progress_to_save().above), (4, vec![]));
    assert_eq!((lanes.lane_stats().waiting, lanes.oldest_unfinished_ms()), (2, Some(20)));
    lanes.drop_letter(1);
    assert_eq!(lanes.next_owed(), None, "its rows are not yet saved");
    assert_eq!(saved(&mut lanes).owed, [2, 4]);
    // What comes meanwhile is owed as well, behind the others.
    lanes.push(state(5, 1), Duration::ZERO);
    bring_back(&mut lanes, &[(2, 1), (4, 1)]);
    for seq in [2, 4] {
        assert_eq!(lanes.first_recalled(), Some(seq), "it may have been applied before a kill");
        assert_eq!(take(&mut lanes, 0, 5), [seq]);
        lanes.apply_verdict(seq, Verdict::Done, at(0));
        assert_eq!(saved(&mut lanes).revived, [seq]);
    }
    bring_back(&mut lanes, &[(5, 1)]);
    assert_eq!(take(&mut lanes, 0, 5), [5]);
    lanes.apply_verdict(5, Verdict::Done, at(0));
    assert_eq!(saved(&mut lanes).revived, [5]);
    assert!(lanes.lanes.is_empty() && lanes.debts.oldest.is_empty() && lanes.debts.returning.is_empty());
    assert_eq!(
        (lanes.lane_stats().waiting, lanes.first_recalled(), lanes.oldest_unfinished_ms()),
        (0, None, None)
    );
}

#[test]
fn more_states_than_the_lanes_remember_wait_behind_a_letter_and_nobody_else_does() {
    let mut lanes = held_lane();
    let (last, mut delivered) = (2000, 0);
    for seq in 2..=last {
        lanes.push(state(seq, if seq % 2 == 0 { 1 } else { 2 }), Duration::ZERO);
        for seq in take(&mut lanes, 0, 1) {
            lanes.apply_verdict(seq, Verdict::Done, at(0));
            delivered += 1;
        }
        if seq % 100 == 0 {
            saved(&mut lanes);
        }
    }
    assert_eq!((delivered, lanes.cursor(), lanes.lane_stats().waiting), (999, last, 1000));
    assert!(
        lanes.namespaces_behind().is_empty()
            && !lanes.is_scattered()
            && lanes.progress_to_save().above.is_empty()
    );
    assert_eq!((lanes.shares.loaded, lanes.shares.deferred), (0, 0));
}

#[test]
fn a_retry_that_is_far_off_lets_the_cursor_pass_and_a_near_one_does_not() {
    for (after_ms, cursor) in [(999, 0), (1000, 3)] {
        let mut lanes = lanes_with(OnDeadLetter::Continue, &[(1, 1), (2, 1), (3, 1)]);
        take(&mut lanes, 0, 1);
        lanes.apply_verdict(1, Verdict::Retry { after_ms: Some(after_ms), reason: "later".into() }, at(0));
        assert_eq!((lanes.cursor(), lanes.lane_stats().waiting, lanes.lane_stats().retrying), (cursor, 3, 1));
        saved(&mut lanes);
        let delivery = lanes.take(Duration::from_millis(after_ms), 1).remove(0);
        assert_eq!((delivery.state.seq, delivery.attempt), (1, 2), "it knows its tries");
        lanes.apply_verdict(1, Verdict::Done, at(after_ms));
        if cursor > 0 {
            bring_back(&mut lanes, &[(1, 1), (2, 1), (3, 1)]);
        }
        assert_eq!(take(&mut lanes, after_ms, 5), [2]);
    }
}

#[test]
fn after_a_restart_rows_come_in_order_before_what_is_read() {
    let progress = PluginProgress { cursor: 9, ..PluginProgress::default() };
    let mut lanes = Lanes::new(options(OnDeadLetter::Hold), &progress);
    lanes.add_parked(1);
    lanes.hold_lane_at(1, state(1, 1).lane_key());
    for (seq, lane) in [(2, 1), (4, 1), (7, 2)] {
        lanes.owe_again(&state(seq, lane));
    }
    assert_eq!((lanes.next_owed(), lanes.lane_stats().waiting), (Some(7), 3));
    lanes.push(state(10, 2), Duration::ZERO);
    bring_back(&mut lanes, &[(7, 2)]);
    assert_eq!(take(&mut lanes, 0, 5), [7]);
    lanes.apply_verdict(7, Verdict::Done, at(0));
    saved(&mut lanes);
    bring_back(&mut lanes, &[(10, 2)]);
    assert_eq!(take(&mut lanes, 0, 5), [10]);
}

#[test]
fn a_row_without_a_state_is_missed_unless_a_save_went_on_meanwhile() {
    let mut lanes = held_lane();
    lanes.push(state(2, 1), Duration::ZERO);
    saved(&mut lanes);
    lanes.drop_letter(1);
    let (from, saves) = (lanes.next_owed().unwrap(), lanes.owed_saves());
    saved(&mut lanes);
    assert_eq!(lanes.return_owed(from, Vec::new(), None, saves, Duration::ZERO), 0);
    assert_eq!(lanes.next_owed(), Some(2), "it is asked for again");
    assert_eq!(lanes.return_owed(from, Vec::new(), None, lanes.owed_saves(), Duration::ZERO), 1);
    assert_eq!((lanes.next_owed(), lanes.lane_stats().waiting), (None, 0));
    assert!(lanes.lanes.is_empty());
}

#[test]
fn a_lane_whose_rows_lie_far_behind_those_of_a_held_one_is_reached_part_by_part() {
    let mut lanes = held_lane();
    lanes.owe_again(&state(50, 2));
    (2..=40).for_each(|seq| lanes.push(state(seq, 1), Duration::ZERO));
    saved(&mut lanes);
    lanes.drop_letter(1);
    // The lane of 2 and later has room for three; the next look goes on behind what was looked at.
    let part = (2..=9).map(|seq| (state(seq, 1), SubscriptionFit::Wanted)).collect();
    lanes.return_owed(2, part, Some(9), lanes.owed_saves(), Duration::ZERO);
    assert_eq!(lanes.next_owed(), Some(50));
    assert_eq!(take(&mut lanes, 0, 5), [2]);
}

/// After a restart, rows come before what is read.
#[test]
fn no_state_of_a_lane_that_has_rows_is_without_one() {
    let mut lanes = held_lane();
    let letter = DeadLetter { replaying: true, ..parked_letter() };
    lanes.replay_letter(&letter);
    lanes.fill_wanted(&[1], vec![state(1, 1)], Duration::ZERO);
    lanes.push(state(2, 1), Duration::ZERO);
    assert_eq!((take(&mut lanes, 0, 1), lanes.cursor()), (vec![1], 1));
    lanes.apply_verdict(1, retry(), at(0));
    lanes.push(state(3, 1), Duration::ZERO);
    assert_eq!((saved(&mut lanes).owed, lanes.cursor()), (vec![2, 3], 3));
}
