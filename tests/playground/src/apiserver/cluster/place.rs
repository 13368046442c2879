//! Locates the objects of a resource.

use std::sync::Arc;

use serde_json::{Map, Value};

use crate::apiserver::cluster::shared::SharedCluster;
use crate::apiserver::kinds::{ServedKind, fields};
use crate::apiserver::store::TableId;
use crate::apiserver::store::record::{ObjectDraft, VersionRecord, key};
use crate::apiserver::wire::error::ApiError;

/// A resource and a namespace in it.
#[derive(Clone)]
pub struct ResourcePlace {
    pub kind: Arc<ServedKind>,
    pub table: TableId,
    pub namespace: String,
}

impl ResourcePlace {
    pub fn key(&self, name: &str) -> String {
        key(&self.namespace, name)
    }

    pub fn get(&self, shared: &SharedCluster, name: &str) -> Result<Arc<VersionRecord>, ApiError> {
        let found = shared.store.get(self.table, &self.key(name));
        found.ok_or_else(|| ApiError::not_found(&self.kind, name))
    }

    pub fn draft(&self, object: &Map<String, Value>) -> ObjectDraft {
        ObjectDraft::new(object, &fields::selectable(&self.kind))
    }
}
