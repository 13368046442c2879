//! The loop that makes what runs equal to what is configured. It alone starts and stops sources, streams and plugins;
//! it reads no state and answers no request.

mod handover;
mod housekeeping;
pub mod report;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use kubewitness_capability::{Capabilities, Redaction};
use kubewitness_core::config::{Fault, HostLimitsSpec, HostSpec, SourceSpec, is_name};
use kubewitness_core::ports::Backlog;
use kubewitness_core::status::Rules;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::election::Office;
use super::plugins::{Candidate, Plugins, Stopped};
use super::shared::{Phase, PluginState, Shared};
use super::sources::resync::Resyncs;
use super::sources::retention::Retentions;
use super::sources::streams::Streams;
use super::sources::{Sources, group_of};
use crate::config::Snapshot;
use crate::config::last_good::{GoodPlugin, LastGood};
use crate::config::manifest::{Entry, Parsed, Problem, claimed_name, parse_host, parse_plugin};
use report::{Report, Reporter};

/// Several files written one after the other are one change.
const DEBOUNCE: Duration = Duration::from_millis(200);
/// What a burst left in memory is let go of after this long without another state.
const QUIET: Duration = Duration::from_secs(1);
/// What was refused or could not be opened is looked at again: a component or a database may have come since. What
/// takes long to fail takes no longer than its own bound.
const RETRY: Duration = Duration::from_secs(10);

pub struct Control {
    pub data: PathBuf,
    pub sources: Sources,
    resyncs: Resyncs,
    retentions: Retentions,
    streams: Streams,
    office: Office,
    pub plugins: Plugins,
    pub reporter: Reporter,
    pub last_good: LastGood,
    pub good_plugins: BTreeMap<String, GoodPlugin>,
    pub shared: std::sync::Arc<Shared>,
    host: Option<HostSpec>,
    capabilities: Option<Capabilities>,
    refused: bool,
    /// What of the configuration is not taken, and was told.
    untaken: BTreeSet<String>,
    /// At the last look.
    journal_was_in_trouble: bool,
}

impl Control {
    pub async fn new(
        data: PathBuf,
        office: Office,
        sources: Sources,
        plugins: Plugins,
        reporter: Reporter,
        last_good: LastGood,
    ) -> Result<Self> {
        let good_plugins = last_good.ask(LastGood::plugins).await;
        let good_plugins = good_plugins.context("reading the last good configuration")?;
        let shared = sources.shared.clone();
        Ok(Self {
            data,
            office,
            resyncs: Resyncs::new(shared.clone(), sources.tasks.clone()),
            retentions: Retentions::new(plugins.journal.clone(), shared.clone(), sources.tasks.clone()),
            streams: Streams::new(plugins.journal.clone(), shared.clone(), sources.tasks.clone()),
            sources,
            plugins,
            reporter,
            last_good,
            good_plugins,
            shared,
            host: None,
            capabilities: None,
            refused: false,
            untaken: BTreeSet::new(),
            journal_was_in_trouble: false,
        })
    }

    /// Runs until `stop`, then ends what runs, whatever it ended with: first what takes in,
    /// then what hands out.
    pub async fn run(
        mut self,
        snapshots: watch::Receiver<Option<Snapshot>>,
        stop: CancellationToken,
    ) -> Result<()> {
        let result = self.follow(snapshots, &stop).await;
        self.resyncs.shut_down();
        self.retentions.shut_down();
        self.sources.shut_down().await;
        self.plugins.shut_down().await;
        self.streams.shut_down().await;
        self.office.leave().await;
        result
    }

