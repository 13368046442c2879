//! The controller's own document: sources, streams, and what plugins can be granted. Witnessing depends on
//! none of the grants.

use std::collections::BTreeMap;
use std::sync::Arc;

use kubewitness_capability::{OpenCapabilities, SecretRedaction, SharedServices};
use kubewitness_core::config::{HostLimitsSpec, HostSpec, ManifestFault, ModulesSpec, SourceSpec};
use kubewitness_core::ports::Ledgers;
use kubewitness_core::status::StatusRules;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{ReconcileLoop, texts, unreadable_text};
use crate::config::ConfigSnapshot;
use crate::config::last_good::LastGood;
use crate::config::manifest::{ManifestEntry, ParsedManifest, parse_host};

impl ReconcileLoop {
    pub(super) async fn reconcile_host(
        &mut self,
        snapshot: &ConfigSnapshot,
        stop: &CancellationToken,
    ) -> Result<(), Vec<String>> {
        let unread = snapshot.hosts.is_empty() && !snapshot.problems.is_empty();
        let refusal = match snapshot.only_host() {
            Ok(entry) => match self.take_host(entry, stop).await {
                Ok(()) => return Ok(()),
                Err(refusal) => refusal,
            },
            // An unreadable file may well contain it, and was reported already.
            Err(_) if unread => Vec::new(),
            Err(problem) => texts(&[problem]),
        };
        // Nothing runs yet in this process, or no plugin in a replica that has become the leader: the last
        // good settings are better than none.
        let has_nothing = self.host.is_none() || (self.role.is_leader() && self.capabilities.is_none());
        if has_nothing
            && let Some(good) = self
                .last_good
                .run_on_thread(LastGood::host)
                .await
                .map_err(|error| vec![unreadable_text(&error)])?
            && let Err(more) = self.take_host(&good, stop).await
        {
            return Err(refusal.into_iter().chain(more).collect());
        }
        Err(refusal)
    }

    /// Sources change one by one. When databases, destinations, ledgers or keys change, unchanged ones stay
    /// open, and the plugins move to the new ones.
    ///
    /// Witnessing depends on none of them: at startup the settings are applied even if some can't be opened.
    /// Those are reported as problems, their plugins fail, and the next round tries them again. A change of
    /// running settings is refused if it can't be opened: the last good settings stay, and their plugins with
    /// them.
    async fn take_host(
        &mut self,
        entry: &ManifestEntry,
        stop: &CancellationToken,
    ) -> Result<(), Vec<String>> {
        let parsed = parse_host(entry).map_err(|problems| texts(&problems))?;
        // Only the leader has capabilities.
        let is_whole = self.capabilities.is_some() || !self.role.is_leader();
        if is_whole && self.host.as_ref() == Some(&parsed.spec) {
            return self.open_closed(&parsed, stop).await;
        }
        let known = self
            .last_good
            .run_on_thread(LastGood::sources)
            .await
            .map_err(|error| vec![unreadable_text(&error)])?;
        let rules = parsed.spec.status_rules_in_force().map_err(|faults| texts(&parsed.problems(faults)))?;
        let mut changed = changed_sources(&known, &parsed.spec.sources);
        if changed.is_empty() {
            changed = changed_sources(&self.agree_on_sources(&parsed.spec).await?, &parsed.spec.sources);
        }
        if !changed.is_empty() {
            return Err(texts(&parsed.problems(changed)));
        }
        let same_grants = |old: &HostSpec| for_plugins(old) == for_plugins(&parsed.spec);
        if self.role.is_leader()
            && (self.capabilities.is_none() || !self.host.as_ref().is_some_and(same_grants))
        {
            let opened = match &self.capabilities {
                Some(old) => old.reload_settings(&parsed.spec, &self.data).await,
                None => {
                    let ledgers: Arc<dyn Ledgers> = Arc::new(self.plugins.journal.clone());
                    let reader = self.role.reader_name().map(|reader| Arc::from(&*reader));
                    let lent =
                        SharedServices { reader, ledgers: Some(ledgers), shipping: self.shipping_pauses };
                    OpenCapabilities::open_with(&parsed.spec, &self.data, lent).await
                }
            };
            let capabilities = opened.map_err(|faults| texts(&parsed.problems(faults)))?;
            self.warn_of_files(&parsed.spec);
            self.move_plugins(&capabilities, stop).await;
            self.capabilities = Some(capabilities);
        }
        let redaction = match &self.capabilities {
            Some(capabilities) => capabilities.secret_redaction(),
            None => {
                let opened = SecretRedaction::open(&parsed.spec, &self.data).await;
                Arc::new(opened.map_err(|faults| texts(&parsed.problems(faults)))?)
            }
        };
        // Capabilities that stay open were opened for the former sources.
        redaction.set_watched(&parsed.spec.sources);
        let named = parsed.spec.sources.iter().map(|source| (source.name.clone(), source.clone()));
        let known: BTreeMap<_, _> = known.into_iter().chain(named).collect();
        let saved = self.last_good.run_on_thread(move |kept| kept.save_sources(&known)).await;
        saved.map_err(|error| vec![unreadable_text(&error)])?;
        if !redaction.redaction_rules().hides_value_at(Some("Secret"), &["data", "*"]) {
            warn!(
                "the list in `spec.redaction.fields` takes the place of the default list and does not hide `data` of \
                 Secrets; add `{{kind: Secret, pointer: /data/*}}` if a source watches them"
            );
        }
        self.shared.set_redaction(redaction);
        self.reconcile_sources(&parsed.spec, rules).await;
        self.shared.settings_are_taken();
        let ceiling = &parsed.spec.limits.plugins;
        self.plugins.engine.bound_memory(ceiling.total_memory.0);
        if let Some(capabilities) = &self.capabilities {
            capabilities.bound_kv(ceiling.kv.0, ceiling.kv_rate.0);
        }
        info!(sources = parsed.spec.sources.len(), "the host's settings are taken");
        self.host = Some(parsed.spec.clone());
        self.keep_host(&parsed).await
    }

