//! Makes the running plugins equal to the configured ones.

use std::collections::BTreeSet;

use anyhow::{Context, anyhow, bail};
use kubewitness_capability::OpenCapabilities;
use kubewitness_core::config::{HostSpec, is_name};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::report::ConfigReport;
use super::{ReconcileLoop, texts};
use crate::config::ConfigSnapshot;
use crate::config::component::{ComponentSource, RemoteComponent, is_signed};
use crate::config::last_good::GoodPlugin;
use crate::config::manifest::{ManifestEntry, claimed_name, parse_plugin};
use crate::controller::plugins::{ExaminedFit, PluginCandidate, StopOutcome, WantedPlugin};
use crate::controller::shared::{PluginPhase, PluginState};

const UNREAD: &str = "a part of the configuration is missing or can't be read, and the rest does not name this plugin. Its \
                      last good version goes on: repair what `kubewitness status` shows under `configuration`";

/// A plugin whose component is still being examined.
pub(super) struct WaitingPlugin {
    name: String,
    number: u64,
    /// Why its last good version is examined instead of the configured one.
    refusal: Option<String>,
}

/// The progress of a document.
#[derive(Clone, Copy)]
enum DocumentState {
    Runs,
    /// With the number of its examination.
    Asked(u64),
}

enum DocumentAnswer {
    Runs,
    NotYet(u64),
    Fits(Box<ExaminedFit>),
}

/// A plugin whose document was refused.
struct FallingPlugin<'a> {
    name: String,
    config_map: &'a str,
    message: String,
    /// The examination of its last good version, if that does not run.
    good: Option<anyhow::Result<u64>>,
}

impl ReconcileLoop {
    pub(super) async fn move_plugins(&mut self, capabilities: &OpenCapabilities, stop: &CancellationToken) {
        for name in self.plugins.names() {
            // During shutdown, no plugin has to move first.
            if stop.is_cancelled() {
                return;
            }
            // A plugin that has not drained yet moves once it has.
            if let StopOutcome::Drained(candidate) = self.plugins.stop_plugin(&name).await {
                self.start_candidate(*candidate, capabilities).await;
            }
        }
    }

    pub(super) async fn start_candidate(
        &mut self,
        candidate: PluginCandidate,
        capabilities: &OpenCapabilities,
    ) {
        let name = candidate.parsed.name.clone();
        if let Err(error) = self.plugins.take(candidate, capabilities).await {
            error!(plugin = name, "the plugin has stopped: {error:#}");
            self.shared.set_phase(&name, PluginPhase::Failed, Some(format!("{error:#}")));
        }
    }

    /// Records in the journal where configured plugins begin, before checks that may take minutes. A refused
    /// document is reported later.
    pub(super) async fn note_beginnings(
        &self,
        snapshot: &ConfigSnapshot,
        host: &HostSpec,
        stop: &CancellationToken,
    ) {
        for entry in &snapshot.plugins {
            let Ok(parsed) = parse_plugin(entry, host) else { continue };
            let name = &parsed.name;
            let is_at_work = self.plugins.is_running(name) || self.plugins.is_draining(name);
            if is_at_work || self.other_owner(name, entry).is_some() {
                continue;
            }
            let noted = stop.run_until_cancelled(self.plugins.note_beginning(name, &parsed.spec)).await;
            match noted {
                None => return,
                Some(Ok(())) if self.shared.knows_losses(name) => {}
                Some(Ok(())) => self.read_losses(name, stop).await,
                Some(Err(error)) => {
                    warn!(plugin = name, %error, "the journal can't note yet where the plugin begins: until then retention may remove its states");
                }
            }
        }
    }

