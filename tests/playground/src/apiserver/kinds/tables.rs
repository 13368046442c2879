//! The columns in which `kubectl get` shows objects, kind by kind.

use serde_json::{Value, json};

use crate::apiserver::kinds::ServedKind;
use crate::apiserver::values::ident;

/// Name, type, and whether it is only shown with `-o wide`.
type Column = (&'static str, &'static str, bool);

const NAME: Column = ("Name", "string", false);
const AGE: Column = ("Age", "string", false);

const S: &str = "string";
const I: &str = "integer";

/// Group, kind and columns of the kinds that have more columns than name and age.
const COLUMNS: &[(&str, &str, &[Column])] = &[
    ("", "ConfigMap", &[NAME, ("Data", S, false), AGE]),
    ("", "Secret", &[NAME, ("Type", S, false), ("Data", I, false), AGE]),
    ("", "Namespace", &[NAME, ("Status", S, false), AGE]),
    ("", "ServiceAccount", &[NAME, ("Secrets", S, false), AGE]),
    (
        "",
        "Pod",
        &[
            NAME,
            ("Ready", S, false),
            ("Status", S, false),
            ("Restarts", S, false),
            AGE,
            ("IP", S, true),
            ("Node", S, true),
        ],
    ),
    (
        "",
        "Service",
        &[
            NAME,
            ("Type", S, false),
            ("Cluster-IP", S, false),
            ("External-IP", S, false),
            ("Port(s)", S, false),
            AGE,
            ("Selector", S, true),
        ],
    ),
    (
        "",
        "Event",
        &[
            ("Last Seen", S, false),
            ("Type", S, false),
            ("Reason", S, false),
            ("Object", S, false),
            ("Message", S, false),
            ("Name", S, true),
        ],
    ),
    ("", "Node", &[NAME, ("Status", S, false), ("Version", S, false), AGE]),
    (
        "",
        "PersistentVolumeClaim",
        &[
            NAME,
            ("Status", S, false),
            ("Volume", S, false),
            ("Capacity", S, false),
            ("Access Modes", S, false),
            ("StorageClass", S, false),
            AGE,
        ],
    ),
    (
        "apps",
        "Deployment",
        &[
            NAME,
            ("Ready", S, false),
            ("Up-to-date", S, false),
            ("Available", S, false),
            AGE,
            ("Containers", S, true),
            ("Images", S, true),
            ("Selector", S, true),
        ],
    ),
    ("apps", "StatefulSet", &[NAME, ("Ready", S, false), AGE, ("Containers", S, true), ("Images", S, true)]),
    ("apps", "ReplicaSet", &[NAME, ("Desired", I, false), ("Current", I, false), ("Ready", I, false), AGE]),
    (
        "batch",
        "Job",
        &[
            NAME,
            ("Status", S, false),
            ("Completions", S, false),
            ("Duration", S, false),
            AGE,
            ("Containers", S, true),
            ("Images", S, true),
            ("Selector", S, true),
        ],
    ),
    (
        "batch",
        "CronJob",
        &[
            NAME,
            ("Schedule", S, false),
            ("Timezone", S, false),
            ("Suspend", "boolean", false),
            ("Active", I, false),
            ("Last Schedule", S, false),
            AGE,
        ],
    ),
    ("coordination.k8s.io", "Lease", &[NAME, ("Holder", S, false), AGE]),
    ("rbac.authorization.k8s.io", "Role", &[NAME, ("Created At", "date", false)]),
    ("rbac.authorization.k8s.io", "ClusterRole", &[NAME, ("Created At", "date", false)]),
    ("apiextensions.k8s.io", "CustomResourceDefinition", &[NAME, ("Created At", "date", false)]),
    ("rbac.authorization.k8s.io", "RoleBinding", &[NAME, ("Role", S, false), AGE]),
    ("rbac.authorization.k8s.io", "ClusterRoleBinding", &[NAME, ("Role", S, false), AGE]),
];

fn columns(kind: &ServedKind) -> &'static [Column] {
    let found = COLUMNS.iter().find(|(group, name, _)| kind.is(group, name));
    found.map_or(&[NAME, AGE], |(_, _, columns)| columns)
}

