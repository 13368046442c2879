//! Fills in the defaults of the real server, and normalizes objects as it does.
//!
//! It knows the kinds that this project uses: Jobs, Pods and their controllers, configuration, rights. Other
//! kinds stay unchanged.

use serde_json::{Map, Value, json};

use crate::apiserver::kinds::ServedKind;
use crate::apiserver::values::base64;

type Object = Map<String, Value>;

/// Normalizes an object before it is created or changed.
pub fn apply(kind: &ServedKind, object: &mut Object, uid: &str) {
    if kind.custom.is_some() {
        return;
    }
    for (key, value) in object.iter_mut().filter(|(key, _)| *key != "status") {
        let _ = key;
        drop_nulls(value);
    }
    match (kind.group.as_ref(), kind.kind.as_ref()) {
        ("", "ConfigMap") => drop_empty(object, &["data", "binaryData"]),
        ("", "Secret") => secret(object),
        ("", "Namespace") => namespace(object),
        ("", "Pod") => pod(object),
        ("", "Service") => service(object),
        ("", "PersistentVolumeClaim") => claim(object),
        ("apps", "Deployment") => deployment(object),
        ("apps", "StatefulSet" | "ReplicaSet" | "DaemonSet") => template_of(object, &["spec", "template"]),
        ("batch", "Job") => job(object, uid),
        ("batch", "CronJob") => cron_job(object),
        ("rbac.authorization.k8s.io", _) => rights(object),
        _ => {}
    }
}

/// The initial status of an object of the kind.
pub fn initial_status(kind: &ServedKind, object: &Object) -> Option<Value> {
    match (kind.group.as_ref(), kind.kind.as_ref()) {
        _ if kind.custom.is_some() || !kind.has_status() => None,
        ("", "Pod") => Some(json!({"phase": "Pending", "qosClass": quality(object)})),
        ("", "Namespace") => Some(json!({"phase": "Active"})),
        ("", "PersistentVolumeClaim") => Some(json!({"phase": "Pending"})),
        ("", "Service") => Some(json!({"loadBalancer": {}})),
        _ => Some(json!({})),
    }
}

fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, v| !v.is_null());
            map.values_mut().for_each(drop_nulls);
        }
        Value::Array(list) => list.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

/// Removes empty maps and lists.
pub fn drop_empty(object: &mut Object, keys: &[&str]) {
    for key in keys {
        let empty = match object.get(*key) {
            Some(Value::Object(map)) => map.is_empty(),
            Some(Value::Array(list)) => list.is_empty(),
            Some(Value::Null) => true,
            _ => false,
        };
        if empty {
            object.remove(*key);
        }
    }
}

fn set(object: &mut Object, key: &str, value: impl Into<Value>) {
    if object.get(key).is_none_or(Value::is_null) {
        object.insert(key.to_owned(), value.into());
    }
}

/// The map at `key`, created if it is missing; `None` if the value is something else.
fn map_at<'a>(object: &'a mut Object, key: &str) -> Option<&'a mut Object> {
    set(object, key, json!({}));
    object.get_mut(key)?.as_object_mut()
}

fn each<'a>(object: &'a mut Object, key: &str) -> impl Iterator<Item = &'a mut Object> {
    object.get_mut(key).and_then(Value::as_array_mut).into_iter().flatten().filter_map(Value::as_object_mut)
}

fn secret(object: &mut Object) {
    if let Some(Value::Object(plain)) = object.remove("stringData")
        && let Some(data) = map_at(object, "data")
    {
        for (key, value) in plain {
            let encoded = base64::encode(value.as_str().unwrap_or_default().as_bytes());
            data.insert(key, encoded.into());
        }
    }
    drop_empty(object, &["data"]);
    set(object, "type", "Opaque");
}

fn namespace(object: &mut Object) {
    let Some(metadata) = map_at(object, "metadata") else { return };
    let name = metadata.get("name").cloned().unwrap_or_default();
    if let Some(labels) = map_at(metadata, "labels") {
        labels.insert("kubernetes.io/metadata.name".into(), name);
    }
    if let Some(spec) = map_at(object, "spec") {
        set(spec, "finalizers", json!(["kubernetes"]));
    }
}

fn pod(object: &mut Object) {
    if let Some(spec) = map_at(object, "spec") {
        pod_spec(spec);
        if let Some(tolerations) = map_list(spec, "tolerations") {
            for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
                if !tolerations.iter().any(|t| t["key"] == key) {
                    tolerations.push(json!({
                        "key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300,
                    }));
                }
            }
        }
        set(spec, "priority", 0);
        set(spec, "enableServiceLinks", true);
        set(spec, "preemptionPolicy", "PreemptLowerPriority");
    }
    if let Some(status) = object.get_mut("status").and_then(Value::as_object_mut) {
        pod_status(status);
    }
}

