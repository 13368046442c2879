//! How often each verb was asked of each resource, so that a test can say what a client did not ask for.

use std::collections::BTreeMap;
use std::sync::Mutex;

use serde_json::Value;

use crate::apiserver::values::lock::locked;
use crate::apiserver::wire::incoming::Incoming;

/// Kinds of requests that are told apart. Paths are a client's to choose, so there must be an end.
const KEYS: usize = 4096;

#[derive(Default)]
pub struct Requests(Mutex<BTreeMap<String, u64>>);

impl Requests {
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

/// Such as `list jobs.batch`, `watch pods` or `patch jobs.batch/status`. A list of one item, which asks how far
/// the server is or for one old version, is a `list-one`; a longer one of an old version, a `list-exact`; a watch
/// that begins with what is there, a `list-stream`.
pub fn key(request: &Incoming) -> String {
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
        let requests = Requests::default();
        for number in 0..KEYS + 10 {
            requests.count(&format!("list made-up-{number}"));
        }
        requests.count("list made-up-0");
        let counts = requests.to_value();
        assert_eq!(counts["list made-up-0"], 2);
        assert_eq!(counts.as_object().map(serde_json::Map::len), Some(KEYS));
    }
}
