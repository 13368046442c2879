//! Counts how often each verb was requested for each resource, so that a test can prove what a client did not
//! ask for.

use std::collections::BTreeMap;
use std::sync::Mutex;

use serde_json::Value;

use crate::apiserver::values::lock::locked;
use crate::apiserver::wire::incoming::IncomingRequest;

/// The most kinds of requests that are counted separately. Clients choose the paths, so their number must be
/// limited.
const KEYS: usize = 4096;

#[derive(Default)]
pub struct RequestCounts(Mutex<BTreeMap<String, u64>>);

impl RequestCounts {
    pub fn count(&self, key: &str) {
        let mut counts = locked(&self.0);
        if let Some(count) = counts.get_mut(key) {
            *count += 1;
        } else if counts.len() < KEYS {
            counts.insert(key.to_owned(), 1);
        }
    }

    pub fn to_value(&self) -> Value {
        locked(&self.0).iter().map(|(key, count)| (key.clone(), Value::from(*count))).collect()
    }
}

/// The key of a request, such as `list jobs.batch`, `watch pods` or `patch jobs.batch/status`. A list of one
/// item is a `list-one`: it asks for the server's version or for one old version. A longer list of an old
/// version is a `list-exact`. A watch that begins with the existing objects is a `list-stream`.
pub fn key(request: &IncomingRequest) -> String {
    let verb = match request.verb() {
        "list" if request.query.get("limit") == "1" => "list-one",
        "list" if request.query.get("resourceVersionMatch") == "Exact" => "list-exact",
        "watch" if request.query.get("sendInitialEvents") == "true" => "list-stream",
        verb => verb,
    };
    let mut key = format!("{verb} {}", request.path.resource);
    for (separator, part) in [('.', &request.path.group), ('/', &request.path.subresource)] {
        if !part.is_empty() {
            key.push(separator);
            key.push_str(part);
        }
    }
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_by_kind_and_the_kinds_have_an_end() {
        let requests = RequestCounts::default();
        for number in 0..KEYS + 10 {
            requests.count(&format!("list made-up-{number}"));
        }
        requests.count("list made-up-0");
        let counts = requests.to_value();
        assert_eq!(counts["list made-up-0"], 2);
        assert_eq!(counts.as_object().map(serde_json::Map::len), Some(KEYS));
    }
}
