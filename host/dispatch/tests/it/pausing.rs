//! Tests of an operator's pause.

use std::sync::Arc;
use std::time::Duration;

use kubewitness_core::ports::Verdict;

use crate::fixtures::journal::FixtureJournal;
use crate::fixtures::plugin::FixturePlugin;
use crate::{options, start};

const LONG: Duration = Duration::from_secs(600);

fn takes_all(journal: &Arc<FixtureJournal>) -> Arc<FixturePlugin> {
    FixturePlugin::new("p", journal, |batch| (5, Ok(vec![Verdict::Done; batch.len()])))
}

#[tokio::test(start_paused = true)]
async fn a_paused_plugin_gets_nothing_until_it_is_resumed_and_then_every_state_once() {
    let journal = FixtureJournal::new(1, 1);
    journal.append([1, 2]);
    let plugin = takes_all(&journal);
    let running = start(options("p"), &journal, &plugin);
    running.until_idle().await;
    let done = running.handle.set_pause(true, "ada", "a move").await.unwrap();
    let paused = done.paused.clone().unwrap();
    assert!(done.changed && paused.who == "ada" && paused.why == "a move");
    assert_eq!(running.stats().paused, Some(paused.clone()), "it is told at once");
    journal.append([1, 1, 2]);
    running.until("counted", |stats| stats.observed == 5).await;
    tokio::time::sleep(LONG).await;
    let stats = running.stats();
    assert_eq!((stats.delivered, stats.waiting), (2, 3));
    assert_eq!(plugin.applied(), [1, 2]);
    assert!(plugin.effects().values().all(|effects| *effects == 1));

    let again = running.handle.set_pause(true, "bob", "another").await.unwrap();
    assert_eq!((again.changed, again.paused), (false, Some(paused)), "the first order stands");
    let resumed = running.handle.set_pause(false, "bob", "moved").await.unwrap();
    assert_eq!((resumed.changed, resumed.paused), (true, None));
    running.until_idle().await;
    assert_eq!(plugin.applied(), [1, 2, 3, 4, 5]);
    assert!(plugin.effects().values().all(|effects| *effects == 1));
    assert!(!running.handle.set_pause(false, "bob", "again").await.unwrap().changed);
    running.end().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_pause_outlives_the_process() {
    let journal = FixtureJournal::new(1, 1);
    let plugin = takes_all(&journal);
    let running = start(options("p"), &journal, &plugin);
    running.until("started", |stats| stats.started).await;
    running.handle.set_pause(true, "ada", "a move").await.unwrap();
    running.kill().await;
    journal.append([1, 2, 1]);

    let running = start(options("p"), &journal, &plugin);
    let stats = running.until("counted", |stats| stats.observed == 3).await;
    assert_eq!(stats.paused.map(|paused| paused.who.clone()).as_deref(), Some("ada"));
    tokio::time::sleep(LONG).await;
    assert_eq!(plugin.with(|seen| seen.calls), 0);
    running.handle.set_pause(false, "ada", "moved").await.unwrap();
    running.until_idle().await;
    assert_eq!(plugin.applied(), [1, 2, 3]);
    running.end().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn calls_in_progress_end_and_count_and_a_paused_plugin_drains_at_once() {
    let journal = FixtureJournal::new(1, 1);
    let plugin = FixturePlugin::new("p", &journal, |batch| (20_000, Ok(vec![Verdict::Done; batch.len()])));
    let running = start(options("p"), &journal, &plugin);
    journal.append([1]);
    while plugin.with(|seen| seen.calls) == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    running.handle.set_pause(true, "ada", "a move").await.unwrap();
    journal.append([1, 2]);
    let stats = running.until("delivered", |stats| stats.delivered == 1 && stats.observed == 3).await;
    assert_eq!(stats.waiting, 2);
    let asked = tokio::time::Instant::now();
    running.end().await.unwrap();
    assert!(asked.elapsed() < Duration::from_secs(10), "it waits for nothing");
    assert_eq!(plugin.applied(), [1]);
}
