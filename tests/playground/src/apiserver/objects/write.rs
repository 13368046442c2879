//! Creates and changes objects: preparation, defaults, checks, and the commit with its conflicts.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::apiserver::cluster::place::ResourcePlace;
use crate::apiserver::cluster::shared::SharedCluster;
use crate::apiserver::kinds::{ServedKind, defaults};
use crate::apiserver::objects::{managers, validate};
use crate::apiserver::store::record::VersionRecord;
use crate::apiserver::values::ident;
use crate::apiserver::wire::error::ApiError;

/// How often a change is retried after conflicting changes.
const MAX_RACES: usize = 64;

/// How many names are tried for one `generateName`.
const MAX_NAMES: usize = 8;

/// The part of an object that a request changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WrittenPart {
    Main,
    Status,
    /// Everything at once, for the server itself.
    Whole,
}

/// The result of a write.
pub enum WriteOutcome {
    Stored(Arc<VersionRecord>),
    /// The object that would have been stored.
    Dry(Value),
}

/// Creates an object from the body of a request. Without a manager, no writer is recorded.
pub fn create(
    shared: &SharedCluster,
    place: &ResourcePlace,
    body: Value,
    manager: &str,
    dry: bool,
) -> Result<WriteOutcome, ApiError> {
    let kind = &place.kind;
    let mut object = expect_kind(kind, body)?;
    expect_namespace(place, &object)?;
    if !metadata(&object, "resourceVersion").is_empty() {
        return Err(ApiError::unknown("resourceVersion should not be set on objects to be created"));
    }
    check_namespace(shared, place)?;
    let generated = metadata(&object, "generateName").to_owned();
    let named = !metadata(&object, "name").is_empty();
    if !named && generated.is_empty() {
        let cause = crate::apiserver::wire::error::FieldCause::required(
            "metadata.name",
            "name or generateName is required",
        );
        return Err(ApiError::invalid(kind, "", &[cause]));
    }
    let uid = shared.random.uid();
    begin(place, &mut object, &uid);
    for _ in 0..MAX_NAMES {
        let mut object = object.clone();
        if !named {
            let name = format!("{generated}{}", shared.random.suffix());
            object["metadata"]["name"] = name.into();
        }
        defaults::apply(kind, &mut object, &uid);
        crate::apiserver::kinds::definitions::established(kind, &mut object);
        if !manager.is_empty() {
            object = managers::noted(&without_writer(kind, &object), object, manager, false);
        }
        validate::created(kind, &object)?;
        if dry {
            let exists = shared.store.get(place.table, &place.key(metadata(&object, "name"))).is_some();
            if exists {
                return Err(ApiError::already_exists(kind, metadata(&object, "name")));
            }
            return Ok(WriteOutcome::Dry(Value::Object(object)));
        }
        match shared.store.put(place.table, place.draft(&object), None) {
            Ok(record) => {
                shared.written(place, &record);
                return Ok(WriteOutcome::Stored(record));
            }
            Err(_) if named => return Err(ApiError::already_exists(kind, metadata(&object, "name"))),
            Err(_) => {}
        }
    }
    Err(ApiError::already_exists(kind, &generated))
}

/// Removes from a new object what no writer sets: the server initializes its status.
fn without_writer(kind: &ServedKind, object: &Map<String, Value>) -> Map<String, Value> {
    let status = object.get_key_value("status").filter(|_| kind.has_status());
    status.map(|(key, status)| (key.clone(), status.clone())).into_iter().collect()
}

/// Changes an object by a function of its present content, with retries. No writer is recorded.
pub fn change(
    shared: &SharedCluster,
    place: &ResourcePlace,
    name: &str,
    part: WrittenPart,
    dry: bool,
    change: &dyn Fn(&Value) -> Result<Value, ApiError>,
) -> Result<WriteOutcome, ApiError> {
    change_by(shared, place, name, part, "", dry, change)
}

/// The same, by this manager.
///
/// The function returns a whole object. `part` says which part of it counts.
pub fn change_by(
    shared: &SharedCluster,
    place: &ResourcePlace,
    name: &str,
    part: WrittenPart,
    manager: &str,
    dry: bool,
    change: &dyn Fn(&Value) -> Result<Value, ApiError>,
) -> Result<WriteOutcome, ApiError> {
    let kind = &place.kind;
    for _ in 0..MAX_RACES {
        let record = place.get(shared, name)?;
        let old = record.to_value(kind);
        let new = change(&old)?;
        let (old, new) = (expect_kind(kind, old)?, expect_kind(kind, new)?);
        expect_same(place, &old, &new)?;
        let mut new = merge_parts(kind, &old, new, part);
        if !manager.is_empty() {
            new = managers::noted(&old, new, manager, part == WrittenPart::Status);
        }
        if part != WrittenPart::Whole {
            validate::changed(kind, &old, &new)?;
        }
        if same_content(&old, &new) {
            return Ok(WriteOutcome::Stored(record));
        }
        if dry {
            return Ok(WriteOutcome::Dry(Value::Object(new)));
        }
        if is_finished(&new) {
            // The last finalizer was removed. The object is deleted with its stored content.
            match shared.store.remove(place.table, &place.key(name), record.version) {
                Ok(removed) => {
                    shared.removed(place, &removed);
                    return Ok(WriteOutcome::Dry(Value::Object(new)));
                }
                Err(_) => continue,
            }
        }
        if let Ok(written) = shared.store.put(place.table, place.draft(&new), Some(record.version)) {
            shared.written(place, &written);
            return Ok(WriteOutcome::Stored(written));
        }
    }
    Err(ApiError::stale(kind, name))
}

