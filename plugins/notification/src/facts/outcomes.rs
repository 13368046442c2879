//! Adds to a state's facts why its object ended badly, as the host explains it with the grant `outcomes`. The
//! host knows the cause some seconds after the end, so an earlier request gets the advice to wait. The wait
//! is short: a message without a cause is better than none.

use kubewitness_sdk::Error;
use kubewitness_sdk::outcomes::{self, Explanation, Finding};
use serde_json::Value;

use super::{Facts, MESSAGE_BYTES, clip_text, is_set, text};

/// The word for the cause, as the host writes it.
pub const CAUSE: &str = "cause";
/// The cause as a clause for people.
pub const WHY: &str = "why";
/// The same, or the phase if there is no cause.
pub const SUMMARY: &str = "summary";
/// How long after the end a cause is waited for.
pub const PATIENCE_MS: u64 = 15_000;

/// Phases in which an object has ended badly, if they are terminal.
const BAD: [&str; 4] = ["Failed", "Preempted", "Cancelled", "Deleted"];

/// Whether the cause may be known later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CauseState {
    /// The facts contain it, or nothing is to be waited for.
    Settled,
    Pending,
}

/// Adds the cause to the facts, if there is one. For a bad end this calls the host; any other state costs
/// nothing.
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
        // The grant is missing, the outcome is not kept any more, or its form is of a later version.
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

/// A Pod's end is reported with the Job that owns it.
pub fn is_bad_end(facts: &Facts) -> bool {
    is_set(facts, "terminal") && BAD.contains(&text(facts, "phase")) && text(facts, "kind") != "Pod"
}

/// ` (out of memory)`, for a title. A deletion names its cause already, and an unknown cause adds nothing.
pub fn in_brackets(facts: &Facts) -> String {
    match facts.get(CAUSE).and_then(Value::as_str) {
        None | Some("" | "unknown" | "deleted") => String::new(),
        Some(cause) => format!(" ({})", cause.replace('-', " ")),
    }
}