/// The columns of the kind, as a table declares them.
pub fn definitions(kind: &ServedKind) -> Value {
    let declare = |name: &str, kind: &str, priority: i64| {
        let format = if name == "Name" { "name" } else { "" };
        json!({
            "name": name, "type": kind, "format": format, "priority": priority,
            "description": format!("{name} of the object."),
        })
    };
    let Some(custom) = kind.custom.as_ref().filter(|c| !c.columns.is_empty()) else {
        return columns(kind)
            .iter()
            .map(|(name, kind, wide)| declare(name, kind, i64::from(*wide)))
            .collect();
    };
    let mut list = vec![declare("Name", "string", 0)];
    list.extend(custom.columns.iter().map(|c| declare(&c.name, &c.kind, c.priority)));
    list.into()
}

/// The cells of one object.
pub fn cells(kind: &ServedKind, object: &Value) -> Vec<Value> {
    if let Some(custom) = kind.custom.as_ref().filter(|c| !c.columns.is_empty()) {
        let mut cells = vec![object["metadata"]["name"].clone()];
        cells.extend(custom.columns.iter().map(|c| custom_cell(&c.kind, &c.path, object)));
        return cells;
    }
    columns(kind).iter().map(|(name, _, _)| cell(kind, name, object)).collect()
}

fn cell(kind: &ServedKind, column: &str, object: &Value) -> Value {
    let (metadata, spec, status) = (&object["metadata"], &object["spec"], &object["status"]);
    match (kind.kind.as_ref(), column) {
        (_, "Name") => metadata["name"].clone(),
        (_, "Age") => age(&metadata["creationTimestamp"]),
        (_, "Created At") => metadata["creationTimestamp"].clone(),
        (_, "Containers") => containers(&spec["template"]["spec"], "name"),
        (_, "Images") => containers(&spec["template"]["spec"], "image"),
        ("Service", "Selector") => labels(&spec["selector"]),
        (_, "Selector") => labels(&spec["selector"]["matchLabels"]),
        ("ConfigMap", _) => (size(&object["data"]) + size(&object["binaryData"])).into(),
        ("Secret", "Type") => object["type"].clone(),
        ("Secret", _) => size(&object["data"]).into(),
        ("ServiceAccount", _) => object["secrets"].as_array().map_or(0, Vec::len).into(),
        ("Namespace" | "PersistentVolumeClaim", "Status") => status["phase"].clone(),
        ("Pod", _) => pod(column, object),
        ("Job", _) => job(column, object),
        ("Event", _) => event(column, object),
        ("Service", _) => service(column, spec),
        ("Lease", _) => spec["holderIdentity"].clone(),
        ("Node", "Status") => if condition(status, "Ready") { "Ready" } else { "NotReady" }.into(),
        ("Node", _) => status["nodeInfo"]["kubeletVersion"].clone(),
        ("PersistentVolumeClaim", "Volume") => spec["volumeName"].clone(),
        ("PersistentVolumeClaim", "Capacity") => status["capacity"]["storage"].clone(),
        ("PersistentVolumeClaim", "Access Modes") => joined(&spec["accessModes"]),
        ("PersistentVolumeClaim", _) => spec["storageClassName"].clone(),
        ("Deployment" | "StatefulSet", "Ready") => {
            format!("{}/{}", count(&status["readyReplicas"]), count(&spec["replicas"])).into()
        }
        ("Deployment", "Up-to-date") => count(&status["updatedReplicas"]).to_string().into(),
        ("Deployment", _) => count(&status["availableReplicas"]).to_string().into(),
        ("ReplicaSet", "Desired") => count(&spec["replicas"]).into(),
        ("ReplicaSet", "Current") => count(&status["replicas"]).into(),
        ("ReplicaSet", _) => count(&status["readyReplicas"]).into(),
        ("CronJob", "Schedule") => spec["schedule"].clone(),
        ("CronJob", "Timezone") => or_none(&spec["timeZone"]),
        ("CronJob", "Suspend") => (spec["suspend"] == true).into(),
        ("CronJob", "Active") => status["active"].as_array().map_or(0, Vec::len).into(),
        ("CronJob", _) => age(&status["lastScheduleTime"]),
        (_, "Role") => {
            let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
            format!("{}/{}", text(&object["roleRef"]["kind"]), text(&object["roleRef"]["name"])).into()
        }
        _ => Value::Null,
    }
}

