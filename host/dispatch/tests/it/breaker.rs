//! Tests of plugins that fail, and of sinks that are down.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kubewitness_core::ports::{CallError, StateDelivery, Verdict};

use crate::fixtures::journal::FixtureJournal;
use crate::fixtures::plugin::{FixturePlugin, done};
use crate::life::retry;
use crate::{options, start};

fn trap() -> CallError {
    CallError::Trap("unreachable".into())
}

fn all_done(batch: &[StateDelivery]) -> Result<Vec<Verdict>, CallError> {
    Ok(vec![Verdict::Done; batch.len()])
}

#[tokio::test(start_paused = true)]
async fn splitting_finds_the_poison_states_and_spares_the_rest() {
    let journal = FixtureJournal::new(1, 0);
    journal.append(0..640);
    let is_poison = |seq: u64| seq.is_multiple_of(100);
    let plugin = FixturePlugin::new("p", &journal, move |batch| {
        let poisoned = batch.iter().any(|delivery| is_poison(delivery.state.seq));
        (1, if poisoned { Err(trap()) } else { all_done(batch) })
    });
    let running = start(options("p"), &journal, &plugin);
    let stats = running.until("all but the poison", |stats| stats.delivered == 634).await;
    assert_eq!(
        (stats.waiting, stats.retrying, stats.dead),
        (6, 6, 0),
        "a try is one, however often it was split"
    );
    assert!(!stats.open, "six poison states say nothing about the plugin");
    let stats = running.until_idle().await;
    assert_eq!((stats.dead, stats.last_error.as_deref()), (6, Some("the plugin trapped: unreachable")));
    assert!(plugin.effects().values().all(|times| *times == 1));
    running.end().await.unwrap();
    assert_eq!(journal.dead("p"), [100, 200, 300, 400, 500, 600]);
    journal.with(|kept| assert!(kept.letters.values().all(|letter| letter.attempts == 9)));
}

#[tokio::test(start_paused = true)]
async fn a_wrong_number_of_verdicts_is_the_plugins_fault() {
    let journal = FixtureJournal::new(1, 0);
    journal.append(0..8);
    let plugin = FixturePlugin::new("p", &journal, |batch| (1, Ok(vec![Verdict::Done; batch.len().min(2)])));
    let running = start(options("p"), &journal, &plugin);
    assert_eq!(running.until_idle().await.delivered, 8);
    assert!(plugin.with(|seen| seen.calls) > 4);
}

#[tokio::test(start_paused = true)]
async fn a_sink_that_is_down_for_an_hour_costs_no_letter_no_order_and_no_other_plugin() {
    let journal = FixtureJournal::new(1, 1);
    journal.append((0..20_000).map(|n| n % 700));
    let is_up = Arc::new(AtomicBool::new(false));
    let up = is_up.clone();
    let plugin = FixturePlugin::new("p", &journal, move |batch| {
        let down = || Err(CallError::Unavailable("connection refused".into()));
        (1, if up.load(Ordering::Relaxed) { all_done(batch) } else { down() })
    });
    let other = FixturePlugin::new("other", &journal, done);
    let (running, beside) =
        (start(options("p"), &journal, &plugin), start(options("other"), &journal, &other));
    beside.until_idle().await;
    tokio::time::sleep(Duration::from_secs(3600)).await;
    let stats = running.stats();
    assert!(stats.open && stats.consecutive_failures > 10);
    assert_eq!((stats.dead, stats.retrying, stats.waiting), (0, 0, 20_000));
    assert_eq!(stats.last_error.as_deref(), Some("connection refused"));
    let probes = plugin.with(|seen| seen.calls);
    assert!(probes < 400, "{probes} calls in an hour to a sink that is down");

    is_up.store(true, Ordering::Relaxed);
    let recovered = tokio::time::Instant::now();
    let stats = running.until_idle().await;
    assert!(recovered.elapsed() < Duration::from_secs(15), "found within a probe, then at full speed");
    assert_eq!((stats.delivered, stats.last_error, stats.consecutive_failures), (20_000, None, 0));
    plugin.with(|seen| {
        assert!(seen.applied.values().all(|applied| applied.is_sorted()));
        assert!(seen.handed.iter().all(|(_, attempt)| *attempt == 1), "no try was counted");
    });
}

#[tokio::test(start_paused = true)]
async fn a_broken_plugin_does_not_turn_its_backlog_into_dead_letters() {
    let journal = FixtureJournal::new(1, 0);
    journal.append((0..5_000).map(|n| n % 1000));
    let plugin = FixturePlugin::new("p", &journal, |_| (100, Err(trap())));
    let running = start(options("p"), &journal, &plugin);
    tokio::time::sleep(Duration::from_secs(3600)).await;
    let stats = running.stats();
    assert!(stats.open);
    assert_eq!(stats.dead, 0, "probes take turns over the objects");
    assert!(plugin.with(|seen| seen.calls) < 500);
}

