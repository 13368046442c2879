//! The reconciliation loop: makes what runs equal to what is configured.
//!
//! It alone starts and stops sources, streams and plugins, so no two changes can race. A single loop must
//! never block, or one plugin would delay every other change. So compiling and examining, which take minutes,
//! run beside it ([`component_checks`]), and so does mending what databases have lost ([`losses`]). Draining continues
//! across rounds. It reads no state and answers no request. A faulty document changes nothing that runs.

mod component_checks;
mod handover;
mod housekeeping;
mod losses;
mod plugins;
pub mod report;
mod rollback;
mod settings;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use kubewitness_capability::{OpenCapabilities, ShipPauses};
use kubewitness_core::config::HostSpec;
use kubewitness_core::ports::Backlog;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

use super::election::LeaderRole;
use super::plugins::RunningPlugins;
use super::shared::SharedStatus;
use super::sources::SourceParts;
use super::sources::resync::SourceResyncs;
use super::sources::retention::SourceRetentions;
use super::sources::streams::SourceStreams;
use super::submitter::make_offer;
use crate::config::ConfigSnapshot;
use crate::config::last_good::{GoodPlugin, LastGood};
use crate::config::manifest::ManifestProblem;
use crate::process::timers::ControllerTimers;
use component_checks::ComponentChecks;
use losses::LossMends;
use plugins::WaitingPlugin;
use report::ConfigReporter;
use rollback::RollbackTable;

/// Files that are written one after the other count as one change.
const DEBOUNCE: Duration = Duration::from_millis(200);
/// How long after the last state the memory of a burst is released.
const QUIET: Duration = Duration::from_secs(1);

pub struct ReconcileLoop {
    pub data: PathBuf,
    pub sources: SourceParts,
    resyncs: SourceResyncs,
    retentions: SourceRetentions,
    streams: SourceStreams,
    role: LeaderRole,
    pub plugins: RunningPlugins,
    pub reporter: ConfigReporter,
    pub last_good: LastGood,
    pub good_plugins: BTreeMap<String, GoodPlugin>,
    rollbacks: RollbackTable,
    pub shared: std::sync::Arc<SharedStatus>,
    examinations: ComponentChecks,
    /// Plugins whose examination had no answer in the last round.
    waiting: Vec<WaitingPlugin>,
    host: Option<HostSpec>,
    capabilities: Option<OpenCapabilities>,
    /// The task that signs and closes ledgers.
    tending: Option<JoinHandle<()>>,
    /// The task that ships closed files of ledgers.
    shipping: Option<JoinHandle<()>>,
    refused: bool,
    /// When refused changes are tried again.
    refused_again: Duration,
    shipping_pauses: ShipPauses,
    /// Set if a round requested something after it had waited for answers.
    look_again: bool,
    mends: LossMends,
    /// Parts of the configuration that are not used, and were reported.
    untaken: BTreeSet<String>,
    /// As of the last round.
    journal_was_in_trouble: bool,
}

impl ReconcileLoop {
    pub async fn new(
        data: PathBuf,
        role: LeaderRole,
        sources: SourceParts,
        plugins: RunningPlugins,
        reporter: ConfigReporter,
        last_good: LastGood,
        timers: &ControllerTimers,
    ) -> Result<Self> {
        let kept = last_good.run_on_thread(|kept| {
            let plugins = kept.plugins()?;
            Ok((kept.versions_before(&plugins)?, plugins))
        });
        let (before, good_plugins) = kept.await.context("reading the last good configuration")?;
        let shared = sources.shared.clone();
        let examinations =
            ComponentChecks::new(plugins.engine.clone(), plugins.tasks.clone(), plugins.clock.clone());
        Ok(Self {
            data,
            role,
            resyncs: SourceResyncs::new(shared.clone(), sources.tasks.clone()),
            retentions: SourceRetentions::new(
                plugins.journal.clone(),
                shared.clone(),
                sources.tasks.clone(),
                timers.retention,
            ),
            streams: SourceStreams::new(plugins.journal.clone(), shared.clone(), sources.tasks.clone()),
            sources,
            plugins,
            reporter,
            last_good,
            good_plugins,
            rollbacks: RollbackTable::of(before),
            shared,
            examinations,
            waiting: Vec::new(),
            host: None,
            capabilities: None,
            tending: None,
            shipping: None,
            refused: false,
            refused_again: timers.configuration.refused,
            shipping_pauses: timers.shipping,
            look_again: false,
            mends: LossMends::default(),
            untaken: BTreeSet::new(),
            journal_was_in_trouble: false,
        })
    }

    /// Runs until `stop`, then ends everything, however it ended itself: first intake, then delivery.
    pub async fn run(
        mut self,
        snapshots: watch::Receiver<Option<ConfigSnapshot>>,
        stop: CancellationToken,
    ) -> Result<()> {
        self.sources.set_auditing(self.role.is_leader());
        let result = self.follow_snapshots(snapshots, &stop).await;
        self.examinations.abandon_all();
        self.mends.abandon_all();
        self.resyncs.shut_down();
        self.retentions.shut_down();
        self.sources.shut_down().await;
        self.plugins.shut_down().await;
        self.streams.shut_down().await;
        if let Some(capabilities) = &self.capabilities {
            capabilities.sign_off().await;
        }
        self.role.step_down().await;
        result
    }

