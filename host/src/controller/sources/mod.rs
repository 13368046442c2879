//! The running sources: one list-watch each, started and stopped as configured.
//!
//! Two watches of one source would witness the same versions twice. So a source whose settings changed is
//! stopped before it starts again, and it resumes from its checkpoint. A source that fails stays and retries;
//! the others don't notice. If another replica is ahead, a source ends and begins again where that one is.
//! This module never looks into a state.

pub mod resync;
pub mod retention;
pub mod streams;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, bail};
use futures::FutureExt;
use kubewitness_core::clock::Clock;
use kubewitness_core::config::{SourceSpec, StreamSpec};
use kubewitness_core::ports::StateWitness;
use kubewitness_core::status::StatusRules;
use kubewitness_watch::{
    ApiConnection, CacheListers, RepairBudget, SourceError, SourceTask, SourceTasks, WatchTuning,
};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::shared::SharedStatus;
use crate::tasks::{TaskFate, TaskSupervisor};

/// The most sources that wait to start again.
const OVERTAKEN: usize = 16;

struct RunningSource {
    spec: SourceSpec,
    /// The stream that carries it, if another controller witnesses it.
    stream: Option<StreamSpec>,
    stop: CancellationToken,
    tasks: Vec<JoinHandle<()>>,
}

impl RunningSource {
    async fn await_end(self) {
        // The supervisor has their results. Here only their end matters.
        for task in self.tasks {
            task.await.ok();
        }
    }
}

/// The parts that every source is built from.
pub struct SourceParts {
    pub connection: ApiConnection,
    pub witness: Arc<dyn StateWitness>,
    pub clock: Arc<dyn Clock>,
    pub listers: CacheListers,
    pub shared: Arc<SharedStatus>,
    pub tasks: TaskSupervisor,
    tuning: WatchTuning,
    /// All sources ask the same server.
    repairs: RepairBudget,
    audits: Arc<AtomicBool>,
    rules: Arc<StatusRules>,
    running: BTreeMap<String, RunningSource>,
    overtaken: (mpsc::Sender<String>, mpsc::Receiver<String>),
}

impl SourceParts {
    pub fn new(
        connection: ApiConnection,
        witness: Arc<dyn StateWitness>,
        clock: Arc<dyn Clock>,
        shared: Arc<SharedStatus>,
        tasks: TaskSupervisor,
        tuning: WatchTuning,
    ) -> Self {
        let (rules, listers) = (Arc::new(StatusRules::builtin()), shared.listers.clone());
        let (running, overtaken) = (BTreeMap::new(), mpsc::channel(OVERTAKEN));
        let (repairs, audits) = (RepairBudget::default(), Arc::new(AtomicBool::new(true)));
        Self {
            connection,
            witness,
            clock,
            listers,
            shared,
            tasks,
            tuning,
            repairs,
            audits,
            rules,
            running,
            overtaken,
        }
    }

    /// Sets whether this process audits. An audit by each replica would request the same list.
    pub fn set_auditing(&self, audits: bool) {
        self.audits.store(audits, Ordering::Relaxed);
    }

    /// Returns a source that has ended because another witness of a shared journal is ahead.
    pub async fn next_overtaken(&mut self) -> String {
        match self.overtaken.1.recv().await {
            Some(name) => name,
            // A sender is held here, so the channel never closes.
            None => std::future::pending().await,
        }
    }

    /// Starts the source again at the journal's present position.
    pub async fn begin_again(&mut self, name: &str) {
        let Some(RunningSource { spec, stream, .. }) = self.running.get(name) else { return };
        let (spec, streams) = (spec.clone(), stream.iter().cloned().collect::<Vec<_>>());
        self.stop_source(name).await;
        self.start(&spec, &streams);
    }

