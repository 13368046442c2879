//! Opens the databases, ledgers, destinations and keys of the settings, several at a time. An unchanged entry
//! stays open.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use kubewitness_core::config::{
    DatabaseKind, DatabaseSpec, DestinationSpec, HostSpec, KeySpec, LedgerSpec, MailSpec, ManifestFault,
};
use kubewitness_core::{BoxedError, Seq};
use thiserror::Error;

use super::{OpenCapabilities, SharedServices, manifest_fault};
use crate::http::HttpDestination;
use crate::ledger::{LedgerDatabases, PluginLedger};
use crate::mail::MailRelay;
use crate::secrets::signing_keys::SigningKey;
use crate::sql;
use crate::sql::servers::reasons::ServerFailure;
use crate::sql::sqlite::SqliteOpenError;

/// How many entries of a list are opened at a time. Opening one takes milliseconds, or as long as its disk is
/// silent.
const AT_A_TIME: usize = 8;

/// An error, with the field that it belongs to.
type OpeningResult<'a, T> = BoxFuture<'a, Result<T, (String, String)>>;

/// Opens the entries of one list. An entry that can't be opened is recorded by its name, with its field in
/// the settings.
#[derive(Default)]
pub struct GrantOpener {
    pub closed: BTreeMap<(&'static str, String), ManifestFault>,
    /// The entries that must not be opened, by list and index.
    held_up: HashMap<(&'static str, usize), (String, String)>,
}

impl GrantOpener {
    pub fn note_unopened(&mut self, list: &'static str, index: usize, field: &str, message: String) {
        self.held_up.insert((list, index), (field.to_owned(), message));
    }

    /// Opens the entries of a list of the settings, several at a time, so that a disk that does not answer
    /// delays few others.
    pub async fn open_all<'a, T>(
        &mut self,
        list: &'static str,
        opening: impl Iterator<Item = (String, OpeningResult<'a, T>)>,
    ) -> Vec<T> {
        let opening: Vec<_> = opening.collect();
        let opening = opening.into_iter().enumerate().map(|(index, (name, opening))| {
            let held_up = self.held_up.remove(&(list, index));
            async move {
                let opened = match held_up {
                    Some(why) => Err(why),
                    None => opening.await,
                };
                (index, name, opened)
            }
        });
        let opening: Vec<_> = opening.collect();
        let done: Vec<_> = futures::stream::iter(opening).buffered(AT_A_TIME).collect().await;
        let mut open = Vec::new();
        for (index, name, opened) in done {
            match opened {
                Ok(opened) => open.push(opened),
                Err((field, message)) => {
                    let fault = manifest_fault(format!("spec.{list}[{index}].{field}"), message);
                    self.closed.insert((list, name), fault);
                }
            }
        }
        open
    }
}

/// Why a database can't be opened.
#[derive(Debug, Error)]
pub enum DatabaseOpenError {
    #[error("names no file")]
    NoFile,
    #[error(transparent)]
    Sqlite(#[from] SqliteOpenError),
    #[error(transparent)]
    Postgres(ServerFailure),
    #[error(transparent)]
    Mysql(ServerFailure),
    #[error("names no database: give one of `sqlite`, `postgres` and `mysql`")]
    NoKind,
}

impl DatabaseOpenError {
    /// The field of the database's settings.
    pub fn field(&self) -> &'static str {
        match self {
            Self::NoFile | Self::Sqlite(_) => "sqlite.path",
            Self::Postgres(_) => "postgres.urlFrom",
            Self::Mysql(_) => "mysql.urlFrom",
            Self::NoKind => "name",
        }
    }
}

/// No server is connected here: an unreachable one affects only the plugins that need it.
pub async fn open_database(
    old: Option<&OpenCapabilities>,
    spec: &DatabaseSpec,
    data: &Path,
    reader: Option<Arc<str>>,
) -> Result<sql::SharedEngine, DatabaseOpenError> {
    let same = old.and_then(|old| old.databases.iter().find(|(before, _)| before == spec));
    if let Some((_, engine)) = same {
        return Ok(engine.clone());
    }
    let name = &spec.name;
    match spec.only_kind() {
        Some(DatabaseKind::Sqlite(sqlite)) => {
            if sqlite.path.is_empty() || sqlite.path.starts_with(':') {
                return Err(DatabaseOpenError::NoFile);
            }
            Ok(Arc::new(sql::sqlite::SqliteDatabase::open(&data.join(&sqlite.path), sqlite.size).await?))
        }
        Some(DatabaseKind::Postgres(server)) => {
            let remote = sql::servers::RemoteDatabase::<sql::postgres::PostgresLink>::new(name, server).await;
            Ok(Arc::new(remote.map_err(DatabaseOpenError::Postgres)?.read_by(reader)))
        }
        Some(DatabaseKind::Mysql(server)) => {
            let remote = sql::servers::RemoteDatabase::<sql::mysql::MysqlLink>::new(name, server).await;
            Ok(Arc::new(remote.map_err(DatabaseOpenError::Mysql)?.read_by(reader)))
        }
        None => Err(DatabaseOpenError::NoKind),
    }
}

/// Removes all receipts of a plugin from a database. The plugin must not be called any more. The next plugin
/// with its name receives every state again.
pub async fn forget_receipts(spec: &DatabaseSpec, data: &Path, plugin: &str) -> Result<(), BoxedError> {
    let engine = open_database(None, spec, data, None).await?;
    Ok(engine.forget_receipts(plugin, Seq::MAX).await?)
}

pub async fn open_ledgers<'a>(
    old: Option<&'a OpenCapabilities>,
    host: &'a HostSpec,
    data: &'a Path,
    deciders: &'a LedgerDatabases,
    keys: &'a HashMap<String, Arc<SigningKey>>,
    lent: &'a SharedServices,
    opener: &mut GrantOpener,
) -> HashMap<String, Arc<PluginLedger>> {
    let open = |spec: &'a LedgerSpec| {
        let opening = async move {
            let key = match &spec.signing {
                Some(signing) => Some(keys.get(&signing.key).cloned().ok_or_else(|| {
                    let message =
                        format!("the key `{}` can't be read: see the entry of that key", signing.key);
                    ("signing.key".to_owned(), message)
                })?),
                None => None,
            };
            let same = old.and_then(|old| old.ledgers.get(&spec.name));
            let opened = match same.filter(|ledger| ledger.spec.path == spec.path) {
                Some(ledger) if ledger.spec == *spec && ledger.is_signed_with(key.as_ref()) => {
                    Ok(ledger.clone())
                }
                Some(ledger) => Ok(Arc::new(ledger.with_settings(spec, key).with_pauses(lent.shipping))),
                None => {
                    let opened = PluginLedger::open(spec, key, data, deciders, lent.ledgers.clone()).await;
                    opened.map(|ledger| Arc::new(ledger.with_pauses(lent.shipping)))
                }
            };
            opened
                .map(|ledger| (spec.name.clone(), ledger))
                .map_err(|error| ("path".to_owned(), error.to_string()))
        };
        (spec.name.clone(), opening.boxed())
    };
    opener.open_all("ledgers", host.ledgers.iter().map(open)).await.into_iter().collect()
}

