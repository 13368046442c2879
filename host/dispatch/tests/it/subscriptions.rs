//! Tests of filters, starts, and a past that is handed over beside new states.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use kubewitness_core::State;
use kubewitness_core::config::{Mode, RateSpec, Start, StartTime};
use kubewitness_core::ports::{FilterError, JournalError, PluginProgress, StateFilter};
use kubewitness_dispatch::{DispatchOptions, note_beginning};
use tokio::time::Instant;

use crate::fixtures::journal::FixtureJournal;
use crate::fixtures::plugin::{FixturePlugin, done};
use crate::{options, start, subscribe};

/// A filter that wants every second position, can't judge every tenth, and may fail to read the document.
struct EvenFilter(Arc<FixtureJournal>);

impl std::fmt::Debug for EvenFilter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Even")
    }
}

#[async_trait]
impl StateFilter for EvenFilter {
    async fn wants_state(&self, state: &State) -> Result<bool, FilterError> {
        tokio::task::yield_now().await;
        if self.0.with(|kept| kept.refuse).is_some() {
            return Err(JournalError::Unavailable("the disk is full".into()).into());
        }
        if state.seq.is_multiple_of(10) {
            return Err(FilterError::Unclear("no such key: spec".into()));
        }
        Ok(state.seq.is_multiple_of(2))
    }
}

fn filtered(journal: &Arc<FixtureJournal>) -> DispatchOptions {
    let mut options = options("p");
    options.subscriptions[0].filter = Some(Arc::new(EvenFilter(journal.clone())));
    options
}

#[tokio::test(start_paused = true)]
async fn what_a_filter_does_not_want_is_counted_and_what_it_cannot_judge_is_handed_over() {
    let journal = FixtureJournal::new(1, 1);
    journal.append(0..100);
    let plugin = FixturePlugin::new("p", &journal, done);
    let running = start(filtered(&journal), &journal, &plugin);
    let stats = running.until_idle().await;
    assert_eq!((stats.observed, stats.delivered, stats.filtered, stats.unclear), (100, 50, 50, 10));
    let why = stats.filter_error.unwrap();
    assert!(why.starts_with("the filter of `jobs` can't judge jobs/0/job-99/100: no such key"), "{why}");
    assert!(plugin.applied().iter().all(|seq| seq.is_multiple_of(2)));
}

#[tokio::test(start_paused = true)]
async fn a_filter_that_cannot_read_documents_now_is_asked_again() {
    let journal = FixtureJournal::new(1, 1);
    let plugin = FixturePlugin::new("p", &journal, done);
    let running = start(filtered(&journal), &journal, &plugin);
    running.until_idle().await;
    journal.with(|kept| kept.refuse = Some(|| JournalError::Unavailable("the disk is full".into())));
    journal.append(0..10);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(plugin.applied(), [0; 0]);
    journal.with(|kept| kept.refuse = None);
    let stats = running.until_idle().await;
    assert_eq!((stats.delivered, stats.filtered), (5, 5));
}

#[tokio::test(start_paused = true)]
async fn a_resync_hands_over_what_the_filter_wants() {
    let journal = FixtureJournal::new(1, 1);
    journal.append(0..9);
    let plugin = FixturePlugin::new("p", &journal, done);
    let running = start(filtered(&journal), &journal, &plugin);
    running.until_idle().await;
    running.handle.resync_source("jobs");
    running
        .until("the resync is over", |stats| stats.resync.rounds == 1 && stats.resync.delivered == 4)
        .await;
    let resynced: Vec<_> = plugin.with(|seen| seen.resynced.iter().map(|(seq, _)| *seq).collect());
    assert_eq!(resynced, [2, 4, 6, 8]);
}

#[tokio::test(start_paused = true)]
async fn a_subscription_begins_at_a_time_or_a_position_and_keeps_it() {
    // A state is observed at 1,000,000 ms plus its position. The clock begins at 2,000,000.
    let ago = kubewitness_core::config::Duration(Duration::from_millis(1_000_000 - 40));
    for (from, first) in [
        (Start::Since(StartTime::At(1_000_031)), 31),
        (Start::Since(StartTime::At(0)), 1),
        (Start::Since(StartTime::At(u64::MAX)), 51),
        (Start::Since(StartTime::Ago(ago)), 40),
        (Start::Position(17), 17),
        (Start::Position(0), 1),
        (Start::Position(1_000), 51),
    ] {
        let journal = FixtureJournal::new(1, 0);
        journal.append(0..50);
        let plugin = FixturePlugin::new("p", &journal, done);
        let since =
            || DispatchOptions { subscriptions: vec![subscribe("jobs", Mode::Every, from)], ..options("p") };
        let running = start(since(), &journal, &plugin);
        running.until_idle().await;
        running.kill().await;
        journal.append(0..5);
        tokio::time::sleep(Duration::from_secs(1)).await;
        let running = start(since(), &journal, &plugin);
        running.until_idle().await;
        assert_eq!(plugin.applied(), (first..=55).collect::<Vec<_>>(), "{from:?}");
    }
}

