//! The running plugins, and how one version replaces another.
//!
//! A change is parsed, compiled and checked before it is accepted; if a check fails, the running version
//! stays. Then the old version drains, and the new one continues from the cursor. Starting the new one at
//! once was rejected: two versions would get the same states. If only the component differs and nothing waits
//! for a retry, nothing drains: the next call simply goes to the new version. This module decides nothing
//! about configuration: `reconcile` does.

mod calls;
mod candidate;
mod draining;
mod filters;
mod losses;
mod manifest;
mod probation;
mod shadow;
mod version;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use kubewitness_capability::{GrantUses, OpenCapabilities, PluginServices, SharedValue, StartPositions};
use kubewitness_core::Seq;
use kubewitness_core::clock::Clock;
use kubewitness_core::config::{HostSpec, PluginSpec, Start, SubscribeSpec};
use kubewitness_core::ports::{Backlog, DurableCursor, GrantProvider, JournalError, PluginProgress};
use kubewitness_core::views::ManifestView;
use kubewitness_dispatch::{
    DispatchHandle, DispatchOptions, LongestPauses, PluginDispatcher, SourceSubscription, note_beginning,
};
use kubewitness_journal::Journal;
use kubewitness_sandbox::{PluginTally, SandboxEngine, SandboxPlugin};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::election::ReplicaElection;
use super::shared::{PluginPhase, PluginState, SharedStatus};
use super::trial;
use crate::config::component::{self, ComponentFolders, PulledFrom};
use crate::config::manifest::{ManifestEntry, ManifestProblem, parse_plugin};
use crate::tasks::{TaskFate, TaskSupervisor};
use calls::PluginCalls;
pub use candidate::{ExaminedFit, ExaminedQuestion, PluginCandidate, WantedPlugin, examine_component};
use draining::DrainingPlugins;
pub use draining::StopOutcome;
pub use losses::{LostCommits, recorded_losses};
use probation::VersionProbation;
use shadow::{ShadowTask, VersionPair};
use version::PluginVersion;

struct RunningPlugin {
    candidate: PluginCandidate,
    plugin: Arc<SandboxPlugin>,
    grants: Arc<dyn GrantProvider>,
    calls: PluginCalls,
    drain: CancellationToken,
    abort: CancellationToken,
    task: JoinHandle<()>,
    handle: DispatchHandle,
    probation: VersionProbation,
}

pub struct RunningPlugins {
    pub engine: SandboxEngine,
    pub journal: Journal,
    pub clock: Arc<dyn Clock>,
    pub shared: Arc<SharedStatus>,
    pub tasks: TaskSupervisor,
    pub folders: ComponentFolders,
    /// Stops calls at once, in every draining plugin.
    pub abort: CancellationToken,
    /// Decides whether calls are made, if replicas share the journal.
    election: Option<ReplicaElection>,
    /// The value that each plugin with `kv` sees.
    shared_mutes: SharedValue,
    pauses: LongestPauses,
    running: BTreeMap<String, RunningPlugin>,
    /// Plugins with calls that have not ended. Until these end, no other version gets the plugin's states.
    draining: BTreeMap<String, DrainingPlugins>,
    /// The candidates of drained plugins, until their successors start.
    drained: BTreeMap<String, PluginCandidate>,
    /// How often each plugin was granted its database. An answer that was requested before the last grant
    /// concerns the former database.
    granted: BTreeMap<String, u64>,
    /// Signals that the probation of a version has ended.
    decided: Arc<Notify>,
    damage: Option<String>,
}

impl RunningPlugins {
    pub fn new(
        engine: SandboxEngine,
        journal: Journal,
        clock: Arc<dyn Clock>,
        shared: Arc<SharedStatus>,
        tasks: TaskSupervisor,
        folders: ComponentFolders,
        abort: CancellationToken,
    ) -> Self {
        let (running, draining, drained) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self {
            engine,
            journal,
            clock,
            shared,
            tasks,
            folders,
            abort,
            election: None,
            shared_mutes: SharedValue::default(),
            pauses: LongestPauses::default(),
            running,
            draining,
            drained,
            granted: BTreeMap::new(),
            decided: Arc::default(),
            damage: None,
        }
    }

    /// For a replica: calls are made only while it is elected.
    pub fn elected_by(self, election: Option<ReplicaElection>) -> Self {
        Self { election, ..self }
    }

    pub fn with_shared_mutes(self, shared_mutes: SharedValue) -> Self {
        Self { shared_mutes, ..self }
    }

