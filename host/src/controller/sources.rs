//! The sources that run: one list-watch each, started and stopped as the configuration says.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context, bail};
use futures::FutureExt;
use kubewitness_core::clock::Clock;
use kubewitness_core::config::SourceSpec;
use kubewitness_core::ports::Witness;
use kubewitness_core::status::Rules;
use kubewitness_watch::{Connection, Listers, Source, Split};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::shared::Shared;
use crate::tasks::{Fate, Tasks};

struct Running {
    spec: SourceSpec,
    stop: CancellationToken,
    tasks: [JoinHandle<()>; 3],
}

impl Running {
    async fn ended(self) {
        // How they ended was told to the supervisor; here only that they have.
        for task in self.tasks {
            task.await.ok();
        }
    }
}

/// What every source is built from.
pub struct Sources {
    pub connection: Connection,
    pub witness: Arc<dyn Witness>,
    pub clock: Arc<dyn Clock>,
    pub listers: Listers,
    pub shared: Arc<Shared>,
    pub tasks: Tasks,
    rules: Arc<Rules>,
    running: BTreeMap<String, Running>,
}

impl Sources {
    pub fn new(
        connection: Connection,
        witness: Arc<dyn Witness>,
        clock: Arc<dyn Clock>,
        shared: Arc<Shared>,
        tasks: Tasks,
    ) -> Self {
        let (rules, listers) = (Arc::new(Rules::builtin()), shared.listers.clone());
        Self { connection, witness, clock, listers, shared, tasks, rules, running: BTreeMap::new() }
    }

    /// A source whose settings changed is stopped before it starts again: two at once would
    /// witness the same versions twice. So is one whose kind has other rules now: it goes on from
    /// its checkpoint, and what is journaled keeps the status that it was given.
    pub async fn reconcile(&mut self, wanted: &[SourceSpec], rules: Rules) {
        // When it is resynced and what is kept of it has nothing to do with how it is witnessed.
        let watched = |spec: &SourceSpec| SourceSpec { resync: None, retention: None, ..spec.clone() };
        let is_wanted = |running: &Running| {
            let (group, kind) = (group_of(&running.spec), &running.spec.kind);
            wanted.iter().any(|spec| watched(spec) == watched(&running.spec))
                && rules.agree(&self.rules, group, kind)
        };
        let names: Vec<_> = self
            .running
            .iter()
            .filter(|(_, running)| !is_wanted(running))
            .map(|(name, _)| name.clone())
            .collect();
        for name in names {
            self.stop(&name).await;
            // One that starts again is asked meanwhile, and what it had is better than no answer.
            if wanted.iter().all(|spec| spec.name != name) {
                self.shared.remove_source(&name);
            }
        }
        self.rules = Arc::new(rules);
        for spec in wanted {
            if !self.running.contains_key(&spec.name) {
                self.start(spec);
            }
        }
    }

    fn start(&mut self, spec: &SourceSpec) {
        info!(source = spec.name, kind = spec.kind, "starting");
        let (source, handle) = Source::new(
            &self.connection,
            spec.clone(),
            self.witness.clone(),
            self.clock.clone(),
            self.rules.clone(),
            self.listers.clone(),
        );
        self.shared.add_source(spec.clone(), handle);
        let stop = CancellationToken::new();
        let (token, name) = (stop.clone(), spec.name.clone());
        let Split { reading, making, appending } = source.split(token.clone());
        let reading = self.tasks.spawn(format!("reading {name}"), Fate::Finite, reading.map(Ok));
        let appending = self.tasks.spawn(format!("appending {name}"), Fate::Finite, appending.map(Ok));
        let making = self.tasks.spawn(format!("source {name}"), Fate::Finite, async move {
            making.await.with_context(|| format!("witnessing the source `{name}`"))?;
            if !token.is_cancelled() {
                bail!("the source `{name}` ended before it should");
            }
            Ok(())
        });
        self.running.insert(
            spec.name.clone(),
            Running { spec: spec.clone(), stop, tasks: [reading, making, appending] },
        );
    }

    async fn stop(&mut self, name: &str) {
        if let Some(running) = self.running.remove(name) {
            info!(source = name, "stopping");
            running.stop.cancel();
            running.ended().await;
        }
    }

    /// Ends all of them, at once.
    pub async fn shut_down(&mut self) {
        for running in self.running.values() {
            running.stop.cancel();
        }
        for running in std::mem::take(&mut self.running).into_values() {
            running.ended().await;
        }
    }
}

/// The group of what a source witnesses; empty for the core group.
pub fn group_of(source: &SourceSpec) -> &str {
    source.api_version.rsplit_once('/').map_or("", |(group, _)| group)
}
