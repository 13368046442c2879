//! Tests of `mode: latest`: what a newer state replaces.

use super::*;

fn latest(lanes: &mut Lanes, seq: Seq, change: Change, uid: u8) {
    lanes.read(vec![(state_of("team", 1, seq, change, uid), SubscriptionFit::Latest)], seq, Duration::ZERO);
}

fn deliver_all(lanes: &mut Lanes) -> Vec<Seq> {
    let mut order = Vec::new();
    while let [seq] = take(lanes, 0, 1)[..] {
        lanes.apply_verdict(seq, Verdict::Done, at(0));
        order.push(seq);
    }
    order
}

#[test]
fn of_what_waits_only_the_newest_is_handed_over_and_the_rest_is_counted() {
    let mut lanes = Lanes::new(options(OnDeadLetter::Continue), &PluginProgress::default());
    for seq in 1..=50 {
        latest(&mut lanes, seq, Change::Present, 0);
    }
    assert_eq!(lanes.lane_stats().waiting, 1);
    assert_eq!(deliver_all(&mut lanes), [50]);
    let stats = lanes.lane_stats();
    assert_eq!((stats.delivered, stats.filtered, stats.superseded, stats.waiting), (1, 49, 49, 0));
    assert_eq!((lanes.cursor(), lanes.progress_to_save().superseded), (50, 49));
}

#[test]
fn an_end_is_never_swallowed_and_an_object_made_again_keeps_both_ends() {
    let mut lanes = Lanes::new(options(OnDeadLetter::Continue), &PluginProgress::default());
    for (seq, change, uid) in [
        (1, Change::Present, 0),
        (2, Change::Present, 0),
        (3, Change::Gone, 0),
        (4, Change::Present, 1),
        (5, Change::Gap, 1),
        (6, Change::Present, 1),
        (7, Change::Left, 1),
    ] {
        latest(&mut lanes, seq, change, uid);
    }
    assert_eq!(deliver_all(&mut lanes), [3, 5, 7]);
    assert_eq!((lanes.lane_stats().superseded, lanes.cursor()), (4, 7));
}

#[test]
fn a_state_in_flight_is_not_taken_back_but_not_tried_again_where_a_newer_one_waits() {
    let mut lanes = Lanes::new(options(OnDeadLetter::Continue), &PluginProgress::default());
    latest(&mut lanes, 1, Change::Present, 0);
    assert_eq!(take(&mut lanes, 0, 1), [1]);
    latest(&mut lanes, 2, Change::Present, 0);
    latest(&mut lanes, 3, Change::Present, 0);
    assert_eq!(lanes.apply_verdict(1, retry(), at(0)), SettledAs::Superseded);
    assert_eq!(take(&mut lanes, 0, 1), [3]);
    assert!(matches!(lanes.apply_verdict(3, retry(), at(0)), SettledAs::Retried(_)));
    latest(&mut lanes, 4, Change::Present, 0);
    assert_eq!(take(&mut lanes, 0, 1), [4], "without the pause of the one before");
    let stats = lanes.lane_stats();
    assert_eq!((stats.filtered, stats.superseded, stats.retrying, stats.waiting), (3, 3, 0, 1));
}

#[test]
fn a_state_in_flight_behind_a_letter_that_was_taken_back_is_not_let_go() {
    let mut lanes = Lanes::new(options(OnDeadLetter::Continue), &PluginProgress::default());
    latest(&mut lanes, 1, Change::Present, 0);
    take(&mut lanes, 0, 1);
    lanes.apply_verdict(1, Verdict::Reject("never".into()), at(0));
    lanes.letters_saved([1]);
    latest(&mut lanes, 2, Change::Present, 0);
    assert_eq!(take(&mut lanes, 0, 1), [2]);
    let letter = lanes.take_letters().parked.remove(0);
    lanes.replay_letter(&letter);
    lanes.fill_wanted(&[1], vec![state_of("team", 1, 1, Change::Present, 0)], Duration::ZERO);
    latest(&mut lanes, 3, Change::Present, 0);
    assert_eq!(lanes.lane_stats().superseded, 0);
    assert_eq!(lanes.apply_verdict(2, Verdict::Done, at(0)), SettledAs::Delivered);
    assert_eq!(deliver_all(&mut lanes), [1, 3]);
}
