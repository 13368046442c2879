//! Finds the address of a kind's resource. It knows nothing about objects.

use kubewitness_core::Version;
use kubewitness_core::config::SourceSpec;
use kubewitness_core::state::ObjectRef;
use serde::Deserialize;

use crate::connect::request::{ApiClient, RequestAddress, RequestFailure, UnfitResource};

#[derive(Debug, Deserialize)]
struct ResourceList {
    #[serde(default)]
    resources: Vec<ListedResource>,
}

#[derive(Debug, Deserialize)]
struct ListedResource {
    name: String,
    kind: String,
    namespaced: bool,
    /// The verbs of the resource; `None` if the server doesn't list them.
    verbs: Option<Vec<String>>,
}

/// A source needs all of these verbs.
const NEEDED_VERBS: [&str; 2] = ["list", "watch"];

/// The resource of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SourceResource {
    /// The path of all namespaces, or of the source's one.
    scope: String,
    /// The path up to the group and version.
    root: String,
    plural: String,
    namespaced: bool,
}

impl SourceResource {
    /// The name in RBAC rules, such as `jobs`.
    pub fn plural_name(&self) -> &str {
        &self.plural
    }

    pub fn collection_address(&self) -> RequestAddress {
        RequestAddress::new(&self.scope)
    }

    /// The collection in an object's namespace.
    pub fn collection_of(&self, namespace: &str) -> RequestAddress {
        if self.namespaced && !namespace.is_empty() {
            return RequestAddress::new(&format!("{}/namespaces/{namespace}/{}", self.root, self.plural));
        }
        self.collection_address()
    }

    /// An exact list for the object of this name at one version.
    pub fn of_name_at(&self, object: &ObjectRef, at: &Version) -> RequestAddress {
        self.collection_of(&object.namespace)
            .with_parameter("fieldSelector", &format!("metadata.name={}", field_value(&object.name)))
            .with_parameter("resourceVersion", at.as_str())
            .with_parameter("resourceVersionMatch", "Exact")
            .with_parameter("limit", "1")
    }
}

/// Escapes the characters that have a meaning in a field selector.
fn field_value(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        if matches!(character, '\\' | ',' | '=') {
            escaped.push('\\');
        }
        escaped.push(character);
    }
    escaped
}

/// Splits an `apiVersion`: `batch/v1` → (`batch`, `v1`), `v1` → (``, `v1`).
pub(crate) fn group_version(api_version: &str) -> (&str, &str) {
    api_version.rsplit_once('/').unwrap_or(("", api_version))
}

pub(crate) async fn resolve_resource(
    api: &ApiClient,
    spec: &SourceSpec,
) -> Result<SourceResource, RequestFailure> {
    let (group, version) = group_version(&spec.api_version);
    let root = if group.is_empty() { format!("/api/{version}") } else { format!("/apis/{group}/{version}") };
    let body = api.get(&root).await?;
    let list: ResourceList = serde_json::from_slice(&body)
        .map_err(|error| RequestFailure::Answer(format!("the resources of {}: {error}", spec.api_version)))?;
    choose_resource(&list, spec, root)
}

fn choose_resource(
    list: &ResourceList,
    spec: &SourceSpec,
    root: String,
) -> Result<SourceResource, RequestFailure> {
    // A name with a slash is a subresource, and a kind may have several.
    let found = list.resources.iter().find(|listed| {
        !listed.name.contains('/')
            && listed.kind == spec.kind
            && spec.resource.as_ref().is_none_or(|wanted| *wanted == listed.name)
    });
    let Some(found) = found else {
        let wanted = spec.resource.as_ref().map(|plural| format!(" as `{plural}`")).unwrap_or_default();
        return Err(RequestFailure::Status {
            code: 404,
            reason: "NotFound".to_string(),
            message: format!("the server has no kind `{}` in {}{wanted}", spec.kind, spec.api_version),
            retry_after: None,
            token: None,
        });
    };
    if let Some(verbs) = &found.verbs
        && !NEEDED_VERBS.iter().all(|needed| verbs.iter().any(|verb| verb == needed))
    {
        let (kind, api_version) = (spec.kind.to_string(), spec.api_version.clone());
        return Err(UnfitResource::Unwatchable { kind, api_version, offers: verbs.join(", ") }.into());
    }
    let scope = match (&spec.namespace, found.namespaced) {
        (Some(namespace), true) => format!("{root}/namespaces/{namespace}/{}", found.name),
        (None, _) => format!("{root}/{}", found.name),
        (Some(namespace), false) => {
            let (kind, namespace) = (spec.kind.to_string(), namespace.clone());
            return Err(UnfitResource::WithoutNamespaces { kind, namespace }.into());
        }
    };
    Ok(SourceResource { scope, root, plural: found.name.clone(), namespaced: found.namespaced })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(value: serde_json::Value) -> SourceSpec {
        serde_json::from_value(value).unwrap()
    }

    fn list() -> ResourceList {
        serde_json::from_value(serde_json::json!({"resources": [
            {"name": "jobs/status", "kind": "Job", "namespaced": true},
            {"name": "jobs", "kind": "Job", "namespaced": true},
            {"name": "nodes", "kind": "Node", "namespaced": false},
            {"name": "componentstatuses", "kind": "ComponentStatus", "namespaced": false, "verbs": ["get", "list"]},
            {"name": "pods", "kind": "Pod", "namespaced": true, "verbs": ["get", "list", "watch"]},
        ]}))
        .unwrap()
    }

    fn chosen(value: serde_json::Value) -> Result<SourceResource, RequestFailure> {
        choose_resource(&list(), &spec(value), "/apis/batch/v1".to_string())
    }

    #[test]
    fn a_kind_is_found_by_its_name_and_never_as_a_subresource() {
        let jobs = chosen(serde_json::json!({"name": "j", "apiVersion": "batch/v1", "kind": "Job"})).unwrap();
        assert_eq!(jobs.collection_address().as_str(), "/apis/batch/v1/jobs");
        assert_eq!(jobs.collection_of("ml").as_str(), "/apis/batch/v1/namespaces/ml/jobs");
    }

    #[test]
    fn a_namespace_narrows_the_address() {
        let spec =
            serde_json::json!({"name": "j", "apiVersion": "batch/v1", "kind": "Job", "namespace": "ml"});
        assert_eq!(chosen(spec).unwrap().collection_address().as_str(), "/apis/batch/v1/namespaces/ml/jobs");
    }

    #[test]
    fn a_kind_that_is_not_there_is_named() {
        let missing = chosen(serde_json::json!({"name": "j", "apiVersion": "batch/v1", "kind": "JobSet"}));
        assert_eq!(missing.unwrap_err().status_code(), Some(404));
        let odd =
            serde_json::json!({"name": "n", "apiVersion": "batch/v1", "kind": "Node", "namespace": "ml"});
        assert!(chosen(odd).unwrap_err().to_string().contains("leave out"));
    }

    #[test]
    fn a_kind_that_can_not_be_listed_and_watched_is_refused_by_name() {
        let of = |kind: &str| chosen(serde_json::json!({"name": "s", "apiVersion": "v1", "kind": kind}));
        let error = of("ComponentStatus").unwrap_err().to_string();
        assert_eq!(
            error,
            "the server can't list and watch `ComponentStatus` of v1 (it offers: get, list): remove the source"
        );
        assert!(of("Pod").is_ok());
    }
}
