//! The registry of what runs: the reconciliation loop writes it, the views read it.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use kubewitness_capability::{GrantUses, ReportRoom, SecretRedaction, ShippingStatus, SubscribedKinds};
use kubewitness_core::config::{PluginSpec, SourceSpec, StreamSpec};
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
    /// How a plugin stands, apart from its figures.
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
    /// Where its component was fetched from.
    pub module: Option<String>,
    pub message: Option<String>,
    pub handle: Option<DispatchHandle>,
    /// Of the version that runs.
    pub manifest: Option<Arc<ManifestView>>,
    /// What it is granted and has called.
    pub uses: Arc<GrantUses>,
    /// What its calls came to, over all versions that ran here.
    pub tally: Arc<PluginTally>,
    /// What the version in its shadow does.
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

/// States of a source that are beyond its bounds, and since when something keeps some.
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
    /// Streams that this controller hands states to.
    streams: RwLock<BTreeMap<String, (StreamSpec, CarrierHandle)>>,
    /// By source, what keeps retention from going on.
    held: RwLock<BTreeMap<String, BTreeMap<RetentionHolder, KeptBeyond>>>,
    /// By plugin, how much it has reported of objects.
    report_rooms: RwLock<BTreeMap<String, ReportRoom>>,
    /// By ledger, how its closed files get into their bucket.
    shipping: RwLock<BTreeMap<String, ShippingStatus>>,
    /// Faults of the configuration as a whole.
    problems: RwLock<Vec<String>>,
    /// The host's settings were taken, these or the last good ones.
    has_settings: AtomicBool,
    /// What people see of documents; none before the settings were taken.
    redaction: RwLock<Option<Arc<SecretRedaction>>>,
    /// Its rules, for those who witness.
    pub secret_rules: RulesInForce,
    /// What people may submit; none where the settings do not say so.
    offer: RwLock<Option<Arc<TemplateOffer>>>,
    journal_trouble: RwLock<Option<String>>,
    /// Why objects ended badly, once there is an index of that.
    outcomes: OnceLock<Arc<dyn OutcomeFinder>>,
}

impl SharedStatus {
    /// The first time counts.
    pub fn set_outcomes(&self, outcomes: Arc<dyn OutcomeFinder>) {
        self.outcomes.get_or_init(|| outcomes);
    }

    pub fn outcomes(&self) -> Arc<dyn OutcomeFinder> {
        self.outcomes.get().cloned().unwrap_or_else(|| Arc::new(NoOutcomes))
    }

    pub fn set_redaction(&self, redaction: Arc<SecretRedaction>) {
        self.secret_rules.set(redaction.rules());
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

    /// With what the settings say of each.
    pub fn sources_with_specs(&self) -> Vec<(SourceSpec, SourceHandle)> {
        read(&self.sources).values().cloned().collect()
    }

    /// Whose states a plugin is handed.
    pub fn subscribed(&self, spec: &PluginSpec) -> SubscribedKinds {
        let sources = read(&self.sources);
        let kind = |name: &str| sources.get(name).map(|(of, _)| (of.group().to_owned(), of.kind.clone()));
        SubscribedKinds::of(spec.subscribe.iter().map(|subscription| kind(&subscription.source)))
    }

    pub fn add_stream(&self, spec: StreamSpec, handle: CarrierHandle) {
        write(&self.streams).insert(spec.name.clone(), (spec, handle));
    }

    pub fn remove_stream(&self, name: &str) {
        write(&self.streams).remove(name);
    }

    pub fn streams(&self) -> Vec<(StreamSpec, CarrierHandle)> {
        read(&self.streams).values().cloned().collect()
    }

    /// Every plugin that asks for the resyncs of this source gets one.
    pub fn resync(&self, source: &str) {
        for handle in read(&self.plugins).values().filter_map(|state| state.handle.as_ref()) {
            handle.resync(source);
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
    }

    pub fn plugins(&self) -> BTreeMap<String, PluginState> {
        read(&self.plugins).clone()
    }

    pub fn plugin(&self, name: &str) -> Option<PluginState> {
        read(&self.plugins).get(name).cloned()
    }

    /// As a pass of retention has found it. What was there before is there since then.
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

    /// How much a plugin has reported of objects. It is the same for all versions of the plugin.
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

    /// Once their sources are there.
    pub fn settings_are_taken(&self) {
        self.has_settings.store(true, Ordering::Release);
    }

    pub fn has_settings(&self) -> bool {
        self.has_settings.load(Ordering::Acquire)
    }

    pub fn set_journal_trouble(&self, trouble: Option<String>) {
        *write(&self.journal_trouble) = trouble;
    }

    /// Why the journal takes nothing now.
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
