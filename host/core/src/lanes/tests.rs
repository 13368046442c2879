use std::sync::Arc;

use super::*;
use crate::state::{Change, ObjectRef, StateId, Status};
use crate::version::Version;

pub(super) fn state(seq: Seq, lane: u8) -> Arc<State> {
    let object = ObjectRef { namespace: "team".into(), name: format!("job-{lane}"), ..ObjectRef::default() };
    Arc::new(State {
        id: StateId::parse(&format!("jobs/0/{lane}/{seq}")),
        seq,
        source: "jobs".into(),
        epoch: 0,
        change: Change::Present,
        object: Arc::new(object),
        owner: None,
        resource_version: Version::new(&seq.to_string()),
        status: Arc::new(Status::default()),
        previous: None,
        observed_ms: seq * 10,
        late: false,
    })
}

pub(super) fn options(on_dead_letter: OnDeadLetter) -> LaneOptions {
    LaneOptions {
        plugin: "probe".into(),
        window: 8,
        depth: 3,
        deferred: 6,
        retries: 2,
        backoff: Duration::from_millis(100),
        max_backoff: Duration::from_millis(300),
        on_dead_letter,
    }
}

pub(super) fn at(ms: u64) -> Now {
    Now { elapsed: Duration::from_millis(ms), wall_ms: 1_000_000 + ms }
}

fn retry() -> Verdict {
    Verdict::Retry { after_ms: None, reason: "not yet".into() }
}

fn lanes_with(on_dead_letter: OnDeadLetter, states: &[(Seq, u8)]) -> Lanes {
    let mut lanes = Lanes::new(options(on_dead_letter), &Progress::default());
    for &(seq, lane) in states {
        lanes.push(state(seq, lane));
    }
    lanes
}

fn take(lanes: &mut Lanes, ms: u64, max: usize) -> Vec<Seq> {
    lanes.take(Duration::from_millis(ms), max).iter().map(|delivery| delivery.state.seq).collect()
}

#[test]
fn a_batch_takes_one_state_of_each_lane_and_none_of_a_lane_in_flight() {
    let mut lanes = lanes_with(OnDeadLetter::Continue, &[(1, 1), (2, 1), (3, 2)]);
    assert_eq!(take(&mut lanes, 0, 10), [1, 3]);
    assert_eq!(take(&mut lanes, 0, 10), [0; 0]);
    assert_eq!(lanes.finish(1, Verdict::Done, at(0)), Settled::Delivered);
    assert_eq!(take(&mut lanes, 0, 10), [2]);
}

#[test]
fn a_busy_lane_costs_the_others_one_place_each_round() {
    let mut lanes = lanes_with(OnDeadLetter::Continue, &[(1, 1), (2, 1), (3, 1), (4, 2), (5, 3)]);
    let mut order = Vec::new();
    while let [seq] = take(&mut lanes, 0, 1)[..] {
        lanes.finish(seq, Verdict::Done, at(0));
        order.push(seq);
    }
    assert_eq!(order, [1, 4, 5, 2, 3]);
}

#[test]
fn pauses_double_up_to_their_bound_and_a_plugins_own_wish_goes_first() {
    let mut lanes =
        Lanes::new(LaneOptions { retries: 9, ..options(OnDeadLetter::Continue) }, &Progress::default());
    lanes.push(state(1, 1));
    let mut now = 0;
    for expected in [100, 200, 300, 300] {
        assert_eq!(take(&mut lanes, now, 1), [1]);
        assert_eq!(
            lanes.finish(1, retry(), at(now)),
            Settled::Retried(Duration::from_millis(now + expected))
        );
        assert_eq!(take(&mut lanes, now + expected - 1, 1), [0; 0]);
        now += expected;
    }
    take(&mut lanes, now, 1);
    let wish = Verdict::Retry { after_ms: Some(5), reason: String::new() };
    assert_eq!(lanes.finish(1, wish, at(now)), Settled::Retried(Duration::from_millis(now + 5)));
    take(&mut lanes, now + 5, 1);
    let forever = Verdict::Retry { after_ms: Some(u64::MAX), reason: String::new() };
    assert_eq!(
        lanes.finish(1, forever, at(now + 5)),
        Settled::Retried(at(now + 5).elapsed + limits::PLUGIN_DELAY)
    );
}

