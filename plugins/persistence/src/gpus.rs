//! Counts the GPUs of an object from its document: the limits of its containers, times the pods that run at
//! once. The document is read only if a phase changes, because a running object keeps its GPUs.

use kubewitness_sdk::{Error, State, documents};
use serde_json::Value as Json;

/// The most values that are read from a document.
pub const MOST_READS: usize = 2;

/// The most GPUs of one object. An object may claim any number, and views multiply it by milliseconds.
pub const MOST_GPUS: i64 = 1_000_000;

/// `None` if the object has no document, or no containers at the places that the plugin knows.
pub fn count(state: &State, resource: &str) -> Result<Option<i64>, Error> {
    if state.object.kind == "Pod" {
        return Ok(value(state.seq, "/spec/containers")?
            .map(|containers| sum_limits(&containers, resource).min(MOST_GPUS)));
    }
    let Some(containers) = value(state.seq, "/spec/template/spec/containers")? else { return Ok(None) };
    let at_once = value(state.seq, "/spec/parallelism")?.and_then(|number| number.as_i64()).unwrap_or(1);
    Ok(Some(sum_limits(&containers, resource).saturating_mul(at_once).clamp(0, MOST_GPUS)))
}

fn value(seq: u64, pointer: &str) -> Result<Option<Json>, Error> {
    match documents::value(seq, pointer) {
        // An unreadable value counts as a missing document: neither it nor a number that no float can hold
        // may make the state fail.
        Err(Error::TooLarge(_) | Error::Invalid(_)) => Ok(None),
        other => other,
    }
}

/// A number of devices is an integer, written as a text.
fn sum_limits(containers: &Json, resource: &str) -> i64 {
    let of = |container: &Json| match container.get("resources")?.get("limits")?.get(resource)? {
        Json::String(text) => text.parse::<u32>().ok(),
        Json::Number(number) => number.as_u64().and_then(|number| u32::try_from(number).ok()),
        _ => None,
    };
    containers.as_array().into_iter().flatten().filter_map(of).map(i64::from).sum()
}