    async fn follow(
        &mut self,
        mut snapshots: watch::Receiver<Option<Snapshot>>,
        stop: &CancellationToken,
    ) -> Result<()> {
        let mut housekeeping = tokio::time::interval(RETRY);
        let mut quiet = tokio::time::interval(QUIET);
        let mut newest = 0;
        let mut is_first = true;
        loop {
            tokio::select! {
                // The task that follows the configuration stops at the same time: that is no failure then.
                biased;
                () = stop.cancelled() => return Ok(()),
                changed = snapshots.changed() => {
                    if stop.is_cancelled() {
                        return Ok(());
                    }
                    changed.context("the configuration is not watched any more")?;
                    // Nothing runs yet that half a change could end: a restart doesn't wait.
                    if !std::mem::take(&mut is_first) {
                        tokio::time::sleep(DEBOUNCE).await;
                    }
                }
                // Its change, or one that came since, has waited for this.
                () = self.plugins.has_drained() => {}
                source = self.sources.overtaken() => {
                    self.sources.begin_again(&source).await;
                    continue;
                }
                () = self.office.changed() => self.change_office().await?,
                _ = quiet.tick() => {
                    self.plugins.journal.let_go_of_recent(newest);
                    newest = *self.plugins.journal.newest().borrow();
                    continue;
                }
                _ = housekeeping.tick() => {
                    self.plugins.let_go_of_idle();
                    self.prune().await;
                    self.look_at_journal().await?;
                    if self.office.is_held() {
                        stop.run_until_cancelled(self.reporter.catch_up()).await;
                    }
                    if !self.refused {
                        continue;
                    }
                }
            }
            let snapshot = snapshots.borrow_and_update().clone();
            if let Some(snapshot) = snapshot {
                self.reconcile(&snapshot, stop).await;
            }
            if let Some(damage) = self.plugins.damage() {
                bail!("starting a plugin: {damage}");
            }
        }
    }

    /// Ends early on a stop. What it did not get to is left as it is: only what was looked at and
    /// is not wanted any more is taken out.
    async fn reconcile(&mut self, snapshot: &Snapshot, stop: &CancellationToken) {
        let mut problems: Vec<String> = snapshot.problems.iter().map(ToString::to_string).collect();
        if let Err(found) = self.reconcile_host(snapshot, stop).await {
            problems.extend(found);
        }
        let known = self.shared.problems();
        for problem in problems.iter().filter(|problem| !known.contains(problem)) {
            error!("{problem}");
        }
        self.tell_of_untaken(snapshot);
        self.refused = !problems.is_empty();
        self.shared.set_problems(problems);
        if !self.office.is_held() {
            return self.stand_by(snapshot);
        }
        let (Some(host), Some(capabilities)) = (self.host.clone(), self.capabilities.clone()) else { return };
        let kept = self.reconcile_plugins(snapshot, &host, &capabilities, stop).await;
        let Some(kept) = kept else { return info!("stopped before every plugin was checked") };
        // While a file can't be read, its plugins may still be wanted.
        if snapshot.problems.is_empty() {
            self.remove_all_but(&kept).await;
        } else {
            for drained in self.plugins.take_drained() {
                self.go_on(drained, &capabilities).await;
            }
        }
    }

    // ---- the host's own document ---------------------------------------------------------

    async fn reconcile_host(
        &mut self,
        snapshot: &Snapshot,
        stop: &CancellationToken,
    ) -> Result<(), Vec<String>> {
        let unread = snapshot.hosts.is_empty() && !snapshot.problems.is_empty();
        let refusal = match snapshot.host() {
            Ok(entry) => match self.take_host(entry, stop).await {
                Ok(()) => return Ok(()),
                Err(refusal) => refusal,
            },
            // What could not be read may well hold it, and is told already.
            Err(_) if unread => Vec::new(),
            Err(problem) => texts(&[problem]),
        };
        // Nothing runs yet in this process: the last good settings are better than none.
        if self.host.is_none()
            && let Some(good) =
                self.last_good.ask(LastGood::host).await.map_err(|error| vec![unreadable(&error)])?
            && let Err(more) = self.take_host(&good, stop).await
        {
            return Err(refusal.into_iter().chain(more).collect());
        }
        Err(refusal)
    }