fn of_sources(starts: &[(&str, Start)]) -> DispatchOptions {
    let subscribe = |(source, start): &(&str, Start)| subscribe(source, Mode::Every, *start);
    DispatchOptions { subscriptions: starts.iter().map(subscribe).collect(), ..options("p") }
}

#[tokio::test(start_paused = true)]
async fn a_source_that_is_added_later_begins_where_it_says() {
    for (from, expected) in [
        (Start::Beginning, vec![2, 4, 6, 7, 9, 11, 13, 14]),
        (Start::Position(5), vec![6, 7, 9, 11, 13, 14]),
        (Start::Now, vec![14]),
    ] {
        let journal = FixtureJournal::new(1, 0);
        for source in ["jobs", "pods"].repeat(3) {
            journal.append_one(source, "a", "Failed");
        }
        let plugin = FixturePlugin::new("p", &journal, done);
        let running = start(of_sources(&[("jobs", Start::Beginning)]), &journal, &plugin);
        running.until_idle().await;
        running.end().await.unwrap();
        for source in ["pods", "jobs"].repeat(3).into_iter().chain(["pods"]) {
            journal.append_one(source, "a", "Failed");
        }
        let both = || of_sources(&[("jobs", Start::Beginning), ("pods", from)]);
        let running = start(both(), &journal, &plugin);
        running.until("added", |stats| stats.started).await;
        journal.append_one("pods", "a", "Failed");
        let stats = running.until_idle().await;
        let applied = plugin.with(|seen| seen.applied.clone());
        let expected =
            expected.into_iter().filter(|seq| from != Start::Now || *seq == 14).collect::<Vec<_>>();
        assert_eq!(applied["pods/a"], expected, "{from:?}");
        assert_eq!(applied["jobs/a"], [1, 3, 5, 8, 10, 12], "each once");
        assert_eq!(stats.observed, stats.delivered);
        assert_eq!(stats.delivered, 6 + expected.len() as u64);
        assert!(stats.backfill.is_none());
        // It stays so.
        running.end().await.unwrap();
        let running = start(both(), &journal, &plugin);
        assert_eq!(running.until_idle().await.delivered, 6 + expected.len() as u64);
        assert!(journal.with(|kept| kept.progress["p"].former_cursors.is_empty()));
    }
}

#[tokio::test(start_paused = true)]
async fn where_a_plugin_begins_is_noted_before_its_first_start_which_decides_anew() {
    let note = async |journal: &Arc<FixtureJournal>, starts: &[(&str, Start)]| {
        note_beginning("p", &of_sources(starts).subscriptions, &**journal, 2_000_000).await.unwrap();
        journal.with(|kept| kept.progress.get("p").cloned())
    };
    let journal = FixtureJournal::new(1, 0);
    journal.append(0..10);
    assert_eq!(note(&journal, &[("jobs", Start::Now)]).await, None, "it is owed nothing yet");
    let noted = note(&journal, &[("jobs", Start::Position(6)), ("pods", Start::Now)]).await.unwrap();
    assert!(noted.is_unstarted && noted.is_subscribed("jobs") && !noted.is_subscribed("pods"));
    assert_eq!((noted.start, noted.cursor), (5, 5));
    let saves = journal.with(|kept| kept.saves);
    note(&journal, &[("jobs", Start::Position(6)), ("pods", Start::Now)]).await;
    assert_eq!(journal.with(|kept| kept.saves), saves, "noted once");
    // Its manifest was changed before it could start.
    let noted = note(&journal, &[("jobs", Start::Now)]).await.unwrap();
    assert!(noted.is_unstarted && noted.sources.is_empty());
    let noted = note(&journal, &[("jobs", Start::Beginning)]).await.unwrap();
    assert_eq!((noted.start, noted.cursor), (0, 0));
    let plugin = FixturePlugin::new("p", &journal, done);
    let running = start(of_sources(&[("jobs", Start::Position(4))]), &journal, &plugin);
    running.until_idle().await;
    running.end().await.unwrap();
    assert_eq!(plugin.applied(), (4..=10).collect::<Vec<_>>());
    // From now on it goes on from its progress. Configured again, it is not taken for removed.
    let started = journal.with(|kept| {
        let progress = kept.progress.get_mut("p").unwrap();
        progress.retired_ms = Some(1);
        PluginProgress { retired_ms: None, ..progress.clone() }
    });
    assert_eq!(note(&journal, &[("jobs", Start::Beginning)]).await, Some(started));
}

