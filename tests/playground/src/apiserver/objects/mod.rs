//! Answers requests for objects: what each verb does once its target and its user are known.
//!
//! Clients depend on details of a real server: on conflicts, finalizers, owners, defaults, and the wording of
//! errors. Recordings of a real server are replayed against this module, so its behaviour is compared and not
//! remembered. It knows no connection, and applies no fault: `server` does.

pub(crate) mod delete;
mod follow_up;
pub(crate) mod list;
mod managers;
pub(crate) mod render;
pub(crate) mod reviews;
pub(crate) mod subresources;
pub(crate) mod validate;
pub(crate) mod watch;
pub(crate) mod write;

use std::sync::Arc;

use axum::body::Body;
use http::{Response, header};
use serde_json::{Value, json};

use super::store::AsOf;
use crate::apiserver::cluster::front::ServerFront;
use crate::apiserver::cluster::place::ResourcePlace;
use crate::apiserver::cluster::rights::{self, AccessAction};
use crate::apiserver::cluster::shared::SharedCluster;
use crate::apiserver::objects::delete::{DeleteOptions, DeleteResult};
use crate::apiserver::objects::list::ListFilter;
use crate::apiserver::objects::render::{AcceptedForm, RenderView};
use crate::apiserver::objects::write::{WriteOutcome, WrittenPart};
use crate::apiserver::store::record::VersionRecord;
use crate::apiserver::values::ident;
use crate::apiserver::wire::error::{ApiError, FieldCause, deleted_status};
use crate::apiserver::wire::incoming::{IncomingRequest, parse};
use crate::apiserver::wire::patch::{self, PatchType};
use crate::apiserver::wire::query::{ListOptions, WatchOptions, parse_version};
use crate::apiserver::wire::{protobuf, respond};

pub async fn handle(
    front: &Arc<ServerFront>,
    mut request: IncomingRequest,
    body: &[u8],
) -> Result<Response<Body>, ApiError> {
    let shared: &SharedCluster = front;
    let path = &request.path;
    let registry = shared.registry();
    let Some(kind) = registry.find(&path.group, &path.version, &path.resource).cloned() else {
        let known = !registry.resources(&path.group, &path.version).is_empty();
        authorize(shared, &request, None)?;
        return if known {
            Err(ApiError::no_such_resource())
        } else {
            Ok(respond::text(404, "404 page not found\n"))
        };
    };
    authorize(shared, &request, Some(&kind))?;
    let scoped = kind.namespaced;
    if !scoped {
        request.path.namespace.clear();
    }
    let namespace = request.path.namespace.clone();
    let sub = request.path.subresource.clone();
    let known = sub.is_empty() || kind.subresource(&sub).is_some();
    if !known {
        return Err(ApiError::no_such_resource());
    }
    let table = shared.store.table(&kind.group_resource());
    let place = ResourcePlace { kind, table, namespace };
    if scoped && place.namespace.is_empty() && !request.path.name.is_empty() {
        return Err(ApiError::no_such_resource());
    }
    if !sub.is_empty() && sub != "status" {
        let body = decode(&request, &place, body)?;
        return subresources::handle(shared, &request, &place, &body);
    }
    match request.verb() {
        "list" | "watch" if allowed(&place, "list") => read_many(front, &request, place).await,
        "get" if allowed(&place, "get") => {
            let record = get(front, &request, &place).await?;
            show(&request, &place, 200, &WriteOutcome::Stored(record))
        }
        "create" if request.path.name.is_empty() && place.kind.verbs.contains(&"create") => {
            create(shared, &request, &place, body)
        }
        "update" if allowed(&place, "update") && !request.path.name.is_empty() => {
            let (dry, part) = (request.query.dry_run()?, part(&request));
            let body = decode(&request, &place, body)?;
            let outcome =
                write::replace(shared, &place, &request.path.name, part, &manager(&request), dry, &body)?;
            show(&request, &place, 200, &outcome)
        }
        "patch" if allowed(&place, "patch") && !request.path.name.is_empty() => {
            patch_object(shared, &request, &place, body)
        }
        "delete" if allowed(&place, "delete") && sub.is_empty() => delete(shared, &request, &place, body),
        "deletecollection" if allowed(&place, "deletecollection") => {
            delete_collection(shared, &request, &place, body)
        }
        _ => Err(ApiError::method_not_allowed()),
    }
}

