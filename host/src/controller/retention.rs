//! When each source's history is cut to what its settings keep. What may go is the journal's to
//! decide; here is only that somebody asks, one source after the other.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use kubewitness_core::config::{RetentionSpec, SourceSpec};
use kubewitness_journal::{Journal, Retention};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::tasks::{Fate, Tasks};

/// Between two passes. A pass that finds nothing reads one figure for each 1,024 states.
const PAUSE: Duration = Duration::from_secs(60);
/// Before the first one: a start has other things to read.
const FIRST: Duration = Duration::from_secs(5);

struct Running {
    spec: RetentionSpec,
    stop: CancellationToken,
}

pub struct Retentions {
    journal: Journal,
    tasks: Tasks,
    running: BTreeMap<String, Running>,
}

impl Retentions {
    pub fn new(journal: Journal, tasks: Tasks) -> Self {
        Self { journal, tasks, running: BTreeMap::new() }
    }

    pub fn reconcile(&mut self, sources: &[SourceSpec]) {
        let wanted: BTreeMap<&str, RetentionSpec> =
            sources.iter().filter_map(|source| Some((source.name.as_str(), source.retention?))).collect();
        self.running.retain(|name, running| {
            let stays = wanted.get(name.as_str()) == Some(&running.spec);
            if !stays {
                running.stop.cancel();
            }
            stays
        });
        for (name, spec) in wanted {
            if !self.running.contains_key(name) {
                self.start(name, spec);
            }
        }
    }

    fn start(&mut self, name: &str, spec: RetentionSpec) {
        let stop = CancellationToken::new();
        let (stopped, source) = (stop.clone(), name.to_string());
        let mut retention = Retention::new(self.journal.clone(), name);
        self.tasks.spawn(format!("retention of {name}"), Fate::Finite, async move {
            let mut pause = FIRST;
            while stopped.run_until_cancelled(tokio::time::sleep(pause)).await.is_some() {
                pause = PAUSE;
                let begun = Instant::now();
                // Dropped in the middle it has taken what it has taken.
                match stopped.run_until_cancelled(retention.pass(&spec)).await {
                    Some(Ok(told)) if told.states > 0 => info!(
                        source,
                        states = told.states,
                        bytes = told.bytes,
                        untold = told.untold,
                        seconds = begun.elapsed().as_secs_f32(),
                        "retention took the oldest states"
                    ),
                    Some(Ok(_)) | None => {}
                    Some(Err(error)) => warn!(source, %error, "retention could not go on; it tries again"),
                }
            }
            Ok(())
        });
        self.running.insert(name.to_string(), Running { spec, stop });
    }

    pub fn shut_down(&mut self) {
        for running in std::mem::take(&mut self.running).into_values() {
            running.stop.cancel();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(name: &str, count: Option<u64>) -> SourceSpec {
        let retention = count.map(|count| RetentionSpec { count: Some(count), ..RetentionSpec::default() });
        SourceSpec { retention, ..SourceSpec::of(name, "v1", "Pod") }
    }

    #[tokio::test]
    async fn tasks_follow_the_settings_and_end_with_them() {
        let folder = tempfile::tempdir().unwrap();
        let options = kubewitness_journal::JournalOptions::default();
        let journal = Journal::open(&folder.path().join("journal.db"), options).await.unwrap();
        let tasks = Tasks::new(CancellationToken::new(), CancellationToken::new());
        let mut retentions = Retentions::new(journal, tasks.clone());
        retentions.reconcile(&[source("a", Some(60)), source("b", Some(60)), source("c", None)]);
        let stop = |retentions: &Retentions, name: &str| retentions.running[name].stop.clone();
        let (a, b) = (stop(&retentions, "a"), stop(&retentions, "b"));
        assert_eq!(retentions.running.len(), 2);
        retentions.reconcile(&[source("a", Some(60)), source("b", Some(30))]);
        assert!(!a.is_cancelled() && b.is_cancelled(), "one whose bounds did not change goes on");
        retentions.reconcile(&[source("a", Some(60))]);
        retentions.shut_down();
        assert!(a.is_cancelled());
        tasks.finish().await.unwrap();
    }
}