fn size(map: &Value) -> usize {
    map.as_object().map_or(0, serde_json::Map::len)
}

fn count(value: &Value) -> i64 {
    value.as_i64().unwrap_or(0)
}

fn or_none(value: &Value) -> Value {
    if value.is_null() { "<none>".into() } else { value.clone() }
}

fn age(time: &Value) -> Value {
    match time.as_str().and_then(ident::parse_rfc3339) {
        Some(since) => ident::human_duration(ident::unix_now() - since).into(),
        None => "<unknown>".into(),
    }
}

fn containers(spec: &Value, member: &str) -> Value {
    let list = spec["containers"].as_array().into_iter().flatten();
    list.filter_map(|c| c[member].as_str()).collect::<Vec<_>>().join(",").into()
}

fn joined(list: &Value) -> Value {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).collect::<Vec<_>>().join(",").into()
}

fn labels(map: &Value) -> Value {
    let Some(map) = map.as_object().filter(|m| !m.is_empty()) else { return "<none>".into() };
    let pair = |(key, value): (&String, &Value)| format!("{key}={}", value.as_str().unwrap_or_default());
    map.iter().map(pair).collect::<Vec<_>>().join(",").into()
}

fn condition(status: &Value, kind: &str) -> bool {
    let list = status["conditions"].as_array();
    list.is_some_and(|list| list.iter().any(|c| c["type"] == kind && c["status"] == "True"))
}

fn pod(column: &str, object: &Value) -> Value {
    let (spec, status) = (&object["spec"], &object["status"]);
    let containers = status["containerStatuses"].as_array().map_or(&[][..], Vec::as_slice);
    match column {
        "Ready" => {
            let ready = containers.iter().filter(|c| c["ready"] == true).count();
            format!("{ready}/{}", spec["containers"].as_array().map_or(0, Vec::len)).into()
        }
        "Status" => pod_status(object, containers).into(),
        "Restarts" => containers.iter().map(|c| count(&c["restartCount"])).sum::<i64>().to_string().into(),
        "IP" => or_none(&status["podIP"]),
        _ => or_none(&spec["nodeName"]),
    }
}

fn pod_status(object: &Value, containers: &[Value]) -> String {
    if !object["metadata"]["deletionTimestamp"].is_null() {
        return "Terminating".to_owned();
    }
    let status = &object["status"];
    for container in containers {
        let state = &container["state"];
        for stage in ["waiting", "terminated"] {
            if let Some(reason) = state[stage]["reason"].as_str() {
                return reason.to_owned();
            }
        }
    }
    let text = status["reason"].as_str().or(status["phase"].as_str());
    text.unwrap_or("Unknown").to_owned()
}

fn job(column: &str, object: &Value) -> Value {
    let (spec, status) = (&object["spec"], &object["status"]);
    match column {
        "Status" => job_status(object).into(),
        "Completions" => match (spec["completions"].as_i64(), spec["parallelism"].as_i64()) {
            (Some(wanted), _) => format!("{}/{wanted}", count(&status["succeeded"])).into(),
            (None, Some(parallel)) if parallel > 1 => {
                format!("{}/1 of {parallel}", count(&status["succeeded"])).into()
            }
            _ => format!("{}/1", count(&status["succeeded"])).into(),
        },
        _ => {
            let time = |value: &Value| value.as_str().and_then(ident::parse_rfc3339);
            let Some(start) = time(&status["startTime"]) else { return "".into() };
            let end = time(&status["completionTime"]).unwrap_or_else(ident::unix_now);
            ident::human_duration(end - start).into()
        }
    }
}