    /// The longest pauses of plugins whose calls fail.
    pub fn with_pauses(self, pauses: LongestPauses) -> Self {
        Self { pauses, ..self }
    }

    /// Parses the document and finds the component. Running plugins are not touched.
    pub async fn find(
        &self,
        entry: &ManifestEntry,
        host: &HostSpec,
    ) -> Result<WantedPlugin, Vec<ManifestProblem>> {
        let parsed = parse_plugin(entry, host)?;
        let found = component::find(&parsed, &self.folders, host).await?;
        let shadow = match parsed.shadow() {
            Some(shadow) => {
                let found = component::find(&shadow, &self.folders, host).await?;
                Some(WantedPlugin::new(shadow, found, host))
            }
            None => None,
        };
        let warnings = parsed.problems(parsed.spec.warnings(host));
        Ok(WantedPlugin { warnings, ..WantedPlugin::new(parsed, found, host).with_shadow(shadow) })
    }

    /// Records in the journal where a plugin begins that does not run yet.
    pub async fn note_beginning(&self, plugin: &str, spec: &PluginSpec) -> Result<(), JournalError> {
        let subscriptions = subscriptions(spec, &self.journal);
        note_beginning(plugin, &subscriptions, &self.journal, self.clock.now_ms()).await
    }

    pub fn candidate(&self, name: &str) -> Option<&PluginCandidate> {
        self.running.get(name).map(|running| &running.candidate)
    }

    pub fn is_running(&self, name: &str) -> bool {
        self.running.contains_key(name)
    }

    pub fn is_draining(&self, name: &str) -> bool {
        self.draining.contains_key(name)
    }

    /// The ConfigMap of the running version of the plugin.
    pub fn config_map(&self, name: &str) -> Option<String> {
        self.running.get(name).map(|running| running.candidate.parsed.entry.config_map.clone())
    }

    /// Waits until the probation of a version has ended. Only plugins that had another version before count.
    pub fn version_decided(&self) -> impl Future<Output = ()> + use<> {
        let decided = Arc::clone(&self.decided);
        async move { decided.notified().await }
    }

    /// The failure of the running version's first calls, with the question that the version answers.
    pub fn first_failure(&self, name: &str) -> Option<(ExaminedQuestion, String)> {
        let running = self.running.get(name)?;
        running.probation.why_failed().map(|why| (running.candidate.question.clone(), why))
    }

    pub fn has_worked(&self, name: &str) -> bool {
        self.running.get(name).is_some_and(|running| running.probation.has_passed())
    }

    pub fn names(&self) -> Vec<String> {
        self.running.keys().cloned().collect()
    }

    pub fn digest(&self, name: &str) -> String {
        self.running
            .get(name)
            .map(|running| running.candidate.component.file_digest().to_string())
            .unwrap_or_default()
    }

    /// Whether this very document with this component was examined, and runs.
    pub fn runs_as(&self, wanted: &WantedPlugin) -> bool {
        let running = self.running.get(&wanted.parsed.name);
        running.is_some_and(|running| running.candidate.question == wanted.question)
    }

    /// Whether the running version would behave as the candidate. If so, the candidate's document represents
    /// it from now on.
    pub fn runs_same_version(&mut self, candidate: &PluginCandidate) -> bool {
        let Some(running) = self.running.get_mut(&candidate.parsed.name) else { return false };
        let is_same = running.candidate.is_same(candidate);
        if is_same {
            running.candidate = candidate.clone();
        }
        is_same
    }

    /// Starts the candidate. If that fails after all, the previous version runs again. Returns `false` if the
    /// previous version has not drained yet; the candidate must be passed again once it has.
    pub async fn take(
        &mut self,
        candidate: PluginCandidate,
        capabilities: &OpenCapabilities,
    ) -> Result<bool> {
        let name = candidate.parsed.name.clone();
        if self.can_replace(&candidate) {
            self.replace_version(candidate).await?;
            return Ok(true);
        }
        let before = match self.stop_plugin(&name).await {
            StopOutcome::NotYet => return Ok(false),
            StopOutcome::Drained(before) => Some(*before),
            StopOutcome::NotThere => None,
        };
        // The drain took a while. During shutdown, nothing new is started that would have to drain as well.
        if self.tasks.is_stopping() {
            return Ok(true);
        }
        let Err(error) = self.start(candidate, capabilities).await else { return Ok(true) };
        if let Some(before) = before {
            self.start(before, capabilities).await.with_context(|| {
                format!("and the version before can't be started again (first: {error:#})")
            })?;
        }
        Err(error)
    }

