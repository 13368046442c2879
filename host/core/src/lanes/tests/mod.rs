//! Tests of the lanes: order, fairness, rates, dead letters, and the past.

mod model;
use std::sync::Arc;

use super::hand_out::cut;
use super::*;
use crate::config::{OnDeadLetter, RateSpec};
use crate::limits;
use crate::ports::{Delivery, Verdict};
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
    })
}

pub(super) fn options(on_dead_letter: OnDeadLetter) -> LaneOptions {
    LaneOptions {
        plugin: "probe".into(),
        window: 8,
        depth: 3,
        deferred: 6,
        runs: 5,
        retries: 2,
        backoff: Duration::from_millis(100),
        max_backoff: Duration::from_millis(300),
        retry_rate: None,
        rate: None,
        call_rate: None,
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
        lanes.push(state(seq, lane), Duration::ZERO);
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
    let wide = LaneOptions { window: 20, ..options(OnDeadLetter::Continue) };
    let mut lanes = Lanes::new(wide, &Progress::default());
    for (seq, lane) in [(1, 1), (2, 1), (3, 1), (4, 2), (5, 3)] {
        lanes.push(state(seq, lane), Duration::ZERO);
    }
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
    lanes.push(state(1, 1), Duration::ZERO);
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
fn the_last_try_parks_with_its_error_and_the_lane_goes_on_once_that_is_kept() {
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
    assert_eq!(
        take(&mut lanes, 2000, 5),
        [0; 0],
        "after a kill it would be owed again, behind what had passed it"
    );
    lanes.kept([1]);
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
    assert!(lanes.fill(&[1], vec![state(1, 1)], Duration::ZERO).is_empty());
    let replayed = lanes.take(Duration::from_secs(9), 5);
    assert_eq!((replayed[0].state.seq, replayed[0].attempt), (1, 2));
    lanes.finish(1, Verdict::Done, at(9000));
    assert_eq!(lanes.take_letters().revived, [1]);

    assert_eq!(lanes.wanted(10), [2], "what lay behind a held head was not kept in memory");
    lanes.fill(&[2], vec![state(2, 1)], Duration::ZERO);
    assert_eq!(take(&mut lanes, 9000, 5), [2]);
}

#[test]
fn a_replay_of_what_the_journal_no_longer_has_frees_its_lane() {
    let mut lanes = lanes_with(OnDeadLetter::Hold, &[(1, 1), (2, 1)]);
    take(&mut lanes, 0, 5);
    lanes.finish(1, Verdict::Reject("never".into()), at(0));
    let letter = lanes.take_letters().parked.remove(0);
    lanes.replay(&letter);
    assert_eq!(lanes.fill(&[1], Vec::new(), Duration::ZERO), [1]);
    assert_eq!(lanes.take_letters().revived, [1]);
    lanes.fill(&[2], vec![state(2, 1)], Duration::ZERO);
    assert_eq!(take(&mut lanes, 0, 5), [2]);
}

#[test]
fn a_dropped_letter_frees_its_lane_and_stays_in_the_accounts() {
    let mut lanes = lanes_with(OnDeadLetter::Hold, &[(1, 1), (2, 1)]);
    take(&mut lanes, 0, 5);
    lanes.finish(1, Verdict::Reject("never".into()), at(0));
    assert_eq!(take(&mut lanes, 0, 5), [0; 0]);
    lanes.drop_letter(1);
    let stats = lanes.stats();
    assert_eq!((stats.dead, stats.dropped, stats.waiting, lanes.progress().dead), (1, 1, 1, 1));
    lanes.fill(&[2], vec![state(2, 1)], Duration::ZERO);
    assert_eq!(take(&mut lanes, 0, 5), [2]);
}

#[test]
fn a_failing_lane_does_not_fill_the_window() {
    let mut lanes = lanes_with(OnDeadLetter::Continue, &[(1, 1)]);
    take(&mut lanes, 0, 1);
    for seq in 2..=7 {
        lanes.push(state(seq, 1), Duration::ZERO);
    }
    assert!(lanes.room() > 0, "only {} states of the lane are held", 3);
    lanes.push(state(8, 2), Duration::ZERO);
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
    assert!(lanes.resync(state(1, 1), Duration::ZERO));
    assert!(!lanes.resync(state(1, 1), Duration::ZERO), "once at a time");
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
    assert!(!lanes.resync(state(3, 1), Duration::ZERO), "it was not read yet");
    lanes.push(state(3, 1), Duration::ZERO);
    assert!(!lanes.resync(state(3, 1), Duration::ZERO), "it waits");
    assert_eq!(take(&mut lanes, 0, 5), [3]);
    assert!(!lanes.resync(state(3, 1), Duration::ZERO), "it is in flight");
    lanes.finish(3, Verdict::Reject("never".into()), at(0));
    assert!(!lanes.resync(state(3, 1), Duration::ZERO), "it is parked: an operator decides about it");
    let letter = lanes.take_letters().parked.remove(0);
    lanes.replay(&letter);
    assert!(!lanes.resync(state(3, 1), Duration::ZERO), "and is taken back");
    assert_eq!(resyncs(&lanes), (0, 5, 0));
}

#[test]
fn nothing_is_resynced_past_a_letter_that_is_not_durable() {
    let mut lanes = finished_lanes();
    lanes.push(state(3, 1), Duration::ZERO);
    take(&mut lanes, 0, 5);
    lanes.finish(3, Verdict::Reject("never".into()), at(0));
    lanes.read(vec![(state(4, 1), Fit::Filtered)], 4, Duration::ZERO);
    assert!(!lanes.resync(state(4, 1), Duration::ZERO), "killed now, it would come before the letter");
    let letters = lanes.take_letters();
    lanes.kept(letters.parked.iter().map(|letter| letter.seq));
    assert!(lanes.resync(state(4, 1), Duration::ZERO));
}

#[test]
fn a_newer_state_takes_the_place_of_a_resync_that_has_not_begun_or_failed() {
    let mut lanes = finished_lanes();
    lanes.resync(state(1, 1), Duration::ZERO);
    lanes.push(state(3, 1), Duration::ZERO);
    assert_eq!(take(&mut lanes, 0, 5), [3]);
    lanes.finish(3, Verdict::Done, at(0));

    lanes.resync(state(3, 1), Duration::ZERO);
    assert_eq!(take(&mut lanes, 0, 5), [3]);
    lanes.push(state(4, 1), Duration::ZERO);
    assert_eq!(take(&mut lanes, 0, 5), [0; 0], "one at a time, also of a resync");
    assert_eq!(lanes.finish(3, retry(), at(0)), Settled::Superseded);
    assert_eq!(take(&mut lanes, 0, 5), [4]);
    lanes.finish(4, Verdict::Done, at(0));

    lanes.resync(state(4, 1), Duration::ZERO);
    take(&mut lanes, 0, 5);
    assert!(matches!(lanes.finish(4, retry(), at(0)), Settled::Retried(_)));
    lanes.push(state(5, 1), Duration::ZERO);
    assert_eq!(take(&mut lanes, 0, 5), [5], "without the pause of the resync");
    assert_eq!((resyncs(&lanes), lanes.stats().retrying), ((0, 3, 0), 0));
}

#[test]
fn a_resync_that_fails_to_the_last_is_dropped_and_no_dead_letter() {
    let mut lanes = finished_lanes();
    lanes.resync(state(1, 1), Duration::ZERO);
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
    let taken = (1..=9).filter(|seq| lanes.resync(state(*seq, *seq as u8), Duration::ZERO)).count();
    assert_eq!((taken, lanes.resync_room(), lanes.room()), (2, 0, 2));
}

#[test]
fn finishing_what_is_not_in_flight_changes_nothing() {
    let mut lanes = lanes_with(OnDeadLetter::Continue, &[(1, 1)]);
    assert_eq!(lanes.finish(1, Verdict::Done, at(0)), Settled::Unknown);
    lanes.give_back(7, Duration::ZERO);
    assert_eq!((lanes.stats().waiting, lanes.cursor()), (1, 0));
}

#[test]
fn an_error_text_is_cut_at_a_characters_end() {
    assert_eq!(cut("short", 10), "short");
    let long = "ü".repeat(10);
    assert_eq!(cut(&long, 10).len(), 10);
    assert_eq!(cut(&format!("a{long}"), 10).len(), 9);
}

// ---- fairness ----------------------------------------------------------------------------

/// Reads this journal as dispatch does and hands over one state at a time. Returns, for each namespace, after
/// how many hand-overs it was done.
fn hand_over_all(lanes: &mut Lanes, journal: &[Arc<State>], chunk: usize) -> Vec<(String, usize)> {
    let mut through: BTreeMap<String, usize> = BTreeMap::new();
    let newest = journal.len() as Seq;
    lanes.count(newest, newest);
    let wanted = |states: &[Arc<State>]| -> Vec<_> {
        states.iter().map(|state| (Arc::clone(state), Fit::Wanted)).collect()
    };
    for handed in 1.. {
        read_some(lanes, journal, chunk, wanted);
        let held = lanes.shares.loaded + lanes.shares.deferred + lanes.positions.runs();
        let options = &lanes.options;
        assert!(held <= options.window + options.deferred + options.runs + chunk, "memory is bounded");
        let Some(delivery) = lanes.take(Duration::ZERO, 1).pop() else { break };
        lanes.finish(delivery.state.seq, Verdict::Done, at(0));
        through.insert(delivery.state.object.namespace.clone(), handed);
    }
    assert_eq!((lanes.stats().waiting, lanes.stats().delivered, lanes.cursor()), (0, newest, newest));
    through.into_iter().collect()
}

fn read_some(
    lanes: &mut Lanes,
    journal: &[Arc<State>],
    chunk: usize,
    wanted: impl Fn(&[Arc<State>]) -> Vec<(Arc<State>, Fit)>,
) {
    let now = Duration::ZERO;
    let fill = lanes.wanted(chunk);
    if !fill.is_empty() {
        let states = fill.iter().map(|seq| Arc::clone(&journal[*seq as usize - 1])).collect();
        lanes.fill(&fill, states, now);
    }
    if let Some(Behind { from, .. }) = lanes.next_behind(now) {
        let first = from as usize - 1;
        let states = &journal[first..journal.len().min(first + chunk)];
        lanes.catch_up(from, wanted(states), states.last().unwrap().seq, now);
    }
    let (after, behind) = (lanes.through() as usize, lanes.behind());
    if after == journal.len() || lanes.is_scattered() {
    } else if behind.is_empty() {
        let states = &journal[after..journal.len().min(after + chunk)];
        lanes.read(wanted(states), states.last().unwrap().seq, now);
    } else {
        let others = journal[after..].iter().filter(|state| !behind.contains(&state.object.namespace));
        let others: Vec<_> = others.take(chunk).cloned().collect();
        let full = others.len() == chunk;
        let end = others.last().filter(|_| full).map_or(journal.len() as Seq, |state| state.seq);
        lanes.read_outside(wanted(&others), end, now);
    }
}

fn journal_of(states: impl Iterator<Item = (&'static str, u64)>) -> Vec<Arc<State>> {
    let states = states.zip(1..);
    states.map(|((namespace, lane), seq)| state_of(namespace, lane, seq, Change::Present, 0)).collect()
}

fn real_options() -> LaneOptions {
    LaneOptions::new("probe", &crate::config::DeliverySpec::default())
}

#[test]
fn a_hundred_thousand_jobs_of_one_namespace_do_not_starve_the_one_of_another() {
    let crowd = (0..100_000).map(|job| ("crowd", job));
    let journal = journal_of(crowd.chain([("alone", 1)]));
    let mut lanes = Lanes::new(real_options(), &Progress::default());
    let through = hand_over_all(&mut lanes, &journal, 1024);
    assert_eq!(through[1], ("crowd".into(), 100_001));
    assert!(through[0].1 < 10, "{through:?}");
}

#[test]
fn namespaces_that_come_one_after_the_other_are_through_together() {
    let names = ["a", "b", "c", "d"];
    let journal = journal_of((0..20_000).map(|job| (names[job as usize / 5_000], job)));
    let options = LaneOptions { window: 400, deferred: 400, ..real_options() };
    let through = hand_over_all(&mut Lanes::new(options, &Progress::default()), &journal, 64);
    assert!(through.iter().all(|(_, handed)| *handed > 19_000), "{through:?}");
}

#[test]
fn namespaces_that_take_turns_in_the_journal_keep_the_runs_within_their_bound() {
    let names = ["a", "a", "a", "b", "c"];
    let journal = journal_of((0..30_000).map(|job| (names[job as usize % 5], job)));
    let options = LaneOptions { window: 60, deferred: 60, runs: 50, ..real_options() };
    hand_over_all(&mut Lanes::new(options, &Progress::default()), &journal, 32);
}

#[test]
fn a_busy_object_of_a_busy_namespace_is_handed_over_in_order_to_the_end() {
    let journal = journal_of((0..5_000).map(|n| if n % 50 == 0 { ("b", n) } else { ("a", n % 3) }));
    let options = LaneOptions { window: 90, deferred: 60, depth: 8, ..real_options() };
    hand_over_all(&mut Lanes::new(options, &Progress::default()), &journal, 32);
}

// ---- rates -------------------------------------------------------------------------------

fn rate(per_second: u32, burst: u32) -> Option<RateSpec> {
    Some(RateSpec { per_second, burst: Some(burst) })
}

fn busy_lanes(options: LaneOptions) -> Lanes {
    let mut lanes = Lanes::new(LaneOptions { window: 100, ..options }, &Progress::default());
    for seq in 1..=40 {
        lanes.push(state(seq, seq as u8), Duration::ZERO);
    }
    lanes
}

#[test]
fn a_rate_bounds_the_states_and_says_when_there_are_more() {
    let mut lanes = busy_lanes(LaneOptions { rate: rate(10, 5), ..options(OnDeadLetter::Continue) });
    assert_eq!(take(&mut lanes, 0, 64).len(), 5);
    assert_eq!(take(&mut lanes, 99, 64).len(), 0);
    assert_eq!(lanes.next_wake(), Some(Duration::from_millis(100)));
    assert_eq!(take(&mut lanes, 100, 64).len(), 1);
    assert_eq!(take(&mut lanes, 10_000, 64).len(), 5, "a pause saves up no more than the burst");
}

#[test]
fn a_rate_of_calls_does_not_care_what_they_carry() {
    let mut lanes = busy_lanes(LaneOptions { call_rate: rate(2, 1), ..options(OnDeadLetter::Continue) });
    assert_eq!(take(&mut lanes, 0, 30).len(), 30);
    assert_eq!(take(&mut lanes, 0, 30).len(), 0);
    assert_eq!(take(&mut lanes, 500, 30).len(), 10);
    assert_eq!(take(&mut lanes, 2000, 30).len(), 0, "no call, no token");
    assert_eq!(lanes.call_rate.as_ref().unwrap().available(Duration::from_secs(2)), 1);
}

#[test]
fn retries_of_all_lanes_share_a_bucket_but_for_those_that_the_plugin_paces() {
    let pooled = LaneOptions { retry_rate: rate(10, 2), ..options(OnDeadLetter::Continue) };
    let mut lanes = busy_lanes(pooled);
    take(&mut lanes, 0, 64);
    let mut at_ms = |seq, verdict| match lanes.finish(seq, verdict, at(0)) {
        Settled::Retried(at) => at.as_millis(),
        other => panic!("{other:?}"),
    };
    // Each retry has its own pause of 100 ms. From the third on the bucket is slower, but never slower than
    // the longest pause.
    let pauses: Vec<_> = (1..=7).map(|seq| at_ms(seq, retry())).collect();
    assert_eq!(pauses, [100, 100, 100, 200, 300, 300, 300]);
    assert_eq!(at_ms(8, Verdict::Retry { after_ms: Some(7), reason: String::new() }), 7);
}

// ---- only the latest ---------------------------------------------------------------------

fn latest(lanes: &mut Lanes, seq: Seq, change: Change, uid: u8) {
    lanes.read(vec![(state_of("team", 1, seq, change, uid), Fit::Latest)], seq, Duration::ZERO);
}

fn deliver_all(lanes: &mut Lanes) -> Vec<Seq> {
    let mut order = Vec::new();
    while let [seq] = take(lanes, 0, 1)[..] {
        lanes.finish(seq, Verdict::Done, at(0));
        order.push(seq);
    }
    order
}

#[test]
fn of_what_waits_only_the_newest_is_handed_over_and_the_rest_is_counted() {
    let mut lanes = Lanes::new(options(OnDeadLetter::Continue), &Progress::default());
    for seq in 1..=50 {
        latest(&mut lanes, seq, Change::Present, 0);
    }
    assert_eq!(lanes.stats().waiting, 1);
    assert_eq!(deliver_all(&mut lanes), [50]);
    let stats = lanes.stats();
    assert_eq!((stats.delivered, stats.filtered, stats.superseded, stats.waiting), (1, 49, 49, 0));
    assert_eq!((lanes.cursor(), lanes.progress().superseded), (50, 49));
}

#[test]
fn an_end_is_never_swallowed_and_an_object_made_again_keeps_both_ends() {
    let mut lanes = Lanes::new(options(OnDeadLetter::Continue), &Progress::default());
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
    assert_eq!((lanes.stats().superseded, lanes.cursor()), (4, 7));
}

#[test]
fn a_state_in_flight_is_not_taken_back_but_not_tried_again_where_a_newer_one_waits() {
    let mut lanes = Lanes::new(options(OnDeadLetter::Continue), &Progress::default());
    latest(&mut lanes, 1, Change::Present, 0);
    assert_eq!(take(&mut lanes, 0, 1), [1]);
    latest(&mut lanes, 2, Change::Present, 0);
    latest(&mut lanes, 3, Change::Present, 0);
    assert_eq!(lanes.finish(1, retry(), at(0)), Settled::Superseded);
    assert_eq!(take(&mut lanes, 0, 1), [3]);
    assert!(matches!(lanes.finish(3, retry(), at(0)), Settled::Retried(_)));
    latest(&mut lanes, 4, Change::Present, 0);
    assert_eq!(take(&mut lanes, 0, 1), [4], "without the pause of the one before");
    let stats = lanes.stats();
    assert_eq!((stats.filtered, stats.superseded, stats.retrying, stats.waiting), (3, 3, 0, 1));
}

#[test]
fn a_state_in_flight_behind_a_letter_that_was_taken_back_is_not_let_go() {
    let mut lanes = Lanes::new(options(OnDeadLetter::Continue), &Progress::default());
    latest(&mut lanes, 1, Change::Present, 0);
    take(&mut lanes, 0, 1);
    lanes.finish(1, Verdict::Reject("never".into()), at(0));
    lanes.kept([1]);
    latest(&mut lanes, 2, Change::Present, 0);
    assert_eq!(take(&mut lanes, 0, 1), [2]);
    let letter = lanes.take_letters().parked.remove(0);
    lanes.replay(&letter);
    lanes.fill(&[1], vec![state_of("team", 1, 1, Change::Present, 0)], Duration::ZERO);
    latest(&mut lanes, 3, Change::Present, 0);
    assert_eq!(lanes.stats().superseded, 0);
    assert_eq!(lanes.finish(2, Verdict::Done, at(0)), Settled::Delivered);
    assert_eq!(deliver_all(&mut lanes), [1, 3]);
}

// ---- the past beside what is new ---------------------------------------------------------

#[test]
fn the_past_comes_at_its_own_pace_while_what_is_new_passes_it_object_by_object() {
    // Objects 1 to 4 have a past; 5 has none.
    let states = [1, 2, 3, 4, 1, 2, 3, 4, 5, 1, 5, 2];
    let journal = journal_of(states.iter().map(|lane| ("team", *lane)));
    let mut lanes =
        Lanes::new(LaneOptions { window: 40, ..options(OnDeadLetter::Continue) }, &Progress::default());
    lanes.begin_past(&"jobs".into(), 8, RateSpec { per_second: 1, burst: Some(1) });
    lanes.count(12, 12);
    let wanted = |states: &[Arc<State>]| {
        states.iter().map(|state| (Arc::clone(state), Fit::Wanted)).collect::<Vec<_>>()
    };
    lanes.read(wanted(&journal), 12, Duration::ZERO);
    assert_eq!((lanes.stats().waiting, take(&mut lanes, 0, 9)), (12, vec![9]));
    lanes.finish(9, Verdict::Done, at(0));
    let mut order = vec![9];
    for second in 0..20 {
        let now = Duration::from_secs(second);
        while let Some(Behind { from, limit }) = lanes.next_behind(now) {
            let end = journal.len().min(from as usize - 1 + limit);
            lanes.catch_up(from, wanted(&journal[from as usize - 1..end]), end as Seq, now);
        }
        for seq in take(&mut lanes, second * 1000, 9) {
            lanes.finish(seq, Verdict::Done, at(second * 1000));
            order.push(seq);
        }
        assert!(order.len() <= 3 + second as usize, "{order:?} after {second} s");
    }
    assert_eq!(order, [9, 11, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12]);
    assert_eq!((lanes.stats().waiting, lanes.cursor(), lanes.pasts.len()), (0, 12, 0));
}

#[test]
fn a_dead_letter_tells_of_each_of_its_tries_also_after_a_replay() {
    let mut lanes = lanes_with(OnDeadLetter::Continue, &[(1, 1)]);
    for ms in [0, 1000, 2000] {
        take(&mut lanes, ms, 1);
        lanes.finish(1, retry(), at(ms + 7));
    }
    let letter = lanes.take_letters().parked.remove(0);
    let tries: Vec<_> =
        letter.tries.iter().map(|tried| (tried.attempt, tried.at_ms, tried.took_ms)).collect();
    assert_eq!(tries, [(1, 1_000_007, 7), (2, 1_001_007, 7), (3, 1_002_007, 7)]);
    lanes.replay(&letter);
    lanes.fill(&[1], vec![state(1, 1)], Duration::ZERO);
    take(&mut lanes, 3000, 1);
    lanes.finish(1, Verdict::Reject("never".into()), at(3000));
    let letter = lanes.take_letters().parked.remove(0);
    assert_eq!((letter.attempts, letter.tries.len()), (4, 4));
    assert_eq!((letter.tries[3].attempt, letter.tries[3].error.as_str()), (4, "never"));
}

#[test]
fn the_queue_tells_how_long_states_waited_and_worked() {
    let mut lanes = lanes_with(OnDeadLetter::Continue, &[(1, 1), (2, 2)]);
    let batch: Vec<Delivery> = lanes.take(Duration::from_secs(3), 1);
    assert_eq!(batch.len(), 1);
    let queue = lanes.queue();
    assert_eq!((queue.depth, queue.adds, queue.in_flight), (1, 2, 1));
    assert_eq!(
        (queue.longest(Duration::from_secs(5)), queue.waited.sum),
        (Duration::from_secs(2), Duration::from_secs(3))
    );
    lanes.finish(1, retry(), at(7000));
    take(&mut lanes, 7100, 5);
    let queue = lanes.queue();
    assert_eq!((queue.retries, queue.adds, queue.depth, queue.worked.sum), (1, 3, 0, Duration::from_secs(4)));
}