/// Reads one object from the store, or from the server's cache if the request names a version.
async fn get(
    front: &ServerFront,
    request: &IncomingRequest,
    place: &ResourcePlace,
) -> Result<Arc<VersionRecord>, ApiError> {
    let name = &request.path.name;
    let version = request.query.get("resourceVersion");
    if version.is_empty() {
        return place.get(front, name);
    }
    let version = parse_version(version)
        .map_err(|why| ApiError::bad_request(format!("invalid resource version: {why}")))?;
    front.wait_for_cached(version).await?;
    let found = front.store.get_at(place.table, &place.key(name), front.cached());
    let (_, found) = found.map_err(|_| ApiError::list_expired())?;
    found.ok_or_else(|| ApiError::not_found(&place.kind, name))
}

fn allowed(place: &ResourcePlace, verb: &str) -> bool {
    place.kind.verbs.contains(&verb)
}

fn manager(request: &IncomingRequest) -> String {
    managers::manager(request.query.get("fieldManager"), request.header(header::USER_AGENT))
}

fn part(request: &IncomingRequest) -> WrittenPart {
    if request.path.subresource == "status" { WrittenPart::Status } else { WrittenPart::Main }
}

fn authorize(
    shared: &SharedCluster,
    request: &IncomingRequest,
    kind: Option<&super::kinds::ServedKind>,
) -> Result<(), ApiError> {
    if !shared.options.enforce_rbac {
        return Ok(());
    }
    let path = &request.path;
    let mut name = path.name.clone();
    if name.is_empty()
        && let Some(only) = request.query.get("fieldSelector").strip_prefix("metadata.name=")
        && matches!(request.verb(), "list" | "watch" | "deletecollection")
        && !only.contains(',')
    {
        // For rights, a list of one object by name is a request for that object.
        name = only.trim_start_matches('=').to_owned();
    }
    let namespace = match path.resource.as_str() {
        // For rights, a namespace is inside of itself.
        "namespaces" if path.group.is_empty() => path.name.clone(),
        _ => path.namespace.clone(),
    };
    let action = AccessAction {
        verb: request.verb().to_owned(),
        path: None,
        group: path.group.clone(),
        resource: path.resource.clone(),
        subresource: path.subresource.clone(),
        name,
        namespace,
    };
    if rights::allowed(shared, &request.user, &action).is_some() {
        return Ok(());
    }
    let why = action.refusal(&request.user);
    Err(match kind {
        Some(kind) => ApiError::forbidden(kind, &path.name, &why),
        None => ApiError::new(403, "Forbidden", format!("{} is forbidden: {why}", path.resource)),
    })
}

/// Decodes the body by its content type.
pub fn decode(request: &IncomingRequest, place: &ResourcePlace, body: &[u8]) -> Result<Value, ApiError> {
    let mut document = document(request, place, body)?;
    for pointer in ["/metadata/resourceVersion", "/preconditions/resourceVersion"] {
        if let Some(Value::String(version)) = document.pointer_mut(pointer) {
            *version = request.versions.decimal(version);
        }
    }
    Ok(document)
}

fn document(request: &IncomingRequest, place: &ResourcePlace, body: &[u8]) -> Result<Value, ApiError> {
    let content_type = request.header(header::CONTENT_TYPE).unwrap_or(respond::JSON);
    match content_type.split(';').next().unwrap_or_default().trim() {
        _ if body.is_empty() => Ok(Value::Null),
        "application/yaml" | "application/apply-patch+yaml" => yaml(body),
        "application/vnd.kubernetes.protobuf" => {
            protobuf::decode(body).map_err(|why| ApiError::unsupported_body(&why))
        }
        media if media.ends_with("json") || media == "*/*" || media.is_empty() => {
            parse(body, &place.kind.kind)
        }
        _ => Err(ApiError::unsupported_body("")),
    }
}

fn yaml(body: &[u8]) -> Result<Value, ApiError> {
    // JSON is also YAML, and kubectl sends it.
    if let Ok(value) = serde_json::from_slice(body) {
        return Ok(value);
    }
    let text =
        std::str::from_utf8(body).map_err(|e| ApiError::bad_request(format!("error decoding YAML: {e}")))?;
    // As in Kubernetes, `y` and `on` are strings.
    let options = serde_saphyr::options! { strict_booleans: true };
    serde_saphyr::from_str_with_options(text, options)
        .map_err(|e| ApiError::bad_request(format!("error decoding YAML: {e}")))
}

