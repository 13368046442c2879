//! The table of the built-in kinds.
//!
//! A kind without special behaviour is stored unchanged. In a real server two groups share the storage of
//! events; here only the older group serves them.

use std::borrow::Cow;

use crate::apiserver::kinds::{ALL_VERBS, ServedKind, Subresource};

const NS: bool = true;
const CLUSTER: bool = false;

const STATUS_VERBS: &[&str] = &["get", "patch", "update"];
const CREATE: &[&str] = &["create"];
const GET: &[&str] = &["get"];
const UPDATE: &[&str] = &["update"];
const CONNECT: &[&str] = &["create", "get"];
const PROXY: &[&str] = &["create", "delete", "get", "patch", "update"];
const GET_LIST: &[&str] = &["get", "list"];
/// Namespaces are only deleted one by one.
const NO_COLLECTION: &[&str] = &["create", "delete", "get", "list", "patch", "update", "watch"];

/// Group, version, kind, plural, short names, namespaced, subresources, categories.
type Row = (
    &'static str,
    &'static str,
    &'static str,
    &'static str,
    &'static [&'static str],
    bool,
    &'static [&'static str],
);

const ADMISSION: &str = "admissionregistration.k8s.io";
const APPS: &str = "apps";
const RBAC: &str = "rbac.authorization.k8s.io";
const STORAGE: &str = "storage.k8s.io";

