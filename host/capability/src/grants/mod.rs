//! Opens everything that plugins can be granted, once, from the host's settings, and grants it. It performs
//! no effect: the capabilities do.
//!
//! Witnessing must not depend on a database that is down. So an entry that can't be opened affects only the
//! plugins that are granted it: it stays here as a named failure until [`OpenCapabilities::reload_settings`] opens it.
//! Settings that can't be intended (a wrong shape, two owners of one file) are refused as a whole.

mod open;
mod places;
mod rights;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use kubewitness_core::clock::Clock;
use kubewitness_core::config::{
    DatabaseSpec, DocumentsGrant, HostSpec, ManifestFault, PluginSpec, SqlAccess,
};
use kubewitness_core::intents::commits::CommitNotes;
use kubewitness_core::intents::requests::RequestNotes;
use kubewitness_core::intents::writes::WriteNotes;
use kubewitness_core::limits::TICK_TIMEOUT;
use kubewitness_core::ports::{
    DocumentReader, DurableCursor, GrantError, GrantProvider, Ledgers, NOTE, NoteStore, ObjectLister,
    OutcomeFinder,
};
use thiserror::Error;

use crate::http::HttpDestination;
use crate::kv::{ReportRoom, SharedValue};
use crate::ledger::ship::{ShipPauses, ShippingStatus};
use crate::ledger::{LedgerDatabases, PluginLedger};
use crate::mail::MailRelay;
use crate::objects::lister;
use crate::objects::outcomes::GrantedOutcomes;
use crate::objects::subscribed::SubscribedKinds;
use crate::secrets::redaction::{RedactedDocuments, SecretRedaction, ThreadParty};
use crate::secrets::signing_keys::SigningKey;
use crate::session::granted::{
    GrantedDatabase, PluginAccess, PluginGrants, ReceiptStores, ReceiptTracker, StartPositions,
    SurvivingReceipts,
};
use crate::session::outbound::RequestOutbox;
use crate::session::uses::GrantUses;
use crate::sql::guard::RenderedStatements;
use crate::{kv, log, sql};
pub use open::forget_receipts;
use open::{GrantOpener, load_keys, open_database, open_destinations, open_ledgers, open_relays};
use places::ClaimFailure;
pub use rights::excess_rights;