    /// Documents that fit are applied first, so that a faulty one can't take their place. Those that take
    /// long to examine are applied in a later round. Returns the names that are still wanted; `None` if a
    /// stop came before all were examined.
    pub(super) async fn reconcile_plugins(
        &mut self,
        snapshot: &ConfigSnapshot,
        host: &HostSpec,
        capabilities: &OpenCapabilities,
        stop: &CancellationToken,
    ) -> Option<BTreeSet<String>> {
        self.examinations.begin_round();
        let mut looks = Vec::new();
        for entry in &snapshot.plugins {
            let look = self.look_at_document(entry, snapshot, host);
            looks.push((entry, stop.run_until_cancelled(look).await?));
        }
        stop.run_until_cancelled(self.examinations.await_quick_answers()).await?;
        self.waiting.clear();
        let (mut kept, mut refused) = (BTreeSet::new(), Vec::new());
        for (entry, look) in looks {
            if stop.is_cancelled() {
                return None;
            }
            let answered = look.and_then(|(name, standing)| Ok((name, self.answer_document(standing)?)));
            match answered {
                Err(error) => refused.push((entry, None, format!("{error:#}"))),
                Ok((name, _)) if !kept.insert(name.clone()) => {
                    refused.push((entry, None, self.owned_by_other_message(&name, entry)));
                }
                Ok((name, DocumentAnswer::Runs)) => self.keep_running(&name, &entry.config_map).await,
                Ok((name, DocumentAnswer::NotYet(number))) => {
                    self.waiting.push(WaitingPlugin { name, number, refusal: None });
                }
                Ok((name, DocumentAnswer::Fits(examined))) => {
                    let is_whole = examined.candidate.has_its_shadow();
                    let taken = self.take(*examined, capabilities).await;
                    let then = match taken {
                        Ok(()) if !is_whole => {
                            self.look_at_document(entry, snapshot, host).await.map(|(_, then)| then)
                        }
                        taken => taken.map(|()| DocumentState::Runs),
                    };
                    match then {
                        Err(error) => refused.push((entry, Some(name), format!("{error:#}"))),
                        Ok(DocumentState::Runs) => {}
                        Ok(DocumentState::Asked(number)) => {
                            self.waiting.push(WaitingPlugin { name, number, refusal: None });
                            // The answer may arrive while this round is still running.
                            self.look_again = true;
                        }
                    }
                }
            }
        }
        self.refused |= !refused.is_empty();
        self.fall_back_all(refused, &mut kept, host, capabilities, stop).await?;
        let unread = self.unread_plugins(snapshot, &kept);
        let refused = unread.iter().map(|(name, entry)| (entry, Some(name.clone()), UNREAD.to_owned()));
        self.fall_back_all(refused.collect(), &mut kept, host, capabilities, stop).await?;
        self.examinations.end_round();
        self.log_waiting_plugins();
        Some(kept)
    }

    /// Plugins that ran before and may still be wanted, although no document names them now.
    fn unread_plugins(
        &self,
        snapshot: &ConfigSnapshot,
        kept: &BTreeSet<String>,
    ) -> Vec<(String, ManifestEntry)> {
        if snapshot.is_whole() {
            return Vec::new();
        }
        let good = self.good_plugins.iter().filter(|(name, _)| !kept.contains(*name));
        good.map(|(name, good)| (name.clone(), good.entry.clone())).collect()
    }

    /// The name of one document's plugin, and its progress. The error is shown to people.
    async fn look_at_document(
        &mut self,
        entry: &ManifestEntry,
        snapshot: &ConfigSnapshot,
        host: &HostSpec,
    ) -> anyhow::Result<(String, DocumentState)> {
        let found = self.plugins.find(entry, host).await;
        let mut wanted = found.map_err(|problems| anyhow!(texts(&problems).join("\n")))?;
        let name = wanted.parsed.name.clone();
        let is_there = |owner: &String| snapshot.plugins.iter().any(|other| other.config_map == *owner);
        if self.other_owner(&name, entry).filter(is_there).is_some() {
            bail!(self.owned_by_other_message(&name, entry));
        }
        if let Some(why) = self.rollbacks.refusal_of(&name, &wanted.question) {
            bail!(why);
        }
        if self.plugins.runs_as(&wanted) {
            return Ok((name, DocumentState::Runs));
        }
        if let Some(good) = self.good_plugins.get(&name) {
            wanted.reuse_fetched(good, &self.last_good);
        }
        match self.plugins.candidate(&name) {
            Some(running) => wanted.keep_compared(running),
            // Its shadow is requested once it runs.
            None => wanted = wanted.at_work(),
        }
        Ok((name, DocumentState::Asked(self.examinations.request_check(wanted))))
    }