    /// Sources change one by one. When databases, destinations, ledgers or keys change, what
    /// stays is kept open, and the plugins go over to the new ones.
    ///
    /// Witnessing depends on none of them: at a start the settings are taken although some can't be opened. Those are
    /// told as problems, their plugins fail, and the next look tries them again. A change of settings that run is
    /// refused if what it brings can't be opened: the last good settings go on, and their plugins with them.
    async fn take_host(&mut self, entry: &Entry, stop: &CancellationToken) -> Result<(), Vec<String>> {
        let parsed = parse_host(entry).map_err(|problems| texts(&problems))?;
        // Only the leader has capabilities.
        let is_whole = self.capabilities.is_some() || !self.office.is_held();
        if is_whole && self.host.as_ref() == Some(&parsed.spec) {
            return self.open_closed(&parsed, stop).await;
        }
        let known = self.last_good.ask(LastGood::sources).await.map_err(|error| vec![unreadable(&error)])?;
        let rules = parsed.spec.rules().map_err(|faults| texts(&parsed.problems(faults)))?;
        let mut changed = changed_sources(&known, &parsed.spec.sources);
        if changed.is_empty() {
            changed = changed_sources(&self.agreed(&parsed.spec).await?, &parsed.spec.sources);
        }
        if !changed.is_empty() {
            return Err(texts(&parsed.problems(changed)));
        }
        let redaction = Redaction::open(&parsed.spec, &self.data).await;
        let redaction = redaction.map_err(|faults| texts(&parsed.problems(faults)))?;
        let same_grants = |old: &HostSpec| for_plugins(old) == for_plugins(&parsed.spec);
        if self.office.is_held()
            && (self.capabilities.is_none() || !self.host.as_ref().is_some_and(same_grants))
        {
            let opened = match &self.capabilities {
                Some(old) => old.reload(&parsed.spec, &self.data).await,
                None => match self.office.reader() {
                    Some(reader) => Capabilities::open_as(&parsed.spec, &self.data, &reader).await,
                    None => Capabilities::open(&parsed.spec, &self.data).await,
                },
            };
            let capabilities = opened.map_err(|faults| texts(&parsed.problems(faults)))?;
            self.warn_of_files(&parsed.spec);
            self.move_plugins(&capabilities, stop).await;
            self.capabilities = Some(capabilities);
        }
        let named = parsed.spec.sources.iter().map(|source| (source.name.clone(), source.clone()));
        let known: BTreeMap<_, _> = known.into_iter().chain(named).collect();
        let saved = self.last_good.ask(move |kept| kept.save_sources(&known)).await;
        saved.map_err(|error| vec![unreadable(&error)])?;
        self.shared.set_redaction(redaction);
        self.reconcile_sources(&parsed.spec, rules).await;
        self.shared.settings_are_taken();
        info!(sources = parsed.spec.sources.len(), "the host's settings are taken");
        self.host = Some(parsed.spec.clone());
        self.keep_host(&parsed).await
    }

    /// Tries again what could not be opened. What is open stays so, and no plugin that runs has to move.
    async fn open_closed(
        &mut self,
        parsed: &Parsed<HostSpec>,
        stop: &CancellationToken,
    ) -> Result<(), Vec<String>> {
        let Some(old) = self.capabilities.clone().filter(|old| !old.closed().is_empty()) else {
            return Ok(());
        };
        let opened = stop.run_until_cancelled(old.reload(&parsed.spec, &self.data)).await;
        let Some(opened) = opened else { return Ok(()) };
        self.capabilities = Some(opened.map_err(|faults| texts(&parsed.problems(faults)))?);
        self.keep_host(parsed).await
    }

