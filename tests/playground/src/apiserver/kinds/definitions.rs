//! Custom kinds: adds the kinds of the CustomResourceDefinitions in the store.

use std::borrow::Cow;

use serde_json::{Map, Value, json};

use crate::apiserver::kinds::{ALL_VERBS, CustomColumn, CustomKind, ServedKind, Subresource};
use crate::apiserver::values::ident;

pub const GROUP: &str = "apiextensions.k8s.io";
pub const KIND: &str = "CustomResourceDefinition";

/// The finalizer that holds a definition until its objects are gone.
pub const CLEANUP: &str = "customresourcecleanup.apiextensions.k8s.io";

/// Gives a new definition the status that the real server gives it a moment later.
pub fn established(kind: &ServedKind, object: &mut Map<String, Value>) {
    if !kind.is(GROUP, KIND) {
        return;
    }
    let spec = object.get("spec").cloned().unwrap_or_default();
    let mut names = spec["names"].clone();
    if names["singular"].is_null() {
        names["singular"] = names["kind"].as_str().unwrap_or_default().to_lowercase().into();
    }
    if names["listKind"].is_null() {
        names["listKind"] = format!("{}List", names["kind"].as_str().unwrap_or_default()).into();
    }
    let stored: Vec<Value> =
        versions(&spec).filter(|v| v["storage"] == true).map(|v| v["name"].clone()).collect();
    let condition = |name: &str, reason: &str, message: &str| {
        json!({
            "type": name, "status": "True", "reason": reason, "message": message,
            "lastTransitionTime": ident::now(),
        })
    };
    let status = json!({
        "acceptedNames": names,
        "storedVersions": stored,
        "conditions": [
            condition("NamesAccepted", "NoConflicts", "no conflicts found"),
            condition("Established", "InitialNamesAccepted", "the initial names have been accepted"),
        ],
    });
    object.insert("status".into(), status);
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        let finalizers = metadata.entry("finalizers").or_insert_with(|| json!([]));
        if let Some(finalizers) = finalizers.as_array_mut().filter(|f| !f.contains(&CLEANUP.into())) {
            finalizers.push(CLEANUP.into());
        }
    }
    if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) {
        spec.insert("names".into(), names);
        spec.entry("conversion").or_insert_with(|| json!({"strategy": "None"}));
    }
}

fn versions(spec: &Value) -> impl Iterator<Item = &Value> {
    spec["versions"].as_array().into_iter().flatten()
}

/// The kinds that a definition serves, one for each version, the storage version first.
pub fn kinds(definition: &Value) -> Vec<ServedKind> {
    let spec = &definition["spec"];
    let mut served: Vec<&Value> = versions(spec).filter(|v| v["served"] == true).collect();
    served.sort_by_key(|v| v["storage"] != true);
    served.into_iter().filter_map(|version| kind(definition, spec, version)).collect()
}

fn kind(definition: &Value, spec: &Value, version: &Value) -> Option<ServedKind> {
    let text = |value: &Value| value.as_str().map(|t| Cow::Owned(t.to_owned()));
    let texts = |value: &Value| value.as_array().into_iter().flatten().filter_map(text).collect();
    let names = &spec["names"];
    let mut subresources = Vec::new();
    let wanted = &version["subresources"];
    let mut scale = None;
    if wanted["scale"].is_object() {
        let path = |name: &str| wanted["scale"][name].as_str().unwrap_or_default().to_owned();
        scale = Some((path("specReplicasPath"), path("statusReplicasPath")));
        subresources.push(Subresource {
            name: "scale".into(),
            speaks: Some(("autoscaling".into(), "v1".into(), "Scale".into())),
            verbs: &["get", "patch", "update"],
        });
    }
    if wanted["status"].is_object() {
        subresources.push(Subresource {
            name: "status".into(),
            speaks: None,
            verbs: &["get", "patch", "update"],
        });
    }
    Some(ServedKind {
        group: text(&spec["group"])?,
        version: text(&version["name"])?,
        kind: text(&names["kind"])?,
        plural: text(&names["plural"])?,
        singular: text(&names["singular"]).unwrap_or_default(),
        short: texts(&names["shortNames"]),
        categories: texts(&names["categories"]),
        namespaced: spec["scope"] == "Namespaced",
        verbs: ALL_VERBS,
        subresources,
        custom: Some(CustomKind {
            definition: definition["metadata"]["name"].as_str()?.to_owned(),
            columns: columns(&version["additionalPrinterColumns"]),
            selectable: paths(&version["selectableFields"]),
            scale,
        }),
        generation: true,
    })
}

fn columns(list: &Value) -> Vec<CustomColumn> {
    let column = |c: &Value| {
        Some(CustomColumn {
            name: c["name"].as_str()?.to_owned(),
            kind: c["type"].as_str().unwrap_or("string").to_owned(),
            path: c["jsonPath"].as_str()?.to_owned(),
            priority: c["priority"].as_i64().unwrap_or(0),
        })
    };
    list.as_array().into_iter().flatten().filter_map(column).collect()
}

fn paths(list: &Value) -> Vec<String> {
    let path = |f: &Value| f["jsonPath"].as_str().map(str::to_owned);
    list.as_array().into_iter().flatten().filter_map(path).collect()
}