#[tokio::test(start_paused = true)]
async fn the_past_of_an_added_source_is_shown_and_survives_a_kill() {
    let journal = FixtureJournal::new(1, 1);
    journal.append(0..2_000);
    for n in 0..20_000 {
        journal.append_one("pods", &format!("pod-{}", n % 50), "Failed");
    }
    let plugin = FixturePlugin::new("p", &journal, done);
    let running = start(of_sources(&[("jobs", Start::Beginning)]), &journal, &plugin);
    running.until_idle().await;
    running.end().await.unwrap();
    let both = || of_sources(&[("jobs", Start::Beginning), ("pods", Start::Beginning)]);
    let running = start(both(), &journal, &plugin);
    let stats = running.until("the past is under way", |stats| stats.delivered > 2_500).await;
    let backfill = stats.backfill.unwrap();
    assert_eq!((&*backfill.sources[0], backfill.through), ("pods", 22_000));
    assert_eq!(stats.observed, 22_000);
    running.kill().await;
    let running = start(both(), &journal, &plugin);
    let stats = running.until_idle().await;
    assert_eq!((stats.delivered, stats.backfill), (22_000, None));
    assert_eq!(plugin.applied().len(), 22_000);
    plugin.with(|seen| assert!((0..2_000).all(|job| seen.applied[&format!("jobs/job-{job}")].len() == 1)));
}

#[tokio::test(start_paused = true)]
async fn a_resync_of_a_source_waits_for_the_past_of_one_that_was_added() {
    let journal = FixtureJournal::new(1, 1);
    for n in 0..20_000 {
        journal.append_one("pods", &format!("pod-{}", n % 50), "Failed");
    }
    // What is resynced lies behind all of the past.
    journal.append(0..50);
    let plugin = FixturePlugin::new("p", &journal, done);
    let running = start(of_sources(&[("jobs", Start::Beginning)]), &journal, &plugin);
    running.until_idle().await;
    running.end().await.unwrap();
    let both = of_sources(&[("jobs", Start::Beginning), ("pods", Start::Beginning)]);
    let running = start(both, &journal, &plugin);
    running.handle.resync_source("jobs");
    let stats = running.until("the past is under way", |stats| stats.delivered > 2_500).await;
    assert_eq!((stats.resync.delivered, stats.resync.skipped), (0, 0));
    let stats = running.until("the resync", |stats| stats.resync.rounds == 1).await;
    assert_eq!((stats.backfill, stats.resync.skipped), (None, 0));
    running.until("all of it", |stats| stats.resync.delivered == 50).await;
}

fn paced() -> DispatchOptions {
    let mut options = options("p");
    options.subscriptions[0].replay_rate = Some(RateSpec { per_second: 10, burst: Some(10) });
    options
}

#[tokio::test(start_paused = true)]
async fn a_past_is_replayed_at_its_pace_and_what_is_new_does_not_wait_for_it() {
    let journal = FixtureJournal::new(1, 0);
    journal.append((0..600).map(|n| n % 100));
    let plugin = FixturePlugin::new("p", &journal, done);
    let running = start(paced(), &journal, &plugin);
    tokio::time::sleep(Duration::from_secs(20)).await;
    let before = plugin.applied().len();
    assert!((190..=230).contains(&before), "{before} states in 20 s");
    // The past has states of object 7 and none of object 700.
    journal.append([700, 7]);
    let asked = Instant::now();
    running.until("what is new is there", |_| plugin.applied().contains(&601)).await;
    assert!(asked.elapsed() < Duration::from_secs(1));
    assert!(!plugin.applied().contains(&602), "its own past comes first");

    // After a kill the past goes on at the same rate, and new states of other objects still pass.
    running.kill().await;
    let running = start(paced(), &journal, &plugin);
    let begun = Instant::now();
    journal.append([701]);
    running.until("what is new is there", |_| plugin.applied().contains(&603)).await;
    assert!(begun.elapsed() < Duration::from_secs(1));
    let stats = running.until_idle().await;
    assert!(begun.elapsed() > Duration::from_secs(30), "{:?}", begun.elapsed());
    assert_eq!((stats.observed, stats.delivered), (603, 603));
    plugin.with(|seen| {
        let firsts = |applied: &Vec<u64>| {
            let mut seen = std::collections::BTreeSet::new();
            applied.iter().copied().filter(|seq| seen.insert(*seq)).collect::<Vec<_>>()
        };
        assert!(seen.applied.values().all(|applied| firsts(applied).is_sorted()));
    });
    // The past is over: new states of its objects no longer wait.
    let asked = Instant::now();
    journal.append([7]);
    running.until_idle().await;
    assert!(asked.elapsed() < Duration::from_secs(1));
}