    async fn follow_snapshots(
        &mut self,
        mut snapshots: watch::Receiver<Option<ConfigSnapshot>>,
        stop: &CancellationToken,
    ) -> Result<()> {
        let mut housekeeping = tokio::time::interval(self.refused_again);
        let mut quiet = tokio::time::interval(QUIET);
        let mut compiling = self.plugins.engine.digest_in_progress();
        let mut newest = 0;
        let mut is_first = true;
        loop {
            let version_decided = self.plugins.version_decided();
            tokio::select! {
                // The task that follows the configuration stops at the same time. That is not a failure then.
                biased;
                () = stop.cancelled() => return Ok(()),
                changed = snapshots.changed() => {
                    if stop.is_cancelled() {
                        return Ok(());
                    }
                    changed.context("the configuration is not watched any more")?;
                    // Nothing runs yet that half a change could end, so a restart doesn't wait.
                    if !std::mem::take(&mut is_first) {
                        tokio::time::sleep(DEBOUNCE).await;
                    }
                }
                // Its change, or a later one, has waited for this.
                () = self.plugins.await_drained() => {}
                // A round requested another one.
                () = std::future::ready(()), if std::mem::take(&mut self.look_again) => {}
                // Its plugin has waited for this.
                () = self.examinations.await_answer() => {}
                answer = self.mends.next_answer() => {
                    self.take_mend_answer(answer);
                    continue;
                }
                () = version_decided => {
                    if !self.end_failed_versions().await {
                        continue;
                    }
                }
                Ok(()) = compiling.changed() => {
                    self.log_waiting_plugins();
                    continue;
                }
                source = self.sources.next_overtaken() => {
                    self.sources.begin_again(&source).await;
                    continue;
                }
                () = self.role.await_change() => self.change_role().await?,
                _ = quiet.tick() => {
                    self.plugins.journal.drop_recent_states(newest);
                    newest = *self.plugins.journal.newest_position().borrow();
                    self.tend_ledgers();
                    self.ship_ledgers(stop);
                    self.begin_mends();
                    continue;
                }
                _ = housekeeping.tick() => {
                    self.plugins.drop_idle_instances();
                    self.prune_receipts().await;
                    self.check_journal().await?;
                    if self.role.is_leader() {
                        stop.run_until_cancelled(self.reporter.repair_reports()).await;
                    }
                    if !self.refused {
                        continue;
                    }
                }
            }
            let snapshot = snapshots.borrow_and_update().clone();
            if let Some(snapshot) = snapshot {
                self.reconcile_snapshot(&snapshot, stop).await;
            }
            if let Some(damage) = self.plugins.journal_damage() {
                bail!("starting a plugin: {damage}");
            }
        }
    }

    /// Offers the templates to people, and returns the faults in them.
    fn offer_templates(&self, snapshot: &ConfigSnapshot) -> Vec<String> {
        let (mut offer, problems) = make_offer(self.host.as_ref(), snapshot);
        if !snapshot.is_whole()
            && let (Some(offer), Some(old)) = (&mut offer, self.shared.offer())
        {
            for (name, template) in &old.templates {
                offer.templates.entry(name.clone()).or_insert_with(|| template.clone());
            }
        }
        self.shared.set_offer(offer);
        texts(&problems)
    }

    /// Ends early on a stop. Documents that it did not reach are left as they are: only what was examined and
    /// is no longer wanted is removed.
    async fn reconcile_snapshot(&mut self, snapshot: &ConfigSnapshot, stop: &CancellationToken) {
        let mut problems: Vec<String> = snapshot.problems.iter().map(ToString::to_string).collect();
        if let Err(found) = self.reconcile_host(snapshot, stop).await {
            problems.extend(found);
        }
        problems.extend(self.offer_templates(snapshot));
        let known = self.shared.problems();
        for problem in problems.iter().filter(|problem| !known.contains(problem)) {
            error!("{problem}");
        }
        self.log_unused_documents(snapshot);
        self.refused = !problems.is_empty();
        self.shared.set_problems(problems);
        if !self.role.is_leader() {
            return self.show_standby(snapshot, stop).await;
        }
        let Some(host) = self.host.clone() else { return };
        self.note_beginnings(snapshot, &host, stop).await;
        // Documents that were not removed before the beginnings are noted keep their plugins.
        self.retentions.reconcile_retentions(&host.sources);
        let Some(capabilities) = self.capabilities.clone() else { return };
        let kept = self.reconcile_plugins(snapshot, &host, &capabilities, stop).await;
        let Some(kept) = kept else { return info!("stopped before every plugin was checked") };
        if snapshot.is_whole() {
            self.remove_all_but(&kept).await;
        } else {
            for drained in self.plugins.take_drained() {
                self.start_candidate(drained, &capabilities).await;
            }
        }
    }
}

fn texts(problems: &[ManifestProblem]) -> Vec<String> {
    problems.iter().map(ToString::to_string).collect()
}

fn unreadable_text(error: &std::io::Error) -> String {
    format!("the last good configuration beside the journal: {error}")
}

#[cfg(test)]
mod tests;
