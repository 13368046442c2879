//! What every request sees: the store, the kinds that are served, tokens and rights, and what follows from a
//! write (definitions come and go, namespaces and owners finish).

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::auth::Tokens;
use super::definitions;
use super::deleting;
use super::error::ApiError;
use super::ident::Random;
use super::kinds::{Kind, Registry};
use super::locked;
use super::record::{Record, key};
use super::requests::Requests;
use super::rights::Rights;
use super::server::ApiServerOptions;
use super::store::{PageRequest, Store, TableId};
use super::watching::Drop;
use super::writing::{self, Place};

pub struct Shared {
    pub options: ApiServerOptions,
    pub address: SocketAddr,
    pub store: Store,
    registry: Mutex<Arc<Registry>>,
    pub random: Random,
    pub tokens: Tokens,
    pub rights: Rights,
    pub stop: CancellationToken,
    pub drops: watch::Sender<(u64, Drop)>,
    pub watches: AtomicUsize,
    pub requests: Requests,
    /// Namespaces that are to be emptied, and since when.
    pub terminating: Mutex<VecDeque<(Instant, String)>>,
}

impl Shared {
    pub fn new(options: ApiServerOptions, address: SocketAddr) -> Self {
        Shared {
            address,
            store: Store::new(options.history.clone(), options.keep_truth || options.hooks),
            registry: Mutex::new(Arc::new(Registry::new(Vec::new()))),
            random: Random::new(options.seed),
            tokens: Tokens::new(&options.tokens),
            rights: Rights::default(),
            stop: CancellationToken::new(),
            drops: watch::Sender::new((0, Drop::Clean)),
            watches: AtomicUsize::new(0),
            requests: Requests::default(),
            terminating: Mutex::default(),
            options,
        }
    }

    pub fn registry(&self) -> Arc<Registry> {
        Arc::clone(&locked(&self.registry))
    }

    pub fn serves(&self, kind: &Kind) -> bool {
        kind.custom.is_none() || self.registry().find(&kind.group, &kind.version, &kind.plural).is_some()
    }

    /// A resource, wherever it is served from.
    pub fn place(&self, group: &str, plural: &str, namespace: &str) -> Result<Place, ApiError> {
        let kind = self.registry().resource(group, plural).cloned().ok_or_else(ApiError::no_such_resource)?;
        Ok(Place { table: self.store.table(&kind.group_resource()), kind, namespace: namespace.to_owned() })
    }

    /// The resource of a table, for the object at a key.
    pub fn place_of(&self, table: TableId, key: &str) -> Option<Place> {
        let name = self.store.table_name(table);
        let kind = self.registry().all().iter().find(|k| k.group_resource() == name).cloned()?;
        let namespace = key.split_once('/').map_or("", |(namespace, _)| namespace).to_owned();
        Some(Place { kind, table, namespace })
    }

    /// The place and name of an owner that a record refers to, if it is there.
    fn owner(&self, place: &Place, record: &Record, uid: &str) -> Option<(Place, String)> {
        let value = record.to_value(&place.kind);
        let reference =
            value["metadata"]["ownerReferences"].as_array()?.iter().find(|o| o["uid"] == uid)?.clone();
        let api_version = reference["apiVersion"].as_str()?;
        let group = api_version.split_once('/').map_or("", |(group, _)| group);
        let registry = self.registry();
        let kind =
            registry.all().iter().find(|k| k.is(group, reference["kind"].as_str().unwrap_or_default()))?;
        let namespace = if kind.namespaced { place.namespace.clone() } else { String::new() };
        let owner =
            Place { table: self.store.table(&kind.group_resource()), kind: Arc::clone(kind), namespace };
        let name = reference["name"].as_str()?.to_owned();
        let found = self.store.get(owner.table, &owner.key(&name))?;
        (*found.uid == *uid).then_some((owner, name))
    }

    /// Is an owner still there?
    pub fn lives(&self, place: &Place, record: &Record, uid: &str) -> bool {
        self.owner(place, record, uid).is_some()
    }

    /// Waits for a version that a client knows of and this server not yet.
    pub async fn wait_for_version(&self, version: u64) -> Result<(), ApiError> {
        let mut versions = self.store.versions();
        let reached = versions.wait_for(|now| *now >= version);
        match tokio::time::timeout(self.options.future_wait, reached).await {
            Ok(Ok(_)) => Ok(()),
            _ => Err(ApiError::version_too_large(version, self.store.version())),
        }
    }

    /// Ends every open watch. Returns how many there were.
    pub fn drop_watches(&self, how: Drop) -> usize {
        self.drops.send_modify(|(count, last)| {
            *count += 1;
            *last = how;
        });
        self.watches.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// What follows from a new version of an object.
    pub fn written(&self, place: &Place, record: &Arc<Record>) {
        if place.kind.is(definitions::GROUP, definitions::KIND) {
            self.reload_definitions();
        }
        if place.kind.is("", "Namespace") {
            if record.field("status.phase") != Some("Terminating") {
                self.furnish(&record.name);
            } else {
                // Perhaps what held it was just removed.
                locked(&self.terminating).push_back((Instant::now(), record.name.to_string()));
            }
        }
    }

    /// What follows from the end of an object.
    pub fn removed(&self, place: &Place, record: &Arc<Record>) {
        if place.kind.is(definitions::GROUP, definitions::KIND) {
            self.remove_customs(&record.to_value(&place.kind));
            self.reload_definitions();
        }
        for uid in record.owners.iter() {
            if let Some((owner, name)) = self.owner(place, record, uid) {
                deleting::finish_foreground(self, &owner, &name);
            }
        }
        if !record.namespace.is_empty() {
            deleting::finish_namespace(self, &record.namespace);
        }
    }

    /// A namespace begins with an account.
    fn furnish(&self, namespace: &str) {
        let Ok(accounts) = self.place("", "serviceaccounts", namespace) else { return };
        if self.store.get(accounts.table, &key(namespace, "default")).is_some() {
            return;
        }
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
        if let Err(error) = writing::create(self, &accounts, account, false) {
            tracing::debug!(namespace, message = %error.message, "the default account was not created");
        }
    }

    fn reload_definitions(&self) {
        let Ok(place) = self.place(definitions::GROUP, "customresourcedefinitions", "") else { return };
        let everything = PageRequest { prefix: "", after: None, at: None, limit: None, matches: &|_| true };
        let records = self.store.page(place.table, &everything).map(|page| page.items).unwrap_or_default();
        let kinds = records.iter().flat_map(|r| definitions::kinds(&r.to_value(&place.kind))).collect();
        *locked(&self.registry) = Arc::new(Registry::new(kinds));
    }

    /// The objects of a kind go with its definition, and so do their watches.
    fn remove_customs(&self, definition: &Value) {
        let spec = &definition["spec"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let table = self.store.table(&format!("{}.{}", text(&spec["names"]["plural"]), text(&spec["group"])));
        let everything = PageRequest { prefix: "", after: None, at: None, limit: None, matches: &|_| true };
        let records = self.store.page(table, &everything).map(|page| page.items).unwrap_or_default();
        for record in records {
            if self.store.remove(table, &record.key(), record.version).is_err() {
                tracing::debug!(name = %record.name, "changed while its definition was removed");
            }
        }
        self.store.poke(table);
    }
}