/// Replaces an object with the body of a request.
pub fn replace(
    shared: &SharedCluster,
    place: &ResourcePlace,
    name: &str,
    part: WrittenPart,
    manager: &str,
    dry: bool,
    body: &Value,
) -> Result<WriteOutcome, ApiError> {
    let kind = &place.kind;
    let object = expect_kind(kind, body.clone())?;
    expect_namespace(place, &object)?;
    let given = metadata(&object, "name");
    if given != name {
        return Err(ApiError::bad_request(format!(
            "the name of the object ({given}) does not match the name on the URL ({name})"
        )));
    }
    let conditional = kind.custom.is_some() || kind.kind == "Lease";
    if conditional && metadata(&object, "resourceVersion").is_empty() {
        let why = "must be specified for an update";
        let cause =
            crate::apiserver::wire::error::FieldCause::invalid_raw("metadata.resourceVersion", "0x0", why);
        return Err(ApiError::invalid(kind, name, &[cause]));
    }
    change_by(shared, place, name, part, manager, dry, &|_| Ok(body.clone()))
}

fn metadata<'a>(object: &'a Map<String, Value>, field: &str) -> &'a str {
    object.get("metadata").and_then(|m| m[field].as_str()).unwrap_or_default()
}

/// The object, if its kind is that of the path.
fn expect_kind(kind: &ServedKind, body: Value) -> Result<Map<String, Value>, ApiError> {
    let Value::Object(mut object) = body else {
        return Err(ApiError::bad_request(format!(
            "the object provided is unrecognized (must be of type {}): not an object",
            kind.kind
        )));
    };
    let text = |name: &str| object.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
    let (given_kind, given_version) = (text("kind"), text("apiVersion"));
    let right_kind = given_kind.is_empty() || given_kind == kind.kind;
    if !right_kind || !(given_version.is_empty() || given_version == kind.api_version()) {
        return Err(ApiError::bad_request(format!(
            "{given_kind} in version {} cannot be handled as a {}: no kind {} is registered for this resource",
            crate::apiserver::wire::error::quoted(&given_version),
            kind.kind,
            crate::apiserver::wire::error::quoted(&given_kind),
        )));
    }
    object.insert("kind".into(), kind.kind.as_ref().into());
    object.insert("apiVersion".into(), kind.api_version().into());
    if !object.get("metadata").is_some_and(Value::is_object) {
        object.insert("metadata".into(), json!({}));
    }
    Ok(object)
}

fn expect_namespace(place: &ResourcePlace, object: &Map<String, Value>) -> Result<(), ApiError> {
    let given = metadata(object, "namespace");
    if given.is_empty() || given == place.namespace {
        return Ok(());
    }
    Err(ApiError::bad_request(format!(
        "the namespace of the provided object does not match the namespace sent on the request: \
         got {given}, expected {}",
        place.namespace
    )))
}

fn check_namespace(shared: &SharedCluster, place: &ResourcePlace) -> Result<(), ApiError> {
    if !place.kind.namespaced {
        return Ok(());
    }
    let namespaces = shared.place("", "namespaces", "")?;
    let namespace = namespaces.get(shared, &place.namespace)?;
    if namespace.field("status.phase") == Some("Terminating") {
        let why = format!(
            "unable to create new content in namespace {} because it is being terminated",
            place.namespace
        );
        let mut error = ApiError::forbidden(&place.kind, "", &why);
        if let Some(details) = &mut error.details {
            details["causes"] = json!([{
                "reason": "NamespaceTerminating",
                "message": format!("namespace {} is being terminated", place.namespace),
                "field": "metadata.namespace",
            }]);
        }
        return Err(error);
    }
    Ok(())
}

/// Adds the fields that only the server sets on a new object.
fn begin(place: &ResourcePlace, object: &mut Map<String, Value>, uid: &str) {
    let kind = &place.kind;
    if kind.has_status() {
        object.remove("status");
    }
    if let Some(status) = defaults::initial_status(kind, object) {
        object.insert("status".into(), status);
    }
    let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else { return };
    for theirs in
        ["resourceVersion", "selfLink", "deletionTimestamp", "deletionGracePeriodSeconds", "generation"]
    {
        metadata.remove(theirs);
    }
    metadata.insert("uid".into(), uid.into());
    metadata.insert("creationTimestamp".into(), ident::now().into());
    if kind.namespaced {
        metadata.insert("namespace".into(), place.namespace.as_str().into());
    } else {
        metadata.remove("namespace");
    }
    if kind.generation || kind.custom.is_some() {
        metadata.insert("generation".into(), 1.into());
    }
    tidy_metadata(metadata);
}

