//! Asks the journal at intervals to remove states beyond each source's settings, one source after the other.
//! The journal decides which states may be removed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use kubewitness_core::clock::{Clock, SystemClock};
use kubewitness_core::config::{RetentionSpec, SourceSpec};
use kubewitness_journal::{Journal, RecordAges, SourceRetention};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::controller::shared::SharedStatus;
use crate::process::timers::RetentionTimers;
use crate::tasks::{TaskFate, TaskSupervisor};

struct RunningRetention {
    spec: RetentionSpec,
    stop: CancellationToken,
}

pub struct SourceRetentions {
    journal: Journal,
    shared: Arc<SharedStatus>,
    tasks: TaskSupervisor,
    timers: RetentionTimers,
    running: BTreeMap<String, RunningRetention>,
    record_ages: RecordAges,
}

impl SourceRetentions {
    pub fn new(
        journal: Journal,
        shared: Arc<SharedStatus>,
        tasks: TaskSupervisor,
        timers: RetentionTimers,
    ) -> Self {
        Self { journal, shared, tasks, timers, running: BTreeMap::new(), record_ages: RecordAges::default() }
    }

    pub fn reconcile_retentions(&mut self, sources: &[SourceSpec]) {
        let wanted: BTreeMap<&str, RetentionSpec> =
            sources.iter().filter_map(|source| Some((source.name.as_str(), source.retention?))).collect();
        self.record_ages.keep_sources(sources.iter().map(|source| source.name.as_str()));
        self.running.retain(|name, running| {
            let stays = wanted.get(name.as_str()) == Some(&running.spec);
            if !stays {
                running.stop.cancel();
                self.shared.forget_held(name);
                self.record_ages.forget_age(name);
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
        let mut retention =
            SourceRetention::new(self.journal.clone(), name).with_record_ages(&self.record_ages);
        let (shared, clock, timers) = (self.shared.clone(), SystemClock::default(), self.timers);
        let journal = self.journal.clone();
        self.tasks.spawn_task(format!("retention of {name}"), TaskFate::Finite, async move {
            let mut pause = timers.first;
            while stopped.run_until_cancelled(tokio::time::sleep(pause)).await.is_some() {
                pause = timers.pause;
                let begun = Instant::now();
                // If it is dropped in the middle, the removals so far stay.
                let passed = stopped.run_until_cancelled(retention.run_pass(&spec)).await;
                if let Some(Ok(report)) = &passed {
                    shared.set_held(&source, retention.held_states(), clock.now_ms());
                    if report.states > 0 {
                        measure_reports(&shared, &journal).await;
                    }
                }
                match passed {
                    Some(Ok(report)) if report.states > 0 => info!(
                        source,
                        states = report.states,
                        bytes = report.bytes,
                        untold = report.untold,
                        seconds = begun.elapsed().as_secs_f32(),
                        "retention removed the oldest states"
                    ),
                    Some(Ok(_)) | None => {}
                    Some(Err(error)) => warn!(source, %error, "retention could not go on; it tries again"),
                }
            }
            Ok(())
        });
        self.running.insert(name.to_string(), RunningRetention { spec, stop });
    }

    pub fn shut_down(&mut self) {
        for (name, running) in std::mem::take(&mut self.running) {
            running.stop.cancel();
            self.shared.forget_held(&name);
        }
    }
}

/// Reports are removed with the last state of their object.
async fn measure_reports(shared: &SharedStatus, journal: &Journal) {
    for (plugin, room) in shared.report_rooms() {
        match journal.report_bytes(&plugin).await {
            Ok(bytes) => room.set_limit(bytes),
            Err(error) => {
                warn!(plugin, %error, "the plugin's reports can't be measured; the next pass tries again");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::process::timers::ControllerTimers;

    use kubewitness_core::ports::{
        AppendBatch, Backlog, PluginProgress, ProgressSave, SourceStart, StateWitness, WitnessedState,
    };
    use kubewitness_core::{Change, ObjectRef, StateId, Version};
    use kubewitness_journal::RetentionHolder;

    fn source(name: &str, count: Option<u64>) -> SourceSpec {
        let retention = count.map(|count| RetentionSpec { count: Some(count), ..RetentionSpec::default() });
        SourceSpec { retention, ..SourceSpec::of(name, "v1", "Pod") }
    }

    /// `status` and the portal show the results of the passes themselves.
    #[tokio::test]
    async fn what_holds_a_source_is_known_after_a_pass_and_forgotten_with_its_bounds() {
        let folder = tempfile::tempdir().unwrap();
        let options = kubewitness_journal::JournalOptions::default();
        let journal = Journal::open(&folder.path().join("journal.db"), options).await.unwrap();
        let object = Arc::new(ObjectRef { kind: "Pod".into(), uid: "u".into(), ..ObjectRef::default() });
        let states = (1..=20).map(|number: u64| {
            let version = Version::new(&number.to_string());
            WitnessedState {
                id: StateId::of("a", 0, &object, Change::Present, &version, None),
                change: Change::Present,
                object: object.clone(),
                owner: None,
                controller: None,
                resource_version: version,
                status: Arc::default(),
                previous: None,
                observed_ms: 1,
                document: "{}".into(),
                base: None,
                quotes_none_under: None,
            }
        });
        let (states, checkpoint) = (states.collect(), Some(Version::new("20")));
        journal
            .append_batch(AppendBatch { source: "a".into(), states, checkpoint, ..AppendBatch::default() })
            .await
            .unwrap();
        let sources = vec![SourceStart { source: "a".into(), after: 0, until: None }];
        let save = ProgressSave {
            progress: PluginProgress { sources, ..PluginProgress::default() },
            ..ProgressSave::default()
        };
        journal.save("audit", save).await.unwrap();
        let tasks = TaskSupervisor::new(CancellationToken::new(), CancellationToken::new());
        let shared = Arc::<SharedStatus>::default();
        let at_once = RetentionTimers { first: Duration::ZERO, ..ControllerTimers::default().retention };
        let mut retentions = SourceRetentions::new(journal, shared.clone(), tasks.clone(), at_once);
        retentions.reconcile_retentions(&[source("a", Some(5))]);
        let deadline = Instant::now() + Duration::from_secs(60);
        while shared.retention_holds().is_empty() && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let held = shared.retention_holds();
        let kept = held["a"][&RetentionHolder::Plugin("audit".into())];
        assert_eq!((held["a"].len(), kept.states), (1, 15));
        retentions.shut_down();
        assert!(shared.retention_holds().is_empty());
        tasks.await_all().await.unwrap();
    }

    #[tokio::test]
    async fn tasks_follow_the_settings_and_end_with_them() {
        let folder = tempfile::tempdir().unwrap();
        let options = kubewitness_journal::JournalOptions::default();
        let journal = Journal::open(&folder.path().join("journal.db"), options).await.unwrap();
        let tasks = TaskSupervisor::new(CancellationToken::new(), CancellationToken::new());
        let mut retentions = SourceRetentions::new(
            journal,
            Arc::default(),
            tasks.clone(),
            ControllerTimers::default().retention,
        );
        retentions.reconcile_retentions(&[source("a", Some(60)), source("b", Some(60)), source("c", None)]);
        let stop = |retentions: &SourceRetentions, name: &str| retentions.running[name].stop.clone();
        let (a, b) = (stop(&retentions, "a"), stop(&retentions, "b"));
        assert_eq!(retentions.running.len(), 2);
        retentions.reconcile_retentions(&[source("a", Some(60)), source("b", Some(30))]);
        assert!(!a.is_cancelled() && b.is_cancelled(), "one whose bounds did not change goes on");
        retentions.reconcile_retentions(&[source("a", Some(60))]);
        retentions.shut_down();
        assert!(a.is_cancelled());
        tasks.await_all().await.unwrap();
    }
}
