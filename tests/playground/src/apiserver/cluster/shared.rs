//! The parts that every server of the cluster sees: the store, the served kinds, tokens and rights.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, Weak};
use std::time::Instant;

use serde_json::Value;

use crate::apiserver::cluster::auth::ValidTokens;
use crate::apiserver::cluster::front::{ServerFront, WatchDrop};
use crate::apiserver::cluster::options::ApiServerOptions;
use crate::apiserver::cluster::place::ResourcePlace;
use crate::apiserver::cluster::request_counts::RequestCounts;
use crate::apiserver::cluster::rights::CompiledRoles;
use crate::apiserver::cluster::tls::ServerTls;
use crate::apiserver::kinds::{KindRegistry, ServedKind, definitions};
use crate::apiserver::store::record::VersionRecord;
use crate::apiserver::store::{ObjectStore, PageRequest, TableId};
use crate::apiserver::values::ident::RandomSource;
use crate::apiserver::values::lock::locked;
use crate::apiserver::wire::error::ApiError;

pub struct SharedCluster {
    pub options: ApiServerOptions,
    pub tls: Option<ServerTls>,
    pub store: ObjectStore,
    registry: Mutex<Arc<KindRegistry>>,
    pub random: RandomSource,
    pub tokens: ValidTokens,
    pub rights: CompiledRoles,
    /// The servers of the cluster.
    fronts: Mutex<Vec<Weak<ServerFront>>>,
    pub requests: RequestCounts,
    pub protocols: RequestCounts,
    /// Namespaces to empty, each with the time of its deletion.
    pub terminating: Mutex<VecDeque<(Instant, String)>>,
}

impl SharedCluster {
    /// Opens a cluster with an empty store, or with the content of its file.
    pub fn open(options: ApiServerOptions) -> io::Result<Self> {
        let tls = options.tls.as_ref().map(ServerTls::open).transpose()?;
        let keep_truth = options.keep_truth || options.hooks;
        let store = ObjectStore::open(options.history.clone(), keep_truth, options.state.as_deref())?;
        // After a restart the same seed gives other names, because the former ones are in use.
        let random = RandomSource::new(options.seed.map(|seed| seed ^ store.version()));
        let shared = SharedCluster {
            tls,
            store,
            registry: Mutex::new(Arc::new(KindRegistry::new(Vec::new()))),
            random,
            tokens: ValidTokens::new(&options.tokens),
            rights: CompiledRoles::default(),
            fronts: Mutex::default(),
            requests: RequestCounts::default(),
            protocols: RequestCounts::default(),
            terminating: Mutex::default(),
            options,
        };
        shared.tokens.restore(&shared.store.take_notes());
        shared.reread();
        Ok(shared)
    }

    /// Replaces the history with a backup's, as a restore of etcd does. The servers restart, so connections
    /// break and caches are empty. Returns the version from which the history continues.
    pub fn restore(&self, name: &str, bump: u64) -> Option<u64> {
        let version = self.store.restore(name, bump)?;
        self.reread();
        for front in self.fronts() {
            front.refill();
            front.drop_watches(WatchDrop::Abort);
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

    pub fn registry(&self) -> Arc<KindRegistry> {
        Arc::clone(&locked(&self.registry))
    }

    pub fn serves(&self, kind: &ServedKind) -> bool {
        kind.custom.is_none() || self.registry().find(&kind.group, &kind.version, &kind.plural).is_some()
    }

    /// A resource, from any group and version that serves it.
    pub fn place(&self, group: &str, plural: &str, namespace: &str) -> Result<ResourcePlace, ApiError> {
        let kind = self.registry().resource(group, plural).cloned().ok_or_else(ApiError::no_such_resource)?;
        Ok(ResourcePlace {
            table: self.store.table(&kind.group_resource()),
            kind,
            namespace: namespace.to_owned(),
        })
    }

    /// The resource of a table, for the object at a key.
    pub fn place_of(&self, table: TableId, key: &str) -> Option<ResourcePlace> {
        let name = self.store.table_name(table);
        let kind = self.registry().all().iter().find(|k| k.group_resource() == name).cloned()?;
        let namespace = key.split_once('/').map_or("", |(namespace, _)| namespace).to_owned();
        Some(ResourcePlace { kind, table, namespace })
    }

    /// The place and name of an owner to which a record refers, if the owner exists.
    pub fn owner(
        &self,
        place: &ResourcePlace,
        record: &VersionRecord,
        uid: &str,
    ) -> Option<(ResourcePlace, String)> {
        let value = record.to_value(&place.kind);
        let reference =
            value["metadata"]["ownerReferences"].as_array()?.iter().find(|o| o["uid"] == uid)?.clone();
        let api_version = reference["apiVersion"].as_str()?;
        let group = api_version.split_once('/').map_or("", |(group, _)| group);
        let registry = self.registry();
        let kind =
            registry.all().iter().find(|k| k.is(group, reference["kind"].as_str().unwrap_or_default()))?;
        let namespace = if kind.namespaced { place.namespace.clone() } else { String::new() };
        let owner = ResourcePlace {
            table: self.store.table(&kind.group_resource()),
            kind: Arc::clone(kind),
            namespace,
        };
        let name = reference["name"].as_str()?.to_owned();
        let found = self.store.get(owner.table, &owner.key(&name))?;
        (*found.uid == *uid).then_some((owner, name))
    }

    /// Whether an owner still exists.
    pub fn lives(&self, place: &ResourcePlace, record: &VersionRecord, uid: &str) -> bool {
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

    /// Adds a server. `server` gets its number.
    pub fn enlist(&self, server: impl FnOnce(usize) -> Arc<ServerFront>) -> Arc<ServerFront> {
        let mut fronts = locked(&self.fronts);
        let server = server(fronts.len());
        fronts.push(Arc::downgrade(&server));
        server
    }

    pub fn has_fronts(&self) -> bool {
        !locked(&self.fronts).is_empty()
    }

    /// The servers that still exist, up or down.
    pub fn fronts(&self) -> Vec<Arc<ServerFront>> {
        locked(&self.fronts).iter().filter_map(Weak::upgrade).collect()
    }

    pub fn reload_definitions(&self) {
        let Ok(place) = self.place(definitions::GROUP, "customresourcedefinitions", "") else { return };
        let everything = PageRequest::everything();
        let records = self.store.page(place.table, &everything).map(|page| page.items).unwrap_or_default();
        let kinds = records.iter().flat_map(|r| definitions::kinds(&r.to_value(&place.kind))).collect();
        *locked(&self.registry) = Arc::new(KindRegistry::new(kinds));
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