    /// Retries what could not be opened. Open ones stay open, and no running plugin has to move.
    async fn open_closed(
        &mut self,
        parsed: &ParsedManifest<HostSpec>,
        stop: &CancellationToken,
    ) -> Result<(), Vec<String>> {
        let Some(old) = self.capabilities.clone() else {
            // A replica that only witnesses also shows documents, and waits for its key.
            let waits = self.shared.redaction().is_some_and(|redaction| redaction.check_ready().is_err());
            return if waits { self.keep_host(parsed).await } else { Ok(()) };
        };
        if old.closed_entries().is_empty() {
            return Ok(());
        }
        let opened = stop.run_until_cancelled(old.reload_settings(&parsed.spec, &self.data)).await;
        let Some(opened) = opened else { return Ok(()) };
        self.capabilities = Some(opened.map_err(|faults| texts(&parsed.problems(faults)))?);
        self.keep_host(parsed).await
    }

    /// The last good settings are those of which everything could be opened.
    async fn keep_host(&mut self, parsed: &ParsedManifest<HostSpec>) -> Result<(), Vec<String>> {
        let mut closed = self.capabilities.as_ref().map(OpenCapabilities::closed_entries).unwrap_or_default();
        if self.capabilities.is_none()
            && let Some(redaction) = self.shared.redaction()
        {
            closed.extend(redaction.retry_key().await);
        }
        if !closed.is_empty() {
            return Err(texts(&parsed.problems(closed)));
        }
        let entry = parsed.entry.clone();
        let saved = self.last_good.run_on_thread(move |kept| kept.save_host(&entry)).await;
        saved.map_err(|error| vec![unreadable_text(&error)])
    }

    /// Each replica witnesses. A stream has one reader, and only one replica changes a history.
    pub(super) async fn reconcile_sources(&mut self, spec: &HostSpec, rules: StatusRules) {
        if self.role.is_leader() {
            self.sources.reconcile_sources(&spec.sources, &spec.streams, rules).await;
            self.streams.reconcile_streams(&spec.streams).await;
            self.resyncs.reconcile_resyncs(&spec.sources);
        } else {
            let witnessed: Vec<_> =
                spec.sources.iter().filter(|source| source.from.is_none()).cloned().collect();
            self.sources.reconcile_sources(&witnessed, &spec.streams, rules).await;
        }
    }
}

/// Finds sources that now witness something else. A source's checkpoint and objects belong to what it
/// witnessed. Another kind under the same name would start in the middle of them, and objects would be
/// missing silently.
pub(super) fn changed_sources(
    known: &BTreeMap<String, SourceSpec>,
    wanted: &[SourceSpec],
) -> Vec<ManifestFault> {
    let scope = |source: &SourceSpec| {
        (
            source.api_group().to_string(),
            source.kind.clone(),
            source.namespace.clone(),
            source.match_labels.clone(),
            // The positions of a carried source belong to the other controller.
            source.from.as_ref().map(|from| from.stream.clone()),
        )
    };
    let changed =
        |source: &SourceSpec| known.get(&source.name).is_some_and(|known| scope(known) != scope(source));
    let fault = |(index, source): (usize, &SourceSpec)| ManifestFault {
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

/// The settings that concern plugins: all except what is witnessed and how, and the limits that a component
/// is checked against before it runs.
fn for_plugins(spec: &HostSpec) -> HostSpec {
    let (sources, streams, status_rules) = (Vec::new(), Vec::new(), Vec::new());
    let (limits, modules) = (HostLimitsSpec::default(), ModulesSpec::default());
    HostSpec { sources, streams, status_rules, limits, modules, submit: None, ..spec.clone() }
}
