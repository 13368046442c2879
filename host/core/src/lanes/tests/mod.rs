//! Tests of the lanes: order, fairness, rates, dead letters, and the past.

mod latest;
mod model;
mod owed;
mod resync;
mod turns;

use std::sync::Arc;

use super::hand_out::cut_text;
use super::*;
use crate::config::{OnDeadLetter, RateSpec};
use crate::limits;
use crate::ports::{StateDelivery, Verdict};
use crate::state::{Change, ObjectRef, State, StateId, Status};
use crate::version::Version;

pub(super) fn state(seq: Seq, lane: u8) -> Arc<State> {
    state_of("team", lane.into(), seq, Change::Present, 0)
}

pub(super) fn state_of(namespace: &str, lane: u64, seq: Seq, change: Change, uid: u8) -> Arc<State> {
    let object = ObjectRef {
        namespace: namespace.into(),
        name: format!("job-{lane}"),
        uid: format!("{lane}-{uid}"),
        ..ObjectRef::default()
    };
    Arc::new(State {
        id: StateId::parse(&format!("jobs/0/{lane}/{seq}")),
        seq,
        source: "jobs".into(),
        epoch: 0,
        change,
        object: Arc::new(object),
        owner: None,
        resource_version: Version::new(&seq.to_string()),
        status: Arc::new(Status::default()),
        previous: None,
        observed_ms: seq * 10,
        late: false,
        quotes_none_under: None,
    })
}

pub(super) fn options(on_dead_letter: OnDeadLetter) -> LaneOptions {
    LaneOptions {
        plugin: "probe".into(),
        window: 8,
        depth: 3,
        deferred: 6,
        runs: 5,
        rows: usize::MAX,
        retries: 2,
        backoff: Duration::from_millis(100),
        max_backoff: Duration::from_millis(300),
        retry_rate: None,
        rate: None,
        call_rate: None,
        on_dead_letter,
        owe_after: Duration::from_secs(1),
    }
}

pub(super) fn at(ms: u64) -> ClockReading {
    ClockReading { elapsed: Duration::from_millis(ms), wall_ms: 1_000_000 + ms }
}

fn retry() -> Verdict {
    Verdict::Retry { after_ms: None, reason: "not yet".into() }
}

fn lanes_with(on_dead_letter: OnDeadLetter, states: &[(Seq, u8)]) -> Lanes {
    let mut lanes = Lanes::new(options(on_dead_letter), &PluginProgress::default());
    for &(seq, lane) in states {
        lanes.push(state(seq, lane), Duration::ZERO);
    }
    lanes
}

fn take(lanes: &mut Lanes, ms: u64, max: usize) -> Vec<Seq> {
    lanes.take(Duration::from_millis(ms), max).iter().map(|delivery| delivery.state.seq).collect()
}

/// Saves what changed, as a dispatcher does.
fn saved(lanes: &mut Lanes) -> LetterChanges {
    let changes = lanes.take_letters();
    lanes.letters_saved(changes.parked.iter().map(|letter| letter.seq));
    let letters = changes.parked.iter().map(|letter| letter.seq);
    lanes.note_saved_rows(changes.owed.clone(), letters, changes.revived.iter().copied());
    changes
}

/// Reads the rows of these states back.
fn bring_back(lanes: &mut Lanes, states: &[(Seq, u8)]) {
    let from = lanes.next_owed().expect("a lane goes on");
    let states = states.iter().map(|&(seq, lane)| (state(seq, lane), SubscriptionFit::Wanted)).collect();
    assert_eq!(lanes.return_owed(from, states, None, Duration::ZERO), 0);
}

#[test]
fn a_batch_takes_one_state_of_each_lane_and_none_of_a_lane_in_flight() {
    let mut lanes = lanes_with(OnDeadLetter::Continue, &[(1, 1), (2, 1), (3, 2)]);
    assert_eq!(take(&mut lanes, 0, 10), [1, 3]);
    assert_eq!(take(&mut lanes, 0, 10), [0; 0]);
    assert_eq!(lanes.apply_verdict(1, Verdict::Done, at(0)), SettledAs::Delivered);
    assert_eq!(take(&mut lanes, 0, 10), [2]);
}

#[test]
fn a_busy_lane_costs_the_others_one_place_each_round() {
    let wide = LaneOptions { window: 20, ..options(OnDeadLetter::Continue) };
    let mut lanes = Lanes::new(wide, &PluginProgress::default());
    for (seq, lane) in [(1, 1), (2, 1), (3, 1), (4, 2), (5, 3)] {
        lanes.push(state(seq, lane), Duration::ZERO);
    }
    let mut order = Vec::new();
    while let [seq] = take(&mut lanes, 0, 1)[..] {
        lanes.apply_verdict(seq, Verdict::Done, at(0));
        order.push(seq);
    }
    assert_eq!(order, [1, 4, 5, 2, 3]);
}