    /// Whether the next call may go to the candidate while calls of the running version are in progress. If
    /// calls have failed, the candidate should retry at once instead of waiting for the pause that the
    /// failures earned. So then the running version drains, and the pauses end with it.
    fn can_replace(&self, candidate: &PluginCandidate) -> bool {
        let Some(running) = self.running.get(&candidate.parsed.name) else { return false };
        let stats = running.handle.dispatch_stats();
        let is_calm = stats.started && stats.retrying == 0 && stats.consecutive_failures == 0 && !stats.open;
        is_calm && !running.task.is_finished() && candidate.differs_in_components_alone(&running.candidate)
    }

    /// Replaces the running version by the candidate.
    async fn replace_version(&mut self, candidate: PluginCandidate) -> Result<()> {
        let name = candidate.parsed.name.clone();
        let Some(running) = self.running.get(&name) else { return Ok(()) };
        let Some(state) = self.shared.plugin(&name) else { return Ok(()) };
        candidate.warnings.iter().for_each(|warning| warn!("{warning}"));
        let made =
            PluginVersion::of(&name, &candidate, running.grants.clone(), state.tally.clone(), &self.decided);
        let version = made.await?.with_shadow(self.shadow_of(&candidate));
        let Some(running) = self.running.get_mut(&name) else { return Ok(()) };
        let PluginVersion { plugin, handler, probation, manifest, shadow } = version;
        // A call that begins meanwhile waits for it.
        let begun = Instant::now();
        running.grants.begin_version(candidate.component.file_digest());
        running.calls.replace_handler(handler);
        let took = begun.elapsed();
        self.shared.set_plugin(&name, active_state(&candidate, manifest, PluginState { shadow, ..state }));
        (running.candidate, running.plugin, running.probation) = (candidate, plugin, probation);
        info!(plugin = name, ?took, "replaced: calls from now on go to the new version");
        Ok(())
    }

    /// The version that is compared with the candidate, if its manifest names one.
    fn shadow_of(&self, candidate: &PluginCandidate) -> Option<ShadowTask> {
        let shadow = candidate.shadow.as_deref()?;
        let pair = VersionPair { active: candidate.clone(), shadow: shadow.clone() };
        let folder = self.folders.data.as_deref().map(trial::folder);
        let (journal, shared) = (self.journal.clone(), self.shared.clone());
        Some(ShadowTask::start(pair, folder, journal, shared, &self.clock, &self.tasks))
    }

    /// A fatal error of the journal at the start of a plugin. No configuration caused it, and later writes
    /// would go to an untrustworthy disk.
    pub fn journal_damage(&self) -> Option<&str> {
        self.damage.as_deref()
    }

    async fn start(&mut self, candidate: PluginCandidate, capabilities: &OpenCapabilities) -> Result<()> {
        let started = self.try_to_start(candidate, capabilities).await;
        if let Err(error) = &started
            && error.chain().any(|cause| matches!(cause.downcast_ref(), Some(JournalError::Fatal(_))))
        {
            self.damage.get_or_insert_with(|| format!("{error:#}"));
        }
        started
    }