/// Everything that plugins can be granted, opened once and shared by them.
#[derive(Clone)]
pub struct OpenCapabilities {
    databases: Arc<Vec<(DatabaseSpec, sql::SharedEngine)>>,
    /// The same, by name.
    deciders: LedgerDatabases,
    destinations: Arc<HashMap<String, Arc<HttpDestination>>>,
    relays: Arc<HashMap<String, Arc<MailRelay>>>,
    ledgers: Arc<HashMap<String, Arc<PluginLedger>>>,
    keys: Arc<HashMap<String, Arc<SigningKey>>>,
    redaction: Arc<SecretRedaction>,
    /// The entries that can't be opened now, by the list of the settings and the name there.
    closed: Arc<BTreeMap<(&'static str, String), ManifestFault>>,
    plugins: Arc<Mutex<HashMap<String, Arc<ReceiptTracker>>>>,
    kv: kv::KvLimits,
    lent: SharedServices,
}

/// The services that the controller lends to all grants.
#[derive(Clone, Default)]
pub struct SharedServices {
    /// The name of this process among several that may deliver states to the same plugins, at most 32
    /// characters long.
    pub reader: Option<Arc<str>>,
    /// Stores the progress of signed ledgers.
    pub ledgers: Option<Arc<dyn Ledgers>>,
    pub shipping: ShipPauses,
}

/// The services that the controller lends to the grants of one plugin.
pub struct PluginServices {
    pub documents: Arc<dyn DocumentReader>,
    pub lister: Arc<dyn ObjectLister>,
    pub outcomes: Arc<dyn OutcomeFinder>,
    /// The kinds whose states the plugin receives.
    pub subscribed: SubscribedKinds,
    pub clock: Arc<dyn Clock>,
    /// Counts the plugin's calls.
    pub uses: Arc<GrantUses>,
    /// The plugin's stored entries, and the journal's notes of its calls.
    pub kv: Vec<(String, Vec<u8>)>,
    /// The value that the controller shows to every plugin with `kv`.
    pub shared_mutes: SharedValue,
    /// The budget for the plugin's reports of objects.
    pub reports: ReportRoom,
    /// Where calls are noted before they have an effect.
    pub notes: Arc<dyn NoteStore>,
    /// The plugin's version, for people.
    pub version: String,
    pub positions: StartPositions,
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CapabilityError {
    /// Fix the manifest: [`PluginSpec::check`] finds the same.
    #[error("{}: {}", .0.field, .0.message)]
    Manifest(ManifestFault),
    /// Temporary: something that the plugin is granted can't be opened now.
    #[error("{}: {}", .0.field, .0.message)]
    Closed(ManifestFault),
    /// Temporary: a database or a ledger does not answer.
    #[error(transparent)]
    Store(#[from] GrantError),
}

fn manifest_fault(field: impl Into<String>, message: impl Into<String>) -> ManifestFault {
    ManifestFault { field: field.into(), message: message.into() }
}

impl OpenCapabilities {
    /// Opens everything that the host's settings name. Relative paths are in `data`. Entries that can't be
    /// opened are in [`Self::closed_entries`].
    pub async fn open(host: &HostSpec, data: &Path) -> Result<Self, Vec<ManifestFault>> {
        Self::open_with(host, data, SharedServices::default()).await
    }

    pub async fn open_with(
        host: &HostSpec,
        data: &Path,
        lent: SharedServices,
    ) -> Result<Self, Vec<ManifestFault>> {
        Self::build(None, host, data, lent).await
    }

    /// Opens changed settings. Unchanged entries stay open and are shared with the old capabilities, so that
    /// calls in progress are not disturbed. Drop the old ones once their plugins are drained.
    ///
    /// If a new or changed entry can't be opened, the change is refused and the old settings stay. An entry
    /// that was closed before may stay closed.
    pub async fn reload_settings(&self, host: &HostSpec, data: &Path) -> Result<Self, Vec<ManifestFault>> {
        Self::build(Some(self), host, data, self.lent.clone()).await
    }

    /// The redaction that also applies to documents for people.
    pub fn secret_redaction(&self) -> Arc<SecretRedaction> {
        self.redaction.clone()
    }

    /// Limits the `kv` of each plugin from now on: its size, and the bytes written per second.
    pub fn bound_kv(&self, bytes: u64, a_second: u64) {
        self.kv.set_limits(bytes, a_second);
    }

    /// Shares the redaction of another instance.
    pub fn hiding_as(self, redaction: Arc<SecretRedaction>) -> Self {
        Self { redaction, ..self }
    }

    /// The entries that can't be opened now, as faults of the settings.
    pub fn closed_entries(&self) -> Vec<ManifestFault> {
        self.closed.values().cloned().collect()
    }

    async fn build<'a>(
        old: Option<&'a Self>,
        host: &'a HostSpec,
        data: &'a Path,
        lent: SharedServices,
    ) -> Result<Self, Vec<ManifestFault>> {
        let mut faults = host.check();
        let mut opener = GrantOpener::default();
        if !faults.is_empty() {
            return Err(faults);
        }
        claim_places(host, data, &mut faults, &mut opener).await;
        if !faults.is_empty() {
            return Err(faults);
        }
        let open = |spec: &'a DatabaseSpec| {
            let reader = lent.reader.clone();
            let opening = async move {
                let engine = open_database(old, spec, data, reader).await;
                let placed = engine.map(|engine| (spec.clone(), engine));
                placed.map_err(|error| (error.field().to_owned(), error.to_string()))
            };
            (spec.name.clone(), opening.boxed())
        };
        let databases = opener.open_all("databases", host.databases.iter().map(open)).await;
        let by_name = databases.iter().map(|(spec, engine)| (spec.name.clone(), engine.clone()));
        let deciders: LedgerDatabases = Arc::new(by_name.collect());
        let keys = load_keys(old, host, &mut opener).await;
        let ledgers = open_ledgers(old, host, data, &deciders, &keys, &lent, &mut opener).await;
        let destinations = open_destinations(old, host, &mut opener).await;
        let relays = open_relays(old, host, &mut opener).await;
        let redaction = match old.filter(|old| old.redaction.is_of(&host.redaction)) {
            Some(old) => old.redaction.clone(),
            None => Arc::new(SecretRedaction::open(host, data).await?),
        };
        redaction.set_watched(&host.sources);
        if let Some(fault) = redaction.retry_key().await {
            opener.closed.insert(("redaction", String::new()), fault);
        }
        if let Some(old) = old {
            let is_new = |(place, _): &(&(&'static str, String), _)| !old.closed.contains_key(place);
            let changed: Vec<_> =
                opener.closed.iter().filter(is_new).map(|(_, fault)| fault.clone()).collect();
            if !changed.is_empty() {
                return Err(changed);
            }
        }
        Ok(Self {
            databases: Arc::new(databases),
            deciders,
            destinations: Arc::new(destinations),
            relays: Arc::new(relays),
            ledgers: Arc::new(ledgers),
            keys: Arc::new(keys),
            redaction,
            closed: Arc::new(opener.closed),
            plugins: old.map(|old| old.plugins.clone()).unwrap_or_default(),
            kv: old.map(|old| old.kv.clone()).unwrap_or_default(),
            lent,
        })
    }

    /// Grants a plugin its capabilities, and reads the receipts of its applied states.
    pub async fn grant_plugin(
        &self,
        plugin: &str,
        spec: &PluginSpec,
        backing: PluginServices,
    ) -> Result<Arc<dyn GrantProvider>, CapabilityError> {
        let (mut granted, shared_mutes) =
            (self.resolve_access(plugin, spec, &backing)?, backing.shared_mutes.clone());
        let (most, reports) = (self.kv.clone(), backing.reports.clone());
        let PluginEntries { entries, writes, requests, commits } = read_plugin_entries(backing.kv)?;
        granted.kv = spec.grants.kv.then(|| kv::PluginKv::new(entries, writes, shared_mutes, most, reports));
        granted.outbox = RequestOutbox::new(plugin, &backing.version, backing.notes, requests);
        match granted.sql.values().next() {
            Some(database) => granted.standing.commits.load_note(&database.name, commits),
            // What the old database has lost no longer concerns the plugin.
            None => granted.standing.commits.reset(),
        }
        let stores = ReceiptStores {
            writes: granted.sql.values().any(|database| database.access > SqlAccess::Read),
            databases: granted.sql.values().map(|database| database.engine.clone()).collect(),
            ledgers: granted.ledgers.values().cloned().collect(),
            deciders: self.deciders.clone(),
        };
        granted.standing.load(plugin, stores, backing.positions).await?;
        granted.settle_kv();
        Ok(Arc::new(PluginGrants(Arc::new(granted))))
    }

    pub(crate) fn resolve_access(
        &self,
        plugin: &str,
        spec: &PluginSpec,
        backing: &PluginServices,
    ) -> Result<PluginAccess, CapabilityError> {
        let grants = &spec.grants;
        let missing = |list: &str, index: usize, name: &str| {
            let of_host = match list {
                "sql" => "databases",
                "http" => "destinations",
                "mail" => "mail",
                "ledger" => "ledgers",
                _ => "keys",
            };
            if let Some(fault) = self.closed.get(&(of_host, name.to_owned())) {
                return CapabilityError::Closed(fault.clone());
            }
            let field = format!("spec.grants.{list}[{index}]");
            CapabilityError::Manifest(manifest_fault(field, format!("the controller has no `{name}`")))
        };
        for (list, count) in [("sql", grants.sql.len()), ("ledger", grants.ledger.len())] {
            if count > 1 {
                let message =
                    "has more than one: what a call writes and its receipt commit together in one only";
                return Err(CapabilityError::Manifest(manifest_fault(
                    format!("spec.grants.{list}"),
                    message,
                )));
            }
        }
        let documents = backing.documents.clone();
        let redacted = (grants.documents != DocumentsGrant::Raw).then(|| RedactedDocuments {
            documents: documents.clone(),
            redaction: self.redaction.clone(),
            party: ThreadParty::Plugin(plugin.into()),
        });
        let mut granted = PluginAccess {
            plugin: plugin.to_owned(),
            config: serde_json::Value::Object(spec.config.clone()).to_string(),
            standing: self.receipts_of_plugin(plugin),
            sql: Default::default(),
            http: Default::default(),
            mail: Default::default(),
            ledgers: Default::default(),
            keys: Default::default(),
            kv: None,
            outbox: RequestOutbox::new(
                plugin,
                &backing.version,
                backing.notes.clone(),
                RequestNotes::default(),
            ),
            tick_timeout: spec.tick.map(|tick| tick.timeout_or_default()).unwrap_or(TICK_TIMEOUT),
            deciders: self.deciders.clone(),
            lister: lister::GrantedLister::new(backing.lister.clone(), &grants.lister, redacted.clone()),
            outcomes: GrantedOutcomes::new(
                backing.outcomes.clone(),
                documents.clone(),
                &grants.outcomes,
                redacted.clone(),
                backing.clock.clone(),
            ),
            raw: documents,
            reading_habit: Arc::default(),
            has_digest: grants.documents != DocumentsGrant::Redacted,
            subscribed: backing.subscribed.clone(),
            redacted,
            clock: backing.clock.clone(),
            uses: backing.uses.clone(),
            log: log::PluginLog::new(plugin),
            statements: RenderedStatements::default(),
        };
        for (index, grant) in grants.sql.iter().enumerate() {
            let engine =
                self.deciders.get(&grant.database).ok_or_else(|| missing("sql", index, &grant.database))?;
            let database = GrantedDatabase {
                name: grant.database.clone(),
                engine: engine.clone(),
                access: grant.access,
            };
            granted.sql.insert(grant.name.clone(), database);
        }
        for (index, grant) in grants.http.iter().enumerate() {
            let found = self.destinations.get(&grant.destination);
            let found = found.ok_or_else(|| missing("http", index, &grant.destination))?;
            granted.http.insert(grant.name.clone(), found.clone());
        }
        for (index, grant) in grants.mail.iter().enumerate() {
            let found =
                self.relays.get(&grant.server).ok_or_else(|| missing("mail", index, &grant.server))?;
            granted.mail.insert(grant.name.clone(), found.clone());
        }
        for (index, grant) in grants.ledger.iter().enumerate() {
            let found =
                self.ledgers.get(&grant.ledger).ok_or_else(|| missing("ledger", index, &grant.ledger))?;
            granted.ledgers.insert(grant.name.clone(), found.clone());
        }
        for (index, grant) in grants.keys.iter().enumerate() {
            let found = self.keys.get(&grant.key).ok_or_else(|| missing("keys", index, &grant.key))?;
            granted.keys.insert(grant.name.clone(), found.clone());
        }
        Ok(granted)
    }

    /// Two versions of one plugin share it while the old one drains.
    fn receipts_of_plugin(&self, plugin: &str) -> Arc<ReceiptTracker> {
        let mut plugins = self.plugins.lock().unwrap_or_else(PoisonError::into_inner);
        plugins.entry(plugin.to_owned()).or_default().clone()
    }

    /// Notes that a cursor is on disk, and drops receipts that it passed some minutes ago.
    pub async fn prune_receipts(
        &self,
        plugin: &str,
        cursor: impl Into<DurableCursor>,
        now: Duration,
    ) -> Result<(), CapabilityError> {
        let standing = self.plugins.lock().unwrap_or_else(PoisonError::into_inner).get(plugin).cloned();
        match standing {
            Some(standing) => Ok(standing.prune_receipts(plugin, cursor.into(), now).await?),
            None => Ok(()),
        }
    }

    /// The plugins whose databases lacked commits some time ago, and have to be asked once more. Until then they are not
    /// called.
    pub fn plugins_lacking_commits(&self) -> Vec<String> {
        let plugins = self.plugins.lock().unwrap_or_else(PoisonError::into_inner);
        let lost = plugins.iter().filter(|(_, standing)| standing.commits.is_lacking_for_long());
        lost.map(|(name, _)| name.clone()).collect()
    }

    /// Asks the database of such a plugin which commits it still has. `None` if nothing is lost after all,
    /// and the plugin is called again.
    pub async fn survey_survivors(&self, plugin: &str) -> Result<Option<SurvivingReceipts>, CapabilityError> {
        let known = self.plugins.lock().unwrap_or_else(PoisonError::into_inner).get(plugin).cloned();
        let Some(standing) = known else { return Ok(None) };
        Ok(standing.survey_survivors(plugin).await?)
    }

    /// Lets the plugin be called again: the journal no longer expects the lost commits.
    pub fn end_loss(&self, plugin: &str) {
        if let Some(standing) = self.plugins.lock().unwrap_or_else(PoisonError::into_inner).get(plugin) {
            standing.forget_database();
        }
    }

    /// True if a ledger is signed or rotated.
    pub fn seals_any_ledger(&self) -> bool {
        self.ledgers.values().any(|ledger| ledger.spec.ledger_schedule().is_any())
    }

    /// Signs and closes ledgers when due, even while no call writes to them.
    pub async fn write_due_statements(&self) {
        for ledger in self.ledgers.values() {
            if let Err(error) = ledger.write_due_statement().await {
                tracing::warn!(
                    ledger = ledger.spec.name,
                    "the ledger can't be signed or closed now: {error}"
                );
            }
        }
    }

    /// Ships closed files of ledgers. An unreachable bucket delays no other one.
    pub async fn ship_closed_files(&self) {
        futures::future::join_all(self.ledgers.values().map(|ledger| ledger.ship_closed_files())).await;
    }

    /// The progress of shipping, by the names of the ledgers.
    pub fn shipping_status(&self) -> BTreeMap<String, ShippingStatus> {
        let of = |ledger: &Arc<PluginLedger>| Some((ledger.spec.name.clone(), ledger.shipping_status()?));
        self.ledgers.values().filter_map(of).collect()
    }

    /// Signs and closes ledgers after the plugins have ended, so that no record stays without a root.
    pub async fn sign_off(&self) {
        for ledger in self.ledgers.values() {
            if let Err(error) = ledger.sign_off().await {
                tracing::warn!(
                    ledger = ledger.spec.name,
                    "the newest records of the ledger are signed at the next start: {error}"
                );
            }
        }
    }

    /// The key that verifies signatures of this key.
    pub fn public_key(&self, key: &str) -> Option<Vec<u8>> {
        self.keys.get(key).map(|key| key.public_key())
    }
}

/// A plugin's own entries, and the notes about its calls.
#[derive(Default)]
struct PluginEntries {
    entries: Vec<(String, Vec<u8>)>,
    writes: WriteNotes,
    requests: RequestNotes,
    commits: CommitNotes,
}

fn read_plugin_entries(kept: Vec<(String, Vec<u8>)>) -> Result<PluginEntries, GrantError> {
    let mut found = PluginEntries::default();
    for (key, value) in kept {
        if !key.starts_with(NOTE) {
            found.entries.push((key, value));
            continue;
        }
        let read = found.writes.read(&key, &value).or_else(|| found.requests.read(&key, &value));
        let read = read.or_else(|| found.commits.read(&key, &value));
        if read != Some(true) {
            let note = key.trim_start_matches(NOTE);
            return Err(GrantError::Other(format!(
                "the journal's note `{note}` of an earlier call can't be read: a newer version wrote it, or it is \
                 damaged. Start the version that wrote it, or run `kubewitness journal verify`"
            )));
        }
    }
    Ok(found)
}

/// Paths are claimed before anything is opened, because opening creates files. A path on a disk that does not
/// answer is not opened.
async fn claim_places(
    host: &HostSpec,
    data: &Path,
    faults: &mut Vec<ManifestFault>,
    opener: &mut GrantOpener,
) {
    let mut taken = match places::claimed_paths(data).await {
        Ok(taken) => taken,
        Err(error) => return faults.push(manifest_fault("spec", format!("the data folder: {error}"))),
    };
    for store in host.file_stores() {
        match places::claim_store(&mut taken, data, &store).await {
            Ok(()) => {}
            Err(ClaimFailure::Unknown(message)) => {
                opener.note_unopened(store.list, store.index, store.field, message);
            }
            Err(ClaimFailure::Taken(error)) => faults.push(store.fault_at_store(error.to_string())),
        }
    }
}
