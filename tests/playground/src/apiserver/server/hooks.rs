//! Endpoints under `/_sim/`, with which a test in another process causes events that a client can't cause.
//!
//! They are off by default. Bodies and answers are JSON. A hook for one server applies to the server that is
//! asked, unless the body names another one of the cluster (`"server": 1`).
//!
//! | hook | body | what it does |
//! |---|---|---|
//! | `POST compact` | `version`, `keepWindows` | forgets versions before that one (or now); watch windows too, unless kept |
//! | `POST forget-watch-window` | | watches from before now expire, lists at old versions still work |
//! | `POST drop-watches` | `mode`: clean, abort, cut | ends every open watch |
//! | `POST goaway` | | asks clients to make new connections; requests that are open go on |
//! | `POST delete-together` | `group`, `resource`, `namespace`, `names` | several deletions at one version |
//! | `POST hold` | `version` | holds the server's cache there (or now), behind the store |
//! | `POST release` | | lets the cache catch up |
//! | `POST power` | `on`: bool, `backAfterMs` | breaks the server's connections and refuses new ones; brings it back, with an empty window |
//! | `POST backup` | `name` | copies everything, as a backup of etcd |
//! | `POST restore` | `name`, `bump` | goes back to a copy: a new history at its version (plus `bump`); watches break, windows empty |
//! | `POST faults` | a fault, or a list of them: see the table of [`crate::apiserver::faults`] | arms them on the server |
//! | `DELETE faults` | | disarms all of the server |
//! | `GET faults` | | how many are armed |
//! | `GET version` | | the newest version, and the one in the server's cache |
//! | `GET servers` | | the servers of the cluster: address, up or down, cached version |
//! | `GET truth` | query: `group`, `resource` | every version of every object over all histories, and since when it can be read no longer |
//! | `GET history` | query: `group`, `resource` | every version of every object, one line each |
//! | `GET requests` | | how often each verb was asked of each resource |
//! | `GET protocols` | | how many requests for objects came over HTTP/1.1 and HTTP/2 |

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use http::Response;
use serde_json::{Value, json};

use crate::apiserver::cluster::front::{ServerFront, ServerPower, WatchDrop};
use crate::apiserver::cluster::shared::SharedCluster;
use crate::apiserver::cluster::truth::ResourceTruth;
use crate::apiserver::faults::InjectedFault;
use crate::apiserver::store::record::key;
use crate::apiserver::store::{TableId, VersionTruth as Entry, WindowPolicy};
use crate::apiserver::wire::error::ApiError;
use crate::apiserver::wire::query::QueryParameters;
use crate::apiserver::wire::respond;

/// Answers `/_sim/{path}`.
pub fn handle(
    front: &Arc<ServerFront>,
    method: &http::Method,
    path: &str,
    query: &QueryParameters,
    body: &Value,
) -> Result<Response<Body>, ApiError> {
    let front = &named(front, body)?;
    let shared: &SharedCluster = front;
    let answer = match (method.as_str(), path) {
        ("POST", "compact") => {
            let windows = if body["keepWindows"] == true { WindowPolicy::Keep } else { WindowPolicy::Forget };
            json!({"floor": shared.store.compact(body["version"].as_u64(), windows)})
        }
        ("POST", "forget-watch-window") => {
            front.forget_watch_window();
            json!({})
        }
        ("POST", "goaway") => {
            front.goaways.send_replace(());
            json!({})
        }
        ("POST", "hold") => json!({"version": front.hold(body["version"].as_u64())}),
        ("POST", "release") => {
            front.release();
            json!({"version": front.cached_version()})
        }
        ("POST", "power") => power(front, body)?,
        ("POST", "backup") => json!({"version": shared.store.back_up(name(body)?)}),
        ("POST", "restore") => {
            let restored = shared.restore(name(body)?, body["bump"].as_u64().unwrap_or(0));
            let version = restored.ok_or_else(|| ApiError::bad_request("there is no backup of that name"))?;
            json!({"version": version, "epoch": shared.store.epoch()})
        }
        ("POST", "faults") => arm(front, body)?,
        ("DELETE", "faults") => json!({"disarmed": front.faults.disarm()}),
        ("GET", "faults") => json!({"armed": front.faults.armed()}),
        ("GET", "truth") => ResourceTruth::of(shared, query.get("group"), query.get("resource")).to_value(),
        ("GET", "servers") => shared.fronts().iter().map(|front| server(front)).collect(),
        ("POST", "drop-watches") => {
            let how = match body["mode"].as_str() {
                None | Some("clean") => WatchDrop::Clean,
                Some("abort") => WatchDrop::Abort,
                Some("cut") => WatchDrop::Cut,
                Some(other) => {
                    return Err(ApiError::bad_request(format!("mode {other}: clean, abort or cut")));
                }
            };
            json!({"watches": front.drop_watches(how)})
        }
        ("POST", "delete-together") => {
            let table = table(shared, body["group"].as_str(), body["resource"].as_str())?;
            let namespace = body["namespace"].as_str().unwrap_or_default();
            let names = body["names"].as_array().into_iter().flatten().filter_map(Value::as_str);
            let keys: Vec<String> = names.map(|name| key(namespace, name)).collect();
            json!({"deleted": shared.store.remove_together(table, &keys), "version": shared.store.version()})
        }
        ("GET", "version") => json!({"version": shared.store.version(), "cached": front.cached_version()}),
        ("GET", "requests") => shared.requests.to_value(),
        ("GET", "protocols") => shared.protocols.to_value(),
        ("GET", "history") => return history(shared, query),
        _ => return Err(ApiError::no_such_resource()),
    };
    Ok(respond::json(200, answer.to_string().into_bytes()))
}