    /// The last good settings are those of which everything could be opened.
    async fn keep_host(&mut self, parsed: &Parsed<HostSpec>) -> Result<(), Vec<String>> {
        let closed = self.capabilities.as_ref().map(Capabilities::closed).unwrap_or_default();
        if !closed.is_empty() {
            return Err(texts(&parsed.problems(closed)));
        }
        let entry = parsed.entry.clone();
        let saved = self.last_good.ask(move |kept| kept.save_host(&entry)).await;
        saved.map_err(|error| vec![unreadable(&error)])
    }

    /// Each replica witnesses. What comes from a stream has one reader, and what is done to a history or
    /// with it one who does it.
    async fn reconcile_sources(&mut self, spec: &HostSpec, rules: Rules) {
        if self.office.is_held() {
            self.sources.reconcile(&spec.sources, &spec.streams, rules).await;
            self.streams.reconcile(&spec.streams).await;
            self.resyncs.reconcile(&spec.sources);
            self.retentions.reconcile(&spec.sources);
        } else {
            let witnessed: Vec<_> =
                spec.sources.iter().filter(|source| source.from.is_none()).cloned().collect();
            self.sources.reconcile(&witnessed, &spec.streams, rules).await;
        }
    }

    async fn move_plugins(&mut self, capabilities: &Capabilities, stop: &CancellationToken) {
        for name in self.plugins.names() {
            // On shut-down no plugin has to move first.
            if stop.is_cancelled() {
                return;
            }
            // A plugin that has not drained yet moves once it has.
            if let Stopped::Drained(candidate) = self.plugins.stop(&name).await {
                self.go_on(*candidate, capabilities).await;
            }
        }
    }

    async fn go_on(&mut self, candidate: Candidate, capabilities: &Capabilities) {
        let name = candidate.parsed.name.clone();
        if let Err(error) = self.plugins.take(candidate, capabilities).await {
            error!(plugin = name, "the plugin has stopped: {error:#}");
            self.shared.set_phase(&name, Phase::Failed, Some(format!("{error:#}")));
        }
    }

    // ---- plugins -------------------------------------------------------------------------

    /// What fits is taken first, so that what does not can't stand in its place. Answers the
    /// names that are still wanted; none where a stop came before all were looked at.
    async fn reconcile_plugins(
        &mut self,
        snapshot: &Snapshot,
        host: &HostSpec,
        capabilities: &Capabilities,
        stop: &CancellationToken,
    ) -> Option<BTreeSet<String>> {
        let (mut kept, mut refused) = (BTreeSet::new(), Vec::new());
        for entry in &snapshot.plugins {
            if stop.is_cancelled() {
                return None;
            }
            let candidate = match stop.run_until_cancelled(self.plugins.examine(entry, host)).await? {
                Ok(candidate) => candidate,
                Err(problems) => {
                    refused.push((entry, None, texts(&problems).join("\n")));
                    continue;
                }
            };
            let name = candidate.parsed.name.clone();
            let owner = self.owner(&name).filter(|owner| *owner != entry.config_map);
            let owner = owner.filter(|owner| snapshot.plugins.iter().any(|other| other.config_map == *owner));
            if owner.is_some() || !kept.insert(name.clone()) {
                let named = owner.filter(|owner| !owner.contains('/'));
                let owner = named.unwrap_or_else(|| "another document".into());
                let place = &entry.origin.place;
                let message = format!("{place}: the plugin `{name}` is {owner}'s: choose another name");
                refused.push((entry, None, message));
            } else if let Err((name, message)) = self.take(candidate, capabilities).await {
                refused.push((entry, Some(name), message));
            }
        }
        self.refused |= !refused.is_empty();
        for (entry, name, message) in refused {
            let name = name.unwrap_or_else(|| self.name_of_refused(entry, &kept));
            kept.insert(name.clone());
            if stop.is_cancelled() {
                return None;
            }
            self.fall_back(&name, entry, message, host, capabilities, stop).await;
        }
        Some(kept)
    }

