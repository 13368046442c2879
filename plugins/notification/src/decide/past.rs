//! Determines when a state's news happened. The first state of an object may show an end that is long past,
//! so its document is read for the time.

use kubewitness_sdk::{State, time};
use serde_json::Value;

/// The fields in which documents have the time of their end or of their beginning. The first existing one
/// counts.
pub const PLACES: [&str; 5] = [
    "/status/completionTime",
    "/status/finishedAt",
    "/status/endTime",
    "/status/conditions",
    "/metadata/creationTimestamp",
];

/// `values` are those at [`PLACES`]. A transition that was witnessed happened when it was observed.
pub fn happened_ms(state: &State, values: &[Value]) -> u64 {
    if state.previous.is_some() {
        return state.observed_ms;
    }
    let found = values.iter().find_map(|value| match value {
        Value::String(text) => time::parse(text),
        Value::Array(conditions) => conditions.iter().filter_map(changed_ms).max(),
        _ => None,
    });
    found.unwrap_or(state.observed_ms).min(state.observed_ms)
}

fn changed_ms(condition: &Value) -> Option<u64> {
    time::parse(condition["lastTransitionTime"].as_str()?)
}

#[cfg(test)]
mod tests {
    use kubewitness_sdk::testing;
    use serde_json::json;

    use super::*;

    #[test]
    fn the_first_look_at_an_object_asks_its_document_and_a_watched_transition_its_observation() {
        let mut state = testing::state(1, "a", "Failed");
        state.observed_ms = 1_798_761_599_000;
        let at = |values: &[Value]| happened_ms(&state, values);
        assert_eq!(at(&[json!("2026-12-31T23:00:00Z")]), 1_798_758_000_000);
        let conditions = json!([
            {"lastTransitionTime": "2026-12-31T22:00:00Z"},
            {"lastTransitionTime": "2026-12-31T23:00:00Z"},
            {"type": "Odd"},
        ]);
        assert_eq!(at(&[Value::Null, conditions, json!("2020-01-01T00:00:00Z")]), 1_798_758_000_000);
        assert_eq!(at(&[Value::Null, json!("not a time")]), state.observed_ms);
        assert_eq!(at(&[json!("2099-01-01T00:00:00Z")]), state.observed_ms, "no clock runs ahead");
        state.previous = Some(testing::status("Running"));
        assert_eq!(happened_ms(&state, &[json!("2026-12-31T23:00:00Z")]), state.observed_ms);
    }
}
