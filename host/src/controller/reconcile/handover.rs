//! The handover: what a replica starts when it becomes the leader, and stops when another one does.

use std::collections::BTreeMap;

use anyhow::Result;
use kubewitness_core::config::{HostSpec, SourceSpec};
use kubewitness_core::status::StatusRules;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::ReconcileLoop;
use crate::config::ConfigSnapshot;
use crate::config::manifest::claimed_name;
use crate::controller::shared::{PluginPhase, PluginState};

impl ReconcileLoop {
    /// Everything of an ended term stops before the next one begins: later writes would count for the next
    /// term.
    pub(super) async fn change_role(&mut self) -> Result<()> {
        if self.role.is_lost() {
            self.abandon_plugins().await;
        }
        let taken = self.role.take().await;
        self.sources.set_auditing(self.role.is_leader());
        taken
    }

    /// The next leader may have begun: nothing is waited for except calls in progress.
    async fn abandon_plugins(&mut self) {
        warn!("this replica no longer holds the Lease: its plugins are stopped, and it goes on witnessing");
        self.examinations.abandon_all();
        self.mends.abandon_all();
        self.waiting.clear();
        self.resyncs.shut_down();
        self.retentions.shut_down();
        self.plugins.abandon_all().await;
        self.streams.reconcile_streams(&[]).await;
        self.role.step_down().await;
        self.capabilities = None;
        if let Some(host) = self.host.clone() {
            let rules = host.status_rules_in_force().unwrap_or_else(|_| StatusRules::builtin());
            self.reconcile_sources(&host, rules).await;
        }
    }

    /// Reads what the replicas witness under each source's name, as the first replica recorded it in the
    /// journal: a pod has no data folder that would remember it.
    pub(super) async fn agree_on_sources(
        &self,
        spec: &HostSpec,
    ) -> Result<BTreeMap<String, SourceSpec>, Vec<String>> {
        let mut agreed = BTreeMap::new();
        if !self.role.is_elected() {
            return Ok(agreed);
        }
        for source in &spec.sources {
            let own = serde_json::to_string(source).map_err(|error| vec![error.to_string()])?;
            let journal = &self.plugins.journal;
            let text = journal.agree_on_name(&format!("source {}", source.name), &own).await;
            let text =
                text.map_err(|error| vec![format!("what other replicas witness can't be read: {error}")])?;
            let agreed_on = serde_json::from_str(&text)
                .map_err(|error| vec![format!("what other replicas witness is not understood: {error}")])?;
            agreed.insert(source.name.clone(), agreed_on);
        }
        Ok(agreed)
    }

    /// Warns that files of one replica are missing on the next.
    pub(super) fn warn_of_files(&self, spec: &HostSpec) {
        if !self.role.is_elected() {
            return;
        }
        let files = spec.databases.iter().filter(|database| database.sqlite.is_some());
        let files = files.map(|database| format!("the database `{}`", database.name));
        let ledgers = spec.ledgers.iter().map(|ledger| format!("the ledger `{}`", ledger.name));
        for what in files.chain(ledgers) {
            warn!(
                "{what} is a file of this replica: the next leader has it only if all replicas share the volume of \
                 that file"
            );
        }
    }

    /// Shows people the plugins that another replica runs.
    pub(super) async fn show_standby(&mut self, snapshot: &ConfigSnapshot, stop: &CancellationToken) {
        let names: Vec<_> = snapshot
            .plugins
            .iter()
            .map(|entry| claimed_name(entry).unwrap_or_else(|| entry.config_map.clone()))
            .collect();
        for gone in self.shared.plugins().into_keys().filter(|name| !names.contains(name)) {
            self.shared.remove_plugin(&gone);
        }
        for name in names {
            self.shared.set_plugin(&name, PluginState::idle(PluginPhase::Standby, None));
            self.read_losses(&name, stop).await;
        }
    }
}
