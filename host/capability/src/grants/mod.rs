//! What the grants reach: databases, destinations, ledgers, keys, a plugin's own `kv`, documents,
//! the cache, the log and the clock. Addresses, files and secrets end here; a plugin sees names.
//!
//! One file a capability; [`session`] puts the effects of one call together and keeps them with the
//! receipt of the states, or not at all. Nothing here knows of Wasm, of the journal's store, or of
//! when a plugin is called.

mod applied;
mod documents;
mod http;
mod keys;
mod kv;
mod ledger;
mod lister;
mod log;
mod places;
mod plugin;
pub mod secrets;
mod session;
mod sql;

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use kubewitness_core::Seq;
use kubewitness_core::clock::Clock;
use kubewitness_core::config::{
    DatabaseKind, DatabaseSpec, DestinationSpec, Fault, HostSpec, KeySpec, LedgerSpec, PluginSpec,
};
use kubewitness_core::ports::{Documents, GrantError, Grants, Lister};
use thiserror::Error;

pub use crate::applied::fingerprint;
pub use crate::sql::proof::{DatabaseProof, ReceiptProof};

use crate::http::Destination;
use crate::keys::Key;
use crate::ledger::{Databases, Ledger};
use crate::plugin::{Database, Granted, PluginGrants, Standing, Stores};

/// Of a list of the settings. Opening one takes milliseconds, or as long as its disk is silent.
const AT_A_TIME: usize = 8;

/// Everything that plugins can be granted, opened once and shared by them.
#[derive(Clone)]
pub struct Capabilities {
    databases: Arc<Vec<(DatabaseSpec, sql::Shared)>>,
    /// The same, by name.
    deciders: Databases,
    destinations: Arc<HashMap<String, Arc<Destination>>>,
    ledgers: Arc<HashMap<String, Arc<Ledger>>>,
    keys: Arc<HashMap<String, Arc<Key>>>,
    plugins: Arc<Mutex<HashMap<String, Arc<Standing>>>>,
    reader: Option<Arc<str>>,
}

/// What the host lends to the grants of one plugin.
pub struct Backing {
    pub documents: Arc<dyn Documents>,
    pub lister: Arc<dyn Lister>,
    pub clock: Arc<dyn Clock>,
    /// What the plugin has stored.
    pub kv: Vec<(String, Vec<u8>)>,
    /// Receipts above it are loaded.
    pub cursor: Seq,
    /// The newest position of the journal.
    pub newest: Seq,
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CapabilityError {
    /// Fix the manifest: [`PluginSpec::check`] finds the same.
    #[error("{}: {}", .0.field, .0.message)]
    Manifest(Fault),
    /// Try again later: a database or a ledger does not answer.
    #[error("{0}")]
    Store(#[from] GrantError),
}

fn fault(field: impl Into<String>, message: impl Into<String>) -> Fault {
    Fault { field: field.into(), message: message.into() }
}

/// A refusal that says which grant to add. The name is the guest's: it is cut and cleaned.
fn denied(what: &str, name: &str, field: &str) -> GrantError {
    let name: String = name.chars().filter(|c| !c.is_control()).take(63).collect();
    GrantError::Denied(format!("the {what} `{name}` was not granted: add it to {field}"))
}

impl Capabilities {
    /// Opens what the host's settings name. Relative paths lie in `data`.
    pub async fn open(host: &HostSpec, data: &Path) -> Result<Self, Vec<Fault>> {
        Self::build(None, host, data, None).await
    }

    /// The same for one of several processes that may hand states to the same plugins: each has a name of
    /// its own, at most 32 characters long.
    pub async fn open_as(host: &HostSpec, data: &Path, reader: &str) -> Result<Self, Vec<Fault>> {
        Self::build(None, host, data, Some(reader.into())).await
    }

    /// For changed settings: what did not change stays open and is shared with the old ones, so
    /// that calls in progress are not disturbed. Drop the old ones once their plugins are drained.
    pub async fn reload(&self, host: &HostSpec, data: &Path) -> Result<Self, Vec<Fault>> {
        Self::build(Some(self), host, data, self.reader.clone()).await
    }

    async fn build<'a>(
        old: Option<&'a Self>,
        host: &'a HostSpec,
        data: &'a Path,
        reader: Option<Arc<str>>,
    ) -> Result<Self, Vec<Fault>> {
        let mut faults = host.check();
        claim_places(host, data, &mut faults).await;
        if !faults.is_empty() {
            return Err(faults);
        }
        let open = |spec: &'a DatabaseSpec| {
            let reader = reader.clone();
            let opening = async move {
                let engine = open_database(old, spec, data, reader).await;
                let placed = |(field, message): (&str, _)| (field.to_owned(), message);
                engine.map(|engine| (spec.clone(), engine)).map_err(placed)
            };
            opening.boxed()
        };
        let databases = open_all("databases", host.databases.iter().map(open), &mut faults).await;
        let by_name = databases.iter().map(|(spec, engine)| (spec.name.clone(), engine.clone()));
        let deciders: Databases = Arc::new(by_name.collect());
        let ledgers = open_ledgers(old, host, data, &deciders, &mut faults).await;
        let destinations = open_destinations(old, host, &mut faults).await;
        let keys = load_keys(old, host, &mut faults).await;
        if !faults.is_empty() {
            return Err(faults);
        }
        Ok(Self {
            databases: Arc::new(databases),
            deciders,
            destinations: Arc::new(destinations),
            ledgers: Arc::new(ledgers),
            keys: Arc::new(keys),
            plugins: old.map(|old| old.plugins.clone()).unwrap_or_default(),
            reader,
        })
    }