    async fn try_to_start(
        &mut self,
        candidate: PluginCandidate,
        capabilities: &OpenCapabilities,
    ) -> Result<()> {
        let (name, spec) = (candidate.parsed.name.clone(), &candidate.parsed.spec);
        let others = self.running.iter().filter(|(other, _)| **other != name);
        let beside = others.flat_map(|(other, it)| spec.warnings_beside(other, &it.candidate.parsed.spec));
        for warning in candidate.warnings.iter().chain(&candidate.parsed.problems(beside.collect())) {
            warn!("{warning}");
        }
        self.journal.await_earlier_writes().await.context("waiting for earlier writes to the journal")?;
        let progress = self.journal.plugin_progress(&name).await.context("reading its progress")?;
        let uses = Arc::new(GrantUses::of(&spec.grants));
        let reports = self.shared.report_room(&name);
        reports.set_limit(self.journal.report_bytes(&name).await.context("measuring its reports")?);
        let kv = self.journal.plugin_kv(&name).await.context("reading its kv")?;
        self.shared.set_losses(&name, recorded_losses(&kv));
        let backing = PluginServices {
            documents: Arc::new(self.journal.clone()),
            lister: Arc::new(self.shared.listers.clone()),
            outcomes: self.shared.outcomes(),
            subscribed: self.shared.subscribed(spec),
            clock: self.clock.clone(),
            uses: uses.clone(),
            kv,
            shared_mutes: self.shared_mutes.clone(),
            reports,
            notes: Arc::new(self.journal.clone()),
            version: candidate.component.file_digest().to_owned(),
            positions: StartPositions {
                cursor: progress.as_ref().map_or(0, |progress| cursor_before(progress, spec)),
                furthest_cursor: progress.as_ref().map_or(0, PluginProgress::furthest_cursor),
                furthest: progress.as_ref().map_or(0, PluginProgress::furthest_position),
                newest: *self.journal.newest_position().borrow(),
            },
        };
        *self.granted.entry(name.clone()).or_default() += 1;
        let grants = capabilities.grant_plugin(&name, spec, backing).await.context("opening its grants")?;
        let before = self.shared.plugin(&name).filter(|state| state.handle.is_some());
        let tally =
            before.map_or_else(|| Arc::new(PluginTally::new(self.clock.clone())), |state| state.tally);
        let made = PluginVersion::of(&name, &candidate, grants.clone(), tally.clone(), &self.decided);
        let version = made.await?.with_shadow(self.shadow_of(&candidate));
        let PluginVersion { plugin, handler, probation, manifest, shadow } = version;
        let options = DispatchOptions {
            plugin: name.clone(),
            subscriptions: subscriptions(spec, &self.journal),
            delivery: spec.delivery.clone(),
            concurrency: spec.batches_at_once(),
            tick: spec.tick,
            pauses: self.pauses,
        };
        let calls = PluginCalls::new(&name, handler, self.tasks.clone(), self.election.clone());
        let (dispatcher, handle) = PluginDispatcher::new(
            options,
            Arc::new(self.journal.clone()),
            Arc::new(calls.clone()),
            self.clock.clone(),
        );
        let (drain, abort) = (CancellationToken::new(), self.abort.child_token());
        let (drained, aborted, task_name, called) =
            (drain.clone(), abort.clone(), name.clone(), calls.clone());
        let task = self.tasks.spawn_task(format!("plugin {name}"), TaskFate::Finite, async move {
            let ended = dispatcher.run(drained, aborted).await;
            called.await_idle().await;
            ended.with_context(|| format!("dispatching to `{task_name}`"))
        });
        let state = PluginState {
            handle: Some(handle.clone()),
            uses,
            tally,
            shadow,
            ..PluginState::idle(PluginPhase::Active, None)
        };
        self.shared.set_plugin(&name, active_state(&candidate, manifest, state));
        let running =
            RunningPlugin { candidate, plugin, grants, calls, drain, abort, task, handle, probation };
        self.running.insert(name, running);
        Ok(())
    }

    /// Releases the instances of a burst once it is quiet.
    pub fn drop_idle_instances(&self) {
        let now = Instant::now();
        for running in self.running.values() {
            running.plugin.drop_idle_instances(now);
        }
    }

    /// The durable cursor of a plugin, once it is known. Earlier states need no receipts.
    pub fn durable_cursor(&self, name: &str) -> Option<DurableCursor> {
        self.running.get(name)?.handle.durable_cursor()
    }
}

/// A cursor at or before the plugin's actual start. For an added source, its dispatcher may go back to the
/// very beginning.
fn cursor_before(progress: &PluginProgress, spec: &PluginSpec) -> Seq {
    let goes_back = |it: &SubscribeSpec| it.start != Start::Now && !progress.is_subscribed(&it.source);
    if spec.subscribe.iter().any(goes_back) { 0 } else { progress.cursor }
}

/// The view that people have of a version from its first call on, beside what is kept across versions.
fn active_state(candidate: &PluginCandidate, manifest: ManifestView, kept: PluginState) -> PluginState {
    PluginState {
        phase: PluginPhase::Active,
        digest: candidate.component.file_digest().to_string(),
        module: candidate.pulled.as_ref().map(PulledFrom::source_label),
        message: None,
        manifest: Some(Arc::new(manifest)),
        ..kept
    }
}

fn subscriptions(spec: &PluginSpec, journal: &Journal) -> Vec<SourceSubscription> {
    let filter = |text: &str| filters::compile_filter(text, Arc::new(journal.clone()));
    let subscription = |s: &SubscribeSpec| SourceSubscription {
        source: s.source.as_str().into(),
        mode: s.mode,
        filter: s.filter.as_deref().and_then(filter),
        replay_rate: s.replay_rate,
        start: s.start,
        resync: s.resync,
    };
    spec.subscribe.iter().map(subscription).collect()
}
