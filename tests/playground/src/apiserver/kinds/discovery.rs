//! Answers discovery: versions, groups, resources, and enough of OpenAPI for `kubectl` to know what it may
//! send.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::apiserver::kinds::{KindRegistry, ServedKind, Subresource};
use crate::apiserver::values::base64;

/// The media type of aggregated discovery.
pub const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

pub fn version() -> Value {
    json!({
        "major": "1",
        "minor": "36",
        "emulationMajor": "1",
        "emulationMinor": "36",
        "minCompatibilityMajor": "1",
        "minCompatibilityMinor": "35",
        "gitVersion": "v1.36.0+kubewitness-simulator",
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "none",
        "compiler": "rustc",
        "platform": "linux/amd64",
    })
}

/// Whether the header asks for aggregated discovery.
pub fn wants_aggregated(accept: Option<&str>) -> bool {
    accept.is_some_and(|accept| {
        accept.split(',').any(|range| {
            let has = |what: &str| range.split(';').any(|part| part.trim() == what);
            has("g=apidiscovery.k8s.io") && has("v=v2") && has("as=APIGroupDiscoveryList")
        })
    })
}

pub fn api_versions(address: &str) -> Value {
    json!({
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}],
    })
}

pub fn groups(registry: &KindRegistry) -> Value {
    let groups: Vec<Value> = registry
        .groups()
        .iter()
        .filter(|(name, _)| !name.is_empty())
        .map(|(name, versions)| group(name, versions))
        .collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

/// One group; `None` if it is not served.
pub fn one_group(registry: &KindRegistry, name: &str) -> Option<Value> {
    let groups = registry.groups();
    let (name, versions) = groups.iter().find(|(group, _)| group == name)?;
    let mut value = group(name, versions);
    value["kind"] = "APIGroup".into();
    value["apiVersion"] = "v1".into();
    Some(value)
}

fn group(name: &str, versions: &[String]) -> Value {
    let version = |v: &String| json!({"groupVersion": format!("{name}/{v}"), "version": v});
    json!({
        "name": name,
        "versions": versions.iter().map(version).collect::<Vec<_>>(),
        "preferredVersion": versions.first().map(version),
    })
}

/// The resources of a group and version; `None` if it is not served.
pub fn resources(registry: &KindRegistry, group: &str, version: &str) -> Option<Value> {
    let kinds = registry.resources(group, version);
    if kinds.is_empty() {
        return None;
    }
    let mut list = Vec::new();
    for kind in kinds {
        list.push(resource(kind));
        list.extend(kind.subresources.iter().map(|sub| subresource(kind, sub)));
    }
    let group_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    Some(json!({
        "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": list,
    }))
}

fn resource(kind: &ServedKind) -> Value {
    let mut value = json!({
        "name": kind.plural,
        "singularName": kind.singular,
        "namespaced": kind.namespaced,
        "kind": kind.kind,
        "verbs": kind.verbs,
    });
    if !kind.short.is_empty() {
        value["shortNames"] = json!(kind.short);
    }
    if !kind.categories.is_empty() {
        value["categories"] = json!(kind.categories);
    }
    if kind.is_stored() {
        value["storageVersionHash"] = storage_hash(kind).into();
    }
    value
}

fn subresource(kind: &ServedKind, sub: &Subresource) -> Value {
    let mut value = json!({
        "name": format!("{}/{}", kind.plural, sub.name),
        "singularName": "",
        "namespaced": kind.namespaced,
        "kind": sub.speaks.as_ref().map_or(&kind.kind, |(_, _, kind)| kind),
        "verbs": sub.verbs,
    });
    if let Some((group, version, _)) = sub.speaks.as_ref().filter(|(group, _, _)| !group.is_empty()) {
        value["group"] = json!(group);
        value["version"] = json!(version);
    }
    value
}

/// A text that is constant for each kind and differs between kinds, as the real one does (FNV-1a).
fn storage_hash(kind: &ServedKind) -> String {
    let name = format!("{}/{}", kind.api_version(), kind.kind);
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    base64::encode(&hash.to_be_bytes())
}

/// Aggregated discovery of the core group, or of all other groups.
pub fn aggregated(registry: &KindRegistry, core: bool) -> Value {
    let items: Vec<Value> = registry
        .groups()
        .iter()
        .filter(|(name, _)| name.is_empty() == core)
        .map(|(name, versions)| {
            let versions: Vec<Value> = versions
                .iter()
                .map(|version| {
                    let kinds = registry.resources(name, version);
                    let resources: Vec<Value> = kinds.into_iter().map(|k| aggregated_resource(k)).collect();
                    json!({"version": version, "resources": resources, "freshness": "Current"})
                })
                .collect();
            let metadata = if name.is_empty() { json!({}) } else { json!({"name": name}) };
            json!({"metadata": metadata, "versions": versions})
        })
        .collect();
    json!({
        "kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items,
    })
}

fn aggregated_resource(kind: &ServedKind) -> Value {
    let mut value = json!({
        "resource": kind.plural,
        "responseKind": {"group": "", "version": "", "kind": kind.kind},
        "scope": if kind.namespaced { "Namespaced" } else { "Cluster" },
        "singularResource": kind.singular,
        "verbs": kind.verbs,
    });
    if !kind.short.is_empty() {
        value["shortNames"] = json!(kind.short);
    }
    if !kind.categories.is_empty() {
        value["categories"] = json!(kind.categories);
    }
    if !kind.subresources.is_empty() {
        let sub = |sub: &Subresource| {
            let (group, version, name) = match &sub.speaks {
                // The core group's own type is implied.
                Some((group, version, name)) if !group.is_empty() => (group.as_ref(), version.as_ref(), name),
                Some((_, _, name)) => ("", "", name),
                None => ("", "", &kind.kind),
            };
            json!({
                "subresource": sub.name,
                "responseKind": {"group": group, "version": version, "kind": name},
                "verbs": sub.verbs,
            })
        };
        value["subresources"] = kind.subresources.iter().map(sub).collect();
    }
    value
}

/// The index of OpenAPI documents.
pub fn openapi_index(registry: &KindRegistry) -> Value {
    let mut paths = BTreeMap::new();
    for (group, versions) in registry.groups() {
        for version in versions {
            let path =
                if group.is_empty() { format!("api/{version}") } else { format!("apis/{group}/{version}") };
            let url = format!("/openapi/v3/{path}?hash={}", registry.resources(&group, &version).len());
            paths.insert(path, json!({"serverRelativeURL": url}));
        }
    }
    json!({"paths": paths})
}

/// One document: each kind with its writing operations and their parameters, without schemas.
pub fn openapi_document(registry: &KindRegistry, group: &str, version: &str) -> Option<Value> {
    let kinds = registry.resources(group, version);
    if kinds.is_empty() {
        return None;
    }
    let root = if group.is_empty() { format!("/api/{version}") } else { format!("/apis/{group}/{version}") };
    let mut paths = Map::new();
    let mut schemas = Map::new();
    for kind in kinds.into_iter().filter(|k| k.is_stored()) {
        let scope = if kind.namespaced { "/namespaces/{namespace}" } else { "" };
        let collection = format!("{root}{scope}/{}", kind.plural);
        paths.insert(
            format!("{collection}/{{name}}"),
            json!({
                "get": operation(kind, "get", "read"),
                "put": operation(kind, "put", "replace"),
                "patch": operation(kind, "patch", "patch"),
                "delete": operation(kind, "delete", "delete"),
            }),
        );
        paths.insert(
            collection,
            json!({
                "get": operation(kind, "list", "list"),
                "post": operation(kind, "post", "create"),
            }),
        );
        schemas.insert(
            schema_name(kind),
            json!({
                "type": "object",
                "x-kubernetes-preserve-unknown-fields": true,
                "x-kubernetes-group-version-kind": [gvk(kind)],
            }),
        );
    }
    Some(json!({
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": "v1.36.0"},
        "paths": paths,
        "components": {"schemas": schemas},
    }))
}

fn gvk(kind: &ServedKind) -> Value {
    json!({"group": kind.group, "version": kind.version, "kind": kind.kind})
}

fn schema_name(kind: &Arc<ServedKind>) -> String {
    let group = if kind.group.is_empty() { "core" } else { kind.group.as_ref() };
    let reversed: Vec<&str> = group.split('.').rev().collect();
    format!("{}.{}.{}", reversed.join("."), kind.version, kind.kind)
}

fn operation(kind: &ServedKind, action: &str, verb: &str) -> Value {
    let parameter =
        |name: &str| json!({"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": true}});
    let parameters: Vec<Value> = match action {
        "put" | "patch" | "post" => ["dryRun", "fieldManager", "fieldValidation"].map(parameter).to_vec(),
        "delete" => ["dryRun", "gracePeriodSeconds", "propagationPolicy"].map(parameter).to_vec(),
        _ => Vec::new(),
    };
    json!({
        "operationId": format!("{verb}{}{}", kind.version, kind.kind),
        "parameters": parameters,
        "responses": {"200": {"description": "OK"}},
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": gvk(kind),
    })
}