    /// What this plugin may reach. Reads the receipts of what it has applied above its cursor.
    pub async fn grants(
        &self,
        plugin: &str,
        spec: &PluginSpec,
        backing: Backing,
    ) -> Result<Arc<dyn Grants>, CapabilityError> {
        let mut granted = self.resolve(plugin, spec, &backing)?;
        granted.kv = spec.grants.kv.then(|| kv::Kv::new(backing.kv));
        let stores = Stores {
            databases: granted.sql.values().map(|database| database.engine.clone()).collect(),
            ledgers: granted.ledgers.values().cloned().collect(),
            deciders: self.deciders.clone(),
        };
        granted.standing.load(plugin, stores, backing.cursor, backing.newest).await?;
        Ok(Arc::new(PluginGrants(Arc::new(granted))))
    }

    fn resolve(
        &self,
        plugin: &str,
        spec: &PluginSpec,
        backing: &Backing,
    ) -> Result<Granted, CapabilityError> {
        let grants = &spec.grants;
        let missing = |list: &str, index: usize, name: &str| {
            let field = format!("spec.grants.{list}[{index}]");
            CapabilityError::Manifest(fault(field, format!("the host has no `{name}`")))
        };
        for (list, count) in [("sql", grants.sql.len()), ("ledger", grants.ledger.len())] {
            if count > 1 {
                let message =
                    "has more than one: what a call writes and its receipt commit together in one only";
                return Err(CapabilityError::Manifest(fault(format!("spec.grants.{list}"), message)));
            }
        }
        let mut granted = Granted {
            plugin: plugin.to_owned(),
            config: serde_json::Value::Object(spec.config.clone()).to_string(),
            standing: self.standing(plugin),
            sql: Default::default(),
            http: Default::default(),
            ledgers: Default::default(),
            keys: Default::default(),
            kv: None,
            deciders: self.deciders.clone(),
            lister: lister::Granted::new(backing.lister.clone(), &grants.lister),
            documents: backing.documents.clone(),
            clock: backing.clock.clone(),
            log: log::Log::new(plugin),
        };
        for (index, grant) in grants.sql.iter().enumerate() {
            let engine =
                self.deciders.get(&grant.database).ok_or_else(|| missing("sql", index, &grant.database))?;
            let database = Database { name: grant.database.clone(), engine: engine.clone() };
            granted.sql.insert(grant.name.clone(), database);
        }
        for (index, grant) in grants.http.iter().enumerate() {
            let found = self.destinations.get(&grant.destination);
            let found = found.ok_or_else(|| missing("http", index, &grant.destination))?;
            granted.http.insert(grant.name.clone(), found.clone());
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

    /// Drops receipts that lie at or below the cursor, once that cursor is on disk.
    pub async fn prune(&self, plugin: &str, cursor: Seq) -> Result<(), CapabilityError> {
        let standing = self.plugins.lock().unwrap_or_else(PoisonError::into_inner).get(plugin).cloned();
        match standing {
            Some(standing) => Ok(standing.prune(plugin, cursor).await?),
            None => Ok(()),
        }
    }

    /// With which the signatures of a key are checked.
    pub fn public_key(&self, key: &str) -> Option<Vec<u8>> {
        self.keys.get(key).map(|key| key.public())
    }
}

/// The receipts in the databases that these settings name, and whether the rows are there that were
/// written with them. Makes and writes nothing.
pub async fn prove_receipts(host: &HostSpec, data: &Path) -> Vec<DatabaseProof> {
    let mut proofs = Vec::new();
    for spec in &host.databases {
        proofs.push(sql::proof::database(spec, data).await);
    }
    proofs
}

/// Before anything is opened: opening makes files.
async fn claim_places(host: &HostSpec, data: &Path, faults: &mut Vec<Fault>) {
    let mut places = match places::Places::new(data).await {
        Ok(places) => places,
        Err(error) => return faults.push(fault("spec", format!("the data folder: {error}"))),
    };
    for (index, spec) in host.databases.iter().enumerate() {
        let Some(sqlite) = &spec.sqlite else { continue };
        if let Err(message) = places.claim(&sqlite.path, format!("the database `{}`", spec.name)).await {
            faults.push(fault(format!("spec.databases[{index}].sqlite.path"), message));
        }
    }
    for (index, spec) in host.ledgers.iter().enumerate() {
        if let Err(message) = places.claim(&spec.path, format!("the ledger `{}`", spec.name)).await {
            faults.push(fault(format!("spec.ledgers[{index}].path"), message));
        }
    }
}

/// What is wrong is told with the field that it belongs to.
type Opening<'a, T> = BoxFuture<'a, Result<T, (String, String)>>;

/// Opens each of a list of the settings, some of them at a time: one that its disk holds up holds up few
/// others. What can't be opened is a fault of its field.
async fn open_all<'a, T>(
    list: &str,
    opening: impl Iterator<Item = Opening<'a, T>>,
    faults: &mut Vec<Fault>,
) -> Vec<T> {
    let opening: Vec<_> = opening.collect();
    let opened: Vec<_> = futures::stream::iter(opening).buffered(AT_A_TIME).collect().await;
    let placed = opened.into_iter().enumerate().filter_map(|(index, opened)| {
        let at = |(field, message)| faults.push(fault(format!("spec.{list}[{index}].{field}"), message));
        opened.map_err(at).ok()
    });
    placed.collect()
}

/// A server is not connected here: one that is away holds up nothing but the plugins that need it.
async fn open_database(
    old: Option<&Capabilities>,
    spec: &DatabaseSpec,
    data: &Path,
    reader: Option<Arc<str>>,
) -> Result<sql::Shared, (&'static str, String)> {
    let same = old.and_then(|old| old.databases.iter().find(|(before, _)| before == spec));
    if let Some((_, engine)) = same {
        return Ok(engine.clone());
    }
    let name = &spec.name;
    match spec.kind() {
        Some(DatabaseKind::Sqlite(sqlite)) => {
            let at = |message| ("sqlite.path", message);
            if sqlite.path.is_empty() || sqlite.path.starts_with(':') {
                return Err(at("names no file".into()));
            }
            let opened = sql::sqlite::Sqlite::open(&data.join(&sqlite.path)).await;
            Ok(Arc::new(opened.map_err(at)?))
        }
        Some(DatabaseKind::Postgres(server)) => {
            let at = |message| ("postgres.urlFrom", message);
            let remote = sql::remote::Remote::<sql::postgres::Postgres>::new(name, server).await;
            Ok(Arc::new(remote.map_err(at)?.read_by(reader)))
        }
        Some(DatabaseKind::Mysql(server)) => {
            let at = |message| ("mysql.urlFrom", message);
            let remote = sql::remote::Remote::<sql::mysql::Mysql>::new(name, server).await;
            Ok(Arc::new(remote.map_err(at)?.read_by(reader)))
        }
        None => Err(("name", "names no database: give one of `sqlite`, `postgres` and `mysql`".into())),
    }
}

async fn open_ledgers<'a>(
    old: Option<&'a Capabilities>,
    host: &'a HostSpec,
    data: &'a Path,
    deciders: &'a Databases,
    faults: &mut Vec<Fault>,
) -> HashMap<String, Arc<Ledger>> {
    let open = |spec: &'a LedgerSpec| {
        let opening = async move {
            let same = old.and_then(|old| old.ledgers.get(&spec.name)).filter(|ledger| ledger.spec == *spec);
            let opened = match same {
                Some(ledger) => Ok(ledger.clone()),
                None => Ledger::open(spec, data, deciders).await.map(Arc::new),
            };
            opened.map(|ledger| (spec.name.clone(), ledger)).map_err(|message| ("path".to_owned(), message))
        };
        opening.boxed()
    };
    open_all("ledgers", host.ledgers.iter().map(open), faults).await.into_iter().collect()
}

