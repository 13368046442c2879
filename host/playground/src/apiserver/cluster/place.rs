//! Locates the objects of a resource.

use std::sync::Arc;

use serde_json::{Map, Value};

use crate::apiserver::cluster::shared::Shared;
use crate::apiserver::kinds::{Kind, fields};
use crate::apiserver::store::TableId;
use crate::apiserver::store::record::{Draft, Record, key};
use crate::apiserver::wire::error::ApiError;

/// A resource and a namespace in it.
#[derive(Clone)]
pub struct Place {
    pub kind: Arc<Kind>,
    pub table: TableId,
    pub namespace: String,
}

impl Place {
    pub fn key(&self, name: &str) -> String {
        key(&self.namespace, name)
    }

    pub fn get(&self, shared: &Shared, name: &str) -> Result<Arc<Record>, ApiError> {
        let found = shared.store.get(self.table, &self.key(name));
        found.ok_or_else(|| ApiError::not_found(&self.kind, name))
    }

    pub fn draft(&self, object: &Map<String, Value>) -> Draft {
        Draft::new(object, &fields::selectable(&self.kind))
    }
}
