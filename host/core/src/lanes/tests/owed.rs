//! Tests of states that are owed by rows of the journal.

use std::collections::HashSet;

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
        assert_eq!(take(&mut lanes, 0, 5), [seq]);
        assert_eq!(lanes.first_needed_receipt(), None, "what is in flight is among the newest commits");
        lanes.apply_verdict(seq, Verdict::Done, at(0));
        assert_eq!(saved(&mut lanes).revived, [seq]);
    }
    bring_back(&mut lanes, &[(5, 1)]);
    assert_eq!(take(&mut lanes, 0, 5), [5]);
    lanes.apply_verdict(5, Verdict::Done, at(0));
    assert_eq!(saved(&mut lanes).revived, [5]);
    assert!(lanes.lanes.is_empty() && lanes.debts.oldest.is_empty() && lanes.debts.returning.is_empty());
    assert_eq!(
        (lanes.lane_stats().waiting, lanes.first_needed_receipt(), lanes.oldest_unfinished_ms()),
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
        lanes.restore_owed_row(&state(seq, lane));
    }
    assert_eq!((lanes.next_owed(), lanes.lane_stats().waiting), (None, 3), "their receipts come first");
    let asked = lanes.doubtful_positions(9);
    assert_eq!((&*asked, lanes.resolve_doubts(&asked, &HashSet::new())), (&[2, 4, 7][..], 0));
    assert_eq!(lanes.next_owed(), Some(7));
    lanes.push(state(10, 2), Duration::ZERO);
    bring_back(&mut lanes, &[(7, 2)]);
    assert_eq!(take(&mut lanes, 0, 5), [7]);
    lanes.apply_verdict(7, Verdict::Done, at(0));
    saved(&mut lanes);
    bring_back(&mut lanes, &[(10, 2)]);
    assert_eq!(take(&mut lanes, 0, 5), [10]);
}

#[test]
fn a_row_without_a_state_is_missed_unless_it_is_not_saved_yet() {
    let mut lanes = held_lane();
    lanes.push(state(2, 1), Duration::ZERO);
    saved(&mut lanes);
    lanes.drop_letter(1);
    let from = lanes.next_owed().unwrap();
    lanes.push(state(3, 1), Duration::ZERO);
    let part = vec![(state(2, 1), SubscriptionFit::Wanted)];
    assert_eq!(lanes.return_owed(from, part, None, Duration::ZERO), 0, "3 is not saved yet");
    assert_eq!(take(&mut lanes, 0, 5), [2]);
    lanes.apply_verdict(2, Verdict::Done, at(0));
    saved(&mut lanes);
    let from = lanes.next_owed().unwrap();
    assert_eq!(lanes.return_owed(from, Vec::new(), None, Duration::ZERO), 1);
    assert_eq!((lanes.next_owed(), lanes.lane_stats().waiting), (None, 0));
    assert!(lanes.lanes.is_empty());
}

