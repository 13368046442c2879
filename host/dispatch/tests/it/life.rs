//! Tests of a dispatcher's life: start, flow, restart, drain, abort, and a journal that refuses.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kubewitness_core::config::{Mode, OnDeadLetter, RateSpec, Start};
use kubewitness_core::ports::{Backlog, CallError, JournalError, KvWrite, Verdict};
use kubewitness_core::{Seq, limits};
use kubewitness_dispatch::{DispatchError, DispatchOptions, LetterSelection, TakenBack, take_back};
use tokio::time::Instant;

use crate::fixtures::journal::FixtureJournal;
use crate::fixtures::plugin::{FixturePlugin, done};
use crate::{options, start, subscribe};

#[tokio::test(start_paused = true)]
async fn an_idle_dispatcher_hands_over_without_waiting_for_a_tick() {
    let journal = FixtureJournal::new(1, 0);
    let plugin = FixturePlugin::new("p", &journal, |batch| (0, Ok(vec![Verdict::Done; batch.len()])));
    let running = start(options("p"), &journal, &plugin);
    running.until_idle().await;
    for round in 1..=5 {
        tokio::time::sleep(Duration::from_secs(60)).await;
        let before = Instant::now();
        journal.append([7]);
        while running.saved_cursor() < round {
            tokio::task::yield_now().await;
        }
        assert_eq!(before.elapsed(), Duration::ZERO);
    }
    running.end().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_backlog_goes_in_full_batches_over_all_calls_at_once() {
    let journal = FixtureJournal::new(1, 2);
    journal.append((0..10_000).map(|n| n % 5000));
    let plugin = FixturePlugin::new("p", &journal, |batch| (20, Ok(vec![Verdict::Done; batch.len()])));
    let running = start(options("p"), &journal, &plugin);
    let stats = running.until_idle().await;
    assert_eq!((stats.observed, stats.delivered), (10_000, 10_000));
    let (calls, at_once) = plugin.with(|seen| (seen.calls, seen.most_in_flight));
    assert!(calls <= 10_000 / 64 + 10, "{calls} calls");
    assert_eq!(at_once, 4);
}

#[tokio::test(start_paused = true)]
async fn one_object_moves_in_order_one_call_at_a_time() {
    let journal = FixtureJournal::new(1, 0);
    journal.append(std::iter::repeat_n(1, 500));
    let plugin = FixturePlugin::new("p", &journal, done);
    let running = start(options("p"), &journal, &plugin);
    running.until_idle().await;
    let applied = plugin.with(|seen| seen.applied["jobs/job-1"].clone());
    assert_eq!(applied, (1..=500).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn memory_holds_a_window_while_the_figures_count_everything() {
    let journal = FixtureJournal::new(1, 0);
    journal.append((0..100_000).map(|n| n % 20_000));
    let plugin =
        FixturePlugin::new("p", &journal, |_| (0, Err(CallError::Unavailable("no database".into()))));
    let running = start(options("p"), &journal, &plugin);
    let stats = running.until("counted", |stats| stats.observed == 100_000).await;
    assert_eq!((stats.waiting, stats.lag_seq), (100_000, 100_000));
    assert_eq!(stats.oldest_unfinished_ms, Some(1_000_001));
    tokio::time::sleep(Duration::from_secs(60)).await;
    journal.append(0..1000);
    running.until("counted again", |stats| stats.waiting == 101_000).await;
    assert!(journal.with(|kept| kept.read) <= limits::LANE_WINDOW);
}

#[tokio::test(start_paused = true)]
async fn what_retention_took_from_the_unread_waits_no_longer() {
    let journal = FixtureJournal::new(1, 0);
    journal.append((0..20_000).map(|n| n % 5_000));
    let plugin =
        FixturePlugin::new("p", &journal, |_| (0, Err(CallError::Unavailable("no database".into()))));
    let running = start(options("p"), &journal, &plugin);
    running.until("counted", |stats| stats.waiting == 20_000).await;
    journal.remove(12_001..=15_000);
    let stats = running.until("counted again", |stats| stats.waiting < 20_000).await;
    assert_eq!((stats.observed, stats.waiting), (17_000, 17_000));
    journal.append([1]);
    running.until("counted on", |stats| stats.waiting == 17_001).await;
}

#[tokio::test(start_paused = true)]
async fn a_namespace_with_a_hundred_thousand_jobs_does_not_keep_the_one_of_another_waiting() {
    let journal = FixtureJournal::new(1, 0);
    for job in 0..100_000 {
        journal.append_in("crowd", "jobs", &format!("job-{job}"), "Failed");
    }
    let alone = journal.append_in("alone", "jobs", "job", "Failed");
    let plugin = FixturePlugin::new("p", &journal, |batch| (100, Ok(vec![Verdict::Done; batch.len()])));
    let running = start(options("p"), &journal, &plugin);
    running.until("the other's is through", |_| plugin.with(|s| s.handed.contains(&(alone, 1)))).await;
    assert!(plugin.with(|seen| seen.handed.len()) < limits::LANE_WINDOW);
    // Skipped states are found again, also after a kill.
    running.kill().await;
    let running = start(options("p"), &journal, &plugin);
    let stats = running.until_idle().await;
    assert_eq!((stats.observed, stats.delivered), (100_001, 100_001));
}

#[tokio::test(start_paused = true)]
async fn only_the_newest_of_what_waits_is_handed_over_and_what_it_replaced_is_counted() {
    let journal = FixtureJournal::new(1, 0);
    let plugin = FixturePlugin::new("p", &journal, |batch| (1000, Ok(vec![Verdict::Done; batch.len()])));
    let newest = DispatchOptions {
        subscriptions: vec![subscribe("jobs", Mode::Latest, Start::Beginning)],
        ..options("p")
    };
    let running = start(newest.clone(), &journal, &plugin);
    running.until_idle().await;
    journal.append([1]);
    tokio::time::sleep(Duration::from_millis(500)).await;
    journal.append(std::iter::repeat_n(1, 5_000));
    let stats = running.until_idle().await;
    assert_eq!((stats.observed, stats.delivered, stats.filtered, stats.superseded), (5_001, 2, 4_999, 4_999));
    assert_eq!(plugin.applied(), [1, 5_001]);
    running.end().await.unwrap();
    let stats = start(newest, &journal, &plugin).until_idle().await;
    assert_eq!((stats.observed, stats.superseded), (5_001, 4_999), "the figures outlive the process");
}

#[tokio::test(start_paused = true)]
async fn a_rate_is_kept_and_a_burst_is_not_saved_up_for_longer() {
    let journal = FixtureJournal::new(1, 0);
    journal.append(0..100);
    let plugin = FixturePlugin::new("p", &journal, |batch| (0, Ok(vec![Verdict::Done; batch.len()])));
    let mut slow = options("p");
    slow.delivery.rate = Some(RateSpec { per_second: 10, burst: Some(20) });
    let before = Instant::now();
    let running = start(slow, &journal, &plugin);
    running.until_idle().await;
    let took = before.elapsed();
    assert!((Duration::from_secs(8)..Duration::from_millis(8_100)).contains(&took), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_failing_object_with_a_long_queue_leaves_the_window_to_the_others() {
    let journal = FixtureJournal::new(1, 0);
    journal.append(std::iter::repeat_n(1, 20_000));
    journal.append(std::iter::repeat_n(2, 5));
    let late = |seq, attempt| if (seq, attempt) == (1, 1) { retry(Some(3_600_000)) } else { Verdict::Done };
    let plugin = FixturePlugin::new("p", &journal, move |batch| {
        (0, Ok(batch.iter().map(|delivery| late(delivery.state.seq, delivery.attempt)).collect()))
    });
    let running = start(options("p"), &journal, &plugin);
    let stats = running.until("the other object is through", |stats| stats.delivered == 5).await;
    assert_eq!((stats.waiting, stats.retrying), (20_000, 1));
    // A restart in this state finds the states that were left and those that were not.
    running.end().await.unwrap();
    let running = start(options("p"), &journal, &plugin);
    let stats = running.until("started", |stats| stats.started).await;
    assert_eq!((stats.observed, stats.delivered), (20_005, 5));
    tokio::time::sleep(Duration::from_secs(3600)).await;
    running.until_idle().await;
    let applied = plugin.with(|seen| seen.applied["jobs/job-1"].clone());
    assert_eq!(applied, (1..=20_000).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn now_stays_the_moment_it_was_across_restarts() {
    let journal = FixtureJournal::new(1, 0);
    journal.append([1, 2, 3]);
    let plugin = FixturePlugin::new("p", &journal, done);
    let now = || DispatchOptions {
        subscriptions: vec![subscribe("jobs", Mode::Every, Start::Now)],
        ..options("p")
    };
    let running = start(now(), &journal, &plugin);
    running.until("started", |stats| stats.started).await;
    running.kill().await;
    journal.append([1, 2]);
    let running = start(now(), &journal, &plugin);
    assert_eq!(running.until_idle().await.observed, 2);
    assert_eq!(plugin.applied(), [4, 5]);
}

#[tokio::test(start_paused = true)]
async fn each_source_begins_where_its_subscription_says() {
    let journal = FixtureJournal::new(1, 0);
    for source in ["jobs", "pods", "nodes"] {
        journal.append_one(source, "a", "Running");
    }
    let plugin = FixturePlugin::new("p", &journal, done);
    let mut both = options("p");
    both.subscriptions.push(subscribe("pods", Mode::Transitions, Start::Now));
    let running = start(both.clone(), &journal, &plugin);
    running.until_idle().await;
    for (source, phase) in
        [("jobs", "Running"), ("pods", "Running"), ("pods", "Failed"), ("nodes", "Running")]
    {
        journal.append_one(source, "a", phase);
    }
    let stats = running.until_idle().await;
    assert_eq!((stats.observed, stats.delivered, stats.filtered), (4, 3, 1));
    assert_eq!(plugin.applied(), [1, 4, 6]);
    running.end().await.unwrap();

    // A source that is added brings its past along, and the others go on.
    both.subscriptions.push(subscribe("nodes", Mode::Every, Start::Beginning));
    journal.append_one("nodes", "a", "Running");
    let running = start(both, &journal, &plugin);
    let stats = running.until_idle().await;
    assert_eq!((stats.observed, stats.delivered), (7, 6));
    assert_eq!(plugin.applied(), [1, 3, 4, 6, 7, 8]);
    assert!(plugin.effects().values().all(|times| *times == 1));
}

#[tokio::test(start_paused = true)]
async fn states_of_other_sources_move_the_cursor_and_call_nobody() {
    let journal = FixtureJournal::new(1, 0);
    let plugin = FixturePlugin::new("p", &journal, done);
    let running = start(options("p"), &journal, &plugin);
    for _ in 0..3000 {
        journal.append_one("pods", "a", "Running");
    }
    let stats = running.until_idle().await;
    assert_eq!((stats.observed, plugin.with(|seen| seen.calls)), (0, 0));
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(journal.with(|kept| kept.progress["p"].cursor), 3000, "retention waits for it");
    assert!(journal.with(|kept| kept.saves) <= 4, "and is not worth many saves");
}

#[tokio::test(start_paused = true)]
async fn a_drain_waits_for_calls_in_progress_and_begins_none() {
    let journal = FixtureJournal::new(1, 0);
    journal.append(0..1000);
    let plugin = FixturePlugin::new("p", &journal, |batch| (5_000, Ok(vec![Verdict::Done; batch.len()])));
    let running = start(options("p"), &journal, &plugin);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let handle = running.handle.clone();
    running.end().await.unwrap();
    assert_eq!(plugin.with(|seen| seen.calls), 4);
    assert_eq!(journal.with(|kept| kept.progress["p"].delivered), 256);
    assert_eq!(handle.dispatch_stats().delivered, 256, "the last figures stay");
    assert!(matches!(
        handle.replay_letters(LetterSelection::All, "me", "why").await,
        Err(DispatchError::Stopped)
    ));

    let quick = FixturePlugin::new("p", &journal, done);
    let stats = start(options("p"), &journal, &quick).until_idle().await;
    assert_eq!((stats.observed, stats.delivered), (1000, 1000));
    assert_eq!(quick.effects().len(), 1000 - 256);
}

#[tokio::test(start_paused = true)]
async fn a_drain_gives_up_at_its_deadline_and_an_abort_at_once() {
    let journal = FixtureJournal::new(1, 0);
    journal.append(0..10);
    let plugin = FixturePlugin::new("p", &journal, |_| (3_600_000, Ok(Vec::new())));
    for abort in [false, true] {
        let running = start(options("p"), &journal, &plugin);
        tokio::time::sleep(Duration::from_secs(1)).await;
        let before = Instant::now();
        if abort {
            running.abort.cancel();
        }
        running.end().await.unwrap();
        let expected = if abort { Duration::ZERO } else { limits::DRAIN };
        assert!(before.elapsed() >= expected && before.elapsed() < expected + Duration::from_millis(100));
    }
    assert_eq!(journal.with(|kept| kept.progress["p"].cursor), 0);
}

#[tokio::test(start_paused = true)]
async fn a_journal_that_is_full_for_a_while_costs_time_only() {
    let journal = FixtureJournal::new(1, 0);
    let plugin = FixturePlugin::new("p", &journal, done);
    let running = start(options("p"), &journal, &plugin);
    running.until_idle().await;
    journal.append(0..100);
    running.until("some are delivered", |stats| stats.delivered > 0).await;
    journal.with(|kept| kept.refuse = Some(|| JournalError::Unavailable("the disk is full".into())));
    journal.append(std::iter::repeat_n(5, 100));
    tokio::time::sleep(Duration::from_secs(600)).await;
    let calls = plugin.with(|seen| seen.calls);
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(plugin.with(|seen| seen.calls), calls, "what can't be kept is not done");
    journal.with(|kept| kept.refuse = None);
    let stats = running.until_idle().await;
    running.end().await.unwrap();
    assert_eq!(stats.delivered, 200);
    assert!(plugin.effects().values().all(|times| *times == 1));
    let kv: Vec<_> = journal.with(|kept| kept.kv.iter().filter_map(|write| write.value.clone()).collect());
    let kv: Vec<u64> = kv.iter().map(|value| std::str::from_utf8(value).unwrap().parse().unwrap()).collect();
    assert_eq!(kv.len(), plugin.with(|seen| seen.calls), "each call's writes are kept once");
    assert!(kv.is_sorted(), "in the order of the calls: {kv:?}");
}

#[tokio::test(start_paused = true)]
async fn a_cursor_that_the_journal_does_not_have_yet_is_not_told_since_a_kill_would_undo_it() {
    let journal = FixtureJournal::new(1, 0);
    let plugin = FixturePlugin::new("p", &journal, |batch| (100, Ok(vec![Verdict::Done; batch.len()])));
    let running = start(options("p"), &journal, &plugin);
    journal.append(0..50);
    running.until("saved", |_| running.saved_cursor() == 50).await;
    journal.append(0..50);
    tokio::time::sleep(Duration::from_millis(50)).await;
    journal.with(|kept| kept.refuse = Some(|| JournalError::Unavailable("the server is away".into())));
    running.until("finished", |stats| stats.delivered == 100).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(running.saved_cursor(), 50);
    running.kill().await;
    journal.with(|kept| kept.refuse = None);
    let running = start(options("p"), &journal, &plugin);
    running.until("saved", |_| running.saved_cursor() == 100).await;
    let twice = plugin.effects().into_iter().filter(|(_, times)| *times == 2).map(|(seq, _)| seq);
    assert!(twice.eq(51..=100), "these need their receipts after a kill");
}

#[tokio::test(start_paused = true)]
async fn a_journal_in_doubt_ends_the_dispatcher() {
    let journal = FixtureJournal::new(1, 0);
    let plugin = FixturePlugin::new("p", &journal, done);
    let mut running = start(options("p"), &journal, &plugin);
    running.until_idle().await;
    journal.with(|kept| kept.refuse = Some(|| JournalError::Fatal("fsync failed".into())));
    journal.append([1]);
    let ended = (&mut running.task).await.unwrap();
    assert!(matches!(ended, Err(DispatchError::Journal(JournalError::Fatal(_)))));
}

#[tokio::test(start_paused = true)]
async fn another_journal_under_an_old_progress_is_refused() {
    let journal = FixtureJournal::new(1, 0);
    journal.append(0..5);
    let plugin = FixturePlugin::new("p", &journal, done);
    let running = start(options("p"), &journal, &plugin);
    running.until_idle().await;
    running.end().await.unwrap();
    let other = FixtureJournal::new(1, 0);
    let progress = journal.with(|kept| kept.progress["p"].clone());
    other.with(|kept| kept.progress.insert("p".into(), progress));
    let mut running = start(options("p"), &other, &FixturePlugin::new("p", &other, done));
    assert!((&mut running.task).await.unwrap().is_err());
}

pub fn retry(after_ms: Option<u64>) -> Verdict {
    Verdict::Retry { after_ms, reason: "not yet".into() }
}

#[tokio::test(start_paused = true)]
async fn what_was_taken_back_comes_once_more_in_order_but_for_dead_letters_and_the_accounts_add_up() {
    let journal = FixtureJournal::new(1, 0);
    journal.append((0..40).map(|n| n % 4));
    let plugin = FixturePlugin::new("p", &journal, |batch| {
        let verdict = |seq| if seq == 25 { Verdict::Reject("never".into()) } else { Verdict::Done };
        (1, Ok(batch.iter().map(|delivery| verdict(delivery.state.seq)).collect()))
    });
    let mut options = options("p");
    options.delivery.retries = 0;
    let running = start(options.clone(), &journal, &plugin);
    running.until("finished", |stats| (stats.delivered, stats.dead) == (39, 1)).await;
    running.end().await.unwrap();

    journal.remove(35..=36);
    let note = KvWrite { key: "\0note".into(), value: Some(b"1".to_vec()) };
    journal.with(|kept| kept.may_take_back = true);
    let taken = take_back("p", &*journal, Some(20), 2, |_| vec![note]).await.unwrap();
    let unfinished = BTreeSet::from([25]);
    assert_eq!(taken, TakenBack { through: 40, again: 17, ended: 0, missing: 2, unfinished });
    assert_eq!(journal.kv_of("\0note"), Some(b"1".to_vec()), "in the same save");
    let nothing = take_back("p", &*journal, None, 2, |_| Vec::new()).await.unwrap();
    assert_eq!((nothing.again, nothing.missing), (0, 0));

    let running = start(options, &journal, &plugin);
    let stats = running.until("started", |stats| stats.started).await;
    assert_eq!((stats.observed, stats.delivered + stats.waiting, stats.dead), (40, 39, 1));
    let stats = running.until("finished again", |stats| stats.waiting == 0 && stats.lag_seq == 0).await;
    assert_eq!((stats.delivered, stats.dead), (39, 1));
    let twice = plugin.effects().into_iter().filter(|(_, times)| *times == 2).map(|(seq, _)| seq);
    let expected = (21..=40).filter(|seq| ![25, 35, 36].contains(seq));
    assert_eq!(twice.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
    running.end().await.unwrap();
    let cursor = journal.plugin_progress("p").await.unwrap().unwrap().cursor;
    assert_eq!(cursor, 40);
}

/// They would otherwise be handed over before older states of their object, which are read from the journal again.
#[tokio::test(start_paused = true)]
async fn what_is_owed_behind_a_letter_comes_in_order_after_what_was_taken_back() {
    let journal = FixtureJournal::new(1, 0);
    journal.append([1, 1, 1, 1, 1, 2, 1, 2, 1]);
    let mended = Arc::new(AtomicBool::new(false));
    let is_mended = Arc::clone(&mended);
    let plugin = FixturePlugin::new("p", &journal, move |batch| {
        let bad = |seq| seq == 5 && !is_mended.load(Ordering::Relaxed);
        let verdict = |seq| if bad(seq) { Verdict::Reject("never".into()) } else { Verdict::Done };
        (1, Ok(batch.iter().map(|delivery| verdict(delivery.state.seq)).collect()))
    });
    let mut hold = options("p");
    hold.delivery.on_dead_letter = OnDeadLetter::Hold;
    let running = start(hold.clone(), &journal, &plugin);
    running.until("owed", |stats| (stats.delivered, stats.dead, stats.waiting) == (6, 1, 2)).await;
    running.end().await.unwrap();
    assert_eq!(journal.with(|kept| kept.owed.len()), 2);

    journal.with(|kept| kept.may_take_back = true);
    let taken = take_back("p", &*journal, Some(2), 0, |_| Vec::new()).await.unwrap();
    let unfinished = BTreeSet::from([5, 7, 9]);
    assert_eq!(taken, TakenBack { through: 9, again: 4, unfinished, ..TakenBack::default() });
    assert_eq!(journal.with(|kept| (kept.owed.len(), kept.progress["p"].delivered)), (0, 2));

    let running = start(hold, &journal, &plugin);
    running.until("owed anew", |stats| (stats.delivered, stats.waiting, stats.dead) == (6, 2, 1)).await;
    mended.store(true, Ordering::Relaxed);
    let parked = LetterSelection::Parked(vec![5]);
    assert_eq!(running.handle.replay_letters(parked, "ada", "mended").await.unwrap(), 1);
    running.until("finished", |stats| stats.waiting == 0 && stats.delivered == 9).await;
    running.end().await.unwrap();
    assert_eq!(plugin.with(|seen| seen.applied["jobs/job-1"].clone()), [1, 2, 3, 4, 3, 4, 5, 7, 9]);
}

/// The extent of what is taken back after a position, once the dispatcher has finished everything.
async fn taken_after(
    journal: &Arc<FixtureJournal>,
    options: DispatchOptions,
    after: Seq,
    removed: u64,
) -> TakenBack {
    let plugin = FixturePlugin::new("p", journal, done);
    let running = start(options, journal, &plugin);
    running.until_idle().await;
    running.end().await.unwrap();
    journal.with(|kept| kept.may_take_back = true);
    take_back("p", &**journal, Some(after), removed, |_| Vec::new()).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn however_far_back_retention_has_removed_states_they_are_told() {
    let journal = FixtureJournal::new(1, 0);
    journal.append(0..5);
    journal.skip(10);
    journal.append(0..5);
    journal.skip(2_000_000);
    journal.append(0..5);
    let taken = taken_after(&journal, options("p"), 3, 3_000_000).await;
    assert_eq!(
        taken,
        TakenBack { through: 2_000_025, again: 12, ended: 0, missing: 2_000_010, ..TakenBack::default() }
    );
}

#[tokio::test(start_paused = true)]
async fn positions_of_other_sources_that_retention_removed_are_not_missing() {
    let journal = FixtureJournal::new(1, 0);
    journal.append(0..5);
    journal.skip(10);
    journal.append(0..5);
    let taken = taken_after(&journal, options("p"), 3, 0).await;
    assert_eq!(taken, TakenBack { through: 20, again: 7, ended: 0, missing: 0, ..TakenBack::default() });
}

#[tokio::test(start_paused = true)]
async fn states_of_a_source_that_was_unsubscribed_since_are_not_said_to_come_again() {
    let journal = FixtureJournal::new(1, 0);
    for n in 0..10 {
        journal.append_one(if n % 2 == 0 { "jobs" } else { "pods" }, &format!("o-{n}"), "Failed");
    }
    let mut both = options("p");
    both.subscriptions.push(subscribe("pods", Mode::Every, Start::Beginning));
    let plugin = FixturePlugin::new("p", &journal, done);
    let running = start(both, &journal, &plugin);
    running.until_idle().await;
    running.end().await.unwrap();
    let taken = taken_after(&journal, options("p"), 4, 0).await;
    assert_eq!(taken, TakenBack { through: 10, again: 3, ended: 3, missing: 0, ..TakenBack::default() });

    let plugin = FixturePlugin::new("p", &journal, done);
    let running = start(options("p"), &journal, &plugin);
    let stats = running.until("finished again", |stats| stats.waiting == 0 && stats.lag_seq == 0).await;
    assert_eq!((stats.observed, stats.delivered + stats.filtered), (10, 10), "the accounts add up");
    let came = plugin.effects().into_keys().collect::<Vec<_>>();
    assert_eq!(came, [5, 7, 9]);
    running.end().await.unwrap();
}