fn job_status(object: &Value) -> &'static str {
    let status = &object["status"];
    for (kind, shown) in [("Complete", "Complete"), ("Failed", "Failed")] {
        if condition(status, kind) {
            return shown;
        }
    }
    if !object["metadata"]["deletionTimestamp"].is_null() {
        "Terminating"
    } else if condition(status, "Suspended") {
        "Suspended"
    } else if condition(status, "FailureTarget") {
        "FailureTarget"
    } else if condition(status, "SuccessCriteriaMet") {
        "SuccessCriteriaMet"
    } else {
        "Running"
    }
}

fn event(column: &str, object: &Value) -> Value {
    let involved = &object["involvedObject"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    match column {
        "Last Seen" => {
            let times =
                [&object["lastTimestamp"], &object["eventTime"], &object["metadata"]["creationTimestamp"]];
            times.into_iter().find(|t| t.is_string()).map_or(Value::Null, age)
        }
        "Type" => object["type"].clone(),
        "Reason" => object["reason"].clone(),
        "Object" => format!("{}/{}", text(&involved["kind"]).to_lowercase(), text(&involved["name"])).into(),
        _ => text(&object["message"]).trim().into(),
    }
}

fn service(column: &str, spec: &Value) -> Value {
    match column {
        "Type" => spec["type"].clone(),
        "Cluster-IP" => or_none(&spec["clusterIP"]),
        "External-IP" => "<none>".into(),
        _ => {
            let ports = spec["ports"].as_array().into_iter().flatten();
            let port =
                |p: &Value| format!("{}/{}", count(&p["port"]), p["protocol"].as_str().unwrap_or("TCP"));
            ports.map(port).collect::<Vec<_>>().join(",").into()
        }
    }
}

/// Follows the simple paths that definitions use: members, and elements by number or by one equality.
fn custom_cell(kind: &str, path: &str, object: &Value) -> Value {
    let mut value = object;
    for step in path.trim_start_matches('.').split('.') {
        let (name, index) = step.split_once('[').unwrap_or((step, ""));
        if !name.is_empty() {
            value = &value[name];
        }
        if let Some(index) = index.strip_suffix(']') {
            let Some(at) =
                index.parse::<usize>().ok().and_then(|at| value.get(at)).or_else(|| filtered(value, index))
            else {
                return Value::Null;
            };
            value = at;
        }
    }
    if kind == "date" { if value.is_null() { Value::Null } else { age(value) } } else { value.clone() }
}

fn filtered<'a>(list: &'a Value, filter: &str) -> Option<&'a Value> {
    let inner = filter.strip_prefix("?(@.")?.strip_suffix(')')?;
    let (member, wanted) = inner.split_once("==")?;
    let wanted = wanted.trim().trim_matches(['"', '\'']);
    list.as_array()?.iter().find(|e| e[member.trim()] == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apiserver::kinds::KindRegistry;

    #[test]
    fn a_job_is_shown_as_kubectl_knows_it() {
        let registry = KindRegistry::new(Vec::new());
        let kind = registry.find("batch", "v1", "jobs").unwrap();
        let job = json!({
            "metadata": {"name": "train", "creationTimestamp": ident::now()},
            "spec": {
                "completions": 1,
                "selector": {"matchLabels": {"a": "b"}},
                "template": {"spec": {"containers": [{"name": "t", "image": "train:1"}]}},
            },
            "status": {
                "succeeded": 1, "startTime": "2026-11-20T10:49:01Z", "completionTime": "2026-11-20T10:49:06Z",
                "conditions": [{"type": "Complete", "status": "True"}],
            },
        });
        let shown = cells(kind, &job);
        assert_eq!(shown[..4], [json!("train"), json!("Complete"), json!("1/1"), json!("5s")]);
        assert_eq!(shown[5..], [json!("t"), json!("train:1"), json!("a=b")]);
        assert_eq!(definitions(kind).as_array().unwrap().len(), shown.len());
    }

    #[test]
    fn paths_of_definitions_are_followed() {
        let object = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}], "n": [7]}});
        assert_eq!(custom_cell("string", ".status.conditions[0].status", &object), "True");
        assert_eq!(custom_cell("integer", ".status.n[0]", &object), 7);
        assert_eq!(custom_cell("string", ".none.at[3].all", &object), Value::Null);
    }
}