/// The server that a body names, or the one that was asked.
fn named(front: &Arc<ServerFront>, body: &Value) -> Result<Arc<ServerFront>, ApiError> {
    let Some(number) = body["server"].as_u64() else { return Ok(Arc::clone(front)) };
    let found = front.fronts().into_iter().find(|other| other.number as u64 == number);
    found.ok_or_else(|| ApiError::bad_request(format!("there is no server {number}")))
}

/// The requesting connection may be among those that break, so the answer is sent first.
const BREAK_AFTER: Duration = Duration::from_millis(50);

fn power(front: &ServerFront, body: &Value) -> Result<Value, ApiError> {
    let power = match body["on"].as_bool() {
        Some(true) => ServerPower::On,
        Some(false) => {
            let back = body["backAfterMs"].as_u64().map(Duration::from_millis);
            ServerPower::Off { after: BREAK_AFTER, back }
        }
        None => return Err(ApiError::bad_request("on: true or false")),
    };
    front.power.send_replace(power);
    Ok(json!({}))
}

fn server(front: &ServerFront) -> Value {
    json!({
        "server": front.number,
        "address": front.address.to_string(),
        "up": *front.up.borrow(),
        "cached": front.cached_version(),
    })
}

/// Arms all of them, or none if one is invalid.
fn arm(front: &ServerFront, body: &Value) -> Result<Value, ApiError> {
    let documents = body.as_array().map_or(std::slice::from_ref(body), Vec::as_slice);
    let faults: Result<Vec<InjectedFault>, String> = documents.iter().map(InjectedFault::parse).collect();
    for fault in faults.map_err(ApiError::bad_request)? {
        if !front.faults.arm(fault) {
            return Err(ApiError::bad_request("too many faults are armed"));
        }
    }
    Ok(json!({"armed": front.faults.armed()}))
}

fn name(body: &Value) -> Result<&str, ApiError> {
    body["name"].as_str().ok_or_else(|| ApiError::bad_request("name: what the backup is called"))
}

fn table(shared: &SharedCluster, group: Option<&str>, resource: Option<&str>) -> Result<TableId, ApiError> {
    shared.place(group.unwrap_or_default(), resource.unwrap_or_default(), "").map(|place| place.table)
}

fn history(shared: &SharedCluster, query: &QueryParameters) -> Result<Response<Body>, ApiError> {
    let table = match query.get("resource") {
        "" => None,
        resource => Some(table(shared, Some(query.get("group")), Some(resource))?),
    };
    let account = shared.store.account(table);
    let (entries, dropped) = (account.entries, account.dropped);
    let mut lines = String::new();
    for entry in &entries {
        lines.push_str(&line(shared, entry).to_string());
        lines.push('\n');
    }
    let mut response = respond::with_type(200, "application/x-ndjson", lines.into_bytes());
    response.headers_mut().insert("x-dropped", dropped.into());
    Ok(response)
}

fn line(shared: &SharedCluster, entry: &Entry) -> Value {
    json!({
        "type": entry.event.as_str(),
        "epoch": entry.epoch,
        "resourceVersion": entry.version.to_string(),
        "resource": shared.store.table_name(entry.table),
        "object": {"namespace": &*entry.namespace, "name": &*entry.name, "uid": &*entry.uid},
    })
}
