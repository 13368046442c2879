//! Handles subresources with their own endpoints, beside `status`: tokens, bindings, evictions, scales.

use axum::body::Body;
use http::{Response, header};
use serde_json::{Value, json};

use crate::apiserver::cluster::place::ResourcePlace;
use crate::apiserver::cluster::shared::SharedCluster;
use crate::apiserver::kinds::ServedKind;
use crate::apiserver::objects::delete::{self, DeleteOptions};
use crate::apiserver::objects::write::{self, WrittenPart};
use crate::apiserver::objects::{reviews, show};
use crate::apiserver::wire::error::ApiError;
use crate::apiserver::wire::incoming::IncomingRequest;
use crate::apiserver::wire::patch::{self, PatchType};
use crate::apiserver::wire::query::QueryParameters;
use crate::apiserver::wire::respond;

pub fn handle(
    shared: &SharedCluster,
    request: &IncomingRequest,
    place: &ResourcePlace,
    body: &Value,
) -> Result<Response<Body>, ApiError> {
    let name = &request.path.name;
    match (request.path.subresource.as_str(), request.verb()) {
        ("token", "create") => {
            Ok(respond::json(201, reviews::token_request(shared, place, name, body)?.to_string()))
        }
        ("binding", "create") => bind(shared, place, name, body),
        ("eviction", "create") => {
            let options = DeleteOptions::parse(&QueryParameters::default(), &body["deleteOptions"])?;
            delete::delete(shared, place, name, &options)?;
            Ok(success(201))
        }
        ("scale", verb @ ("get" | "update" | "patch")) => scale(shared, request, place, verb, body),
        ("finalize", "update") => finalize(shared, request, place, body),
        ("resize" | "ephemeralcontainers", "get") => {
            show(request, place, 200, &write::WriteOutcome::Stored(place.get(shared, name)?))
        }
        // No kubelet exists for logs, exec and the like.
        _ => Err(ApiError::no_such_resource()),
    }
}

fn success(code: u16) -> Response<Body> {
    respond::json(
        code,
        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": code})
            .to_string(),
    )
}

/// Assigns a Pod to a node.
pub fn bind(
    shared: &SharedCluster,
    place: &ResourcePlace,
    name: &str,
    body: &Value,
) -> Result<Response<Body>, ApiError> {
    let node = body["target"]["name"].as_str().filter(|n| !n.is_empty()).ok_or_else(|| {
        ApiError::invalid(
            &place.kind,
            name,
            &[crate::apiserver::wire::error::FieldCause::required("target.name", "")],
        )
    })?;
    let pod = place.get(shared, name)?;
    if let Some(bound) = pod.field("spec.nodeName").filter(|n| !n.is_empty()) {
        let why = format!("pod {name} is already assigned to node \"{bound}\"");
        return Err(ApiError::conflict(&place.kind, name, &why));
    }
    write::change(shared, place, name, WrittenPart::Whole, false, &|pod| {
        let mut pod = pod.clone();
        pod["spec"]["nodeName"] = node.into();
        Ok(pod)
    })?;
    Ok(success(201))
}

/// Changes `spec.finalizers`, which hold a namespace in addition to its ordinary finalizers.
fn finalize(
    shared: &SharedCluster,
    request: &IncomingRequest,
    place: &ResourcePlace,
    body: &Value,
) -> Result<Response<Body>, ApiError> {
    let outcome =
        write::change(shared, place, &request.path.name, WrittenPart::Whole, false, &|namespace| {
            let mut namespace = namespace.clone();
            namespace["spec"]["finalizers"] = body["spec"]["finalizers"].clone();
            Ok(namespace)
        })?;
    show(request, place, 200, &outcome)
}

fn paths(kind: &ServedKind) -> (String, String) {
    let pointer = |path: &str| path.replace('.', "/");
    match kind.custom.as_ref().and_then(|c| c.scale.as_ref()) {
        Some((spec, status)) => (pointer(spec), pointer(status)),
        None => ("/spec/replicas".to_owned(), "/status/replicas".to_owned()),
    }
}

fn scale(
    shared: &SharedCluster,
    request: &IncomingRequest,
    place: &ResourcePlace,
    verb: &str,
    body: &Value,
) -> Result<Response<Body>, ApiError> {
    let name = &request.path.name;
    let (wanted, _) = paths(&place.kind);
    if verb == "get" {
        let object = place.get(shared, name)?.to_value(&place.kind);
        return Ok(respond::json(200, shown(&place.kind, &object).to_string()));
    }
    let how = PatchType::of(request.header(header::CONTENT_TYPE).unwrap_or_default());
    let dry = request.query.dry_run()?;
    let outcome = write::change(shared, place, name, WrittenPart::Main, dry, &|old| {
        let mut scale = shown(&place.kind, old);
        match (verb, how) {
            ("update", _) => scale = body.clone(),
            (_, Some(PatchType::Json)) => {
                scale = patch::json_patch(&scale, body).map_err(|why| ApiError::patch_rejected(&why))?;
            }
            (_, Some(_)) => patch::merge(&mut scale, body),
            (_, None) => return Err(ApiError::unsupported_patch()),
        }
        let mut new = old.clone();
        new["metadata"]["resourceVersion"] = scale["metadata"]["resourceVersion"].clone();
        if let Some(place) = new.pointer_mut(&wanted) {
            *place = scale["spec"]["replicas"].clone();
        }
        Ok(new)
    })?;
    let object = match outcome {
        write::WriteOutcome::Stored(record) => record.to_value(&place.kind),
        write::WriteOutcome::Dry(value) => value,
    };
    Ok(respond::json(200, shown(&place.kind, &object).to_string()))
}

fn shown(kind: &ServedKind, object: &Value) -> Value {
    let (wanted, is) = paths(kind);
    let number = |pointer: &str| object.pointer(pointer).and_then(Value::as_i64).unwrap_or(0);
    let metadata = &object["metadata"];
    json!({
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata["uid"],
            "resourceVersion": metadata["resourceVersion"],
            "creationTimestamp": metadata["creationTimestamp"],
        },
        "spec": {"replicas": number(&wanted)},
        "status": {"replicas": number(&is)},
    })
}