    /// The ConfigMap whose version of the plugin runs, or ran last.
    fn owner(&self, name: &str) -> Option<String> {
        let good = || self.good_plugins.get(name).map(|good| good.entry.config_map.clone());
        self.plugins.config_map(name).or_else(good)
    }

    /// The name under which a refused ConfigMap is shown: the name of its plugin, else the name that it gives
    /// itself, else its own name, set apart so that no plugin has it.
    fn name_of_refused(&self, entry: &Entry, kept: &BTreeSet<String>) -> String {
        let mut owned = self.plugins.names().into_iter().chain(self.good_plugins.keys().cloned());
        let is_own =
            |name: &String| !kept.contains(name) && self.owner(name).as_deref() == Some(&entry.config_map);
        if let Some(name) = owned.find(is_own) {
            return name;
        }
        let free = |name: &String| is_name(name) && !kept.contains(name) && self.owner(name).is_none();
        claimed_name(entry)
            .filter(free)
            .or_else(|| Some(entry.config_map.clone()).filter(free))
            .unwrap_or_else(|| entry.set_apart())
    }

    async fn take(
        &mut self,
        candidate: Candidate,
        capabilities: &Capabilities,
    ) -> Result<(), (String, String)> {
        let name = candidate.parsed.name.clone();
        if !self.plugins.runs(&candidate) {
            let (entry, bytes) = (candidate.parsed.entry.clone(), candidate.bytes.clone());
            let failed = |error: anyhow::Error| (name.clone(), format!("{error:#}"));
            if !self.plugins.take(candidate, capabilities).await.map_err(failed)? {
                return Ok(());
            }
            let (of, saved, component) = (name.clone(), entry.clone(), bytes.clone());
            let kept = self.last_good.ask(move |kept| kept.save_plugin(&of, &saved, &component)).await;
            kept.context("the plugin runs, but can't be stored as the last good version").map_err(failed)?;
            let good = GoodPlugin { entry: entry.clone(), component: bytes.to_vec() };
            self.good_plugins.insert(name.clone(), good);
            self.shared.set_phase(&name, Phase::Active, None);
            self.tell(&name, &entry.config_map, Phase::Active, None).await;
        } else if self.shared.plugin(&name).is_some_and(|state| state.phase != Phase::Active) {
            // The bad change was taken back: what runs is what is wanted.
            self.shared.set_phase(&name, Phase::Active, None);
            self.tell(&name, &candidate.parsed.entry.config_map, Phase::Active, None).await;
        }
        Ok(())
    }

    /// Keeps the last good one running, or starts it after a restart.
    async fn fall_back(
        &mut self,
        name: &str,
        entry: &Entry,
        message: String,
        host: &HostSpec,
        capabilities: &Capabilities,
        stop: &CancellationToken,
    ) {
        // What is so is told when what ran has drained: until then the last good one can't be started.
        if self.plugins.is_draining(name) {
            return;
        }
        if !self.plugins.is_running(name)
            && let Err(error) = self.start_last_good(name, host, capabilities, stop).await
            && error != message
        {
            if stop.is_cancelled() {
                return;
            }
            warn!(plugin = name, "the last good version can't be started: {error}");
        }
        let phase = if self.plugins.is_running(name) { Phase::Degraded } else { Phase::Failed };
        match phase {
            Phase::Degraded => self.shared.set_phase(name, phase, Some(message.clone())),
            _ => self.shared.set_plugin(name, PluginState::idle(phase, Some(message.clone()))),
        }
        self.tell(name, &entry.config_map, phase, Some(message)).await;
    }

