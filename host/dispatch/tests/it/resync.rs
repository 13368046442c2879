//! Tests of resyncs: which states are handed over once more, and that nothing else changes.

use std::sync::Arc;
use std::time::Duration;

use kubewitness_core::Seq;
use kubewitness_core::config::{Mode, Start};
use kubewitness_core::ports::{CallError, Verdict};
use kubewitness_dispatch::DispatchStats;

use crate::fixtures::journal::FixtureJournal;
use crate::fixtures::plugin::{FixturePlugin, done};
use crate::{RunningDispatcher, options, start, subscribe};

/// The states that resyncs handed over.
fn resynced(plugin: &FixturePlugin) -> Vec<Seq> {
    let mut seqs: Vec<Seq> = plugin.with(|seen| seen.resynced.iter().map(|(seq, _)| *seq).collect());
    seqs.sort_unstable();
    seqs
}

async fn rounds(running: &RunningDispatcher, rounds: u64) -> DispatchStats {
    running.until("the resync", |stats| stats.resync.rounds == rounds && stats.resync.skipped == 0).await
}

#[tokio::test(start_paused = true)]
async fn a_resync_hands_over_what_is_there_with_the_same_ids_and_is_in_no_account() {
    let journal = FixtureJournal::new(1, 3);
    journal.append((0..2500).chain(0..500));
    let plugin = FixturePlugin::new("p", &journal, done);
    let running = start(options("p"), &journal, &plugin);
    let before = running.until_idle().await;
    running.until("saved", |_| running.saved_cursor() == journal.newest_seq()).await;
    let saved = |running: &RunningDispatcher| (running.saved_cursor(), running.stats().delivered);
    let progress = saved(&running);
    for round in 1..=2 {
        running.handle.resync_source("jobs");
        running.until("all of it", |stats| stats.resync.delivered == 2500 * round).await;
        let newest = journal.newest_of("jobs").into_iter().map(|state| (state.seq, state.id.to_string()));
        let mut expected: Vec<_> = newest.collect();
        expected.sort();
        let mut handed = plugin.with(|seen| std::mem::take(&mut seen.resynced));
        handed.sort();
        assert_eq!(handed, expected);
    }
    let after = rounds(&running, 2).await;
    // The queue counts all work, whether it was owed or not.
    assert_eq!(after.queue.adds - before.queue.adds, 2 * 2500);
    assert_eq!(DispatchStats { resync: before.resync, queue: before.queue, ..after }, before);
    assert_eq!(saved(&running), progress);
    assert!(plugin.effects().values().all(|times| *times == 1), "what was owed was handed over once");
}

#[tokio::test(start_paused = true)]
async fn only_subscriptions_that_ask_for_it_are_resynced() {
    let journal = FixtureJournal::new(1, 0);
    for source in ["jobs", "pods", "nodes"] {
        journal.append_one(source, "a", "Running");
    }
    let mut options = options("p");
    options.subscriptions[0].resync = false;
    options.subscriptions.push(subscribe("pods", Mode::Every, Start::Beginning));
    let plugin = FixturePlugin::new("p", &journal, done);
    let running = start(options, &journal, &plugin);
    running.until_idle().await;
    for source in ["jobs", "pods", "nodes", "nobody's"] {
        running.handle.resync_source(source);
    }
    rounds(&running, 1).await;
    running.until("the state", |stats| stats.resync.delivered == 1).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(resynced(&plugin), [2]);
}

