//! The loop that makes what runs equal to what is configured.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use kubewitness_capability::Capabilities;
use kubewitness_core::config::{HostSpec, SourceSpec};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::plugins::{Candidate, Plugins};
use super::report::{Report, Reporter};
use super::shared::{Phase, PluginState, Shared};
use super::sources::Sources;
use crate::config::Snapshot;
use crate::config::last_good::{GoodPlugin, LastGood};
use crate::config::manifest::{Entry, Problem, parse_host, parse_plugin};

/// Several files written one after the other are one change.
const DEBOUNCE: Duration = Duration::from_millis(200);
/// What was refused is looked at again: a component or a database may have come since.
const RETRY: Duration = Duration::from_secs(10);

pub struct Control {
    pub data: PathBuf,
    pub sources: Sources,
    pub plugins: Plugins,
    pub reporter: Reporter,
    pub last_good: LastGood,
    /// As they were when the process started.
    pub good_plugins: BTreeMap<String, GoodPlugin>,
    pub shared: std::sync::Arc<Shared>,
    host: Option<HostSpec>,
    capabilities: Option<Capabilities>,
    refused: bool,
}

impl Control {
    pub fn new(
        data: PathBuf,
        sources: Sources,
        plugins: Plugins,
        reporter: Reporter,
        last_good: LastGood,
    ) -> Result<Self> {
        let good_plugins = last_good.plugins().context("reading the last good configuration")?;
        let shared = sources.shared.clone();
        Ok(Self {
            data,
            sources,
            plugins,
            reporter,
            last_good,
            good_plugins,
            shared,
            host: None,
            capabilities: None,
            refused: false,
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
        self.sources.shut_down().await;
        self.plugins.shut_down().await;
        result
    }

    async fn follow(
        &mut self,
        mut snapshots: watch::Receiver<Option<Snapshot>>,
        stop: &CancellationToken,
    ) -> Result<()> {
        let mut housekeeping = tokio::time::interval(RETRY);
        loop {
            tokio::select! {
                // Whoever watches the configuration stops with us: that is no failure then.
                biased;
                () = stop.cancelled() => return Ok(()),
                changed = snapshots.changed() => {
                    if stop.is_cancelled() {
                        return Ok(());
                    }
                    changed.context("the configuration is not watched any more")?;
                    tokio::time::sleep(DEBOUNCE).await;
                }
                _ = housekeeping.tick() => {
                    self.prune().await;
                    self.reporter.catch_up().await;
                    if !self.refused {
                        continue;
                    }
                }
            }
            let snapshot = snapshots.borrow_and_update().clone();
            if let Some(snapshot) = snapshot {
                self.reconcile(&snapshot).await;
            }
        }
    }

    async fn reconcile(&mut self, snapshot: &Snapshot) {
        let mut problems: Vec<String> = snapshot.problems.iter().map(ToString::to_string).collect();
        if let Err(found) = self.reconcile_host(snapshot).await {
            problems.extend(found);
        }
        for problem in &problems {
            error!("{problem}");
        }
        self.refused = !problems.is_empty();
        self.shared.set_problems(problems);
        let (Some(host), Some(capabilities)) = (self.host.clone(), self.capabilities.clone()) else { return };
        let mut kept = BTreeSet::new();
        for entry in &snapshot.plugins {
            self.reconcile_plugin(entry, &host, &capabilities, &mut kept).await;
        }
        // While a file can't be read, nobody knows whether its plugins are still wanted.
        if snapshot.problems.is_empty() {
            self.remove_all_but(&kept).await;
        }
    }

    // ---- the host's own document ---------------------------------------------------------

    async fn reconcile_host(&mut self, snapshot: &Snapshot) -> Result<(), Vec<String>> {
        let unread = snapshot.hosts.is_empty() && !snapshot.problems.is_empty();
        let refusal = match snapshot.host() {
            Ok(entry) => match self.take_host(entry).await {
                Ok(()) => return Ok(()),
                Err(refusal) => refusal,
            },
            // What could not be read may well hold it, and is told already.
            Err(_) if unread => Vec::new(),
            Err(problem) => texts(&[problem]),
        };
        // Nothing runs yet in this process: the last good settings are better than none.
        if self.host.is_none()
            && let Some(good) = self.last_good.host().map_err(|error| vec![unreadable(&error)])?
        {
            self.take_host(&good).await?;
        }
        Err(refusal)
    }

    /// Sources change one by one. When databases, destinations, ledgers or keys change, what
    /// stays is kept open, and the plugins go over to the new ones.
    async fn take_host(&mut self, entry: &Entry) -> Result<(), Vec<String>> {
        let parsed = parse_host(entry).map_err(|problems| texts(&problems))?;
        if self.host.as_ref() == Some(&parsed.spec) {
            return Ok(());
        }
        let same_grants = |old: &HostSpec| without_sources(old) == without_sources(&parsed.spec);
        if !self.host.as_ref().is_some_and(same_grants) {
            let opened = match &self.capabilities {
                Some(old) => old.reload(&parsed.spec, &self.data).await,
                None => Capabilities::open(&parsed.spec, &self.data).await,
            };
            let capabilities = opened.map_err(|faults| texts(&parsed.problems(faults)))?;
            self.move_plugins(&capabilities).await;
            self.capabilities = Some(capabilities);
        }
        self.sources.reconcile(&parsed.spec.sources).await;
        info!(sources = parsed.spec.sources.len(), "the host's settings are taken");
        self.last_good.save_host(entry).map_err(|error| vec![unreadable(&error)])?;
        self.host = Some(parsed.spec);
        Ok(())
    }

    async fn move_plugins(&mut self, capabilities: &Capabilities) {
        for name in self.plugins.names() {
            let Some(candidate) = self.plugins.stop(&name).await else { continue };
            if let Err(error) = self.plugins.take(candidate, capabilities).await {
                error!(plugin = name, "can't go over to the new settings: {error:#}");
                self.shared.set_phase(&name, Phase::Failed, Some(format!("{error:#}")));
            }
        }
    }

    // ---- plugins -------------------------------------------------------------------------

    async fn reconcile_plugin(
        &mut self,
        entry: &Entry,
        host: &HostSpec,
        capabilities: &Capabilities,
        kept: &mut BTreeSet<String>,
    ) {
        let examined = self.plugins.examine(entry, host).await;
        let taken = match examined {
            Ok(candidate) if !kept.insert(candidate.parsed.name.clone()) => {
                let name = candidate.parsed.name;
                error!(
                    plugin = name,
                    "{}: a second ConfigMap names this plugin; the first one counts", entry.origin.place
                );
                self.refused = true;
                return;
            }
            Ok(candidate) => self.take(candidate, capabilities).await,
            Err(problems) => Err((self.known_name(entry), texts(&problems).join("\n"))),
        };
        if let Err((name, message)) = taken {
            self.refused = true;
            kept.insert(name.clone());
            self.fall_back(&name, entry, message, host, capabilities).await;
        }
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
            self.plugins.take(candidate, capabilities).await.map_err(failed)?;
            let kept = self.last_good.save_plugin(&name, &entry, &bytes);
            kept.context("it runs, but can't be kept as the last good one").map_err(failed)?;
            self.shared.set_phase(&name, Phase::Active, None);
            self.tell(&name, &entry.config_map, Phase::Active, None).await;
        } else if self.shared.plugin(&name).is_some_and(|state| state.phase != Phase::Active) {
            // The bad change was taken back: what runs is what is wanted.
            self.shared.set_phase(&name, Phase::Active, None);
            self.tell(&name, &candidate.parsed.entry.config_map, Phase::Active, None).await;
        }
        Ok(())
    }

    /// The name under which the ConfigMap is known, also when its text can't be read.
    fn known_name(&self, entry: &Entry) -> String {
        let good = || {
            let mut all = self.good_plugins.iter();
            all.find(|(_, good)| good.entry.config_map == entry.config_map).map(|(name, _)| name.clone())
        };
        self.plugins.name_of(&entry.config_map).or_else(good).unwrap_or_else(|| entry.config_map.clone())
    }

    /// Keeps the last good one running, or starts it after a restart.
    async fn fall_back(
        &mut self,
        name: &str,
        entry: &Entry,
        message: String,
        host: &HostSpec,
        capabilities: &Capabilities,
    ) {
        if !self.plugins.is_running(name)
            && let Err(error) = self.start_last_good(name, host, capabilities).await
        {
            warn!(plugin = name, "the last good version can't be started: {error}");
        }
        let phase = if self.plugins.is_running(name) { Phase::Degraded } else { Phase::Failed };
        match phase {
            Phase::Degraded => self.shared.set_phase(name, phase, Some(message.clone())),
            _ => {
                let state = PluginState {
                    phase,
                    digest: String::new(),
                    message: Some(message.clone()),
                    handle: None,
                };
                self.shared.set_plugin(name, state);
            }
        }
        self.tell(name, &entry.config_map, phase, Some(message)).await;
    }

    async fn start_last_good(
        &mut self,
        name: &str,
        host: &HostSpec,
        capabilities: &Capabilities,
    ) -> Result<(), String> {
        let Some(good) = self.good_plugins.get(name) else { return Ok(()) };
        let parsed = parse_plugin(&good.entry, host).map_err(|problems| texts(&problems).join("; "))?;
        let component = good.component.clone();
        let candidate = super::plugins::examine_component(&self.plugins.engine, parsed, component)
            .await
            .map_err(|problems| texts(&problems).join("; "))?;
        self.plugins.take(candidate, capabilities).await.map_err(|error| format!("{error:#}"))
    }

    async fn tell(&mut self, name: &str, config_map: &str, phase: Phase, message: Option<String>) {
        let digest = self.plugins.digest(name);
        let report = Report { plugin: name.into(), config_map: config_map.into(), phase, digest, message };
        self.reporter.tell(report).await;
    }

    async fn remove_all_but(&mut self, kept: &BTreeSet<String>) {
        let known: BTreeSet<String> =
            self.shared.plugins().into_keys().chain(self.good_plugins.keys().cloned()).collect();
        for name in known.difference(kept) {
            self.plugins.stop(name).await;
            self.shared.remove_plugin(name);
            self.good_plugins.remove(name);
            if let Err(error) = self.last_good.forget_plugin(name) {
                error!(plugin = name, "its last good version can't be removed: {error}");
            }
            self.reporter.forget(name).await;
        }
    }

    async fn prune(&self) {
        let Some(capabilities) = &self.capabilities else { return };
        for (name, cursor) in self.plugins.cursors() {
            if let Err(error) = capabilities.prune(&name, cursor).await {
                warn!(plugin = name, "receipts behind its cursor can't be removed yet: {error}");
            }
        }
    }
}

fn texts(problems: &[Problem]) -> Vec<String> {
    problems.iter().map(ToString::to_string).collect()
}

fn unreadable(error: &std::io::Error) -> String {
    format!("the last good configuration beside the journal: {error}")
}

fn without_sources(spec: &HostSpec) -> HostSpec {
    HostSpec { sources: Vec::<SourceSpec>::new(), ..spec.clone() }
}