    fn answer_document(&mut self, standing: DocumentState) -> anyhow::Result<DocumentAnswer> {
        let number = match standing {
            DocumentState::Runs => return Ok(DocumentAnswer::Runs),
            DocumentState::Asked(number) => number,
        };
        match self.examinations.take(number) {
            None => Ok(DocumentAnswer::NotYet(number)),
            Some(Ok(examined)) => Ok(DocumentAnswer::Fits(examined.into())),
            Some(Err(problems)) => Err(anyhow!(texts(&problems).join("\n"))),
        }
    }

    fn other_owner(&self, name: &str, entry: &ManifestEntry) -> Option<String> {
        self.owning_config_map(name).filter(|owner| *owner != entry.config_map)
    }

    fn owned_by_other_message(&self, name: &str, entry: &ManifestEntry) -> String {
        let named = self.other_owner(name, entry).filter(|owner| !owner.contains('/'));
        let owner = named.unwrap_or_else(|| "another document".into());
        format!("{}: the plugin `{name}` is {owner}'s: choose another name", entry.origin.place)
    }

    /// Logs the plugins whose components are still being examined.
    pub(super) fn log_waiting_plugins(&self) {
        for WaitingPlugin { name, number, refusal } in &self.waiting {
            let Some(message) = self.examinations.waiting_message(*number) else { continue };
            let is_running = self.plugins.is_running(name);
            let message = match refusal {
                Some(refusal) => format!("{refusal}\nThe last good version is not ready yet: {message}"),
                None if is_running => {
                    format!("the version before runs until the newer one is ready: {message}")
                }
                None => message,
            };
            if self.plugins.is_draining(name) || self.shared.message(name).as_ref() == Some(&message) {
                continue;
            }
            info!(plugin = name, "{message}");
            match is_running {
                true => self.shared.set_message(name, message),
                false => {
                    self.shared.set_plugin(name, PluginState::idle(PluginPhase::Starting, Some(message)));
                }
            }
        }
    }

    /// The ConfigMap whose version of the plugin runs, or ran last.
    fn owning_config_map(&self, name: &str) -> Option<String> {
        let good = || self.good_plugins.get(name).map(|good| good.entry.config_map.clone());
        self.plugins.config_map(name).or_else(good)
    }

    /// The name under which a refused ConfigMap is shown: that of its plugin, otherwise the name in it,
    /// otherwise its own name, marked so that no plugin can have it.
    fn name_of_refused(&self, entry: &ManifestEntry, kept: &BTreeSet<String>) -> String {
        let mut owned = self.plugins.names().into_iter().chain(self.good_plugins.keys().cloned());
        let is_own = |name: &String| {
            !kept.contains(name) && self.owning_config_map(name).as_deref() == Some(&entry.config_map)
        };
        if let Some(name) = owned.find(is_own) {
            return name;
        }
        let free =
            |name: &String| is_name(name) && !kept.contains(name) && self.owning_config_map(name).is_none();
        claimed_name(entry)
            .filter(free)
            .or_else(|| Some(entry.config_map.clone()).filter(free))
            .unwrap_or_else(|| entry.set_apart())
    }

