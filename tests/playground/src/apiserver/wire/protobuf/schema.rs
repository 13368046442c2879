//! Numbers and names of fields, from the `generated.proto` files of Kubernetes, as far as commands send them.

/// How a field is encoded, and what it becomes.
pub enum FieldType {
    Text,
    Texts,
    /// Written only if it is set, so zero is kept.
    Number,
    Flag,
    /// A map of strings.
    Map,
    /// A map of bytes, which become base64.
    ByteMap,
    One(&'static [SchemaField]),
    Many(&'static [SchemaField]),
    /// A field that only the server sets.
    Ignored,
}

pub type SchemaField = (u32, &'static str, FieldType);

use FieldType::{ByteMap, Flag, Ignored, Many, Map, Number, One, Text, Texts};

pub const TYPE: &[SchemaField] = &[(1, "apiVersion", Text), (2, "kind", Text)];

/// The fields of a kind. The names of known kinds are unique.
pub fn of(kind: &str) -> Option<&'static [SchemaField]> {
    Some(match kind {
        "ConfigMap" => CONFIG_MAP,
        "Secret" => SECRET,
        "Namespace" | "ServiceAccount" => BARE,
        "Job" => JOB,
        "CronJob" => CRON_JOB,
        "Deployment" => DEPLOYMENT,
        "Role" | "ClusterRole" => ROLE,
        "RoleBinding" | "ClusterRoleBinding" => BINDING,
        "SelfSubjectAccessReview" => ACCESS_REVIEW,
        "SelfSubjectRulesReview" => RULES_REVIEW,
        "TokenRequest" => TOKEN_REQUEST,
        "DeleteOptions" => DELETE_OPTIONS,
        _ => return None,
    })
}

const METADATA: &[SchemaField] = &[
    (1, "name", Text),
    (2, "generateName", Text),
    (3, "namespace", Text),
    (5, "uid", Text),
    (6, "resourceVersion", Text),
    (7, "generation", Ignored),
    (8, "creationTimestamp", Ignored),
    (11, "labels", Map),
    (12, "annotations", Map),
    (13, "ownerReferences", Many(OWNER)),
    (14, "finalizers", Texts),
];

const OWNER: &[SchemaField] = &[
    (1, "kind", Text),
    (3, "name", Text),
    (4, "uid", Text),
    (5, "apiVersion", Text),
    (6, "controller", Flag),
    (7, "blockOwnerDeletion", Flag),
];

const BARE: &[SchemaField] = &[(1, "metadata", One(METADATA)), (2, "spec", Ignored), (3, "status", Ignored)];

const CONFIG_MAP: &[SchemaField] =
    &[(1, "metadata", One(METADATA)), (2, "data", Map), (3, "binaryData", ByteMap), (4, "immutable", Flag)];

const SECRET: &[SchemaField] = &[
    (1, "metadata", One(METADATA)),
    (2, "data", ByteMap),
    (3, "type", Text),
    (4, "stringData", Map),
    (5, "immutable", Flag),
];

const JOB: &[SchemaField] =
    &[(1, "metadata", One(METADATA)), (2, "spec", One(JOB_SPEC)), (3, "status", Ignored)];

const JOB_SPEC: &[SchemaField] = &[
    (1, "parallelism", Number),
    (2, "completions", Number),
    (3, "activeDeadlineSeconds", Number),
    (4, "selector", One(SELECTOR)),
    (5, "manualSelector", Flag),
    (6, "template", One(TEMPLATE)),
    (7, "backoffLimit", Number),
    (8, "ttlSecondsAfterFinished", Number),
    (9, "completionMode", Text),
    (10, "suspend", Flag),
];

const CRON_JOB: &[SchemaField] =
    &[(1, "metadata", One(METADATA)), (2, "spec", One(CRON_JOB_SPEC)), (3, "status", Ignored)];

const CRON_JOB_SPEC: &[SchemaField] = &[
    (1, "schedule", Text),
    (2, "startingDeadlineSeconds", Number),
    (3, "concurrencyPolicy", Text),
    (4, "suspend", Flag),
    (5, "jobTemplate", One(JOB_TEMPLATE)),
    (6, "successfulJobsHistoryLimit", Number),
    (7, "failedJobsHistoryLimit", Number),
    (8, "timeZone", Text),
];

const JOB_TEMPLATE: &[SchemaField] = &[(1, "metadata", One(METADATA)), (2, "spec", One(JOB_SPEC))];

const DEPLOYMENT: &[SchemaField] =
    &[(1, "metadata", One(METADATA)), (2, "spec", One(DEPLOYMENT_SPEC)), (3, "status", Ignored)];

const DEPLOYMENT_SPEC: &[SchemaField] = &[
    (1, "replicas", Number),
    (2, "selector", One(SELECTOR)),
    (3, "template", One(TEMPLATE)),
    (4, "strategy", One(&[(1, "type", Text)])),
    (6, "revisionHistoryLimit", Number),
    (9, "progressDeadlineSeconds", Number),
];

const SELECTOR: &[SchemaField] = &[(1, "matchLabels", Map), (2, "matchExpressions", Many(EXPRESSION))];

const EXPRESSION: &[SchemaField] = &[(1, "key", Text), (2, "operator", Text), (3, "values", Texts)];

const TEMPLATE: &[SchemaField] = &[(1, "metadata", One(METADATA)), (2, "spec", One(POD_SPEC))];

const POD_SPEC: &[SchemaField] = &[
    (2, "containers", Many(CONTAINER)),
    (3, "restartPolicy", Text),
    (4, "terminationGracePeriodSeconds", Number),
    (5, "activeDeadlineSeconds", Number),
    (6, "dnsPolicy", Text),
    (7, "nodeSelector", Map),
    (8, "serviceAccountName", Text),
    (9, "serviceAccount", Text),
    (10, "nodeName", Text),
    // A server sets this field, and `create job --from` sends it back.
    (14, "securityContext", One(&[])),
    (19, "schedulerName", Text),
    (20, "initContainers", Many(CONTAINER)),
];

const CONTAINER: &[SchemaField] = &[
    (1, "name", Text),
    (2, "image", Text),
    (3, "command", Texts),
    (4, "args", Texts),
    (5, "workingDir", Text),
    (6, "ports", Many(PORT)),
    (7, "env", Many(&[(1, "name", Text), (2, "value", Text)])),
    (13, "terminationMessagePath", Text),
    (14, "imagePullPolicy", Text),
    (20, "terminationMessagePolicy", Text),
];

const PORT: &[SchemaField] = &[(1, "name", Text), (3, "containerPort", Number), (4, "protocol", Text)];

const ROLE: &[SchemaField] = &[(1, "metadata", One(METADATA)), (2, "rules", Many(RULE))];

const RULE: &[SchemaField] = &[
    (1, "verbs", Texts),
    (2, "apiGroups", Texts),
    (3, "resources", Texts),
    (4, "resourceNames", Texts),
    (5, "nonResourceURLs", Texts),
];

const BINDING: &[SchemaField] = &[
    (1, "metadata", One(METADATA)),
    (
        2,
        "subjects",
        Many(&[(1, "kind", Text), (2, "apiGroup", Text), (3, "name", Text), (4, "namespace", Text)]),
    ),
    (3, "roleRef", One(&[(1, "apiGroup", Text), (2, "kind", Text), (3, "name", Text)])),
];

const ACCESS_REVIEW: &[SchemaField] =
    &[(1, "metadata", One(METADATA)), (2, "spec", One(ACCESS_SPEC)), (3, "status", Ignored)];

const ACCESS_SPEC: &[SchemaField] = &[
    (1, "resourceAttributes", One(ATTRIBUTES)),
    (2, "nonResourceAttributes", One(&[(1, "path", Text), (2, "verb", Text)])),
];

const ATTRIBUTES: &[SchemaField] = &[
    (1, "namespace", Text),
    (2, "verb", Text),
    (3, "group", Text),
    (4, "version", Text),
    (5, "resource", Text),
    (6, "subresource", Text),
    (7, "name", Text),
];

const RULES_REVIEW: &[SchemaField] =
    &[(1, "metadata", One(METADATA)), (2, "spec", One(&[(1, "namespace", Text)])), (3, "status", Ignored)];

const TOKEN_REQUEST: &[SchemaField] =
    &[(1, "metadata", One(METADATA)), (2, "spec", One(TOKEN_SPEC)), (3, "status", Ignored)];

const TOKEN_SPEC: &[SchemaField] = &[(1, "audiences", Texts), (4, "expirationSeconds", Number)];

const DELETE_OPTIONS: &[SchemaField] = &[
    (1, "gracePeriodSeconds", Number),
    (2, "preconditions", One(&[(1, "uid", Text), (2, "resourceVersion", Text)])),
    (3, "orphanDependents", Flag),
    (4, "propagationPolicy", Text),
    (5, "dryRun", Texts),
];