#[tokio::test(start_paused = true)]
async fn a_resync_shows_what_is_there_whatever_the_subscription_left_out() {
    let journal = FixtureJournal::new(1, 0);
    journal.append_one("jobs", "before", "Failed");
    journal.append_one("jobs", "changed", "Running");
    let mut options = options("p");
    options.subscriptions = vec![subscribe("jobs", Mode::Transitions, Start::Now)];
    let plugin = FixturePlugin::new("p", &journal, done);
    let running = start(options, &journal, &plugin);
    running.until("started", |stats| stats.started).await;
    journal.append_one("jobs", "changed", "Failed");
    journal.append_one("jobs", "changed", "Running");
    let before = running.until_idle().await;
    assert_eq!((before.observed, before.delivered, before.filtered), (2, 1, 1));
    running.handle.resync_source("jobs");
    let after = running.until("both objects", |stats| stats.resync.delivered == 2).await;
    assert_eq!(resynced(&plugin), [1, 4]);
    assert_eq!((after.observed, after.delivered, after.filtered), (2, 1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_resync_that_fails_is_tried_again_then_let_go_and_never_a_dead_letter() {
    let journal = FixtureJournal::new(1, 0);
    journal.append([1, 2]);
    let plugin = FixturePlugin::new("p", &journal, |batch| {
        let verdict = |seq| match seq {
            1 => Verdict::Retry { after_ms: None, reason: "not again".into() },
            _ => Verdict::Done,
        };
        let again =
            |delivery: &kubewitness_core::ports::StateDelivery| delivery.resync.then_some(delivery.state.seq);
        (1, Ok(batch.iter().map(|delivery| verdict(again(delivery).unwrap_or(9))).collect()))
    });
    let mut options = options("p");
    options.delivery.retries = 3;
    let running = start(options, &journal, &plugin);
    running.until_idle().await;
    running.handle.resync_source("jobs");
    let stats = running.until("it is let go", |stats| stats.resync.failed == 1).await;
    assert_eq!((stats.resync.delivered, stats.dead, stats.waiting, stats.retrying), (1, 0, 0, 0));
    let tries: Vec<u32> = plugin
        .with(|seen| seen.handed.iter().filter(|(seq, _)| *seq == 1).map(|(_, attempt)| *attempt).collect());
    assert_eq!(tries, [1, 1, 1, 2, 3, 4], "the first time beside another one, and then apart");
    assert_eq!(journal.dead("p"), [0; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_newer_state_does_not_wait_for_a_resync_that_fails() {
    let journal = FixtureJournal::new(1, 0);
    journal.append([1]);
    let plugin = FixturePlugin::new("p", &journal, |batch| {
        let verdict = |again| match again {
            true => Verdict::Retry { after_ms: Some(3_600_000), reason: "in an hour".into() },
            false => Verdict::Done,
        };
        (1, Ok(batch.iter().map(|delivery| verdict(delivery.resync)).collect()))
    });
    let running = start(options("p"), &journal, &plugin);
    running.until_idle().await;
    running.handle.resync_source("jobs");
    running.until("it was tried", |_| plugin.with(|seen| seen.calls == 2)).await;
    journal.append([1]);
    running.until_idle().await;
    assert_eq!(plugin.applied(), [1, 2]);
    assert_eq!(running.stats().resync.skipped, 1);
}

#[tokio::test(start_paused = true)]
async fn a_plugin_that_is_down_is_resynced_when_it_is_back() {
    let journal = FixtureJournal::new(1, 0);
    journal.append(0..10);
    let down = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let is_down = down.clone();
    let plugin = FixturePlugin::new("p", &journal, move |batch| {
        match is_down.load(std::sync::atomic::Ordering::Relaxed) {
            true => (1, Err(CallError::Unavailable("the sink is down".into()))),
            false => done(batch),
        }
    });
    let running = start(options("p"), &journal, &plugin);
    running.until_idle().await;
    down.store(true, std::sync::atomic::Ordering::Relaxed);
    journal.append([77]);
    running.until("it is open", |stats| stats.open).await;
    running.handle.resync_source("jobs");
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(resynced(&plugin), [0; 0]);
    down.store(false, std::sync::atomic::Ordering::Relaxed);
    running.until("all of it", |stats| stats.resync.delivered + stats.resync.skipped == 11).await;
    assert_eq!(resynced(&plugin)[..10], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
}

#[tokio::test(start_paused = true)]
async fn a_drain_does_not_wait_for_a_resync() {
    let journal = FixtureJournal::new(1, 0);
    journal.append(0..5000);
    let plugin = FixturePlugin::new("p", &journal, done);
    let running = start(options("p"), &journal, &plugin);
    running.until_idle().await;
    running.handle.resync_source("jobs");
    running.until("it has begun", |stats| stats.resync.delivered > 0).await;
    let handle = running.handle.clone();
    running.end().await.unwrap();
    assert!(handle.dispatch_stats().resync.delivered < 5000);
    handle.resync_source("jobs");

    let running = start(options("p"), &journal, &plugin);
    let stats = running.until_idle().await;
    assert_eq!((stats.observed, stats.delivered, stats.resync.delivered), (5000, 5000, 0));
}