#[test]
fn pauses_double_up_to_their_bound_and_a_plugins_own_wish_goes_first() {
    let mut lanes =
        Lanes::new(LaneOptions { retries: 9, ..options(OnDeadLetter::Continue) }, &PluginProgress::default());
    lanes.push(state(1, 1), Duration::ZERO);
    let mut now = 0;
    for expected in [100, 200, 300, 300] {
        assert_eq!(take(&mut lanes, now, 1), [1]);
        assert_eq!(
            lanes.apply_verdict(1, retry(), at(now)),
            SettledAs::Retried(Duration::from_millis(now + expected))
        );
        assert_eq!(take(&mut lanes, now + expected - 1, 1), [0; 0]);
        now += expected;
    }
    take(&mut lanes, now, 1);
    let wish = Verdict::Retry { after_ms: Some(5), reason: String::new() };
    assert_eq!(lanes.apply_verdict(1, wish, at(now)), SettledAs::Retried(Duration::from_millis(now + 5)));
    take(&mut lanes, now + 5, 1);
    let forever = Verdict::Retry { after_ms: Some(u64::MAX), reason: String::new() };
    assert_eq!(
        lanes.apply_verdict(1, forever, at(now + 5)),
        SettledAs::Retried(at(now + 5).elapsed + limits::PLUGIN_DELAY)
    );
}

#[test]
fn the_last_try_parks_with_its_error_and_the_lane_goes_on_once_that_is_kept() {
    let mut lanes = lanes_with(OnDeadLetter::Continue, &[(1, 1), (2, 1)]);
    for (ms, attempt) in [(0, 1), (1000, 2), (2000, 3)] {
        assert_eq!(lanes.take(Duration::from_millis(ms), 5)[0].attempt, attempt);
        lanes.apply_verdict(1, retry(), at(ms));
    }
    let LetterChanges { parked, revived, .. } = lanes.take_letters();
    assert!(revived.is_empty());
    assert_eq!((parked[0].seq, parked[0].attempts, parked[0].error.as_str()), (1, 3, "not yet"));
    assert_eq!((parked[0].first_ms, parked[0].last_ms), (1_000_000, 1_002_000));
    assert_eq!(lanes.cursor(), 1);
    assert_eq!(
        take(&mut lanes, 2000, 5),
        [0; 0],
        "after a kill it would be owed again, behind what had passed it"
    );
    lanes.letters_saved([1]);
    assert_eq!(take(&mut lanes, 2000, 5), [2]);
}

#[test]
fn a_held_lane_waits_for_its_replay_and_no_other_lane_does() {
    let mut lanes = lanes_with(OnDeadLetter::Hold, &[(1, 1), (2, 1), (3, 2)]);
    assert_eq!(take(&mut lanes, 0, 5), [1, 3]);
    assert_eq!(lanes.apply_verdict(1, Verdict::Reject("never".into()), at(0)), SettledAs::Parked);
    lanes.apply_verdict(3, Verdict::Done, at(0));
    assert_eq!(take(&mut lanes, 9000, 5), [0; 0]);

    let letter = saved(&mut lanes).parked.remove(0);
    lanes.replay_letter(&letter);
    assert_eq!(take(&mut lanes, 9000, 5), [0; 0], "its state is not here yet");
    assert_eq!(lanes.wanted_positions(10), [1]);
    assert!(lanes.fill_wanted(&[1], vec![state(1, 1)], Duration::ZERO).is_empty());
    let replayed = lanes.take(Duration::from_secs(9), 5);
    assert_eq!((replayed[0].state.seq, replayed[0].attempt), (1, 2));
    lanes.apply_verdict(1, Verdict::Done, at(9000));
    assert_eq!(lanes.take_letters().revived, [1]);

    assert_eq!(lanes.next_owed(), Some(2), "what lay behind a held head was not kept in memory");
    bring_back(&mut lanes, &[(2, 1)]);
    assert_eq!(take(&mut lanes, 9000, 5), [2]);
}

#[test]
fn a_replay_of_what_the_journal_no_longer_has_frees_its_lane() {
    let mut lanes = lanes_with(OnDeadLetter::Hold, &[(1, 1), (2, 1)]);
    take(&mut lanes, 0, 5);
    lanes.apply_verdict(1, Verdict::Reject("never".into()), at(0));
    let letter = saved(&mut lanes).parked.remove(0);
    lanes.replay_letter(&letter);
    assert_eq!(lanes.fill_wanted(&[1], Vec::new(), Duration::ZERO), [1]);
    assert_eq!(lanes.take_letters().revived, [1]);
    bring_back(&mut lanes, &[(2, 1)]);
    assert_eq!(take(&mut lanes, 0, 5), [2]);
}