#[test]
fn the_last_try_parks_with_its_error_and_the_lane_goes_on() {
    let mut lanes = lanes_with(OnDeadLetter::Continue, &[(1, 1), (2, 1)]);
    for (ms, attempt) in [(0, 1), (1000, 2), (2000, 3)] {
        assert_eq!(lanes.take(Duration::from_millis(ms), 5)[0].attempt, attempt);
        lanes.finish(1, retry(), at(ms));
    }
    let Letters { parked, revived } = lanes.take_letters();
    assert!(revived.is_empty());
    assert_eq!((parked[0].seq, parked[0].attempts, parked[0].error.as_str()), (1, 3, "not yet"));
    assert_eq!((parked[0].first_ms, parked[0].last_ms), (1_000_000, 1_002_000));
    assert_eq!(lanes.cursor(), 1);
    assert_eq!(take(&mut lanes, 2000, 5), [2]);
}

#[test]
fn a_held_lane_waits_for_its_replay_and_no_other_lane_does() {
    let mut lanes = lanes_with(OnDeadLetter::Hold, &[(1, 1), (2, 1), (3, 2)]);
    assert_eq!(take(&mut lanes, 0, 5), [1, 3]);
    assert_eq!(lanes.finish(1, Verdict::Reject("never".into()), at(0)), Settled::Parked);
    lanes.finish(3, Verdict::Done, at(0));
    assert_eq!(take(&mut lanes, 9000, 5), [0; 0]);

    let letter = lanes.take_letters().parked.remove(0);
    lanes.replay(&letter);
    assert_eq!(take(&mut lanes, 9000, 5), [0; 0], "its state is not here yet");
    assert_eq!(lanes.wanted(10), [1]);
    assert!(lanes.fill(&[1], vec![state(1, 1)]).is_empty());
    let replayed = lanes.take(Duration::from_secs(9), 5);
    assert_eq!((replayed[0].state.seq, replayed[0].attempt), (1, 2));
    lanes.finish(1, Verdict::Done, at(9000));
    assert_eq!(lanes.take_letters().revived, [1]);

    assert_eq!(lanes.wanted(10), [2], "what lay behind a held head was not kept in memory");
    lanes.fill(&[2], vec![state(2, 1)]);
    assert_eq!(take(&mut lanes, 9000, 5), [2]);
}

#[test]
fn a_replay_of_what_the_journal_no_longer_has_frees_its_lane() {
    let mut lanes = lanes_with(OnDeadLetter::Hold, &[(1, 1), (2, 1)]);
    take(&mut lanes, 0, 5);
    lanes.finish(1, Verdict::Reject("never".into()), at(0));
    let letter = lanes.take_letters().parked.remove(0);
    lanes.replay(&letter);
    assert_eq!(lanes.fill(&[1], Vec::new()), [1]);
    assert_eq!(lanes.take_letters().revived, [1]);
    lanes.fill(&[2], vec![state(2, 1)]);
    assert_eq!(take(&mut lanes, 0, 5), [2]);
}

#[test]
fn a_failing_lane_does_not_fill_the_window() {
    let mut lanes = lanes_with(OnDeadLetter::Continue, &[(1, 1)]);
    take(&mut lanes, 0, 1);
    for seq in 2..=7 {
        lanes.push(state(seq, 1));
    }
    assert!(lanes.room() > 0, "only {} states of the lane are held", 3);
    lanes.push(state(8, 2));
    assert_eq!(take(&mut lanes, 0, 5), [8]);
}

fn finished_lanes() -> Lanes {
    let mut lanes = lanes_with(OnDeadLetter::Continue, &[(1, 1), (2, 2)]);
    for seq in take(&mut lanes, 0, 5) {
        lanes.finish(seq, Verdict::Done, at(0));
    }
    lanes
}

fn resyncs(lanes: &Lanes) -> (u64, u64, u64) {
    let stats = lanes.stats();
    (stats.resynced, stats.resync_skipped, stats.resync_failed)
}

#[test]
fn a_resync_hands_a_state_over_again_and_is_in_no_account() {
    let mut lanes = finished_lanes();
    let before = (lanes.stats(), lanes.progress());
    assert!(lanes.resync(state(1, 1)));
    assert!(!lanes.resync(state(1, 1)), "once at a time");
    let batch = lanes.take(Duration::ZERO, 5);
    assert_eq!((batch[0].state.seq, batch[0].attempt, batch[0].resync), (1, 1, true));
    assert_eq!(lanes.finish(1, Verdict::Done, at(0)), Settled::Resynced);
    let stats = LaneStats { resynced: 1, resync_skipped: 1, ..before.0 };
    assert_eq!((lanes.stats(), lanes.progress()), (stats, before.1));
    assert_eq!(lanes.take_letters(), Letters::default());
}