fn view(request: &IncomingRequest, place: &ResourcePlace) -> Result<RenderView, ApiError> {
    let form = AcceptedForm::negotiate(request.header(header::ACCEPT))?;
    Ok(RenderView::new(Arc::clone(&place.kind), form, &request.query, request.versions))
}

/// Answers with one object.
pub fn show(
    request: &IncomingRequest,
    place: &ResourcePlace,
    code: u16,
    outcome: &WriteOutcome,
) -> Result<Response<Body>, ApiError> {
    let view = view(request, place)?;
    Ok(respond::json(
        code,
        match outcome {
            WriteOutcome::Stored(record) => view.single(record),
            WriteOutcome::Dry(value) => view.single_value(value),
        },
    ))
}

async fn read_many(
    front: &Arc<ServerFront>,
    request: &IncomingRequest,
    place: ResourcePlace,
) -> Result<Response<Body>, ApiError> {
    let view = view(request, &place)?;
    let filter = ListFilter::parse(&place.kind, &place.namespace, &request.query)?;
    let body = if request.verb() == "watch" && place.kind.is_stored() {
        let mut options = WatchOptions::parse(&request.query)?;
        options.expired_as_status = request.expired_as_status;
        watch::start(front, place.table, view, filter, &options).await?
    } else {
        let options = ListOptions::parse(&request.query)?;
        list::list(front, place.table, view, &filter, &options).await?
    };
    Ok(respond::json(200, body))
}

