//! Endpoints under `/_sim/` through which a test in another process makes things happen that a client cannot:
//! compaction, a forgotten watch window, broken watches, several deletions at one version.
//!
//! Off unless they are enabled.

use axum::body::Body;
use http::Response;
use serde_json::{Value, json};

use super::Shared;
use super::error::ApiError;
use super::query::Query;
use super::record::key;
use super::respond;
use super::store::{TableId, Truth};
use super::watching::Drop;

/// Answers `/_sim/{path}`.
pub fn handle(
    shared: &Shared,
    method: &http::Method,
    path: &str,
    query: &Query,
    body: &Value,
) -> Result<Response<Body>, ApiError> {
    let answer = match (method.as_str(), path) {
        ("POST", "compact") => json!({"floor": shared.store.compact(body["version"].as_u64())}),
        ("POST", "forget-watch-window") => {
            shared.store.forget_watch_window();
            json!({})
        }
        ("POST", "drop-watches") => {
            let how = match body["mode"].as_str() {
                None | Some("clean") => Drop::Clean,
                Some("abort") => Drop::Abort,
                Some("cut") => Drop::Cut,
                Some(other) => {
                    return Err(ApiError::bad_request(format!("mode {other}: clean, abort or cut")));
                }
            };
            json!({"watches": shared.drop_watches(how)})
        }
        ("POST", "delete-together") => {
            let table = table(shared, body["group"].as_str(), body["resource"].as_str())?;
            let namespace = body["namespace"].as_str().unwrap_or_default();
            let names = body["names"].as_array().into_iter().flatten().filter_map(Value::as_str);
            let keys: Vec<String> = names.map(|name| key(namespace, name)).collect();
            json!({"deleted": shared.store.remove_together(table, &keys), "version": shared.store.version()})
        }
        ("GET", "version") => json!({"version": shared.store.version()}),
        ("GET", "requests") => shared.requests.to_value(),
        ("GET", "history") => return history(shared, query),
        _ => return Err(ApiError::no_such_resource()),
    };
    Ok(respond::json(200, answer.to_string().into_bytes()))
}

fn table(shared: &Shared, group: Option<&str>, resource: Option<&str>) -> Result<TableId, ApiError> {
    shared.place(group.unwrap_or_default(), resource.unwrap_or_default(), "").map(|place| place.table)
}

fn history(shared: &Shared, query: &Query) -> Result<Response<Body>, ApiError> {
    let table = match query.get("resource") {
        "" => None,
        resource => Some(table(shared, Some(query.get("group")), Some(resource))?),
    };
    let (entries, dropped) = shared.store.truth(table);
    let mut lines = String::new();
    for entry in &entries {
        lines.push_str(&line(shared, entry).to_string());
        lines.push('\n');
    }
    let mut response = respond::with_type(200, "application/x-ndjson", lines.into_bytes());
    response.headers_mut().insert("x-dropped", dropped.into());
    Ok(response)
}

fn line(shared: &Shared, entry: &Truth) -> Value {
    json!({
        "type": entry.event.as_str(),
        "resourceVersion": entry.version.to_string(),
        "resource": shared.store.table_name(entry.table),
        "object": {"namespace": &*entry.namespace, "name": &*entry.name, "uid": &*entry.uid},
    })
}
