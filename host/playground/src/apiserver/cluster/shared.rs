//! What every server of the cluster sees: the store, the kinds that are served, tokens and rights.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, Weak};
use std::time::Instant;

use serde_json::Value;

use crate::apiserver::cluster::auth::Tokens;
use crate::apiserver::cluster::front::{Drop, Front};
use crate::apiserver::cluster::options::ApiServerOptions;
use crate::apiserver::cluster::place::Place;
use crate::apiserver::cluster::request_counts::Requests;
use crate::apiserver::cluster::rights::Rights;
use crate::apiserver::cluster::tls::Tls;
use crate::apiserver::kinds::{Kind, Registry, definitions};
use crate::apiserver::store::record::Record;
use crate::apiserver::store::{PageRequest, Store, TableId};
use crate::apiserver::values::ident::Random;
use crate::apiserver::values::lock::locked;
use crate::apiserver::wire::error::ApiError;

pub struct Shared {
    pub options: ApiServerOptions,
    pub tls: Option<Tls>,
    pub store: Store,
    registry: Mutex<Arc<Registry>>,
    pub random: Random,
    pub tokens: Tokens,
    pub rights: Rights,
    /// The servers of the cluster.
    fronts: Mutex<Vec<Weak<Front>>>,
    pub requests: Requests,
    pub protocols: Requests,
    /// Namespaces to empty, each with the time of its deletion.
    pub terminating: Mutex<VecDeque<(Instant, String)>>,
}

impl Shared {
    /// Opens a cluster with an empty store, or with the content of its file.
    pub fn open(options: ApiServerOptions) -> io::Result<Self> {
        let tls = options.tls.as_ref().map(Tls::open).transpose()?;
        let keep_truth = options.keep_truth || options.hooks;
        let store = Store::open(options.history.clone(), keep_truth, options.state.as_deref())?;
        // After a restart the same seed gives other names, because the former ones are taken.
        let random = Random::new(options.seed.map(|seed| seed ^ store.version()));
        let shared = Shared {
            tls,
            store,
            registry: Mutex::new(Arc::new(Registry::new(Vec::new()))),
            random,
            tokens: Tokens::new(&options.tokens),
            rights: Rights::default(),
            fronts: Mutex::default(),
            requests: Requests::default(),
            protocols: Requests::default(),
            terminating: Mutex::default(),
            options,
        };
        shared.tokens.restore(&shared.store.take_notes());
        shared.reread();
        Ok(shared)
    }

    /// Replaces the history with a backup's, as a restore of etcd does. The servers start again, so
    /// connections break and caches are empty. Returns the version from which the history goes on.
    pub fn restore(&self, name: &str, bump: u64) -> Option<u64> {
        let version = self.store.restore(name, bump)?;
        self.reread();
        for front in self.fronts() {
            front.refill();
            front.drop_watches(Drop::Abort);
        }
        Some(version)
    }

    /// Derives kinds and rights from the content of the store.
    fn reread(&self) {
        self.reload_definitions();
        let Ok(place) = self.place("", "namespaces", "") else { return };
        let namespaces = self.store.page(place.table, &PageRequest::everything());
        let ending = namespaces.map(|page| page.items).unwrap_or_default();
        let ending = ending.iter().filter(|n| n.field("status.phase") == Some("Terminating"));
        locked(&self.terminating).extend(ending.map(|n| (Instant::now(), n.name.to_string())));
    }

    pub fn registry(&self) -> Arc<Registry> {
        Arc::clone(&locked(&self.registry))
    }

    pub fn serves(&self, kind: &Kind) -> bool {
        kind.custom.is_none() || self.registry().find(&kind.group, &kind.version, &kind.plural).is_some()
    }

    /// A resource, from whichever group and version it is served.
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

    /// The place and name of an owner that a record refers to, if the owner exists.
    pub fn owner(&self, place: &Place, record: &Record, uid: &str) -> Option<(Place, String)> {
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

    /// Whether an owner still exists.
    pub fn lives(&self, place: &Place, record: &Record, uid: &str) -> bool {
        self.owner(place, record, uid).is_some()
    }

    /// Waits until the store has a version that a client knows.
    pub async fn wait_for_version(&self, version: u64) -> Result<(), ApiError> {
        let mut versions = self.store.versions();
        let reached = versions.wait_for(|now| *now >= version);
        match tokio::time::timeout(self.options.future_wait, reached).await {
            Ok(Ok(_)) => Ok(()),
            _ => Err(ApiError::version_too_large(version, self.store.version())),
        }
    }

    /// Adds a server, which is told its number.
    pub fn enlist(&self, server: impl FnOnce(usize) -> Arc<Front>) -> Arc<Front> {
        let mut fronts = locked(&self.fronts);
        let server = server(fronts.len());
        fronts.push(Arc::downgrade(&server));
        server
    }

    pub fn has_fronts(&self) -> bool {
        !locked(&self.fronts).is_empty()
    }

    /// The remaining servers, up or not.
    pub fn fronts(&self) -> Vec<Arc<Front>> {
        locked(&self.fronts).iter().filter_map(Weak::upgrade).collect()
    }

    pub fn reload_definitions(&self) {
        let Ok(place) = self.place(definitions::GROUP, "customresourcedefinitions", "") else { return };
        let everything = PageRequest::everything();
        let records = self.store.page(place.table, &everything).map(|page| page.items).unwrap_or_default();
        let kinds = records.iter().flat_map(|r| definitions::kinds(&r.to_value(&place.kind))).collect();
        *locked(&self.registry) = Arc::new(Registry::new(kinds));
    }

    /// Removes the objects of a kind together with its definition. Each deletion has a version of its own,
    /// and no finalizer holds them.
    pub fn remove_customs(&self, definition: &Value) {
        let table = self.custom_table(definition);
        let records =
            self.store.page(table, &PageRequest::everything()).map(|page| page.items).unwrap_or_default();
        for record in records {
            if self.store.remove(table, &record.key(), record.version).is_err() {
                tracing::debug!(name = %record.name, "changed while its definition was removed");
            }
        }
    }

    /// Wakes watches of versions that are no longer served, so that they end.
    pub fn end_watches_of(&self, definition: &Value) {
        self.store.poke(self.custom_table(definition));
    }

    fn custom_table(&self, definition: &Value) -> TableId {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let spec = &definition["spec"];
        self.store.table(&format!("{}.{}", text(&spec["names"]["plural"]), text(&spec["group"])))
    }
}
