//! Validates objects: their names, and for the kinds that this project drives the rules that clients run
//! into.

use serde_json::{Map, Value};

use crate::apiserver::kinds::ServedKind;
use crate::apiserver::wire::error::{ApiError, FieldCause};

const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, \
    '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for \
    validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and \
    must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for \
    validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const IMMUTABLE: &str = "field is immutable";

/// The longest name of an object, and the longest DNS label.
const MAX_NAME: usize = 253;
const MAX_LABEL: usize = 63;

pub fn created(kind: &ServedKind, object: &Map<String, Value>) -> Result<(), ApiError> {
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let mut causes = Vec::new();
    check_name(kind, name, &mut causes);
    check_spec(kind, object, &mut causes);
    finish(kind, name, &causes)
}

pub fn changed(
    kind: &ServedKind,
    old: &Map<String, Value>,
    new: &Map<String, Value>,
) -> Result<(), ApiError> {
    let name = new["metadata"]["name"].as_str().unwrap_or_default();
    let mut causes = Vec::new();
    check_spec(kind, new, &mut causes);
    check_immutable(kind, old, new, &mut causes);
    check_finalizers(old, new, &mut causes);
    finish(kind, name, &causes)
}

fn finish(kind: &ServedKind, name: &str, causes: &[FieldCause]) -> Result<(), ApiError> {
    if causes.is_empty() { Ok(()) } else { Err(ApiError::invalid(kind, name, causes)) }
}

fn check_name(kind: &ServedKind, name: &str, causes: &mut Vec<FieldCause>) {
    let field = "metadata.name";
    if kind.group == "rbac.authorization.k8s.io" {
        // Names of RBAC objects may contain nearly anything that fits into a path.
        if matches!(name, "." | "..") || name.contains(['/', '%']) {
            causes.push(FieldCause::invalid(field, name, "may not contain '/' or '%'"));
        }
        return;
    }
    let label = matches!(kind.kind.as_ref(), "Namespace" | "Service") && kind.group.is_empty();
    let (limit, rule) = if label { (MAX_LABEL, LABEL) } else { (MAX_NAME, SUBDOMAIN) };
    if !is_name(name, label) {
        causes.push(FieldCause::invalid(field, name, rule));
    }
    if name.len() > limit {
        causes.push(FieldCause::invalid(field, name, &format!("must be no more than {limit} characters")));
    }
}

fn is_name(name: &str, label: bool) -> bool {
    let part = |part: &str| {
        let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        !part.is_empty() && part.bytes().all(inner) && !part.starts_with('-') && !part.ends_with('-')
    };
    if label { part(name) } else { name.split('.').all(part) }
}

fn check_spec(kind: &ServedKind, object: &Map<String, Value>, causes: &mut Vec<FieldCause>) {
    let spec = object.get("spec").unwrap_or(&Value::Null);
    match (kind.group.as_ref(), kind.kind.as_ref()) {
        ("", "Pod") => check_containers(spec, "spec", causes),
        ("batch", "Job") => {
            check_containers(&spec["template"]["spec"], "spec.template.spec", causes);
            let policy = spec["template"]["spec"]["restartPolicy"].as_str().unwrap_or_default();
            if !matches!(policy, "Never" | "OnFailure") {
                let known = ["OnFailure", "Never"];
                causes.push(FieldCause::not_supported("spec.template.spec.restartPolicy", policy, &known));
            }
            for field in ["parallelism", "completions", "backoffLimit"] {
                if let Some(n) = spec[field].as_i64().filter(|n| *n < 0) {
                    let why = "must be greater than or equal to 0";
                    causes.push(FieldCause::invalid_raw(&format!("spec.{field}"), &n.to_string(), why));
                }
            }
        }
        ("apps", "Deployment" | "StatefulSet" | "DaemonSet" | "ReplicaSet") => check_workload(spec, causes),
        ("coordination.k8s.io", "Lease") => {
            if let Some(n) = spec["leaseDurationSeconds"].as_i64().filter(|n| *n <= 0) {
                let field = "spec.leaseDurationSeconds";
                causes.push(FieldCause::invalid_raw(field, &n.to_string(), "must be greater than 0"));
            }
        }
        ("rbac.authorization.k8s.io", "RoleBinding" | "ClusterRoleBinding")
            if object.get("roleRef").is_none_or(|r| r["name"].as_str().unwrap_or_default().is_empty()) =>
        {
            causes.push(FieldCause::required("roleRef.name", ""));
        }
        _ => {}
    }
}

