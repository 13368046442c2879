//! Tests of dead letters: what a lane does behind one, and how it is replayed.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kubewitness_core::config::{Mode, OnDeadLetter, Start};
use kubewitness_core::ports::{StateDelivery, Verdict};
use kubewitness_core::{Seq, limits};
use kubewitness_dispatch::{DispatchOptions, LetterSelection};

use crate::fixtures::journal::{FixtureJournal, RetentionMoment};
use crate::fixtures::plugin::FixturePlugin;
use crate::{options, start, subscribe};

fn hold() -> DispatchOptions {
    let mut options = options("p");
    options.delivery.on_dead_letter = OnDeadLetter::Hold;
    options
}

/// A plugin that rejects the first state of the first object until it is mended.
fn picky(journal: &Arc<FixtureJournal>) -> (Arc<FixturePlugin>, Arc<AtomicBool>) {
    let mended = Arc::new(AtomicBool::new(false));
    let is_mended = mended.clone();
    let plugin = FixturePlugin::new("p", journal, move |batch| {
        let bad = |seq| seq == 1 && !is_mended.load(Ordering::Relaxed);
        let verdict = |seq| if bad(seq) { Verdict::Reject("no such table".into()) } else { Verdict::Done };
        (1, Ok(batch.iter().map(|delivery| verdict(delivery.state.seq)).collect()))
    });
    (plugin, mended)
}

