//! Tests of dispatch from outside: a dispatcher with a journal in memory and scripted plugins, in simulated
//! time.
//!
//! Dispatch is mostly about waiting: retries, breakers, pauses, ticks. With real time such tests would be
//! slow, or depend on the machine's load. Tokio's clock is paused here, so hours pass in milliseconds.
//!
//! `simulation` checks the invariants over random runs of a seed, and `interleavings` lets shuttle choose the
//! order of tasks. The real journal with real dispatch is tested in `tests/simulation` and end to end.

// Helpers of tests are test code too.
#![allow(clippy::unwrap_used)]

mod breaker;
mod fixtures;
mod interleavings;
mod letters;
mod life;
mod pausing;
mod resync;
mod rows;
mod simulation;
mod subscriptions;
mod ticks;

use std::sync::Arc;
use std::time::Duration;

use kubewitness_core::Seq;
use kubewitness_core::clock::Clock;
use kubewitness_core::config::{DeliverySpec, Mode, Start};
use kubewitness_dispatch::{
    DispatchError, DispatchHandle, DispatchOptions, DispatchStats, LongestPauses, PluginDispatcher,
    SourceSubscription,
};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::fixtures::journal::FixtureJournal;
use crate::fixtures::plugin::FixturePlugin;

struct SimulatedClock(Instant);

impl Clock for SimulatedClock {
    fn now_ms(&self) -> u64 {
        2_000_000 + self.0.elapsed().as_millis() as u64
    }

    fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}

fn subscribe(source: &str, mode: Mode, start: Start) -> SourceSubscription {
    SourceSubscription { source: source.into(), mode, filter: None, replay_rate: None, start, resync: true }
}

fn options(plugin: &str) -> DispatchOptions {
    DispatchOptions {
        plugin: plugin.into(),
        subscriptions: vec![subscribe("jobs", Mode::Every, Start::Beginning)],
        delivery: DeliverySpec::default(),
        concurrency: 4,
        tick: None,
        pauses: LongestPauses::default(),
    }
}

fn in_simulated_time(scenario: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.unwrap().block_on(scenario);
}

/// A running dispatcher. Dropping it kills it.
struct RunningDispatcher {
    handle: DispatchHandle,
    drain: CancellationToken,
    abort: CancellationToken,
    task: JoinHandle<Result<(), DispatchError>>,
}

impl Drop for RunningDispatcher {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[allow(clippy::disallowed_methods)]
fn start(
    options: DispatchOptions,
    journal: &Arc<FixtureJournal>,
    plugin: &Arc<FixturePlugin>,
) -> RunningDispatcher {
    let (drain, abort) = (CancellationToken::new(), CancellationToken::new());
    let clock = Arc::new(SimulatedClock(Instant::now()));
    let (dispatcher, handle) = PluginDispatcher::new(options, journal.clone(), plugin.clone(), clock);
    let task = tokio::spawn(dispatcher.run(drain.clone(), abort.clone()));
    RunningDispatcher { handle, drain, abort, task }
}

fn assert_adds_up(stats: &DispatchStats) {
    assert_eq!(stats.observed, stats.delivered + stats.filtered + stats.dead + stats.waiting, "{stats:?}");
}

impl RunningDispatcher {
    fn stats(&self) -> DispatchStats {
        let stats = self.handle.dispatch_stats();
        assert_adds_up(&stats);
        stats
    }

    fn saved_cursor(&self) -> Seq {
        self.handle.durable_cursor().map_or(0, |durable| durable.cursor)
    }

    /// Runs simulated time until the figures fit.
    async fn until(&self, what: &str, is_so: impl Fn(&DispatchStats) -> bool) -> DispatchStats {
        for _ in 0..200_000 {
            let stats = self.stats();
            assert!(!self.task.is_finished(), "it ended before {what}");
            if is_so(&stats) {
                return stats;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("never {what}: {:?}", self.stats());
    }

    async fn until_idle(&self) -> DispatchStats {
        self.until("idle", |stats| stats.started && stats.lag_seq == 0 && stats.waiting == 0).await
    }

    async fn end(mut self) -> Result<(), DispatchError> {
        self.drain.cancel();
        (&mut self.task).await.unwrap()
    }

    async fn kill(mut self) {
        self.task.abort();
        let ended = (&mut self.task).await;
        assert!(ended.is_err_and(|error| error.is_cancelled()), "it ended by itself");
    }
}
