//! Lists the fields that a selector may use for each kind, beside the name and namespace.

use crate::apiserver::kinds::ServedKind;

/// The field paths of a kind, as selectors write them.
pub fn selectable(kind: &ServedKind) -> Vec<String> {
    if let Some(custom) = &kind.custom {
        return custom.selectable.iter().map(|path| path.trim_start_matches('.').to_owned()).collect();
    }
    let paths: &[&str] = match (kind.group.as_ref(), kind.kind.as_ref()) {
        ("", "Pod") => &[
            "spec.hostNetwork",
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "status.nominatedNodeName",
            "status.phase",
            "status.podIP",
        ],
        ("", "Event") => &[
            "involvedObject.apiVersion",
            "involvedObject.fieldPath",
            "involvedObject.kind",
            "involvedObject.name",
            "involvedObject.namespace",
            "involvedObject.resourceVersion",
            "involvedObject.uid",
            "reason",
            "reportingComponent",
            "source",
            "type",
        ],
        ("", "Secret") => &["type"],
        ("", "Namespace") => &["status.phase"],
        ("", "Node") => &["spec.unschedulable"],
        ("", "Service") => &["spec.clusterIP", "spec.type"],
        ("", "ReplicationController") | ("apps", "ReplicaSet") => &["status.replicas"],
        ("batch", "Job") => &["status.successful"],
        ("certificates.k8s.io", "CertificateSigningRequest") => &["spec.signerName"],
        _ => &[],
    };
    paths.iter().map(|path| (*path).to_owned()).collect()
}

/// The path of a field in the object. Selectors do not always use the same path.
pub fn place(path: &str) -> &str {
    match path {
        "status.successful" => "status.succeeded",
        "source" => "source.component",
        other => other,
    }
}
