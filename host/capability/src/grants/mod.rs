//! Opens everything that plugins can be granted, once, from the host's settings, and hands it out. It performs no
//! effect: that is for the capabilities.
//!
//! What can't be opened holds up nobody but the plugins that are granted it: it stays here as a named failure until
//! [`Capabilities::reload`] opens it. Settings that can't be meant (a fault of their shape, two owners of one file)
//! are refused as a whole.

mod open;
mod places;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use kubewitness_core::Seq;
use kubewitness_core::clock::Clock;
use kubewitness_core::config::{DatabaseSpec, DocumentsGrant, Fault, HostSpec, PluginSpec};
use kubewitness_core::intents::requests::Requests;
use kubewitness_core::intents::writes::Writes;
use kubewitness_core::limits::TICK_TIMEOUT;
use kubewitness_core::ports::{Documents, GrantError, Grants, Ledgers, Lister, NOTE, Notes};
use thiserror::Error;

use crate::http::Destination;
use crate::kv::{ReportRoom, Told};
use crate::ledger::ship::{ShipPauses, Shipping};
use crate::ledger::{Databases, Ledger};
use crate::mail::Relay;
use crate::objects::lister;
use crate::objects::subscribed::Subscribed;
use crate::secrets::redaction::{Party, Redacted, Redaction};
use crate::secrets::signing_keys::Key;
use crate::session::granted::{Database, Granted, PluginGrants, Standing, Stores};
use crate::session::outbound::Outbox;
use crate::session::uses::Uses;
use crate::sql::guard::RenderedStatements;
use crate::{kv, log, sql};
pub use open::forget_receipts;
use open::{Opener, load_keys, open_database, open_destinations, open_ledgers, open_relays};
use places::Unclaimed;

