//! Lists the deliberate differences between the simulator and a real server, with their reasons.

/// A difference, and its reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KnownDifference {
    pub what: &'static str,
    pub why: &'static str,
}

const fn difference(what: &'static str, why: &'static str) -> KnownDifference {
    KnownDifference { what, why }
}

/// The list that the conformance tests and the documentation show.
pub const DIFFERENCES: &[KnownDifference] = &[
    difference(
        "metadata.managedFields names the outer fields alone for creations, updates and patches; conflicts between \
         managers are never raised",
        "all fields double the size of an object, and who wrote last is all that is read here; an apply still removes \
         what its manager no longer applies",
    ),
    difference(
        "no controllers run: the Job controller, the scheduler and the kubelet are the workload's to play",
        "the playground drives objects through lives that a real cluster would need hours and nodes for",
    ),
    difference(
        "a Pod is deleted at once unless a finalizer holds it, whatever its grace period",
        "there is no kubelet that could confirm the end of its containers",
    ),
    difference(
        "what a deleted object owned goes before the request is answered, what was in a namespace within a second or two",
        "tests need no waiting, and the versions written are the same",
    ),
    difference(
        "the Pods of a deleted Job lose the finalizer batch.kubernetes.io/job-tracking with it",
        "the Job controller removes it in a real cluster",
    ),
    difference(
        "a new CustomResourceDefinition is established in its first version; custom objects are not validated, \
         pruned or defaulted by its schema, nor converted between versions",
        "the project watches custom objects, it does not define any",
    ),
    difference(
        "the objects of a CustomResourceDefinition are gone before its deletion is answered, whatever their finalizers",
        "tests need no waiting; the versions are written in the order of a real server: the mark, the objects, the end",
    ),
    difference(
        "unknown fields of built-in kinds are kept, and fieldValidation has no effect; types of fields are not checked",
        "there are no schemas: objects are documents",
    ),
    difference(
        "protobuf is accepted for what kubectl's own commands create (else 415), and never sent; answers are never \
         compressed",
        "JSON is what every client can speak",
    ),
    difference(
        "OpenAPI documents carry operations without schemas, and /openapi/v2 is 404",
        "it is what kubectl needs to validate nothing and send everything",
    ),
    difference(
        "columns of tables have descriptions of their own, and fewer wide columns",
        "kubectl does not show descriptions",
    ),
    difference(
        "tokens of service accounts are opaque, and live in memory or in the store's file",
        "nobody but this server verifies them",
    ),
    difference(
        "roles may be written that grant more than their writer has; aggregated cluster roles are not filled",
        "the server is for tests on loopback",
    ),
    difference(
        "a server's watch cache is as new as the store unless it is held back; compaction empties it too, unless \
         told otherwise",
        "tests say when a server is stale, and one call makes old versions expire in both forms",
    ),
    difference(
        "the version of lists and bookmarks is the newest of the whole store",
        "a real watch cache may name an older one of its resource; both are right",
    ),
    difference(
        "the subresources attach, exec, log, portforward, proxy, and the watch/ paths of old are 404",
        "there is nothing behind them",
    ),
    difference(
        "a path may begin with /_token/TOKEN/ instead of a header, and kubeconfigs of this server do",
        "it serves plain http, over which kubectl sends no token; `kubectl get --raw` leaves the prefix out and has \
         to be given it where roles are enforced",
    ),
    difference("events.k8s.io is not served; events live in the core group", "one store of events is enough"),
];
