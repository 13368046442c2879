//! The registry of what runs: the reconciliation loop writes it, the views read it.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use kubewitness_capability::{GrantUses, ReportRoom, SecretRedaction, ShippingStatus, SubscribedKinds};
use kubewitness_core::config::{PluginSpec, SourceSpec, StreamSpec};
use kubewitness_core::intents::commits::DatabaseLoss;
use kubewitness_core::ports::{NoOutcomes, OutcomeFinder, TemplateOffer};
use kubewitness_core::redact::RulesInForce;
use kubewitness_core::views::{ManifestView, ShadowView};
use kubewitness_dispatch::DispatchHandle;
use kubewitness_journal::RetentionHolder;
use kubewitness_sandbox::PluginTally;
use kubewitness_stream::CarrierHandle;
use kubewitness_watch::{CacheListers, SourceHandle};
use tokio::sync::watch;

kubewitness_core::words! {
    /// The phase of a plugin, without its figures.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum PluginPhase {
        /// The plugin is checked and compiled for the first time.
        Starting = "starting",
        /// The plugin takes states.
        Active = "active",
        /// The plugin runs. Its newest configuration was refused, or its last calls failed; the message says which.
        Degraded = "degraded",
        /// The plugin does not run, because it has no good configuration.
        Failed = "failed",
        /// The plugin finishes the calls in progress and takes no new states.
        Draining = "draining",
        /// Another replica, the leader, runs the plugin.
        Standby = "standby",
        /// An operator has paused the plugin. It gets no states before it is resumed.
        Paused = "paused",
    }
}

#[derive(Clone)]
pub struct PluginState {
    pub phase: PluginPhase,
    pub digest: String,
    /// The origin of its component.
    pub module: Option<String>,
    pub message: Option<String>,
    pub handle: Option<DispatchHandle>,
    /// The manifest of the running version.
    pub manifest: Option<Arc<ManifestView>>,
    /// Its grants and their use.
    pub uses: Arc<GrantUses>,
    /// The results of its calls, over all versions that ran here.
    pub tally: Arc<PluginTally>,
    /// The comparison with its shadow version.
    pub shadow: Option<watch::Receiver<ShadowView>>,
}

impl PluginState {
    /// A plugin that does not run in this process.
    pub fn idle(phase: PluginPhase, message: Option<String>) -> Self {
        Self {
            phase,
            digest: String::new(),
            module: None,
            message,
            handle: None,
            manifest: None,
            uses: Arc::default(),
            tally: Arc::default(),
            shadow: None,
        }
    }
}

/// States of a source beyond its limits, and since when something blocks their removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptBeyond {
    pub states: u64,
    pub since_ms: u64,
}

#[derive(Default)]
pub struct SharedStatus {
    pub listers: CacheListers,
    sources: RwLock<BTreeMap<String, (SourceSpec, SourceHandle)>>,
    plugins: RwLock<BTreeMap<String, PluginState>>,
    /// By plugin, the losses of its database that the journal has recorded, whether or not the plugin runs.
    losses: RwLock<BTreeMap<String, Arc<[DatabaseLoss]>>>,
    /// Streams to which this controller passes states.
    streams: RwLock<BTreeMap<String, (StreamSpec, CarrierHandle)>>,
    /// Streams without a key, by which a reader could tell forged states.
    unsigned_streams: RwLock<BTreeMap<String, String>>,
    /// By source, the holders that block retention.
    held: RwLock<BTreeMap<String, BTreeMap<RetentionHolder, KeptBeyond>>>,
    /// By plugin, the size of its reports.
    report_rooms: RwLock<BTreeMap<String, ReportRoom>>,
    /// By ledger, the progress of shipping its closed files.
    shipping: RwLock<BTreeMap<String, ShippingStatus>>,
    /// Faults of the configuration as a whole.
    problems: RwLock<Vec<String>>,
    /// Whether host settings are in force: the present ones or the last good ones.
    has_settings: AtomicBool,
    /// Redaction of documents for people; `None` before the settings were applied.
    redaction: RwLock<Option<Arc<SecretRedaction>>>,
    /// The rules of the redaction, for witnesses.
    pub secret_rules: RulesInForce,
    /// The templates that people may submit; `None` if the settings disable it.
    offer: RwLock<Option<Arc<TemplateOffer>>>,
    journal_trouble: RwLock<Option<String>>,
    /// Finds why objects ended badly, once the index exists.
    outcomes: OnceLock<Arc<dyn OutcomeFinder>>,
}