fn check_containers(spec: &Value, path: &str, causes: &mut Vec<FieldCause>) {
    let containers = spec["containers"].as_array().map_or(&[][..], Vec::as_slice);
    if containers.is_empty() {
        causes.push(FieldCause::required(&format!("{path}.containers"), ""));
    }
    for (at, container) in containers.iter().enumerate() {
        let name = container["name"].as_str().unwrap_or_default();
        let field = format!("{path}.containers[{at}].name");
        if name.is_empty() {
            causes.push(FieldCause::required(&field, ""));
        } else if !is_name(name, true) {
            causes.push(FieldCause::invalid(&field, name, LABEL));
        }
    }
}

fn check_workload(spec: &Value, causes: &mut Vec<FieldCause>) {
    check_containers(&spec["template"]["spec"], "spec.template.spec", causes);
    let Some(wanted) = spec["selector"]["matchLabels"].as_object() else {
        if spec["selector"]["matchExpressions"].is_null() {
            causes.push(FieldCause::required("spec.selector", ""));
        }
        return;
    };
    let labels = &spec["template"]["metadata"]["labels"];
    if wanted.iter().any(|(key, value)| labels.get(key) != Some(value)) {
        let why = "`selector` does not match template `labels`";
        causes.push(FieldCause::invalid_raw("spec.template.metadata.labels", &labels.to_string(), why));
    }
}

fn check_immutable(
    kind: &ServedKind,
    old: &Map<String, Value>,
    new: &Map<String, Value>,
    causes: &mut Vec<FieldCause>,
) {
    let null = Value::Null;
    let (old_spec, new_spec) = (old.get("spec").unwrap_or(&null), new.get("spec").unwrap_or(&null));
    let mut fixed = |fields: &[&str]| {
        for field in fields.iter().filter(|f| old_spec[**f] != new_spec[**f]) {
            causes.push(FieldCause::invalid_raw(
                &format!("spec.{field}"),
                &new_spec[*field].to_string(),
                IMMUTABLE,
            ));
        }
    };
    match (kind.group.as_ref(), kind.kind.as_ref()) {
        ("batch", "Job") => {
            fixed(&["selector", "completionMode"]);
            // A queue may still change the template of a suspended Job.
            if old_spec["suspend"] != Value::Bool(true) {
                fixed(&["template"]);
            }
            if old_spec["completionMode"] != "Indexed" {
                fixed(&["completions"]);
            }
        }
        ("apps", _) => fixed(&["selector"]),
        ("", "Pod") if mutable_removed(old_spec) != mutable_removed(new_spec) => {
            let why = "pod updates may not change fields other than `spec.containers[*].image`,\
                       `spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only \
                       additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be \
                       set to 1 if it was previously negative)";
            causes.push(FieldCause::forbidden("spec", why));
        }
        ("rbac.authorization.k8s.io", _) if old.get("roleRef") != new.get("roleRef") => {
            let value = new.get("roleRef").unwrap_or(&null).to_string();
            causes.push(FieldCause::invalid_raw("roleRef", &value, "cannot change roleRef"));
        }
        ("", "ConfigMap" | "Secret")
            if old.get("immutable") == Some(&Value::Bool(true))
                && ["data", "binaryData"].iter().any(|field| old.get(*field) != new.get(*field)) =>
        {
            causes.push(FieldCause::forbidden("data", "field is immutable when `immutable` is set"));
        }
        _ => {}
    }
}

/// The specification of a Pod without the fields that may change.
fn mutable_removed(spec: &Value) -> Value {
    let mut spec = spec.clone();
    for list in ["containers", "initContainers"] {
        for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            if let Some(container) = container.as_object_mut() {
                container.remove("image");
                container.remove("imagePullPolicy");
            }
        }
    }
    if let Some(spec) = spec.as_object_mut() {
        for field in
            ["activeDeadlineSeconds", "tolerations", "terminationGracePeriodSeconds", "schedulingGates"]
        {
            spec.remove(field);
        }
    }
    spec
}

fn check_finalizers(old: &Map<String, Value>, new: &Map<String, Value>, causes: &mut Vec<FieldCause>) {
    if old["metadata"]["deletionTimestamp"].is_null() {
        return;
    }
    let list = |o: &Map<String, Value>| o["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
    let before = list(old);
    let added: Vec<String> = list(new)
        .iter()
        .filter(|f| !before.contains(f))
        .map(|f| f.as_str().unwrap_or("").to_owned())
        .collect();
    if !added.is_empty() {
        let why = format!(
            "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
            added.iter().map(|f| crate::apiserver::wire::error::quoted(f)).collect::<Vec<_>>().join(", ")
        );
        causes.push(FieldCause::forbidden("metadata.finalizers", &why));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_dns_subdomains() {
        for good in ["a", "a-b.c", "0x"] {
            assert!(is_name(good, false), "{good}");
        }
        for bad in ["", "A", "a_b", "-a", "a-", "a..b", "Not Valid"] {
            assert!(!is_name(bad, false), "{bad}");
        }
        assert!(!is_name("a.b", true));
    }
}
