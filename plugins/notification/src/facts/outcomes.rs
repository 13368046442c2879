//! Why an object ended badly: asked of the host where the operator grants `outcomes`, and put beside the facts of the state.
//! The host knows it some seconds after the end, so whoever asks early is told to wait. Nobody waits for long: a message
//! without a cause is better than none.

use kubewitness_sdk::Error;
use kubewitness_sdk::outcomes::{self, Explanation, Finding};
use serde_json::Value;

use super::{Facts, MESSAGE_BYTES, clip_text, is_set, text};

/// The word for the cause, as the host writes it.
pub const CAUSE: &str = "cause";
/// The clause for people.
pub const WHY: &str = "why";
/// The same, or the phase where there is no cause.
pub const SUMMARY: &str = "summary";
/// So long after the end a cause is waited for.
pub const PATIENCE_MS: u64 = 15_000;

/// Phases in which an object has ended badly, where it goes no further.
const BAD: [&str; 4] = ["Failed", "Preempted", "Cancelled", "Deleted"];

/// Whether the cause may be known later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CauseState {
    /// It is among the facts, or there is none to wait for.
    Settled,
    Pending,
}

/// Puts the cause beside the facts, if there is one. It costs a call to the host for a bad end, and nothing for any other
/// state.
pub fn add(facts: &mut Facts) -> CauseState {
    if !is_bad_end(facts) || !text(facts, WHY).is_empty() {
        return CauseState::Settled;
    }
    match outcomes::explain(text(facts, "source"), text(facts, "uid")) {
        Ok(Finding::Found(told)) => {
            keep_explanation(facts, &told);
            CauseState::Settled
        }
        Ok(Finding::Pending) | Err(Error::Unavailable(_) | Error::Timeout(_)) => CauseState::Pending,
        // Not granted, not kept, or of a later version.
        Ok(Finding::Nothing | Finding::Other(_)) | Err(_) => CauseState::Settled,
    }
}

fn keep_explanation(facts: &mut Facts, told: &Explanation) {
    let why = match told.doubt.is_empty() || told.headline.contains(&told.doubt) {
        true => told.headline.clone(),
        false => format!("{} ({})", told.headline, told.doubt),
    };
    facts.insert(CAUSE.to_string(), told.kind.clone().into());
    for name in [WHY, SUMMARY] {
        facts.insert(name.to_string(), clip_text(&why, MESSAGE_BYTES).into());
    }
}

/// A Pod's end is told by the job that owns it.
pub fn is_bad_end(facts: &Facts) -> bool {
    is_set(facts, "terminal") && BAD.contains(&text(facts, "phase")) && text(facts, "kind") != "Pod"
}

/// ` (out of memory)`, for a title. A deletion says so already, and what is not known says nothing.
pub fn in_brackets(facts: &Facts) -> String {
    match facts.get(CAUSE).and_then(Value::as_str) {
        None | Some("" | "unknown" | "deleted") => String::new(),
        Some(cause) => format!(" ({})", cause.replace('-', " ")),
    }
}