pub async fn open_destinations<'a>(
    old: Option<&'a OpenCapabilities>,
    host: &'a HostSpec,
    opener: &mut GrantOpener,
) -> HashMap<String, Arc<HttpDestination>> {
    let open = |spec: &'a DestinationSpec| {
        let opening = async move {
            let same = old.and_then(|old| old.destinations.get(&spec.name));
            let opened = match same.filter(|before| before.spec == *spec) {
                Some(destination) => Ok(destination.clone()),
                None => HttpDestination::open(spec).await.map(Arc::new),
            };
            opened.map(|destination| (spec.name.clone(), destination))
        };
        (spec.name.clone(), opening.boxed())
    };
    opener.open_all("destinations", host.destinations.iter().map(open)).await.into_iter().collect()
}

pub async fn open_relays<'a>(
    old: Option<&'a OpenCapabilities>,
    host: &'a HostSpec,
    opener: &mut GrantOpener,
) -> HashMap<String, Arc<MailRelay>> {
    let open = |spec: &'a MailSpec| {
        let opening = async move {
            let same = old.and_then(|old| old.relays.get(&spec.name)).filter(|before| before.spec == *spec);
            let opened = match same {
                Some(relay) => Ok(relay.clone()),
                None => MailRelay::open(spec).await.map(Arc::new),
            };
            opened.map(|relay| (spec.name.clone(), relay))
        };
        (spec.name.clone(), opening.boxed())
    };
    opener.open_all("mail", host.mail.iter().map(open)).await.into_iter().collect()
}

pub async fn load_keys<'a>(
    old: Option<&'a OpenCapabilities>,
    host: &'a HostSpec,
    opener: &mut GrantOpener,
) -> HashMap<String, Arc<SigningKey>> {
    let load = |spec: &'a KeySpec| {
        let loading = async move {
            let same = old.and_then(|old| old.keys.get(&spec.name)).filter(|before| before.spec == *spec);
            let loaded = match same {
                Some(key) => Ok(key.clone()),
                None => SigningKey::load(spec).await.map(Arc::new),
            };
            let named = loaded.map(|key| (spec.name.clone(), key));
            named.map_err(|error| ("valueFrom".to_owned(), error.to_string()))
        };
        (spec.name.clone(), loading.boxed())
    };
    let mut keys = opener.open_all("keys", host.keys.iter().map(load)).await.into_iter().collect();
    refuse_twins(&mut keys, host, opener);
    keys
}

/// Refuses the same secret under two names: a plugin that is granted one of them could sign statements of a
/// ledger.
fn refuse_twins(keys: &mut HashMap<String, Arc<SigningKey>>, host: &HostSpec, opener: &mut GrantOpener) {
    let signing = host.ledgers.iter().filter_map(|ledger| ledger.signing.as_ref());
    let signing: BTreeSet<_> = signing.map(|signing| signing.key.as_str()).collect();
    for (index, spec) in
        host.keys.iter().enumerate().filter(|(_, spec)| !signing.contains(spec.name.as_str()))
    {
        let Some(public) = keys.get(&spec.name).map(|key| key.public_key()) else { continue };
        let twin = signing.iter().find(|name| keys.get(**name).is_some_and(|key| key.public_key() == public));
        if let Some(twin) = twin {
            let message = format!(
                "has the same value as the key `{twin}`, which signs a ledger: give plugins a key of their own"
            );
            keys.remove(&spec.name);
            let fault = manifest_fault(format!("spec.keys[{index}].valueFrom"), message);
            opener.closed.insert(("keys", spec.name.clone()), fault);
        }
    }
}