#[tokio::test(start_paused = true)]
async fn a_plugin_that_rejects_everything_does_not_turn_its_backlog_into_dead_letters() {
    let journal = FixtureJournal::new(1, 0);
    journal.append((0..5_000).map(|n| n % 1000));
    let is_mended = Arc::new(AtomicBool::new(false));
    let mended = is_mended.clone();
    let plugin = FixturePlugin::new("p", &journal, move |batch| {
        let verdict =
            if mended.load(Ordering::Relaxed) { Verdict::Done } else { Verdict::Reject("NOT NULL".into()) };
        (1, Ok(vec![verdict; batch.len()]))
    });
    let running = start(options("p"), &journal, &plugin);
    tokio::time::sleep(Duration::from_secs(3600)).await;
    let stats = running.stats();
    assert_eq!((stats.open, stats.dead, stats.waiting), (true, 15, 4_985), "the rest waits");
    assert_eq!(stats.last_error.as_deref(), Some("NOT NULL"));
    assert!(plugin.with(|seen| seen.calls) < 500, "it is only probed");

    is_mended.store(true, Ordering::Relaxed);
    let recovered = tokio::time::Instant::now();
    let stats = running.until_idle().await;
    assert!(recovered.elapsed() < Duration::from_secs(15), "found within a probe, then at full speed");
    assert_eq!((stats.delivered, stats.dead), (4_985, 15));
    plugin.with(|seen| assert!(seen.applied.values().all(|applied| applied.is_sorted())));
}

#[tokio::test(start_paused = true)]
async fn states_behind_many_rejected_ones_are_reached_while_the_breaker_is_open() {
    let journal = FixtureJournal::new(1, 0);
    journal.append(0..100);
    let plugin = FixturePlugin::new("p", &journal, |batch| {
        let is_good = |seq| seq == 100;
        let verdict = |seq| if is_good(seq) { Verdict::Done } else { Verdict::Reject("never".into()) };
        (1, Ok(batch.iter().map(|delivery| verdict(delivery.state.seq)).collect()))
    });
    let mut options = options("p");
    (options.concurrency, options.delivery.batch) = (1, 1);
    let running = start(options, &journal, &plugin);
    running.until("the good one is delivered", |stats| stats.delivered == 1).await;
}

#[tokio::test(start_paused = true)]
async fn a_batch_with_states_that_are_not_done_is_taken_apart_at_the_price_of_a_few_calls() {
    let journal = FixtureJournal::new(1, 0);
    journal.append(0..64);
    let plugin = FixturePlugin::new("p", &journal, |batch| {
        let verdict = |delivery: &StateDelivery| match (delivery.state.seq, delivery.attempt) {
            (10, _) => Verdict::Reject("never".into()),
            (20 | 30, 1) => retry(None),
            _ => Verdict::Done,
        };
        (1, Ok(batch.iter().map(verdict).collect()))
    });
    let running = start(options("p"), &journal, &plugin);
    let stats = running.until_idle().await;
    assert_eq!((stats.delivered, stats.dead), (63, 1));
    let calls = plugin.with(|seen| seen.calls);
    assert!(calls <= 6, "the batch, three parts, and two retries: {calls}");
    assert!(plugin.effects().values().all(|times| *times == 1), "no effect came twice");
    running.end().await.unwrap();
    assert_eq!(journal.dead("p"), [10]);
    journal.with(|kept| assert!(kept.letters.values().all(|letter| letter.attempts == 1)));
}

#[tokio::test(start_paused = true)]
async fn a_sink_that_a_plugin_reports_by_retries_is_waited_for() {
    let journal = FixtureJournal::new(1, 0);
    journal.append(0..5_000);
    let is_up = Arc::new(AtomicBool::new(false));
    let up = is_up.clone();
    let plugin = FixturePlugin::new("p", &journal, move |batch| {
        let verdict = if up.load(Ordering::Relaxed) { Verdict::Done } else { retry(None) };
        (1, Ok(vec![verdict; batch.len()]))
    });
    let running = start(options("p"), &journal, &plugin);
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(running.stats().dead, 0);
    is_up.store(true, Ordering::Relaxed);
    let recovered = tokio::time::Instant::now();
    running.until_idle().await;
    assert!(recovered.elapsed() < Duration::from_secs(70), "within the longest pause of a lane");
}

#[tokio::test(start_paused = true)]
async fn a_plugins_own_delay_is_honoured() {
    let journal = FixtureJournal::new(1, 0);
    journal.append([1]);
    let first = Arc::new(std::sync::Mutex::new(HashMap::new()));
    let plugin = FixturePlugin::new("p", &journal, move |batch| {
        let now = tokio::time::Instant::now();
        let since = *first.lock().unwrap().entry(batch[0].state.seq).or_insert(now);
        let verdict = if batch[0].attempt == 1 { retry(Some(7_000)) } else { Verdict::Done };
        assert!(batch[0].attempt == 1 || now - since >= Duration::from_secs(7));
        (0, Ok(vec![verdict]))
    });
    let running = start(options("p"), &journal, &plugin);
    assert_eq!(running.until_idle().await.delivered, 1);
    assert_eq!(plugin.with(|seen| seen.handed.clone()), [(1, 1), (1, 2)]);
}
