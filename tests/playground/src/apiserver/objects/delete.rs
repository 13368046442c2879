//! Deletes objects: preconditions, finalizers, owned objects, and the contents of a namespace.
//!
//! A real cluster collects garbage later. Here it happens before the request is answered.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::apiserver::cluster::place::ResourcePlace;
use crate::apiserver::cluster::shared::SharedCluster;
use crate::apiserver::kinds::definitions;
use crate::apiserver::objects::write::{self, WriteOutcome, WrittenPart};
use crate::apiserver::store::record::VersionRecord;
use crate::apiserver::values::ident;
use crate::apiserver::values::lock::locked;
use crate::apiserver::wire::error::ApiError;
use crate::apiserver::wire::query::QueryParameters;

const FOREGROUND: &str = "foregroundDeletion";

/// In a real cluster the Job controller removes this finalizer from the Pods of a deleted Job. Here no Job
/// controller runs.
const JOB_TRACKING: &str = "batch.kubernetes.io/job-tracking";

/// Namespaces that every cluster needs.
const IMMORTAL: &[&str] = &["default", "kube-public", "kube-system"];

/// How long the contents of a namespace outlive the request to delete it.
const NAMESPACE_LINGERS: Duration = Duration::from_millis(750);

/// How often a deletion is retried after conflicting changes.
const MAX_RACES: usize = 64;

/// The fate of the objects that the object owns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeletePropagation {
    #[default]
    Background,
    Foreground,
    Orphan,
}

#[derive(Debug, Clone, Default)]
pub struct DeleteOptions {
    pub uid: Option<String>,
    pub version: Option<String>,
    pub propagation: DeletePropagation,
    pub dry: bool,
}

/// The result of a deletion.
pub enum DeleteResult {
    /// Deleted.
    Gone(Arc<VersionRecord>),
    /// Marked as deleted, and still held by finalizers.
    Waiting(WriteOutcome),
    /// A dry run.
    Would(Arc<VersionRecord>),
}

impl DeleteOptions {
    /// Reads the options from the body of a request, or from its parameters.
    pub fn parse(query: &QueryParameters, body: &Value) -> Result<Self, ApiError> {
        let text = |value: &Value| value.as_str().filter(|t| !t.is_empty()).map(str::to_owned);
        let named = text(&body["propagationPolicy"]).or_else(|| text(&query.get("propagationPolicy").into()));
        let propagation = match named.as_deref() {
            None | Some("Background") => DeletePropagation::Background,
            Some("Foreground") => DeletePropagation::Foreground,
            Some("Orphan") => DeletePropagation::Orphan,
            Some(other) => {
                let known = ["Foreground", "Background", "Orphan"];
                let cause = crate::apiserver::wire::error::FieldCause::not_supported(
                    "propagationPolicy",
                    other,
                    &known,
                );
                return Err(ApiError::invalid_kind("meta.k8s.io", "DeleteOptions", "", &[cause]));
            }
        };
        let orphans = body["orphanDependents"] == json!(true);
        let dry = query.dry_run()? || body["dryRun"].as_array().is_some_and(|d| d.iter().any(|d| d == "All"));
        Ok(DeleteOptions {
            uid: text(&body["preconditions"]["uid"]),
            version: text(&body["preconditions"]["resourceVersion"]),
            propagation: if orphans { DeletePropagation::Orphan } else { propagation },
            dry,
        })
    }
}

