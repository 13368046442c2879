//! Mends plugins whose granted database has lost commits: asks it once more, takes back in the journal what it lost,
//! records the loss, and lets the plugin go on. It decides nothing about receipts: `capability` says what survived.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use kubewitness_capability::OpenCapabilities;
use tracing::{error, info, warn};

use super::ReconcileLoop;
use crate::controller::plugins::StopOutcome;

/// The limit for asking a database what it still has. Changes of the configuration wait for it.
const ASK: Duration = Duration::from_secs(5);
/// The pause after a loss could not be mended. It doubles up to the longest.
const PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// When the losses that could not be mended are tried again, by plugin.
#[derive(Default)]
pub(super) struct LossRetries(BTreeMap<String, LossRetry>);

struct LossRetry {
    at: Duration,
    pause: Duration,
}

impl LossRetries {
    fn is_due(&self, plugin: &str, now: Duration) -> bool {
        self.0.get(plugin).is_none_or(|retry| retry.at <= now)
    }

    /// Returns the pause.
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
    /// Each is tried again later if its database or the journal does not answer. Until then the plugin does nothing.
    pub(super) async fn mend_losses(&mut self) {
        let Some(capabilities) = self.capabilities.clone().filter(|_| self.role.is_leader()) else { return };
        let lacking = capabilities.plugins_lacking_commits();
        self.loss_retries.retain_plugins(&lacking);
        for name in lacking {
            let now = self.plugins.clock.elapsed();
            if !self.loss_retries.is_due(&name, now) {
                continue;
            }
            if let Err(error) = self.mend_loss(&name, &capabilities).await {
                let pause = self.loss_retries.put_off(&name, self.plugins.clock.elapsed());
                warn!(plugin = name, ?pause, "what its database lost can't be taken back yet: {error:#}");
            }
        }
    }

    async fn mend_loss(&mut self, name: &str, capabilities: &OpenCapabilities) -> Result<()> {
        let asked = tokio::time::timeout(ASK, capabilities.survey_survivors(name)).await;
        let survivors = asked.context("its database has not answered in time")?;
        let Some(survivors) = survivors.context("its database can't be asked")? else {
            info!(plugin = name, "its database has all commits after all");
            return Ok(());
        };
        let candidate = match self.plugins.stop_plugin(name).await {
            StopOutcome::NotYet => bail!("its calls have not ended yet"),
            StopOutcome::Drained(candidate) => Some(*candidate),
            StopOutcome::NotThere => None,
        };
        let taken = self.plugins.take_back(name, survivors).await;
        if let Ok(loss) = &taken {
            error!(plugin = name, "{}", loss.text());
            capabilities.end_loss(name);
        }
        if let Some(candidate) = candidate {
            self.start_candidate(candidate, capabilities).await;
        }
        // The next round starts it if it is still configured, and again until it has started.
        self.look_again |= !self.plugins.is_running(name);
        taken.map(drop).context("the journal")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use kubewitness_capability::{PluginServices, StartPositions, SubscribedKinds};
    use kubewitness_core::config::{HostSpec, PluginSpec};
    use kubewitness_core::intents::commits::{CommitNote, DatabaseCommits, NotedCommit};
    use kubewitness_core::ports::{Backlog, NoOutcomes, PluginProgress, ProgressSave};
    use kubewitness_harness::until;
    use serde_json::json;

    use super::*;
    use crate::controller::reconcile::tests::control;

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
        let current = DatabaseCommits { database: "main".into(), commits: vec![lost], beneath: None };
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
            told: Default::default(),
            reports: Default::default(),
            notes: Arc::new(journal),
            version: "v1".into(),
            positions: StartPositions { cursor: 7, furthest: 7, newest: 7 },
        };
        capabilities.grant_plugin("p", &spec, backing).await.unwrap();
        let found = async || Ok((capabilities.plugins_lacking_commits() == ["p"]).then_some(()));
        until(Duration::from_secs(30), "the loss to be found", found).await.unwrap();
        capabilities
    }

    #[tokio::test]
    async fn a_plugin_that_does_not_run_once_its_loss_is_mended_is_started_by_the_next_round() {
        let folder = tempfile::tempdir().unwrap();
        let mut control = control(folder.path()).await;
        let capabilities = lacking_plugin(&control).await;
        control.capabilities = Some(capabilities.clone());
        control.mend_losses().await;
        assert!(control.look_again, "its start is tried again");
        assert!(capabilities.plugins_lacking_commits().is_empty());
        let kv = control.plugins.journal.plugin_kv("p").await.unwrap();
        assert!(kv.iter().any(|(key, _)| key.contains("loss/")), "{kv:?}");
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