async fn open_destinations<'a>(
    old: Option<&'a Capabilities>,
    host: &'a HostSpec,
    faults: &mut Vec<Fault>,
) -> HashMap<String, Arc<Destination>> {
    let open = |spec: &'a DestinationSpec| {
        let opening = async move {
            let same = old.and_then(|old| old.destinations.get(&spec.name));
            let opened = match same.filter(|before| before.spec == *spec) {
                Some(destination) => Ok(destination.clone()),
                None => Destination::open(spec).await.map(Arc::new),
            };
            opened.map(|destination| (spec.name.clone(), destination))
        };
        opening.boxed()
    };
    open_all("destinations", host.destinations.iter().map(open), faults).await.into_iter().collect()
}

async fn load_keys<'a>(
    old: Option<&'a Capabilities>,
    host: &'a HostSpec,
    faults: &mut Vec<Fault>,
) -> HashMap<String, Arc<Key>> {
    let load = |spec: &'a KeySpec| {
        let loading = async move {
            let same = old.and_then(|old| old.keys.get(&spec.name)).filter(|before| before.spec == *spec);
            let loaded = match same {
                Some(key) => Ok(key.clone()),
                None => Key::load(spec).await.map(Arc::new),
            };
            loaded.map(|key| (spec.name.clone(), key)).map_err(|message| ("valueFrom".to_owned(), message))
        };
        loading.boxed()
    };
    open_all("keys", host.keys.iter().map(load), faults).await.into_iter().collect()
}