    async fn take(&mut self, examined: ExaminedFit, capabilities: &OpenCapabilities) -> anyhow::Result<()> {
        let ExaminedFit { candidate, bytes } = examined;
        let (name, entry) = (candidate.parsed.name.clone(), candidate.parsed.entry.clone());
        if self.plugins.runs_same_version(&candidate) {
            self.keep_running(&name, &entry.config_map).await;
            return Ok(());
        }
        let (component, pulled) = (candidate.component.file_digest().to_owned(), candidate.pulled.clone());
        if let Some(pulled) = &pulled {
            info!(plugin = name, "the component of the plugin is {}", pulled.source_label());
        }
        self.end_probations().await;
        if !self.plugins.take(candidate, capabilities).await? {
            return Ok(());
        }
        let good = GoodPlugin { entry: entry.clone(), component, pulled };
        self.begin_probation(&name, &good).await?;
        // After a restart it is already there, and each of its files would take two syncs.
        if !self.good_plugins.get(&name).is_some_and(|before| before.is_kept_as(&good)) {
            let (of, saved) = (name.clone(), good.clone());
            let kept = self.last_good.run_on_thread(move |kept| kept.save_plugin(&of, &saved, &bytes)).await;
            kept.context("the plugin runs, but can't be stored as the last good version")?;
        }
        self.good_plugins.insert(name.clone(), good);
        self.report_active(&name, &entry.config_map).await;
        Ok(())
    }

    /// The running version is the wanted one. A bad change, or one that was still being examined, may have
    /// been reverted.
    async fn keep_running(&mut self, name: &str, config_map: &str) {
        let is_told = |state: PluginState| state.phase != PluginPhase::Active || state.message.is_some();
        if self.shared.plugin(name).is_some_and(is_told) {
            self.report_active(name, config_map).await;
        }
    }

    async fn report_active(&mut self, name: &str, config_map: &str) {
        self.shared.set_phase(name, PluginPhase::Active, None);
        self.report_phase(name, config_map, PluginPhase::Active, None).await;
    }

    /// Those that must start first are all examined at the same time. `None` if a stop came before the end.
    async fn fall_back_all(
        &mut self,
        refused: Vec<(&ManifestEntry, Option<String>, String)>,
        kept: &mut BTreeSet<String>,
        host: &HostSpec,
        capabilities: &OpenCapabilities,
        stop: &CancellationToken,
    ) -> Option<()> {
        let mut falling = Vec::new();
        for (entry, name, message) in refused {
            let name = name.unwrap_or_else(|| self.name_of_refused(entry, kept));
            kept.insert(name.clone());
            self.stop_unsigned(&name, host).await;
            let good = self.ask_for_last_good(&name, host);
            falling.push(FallingPlugin { name, config_map: &entry.config_map, message, good });
        }
        stop.run_until_cancelled(self.examinations.await_quick_answers()).await?;
        for refused in falling {
            if stop.is_cancelled() {
                return None;
            }
            self.fall_back_to_last_good(refused, capabilities, stop).await;
        }
        Some(())
    }

    /// Stops plugins without a signature under settings that now require one. Otherwise they would continue
    /// as the last good version.
    async fn stop_unsigned(&mut self, name: &str, host: &HostSpec) {
        let has_none = |it: &PluginCandidate| {
            !is_signed(&it.parsed.spec.module, it.pulled.as_ref(), &host.modules.signed_by)
        };
        let is_unsigned = self
            .plugins
            .candidate(name)
            .is_some_and(|running| has_none(running) || running.shadow.as_deref().is_some_and(has_none));
        if is_unsigned {
            warn!(
                plugin = name,
                "the plugin is stopped: its component has no signature that `modules.signedBy` takes"
            );
            // One that has not drained yet is not started again meanwhile.
            drop(self.plugins.stop_plugin(name).await);
        }
    }