impl SharedStatus {
    /// Sets it once; later calls have no effect.
    pub fn set_outcomes(&self, outcomes: Arc<dyn OutcomeFinder>) {
        self.outcomes.get_or_init(|| outcomes);
    }

    pub fn outcomes(&self) -> Arc<dyn OutcomeFinder> {
        self.outcomes.get().cloned().unwrap_or_else(|| Arc::new(NoOutcomes))
    }

    pub fn set_redaction(&self, redaction: Arc<SecretRedaction>) {
        self.secret_rules.set_rules(redaction.redaction_rules());
        *write(&self.redaction) = Some(redaction);
    }

    pub fn redaction(&self) -> Option<Arc<SecretRedaction>> {
        read(&self.redaction).clone()
    }

    pub fn set_offer(&self, offer: Option<TemplateOffer>) {
        *write(&self.offer) = offer.map(Arc::new);
    }

    pub fn offer(&self) -> Option<Arc<TemplateOffer>> {
        read(&self.offer).clone()
    }

    pub fn add_source(&self, spec: SourceSpec, handle: SourceHandle) {
        self.listers.add(handle.clone());
        write(&self.sources).insert(handle.name().to_string(), (spec, handle));
    }

    pub fn remove_source(&self, name: &str) {
        self.listers.remove(name);
        write(&self.sources).remove(name);
    }

    pub fn sources(&self) -> Vec<SourceHandle> {
        read(&self.sources).values().map(|(_, handle)| handle.clone()).collect()
    }

    /// The sources, each with its settings.
    pub fn sources_with_specs(&self) -> Vec<(SourceSpec, SourceHandle)> {
        read(&self.sources).values().cloned().collect()
    }

    /// The kinds whose states a plugin receives.
    pub fn subscribed(&self, spec: &PluginSpec) -> SubscribedKinds {
        let sources = read(&self.sources);
        let kind = |name: &str| sources.get(name).map(|(of, _)| (of.api_group().to_owned(), of.kind.clone()));
        SubscribedKinds::of(spec.subscribe.iter().map(|subscription| kind(&subscription.source)))
    }

    pub fn add_stream(&self, spec: StreamSpec, handle: CarrierHandle) {
        write(&self.streams).insert(spec.name.clone(), (spec, handle));
    }

    pub fn remove_stream(&self, name: &str) {
        write(&self.streams).remove(name);
    }

    /// The streams of the settings that have no key, each with what that means.
    pub fn set_unsigned_streams(&self, streams: &[StreamSpec]) {
        let text = |stream: &StreamSpec| Some((stream.name.clone(), stream.missing_key_text()?));
        *write(&self.unsigned_streams) = streams.iter().filter_map(text).collect();
    }

    pub fn unsigned_stream(&self, name: &str) -> Option<String> {
        read(&self.unsigned_streams).get(name).cloned()
    }

    pub fn streams(&self) -> Vec<(StreamSpec, CarrierHandle)> {
        read(&self.streams).values().cloned().collect()
    }

    /// Starts a resync of this source for every plugin that subscribes to its resyncs.
    pub fn resync_source(&self, source: &str) {
        for handle in read(&self.plugins).values().filter_map(|state| state.handle.as_ref()) {
            handle.resync_source(source);
        }
    }

    pub fn set_plugin(&self, name: &str, state: PluginState) {
        write(&self.plugins).insert(name.to_string(), state);
    }