#[tokio::test(start_paused = true)]
async fn a_lane_goes_on_behind_a_dead_letter_or_waits_as_the_operator_says() {
    for (policy, expected) in [(options("p"), vec![2, 3, 4]), (hold(), vec![2, 4])] {
        let journal = FixtureJournal::new(1, 1);
        journal.append([1, 2, 1, 2]);
        let (plugin, _) = picky(&journal);
        let running = start(policy, &journal, &plugin);
        running.until("parked", |stats| stats.dead == 1).await;
        tokio::time::sleep(Duration::from_secs(600)).await;
        let stats = running.stats();
        assert_eq!((stats.delivered, stats.waiting), (expected.len() as u64, 3 - expected.len() as u64));
        assert_eq!(plugin.applied(), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_goes_past_a_dead_letter_before_that_is_durable() {
    let journal = FixtureJournal::new(1, 40);
    journal.append([1, 1, 2]);
    let (look, went_past) = (journal.clone(), Arc::new(AtomicBool::new(false)));
    let passed = went_past.clone();
    let plugin = FixturePlugin::new("p", &journal, move |batch| {
        let is_early = |seq| seq == 2 && look.dead("p").is_empty();
        passed.fetch_or(batch.iter().any(|delivery| is_early(delivery.state.seq)), Ordering::Relaxed);
        let verdict = |seq| if seq == 1 { Verdict::Reject("never".into()) } else { Verdict::Done };
        (1, Ok(batch.iter().map(|delivery| verdict(delivery.state.seq)).collect()))
    });
    let running = start(options("p"), &journal, &plugin);
    running.until("passed", |stats| (stats.dead, stats.delivered) == (1, 2)).await;
    assert!(!went_past.load(Ordering::Relaxed), "after a kill it would be owed again");
    running.end().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_held_lane_is_still_held_after_a_restart_and_goes_on_after_the_replay() {
    let journal = FixtureJournal::new(1, 1);
    journal.append([1, 2, 1, 2]);
    let (plugin, mended) = picky(&journal);
    let running = start(hold(), &journal, &plugin);
    running.until("parked", |stats| stats.dead == 1 && stats.delivered == 2).await;
    running.end().await.unwrap();

    let running = start(hold(), &journal, &plugin);
    let stats = running.until("started", |stats| stats.started).await;
    assert_eq!((stats.observed, stats.delivered, stats.dead, stats.waiting), (4, 2, 1, 1));
    journal.append([1]);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(plugin.applied(), [2, 4]);

    mended.store(true, Ordering::Relaxed);
    let both = LetterSelection::Exactly(vec![1, 77]);
    assert_eq!(running.handle.replay_letters(both, "ada", "the table is there").await.unwrap(), 0);
    assert_eq!(journal.dead("p"), [1], "one of them is not parked, so nothing is changed");
    assert_eq!(
        running
            .handle
            .replay_letters(LetterSelection::Parked(vec![1, 77]), "ada", "the table is there")
            .await
            .unwrap(),
        1
    );
    let stats = running.until_idle().await;
    assert_eq!((stats.observed, stats.delivered, stats.dead), (5, 5, 0));
    assert_eq!(plugin.with(|seen| seen.applied["jobs/job-1"].clone()), [1, 3, 5]);
    running.end().await.unwrap();
    assert_eq!(journal.dead("p"), [0; 0]);
    let who = (vec![1], "ada".to_owned(), "the table is there".to_owned());
    assert_eq!(journal.with(|kept| kept.replays.clone()), [who]);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_letter_lets_its_lane_go_on_and_stays_dead_also_after_a_restart() {
    let journal = FixtureJournal::new(1, 1);
    journal.append([1, 2, 1, 2]);
    let (plugin, _) = picky(&journal);
    let running = start(hold(), &journal, &plugin);
    running.until("parked", |stats| stats.dead == 1 && stats.delivered == 2).await;
    running.until("its letter is kept", |_| journal.dead("p") == [1]).await;
    assert_eq!(
        running
            .handle
            .drop_letters(LetterSelection::Parked(vec![1]), "ada", "nobody needs it")
            .await
            .unwrap(),
        1
    );
    let stats = running.until_idle().await;
    assert_eq!((stats.observed, stats.delivered, stats.dead, stats.dropped), (4, 3, 1, 1));
    assert_eq!(
        running.handle.replay_letters(LetterSelection::Parked(vec![1]), "ada", "back").await.unwrap(),
        0,
        "it is gone for good"
    );
    running.end().await.unwrap();

    let running = start(hold(), &journal, &plugin);
    journal.append([1]);
    let stats = running.until_idle().await;
    assert_eq!((stats.observed, stats.delivered, stats.dead, stats.dropped), (5, 4, 1, 1));
    assert_eq!(plugin.with(|seen| seen.applied["jobs/job-1"].clone()), [3, 5]);
    assert_eq!(journal.with(|kept| kept.replays.len()), 1, "what was done is on record");
}

#[tokio::test(start_paused = true)]
async fn a_dropped_letter_that_retention_removes_during_a_start_counts_once() {
    for moment in [RetentionMoment::BeforeRead, RetentionMoment::AfterRead] {
        let journal = FixtureJournal::new(1, 1);
        journal.append([1, 2]);
        let (plugin, _) = picky(&journal);
        let running = start(options("p"), &journal, &plugin);
        running.until("its letter is kept", |_| journal.dead("p") == [1]).await;
        let parked = LetterSelection::Parked(vec![1]);
        assert_eq!(running.handle.drop_letters(parked, "ada", "nobody needs it").await.unwrap(), 1);
        running.end().await.unwrap();

        journal.with(|kept| kept.retention_moment = Some(moment));
        let running = start(options("p"), &journal, &plugin);
        let stats = running.until_idle().await;
        assert_eq!((stats.delivered, stats.dead, stats.dropped), (1, 1, 1), "{moment:?}");
        assert_eq!((journal.dead("p"), journal.with(|kept| kept.removed_letters)), (vec![], 1));
    }
}

#[tokio::test(start_paused = true)]
async fn a_replay_that_fails_again_is_parked_again_with_all_its_attempts() {
    let journal = FixtureJournal::new(1, 1);
    journal.append([1]);
    let (plugin, _) = picky(&journal);
    let running = start(options("p"), &journal, &plugin);
    running.until("parked", |stats| stats.dead == 1).await;
    running.until("its letter is kept", |_| journal.dead("p") == [1]).await;
    assert_eq!(running.handle.replay_letters(LetterSelection::All, "ada", "again").await.unwrap(), 1);
    let parked =
        |attempts| journal.with(|kept| kept.letters.values().any(|l| l.attempts == attempts && !l.replaying));
    running.until("parked again", |stats| stats.dead == 1 && parked(2)).await;
    assert_eq!(plugin.with(|seen| seen.handed.clone()), [(1, 1), (1, 2)]);
    assert_eq!(
        running
            .handle
            .replay_letters(LetterSelection::Parked(vec![5]), "ada", "nothing there")
            .await
            .unwrap(),
        0
    );
}

#[tokio::test(start_paused = true)]
async fn a_replay_survives_a_kill_and_counts_as_waiting_meanwhile() {
    let journal = FixtureJournal::new(1, 1);
    journal.append([1, 2, 3]);
    let (plugin, mended) = picky(&journal);
    let running = start(options("p"), &journal, &plugin);
    running.until("parked", |stats| stats.dead == 1 && stats.delivered == 2).await;
    running.until("its letter is kept", |_| journal.dead("p") == [1]).await;
    let slow = FixturePlugin::new("p", &journal, |_| (3_600_000, Ok(Vec::new())));
    running.kill().await;

    let running = start(options("p"), &journal, &slow);
    running.until("started", |stats| stats.started).await;
    assert_eq!(running.handle.replay_letters(LetterSelection::All, "ada", "again").await.unwrap(), 1);
    let stats = running.stats();
    assert_eq!((stats.observed, stats.delivered, stats.dead, stats.waiting), (3, 2, 0, 1));
    running.until("it is being called", |_| slow.with(|seen| seen.calls == 1)).await;
    running.kill().await;

    mended.store(true, Ordering::Relaxed);
    let running = start(options("p"), &journal, &plugin);
    let stats = running.until_idle().await;
    assert_eq!((stats.observed, stats.delivered, stats.dead), (3, 3, 0));
    running.end().await.unwrap();
    assert_eq!(journal.dead("p"), [0; 0]);
}

/// More states than the lanes remember.
#[tokio::test(start_paused = true)]
async fn a_letter_that_holds_a_busy_object_keeps_neither_the_cursor_nor_anybody_else_and_survives_kills() {
    const BEHIND: u64 = 28_000;
    const OTHERS: u64 = 1_000;
    let journal = FixtureJournal::new(1, 0);
    journal.append([1]);
    // All are in one namespace.
    journal.append((0..BEHIND + OTHERS).map(|n| if n % 29 > 0 { 1 } else { 2 + n as usize % 500 }));
    let newest = journal.newest_seq();
    let (plugin, mended) = picky(&journal);
    let running = start(hold(), &journal, &plugin);
    let stats = running.until("the others", |stats| stats.delivered == OTHERS && stats.lag_seq == 0).await;
    assert_eq!((stats.dead, stats.waiting), (1, BEHIND));
    assert_eq!(stats.oldest_unfinished_ms, Some(1_000_003), "the first of those that wait");
    running.until("saved", |_| journal.with(|kept| kept.owed.len() as u64 == BEHIND)).await;
    let progress = journal.with(|kept| kept.progress["p"].clone());
    assert_eq!((progress.cursor, progress.above), (newest, vec![]));
    running.kill().await;

    let running = start(hold(), &journal, &plugin);
    let stats = running.until("started", |stats| stats.started).await;
    assert_eq!((stats.observed, stats.dead, stats.waiting), (newest, 1, BEHIND));
    mended.store(true, Ordering::Relaxed);
    assert_eq!(
        running
            .handle
            .replay_letters(LetterSelection::Parked(vec![1]), "ada", "the table is there")
            .await
            .unwrap(),
        1
    );
    running.until("under way", |stats| stats.delivered > OTHERS + 100).await;
    assert_eq!(
        running.handle.durable_cursor().unwrap().receipts_from,
        None,
        "a lane that moves keeps no receipts"
    );
    running.kill().await;

    let running = start(hold(), &journal, &plugin);
    let stats = running.until("it goes on", |stats| stats.delivered > OTHERS + 500).await;
    assert_eq!((stats.observed, stats.dead), (newest, 0));
    running.end().await.unwrap();
    let applied = plugin.with(|seen| seen.applied["jobs/job-1"].clone());
    let mut seen = BTreeSet::new();
    let firsts: Vec<Seq> = applied.into_iter().filter(|seq| seen.insert(*seq)).collect();
    let states = journal.states().into_iter().filter(|state| state.object.name == "job-1");
    let expected: Vec<Seq> = states.map(|state| state.seq).take(firsts.len()).collect();
    assert_eq!(firsts, expected, "in order, whatever came twice");
}

#[tokio::test(start_paused = true)]
async fn a_retry_that_is_an_hour_away_does_not_keep_the_cursor() {
    let journal = FixtureJournal::new(1, 0);
    journal.append([1, 1]);
    let plugin = putting_off(&journal);
    let running = start(options("p"), &journal, &plugin);
    running.until("put off", |stats| stats.retrying == 1).await;
    journal.append((0..10_000).map(|n| 2 + n % 50));
    let stats = running.until("the others", |stats| stats.delivered == 10_000).await;
    assert_eq!((stats.waiting, stats.oldest_unfinished_ms), (2, Some(1_000_001)));
    running.until("saved", |_| journal.with(|kept| kept.progress["p"].cursor == 10_002)).await;
    tokio::time::sleep(Duration::from_secs(3_600)).await;
    let stats = running.until_idle().await;
    assert_eq!((stats.delivered, stats.superseded), (10_002, 0));
    assert_eq!(plugin.with(|seen| seen.applied["jobs/job-1"].clone()), [1, 2]);
    assert!(journal.with(|kept| kept.owed.is_empty()));
}

/// A plugin that puts the first state off for an hour at its first try.
fn putting_off(journal: &Arc<FixtureJournal>) -> Arc<FixturePlugin> {
    FixturePlugin::new("p", journal, |batch| {
        let later = Verdict::Retry { after_ms: Some(3_600_000), reason: "the quota is used up".into() };
        let verdict = |delivery: &StateDelivery| match (delivery.state.seq, delivery.attempt) {
            (1, 1) => later.clone(),
            _ => Verdict::Done,
        };
        (1, Ok(batch.iter().map(verdict).collect()))
    })
}

/// Until then receipts of owed states would count as those of finished ones.
#[tokio::test(start_paused = true)]
async fn no_cursor_is_told_before_it_is_known_what_is_owed() {
    let journal = FixtureJournal::new(1, 20);
    journal.append([1, 1]);
    let plugin = putting_off(&journal);
    let running = start(options("p"), &journal, &plugin);
    running.until("saved", |_| journal.with(|kept| kept.owed.len() == 2)).await;
    running.kill().await;
    let running = start(options("p"), &journal, &plugin);
    assert_eq!(running.handle.durable_cursor(), None);
    *plugin.hides_receipts.lock().unwrap() = true;
    running.until("started", |stats| stats.started).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(running.handle.durable_cursor().unwrap().receipts_from, Some(1));
    assert_eq!(
        plugin.with(|seen| seen.handed.len()),
        1,
        "nothing is handed over before its receipt was looked for"
    );
    *plugin.hides_receipts.lock().unwrap() = false;
    running.until("looked for", |_| running.handle.durable_cursor().unwrap().receipts_from.is_none()).await;
}

/// A letter may hold its lane for years, and receipts that it kept would fill the database.
#[tokio::test(start_paused = true)]
async fn what_waits_behind_a_letter_since_before_the_start_keeps_no_receipts_whatever_the_policy_was() {
    let journal = FixtureJournal::new(1, 0);
    journal.append([1, 1, 1, 2]);
    let (plugin, _) = picky(&journal);
    *plugin.receipts.lock().unwrap() = Some(std::collections::BTreeMap::new());
    let running = start(options("p"), &journal, &plugin);
    running.until("its letter is kept", |_| journal.dead("p") == [1]).await;
    running.until("applied", |_| plugin.applied().len() == 3).await;
    // The ends of the others may be unsaved.
    running.kill().await;
    journal.append([1, 1, 2]);
    for _ in 0..2 {
        let running = start(hold(), &journal, &plugin);
        let stats = running.until("the other", |stats| stats.delivered == 4 && stats.lag_seq == 0).await;
        assert_eq!((stats.dead, stats.waiting), (1, 2));
        running.until("saved", |_| journal.with(|kept| kept.progress["p"].cursor == 7)).await;
        running
            .until("looked for", |_| running.handle.durable_cursor().unwrap().receipts_from.is_none())
            .await;
        running.kill().await;
    }
    assert!(plugin.effects().values().all(|times| *times == 1));
}

#[tokio::test(start_paused = true)]
async fn what_is_owed_comes_back_however_often_other_states_are_saved_meanwhile() {
    let journal = FixtureJournal::new(1, 0);
    journal.append([1; 50]);
    let (plugin, _) = picky(&journal);
    let running = start(hold(), &journal, &plugin);
    running.until("saved", |_| journal.with(|kept| kept.owed.len() == 49)).await;
    // Longer than from one save to the next.
    journal.with(|kept| kept.owed_takes_ms = 200);
    assert_eq!(
        running
            .handle
            .drop_letters(LetterSelection::Parked(vec![1]), "ada", "nobody needs it")
            .await
            .unwrap(),
        1
    );
    for other in 0..6_000 {
        journal.append([2 + other % 50]);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(journal.with(|kept| kept.saves > 500));
    assert_eq!(plugin.with(|seen| seen.applied["jobs/job-1"].len()), 49);
}

/// Owed states of a source that the plugin no longer subscribes to.
#[tokio::test(start_paused = true)]
async fn rows_that_are_no_longer_wanted_are_finished_in_bounded_parts() {
    const ROWS: usize = 30_000;
    let journal = FixtureJournal::new(1, 0);
    journal.append(std::iter::repeat_n(1, ROWS));
    let (plugin, _) = picky(&journal);
    let running = start(hold(), &journal, &plugin);
    running.until("saved", |_| journal.with(|kept| kept.owed.len() == ROWS - 1)).await;
    running.end().await.unwrap();
    journal.append_one("pods", "pod", "Failed");
    let pods = vec![subscribe("pods", Mode::Every, Start::Now)];
    let running = start(DispatchOptions { subscriptions: pods, ..hold() }, &journal, &plugin);
    running.until("started", |stats| stats.started).await;
    assert_eq!(
        running
            .handle
            .drop_letters(LetterSelection::Parked(vec![1]), "ada", "nobody needs it")
            .await
            .unwrap(),
        1
    );
    let stats = running.until_idle().await;
    assert_eq!((stats.filtered, stats.delivered), (ROWS as u64 - 1, 0));
    running.until("saved", |_| journal.with(|kept| kept.owed.is_empty())).await;
    let most = journal.with(|kept| kept.most_revived);
    assert!(most <= limits::LANE_WINDOW + 1_024, "{most} in one save");
}

#[tokio::test(start_paused = true)]
async fn reading_waits_for_no_more_than_a_save_while_much_is_owed() {
    const ROWS: usize = 100_000;
    let journal = FixtureJournal::new(1, 0);
    journal.append(std::iter::repeat_n(1, ROWS));
    let (plugin, _) = picky(&journal);
    let running = start(hold(), &journal, &plugin);
    let begun = tokio::time::Instant::now();
    running.until("saved", |_| journal.with(|kept| kept.owed.len() == ROWS - 1)).await;
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(3), "{took:?}");
}
