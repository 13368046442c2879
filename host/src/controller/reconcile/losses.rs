//! Mends plugins whose granted database has lost commits: asks the database once more, takes back in the
//! journal what it lost, records the loss, and lets the plugin continue. Everything slow runs in tasks beside
//! the loop, so a database that does not answer delays nothing else. It decides nothing about receipts:
//! `capability` reports which ones survived.

use std::collections::BTreeMap;
use std::time::Duration;

use kubewitness_capability::{CapabilityError, SurvivingReceipts};
use kubewitness_core::ports::{Backlog, JournalError};
use thiserror::Error;
use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::{info, warn};

use super::ReconcileLoop;
use crate::controller::plugins::{LostCommits, recorded_losses};
use crate::tasks::TaskFate;

/// The pause after a failed attempt to mend a loss. It doubles up to the longest.
const PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Why a loss can't be mended yet.
#[derive(Debug, Error)]
enum MendError {
    #[error("its database can't be asked: {0}")]
    Database(#[source] CapabilityError),
    #[error("calls of its version before have not ended yet")]
    Calls,
    #[error("the journal: {0}")]
    Journal(#[source] JournalError),
}

/// The mends in progress, and the times of retries.
pub(super) struct LossMends {
    retries: LossRetries,
    under_way: BTreeMap<String, MendUnderWay>,
    begun: u64,
    answers: mpsc::UnboundedReceiver<MendAnswer>,
    /// Passed to each mend, which answers at most twice.
    to_answer: mpsc::UnboundedSender<MendAnswer>,
}

struct MendUnderWay {
    number: u64,
    /// See [`RunningPlugins::count_grants`](crate::controller::plugins::RunningPlugins::count_grants).
    grants: u64,
    stop: CancellationToken,
    _guard: DropGuard,
}

pub(super) struct MendAnswer {
    plugin: String,
    number: u64,
    step: MendStep,
}

enum MendStep {
    Asked(Result<Option<SurvivingReceipts>, CapabilityError>),
    Recorded(Result<(), JournalError>),
}

impl Default for LossMends {
    fn default() -> Self {
        let (to_answer, answers) = mpsc::unbounded_channel();
        let (retries, under_way) = (LossRetries::default(), BTreeMap::new());
        Self { retries, under_way, begun: 0, answers, to_answer }
    }
}

impl LossMends {
    fn begin(&mut self, plugin: &str, grants: u64) -> (u64, CancellationToken) {
        self.begun += 1;
        let stop = CancellationToken::new();
        let guard = stop.clone().drop_guard();
        let mend = MendUnderWay { number: self.begun, grants, stop: stop.clone(), _guard: guard };
        self.under_way.insert(plugin.to_owned(), mend);
        (self.begun, stop)
    }

    /// Returns once a task has an answer.
    pub async fn next_answer(&mut self) -> MendAnswer {
        match self.answers.recv().await {
            Some(answer) => answer,
            // The sender is held beside the receiver, so the channel never closes.
            None => std::future::pending().await,
        }
    }

    /// Cancels all mends. Plugins that still lack commits are asked for again.
    pub fn abandon_all(&mut self) {
        self.under_way.clear();
    }
}

/// When a failed mend is retried, by plugin.
#[derive(Default)]
struct LossRetries(BTreeMap<String, LossRetry>);

struct LossRetry {
    at: Duration,
    pause: Duration,
}

impl LossRetries {
    fn is_due(&self, plugin: &str, now: Duration) -> bool {
        self.0.get(plugin).is_none_or(|retry| retry.at <= now)
    }

    /// Schedules a retry. Returns the pause.
    fn put_off(&mut self, plugin: &str, now: Duration) -> Duration {
        let pause = self.0.get(plugin).map_or(PAUSE, |retry| (retry.pause * 2).min(LONGEST_PAUSE));
        self.0.insert(plugin.to_owned(), LossRetry { at: now + pause, pause });
        pause
    }

    fn retain_plugins(&mut self, lacking: &[String]) {
        self.0.retain(|plugin, _| lacking.contains(plugin));
    }
}

impl ReconcileLoop {
    /// Asks each database that lacks commits. Failed mends are retried later, and their plugins are not
    /// called until then. The query is bounded like any reading of receipts, by the limits of connections and
    /// statements; in a large database it takes long.
    pub(super) fn begin_mends(&mut self) {
        let Some(capabilities) = self.capabilities.clone().filter(|_| self.role.is_leader()) else { return };
        let lacking = capabilities.plugins_lacking_commits();
        self.mends.retries.retain_plugins(&lacking);
        let now = self.plugins.clock.elapsed();
        for plugin in lacking {
            if self.mends.under_way.contains_key(&plugin) || !self.mends.retries.is_due(&plugin, now) {
                continue;
            }
            let (number, stop) = self.mends.begin(&plugin, self.plugins.count_grants(&plugin));
            let (capabilities, answers) = (capabilities.clone(), self.mends.to_answer.clone());
            let name = format!("asking the database of {plugin}");
            self.plugins.tasks.spawn_task(name, TaskFate::Finite, async move {
                let asked = stop.run_until_cancelled(capabilities.survey_survivors(&plugin)).await;
                if let Some(asked) = asked {
                    // The loop may have ended meanwhile.
                    answers.send(MendAnswer { plugin, number, step: MendStep::Asked(asked) }).ok();
                }
                Ok(())
            });
        }
    }

    /// Continues a mend with the answer of its task, unless it was abandoned.
    pub(super) fn take_mend_answer(&mut self, answer: MendAnswer) {
        let MendAnswer { plugin, number, step } = answer;
        let Some(mend) = self.mends.under_way.get(&plugin).filter(|mend| mend.number == number) else {
            return;
        };
        let (grants, stop) = (mend.grants, mend.stop.clone());
        let mended = match step {
            MendStep::Asked(Err(error)) => Err(MendError::Database(error)),
            MendStep::Asked(Ok(None)) => {
                info!(plugin, "its database has all commits after all");
                Ok(())
            }
            // The plugin may have another database now, which is asked next.
            MendStep::Asked(Ok(Some(_))) if grants != self.plugins.count_grants(&plugin) => Ok(()),
            MendStep::Asked(Ok(Some(survivors))) => {
                match self.begin_take_back(&plugin, number, survivors, stop) {
                    true => return,
                    false => Err(MendError::Calls),
                }
            }
            // The round after it has drained restarts it, whether or not the loss was mended.
            MendStep::Recorded(recorded) => recorded.map_err(MendError::Journal),
        };
        self.mends.under_way.remove(&plugin);
        if let Err(error) = mended {
            let pause = self.mends.retries.put_off(&plugin, self.plugins.clock.elapsed());
            warn!(plugin, ?pause, "what its database lost can't be taken back yet: {error}");
        }
    }

    fn begin_take_back(
        &mut self,
        plugin: &str,
        number: u64,
        survivors: SurvivingReceipts,
        stop: CancellationToken,
    ) -> bool {
        let Some(capabilities) = self.capabilities.clone() else { return false };
        let (answers, of) = (self.mends.to_answer.clone(), plugin.to_owned());
        let lost = LostCommits { survivors, capabilities, stop };
        self.plugins.begin_take_back(plugin, lost, move |recorded| {
            let step = MendStep::Recorded(recorded);
            // The loop may have ended meanwhile.
            answers.send(MendAnswer { plugin: of, number, step }).ok();
        })
    }

    /// Call this when a plugin was removed, because its loss no longer matters. If it comes back, its
    /// database is asked anew.
    pub(super) fn forget_loss(&mut self, plugin: &str) {
        self.mends.under_way.remove(plugin);
        if let Some(capabilities) = &self.capabilities {
            capabilities.end_loss(plugin);
        }
    }

    /// Publishes the losses of a plugin that does not run here.
    pub(super) async fn read_losses(&self, plugin: &str, stop: &CancellationToken) {
        match stop.run_until_cancelled(self.plugins.journal.plugin_kv(plugin)).await {
            None => {}
            Some(Ok(kv)) => self.shared.set_losses(plugin, recorded_losses(&kv)),
            Some(Err(error)) => {
                warn!(plugin, %error, "the journal can't say yet what its database has lost");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use kubewitness_capability::{OpenCapabilities, PluginServices, StartPositions, SubscribedKinds};
    use kubewitness_core::config::{HostSpec, PluginSpec};
    use kubewitness_core::intents::commits::{CommitNote, DatabaseCommits, NotedCommit};
    use kubewitness_core::ports::{NoOutcomes, PluginProgress, ProgressSave};
    use kubewitness_harness::until;
    use serde_json::json;

    use super::*;
    use crate::config::ConfigSnapshot;
    use crate::controller::plugins::StopOutcome;
    use crate::controller::reconcile::tests::{control, entry};
    use crate::controller::shared::{PluginPhase, PluginState};

    /// A plugin that was stopped and is not started yet, and whose database lacks a commit.
    async fn lacking_plugin(control: &ReconcileLoop) -> OpenCapabilities {
        let host = json!({"sources": [], "databases": [{"name": "main", "sqlite": {"path": "main.db"}}]});
        let host: HostSpec = serde_json::from_value(host).unwrap();
        let spec = json!({
            "module": {"file": "p.wasm"},
            "subscribe": [],
            "grants": {"sql": [{"name": "main", "database": "main"}]},
        });
        let spec: PluginSpec = serde_json::from_value(spec).unwrap();
        let lost = NotedCommit { token: "p.1".into(), at_ms: 1, is_tick: false };
        let current =
            DatabaseCommits { database: "main".into(), commits: vec![lost], ..DatabaseCommits::default() };
        let note = CommitNote { current: Some(current), earlier: Vec::new() }.as_write();
        let progress = PluginProgress { cursor: 7, ..PluginProgress::default() };
        let journal = control.plugins.journal.clone();
        let save = ProgressSave { progress, kv: vec![note], ..ProgressSave::default() };
        journal.save("p", save).await.unwrap();
        let capabilities = OpenCapabilities::open(&host, &control.data).await.unwrap();
        let backing = PluginServices {
            documents: Arc::new(journal.clone()),
            lister: Arc::new(control.shared.listers.clone()),
            outcomes: Arc::new(NoOutcomes),
            subscribed: SubscribedKinds::of([]),
            clock: control.plugins.clock.clone(),
            uses: Arc::default(),
            kv: journal.plugin_kv("p").await.unwrap(),
            shared_mutes: Default::default(),
            reports: Default::default(),
            notes: Arc::new(journal),
            version: "v1".into(),
            positions: StartPositions { cursor: 7, furthest_cursor: 7, furthest: 7, newest: 7 },
        };
        capabilities.grant_plugin("p", &spec, backing).await.unwrap();
        let found = async || Ok((capabilities.plugins_lacking_commits() == ["p"]).then_some(()));
        until(Duration::from_secs(30), "the loss to be found", found).await.unwrap();
        capabilities
    }

    async fn lacking_control(folder: &std::path::Path) -> (ReconcileLoop, OpenCapabilities) {
        let mut control = control(folder).await;
        let capabilities = lacking_plugin(&control).await;
        control.capabilities = Some(capabilities.clone());
        (control, capabilities)
    }

    /// Until all that was begun has ended.
    async fn mended(control: &mut ReconcileLoop) {
        control.begin_mends();
        while !control.mends.under_way.is_empty() {
            let answer = control.mends.next_answer().await;
            control.take_mend_answer(answer);
        }
        control.plugins.await_drained().await;
    }

    #[tokio::test]
    async fn a_loss_is_mended_beside_the_loop_and_no_version_starts_meanwhile() {
        let folder = tempfile::tempdir().unwrap();
        let (mut control, capabilities) = lacking_control(folder.path()).await;
        control.begin_mends();
        assert_eq!(capabilities.plugins_lacking_commits(), ["p"], "nobody has waited for it");
        control.begin_mends();
        assert_eq!(control.mends.begun, 1, "it is asked once");
        let asked = control.mends.next_answer().await;
        control.take_mend_answer(asked);
        assert!(matches!(control.plugins.stop_plugin("p").await, StopOutcome::NotYet));
        mended(&mut control).await;
        assert!(capabilities.plugins_lacking_commits().is_empty());
        assert!(matches!(control.plugins.stop_plugin("p").await, StopOutcome::NotThere), "it may start");
        let kv = control.plugins.journal.plugin_kv("p").await.unwrap();
        assert!(kv.iter().any(|(key, _)| key.contains("loss/")), "{kv:?}");
    }

    #[tokio::test]
    async fn a_mend_ends_with_a_stop_and_its_answer_counts_for_no_later_one() {
        let folder = tempfile::tempdir().unwrap();
        let (mut control, capabilities) = lacking_control(folder.path()).await;
        let (first, stop) = control.mends.begin("p", 0);
        control.mends.abandon_all();
        assert!(stop.is_cancelled());
        let (second, _) = control.mends.begin("p", 0);
        let answer = |number, step| MendAnswer { plugin: "p".into(), number, step };
        control.take_mend_answer(answer(first, MendStep::Asked(Ok(None))));
        assert!(control.mends.under_way.contains_key("p"), "that was of the first one");
        let refused = MendStep::Recorded(Err(JournalError::Invalid("full".into())));
        control.take_mend_answer(answer(second, refused));
        control.begin_mends();
        assert!(control.mends.under_way.is_empty(), "it is put off");
        assert_eq!(capabilities.plugins_lacking_commits(), ["p"]);
    }

    #[tokio::test]
    async fn what_was_asked_before_a_plugin_got_its_grants_anew_takes_nothing_back() {
        let folder = tempfile::tempdir().unwrap();
        let (mut control, capabilities) = lacking_control(folder.path()).await;
        let survivors = capabilities.survey_survivors("p").await.unwrap();
        assert!(survivors.is_some());
        let (number, _) = control.mends.begin("p", 7);
        let step = MendStep::Asked(Ok(survivors));
        control.take_mend_answer(MendAnswer { plugin: "p".into(), number, step });
        assert!(control.mends.under_way.is_empty() && !control.plugins.is_draining("p"));
        mended(&mut control).await;
        assert!(capabilities.plugins_lacking_commits().is_empty(), "it was asked again at once");
    }

    #[tokio::test]
    async fn a_plugin_that_was_removed_lacks_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let (mut control, capabilities) = lacking_control(folder.path()).await;
        control.shared.set_plugin("p", PluginState::idle(PluginPhase::Failed, None));
        control.begin_mends();
        control.remove_all_but(&BTreeSet::new()).await;
        assert!(capabilities.plugins_lacking_commits().is_empty());
        assert!(control.mends.under_way.is_empty());
    }

    #[tokio::test]
    async fn losses_stay_told_of_a_plugin_that_does_not_run() {
        let folder = tempfile::tempdir().unwrap();
        let (mut control, _) = lacking_control(folder.path()).await;
        mended(&mut control).await;
        control.shared.set_plugin("p", PluginState::idle(PluginPhase::Failed, None));
        assert_eq!(control.shared.losses("p").len(), 1);
        control.shared.remove_plugin("p");
        assert!(control.shared.losses("p").is_empty());
        let text = "apiVersion: kubewitness.dev/v1alpha1\nkind: Plugin\nmetadata: {name: p}\nspec: {}\n";
        let snapshot = ConfigSnapshot { plugins: vec![entry("p", text)], ..ConfigSnapshot::default() };
        control.show_standby(&snapshot, &CancellationToken::new()).await;
        assert_eq!(
            control.shared.losses("p").len(),
            1,
            "another replica shows what the journal has recorded"
        );
    }

    #[test]
    fn a_loss_that_can_not_be_mended_is_tried_again_after_pauses_that_grow_within_a_bound() {
        let (mut retries, mut now) = (LossRetries::default(), Duration::from_secs(100));
        assert!(retries.is_due("p", now));
        for pause in [1, 2, 4, 8, 16, 32, 60, 60] {
            let pause = Duration::from_secs(pause);
            assert_eq!(retries.put_off("p", now), pause);
            assert!(!retries.is_due("p", now + pause / 2) && retries.is_due("q", now));
            now += pause;
            assert!(retries.is_due("p", now));
        }
        retries.retain_plugins(&["p".to_owned()]);
        assert_eq!(retries.put_off("p", now), LONGEST_PAUSE);
        retries.retain_plugins(&[]);
        assert_eq!(retries.put_off("p", now), PAUSE, "another loss");
    }
}
