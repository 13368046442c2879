//! The activity of other clients while the recordings were taken. A recording shows only what came of it;
//! each write here names the recorded version that its own stands for.

use serde_json::{Value, json};

use super::transcript::Transcript;

#[derive(Clone, Debug)]
pub enum Write {
    Post(String, Value, Option<u64>),
    Merge(String, Value, Option<u64>),
    Json(String, Value, Option<u64>),
    Delete(String),
    /// As the recording's server compacted: everything before a version, or all.
    Compact(Option<u64>),
}

const CONFIGMAPS: &str = "/api/v1/namespaces/rec4/configmaps";

fn configmap(name: &str, labels: &Value, data: &Value) -> Value {
    let mut map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data});
    if !labels.is_null() {
        map["metadata"]["labels"] = labels.clone();
    }
    map
}

/// The five objects of the lists.
fn pages() -> Vec<Write> {
    let page = |number: u64| {
        let labels = json!({"odd": (number % 2).to_string(), "page": "1"});
        let map = configmap(&format!("p{number}"), &labels, &json!({"i": number.to_string()}));
        Write::Post(CONFIGMAPS.to_owned(), map, Some(905 + number))
    };
    (0..5).map(page).collect()
}

/// Two writes to something that no recorded list shows.
fn elsewhere(name: &str) -> Vec<Write> {
    let path = "/api/v1/namespaces/default/configmaps";
    vec![
        Write::Post(path.to_owned(), configmap(name, &Value::Null, &json!({"n": "0"})), None),
        Write::Merge(format!("{path}/{name}"), json!({"data": {"n": "1"}}), None),
    ]
}

pub fn before(transcript: &Transcript, step: usize) -> Vec<Write> {
    match (transcript.name.as_str(), step) {
        ("list-pages", 0) => pages(),
        // Its lists were first at version 909, then at 911.
        ("list-pages", 8) => elsewhere("other"),
        ("list-expired", 0) => [pages(), elsewhere("other")].concat(),
        ("list-expired", 1) => vec![Write::Compact(Some(906))],
        ("walk-back", 1) => (1..=4).map(walk).collect(),
        ("walk-back", 7) => (5..=6).map(walk).chain([Write::Compact(None)]).collect(),
        ("watch-gone", 0) => [elsewhere("other"), elsewhere("another"), vec![Write::Compact(None)]].concat(),
        ("job-lifecycle", 2) => controllers(transcript),
        // Four writes later its table was asked for.
        ("job-lifecycle", 4) => [elsewhere("other"), elsewhere("another")].concat(),
        _ => Vec::new(),
    }
}

fn walk(number: u64) -> Write {
    Write::Merge(format!("{CONFIGMAPS}/wb"), json!({"data": {"n": number.to_string()}}), Some(1055 + number))
}

/// Returns the writes that happen once the watch of this step is open.
pub fn during(transcript: &str, step: usize) -> Vec<Write> {
    if (transcript, step) != ("watch", 1) {
        return Vec::new();
    }
    let w1 = || format!("{CONFIGMAPS}/w1");
    let change = |n: &str, version| Write::Merge(w1(), json!({"data": {"n": n}}), Some(version));
    let label =
        |w: &str, version| Write::Merge(w1(), json!({"metadata": {"labels": {"w": w}}}), Some(version));
    let create = |n: &str, version| {
        Write::Post(
            CONFIGMAPS.to_owned(),
            configmap("w1", &json!({"w": "1"}), &json!({"n": n})),
            Some(version),
        )
    };
    vec![
        create("0", 913),
        change("1", 914),
        change("2", 915),
        change("3", 916),
        Write::Delete(w1()),
        create("again", 918),
        label("2", 919),
        label("1", 920),
    ]
}

/// The Job controller and the kubelet of the recording: every version of the Job and its Pod,
/// in the order of their versions.
fn controllers(transcript: &Transcript) -> Vec<Write> {
    let frames = transcript.steps[2..4].iter().filter_map(|step| step.response.frames.as_ref()).flatten();
    let version = |frame: &Value| -> u64 {
        frame["object"]["metadata"]["resourceVersion"]
            .as_str()
            .and_then(|text| text.parse().ok())
            .unwrap_or_default()
    };
    let mut frames: Vec<_> = frames.collect();
    frames.sort_by_key(|frame| version(frame));
    let mut before = Value::Null;
    let mut writes = Vec::new();
    for frame in frames {
        let object = &frame["object"];
        let path = match object["kind"].as_str() {
            Some("Job") => "/apis/batch/v1/namespaces/rec4/jobs",
            _ => "/api/v1/namespaces/rec4/pods",
        };
        let one = format!("{path}/{}", object["metadata"]["name"].as_str().unwrap_or_default());
        match (frame["type"].as_str(), object["kind"].as_str()) {
            // Created by the recorded request.
            (Some("ADDED"), Some("Job")) => {}
            (Some("ADDED"), _) => {
                writes.push(Write::Post(path.to_owned(), pod_as_created(object), Some(version(frame))));
                before = object.clone();
            }
            (_, Some("Pod")) if object["status"] == before["status"] => {
                let patch = json!({"metadata": {"finalizers": null}});
                writes.push(Write::Merge(one, patch, Some(version(frame))));
            }
            _ => {
                let patch = json!([{"op": "add", "path": "/status", "value": object["status"]}]);
                writes.push(Write::Json(format!("{one}/status"), patch, Some(version(frame))));
                if object["kind"] == "Pod" {
                    before = object.clone();
                }
            }
        }
    }
    writes
}

/// Returns the Pod that the Job controller sent; the rest of the recorded Pod was filled in by the server.
fn pod_as_created(pod: &Value) -> Value {
    let metadata = &pod["metadata"];
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": metadata["name"],
            "generateName": metadata["generateName"],
            "labels": metadata["labels"],
            "ownerReferences": metadata["ownerReferences"],
            "finalizers": metadata["finalizers"],
        },
        "spec": {
            "restartPolicy": "Never",
            "containers": [{"name": "t", "image": "train:1", "command": ["sleep", "5"]}],
        },
    })
}
