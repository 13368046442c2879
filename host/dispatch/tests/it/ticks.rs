//! Tests of ticks: when they are, what they wait for, and what becomes of what they wrote.

use std::time::Duration;

use kubewitness_core::config::{self, TickSpec};
use kubewitness_core::ports::{CallError, JournalError, Verdict};
use kubewitness_dispatch::DispatchOptions;
use tokio::time::Instant;

use crate::fixtures::journal::FixtureJournal;
use crate::fixtures::plugin::{FixturePlugin, done};
use crate::{RunningDispatcher, options, start};

/// The simulated clock begins at 2,000,000 ms, which is a multiple of it.
const EVERY: u64 = 20_000;
const BEGIN: u64 = 2_000_000;

fn ticking() -> DispatchOptions {
    let tick = TickSpec { every: config::Duration(Duration::from_millis(EVERY)), timeout: None };
    DispatchOptions { tick: Some(tick), ..options("p") }
}

fn ticks(plugin: &FixturePlugin) -> Vec<u64> {
    plugin.with(|seen| seen.ticks.iter().map(|due| (due - BEGIN) / EVERY).collect())
}

async fn pass(ms: u64) {
    tokio::time::sleep(Duration::from_millis(ms)).await;
}

async fn end(running: RunningDispatcher) {
    running.end().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_plugin_is_called_on_its_schedule_though_no_state_comes_and_its_kv_is_kept() {
    let journal = FixtureJournal::new(1, 1);
    let plugin = FixturePlugin::new("p", &journal, done);
    let running = start(ticking(), &journal, &plugin);
    pass(3 * EVERY + 5_000).await;
    assert_eq!(ticks(&plugin), [1, 2, 3]);
    let tick = running.stats().tick.unwrap();
    assert_eq!((tick.ticks, tick.failed, tick.is_running), (3, 0, false));
    assert_eq!((tick.last_ms, tick.next_ms), (Some(BEGIN + 3 * EVERY), Some(BEGIN + 4 * EVERY)));
    let due = (BEGIN + 3 * EVERY).to_string();
    assert_eq!(journal.kv_of("ticked"), Some(due.into_bytes()), "it is durable without a state");
    end(running).await;
}

#[tokio::test(start_paused = true)]
async fn a_plugin_without_a_schedule_has_no_ticks() {
    let journal = FixtureJournal::new(1, 1);
    let plugin = FixturePlugin::new("p", &journal, done);
    let running = start(options("p"), &journal, &plugin);
    pass(10 * EVERY).await;
    assert_eq!((ticks(&plugin).len(), running.stats().tick), (0, None));
    end(running).await;
}

/// The scripted plugin asserts that no call runs beside a tick.
#[tokio::test(start_paused = true)]
async fn a_tick_and_the_states_take_turns() {
    let journal = FixtureJournal::new(1, 1);
    let plugin = FixturePlugin::new("p", &journal, |batch| (700, Ok(vec![Verdict::Done; batch.len()])));
    *plugin.tick.lock().unwrap() = (3_000, Ok(()));
    let running = start(ticking(), &journal, &plugin);
    for _ in 0..200 {
        journal.append([1, 2, 3, 4, 5, 6, 7, 8]);
        pass(500).await;
    }
    let stats = running.until_idle().await;
    assert_eq!(stats.delivered, 1600);
    assert!(ticks(&plugin).starts_with(&[1, 2, 3, 4, 5]), "a plugin that is never idle has its ticks");
    end(running).await;
}

#[tokio::test(start_paused = true)]
async fn a_tick_that_fails_is_told_and_tried_at_the_next_time_and_states_go_on() {
    let journal = FixtureJournal::new(1, 1);
    let plugin = FixturePlugin::new("p", &journal, done);
    *plugin.tick.lock().unwrap() = (1, Err(CallError::Trap("unreachable".into())));
    let running = start(ticking(), &journal, &plugin);
    pass(2 * EVERY + 1_000).await;
    journal.append([1, 2]);
    let stats = running.until_idle().await;
    assert_eq!((stats.delivered, stats.open, stats.consecutive_failures), (2, false, 0));
    let tick = stats.tick.unwrap();
    assert_eq!((tick.ticks, tick.failed), (2, 2));
    assert!(tick.failure_message().unwrap().contains("the plugin trapped: unreachable"), "{tick:?}");
    assert_eq!(journal.kv_of("ticked"), None);
    *plugin.tick.lock().unwrap() = (1, Ok(()));
    pass(EVERY).await;
    let tick = running.stats().tick.unwrap();
    assert_eq!((tick.ticks, tick.failed, tick.failure_message()), (3, 2, None));
    end(running).await;
}

#[tokio::test(start_paused = true)]
async fn a_paused_plugin_has_no_ticks_and_none_is_made_up_for() {
    let journal = FixtureJournal::new(1, 1);
    let plugin = FixturePlugin::new("p", &journal, done);
    let running = start(ticking(), &journal, &plugin);
    pass(EVERY + 1_000).await;
    running.handle.set_pause(true, "ada", "a move").await.unwrap();
    pass(5 * EVERY).await;
    assert_eq!(running.stats().tick.unwrap().next_ms, None);
    assert_eq!(ticks(&plugin), [1]);
    running.handle.set_pause(false, "ada", "moved").await.unwrap();
    pass(100).await;
    assert_eq!(ticks(&plugin), [1], "it waits for the next time");
    pass(EVERY).await;
    assert_eq!(ticks(&plugin), [1, 7]);
    end(running).await;
}

#[tokio::test(start_paused = true)]
async fn a_restart_or_another_version_goes_on_with_the_same_schedule() {
    let journal = FixtureJournal::new(1, 1);
    let plugin = FixturePlugin::new("p", &journal, done);
    let running = start(ticking(), &journal, &plugin);
    pass(EVERY + 1_000).await;
    running.kill().await;
    pass(EVERY / 2).await;
    // The simulated clock of each begins anew; what counts is that nothing is due at once.
    let running = start(ticking(), &journal, &plugin);
    pass(1_000).await;
    assert_eq!(ticks(&plugin), [1], "a start is no tick");
    pass(EVERY).await;
    assert_eq!(ticks(&plugin).len(), 2);
    end(running).await;
}

#[tokio::test(start_paused = true)]
async fn a_tick_in_progress_ends_before_the_dispatcher_does_and_its_kv_is_kept() {
    let journal = FixtureJournal::new(1, 1);
    let plugin = FixturePlugin::new("p", &journal, done);
    *plugin.tick.lock().unwrap() = (4_000, Ok(()));
    let running = start(ticking(), &journal, &plugin);
    pass(EVERY + 1_000).await;
    assert!(running.stats().tick.unwrap().is_running);
    end(running).await;
    assert!(journal.kv_of("ticked").is_some());
    pass(5 * EVERY).await;
    assert_eq!(ticks(&plugin), [1], "none begins afterwards");
}

#[tokio::test(start_paused = true)]
async fn no_tick_begins_while_what_it_writes_could_not_be_kept() {
    let journal = FixtureJournal::new(1, 1);
    let plugin = FixturePlugin::new("p", &journal, done);
    let running = start(ticking(), &journal, &plugin);
    running.until("started", |stats| stats.started).await;
    journal.with(|kept| kept.refuse = Some(|| JournalError::Unavailable("the disk is full".into())));
    pass(3 * EVERY).await;
    assert_eq!(ticks(&plugin), [1], "nobody knew before the first save failed");
    journal.with(|kept| kept.refuse = None);
    pass(2 * EVERY).await;
    assert!(ticks(&plugin).len() > 1);
    assert!(journal.kv_of("ticked").is_some());
    end(running).await;
}

#[tokio::test(start_paused = true)]
async fn a_plugin_that_rests_is_not_called_says_why_and_goes_on_by_itself() {
    let journal = FixtureJournal::new(1, 1);
    let plugin = FixturePlugin::new("p", &journal, done);
    let until = Instant::now() + Duration::from_millis(EVERY + 5_000);
    *plugin.rests_until.lock().unwrap() = Some(until);
    journal.append(0..10);
    let running = start(ticking(), &journal, &plugin);
    pass(EVERY + 4_000).await;
    let stats = running.stats();
    assert_eq!((stats.delivered, ticks(&plugin).len()), (0, 0));
    assert_eq!((stats.rest.as_deref(), stats.last_error), (Some("it has had enough"), None));
    pass(1_500).await;
    let stats = running.stats();
    assert_eq!((stats.delivered, ticks(&plugin), stats.rest), (10, vec![1], None), "the tick comes late");
    assert!(plugin.with(|seen| seen.handed.iter().all(|(_, attempt)| *attempt == 1)));

    *plugin.rests_until.lock().unwrap() = Some(Instant::now() + Duration::from_secs(3600));
    journal.append(0..10);
    pass(1_000).await;
    let ended = Instant::now();
    end(running).await;
    assert!(ended.elapsed() < Duration::from_secs(1), "an end does not wait for it");
}