const ROWS: &[Row] = &[
    ("", "v1", "Binding", "bindings", &[], NS, &[]),
    ("", "v1", "ComponentStatus", "componentstatuses", &["cs"], CLUSTER, &[]),
    ("", "v1", "ConfigMap", "configmaps", &["cm"], NS, &[]),
    ("", "v1", "Endpoints", "endpoints", &["ep"], NS, &[]),
    ("", "v1", "Event", "events", &["ev"], NS, &[]),
    ("", "v1", "LimitRange", "limitranges", &["limits"], NS, &[]),
    ("", "v1", "Namespace", "namespaces", &["ns"], CLUSTER, &["finalize", "status"]),
    ("", "v1", "Node", "nodes", &["no"], CLUSTER, &["proxy", "status"]),
    ("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims", &["pvc"], NS, &["status"]),
    ("", "v1", "PersistentVolume", "persistentvolumes", &["pv"], CLUSTER, &["status"]),
    (
        "",
        "v1",
        "Pod",
        "pods",
        &["po"],
        NS,
        &[
            "attach",
            "binding",
            "ephemeralcontainers",
            "eviction",
            "exec",
            "log",
            "portforward",
            "proxy",
            "resize",
            "status",
        ],
    ),
    ("", "v1", "PodTemplate", "podtemplates", &[], NS, &[]),
    ("", "v1", "ReplicationController", "replicationcontrollers", &["rc"], NS, &["scale", "status"]),
    ("", "v1", "ResourceQuota", "resourcequotas", &["quota"], NS, &["status"]),
    ("", "v1", "Secret", "secrets", &[], NS, &[]),
    ("", "v1", "ServiceAccount", "serviceaccounts", &["sa"], NS, &["token"]),
    ("", "v1", "Service", "services", &["svc"], NS, &["proxy", "status"]),
    ("apiregistration.k8s.io", "v1", "APIService", "apiservices", &[], CLUSTER, &["status"]),
    (APPS, "v1", "ControllerRevision", "controllerrevisions", &[], NS, &[]),
    (APPS, "v1", "DaemonSet", "daemonsets", &["ds"], NS, &["status"]),
    (APPS, "v1", "Deployment", "deployments", &["deploy"], NS, &["scale", "status"]),
    (APPS, "v1", "ReplicaSet", "replicasets", &["rs"], NS, &["scale", "status"]),
    (APPS, "v1", "StatefulSet", "statefulsets", &["sts"], NS, &["scale", "status"]),
    ("authentication.k8s.io", "v1", "SelfSubjectReview", "selfsubjectreviews", &[], CLUSTER, &[]),
    ("authentication.k8s.io", "v1", "TokenReview", "tokenreviews", &[], CLUSTER, &[]),
    ("authorization.k8s.io", "v1", "LocalSubjectAccessReview", "localsubjectaccessreviews", &[], NS, &[]),
    ("authorization.k8s.io", "v1", "SelfSubjectAccessReview", "selfsubjectaccessreviews", &[], CLUSTER, &[]),
    ("authorization.k8s.io", "v1", "SelfSubjectRulesReview", "selfsubjectrulesreviews", &[], CLUSTER, &[]),
    ("authorization.k8s.io", "v1", "SubjectAccessReview", "subjectaccessreviews", &[], CLUSTER, &[]),
    ("autoscaling", "v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers", &["hpa"], NS, &["status"]),
    ("batch", "v1", "CronJob", "cronjobs", &["cj"], NS, &["status"]),
    ("batch", "v1", "Job", "jobs", &[], NS, &["status"]),
    (
        "certificates.k8s.io",
        "v1",
        "CertificateSigningRequest",
        "certificatesigningrequests",
        &["csr"],
        CLUSTER,
        &["status"],
    ),
    ("networking.k8s.io", "v1", "IngressClass", "ingressclasses", &[], CLUSTER, &[]),
    ("networking.k8s.io", "v1", "Ingress", "ingresses", &["ing"], NS, &["status"]),
    ("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies", &["netpol"], NS, &[]),
    ("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets", &["pdb"], NS, &["status"]),
    (RBAC, "v1", "ClusterRoleBinding", "clusterrolebindings", &[], CLUSTER, &[]),
    (RBAC, "v1", "ClusterRole", "clusterroles", &[], CLUSTER, &[]),
    (RBAC, "v1", "RoleBinding", "rolebindings", &[], NS, &[]),
    (RBAC, "v1", "Role", "roles", &[], NS, &[]),
    (STORAGE, "v1", "CSIDriver", "csidrivers", &[], CLUSTER, &[]),
    (STORAGE, "v1", "CSINode", "csinodes", &[], CLUSTER, &[]),
    (STORAGE, "v1", "StorageClass", "storageclasses", &["sc"], CLUSTER, &[]),
    (STORAGE, "v1", "VolumeAttachment", "volumeattachments", &[], CLUSTER, &["status"]),
    (ADMISSION, "v1", "MutatingWebhookConfiguration", "mutatingwebhookconfigurations", &[], CLUSTER, &[]),
    (ADMISSION, "v1", "ValidatingAdmissionPolicy", "validatingadmissionpolicies", &[], CLUSTER, &["status"]),
    (
        ADMISSION,
        "v1",
        "ValidatingAdmissionPolicyBinding",
        "validatingadmissionpolicybindings",
        &[],
        CLUSTER,
        &[],
    ),
    (ADMISSION, "v1", "ValidatingWebhookConfiguration", "validatingwebhookconfigurations", &[], CLUSTER, &[]),
    (
        "apiextensions.k8s.io",
        "v1",
        "CustomResourceDefinition",
        "customresourcedefinitions",
        &["crd", "crds"],
        CLUSTER,
        &["status"],
    ),
    ("scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses", &["pc"], CLUSTER, &[]),
    ("coordination.k8s.io", "v1", "Lease", "leases", &[], NS, &[]),
    ("node.k8s.io", "v1", "RuntimeClass", "runtimeclasses", &[], CLUSTER, &[]),
    ("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices", &[], NS, &[]),
    ("flowcontrol.apiserver.k8s.io", "v1", "FlowSchema", "flowschemas", &[], CLUSTER, &["status"]),
    (
        "flowcontrol.apiserver.k8s.io",
        "v1",
        "PriorityLevelConfiguration",
        "prioritylevelconfigurations",
        &[],
        CLUSTER,
        &["status"],
    ),
];

/// Kinds of the category `all`.
const IN_ALL: &[&str] = &[
    "cronjobs",
    "daemonsets",
    "deployments",
    "horizontalpodautoscalers",
    "jobs",
    "pods",
    "replicasets",
    "replicationcontrollers",
    "services",
    "statefulsets",
];