#[test]
fn a_dropped_letter_frees_its_lane_and_stays_in_the_accounts() {
    let mut lanes = lanes_with(OnDeadLetter::Hold, &[(1, 1), (2, 1)]);
    take(&mut lanes, 0, 5);
    lanes.apply_verdict(1, Verdict::Reject("never".into()), at(0));
    assert_eq!(take(&mut lanes, 0, 5), [0; 0]);
    lanes.drop_letter(1);
    let stats = lanes.lane_stats();
    assert_eq!((stats.dead, stats.dropped, stats.waiting, lanes.progress_to_save().dead), (1, 1, 1, 1));
    saved(&mut lanes);
    bring_back(&mut lanes, &[(2, 1)]);
    assert_eq!(take(&mut lanes, 0, 5), [2]);
}

#[test]
fn letters_that_retention_removed_stay_in_the_accounts() {
    let progress = PluginProgress { cursor: 9, dead: 4, removed_letters: 3, ..PluginProgress::default() };
    let mut lanes = Lanes::new(options(OnDeadLetter::Continue), &progress);
    lanes.add_parked(9);
    let stats = lanes.lane_stats();
    assert_eq!((stats.dead, stats.dropped, lanes.progress_to_save().dead), (4, 3, 4));
}

#[test]
fn a_failing_lane_does_not_fill_the_window() {
    let mut lanes = lanes_with(OnDeadLetter::Continue, &[(1, 1)]);
    take(&mut lanes, 0, 1);
    for seq in 2..=7 {
        lanes.push(state(seq, 1), Duration::ZERO);
    }
    assert!(lanes.room_for_states() > 0, "only {} states of the lane are held", 3);
    lanes.push(state(8, 2), Duration::ZERO);
    assert_eq!(take(&mut lanes, 0, 5), [8]);
}

#[test]
fn finishing_what_is_not_in_flight_changes_nothing() {
    let mut lanes = lanes_with(OnDeadLetter::Continue, &[(1, 1)]);
    assert_eq!(lanes.apply_verdict(1, Verdict::Done, at(0)), SettledAs::Unknown);
    lanes.return_untried(7, Duration::ZERO);
    assert_eq!((lanes.lane_stats().waiting, lanes.cursor()), (1, 0));
}

#[test]
fn an_error_text_is_cut_at_a_characters_end() {
    assert_eq!(cut_text("short", 10), "short");
    let long = "ü".repeat(10);
    assert_eq!(cut_text(&long, 10).len(), 10);
    assert_eq!(cut_text(&format!("a{long}"), 10).len(), 9);
}

#[test]
fn a_dead_letter_tells_of_each_of_its_tries_also_after_a_replay() {
    let mut lanes = lanes_with(OnDeadLetter::Continue, &[(1, 1)]);
    for ms in [0, 1000, 2000] {
        take(&mut lanes, ms, 1);
        lanes.apply_verdict(1, retry(), at(ms + 7));
    }
    let letter = lanes.take_letters().parked.remove(0);
    let tries: Vec<_> =
        letter.tries.iter().map(|tried| (tried.attempt, tried.at_ms, tried.took_ms)).collect();
    assert_eq!(tries, [(1, 1_000_007, 7), (2, 1_001_007, 7), (3, 1_002_007, 7)]);
    lanes.replay_letter(&letter);
    lanes.fill_wanted(&[1], vec![state(1, 1)], Duration::ZERO);
    take(&mut lanes, 3000, 1);
    lanes.apply_verdict(1, Verdict::Reject("never".into()), at(3000));
    let letter = lanes.take_letters().parked.remove(0);
    assert_eq!((letter.attempts, letter.tries.len()), (4, 4));
    assert_eq!((letter.tries[3].attempt, letter.tries[3].error.as_str()), (4, "never"));
}

#[test]
fn the_queue_tells_how_long_states_waited_and_worked() {
    let mut lanes = lanes_with(OnDeadLetter::Continue, &[(1, 1), (2, 2)]);
    let batch: Vec<StateDelivery> = lanes.take(Duration::from_secs(3), 1);
    assert_eq!(batch.len(), 1);
    let queue = lanes.queue_stats();
    assert_eq!((queue.depth, queue.adds, queue.in_flight), (1, 2, 1));
    assert_eq!(
        (queue.longest_time(Duration::from_secs(5)), queue.waited.sum),
        (Duration::from_secs(2), Duration::from_secs(3))
    );
    lanes.apply_verdict(1, retry(), at(7000));
    take(&mut lanes, 7100, 5);
    let queue = lanes.queue_stats();
    assert_eq!((queue.retries, queue.adds, queue.depth, queue.worked.sum), (1, 3, 0, Duration::from_secs(4)));
}
