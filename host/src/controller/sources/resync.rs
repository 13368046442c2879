//! Decides when each source is resynced; the dispatchers decide what a plugin gets. Nothing is saved across a
//! restart: the next resync makes up for a missed one, and plugins that need every state read the journal.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use kubewitness_core::config::SourceSpec;
use tokio_util::sync::CancellationToken;

use crate::controller::shared::SharedStatus;
use crate::tasks::{TaskFate, TaskSupervisor};

struct RunningResync {
    every: Duration,
    stop: CancellationToken,
}

pub struct SourceResyncs {
    shared: Arc<SharedStatus>,
    tasks: TaskSupervisor,
    running: BTreeMap<String, RunningResync>,
}

impl SourceResyncs {
    pub fn new(shared: Arc<SharedStatus>, tasks: TaskSupervisor) -> Self {
        Self { shared, tasks, running: BTreeMap::new() }
    }

    pub fn reconcile_resyncs(&mut self, sources: &[SourceSpec]) {
        let wanted: BTreeMap<&str, Duration> =
            sources.iter().filter_map(|s| Some((s.name.as_str(), s.resync?.0))).collect();
        self.running.retain(|name, running| {
            let stays = wanted.get(name.as_str()) == Some(&running.every);
            if !stays {
                running.stop.cancel();
            }
            stays
        });
        for (name, every) in wanted {
            if !self.running.contains_key(name) {
                self.start(name, every);
            }
        }
    }

    fn start(&mut self, name: &str, every: Duration) {
        let stop = CancellationToken::new();
        let (shared, stopped, source) = (self.shared.clone(), stop.clone(), name.to_string());
        self.tasks.spawn_task(format!("resync of {name}"), TaskFate::Finite, async move {
            while stopped.run_until_cancelled(tokio::time::sleep(jitter_period(every))).await.is_some() {
                shared.resync_source(&source);
            }
            Ok(())
        });
        self.running.insert(name.to_string(), RunningResync { every, stop });
    }

    pub fn shut_down(&mut self) {
        for running in std::mem::take(&mut self.running).into_values() {
            running.stop.cancel();
        }
    }
}

/// Up to a tenth more or less, so that sources and replicas that began together drift apart.
fn jitter_period(every: Duration) -> Duration {
    let random = (RandomState::new().hash_one(0u8) % 1000) as f64 / 1000.0;
    every.mul_f64(0.9 + 0.2 * random)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(name: &str, seconds: Option<u64>) -> SourceSpec {
        let resync = seconds.map(|seconds| kubewitness_core::config::Duration(Duration::from_secs(seconds)));
        SourceSpec { resync, ..SourceSpec::of(name, "v1", "Pod") }
    }

    #[test]
    fn pauses_are_within_a_tenth_of_what_was_asked_for() {
        for _ in 0..1000 {
            let pause = jitter_period(Duration::from_secs(100)).as_secs_f64();
            assert!((90.0..=110.0).contains(&pause), "{pause}");
        }
    }

    #[tokio::test]
    async fn timers_follow_the_settings_and_end_with_them() {
        let tasks = TaskSupervisor::new(CancellationToken::new(), CancellationToken::new());
        let mut resyncs = SourceResyncs::new(Arc::default(), tasks.clone());
        resyncs.reconcile_resyncs(&[source("a", Some(60)), source("b", Some(60)), source("c", None)]);
        let stop = |resyncs: &SourceResyncs, name: &str| resyncs.running[name].stop.clone();
        let (a, b) = (stop(&resyncs, "a"), stop(&resyncs, "b"));
        assert_eq!(resyncs.running.len(), 2);
        resyncs.reconcile_resyncs(&[source("a", Some(60)), source("b", Some(30)), source("c", Some(20))]);
        assert!(!a.is_cancelled() && b.is_cancelled(), "one whose pause did not change goes on");
        assert_eq!(resyncs.running.len(), 3);
        resyncs.reconcile_resyncs(&[source("a", Some(60))]);
        resyncs.shut_down();
        assert!(a.is_cancelled());
        tasks.await_all().await.unwrap();
    }
}
