//! Counts the GPUs of an object from its document: the limits of its containers, times the pods that run at
//! once. It is read only if a phase changes, because a running object keeps its GPUs.

use kubewitness_sdk::{Error, State, documents};
use serde_json::Value as Json;

/// Values that are asked for at most.
pub const READS: usize = 2;

/// GPUs of one object. An object may claim any number; views multiply it by milliseconds.
pub const MOST: i64 = 1_000_000;

/// `None`: the object has no containers that the plugin knows to find, or no document.
pub fn count(state: &State, resource: &str) -> Result<Option<i64>, Error> {
    if state.object.kind == "Pod" {
        return Ok(value(state.seq, "/spec/containers")?
            .map(|containers| sum_limits(&containers, resource).min(MOST)));
    }
    let Some(containers) = value(state.seq, "/spec/template/spec/containers")? else { return Ok(None) };
    let at_once = value(state.seq, "/spec/parallelism")?.and_then(|number| number.as_i64()).unwrap_or(1);
    Ok(Some(sum_limits(&containers, resource).saturating_mul(at_once).clamp(0, MOST)))
}

fn value(seq: u64, pointer: &str) -> Result<Option<Json>, Error> {
    match documents::value(seq, pointer) {
        // It is counted as if the host had no document: the state itself must not fail for it, nor for a number that
        // no float can hold.
        Err(Error::TooLarge(_) | Error::Invalid(_)) => Ok(None),
        other => other,
    }
}

/// A quantity of devices is a whole number, and is written as a text.
fn sum_limits(containers: &Json, resource: &str) -> i64 {
    let of = |container: &Json| match container.get("resources")?.get("limits")?.get(resource)? {
        Json::String(text) => text.parse::<u32>().ok(),
        Json::Number(number) => number.as_u64().and_then(|number| u32::try_from(number).ok()),
        _ => None,
    };
    containers.as_array().into_iter().flatten().filter_map(of).map(i64::from).sum()
}