/// Deletes one object.
pub fn delete(
    shared: &SharedCluster,
    place: &ResourcePlace,
    name: &str,
    options: &DeleteOptions,
) -> Result<DeleteResult, ApiError> {
    for _ in 0..MAX_RACES {
        let record = place.get(shared, name)?;
        check(place, &record, options)?;
        let namespace = place.kind.is("", "Namespace");
        if namespace && IMMORTAL.contains(&name) {
            return Err(ApiError::forbidden(&place.kind, name, "this namespace may not be deleted"));
        }
        if options.dry {
            return Ok(DeleteResult::Would(record));
        }
        if namespace {
            return delete_namespace(shared, place, name);
        }
        let value = record.to_value(&place.kind);
        let foreground = options.propagation == DeletePropagation::Foreground && owns(shared, &record);
        if foreground || !finalizers(&value).is_empty() {
            let outcome = mark(shared, place, name, foreground)?;
            if foreground {
                release_owned(shared, &record, DeletePropagation::Foreground);
                finish_foreground(shared, place, name);
            }
            if place.kind.is(definitions::GROUP, definitions::KIND) {
                shared.remove_customs(&value);
                drop_finalizer(shared, place, name, definitions::CLEANUP);
            }
            return Ok(DeleteResult::Waiting(outcome));
        }
        if let Ok(removed) = shared.store.remove(place.table, &place.key(name), record.version) {
            release_owned(shared, &removed, options.propagation);
            shared.removed(place, &removed);
            return Ok(DeleteResult::Gone(removed));
        }
    }
    Err(ApiError::stale(&place.kind, name))
}

fn check(place: &ResourcePlace, record: &VersionRecord, options: &DeleteOptions) -> Result<(), ApiError> {
    if let Some(uid) = options.uid.as_deref().filter(|uid| *uid != &*record.uid) {
        let why = format!(
            "the UID in the precondition ({uid}) does not match the UID in record ({}). The object might have \
             been deleted and then recreated",
            record.uid
        );
        return Err(ApiError::failed_precondition(&place.kind, &record.name, &why));
    }
    if let Some(version) = options.version.as_deref().filter(|v| *v != record.version.to_string()) {
        let why = format!(
            "the ResourceVersion in the precondition ({version}) does not match the ResourceVersion in record \
             ({}). The object might have been modified",
            record.version
        );
        return Err(ApiError::failed_precondition(&place.kind, &record.name, &why));
    }
    Ok(())
}

fn finalizers(value: &Value) -> Vec<String> {
    let list = value["metadata"]["finalizers"].as_array().map_or(&[][..], Vec::as_slice);
    list.iter().filter_map(|f| f.as_str().map(str::to_owned)).collect()
}

fn owns(shared: &SharedCluster, record: &VersionRecord) -> bool {
    !shared.store.owned_by(&record.uid).is_empty()
}

/// Sets an object's deletion time. Its finalizers hold it.
fn mark(
    shared: &SharedCluster,
    place: &ResourcePlace,
    name: &str,
    foreground: bool,
) -> Result<WriteOutcome, ApiError> {
    write::change(shared, place, name, WrittenPart::Whole, false, &|old| {
        let mut new = old.clone();
        let metadata = &mut new["metadata"];
        if metadata["deletionTimestamp"].is_null() {
            metadata["deletionTimestamp"] = ident::now().into();
            metadata["deletionGracePeriodSeconds"] = 0.into();
        }
        if foreground && !finalizers(old).iter().any(|f| f == FOREGROUND) {
            let mut all = finalizers(old);
            all.push(FOREGROUND.to_owned());
            metadata["finalizers"] = all.into();
        }
        Ok(new)
    })
}

/// Deletes or releases what an object owns.
fn release_owned(shared: &SharedCluster, owner: &VersionRecord, propagation: DeletePropagation) {
    for (table, key) in shared.store.owned_by(&owner.uid) {
        let Some(place) = shared.place_of(table, &key) else { continue };
        let name = key.rsplit('/').next().unwrap_or(&key);
        let Some(record) = shared.store.get(table, &key) else { continue };
        let shares = record.owners.iter().any(|uid| *uid != owner.uid && shared.lives(&place, &record, uid));
        let result = if propagation == DeletePropagation::Orphan || shares {
            disown(shared, &place, name, &owner.uid)
        } else {
            collect(shared, &place, name, &record, propagation)
        };
        if let Err(error) = result {
            tracing::debug!(%key, message = %error.message, "an owned object was not released");
        }
    }
}

/// Deletes an object whose owner was deleted.
fn collect(
    shared: &SharedCluster,
    place: &ResourcePlace,
    name: &str,
    record: &VersionRecord,
    propagation: DeletePropagation,
) -> Result<(), ApiError> {
    let options =
        DeleteOptions { uid: Some(record.uid.to_string()), propagation, ..DeleteOptions::default() };
    delete(shared, place, name, &options)?;
    if place.kind.is("", "Pod") {
        drop_finalizer(shared, place, name, JOB_TRACKING);
    }
    Ok(())
}