fn tidy_metadata(metadata: &mut Map<String, Value>) {
    metadata.retain(|_, value| !value.is_null());
    defaults::drop_empty(
        metadata,
        &["labels", "annotations", "finalizers", "ownerReferences", "managedFields"],
    );
}

/// Refuses a change that was made for another version or another object.
fn expect_same(
    place: &ResourcePlace,
    old: &Map<String, Value>,
    new: &Map<String, Value>,
) -> Result<(), ApiError> {
    let (kind, name) = (&place.kind, metadata(old, "name"));
    let uid = metadata(new, "uid");
    if !uid.is_empty() && uid != metadata(old, "uid") {
        let why = format!(
            "Precondition failed: UID in precondition: {uid}, UID in object meta: {}",
            metadata(old, "uid")
        );
        return Err(ApiError::conflict(kind, name, &why));
    }
    let version = metadata(new, "resourceVersion");
    if !version.is_empty() {
        crate::apiserver::wire::query::parse_version(version).map_err(ApiError::bad_request)?;
        if version != metadata(old, "resourceVersion") {
            return Err(ApiError::stale(kind, name));
        }
    }
    Ok(())
}

/// The new object; everything that the request may not change stays.
fn merge_parts(
    kind: &ServedKind,
    old: &Map<String, Value>,
    new: Map<String, Value>,
    part: WrittenPart,
) -> Map<String, Value> {
    let mut new = new;
    match part {
        WrittenPart::Main if kind.has_status() => match old.get("status") {
            Some(status) => drop(new.insert("status".into(), status.clone())),
            None => drop(new.remove("status")),
        },
        WrittenPart::Status => {
            let status = new.remove("status");
            let metadata = new.remove("metadata");
            new = old.clone();
            match status {
                Some(status) => drop(new.insert("status".into(), status)),
                None => drop(new.remove("status")),
            }
            // Built-in kinds accept metadata together with the status, custom ones do not.
            if let (Some(metadata), None) = (metadata, &kind.custom) {
                new.insert("metadata".into(), metadata);
            }
        }
        WrittenPart::Main | WrittenPart::Whole => {}
    }
    let null = Value::Null;
    let before = old.get("metadata").unwrap_or(&null);
    if let Some(metadata) = new.get_mut("metadata").and_then(Value::as_object_mut) {
        for ours in
            ["name", "namespace", "uid", "creationTimestamp", "generateName", "generation", "resourceVersion"]
        {
            match &before[ours] {
                Value::Null => drop(metadata.remove(ours)),
                value => drop(metadata.insert(ours.into(), value.clone())),
            }
        }
        if part != WrittenPart::Whole {
            for ours in ["deletionTimestamp", "deletionGracePeriodSeconds"] {
                match &before[ours] {
                    Value::Null => drop(metadata.remove(ours)),
                    value => drop(metadata.insert(ours.into(), value.clone())),
                }
            }
        }
        // A body without entries keeps the existing ones.
        if !metadata.get("managedFields").is_some_and(Value::is_array) && before["managedFields"].is_array() {
            metadata.insert("managedFields".into(), before["managedFields"].clone());
        }
        tidy_metadata(metadata);
    }
    let uid = before["uid"].as_str().unwrap_or_default().to_owned();
    defaults::apply(kind, &mut new, &uid);
    count_generation(kind, old, &mut new);
    new
}

fn count_generation(kind: &ServedKind, old: &Map<String, Value>, new: &mut Map<String, Value>) {
    if !(kind.generation || kind.custom.is_some()) {
        return;
    }
    // A custom kind without a status subresource counts changes of its status like all others.
    let apart =
        |key: &str| key == "metadata" || (key == "status" && (kind.has_status() || kind.custom.is_none()));
    let keys: std::collections::BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let differs = keys.into_iter().any(|k| !apart(k) && old.get(k) != new.get(k));
    let begins_deletion =
        old["metadata"]["deletionTimestamp"].is_null() && !new["metadata"]["deletionTimestamp"].is_null();
    if differs || begins_deletion {
        let generation = old["metadata"]["generation"].as_i64().unwrap_or(0) + 1;
        new["metadata"]["generation"] = generation.into();
    }
}

fn same_content(old: &Map<String, Value>, new: &Map<String, Value>) -> bool {
    old == new
}

fn is_finished(object: &Map<String, Value>) -> bool {
    let metadata = &object["metadata"];
    let held = metadata["finalizers"].as_array().is_some_and(|f| !f.is_empty());
    let namespace = object["kind"] == "Namespace" && object["apiVersion"] == "v1";
    !metadata["deletionTimestamp"].is_null() && !held && !namespace
}