    async fn start_last_good(
        &mut self,
        name: &str,
        host: &HostSpec,
        capabilities: &Capabilities,
        stop: &CancellationToken,
    ) -> Result<(), String> {
        let Some(good) = self.good_plugins.get(name) else { return Ok(()) };
        let parsed = parse_plugin(&good.entry, host).map_err(|problems| texts(&problems).join("; "))?;
        let component = good.component.clone();
        let limits = &host.limits.components;
        let examining = super::plugins::examine_component(&self.plugins.engine, parsed, component, limits);
        // It may have to be compiled, which takes a while.
        let examined = stop.run_until_cancelled(examining).await.ok_or("stopped before it was checked")?;
        let candidate = examined.map_err(|problems| texts(&problems).join("; "))?;
        let taken = self.plugins.take(candidate, capabilities).await;
        taken.map(drop).map_err(|error| format!("{error:#}"))
    }

    async fn tell(&mut self, name: &str, config_map: &str, phase: Phase, message: Option<String>) {
        // A plugin that was not started any more is not active.
        if self.plugins.tasks.is_stopping() {
            return;
        }
        let digest = self.plugins.digest(name);
        let report = Report { plugin: name.into(), config_map: config_map.into(), phase, digest, message };
        self.reporter.tell(report).await;
    }

    async fn remove_all_but(&mut self, kept: &BTreeSet<String>) {
        let known: BTreeSet<String> =
            self.shared.plugins().into_keys().chain(self.good_plugins.keys().cloned()).collect();
        for name in known.difference(kept) {
            // What it finishes meanwhile is still its own.
            if matches!(self.plugins.stop(name).await, Stopped::NotYet) {
                continue;
            }
            self.shared.remove_plugin(name);
            if self.good_plugins.remove(name).is_some() {
                let of = name.clone();
                let forgotten = self.last_good.ask(move |kept| kept.forget_plugin(&of)).await;
                if let Err(error) = forgotten {
                    error!(plugin = name, "its last good version can't be removed: {error}");
                }
            }
            self.reporter.forget(name).await;
        }
        // What it left stays for a while; it is only an aid to retention, and is tried again.
        let draining = known.into_iter().filter(|name| self.plugins.is_draining(name));
        let holding = kept.iter().cloned().chain(draining).chain(self.streams.progress_names()).collect();
        if let Err(error) = self.plugins.journal.retire_all_but(&holding).await {
            warn!(%error, "the journal can't record yet which plugins were removed; it is tried again");
        }
    }
}

fn texts(problems: &[Problem]) -> Vec<String> {
    problems.iter().map(ToString::to_string).collect()
}

fn unreadable(error: &std::io::Error) -> String {
    format!("the last good configuration beside the journal: {error}")
}

/// A source's checkpoint and objects belong to what it witnessed. Under the same name something
/// else would begin in the middle of them, and objects would be missing without a word.
fn changed_sources(known: &BTreeMap<String, SourceSpec>, wanted: &[SourceSpec]) -> Vec<Fault> {
    let scope = |source: &SourceSpec| {
        (
            group_of(source).to_string(),
            source.kind.clone(),
            source.namespace.clone(),
            source.match_labels.clone(),
            // What another host witnesses has positions of its own.
            source.from.as_ref().map(|from| from.stream.clone()),
        )
    };
    let changed =
        |source: &SourceSpec| known.get(&source.name).is_some_and(|known| scope(known) != scope(source));
    let fault = |(index, source): (usize, &SourceSpec)| Fault {
        field: format!("spec.sources[{index}]"),
        message: format!(
            "the source `{}` has witnessed another kind, namespace or selection, or came from another stream, and its \
             history is of that: \
             give the new source a new name, and subscribe the plugins to it",
            source.name
        ),
    };
    wanted.iter().enumerate().filter(|(_, source)| changed(source)).map(fault).collect()
}

/// What plugins are given: all but what is witnessed, and how, and what a component is held against before
/// it runs.
fn for_plugins(spec: &HostSpec) -> HostSpec {
    let (sources, streams, status_rules) = (Vec::new(), Vec::new(), Vec::new());
    HostSpec { sources, streams, status_rules, limits: HostLimitsSpec::default(), ..spec.clone() }
}

#[cfg(test)]
mod tests;