    pub fn set_phase(&self, name: &str, phase: PluginPhase, message: Option<String>) {
        if let Some(state) = write(&self.plugins).get_mut(name) {
            state.phase = phase;
            state.message = message;
        }
    }

    pub fn set_message(&self, name: &str, message: String) {
        if let Some(state) = write(&self.plugins).get_mut(name) {
            state.message = Some(message);
        }
    }

    pub fn message(&self, name: &str) -> Option<String> {
        read(&self.plugins).get(name).and_then(|state| state.message.clone())
    }

    pub fn remove_plugin(&self, name: &str) {
        write(&self.plugins).remove(name);
        write(&self.losses).remove(name);
    }

    pub fn set_losses(&self, name: &str, losses: Vec<DatabaseLoss>) {
        write(&self.losses).insert(name.to_owned(), losses.into());
    }

    pub fn knows_losses(&self, name: &str) -> bool {
        read(&self.losses).contains_key(name)
    }

    /// The recorded losses of the plugin's database, the newest last.
    pub fn losses(&self, name: &str) -> Arc<[DatabaseLoss]> {
        read(&self.losses).get(name).cloned().unwrap_or_default()
    }

    pub fn plugins(&self) -> BTreeMap<String, PluginState> {
        read(&self.plugins).clone()
    }

    pub fn plugin(&self, name: &str) -> Option<PluginState> {
        read(&self.plugins).get(name).cloned()
    }

    /// Sets what a pass of retention found. A holder that was known before keeps its time.
    pub fn set_held(&self, source: &str, found: BTreeMap<RetentionHolder, u64>, now_ms: u64) {
        let mut held = write(&self.held);
        let of_source = held.entry(source.to_string()).or_default();
        of_source.retain(|holder, _| found.contains_key(holder));
        for (holder, states) in found {
            match of_source.entry(holder) {
                Entry::Occupied(mut kept) => kept.get_mut().states = states,
                Entry::Vacant(kept) => drop(kept.insert(KeptBeyond { states, since_ms: now_ms })),
            }
        }
    }

    /// Called when retention of the source ends.
    pub fn forget_held(&self, source: &str) {
        write(&self.held).remove(source);
    }

    pub fn retention_holds(&self) -> BTreeMap<String, BTreeMap<RetentionHolder, KeptBeyond>> {
        read(&self.held).clone()
    }

    /// The budget for a plugin's reports. All versions of the plugin share it.
    pub fn report_room(&self, plugin: &str) -> ReportRoom {
        write(&self.report_rooms).entry(plugin.to_owned()).or_default().clone()
    }

    pub fn report_rooms(&self) -> BTreeMap<String, ReportRoom> {
        read(&self.report_rooms).clone()
    }

    pub fn set_shipping(&self, shipping: BTreeMap<String, ShippingStatus>) {
        *write(&self.shipping) = shipping;
    }

    pub fn shipping(&self) -> BTreeMap<String, ShippingStatus> {
        read(&self.shipping).clone()
    }

    pub fn set_problems(&self, problems: Vec<String>) {
        *write(&self.problems) = problems;
    }

    /// Called once their sources exist.
    pub fn settings_are_taken(&self) {
        self.has_settings.store(true, Ordering::Release);
    }

    pub fn has_settings(&self) -> bool {
        self.has_settings.load(Ordering::Acquire)
    }

    pub fn set_journal_trouble(&self, trouble: Option<String>) {
        *write(&self.journal_trouble) = trouble;
    }

    /// Why the journal accepts nothing now.
    pub fn journal_trouble(&self) -> Option<String> {
        read(&self.journal_trouble).clone()
    }

    pub fn problems(&self) -> Vec<String> {
        read(&self.problems).clone()
    }
}

fn read<T>(lock: &RwLock<T>) -> std::sync::RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

fn write<T>(lock: &RwLock<T>) -> std::sync::RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}