fn create(
    shared: &SharedCluster,
    request: &IncomingRequest,
    place: &ResourcePlace,
    body: &[u8],
) -> Result<Response<Body>, ApiError> {
    if place.kind.namespaced && place.namespace.is_empty() {
        return Err(ApiError::method_not_allowed());
    }
    let body = decode(request, place, body)?;
    if let Some(answer) = reviews::review(shared, place, &request.user, &body)? {
        return Ok(respond::json(201, answer.to_string()));
    }
    if place.kind.is("", "Binding") {
        let name = body["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let pods = shared.place("", "pods", &place.namespace)?;
        return subresources::bind(shared, &pods, &name, &body);
    }
    let outcome = write::create(shared, place, body, &manager(request), request.query.dry_run()?)?;
    show(request, place, 201, &outcome)
}

fn patch_object(
    shared: &SharedCluster,
    request: &IncomingRequest,
    place: &ResourcePlace,
    body: &[u8],
) -> Result<Response<Body>, ApiError> {
    let content_type = request.header(header::CONTENT_TYPE).unwrap_or_default();
    let how = PatchType::of(content_type).ok_or_else(ApiError::unsupported_patch)?;
    if how == PatchType::Strategic && place.kind.custom.is_some() {
        return Err(ApiError::unsupported_patch());
    }
    let document = decode(request, place, body)?;
    let (name, part, dry) = (&request.path.name, part(request), request.query.dry_run()?);
    if how == PatchType::Apply {
        return apply(shared, request, place, &document);
    }
    let outcome = write::change_by(shared, place, name, part, &manager(request), dry, &|old| {
        let mut new = old.clone();
        let kind = &place.kind.kind;
        match how {
            PatchType::Json => {
                patch::json_patch(&new, &document).map_err(|why| ApiError::patch_rejected(&why))
            }
            PatchType::Merge => {
                patch::merge(&mut new, &document);
                Ok(new)
            }
            _ => patch::strategic(kind, &new, &document).map_err(ApiError::bad_request),
        }
        .and_then(|new| check_patched(place, new))
    })?;
    show(request, place, 200, &outcome)
}

/// Checks fields that the real server parses and refuses in a patch.
fn check_patched(place: &ResourcePlace, new: Value) -> Result<Value, ApiError> {
    if !place.kind.is("coordination.k8s.io", "Lease") {
        return Ok(new);
    }
    for field in ["renewTime", "acquireTime"] {
        let Some(time) = new["spec"][field].as_str().filter(|t| ident::parse_rfc3339(t).is_none()) else {
            continue;
        };
        let why = format!(
            "parsing time {0} as \"2006-01-02T15:04:05.000000Z07:00\": cannot parse {0} as \"2006\"",
            crate::apiserver::wire::error::quoted(time)
        );
        let cause = FieldCause::invalid("patch", &new.to_string(), &why);
        let mut error = ApiError::invalid_kind("", "", "", &[cause]);
        error.message = format!(" {}", error.message.trim_start());
        return Err(error);
    }
    Ok(new)
}

fn apply(
    shared: &SharedCluster,
    request: &IncomingRequest,
    place: &ResourcePlace,
    applied: &Value,
) -> Result<Response<Body>, ApiError> {
    let (name, dry) = (&request.path.name, request.query.dry_run()?);
    let manager = request.query.get("fieldManager");
    if manager.is_empty() {
        let cause = FieldCause::required("fieldManager", "is required for apply patch");
        return Err(ApiError::invalid_kind("meta.k8s.io", "PatchOptions", "", &[cause]));
    }
    let (custom, part) = (place.kind.custom.is_some(), part(request));
    let status = part == WrittenPart::Status;
    let merge = |old: &Value| {
        let merged = patch::apply(old, applied, manager, custom, status);
        merged.map_err(|why| ApiError::bad_request(format!("failed to apply: {why}")))
    };
    for _ in 0..2 {
        if place.get(shared, name).is_err() && !status {
            let blank = json!({
                "apiVersion": place.kind.api_version(), "kind": place.kind.kind, "metadata": {"name": name},
            });
            match write::create(shared, place, merge(&blank)?, "", dry) {
                // Another request created it meanwhile.
                Err(error) if error.reason == "AlreadyExists" => {}
                other => return show(request, place, 201, &other?),
            }
        }
        let outcome = write::change(shared, place, name, part, dry, &merge);
        match outcome {
            Err(error) if error.code == 404 && !status => {}
            other => return show(request, place, 200, &other?),
        }
    }
    Err(ApiError::stale(&place.kind, name))
}

/// Kinds whose deletion answers with the object instead of a status.
const RETURNED: &[&str] = &[
    "PersistentVolume",
    "PersistentVolumeClaim",
    "Pod",
    "PodTemplate",
    "ResourceQuota",
    "Service",
    "ServiceAccount",
];

fn delete(
    shared: &SharedCluster,
    request: &IncomingRequest,
    place: &ResourcePlace,
    body: &[u8],
) -> Result<Response<Body>, ApiError> {
    let options = DeleteOptions::parse(&request.query, &decode(request, place, body)?)?;
    let name = &request.path.name;
    match delete::delete(shared, place, name, &options)? {
        DeleteResult::Waiting(outcome) => show(request, place, 200, &outcome),
        DeleteResult::Gone(record) | DeleteResult::Would(record) => {
            if place.kind.group.is_empty() && RETURNED.contains(&place.kind.kind.as_ref()) {
                return show(request, place, 200, &WriteOutcome::Stored(record));
            }
            let status = deleted_status(&place.kind, name, &record.uid);
            Ok(respond::json(200, status.to_string()))
        }
    }
}

fn delete_collection(
    shared: &SharedCluster,
    request: &IncomingRequest,
    place: &ResourcePlace,
    body: &[u8],
) -> Result<Response<Body>, ApiError> {
    let options = DeleteOptions::parse(&request.query, &decode(request, place, body)?)?;
    let filter = ListFilter::parse(&place.kind, &place.namespace, &request.query)?;
    let page =
        filter.page(shared, place.table, AsOf::Newest, None, None).map_err(|_| ApiError::list_expired())?;
    let view =
        RenderView::new(Arc::clone(&place.kind), AcceptedForm::Whole, &request.query, request.versions);
    let mut items: Vec<Vec<u8>> = Vec::new();
    for record in page.items {
        let at = ResourcePlace { namespace: record.namespace.to_string(), ..place.clone() };
        let options = DeleteOptions { uid: Some(record.uid.to_string()), ..options.clone() };
        match delete::delete(shared, &at, &record.name, &options) {
            Ok(_) => items.push(item(&view, &record)),
            // Another request deleted it meanwhile.
            Err(error) if matches!(error.code, 404 | 409) => {}
            Err(error) => return Err(error),
        }
    }
    let mut out = view.list_head(shared.store.version(), None, None);
    out.extend_from_slice(&items.join(&b','));
    out.extend_from_slice(b"]}");
    Ok(respond::json(200, out))
}

fn item(view: &RenderView, record: &VersionRecord) -> Vec<u8> {
    let mut out = Vec::new();
    view.list_item(&mut out, record);
    out
}