/// Everything that plugins can be granted, opened once and shared by them.
#[derive(Clone)]
pub struct Capabilities {
    databases: Arc<Vec<(DatabaseSpec, sql::Shared)>>,
    /// The same, by name.
    deciders: Databases,
    destinations: Arc<HashMap<String, Arc<Destination>>>,
    relays: Arc<HashMap<String, Arc<Relay>>>,
    ledgers: Arc<HashMap<String, Arc<Ledger>>>,
    keys: Arc<HashMap<String, Arc<Key>>>,
    redaction: Arc<Redaction>,
    /// What can't be opened now, by the list of the settings and its name there.
    closed: Arc<BTreeMap<(&'static str, String), Fault>>,
    plugins: Arc<Mutex<HashMap<String, Arc<Standing>>>>,
    kv: kv::Most,
    lent: Lent,
}

/// What the controller lends to all grants.
#[derive(Clone, Default)]
pub struct Lent {
    /// One of several processes that may hand states to the same plugins has a name of its own, at most 32 characters
    /// long.
    pub reader: Option<Arc<str>>,
    /// Where it is kept how far signed ledgers have come.
    pub ledgers: Option<Arc<dyn Ledgers>>,
    pub shipping: ShipPauses,
}

/// What the controller lends to the grants of one plugin.
pub struct Backing {
    pub documents: Arc<dyn Documents>,
    pub lister: Arc<dyn Lister>,
    /// Whose states the plugin is handed.
    pub subscribed: Subscribed,
    pub clock: Arc<dyn Clock>,
    /// Counts what the plugin calls.
    pub uses: Arc<Uses>,
    /// What the plugin has stored, and the journal's notes of its calls.
    pub kv: Vec<(String, Vec<u8>)>,
    /// What the controller tells every plugin that has `kv`.
    pub told: Told,
    /// How much the plugin has reported of objects.
    pub reports: ReportRoom,
    /// Where calls are noted before they have an effect.
    pub notes: Arc<dyn Notes>,
    /// The plugin's version, for people.
    pub version: String,
    /// Everything up to it is finished.
    pub cursor: Seq,
    /// The newest position of the journal.
    pub newest: Seq,
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CapabilityError {
    /// Fix the manifest: [`PluginSpec::check`] finds the same.
    #[error("{}: {}", .0.field, .0.message)]
    Manifest(Fault),
    /// Try again later: what the plugin is granted can't be opened now.
    #[error("{}: {}", .0.field, .0.message)]
    Closed(Fault),
    /// Try again later: a database or a ledger does not answer.
    #[error("{0}")]
    Store(#[from] GrantError),
}

fn fault(field: impl Into<String>, message: impl Into<String>) -> Fault {
    Fault { field: field.into(), message: message.into() }
}

impl Capabilities {
    /// Opens what the host's settings name. Relative paths lie in `data`. What can't be opened is in
    /// [`Self::closed`].
    pub async fn open(host: &HostSpec, data: &Path) -> Result<Self, Vec<Fault>> {
        Self::open_with(host, data, Lent::default()).await
    }

    pub async fn open_with(host: &HostSpec, data: &Path, lent: Lent) -> Result<Self, Vec<Fault>> {
        Self::build(None, host, data, lent).await
    }

    /// For changed settings: what did not change stays open and is shared with the old ones, so
    /// that calls in progress are not disturbed. Drop the old ones once their plugins are drained.
    ///
    /// A new or changed entry that can't be opened refuses the change: the old settings go on. An entry that was
    /// closed before may stay closed.
    pub async fn reload(&self, host: &HostSpec, data: &Path) -> Result<Self, Vec<Fault>> {
        Self::build(Some(self), host, data, self.lent.clone()).await
    }

    /// What people are given of documents too.
    pub fn redaction(&self) -> Arc<Redaction> {
        self.redaction.clone()
    }

    /// Bounds the `kv` of each plugin from now on: what it holds, and what is written to it in a second.
    pub fn bound_kv(&self, bytes: u64, a_second: u64) {
        self.kv.set(bytes, a_second);
    }

    /// With secrets hidden as somebody else hides them.
    pub fn hiding_as(self, redaction: Arc<Redaction>) -> Self {
        Self { redaction, ..self }
    }

    /// What can't be opened now, as faults of the settings.
    pub fn closed(&self) -> Vec<Fault> {
        self.closed.values().cloned().collect()
    }

    async fn build<'a>(
        old: Option<&'a Self>,
        host: &'a HostSpec,
        data: &'a Path,
        lent: Lent,
    ) -> Result<Self, Vec<Fault>> {
        let mut faults = host.check();
        let mut opener = Opener::default();
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
                let placed = |(field, message): (&str, _)| (field.to_owned(), message);
                engine.map(|engine| (spec.clone(), engine)).map_err(placed)
            };
            (spec.name.clone(), opening.boxed())
        };
        let databases = opener.open_all("databases", host.databases.iter().map(open)).await;
        let by_name = databases.iter().map(|(spec, engine)| (spec.name.clone(), engine.clone()));
        let deciders: Databases = Arc::new(by_name.collect());
        let keys = load_keys(old, host, &mut opener).await;
        let ledgers = open_ledgers(old, host, data, &deciders, &keys, &lent, &mut opener).await;
        let destinations = open_destinations(old, host, &mut opener).await;
        let relays = open_relays(old, host, &mut opener).await;
        let redaction = match old.filter(|old| old.redaction.is_of(&host.redaction)) {
            Some(old) => old.redaction.clone(),
            None => Arc::new(Redaction::open(host, data).await?),
        };
        redaction.watch(&host.sources);
        if let Some(fault) = redaction.retry().await {
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

    /// Grants a plugin what it may reach, and reads the receipts of what it has applied.
    pub async fn grants(
        &self,
        plugin: &str,
        spec: &PluginSpec,
        backing: Backing,
    ) -> Result<Arc<dyn Grants>, CapabilityError> {
        let (mut granted, told) = (self.resolve(plugin, spec, &backing)?, backing.told.clone());
        let (most, reports) = (self.kv.clone(), backing.reports.clone());
        let Found { entries, writes, requests } = found(backing.kv)?;
        granted.kv = spec.grants.kv.then(|| kv::Kv::new(entries, writes, told, most, reports));
        granted.outbox = Outbox::new(plugin, &backing.version, backing.notes, requests);
        let stores = Stores {
            databases: granted.sql.values().map(|database| database.engine.clone()).collect(),
            ledgers: granted.ledgers.values().cloned().collect(),
            deciders: self.deciders.clone(),
        };
        granted.standing.load(plugin, stores, backing.cursor, backing.newest).await?;
        granted.settle_kv();
        Ok(Arc::new(PluginGrants(Arc::new(granted))))
    }

    pub(crate) fn resolve(
        &self,
        plugin: &str,
        spec: &PluginSpec,
        backing: &Backing,
    ) -> Result<Granted, CapabilityError> {
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
            CapabilityError::Manifest(fault(field, format!("the controller has no `{name}`")))
        };
        for (list, count) in [("sql", grants.sql.len()), ("ledger", grants.ledger.len())] {
            if count > 1 {
                let message =
                    "has more than one: what a call writes and its receipt commit together in one only";
                return Err(CapabilityError::Manifest(fault(format!("spec.grants.{list}"), message)));
            }
        }
        let documents = backing.documents.clone();
        let redacted = (grants.documents != DocumentsGrant::Raw).then(|| Redacted {
            documents: documents.clone(),
            redaction: self.redaction.clone(),
            party: Party::Plugin(plugin.into()),
        });
        let mut granted = Granted {
            plugin: plugin.to_owned(),
            config: serde_json::Value::Object(spec.config.clone()).to_string(),
            standing: self.standing(plugin),
            sql: Default::default(),
            http: Default::default(),
            mail: Default::default(),
            ledgers: Default::default(),
            keys: Default::default(),
            kv: None,
            outbox: Outbox::new(plugin, &backing.version, backing.notes.clone(), Requests::default()),
            tick_timeout: spec.tick.map(|tick| tick.timeout()).unwrap_or(TICK_TIMEOUT),
            deciders: self.deciders.clone(),
            lister: lister::Granted::new(backing.lister.clone(), &grants.lister, redacted.clone()),
            documents: match redacted.clone() {
                Some(redacted) => Arc::new(redacted),
                None => documents,
            },
            raw: backing.documents.clone(),
            has_digest: grants.documents != DocumentsGrant::Redacted,
            subscribed: backing.subscribed.clone(),
            redacted,
            clock: backing.clock.clone(),
            uses: backing.uses.clone(),
            log: log::Log::new(plugin),
            statements: RenderedStatements::default(),
        };
        for (index, grant) in grants.sql.iter().enumerate() {
            let engine =
                self.deciders.get(&grant.database).ok_or_else(|| missing("sql", index, &grant.database))?;
            let database =
                Database { name: grant.database.clone(), engine: engine.clone(), access: grant.access };
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
    fn standing(&self, plugin: &str) -> Arc<Standing> {
        let mut plugins = self.plugins.lock().unwrap_or_else(PoisonError::into_inner);
        plugins.entry(plugin.to_owned()).or_default().clone()
    }

    /// Notes that a cursor is on disk, and drops receipts that it passed some minutes ago.
    pub async fn prune(&self, plugin: &str, cursor: Seq, now: Duration) -> Result<(), CapabilityError> {
        let standing = self.plugins.lock().unwrap_or_else(PoisonError::into_inner).get(plugin).cloned();
        match standing {
            Some(standing) => Ok(standing.prune(plugin, cursor, now).await?),
            None => Ok(()),
        }
    }

    /// Whether any ledger is signed or closed.
    pub fn seals(&self) -> bool {
        self.ledgers.values().any(|ledger| ledger.spec.schedule().is_any())
    }

    /// Signs and closes ledgers where that is due, also while no call writes to them.
    pub async fn tend(&self) {
        for ledger in self.ledgers.values() {
            if let Err(error) = ledger.tend().await {
                tracing::warn!(
                    ledger = ledger.spec.name,
                    "the ledger can't be signed or closed now: {error}"
                );
            }
        }
    }

    /// Ships closed files of ledgers. One bucket that is away holds up no other.
    pub async fn ship(&self) {
        futures::future::join_all(self.ledgers.values().map(|ledger| ledger.ship())).await;
    }

    /// How it stands, by the names of the ledgers that are shipped.
    pub fn shipping(&self) -> BTreeMap<String, Shipping> {
        let of = |ledger: &Arc<Ledger>| Some((ledger.spec.name.clone(), ledger.shipping()?));
        self.ledgers.values().filter_map(of).collect()
    }

    /// The same once the plugins have ended, so that no record stays without a root.
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

    /// With which the signatures of a key are checked.
    pub fn public_key(&self, key: &str) -> Option<Vec<u8>> {
        self.keys.get(key).map(|key| key.public())
    }
}

/// A plugin's own entries, and what was noted of its calls.
#[derive(Default)]
struct Found {
    entries: Vec<(String, Vec<u8>)>,
    writes: Writes,
    requests: Requests,
}

fn found(kept: Vec<(String, Vec<u8>)>) -> Result<Found, GrantError> {
    let mut found = Found::default();
    for (key, value) in kept {
        if !key.starts_with(NOTE) {
            found.entries.push((key, value));
            continue;
        }
        let read = found.writes.read(&key, &value).or_else(|| found.requests.read(&key, &value));
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

/// Before anything is opened: opening makes files. A place whose disk does not answer is not opened.
async fn claim_places(host: &HostSpec, data: &Path, faults: &mut Vec<Fault>, opener: &mut Opener) {
    let mut taken = match places::places(data).await {
        Ok(taken) => taken,
        Err(error) => return faults.push(fault("spec", format!("the data folder: {error}"))),
    };
    for store in host.stores() {
        match places::claim(&mut taken, data, &store).await {
            Ok(()) => {}
            Err(Unclaimed::Unknown(message)) => {
                opener.hold_up(store.list, store.index, store.field, message);
            }
            Err(Unclaimed::Taken(message)) => faults.push(store.fault(message)),
        }
    }
}