    /// After a restart the last good version has to be started.
    fn ask_for_last_good(&mut self, name: &str, host: &HostSpec) -> Option<anyhow::Result<u64>> {
        if self.plugins.is_draining(name) || self.plugins.is_running(name) {
            return None;
        }
        let good = self.good_plugins.get(name)?;
        let wanted = parse_plugin(&good.entry, host)
            .map(|parsed| {
                let remote =
                    RemoteComponent::of(&parsed.spec.module, host, &self.plugins.folders.for_fetching());
                let remote = remote.map(|remote| ComponentSource::Remote(remote.into()));
                let kept = || ComponentSource::Kept(self.last_good.component(name, good));
                let mut wanted = WantedPlugin::new(parsed, remote.unwrap_or_else(kept), host);
                wanted.reuse_fetched(good, &self.last_good);
                wanted
            })
            .map_err(|problems| anyhow!(texts(&problems).join("; ")));
        Some(wanted.map(|wanted| self.examinations.request_check(wanted)))
    }

    /// Keeps the last good version running, or starts it after a restart.
    async fn fall_back_to_last_good(
        &mut self,
        refused: FallingPlugin<'_>,
        capabilities: &OpenCapabilities,
        stop: &CancellationToken,
    ) {
        let FallingPlugin { name, config_map, message, good } = refused;
        // Reported once the running version has drained: until then the last good one can't be started.
        if self.plugins.is_draining(&name) {
            return;
        }
        let started = match good.map(|asked| asked.map(|number| (number, self.examinations.take(number)))) {
            None => Ok(()),
            Some(Err(error)) => Err(error),
            Some(Ok((number, None))) => {
                return self.waiting.push(WaitingPlugin { name, number, refusal: Some(message) });
            }
            Some(Ok((_, Some(Err(problems))))) => Err(anyhow!(texts(&problems).join("; "))),
            Some(Ok((_, Some(Ok(ExaminedFit { candidate, .. }))))) => {
                self.plugins.take(candidate, capabilities).await.map(drop)
            }
        };
        if let Err(error) = started.map_err(|error| format!("{error:#}"))
            && error != message
        {
            if stop.is_cancelled() {
                return;
            }
            warn!(plugin = name, "the last good version can't be started: {error}");
        }
        let phase = if self.plugins.is_running(&name) { PluginPhase::Degraded } else { PluginPhase::Failed };
        match phase {
            PluginPhase::Degraded => self.shared.set_phase(&name, phase, Some(message.clone())),
            _ => self.shared.set_plugin(&name, PluginState::idle(phase, Some(message.clone()))),
        }
        self.report_phase(&name, config_map, phase, Some(message)).await;
    }

    async fn report_phase(
        &mut self,
        name: &str,
        config_map: &str,
        phase: PluginPhase,
        message: Option<String>,
    ) {
        // A plugin that could not be started is not active.
        if self.plugins.tasks.is_stopping() {
            return;
        }
        let digest = self.plugins.digest(name);
        let report =
            ConfigReport { plugin: name.into(), config_map: config_map.into(), phase, digest, message };
        self.reporter.send_report(report).await;
    }

    pub(super) async fn remove_all_but(&mut self, kept: &BTreeSet<String>) {
        let known: BTreeSet<String> =
            self.shared.plugins().into_keys().chain(self.good_plugins.keys().cloned()).collect();
        for name in known.difference(kept) {
            // States that it finishes meanwhile still count.
            if matches!(self.plugins.stop_plugin(name).await, StopOutcome::NotYet) {
                continue;
            }
            self.shared.remove_plugin(name);
            self.forget_loss(name);
            self.rollbacks.forget_plugin(name);
            if self.good_plugins.remove(name).is_some() {
                let of = name.clone();
                let forgotten = self.last_good.run_on_thread(move |kept| kept.forget_plugin(&of)).await;
                if let Err(error) = forgotten {
                    error!(plugin = name, "its last good version can't be removed: {error}");
                }
            }
            self.reporter.forget_plugin(name).await;
        }
        // Its remains stay for a while. Recording this only helps retention, and is retried.
        let draining = known.into_iter().filter(|name| self.plugins.is_draining(name));
        let holding = kept.iter().cloned().chain(draining).chain(self.streams.progress_names()).collect();
        if let Err(error) = self.plugins.journal.retire_all_but(&holding).await {
            warn!(%error, "the journal can't record yet which plugins were removed; it is tried again");
        }
    }
}