#[test]
fn a_lane_whose_rows_lie_far_behind_those_of_a_held_one_is_reached_part_by_part() {
    let mut lanes = held_lane();
    lanes.restore_owed_row(&state(50, 2));
    lanes.resolve_doubts(&[50], &HashSet::new());
    (2..=40).for_each(|seq| lanes.push(state(seq, 1), Duration::ZERO));
    saved(&mut lanes);
    lanes.drop_letter(1);
    // The lane of 2 and later has room for three; the next look goes on behind what was looked at.
    let part = (2..=9).map(|seq| (state(seq, 1), SubscriptionFit::Wanted)).collect();
    lanes.return_owed(2, part, Some(9), Duration::ZERO);
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

/// Only receipts tell which states were applied before the start.
#[test]
fn a_state_that_was_applied_before_the_start_is_finished_also_where_a_letter_holds_its_lane() {
    let progress = PluginProgress { cursor: 9, ..PluginProgress::default() };
    let mut lanes = Lanes::new(options(OnDeadLetter::Hold), &progress);
    lanes.note_previous_run(11);
    lanes.add_parked(1);
    lanes.hold_lane_at(1, state(1, 1).lane_key());
    [2, 3].into_iter().for_each(|seq| lanes.restore_owed_row(&state(seq, 1)));
    // 10 and 11 were read before the start, and 12 was not there.
    (10..=12).for_each(|seq| lanes.push(state(seq, 1), Duration::ZERO));
    assert_eq!((lanes.cursor(), lanes.first_needed_receipt()), (12, Some(2)));
    let asked = lanes.doubtful_positions(9);
    assert_eq!(asked, [2, 3, 10, 11]);
    assert_eq!(lanes.resolve_doubts(&asked, &[2, 10].into()), 2);
    let stats = lanes.lane_stats();
    assert_eq!((stats.delivered, stats.waiting, lanes.first_needed_receipt()), (2, 3, Some(2)));
    assert_eq!(saved(&mut lanes).revived, [2, 10]);
    assert_eq!(lanes.first_needed_receipt(), None, "a letter may hold its lane for years");
    lanes.drop_letter(1);
    bring_back(&mut lanes, &[(3, 1), (11, 1), (12, 1)]);
    assert_eq!(take(&mut lanes, 0, 5), [3]);
}

#[test]
fn a_letter_that_was_replayed_before_the_start_is_handed_over_once_its_receipt_was_looked_for() {
    for (applied, left) in [(vec![1], vec![]), (vec![], vec![1])] {
        let progress = PluginProgress { cursor: 1, ..PluginProgress::default() };
        let mut lanes = Lanes::new(options(OnDeadLetter::Hold), &progress);
        lanes.note_previous_run(1);
        lanes.hold_lane_at(1, state(1, 1).lane_key());
        lanes.restore_replay(&DeadLetter { replaying: true, ..parked_letter() });
        let wanted = lanes.wanted_positions(9);
        assert_eq!(
            (&*wanted, lanes.lane_stats().waiting, lanes.first_needed_receipt()),
            (&[][..], 1, Some(1))
        );
        lanes.resolve_doubts(&[1], &applied.iter().copied().collect());
        assert_eq!((lanes.wanted_positions(9), lanes.lane_stats().delivered), (left, applied.len() as u64));
        assert_eq!(saved(&mut lanes).revived, applied);
        assert_eq!(lanes.first_needed_receipt(), None);
        lanes.push(state(2, 1), Duration::ZERO);
        assert_eq!(take(&mut lanes, 0, 5), if applied.is_empty() { vec![] } else { vec![2] });
    }
}

/// A call that commits may fail all the same. Others may be handed over before its state comes again.
#[test]
fn a_state_that_comes_back_unanswered_keeps_its_receipt_and_becomes_no_row_before_that_is_looked_for() {
    let mut lanes = held_lane();
    lanes.push(state(2, 1), Duration::ZERO);
    saved(&mut lanes);
    lanes.drop_letter(1);
    bring_back(&mut lanes, &[(2, 1)]);
    assert_eq!(take(&mut lanes, 0, 1), [2]);
    lanes.return_untried(2, Duration::ZERO);
    assert_eq!(lanes.first_needed_receipt(), Some(2));
    lanes.replay_letter(&parked_letter());
    lanes.fill_wanted(&[1], vec![state(1, 1)], Duration::ZERO);
    assert_eq!(take(&mut lanes, 0, 1), [1]);
    let later = Verdict::Retry { after_ms: Some(60_000), reason: "later".into() };
    lanes.apply_verdict(1, later, at(0));
    assert_eq!((lanes.doubtful_positions(9), lanes.first_needed_receipt()), (vec![2], Some(2)));
    assert_eq!(lanes.resolve_doubts(&[2], &HashSet::new()), 0);
    assert_eq!(lanes.first_needed_receipt(), None);
}

#[test]
fn a_state_under_latest_takes_the_place_of_the_last_row_of_its_object() {
    let mut lanes = held_lane();
    let read = |lanes: &mut Lanes, seq, change| {
        lanes.read(vec![(state_of("team", 1, seq, change, 0), SubscriptionFit::Latest)], seq, Duration::ZERO);
    };
    for seq in 2..=50 {
        read(&mut lanes, seq, Change::Present);
        if seq == 20 {
            saved(&mut lanes);
        }
    }
    let stats = lanes.lane_stats();
    assert_eq!((stats.waiting, stats.filtered, stats.superseded, lanes.cursor()), (1, 48, 48, 50));
    read(&mut lanes, 51, Change::Gone);
    read(&mut lanes, 52, Change::Present);
    assert_eq!(lanes.lane_stats().waiting, 2, "an end gives no way");
    let LetterChanges { owed, revived, .. } = saved(&mut lanes);
    let stay: Vec<Seq> = owed.into_iter().filter(|seq| !revived.contains(seq)).collect();
    assert_eq!((stay, revived.contains(&20)), (vec![51, 52], true));
    lanes.drop_letter(1);
    bring_back(&mut lanes, &[(51, 1), (52, 1)]);
    assert_eq!(take(&mut lanes, 0, 5), [51]);
}

#[test]
fn at_the_bound_of_rows_a_lane_keeps_its_namespace_unread_and_no_other_one() {
    let few = LaneOptions { rows: 3, ..options(OnDeadLetter::Hold) };
    let mut lanes = Lanes::new(few, &PluginProgress::default());
    lanes.push(state(1, 1), Duration::ZERO);
    take(&mut lanes, 0, 5);
    lanes.apply_verdict(1, Verdict::Reject("never".into()), at(0));
    let of = |seq: Seq| match seq % 2 {
        0 => state(seq, 1),
        _ => state_of("other", 2, seq, Change::Present, 0),
    };
    for seq in 2..=11 {
        lanes.push(of(seq), Duration::ZERO);
        for seq in take(&mut lanes, 0, 1) {
            lanes.apply_verdict(seq, Verdict::Done, at(0));
        }
    }
    let stats = lanes.lane_stats();
    assert_eq!((stats.delivered, stats.waiting, lanes.cursor()), (5, 5, 7));
    assert_eq!((lanes.namespaces_behind(), lanes.next_behind(Duration::ZERO)), (vec!["team".into()], None));
    saved(&mut lanes);
    lanes.drop_letter(1);
    assert_eq!(lanes.next_behind(Duration::ZERO), None, "its rows come first");
    bring_back(&mut lanes, &[(2, 1), (4, 1), (6, 1)]);
    assert_eq!(take(&mut lanes, 0, 5), [2]);
    lanes.apply_verdict(2, Verdict::Done, at(0));
    assert_eq!(lanes.next_behind(Duration::ZERO).map(|range| range.from), Some(8));
}

#[test]
fn what_comes_again_before_a_letter_that_holds_its_lane_is_handed_over() {
    let progress = PluginProgress { cursor: 2, above: vec![(5, 5)], ..PluginProgress::default() };
    let mut lanes = Lanes::new(options(OnDeadLetter::Hold), &progress);
    lanes.add_parked(5);
    lanes.hold_lane_at(5, state(5, 1).lane_key());
    for seq in [3, 4] {
        lanes.push(state(seq, 1), Duration::ZERO);
    }
    for seq in [3, 4] {
        assert_eq!(take(&mut lanes, 0, 5), [seq]);
        lanes.apply_verdict(seq, Verdict::Done, at(0));
    }
    assert_eq!((lanes.cursor(), lanes.lane_stats().waiting), (5, 0));
}

#[test]
fn at_the_bound_of_rows_what_is_filtered_is_passed_and_a_past_waits_until_there_is_room() {
    let few = LaneOptions { rows: 1, ..options(OnDeadLetter::Hold) };
    let mut lanes = Lanes::new(few, &PluginProgress::default());
    let journal = turns::journal_of([("team", 1); 5].into_iter());
    lanes.begin_past(&"jobs".into(), 4, RateSpec { per_second: 1000, burst: None });
    lanes.count(4, 4);
    let fitted = |from: Seq| {
        let fit = |seq| if seq == 3 { SubscriptionFit::Filtered } else { SubscriptionFit::Wanted };
        let after = journal[from as usize - 1..4].iter();
        after.map(|state| (Arc::clone(state), fit(state.seq))).collect::<Vec<_>>()
    };
    lanes.read(fitted(1), 4, Duration::ZERO);
    let now = Duration::from_secs(1);
    lanes.take_in_deferred(1, fitted(1)[..1].to_vec(), 1, now);
    assert_eq!(take(&mut lanes, 1000, 5), [1]);
    lanes.apply_verdict(1, Verdict::Reject("never".into()), at(1000));
    lanes.take_in_deferred(2, fitted(2), 4, now);
    assert_eq!((saved(&mut lanes).owed, lanes.lane_stats().filtered), (vec![2], 1));
    assert_eq!((lanes.cursor(), lanes.next_behind(Duration::from_secs(9))), (3, None));
    lanes.drop_letter(1);
    bring_back(&mut lanes, &[(2, 1)]);
    assert_eq!(take(&mut lanes, 1000, 5), [2]);
    lanes.apply_verdict(2, Verdict::Done, at(1000));
    assert_eq!(lanes.next_behind(now).map(|range| range.from), Some(4));
}

#[test]
fn fifty_thousand_objects_with_one_row_each_write_each_row_once_and_are_read_back_in_a_few_parts() {
    const OBJECTS: u64 = 50_000;
    const PART: usize = 1024;
    let of = |seq: Seq| state_of("team", (seq - 1) / 2, seq, Change::Present, 0);
    let wide = LaneOptions { window: limits::LANE_WINDOW, ..options(OnDeadLetter::Hold) };
    let mut lanes = Lanes::new(wide, &PluginProgress::default());
    for seq in 1..=2 * OBJECTS {
        lanes.push(of(seq), Duration::ZERO);
        for seq in take(&mut lanes, 0, 1) {
            lanes.apply_verdict(seq, Verdict::Reject("never".into()), at(0));
        }
        if seq % 1000 == 0 {
            let LetterChanges { parked, revived, owed } = saved(&mut lanes);
            assert_eq!((parked.len(), revived.len(), owed.len()), (500, 0, 500), "only what is new");
            let progress = lanes.progress_to_save();
            assert_eq!((progress.cursor, progress.above), (seq, vec![]));
        }
    }
    assert_eq!(saved(&mut lanes), LetterChanges::default());
    assert_eq!((lanes.lane_stats().dead, lanes.lane_stats().waiting), (OBJECTS, OBJECTS));
    (1..2 * OBJECTS).step_by(2).for_each(|letter| lanes.drop_letter(letter));
    let mut rows: BTreeSet<Seq> = (2..=2 * OBJECTS).step_by(2).collect();
    let mut parts = 0;
    while let Some(from) = lanes.next_owed() {
        let part: Vec<Seq> = rows.range(from..).take(PART).copied().collect();
        let end = part.last().copied().filter(|_| part.len() == PART);
        let states = part.iter().map(|seq| (of(*seq), SubscriptionFit::Wanted)).collect();
        assert_eq!(lanes.return_owed(from, states, end, Duration::ZERO), 0);
        parts += 1;
        for seq in take(&mut lanes, 0, usize::MAX) {
            lanes.apply_verdict(seq, Verdict::Done, at(0));
        }
        for seq in saved(&mut lanes).revived {
            assert!(rows.remove(&seq), "{seq} was handed over twice");
        }
    }
    assert!(rows.is_empty() && lanes.lanes.is_empty() && lanes.lane_stats().waiting == 0);
    assert_eq!(parts, OBJECTS.div_ceil(PART as u64));
}
