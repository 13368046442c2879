//! Tests of turns and rates: who goes next, and how fast, also in the past.

use super::*;

/// Reads this journal as dispatch does and hands over one state at a time. Returns, for each namespace, after
/// how many hand-overs it was done.
fn hand_over_all(lanes: &mut Lanes, journal: &[Arc<State>], chunk: usize) -> Vec<(String, usize)> {
    let mut through: BTreeMap<String, usize> = BTreeMap::new();
    let newest = journal.len() as Seq;
    lanes.count(newest, newest);
    let wanted = |states: &[Arc<State>]| -> Vec<_> {
        states.iter().map(|state| (Arc::clone(state), SubscriptionFit::Wanted)).collect()
    };
    for handed in 1.. {
        read_some(lanes, journal, chunk, wanted);
        let held = lanes.shares.loaded + lanes.shares.deferred + lanes.positions.count_deferred_runs();
        let options = &lanes.options;
        assert!(held <= options.window + options.deferred + options.runs + chunk, "memory is bounded");
        let Some(delivery) = lanes.take(Duration::ZERO, 1).pop() else { break };
        lanes.apply_verdict(delivery.state.seq, Verdict::Done, at(0));
        through.insert(delivery.state.object.namespace.clone(), handed);
    }
    assert_eq!(
        (lanes.lane_stats().waiting, lanes.lane_stats().delivered, lanes.cursor()),
        (0, newest, newest)
    );
    through.into_iter().collect()
}

fn read_some(
    lanes: &mut Lanes,
    journal: &[Arc<State>],
    chunk: usize,
    wanted: impl Fn(&[Arc<State>]) -> Vec<(Arc<State>, SubscriptionFit)>,
) {
    let now = Duration::ZERO;
    let fill = lanes.wanted_positions(chunk);
    if !fill.is_empty() {
        let states = fill.iter().map(|seq| Arc::clone(&journal[*seq as usize - 1])).collect();
        lanes.fill_wanted(&fill, states, now);
    }
    if let Some(CatchUpRange { from, .. }) = lanes.next_behind(now) {
        let first = from as usize - 1;
        let states = &journal[first..journal.len().min(first + chunk)];
        lanes.take_in_deferred(from, wanted(states), states.last().unwrap().seq, now);
    }
    let (after, behind) = (lanes.last_read() as usize, lanes.namespaces_behind());
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

pub(super) fn journal_of(states: impl Iterator<Item = (&'static str, u64)>) -> Vec<Arc<State>> {
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
    let mut lanes = Lanes::new(real_options(), &PluginProgress::default());
    let through = hand_over_all(&mut lanes, &journal, 1024);
    assert_eq!(through[1], ("crowd".into(), 100_001));
    assert!(through[0].1 < 10, "{through:?}");
}

#[test]
fn namespaces_that_come_one_after_the_other_are_through_together() {
    let names = ["a", "b", "c", "d"];
    let journal = journal_of((0..20_000).map(|job| (names[job as usize / 5_000], job)));
    let options = LaneOptions { window: 400, deferred: 400, ..real_options() };
    let through = hand_over_all(&mut Lanes::new(options, &PluginProgress::default()), &journal, 64);
    assert!(through.iter().all(|(_, handed)| *handed > 19_000), "{through:?}");
}

#[test]
fn namespaces_that_take_turns_in_the_journal_keep_the_runs_within_their_bound() {
    let names = ["a", "a", "a", "b", "c"];
    let journal = journal_of((0..30_000).map(|job| (names[job as usize % 5], job)));
    let options = LaneOptions { window: 60, deferred: 60, runs: 50, ..real_options() };
    hand_over_all(&mut Lanes::new(options, &PluginProgress::default()), &journal, 32);
}

#[test]
fn a_busy_object_of_a_busy_namespace_is_handed_over_in_order_to_the_end() {
    let journal = journal_of((0..5_000).map(|n| if n % 50 == 0 { ("b", n) } else { ("a", n % 3) }));
    let options = LaneOptions { window: 90, deferred: 60, depth: 8, ..real_options() };
    hand_over_all(&mut Lanes::new(options, &PluginProgress::default()), &journal, 32);
}

fn rate(per_second: u32, burst: u32) -> Option<RateSpec> {
    Some(RateSpec { per_second, burst: Some(burst) })
}

fn busy_lanes(options: LaneOptions) -> Lanes {
    let mut lanes = Lanes::new(LaneOptions { window: 100, ..options }, &PluginProgress::default());
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
    assert_eq!(lanes.call_rate.as_ref().unwrap().available_tokens(Duration::from_secs(2)), 1);
}

#[test]
fn retries_of_all_lanes_share_a_bucket_but_for_those_that_the_plugin_paces() {
    let pooled = LaneOptions { retry_rate: rate(10, 2), ..options(OnDeadLetter::Continue) };
    let mut lanes = busy_lanes(pooled);
    take(&mut lanes, 0, 64);
    let mut at_ms = |seq, verdict| match lanes.apply_verdict(seq, verdict, at(0)) {
        SettledAs::Retried(at) => at.as_millis(),
        other => panic!("{other:?}"),
    };
    // Each retry has its own pause of 100 ms. From the third on the bucket is slower, but never slower than
    // the longest pause.
    let pauses: Vec<_> = (1..=7).map(|seq| at_ms(seq, retry())).collect();
    assert_eq!(pauses, [100, 100, 100, 200, 300, 300, 300]);
    assert_eq!(at_ms(8, Verdict::Retry { after_ms: Some(7), reason: String::new() }), 7);
}

#[test]
fn the_past_comes_at_its_own_pace_while_what_is_new_passes_it_object_by_object() {
    // Objects 1 to 4 have a past; 5 has none.
    let states = [1, 2, 3, 4, 1, 2, 3, 4, 5, 1, 5, 2];
    let journal = journal_of(states.iter().map(|lane| ("team", *lane)));
    let mut lanes =
        Lanes::new(LaneOptions { window: 40, ..options(OnDeadLetter::Continue) }, &PluginProgress::default());
    lanes.begin_past(&"jobs".into(), 8, RateSpec { per_second: 1, burst: Some(1) });
    lanes.count(12, 12);
    let wanted = |states: &[Arc<State>]| {
        states.iter().map(|state| (Arc::clone(state), SubscriptionFit::Wanted)).collect::<Vec<_>>()
    };
    lanes.read(wanted(&journal), 12, Duration::ZERO);
    assert_eq!((lanes.lane_stats().waiting, take(&mut lanes, 0, 9)), (12, vec![9]));
    lanes.apply_verdict(9, Verdict::Done, at(0));
    let mut order = vec![9];
    for second in 0..20 {
        let now = Duration::from_secs(second);
        while let Some(CatchUpRange { from, limit }) = lanes.next_behind(now) {
            let end = journal.len().min(from as usize - 1 + limit);
            lanes.take_in_deferred(from, wanted(&journal[from as usize - 1..end]), end as Seq, now);
        }
        for seq in take(&mut lanes, second * 1000, 9) {
            lanes.apply_verdict(seq, Verdict::Done, at(second * 1000));
            order.push(seq);
        }
        assert!(order.len() <= 3 + second as usize, "{order:?} after {second} s");
    }
    assert_eq!(order, [9, 11, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12]);
    assert_eq!((lanes.lane_stats().waiting, lanes.cursor(), lanes.pasts.len()), (0, 12, 0));
}