    /// A source whose settings changed is stopped before it starts again: two at once would witness the same
    /// versions twice. The same applies if its kind has other rules now: it continues from its checkpoint,
    /// and journaled states keep their status.
    pub async fn reconcile_sources(
        &mut self,
        wanted: &[SourceSpec],
        streams: &[StreamSpec],
        rules: StatusRules,
    ) {
        self.shared.set_unsigned_streams(streams);
        // Resync and retention don't affect how it is witnessed.
        let watched = |spec: &SourceSpec| SourceSpec { resync: None, retention: None, ..spec.clone() };
        let is_wanted = |running: &RunningSource| {
            let (group, kind) = (running.spec.api_group(), &running.spec.kind);
            wanted.iter().any(|spec| watched(spec) == watched(&running.spec))
                && running.stream.as_ref() == streams::stream_of(&running.spec, streams)
                && rules.agree_on_kind(&self.rules, group, kind)
        };
        let names: Vec<_> = self
            .running
            .iter()
            .filter(|(_, running)| !is_wanted(running))
            .map(|(name, _)| name.clone())
            .collect();
        for name in names {
            self.stop_source(&name).await;
            // A source that restarts stays readable: its old objects are better than no answer.
            if wanted.iter().all(|spec| spec.name != name) {
                self.shared.remove_source(&name);
            }
        }
        self.rules = Arc::new(rules);
        for spec in wanted {
            if !self.running.contains_key(&spec.name) {
                self.start(spec, streams);
            }
        }
    }

    fn start(&mut self, spec: &SourceSpec, streams: &[StreamSpec]) {
        info!(source = spec.name, kind = spec.kind, "the source starts");
        let (source, handle) = SourceTask::new(
            &self.connection,
            spec.clone(),
            self.witness.clone(),
            self.clock.clone(),
            self.rules.clone(),
            self.listers.clone(),
        );
        let source = source
            .with_tuning(self.tuning.clone())
            .with_secret_rules(self.shared.secret_rules.clone())
            .with_repair_budget(self.repairs.clone())
            .with_audits(Arc::clone(&self.audits));
        self.shared.add_source(spec.clone(), handle);
        let stop = CancellationToken::new();
        let reader = streams::reader(spec, streams, self.clock.clone());
        let tasks = match reader {
            Some(reader) => {
                vec![self.spawn_essence(&spec.name, &stop, source.run_feed(Box::new(reader), stop.clone()))]
            }
            None => {
                let name = &spec.name;
                let SourceTasks { reading, making, appending } = source.split_tasks(stop.clone());
                let reading =
                    self.tasks.spawn_task(format!("reading {name}"), TaskFate::Finite, reading.map(Ok));
                let appending =
                    self.tasks.spawn_task(format!("appending {name}"), TaskFate::Finite, appending.map(Ok));
                vec![reading, self.spawn_essence(name, &stop, making), appending]
            }
        };
        let stream = streams::stream_of(spec, streams).cloned();
        self.running.insert(spec.name.clone(), RunningSource { spec: spec.clone(), stream, stop, tasks });
    }

    /// The task that makes a source's states: without it, the source is gone.
    fn spawn_essence(
        &self,
        name: &str,
        stop: &CancellationToken,
        making: impl Future<Output = Result<(), SourceError>> + Send + 'static,
    ) -> JoinHandle<()> {
        let (stop, name, overtaken) = (stop.clone(), name.to_owned(), self.overtaken.0.clone());
        self.tasks.spawn_task(format!("source {name}"), TaskFate::Finite, async move {
            match making.await {
                Err(SourceError::Overtaken(why)) => {
                    info!(source = name, "starting the source again: {why}");
                    // If sending fails, the reconciliation loop has ended.
                    overtaken.send(name).await.ok();
                    return Ok(());
                }
                made => made.with_context(|| format!("witnessing the source `{name}`"))?,
            }
            if !stop.is_cancelled() {
                bail!("the source `{name}` ended before it should");
            }
            Ok(())
        })
    }

    async fn stop_source(&mut self, name: &str) {
        if let Some(running) = self.running.remove(name) {
            info!(source = name, "the source stops");
            running.stop.cancel();
            running.await_end().await;
        }
    }

    /// Ends all of them at the same time.
    pub async fn shut_down(&mut self) {
        for running in self.running.values() {
            running.stop.cancel();
        }
        for running in std::mem::take(&mut self.running).into_values() {
            running.await_end().await;
        }
    }
}