fn map_list<'a>(object: &'a mut Object, key: &str) -> Option<&'a mut Vec<Value>> {
    set(object, key, json!([]));
    object.get_mut(key)?.as_array_mut()
}

/// Adds times and states that the real types always write.
fn pod_status(status: &mut Object) {
    for condition in each(status, "conditions") {
        for time in ["lastProbeTime", "lastTransitionTime"] {
            set(condition, time, Value::Null);
        }
    }
    for list in ["containerStatuses", "initContainerStatuses"] {
        for container in each(status, list) {
            for (key, value) in [
                ("state", json!({})),
                ("lastState", json!({})),
                ("ready", json!(false)),
                ("restartCount", json!(0)),
                ("image", json!("")),
                ("imageID", json!("")),
            ] {
                set(container, key, value);
            }
            for state in ["state", "lastState"] {
                let Some(state) = container.get_mut(state).and_then(Value::as_object_mut) else { continue };
                if let Some(running) = state.get_mut("running").and_then(Value::as_object_mut) {
                    set(running, "startedAt", Value::Null);
                }
                if let Some(terminated) = state.get_mut("terminated").and_then(Value::as_object_mut) {
                    set(terminated, "exitCode", 0);
                    set(terminated, "startedAt", Value::Null);
                    set(terminated, "finishedAt", Value::Null);
                }
            }
        }
    }
}

fn quality(object: &Object) -> &'static str {
    let empty = Vec::new();
    let containers = object.get("spec").and_then(|s| s["containers"].as_array()).unwrap_or(&empty);
    let amounts = |c: &Value, what: &str| c["resources"][what].as_object().cloned().unwrap_or_default();
    let full = |m: &Object| m.contains_key("cpu") && m.contains_key("memory");
    if containers.iter().all(|c| amounts(c, "requests").is_empty() && amounts(c, "limits").is_empty()) {
        "BestEffort"
    } else if containers.iter().all(|c| {
        let (limits, requests) = (amounts(c, "limits"), amounts(c, "requests"));
        full(&limits) && requests.iter().all(|(k, v)| limits.get(k) == Some(v))
    }) {
        "Guaranteed"
    } else {
        "Burstable"
    }
}

fn template_of(object: &mut Object, path: &[&str]) {
    let mut place = Some(object);
    for step in path {
        place = place.and_then(|p| p.get_mut(*step)).and_then(Value::as_object_mut);
    }
    let Some(template) = place else { return };
    set(template, "metadata", json!({}));
    if let Some(spec) = map_at(template, "spec") {
        pod_spec(spec);
    }
}

fn pod_spec(spec: &mut Object) {
    for list in ["containers", "initContainers"] {
        each(spec, list).for_each(container);
    }
    for volume in each(spec, "volumes") {
        for source in ["configMap", "secret", "projected", "downwardAPI"] {
            if let Some(source) = volume.get_mut(source).and_then(Value::as_object_mut) {
                set(source, "defaultMode", 420);
            }
        }
    }
    set(spec, "restartPolicy", "Always");
    set(spec, "terminationGracePeriodSeconds", 30);
    set(spec, "dnsPolicy", "ClusterFirst");
    set(spec, "securityContext", json!({}));
    set(spec, "schedulerName", "default-scheduler");
    if let Some(account) = spec.get("serviceAccountName").filter(|a| !a.is_null()).cloned() {
        spec.insert("serviceAccount".to_owned(), account);
    }
}

fn container(container: &mut Object) {
    let image = container.get("image").and_then(Value::as_str).unwrap_or_default();
    let name = image.rsplit('/').next().unwrap_or_default();
    let moving = !image.contains('@') && (name.ends_with(":latest") || !name.contains(':'));
    let policy = if moving { "Always" } else { "IfNotPresent" };
    set(container, "imagePullPolicy", policy);
    set(container, "resources", json!({}));
    set(container, "terminationMessagePath", "/dev/termination-log");
    set(container, "terminationMessagePolicy", "File");
    for port in each(container, "ports") {
        set(port, "protocol", "TCP");
    }
    for env in each(container, "env") {
        if let Some(reference) =
            env.get_mut("valueFrom").and_then(|v| v.get_mut("fieldRef")).and_then(Value::as_object_mut)
        {
            set(reference, "apiVersion", "v1");
        }
    }
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        let Some(probe) = container.get_mut(probe).and_then(Value::as_object_mut) else { continue };
        for (key, value) in
            [("timeoutSeconds", 1), ("periodSeconds", 10), ("successThreshold", 1), ("failureThreshold", 3)]
        {
            set(probe, key, value);
        }
        if let Some(get) = probe.get_mut("httpGet").and_then(Value::as_object_mut) {
            set(get, "path", "/");
            set(get, "scheme", "HTTP");
        }
    }
}