fn disown(shared: &SharedCluster, place: &ResourcePlace, name: &str, uid: &str) -> Result<(), ApiError> {
    write::change(shared, place, name, WrittenPart::Whole, false, &|old| {
        let mut new = old.clone();
        if let Some(owners) = new["metadata"]["ownerReferences"].as_array_mut() {
            owners.retain(|o| o["uid"] != uid);
        }
        Ok(new)
    })
    .map(|_| ())
}

fn drop_finalizer(shared: &SharedCluster, place: &ResourcePlace, name: &str, finalizer: &str) {
    let result = write::change(shared, place, name, WrittenPart::Whole, false, &|old| {
        let mut new = old.clone();
        if let Some(held) = new["metadata"]["finalizers"].as_array_mut() {
            held.retain(|f| f != finalizer);
        }
        Ok(new)
    });
    if let Err(error) = result {
        // It may be deleted already, which is as good.
        tracing::debug!(%name, message = %error.message, "a finalizer was not removed");
    }
}

/// Removes an object that waits for its owned objects, once none is left.
pub fn finish_foreground(shared: &SharedCluster, place: &ResourcePlace, name: &str) {
    let Ok(record) = place.get(shared, name) else { return };
    let value = record.to_value(&place.kind);
    let waits = !value["metadata"]["deletionTimestamp"].is_null()
        && finalizers(&value).iter().any(|f| f == FOREGROUND);
    if waits && !owns(shared, &record) {
        drop_finalizer(shared, place, name, FOREGROUND);
    }
}

/// Marks a namespace as deleted. Its contents are deleted a moment later, as in a real cluster: `kubectl
/// delete -k` names them, too.
fn delete_namespace(
    shared: &SharedCluster,
    place: &ResourcePlace,
    name: &str,
) -> Result<DeleteResult, ApiError> {
    let outcome = write::change(shared, place, name, WrittenPart::Whole, false, &|old| {
        let mut new = old.clone();
        if new["metadata"]["deletionTimestamp"].is_null() {
            new["metadata"]["deletionTimestamp"] = ident::now().into();
        }
        new["status"]["phase"] = "Terminating".into();
        Ok(new)
    })?;
    Ok(DeleteResult::Waiting(outcome))
}

/// Empties the namespaces that have been terminating for long enough. Called periodically.
pub fn empty_namespaces(shared: &SharedCluster) {
    loop {
        let name = {
            let mut terminating = locked(&shared.terminating);
            match terminating.front() {
                Some((since, _)) if since.elapsed() >= NAMESPACE_LINGERS => terminating.pop_front(),
                _ => None,
            }
        };
        match name {
            Some((_, name)) => empty_namespace(shared, &name),
            None => return,
        }
    }
}

fn empty_namespace(shared: &SharedCluster, name: &str) {
    for (table, records) in shared.store.in_namespace(name) {
        for record in records {
            let Some(content) = shared.place_of(table, &record.key()) else { continue };
            // It fails if another request deleted the object first.
            if collect(shared, &content, &record.name, &record, DeletePropagation::Background).is_err() {
                tracing::debug!(namespace = name, name = %record.name, "gone before its namespace");
            }
        }
    }
    finish_namespace(shared, name);
}

/// Removes a terminating namespace that is empty.
pub fn finish_namespace(shared: &SharedCluster, name: &str) {
    let Ok(place) = shared.place("", "namespaces", "") else { return };
    let Ok(record) = place.get(shared, name) else { return };
    let terminating = record.field("status.phase") == Some("Terminating");
    if !terminating || !shared.store.in_namespace(name).is_empty() {
        return;
    }
    let held = !finalizers(&record.to_value(&place.kind)).is_empty();
    if !held && let Ok(removed) = shared.store.remove(place.table, &place.key(name), record.version) {
        shared.removed(&place, &removed);
    }
}