#[test]
fn what_is_still_to_be_handed_over_is_not_resynced() {
    let mut lanes = finished_lanes();
    assert!(!lanes.resync(state(3, 1)), "it was not read yet");
    lanes.push(state(3, 1));
    assert!(!lanes.resync(state(3, 1)), "it waits");
    assert_eq!(take(&mut lanes, 0, 5), [3]);
    assert!(!lanes.resync(state(3, 1)), "it is in flight");
    lanes.finish(3, Verdict::Reject("never".into()), at(0));
    assert!(!lanes.resync(state(3, 1)), "it is parked: an operator decides about it");
    let letter = lanes.take_letters().parked.remove(0);
    lanes.replay(&letter);
    assert!(!lanes.resync(state(3, 1)), "and is taken back");
    assert_eq!(resyncs(&lanes), (0, 5, 0));
}

#[test]
fn a_newer_state_takes_the_place_of_a_resync_that_has_not_begun_or_failed() {
    let mut lanes = finished_lanes();
    lanes.resync(state(1, 1));
    lanes.push(state(3, 1));
    assert_eq!(take(&mut lanes, 0, 5), [3]);
    lanes.finish(3, Verdict::Done, at(0));

    lanes.resync(state(3, 1));
    assert_eq!(take(&mut lanes, 0, 5), [3]);
    lanes.push(state(4, 1));
    assert_eq!(take(&mut lanes, 0, 5), [0; 0], "one at a time, also of a resync");
    assert_eq!(lanes.finish(3, retry(), at(0)), Settled::Superseded);
    assert_eq!(take(&mut lanes, 0, 5), [4]);
    lanes.finish(4, Verdict::Done, at(0));

    lanes.resync(state(4, 1));
    take(&mut lanes, 0, 5);
    assert!(matches!(lanes.finish(4, retry(), at(0)), Settled::Retried(_)));
    lanes.push(state(5, 1));
    assert_eq!(take(&mut lanes, 0, 5), [5], "without the pause of the resync");
    assert_eq!((resyncs(&lanes), lanes.stats().retrying), ((0, 3, 0), 0));
}

#[test]
fn a_resync_that_fails_to_the_last_is_dropped_and_no_dead_letter() {
    let mut lanes = finished_lanes();
    lanes.resync(state(1, 1));
    for ms in [0, 1000] {
        assert_eq!(take(&mut lanes, ms, 5), [1]);
        assert!(matches!(lanes.finish(1, retry(), at(ms)), Settled::Retried(_)));
        assert_eq!((lanes.stats().retrying, lanes.stats().waiting), (0, 0));
    }
    take(&mut lanes, 2000, 5);
    assert_eq!(lanes.finish(1, retry(), at(2000)), Settled::Dropped);
    assert_eq!(lanes.take_letters(), Letters::default());
    assert_eq!((resyncs(&lanes), lanes.stats().dead), ((0, 0, 1), 0));
}

#[test]
fn a_resync_takes_a_share_of_the_window_only() {
    let mut lanes =
        Lanes::new(options(OnDeadLetter::Continue), &Progress { cursor: 9, ..Progress::default() });
    let taken = (1..=9).filter(|seq| lanes.resync(state(*seq, *seq as u8))).count();
    assert_eq!((taken, lanes.resync_room(), lanes.room()), (2, 0, 6));
}

#[test]
fn finishing_what_is_not_in_flight_changes_nothing() {
    let mut lanes = lanes_with(OnDeadLetter::Continue, &[(1, 1)]);
    assert_eq!(lanes.finish(1, Verdict::Done, at(0)), Settled::Unknown);
    lanes.give_back(7);
    assert_eq!((lanes.stats().waiting, lanes.cursor()), (1, 0));
}

#[test]
fn an_error_text_is_cut_at_a_characters_end() {
    assert_eq!(cut("short"), "short");
    let long = "ü".repeat(limits::ERROR_TEXT);
    assert_eq!(cut(&long).len(), limits::ERROR_TEXT);
    assert_eq!(cut(&format!("a{long}")).len(), limits::ERROR_TEXT - 1);
}