fn service(object: &mut Object) {
    let Some(spec) = map_at(object, "spec") else { return };
    set(spec, "type", "ClusterIP");
    set(spec, "sessionAffinity", "None");
    set(spec, "internalTrafficPolicy", "Cluster");
    set(spec, "ipFamilyPolicy", "SingleStack");
    for port in each(spec, "ports") {
        set(port, "protocol", "TCP");
        if let Some(number) = port.get("port").cloned() {
            set(port, "targetPort", number);
        }
    }
}

fn claim(object: &mut Object) {
    if let Some(spec) = map_at(object, "spec") {
        set(spec, "volumeMode", "Filesystem");
    }
}

fn deployment(object: &mut Object) {
    template_of(object, &["spec", "template"]);
    let Some(spec) = map_at(object, "spec") else { return };
    set(spec, "replicas", 1);
    set(spec, "revisionHistoryLimit", 10);
    set(spec, "progressDeadlineSeconds", 600);
    let Some(strategy) = map_at(spec, "strategy") else { return };
    set(strategy, "type", "RollingUpdate");
    if strategy["type"] == "RollingUpdate"
        && let Some(rolling) = map_at(strategy, "rollingUpdate")
    {
        set(rolling, "maxUnavailable", "25%");
        set(rolling, "maxSurge", "25%");
    }
}

fn job(object: &mut Object, uid: &str) {
    template_of(object, &["spec", "template"]);
    let name = object["metadata"]["name"].clone();
    let Some(spec) = map_at(object, "spec") else { return };
    job_spec(spec);
    let manual = spec["manualSelector"] == json!(true);
    let labels = spec
        .get_mut("template")
        .and_then(Value::as_object_mut)
        .and_then(|t| map_at(t, "metadata"))
        .and_then(|m| map_at(m, "labels"));
    let mut inherited = None;
    if let Some(labels) = labels {
        if !manual {
            for key in ["batch.kubernetes.io/controller-uid", "controller-uid"] {
                labels.insert(key.to_owned(), uid.into());
            }
            for key in ["batch.kubernetes.io/job-name", "job-name"] {
                labels.insert(key.to_owned(), name.clone());
            }
        }
        inherited = Some(Value::Object(labels.clone()));
    }
    if !manual {
        set(spec, "selector", json!({"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}));
    }
    if let (Some(labels), Some(metadata)) = (inherited, map_at(object, "metadata")) {
        set(metadata, "labels", labels);
    }
}

fn job_spec(spec: &mut Object) {
    if !spec.contains_key("completions") && !spec.contains_key("parallelism") {
        set(spec, "completions", 1);
    }
    set(spec, "parallelism", 1);
    let limit = if spec.contains_key("backoffLimitPerIndex") { i64::from(i32::MAX) } else { 6 };
    set(spec, "backoffLimit", limit);
    set(spec, "completionMode", "NonIndexed");
    set(spec, "manualSelector", false);
    set(spec, "suspend", false);
    let replacement = if spec.contains_key("podFailurePolicy") { "Failed" } else { "TerminatingOrFailed" };
    set(spec, "podReplacementPolicy", replacement);
}

fn cron_job(object: &mut Object) {
    template_of(object, &["spec", "jobTemplate", "spec", "template"]);
    let Some(spec) = map_at(object, "spec") else { return };
    set(spec, "concurrencyPolicy", "Allow");
    set(spec, "suspend", false);
    set(spec, "successfulJobsHistoryLimit", 3);
    set(spec, "failedJobsHistoryLimit", 1);
}

fn rights(object: &mut Object) {
    const GROUP: &str = "rbac.authorization.k8s.io";
    if let Some(reference) = object.get_mut("roleRef").and_then(Value::as_object_mut) {
        set(reference, "apiGroup", GROUP);
    }
    for subject in each(object, "subjects") {
        if subject.get("kind").and_then(Value::as_str) != Some("ServiceAccount") {
            set(subject, "apiGroup", GROUP);
        }
    }
}
