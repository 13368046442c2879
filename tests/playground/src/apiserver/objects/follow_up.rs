//! Applies the consequences of a write: definitions, namespaces and owners that begin or end.

use std::sync::Arc;
use std::time::Instant;

use serde_json::json;

use crate::apiserver::cluster::place::ResourcePlace;
use crate::apiserver::cluster::shared::SharedCluster;
use crate::apiserver::kinds::definitions;
use crate::apiserver::objects::{delete, write};
use crate::apiserver::store::record::{VersionRecord, key};
use crate::apiserver::values::lock::locked;

impl SharedCluster {
    /// Applies the consequences of a new version of an object.
    pub fn written(&self, place: &ResourcePlace, record: &Arc<VersionRecord>) {
        if place.kind.is(definitions::GROUP, definitions::KIND) {
            self.reload_definitions();
            self.end_watches_of(&record.to_value(&place.kind));
        }
        if place.kind.is("", "Namespace") {
            if record.field("status.phase") != Some("Terminating") {
                self.furnish(&record.name);
            } else {
                // The write may have removed what held it.
                locked(&self.terminating).push_back((Instant::now(), record.name.to_string()));
            }
        }
    }

    /// Applies the consequences of the end of an object.
    pub fn removed(&self, place: &ResourcePlace, record: &Arc<VersionRecord>) {
        if place.kind.is(definitions::GROUP, definitions::KIND) {
            let definition = record.to_value(&place.kind);
            self.remove_customs(&definition);
            self.reload_definitions();
            self.end_watches_of(&definition);
        }
        for uid in record.owners.iter() {
            if let Some((owner, name)) = self.owner(place, record, uid) {
                delete::finish_foreground(self, &owner, &name);
            }
        }
        if !record.namespace.is_empty() {
            delete::finish_namespace(self, &record.namespace);
        }
    }

    /// Gives a new namespace its service account.
    fn furnish(&self, namespace: &str) {
        let Ok(accounts) = self.place("", "serviceaccounts", namespace) else { return };
        if self.store.get(accounts.table, &key(namespace, "default")).is_some() {
            return;
        }
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
        if let Err(error) = write::create(self, &accounts, account, "", false) {
            tracing::debug!(namespace, message = %error.message, "the default account was not created");
        }
    }
}