/// Kinds that count the changes of their specification.
const WITH_GENERATION: &[&str] = &[
    "APIService",
    "CertificateSigningRequest",
    "CronJob",
    "CustomResourceDefinition",
    "DaemonSet",
    "Deployment",
    "EndpointSlice",
    "FlowSchema",
    "Ingress",
    "IngressClass",
    "Job",
    "MutatingWebhookConfiguration",
    "NetworkPolicy",
    "Pod",
    "PodDisruptionBudget",
    "PriorityClass",
    "PriorityLevelConfiguration",
    "ReplicaSet",
    "ReplicationController",
    "StatefulSet",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
    "ValidatingWebhookConfiguration",
];

/// The built-in kinds in the order of discovery.
pub fn kinds() -> Vec<ServedKind> {
    ROWS.iter().map(kind_of).collect()
}

fn kind_of(row: &Row) -> ServedKind {
    let (group, version, kind, plural, short, namespaced, subresources) = *row;
    let singular = if kind == "Endpoints" { "endpoints".to_owned() } else { kind.to_lowercase() };
    ServedKind {
        group: Cow::Borrowed(group),
        version: Cow::Borrowed(version),
        kind: Cow::Borrowed(kind),
        plural: Cow::Borrowed(plural),
        singular: Cow::Owned(singular),
        short: short.iter().map(|s| Cow::Borrowed(*s)).collect(),
        categories: categories(group, plural),
        namespaced,
        verbs: verbs(group, kind),
        subresources: subresources.iter().map(|name| subresource(kind, name)).collect(),
        custom: None,
        generation: WITH_GENERATION.contains(&kind),
    }
}

fn categories(group: &str, plural: &str) -> Vec<Cow<'static, str>> {
    let category = match group {
        _ if IN_ALL.contains(&plural) => "all",
        "apiextensions.k8s.io" | "admissionregistration.k8s.io" | "apiregistration.k8s.io" => {
            "api-extensions"
        }
        _ => return Vec::new(),
    };
    vec![Cow::Borrowed(category)]
}

fn verbs(group: &str, kind: &str) -> &'static [&'static str] {
    match (group, kind) {
        ("", "Binding") | ("authentication.k8s.io" | "authorization.k8s.io", _) => CREATE,
        ("", "ComponentStatus") => GET_LIST,
        ("", "Namespace") => NO_COLLECTION,
        _ => ALL_VERBS,
    }
}

fn subresource(kind: &str, name: &'static str) -> Subresource {
    let core = |kind: &'static str| Some((Cow::Borrowed(""), Cow::Borrowed("v1"), Cow::Borrowed(kind)));
    let other = |group: &'static str, kind: &'static str| {
        Some((Cow::Borrowed(group), Cow::Borrowed("v1"), Cow::Borrowed(kind)))
    };
    let (speaks, verbs) = match (kind, name) {
        ("Pod", "attach") => (core("PodAttachOptions"), CONNECT),
        ("Pod", "exec") => (core("PodExecOptions"), CONNECT),
        ("Pod", "portforward") => (core("PodPortForwardOptions"), CONNECT),
        ("Pod", "proxy") => (core("PodProxyOptions"), PROXY),
        ("Node", "proxy") => (core("NodeProxyOptions"), PROXY),
        ("Service", "proxy") => (core("ServiceProxyOptions"), PROXY),
        (_, "binding") => (core("Binding"), CREATE),
        (_, "eviction") => (other("policy", "Eviction"), CREATE),
        (_, "token") => (other("authentication.k8s.io", "TokenRequest"), CREATE),
        (_, "scale") => (other("autoscaling", "Scale"), STATUS_VERBS),
        (_, "log") => (None, GET),
        (_, "finalize") => (None, UPDATE),
        _ => (None, STATUS_VERBS),
    };
    Subresource { name: Cow::Borrowed(name), speaks, verbs }
}
